# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The contracts of rooms and cycles see what they forbid."""

import itertools
import subprocess
import sys
from pathlib import Path

from tests.tables import items
from tests.vocabulary import refused
from tools.contracts import face_faults, first_cycle, room_and_doors

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = {
    "house": set(),
    "house.room": {"house.room.inside"},
    "house.room.inside": {"house.room.door"},
    "house.room.door": set(),
    "house.room.annex": {"house.room.annex.deep"},
    "house.room.annex.deep": set(),
    "house.roomy": {"house.room", "house.room.door"},
    "house.other": {"house.room.annex", "house.room"},
    "elsewhere.test": {"house.room.inside"},
}


def faults(doors, **more):
    imports = {**IMPORTS, **{name.replace("_", "."): found for name, found in more.items()}}
    return face_faults(imports, "house.room", [f"house.room.{door}" for door in doors])


def test_the_face_and_what_is_named_are_entered():
    assert faults(["door", "annex"]) == []


def test_what_is_not_named_is_not():
    assert faults(["annex"]) == [
        "house.roomy imports house.room.door, which is not on the face of house.room"
    ]


def test_a_named_package_does_not_open_what_is_in_it():
    (fault,) = faults(["door", "annex"], house_other={"house.room.annex.deep", "house.room.annex"})
    assert fault.startswith("house.other imports house.room.annex.deep,")
    named = ["door", "annex", "annex.deep"]
    assert faults(named, house_other={"house.room.annex.deep", "house.room.annex"}) == []


def test_a_name_must_be_there_and_used():
    assert faults(["door", "annex", "gone"]) == ["there is no module house.room.gone"]
    (fault,) = faults(["door", "annex", "inside"])
    assert fault == "nobody outside imports house.room.inside: take it off the list"
    assert face_faults(IMPORTS, "house.attic", []) == ["there is no package house.attic"]


def test_a_room_has_at_most_five_doors():
    assert room_and_doors("house.room: a, b.c") == (
        "house.room",
        ["house.room.a", "house.room.b.c"],
    )
    assert room_and_doors("house.room") == ("house.room", [])
    assert len(room_and_doors("r: a, b, c, d, e")[1]) == 5
    refused(ValueError, "at most 5", room_and_doors, "r: a, b, c, d, e, f")
    refused(ValueError, "no package", room_and_doors, ": a")


def test_cycles():
    assert first_cycle(IMPORTS) == []
    cycle = first_cycle({**IMPORTS, "house.room.door": {"house.room"}})
    assert cycle[0] == cycle[-1]
    assert set(cycle) == {"house.room", "house.room.inside", "house.room.door"}
    following = list(itertools.pairwise(cycle))
    assert ("house.room", "house.room.inside") in following, "from importer to imported"


CONFIGURATION = """\
[tool.importlinter]
root_packages = ["house"]
contract_types = [
  "face: tools.contracts.FaceContract", "no_cycles: tools.contracts.NoCyclesContract"
]
[[tool.importlinter.contracts]]
name = "faces"
type = "face"
rooms = ["house.room: door"]
[[tool.importlinter.contracts]]
name = "cycles"
type = "no_cycles"
"""


@items(
    "other, door, code, said",
    ("from house.room.door import x", "x = 1", 0, "2 kept"),
    ("import house.room.door, house.room.inside", "x = 1", 1, "not on the face of house.room"),
    ("from house.room.door import x", "def f():\n    import house.room", 1, "- house.room"),
)
def test_import_linter_loads_them(tmp_path, other, door, code, said):
    room = tmp_path / "house" / "room"
    room.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(CONFIGURATION)
    (tmp_path / "house" / "__init__.py").touch()
    (tmp_path / "house" / "other.py").write_text(f"{other}\n")
    (room / "__init__.py").write_text("from house.room.door import x\n")
    (room / "door.py").write_text(f"{door}\n")
    (room / "inside.py").touch()
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(ROOT)!r}); {program}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout
