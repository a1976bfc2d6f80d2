# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The end of a process that has used torch, without taking the interpreter apart.

A thread of torch's that asks for the interpreter's lock while the interpreter ends (gloo's, with
the last message's tensor in its hands) is ended by Python in the middle of C++, which knows one
answer: ``terminate called without an active exception``, SIGABRT. A program that has ended well
would then count as one that failed. So what Python does for a program at its end is done here, in
Python's order and while the lock can still be had, and the process leaves without the rest:

1. threads that are no daemons are waited for;
2. what was registered with `atexit` runs, last first;
3. the program's own names (`__main__`) go, and with them files, processes and groups;
4. what other modules hold open is flushed, and Python's and C's output.

The destructors of other modules' objects, and C's own exit handlers, do not run.
"""

import atexit
import ctypes
import gc
import io
import os
import sys
import threading
from contextlib import suppress
from typing import Any, Final, NoReturn

_FLUSH_FAILED: Final = 120
"""Python's own exit code for output that could not be written."""


def leave(code: int) -> NoReturn:
    """End this process with an exit code of its program; call it in the main thread."""
    if "torch" not in sys.modules or sys.flags.inspect:
        sys.exit(code)
    threads: Any = threading
    threads._shutdown()  # noqa: SLF001 - what Python itself calls
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no other way to run them now
    threading.excepthook = lambda _: None  # of daemons, which would have ended with Python
    _forget_program()
    os._exit(code if _flush() else _FLUSH_FAILED)


def _forget_program() -> None:
    """Step 3, as Python does it: names with an underscore first."""
    names = vars(sys.modules["__main__"])
    for private in (True, False):
        for name in list(names):
            if name.startswith("_") == private and name != "__builtins__":
                names[name] = None
    gc.collect()


def _flush() -> bool:
    """Step 4; tells whether Python's own output was written."""
    for one in gc.get_objects():
        # The type itself: some objects of torch's speak when they are asked for their class.
        if issubclass(type(one), io.BufferedWriter | io.BufferedRandom | io.TextIOWrapper):
            with suppress(OSError, ValueError):  # closed, detached, or a reader
                one.flush()
    written = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            written = stream is sys.stderr and written
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
    return written
