# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""guard.prom, and what else the guard's writer feeds."""

import pytest

from securetrain.guard.exporter import GuardTextfile
from securetrain.guard.records import SketchWriter
from securetrain.guard.verdict import RankScore, StepRecord, Totals, Verdict
from securetrain.policy.schema import GuardResponse


def record(step, **changes):
    table = tuple(
        RankScore(rank=rank, finite=True, norm=1.0, evidence=float(rank), limit=10.0)
        for rank in range(3)
    )
    verdict = Verdict(
        **{
            "step": step,
            "ok": True,
            "response": GuardResponse.OBSERVE,
            "table": table,
            "integrity": 0.25,
            **changes,
        }
    )
    return StepRecord(
        verdict=verdict, totals=Totals(judged=step), world_size=3, batches=1, sent_bytes=1
    )


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def samples(path):
    lines = path.read_text().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_every_number_has_help_type_and_labels(tmp_path):
    path = tmp_path / "guard.prom"
    GuardTextfile(path, {"run": 'a"b'}).write(record(3, excluded=(2,)))
    found = samples(path)
    mine = r'run="a\"b"'
    assert found[f"securetrain_guard_steps_judged_total{{{mine}}}"] == "3"
    assert found[f"securetrain_guard_limit{{{mine}}}"] == "10"
    assert found[f'securetrain_guard_evidence{{{mine},rank="1"}}'] == "1"
    assert found[f'securetrain_guard_excluded{{{mine},rank="2"}}'] == "1"
    assert found[f'securetrain_guard_excluded{{{mine},rank="0"}}'] == "0"
    assert found[f"securetrain_guard_integrity{{{mine}}}"] == "0.25"
    names = {name.split("{")[0] for name in found}
    text = path.read_text()
    assert all(f"# HELP {name} " in text and f"# TYPE {name} " in text for name in names)


def test_it_is_written_when_it_is_time_or_when_there_is_news(tmp_path):
    path, clock = tmp_path / "guard.prom", Clock()
    out = GuardTextfile(path, {}, clock=clock)

    def judged():
        return int(samples(path)["securetrain_guard_steps_judged_total{}"])

    out.write(record(1))
    out.write(record(2))
    assert judged() == 1, "held back"
    out.write(record(3, newly_excluded=(1,)))
    assert judged() == 3, "news"
    out.write(record(4, ok=False))
    assert judged() == 4
    out.write(record(5))
    clock.now = 6.0
    out.write(record(6))
    assert judged() == 6
    out.write(record(7))
    out.close()
    assert judged() == 7
    path.unlink()
    out.close()
    assert not path.exists(), "nothing new"


def test_who_counts_again_does_not_stay_excluded(tmp_path):
    path = tmp_path / "guard.prom"
    GuardTextfile(path, {}).write(record(3, excluded=(2,), readmitted=(2,)))
    assert samples(path)['securetrain_guard_excluded{rank="2"}'] == "0"


def test_numbers_that_are_not_known_are_left_out(tmp_path):
    path = tmp_path / "guard.prom"
    GuardTextfile(path, {}).write(record(3, table=(), integrity=None))
    assert not [name for name in samples(path) if "total" not in name]


def test_the_writer_of_sketches_feeds_it(tmp_path):
    path = tmp_path / "guard.prom"
    writer = SketchWriter(tmp_path / "sketches.jsonl", GuardTextfile(path, {}))
    writer.write(record(1))
    writer.write(record(2))
    writer.close()
    assert samples(path)["securetrain_guard_steps_judged_total{}"] == "2"
    assert len((tmp_path / "sketches.jsonl").read_text().splitlines()) == 2


def test_a_scripts_steps_are_in_the_events_of_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    writer = SketchWriter(tmp_path / "sketches.jsonl", None, tmp_path / "board")
    for step in (1, 2):
        writer.write(record(step))
    writer.close()
    (path,) = (tmp_path / "board").iterdir()
    data = path.read_bytes()
    for tag in (b"guard/evidence/rank-0", b"guard/norm/rank-0", b"guard/excluded"):
        assert data.count(tag) == 2


def test_without_tensorboardx_the_rest_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("securetrain.guard.board.importlib.util.find_spec", lambda _name: None)
    writer = SketchWriter(tmp_path / "sketches.jsonl", None, tmp_path / "board")
    writer.write(record(1))
    writer.close()
    assert not (tmp_path / "board").exists()
    assert len((tmp_path / "sketches.jsonl").read_text().splitlines()) == 1
