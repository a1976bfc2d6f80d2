# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of chains measure a verifier that accepts what they show it. No torch."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chain


@pytest.mark.parametrize("run", [{}, {"nodes": 2, "local_world": 3}], ids=["ancestors", "ranks"])
def test_what_is_measured_is_verified(tmp_path: Path, run: dict[str, Any], capsys: Any) -> None:
    made = chain.LongRun(**run)
    made.train(3)
    chain._verify(*map(Path, made.write(tmp_path)))
    assert json.loads(capsys.readouterr().out)["CPU s"] > 0
