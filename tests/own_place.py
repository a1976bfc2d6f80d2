# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A place of its own for one process of tests, in place of the machine's. Rules:

1. home, caches and state are a fresh folder;
2. of the environment only what `PASSED` names comes in: a variable that nobody thought of steers
   no test;
3. where it may, the process has mounts of its own, with empty lists of network namespaces and of
   job networks: it meets no other suite's, nor another worker's, and a process that is killed
   leaves none. Without the right to, none can be made either;
4. ports are claimed for all processes of tests on the machine (`tests.vocabulary.free_port`).

Nothing that a developer's machine remembers changes what a test finds, and no test leaves anything
there. Two suites at once share nothing.
"""

import errno
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from securetrain.core.nodestate import STATE_VARIABLE
from securetrain.network import STATE as JOB_NETWORKS
from securetrain.network.exec_private import make, mounts, unshare
from securetrain.network.namespace import FOLDER as NAMESPACES

ROOT: Final = Path(__file__).resolve().parent.parent
PASSED: Final = re.compile(
    # the shell's, and where programs, libraries and temporary files are
    r"PATH|LD_LIBRARY_PATH|TMPDIR|USER|LOGNAME|SHELL|TERM|TZ|LANG|LC_[A-Z]+|CC|VIRTUAL_ENV"
    # the interpreter's, pytest's, and how many threads a product may have
    r"|PYTHON(PATH|HASHSEED|DONTWRITEBYTECODE|PYCACHEPREFIX|UNBUFFERED)|PYTEST_\w+|COVERAGE_\w+"
    r"|OMP_NUM_THREADS|MKL_(CBWR|NUM_THREADS)|OPENBLAS_\w+"
    # where packages come from: tests build wheels
    r"|PIP_\w+|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|(?i:(HTTPS?|ALL|NO)_PROXY)"
    # what a person asks tests for
    r"|CI|WRITE_CHECKS|CRASH_(FIRST|SEQUENCES|STRIDE)|FUZZ_INPUTS"
    r"|SECURETRAIN_(OUTSIDE|SARIF_SCHEMA|SPDX_MODEL|VECTORS)"
)
"""The variables that come in."""


def take_own_place() -> Path:
    """Point this process, and all that it starts, to a fresh folder; the caller removes it."""
    place = Path(tempfile.mkdtemp(prefix="st-tests-"))
    pip = Path.home() / ".config" / "pip" / "pip.conf"
    for name in [name for name in os.environ if not PASSED.fullmatch(name)]:
        del os.environ[name]
    if pip.exists():  # where packages come from is no state
        os.environ.setdefault("PIP_CONFIG_FILE", str(pip))
    for name, below in (("HOME", "home"), ("XDG_CACHE_HOME", "cache"), (STATE_VARIABLE, "state")):
        os.environ[name] = str(place / below)
        (place / below).mkdir(mode=0o700)
    # A checkout may belong to another user than the one that tests it.
    (place / "home" / ".gitconfig").write_text(f"[safe]\n\tdirectory = {ROOT}\n")
    take_own_mounts()
    return place


def take_own_mounts() -> None:
    """Rule 3, for this thread and all that it starts."""
    if os.geteuid() != 0:
        return
    try:
        unshare()
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        return
    for folder in (NAMESPACES, JOB_NETWORKS):
        folder.mkdir(parents=True, exist_ok=True)
        make(mounts(["--empty", str(folder)]))
    JOB_NETWORKS.chmod(0o700)


def leave(place: Path, pid: int) -> None:
    """Remove the folder, in the process that took it."""
    if os.getpid() == pid:
        shutil.rmtree(place, ignore_errors=True)
