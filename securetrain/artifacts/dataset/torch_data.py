# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The samples of a signed dataset for torch's DataLoader, and a sampler that can go on.

The order of samples is a pure function of (seed, epoch), so the state that a checkpoint needs is
two integers, another number of ranks changes nothing, and an auditor can recompute which rank saw
what.
"""

from collections.abc import Iterator
from typing import Final

import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Sampler

from securetrain.artifacts.dataset.samples import Sample, parse
from securetrain.artifacts.dataset.verified import Dataset
from securetrain.core.errors import IntegrityError, UsageError

_MIX: Final = 0x9E3779B97F4A7C15


class VerifiedSamples(TorchDataset[bytes]):
    """Every sample that the dataset's signed tables name and that was not removed, as bytes."""

    def __init__(self, dataset: Dataset) -> None:
        """Read the tables of samples.

        Raises:
            UsageError: ST-USAG-007 when the dataset was signed without them.
            IntegrityError: ST-DATA-101 when a table is false.
        """
        index = dataset.predicate.samples
        if index is None:
            raise UsageError(
                "ST-USAG-007",
                "the dataset was signed without a table of samples",
                str(dataset.path),
                "sign it with --samples, or read its bytes with VerifiedMemmap",
            )
        self._dataset = dataset
        self._samples: list[Sample] = []
        for name in index.files:
            lines = dataset.read(name, 0, dataset.files[name]).splitlines()
            self._samples += [parse(line, name) for line in lines]
        if len(self._samples) != index.count:
            raise IntegrityError(
                "ST-DATA-101",
                f"{len(self._samples)} samples in the tables, {index.count} were signed",
                str(dataset.path),
            )
        self.places = [
            place
            for place, one in enumerate(self._samples)
            if dataset.removals.touching(one.file, one.offset, one.length) is None
        ]
        """The line of each sample in the tables."""

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> bytes:
        """The verified bytes of a sample.

        Raises:
            IntegrityError: ST-DATA-130 to 200.
        """
        sample = self.describe(number)
        return self._dataset.read(sample.file, sample.offset, sample.length)

    def describe(self, number: int) -> Sample:
        """The table's line on a sample."""
        return self._samples[self.places[number]]


class ResumableSampler(Sampler[int]):
    """Shuffles by (seed, epoch), gives each rank its share, and goes on where it stopped."""

    def __init__(self, length: int, *, seed: int, rank: int = 0, ranks: int = 1) -> None:
        """Shuffle `length` samples.

        Args:
            length: How many there are.
            seed: Of the order.
            rank: Which of the data-parallel ranks this is.
            ranks: How many there are. Every rank gets equally many samples of an epoch; what is
                left over is not seen in that epoch.

        Raises:
            UsageError: ST-USAG-001 when there are fewer samples than ranks.
        """
        if not 0 <= rank < ranks or length < ranks:
            raise UsageError(
                "ST-USAG-001",
                f"{length} samples for rank {rank} of {ranks}",
                "",
                "use fewer ranks or a larger dataset",
            )
        self.length, self.seed, self.rank, self.ranks = length, seed, rank, ranks
        self.epoch = 0
        self.seen = 0
        """Samples of this epoch that all ranks together have taken."""

    def __len__(self) -> int:
        """The number of samples that this rank has left in the epoch."""
        return (self.length - self.seen) // self.ranks

    def __iter__(self) -> Iterator[int]:
        """The rest of this epoch; the next call begins the next one."""
        order = self._order()
        while self.seen + self.ranks <= self.length:
            number = int(order[self.seen + self.rank])
            self.seen += self.ranks
            yield number
        self.epoch += 1
        self.seen = 0

    def state_dict(self) -> dict[str, int]:
        """The position. The same for every rank, and for any number of ranks."""
        return {"seed": self.seed, "epoch": self.epoch, "seen": self.seen, "length": self.length}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there.

        Raises:
            UsageError: ST-USAG-012 when it is the state of another order.
        """
        if state.get("seed") != self.seed or state.get("length") != self.length:
            raise UsageError(
                "ST-USAG-012",
                f"the state is of seed {state.get('seed')} over {state.get('length')} samples, this"
                f" is seed {self.seed} over {self.length}",
                "",
                "use the seed and the dataset that the checkpoint names",
            )
        self.epoch, self.seen = int(state["epoch"]), int(state["seen"])

    def _order(self) -> torch.Tensor:
        generator = torch.Generator()
        generator.manual_seed((self.seed * _MIX + self.epoch) % (1 << 63))
        return torch.randperm(self.length, generator=generator)
