# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sign a dataset: copy it into a new directory, hashing every byte on its way.

Rules, in order:

1. the directory appears whole, under a name that was free, or not at all;
2. links, special files and unsafe names in the source are refused, never followed;
3. what is hashed is what is written, and the statement comes last (`sign`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from securetrain.artifacts.dataset.sign import WHOLE, DatasetSigner, Progress, Signed, Sink, bad
from securetrain.artifacts.kinds import check_same, check_whole
from securetrain.artifacts.statement.statements import DatasetPredicate, Split, TreeInfo
from securetrain.artifacts.tree.layout import Problem
from securetrain.core import canonical
from securetrain.core.files import staged_dir
from securetrain.core.hashtree import DATASET_LEAF, TreeParams
from securetrain.identity.keys import PrivateKey

DOCUMENTS_SUFFIX: Final = ".documents.jsonl"
DATA_SUFFIX: Final = ".bin"


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One document of a split: where it lies."""

    name: str
    file: str
    offset: int
    length: int


def sign_dataset(
    source: Path,
    out: Path,
    *,
    name: str,
    key: PrivateKey,
    now: datetime,
    splits: Mapping[str, Sequence[str]] | None = None,
    metadata: Mapping[str, str] | None = None,
    seq: int = 0,
    params: TreeParams | None = None,
    progress: Progress | None = None,
) -> Signed:
    """Copy every file below `source` into the new directory `out` and sign it.

    Args:
        source: a directory of data files.
        out: the directory to make; it must not exist.
        name: what the dataset is called.
        key: signs for the trust role ``dataset``.
        now: the time of signing, with a time zone.
        splits: split name to file names in reading order; one split "all" when absent.
        metadata: whatever belongs to it in short strings: licence, source, scan results.
        seq: version number; newer is greater.
        params: the hash tree (default: BLAKE3 over leaves of 64 KiB).
        progress: called with bytes done and bytes in all.

    Raises:
        IntegrityError: ST-DATA-142 the source has a link or an unsafe name, ST-DATA-201 `out`
            exists.
        UsageError: ST-USAG-001 the arguments do not fit the source, ST-USAG-002 or 006 on I/O.
    """
    files, unsafe = check_whole(source)
    if unsafe:
        raise Problem("ST-DATA-142", f"{unsafe[0].reason} in the source", unsafe[0].name).error(
            str(source)
        )
    if not files:
        raise bad("there is no file to sign", str(source), "name a directory that holds data")
    names = {entry.name for entry in files}
    chosen = {WHOLE: sorted(names)} if splits is None else {k: list(v) for k, v in splits.items()}
    for split, wanted in chosen.items():
        for file in wanted:
            if file not in names:
                raise bad(f"split {split!r} names {file!r}", str(source), "name files that exist")
    total = sum(entry.size for entry in files)
    with _writing(out, params, progress, total) as writer:
        for entry in files:
            writer.copy(source, entry.name)
        check_same(source, files)
        splits_of = [Split(name=k, files=v) for k, v in chosen.items()]
        predicate = _predicate(writer, name, splits_of, now, metadata, seq)
        return replace(writer.finish(predicate, name, key), path=out)


def sign_documents(
    documents: Iterable[tuple[str, str, bytes]],
    out: Path,
    *,
    name: str,
    key: PrivateKey,
    now: datetime,
    metadata: Mapping[str, str] | None = None,
    seq: int = 0,
    params: TreeParams | None = None,
    progress: Progress | None = None,
) -> Signed:
    """Write documents into one file a split, with a table of where each lies, and sign that.

    Args:
        documents: (split, document name, bytes), in reading order.
        out: the directory to make; it must not exist. The rest is as in `sign_dataset`.
        name: what the dataset is called.
        key: signs for the trust role ``dataset``.
        now: the time of signing, with a time zone.
        metadata: whatever belongs to it in short strings.
        seq: version number.
        params: the hash tree.
        progress: called with bytes done, and 0 for bytes in all.

    Raises:
        IntegrityError: ST-DATA-101 a bad split name, ST-DATA-201 `out` exists.
        UsageError: ST-USAG-001 there are no documents, ST-USAG-002 or 006 on I/O.
    """
    with _writing(out, params, progress, 0) as writer, ExitStack() as stack:
        sinks: dict[str, tuple[Sink, Sink]] = {}
        for split, document, data in documents:
            if split not in sinks:
                # Report here because the split's name becomes a file's name.
                msgspec.convert({"name": split, "files": ["x"]}, Split)
                sinks[split] = (
                    stack.enter_context(writer.sink(split + DATA_SUFFIX)),
                    stack.enter_context(writer.sink(split + DOCUMENTS_SUFFIX)),
                )
            body, table = sinks[split]
            entry = Document(
                name=document, file=split + DATA_SUFFIX, offset=body.size, length=len(data)
            )
            body.write(data)
            table.write(canonical.encode(entry) + b"\n")
        stack.close()
        if not sinks:
            raise bad("there are no documents to sign", str(out), "give at least one")
        splits = [
            Split(name=s, files=[s + DATA_SUFFIX], documents=s + DOCUMENTS_SUFFIX) for s in sinks
        ]
        predicate = _predicate(writer, name, splits, now, metadata, seq)
        return replace(writer.finish(predicate, name, key), path=out)


@contextmanager
def _writing(
    out: Path, params: TreeParams | None, progress: Progress | None, total: int
) -> Iterator[DatasetSigner]:
    if out.exists() or out.is_symlink():
        raise Problem("ST-DATA-201", "already exists and is never overwritten").error(str(out))
    tree = params or TreeParams(leaf_size=DATASET_LEAF)
    try:
        with staged_dir(out) as staging:
            yield DatasetSigner(root=staging, params=tree, progress=progress, total=total)
    except msgspec.ValidationError as error:
        raise bad(str(error), str(out), "split names are short, of a-z, 0-9, - and _") from error


def _predicate(  # noqa: PLR0917 - its parts, each once
    writer: DatasetSigner,
    name: str,
    splits: Sequence[Split],
    now: datetime,
    metadata: Mapping[str, str] | None,
    seq: int,
) -> DatasetPredicate:
    return DatasetPredicate(
        name=name,
        seq=seq,
        created=now,
        tree=TreeInfo.of(writer.params),
        files=sorted(writer.files, key=lambda file: file.name),
        splits=sorted(splits, key=lambda split: split.name),
        metadata=dict(metadata or {}),
    )
