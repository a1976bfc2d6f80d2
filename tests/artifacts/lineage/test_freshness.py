# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rollback, freeze, fork, fast-forward: old checkpoints with good signatures (T32 to T37, T43)."""

import hashlib
from datetime import timedelta

import pytest
from msgspec.structs import replace

from securetrain.artifacts import verify_path
from securetrain.artifacts.lineage import judging
from securetrain.artifacts.lineage.head import (
    advance,
    note_logged,
    open_head,
    read_head,
    shown_head,
    sign_head,
)
from securetrain.artifacts.lineage.judging import HEAD_LIMIT, Floors, Freshness
from securetrain.artifacts.lineage.machine import HEAD, Floor, Head
from securetrain.artifacts.lineage.quarantine import Quarantine, set_aside
from securetrain.artifacts.lineage.waivers import (
    Waiver,
    excused,
    open_waiver,
    read_unverified,
    read_waivers,
    sign_waiver,
)
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    Parent,
    digest_of,
    open_statement,
)
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core.errors import IntegrityError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.policy.load import load_policy
from securetrain.rendezvous.wire.protocol import FLOOR_LIMIT
from tests.tables import each
from tests.vocabulary import refused


@pytest.fixture
def run(forge, tmp_path, keys, trust, now):
    """Three checkpoints of a run, one after the other, and its head."""
    folder = tmp_path / "run"
    folder.mkdir()
    made: list[CheckpointPredicate] = []
    for seq in range(3):
        parents = [Parent(digest=digest_of(made[-1]))] if made else []
        data = bytes([seq]) * 2500
        made.append(forge(folder / f"c{seq}", data, seq=seq, step=100 * seq, parents=parents))
        advance(LocalStorage(folder), made[-1], keys.checkpoint, trust, now - timedelta(minutes=1))
    return folder, made


@pytest.fixture
def codes(run, trust, now):
    folder, _ = run

    def check(name, known=None, *, at=None, trust=trust, policy=None):
        result = verify_path(
            folder / name, trust=trust, policy=policy, now=at or now, known=known or Freshness()
        )
        return sorted({problem.code for problem in result.problems})

    return check


def waiver(now, made, signers, **changes):
    fields = {
        "run_id": "run-1",
        "digest": digest_of(made),
        "reason": "the last one diverged",
        "issued": now - timedelta(minutes=1),
        "expires": now + timedelta(hours=1),
        **changes,
    }
    return sign_waiver(Waiver(**fields), signers)


def test_the_newest_is_accepted_and_older_ones_are_a_rollback(codes):
    assert codes("c2") == []
    assert codes("c1") == ["ST-CKPT-151"]
    assert codes("c0") == ["ST-CKPT-151"]


def test_without_being_asked_an_old_checkpoint_is_what_it_was_signed_as(run, trust, now):
    assert verify_path(run[0] / "c0", trust=trust, policy=None, now=now).ok


def test_a_policy_can_ask_for_the_head(run, codes, trust, now):
    policy = load_policy("dev").policy
    asked = replace(policy, checkpoint=replace(policy.checkpoint, require_head=True))
    folder, _ = run
    assert "ST-CKPT-151" in {
        p.code for p in verify_path(folder / "c1", trust=trust, policy=asked, now=now).problems
    }
    (folder / HEAD).unlink()
    assert "ST-CKPT-152" in {
        p.code for p in verify_path(folder / "c2", trust=trust, policy=asked, now=now).problems
    }


def test_two_of_three_operators_may_excuse_exactly_one_old_checkpoint(run, codes, keys, now):
    _, made = run
    good = waiver(now, made[1], keys.operators[:2])
    assert codes("c1", Freshness(waivers=(good,))) == []
    assert codes("c0", Freshness(waivers=(good,))) == ["ST-CKPT-151"]


