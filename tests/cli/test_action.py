# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The composite action: its script is run as a runner does, and no input of it is ever code."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from securetrain.artifacts.dataset.write import sign_documents
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, sign_root

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
INSTALL, STEP = ACTION["runs"]["steps"]


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """dataset/ and trust.json."""
    key, now = PrivateKey.generate(), datetime.now(UTC)
    root = sign_root({TrustRole.DATASET: [key.public]}, key, now, now + timedelta(days=1))
    (tmp_path / "trust.json").write_bytes(root)
    documents = [("train", "a", b"one"), ("train", "b", b"two")]
    sign_documents(documents, tmp_path / "dataset", name="d", key=key, now=now)
    return tmp_path


def act(folder: Path, **inputs: str) -> tuple[int, Path]:
    """Run the step's script with these inputs."""
    variables = dict.fromkeys(STEP["env"], "") | {
        "SCAN": "false",
        "SARIF": "out.sarif",
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", STEP["run"]],
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


@pytest.mark.forgery
def test_an_input_is_never_code(signed: Path) -> None:
    marker = signed / "ran"
    code, _ = act(signed, TARGET=f"$(touch {marker}); touch {marker}", TRUST="trust.json")
    assert code != 0
    assert not marker.exists()
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]


@pytest.mark.forgery
@pytest.mark.parametrize(("identity", "extra"), [("", ""), ("maker@example.org", "[sigstore]")])
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
    assert done.stdout.splitlines() == [
        *("-m", "pip", "install", "--quiet", "-c", "/the action/constraints.txt"),
        f"/the action{extra}",
    ]


def test_every_input_is_used_and_every_hook_is_a_verb() -> None:
    used = set(re.findall(r"inputs\.([a-z-]+)", json.dumps(ACTION)))
    assert used == set(ACTION["inputs"])
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [hook["entry"] for hook in hooks] == ["securetrain verify", "securetrain scan"]
    example = yaml.safe_load((ROOT / "examples" / "verify-in-ci.yml").read_text())
    given = example["jobs"]["verify"]["steps"][1]["with"]
    assert set(given) <= set(ACTION["inputs"])
