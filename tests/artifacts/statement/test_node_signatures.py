# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One signature of a node for all its ranks: each lie about it, and the code that refuses it.

Where the trust root names nobody who admits nodes, nobody can be asked, and every lie passes: that
is the control of each.
"""

import base64
import random
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from securetrain.artifacts.statement import checkpoint_predicate, members
from securetrain.artifacts.statement.checkpoint_predicate import leaf_of, node_message
from securetrain.artifacts.statement.members import issue, messages_of
from securetrain.artifacts.statement.statements import (
    CHECKPOINT_TYPE,
    DIGEST_NAME,
    CheckpointPredicate,
    NodeRef,
    RankFile,
    digest_of,
    open_statement,
    sign,
)
from securetrain.artifacts.tree.layout import Kind
from securetrain.core.errors import IntegrityError
from securetrain.core.vocabulary import NodeTier
from securetrain.identity import statement as in_toto
from securetrain.identity.log import hashes_of, merkle
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from tests import vocabulary
from tests.artifacts.statement import worlds as signing

NODES = ("spiffe://t/job/r/node/a", "spiffe://t/job/r/node/b")
WORLD = 6
OF = ([0, 1, 2], [3, 4, 5])


def replace(said: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(said, **changes)


class Saved:
    """A save of six ranks on two nodes; rank 5 wrote no file."""

    def __init__(self, made, keys, now):
        self.now, self.keys = now, keys
        self.term = (now - timedelta(hours=2), now + timedelta(hours=2))
        self.signers = [issue("run-1", node, self.term, keys.admitter) for node in NODES]
        (only,) = made.files
        nodes = [
            NodeRef(node=node, tier=NodeTier.TPM, ranks=ranks)
            for node, ranks in zip(NODES, OF, strict=True)
        ]
        files = [replace(only, name=f"rank-{n:05d}.bin", rank=n, size=n + 1) for n in range(5)]
        self.plain = replace(made, world_size=WORLD, files=files, nodes=nodes)
        self.good = self.signed(self.plain)

    def signed(self, said, *, of=OF, by=None) -> CheckpointPredicate:
        """The statement with the signatures of its nodes."""
        signers = by or self.signers
        messages = messages_of(said)
        made = [
            signing.node_signature_of(said, ranks, signer, messages)
            for ranks, signer in zip(of, signers, strict=True)
        ]
        certificates = sorted(signer.certificate for signer in signers)
        found: CheckpointPredicate = replace(said, members=certificates, node_signatures=made)
        return found

    def changed(self, number=0, **changes) -> CheckpointPredicate:
        """The good statement with one node's signature changed."""
        made = list(self.good.by_nodes)
        made[number] = replace(made[number], **changes)
        found: CheckpointPredicate = replace(self.good, node_signatures=made)
        return found

    def nobody(self) -> TrustRoot:
        """A trust root that names nobody who admits nodes."""
        roles = {TrustRole.CHECKPOINT: [self.keys.checkpoint.public]}
        data = sign_root(roles, self.keys.root, self.now, self.now + timedelta(days=1))
        return TrustRoot.parse(data, self.now)


@pytest.fixture(scope="module")
def saved(keys, now, forge, tmp_path_factory):
    return Saved(forge(tmp_path_factory.mktemp("forged") / "made"), keys, now)


@pytest.fixture(scope="module")
def nobody(saved):
    return saved.nobody()


def found_in(said, trust, *, required=True):
    return [(one.code, one.what) for one in members.check(said, trust, required=required)]


def judged(said, trust):
    """The codes of all problems; what is unsound is refused when the statement is opened."""
    if checkpoint_predicate.unsound(said):
        return ["ST-CKPT-101"]
    return [code for code, _ in found_in(said, trust)]


def test_two_signatures_are_enough_for_six_ranks(saved, trust):
    assert judged(saved.good, trust) == []
    assert saved.good.signed_ranks == list(range(WORLD))
    assert found_in(saved.good, trust, required=False) == []


def test_what_a_node_signs_is_the_tree_of_the_rfc(saved):
    """Worked out here by hand: three leaves are H(1, H(1, a, b), c)."""
    messages = messages_of(saved.good)
    a, b, c = (merkle.leaf_hash(one) for one in messages[:3])
    root = merkle.node_hash(merkle.node_hash(a, b), c)
    (first, _) = saved.good.by_nodes
    assert first.leaves == [one.hex() for one in (a, b, c)]
    assert root == merkle.root_hash(3, hashes_of([a, b, c]))
    message = node_message("run-1", saved.good.save_id, [0, 1, 2], first.leaves)
    assert message == (
        b'securetrain/node-files/1\n{"ranks":[0,1,2],"root":"%s","runId":"run-1","saveId":"%s"}'
        % (root.hex().encode(), saved.good.save_id.encode())
    )


