# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signatures of ranks and nodes, as savers and launchers make them, for statements of tests."""

from securetrain.artifacts.statement.checkpoint_predicate import (
    NodeSignature,
    RankSignature,
    leaf_of,
    node_message,
)
from securetrain.artifacts.statement.members import RankSigner
from securetrain.artifacts.statement.statements import CheckpointPredicate


def signature_of(rank: int, signer: RankSigner, message: bytes) -> RankSignature:
    """One rank's signature."""
    return RankSignature(rank=rank, key=signer.key.key_id, sig=signer.sign(message))


def node_signature_of(
    said: CheckpointPredicate, ranks: list[int], signer: RankSigner, messages: list[bytes]
) -> NodeSignature:
    """One node's signature for its ranks.

    Args:
        said: The statement.
        ranks: The node's.
        signer: The node's.
        messages: By rank, from `messages_of`.
    """
    leaves = [leaf_of(messages[rank]) for rank in ranks]
    message = node_message(said.run_id, said.save_id, ranks, leaves)
    return NodeSignature(
        key=signer.key.key_id, ranks=ranks, leaves=leaves, sig=signer.sign(message)
    )
