# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain sign DIR --dataset``: its options, parsed."""

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from securetrain.cli.options import file_option
from securetrain.cli.progress import progress_bar

if TYPE_CHECKING:
    from securetrain.artifacts.statement import Opened, Removed, Scan
    from securetrain.identity.keys import Signer
    from securetrain.report import Document

REPORT_LIMIT: Final = 256 << 20
FORMATS: Final = ("raw", "jsonl", "parquet", "webdataset", "mds")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """The options of the command line."""

    name: str
    data_format: str | None
    samples: bool
    append: bool
    trust_file: Path | None
    licenses: tuple[str, ...]
    sources: tuple[str, ...]
    scan_reports: tuple[str, ...]
    croissant: Path | None
    metadata: tuple[str, ...]
    remove: tuple[str, ...]


def dataset_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of a dataset, which reach the command as one `DatasetOptions`."""
    options = (
        click.option(
            "--name", default="", help="Name of what is signed. Default: the directory's name."
        ),
        click.option(
            "--data-format",
            type=click.Choice(FORMATS),
            help="--dataset: how samples lie in the files. Default: by the files' names.",
        ),
        click.option(
            "--samples", is_flag=True, help="--dataset: sign a table of all samples as well."
        ),
        click.option(
            "--append",
            is_flag=True,
            help="--dataset: sign a new version, with the files and bytes that were added.",
        ),
        file_option(
            "--trust",
            "trust_file",
            help="--append: the trust root that verifies the version before.",
        ),
        click.option("--license", "licenses", multiple=True, help="--dataset: an SPDX expression."),
        click.option("--source", "sources", multiple=True, help="--dataset: its origin."),
        click.option(
            "--scan-report",
            "scan_reports",
            multiple=True,
            metavar="TOOL:VERSION:clean|findings:FILE",
            help="--dataset: a scanner's report on the data; its digest and verdict are signed.",
        ),
        file_option(
            "--croissant", help="--dataset: its Croissant description, whose digest is signed."
        ),
        click.option(
            "--metadata",
            multiple=True,
            metavar="KEY=VALUE",
            help="--dataset: anything else to sign; token_bytes=2 or 4 says how wide the numbers of"
            " a token file are.",
        ),
        click.option(
            "--remove",
            multiple=True,
            metavar="FILE:OFFSET:LENGTH[:REASON]",
            help="--append: bytes that must not be read any more.",
        ),
    )

    names = [field.name for field in fields(DatasetOptions)]

    @functools.wraps(command)
    def together(**given: Any) -> int:
        own = DatasetOptions(**{name: given.pop(name) for name in names})
        return command(dataset=own, **given)

    wrapped: Callable[..., int] = together
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def sign_dataset(path: Path, key: "Signer", given: DatasetOptions) -> "Document":
    """Sign the dataset; return what was signed."""
    from securetrain.artifacts.dataset import About, sign_in_place
    from securetrain.artifacts.statement import DataFormat, DatasetPredicate
    from securetrain.core.files import read_file
    from securetrain.report import signatures

    now = datetime.now(UTC)
    previous = _previous(path, given, now)
    said = previous.predicate if previous is not None else None
    name = said.name if isinstance(said, DatasetPredicate) else given.name or path.resolve().name
    croissant = ""
    if given.croissant is not None:
        croissant = hashlib.sha256(read_file(given.croissant, REPORT_LIMIT)).hexdigest()
    about = About(
        name=name,
        format=None if given.data_format is None else DataFormat(given.data_format),
        licenses=given.licenses,
        sources=given.sources,
        scans=[_scan(text) for text in given.scan_reports],
        croissant=croissant,
        metadata=dict(_pair(text) for text in given.metadata),
        with_samples=given.samples,
        removed=[_removed(text) for text in given.remove],
    )
    with progress_bar("signing") as progress:
        signed = sign_in_place(path, about, key=key, now=now, previous=previous, progress=progress)
    return signatures.dataset(signed.predicate, signed.digest, path)


def _previous(path: Path, given: DatasetOptions, now: datetime) -> "Opened | None":
    from securetrain.artifacts import Kind
    from securetrain.artifacts.statement import open_statement, read_statement
    from securetrain.core.errors import UsageError
    from securetrain.identity.trust import TrustRoot

    if not given.append:
        return None
    if given.trust_file is None:
        raise UsageError(
            "ST-USAG-001",
            "a new version rests on the one before, which must be verified",
            str(path),
            "give --trust FILE",
        )
    trust = TrustRoot.load(given.trust_file, now)
    data = read_statement(path, Kind.DATASET)
    return open_statement(data, Kind.DATASET, trust, str(path))


def _scan(text: str) -> "Scan":
    from securetrain.artifacts.statement import Scan, Verdict, digest_of_report
    from securetrain.core.errors import UsageError
    from securetrain.core.files import read_file

    parts = text.split(":", 3)
    if len(parts) != 4 or parts[2] not in set(Verdict):
        raise UsageError(
            "ST-USAG-001",
            f"{text!r} is no scan report",
            "--scan-report",
            "write it as TOOL:VERSION:clean:FILE or TOOL:VERSION:findings:FILE",
        )
    tool, version, verdict, file = parts
    digest = digest_of_report(read_file(Path(file), REPORT_LIMIT))
    return Scan(tool=tool, version=version, verdict=Verdict(verdict), result=digest)


def _pair(text: str) -> tuple[str, str]:
    from securetrain.core.errors import UsageError

    key, found, value = text.partition("=")
    if not (key and found):
        raise UsageError(
            "ST-USAG-001", f"{text!r} is no pair", "--metadata", "write it as KEY=VALUE"
        )
    return key, value


def _removed(text: str) -> "Removed":
    from securetrain.artifacts.statement import Removed
    from securetrain.core.errors import UsageError

    try:
        file, offset, length, *reason = text.split(":", 3)
        return Removed(
            file=file, offset=int(offset), length=int(length), reason=reason[0] if reason else ""
        )
    except ValueError as error:
        raise UsageError(
            "ST-USAG-001",
            f"{text!r}: {error}",
            "--remove",
            "write it as FILE:OFFSET:LENGTH[:REASON]",
        ) from error