def test_the_statement_reads_back_as_it_was_signed(saved, keys, trust):
    data = sign(saved.good, "made", keys.checkpoint)
    assert open_statement(data, Kind.CHECKPOINT, trust).checkpoint == saved.good
    assert b"nodeSignatures" not in msgspec.json.encode(saved.plain), "as before there were any"


def _exchanged(saved):
    """Rank 1's file is another one, by the coordinator's key alone."""
    files = list(saved.good.files)
    files[1] = replace(files[1], root="0" * 64)
    return replace(saved.good, files=files)


def _neighbour(saved):
    """Two ranks of one node have exchanged their files."""
    files = list(saved.good.files)
    files[1], files[2] = (
        replace(files[2], rank=1, name=files[1].name),
        replace(files[1], rank=2, name=files[2].name),
    )
    return replace(saved.good, files=files)


def _leaf(saved, leaf):
    return saved.changed(0, leaves=[saved.good.by_nodes[0].leaves[0], leaf, *_rest(saved)])


def _rest(saved):
    return saved.good.by_nodes[0].leaves[2:]


def _of_another(saved, **changes):
    """The first node's signature of another save, which is good there."""
    other = saved.signed(replace(saved.plain, **changes))
    assert not checkpoint_predicate.unsound(other)
    return replace(saved.good, node_signatures=[other.by_nodes[0], saved.good.by_nodes[1]])


def _root_of_another(saved):
    """The leaves of this save under the first node's signature of another one."""
    other = saved.signed(replace(saved.plain, save_id="1" * 32))
    return saved.changed(0, sig=other.by_nodes[0].sig)


def _by(saved, number, signer):
    by = list(saved.signers)
    by[number] = signer
    return saved.signed(saved.plain, by=by)


def _issued(saved, run="run-1", node=NODES[0], key=None, term=None):
    return issue(run, node, term or saved.term, key or saved.keys.admitter)


def _one_node_for_all(saved):
    """The first node signs for the ranks of the second, too."""
    return saved.signed(saved.plain, of=[list(range(WORLD))], by=saved.signers[:1])


def _moved(saved):
    """The second node signs for rank 2, which runs on the first."""
    return saved.signed(saved.plain, of=([0, 1], [2, 3, 4, 5]))


def _named_otherwise(saved):
    """The statement says that the ranks ran on the other node each."""
    a, b = saved.good.nodes
    return replace(saved.good, nodes=[replace(a, ranks=OF[1]), replace(b, ranks=OF[0])])


def _without_a_rank(saved):
    """A node signs for two of its three ranks."""
    return saved.signed(saved.plain, of=([0, 2], OF[1]))


def _cut(saved):
    """Rank 2 and its leaf are taken out of a signature that was made for three."""
    first = saved.good.by_nodes[0]
    return saved.changed(0, ranks=first.ranks[:2], leaves=first.leaves[:2])


def _dropped(saved):
    """A rank that wrote a file is said to have written none."""
    return replace(saved.good, files=saved.good.files[:-1])


def _inner_node(saved):
    """A leaf that is the hash of two others, so that the root is the same."""
    first = saved.good.by_nodes[0]
    a, b = (bytes.fromhex(one) for one in first.leaves[:2])
    joined = [merkle.node_hash(a, b).hex(), first.leaves[2]]
    return saved.changed(0, ranks=[0, 1], leaves=joined)


def _records(saved):
    return replace(saved.good, bound=replace(saved.good.bound, step_records="ab" * 32))


def _twice(saved):
    """One rank under two nodes."""
    return saved.signed(saved.plain, of=([0, 1, 2, 3], [3, 4, 5]))


def _one_key_twice(saved):
    return saved.signed(saved.plain, by=[saved.signers[0]] * 2)


def _also_alone(saved):
    """A rank of a node has signed by itself, too."""
    messages = messages_of(saved.plain)
    alone = signing.signature_of(0, saved.signers[0], messages[0])
    return replace(saved.good, signatures=[alone])


def by_first(**how: Any) -> Any:
    """The first node has signed with a key that was certified in another way."""
    return lambda saved: _by(saved, 0, _issued(saved, **how))


def by_key(role: str) -> Any:
    return lambda saved: _by(saved, 0, _issued(saved, key=getattr(saved.keys, role)))


def of_another(**changes: Any) -> Any:
    return lambda saved: _of_another(saved, **changes)


def _yesterday(saved):
    return _by(saved, 0, _issued(saved, term=(saved.now - timedelta(9), saved.now - timedelta(8))))


def _step_before(saved):
    return _of_another(saved, step=saved.plain.step - 1, save_id="1" * 32)


def _neighbours_leaf(saved):
    return _leaf(saved, saved.good.by_nodes[0].leaves[0])


