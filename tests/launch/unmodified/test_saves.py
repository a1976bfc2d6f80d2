# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Foreign scripts that save: what nobody signs is said everywhere, or refused."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.cli.artifacts.verify import command
from securetrain.core.vocabulary import NOT_SIGNED, Boundary
from securetrain.report import read_run
from securetrain.report.run.model import BoundaryState
from tests.launch.worlds import write_policy

pytestmark = [pytest.mark.dist, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("scripts") / "saves.py"
POLICY = {
    "host": {"sandbox": "off"},
    "network": {"egress": []},
    "gradients": {"mode": "detect"},
    "checkpoint": {"require_rank_signatures": True, "require_head": True},
}
WAYS = {"dcp": "dcp.save", "async": "dcp.async_save", "torch": "torch.save", "handle": "torch.save"}


@pytest.fixture
def start(launch, tmp_path):
    def start(*arguments, enforcement="report", steps=2, ranks=2):
        policy = write_policy(tmp_path / "policy.yaml", enforcement=enforcement, **POLICY)
        saved = tmp_path / "saved"
        saved.mkdir()
        return launch(
            *(tmp_path / "run", "--standalone", "--policy", policy),
            *("--nproc-per-node", str(ranks), str(SCRIPT), str(saved), str(steps), *arguments),
        )

    return start


def test_saves_that_nobody_signs_are_said_everywhere_and_refused_by_verify(start, tmp_path, capsys):
    done = start("dcp", steps=3)
    assert done.code == 0, done.err
    saved = tmp_path / "saved"
    assert sorted(path.name for path in saved.iterdir()) == ["step-0", "step-1", "step-2"]
    # At the start, at the first save, and at the end; with what changes it.
    begun, _, ended = done.err.partition("workers      2 of")
    assert "checkpoints: signed where the script uses securetrain.artifacts" in begun
    assert done.err.count(f"rank 0: {NOT_SIGNED}: dcp.save saves {saved / 'step-0'}") == 1
    assert f"securetrain: {NOT_SIGNED}: 3 saves by dcp.save, first {saved / 'step-0'}" in ended
    assert "checkpoint.require_head" in ended
    assert "--sign-checkpoints signs what torch and frameworks save" in ended
    assert "save with securetrain.artifacts" in ended
    # In run.json, the ledger and the report.
    assert done.summary["checkpoints"]["unsigned"] == 3
    first, last = done.events("checkpoints-not-signed")
    assert (first.subject, first.details["saves"]) == ("", 0)
    assert (last.subject, last.details["saves"]) == ("end of the run", 3)
    assert "checkpoint.require_rank_signatures" in last.details["fields"]
    record = read_run(done.run.root, datetime.now(UTC))
    assert not any("has no checkpoint" in limit for limit in record.limits)
    assert not any("No gradient" in limit for limit in record.limits)
    assert any(f"{NOT_SIGNED}. The script saved 3 times by dcp.save" in x for x in record.limits)
    assert "No signed dataset was opened: what the script read is not known." in record.limits
    states = {view.boundary: view for view in record.boundaries}
    assert states[Boundary.CHECKPOINT].state is BoundaryState.PARTIAL
    assert NOT_SIGNED in states[Boundary.CHECKPOINT].labels
    assert states[Boundary.DATASET].state is not BoundaryState.CHECKED, "nothing of it was seen"
    # What depends on it is refused.
    for path in saved.iterdir():
        given = [str(path), "--trust", str(done.run.trust), "--policy", "hardened", "--json"]
        assert command(given, standalone_mode=False) == 10
        assert "ST-CKPT-100" in json.dumps(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    "way", ["dcp", *(pytest.param(way, marks=pytest.mark.many) for way in WAYS if way != "dcp")]
)
def test_a_policy_that_requires_it_refuses_the_first_unsigned_save(start, tmp_path, way):
    done = start(way, enforcement="require")
    assert done.code == 1
    assert "steps" not in done.out
    assert done.summary["code"] == "ST-RUNT-022"
    assert {event.code for event in done.events("unsigned-save-refused")} == {"ST-RUNT-022"}
    assert f"{WAYS[way]} would save what nobody signs" in done.err
    files = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    assert [path for path in files if path.stat().st_size] == [], "nothing was written"


@pytest.mark.many
@pytest.mark.parametrize("way", [way for way in WAYS if way != "dcp"])
def test_every_usual_way_is_noticed_and_counted_once(start, way):
    done = start(way)
    assert done.code == 0, done.err
    assert done.summary["checkpoints"]["ways"] == {WAYS[way]: 2}


@pytest.mark.many
@pytest.mark.parametrize("way", ["memory", "none"])
def test_what_saves_nothing_is_not_accused_and_may_be_required(start, way):
    done = start(way, enforcement="require")
    assert done.code == 0, done.err
    assert NOT_SIGNED not in done.err
    assert not done.events("checkpoints-not-signed")
    record = read_run(done.run.root, datetime.now(UTC))
    assert any("A save elsewhere is known only" in limit for limit in record.limits)


@pytest.mark.many
def test_torchs_own_save_over_our_storage_is_signed_by_the_launcher(start, tmp_path, capsys):
    """The script and the workers have no key: statement and both ranks' parts are signed."""
    done = start("signed", enforcement="require")
    assert done.code == 0, done.err
    assert NOT_SIGNED not in done.err
    assert not done.events("checkpoints-not-signed")
    for step in range(2):
        path = tmp_path / "saved" / f"step-{step}"
        envelope = json.loads((path / "statement.json").read_bytes())
        statement = json.loads(base64.b64decode(envelope["payload"]))
        assert [one["rank"] for one in statement["predicate"]["signatures"]] == [0, 1]
        given = [str(path), "--trust", str(done.run.trust), "--json"]
        assert command(given, standalone_mode=False) in {None, 0}
        said = json.loads(capsys.readouterr().out)
        assert said["ok"], said
