# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The artifacts that a job names, and where it does.

Rules:

1. options come first, then the job file (``securetrain train``), then the environment; each name
   keeps its origin;
2. a path of a job file is relative to the directory that the job starts in, as the job takes it;
3. what nothing names is not looked at, and the checks about it do not apply.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from securetrain.core.errors import PolicyError, UsageError
from securetrain.core.files import read_file

_JOB_LIMIT: Final = 64 << 10
_TRUST: Final = "SECURETRAIN_TRUST"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPath:
    """A path and what names it."""

    path: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Everything that the job names."""

    checkpoints: tuple[NamedPath, ...] = ()
    datasets: tuple[NamedPath, ...] = ()
    requirements: tuple[NamedPath, ...] = ()
    trust: NamedPath | None = None


NOTHING: Final = Named()


def named(
    environ: Mapping[str, str],
    *,
    checkpoints: tuple[Path, ...] = (),
    datasets: tuple[Path, ...] = (),
    requirements: tuple[Path, ...] = (),
    trust: Path | None = None,
    job: Path | None = None,
) -> Named:
    """Put together what options, a job file and the environment name.

    Raises:
        UsageError: ST-USAG-002 when the job file cannot be read.
        PolicyError: ST-PLCY-001 when it is no YAML, or a path in it is no text.
    """
    more = _of_job(job) if job is not None else NOTHING
    given = NamedPath(path=str(trust.absolute()), origin="--trust") if trust else more.trust
    if given is None and environ.get(_TRUST):
        given = NamedPath(path=environ[_TRUST], origin=_TRUST)
    return Named(
        checkpoints=(*_options(checkpoints, "--checkpoint"), *more.checkpoints),
        datasets=(*_options(datasets, "--dataset"), *more.datasets),
        requirements=_options(requirements, "--requirements"),
        trust=given,
    )


def _options(paths: tuple[Path, ...], option: str) -> tuple[NamedPath, ...]:
    return tuple(NamedPath(path=str(path.absolute()), origin=option) for path in paths)


def _of_job(path: Path) -> Named:
    """Names in a job file: data, a checkpoint or weights to begin from, and who may sign them."""
    from securetrain.policy.load import parse_yaml  # noqa: PLC0415 - most jobs have no file

    text = read_file(path, _JOB_LIMIT).decode("utf-8", "replace")
    job = parse_yaml(text, str(path))
    if not isinstance(job, dict):
        raise PolicyError("ST-PLCY-001", "not a job file: no mapping", str(path))
    resume = _text(job, ("checkpoint", "resume"), path)
    if resume is not None and resume.path in ("auto", "never"):
        resume = None
    weights = _text(job, ("model", "weights"), path)
    dataset = _text(job, ("data", "dataset"), path)
    return Named(
        checkpoints=tuple(_absolute(one) for one in (resume, weights) if one is not None),
        datasets=(_absolute(dataset),) if dataset else (),
        trust=_absolute(trust) if (trust := _text(job, ("trust",), path)) else None,
    )


def _text(job: dict[str, Any], keys: tuple[str, ...], path: Path) -> NamedPath | None:
    value: Any = job
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        return None
    where = f"{path}: {'.'.join(keys)}"
    if not isinstance(value, str) or "\0" in value:
        raise PolicyError("ST-PLCY-001", "not a path", where, "write it in quotes")
    return NamedPath(path=value, origin=where)


def _absolute(one: NamedPath) -> NamedPath:
    if "://" in one.path:
        raise UsageError(
            "ST-USAG-002",
            "an object store is not looked at by an audit of a node",
            one.origin,
            "check it with 'securetrain verify'",
        )
    return NamedPath(path=str(Path(one.path).absolute()), origin=one.origin)
