# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The auditor's nonces: a replay is seen without anybody remembering anything.

Commands of docs/how-to/audit-a-node.md are tried here.
"""

import errno
import multiprocessing
import os
from datetime import timedelta

import pytest

from securetrain.audit.engine.audit import audit
from securetrain.audit.sources.nonces import LIFETIME, NonceStore
from securetrain.audit.sources.stored import StoredFacts
from securetrain.core.errors import AuditError, UsageError
from tests.audit.killed import kills
from tests.audit.test_signed_facts import World, refusals
from tests.vocabulary import refused

MINUTE = timedelta(minutes=1)


@pytest.fixture
def store(tmp_path, now):
    """An hour and a half ago, before the fixture's facts were collected."""
    return NonceStore(tmp_path / "nonces", now - timedelta(minutes=90))


@pytest.fixture
def world(tmp_path, fixtures, catalogue, now):
    return World(tmp_path, fixtures, catalogue, now)


def judge(world, *names, now=None):
    now = now or world.now
    store = NonceStore(world.folder / "nonces", now)
    facts = StoredFacts(world.folder / "facts", world.inventory(*names), store=store)
    return audit(facts, world.catalogue, world.fixtures.policy, now)


def test_one_nonce_is_the_question_of_one_audit(world, store):
    nonce, expires = store.issue()
    assert expires == store.now + LIFETIME
    world.node("a", nonce=nonce)
    world.node("b", nonce=nonce)
    result = judge(world, "a", "b")
    assert (result.exit_code, result.problems, result.notes) == (0, (), ())
    assert len(result.assets) == 2


def test_a_replay_is_seen_without_a_nonce_given_by_hand(world, store):
    nonce, _ = store.issue()
    world.node("a", nonce=nonce)
    assert judge(world, "a").exit_code == 0
    # the control: without the store, the old answer is as good as on the first day
    again = StoredFacts(world.folder / "facts", world.inventory("a"))
    assert audit(again, world.catalogue, world.fixtures.policy, world.now).exit_code == 0
    result = judge(world, "a")
    assert result.exit_code == 4
    assert result.assets == ()
    assert "it is a replay" in refusals(result)[0]


@pytest.mark.parametrize(
    ("nonce", "said"),
    [("", "no nonce"), ("0" * 32, "not issued here"), ("../../../etc/passwd", "not issued here"),
     ("x" * 200, "not issued here")],
)  # fmt: skip
def test_what_was_never_asked_is_no_answer(world, store, nonce, said):
    store.issue()
    world.node("a", nonce=nonce)
    result = judge(world, "a")
    assert result.exit_code == 4
    assert said in refusals(result)[0]


def test_a_nonce_is_over_after_a_day_and_is_not_spent_by_that(world, store, now):
    nonce, _ = store.issue()
    world.node("a", nonce=nonce)
    assert "was good until" in refusals(judge(world, "a", now=store.now + LIFETIME))[0]
    assert judge(world, "a", now=store.now + timedelta(hours=23)).problems == ()


def test_facts_from_before_their_question_are_no_answer(world, store):
    nonce, _ = store.issue()
    world.node("a", nonce=nonce, late=timedelta(minutes=50))
    result = judge(world, "a")
    assert result.exit_code == 4
    assert "its nonce was issued" in refusals(result)[0]


def test_what_does_not_count_takes_no_nonce_and_hides_nobody(world, store):
    nonce, _ = store.issue()
    data = world.node("a", key="stranger", nonce=nonce)
    assert judge(world, "a").exit_code == 4
    world.node("a", nonce=nonce)
    assert judge(world, "a").exit_code == 0
    # an old answer beside a new one about the same node
    (world.folder / "facts" / "0.json").write_bytes(data)
    (world.folder / "facts" / "1.json").write_bytes((world.folder / "facts/a.json").read_bytes())
    world.node("a", nonce=store.issue()[0])
    result = judge(world, "a")
    assert [one.asset for one in result.assets] == ["node:a"]
    assert len(refusals(result)) == 2


def test_two_documents_about_one_asset_are_still_refused(world, store):
    data = world.node("a", nonce=store.issue()[0])
    (world.folder / "facts" / "again.json").write_bytes(data)
    refused(AuditError, "two documents", judge, world, "a")


