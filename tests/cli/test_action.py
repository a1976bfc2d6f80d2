# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The composite actions: their scripts are run as a runner does, and no input is ever code."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from securetrain.artifacts.dataset.write import sign_documents
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, sign_root

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
AUDIT = yaml.safe_load((ROOT / "actions" / "audit" / "action.yml").read_text())
SIGN = yaml.safe_load((ROOT / "actions" / "sign" / "action.yml").read_text())
INSTALL, STEP = ACTION["runs"]["steps"]
POD = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: pretrain}
spec:
  pytorchReplicaSpecs:
    Worker:
      template:
        spec:
          containers:
          - name: pytorch
            securityContext: {privileged: true}
"""


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """dataset/ and trust.json."""
    key, now = PrivateKey.generate(), datetime.now(UTC)
    root = sign_root({TrustRole.DATASET: [key.public]}, key, now, now + timedelta(days=1))
    (tmp_path / "trust.json").write_bytes(root)
    documents = [("train", "a", b"one"), ("train", "b", b"two")]
    sign_documents(documents, tmp_path / "dataset", name="d", key=key, now=now)
    return tmp_path


def act(folder: Path, action: dict[str, Any] = ACTION, **inputs: str) -> tuple[int, Path]:
    """Run the script of an action's last step with these inputs."""
    step = action["runs"]["steps"][-1]
    variables = dict.fromkeys(step["env"], "") | {
        "SCAN": "false",
        "SARIF": "out.sarif",
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=folder,
        env=variables | inputs,
        check=False,
        timeout=60,
    )
    return done.returncode, folder / "out.sarif"


def test_a_good_directory_passes_and_leaves_a_report(signed: Path) -> None:
    code, report = act(signed, TARGET="dataset", TRUST="trust.json", VSA="vsa.json", SCAN="true")
    assert code == 0
    assert json.loads(report.read_text())["runs"][0]["results"] == []
    assert (signed / "output").read_text() == "exit-code=0\n"
    assert json.loads((signed / "vsa.json").read_text())["predicate"]["verificationResult"]


