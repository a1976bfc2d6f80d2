# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Wait until every rank has come to a place that all of them come to, through torch's own store.

No collective is made: nothing of the script's groups is used, and no GPU waits.
"""

import sys
from datetime import timedelta
from typing import Any, Final

from securetrain.core.errors import RuntimeRefusal
from securetrain.launch.seams import patches

PATIENCE: Final = timedelta(minutes=30)
"""As torch's own groups wait by default."""
_KEY: Final = "securetrain-save"
_STORE: Final = "_get_default_store"


class Together:
    """One process's waits; those of all ranks have the same numbers."""

    def __init__(self, patience: timedelta = PATIENCE) -> None:
        self._patience = patience
        self._number = 0

    def wait(self, what: str) -> None:
        """Wait for all ranks.

        Raises:
            RuntimeRefusal: ST-RUNT-038, some rank did not come.
        """
        if (store := self._arrive()) is None:
            return
        key = self._key
        try:
            store.wait([f"{key}/all"], self._patience)
        except RuntimeError as error:
            raise RuntimeRefusal(
                "ST-RUNT-038",
                f"{store.add(key, 0)} of {_world()} ranks have returned from {what} after"
                f" {self._patience.total_seconds():.0f} s",
                what,
            ) from error

    def pass_by(self, times: int) -> None:
        """Let nobody wait for this rank, which has failed."""
        for _ in range(times):
            self._arrive()

    @property
    def _key(self) -> str:
        return f"{_KEY}/{self._number}"

    def _arrive(self) -> Any:
        """Say that this rank is there; None where there are no others."""
        if (world := _world()) == 1:
            return None
        self._number += 1
        store = patches.find(sys.modules["torch.distributed"].distributed_c10d, _STORE)()
        if store.add(self._key, 1) == world:
            store.set(f"{self._key}/all", "1")
        return store


def _world() -> int:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 1
    return int(dist.get_world_size())
