# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import msgspec
import pytest

from securetrain import drills
from securetrain.cli.main import main
from securetrain.drills import DRILLS, DrillResult, Outcome
from securetrain.drills.registry import Side, judge


def result(drill_id: str, *, code: str = "", evidence: str = "seen") -> DrillResult:
    drill = DRILLS[drill_id]
    plain = Outcome(side=Side.PLAIN, succeeded=True, evidence=evidence)
    hardened = Outcome(
        side=Side.HARDENED, succeeded=False, refused=True, code=code or drill.expected_code,
        evidence=evidence,
    )  # fmt: skip
    return judge(drill, plain, hardened)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, DrillResult]:
    """Drills that come out as the test says, without any process."""
    outcomes = {name: result(name) for name in DRILLS}

    def fake(name: str, workdir: Path) -> DrillResult:
        return outcomes[name]

    monkeypatch.setattr(drills, "run_drill", fake)
    return outcomes


def test_the_list_names_every_drill_and_runs_none(capsys):
    assert main(["drill", "--list"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for drill in DRILLS.values():
        assert drill.id in text
        assert drill.title in text
    assert main(["drill", "--list", "--json"]) == 0
    assert [d["id"] for d in json.loads(capsys.readouterr().out)] == list(DRILLS)


def test_all_drills_run_without_an_id(ran, capsys):
    assert main(["drill"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for drill in DRILLS.values():
        assert f"refused {drill.expected_code}" in text
    assert text.count("attack succeeded") == len(DRILLS)


def test_one_drill_as_json(ran, capsys):
    assert main(["drill", "D-CKPT-METADATA", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["ok"]
    assert [drill["id"] for drill in value["drills"]] == ["D-CKPT-METADATA"]


def test_a_drill_that_does_not_hold_is_a_failure(ran, capsys):
    ran["D-RDZ-PICKLE"] = result("D-RDZ-PICKLE", code="ST-ADMN-001")
    assert main(["drill", "D-RDZ-PICKLE"]) == 1
    assert "ST-DRIL-003" in capsys.readouterr().out
    assert main(["drill", "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["ok"]


def test_an_attack_that_did_not_succeed_on_the_plain_stack_proves_nothing(ran, capsys):
    good = ran["D-RDZ-PICKLE"]
    plain = msgspec.structs.replace(good.plain, succeeded=False)
    ran["D-RDZ-PICKLE"] = judge(DRILLS["D-RDZ-PICKLE"], plain, good.hardened)
    assert main(["drill", "D-RDZ-PICKLE"]) == 1
    text = capsys.readouterr().out
    assert "proves nothing" in text
    assert "ST-DRIL-001" in text


def test_a_drill_that_was_not_run_is_no_pass(ran, capsys):
    good = ran["D-WRK-HOST"]
    plain = msgspec.structs.replace(good.plain, succeeded=False, lacks="root")
    ran["D-WRK-HOST"] = judge(DRILLS["D-WRK-HOST"], plain, good.hardened)
    assert main(["drill"]) == 3
    text = capsys.readouterr().out
    assert "ST-DRIL-004: root" in text
    assert "proves nothing" not in text
    assert main(["drill", "--json"]) == 3
    assert not json.loads(capsys.readouterr().out)["ok"]
    ran["D-RDZ-PICKLE"] = result("D-RDZ-PICKLE", code="ST-ADMN-001")
    assert main(["drill"]) == 1, "what failed weighs more"


def test_what_the_attacked_side_wrote_cannot_repaint_the_terminal(ran, capsys):
    ran["D-RDZ-PICKLE"] = result("D-RDZ-PICKLE", evidence="\x1b[2J[red]x")
    assert main(["drill", "D-RDZ-PICKLE"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_an_unknown_drill_is_a_usage_error(capsys):
    assert main(["drill", "D-NONE"]) == 2
    err = capsys.readouterr().err
    assert "D-NONE" in err
    assert "D-RDZ-PICKLE" in err
