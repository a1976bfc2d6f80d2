# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verifier without a job: asks a node by a file, and judges its answer as `run` would.

Rules:

1. appraiser, policy and tier rule are those of `run`; what only a running verifier knows (leases,
   revocations, the TPM's last clock, how many unattested nodes are in) plays no part;
2. a refusal is a result here, with its code; reference values or a cache that cannot be used are an
   error, for then nothing was judged;
3. three ends: everything that the policy asks for was proven (0), refused (the refusal's code), or
   something stays open (3), which is never a pass;
4. an EAR is signed for what was proven, never for what stays open.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from securetrain.attest.fleet.bundle import Bundle, Secret, Verdict, make_question, verify_bundle
from securetrain.attest.session.appraisers import appraisers_for
from securetrain.attest.session.state import FileState, StateStore
from securetrain.core import ExitCode, RunDir
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.files import write_atomic
from securetrain.evidence import NODE_TYPE, SELF_ASSERTED_TYPE, Appraiser, check_tier
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.policy.load import LoadedPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The outcome for a bundle: a verdict or a refusal."""

    bundle: Bundle
    verdict: Verdict | None = None
    """What was proven."""
    exception: str = ""
    """The policy's reason for letting a node in that has proven nothing."""
    refusal: AttestationError | None = None

    @property
    def proven(self) -> bool:
        """Tell whether everything was."""
        return self.verdict is not None and not self.verdict.open

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that a command ends with."""
        if self.refusal is not None:
            return self.refusal.exit_code
        return ExitCode.OK if self.proven else ExitCode.INCOMPLETE


def ask(bundle: Bundle, policy: LoadedPolicy, now: datetime, state: StateStore) -> Secret:
    """A question to the node that a bundle is of.

    Args:
        bundle: an earlier bundle of the node.
        policy: as loaded from its files.
        now: the time, timezone-aware.
        state: knows the newest reference values and cache.

    Raises:
        AttestationError: ST-ATTS-006 and 009; 012 and 1xx when its TPM may not join.
    """
    return make_question(bundle, _appraiser(bundle, policy, now, state), now)


def judge(
    bundle: Bundle,
    policy: LoadedPolicy,
    *,
    secret: Secret | None,
    now: datetime,
    state: StateStore,
) -> Judgement:
    """Judge a bundle.

    Args:
        bundle: the evidence.
        policy: as loaded from its files.
        secret: of the question that it answers; None when the node asked itself.
        now: the time of the check, timezone-aware.
        state: knows the newest reference values and cache; an empty one where old evidence is
            judged by the values of its time.

    Raises:
        AttestationError: ST-ATTS-009, 3xx or 7xx when reference values or cache cannot be used.
    """
    appraiser = _appraiser(bundle, policy, now, state)
    node = policy.policy.node
    try:
        verdict = verify_bundle(
            bundle,
            appraiser,
            secret=secret,
            policy=policy.digest,
            lease=timedelta(minutes=node.lease_minutes),
            now=now,
        )
        exception = check_tier(node, verdict.result.tier, bundle.node, now)
    except AttestationError as error:
        return Judgement(bundle=bundle, refusal=error)
    reason = exception.reason if exception is not None else ""
    return Judgement(bundle=bundle, verdict=verdict, exception=reason)


def write_ear(path: Path, judgement: Judgement, key: PrivateKey) -> bool:
    """Write the result as a signed EAR, if everything was proven.

    Args:
        path: the file.
        judgement: of a bundle.
        key: the verifier's, P-256.

    Returns:
        Whether it was written.

    Raises:
        UsageError: ST-USAG-001 for a key of another kind.
    """
    if key.kind is not KeyKind.P256:
        raise UsageError(
            "ST-USAG-001",
            f"the key is {key.kind}, an EAR is signed with ES256",
            "--sign-key",
            f"make one: securetrain attest keygen --kind {KeyKind.P256} FILE",
        )
    verdict = judgement.verdict
    if verdict is None or verdict.open:
        return False
    write_atomic(path, verdict.result.sign(key).encode() + b"\n")
    return True


def open_state(place: Path) -> FileState:
    """Open what the verifier of a run must not forget; the run may be over or still running.

    Args:
        place: a run's directory, or the file in it.

    Raises:
        UsageError: ST-USAG-002 when there is none.
        AttestationError: ST-ATTS-015.
    """
    path = RunDir(place).attestation if place.is_dir() else place
    if not path.is_file():
        raise UsageError(
            "ST-USAG-002",
            "no verifier has kept anything here",
            str(path),
            "name the directory of a run on the machine that coordinated it",
        )
    return FileState(path)


def _appraiser(bundle: Bundle, policy: LoadedPolicy, now: datetime, state: StateStore) -> Appraiser:
    """The appraiser for bundles of this kind under a policy."""
    known = appraisers_for(policy, now, state)
    if bundle.keys is not None or bundle.media_type == NODE_TYPE:
        if NODE_TYPE not in known:
            raise AttestationError(
                "ST-ATTS-009",
                f"hardware speaks for the node, and {policy.policy.metadata.id} names no reference"
                " values to judge it by",
                "node.reference_values",
                "enroll the node (securetrain attest enroll), and name the file in the policy",
            )
        return known[NODE_TYPE]
    if bundle.media_type != SELF_ASSERTED_TYPE:
        raise AttestationError(
            "ST-ATTS-006",
            f"evidence of type {bundle.media_type!r}",
            f"node {bundle.node}",
            f"send one of {', '.join(sorted(known))}",
        )
    return known[SELF_ASSERTED_TYPE]
