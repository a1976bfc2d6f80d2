# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Words of disputed tables: signed, exchanged and kept; who denies its own is found guilty."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from securetrain.core.errors import RuntimeRefusal
from securetrain.guard import dispute, settlement
from securetrain.guard.dispute import Digests, OpenTable, Ruling, Standing, rule
from securetrain.guard.exclusion import Exclusion, Ground
from securetrain.guard.kept import Kept
from securetrain.guard.rereduction import Attempt
from securetrain.guard.settlement import Settler
from securetrain.guard.witness import Witness
from securetrain.identity import words
from securetrain.identity.keys import KeyKind, PrivateKey

SIZE = 4


class Signer:
    run_id, world_size, certificate = "job-1", SIZE, "a certificate"

    def __init__(self, *, fails: bool = False) -> None:
        self.key, self.fails = PrivateKey.generate(KeyKind.P256), fails
        self.kept: list[tuple[words.Transcript, int]] = []

    def sign(self, message: bytes) -> bytes:
        if self.fails:
            raise RuntimeRefusal("ST-RUNT-035", "gone")
        return self.key.sign(message)

    def keep(self, transcript: words.Transcript, step: int) -> None:
        self.kept.append((transcript, step))


class Alike:
    """A channel in which everybody says the same."""

    rank, size = 0, SIZE

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def all_gather(self, data: bytes) -> list[bytes]:
        self.sizes.append(len(data))
        return [data] * SIZE

    def broadcast(self, data: bytes, size: int, source: int) -> bytes:
        raise AssertionError


def digests(place: int, **changes: Any) -> Digests:
    fields = {
        "whole": b"w%031d" % place,
        "sent": tuple(b"%016d%016d" % (place, part) for part in range(SIZE)),
        "heard": tuple(b"%016d%016d" % (rank, place) for rank in range(SIZE)),
    }
    return Digests(**{**fields, **changes})


def table(*changed: Digests, at: int = 1) -> OpenTable:
    numbers = np.random.default_rng(0).standard_normal((SIZE, SIZE, 8))
    said = [digests(place) for place in range(SIZE)]
    for place, one in enumerate(changed):
        said[at + place] = one
    return OpenTable(
        owners=tuple(range(SIZE)),
        sent=numbers,
        heard=numbers.transpose(1, 0, 2),
        got=np.broadcast_to(numbers.mean(axis=0), (SIZE, SIZE, 8)),
        included=np.ones((SIZE, SIZE), dtype=bool),
        shared=True,
        roundoff=2.0**-24,
        digests=tuple(said),
    )


def test_a_pair_whose_digests_differ_is_a_dispute_though_the_sketches_agree():
    assert not rule(table(), range(SIZE)).disputes
    ruling = rule(table(digests(1, sent=(b"x" * 32, *digests(1).sent[1:]))), range(SIZE))
    assert ruling.disputes == ((0, 1),)
    assert ruling.apart == ((1, 0),)
    assert not ruling.guilty


def test_a_rank_whose_digests_contradict_each_other_is_guilty():
    heard = [*digests(1).heard]
    heard[1] = b"x" * 32
    assert list(rule(table(digests(1, heard=tuple(heard))), range(SIZE)).guilty) == [1]


class Scripted:
    """Reduces as it is told."""

    def __init__(self, *tables: OpenTable) -> None:
        self.tables = list(tables)

    def run(self, kept: Any, out: Any, apart: Any) -> Attempt:
        del kept, out, apart
        found = self.tables.pop(0)
        return Attempt(table=found, means=(torch.zeros(4),), rows=b"rows", sent_bytes=0)


def settle(*tables: OpenTable, signer: Signer | None = None) -> tuple[Any, Witness]:
    channel = Alike()
    witness = Witness(channel=channel, ranks=(3, 5, 7, 9), guard=2, signer=signer)
    settler = Settler(
        Scripted(*tables), channel, Exclusion(SIZE), Standing(SIZE, 1), witness=witness
    )
    kept = Kept(chunk="a", local=torch.zeros(4), parts=1, replace=lambda _mean: None)
    return settler.settle([kept], [], (), lambda _rows, _out: []), witness


def test_a_step_without_an_owner_that_all_accept_stays_refused():
    settler = Settler(Scripted(), Alike(), Exclusion(SIZE), Standing(SIZE, 1))
    nobody = {(rank, rank) for rank in range(SIZE)}
    found = settler.settle([], [], (), lambda _rows, _out: [], nobody)
    assert found.means is None
    assert not found.undecided


def disputed() -> OpenTable:
    return table(digests(1, sent=(b"x" * 32, *digests(1).sent[1:])))


def test_who_changes_its_gradient_between_two_attempts_denies_it_and_is_left_out():
    turned = table(digests(1, whole=b"x" * 32))
    found, _ = settle(disputed(), turned, table())
    assert found.offences == [(1, Ground.PROOF)]
    assert found.out == (1,)
    assert "denies the gradient" in dict(found.texts)[1]
    assert found.means is not None


def test_a_rank_that_says_it_is_not_finite_has_no_disputes_by_it():
    one = table()
    sent = one.sent.copy()
    sent[1] = np.nan  # its owners say that they heard numbers
    ruling = rule(dataclasses.replace(one, sent=sent), range(SIZE))
    assert ruling.not_finite == (1,)
    assert ruling.disputes == ()
    got = one.got.copy()
    got[2, 0] *= 1.01
    more = rule(dataclasses.replace(one, sent=sent, got=got), range(SIZE))
    assert more.complaints == (), "it is left out first"
    assert rule(dataclasses.replace(one, got=got), range(SIZE)).complaints == ((2, 0),)
    assert ruling.apart == ()
    out = rule(dataclasses.replace(one, sent=sent), [0, 2, 3])
    assert out.not_finite == (), "it does not count"
    assert out.disputes == ((0, 1), (1, 2), (1, 3))


