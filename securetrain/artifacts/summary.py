# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verification summary: what one verifier found, for those who trust it and do not verify again.

It is an in-toto statement of SLSA's Verification Summary Attestation
(https://slsa.dev/spec/v1.1/verification_summary) about the artifact's digest. Rules, in order:

1. the result is PASSED only when verifying ended with exit code 0;
2. the levels are computed from what was verified, and a failed summary has none:
   ``SECURETRAIN_L1`` every byte is as a trusted key signed it; ``SECURETRAIN_L2`` also a policy
   was given and held, and the statement names run, dataset and policy (a dataset: it held);
   ``SECURETRAIN_L3`` also results that the coordinator signed show that every node that took
   part proved itself by hardware; the statement's own word on that counts for nothing;
3. it always names a policy, as SLSA asks: without one of the user's, the policy is the one that
   every artifact is held to (`INTEGRITY`), whose digest is that of its words;
4. without a statement that verifies there is no digest, so there is nothing to make a summary of.

What is verified elsewhere comes as a `Summed` and ends in the same words (of a pack:
`chain.summary`).
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final

from securetrain import __version__
from securetrain.artifacts.statement.statements import DIGEST_NAME, CheckpointPredicate
from securetrain.artifacts.tree.layout import Kind
from securetrain.artifacts.verify import VerifyResult
from securetrain.core import canonical
from securetrain.core.errors import UsageError
from securetrain.core.files import write_atomic
from securetrain.core.vocabulary import NodeTier
from securetrain.identity import STATEMENT_TYPE, dsse
from securetrain.identity.keys import Signer
from securetrain.policy.load import LoadedPolicy

PREDICATE_TYPE: Final = "https://slsa.dev/verification_summary/v1"
VERIFIER_ID: Final = "https://securetrain.dev/verify"
INTEGRITY_WORDS: Final = (
    "Every byte is as a key signed it that the trust root names for this kind of artifact. "
    "Nothing else was asked."
)
LEVELS: Final = ("SECURETRAIN_L1", "SECURETRAIN_L2", "SECURETRAIN_L3")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUsed:
    """The policy that an artifact was verified against."""

    uri: str
    digest: str
    """SHA-256, hex."""


INTEGRITY: Final = PolicyUsed(
    uri=f"{VERIFIER_ID}/integrity/v1",
    digest=hashlib.sha256(INTEGRITY_WORDS.encode()).hexdigest(),
)
"""The policy of an artifact that was verified without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """The outcome of a verification, of which a summary is made."""

    kind: Kind
    path: Path | str
    """Where it lies; its last part is the subject's name."""
    digest: str
    """Of the artifact; empty when no statement of it verifies."""
    ok: bool
    levels: tuple[str, ...]
    """The levels that were reached; none where it is not `ok`."""
    otherwise: PolicyUsed = INTEGRITY
    """The policy where no other one was given."""


def policy_used(policy: LoadedPolicy | None) -> PolicyUsed | None:
    """A policy as a summary names it."""
    if policy is None:
        return None
    return PolicyUsed(uri=policy.policy.metadata.id, digest=policy.digest)


def levels(result: VerifyResult, policy: PolicyUsed | None) -> tuple[str, ...]:
    """Rule 2."""
    if not result.ok:
        return ()
    said = result.statement
    reached = 1
    if policy is not None:
        reached = 2
        if isinstance(said, CheckpointPredicate):
            named = said.run_id and said.dataset.digest and said.policy.digest
            tiers = result.shown.tiers
            shown = [tiers.get(node.node, NodeTier.SELF_ASSERTED) for node in said.nodes]
            proven = bool(shown) and min(shown) >= NodeTier.VTPM
            reached = 1 if not named else 3 if proven else 2
    return LEVELS[:reached]


def summarize(
    result: VerifyResult, policy: PolicyUsed | None, now: datetime, *, passed: bool = True
) -> bytes:
    """The summary of a directory, not signed; see `state`."""
    found = Summed(
        kind=result.kind,
        path=result.path,
        digest=result.digest,
        ok=result.ok,
        levels=levels(result, policy),
    )
    return state(found, policy, now, passed=passed)


def state(
    result: Summed, policy: PolicyUsed | None, now: datetime, *, passed: bool = True
) -> bytes:
    """The summary as an in-toto statement, not signed.

    Args:
        result: What verifying found.
        policy: What was asked besides integrity and signature.
        now: When it was verified, with a time zone.
        passed: False when something besides `result` was asked for and did not hold (a scan).

    Raises:
        UsageError: ST-USAG-001, rule 4.
    """
    passed = passed and result.ok
    if not result.digest:
        raise UsageError(
            "ST-USAG-001",
            "no statement of it verifies, so there is no digest to write a summary about",
            str(result.path),
            "leave out --vsa; the exit code and --format json say what was found",
        )
    predicate: dict[str, Any] = {
        "verifier": {"id": VERIFIER_ID, "version": {"securetrain": __version__}},
        "timeVerified": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "resourceUri": f"urn:securetrain:{result.kind}:{result.digest}",
        "verificationResult": "PASSED" if passed else "FAILED",
        "verifiedLevels": list(result.levels) if passed else [],
    }
    held = result.otherwise if policy is None else policy
    predicate["policy"] = {"uri": held.uri, "digest": {"sha256": held.digest}}
    return canonical.dumps(
        {
            "_type": STATEMENT_TYPE,
            "subject": [
                {
                    "name": PurePosixPath(str(result.path)).name,
                    "digest": {DIGEST_NAME: result.digest},
                }
            ],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
    )


def sign(summary: bytes, key: Signer) -> bytes:
    """The summary in a DSSE envelope."""
    return dsse.sign(summary, dsse.IN_TOTO, [key], keyless=True)


def write_summary(target: Path, summary: bytes, key: Signer | None = None) -> None:
    """Write a summary to a new file, signed when there is a key.

    Raises:
        UsageError: ST-USAG-005 when the file exists.
    """
    write_atomic(target, summary if key is None else sign(summary, key), replace=False)
