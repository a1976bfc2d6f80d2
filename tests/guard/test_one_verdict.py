# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One verdict for all honest ranks, whatever a liar tells each of them."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.core.errors import GuardError
from securetrain.guard import one_verdict
from securetrain.guard.common_finding import CommonFinding
from securetrain.guard.one_verdict import OneVerdict
from securetrain.guard.response import Findings
from securetrain.policy.schema import Gradients, GuardResponse
from securetrain.testing.processes import run_ranks
from tests.guard import lies
from tests.guard.drawn import LIAR, SIZE
from tests.guard.meeting import Group, words
from tests.guard.tables import gradients
from tests.guard.two_faced import NAMED, in_processes, large, two_faced

STEPS = 8


def outcome(group, rank, found):
    """What a rank does in this step and whom it leaves out of the next one."""
    watch = group.watches[rank]
    return (
        found.refused,
        tuple(sorted(found.codes)) if found.refused else (),
        tuple(sorted(found.newly_excluded)),
        watch.weights.values,
        watch.exclusion.excluded,
        watch._open.active,
    )


def told_apart(group, steps, trial):
    """Steps in which honest ranks did not do the same."""
    apart = []
    for step in range(steps):
        seen = group.step(gradients(group.size, numel=(64, 128), seed=1000 * trial + step))
        assert not any(isinstance(found, GuardError) for found in seen), seen
        honest = {rank: found for rank, found in enumerate(seen) if rank != LIAR}
        assert all(words(found) <= {LIAR} for found in honest.values()), trial
        if len({outcome(group, rank, found) for rank, found in honest.items()}) > 1:
            apart.append(step)
    return apart


def campaign(count, seed, monkeypatch, **settings):
    source = random.Random(seed)
    apart = {}
    for trial in range(count):
        tamper = {LIAR: two_faced(source)}
        group = Group(SIZE, monkeypatch, sharded=source.random() < 0.5, tamper=tamper, **settings)
        apart[trial] = told_apart(group, STEPS, trial)
    return {trial: steps for trial, steps in apart.items() if steps}


def test_a_liar_with_two_faces_parts_nobody(monkeypatch):
    assert campaign(12, 1, monkeypatch) == {}


@pytest.mark.many
@pytest.mark.timeout(3000)
def test_four_hundred_liars_with_two_faces_part_nobody(monkeypatch):
    assert campaign(400, 2, monkeypatch) == {}


def bends_a_row(count, data):
    """Tells rank 0 of another gradient, from its second row on."""
    return {0: large(random.Random(0), data)} if len(data) >= 1024 and count > 3 else data


@pytest.mark.parametrize("confirm", [False, True])
def test_three_ranks_compare_hashes_of_their_tables(monkeypatch, confirm):
    """Nobody can be outvoted: the step in which it shows is refused by all that are honest."""
    group = Group(3, monkeypatch, sharded=False, tamper={LIAR: bends_a_row}, confirm_tables=confirm)
    refused = [
        [found.refused for found in group.step(gradients(3, numel=(64, 128), seed=step))]
        for step in range(4)
    ]
    assert refused[0] == [False] * 3
    first = 1 if confirm else 2
    assert all(codes[:LIAR] == [True] * LIAR for codes in refused[first:])
    if not confirm:
        assert refused[1][1] is False, "rank 1 was told the truth, and knows no better yet"


def test_a_rank_told_otherwise_learns_nothing_and_follows_most(monkeypatch):
    group = Group(SIZE, monkeypatch, sharded=False, tamper={LIAR: bends_a_row})
    for step in range(6):
        seen = group.step(gradients(SIZE, numel=(64, 128), seed=step))
        assert not any(found.refused or found.outliers for found in seen), step
        disputes = [found.disputes for found in seen[:LIAR]]
        # The pair has no say for 64 steps: nobody is made to compare again.
        assert disputes == [{(0, LIAR)} if step == 1 else set()] * LIAR, step
        assert all(watch.beacon.quiet == ({0, LIAR} if step else set()) for watch in group.watches)


