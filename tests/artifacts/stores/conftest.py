# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest
import torch

from securetrain.artifacts import SaveContext, load, save
from securetrain.artifacts.tree import objects
from securetrain.core.errors import SecureTrainError
from securetrain.core.hashtree import TreeParams
from tests import s3_store
from tests.s3_store import S3Store

SMALL = TreeParams(leaf_size=1024)


@pytest.fixture(scope="session")
def stores():
    """A running store of a kind; each is started once."""
    pytest.importorskip("moto", reason="NO S3 STORE WAS ASKED: pip install '.[dev]'")
    with ExitStack() as stack:
        yield lru_cache(lambda kind: stack.enter_context(s3_store.running(kind)))


@pytest.fixture
def s3(stores, request, monkeypatch):
    """A store, honest and empty, with obstore led to it and short pauses: S3, or as it is asked."""
    store = stores(getattr(request, "param", "s3"))
    for name in [n for n in os.environ if n.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for name, value in s3_store.environment(store).items():
        monkeypatch.setenv(name, value)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(objects, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(objects, "LONGEST_PAUSE", 0.01)
    s3_store.forget_clients()
    store.empty()
    yield store
    s3_store.forget_clients()


def state(seed: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)  # of its own: two threads save at once
    return {
        "w": torch.randn(500, 9, generator=made),
        "b": torch.randn(3, generator=made),
        "n": {"step": seed},
    }


@dataclass(frozen=True)
class Run:
    """Saves of one run in a store, and loads of them."""

    store: S3Store
    keys: Any
    trust: Any
    now: Any

    def place(self, number: int) -> str:
        return f"{self.store.scheme}://{s3_store.BUCKET}/run/step-{number}"

    def save(self, number: int, *, seed: int | None = None, how: Callable[..., Any] = save) -> Any:
        context = SaveContext(run_id="r", step=number, seq=number, created=self.now)
        return how(
            state(number if seed is None else seed),
            self.place(number),
            key=self.keys.checkpoint,
            context=context,
            params=SMALL,
        )

    def load(self, number: int, **more: Any) -> tuple[str, dict[str, Any]]:
        """The code of its refusal, empty when there is none, and what was loaded."""
        target = {"w": torch.ones(500, 9), "b": torch.ones(3), "n": {"step": -1}}
        try:
            load(target, self.place(number), trust=self.trust, policy=None, now=self.now, **more)
        except SecureTrainError as error:
            return error.code, target
        return "", target

    def holds(self, number: int, *, seed: int | None = None) -> bool:
        """Whether it loads, bit by bit as it was saved."""
        code, found = self.load(number)
        wanted = state(number if seed is None else seed)
        return not code and all(torch.equal(found[n], wanted[n]) for n in ("w", "b"))


@pytest.fixture
def run(s3, keys, trust, now):
    return Run(s3, keys, trust, now)
