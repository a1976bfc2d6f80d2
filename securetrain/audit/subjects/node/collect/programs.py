# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The program that a process is, and whether it asks its clients for anything. Never its arguments.

Rules:

1. a program is known by its own name, by the module that Python runs with ``-m``, by the script
   that it runs, or by a folder of that script (`_NAMES`); everything else is ``other``;
2. whether it asks for a password or token follows from its arguments, its environment and its
   configuration: a word says so or not, and the word itself is kept nowhere;
3. TensorPipe is known by the names of its threads, which it gives itself
   (tensorpipe/common/system.cc).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from securetrain.audit.facts import Outcome
from securetrain.audit.subjects.node.collect.host import (
    Host,
    known,
    reading,
)
from securetrain.audit.subjects.node.facts.node import Program

_ARGUMENTS_LIMIT: Final = 256 << 10
_ENVIRONMENT_LIMIT: Final = 1 << 20
_NAMES: Final[Mapping[str, Program]] = {
    name: program
    for program, names in {
        Program.TENSORBOARD: ("tensorboard",),
        Program.JUPYTER: ("jupyter", "jupyterhub-singleuser", "notebook", "jupyterlab"),
        Program.RAY: ("ray", "raylet", "gcs_server"),
        Program.MLFLOW: ("mlflow",),
        Program.AIM: ("aim",),
        Program.CLEARML: ("clearml-server",),
        Program.WANDB: ("wandb",),
        Program.DEBUGPY: ("debugpy", "pydevd"),
        Program.GDBSERVER: ("gdbserver", "cuda-gdbserver", "lldb-server"),
        Program.DYNOLOG: ("dynolog",),
        Program.DCGM: ("nv-hostengine",),
        Program.EXPORTER: ("dcgm-exporter", "node_exporter"),
    }.items()
    for name in names
}
_FAMILIES: Final = (("jupyter-", Program.JUPYTER), ("ray::", Program.RAY))
"""What names of a program begin with."""
_SERVED: Final = (("mlflow.server", Program.MLFLOW), ("aim.", Program.AIM))
"""What the word begins with that tells a web server which application to serve."""
_WEB_SERVERS: Final = frozenset({"gunicorn", "uvicorn", "waitress-serve", "hypercorn"})
_INTERPRETER: Final = re.compile(r"(python|pypy)[0-9.]*\Z")
_WITH_VALUE: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_JUPYTER_SECRET: Final = re.compile(
    r"--(?:ServerApp|NotebookApp|IdentityProvider|LabApp|PasswordIdentityProvider)"
    r"\.(token|password|hashed_password)=(.*)\Z",
    re.DOTALL,
)
_JUPYTER_SETTING: Final = re.compile(
    r"^[^#\n]*\b(token|password|hashed_password)[\"']?\s*[=:]\s*u?([\"'])(.*?)\2", re.MULTILINE
)
_JUPYTER_FOLDERS: Final = ("/etc/jupyter", "/usr/local/etc/jupyter")
_JUPYTER_FILES: Final = tuple(
    f"jupyter_{app}_config.{kind}" for app in ("server", "notebook") for kind in ("py", "json")
)
_ANSWERS_ANYBODY: Final = frozenset(
    {Program.TENSORBOARD, Program.AIM, Program.CLEARML, Program.WANDB, Program.DEBUGPY,
     Program.GDBSERVER, Program.DYNOLOG, Program.DCGM, Program.EXPORTER}
)  # fmt: skip
_RPC_THREADS: Final = ("TP_UV_loop", "TP_IBV_loop", "TP_IBV_reactor")


def program_of(host: Host, pid: str) -> tuple[Program | None, bool | None]:
    """The program of a process, and whether it asks its clients for a password or token.

    Either is None when that cannot be read.
    """
    text = known(lambda: host.text(f"/proc/{pid}/cmdline", _ARGUMENTS_LIMIT))
    if not text:
        return None, None  # threads of the kernel have no arguments, and hold no sockets
    words = text.removesuffix("\0").split("\0")
    program = identify(words)
    return program, _is_guarded(host, pid, program, words)


