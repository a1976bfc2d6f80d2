# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Build rows of tokens from a job's data section.

``plan_data`` looks at the job and at the dataset's listing and refuses what cannot be; ``counting``
does what takes time (`counts`); ``open`` gives rows. None of it asks how many ranks there are, and
none needs a process group: an auditor who has the job, the dataset and, where there is one, the
tokenizer makes the rows of any step again (`open_data`), and ``Rows.byte_ranges`` says which bytes
of the dataset they are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.artifacts import Dataset, dataset_predicate
from securetrain.artifacts.dataset import TABLE_PREFIX
from securetrain.core.errors import UsageError
from securetrain.core.files import read_file
from securetrain.train.config import DataJob, Format, JobConfig, RowOrder, bad_field
from securetrain.train.data import counts
from securetrain.train.data.counts import Index, Subject
from securetrain.train.data.documents import Documents, JsonLines, TextFiles
from securetrain.train.data.packing import PackedTokens
from securetrain.train.data.parquet import ParquetRows
from securetrain.train.data.rows import Rows, epoch_order
from securetrain.train.data.source import ByteSplit
from securetrain.train.data.token_streams import BYTE_VALUES, BinTokens, ByteTokens, Stream
from securetrain.train.tokenizer import (
    BYTES,
    LIMIT,
    ByteTokenizer,
    FileTokenizer,
    Tokenizer,
    check_named,
    unsigned,
)

WIDTH_KEY: Final = "token_bytes"
"""Key of a dataset's signed metadata that says how wide its tokens are."""
IN_DATASET: Final = "dataset:"
IN_MODEL: Final = "model:"
_SUFFIXES: Final = {Format.JSONL: ".jsonl", Format.PARQUET: ".parquet"}

