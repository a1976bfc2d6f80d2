# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The error file of whoever started the launcher (``TORCHELASTIC_ERROR_FILE``), as for torchrun.

Rules:

1. when a worker failed, the file is the worker's own error file with its exit code, as torch's
   ``record`` writes it; what a worker wrote is read with a limit and has to be a JSON object;
2. otherwise it is the launcher's own error, once;
3. the file is written whole, and a link in its place is not followed. That it cannot be written is
   said, and changes nothing about the run.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.core.errors import SecureTrainError
from securetrain.core.files import read_file, write_atomic

VARIABLE: Final = "TORCHELASTIC_ERROR_FILE"
_LIMIT: Final = 1 << 20


@dataclass(slots=True)
class ErrorFile:
    """A place for one error; nothing is written when nobody named a file."""

    path: Path | None
    written: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "ErrorFile":
        """The file that the parent named, if it did."""
        name = environ.get(VARIABLE)
        return cls(Path(name) if name else None)

    def hand_on(self, worker_file: str, exit_code: int) -> None:
        """Write what the worker that failed first has written (rule 1)."""
        if self.path is None:
            return
        try:
            found = json.loads(read_file(Path(worker_file), _LIMIT))
        except (SecureTrainError, ValueError, RecursionError):
            return  # it wrote none: the launcher's own error follows
        if not isinstance(found, dict):
            return
        if exit_code and isinstance(found.get("message"), dict):
            found["message"]["errorCode"] = exit_code
        self._write(found)

    def record(self, error: BaseException) -> None:
        """Write the launcher's own error, unless a worker's is there (rule 2)."""
        if self.written:
            return
        extra = {"py_callstack": str(error), "timestamp": str(int(time.time()))}
        message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
        self._write({"message": message})

    def _write(self, document: object) -> None:
        if self.path is None:
            return
        try:
            write_atomic(self.path, json.dumps(document).encode())
        except SecureTrainError as problem:
            sys.stderr.write(f"securetrain: {VARIABLE} cannot be written: {problem}\n")
        self.written = True
