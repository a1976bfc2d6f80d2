# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The process that runs a training script under the shim.

::

    python -u -P -m securetrain.launch.worker.script [-m module | script.py] arguments...

It installs the shim and then runs the script as ``python script.py`` or ``python -m module`` would:

1. when the launcher dies this process dies with it (Linux, PR_SET_PDEATHSIG);
2. the shim is installed, and the job's secrets are taken from the launcher; torch is not imported
   by either. Each secret is put into a memory file, whose number is in
   ``SECURETRAIN_SECRET_<NAME>_FD``: a script reads it with ``securetrain.secret(NAME)``, or as a
   file of that number. Where the policy says ``hand_over: environment`` the variable is set too,
   without a newline at the end, after this process has started, so that ``/proc/PID/environ`` does
   not show it here; it does in every program that the script starts. One that is withheld is
   named, and the script goes on: reading it is refused;
3. ``sys.argv``, ``sys.path[0]`` and a ``__main__`` module of its own are what Python itself would
   make them, so that pickling, ``multiprocessing`` and tracebacks work as always;
4. an exception that ends the script is shown as Python shows it, and written to the rank's report
   and to torch's error file, so that the launcher can say what happened without the script having
   to import anything;
5. a process that has used torch ends with the script's own exit code, and without the interpreter's
   end, which torch's threads may turn into an abort (`core.leaving`).

``-P`` keeps the working directory off the path until the shim is there: a ``securetrain`` folder
in it is not imported by accident.
"""

import builtins
import ctypes
import io
import json
import os
import pkgutil
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Final, NoReturn

from securetrain.core import hold_secret, leave, secret_variable, undumped
from securetrain.core.errors import RuntimeRefusal, SecureTrainError, UsageError
from securetrain.launch.worker.shim import Shim
from securetrain.policy.schema import Secret

_PR_SET_PDEATHSIG: Final = 1


def main(argv: Sequence[str]) -> None:
    """Run a training script under the shim.

    Args:
        argv: ``["-m", module, ...]`` or ``[script, ...]``.
    """
    die_with_parent()
    try:
        shim = Shim.from_environment(os.environ)
        shim.install()
        hand_over(shim.policy.node.secrets, shim.signer, os.environ, shim.rank)
        run = _program(list(argv))
    except SecureTrainError as error:
        sys.stderr.write(f"securetrain: {error}\n")
        sys.exit(int(error.exit_code))
    try:
        try:
            run()
        except SystemExit as leaving:
            if leaving.code in (None, 0):
                shim.end()
            raise
        shim.end()
    except SystemExit as leaving:
        # An exit because of an error of ours says so: `raise SystemExit(code) from error`.
        ours = leaving.__cause__ if isinstance(leaving.__cause__, SecureTrainError) else leaving
        _report(shim, ours if leaving.code not in (None, 0) else None)
        if isinstance(leaving.code, int | None):
            leave((leaving.code or 0) & 0xFF)
        raise
    except BaseException as error:  # noqa: BLE001 - whatever ends the script is reported
        _end(shim, error)
    _report(shim, None)
    leave(0)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the launcher is gone."""
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class _Program:
    """The program to run."""

    def __init__(self, name: str, argv: list[str], *, is_module: bool) -> None:
        self.name = name
        self.argv = argv
        self.is_module = is_module

    def __call__(self) -> None:
        sys.argv[:] = self.argv
        main_module = _fresh_main()
        if self.is_module:
            _prepend(os.getcwd())  # noqa: PTH109 - what `python -m` does
            runpy._run_module_as_main(self.name)  # type: ignore[attr-defined]  # noqa: SLF001 - what `python -m` itself calls
        elif pkgutil.get_importer(self.name) is not None:  # a directory or a zip file
            sys.path.insert(0, str(Path(self.name).absolute()))
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]  # noqa: SLF001 - what `python directory` itself calls
        else:
            path = str(Path(self.name).absolute())
            _prepend(str(Path(self.name).resolve().parent))
            main_module.__file__ = path
            main_module.__loader__ = SourceFileLoader("__main__", path)
            vars(main_module)["__cached__"] = None
            exec(_code(self.name), vars(main_module))  # noqa: S102 - running the script is the job


