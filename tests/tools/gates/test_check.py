# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a change of a room concerns, in a small house."""

import re

import pytest

from tests.tables import items
from tests.tools.gates.worlds import planted
from tools.gates import check

FILES = {
    "house/__init__.py": "",
    "house/cellar/wine.py": "",
    "house/cellar/deep/well.py": "",
    "house/kitchen/__init__.pyi": "from .stove import cook as cook\n",
    "house/kitchen/stove.py": "import house.cellar.wine\n",
    "house/hall/door.py": "from house.kitchen import cook\n",
    "tests/cellar/test_wine.py": "",
    "tests/cellar/deep/test_well.py": "",
    "tests/cellar/worlds.py": "",
    "tests/hall/test_face.py": "def test():\n    from house.kitchen import cook\n",
    "tests/hall/test_door.py": "import house.hall.door\n",
    "tests/hall/test_alone.py": "import json\n",
    "tests/attic/test_direct.py": "from house.cellar import wine\n",
}


@items(
    "room, found",
    ("cellar", "attic/direct cellar/deep/well cellar/wine hall/face"),
    ("cellar/deep", "cellar/deep/well"),
    ("kitchen", "hall/door hall/face"),
    ("hall", "hall/alone hall/door hall/face"),
)
def test_a_room_has_its_tests_and_those_of_what_imports_it(tmp_path, room, found):
    chosen = check.tests_of(planted(tmp_path, FILES), room)
    short = [re.sub(r"^tests/(.*)test_(\w+)\.py$", r"\1\2", one) for one in chosen]
    assert sorted(short) == found.split()


@pytest.mark.parametrize("name", [[], ["nothing"], ["guard", "nothing"]])
def test_another_name_is_one_clear_error(name, capsys):
    assert check.main(name) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"no room {'/'.join(name)!r}: make check ROOM=NAME")
    assert "guard, identity" in line
