# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What machines are told of a pack: a test and a code for each link. No torch."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from securetrain.core.vocabulary import LinkState, NodeTier
from securetrain.policy.schema import Policy
from securetrain.report import verification, written
from securetrain.report.document import Document
from tests.chain.test_packs import of_nodes
from tests.chain.worlds import SHOWN, Run, policy

TRUST = Path("trust.json")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The newest is honest, and its parent's launcher has lied about a tier."""
    made = Run(tmp_path / "run")
    made.save()
    made.save(of_nodes(made, tier=NodeTier.TEE_GPU))
    made.save()
    return made


def said(run: Run, asked: Policy | None) -> Document:
    return verification.verified(run.verify(run.pack(), policy=asked))


def cases(page: Document) -> dict[tuple[str, str], ET.Element]:
    suite = ET.fromstring(written(page, "junit"))
    found = {
        (one.attrib["classname"].removeprefix("securetrain.verify"), one.attrib["name"]): one
        for one in suite
    }
    assert len(found) == len(suite)
    return found


def codes_of(found: dict[tuple[str, str], ET.Element], tag: str) -> dict[tuple[str, str], str]:
    """The codes of the cases with such an outcome."""
    return {key: one[0].attrib["type"] for key, one in found.items() if one.find(tag) is not None}


def test_junit_has_a_case_for_each_link_of_each_checkpoint(run: Run) -> None:
    found = cases(said(run, policy(*SHOWN)))
    assert list(found[("", "a.stpack")]) == []
    groups = sorted({group for group, _ in found if group})
    assert [group[:14] for group in groups] == [f".step-0000{step:04d}" for step in (10, 20, 30)]
    for group in groups[:2]:
        assert {name for one, name in found if one == group} == set(SHOWN)
    assert codes_of(found, "failure") == {(groups[1], "nodes"): "ST-CHAN-010"}
    # What nobody required and what is not there is neither a pass nor a failure.
    assert [one.tag for one in found[(groups[2], "rows")]] == ["skipped"]


def test_without_a_policy_what_is_missing_is_no_failure_and_no_pass(run: Run) -> None:
    found = cases(said(run, None))
    assert codes_of(found, "error") == codes_of(found, "failure") == {}
    skipped = {
        name for (_, name), tags in found.items() if [one.tag for one in tags] == ["skipped"]
    }
    assert {"rows", "gradients", "job", "code"} <= skipped


def test_what_is_about_no_link_is_a_case_of_the_pack(run: Run) -> None:
    path = run.pack()
    asked = policy("nodes", depth="checkpoint", tier="tee+gpu")
    page = verification.verified(run.verify(path, policy=asked))
    (failure,) = cases(page)[("", "a.stpack")]
    assert failure.attrib["type"] == "ST-CKPT-121"


def test_sarif_and_json_have_one_code_a_link(run: Run) -> None:
    page = said(run, policy(*SHOWN))
    sarif = json.loads(written(page, "sarif"))
    (result,) = sarif["runs"][0]["results"]
    assert result["ruleId"] == "ST-CHAN-010"
    links = page.data["checkpoints"][1]["links"]
    assert links["nodes"]["state"] == LinkState.BROKEN
    assert (links["nodes"]["expected"], links["nodes"]["found"]) == ("tpm", "tee+gpu")