def test_who_votes_both_ways_is_caught_in_the_comparison(monkeypatch):
    def votes(count, data):
        del count
        return {to: bytes([to]) * 17 for to in range(SIZE)} if len(data) == 17 else data

    group = Group(SIZE, monkeypatch, sharded=False, tamper={LIAR: votes})
    seen = group.step(gradients(SIZE, numel=(64, 128)))
    for rank in (0, 1, 3):
        assert seen[rank].newly_excluded == {LIAR}
        assert seen[rank].codes == ["ST-GRAD-004"]
        assert not seen[rank].refused
    for step in range(1, 4):  # nothing that it says is read any more
        sent = gradients(SIZE, numel=(64, 128), seed=step)
        reduced = [one.clone() for one in sent]
        for one in reduced:  # a rank that is excluded sends zeros
            one[LIAR] = one[[0, 1, 3]].mean(dim=0)
        seen = group.step(sent, real=reduced)
        for rank in (0, 1, 3):
            assert not seen[rank].refused
            assert group.watches[rank].exclusion.excluded == (LIAR,)


def test_a_liar_does_not_make_the_others_forget_in_every_step(monkeypatch):
    def junk(count, data):
        return bytes([count % 251]) * 17 if len(data) == 17 else data

    group = Group(SIZE, monkeypatch, sharded=False, tamper={LIAR: junk})
    learned = []
    for step in range(8):
        seen = group.step(gradients(SIZE, numel=(64, 128), seed=step))
        assert not any(found.refused for found in seen[:LIAR])
        learned.append(group.watches[0].detector.state().steps)
    assert learned[-1] == len(learned) - one_verdict.STRIKES - 1


# -- one comparison, word by word ------------------------------------------------------------------


class Scripted:
    """A channel on which the words of all ranks are what a test says."""

    rank, size = 0, SIZE

    def __init__(self, patch, *words):
        self.words, self.fetched = list(words), 0
        patch.setattr(one_verdict, "gather_words", self.gather)

    def gather(self, mine, _all_gather):
        self.mine = mine
        words = self.words.pop(0)
        return words(mine) if callable(words) else words

    def all_gather(self, data):
        self.fetched += 1
        return [data] * SIZE

    def broadcast(self, data, size, source):
        raise AssertionError

    def exchange(self, number):
        raise AssertionError


def alike(mine):
    return (mine,) * SIZE


def but(rank, word):
    return lambda mine: tuple(word if r == rank else mine for r in range(SIZE))


HEARD = [bytes([rank]) * 16 for rank in range(SIZE)]


def heard(rank, about):
    """Rank `rank` says that `about` told it something else."""

    def said(mine):
        rows = [bytearray(mine) for _ in range(SIZE)]
        rows[rank][16 * about] ^= 1
        return tuple(map(bytes, rows))

    return said


def test_a_part_of_a_step_is_used_when_all_heard_the_same(monkeypatch):
    assert OneVerdict(Scripted(monkeypatch, alike), 1).same(HEARD) == (True, ())
    odd = OneVerdict(Scripted(monkeypatch, but(3, b"x" * 16), alike), 1)
    assert odd.same(HEARD) == (False, ())
    nobody = OneVerdict(Scripted(monkeypatch, (None,) * SIZE, alike), 1)
    assert nobody.same(HEARD) == (False, (0, 1, 2, 3))


def test_a_dispute_is_of_two_and_of_nobody_with_itself(monkeypatch):
    channel = Scripted(monkeypatch, but(3, b"x" * 17), heard(3, 1))
    found = OneVerdict(channel, 1).agree(b"f", HEARD)
    assert (found.learn, found.disputes, found.guilty) == (False, ((1, 3),), ())
    channel = Scripted(monkeypatch, but(3, b"x" * 17), heard(3, 3))
    assert OneVerdict(channel, 1).agree(b"f", HEARD).disputes == ()


