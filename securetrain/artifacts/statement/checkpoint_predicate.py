# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The predicate of a checkpoint: what its signature says.

Version 2 adds the name and what else is bound. A statement of version 1 is read as one of version 2
that has neither, and it may not have them.

One signature of a node for all its ranks: over the root of a tree of what each of them says.

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
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from securetrain.artifacts.tree.encryption import Sealed
from securetrain.artifacts.tree.layout import Count, Hex32, Text, Time, TreeInfo
from securetrain.core import canonical
from securetrain.core.errors import IdentityError
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.keys import PublicKey
from securetrain.identity.log import hashes_of, merkle
from securetrain.identity.signing import SigningSocket

MAX_WORLD: Final = 1 << 20


class _Part(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel", gc=False
):
    """A part of a predicate; its fields are in camel case in the file. None leads back to itself:
    a verifier of ten thousand ancestors need not have them looked through for cycles.
    """


class RankFile(_Part, frozen=True, omit_defaults=True):
    """A checkpoint's data file: which rank wrote it, and the root of its tree."""

    name: Text
    size: Count
    root: Hex32
    rank: Count
    sealed: Sealed | None = None
    """How it is encrypted; None when it is not."""

    @property
    def data_size(self) -> int:
        """Bytes of tensors and gaps in it, once decrypted: what the index speaks of."""
        return self.size if self.sealed is None else self.sealed.size


class IndexFile(_Part, frozen=True):
    """The checkpoint's index: SHA-256 of all its bytes."""

    name: Text
    size: Count
    sha256: Hex32


class ParentRole(StrEnum):
    """The use that a checkpoint made of another one."""

    PREVIOUS = "previous"
    BASE = "base"
    ADAPTER = "adapter"
    MERGE = "merge"


class Parent(_Part, frozen=True):
    """An artifact that this one was made from."""

    digest: Hex32
    role: ParentRole = ParentRole.PREVIOUS


class DatasetRef(_Part, frozen=True):
    """The dataset that was trained on, and how far."""

    name: Text = ""
    digest: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    cursor: dict[str, Count] = {}


class PolicyRef(_Part, frozen=True):
    """The policy that was in force."""

    id: Text = ""
    digest: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""


class NodeRef(_Part, frozen=True):
    """A machine that took part: what it proved about itself, and which ranks ran there."""

    node: Text
    tier: NodeTier
    label: Text = ""
    ranks: list[Count] = []
    result: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    """SHA-256 of its attestation result; empty when that is not known."""


class GradientVerdict(StrEnum):
    """The word of the guard on the steps that led here."""

    CLEAN = "clean"
    REFUSED = "refused"
    UNWATCHED = "unwatched"


class GradientRecord(_Part, frozen=True):
    """The guard's verdict and the steps that it rests on."""

    verdict: GradientVerdict = GradientVerdict.UNWATCHED
    judged: Count = 0
    refused: Count = 0
    clean_steps: Count = 0
    """Steps in a row, up to this one, that were judged and in which nothing was found."""
    audited: Count | None = None
    """The last step that an audit replayed; None when none was."""


class RankSignature(_Part, frozen=True):
    """The signature of one rank over its own part (`members`)."""

    rank: Count
    key: Hex32
    sig: Annotated[str, Meta(max_length=256)]
    """Base64."""


class NodeSignature(_Part, frozen=True):
    """One signature for all ranks of a node, over the root of a tree of their messages
    (`NodeSignature`).
    """

    key: Hex32
    ranks: Annotated[list[Count], Meta(min_length=1, max_length=MAX_WORLD)]
    """Sorted; a leaf each."""
    leaves: Annotated[list[Hex32], Meta(min_length=1, max_length=MAX_WORLD)]
    """The hashes of their messages, so that a rank can be named whose message is another one."""
    sig: Annotated[str, Meta(max_length=256)]
    """Base64."""


class CheckpointPredicateV1(_Part, frozen=True):
    """The content of a checkpoint's signature before it had a name: read, and written no more."""

    run_id: Text
    step: Count
    seq: Count
    save_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    created: Time
    world_size: Annotated[int, Meta(ge=1, le=MAX_WORLD)]
    tree: TreeInfo
    files: list[RankFile]
    index: IndexFile
    parents: list[Parent] = []
    dataset: DatasetRef = DatasetRef()
    policy: PolicyRef = PolicyRef()
    code: dict[str, Text] = {}
    env: dict[str, Text] = {}
    nodes: list[NodeRef] = []
    gradients: GradientRecord = GradientRecord()
    epoch: Count | None = None
    """The membership under which it was made; None when the saver did not say."""
    expires: Time | None = None
    """From when on it must not be loaded; None when it keeps."""
    documents: list[IndexFile] = []
    """Further small files, for other readers than ours: for example a safetensors index."""
    members: Annotated[list[Annotated[str, Meta(max_length=8192)]], Meta(max_length=65536)] = []
    """The certificates of the ranks' keys (`members.RankKey`, in DSSE)."""
    signatures: list[RankSignature] = []
    """Signatures of ranks that each sign their own part, by rank."""


class Bound(_Part, frozen=True, omit_defaults=True):
    """Further things that a checkpoint's signature ties together, each by its SHA-256; one that is
    not there was not tied.
    """

    parents: Annotated[list[Hex32], Meta(max_length=1024)] = []
    """The statements of its parents, in their order."""
    dataset: Hex32 | None = None
    """The dataset's statement."""
    ledger_head: Hex32 | None = None
    ledger_entries: Count | None = None
    """How many entries that head covers."""
    step_records: Hex32 | None = None
    """The document that names the tree over the records of the steps; every rank signs it, too."""
    membership: Hex32 | None = None
    policy: Hex32 | None = None
    job: Hex32 | None = None
    code: Hex32 | None = None
    """The manifest of the code that ran."""
    environment: Hex32 | None = None


class CheckpointPredicate(CheckpointPredicateV1, frozen=True):
    """The content of a checkpoint's signature."""

    name: Text = ""
    """The name of what it is, by which people ask for it; empty when it has none."""
    bound: Bound = Bound()
    node_signatures: Annotated[list[NodeSignature], Meta(min_length=1)] | UnsetType = UNSET
    """The signatures of nodes for their ranks, by the first of these; without it where no node
    signed, as in all statements before there were any.
    """

    @property
    def by_nodes(self) -> list[NodeSignature]:
        """The nodes' signatures; none where it has none."""
        return [] if self.node_signatures is UNSET else self.node_signatures

    @property
    def signed_ranks(self) -> list[int]:
        """The ranks that signed their part, each as often as it is signed for; empty when the ranks
        did not sign.
        """
        ranks = [signature.rank for signature in self.signatures]
        for node in self.by_nodes:
            ranks += node.ranks
        return sorted(ranks)


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
