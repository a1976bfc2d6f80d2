# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Load every check of a directory: safe YAML, strict schema, no id twice."""

from pathlib import Path
from typing import Final

from securetrain.audit.engine.check import Check, compile_check
from securetrain.audit.engine.schema import CheckSet, each_kind
from securetrain.audit.parser.files import read_document
from securetrain.core.errors import AuditError
from securetrain.policy.load import bundled_dir

FILE_LIMIT: Final = 512 << 10
MAX_FILES: Final = 256


def checks_dir() -> Path:
    """The folder of the shipped checks."""
    return bundled_dir("policies") / "checks"


def load_checks(directory: Path | None = None, beside: Path | None = None) -> tuple[Check, ...]:
    """Load and compile the checks of `directory` (the shipped ones by default), sorted by id.

    Args:
        directory: the folder.
        beside: a folder of a site's own checks, each with its fixtures (`site_checks`).

    Raises:
        AuditError: ST-AUDT-001 naming the file, the check and the place.
    """
    checks: dict[tuple[str, str], Check] = {}
    for check in _of_folder(checks_dir() if directory is None else directory):
        _add(checks, check)
    if beside is not None:
        from securetrain.audit.sources.site_checks import verify_fixtures  # noqa: PLC0415 - few have some

        own = _of_folder(beside)
        verify_fixtures(own, beside)
        for check in own:
            _add(checks, check)
    return tuple(checks[key] for key in sorted(checks, key=lambda key: key[0]))


def _of_folder(folder: Path) -> tuple[Check, ...]:
    paths = sorted(folder.glob("*.yaml"))
    if not paths or len(paths) > MAX_FILES:
        raise AuditError(
            "ST-AUDT-001",
            f"{len(paths)} check files, expected 1 to {MAX_FILES}",
            str(folder),
            "name a folder of checks, or install the package again",
        )
    return tuple(check for path in paths for check in load_check_file(path))


def _add(checks: dict[tuple[str, str], Check], check: Check) -> None:
    there = next((one for one in checks.values() if one.id == check.id), check)
    also = [one.subject for one in there.spec.also]
    if (check.id, check.kind) in checks or (there is not check and check.spec.subject not in also):
        raise AuditError(
            "ST-AUDT-001",
            f"{check.id} is also defined in {there.source}",
            check.source,
            "give one of them another id",
        )
    checks[check.id, check.kind] = check


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
    each = (one for check in spec.checks for one in each_kind(check))
    return tuple(compile_check(one, path.name) for one in each)
