# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The groups that a model is judged by: FSDP modules, or blocks of parameters. Pure.

Groups are blocks of the model and not the buckets in which parameters happen to travel: buckets are
rebuilt, and a statement about a block says which layer.
"""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from securetrain.guard.collect import Segment


def group_of(name: str) -> str:
    """The block that a parameter is judged with: its name up to the first number, such as
    ``layers.3``; without one, up to the first dot.
    """
    words = name.split(".")
    number = next((i for i, word in enumerate(words) if word.isdigit()), 0)
    return ".".join(words[: number + 1])


def group_of_module(chunk: str) -> str:
    """The same of a sharded module."""
    part, _, name = chunk.split("-", 2)
    return f"{part}:{name}" if part != "0" else name or "(root)"


def segments_of(parameters: Iterable[tuple[str, int]]) -> tuple[Segment, ...]:
    """Runs of one block's parameters in a flat piece, given their names and sizes."""
    found: list[Segment] = []
    start = 0
    for name, size in parameters:
        group, stop = group_of(name), start + size
        if found and found[-1].group == group:
            found[-1] = Segment(group, found[-1].start, stop)
        else:
            found.append(Segment(group, start, stop))
        start = stop
    return tuple(found)


class Buckets:
    """Names and groups of DDP's buckets, worked out once for each.

    Args:
        names: index and name of each parameter of the model, by id.
    """

    def __init__(self, names: Mapping[int, tuple[int, str]]) -> None:
        self._names = names
        self._known: dict[tuple[int, ...], tuple[str, tuple[Segment, ...]]] = {}

    def of(self, parameters: Sequence[Tensor]) -> tuple[str, tuple[Segment, ...]]:
        """The name of a bucket with these parameters, the same on every rank, and its groups."""
        key = tuple(map(id, parameters))
        if key not in self._known:
            named = [self._names[one] for one in key]
            indices = [index for index, _ in named]
            sizes = [(name, p.numel()) for (_, name), p in zip(named, parameters, strict=True)]
            chunk = f"bucket-{min(indices)}-{max(indices)}-{len(indices)}"
            self._known[key] = chunk, segments_of(sizes)
        return self._known[key]
