# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Load every check of a directory: safe YAML, strict schema, no id twice."""

from pathlib import Path
from typing import Final

from securetrain.audit.check import Check, CheckSet, compile_check
from securetrain.audit.document import read_document
from securetrain.core.errors import AuditError
from securetrain.policy.load import bundled_dir

FILE_LIMIT: Final = 512 << 10
MAX_FILES: Final = 256


def checks_dir() -> Path:
    """The folder of the shipped checks."""
    return bundled_dir("policies") / "checks"


def load_checks(directory: Path | None = None) -> tuple[Check, ...]:
    """Load and compile the checks of `directory` (the shipped ones by default), sorted by id.

    Raises:
        AuditError: ST-AUDT-001 naming the file, the check and the place.
    """
    folder = checks_dir() if directory is None else directory
    paths = sorted(folder.glob("*.yaml"))
    if not paths or len(paths) > MAX_FILES:
        raise AuditError(
            "ST-AUDT-001",
            f"{len(paths)} check files, expected 1 to {MAX_FILES}",
            str(folder),
            "install the package again",
        )
    checks: dict[str, Check] = {}
    for path in paths:
        for check in load_check_file(path):
            if check.id in checks:
                raise AuditError(
                    "ST-AUDT-001",
                    f"{check.id} is also defined in {checks[check.id].source}",
                    str(path),
                    "give one of them another id",
                )
            checks[check.id] = check
    return tuple(checks[check_id] for check_id in sorted(checks))


def load_check_file(path: Path) -> tuple[Check, ...]:
    """Load and compile one file.

    Raises:
        AuditError: ST-AUDT-001.
    """
    spec = read_document(
        path,
        CheckSet,
        limit=FILE_LIMIT,
        code="ST-AUDT-001",
        fix="compare with the other files beside it",
    )
    return tuple(compile_check(check, path.name) for check in spec.checks)
