# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verification summary: what one verifier found, for those who trust it and do not verify again.

It is an in-toto statement of SLSA's Verification Summary Attestation
(https://slsa.dev/spec/v1.1/verification_summary) about the artifact's digest. Rules, in order:

1. the result is PASSED only when verifying ended with exit code 0;
2. the levels are computed from what was verified, in a directory as in a pack, and from nothing
   that a statement says; a failed summary has none. ``SECURETRAIN_L1`` every byte is as a trusted
   key signed it; ``SECURETRAIN_L2`` also a policy was given and held, and of a checkpoint the links
   ``policy`` and ``dataset`` are verified; ``SECURETRAIN_L3`` also ``nodes``, with hardware behind
   every node. Each link of the checkpoint that is verified has its own, ``SECURETRAIN_LINK_NODES``
   and so on; what its ancestors had to show is the policy's, which the summary names;
3. a pack has L1 to L3 only with the weights, all of which were compared with what was signed;
4. it always names a policy, as SLSA asks: without one of the user's, the policy is the one that
   every artifact is held to (`INTEGRITY`, of a pack `CHAIN`), whose digest is that of its words;
5. without a statement that verifies there is no digest, so there is nothing to make a summary of.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

from securetrain import __version__
from securetrain.artifacts.statement import DIGEST_NAME, CheckpointPredicate
from securetrain.chain.verdict import Form, Verdict
from securetrain.core import canonical
from securetrain.core.errors import UsageError
from securetrain.core.files import write_atomic
from securetrain.core.vocabulary import ChainLink, NodeTier
from securetrain.identity import STATEMENT_TYPE, dsse
from securetrain.identity.keys import Signer

PREDICATE_TYPE: Final = "https://slsa.dev/verification_summary/v1"
VERIFIER_ID: Final = "https://securetrain.dev/verify"
INTEGRITY: Final = (
    f"{VERIFIER_ID}/integrity/v1",
    (
        "Every byte is as a key signed it that the trust root names for this kind of artifact. "
        "Nothing else was asked."
    ),
)
"""The policy of an artifact that was verified without one, and its words."""
CHAIN: Final = (
    f"{VERIFIER_ID}/chain/v2",
    (
        "The checkpoint's statement is signed by a key that the trust root names for checkpoints,"
        " and no evidence at hand contradicts it. Nothing else was asked."
    ),
)
"""Likewise, of a pack."""
LEVELS: Final = ("SECURETRAIN_L1", "SECURETRAIN_L2", "SECURETRAIN_L3")
LINK: Final = "SECURETRAIN_LINK_"


def levels(found: Verdict) -> Iterator[str]:
    """Rules 2 and 3."""
    if not found.ok:
        return
    shown = {link for link in ChainLink if found.judged and found.judged[0].shows(link)}
    if found.num_files:
        yield from LEVELS[: _reached(found, shown)]
    yield from (f"{LINK}{link.upper()}" for link in ChainLink if link in shown)


def _reached(found: Verdict, shown: set[ChainLink]) -> int:
    said = found.statement
    if found.policy is None:
        return 1
    if not isinstance(said, CheckpointPredicate):
        return 2
    if not said.run_id or not {ChainLink.POLICY, ChainLink.DATASET} <= shown:
        return 1
    tiers = found.judged[0].verdicts[ChainLink.NODES].tiers if ChainLink.NODES in shown else {}
    proven = [tiers.get(node.node, NodeTier.SELF_ASSERTED) for node in said.nodes]
    return 3 if proven and min(proven) >= NodeTier.VTPM else 2


def summarize(found: Verdict) -> bytes:
    """The summary as an in-toto statement, not signed.

    Raises:
        UsageError: ST-USAG-001, rule 5.
    """
    if not found.digest:
        raise UsageError(
            "ST-USAG-001",
            "no statement of it verifies, so there is no digest to write a summary about",
            str(found.path),
            "leave out --vsa; the exit code and --format json say what was found",
        )
    uri, words = CHAIN if found.form is Form.PACK else INTEGRITY
    digest = hashlib.sha256(words.encode()).hexdigest()
    if found.policy is not None:
        uri, digest = found.policy.policy.metadata.id, found.policy.digest
    predicate: dict[str, Any] = {
        "verifier": {"id": VERIFIER_ID, "version": {"securetrain": __version__}},
        "timeVerified": found.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "resourceUri": f"urn:securetrain:{found.kind}:{found.digest}",
        "verificationResult": "PASSED" if found.ok else "FAILED",
        "verifiedLevels": list(levels(found)),
        "policy": {"uri": uri, "digest": {"sha256": digest}},
    }
    name = PurePosixPath(str(found.path)).name
    return canonical.dumps(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": {DIGEST_NAME: found.digest}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
    )


def write_summary(target: Path, found: Verdict, key: Signer | None = None) -> None:
    """Write the summary of a verdict to a new file, signed when there is a key.

    Raises:
        UsageError: ST-USAG-005 when the file exists; see `summarize`.
    """
    data = summarize(found)
    if key is not None:
        data = dsse.sign(data, dsse.IN_TOTO, [key], keyless=True)
    write_atomic(target, data, replace=False)