def _one_certificate(saved):
    return replace(saved.good, members=[saved.signers[1].certificate])


def _node_missing(saved):
    return replace(saved.good, node_signatures=saved.good.by_nodes[1:])


NOT_THIS, NOT_THEY = "ST-CKPT-111", "ST-CKPT-122"
ALL_THREE = "0, 1, 2 signed something else"
NODE = "the node of ranks 0, 1, 2"
NOT_ITS_NODE = "which was not its node"
UNCERTIFIED = "ranks 0, 1, 2 signed with a key that nobody certified"
LIES: dict[str, tuple[str, Any, str]] = {
    # what was signed
    "a file exchanged": (NOT_THIS, _exchanged, "rank 1 signed something else"),
    "two neighbours' files": (NOT_THIS, _neighbour, "ranks 1, 2 signed something else"),
    "a file dropped": (NOT_THIS, _dropped, "rank 4 signed something else"),
    "another leaf": (NOT_THIS, lambda s: _leaf(s, "0" * 64), "rank 1 signed"),
    "a neighbour's leaf": (NOT_THIS, _neighbours_leaf, "rank 1 signed"),
    "records": (NOT_THIS, _records, "0, 1, 2, 3, 4, 5 signed something else"),
    "a signature of a step before": (NOT_THIS, _step_before, ALL_THREE),
    "a signature of another save": (NOT_THIS, of_another(save_id="1" * 32), ALL_THREE),
    "a signature of another run": (NOT_THIS, of_another(run_id="run-2"), ALL_THREE),
    "another world's": (NOT_THIS, of_another(world_size=7, nodes=[]), ALL_THREE),
    "this save's leaves, that save's root": (NOT_THIS, _root_of_another, NODE + " did not sign"),
    "a leaf that is two": (NOT_THEY, _inner_node, "rank 2 did not sign"),
    "damaged": (NOT_THIS, lambda s: s.changed(sig="!!"), NODE),
    "empty": (NOT_THIS, lambda s: s.changed(sig=""), NODE),
    # who signed
    "not signed": (NOT_THEY, lambda s: replace(s.plain, members=[]), "did not sign"),
    "a node missing": (NOT_THEY, _node_missing, "ranks 0, 1, 2 did not sign"),
    "a rank missing": (NOT_THEY, _without_a_rank, "rank 1 did not sign"),
    "a rank cut out": (NOT_THEY, _cut, "rank 2 did not sign"),
    "one node for another": (NOT_THEY, _one_node_for_all, "rank 3 signed as"),
    "a rank of another node": (NOT_THEY, _moved, "rank 2 signed as"),
    "the list of nodes disagrees": (NOT_THEY, _named_otherwise, "signed as"),
    "a node that is not named": (NOT_THEY, by_first(node="spiffe://t/job/r/node/z"), NOT_ITS_NODE),
    "the other node's key": (NOT_THEY, by_first(node=NODES[1]), NOT_ITS_NODE),
    "a key nobody certified": (NOT_THEY, _one_certificate, UNCERTIFIED),
    "certified by a stranger": (NOT_THEY, by_key("stranger"), ""),
    "certified by rank 0's key": (NOT_THEY, by_key("checkpoint"), ""),
    "another run's key": (NOT_THEY, by_first(run="run-2"), "run-2"),
    "a key of yesterday": (NOT_THEY, _yesterday, "counts from"),
    # lists that do not fit together
    "a rank doubled": ("ST-CKPT-101", _twice, ""),
    "one key for two": ("ST-CKPT-101", _one_key_twice, ""),
    "also by itself": ("ST-CKPT-101", _also_alone, ""),
    "leaves missing": (
        "ST-CKPT-101",
        lambda s: s.changed(leaves=s.good.by_nodes[0].leaves[:2]),
        "",
    ),
    "ranks not sorted": ("ST-CKPT-101", lambda s: s.changed(ranks=[1, 0, 2]), ""),
    "nodes not sorted": (
        "ST-CKPT-101",
        lambda s: replace(s.good, node_signatures=s.good.by_nodes[::-1]),
        "",
    ),
    "a rank beyond the world": (
        "ST-CKPT-101",
        lambda s: s.changed(1, ranks=[3, 4, 9]),
        "",
    ),
}


@pytest.mark.forgery
@pytest.mark.parametrize("lie", LIES)
def test_lies_about_a_nodes_signature(saved, trust, nobody, lie):
    code, make, what = LIES[lie]
    said = make(saved)
    if code == "ST-CKPT-101":
        assert checkpoint_predicate.unsound(said)
        # The control: without that rule, nobody would ask any further.
        assert found_in(said, nobody, required=False) == []
        payload = _envelope(saved, said)
        vocabulary.refused(IntegrityError, code, open_statement, payload, Kind.CHECKPOINT, trust)
        return
    assert found_in(said, nobody, required=False) == []
    found = found_in(said, trust)
    assert {one for one, _ in found} == {code}
    assert any(what in text for _, text in found), found


