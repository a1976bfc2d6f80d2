# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a job names, and an audit of a node that was told."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.findings import worst_states
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.node.collect.host import NOTHING, named
from securetrain.audit.subjects.node.collect.node import collect_from
from securetrain.cli.audit.audit import command
from securetrain.core.errors import PolicyError, UsageError
from securetrain.core.vocabulary import State
from securetrain.policy.load import load_policy
from tests.audit.conftest import NOW
from tests.audit.hardened.machine import hardened

ABOUT_NAMED = (
    "ST-CKP-001", "ST-CKP-002", "ST-CKP-003", "ST-CKP-004", "ST-CKP-006", "ST-CKP-011",
    "ST-DAT-001", "ST-DAT-005", "ST-DAT-009",
)  # fmt: skip


def states_of(machine):
    facts = facts_of([collect_from(machine.host(), now=NOW)])
    return worst_states(audit(facts, load_checks(), load_policy("dev").policy, NOW).findings)


def test_what_nobody_names_is_not_looked_at_and_never_a_pass(tmp_path):
    machine = hardened(tmp_path)
    machine.named = NOTHING
    states = states_of(machine)
    assert {states[check] for check in ABOUT_NAMED} == {State.NOT_APPLICABLE}


@pytest.mark.parametrize("gone", ["nowhere", "empty"])
def test_what_is_named_and_not_there_is_unknown(gone, tmp_path):
    machine = hardened(tmp_path)
    machine.folder("/data/empty")
    machine.named = named(
        {}, checkpoints=(Path(f"/data/{gone}"),), datasets=(Path(f"/data/{gone}"),)
    )
    states = states_of(machine)
    unknown = {check for check in ABOUT_NAMED if states[check] is State.UNKNOWN}
    assert unknown == set(ABOUT_NAMED) - {"ST-CKP-002", "ST-CKP-006"}  # the way to it is known


def test_without_a_trust_root_no_signature_is_known(tmp_path):
    machine = hardened(tmp_path)
    machine.named = named({}, checkpoints=(Path("/data/run"),), datasets=(Path("/data/docs"),))
    states = states_of(machine)
    unknown = {check for check in ABOUT_NAMED if states[check] is State.UNKNOWN}
    assert unknown == {"ST-CKP-001", "ST-CKP-011", "ST-DAT-001", "ST-DAT-009"}
    machine.named = named({"SECURETRAIN_TRUST": "/data/trust.json"}, datasets=(Path("/data/docs"),))
    assert states_of(machine)["ST-DAT-001"] is State.PASS


JOB = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
trust: trust.json
model: {weights: base}
data: {dataset: docs}
checkpoint: {resume: auto}
"""


def test_a_job_file_names_data_weights_and_trust(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    found = named({"SECURETRAIN_TRUST": "/x"}, job=Path("job.yaml"), trust=None)
    assert [one.path for one in found.checkpoints] == [str(tmp_path / "base")]
    assert [one.path for one in found.datasets] == [str(tmp_path / "docs")]
    assert found.datasets[0].origin == "job.yaml: data.dataset"
    assert found.trust is not None
    assert found.trust.path == str(tmp_path / "trust.json")
    (tmp_path / "job.yaml").write_text(JOB.replace("auto", "run/step-00000080"))
    found = named({}, job=Path("job.yaml"))
    assert [Path(one.path).name for one in found.checkpoints] == ["step-00000080", "base"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", PolicyError),
        ("a: b: c", PolicyError),
        ("data: {dataset: 7}", PolicyError),
        ("data: {dataset: 's3://bucket/docs'}", UsageError),
    ],
)
def test_a_job_file_that_names_nothing_sensible_is_an_error(text, error, tmp_path):
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(error):
        named({}, job=tmp_path / "job.yaml")


def test_the_command_line_names_them_too(tmp_path):
    data = hardened(tmp_path).root / "data"
    given = ["--checkpoint", f"{data}/run", "--dataset", f"{data}/docs", "--trust"]
    result = CliRunner().invoke(command, ["--node", *given, f"{data}/trust.json", "--json"])
    findings = json.loads(result.stdout)["findings"]
    (row,) = [row for row in json.loads(result.stdout)["coverage"] if "data" in row["what"]]
    assert (row["seen"], row["of"]) == (2, 2)
    passed = {one["check"] for one in findings if one["state"] == "pass"}
    assert {"ST-CKP-001", "ST-CKP-003", "ST-CKP-011", "ST-DAT-001", "ST-DAT-009"} <= passed
    refused = CliRunner().invoke(command, ["--facts", str(tmp_path), "--dataset", "x"])
    assert "--dataset needs --node" in refused.output


def test_the_report_says_that_nothing_was_named(tmp_path):
    result = CliRunner().invoke(command, ["--node", "--policy", "dev"])
    text = " ".join(result.output.split())
    assert "checkpoints and data 0/0 (none was named: --checkpoint" in text
