# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Each gate fails on a planted violation, and not on its clean twin."""

import ast
import json

import pytest

from tests.tables import items
from tests.tools.gates.worlds import HEADER, places, planted
from tests.vocabulary import refused
from tools.gates.lines import code_lines
from tools.gates.rules import (
    budgets,
    builders,
    commits,
    concepts,
    faces,
    modules,
    pages,
    safety,
    signatures,
    text,
    words,
)
from tools.gates.table import GATES

BLOCK = '```python title="x.py, below its first line"\none\ntwo\n```\n'
LAZY = "import lazy_loader\n__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__)\n"
EXAMPLE = f'"""A room.\n\n    from house.a import f\n"""\n{LAZY}'
CODE = "x = 1\n"
LONG = CODE * modules.THIN
VOCABULARY = "| field | words |\n| gradient, bucket, judge |\n"
TABLE = """
[[concept]]
name = "store"
one = "{top}/store.py"
imports = ["botocore"]
calls = ["put_object"]
keywords = ["dir_fd"]
classes = '.*Store'
functions = 'fetch'
strings = '<testsuite'
files = '_store\\.py$'
patches = ["torch"]
do = "use the one"
[concept.allowed]
"{top}/mirror.py" = "a mirror of another's"
"""


def pinned(names, programs=()):
    return {
        "tests/faces.json": json.dumps(
            {"faces": {"house.a": list(names)}, "for_programs": {"house.a": list(programs)}}
        )
    }


def wide(names):
    return {
        "house/a/__init__.py": LAZY,
        "house/a/__init__.pyi": "".join(f"from .m import n{n} as n{n}\n" for n in range(names)),
        "house/a/m.py": CODE,
    }


def budget(**rooms):
    return {budgets.FILE: json.dumps({"rooms": rooms, "raised": []})}