def identify(words: Sequence[str]) -> Program:
    """The program that a command line runs (rule 1)."""
    # a process may write its title over its arguments: then it is one word
    own = words[0].split(" ")[0] if len(words) == 1 else words[0]
    names = [own.rpartition("/")[2].removesuffix(".exe"), own]
    if _INTERPRETER.match(names[0]):
        names = _of_python(words[1:])
    if _WEB_SERVERS & set(names):
        served = (app for word in words for start, app in _SERVED if word.startswith(start))
        return next(served, Program.OTHER)
    for name in names:
        found = _NAMES.get(name) or next(
            (program for start, program in _FAMILIES if name.startswith(start)), None
        )
        if found:
            return found
    return Program.OTHER


def _of_python(words: Sequence[str]) -> list[str]:
    """Names that the module or script gives, the most telling first."""
    rest = iter(words)
    for word in rest:
        if word == "-m":
            module = next(rest, "")
            return [part for part in (module.partition(".")[0], module.rpartition(".")[2]) if part]
        if word == "-c":
            return []
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            *folders, script = word.split("/")
            packages = [
                folder.removesuffix(".py")
                for before, folder in pairwise(folders)
                if before in {"site-packages", "dist-packages"}
            ]
            inside = [name for name in ("debugpy", "pydevd") if name in folders]
            return [script.removesuffix(".py"), *packages, *inside]
    return []


def _is_guarded(host: Host, pid: str, program: Program | None, words: Sequence[str]) -> bool | None:
    match program:
        case Program.JUPYTER:
            return _jupyter_is_guarded(host, pid, words)
        case Program.RAY:
            environ = _environ(host, pid)
            return None if environ is None else environ.get("RAY_AUTH_MODE", "").lower() == "token"
        case Program.MLFLOW:
            return _mlflow_is_guarded(words)
        case None:
            return None
        case _:
            return program not in _ANSWERS_ANYBODY


def _mlflow_is_guarded(words: Sequence[str]) -> bool | None:
    if any(word.removeprefix("--app-name=") == "basic-auth" for word in words):
        return True
    if any(word.startswith("mlflow.server.auth") for word in words):
        return True
    # this application asks for a password or not, as its parent was told
    return None if any(word.startswith("mlflow.server.fastapi") for word in words) else False


def _jupyter_is_guarded(host: Host, pid: str, words: Sequence[str]) -> bool | None:
    """Jupyter makes a token of its own unless something sets it, an empty one included."""
    environ = _environ(host, pid)
    if environ is None:
        return None
    settings = dict(_jupyter_settings(host, environ))
    if environ.get("JUPYTER_TOKEN"):
        settings["token"] = True
    for word in words:
        if found := _JUPYTER_SECRET.match(word):
            settings[found[1]] = bool(found[2].strip("'\""))
    if settings.pop("", None):
        return True if settings.get("token") else None
    return settings.pop("token", True) or any(settings.values())


def _jupyter_settings(host: Host, environ: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Settings of its files, and whether to something; a file that cannot be read has no name."""
    own = environ.get("JUPYTER_CONFIG_DIR") or f"{environ.get('HOME') or host.home}/.jupyter"
    for folder in (*_JUPYTER_FOLDERS, own):
        for name in _JUPYTER_FILES:
            text = reading(partial(host.text, f"{folder}/{name}"))
            if text.outcome not in {Outcome.OK, Outcome.ABSENT}:
                yield "", True
            for setting, _, value in _JUPYTER_SETTING.findall(text.value or ""):
                yield setting, bool(value)


def _environ(host: Host, pid: str) -> dict[str, str] | None:
    text = known(lambda: host.text(f"/proc/{pid}/environ", _ENVIRONMENT_LIMIT))
    if text is None:
        return None
    return {name: value for name, _, value in (w.partition("=") for w in text.split("\0")) if name}


def runs_tensorpipe(host: Host, pid: str) -> bool | None:
    """Return whether TensorPipe's threads run in a process; None when they cannot be listed."""

    def runs() -> bool:
        threads = host.names(f"/proc/{pid}/task")
        names = (host.text(f"/proc/{pid}/task/{thread}/comm", 64).strip() for thread in threads)
        return any(name.startswith(_RPC_THREADS) for name in names)

    return known(runs)
