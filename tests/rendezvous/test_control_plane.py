# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the control plane must never do, checked over its source and its imports."""

import ast
import sys
from pathlib import Path

import securetrain
from tests.tables import each
from tests.vocabulary import ran

_PACKAGE = Path(securetrain.__file__).parent
_ROOMS = (
    *("rendezvous", "attest", "evidence", "ledger", "identity"),
    *("core", "policy", "network", "cli", "report"),
)
_SOURCES = [
    *(path for room in _ROOMS for path in sorted((_PACKAGE / room).rglob("*.py"))),
    _PACKAGE / "__init__.py",
]
_COORDINATOR = """
import sys
from securetrain.cli.main import main
main(["coordinator", "--help"])
import securetrain.rendezvous.coordinator.standalone
print("MODULES", *[f"{n}={getattr(m, '__file__', None)}" for n, m in sys.modules.items()])
"""
_FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle"}
_FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def offences(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [a.name for a in names if a.name.split(".")[0] in _FORBIDDEN_MODULES]
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in _FORBIDDEN_MODULES:
                found.append(module)
            case ast.Call(func=ast.Name(id=name)) if name in _FORBIDDEN_CALLS:
                found.append(name)
            case ast.keyword(arg="shell"):
                found.append("shell=")
            case _:
                pass
    return found


@each("path", *_SOURCES)
def test_no_pickle_no_eval_no_shell(path):
    assert offences(path.read_text()) == []


@each("bad", "import pickle", "from pickle import loads", "eval('1')", "run('x', shell=True)")
def test_the_check_itself_notices(bad):
    assert offences(bad)


def imported_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    out = ran([sys.executable, "-c", code])
    return set(out.stdout.split())


def test_the_coordinator_starts_without_torch():
    modules = imported_by(
        "import securetrain.rendezvous.coordinator.coordinator\n"
        "import securetrain.rendezvous.member.client"
    )
    assert "securetrain.rendezvous.coordinator.coordinator" in modules
    assert not {"torch", "numpy", "pickle"} & modules


def test_a_stand_alone_coordinator_and_its_commands_need_no_torch():
    modules = imported_by(
        "import securetrain.rendezvous.coordinator.standalone\n"
        "import securetrain.rendezvous.member.enrollee\n"
        "from securetrain.cli.identity import ca, enroll; import securetrain.cli.jobs.coordinator"
    )
    assert "securetrain.rendezvous.coordinator.enrollment_server" in modules
    assert not {"torch", "numpy", "pickle"} & modules


def test_the_entry_point_costs_torch_nothing():
    """torch imports it in every process that imports torch.distributed."""
    modules = imported_by("import securetrain.rendezvous.member.entry as e; e.get_creator()")
    assert {m for m in modules if m.startswith("securetrain")} == {
        "securetrain",
        "securetrain.rendezvous",
        "securetrain.rendezvous.member",
        "securetrain.rendezvous.member.entry",
    }
    assert not {"OpenSSL", "cryptography", "msgspec", "torch", "json", "socket"} & modules


def test_whatever_a_coordinator_imports_was_looked_at():
    """Its whole process, as the command starts it: no source of ours is left out above."""
    out = ran([sys.executable, "-c", _COORDINATOR]).stdout
    modules = dict(pair.partition("=")[::2] for pair in out.split("MODULES ")[1].split())
    ours = {Path(file) for name, file in modules.items() if name.split(".")[0] == "securetrain"}
    assert _PACKAGE / "rendezvous/coordinator/enrollment_server.py" in ours, (
        "the whole of it is loaded"
    )
    assert ours <= set(_SOURCES), ours - set(_SOURCES)
    assert not {"torch", "numpy", *_FORBIDDEN_MODULES} & {n.split(".")[0] for n in modules} - {
        "marshal"  # built into the interpreter, which reads its own compiled files with it
    }