@pytest.mark.parametrize("how", ["one", "twice", "stranger", "expired", "early", "text"])
def test_a_waiver_that_does_not_count_is_a_refusal(run, codes, *, keys, now, trust, how):
    _, made = run
    match how:
        case "one":
            data = waiver(now, made[1], keys.operators[:1])
        case "twice":
            data = waiver(now, made[1], [keys.operators[0], keys.operators[0]])  # T38
        case "stranger":
            data = waiver(now, made[1], [keys.operators[0], keys.stranger])
        case "expired":
            data = waiver(now, made[1], keys.operators, expires=now)
        case "early":
            data = waiver(now, made[1], keys.operators, issued=now + timedelta(hours=1))
        case _:
            data = b"please"
    assert codes("c1", Freshness(waivers=(data,))) == ["ST-CKPT-123"]
    refused(IntegrityError, "ST-CKPT-123", open_waiver, data, trust, now)


def test_a_waiver_of_another_run_excuses_nothing(run, codes, keys, now, trust):
    _, made = run
    other = waiver(now, made[1], keys.operators, run_id="run-2")
    assert excused([other], trust, "run-1", now) == frozenset()
    assert codes("c1", Freshness(waivers=(other,))) == ["ST-CKPT-151"]


def test_a_store_that_shows_an_old_head_with_an_old_checkpoint(run, codes, tmp_path, trust, now):
    """T32: everything in the folder is of the past. Only what the node remembers speaks."""
    folder, made = run
    floors = Floors(tmp_path / "node" / "floors.json")
    newest = open_statement((folder / "c2" / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust)
    judging.remember(newest, floors)
    for number in (0, 1):
        (folder / f"c{number}").rename(folder / f"was-{number}")
    old = read_head(LocalStorage(folder), trust)
    assert old is not None
    assert old.seq == 2
    assert codes("was-1", Freshness(floors=floors)) == ["ST-CKPT-151"]
    (folder / HEAD).unlink()
    assert codes("was-1") == []  # nothing in the store says otherwise
    assert codes("was-1", Freshness(floors=floors)) == ["ST-CKPT-151"]
    assert codes("c2", Freshness(floors=floors)) == []
    assert made[1].seq == 1


def test_an_old_head_with_the_newest_checkpoint(run, codes, *, keys, tmp_path, trust, now):
    folder, made = run
    floors = Floors(tmp_path / "floors.json")
    floors.raise_to("run-1", Floor(seq=2, digest=digest_of(made[2])), [keys.checkpoint.key_id])
    (folder / HEAD).unlink()
    advance(LocalStorage(folder), made[0], keys.checkpoint, trust, now)
    # c2 does not follow c0, and the node has seen a later head.
    assert set(codes("c2", Freshness(floors=floors))) == {"ST-CKPT-151", "ST-CKPT-170"}


def test_a_head_that_has_expired(codes, now):
    """T33: the store hands out the same head for ever."""
    assert codes("c2", at=now + timedelta(days=29)) == []
    assert codes("c2", at=now + timedelta(days=31)) == ["ST-CKPT-152"]


def test_a_head_from_the_future(run, codes, keys, trust, now):
    folder, made = run
    (folder / HEAD).unlink()
    advance(LocalStorage(folder), made[2], keys.checkpoint, trust, now + timedelta(days=1))
    assert codes("c2") == ["ST-CKPT-152"]


def test_two_checkpoints_of_one_number(run, forge, codes, keys, tmp_path):
    """T34: a fork, which one of two stores shows to one node and the other to another."""
    folder, made = run
    twin = forge(
        folder / "twin", b"other" * 500, seq=2, parents=[Parent(digest=digest_of(made[1]))]
    )
    assert codes("twin") == ["ST-CKPT-171"]
    floors = Floors(tmp_path / "floors.json")
    floors.raise_to("run-1", Floor(seq=2, digest=digest_of(twin)), [keys.checkpoint.key_id])
    assert codes("c2", Freshness(floors=floors)) == ["ST-CKPT-171"]


def test_a_checkpoint_that_the_head_does_not_know_yet(run, forge, codes):
    folder, made = run
    forge(folder / "c3", b"3" * 2500, seq=3, parents=[Parent(digest=digest_of(made[2]))])
    assert codes("c3") == []
    forge(folder / "c4", b"4" * 2500, seq=4, parents=[Parent(digest=digest_of(made[1]))])
    assert codes("c4") == ["ST-CKPT-170"]
    forge(folder / "c5", b"5" * 2500, seq=5)
    assert codes("c5") == ["ST-CKPT-170"]


def test_a_head_of_another_run(run, forge, codes):
    folder, _ = run
    forge(folder / "foreign", b"f" * 2500, run_id="run-2", seq=9)
    assert "ST-CKPT-170" in codes("foreign")


def test_a_head_that_is_damaged_or_signed_by_a_stranger(run, codes, keys, trust, now):
    folder, _ = run
    good = (folder / HEAD).read_bytes()
    head = open_head(good, trust)
    for data, code in (
        (good[:-2], "ST-CKPT-152"),
        (good.replace(b'"sig":"', b'"sig":"A'), "ST-CKPT-152"),
        (sign_head(head, keys.stranger), "ST-CKPT-120"),
        (sign_head(head, keys.operators[0]), "ST-CKPT-120"),
        (b"x" * (70 << 10), "ST-CKPT-152"),
    ):
        (folder / HEAD).write_bytes(data)
        assert codes("c2") == [code]


def test_heads_never_go_back_and_are_a_chain(run, keys, trust, now):
    folder, made = run
    storage = LocalStorage(folder)
    refused(IntegrityError, "ST-CKPT-171", advance, storage, made[1], keys.checkpoint, trust, now)
    before = (folder / HEAD).read_bytes()
    after = advance(storage, replace(made[2], seq=7), keys.checkpoint, trust, now)
    assert len(after.prev) == 64
    assert after.prev == hashlib.sha256(before).hexdigest()
    # The numbers of another run in the same folder begin where they like.
    other = replace(made[0], run_id="run-2")
    assert advance(storage, other, keys.checkpoint, trust, now).run_id == "run-2"


def test_a_leaked_keys_number_dies_with_the_key(run, forge, keys, tmp_path, now):
    """T37: fast-forward. A thief saves number 10^9, and honest numbers would never count again."""
    folder, made = run
    floors = Floors(tmp_path / "floors.json")
    thief = keys.stranger
    both = TrustRoot.parse(keys.trust_file(keys.checkpoint.public, thief.public), now)
    forge(folder / "fast", b"t" * 2500, seq=10**9, key=thief)
    stolen = open_statement((folder / "fast" / STATEMENT).read_bytes(), Kind.CHECKPOINT, both)
    judging.remember(stolen, floors)
    floors.raise_to("run-1", Floor(seq=1, digest=digest_of(made[1])), [keys.checkpoint.key_id])

    def found(trust):
        known = Freshness(floors=floors)
        result = verify_path(folder / "c2", trust=trust, policy=None, now=now, known=known)
        return [p.code for p in result.problems]

    assert "ST-CKPT-151" in found(both)
    revoked = keys.trust_file(keys.checkpoint.public, thief.public, revoked=[thief.key_id])
    assert found(TrustRoot.parse(revoked, now)) == []


def test_expiry(forge, codes, run, now):
    folder, made = run
    forge(
        folder / "c3",
        b"3" * 2500,
        seq=3,
        parents=[Parent(digest=digest_of(made[2]))],
        expires=now + timedelta(hours=1),
    )
    assert codes("c3") == []
    assert codes("c3", at=now + timedelta(hours=1)) == ["ST-CKPT-153"]


def test_a_quarantine_is_remembered_and_can_be_waived(run, codes, *, keys, trust, now, tmp_path):
    """T43."""
    folder, made = run
    floors = Floors(tmp_path / "floors.json")
    opened = open_statement((folder / "c2" / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust)
    why = Quarantine(node="b", code="ST-ADMN-013", last_good=now, epoch=1, created=now)
    aside = set_aside(folder / "c2", opened, why, keys.checkpoint)
    known = Freshness(floors=floors)
    assert codes(aside.name, known) == ["ST-CKPT-160"]
    # Whoever can write there deletes the record and gives the directory its name back.
    (aside / "quarantine.json").unlink()
    assert codes(aside.name) == []
    assert codes(aside.name, known) == ["ST-CKPT-160"]
    allowed = waiver(now, made[2], keys.operators[1:])
    assert codes(aside.name, Freshness(floors=floors, waivers=(allowed,))) == []


def test_floors_only_rise_and_belong_to_this_node(tmp_path):
    path = tmp_path / "new" / "floors.json"
    floors = Floors(path)
    assert floors.floor("r", ["a" * 64]) is None
    floors.raise_to("r", Floor(seq=5, digest="1" * 64), ["a" * 64])
    floors.raise_to("r", Floor(seq=4, digest="2" * 64), ["a" * 64])
    floors.raise_to("r", Floor(seq=9, digest="3" * 64), ["b" * 64])
    assert floors.floor("r", ["a" * 64]) == Floor(seq=5, digest="1" * 64)
    assert floors.floor("r", ["a" * 64, "b" * 64]) == Floor(seq=9, digest="3" * 64)
    assert floors.floor("other", ["a" * 64]) is None
    assert path.stat().st_mode & 0o777 == 0o600
    for damage in (
        b"",
        b"{}",
        path.read_bytes()[:-1],
        path.read_bytes().replace(b'"version":1', b'"version":2'),
    ):
        path.write_bytes(damage)
        refused(IntegrityError, "ST-CKPT-151", floors.floor, "r", ["a" * 64])


def test_floors_that_are_a_link_are_refused(tmp_path):
    (tmp_path / "real").write_bytes(b"{}")
    (tmp_path / "floors.json").symlink_to(tmp_path / "real")
    refused(IntegrityError, "ST-CKPT-151", Floors(tmp_path / "floors.json").floor, "r", [])


def test_a_head_with_both_signatures_of_a_pair_can_be_shown_to_others(tmp_path, now):
    """One that is too large is kept to itself, and then a node that was put back hears nothing."""
    head = Head(
        run_id="r" * 256, seq=1 << 40, step=1 << 40, digest="1" * 64, prev="2" * 64,
        log_index=1 << 40, created=now, expires=now + timedelta(days=1),
    )  # fmt: skip
    key = PrivateKey.generate_pair()
    data = sign_head(head, key)
    assert len(data) <= HEAD_LIMIT == FLOOR_LIMIT
    floors = Floors(tmp_path / "floors.json")
    floors.raise_to("run-1", Floor(seq=1 << 40, digest="1" * 64), [key.key_id], data)
    assert floors.head("run-1", {key.key_id}) == data


def test_what_a_node_can_show_to_others_is_its_newest_head(run, keys, tmp_path, trust):
    folder, made = run
    floors = Floors(tmp_path / "floors.json")
    known = trust.keys_for(TrustRole.CHECKPOINT)
    assert floors.head("run-1", known) is None
    data = (folder / HEAD).read_bytes()
    shown = shown_head(data, trust, "run-1")
    floor = Floor(seq=shown.head.seq, digest=shown.head.digest)
    floors.raise_to("run-1", floor, shown.key_ids, shown.data)
    assert floors.head("run-1", known) == data
    assert floors.floor("run-1", known) == Floor(seq=2, digest=digest_of(made[2]))
    # Something newer without a head, and an older head: what can be shown stays.
    floors.raise_to("run-1", Floor(seq=9, digest="9" * 64), shown.key_ids)
    older = Floor(seq=1, digest=digest_of(made[1]))
    floors.raise_to("run-1", older, shown.key_ids, b"older")
    too_large = b"x" * (HEAD_LIMIT + 1)
    floors.raise_to("run-1", Floor(seq=10, digest="a" * 64), shown.key_ids, too_large)
    assert floors.head("run-1", known) == data
    assert floors.head("run-1", {keys.stranger.key_id}) is None
    floors.raise_to("run-1", Floor(seq=11, digest="b" * 64), shown.key_ids, b"newer")
    assert floors.head("run-1", known) == b"newer"
    # What was saved here first, and is in the head later.
    again = Floors(tmp_path / "again.json")
    for head in (b"", data):
        again.raise_to("run-1", floor, shown.key_ids, head)
    assert again.head("run-1", known) == data


@pytest.mark.forgery
def test_a_head_that_somebody_shows_is_judged(run, keys, trust):
    folder, _ = run
    data = (folder / HEAD).read_bytes()
    assert shown_head(data, trust, "run-1").head.seq == 2
    forged = sign_head(shown_head(data, trust, "run-1").head, keys.stranger)
    for shown, run_id, code in (
        (forged, "run-1", "ST-CKPT-120"),
        (data, "run-2", "ST-CKPT-170"),
        (data[:-9], "run-1", "ST-CKPT-152"),
    ):
        refused(IntegrityError, code, shown_head, shown, trust, run_id)


def test_what_a_run_went_back_to_is_excused_and_nothing_else(run, codes, tmp_path, keys):
    _, made = run
    floors, key = Floors(tmp_path / "floors.json"), keys.checkpoint.key_id
    newest, before = digest_of(made[2]), digest_of(made[1])
    asked = Freshness(floors=floors, head=False)
    floors.raise_to("run-1", Floor(seq=2, digest=newest), [key])
    assert codes("c1", asked) == ["ST-CKPT-151"]  # the control
    # Nobody has seen anything of another run, and nothing is an excuse for itself.
    assert not floors.excuse("run-2", before, {newest}, {key})
    assert not floors.excuse("run-1", newest, {newest}, {key})
    # Nothing says that the newest one was set aside.
    assert not floors.excuse("run-1", before, set(), {key})
    assert codes("c1", asked) == ["ST-CKPT-151"]
    assert floors.excuse("run-1", before, {newest}, {key})
    assert floors.excuse("run-1", before, {newest}, {key})
    assert codes("c1", asked) == []
    assert codes("c0", asked) == ["ST-CKPT-151"]
    # What came after it makes it old again, whatever the store says.
    floors.raise_to("run-1", Floor(seq=3, digest="3" * 64), [key])
    assert codes("c1", asked) == ["ST-CKPT-151"]
    assert not floors.excuse("run-1", before, {newest}, {key})
    assert floors.excused("run-1", {keys.stranger.key_id}) == frozenset(), "of no key that counts"


def test_a_head_beside_it_is_asked_unless_the_caller_goes_by_its_own_ledger(codes):
    assert codes("c1", Freshness()) == ["ST-CKPT-151"]
    assert codes("c1", Freshness(head=False)) == []
    policy = load_policy("dev").policy
    asked = replace(policy.checkpoint, require_head=True)
    policy = replace(policy, checkpoint=asked)
    assert codes("c2", Freshness(head=False), policy=policy) == []
    assert codes("c1", Freshness(head=False), policy=policy) == ["ST-CKPT-151"]


@each("data", b"", b"please", b"{}")
def test_an_operator_is_not_shown_what_is_no_waiver(data):
    assert "malformed" in str(refused(IntegrityError, "ST-CKPT-123", read_unverified, data))


def test_waivers_in_a_folder(tmp_path):
    assert read_waivers(tmp_path / "none") == ()
    (tmp_path / "b.json").write_bytes(b"2")
    (tmp_path / "a.json").write_bytes(b"1")
    (tmp_path / "notes.txt").write_bytes(b"3")
    assert read_waivers(tmp_path) == (b"1", b"2")
    for number in range(64):
        (tmp_path / f"{number}.json").write_bytes(b"")
    refused(IntegrityError, "ST-CKPT-123", read_waivers, tmp_path)


def test_where_the_log_has_it_stands_in_the_head(run, codes, keys, trust):
    folder, made = run
    store = LocalStorage(folder)
    before = (folder / HEAD).read_bytes()
    was = read_head(store, trust)
    assert note_logged(store, digest_of(made[1]), 7, keys.checkpoint, trust) is None
    assert (folder / HEAD).read_bytes() == before
    now_is = note_logged(store, digest_of(made[2]), 7, keys.checkpoint, trust)
    assert now_is == read_head(store, trust)
    chained = hashlib.sha256(before).hexdigest()
    assert was is not None
    assert now_is == replace(was, log_index=7, prev=chained)
    assert note_logged(store, digest_of(made[2]), 7, keys.checkpoint, trust) is None
    assert codes("c2") == []
    (folder / HEAD).unlink()
    assert note_logged(store, digest_of(made[2]), 7, keys.checkpoint, trust) is None
