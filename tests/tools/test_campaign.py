# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Campaigns: what is kept, how one goes on, a sample of each, and figures that name one."""

import json
import random
import re
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.vocabulary import ran, refused
from tools import campaign
from tools.campaigns import Campaign, Missed

ROOT: Final = Path(__file__).resolve().parents[2]
FIGURE: Final = re.compile(r"(\d[\d,]*)\s+cases\s+\(campaign\s+`([a-z]+)`\)")
"""``2,000 cases (campaign `damage`)``."""


def test_a_case_depends_on_seed_and_number_alone(tmp_path: Path) -> None:
    draw = Campaign(title="x", count=3, case=lambda rng, _: str(rng.random()))
    again = [campaign.run_case(draw, 7, number) for number in (2, 0, 1, 2)]
    assert again[0] == again[3]
    assert len(set(again)) == 3
    assert campaign.run_case(draw, 8, 2) != again[0]


def test_an_interrupted_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    out, ran = tmp_path / "kept.json", []

    def case(rng: random.Random, folder: Path) -> str:
        assert not list(folder.iterdir())
        ran.append(rng.random())
        if len(ran) == 4:
            raise KeyboardInterrupt
        return "good" if len(ran) % 2 else "odd"

    slow = Campaign(title="x", count=6, case=case)
    with pytest.raises(KeyboardInterrupt):
        campaign.run(slow, campaign.begin("kills", 6, 0, out, fresh=False), out)
    assert json.loads(out.read_text())["done"] == 3
    record = campaign.begin("kills", 6, 0, out, fresh=False)
    assert campaign.run(slow, record, out) == 0
    kept = json.loads(out.read_text())
    assert (kept["done"], kept["asked"], sum(kept["outcomes"].values())) == (6, 6, 6)
    assert ran[3] == ran[4], "the case that was interrupted is run again"
    assert re.fullmatch("[0-9a-f]{40}", kept["commit"])


def test_a_miss_is_kept_and_told(tmp_path: Path) -> None:
    def case(rng: random.Random, folder: Path) -> str:
        del rng, folder
        raise Missed("a change verifies")

    out = tmp_path / "kept.json"
    weak = Campaign(title="x", count=2, case=case)
    assert campaign.run(weak, campaign.begin("damage", 2, 0, out, fresh=False), out) == 2
    kept = json.loads(out.read_text())
    assert kept["misses"][1] == {"case": 1, "what": "a change verifies"}
    assert kept["outcomes"] == {"missed": 2}


def test_results_of_different_code_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "kept.json"
    quick = Campaign(title="x", count=1, case=lambda *_: "good")
    campaign.run(quick, campaign.begin("kills", 1, 0, out, fresh=False), out)
    refused(ValueError, "seed 0, not 1", campaign.begin, "kills", 2, 1, out, fresh=False)
    monkeypatch.setattr(campaign, "commit", lambda: ("f" * 40, False))
    refused(ValueError, "--fresh", campaign.begin, "kills", 2, 0, out, fresh=False)
    assert campaign.begin("kills", 2, 0, out, fresh=True)["done"] == 0


def test_every_campaign_is_named_and_has_cases() -> None:
    modules = {path.stem.replace("_", "-") for path in (ROOT / "tools/campaigns").glob("[a-z]*.py")}
    assert set(campaign.NAMES) == modules
    assert all(campaign.find(name).count > 0 for name in campaign.NAMES)
    refused(ValueError, "no campaign", campaign.find, "nothing")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("audit-opaque", 1),
        ("bars", 3),
        ("damage", 12),
        pytest.param("kills", 2, marks=pytest.mark.dist),
        ("readers", 4),
        pytest.param("replay", 2, marks=pytest.mark.many),
    ],
)
def test_a_sample_of_every_campaign(name: str, count: int, tmp_path: Path) -> None:
    """With a seed whose first two cases are a full disk and a kill."""
    out = tmp_path / "kept.json"
    ran(
        [
            *(sys.executable, "tools/campaign.py", name, "--seed", "41"),
            *("--count", str(count), "--out", str(out)),
        ],
        cwd=ROOT,
    )
    assert json.loads(out.read_text())["done"] == count


def _documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_a_documented_figure_has_its_result() -> None:
    """A count that nobody can look up is a claim, not a measurement."""
    wrong, named = [], 0
    for path in _documents():
        text = path.read_text()
        figures = FIGURE.findall(text)
        named += len(figures)
        if len(figures) != len(re.findall(r"\(campaign\s+`", text)):
            wrong.append(f"{path.name}: a campaign is named without its number before it")
        for number, name in figures:
            kept = campaign.RESULTS / f"{name}.json"
            if not kept.exists():
                wrong.append(f"{path.name}: {name} has no result")
                continue
            record = json.loads(kept.read_text())
            found = record["done"], record["asked"], record["outcomes"].get("missed", 0)
            if found != (int(number.replace(",", "")),) * 2 + (0,):
                wrong.append(f"{path.name}: {number} of {name}, and its result says {found}")
    assert wrong == []
    assert named >= 1
