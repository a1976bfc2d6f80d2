# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What holds for every file of the house, whoever writes it.

The layers themselves are held by import-linter (``make lint``); here is the rest.
"""

import ast
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from securetrain.core.codes import CODES, RETIRED
from tools.purity import impurities

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = sorted((ROOT / "securetrain").rglob("*.py"))
SOURCES = [
    path
    for folder in ("securetrain", "tests", "tools", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
SPDX = (
    "# SPDX-FileCopyrightText: 2026 The securetrain developers\n"
    "# SPDX-License-Identifier: Apache-2.0\n"
)
MAX_LINES = 500

# Modules that turn bytes into objects by running what the bytes name.
UNPICKLERS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
MAY_IMPORT_PICKLE = {
    "securetrain/artifacts/checkpoint/legacy.py": "catches what torch's weights-only reader raises",
    "securetrain/artifacts/scan/dcp.py": "reads an index with inert stand-ins for its 13 names",
    "securetrain/launch/allowlist.py": "the allow-list that stands in for pickle's own lookup",
    "securetrain/launch/file_loads.py": "puts the restricted unpickler in the place of pickle.load",
    "securetrain/launch/import_hooks.py": "puts the restricted unpickler into torch",
    "securetrain/launch/seams.py": "puts the restricted unpickler into torch",
    "securetrain/launch/unpickler.py": "the restricted unpickler",
    "securetrain/drills/checkpoint_metadata.py": "the attack",
    "securetrain/drills/store_attack.py": "the attack",
}

# Bytes, reference values and a clock in, a verdict out (tools/purity.py says what that forbids).
PURE = [ROOT / "securetrain" / "evidence"]


def _name(path):
    return path.relative_to(ROOT).as_posix()


@cache
def _tree(path):
    return ast.parse(path.read_bytes(), str(path))


def test_every_file_has_the_header_and_is_ascii():
    texts = {_name(path): path.read_text("utf-8") for path in SOURCES}
    assert [name for name, text in texts.items() if not text.startswith(SPDX)] == []
    assert [name for name, text in texts.items() if not text.isascii()] == []


def test_no_module_is_longer_than_500_lines():
    lines = {_name(p): len(p.read_text("utf-8").splitlines()) for p in SOURCES}
    long = {name: n for name, n in lines.items() if n > MAX_LINES and not name.startswith("tests/")}
    assert long == {}, "split by noun"


def test_every_module_says_what_it_is_for():
    modules = [path for path in PACKAGE if path.name != "__init__.py"]
    assert [_name(path) for path in modules if not ast.get_docstring(_tree(path))] == []


QUESTION = re.compile(
    r"(?:(?:As|At|By|For|From|In|Of|On|Over|To|Under|With) )?"
    r"(?:How|What|When|Where|Whether|Which|Who|Whom|Whose|Why)\b",
    re.IGNORECASE,
)


def _docstrings(tree):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text


def _questions(tree):
    return [text.splitlines()[0] for text in _docstrings(tree) if QUESTION.match(text)]


def test_docstrings_open_with_an_imperative_or_a_noun():
    found = {_name(path): _questions(_tree(path)) for path in PACKAGE}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("line", "is_question"),
    [
        ("What the policy is.", True),
        ("Whether all ranks agree.", True),
        ("How many stages there are.", True),
        ("By which the other nodes reach this one.", True),
        ("The policy.", False),
        ("Return whether all ranks agree.", False),
        ("Whole files, read at once.", False),
    ],
)
def test_the_check_for_docstrings_can_see(line, is_question):
    tree = ast.parse(f'def found():\n    """{line}"""\n')
    assert bool(_questions(tree)) is is_question


def _imports(tree):
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str() as module, level=0):
                yield module
            case _:
                pass


def test_nothing_unpickles():
    found = {}
    for path in PACKAGE:
        names = {name.partition(".")[0] for name in _imports(_tree(path))} & UNPICKLERS
        if names and _name(path) not in MAY_IMPORT_PICKLE:
            found[_name(path)] = names
    assert found == {}


def test_the_exceptions_are_still_there():
    assert [name for name in MAY_IMPORT_PICKLE if not (ROOT / name).is_file()] == []


def _dangerous(node):
    """Why a call may run what its input says, or empty."""
    if not isinstance(node, ast.Call):
        return ""
    function = ast.unparse(node.func)
    keywords = {k.arg: k.value for k in node.keywords}
    if function in {"eval", "exec", "compile", "os.system", "os.popen"}:
        return function
    if function == "torch.load" and getattr(keywords.get("weights_only"), "value", 0) is not True:
        return "torch.load without weights_only=True"
    if getattr(keywords.get("shell"), "value", False):
        return "a shell"
    if function.startswith("yaml.") and function not in {"yaml.safe_dump", "yaml.dump"}:
        return function
    return ""


MAY_CALL = {
    "securetrain/audit/collect/storage/ansible.py": {"yaml.compose_all"},  # nodes, and no objects
    "securetrain/policy/load.py": {"yaml.load", "yaml.parse", "yaml.composer.ComposerError"}
    | {"yaml.constructor.ConstructorError"},  # the one loader, a subclass of SafeLoader
    # events of the safe parser, of which nothing is constructed
    "securetrain/audit/collect/manifests/tree.py": {"yaml.parse"},
    "securetrain/artifacts/scan/documents.py": {"yaml.parse"},
    "securetrain/launch/worker.py": {"compile", "exec"},  # runs the user's own training script
}


def test_nothing_runs_what_its_input_says():
    found = {}
    for path in PACKAGE:
        calls = {reason for node in ast.walk(_tree(path)) if (reason := _dangerous(node))}
        if calls - MAY_CALL.get(_name(path), set()):
            found[_name(path)] = calls
    assert found == {}


@pytest.mark.parametrize(
    ("code", "dangerous"),
    [
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
    ],
)
def test_the_check_for_dangerous_calls_can_see(code, dangerous):
    assert any(map(_dangerous, ast.walk(ast.parse(code)))) is dangerous


def test_every_code_that_is_named_exists():
    named = {
        code: _name(path)
        for path in PACKAGE
        for code in re.findall(r"\bST-[A-Z]{4}-\d{3}\b", path.read_text("utf-8"))
    }
    known = CODES.keys() | RETIRED
    assert {code: name for code, name in named.items() if code not in known} == {}


def _modules_after(arguments, tmp_path, before=""):
    """Run a command; its exit code and the third-party packages that it imported."""
    out = tmp_path / "modules.json"
    code = (
        f"import json, sys\n{before}\n"
        "from securetrain.cli.main import main\n"
        "try:\n"
        "    code = main(sys.argv[2:])\n"
        "except SystemExit as error:\n"
        "    code = error.code\n"
        "names = sorted({name.partition('.')[0] for name in sys.modules})\n"
        "open(sys.argv[1], 'w').write(json.dumps([code, names]))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(out), *map(str, arguments)]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    exit_code, names = json.loads(out.read_text())
    return exit_code, set(names), result.stdout


HEAVY = {"torch", "numpy", "matplotlib", "scapy", "sigstore"}


def test_help_imports_nothing_heavy(tmp_path):
    code, names, out = _modules_after(["--help"], tmp_path)
    assert code in (0, None)
    assert "quickstart" in out
    assert not names & (HEAVY | {"cryptography", "OpenSSL", "yaml", "rich"})


def test_the_check_for_heavy_imports_can_see(tmp_path):
    _, names, _ = _modules_after(["--help"], tmp_path, before="sys.modules['torch'] = sys")
    assert "torch" in names


def test_verify_needs_no_torch(tmp_path):
    from securetrain.artifacts.dataset.write import sign_dataset
    from securetrain.testing.runs import make_run

    run = make_run(tmp_path / "run", clock=lambda: datetime.now(UTC))
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.bin").write_bytes(b"x" * 1000)
    sign_dataset(
        source,
        tmp_path / "signed",
        name="small",
        key=run.keys["dataset"],
        now=datetime.now(UTC),
        splits={"train": ["train.bin"]},
    )
    arguments = ["verify", tmp_path / "signed", "--trust", run.run_dir.trust]
    code, names, out = _modules_after(arguments, tmp_path)
    assert code in (0, None), out
    assert not names & HEAVY
    (tmp_path / "signed" / "train.bin").write_bytes(b"y" * 1000)
    code, _, _ = _modules_after(arguments, tmp_path)
    assert code == 13  # so that it was really verified


def test_audit_of_a_node_needs_no_torch(tmp_path):
    code, names, out = _modules_after(["audit", "--node", "--policy", "dev"], tmp_path)
    assert code in (0, 1, 3, None), out
    assert out
    assert not names & HEAVY


def test_the_verifier_library_is_pure():
    assert {_name(room): impurities(room) for room in PURE if impurities(room)} == {}