def test_what_is_said_of_who_is_barred_is_not_looked_at(monkeypatch):
    channel = Scripted(monkeypatch, but(3, b"x" * 17), heard(3, 1))
    one = OneVerdict(channel, 1)
    one.barred = frozenset({1})
    assert one.agree(b"f", HEARD).disputes == ()
    channel.words = [but(3, b"x" * 17), heard(2, 3)]
    assert one.agree(b"f", HEARD).disputes == ((2, 3),), "who stands behind it is"
    assert len(channel.mine) == 16 * SIZE
    channel.words = [but(1, None)]
    assert one.agree(b"f", HEARD).guilty == (), "it is guilty already"


def test_a_rank_of_which_nobody_can_say_what_it_told_is_in_no_dispute(monkeypatch):
    channel = Scripted(monkeypatch, but(3, b"x" * 17), lambda mine: (mine, None, None, None))
    found = OneVerdict(channel, 1).agree(b"f", HEARD)
    assert (found.guilty, found.disputes) == ((1, 2, 3), ())


def test_a_finding_that_was_there_before_is_not_sent_again(monkeypatch):
    """Nor is it forgotten by a step that nobody agrees on."""
    channel = Scripted(monkeypatch, alike)
    one = OneVerdict(channel, 1)
    assert one.agree(b"f", HEARD).finding == b"f"
    assert channel.mine[0] == 1, "news"
    channel.words = [(None,) * SIZE, alike]
    assert one.agree(b"g", HEARD).finding is None
    channel.words = [but(3, b"\x01" + b"x" * 16), alike]
    assert one.agree(b"f", HEARD).finding == b"f"
    assert channel.fetched == 0


def test_only_where_it_is_acted_on_by_four_ranks_a_finding_is_common():
    def made(size=SIZE, **settings):
        channel: Any = SimpleNamespace(size=size)
        exclusion: Any = SimpleNamespace(limit=1)
        beacon: Any = None
        return CommonFinding(channel, beacon, range(size), exclusion, Gradients(**settings))

    assert made().is_agreed
    assert not made(size=3).is_agreed
    assert not made(response=GuardResponse.OBSERVE).is_agreed
    findings = Findings()
    made().begin(findings, [b"a", b"b", b"b", b"b"], None)  # a word that has no meaning here
    assert not findings.codes
    made(size=3).begin(findings, [b"a", b"b", b"b"], None)
    assert findings.codes == ["ST-GRAD-004"]


def looked_at(results):
    """Honest ranks do the same in each step, go on to the end and name nobody but the liar."""
    honest = [found for rank, found in enumerate(results) if rank != LIAR]
    most = 1.01 * max(honest[0][name].pop("held_out") for name in ("clean", "oracle"))
    for name in set(honest[0]) - {"oracle"}:
        done = []
        for found in honest:
            verdicts = found[name]["verdicts"]
            assert len(verdicts) == lies.STEPS, name
            assert found[name]["finite"], name
            assert found[name].get("held_out", 0.0) < most, name
            assert not any({*v["outliers"], *v["newly_excluded"]} - {LIAR} for v in verdicts), name
            lost = [v["step"] for v in verdicts if v["response"] == "skip-step"]
            assert len(lost) <= 2, (name, [v["reason"] for v in verdicts])
            fields = ("response", "excluded", "newly_excluded", "codes", "disputes")
            done.append([[v[field] for field in fields] for v in verdicts])
        assert done == [done[0]] * len(done), name
        assert len({found[name]["sum"] for found in honest}) == 1, f"{name}: one model"


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [pytest.param("ddp", marks=pytest.mark.many), "fsdp"])
def test_a_real_group_goes_on_as_one(kind):
    results = run_ranks(in_processes, SIZE, kind, tuple(NAMED), (1,), timeout=250)
    looked_at(results)
    for found in results[:LIAR]:
        for name in ("another to two", "another to each"):
            first = next(v for v in found[name]["verdicts"] if v["newly_excluded"])
            assert first["step"] == lies.START, name
            assert first["newly_excluded"] == [LIAR], name
        assert "different things" in first["reason"]
        assert not any(v["newly_excluded"] for v in found["seeds"]["verdicts"]), "or the other says"


@pytest.mark.dist
@pytest.mark.many
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_twenty_drawn_liars_in_real_groups(kind):
    looked_at(run_ranks(in_processes, SIZE, kind, (), range(20), timeout=1700))
