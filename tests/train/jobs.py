# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Jobs, text and a byte source for the trainer's tests."""

from dataclasses import dataclass, field
from pathlib import Path

from securetrain.artifacts.dataset.versions import Removals
from securetrain.train.config import JobConfig
from securetrain.train.data import ByteSplit, ByteTokens, Rows

JOB = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: tiny
steps: 6
model: {dim: 32, layers: 2, heads: 2, ffn: 48}
data: {seq_len: 32, batch_rows: 4}
optimizer: {warmup_steps: 2}
checkpoint: {every: 3}
metrics: {console_every: 0, tensorboard: false}
eval: {every: 3, rows: 4}
"""


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


WORDS = b"the a run node rank seals every byte of its shard and then signs what it saw".split()


def prose(words: int, salt: int = 0) -> bytes:
    """Text with something to learn, a function of its arguments."""
    state, out = 12345 + salt, []
    for _ in range(words):
        state = (1103515245 * state + 12345) % (1 << 31)
        out.append(WORDS[(state >> 16) % len(WORDS)])
    return b" ".join(out)


def documents() -> dict[str, list[bytes]]:
    """Five documents to train on, one held out."""
    return {"train": [prose(400, n) for n in range(5)], "validation": [prose(300, 99)]}


@dataclass
class MemorySource:
    """What the trainer needs of a dataset, in memory; remembers what was read."""

    data: dict[str, bytes]
    splits: dict[str, tuple[str, ...]]
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    removals: Removals = field(default_factory=Removals)

    @property
    def files(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.data.items()}

    def read(self, file: str, offset: int, length: int) -> bytes:
        self.reads.append((file, offset, length))
        self.removals.check(file, offset, length, "memory")
        assert 0 <= offset <= offset + length <= len(self.data[file])
        return self.data[file][offset : offset + length]


def memory_source() -> MemorySource:
    """The documents, one file each."""
    files: dict[str, bytes] = {}
    splits: dict[str, tuple[str, ...]] = {}
    for split, texts in documents().items():
        names = tuple(f"{split}-{n}" for n in range(len(texts)))
        files.update(zip(names, texts, strict=True))
        splits[split] = names
    return MemorySource(files, splits)


def byte_rows(job: JobConfig) -> tuple[Rows, Rows]:
    """Training and held-out rows of the documents."""
    source, data = memory_source(), job.data
    train, held_out = (
        Rows(ByteTokens(ByteSplit(source, name, "")), data.seq_len, job.seed)
        for name in ("train", "validation")
    )
    return train, held_out
