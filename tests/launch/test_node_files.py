# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node signs once for its ranks: what one of its workers can say about the others, and when."""

import base64
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.statement import checkpoint_predicate, members
from securetrain.artifacts.statement.checkpoint_predicate import NodeSignature
from securetrain.artifacts.statement.statements import RankFile, TreeInfo
from securetrain.core.errors import RuntimeRefusal
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.launch.signing.node_files import MOST_SAVES, NodeFiles, Word
from securetrain.launch.signing.service import handed
from tests import vocabulary
from tests.launch.worlds import file_message

OTHER_TREE = TreeInfo.of(TreeParams(leaf_size=1 << 16))
WORLD = 6
RANKS = (2, 3, 4)
"""Of this node."""


def word(rank, **changes):
    file = RankFile(name=f"rank-{rank:05d}.bin", size=8, root="cd" * 32, rank=rank)
    said = {"run_id": "run-1", "rank": rank, "world_size": WORLD, "file": file}
    message = file_message(**{**said, **changes})
    return Word(said=members.read_message(message), message=message)


@pytest.fixture
def node():
    made = NodeFiles()
    made.begin(frozenset(RANKS))
    return made


def refused(node, one, *texts):
    before = msgspec.json.encode({rank: list(kept) for rank, kept in node._words.items()})
    error = vocabulary.refused(RuntimeRefusal, "ST-RUNT-033", node.take, one)
    for text in texts:
        assert text in error.what, error.what
    after = msgspec.json.encode({rank: list(kept) for rank, kept in node._words.items()})
    assert before == after, "a refusal changes nothing"


@pytest.mark.parametrize("order", [(2, 3, 4), (4, 3, 2), (3, 4, 2)])
def test_the_last_word_of_a_save_makes_it_whole(node, order):
    *first, last = order
    assert [node.take(word(rank)) for rank in first] == [None] * 2
    whole = node.take(word(last))
    leaves = tuple(checkpoint_predicate.leaf_of(word(rank).message) for rank in RANKS)
    assert (whole.ranks, whole.leaves) == (RANKS, leaves)
    assert whole.message == checkpoint_predicate.node_message("run-1", "ab" * 16, RANKS, leaves)


def test_the_reply_holds_the_signature_or_nothing(node):
    key = PrivateKey.generate(KeyKind.P256)
    assert [handed(key, node.take(word(rank))).sig for rank in RANKS[:2]] == ["", ""]
    said = handed(key, node.take(word(4)))
    made = NodeSignature(
        key=said.keyid, ranks=list(said.ranks), leaves=list(said.leaves), sig=said.sig
    )
    assert made.key == key.key_id
    message = checkpoint_predicate.node_message("run-1", "ab" * 16, made.ranks, made.leaves)
    key.public.verify(base64.b64decode(made.sig), message)


def test_a_reply_that_was_lost_is_given_again(node):
    """A worker asks once more over a new connection."""
    for rank in RANKS:
        whole = node.take(word(rank))
    assert whole is not None
    assert node.take(word(4)) == whole
    assert node.take(word(2)) == whole


def test_rank_zero_alone(node):
    for one in (node, NodeFiles()):
        alone = one.take(word(0, world_size=1))
        assert alone is not None
        assert alone.ranks == (0,)


def test_nothing_is_whole_while_nobody_knows_the_ranks():
    unknown = NodeFiles()
    assert [unknown.take(word(rank)) for rank in range(WORLD)] == [None] * WORLD


def test_a_rank_that_never_speaks_leaves_nothing_signed(node):
    """A worker that was lost in the save."""
    for _ in range(3):
        assert node.take(word(2)) is None
        assert node.take(word(4)) is None


def test_a_round_that_ended_between_the_words_is_over(node):
    """Killed after two of three have handed in: those who come after say everything again."""
    for rank in RANKS[:2]:
        node.take(word(rank))
    node.begin(frozenset(RANKS))
    assert node.take(word(4)) is None
    assert node.take(word(3)) is None
    assert node.take(word(2)) is not None


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "step": ({"step": 6}, "step of save"),
    "world": ({"world_size": 7}, "world_size of save"),
    "tree": ({"tree": OTHER_TREE}, "tree of save"),
    "records": ({"step_records": "ef" * 32}, "step_records of save"),
    "run": ({"run_id": "run-2"}, "run_id of save"),
}


@pytest.mark.forgery
@pytest.mark.parametrize("lie", LIES)
def test_ranks_of_a_node_that_do_not_agree(node, lie):
    changes, what = LIES[lie]
    node.take(word(2))
    refused(node, word(3, **changes), "ranks 3 and 2 of this node do not agree", what)
    # The control: as a save of its own, nobody is in its way; and the honest go on.
    assert node.take(word(3, **{**changes, "save_id": "1" * 32})) is None
    node.take(word(3))
    assert node.take(word(4)) is not None


@pytest.mark.forgery
def test_a_rank_has_one_word_in_a_save(node):
    """A file exchanged after it was handed in, before and after the node has signed."""
    other = word(2, file=RankFile(name="rank-00002.bin", size=8, root="00" * 32, rank=2))
    assert NodeFiles(ranks=frozenset({2})).take(other) is not None, "the control: it is well formed"
    node.take(word(2))
    refused(node, other, "rank 2 has said something else")
    refused(node, word(2, file=None), "rank 2 has said something else")
    for rank in RANKS[1:]:
        whole = node.take(word(rank))
    refused(node, other, "rank 2 has said something else")
    assert node.take(word(2)) == whole


@pytest.mark.forgery
def test_no_rank_pushes_out_the_words_of_another(node):
    """A flood of saves by rank 2: of its own words the oldest go, and the memory is bounded."""
    node.take(word(3))
    node.take(word(4))
    for number in range(1000):
        node.take(word(2, save_id=f"{number:032x}"))
    assert len(node._words[2]) == MOST_SAVES
    assert node.take(word(2)) is not None, "the others' words were kept"
    for number in range(MOST_SAVES):
        node.take(word(2, save_id=f"{number:032x}"))
    assert node.take(word(3)) is None, "its own word of that save was pushed out, by itself"
