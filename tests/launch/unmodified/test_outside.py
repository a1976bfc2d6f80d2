# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Foreign scripts that train, load and start programs out of sight: said everywhere, or refused."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from securetrain.core.vocabulary import (
    LOADS_NOT_HELD,
    NOT_SIGNED,
    NOT_WATCHED,
    PROGRAMS_NOT_PROTECTED,
)
from securetrain.report import read_run
from tests.launch.worlds import write_policy
from tests.vocabulary import outcome

pytestmark = [pytest.mark.dist, pytest.mark.slow, pytest.mark.timeout(1800)]
SCRIPT = Path(__file__).with_name("scripts") / "outside.py"
POLICY = {
    "host": {"sandbox": "off"},
    "gradients": {"mode": "detect"},
    "dataset": {"max_age_days": 9},
    "checkpoint": {"expect": {"run": "another"}},
}
RANKS = {"by-hand": 2}
LABEL = {"by-hand": NOT_WATCHED, "load": LOADS_NOT_HELD, "program": PROGRAMS_NOT_PROTECTED}
EVENT = {
    "by-hand": "gradients-not-watched",
    "load": "loads-not-held",
    "program": "programs-not-protected",
}
REFUSED = {
    "by-hand": "ST-GRAD-020",
    "load": "ST-RUNT-021",
    "program": "ST-RUNT-021",
    "spawn": "ST-RUNT-004",
}
"""The run's code; a process of the script's own is refused by its own, which the ledger has."""


def place_for(how, place):
    """Make the script's folder; what it loads is there before it."""
    place.mkdir()
    if how == "load":
        torch.save({}, place / "theirs.pt")
    return place


@pytest.fixture
def start(launch, tmp_path):
    def start(how, enforcement="report"):
        policy = write_policy(tmp_path / "policy.yaml", enforcement=enforcement, **POLICY)
        place = place_for(how, tmp_path / "place")
        ranks = str(RANKS.get(how, 1))
        return launch(
            *(tmp_path / "run", "--standalone", "--policy", policy),
            *("--nproc-per-node", ranks, str(SCRIPT), str(place), how),
        )

    return start


def plain(how, place):
    """The control: what stock torchrun makes of the same script."""
    place_for(how, place)
    ranks = str(RANKS.get(how, 1))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    return outcome(
        [*torchrun, ranks, str(SCRIPT), str(place), how], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


@pytest.mark.parametrize(
    "how", ["by-hand", *(pytest.param(how, marks=pytest.mark.many) for how in ("load", "program"))]
)
def test_what_is_done_out_of_sight_is_said_everywhere(start, tmp_path, how):
    done = start(how)
    assert done.code == 0, done.err
    *_, ended = done.err.partition("workers      ")
    assert LABEL[how] in ended.split("securetrain: succeeded")[0].split("securetrain: ", 1)[1]
    assert "data: NOT KNOWN: none was read with securetrain" in ended
    assert done.events(EVENT[how])[-1].subject == "end of the run"
    labels = [done.summary["gradients"]["label"], *done.summary["outside"]["labels"]]
    assert any(label.startswith(LABEL[how]) for label in labels)
    record = read_run(done.run.root, datetime.now(UTC))
    assert any(limit.startswith(f"{LABEL[how]}.") for limit in record.limits)


@pytest.mark.many
@pytest.mark.parametrize("how", list(REFUSED))
def test_where_all_is_required_it_is_refused(start, tmp_path, how):
    assert plain(how, tmp_path / "plain").returncode == 0, "the control"
    done = start(how, enforcement="require")
    assert done.code != 0
    assert done.summary["code"] == REFUSED[how], done.err
    if how == "program":
        assert not (tmp_path / "place" / "other.pt").exists(), "it did not start"
    if how == "spawn":
        assert "ST-RUNT-022" in done.codes
        assert not (tmp_path / "place" / "weights.pt").exists(), "nothing was written"
        assert NOT_WATCHED not in done.err, "a process that was ended said so in its first step"


@pytest.mark.many
def test_what_processes_of_the_script_do_is_known_as_its_own(start, tmp_path):
    """Two processes train; the launcher's list of nodes, by its own ranks, hung them before."""
    assert plain("spawn", tmp_path / "plain").returncode == 0, "the control"
    done = start("spawn")
    assert done.code == 0, done.err
    *_, ended = done.err.partition("workers      ")
    assert "securetrain: gradients: watched; 4 steps judged, 0 refused" in ended
    assert f"securetrain: {NOT_SIGNED}: 1 save by torch.save" in ended
    assert done.summary["gradients"]["judged"] == 4
    assert len(done.summary["workers"]) == 1, "the workers are those of the launcher"