FACE = {
    "house/a/__init__.py": LAZY,
    "house/a/__init__.pyi": "from .m import f as f\n",
    "house/a/m.py": "def f(): ...\n",
}
TAKEN = {"house/b/n.py": "from house.a import f\n"}
LONE = {"house/a/user.py": "from house.a.thin import x\n"}
# gate, where the fault is, the planted tree, its clean twin
CASES = [
    (
        modules.lone,
        "house/a/thin.py",
        {**LONE, "house/a/thin.py": CODE},
        {**LONE, "house/a/thin.py": LONG},
    ),
    (
        modules.lone,
        "house/a/thin.py",
        {**LONE, "house/a/thin.py": CODE},
        {**LONE, "house/a/thin.py": CODE, "house/b/also.py": "import house.a.thin\n"},
    ),
    (
        modules.lone,
        "house/a/thin.py",
        {**LONE, "house/a/thin.py": CODE},
        {**LONE, "house/a/thin.py": CODE, "house/b/also.py": "N = 'house.a.thin'\n"},
    ),
    (
        modules.lone,
        "house/testing/clock.py",
        {"house/testing/clock.py": CODE, "house/testing/runs.py": "import house.testing.clock\n"},
        {
            "house/testing/clock.py": CODE,
            "house/testing/runs.py": "import house.testing.clock\n",
            "tests/test_a.py": "from house.testing.clock import x\n",
        },
    ),
    (  # a docstring reaches nothing
        modules.lone,
        "house/a/thin.py",
        {**LONE, "house/a/thin.py": CODE, "house/b/also.py": "'house.a.thin'\n"},
        {**LONE, "house/a/thin.py": CODE, "house/b/also.py": "start('-m', 'house.a.thin')\n"},
    ),
    (
        modules.lone,
        "house/a/thin.py",
        {
            **LONE,
            "house/a/thin.py": "def other(): ...\n",
            "house/b/m.py": "f'house.a.{n}:command'\n",
        },
        {
            **LONE,
            "house/a/thin.py": "def command(): ...\n",
            "house/b/m.py": "f'house.a.{n}:command'\n",
        },
    ),
    (
        modules.lone,
        "house/a/thin.py",
        {**LONE, "house/a/thin.py": CODE},
        {**LONE, "house/a/thin.py": "if __name__ == '__main__':\n    x = 1\n"},
    ),
    (modules.lone, "house/a/m.py", {**FACE, "house/a/n.py": "from house.a import f\n"}, FACE),
    (  # by a lazy face: the name's only reader is of another room
        modules.lone,
        "house/a/m.py",
        {**FACE, "house/a/n.py": "from house.a import f\n"},
        {**FACE, **TAKEN},
    ),
    (
        modules.folders,
        "house/a",
        {f"house/a/m{n}.py": CODE for n in range(modules.FILES)},
        {f"house/a/m{n}.py": CODE for n in range(modules.FILES - 1)},
    ),
    (
        modules.long,
        "house/a/m.py",
        {"house/a/m.py": CODE * (modules.LONG + 1)},
        {"house/a/m.py": CODE * modules.LONG},
    ),
    (
        signatures.parameters,
        "house/a.py::A.f",
        {"house/a.py": "class A:\n    def f(self, a, b, c, d, /, e, f, g, *, h, i): ...\n"},
        {"house/a.py": "class A:\n    def f(self, a, b, c, d, /, e, f, g, *, h): ...\n"},
    ),
    (
        signatures.fields,
        "house/a.py::A",
        {"house/a.py": "class A:\n" + "".join(f"    f{n}: int\n" for n in range(13))},
        {"house/a.py": "class A:\n" + "".join(f"    f{n}: int\n" for n in range(12))},
    ),
    (
        signatures.fields,
        "house/a.py::A",
        {"house/a.py": "class A(B):\n" + "".join(f"    f{n}: int\n" for n in range(13))},
        {
            "house/a.py": "class A(B):\n" + "".join(f"    f{n}: int\n" for n in range(13)),
            "house/b.py": "class B(msgspec.Struct, frozen=True): ...\n",
        },
    ),
    (faces.pinned, "house.a", {**FACE, **pinned(["f", "g"])}, {**FACE, **pinned(["f"])}),
    (faces.pinned, "house.a", {**FACE, **pinned([])}, {**FACE, **pinned(["f"])}),
    (faces.unread, "house.a", {**FACE, **pinned(["f"])}, {**FACE, **TAKEN, **pinned(["f"])}),
    (
        faces.unread,
        "house.a",
        {**FACE, "house/a/n.py": "from house.a import f\n", **pinned(["f"])},
        {**FACE, **pinned(["f"], ["f"])},
    ),
    (faces.wide, "house/a", wide(61), wide(60)),
    (
        faces.wide,
        "house/a",
        {**wide(60), "house/a/b/__init__.pyi": "from .m import f as f\n"},
        {**wide(59), "house/a/b/__init__.pyi": "from .m import f as f\n"},
    ),
    (faces.examples, "house/a", FACE, {**FACE, "house/a/__init__.py": EXAMPLE}),
    (
        words.private,
        "house/a/desk.py",
        {words.PAGE: "the desk", "house/a/desk.py": CODE},
        {words.PAGE: VOCABULARY, "house/a/judges.py": "class GradientBucket: ...\n"},
    ),
    (
        words.private,
        "house/a/judge.py::GradientXylem",
        {words.PAGE: VOCABULARY, "house/a/judge.py": "class GradientXylem: ...\n"},
        {words.PAGE: VOCABULARY, "house/a/judge.py": "class GradientDataset: ...\n"},
    ),
    (
        budgets.over,
        "house/a",
        {"house/a/m.py": CODE * 3, **budget(a=2)},
        {"house/a/m.py": CODE * 2, **budget(a=2)},
    ),
    (
        budgets.over,
        "house/a",
        {"house/a/m.py": CODE, **budget()},
        {"house/a/m.py": CODE, **budget(a=1)},
    ),
    (
        budgets.over,
        "house/b",
        {"house/a/m.py": CODE, **budget(a=1, b=1)},
        {"house/a/m.py": CODE, **budget(a=1)},
    ),
    (
        budgets.tests,
        "tests/a",
        {"house/a/m.py": CODE, "tests/a/test_m.py": CODE * 2},
        {"house/a/m.py": CODE, "tests/a/test_m.py": CODE},
    ),
    (
        builders.strays,
        "tests/a/machine.py",
        {"tests/a/machine.py": CODE},
        {"tests/a/worlds.py": CODE, "tests/a/b/worlds.py": CODE, "tests/a/test_m.py": CODE},
    ),
    (
        builders.strays,
        "tests/a/test_m.py",
        {"tests/a/test_m.py": CODE, "tests/a/test_n.py": "from tests.a.test_m import x\n"},
        {"tests/a/worlds.py": CODE, "tests/a/test_n.py": "from tests.a.worlds import x\n"},
    ),
    (
        builders.strays,
        "tests/a/conftest.py::machine",
        {"tests/a/conftest.py": "def machine(): ...\n", "tests/conftest.py": "def f(): ...\n"},
        {"tests/a/conftest.py": "@pytest.fixture\ndef f(): ...\ndef pytest_configure(): ...\n"},
    ),
    (
        safety.unpicklers,
        "house/a.py",
        {"house/a.py": "import pickle\n"},
        {"house/a.py": "import json\n"},
    ),
    (
        safety.unpicklers,
        "house/a.py",
        {"house/a.py": "def f():\n    from cloudpickle.x import y\n"},
        {"house/a.py": "pickle = 1\n"},
    ),
    (
        safety.dangerous_calls,
        "house/a.py",
        {"house/a.py": "eval('1')\n"},
        {"house/a.py": "m.eval()\n"},
    ),
    (
        safety.by_path,
        "house/launch/m.py:1",
        {"house/launch/m.py": "open(run.ledger)\n"},
        {"house/launch/m.py": "run.ledger.open()\n", "house/a.py": "open(run.ledger)\n"},
    ),
    (
        safety.impure,
        "house/evidence/m.py:1",
        {"house/evidence/m.py": "import os\n"},
        {"house/evidence/m.py": "import struct\n"},
    ),
    (safety.impure, "house/evidence", {"house/a.py": CODE}, {"house/evidence/m.py": CODE}),
    (text.headers, "tests/a.py", {"tests/a.py": CODE}, {"tests/a.py": HEADER + CODE}),
    (text.headers, "tools/a.py", {"tools/a.py": f"{HEADER}# \u00e9\n"}, {"tools/a.py": HEADER}),
    (text.docstrings, "house/a.py", {"house/a.py": CODE}, {"house/a.py": '"""A module."""\n'}),
    (
        text.docstrings,
        "house/a.py",
        {"house/a.py": '"""A module."""\ndef f():\n    """Whether it is."""\n'},
        {"house/a.py": '"""A module."""\ndef f():\n    """Return whether it is."""\n'},
    ),
    (
        text.codes,
        "house/a.py",
        {"house/a.py": "'ST-CKPT-999'\n"},
        {"house/a.py": "'ST-CKPT-130'\n"},
    ),
    (
        pages.blocks,
        "docs/contributing/a.md",
        {"docs/contributing/a.md": BLOCK},
        {
            "docs/contributing/a.md": BLOCK,
            "x.py": "one\nthree\n",
        },
    ),
    (
        pages.blocks,
        "docs/contributing/a.md",
        {"docs/contributing/a.md": '```python title="new file x.py"\nif:\n```\n'},
        {"docs/contributing/a.md": '```python title="new file x.py"\nx = 1\n```\n'},
    ),
    (
        pages.paths,
        pages.WHERE,
        {pages.WHERE: "| a thing | `house/b.py` | |\n", "house/a.py": CODE},
        {pages.WHERE: "| a thing | `tests/*.py` | |\n", "tests/a.py": CODE},
    ),
    (pages.paths, pages.WHERE, {"house/a.py": CODE}, {pages.WHERE: "nothing\n"}),
    (
        pages.counts,
        "docs/contributing/a.md",
        {"docs/contributing/a.md": "# 703 passed, 39 threats\n"},
        {"docs/contributing/a.md": "# ... passed; -n 2 tests/audit\n"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__}-{case[1]}")
def test_a_gate_fails_on_a_planted_violation_and_not_on_its_clean_twin(case, tmp_path):
    gate, where, bad, good = case
    assert where in places(gate, planted(tmp_path / "bad", bad))
    assert places(gate, planted(tmp_path / "good", good)) == []


def test_every_gate_of_the_table_has_such_a_case():
    tried = {case[0] for case in CASES} | {concepts.second_ones, commits.messages}
    assert [gate.name for gate in GATES if gate.check not in tried] == []
    assert all(gate.do for gate in GATES)


@items(
    "second, is_one",
    ("import botocore.client\n", True),
    ("from botocore import session\n", True),
    ("import botocores\n", False),
    ("client.put_object(x)\n", True),
    ("os.open(x, dir_fd=3)\n", True),
    ("class FastStore: ...\n", True),
    ("class Stored: ...\n", False),
    ("async def fetch(): ...\n", True),
    ("def fetcher(): ...\n", False),
    ("x = '<testsuites>'\n", True),
    ("import torch\ntorch.load = safe\n", True),
    ("from torch import nn\nsetattr(nn.Module, 'f', safe)\n", True),
    ("import house.other as torch\ntorch.load = safe\n", False),
    ("self.torch.load = safe\n", False),
)
def test_the_signs_of_a_second_one(second, is_one, tmp_path):
    tree = planted(
        tmp_path,
        {"house/store.py": second, "house/mirror.py": second, "house/a/second.py": second},
    )
    table = tmp_path / "concepts.toml"
    table.write_text(TABLE.replace("{top}", tree.top))
    found = places(lambda it: concepts.second_ones(it, table), tree)
    assert found == (["house/a/second.py::store"] if is_one else [])


def test_a_second_one_by_its_files_name_and_a_table_that_names_what_is_gone(tmp_path):
    tree = planted(tmp_path, {"house/my_store.py": CODE})
    table = tmp_path / "concepts.toml"
    table.write_text(TABLE.replace("{top}", tree.top))
    found = places(lambda it: concepts.second_ones(it, table), tree)
    assert found == ["house/store.py::store", "house/mirror.py::store", "house/my_store.py::store"]


@items(
    "code, is_dangerous",
    ("eval('1')", True),
    ("torch.load(f)", True),
    ("torch.load(f, weights_only=False)", True),
    ("torch.load(f, weights_only=True)", False),
    ("subprocess.run(x, shell=True)", True),
    ("subprocess.run(x)", False),
    ("yaml.load(x)", True),
    ("yaml.safe_load(x)", True),
    ("yaml.safe_dump(x)", False),
    ("model.eval()", False),
)
def test_the_gate_for_dangerous_calls_can_see(code, is_dangerous):
    call = ast.parse(code, mode="eval").body
    assert bool(safety.dangerous(call)) is is_dangerous


@items(
    "code, goes_by_path",
    ("open(x)", True),
    ("io.open(x)", True),
    ("os.open(x, f)", True),
    ("os.open(x, f, dir_fd=fd)", False),
    ("os.rename(a, b, src_dir_fd=c, dst_dir_fd=d)", False),
    ("os.path.exists(x)", True),
    ("shutil.rmtree(x)", True),
    ("shutil.which(x)", False),
    ("run.logs.glob(x)", True),
    ("run.logs.iterdir()", False),
    ("(lambda: 1)()", False),
)
def test_the_gate_for_paths_can_see(code, goes_by_path):
    call = ast.parse(code, mode="eval").body
    assert safety.goes_by_path(call) is goes_by_path


@items(
    "line, is_question",
    ("What the policy is.", True),
    ("Whether all ranks agree.", True),
    ("How many stages there are.", True),
    ("By which the other nodes reach this one.", True),
    ("The policy.", False),
    ("Return whether all ranks agree.", False),
    ("Whole files, read at once.", False),
)
def test_the_gate_for_docstrings_can_see(line, is_question, tmp_path):
    tree = planted(tmp_path, {"house/a.py": f'"""A module."""\ndef f():\n    """{line}"""\n'})
    assert bool(list(text.docstrings(tree))) is is_question


@items(
    "code, lines",
    ("", 0),
    ("# a comment\n\nx = 1  # and code\n", 1),
    ('"""A docstring\n\nof three lines."""\nx = 1\n', 1),
    ("from a import (\n    b,\n)\nx = b(\n    1,\n    # why\n)\n", 3),
    ("x = '''a\n\n# no comment\n'''\n", 4),
    ("x = (\n    'a'\n    # why\n    'b'\n)\n", 4),
    ("def f():\n    'It does.'\n    return 1\n", 2),
)
def test_code_lines(code, lines):
    tree = ast.parse(code)
    assert code_lines(code, ast.walk(tree)) == lines


def test_a_block_that_no_longer_fits_is_seen():
    block = pages.Block("x.py", pages.BELOW, "one\ntwo\n")
    assert block.applied("one\nthree\n") == "one\ntwo\nthree\n"
    refused(ValueError, "has this line once", block.applied, "three\n")
    with pytest.raises(ValueError, match="is there already"):
        pages.Block("x.py", pages.NEW, "one\n").applied("one\n")


def test_words_of_names(tmp_path):
    assert words.words_of("TDXQuote") == ["tdx", "quote"]
    assert words.words_of("own_past2") == ["own", "past"]
    known = words.known_words(planted(tmp_path, {words.PAGE: "the desk of a judge"}))
    assert known >= {"judge", "dataset"}
    assert not known & words.BANNED
