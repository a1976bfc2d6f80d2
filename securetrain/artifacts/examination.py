# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Everything that can be found out about one artifact, in one call.

Rules for a checkpoint or dataset, in order:

1. the artifact is verified, as the one that was asked for, with what this machine knows besides it:
   waivers and floors;
2. a scan and the chain are added where they are asked for; where the chain breaks is a problem of
   the artifact. In an artifact that verifies, what the scanner does not know is data: the native
   format reads it as numbers and bytes, all of which were signed;
3. what held in all of that is remembered in the floors, so that nothing older counts from now on;
   an artifact that is older than what they know is refused by that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from securetrain.artifacts.kinds import bundle_of
from securetrain.artifacts.lineage import freshness
from securetrain.artifacts.lineage.floors import Floors
from securetrain.artifacts.lineage.freshness import Freshness
from securetrain.artifacts.lineage.logged import LogProof
from securetrain.artifacts.lineage.waivers import LIMIT as WAIVER_LIMIT
from securetrain.artifacts.lineage.walk import Link, look_beside, problems, walk_back
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.rules import expected_by
from securetrain.artifacts.statement.statements import CheckpointPredicate, DatasetPredicate
from securetrain.artifacts.tree.layout import Kind
from securetrain.artifacts.tree.problems import Problem
from securetrain.artifacts.verify import Shows, VerifyResult, verify_path
from securetrain.core.errors import IntegrityError
from securetrain.core.files import read_file
from securetrain.identity.log import LIMIT as PROOF_LIMIT
from securetrain.identity.trust import TrustRoot
from securetrain.policy.load import LoadedPolicy

if TYPE_CHECKING:
    from securetrain.artifacts.model.oms.model import ModelResult, Scope
    from securetrain.artifacts.model.oms.signers import ModelRoots
    from securetrain.artifacts.scan.findings import ScanResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The questions about an artifact beyond its signature and its bytes."""

    log_proof: Path | None = None
    waivers: Sequence[Path] = ()
    floors: Path | None = None
    expect: Expectation | None = None
    scan: bool = False
    walk: bool = False
    places: Sequence[Path] = ()
    """Where the chain's other artifacts are; by default, the two folders above the artifact."""
    data: TrustRoot | None = None
    """The keys that may sign its datasets, where the trust root does not name them."""
    shows: Shows | None = None
    """Judges the tiers of its nodes by evidence."""
    links: Callable[[VerifyResult, Link], Sequence[Problem]] | None = None
    """Judges the artifact by evidence, with what it was made from as far as that was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The answers."""

    result: VerifyResult
    policy: LoadedPolicy | None
    scanned: "ScanResult | None"
    chain: Link | None
    asked: Sequence[Expectation] = ()
    """What was expected of it, by the caller and by the policy."""

    @property
    def not_asked(self) -> tuple[str, ...]:
        """The fields that would say which artifact this is, and that nobody gave."""
        fields: tuple[str, ...] = ("name", "digest", "signer")
        if self.result.kind is Kind.CHECKPOINT:
            fields = ("run", "step", "dataset", "policy", *fields)
        given = {
            name.removeprefix("min_")
            for one in self.asked
            for name, value in msgspec.structs.asdict(one).items()
            if value is not None
        }
        return tuple(field for field in fields if field not in given)


def examine(
    path: Path | str,
    wanted: Wanted,
    *,
    trust: TrustRoot,
    policy: LoadedPolicy | None,
    now: datetime,
    progress: Callable[[int, int], None] | None = None,
) -> Examined:
    """Verify the artifact at `path`, and find out what else is `wanted`."""
    proof = None if wanted.log_proof is None else LogProof(read_file(wanted.log_proof, PROOF_LIMIT))
    result = verify_path(
        path,
        trust=trust,
        policy=policy.policy if policy else None,
        now=now,
        progress=progress,
        known=_known(wanted),
        log_proof=proof,
        expect=wanted.expect,
        shows=wanted.shows,
    )
    scanned = _scanned(Path(path)) if wanted.scan else None
    if scanned is not None and result.ok:
        scanned = scanned.among_data()
    chain = None
    if wanted.walk or wanted.places:
        result, chain = _followed(result, trust, wanted)
    if wanted.links is not None and result.opened is not None:
        near = chain or look_beside(result.path, result.opened, trust, wanted.data)
        result = replace(result, problems=(*result.problems, *wanted.links(result, near)))
    if result.ok and wanted.floors is not None:
        result = _remembered(result, Floors(wanted.floors), trust)
    asked = _asked(result, wanted.expect, policy)
    return Examined(result=result, policy=policy, scanned=scanned, chain=chain, asked=asked)


def examine_model(
    path: Path,
    bundle: Path | None,
    roots: "ModelRoots",
    now: datetime,
    *,
    scope: "Scope | None" = None,
    scan: bool,
    expect: Expectation | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "tuple[ModelResult, ScanResult | None]":
    """Verify a model in the format of OpenSSF Model Signing, and scan it when asked to.

    Raises:
        UsageError: ST-USAG-001 without exactly one kind of root, or with several bundles.
    """
    from securetrain.artifacts.model.oms.manifest import check_bundle  # noqa: PLC0415 - as asked
    from securetrain.artifacts.model.oms.model import verify_model  # noqa: PLC0415 - as asked

    trust = roots.read(str(path))
    path, bundle = (path, bundle) if bundle else bundle_of(path)
    result = verify_model(path, bundle, trust, now, scope=scope, progress=progress)
    if result.payload:
        result.problems += check_bundle(expect, result.payload, str(bundle))
    return result, _scanned(path) if scan else None


def _scanned(path: Path) -> "ScanResult":
    from securetrain.artifacts.scan.scanner import scan_path  # noqa: PLC0415 - as asked

    return scan_path(path)


def _asked(
    result: VerifyResult, expect: Expectation | None, policy: LoadedPolicy | None
) -> list[Expectation]:
    """Everything that was expected: a policy speaks of checkpoints only."""
    found = [expect]
    if policy is not None and result.kind is Kind.CHECKPOINT:
        found.append(expected_by(policy.policy))
    return [one for one in found if one is not None]


def _known(wanted: Wanted) -> Freshness | None:
    """Read what this machine knows besides the artifact; None when nothing was given."""
    if not wanted.waivers and wanted.floors is None:
        return None
    floors = None if wanted.floors is None else Floors(wanted.floors)
    waivers = tuple(read_file(path, WAIVER_LIMIT) for path in wanted.waivers)
    return Freshness(floors=floors, waivers=waivers)


def _remembered(result: VerifyResult, floors: Floors, trust: TrustRoot) -> VerifyResult:
    """Rule 3."""
    opened = result.opened
    if opened is None:
        return result
    match opened.predicate:
        case CheckpointPredicate():
            freshness.remember(opened, floors)
        case DatasetPredicate() as predicate:
            from securetrain.artifacts.dataset.verified import check_floor  # noqa: PLC0415 - of these

            try:
                check_floor(floors, predicate, opened.digest, trust, str(result.path))
            except IntegrityError as error:
                return replace(result, problems=(Problem(code=error.code, what=error.what),))
    return result


def _followed(
    result: VerifyResult, trust: TrustRoot, wanted: Wanted
) -> tuple[VerifyResult, Link | None]:
    """The result with where the chain breaks, and the chain; none without a statement."""
    if result.opened is None:
        return result, None
    folder = Path(result.path).absolute().parent
    near = wanted.places or [folder, folder.parent]
    chain = walk_back(result.path, result.opened, trust, near, wanted.data)
    return replace(result, problems=(*result.problems, *problems(chain))), chain
