# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""metrics.prom."""

import math
import re
from pathlib import Path

from securetrain.train.metrics import StepMetrics
from securetrain.train.prometheus import PrometheusFile

LINE = re.compile(
    r'[a-z_]+\{run="[^"\n]*(?:\\.[^"\n]*)*",job="[a-z-]+"\} (NaN|[+-]Inf|-?[0-9.e+-]+)'
)


def metrics(step: int, **changes: float | str | None) -> StepMetrics:
    values = {
        "step": step, "loss": 2.5, "bits_per_byte": None, "grad_norm": 1.0,
        "tokens_per_second": 1000.0, "mfu": None, "lr": 1e-3, "seconds": 0.1,
        "tokens": 1000 * step, "verdict": "clean",
    }  # fmt: skip
    return StepMetrics(**{**values, **changes})  # type: ignore[arg-type]


def read(path: Path) -> dict[str, str]:
    text = path.read_text()
    assert text.endswith("\n")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            assert LINE.fullmatch(line), line
            name, value = line.split("{")[0], line.rsplit(" ", 1)[1]
            assert f"# TYPE {name} " in text
            found[name] = value
    return found


def test_the_last_step_and_what_was_measured_before(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "metrics.prom"
    file = PrometheusFile(path, run='job-"1"', job="tiny", every=5.0, clock=lambda: now[0])
    file.write(metrics(1, val_loss=3.0, mfu=0.5))
    assert read(path)["securetrain_steps_total"] == "1"
    now[0] = 4.0
    file.write(metrics(2, grad_norm=math.nan, verdict="refused"))
    assert read(path)["securetrain_steps_total"] == "1", "not yet"
    now[0] = 5.0
    file.write(metrics(3, grad_norm=math.nan, verdict="refused"))
    found = read(path)
    assert found["securetrain_steps_total"] == "3"
    assert found["securetrain_tokens_total"] == "3000"
    assert found["securetrain_grad_norm"] == "NaN"
    assert found["securetrain_refused"] == "1"
    assert found["securetrain_val_loss"] == "3", "stays until it is measured again"
    assert "securetrain_bits_per_byte" not in found
    file.write(metrics(4))
    file.close()
    assert read(path)["securetrain_steps_total"] == "4", "nothing is held back at the end"
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.prom"]
