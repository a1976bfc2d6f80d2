# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The picture and the table of the architecture page show the house that stands."""

import re
from pathlib import Path

import pytest

from tools import house

ROOT = Path(__file__).parents[2]

WRITTEN = [
    path
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if path.parent.name != "adr"  # a decision names what stood when it was made
]


def rooms():
    return [room.name for floor in house.floors() for room in floor]


def table_rooms():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    return re.findall(r"^\| `(\w+)/?` \|", text, flags=re.MULTILINE)


def test_the_picture_is_up_to_date():
    assert house.PICTURE.read_text("utf-8") == house.picture(), "run: python tools/house.py"


def test_every_room_is_in_the_table_from_top_to_bottom():
    listed = table_rooms()
    assert len(set(listed)) == len(listed)
    assert [name for name in listed if name in rooms()] == rooms()


def test_another_docstring_is_another_picture(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"))
    for name in ("core", "identity"):
        (tmp_path / "securetrain" / name / "inside").mkdir(parents=True)
        (tmp_path / "securetrain" / name / "__init__.py").write_text('"""One. Two."""\n')
        (tmp_path / "securetrain" / name / "inside" / "__init__.py").write_text("")
    monkeypatch.setattr(house, "ROOT", tmp_path)
    before = house.picture()
    assert [(r.name, r.says, r.rooms) for floor in house.floors() for r in floor] == [
        ("identity", "One", ("inside",)),
        ("core", "One", ("inside",)),
    ]
    (tmp_path / "securetrain" / "core" / "__init__.py").write_text('"""Three."""\n')
    assert house.picture() != before


def source(dotted):
    path = ROOT.joinpath(*dotted.split("."))
    found = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in found if file.is_file()), None)


def exists(dotted):
    """A module, or a name that the module before the last dot has in its text."""
    module, _, last = dotted.rpartition(".")
    if source(dotted) is not None:
        return True
    above = source(module)
    faces = (above, above.with_suffix(".pyi")) if above is not None else ()
    texts = (face.read_text("utf-8") for face in faces if face.is_file())
    return any(re.search(rf"\b{last}\b", text) for text in texts)


def test_a_name_that_does_not_exist_is_seen():
    assert exists("securetrain.core.codes")
    assert exists("securetrain.core.codes.CODES")
    assert exists("securetrain.chain.verify")
    assert not exists("securetrain.core.nothing")
    assert not exists("securetrain.core.codes.NOTHING")


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_modules_and_files_that_a_page_names_exist(path):
    text = path.read_text("utf-8")
    dotted = set(re.findall(r"(?<![\w./-])securetrain(?:\.[A-Za-z_]\w*){2,}\b(?![/\w-])", text))
    files = set(re.findall(r"(?<![\w./-])securetrain/[\w./]+\.py\b", text))
    assert sorted(name for name in dotted if not exists(name)) == []
    assert sorted(name for name in files if not (ROOT / name).is_file()) == []
