# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The statistics of the benchmarks, with a fake clock: nothing here takes time."""

import json
import random
import subprocess
import sys

import pytest

from benchmarks import ab
from benchmarks import run as run_module
from securetrain.testing.clock import SettableClock
from tests.vocabulary import refused


class FakeBenchmark:
    """Ours takes `factor` times the plain time; both drift by `drift` a sample."""

    name = "fake"
    title = "a fake"
    pairs = 5

    def __init__(self, factor=1.0, drift=0.0, goal=None):
        self.factor = factor
        self.drift = drift
        self.goal = goal or ab.Goal(ratio=1.0)
        self.orders = []

    def run(self, order):
        self.orders.append(list(order))
        clock = SettableClock()
        seconds = []
        for number, side in enumerate(order):
            started = clock.seconds()
            clock.sleep((1.0 + self.drift * number) * (self.factor if side == "ours" else 1.0))
            seconds.append(clock.seconds() - started)
        return seconds


def _measure(benchmark, pairs=20, seed=0):
    return ab.measure(benchmark, pairs, random.Random(seed))


def test_the_ratio_is_that_of_the_pairs():
    summary = _measure(FakeBenchmark(factor=1.25, goal=ab.Goal(ratio=1.3)))
    assert summary.ratio == pytest.approx(1.25)
    assert summary.difference_seconds == pytest.approx(0.25)
    assert summary.noise_low == summary.noise_high == pytest.approx(1.0)
    assert summary.goal_met
    assert not summary.within_noise
    assert not _measure(FakeBenchmark(factor=1.25, goal=ab.Goal(ratio=1.2))).goal_met


def test_drift_of_the_machine_cancels_in_the_pairs():
    # Over the run the machine gets nine times slower; two means would be far apart.
    summary = _measure(FakeBenchmark(factor=1.0, drift=0.1))
    assert summary.ratio == pytest.approx(1.0, abs=0.05)
    assert summary.within_noise


def test_a_difference_can_be_the_goal():
    assert _measure(FakeBenchmark(factor=1.4, goal=ab.Goal(difference=0.5))).goal_met
    assert not _measure(FakeBenchmark(factor=1.6, goal=ab.Goal(difference=0.5))).goal_met
    both = ab.Goal(ratio=1.5, difference=0.3)
    assert not _measure(FakeBenchmark(factor=1.4, goal=both)).goal_met
    assert str(both) == "ratio <= 1.500 and <= +0.3 s"
    absolute = ab.Goal(seconds=1 / 2000)
    assert str(absolute) == "<= 0.5 ms (2,000/s)"
    assert absolute.met(9.0, 9.0, 0.0005)
    assert not absolute.met(0.1, -1.0, 0.0006)
    assert str(ab.Goal()) == "none"


def test_the_order_is_random_balanced_and_warmed_up():
    benchmark = FakeBenchmark()
    for seed in range(5):
        _measure(benchmark, pairs=10, seed=seed)
    assert len({tuple(order) for order in benchmark.orders}) == 5
    for order in benchmark.orders:
        assert order[:2] == ["plain", "ours"]
        assert len(order) == 2 + 4 * 10
        assert order[2:].count("ours") == 10
    planned = ab.plan(10, random.Random(1))
    assert sum(pair.is_noise for pair in planned) == 10
    assert {pair.first for pair in planned if not pair.is_noise} == set(ab.Side)


@pytest.mark.parametrize("seconds", [[], [1.0], [float("nan")] * 6, [0.0] * 6, [float("inf")] * 6])
def test_samples_that_cannot_be_are_refused(seconds):
    class Broken(FakeBenchmark):
        def run(self, order):
            return seconds

    benchmark = Broken()
    refused(ValueError, "6 samples", _measure, benchmark, pairs=1)


def test_no_pairs_is_an_error():
    refused(ValueError, "at least 1", ab.plan, 0, random.Random(0))


def test_quartiles():
    assert ab.quartiles([2.0]) == (2.0, 2.0)
    assert ab.quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)


def test_the_table_shows_a_missed_goal():
    text = ab.table([_measure(FakeBenchmark(factor=2.0)), _measure(FakeBenchmark(factor=0.5))])
    lines = text.splitlines()
    assert lines[0].startswith("benchmark")
    assert lines[1].endswith("NO")
    assert lines[2].endswith("yes")


def test_samples_that_did_not_finish_are_counted_and_shown():
    class Slow(FakeBenchmark):
        limit = 1.0

    summary = _measure(Slow(factor=0.5), pairs=4)
    assert (summary.plain_unfinished, summary.ours_unfinished) == (4, 0)
    assert ab.table([summary]).splitlines()[1].split()[1:3] == [">1", "0.5"]
    summary = _measure(Slow(factor=2.0), pairs=4)
    assert (summary.plain_unfinished, summary.ours_unfinished) == (4, 4)
    assert _measure(FakeBenchmark()).plain_unfinished == 0


def test_the_machine_is_described_without_its_name_or_paths():
    import platform

    text = json.dumps(ab.machine())
    assert platform.node() not in text
    assert "/" not in text


def test_the_least_and_the_rate_are_shown():
    summary = _measure(FakeBenchmark(factor=0.5))
    assert summary.ours_least_seconds == pytest.approx(0.5)
    row = ab.table([summary]).splitlines()[1].split()
    assert row[2:5] == ["0.5", "0.5", "2"]


def _figure(value):
    return ab.Figure(
        name="size", title="a size", values={"MB": value}, goal="<= 2 MB", goal_met=value <= 2
    )


def test_a_figure_stands_beside_its_goal():
    assert str(_figure(1.0)) == "size: MB 1; goal <= 2 MB: met"
    assert str(_figure(3.25)) == "size: MB 3.25; goal <= 2 MB: NOT MET"


def test_the_command_writes_what_it_prints(monkeypatch, tmp_path, capsys):
    fakes = [FakeBenchmark(factor=0.9)]
    found = {"size": lambda: _figure(1.0), "absent": lambda: None}
    monkeypatch.setattr(run_module, "benchmarks", lambda names: [] if "nothing" in names else fakes)
    monkeypatch.setattr(run_module, "figures", lambda names: {} if "nothing" in names else found)
    out = tmp_path / "results" / "out.json"
    assert run_module.main(["--pairs", "3", "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["results"][0]["ratio"] == pytest.approx(0.9)
    assert document["results"][0]["pairs"] == 3
    assert set(document) == {"date", "machine", "load_average", "results", "figures"}
    assert [figure["values"] for figure in document["figures"]] == [{"MB": 1.0}]
    shown = capsys.readouterr().out
    assert "fake" in shown
    assert "size: MB 1" in shown
    with pytest.raises(SystemExit):
        run_module.main(["nothing"])


def test_a_terminated_bench_cleans_up():
    code = """
import os, signal, sys
from benchmarks import ab
ab.clean_up_when_terminated()
try:
    os.kill(os.getpid(), signal.SIGTERM)
finally:
    print("cleaned up")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("cleaned up\n", 143)
