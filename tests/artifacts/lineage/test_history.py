# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from datetime import UTC, datetime, timedelta

from securetrain.artifacts.lineage.head import read_history
from securetrain.artifacts.lineage.machine import NO_EPOCH, History, Rollback
from securetrain.ledger import Body, Entry, Event, Recorded, events
from tests.tables import each
from tests.vocabulary import refused

START = datetime(2026, 1, 1, tzinfo=UTC)


def line(said, at=0):
    time = START + timedelta(seconds=at)
    body = Body(seq=0, prev="", time=time, writer="rank-0", event=events.encode_event(said))
    return Recorded(said, Entry(body, "", ""))


def signed(step, at, digest="", event=events.CheckpointSigned):
    digest = digest or f"{step:064x}"
    return line(event(subject=f"step-{step:08d}", step=step, digest=digest), at)


def quarantined(step):
    return line(events.CheckpointQuarantined(step=step, digest=f"{step:064x}", code="ST-CKPT-160"))


def steps(history):
    return [made.step for made in history.made]


def test_nothing():
    assert read_history([]) == History()


def test_a_checkpoint_has_the_epoch_that_had_begun():
    found = read_history(
        [
            signed(1, 1),
            line(events.EpochStarted(epoch=0), 2),
            signed(2, 3),
            line(events.EpochStarted(epoch=3), 4),
            line(events.EpochStarted(epoch=3), 4),  # another node's agent
            signed(3, 5),
        ]
    )
    assert [made.epoch for made in found.made] == [NO_EPOCH, 0, 3]
    assert found.epoch == 3


def test_a_launch_counts_its_epochs_from_anew():
    found = read_history(
        [line(events.EpochStarted(epoch=7)), line(events.RunStarted()), signed(1, 1)]
    )
    assert (found.made[0].epoch, found.epoch) == (NO_EPOCH, NO_EPOCH)


def test_dating_back_gains_nothing_once_anybody_else_has_written():
    found = read_history([line(events.NodeLeft(), 100), signed(1, 5)])
    assert found.made[0].time == START + timedelta(seconds=100)
    found = read_history([signed(1, 5), signed(1, 90, event=events.CheckpointSeen)])
    assert [made.time for made in found.made] == [START + timedelta(seconds=90)]


def test_who_saw_it_first_does_not_matter():
    found = read_history([signed(1, 90, event=events.CheckpointSeen), signed(1, 5)])
    assert [made.time for made in found.made] == [START + timedelta(seconds=90)]


def test_what_was_set_aside_is_gone_until_it_is_made_again():
    entries = [signed(1, 1), signed(2, 2), quarantined(2)]
    found = read_history(entries)
    assert steps(found) == [1]
    assert found.set_aside == {f"{2:064x}"}
    found = read_history([*entries, signed(2, 9)])
    assert steps(found) == [1, 2]
    assert not found.set_aside


def test_the_last_one_is_the_one_that_was_made_last():
    found = read_history([signed(1, 1), signed(2, 2), signed(3, 3), signed(2, 4)])
    assert steps(found) == [1, 3, 2]


def test_what_was_recovered_is_the_last_one():
    """It was made before, and nobody said so in time: its time is that of the entry."""
    found = read_history([signed(1, 1), signed(2, 9, event=events.CheckpointRecovered)])
    assert found.last is not None
    assert (found.last.step, found.last.time) == (2, START + timedelta(seconds=9))
    again = read_history(
        [signed(2, 1), signed(1, 2), signed(2, 9, event=events.CheckpointRecovered)]
    )
    assert steps(again) == [1, 2]


def test_a_rollback_is_under_way_until_a_restart_point():
    back = events.RolledBack(to=3, ranks="2", evidence="bad")
    point = line(events.RestartPoint(subject="step", digest="a" * 64, step=3))
    assert read_history([point]).going_back is None
    assert read_history([point, line(back), signed(1, 1)]).going_back == Rollback(3, "2")
    assert read_history([line(back), point]).going_back is None


def test_evictions_that_were_dealt_with():
    found = read_history([line(events.NodeDistrusted(subject="node-b", last_good="then"))])
    assert found.distrusted == {("node-b", "then")}


@each(
    "kind",
    events.CheckpointSigned,
    events.CheckpointSeen,
    events.CheckpointRecovered,
    events.CheckpointQuarantined,
    events.EpochStarted,
    events.RestartPoint,
    events.NodeDistrusted,
)
def test_lines_that_say_less_than_they_should_are_no_events(kind):
    code = "ST-CKPT-160" if issubclass(kind, events.Refused) else ""
    empty = Event(boundary=kind.BOUNDARY, decision=kind.DECISION, event=kind.NAME, code=code)
    refused(ValueError, "missing required field", events.decode_event, empty)


def test_what_the_run_went_back_to_last():
    def point(at, digest):
        return line(events.RestartPoint(subject="step", digest=digest, step=1), at)

    first, second = point(1, "a" * 64), point(2, "b" * 64)
    assert read_history([]).restart == ""
    assert read_history([first, second]).restart == "b" * 64
    assert read_history([second, first]).restart == "a" * 64
    assert read_history([first, point(2, "")]).restart == ""  # the beginning
