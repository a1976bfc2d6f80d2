# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the recipes of docs/contributing add is accepted.

That their blocks still fit the code is a gate (tools/gates/rules/pages.py). A block's title says
what to do with it; docs/contributing/index.md explains the words.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from securetrain.core.errors import AttestationError
from tools.gates.rules.pages import NEW, blocks_of

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "contributing").glob("*.md"))


def apply(page: Path, tree: Path) -> set[str]:
    """Paste every block into a copy; the files that were touched."""
    blocks = blocks_of(page)
    for block in blocks:
        path = tree / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text("utf-8") if path.exists() else ""
        path.write_text(block.applied(before), "utf-8")
    return {block.file for block in blocks}


def copy_of(names: set[str], tree: Path) -> None:
    for name in names:
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)


def test_every_recipe_has_blocks():
    without = [page.stem for page in PAGES if not blocks_of(page)]
    assert without == ["gates", "index", "release", "where-things-live"]


def applied(stem, tmp_path):
    """A copy of the files that a recipe touches, with the recipe applied."""
    page = ROOT / "docs" / "contributing" / f"{stem}.md"
    copy_of({block.file for block in blocks_of(page) if block.verb != NEW}, tmp_path)
    return {Path(name).name: tmp_path / name for name in apply(page, tmp_path)}


# --- a declarative check is two files ------------------------------------------------------------

CHECK, NAME = "ST-HST-020", "shm-on-disk"
SEEN = "tests/audit/test_collected.py::test_what_is_wrong_is_found_by_the_check_it_is_for"
MACHINES = "tests/audit/test_collected.py::test_there_is_a_machine_that_fails_each_check"
CATALOGUE = "tests/audit/test_catalogue.py"


class Scratch:
    """A copy of the tree in which the recipe was followed."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        copy_of({"policies", "threat_models", "tools", "tests", "docs/reference"}, tree)
        copy_of({"securetrain", "pyproject.toml"}, tree)
        page = ROOT / "docs" / "contributing" / "audit-check.md"
        before = self.files()
        self.written = apply(page, tree)
        assert self.files() - before == self.written, "and every file of the recipe is a new one"

    def files(self) -> set[str]:
        return {str(p.relative_to(self.tree)) for p in self.tree.rglob("*") if p.is_file()}

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.tree,
            env=os.environ | {"PYTHONPATH": str(self.tree), "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    def pytest(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *words)

    def problems(self) -> str:
        return " ".join(self.python("-m", "securetrain", "threats", "verify").stdout.split())

    def change(self, file: str, old: str, new: str) -> None:
        path = self.tree / file
        text = path.read_text("utf-8")
        assert text.count(old) == 1, old
        path.write_text(text.replace(old, new), "utf-8")


@pytest.fixture
def scratch(tmp_path):
    return Scratch(tmp_path)


def test_a_declarative_check_is_two_files_and_its_generators_and_tests_accept_it(scratch):
    assert scratch.written == {
        f"policies/checks/{CHECK.lower()}.yaml",
        f"tests/audit/fixtures/checks/{CHECK.lower()}.yaml",
    }
    assert all(Path(name).suffix == ".yaml" for name in scratch.written)
    stale = scratch.python("tools/reference.py", "--check")
    assert stale.returncode == 1, "a check without its row of the page is seen"
    assert "checks.md" in stale.stdout
    made = scratch.python("tools/reference.py")
    assert made.stdout.split() == ["wrote:", "docs/reference/checks.md"], made.stderr
    assert CHECK in (scratch.tree / "docs/reference/checks.md").read_text()
    tests = scratch.pytest(
        CATALOGUE, SEEN, MACHINES, "-k", f"{CHECK} or {NAME} or every or there_is"
    )
    assert tests.returncode == 0, tests.stdout
    assert " passed" in tests.stdout
    assert "0 problems" in scratch.problems()


@pytest.mark.many
def test_the_whole_catalogue_and_every_sweep_accept_it(scratch):
    scratch.python("tools/reference.py")
    words = ("tests/audit/test_catalogue.py", "tests/audit/test_collected.py", "tests/threats")
    tests = scratch.pytest(*words, "tests/tools/test_reference.py")
    assert tests.returncode == 0, tests.stdout


@pytest.mark.many
def test_a_check_without_its_fixture_machine_or_mapping_is_not_accepted(scratch):
    check, fixtures = sorted(scratch.written)
    scratch.change(check, "  controls: [C-HST-PREFLIGHT]\n", "")
    assert f"{CHECK}: no control names this check" in scratch.problems()
    scratch.change(check, "  subject: node\n", "  controls: [C-HST-NONE]\n  subject: node\n")
    assert "names the control C-HST-NONE, which no model has" in " ".join(
        scratch.problems().split()
    )
    scratch.change(check, "C-HST-NONE", "C-IDN-SSH")
    assert "does not cite this threat" in scratch.problems()
    whole = (scratch.tree / fixtures).read_text()
    scratch.change(fixtures, whole[whole.index("machines:") :], "")
    assert CHECK in scratch.pytest(MACHINES).stdout
    (scratch.tree / fixtures).unlink()
    without = scratch.pytest(CATALOGUE, "-k", "fixtures_are_for")
    assert f"{CHECK} names the fixture {NAME!r} of kind node, which no file has" in without.stdout


def test_the_evidence_of_the_recipe_is_judged(tmp_path, monkeypatch):
    path = applied("evidence", tmp_path)["token_profiles.py"]
    spec = importlib.util.spec_from_file_location("profiles_of_the_recipe", path)
    assert spec is not None
    assert spec.loader is not None
    profiles = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, profiles)
    spec.loader.exec_module(profiles)
    judge_it = profiles.JUDGES[profiles.TokenProfile("example-attestation")]
    honest = {"measured": True, "debug": False, "model": "an example"}
    assert judge_it(profiles.Claims(honest, "token")).hwmodel == "an example"
    with pytest.raises(AttestationError, match="ST-ATTS-809"):
        judge_it(profiles.Claims({**honest, "debug": True}, "token"))
