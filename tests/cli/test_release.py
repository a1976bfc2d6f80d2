# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Releasing a model: the signing action and the workflow, step by step, and what they install."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, sign_root
from tools.action_requirements import EXTRAS, target, wanted

ROOT = Path(__file__).parents[2]
SIGN = yaml.safe_load((ROOT / "actions" / "sign" / "action.yml").read_text())
RELEASE = yaml.safe_load((ROOT / ".github" / "workflows" / "release-model.yml").read_text())
EXAMPLE = yaml.safe_load((ROOT / "examples" / "release-model.yml").read_text())
FILES = [*(ROOT / ".github" / "workflows").glob("*.yml"), *(ROOT / "examples").glob("*.yml")]
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """model/, ci/trust.json, and the key that it trusts."""
    key, now = PrivateKey.generate(), datetime.now(UTC)
    (tmp_path / "model").mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + bytes(8)
    (tmp_path / "model" / "model.safetensors").write_bytes(weights)
    (tmp_path / "model" / "config.json").write_text('{"hidden_size": 4}')
    (tmp_path / "ci").mkdir()
    root = sign_root({TrustRole.CHECKPOINT: [key.public]}, key, now, now + timedelta(days=1))
    (tmp_path / "ci" / "trust.json").write_bytes(root)
    key.save(tmp_path / "ci" / "key")
    return tmp_path