def _take(folder, now, nonce, begin, answers):
    begin.wait()
    answers.put(NonceStore(folder, now).open().refusal(nonce, now))


def test_of_auditors_at_once_one_gets_the_nonce(store, now):
    fork = multiprocessing.get_context("fork")
    nonce, _ = store.issue()
    begin, answers = fork.Barrier(6), fork.Queue()
    with_it = (store.folder, now, nonce, begin, answers)
    children = [fork.Process(target=_take, args=with_it) for _ in range(6)]
    for child in children:
        child.start()
    said = sorted(answers.get(timeout=120) for _ in children)
    for child in children:
        child.join()
    assert said[0] == ""
    assert all("it is a replay" in one for one in said[1:])


def test_an_issue_that_is_killed_leaves_a_whole_nonce_or_none(tmp_path, now):
    for limit in kills(lambda n: NonceStore(tmp_path / str(n), now).issue()):
        folder = tmp_path / str(limit)
        for place in folder.glob("*.json"):
            assert NonceStore(folder, now).refusal(place.stem, now) == ""
        NonceStore(folder, now).issue()


def test_an_audit_that_is_killed_spends_the_nonce_or_does_not_and_never_answers_twice(
    tmp_path, now
):
    """Where the folder was renamed and the kill came before the answer, the nonce is lost."""
    nonces = {n: NonceStore(tmp_path / str(n), now).issue()[0] for n in range(1, 40)}
    answered = 0

    def work(n):
        store = NonceStore(tmp_path / str(n), now)
        assert store.refusal(nonces[n], now) == ""

    for limit in kills(work):
        again = NonceStore(tmp_path / str(limit), now).refusal(nonces[limit], now)
        assert again == "" or "it is a replay" in again
        answered += again == ""
        assert "it is a replay" in NonceStore(tmp_path / str(limit), now).refusal(
            nonces[limit], now
        )
    assert answered > 0


@pytest.mark.parametrize("call", ["rename", "fsync"])
@pytest.mark.parametrize("wrong", [errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_nonce_that_cannot_be_taken_ends_the_audit(world, store, monkeypatch, call, wrong):
    nonce, _ = store.issue()
    world.node("a", nonce=nonce)

    def refuse(*_args, **_kwargs):
        raise OSError(wrong, os.strerror(wrong))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises((UsageError, OSError)) as error:
        judge(world, "a")
    assert isinstance(error.value, UsageError)
    assert error.value.code in {"ST-USAG-002", "ST-USAG-006"}


def test_a_store_that_others_may_change_is_none(store, world, tmp_path):
    nonce, _ = store.issue()
    world.node("a", nonce=nonce)
    store.folder.chmod(0o777)
    refused(UsageError, "ST-USAG-018", judge, world, "a")
    refused(UsageError, "no store", NonceStore(tmp_path / "gone", world.now).open)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"nonce":"x"}', b"\xff"])
def test_a_damaged_nonce_is_an_error_that_names_its_file(store, now, data):
    nonce, _ = store.issue()
    (store.folder / f"{nonce}.json").write_bytes(data)
    with pytest.raises(AuditError) as error:
        store.refusal(nonce, now)
    assert error.value.code == "ST-AUDT-006"
    assert nonce in error.value.where
    store.issue()  # and keeps nobody from asking anew


def test_one_nonce_under_the_name_of_another_is_damage(store, now):
    (first, _), (second, _) = store.issue(), store.issue()
    (store.folder / f"{first}.json").replace(store.folder / f"{second}.json")
    refused(AuditError, "another nonce's", store.refusal, second, now)


def test_what_is_long_over_is_forgotten(store, now):
    (first, _), (second, _) = store.issue(), store.issue()
    assert store.refusal(first, now) == ""
    later = NonceStore(store.folder, store.now + 2 * LIFETIME + MINUTE)
    third, _ = later.issue()
    assert [place.stem for place in store.folder.iterdir()] == [third]
    assert "not issued here" in later.refusal(first, later.now)
    assert "not issued here" in later.refusal(second, later.now)