def test_a_changed_directory_fails_with_its_report(signed: Path) -> None:
    (signed / "dataset" / "extra").write_text("x")
    code, report = act(signed, TARGET="dataset", TRUST="trust.json")
    assert code == 14
    results = json.loads(report.read_text())["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["ST-DATA-141"]


def test_the_directory_that_is_meant(signed: Path) -> None:
    at = {"TARGET": "dataset", "TRUST": "trust.json"}
    assert act(signed, ACTION, **at, EXPECT_NAME="d", EXPECT_MIN_VERSION="0")[0] == 0
    code, report = act(signed, ACTION, **at, EXPECT_NAME="prod-corpus")
    assert code == 12
    results = json.loads(report.read_text())["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["ST-DATA-126"]


@pytest.mark.forgery
def test_an_input_is_never_code(signed: Path) -> None:
    marker = signed / "ran"
    code, _ = act(signed, TARGET=f"$(touch {marker}); touch {marker}", TRUST="trust.json")
    assert code != 0
    assert not marker.exists()
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]


@pytest.mark.forgery
@pytest.mark.parametrize(("identity", "extra"), [("", ""), ("maker@example.org", "-sigstore")])
def test_it_installs_its_own_checkout_and_no_name_of_an_index(
    tmp_path: Path, identity: str, extra: str
) -> None:
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\nfor one in "$@"; do echo "$one"; done\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", INSTALL["run"]],
        env={
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_ACTION_PATH": "/the action",
            **dict.fromkeys(INSTALL["env"], identity),
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    needs = f"/the action/actions/requirements{extra}.txt"
    assert done.stdout.splitlines() == [
        *("-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "-r", needs),
        *("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"),
        "/the action",
    ]


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """jobs/pretrain.yaml, which is privileged."""
    (tmp_path / "jobs dir").mkdir()
    (tmp_path / "jobs dir" / "pretrain.yaml").write_text(POD)
    return tmp_path


def audit(folder: Path, **inputs: str) -> tuple[int, Path]:
    given = {"FILES": "jobs dir\n", "POLICY": "baseline", "NEW_ONLY": "false", "JSON": "out.json"}
    return act(folder, AUDIT, **(given | inputs))


def test_an_audit_fails_with_its_reports_and_a_summary(jobs: Path) -> None:
    code, report = audit(jobs, HTML="out.html")
    assert code == 1
    (run,) = json.loads(report.read_text())["runs"]
    (first,) = [one for one in run["results"] if one["ruleId"] == "ST-K8S-001"]
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "jobs%20dir/pretrain.yaml"
    assert place["region"]["startLine"] == 11
    assert (jobs / "output").read_text() == "exit-code=1\n"
    assert "ST-K8S-001" in (jobs / "summary").read_text()
    assert "<!doctype html>" in (jobs / "out.html").read_text()


def test_what_the_baseline_had_does_not_fail_an_audit_again(jobs: Path) -> None:
    assert audit(jobs)[0] == 1
    (jobs / "out.json").rename(jobs / "base.json")
    code, report = audit(jobs, BASELINE="base.json", NEW_ONLY="true")
    assert code == 0
    assert json.loads(report.read_text())["runs"][0]["results"] == []
    (jobs / "jobs dir" / "more.yaml").write_text(POD.replace("pretrain", "other"))
    assert audit(jobs, BASELINE="base.json", NEW_ONLY="true")[0] == 1


@pytest.mark.forgery
@pytest.mark.parametrize("name", ["FILES", "SLURM", "POLICY", "WAIVERS", "BASELINE"])
def test_an_input_of_an_audit_is_never_code_nor_an_option(jobs: Path, name: str) -> None:
    marker = jobs / "ran"
    assert audit(jobs, **{name: f"$(touch {marker}); touch {marker}"})[0] != 0
    assert audit(jobs, **{name: f"--out={marker}.json"})[0] != 0
    assert not [*jobs.glob("ran*")]


@pytest.mark.parametrize("action", [ACTION, AUDIT, SIGN], ids=["verify", "audit", "sign"])
def test_every_input_is_used_and_no_script_has_an_expression(action: dict[str, Any]) -> None:
    used = set(re.findall(r"inputs\.([a-z-]+)", json.dumps(action)))
    assert used == set(action["inputs"])
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"]


@pytest.mark.parametrize(("html", "extra"), [("", ""), ("out.html", "-report")])
def test_the_audit_installs_its_own_checkout(tmp_path: Path, html: str, extra: str) -> None:
    step = AUDIT["runs"]["steps"][0]
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\nfor one in "$@"; do echo "$one"; done\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        env={
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_ACTION_PATH": "/the action/actions/audit",
            "HTML": html,
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    root = "/the action/actions/audit/../.."
    needs = f"{root}/actions/requirements{extra}.txt"
    assert done.stdout.splitlines() == [
        *("-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "-r", needs),
        *("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"),
        root,
    ]


def test_every_hook_is_a_verb_that_runs(jobs: Path) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    entries = [hook["entry"] for hook in hooks]
    assert entries == ["securetrain verify", "securetrain scan", "securetrain audit --files"]
    assert re.search(hooks[-1]["files"], "jobs/a.yaml.j2")
    for name in (
        *("pytorch_model.bin", "a/training_args.bin", "model.safetensors", "m.pkl.gz", "m.gguf"),
        *("ckpt/.metadata", "ckpt/__0.metadata", "tokenizer_config.json"),
    ):
        assert re.search(hooks[1]["files"], name), name
    for name in ("x.metadata", "README.md", "package.json", "firmware.bin", "setup.py"):
        assert not re.search(hooks[1]["files"], name), name
    done = subprocess.run(
        [sys.executable, "-m", *entries[-1].split(), "jobs dir"],
        cwd=jobs,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert "jobs dir/pretrain.yaml:11" in done.stdout


def test_the_examples_for_ci_are_what_the_pages_show() -> None:
    page = (ROOT / "docs" / "how-to" / "audit-in-ci.md").read_text()
    example = yaml.safe_load((ROOT / "examples" / "audit-in-ci.yml").read_text())
    shown = yaml.safe_load(re.findall(r"```yaml\n(permissions:.*?)```", page, re.DOTALL)[0])
    steps = example["jobs"]["audit"]["steps"]
    assert steps[0] == shown["jobs"]["audit"]["steps"][0]
    (with_of,) = [step["with"] for step in steps if "actions/audit" in step.get("uses", "")]
    assert set(with_of) <= set(AUDIT["inputs"])
