# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The blocks of docs/contributing still fit the code, and what they add is accepted.

A block's title says what to do with it; docs/contributing/index.md explains the words.
"""

import ast
import importlib.util
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from securetrain.audit.catalogue import load_check_file
from securetrain.audit.engine import judge
from securetrain.audit.fields import View
from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import State
from tests.audit import conftest as audit

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "contributing").glob("*.md"))
FENCE = re.compile(r'^( *)```\w+ title="([^"]+)"\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)
APPEND, BELOW, REPLACE = "append to ", ", below its first line", ", in place of its first line"


@dataclass(frozen=True)
class Block:
    file: str
    verb: str
    text: str

    def applied(self, before: str) -> str:
        if self.verb == APPEND:
            return before + self.text
        first, _, rest = self.text.partition("\n")
        assert before.count(f"{first}\n") == 1, f"{self.file} has this line once: {first!r}"
        return before.replace(f"{first}\n", self.text if self.verb == BELOW else rest)


def blocks_of(page: Path) -> list[Block]:
    found = []
    for indent, title, text in FENCE.findall(page.read_text("utf-8")):
        block = "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
        if title == "run":
            continue
        if title.startswith(APPEND):
            found.append(Block(title.removeprefix(APPEND), APPEND, block))
            continue
        verb = BELOW if title.endswith(BELOW) else REPLACE
        assert title.endswith(verb), f"{page.name}: {title}"
        found.append(Block(title.removesuffix(verb), verb, block))
    return found


def apply(page: Path, tree: Path) -> set[str]:
    """Paste every block into a copy; the files that were touched."""
    blocks = blocks_of(page)
    for block in blocks:
        path = tree / block.file
        path.write_text(block.applied(path.read_text("utf-8")), "utf-8")
    return {block.file for block in blocks}


def copy_of(names: set[str], tree: Path) -> None:
    for name in names:
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_recipe_apply(page, tmp_path):
    copy_of({block.file for block in blocks_of(page)}, tmp_path)
    for name in apply(page, tmp_path):
        if name.endswith(".py"):
            ast.parse((tmp_path / name).read_text("utf-8"), name)


def test_a_block_that_no_longer_fits_is_seen():
    block = Block("x.py", BELOW, "one\ntwo\n")
    assert block.applied("one\nthree\n") == "one\ntwo\nthree\n"
    with pytest.raises(AssertionError, match="has this line once"):
        block.applied("three\n")


def test_every_recipe_has_blocks():
    assert [page.stem for page in PAGES if not blocks_of(page)] == ["index"]


def applied(stem, tmp_path):
    """A copy of the files that a recipe touches, with the recipe applied."""
    page = ROOT / "docs" / "contributing" / f"{stem}.md"
    copy_of({block.file for block in blocks_of(page)}, tmp_path)
    return {Path(name).name: tmp_path / name for name in apply(page, tmp_path)}


def test_the_check_of_the_recipe_is_accepted(tmp_path, monkeypatch):
    files = applied("audit-check", tmp_path)
    shutil.copy(audit.FIXTURES / "reference.json", files["mutations.yaml"].parent)
    monkeypatch.setattr(audit, "FIXTURES", files["mutations.yaml"].parent)
    fixtures = audit.Fixtures()
    (check,) = [c for c in load_check_file(files["host.yaml"]) if c.id == "ST-HST-020"]
    wanted = check.spec.tests
    for state, names in (
        (State.PASS, wanted.passes),
        (State.FAIL, wanted.fail),
        (State.UNKNOWN, wanted.unknown),
    ):
        for name in names:
            case = fixtures.case(name)
            view = View(document=case.document, policy=case.policy, now=audit.NOW)
            assert {finding.state for finding in judge(check, view)} == {state}, name


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
