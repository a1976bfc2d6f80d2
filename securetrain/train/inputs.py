# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tell the launcher what a job starts from, so that statements bind it."""

from pathlib import Path
from typing import Any

import msgspec

from securetrain.artifacts import STATEMENT, Kind, context, read_statement
from securetrain.train.config import API_VERSION, JobConfig


def show_inputs(signing: context.RunSigning, job: JobConfig, dataset: Path) -> None:
    """Show the launcher the job's settings, its dataset's statement and that of its weights.

    Args:
        signing: The way to the launcher; nothing happens on a rank that signs no statement.
        job: The job.
        dataset: Its dataset's directory, which was verified.

    Raises:
        RuntimeRefusal: ST-RUNT-030 to 035.
        IntegrityError: ST-DATA-100 or 200, a statement is gone since it was verified.
    """
    if signing.checkpoint is None:
        return
    signing.describe(described(job))
    signing.show(read_statement(dataset, Kind.DATASET))
    # Weights that Model Signing alone has signed have no statement of ours to show.
    if job.model.weights is not None and (Path(job.model.weights) / STATEMENT).is_file():
        signing.show(read_statement(Path(job.model.weights), Kind.CHECKPOINT))


def described(job: JobConfig) -> dict[str, Any]:
    """The settings of a job without a path of this machine: of one, its last name stays."""
    found: dict[str, Any] = _without_paths(msgspec.to_builtins(job))
    return found


def _without_paths(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without_paths(one) for name, one in value.items()}
        case list():
            return [_without_paths(one) for one in value]
        case str() if "/" in value and value != API_VERSION:
            return Path(value).name or "/"
        case _:
            return value
