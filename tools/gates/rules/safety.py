# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Nothing in the package runs what its input says, and the verifier library reaches for nothing."""

import ast
from collections.abc import Iterator, Mapping
from typing import Final

from tools.gates.rules.purity import impurities
from tools.gates.tree import Tree
from tools.gates.violations import Fault

UNPICKLERS: Final = frozenset(
    {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
)
"""Modules that turn bytes into objects by running what the bytes name."""

MAY_IMPORT_PICKLE: Final[Mapping[str, str]] = {
    "securetrain/artifacts/checkpoint/legacy.py": "catches what torch's weights-only reader raises",
    "securetrain/artifacts/scan/weights.py": "reads an index with inert stand-ins for its 13 names",
    "securetrain/launch/seams/file_loads.py": "puts the restricted unpickler in for pickle.load",
    "securetrain/launch/seams/patches.py": "puts the restricted unpickler into torch",
    "securetrain/launch/seams/unpickler.py": "the restricted unpickler",
    "securetrain/drills/pickles.py": "the attacks",
}

MAY_CALL: Final[Mapping[str, frozenset[str]]] = {
    # nodes, and no objects
    "securetrain/audit/subjects/storage/collect/ansible.py": frozenset({"yaml.compose_all"}),
    # the one loader, a subclass of SafeLoader
    "securetrain/policy/load.py": frozenset(
        {
            *("yaml.load", "yaml.parse"),
            *("yaml.composer.ComposerError", "yaml.constructor.ConstructorError"),
        }
    ),
    # events of the safe parser, of which nothing is constructed
    "securetrain/audit/parser/tree.py": frozenset({"yaml.parse"}),
    "securetrain/artifacts/scan/configurations.py": frozenset({"yaml.parse"}),
    # runs the user's own training script
    "securetrain/launch/worker/script.py": frozenset({"compile", "exec"}),
}

BY_HANDLE: Final = ("launch", "rendezvous", "network")
"""Rooms in which what lies below a run directory is reached by its handle: the methods of its
paths (`core.held`), and `core.files`. What goes around both is a fault."""
_BESIDE: Final[Mapping[str, frozenset[str]]] = {
    "os": frozenset(
        {
            *("open", "mkdir", "makedirs", "unlink", "remove", "rename", "replace", "rmdir"),
            *("symlink", "link", "chmod", "chown", "truncate", "mkfifo", "mknod", "scandir"),
            *("listdir", "walk", "utime", "access", "removedirs", "stat", "lstat"),
        }
    ),
    "os.path": frozenset({"exists", "lexists", "isdir", "isfile", "islink"}),
    "io": frozenset({"open"}),
}
_LIBRARIES: Final = frozenset({"shutil", "tempfile", "glob"})
_OF_A_PATH: Final = frozenset({"glob", "rglob", "touch", "symlink_to", "hardlink_to", "lchmod"})
"""Methods of a path that lead through links below the handle."""

_SEALED: Final = "in the sandbox's own mounts, before anything of the job runs there"
_WORKER: Final = "in a worker, which holds no directory"
_KERNEL: Final = "files of the kernel"

MAY_GO_BY_PATH: Final[Mapping[str, tuple[int, str]]] = {
    "securetrain/launch/node/compile_cache.py": (6, "the state's caches"),
    "securetrain/launch/node/failures.py": (2, "torch's log folders, to name one of them"),
    "securetrain/launch/sandbox/cgroup.py": (2, _KERNEL),
    "securetrain/launch/sandbox/devices.py": (1, _KERNEL),
    "securetrain/launch/sandbox/enter.py": (2, _SEALED),
    "securetrain/launch/sandbox/holder.py": (2, _SEALED),
    "securetrain/launch/sandbox/kernel.py": (3, _KERNEL),
    "securetrain/launch/sandbox/landlock.py": (2, _SEALED),
    "securetrain/launch/sandbox/secrets_below.py": (3, "looks for keys below a person's folders"),
    "securetrain/launch/sandbox/server.py": (1, "a worker's error file, bounded, through no link"),
    "securetrain/launch/sandbox/tree.py": (14, _SEALED),
    "securetrain/launch/sandbox/user.py": (1, _KERNEL),
    "securetrain/launch/sandbox/view.py": (5, "asks what a job is to be shown"),
    "securetrain/launch/seams/folder_loads.py": (1, _WORKER),
    "securetrain/launch/seams/folder_saves.py": (1, _WORKER),
    "securetrain/launch/seams/verified_loads.py": (1, _WORKER),
    "securetrain/network/elf.py": (1, "an installed library"),
    "securetrain/network/exec_private.py": (1, "an installed program"),
    "securetrain/network/namespace.py": (2, _KERNEL),
    "securetrain/network/record.py": (1, "the network's own folder below /run"),
    "securetrain/network/wireguard_go.py": (2, "the device, and the network's own folder"),
}
"""How many such calls a module has, at most, and why; it may only shrink."""

PURE: Final = "evidence"
"""The room that is a pure library (tools/gates/rules/purity.py)."""


def unpicklers(tree: Tree) -> Iterator[Fault]:
    """Modules that import an unpickler, and exceptions that need none any more."""
    for source in tree.package:
        names = {name.partition(".")[0] for name in source.imports} & UNPICKLERS
        if names and source.path not in MAY_IMPORT_PICKLE:
            yield Fault(source.path, f"imports {', '.join(sorted(names))}")
        if not names and source.path in MAY_IMPORT_PICKLE:
            yield Fault(source.path, "is an exception (MAY_IMPORT_PICKLE) and imports none")
    yield from _not_there(tree, MAY_IMPORT_PICKLE)


def dangerous_calls(tree: Tree) -> Iterator[Fault]:
    """Modules that may run what their input says."""
    for source in tree.package:
        calls = {reason for node in source.nodes(ast.Call) if (reason := dangerous(node))}
        if found := calls - MAY_CALL.get(source.path, frozenset()):
            yield Fault(source.path, f"calls {', '.join(sorted(found))}")
    yield from _not_there(tree, MAY_CALL)


def by_path(tree: Tree) -> Iterator[Fault]:
    """Calls by path in the rooms that work in a run directory, and exceptions that are too wide."""
    for source in tree.below(*(f"{tree.top}/{room}" for room in BY_HANDLE)):
        found = [node.lineno for node in source.nodes(ast.Call) if goes_by_path(node)]
        allowed = MAY_GO_BY_PATH.get(source.path, (0, ""))[0]
        if len(found) > allowed:
            yield Fault(f"{source.path}:{found[-1]}", f"{len(found)} calls by path, not {allowed}")
        if len(found) < allowed:
            yield Fault(source.path, f"{len(found)} calls by path (MAY_GO_BY_PATH says {allowed})")
    yield from _not_there(tree, MAY_GO_BY_PATH)


def goes_by_path(node: ast.Call) -> bool:
    """Tell whether a call takes a path without a handle."""
    function, given = node.func, {k.arg for k in node.keywords}
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute):
        return False
    module = ast.unparse(function.value)
    if module in _LIBRARIES:
        return function.attr != "which"
    if function.attr in _BESIDE.get(module, ()):
        return not given & {"dir_fd", "src_dir_fd"}
    return function.attr in _OF_A_PATH


def impure(tree: Tree) -> Iterator[Fault]:
    """Modules of the verifier library that reach for more than they are given."""
    sources = tree.below(f"{tree.top}/{PURE}")
    if not sources:
        yield Fault(f"{tree.top}/{PURE}", "there is no module below it: nothing was looked at")
    for source in sources:
        for line, what in impurities(source.tree):
            yield Fault(f"{source.path}:{line}", what)


def dangerous(node: ast.Call) -> str:
    """The reason why a call may run what its input says, or nothing."""
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


def _not_there(tree: Tree, exceptions: Mapping[str, object]) -> Iterator[Fault]:
    paths = {source.path for source in tree.package}
    for path in exceptions:
        if path.startswith(f"{tree.top}/") and path not in paths:
            yield Fault(path, "is an exception and is not there: take it off")
