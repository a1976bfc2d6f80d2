# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys of its own for every default group that a worker makes, one after another.

torch counts groups anew when the default group is destroyed, and torchrun's agent keeps its store:
a script that makes its group again meets the keys of the last one. Gloo then connects to an
address that nobody listens at any more, or NCCL to an identifier of the past, and a rank fails or
waits for its time-out, depending on who comes first. Every group after the first one therefore has
a prefix in the store. Ranks agree on it without a word: each counts the groups that it has made by
the same method, as torch does with its names.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

PREFIX: Final = "securetrain/group"


class FreshKeys:
    """The groups that this process has made, by the method that they were made with."""

    def __init__(self) -> None:
        self._made: Counter[str] = Counter()
        self._meeting = ""

    def rendezvous(self, meet: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Wrap distributed_c10d's `rendezvous`: yield a store in which nobody has written."""

        @functools.wraps(meet)
        def met(url: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
            for store, rank, world_size in meet(url, *args, **kwargs):
                self._meeting = url
                yield self._fresh(store, self._made[url]), rank, world_size

        return met

    def group(self, make_group: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `init_process_group`: count the groups that were made."""

        @functools.wraps(make_group)
        def made(*args: Any, **kwargs: Any) -> Any:
            self._meeting = ""
            group = make_group(*args, **kwargs)
            if self._meeting:  # a caller's own store is its own business
                self._made[self._meeting] += 1
            return group

        return made

    def _fresh(self, store: Any, number: int) -> Any:
        if not number:
            return store
        from torch.distributed import (  # type: ignore[attr-defined]  # noqa: PLC0415 - it is there
            PrefixStore,
        )

        return PrefixStore(f"{PREFIX}-{number}", store)
