# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The verification summary of a pack: what its verified links show of the checkpoint.

The words are those of a directory's (`artifacts.summary`), about the digest of the checkpoint's
tree. The levels come from what was verified, and from nothing that a statement says:

1. a pack that was refused, or whose answer is open, has none;
2. each link of the checkpoint that is verified has its level, ``SECURETRAIN_LINK_NODES`` and so on;
   what its ancestors had to show is the policy's, which the summary names;
3. ``SECURETRAIN_L1``, ``L2`` and ``L3`` mean what they mean of a directory, so a pack has them only
   with the weights, all of which were compared with what was signed. L2 needs a policy and the
   links ``policy`` and ``dataset``; L3 the link ``nodes``, with hardware behind every node.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from securetrain.artifacts import (
    LEVELS,
    VERIFIER_ID,
    Examined,
    Kind,
    PolicyUsed,
    Summed,
    policy_used,
    state,
    summarize,
)
from securetrain.chain.packed import PackResult
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.policy.load import LoadedPolicy

LINK: Final = "SECURETRAIN_LINK_"
CHAIN_WORDS: Final = (
    "The checkpoint's statement is signed by a key that the trust root names for checkpoints, every"
    " link that leads back from it is verified, and none is missing."
)
CHAIN: Final = PolicyUsed(
    uri=f"{VERIFIER_ID}/chain/v1", digest=hashlib.sha256(CHAIN_WORDS.encode()).hexdigest()
)
"""The policy of a pack that was verified without one: then a link that is missing leaves the answer
open.
"""


def summary_of(
    found: Examined | PackResult, policy: LoadedPolicy | None, now: datetime, *, passed: bool
) -> bytes | None:
    """The summary of a directory or a pack, not signed; None without a digest to say it of."""
    used = policy_used(policy)
    if isinstance(found, PackResult):
        known = found.subject is not None
        return summarize_pack(found, used, found.at, passed=passed) if known else None
    known = passed or bool(found.result.digest)
    return summarize(found.result, used, now, passed=passed) if known else None


def summarize_pack(
    result: PackResult, policy: PolicyUsed | None, now: datetime, *, passed: bool = True
) -> bytes:
    """The summary of a pack, not signed; the arguments are those of `artifacts.state`."""
    subject = result.subject
    found = Summed(
        kind=Kind.CHECKPOINT,
        path=result.path,
        digest="" if subject is None else subject.digest,
        ok=subject is not None and result.ok,
        levels=tuple(_levels(result, policy)) if result.ok else (),
        otherwise=CHAIN,
    )
    return state(found, policy, now, passed=passed)


def _levels(result: PackResult, policy: PolicyUsed | None) -> Iterator[str]:
    """Rules 2 and 3."""
    assert result.subject is not None
    verdicts = result.judged[0].verdicts
    shown = {link for link, one in verdicts.items() if one.state is LinkState.VERIFIED}
    whole = any(
        one.opened.statement == result.subject.statement and one.steps is None
        for one in result.held
    )
    if whole:
        yield from LEVELS[: _reached(result, shown, asked=policy is not None)]
    yield from (f"{LINK}{link.upper()}" for link in ChainLink if link in shown)


def _reached(result: PackResult, shown: set[ChainLink], *, asked: bool) -> int:
    assert result.subject is not None
    said = result.subject.checkpoint
    if not asked or not said.run_id or not {ChainLink.POLICY, ChainLink.DATASET} <= shown:
        return 1
    tiers = result.judged[0].verdicts[ChainLink.NODES].tiers if ChainLink.NODES in shown else {}
    found = [tiers.get(node.node, NodeTier.SELF_ASSERTED) for node in said.nodes]
    return 3 if found and min(found) >= NodeTier.VTPM else 2
