# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Foreign scripts whose saves are signed, and whose loads are verified before they are parsed."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.cli.artifacts.verify import command
from securetrain.core.vocabulary import NOT_SIGNED
from securetrain.report import read_run
from tests.launch.worlds import clean_environment, write_policy
from tests.vocabulary import ran

pytestmark = [pytest.mark.dist, pytest.mark.slow, pytest.mark.many]
SCRIPT = Path(__file__).with_name("scripts") / "resumes.py"
REFUSED = {
    "altered": "ST-CKPT-130",
    "altered-safetensors": "ST-CKPT-130",
    "altered-shard": "ST-CKPT-130",
    "began": "ST-CKPT-100",
    "exchanged": "ST-CKPT-131",
    "moved": "ST-CKPT-143",
    "renamed-file": "ST-CKPT-143",
    "renamed-step": "ST-CKPT-143",
    "unsigned": "ST-CKPT-100",
}
VALUES = {"altered": 128.0, "altered-safetensors": 128.0, "altered-shard": 128.0}
VALUES |= {"exchanged": 576.0}


def said(text):
    """What the script printed."""
    line = next(line for line in text.splitlines() if line.startswith("said "))
    return json.loads(line.removeprefix("said "))


@pytest.fixture
def start(launch, tmp_path):
    def start(*flags, enforcement="report", head=False):
        checkpoint = {"require_clean_verdict": False, "require_head": head}
        given = {"enforcement": enforcement, "checkpoint": checkpoint}
        policy = write_policy(tmp_path / "policy.yaml", host={"sandbox": "off"}, **given)
        saved = tmp_path / "saved"
        saved.mkdir()
        return launch(
            *(tmp_path / "run", "--standalone", "--policy", policy, *flags),
            *("--nproc-per-node", "2", str(SCRIPT), str(saved)),
        )

    return start


def verified(capsys, path, trust):
    given = [str(path), "--trust", str(trust), "--json"]
    code = command(given, standalone_mode=False) or 0
    return code, json.loads(capsys.readouterr().out)


def test_saves_are_signed_and_what_somebody_altered_is_refused(start, tmp_path, capsys):
    # The control: alone, every altered, moved and renamed file loads, and nothing is said.
    place = tmp_path / "alone"
    place.mkdir()
    alone = ran([sys.executable, str(SCRIPT), str(place)], env=clean_environment())
    loaded = said(alone.stdout)["attacks"]
    assert loaded == {name: VALUES.get(name, 64.0) for name in loaded}
    assert set(REFUSED) - set(loaded) == set()

    done = start("--sign-checkpoints", "--verify-checkpoints", enforcement="require")
    assert done.code == 0, done.err
    found = said(done.out)
    assert set(found["honest"].values()) == {64.0}, found["honest"]
    assert {"async", "dcp", "handle", "mmap", "old", "over", "renamed"} <= set(found["honest"])
    assert found["attacks"] == {name: REFUSED[name] for name in loaded}

    # Said at the end, in run.json, in the ledger and in the report.
    assert NOT_SIGNED not in done.err
    assert "checkpoints: signed as files: " in done.err
    signed = done.summary["checkpoints"]["signed"]
    assert {"dcp.save", "dcp.async_save", "torch.save"} <= set(signed)
    written = done.events("saved-files-signed")
    assert len(written) >= sum(signed.values())
    assert {event.subject for event in written} == {"rank-0"}
    steps = {one.details["step"] for one in written if one.details["way"] == "dcp.save"}
    assert steps == {7}
    refused = {event.code for event in done.events("saved-file-refused")}
    assert refused == {"ST-CKPT-100", "ST-CKPT-130", "ST-CKPT-131", "ST-CKPT-143"}
    record = read_run(done.run.root, datetime.now(UTC))
    assert not any("has no checkpoint" in limit for limit in record.limits)
    assert any("signed as they were written" in limit for limit in record.limits)

    # Every saved directory verifies, and so does each file; what was altered does not.
    honest = tmp_path / "saved" / "honest"
    for path in (honest, honest / "step-1", honest / "step-3", honest / "renamed.pt"):
        code, page = verified(capsys, path, done.run.trust)
        assert (code, page["problems"]) == (0, []), path
    assert not list(honest.glob("gone*")), "the statement on a file that is gone went, too"
    assert not list(honest.glob("*.tmp*"))
    code, page = verified(capsys, tmp_path / "saved" / "attacks", done.run.trust)
    assert code
    assert {one["code"] for one in page["problems"]} == {
        *("ST-CKPT-100", "ST-CKPT-130", "ST-CKPT-131", "ST-CKPT-141", "ST-CKPT-143")
    }


def test_a_demand_that_signed_files_do_not_meet_refuses_the_save(start):
    done = start("--sign-checkpoints", enforcement="require", head=True)
    assert done.code == 1
    assert done.summary["code"] == "ST-RUNT-022"
    assert "checkpoint.require_head are not met by signed files" in done.err