def _envelope(saved, said):
    """What a coordinator signs that does not look."""
    subject = in_toto.Subject("made", {DIGEST_NAME: digest_of(said)})
    return in_toto.sign([subject], CHECKPOINT_TYPE, said, saved.keys.checkpoint)


@pytest.mark.parametrize("empty", ['"nodeSignatures":[]', '"nodeSignatures":null'])
def test_no_signature_is_spelled_by_saying_nothing(saved, trust, empty):
    plain = msgspec.to_builtins(saved.plain)
    said = msgspec.json.decode("{" + empty + "}")
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(plain | said, CheckpointPredicate, strict=True)
    assert msgspec.convert(plain, CheckpointPredicate, strict=True).node_signatures is UNSET
    assert found_in(saved.plain, trust, required=False) == []


def test_ranks_of_one_save_may_sign_alone_or_with_their_node(saved, trust):
    """A script with keys of its own on one node, and a launcher on the other."""
    messages = messages_of(saved.plain)
    alone = [signing.signature_of(n, saved.signers[0], messages[n]) for n in OF[0]]
    mixed = replace(saved.good, signatures=alone, node_signatures=saved.good.by_nodes[1:])
    assert judged(mixed, trust) == []
    wrong = replace(mixed, signatures=[replace(alone[0], sig=alone[1].sig), *alone[1:]])
    assert judged(wrong, trust) == ["ST-CKPT-111"]


def test_a_rank_does_not_need_the_list_of_nodes(saved, trust):
    unplaced = [replace(node, ranks=[]) for node in saved.plain.nodes]
    assert judged(saved.signed(replace(saved.plain, nodes=unplaced)), trust) == []
    assert judged(saved.signed(replace(saved.plain, nodes=[])), trust) == []


def test_a_thousand_ranks_on_128_nodes(saved, trust):
    """They are verified, and a rank that is wrong among them is named."""
    nodes = [f"spiffe://t/job/r/node/{number}" for number in range(128)]
    many = [issue("run-1", node, saved.term, saved.keys.admitter) for node in nodes]
    of = [list(range(8 * n, 8 * n + 8)) for n in range(128)]
    files = [
        RankFile(name=f"rank-{rank:05d}.bin", size=1, root="0" * 64, rank=rank)
        for rank in range(1024)
    ]
    refs = [
        NodeRef(node=node, tier=NodeTier.TPM, ranks=ranks)
        for node, ranks in zip(nodes, of, strict=True)
    ]
    large = replace(saved.plain, world_size=1024, files=files, nodes=refs)
    large = saved.signed(large, of=of, by=many)
    assert judged(large, trust) == []
    wrong = [*files[:700], replace(files[700], root="1" * 64), *files[701:]]
    ((code, what),) = found_in(replace(large, files=wrong), trust)
    assert (code, "rank 700 " in what) == ("ST-CKPT-111", True)


@pytest.mark.many
@pytest.mark.forgery
def test_no_flipped_bit_is_accepted(saved, trust):
    """Of ranks, leaves, signatures, keys, files: 2,000 drawn changes."""
    drawn = random.Random(19)
    for _ in range(2000):
        number = drawn.randrange(2)
        node = saved.good.by_nodes[number]
        match drawn.randrange(4):
            case 0:
                said = saved.changed(number, leaves=_flipped_one(drawn, node.leaves))
            case 1:
                raw = bytearray(base64.b64decode(node.sig))
                raw[drawn.randrange(len(raw))] ^= 1 << drawn.randrange(8)
                said = saved.changed(number, sig=base64.b64encode(raw).decode())
            case 2:
                said = saved.changed(number, key=_flipped(drawn, node.key))
            case _:
                files = list(saved.good.files)
                at = drawn.randrange(len(files))
                files[at] = replace(files[at], root=_flipped(drawn, files[at].root))
                said = replace(saved.good, files=files)
        assert judged(said, trust), said


def _flipped(drawn, text):
    raw = bytearray.fromhex(text)
    raw[drawn.randrange(len(raw))] ^= 1 << drawn.randrange(8)
    return raw.hex()


def _flipped_one(drawn, leaves):
    at = drawn.randrange(len(leaves))
    return [*leaves[:at], _flipped(drawn, leaves[at]), *leaves[at + 1 :]]


def test_a_leaf_is_of_one_rank_alone(saved):
    """No two ranks have one leaf, not even two that wrote nothing."""
    empty = replace(saved.plain, files=saved.plain.files[:1])
    leaves = [leaf_of(one) for one in messages_of(empty)]
    assert len(set(leaves)) == WORLD
