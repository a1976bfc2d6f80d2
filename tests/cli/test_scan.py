# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain scan``: what it prints and how it ends."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from securetrain.cli.artifacts.scan import command


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("true",)


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Evil()))
    return path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, list(arguments), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.stdout


def test_unsafe_content_is_named_with_its_place(evil: Path) -> None:
    code, text = run(str(evil))
    assert code == 19
    assert "NOT CLEAN" in text
    assert "posix.system" in text
    assert "ST-SCAN-190" in text
    assert "fix:" in text


def test_the_machine_formats_agree(evil: Path) -> None:
    code, text = run(str(evil), "--json")
    assert code == json.loads(text)["exit"] == 19
    assert json.loads(text)["findings"][0]["code"] == "ST-SCAN-190"
    code, text = run(str(evil), "--format", "sarif")
    assert json.loads(text)["runs"][0]["results"][0]["ruleId"] == "ST-SCAN-190"
    code, text = run(str(evil), "--format", "junit")
    assert code == 19
    assert ET.fromstring(text).attrib["failures"] == "1"


def test_clean_is_said_with_what_was_scanned(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"a": 1}))
    code, text = run(str(path), "--opcodes")
    assert code == 0
    assert "CLEAN" in text
    assert "1 of them pickles" in text
    assert "SETITEM 1" in text


def test_nothing_scanned_is_not_clean(tmp_path: Path) -> None:
    code, text = run(str(tmp_path))
    assert code == 3
    assert "ST-SCAN-030" in text


def test_a_name_cannot_paint_the_screen(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2J.pkl").write_bytes(pickle.dumps(Evil()))
    _, text = run(str(tmp_path))
    assert "\x1b" not in text


def test_it_works_without_torch(evil: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from securetrain.artifacts.scan.scanner import scan_path\n"
        "from pathlib import Path\n"
        f"sys.exit(int(scan_path(Path({str(evil)!r})).exit_code))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert done.returncode == 19


def test_several_paths_are_one_scan(evil: Path, tmp_path: Path) -> None:
    (tmp_path / "fine").mkdir()
    (tmp_path / "fine" / "a.pkl").write_bytes(pickle.dumps(1))
    (tmp_path / "notes.txt").write_text("hello")
    fine, notes = str(tmp_path / "fine"), str(tmp_path / "notes.txt")
    code, text = run(fine, notes, str(evil), "--json")
    said = json.loads(text)
    assert code == 19
    assert [finding["file"] for finding in said["findings"]] == [str(evil)]
    assert f"{fine}/a.pkl" in [one["name"] for one in said["judged"]]
    assert run(fine, notes)[0] == 0
    assert run(notes, notes)[0] == 3