def test_a_part_with_numbers_that_are_not_finite_is_nobodys_complaint():
    one = table()
    heard = one.heard.copy()
    heard[0, 1] = np.nan
    assert dispute._unlike(dataclasses.replace(one, heard=heard), 0) == []
    nobody = dataclasses.replace(one, included=np.zeros((SIZE, SIZE), dtype=bool))
    assert dispute._unlike(nobody, 0) == []
    got = one.got.copy()
    got[2, 0] *= 1.01
    assert dispute._unlike(dataclasses.replace(one, got=got), 0) == [2]


def test_grounds_that_nobody_knows_are_none():
    many = settlement._Outcome(ok=False, grounds={1: Ground.PROOF}, apart={(0, 2)})
    data = bytearray(many.encode(SIZE))
    assert settlement._Outcome.decode(bytes(data), SIZE) == many
    data[1:4] = bytes([99, 5, 0])
    assert settlement._Outcome.decode(bytes(data), SIZE).grounds == {}


@pytest.mark.parametrize("shared", [True, False])
def test_who_is_out_by_now_sets_nobody_apart(shared):
    one = dataclasses.replace(table(), shared=shared)
    ruling = Ruling(apart=((1, 0), (2, 3), (3, 0)), complaints=((1, 2), (2, 0)))
    apart = settlement._apart(ruling, one, gone={3})
    # As owner of a part that others can own, rank 3 is replaced; of a shard, it is not.
    assert apart == {(1, 0), (2, 2), (0, 0)} | (set() if shared else {(2, 3)})
    assert settlement._apart(ruling, one, gone={1, 3}) == {(0, 0)} | (set() if shared else {(2, 3)})
    assert settlement._apart(ruling, one, gone={0, 3}) == (
        {(2, 2)} if shared else {(1, 0), (2, 2), (2, 3)}
    )


def test_who_does_not_is_not():
    found, _ = settle(disputed(), table())
    assert found.offences == []
    assert found.disputes == ((0, 1),)


def test_a_disputed_table_is_signed_and_one_that_is_not_is_not():
    signer = Signer()
    _, witness = settle(table(), signer=signer)
    witness.hand_over(7)
    assert not signer.kept
    _, witness = settle(disputed(), table(), signer=signer)
    witness.hand_over(8)
    ((transcript, step),) = signer.kept
    assert step == 8
    assert transcript.turn == 0
    assert transcript.ranks == [3, 5, 7, 9]
    (attempt,) = transcript.attempts
    word = words.word_of(transcript, attempt, 0)
    ruling = words.rule(transcript, [signer.key.public] * SIZE)
    assert word.rank == 3
    assert ruling.disputes == ((3, 5),)
    assert ruling.unsigned == (5, 7, 9), "they sent the signature of another rank"
    witness.hand_over(9)
    assert len(signer.kept) == 1, "words are handed over once"


@pytest.mark.parametrize("signer", [Signer(fails=True), None])
def test_a_rank_whose_launcher_does_not_sign_goes_on(signer):
    found, witness = settle(disputed(), table(), signer=signer)
    witness.hand_over(8)
    assert found.means is not None
    if signer is not None:
        ((transcript, _),) = signer.kept
        assert all(said.sig == "" for said in transcript.attempts[0].said)


def test_a_common_word_that_is_not_agreed_is_not_asked_for():
    """Three ranks, or a policy that only observes: what most have read counts."""

    class Alone:
        is_agreed, barred = False, frozenset[int]()

        def compare(self) -> tuple[bool, tuple[int, ...]]:
            return True, ()

        def choose(self, _mine: bytes) -> bytes | None:
            raise AssertionError

    settler = Settler(
        Scripted(table()),
        Alike(),
        Exclusion(SIZE),
        Standing(SIZE, 1),
        common=Alone(),
    )
    kept = Kept(chunk="a", local=torch.zeros(4), parts=1, replace=lambda _mean: None)
    assert settler.settle([kept], [], (), lambda _rows, _out: []).means is not None


def test_a_key_that_nobody_certified_signs_nothing():
    signer = Signer()
    signer.certificate = ""
    _, witness = settle(disputed(), table(), signer=signer)
    witness.hand_over(8)
    ((transcript, _),) = signer.kept
    assert all(said.sig == "" for said in transcript.attempts[0].said)


def test_messages_have_one_size_whoever_signs():
    sizes = []
    for signer in (Signer(), Signer(fails=True), None):
        channel = Alike()
        witness = Witness(channel=channel, ranks=range(SIZE), guard=0, signer=signer)
        for _ in range(2):
            witness.record(b"p" * 32, b"t" * 32, range(SIZE), table().digests)
        sizes.append(channel.sizes)
    assert sizes[0] == sizes[1] == sizes[2]
    assert len(sizes[0]) == 3, "certificates once"


def test_a_transcript_holds_a_bounded_number_of_attempts():
    signer = Signer()
    witness = Witness(channel=Alike(), ranks=range(SIZE), guard=0, signer=signer)
    for _ in range(words.MOST_ATTEMPTS + 5):
        witness.record(b"p" * 32, b"t" * 32, range(SIZE), table().digests)
    witness.hand_over(1)
    assert len(signer.kept[0][0].attempts) == words.MOST_ATTEMPTS