def _program(argv: list[str]) -> _Program:
    is_module = argv[:1] == ["-m"]
    rest = argv[1:] if is_module else argv
    if not rest:
        raise UsageError(
            "ST-USAG-001",
            "no training script was given",
            "securetrain run",
            "name a training script",
        )
    if not is_module and not Path(rest[0]).exists():
        raise UsageError("ST-USAG-002", "no such file", rest[0])
    return _Program(rest[0], rest, is_module=is_module)


def _fresh_main() -> ModuleType:
    """A `__main__` like the interpreter's own, in place of this module."""
    module = ModuleType("__main__")
    vars(module).update(__builtins__=builtins, __annotations__={}, __package__=None)
    sys.modules["__main__"] = module
    return module


def _prepend(folder: str) -> None:
    """Python puts the script's folder first, unless it was told not to."""
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, folder)


def _code(script: str) -> CodeType:
    """The script's code, from source or from a compiled file."""
    with io.open_code(str(Path(script).absolute())) as file:
        compiled = pkgutil.read_code(file)
    if compiled is not None:
        return compiled  # type: ignore[no-any-return]
    with io.open_code(str(Path(script).absolute())) as file:
        source = file.read()
    return compile(source, str(Path(script).absolute()), "exec", dont_inherit=True)


def _report(shim: Shim, error: BaseException | None) -> None:
    """Write the rank's report; the script's own end stands even when that fails."""
    try:
        shim.report(error, is_last=True)
    except SecureTrainError as problem:
        sys.stderr.write(f"securetrain: this rank's report could not be written: {problem}\n")


def _end(shim: Shim, error: BaseException) -> NoReturn:
    """Report the exception that ended the script, show it, and leave."""
    trace = _without_our_frames(error.__traceback__)
    _report(shim, error)
    with suppress(OSError):
        _write_error_file(error, trace)
    if isinstance(error, KeyboardInterrupt):
        raise error.with_traceback(trace)  # Python then leaves by the signal
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    leave(1)


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback that Python would have shown: the frames from the script on."""
    start = trace
    while start is not None and start.tb_frame.f_code.co_filename == __file__:
        start = start.tb_next
    return start or trace


def _write_error_file(error: BaseException, trace: TracebackType | None) -> None:
    """The file in which torch's agent looks for the cause, unless somebody wrote it already."""
    name = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not name or Path(name).exists():
        return
    text = "".join(traceback.format_exception(type(error), error, trace))
    message = {
        "message": f"{type(error).__name__}: {error}"[:4000],
        "extraInfo": {"py_callstack": text[-16000:], "timestamp": str(int(time.time()))},
    }
    Path(name).write_text(json.dumps({"message": message}))


def hand_over(
    rules: Mapping[str, Secret],
    signer: str,
    environ: MutableMapping[str, str],
    rank: int,
) -> None:
    """Get this worker's secrets from its launcher.

    Args:
        rules: The policy's.
        signer: The launcher's socket.
        environ: This process's variables.
        rank: This worker's, for what is said.
    """
    if not rules:
        return
    undumped()
    # Imports cryptography, which a worker without secrets does without.
    from securetrain.identity.signing import shared_socket  # noqa: PLC0415

    for name, rule in rules.items():
        try:
            value = shared_socket(Path(signer)).secret(name)
            environ[secret_variable(name)] = str(hold_secret(name, value))
            if rule.variable:
                environ[rule.variable] = _text(name, value)
        except (SecureTrainError, OSError) as error:
            sys.stderr.write(f"securetrain rank {rank}: the secret {name} is not here: {error}\n")
            sys.stderr.flush()


def _text(name: str, value: bytes) -> str:
    try:
        text = value.decode().removesuffix("\n")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise RuntimeRefusal(
            "ST-RUNT-036",
            f"{name} is no text, which a variable has to be",
            "node.secrets",
            "hand_over: descriptor",
        )
    return text


if __name__ == "__main__":
    main(sys.argv[1:])
