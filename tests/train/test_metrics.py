# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import io
import json
import math

import pytest

from securetrain.core.files import drop_lines_after
from securetrain.train.metrics import (
    MetricsWriter,
    StepMetrics,
    describe,
    peak_flops,
)
from tests.tables import each


def metrics(step: int, **changes: object) -> StepMetrics:
    values = {
        "step": step,
        "loss": 2.0,
        "bits_per_byte": 2.0 / math.log(2),
        "grad_norm": 0.5,
        "tokens_per_second": 1000.0,
        "mfu": None,
        "lr": 1e-3,
        "seconds": 0.1,
        "tokens": 128 * step,
        "verdict": "clean",
    }
    return StepMetrics(**{**values, **changes})  # type: ignore[arg-type]


def writer(folder, **changes):
    values = {
        "path": folder / "metrics.jsonl",
        "tensorboard": None,
        "console": None,
        "console_every": 1,
        "steps": 10,
        "resumed_at": 0,
    }
    return MetricsWriter(**{**values, **changes})


def test_lines_can_be_followed_while_they_grow(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with writer(tmp_path) as out:
        for step in (1, 2):
            out.write(metrics(step))
            lines = path.read_text().splitlines()
            assert [json.loads(line)["step"] for line in lines] == list(range(1, step + 1))
    keys = set(json.loads(lines[0]))
    assert keys >= {
        "step", "loss", "bits_per_byte", "grad_norm", "tokens_per_second", "mfu", "lr", "seconds",
        "verdict",
    }  # fmt: skip


def test_what_is_not_finite_is_null():
    line = metrics(1, loss=math.nan, grad_norm=math.inf, verdict="refused").line()
    value = json.loads(line, parse_constant=pytest.fail)
    assert value["loss"] is None
    assert value["grad_norm"] is None


def test_a_resumed_run_drops_the_lines_of_steps_it_does_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with writer(tmp_path) as out:
        for step in range(1, 6):
            out.write(metrics(step))
    with path.open("a") as file:
        file.write('{"step": 2}')  # a line that was cut by a crash
    with writer(tmp_path, resumed_at=3) as out:
        out.write(metrics(4))
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == [1, 2, 3, 4]


def test_lines_that_cannot_be_read_are_dropped(tmp_path):
    path = tmp_path / "lines"
    path.write_text('{"a": {"step": 1}}\nnot json\n[]\n{"a": {"step": "x"}}\n{"a": {"step": 9}}\n')
    drop_lines_after(path, 5, field=("a", "step"))
    assert path.read_text() == '{"a": {"step": 1}}\n'
    drop_lines_after(tmp_path / "absent", 5)


def test_tensorboard_gets_an_event_file_with_the_values(tmp_path):
    board = tmp_path / "board"
    with writer(tmp_path, tensorboard=board) as out:
        out.write(metrics(1))
    (file,) = board.iterdir()
    assert file.name.startswith("events.out.tfevents.")
    data = file.read_bytes()
    assert b"train/loss" in data
    assert b"train/grad_norm" in data
    assert b"train/mfu" not in data


def test_people_get_a_line_now_and_then(tmp_path):
    console = io.StringIO()
    with writer(tmp_path, console=console, console_every=2) as out:
        for step in (1, 2, 3):
            evaluated = {"val_loss": 1.7, "val_bits_per_byte": 2.5} if step == 3 else {}
            out.write(metrics(step, **evaluated))
    lines = console.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["2/10", "3/10"]
    assert "validation 2.500" in lines[1]


def test_tokens_that_are_more_than_bytes_have_no_bits_a_byte():
    text = describe(metrics(3, bits_per_byte=None, val_loss=1.25), 10)
    assert "2.000 nats/token" in text
    assert "validation 1.250" in text


def test_a_refused_step_says_so():
    assert describe(metrics(3, verdict="refused", mfu=0.41), 10).endswith("MFU 41.0%  refused")


@each(
    "name, peak",
    ("NVIDIA H100 80GB HBM3", 989e12),
    ("NVIDIA H200", 989e12),
    ("NVIDIA H100 PCIe", 756e12),
    ("NVIDIA A100-SXM4-80GB", 312e12),
    ("A GPU of tomorrow", None),
    (None, None),
)
def test_peaks(name, peak):
    assert peak_flops(name) == peak
