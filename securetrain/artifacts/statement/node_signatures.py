# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One signature of a node for all its ranks: over the root of a tree of what each of them says.

A launcher holds the node's key, and knows which of its workers is which rank. It takes each rank's
message from that rank alone, and signs once, when all of them are there: as many as before say what
they wrote, and a verifier asks one signature a node. Rules:

1. a leaf is the RFC 6962 hash of a rank's message (`members.rank_message`), the leaves are in order
   of rank, and the node signs run, save, ranks and root under a prefix of its own;
2. the statement keeps the leaves, though a verifier works them out from what it says of each rank:
   a leaf that is another one names the rank, of which the node's signature alone could not tell.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from securetrain.artifacts.statement.checkpoint_predicate import CheckpointPredicate, NodeSignature
from securetrain.core import canonical
from securetrain.core.errors import IdentityError
from securetrain.identity.keys import PublicKey
from securetrain.identity.log import hashes_of, merkle
from securetrain.identity.signing import SigningSocket

_PREFIX: Final = b"securetrain/node-files/1\n"


@dataclass(frozen=True, slots=True)
class NodeSigner:
    """The means of a rank to have its part signed by its launcher, with those of its node."""

    socket: SigningSocket
    key_id: str
    certificate: str

    def hand_in(self, message: bytes) -> NodeSignature | None:
        """Hand in this rank's message; the signature of its node when it was the last one.

        Raises:
            RuntimeRefusal: ST-RUNT-030 to 035.
        """
        said = self.socket.hand_in(message)
        if not said.sig:
            return None
        return NodeSignature(
            key=said.keyid, ranks=list(said.ranks), leaves=list(said.leaves), sig=said.sig
        )


def leaf_of(message: bytes) -> str:
    """The leaf of a rank's message (hex)."""
    return merkle.leaf_hash(message).hex()


def node_message(run_id: str, save_id: str, ranks: Sequence[int], leaves: Sequence[str]) -> bytes:
    """The bytes that a node signs for its ranks."""
    tree = hashes_of([bytes.fromhex(leaf) for leaf in leaves])
    said = {
        "runId": run_id,
        "saveId": save_id,
        "ranks": list(ranks),
        "root": merkle.root_hash(len(leaves), tree).hex(),
    }
    return _PREFIX + canonical.dumps(said)


def others(signature: NodeSignature, messages: Sequence[bytes]) -> list[int]:
    """The ranks that have signed another message than the statement's (rule 2).

    Args:
        signature: A node's.
        messages: Those that the ranks must have signed, by rank.
    """
    pairs = zip(signature.ranks, signature.leaves, strict=True)
    return [rank for rank, leaf in pairs if leaf != leaf_of(messages[rank])]


def verifies(signature: NodeSignature, said: CheckpointPredicate, key: PublicKey) -> bool:
    """Tell whether a node has signed these leaves of these ranks in this save."""
    message = node_message(said.run_id, said.save_id, signature.ranks, signature.leaves)
    try:
        key.verify(base64.b64decode(signature.sig, validate=True), message)
    except (IdentityError, binascii.Error, ValueError):
        return False
    return True


def unsound(said: CheckpointPredicate) -> str:
    """The fault of the lists of ranks that signed; empty without any."""
    alone = [signature.rank for signature in said.signatures]
    if alone != sorted(alone):
        return "the signatures are not sorted by rank"
    firsts = [node.ranks[0] for node in said.by_nodes]
    if firsts != sorted(firsts) or any(one.ranks != sorted(one.ranks) for one in said.by_nodes):
        return "the nodes' signatures are not sorted by rank"
    if any(len(one.ranks) != len(one.leaves) for one in said.by_nodes):
        return "a node's signature has not one leaf for each of its ranks"
    keys = [one.key for one in said.by_nodes]
    if len(set(keys)) != len(keys):
        return "two nodes' signatures are by one key"
    ranks = said.signed_ranks
    if len(set(ranks)) != len(ranks) or any(rank >= said.world_size for rank in ranks):
        return "the signatures are not of distinct ranks of the world"
    return ""


def signers_of(said: CheckpointPredicate) -> Mapping[int, str]:
    """By rank: the id of the key that signed for it."""
    alone = {signature.rank: signature.key for signature in said.signatures}
    return alone | {rank: node.key for node in said.by_nodes for rank in node.ranks}