ModelFile = Callable[[str], bytes]
"""Verified bytes of a document of the model that is fine-tuned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The data of a run."""

    train: Rows
    held_out: Rows | None
    format: Format
    tokens: int
    """Of the training split."""
    environment: dict[str, str]
    """The inputs besides the dataset that decide the rows: tokenizer and index, by digest."""
    text: tuple[ByteSplit, ByteSplit] | None
    """Training and held-out bytes, where bytes are tokens: what counting alone can predict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlan:
    """A plan of what to open; only the listing and the tokenizer have been read so far."""

    job: JobConfig
    format: Format
    tokenizer: Tokenizer | None
    splits: tuple["SplitPlan", ...]
    """The training split, then the held-out one."""

    def counting(self, folder: Path | None) -> Iterator[None]:
        """Count the documents of what has no index in `folder`; every `next` does a part of it.

        Raises:
            SecureTrainError: as `counts.make`.
        """
        for split in self.splits:
            yield from split.counting(folder)

    def open(self) -> Data:
        """Rows, after `counting` has ended, here or on a rank that shares `folder`.

        Raises:
            UsageError: ST-USAG-007, 014 or 015.
        """
        job, data = self.job, self.job.data
        streams = [split.stream(self.tokenizer, job) for split in self.splits]
        train = streams[0]
        order = None
        if order_of(data, self.format) is RowOrder.EPOCHS:
            order = epoch_order(
                train,
                seq_len=data.seq_len,
                seed=job.seed,
                batch_rows=data.batch_rows,
                epochs=data.epochs,
            )
            order.check(job.steps)
        texts = [stream.split for stream in streams if isinstance(stream, ByteTokens)]
        environment = {} if self.tokenizer is None else dict(self.tokenizer.environment)
        for name, split in zip(("index", "validationIndex"), self.splits, strict=False):
            if split.index is not None:
                environment[name] = split.index.digest
        return Data(
            train=Rows(train, data.seq_len, job.seed, order),
            held_out=Rows(streams[1], data.seq_len, job.seed) if len(streams) > 1 else None,
            format=self.format,
            tokens=len(train),
            environment=environment,
            text=(texts[0], texts[1]) if len(texts) > 1 else None,
        )


@dataclass(slots=True, kw_only=True)
class SplitPlan:
    """One split."""

    bytes: ByteSplit | None
    width: int
    documents: Documents | None
    subject: Subject | None
    tokenizer: Tokenizer | None
    held_out: bool
    index: Index | None = None

    def counting(self, folder: Path | None) -> Iterator[None]:
        """Find the index, or make it."""
        if self.documents is None or self.index is not None:
            return
        assert self.subject is not None
        assert self.tokenizer is not None
        self.index = counts.find(self.subject, self.documents, folder)
        if self.index is not None:
            return
        for index in counts.make(self.subject, self.documents, self.tokenizer, folder):
            self.index = index
            yield

    def stream(self, tokenizer: Tokenizer | None, job: JobConfig) -> Stream:
        """The tokens."""
        if self.documents is not None:
            assert tokenizer is not None
            assert self.index is not None
            seed = None if self.held_out else job.seed
            return PackedTokens(self.documents, self.index, tokenizer, seed)
        assert self.bytes is not None
        if self.width == 1:
            return ByteTokens(self.bytes)
        return BinTokens(self.bytes, self.width, job.model.vocab)


def open_data(
    job: JobConfig,
    where: str,
    dataset: Dataset,
    *,
    model_file: ModelFile | None = None,
    folder: Path | None = None,
) -> Data:
    """All of it at once, in one process.

    Args:
        job: The job.
        where: The job file's name, for messages.
        dataset: The open dataset that the job names.
        model_file: Reads a document of the signed model, for a tokenizer that lies there.
        folder: Where indices are kept; None counts anew.

    Raises:
        SecureTrainError: the job asks for what cannot be, or the data is not what it says.
    """
    plan = plan_data(job, where, dataset, model_file=model_file)
    for _ in plan.counting(folder):
        pass
    return plan.open()


def plan_data(
    job: JobConfig, where: str, dataset: Dataset, *, model_file: ModelFile | None = None
) -> DataPlan:
    """Look at what there is.

    Raises:
        UsageError: ST-USAG-004 without a package that the format needs, ST-USAG-007 naming the
            field, ST-USAG-015 when files are not in the format.
        IntegrityError: ST-DATA-134 when the tokenizer is not the one that was named.
    """
    data = job.data
    found = format_of(data, dataset, where)
    tokenizer = None
    if found not in {Format.BYTES, Format.TOKENS}:
        tokenizer = _tokenizer(data, where, dataset, model_file)
    elif data.tokenizer != BYTES:
        raise bad_field(
            f"what is read as {found} is not tokenized",
            where,
            "data.tokenizer",
            "leave it out, or data.format: text, jsonl or parquet",
        )
    vocab = tokenizer.vocab if tokenizer is not None else BYTE_VALUES
    if found is not Format.TOKENS and vocab > job.model.vocab:
        raise bad_field(
            f"{job.model.vocab}, but the data has tokens up to {vocab - 1}",
            where,
            "model.vocab",
            f"vocab: {vocab}, or more",
        )
    names = [("data.train_split", data.train_split)]
    if data.validation_split is not None:
        names.append(("data.validation_split", data.validation_split))
    splits = tuple(
        _split(
            data,
            dataset,
            found,
            tokenizer=tokenizer,
            name=name,
            where=f"{where}: {field}",
            held_out=number > 0,
        )
        for number, (field, name) in enumerate(names)
    )
    return DataPlan(job=job, format=found, tokenizer=tokenizer, splits=splits)


def format_of(data: DataJob, dataset: Dataset, where: str) -> Format:
    """Find the format of the data: the job's choice, or the one in the dataset's statement.

    Raises:
        UsageError: ST-USAG-007 when the trainer does not read it.
    """
    if data.format is not None:
        return data.format
    signed = dataset.predicate.format
    match signed:
        case dataset_predicate.DataFormat.JSONL:
            return Format.JSONL
        case dataset_predicate.DataFormat.PARQUET:
            return Format.PARQUET
        case dataset_predicate.DataFormat.RAW:
            if data.token_bytes is not None or WIDTH_KEY in dataset.predicate.metadata:
                return Format.TOKENS
            return Format.BYTES if data.tokenizer == BYTES else Format.TEXT
        case _:
            raise bad_field(
                f"the dataset is in {signed} format, which the trainer does not read",
                where,
                "data.format",
                f"name one of {', '.join(Format)}; sign the data in one of these",
            )


def order_of(data: DataJob, found: Format) -> RowOrder:
    """The order of rows: documents come once an epoch, other data anywhere, unless the job says."""
    if data.order is not None:
        return data.order
    return RowOrder.RANDOM if found in {Format.BYTES, Format.TOKENS} else RowOrder.EPOCHS


def _split(
    data: DataJob,
    dataset: Dataset,
    found: Format,
    *,
    tokenizer: Tokenizer | None,
    name: str,
    where: str,
    held_out: bool,
) -> SplitPlan:
    files = _files(dataset, found, name, where)
    width = _width(data, dataset, where) if found is Format.TOKENS else 1
    if found is Format.PARQUET:
        split = None
        documents: Documents | None = ParquetRows(dataset, name, files, data.field, where)
    else:
        split = ByteSplit(dataset, name, where, files=files, unit=width)
        documents = None
        if found is Format.JSONL:
            documents = JsonLines(split, data.field)
        elif found is Format.TEXT:
            documents = TextFiles(split, dataset.documents(name))
    subject = None
    if documents is not None:
        assert tokenizer is not None
        subject = Subject(
            dataset=dataset.digest,
            split=name,
            format=documents.format,
            tokenizer=tokenizer.digest,
        )
    return SplitPlan(
        bytes=split,
        width=width,
        documents=documents,
        subject=subject,
        tokenizer=tokenizer,
        held_out=held_out,
    )


def _files(dataset: Dataset, found: Format, split: str, where: str) -> Sequence[str]:
    """The files of a split that hold data of the format."""
    if split not in dataset.splits:
        ByteSplit(dataset, split, where)  # says which splits there are
    suffix = _SUFFIXES.get(found)
    if suffix is None:
        return dataset.splits[split]
    files = [
        name
        for name in dataset.splits[split]
        if name.lower().endswith(suffix) and not Path(name).name.startswith(TABLE_PREFIX)
    ]
    if not files:
        raise UsageError(
            "ST-USAG-015",
            f"split {split!r} has no {suffix} file",
            where,
            "set data.format to how the data lies in this dataset",
        )
    return files


def _width(data: DataJob, dataset: Dataset, where: str) -> int:
    """Bytes of a token: what the statement says, which the job may repeat and not change."""
    signed = dataset.predicate.metadata.get(WIDTH_KEY)
    if signed not in {None, "2", "4"} or (signed is None and data.token_bytes is None):
        raise UsageError(
            "ST-USAG-007",
            f"tokens of {signed} bytes" if signed else "nothing says how wide its tokens are",
            where,
            "set data.token_bytes to 2 or 4, or sign the dataset with --metadata token_bytes=2",
        )
    if signed is not None and data.token_bytes not in {None, int(signed)}:
        raise UsageError(
            "ST-USAG-007",
            f"the job says tokens of {data.token_bytes} bytes, the dataset's statement {signed}",
            where,
            f"set data.token_bytes: {signed}, or leave it out",
        )
    return int(signed) if signed is not None else int(data.token_bytes or 0)


def _tokenizer(
    data: DataJob, where: str, dataset: Dataset, model_file: ModelFile | None
) -> Tokenizer:
    """The job's tokenizer, from bytes that somebody vouches for."""
    name, at = data.tokenizer, f"{where}: data.tokenizer"
    if name == BYTES:
        return ByteTokenizer()
    if name.startswith(IN_DATASET):
        file = name.removeprefix(IN_DATASET)
        size = dataset.files.get(file, 0)
        if not 0 < size <= LIMIT:
            raise UsageError(
                "ST-USAG-007",
                f"the dataset has no file {file!r}" if not size else f"{size} bytes",
                at,
                "name dataset:NAME of its tokenizer.json, as it was signed",
            )
        content = dataset.read(file, 0, size)
    elif name.startswith(IN_MODEL):
        if model_file is None:
            raise UsageError(
                "ST-USAG-007",
                "the job fine-tunes no model",
                at,
                "set model.weights to a signed model",
            )
        content = model_file(name.removeprefix(IN_MODEL))
    elif data.tokenizer_sha256 is None:
        raise unsigned(name, at)
    else:
        content = read_file(Path(name), LIMIT)
    if data.tokenizer_sha256 is not None:
        check_named(content, data.tokenizer_sha256, at)
    return FileTokenizer(content, data.eos, at)
