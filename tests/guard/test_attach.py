# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The script of docs/how-to/guard-your-script.md that attaches a guard runs without a launcher."""

import json
import multiprocessing
import os
import re
import runpy
import socket
from pathlib import Path

import pytest

from securetrain.testing.processes import PRELOAD

pytestmark = [pytest.mark.dist, pytest.mark.slow]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "guard-your-script.md"
SIZE = 2


def run_rank(rank, port, folder):
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(SIZE),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    names = runpy.run_path(str(Path(folder, "train.py")))
    guard, verdict = names["guard"], names["verdict"]
    told = {"judged": guard.totals.judged, "ok": verdict.ok, "step": verdict.step}
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(told))


def test_the_script_of_the_page_judges_every_step(tmp_path):
    [script] = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "attach(model" in block
    ]
    (tmp_path / "train.py").write_text(script)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    ranks = [
        context.Process(target=run_rank, args=(rank, port, str(tmp_path))) for rank in range(SIZE)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(200)
        if rank.is_alive():
            rank.kill()
        assert rank.exitcode == 0
    for number in range(SIZE):
        told = json.loads((tmp_path / f"rank-{number}.json").read_text())
        assert told == {"judged": 20, "ok": True, "step": 19}