def step(
    folder: Path, run: str, variables: dict[str, str], path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a step's script as a runner does."""
    places = [*([str(path)] if path else []), str(Path(sys.executable).parent), os.environ["PATH"]]
    given = {"PATH": os.pathsep.join(places), "HOME": str(folder), "TMPDIR": str(folder)}
    given |= {"GITHUB_STEP_SUMMARY": str(folder / "summary"), "GITHUB_ACTION_PATH": "/the action"}
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", run],
        cwd=folder, env=given | variables, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def filled(env: dict[str, str], values: dict[str, str]) -> dict[str, str]:
    """A step's variables with its inputs and secrets filled in; none is forgotten."""
    return {
        name: re.sub(r"\$\{\{ (?:inputs|secrets)\.([a-z-]+) \}\}", lambda m: values[m[1]], text)
        for name, text in env.items()
    }


def sign(folder: Path, stub: Path | None = None, /, **values: str) -> Any:
    """Run the signing action."""
    inputs = {name: one.get("default", "") for name, one in SIGN["inputs"].items()}
    last = SIGN["runs"]["steps"][-1]
    return step(folder, last["run"], filled(last["env"], inputs | values), stub)


def released(folder: Path, **values: str) -> list[subprocess.CompletedProcess[str]]:
    """Run every step of the release that is a script, and the signing action where it stands."""
    inputs = {name: one.get("default", "") for name, one in RELEASE[True]["workflow_call"][
        "inputs"].items()}  # fmt: skip
    inputs |= {"key": "", "passphrase": ""} | values
    done = []
    for one in RELEASE["jobs"]["release"]["steps"]:
        if one.get("uses") == "./.securetrain/actions/sign":
            done.append(sign(folder, **filled(one["with"], inputs)))
        elif "run" in one:
            done.append(step(folder, one["run"], filled(one.get("env", {}), inputs)))
        if done and done[-1].returncode:
            break
    return done


def test_a_release_is_signed_verified_and_packed(project: Path) -> None:
    key = (project / "ci" / "key").read_text()
    done = released(project, path="model", trust="ci/trust.json", key=key)
    assert [one.returncode for one in done] == [0, 0, 0], done[-1].stderr
    sums = (project / "release" / "SHA256SUMS").read_text().split()
    packed = project / "release" / "model.tar"
    assert sums == [hashlib.sha256(packed.read_bytes()).hexdigest(), "model.tar"]
    with tarfile.open(packed) as archive:
        assert "./statement.json" in archive.getnames()
    assert (project / "release" / "model.vsa.json").exists()
    assert not [*project.glob("tmp*/key")]


@pytest.mark.forgery
def test_what_a_scan_does_not_pass_is_neither_signed_nor_released(project: Path) -> None:
    key = (project / "ci" / "key").read_text()
    (project / "model" / "config.json").write_text('{"auto_map": {"AutoModel": "m.M"}}')
    done = released(project, path="model", trust="ci/trust.json", key=key)
    assert [one.returncode for one in done] == [19]
    assert not (project / "model" / "statement.json").exists()


@pytest.mark.forgery
def test_a_release_by_another_key_ends_at_the_verification(project: Path) -> None:
    PrivateKey.generate().save(project / "other")
    key = (project / "other").read_text()
    done = released(project, path="model", trust="ci/trust.json", key=key)
    assert [one.returncode for one in done] == [0, 12]
    assert not (project / "release" / "model.tar").exists()


def test_without_a_key_the_action_signs_keyless(project: Path) -> None:
    fake = project / "bin"
    fake.mkdir()
    (fake / "securetrain").write_text('#!/bin/sh\nprintf "%s " "$@"\n')
    (fake / "securetrain").chmod(0o755)
    done = sign(project, fake, path="model", kind="safetensors", name="m", scan="false")
    assert done.stdout == "sign --safetensors --keyless --name m -- model "
    assert "scan -- model" in sign(project, fake, path="model", kind="oms").stdout


@pytest.mark.forgery
def test_an_input_of_the_signing_action_is_never_code_nor_an_option(project: Path) -> None:
    marker = project / "ran"
    bad = f"$(touch {marker}); touch {marker}"
    fake = project / "bin"
    fake.mkdir()
    (fake / "securetrain").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    (fake / "securetrain").chmod(0o755)
    given = {"path": "model", "kind": "oms", "scan": "false"}
    for name in ("path", "name", "bundle"):
        assert f"<{bad}>" in sign(project, fake, **(given | {name: bad})).stdout, "it is one word"
    assert bad not in sign(project, fake, **(given | {"key": bad})).stdout, "it is in a file"
    assert sign(project, fake, **(given | {"kind": bad})).returncode == 2
    # And what the program itself says to such a word.
    assert sign(project, path=bad, kind="safetensors").returncode
    assert sign(project, path="--help", kind="safetensors").returncode
    assert sign(project, path="", kind="safetensors").returncode == 2
    assert not marker.exists()


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_the_actions_install_is_in_step_and_has_hashes(extra: str) -> None:
    pins = dict(
        line.split(";")[0].strip().lower().split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    pins = {name.replace("_", "-"): version for name, version in pins.items()}
    found = {}
    for entry in re.split(r"\n(?=\w)", target(extra).read_text().partition("\n")[2].strip()):
        head, *hashes = [part.strip(" \\") for part in entry.splitlines()]
        name, version = head.split(" ;")[0].split("==")
        found[name.lower().replace("_", "-")] = version.strip()
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), name
    assert {name: pins.get(name, version) for name, version in found.items()} == found
    needed = {re.split(r"[<>=\[]", one)[0].lower().replace("_", "-") for one in wanted(extra)}
    assert needed <= set(found)


@pytest.mark.parametrize("file", sorted(FILES), ids=[file.name for file in sorted(FILES)])
def test_the_actions_of_others_are_pinned(file: Path) -> None:
    used = re.findall(r"^ *(?:- )?uses: (\S+)", file.read_text(), re.MULTILINE)
    others = [one for one in used if not one.startswith(("./", "securetrain/securetrain"))]
    assert [one for one in others if not PINNED.fullmatch(one)] == []


def test_every_action_of_a_workflow_that_signs_is_pinned() -> None:
    for one in RELEASE["jobs"]["release"]["steps"]:
        used = one.get("uses")
        assert used is None or used.startswith("./") or PINNED.fullmatch(used), used
        assert "${{" not in one.get("run", "")


def test_the_example_calls_the_workflow_with_what_it_takes() -> None:
    (job,) = EXAMPLE["jobs"].values()
    call = RELEASE[True]["workflow_call"]
    assert set(job["with"]) <= set(call["inputs"])
    assert {name for name, one in call["inputs"].items() if one.get("required")} <= set(job["with"])
    assert set(job["secrets"]) <= set(call["secrets"])
    assert job["permissions"] == RELEASE["jobs"]["release"]["permissions"]
    page = (ROOT / "docs" / "how-to" / "release-a-model.md").read_text()
    assert (ROOT / "examples" / "release-model.yml").read_text().partition("\nname:")[2] in page


@pytest.mark.many
def test_the_action_installs_in_a_clean_environment(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "clean"], check=True, timeout=120)
    place = tmp_path / "clean" / "bin"
    install = SIGN["runs"]["steps"][0]["run"]
    action = {"GITHUB_ACTION_PATH": str(ROOT / "actions" / "sign"), "SECURETRAIN_PURE": "1"}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", install],
        env={"PATH": f"{place}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)} | action,
        capture_output=True, text=True, check=False, timeout=540,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = subprocess.run(
        [place / "securetrain", "scan", ROOT / "examples"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert said.returncode == 3, said.stderr  # examples are programs, which are not judged
