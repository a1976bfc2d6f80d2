# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from securetrain.artifacts import SaveContext, load, save
from securetrain.artifacts.tree import s3_client
from securetrain.core.errors import SecureTrainError
from securetrain.core.hashtree import TreeParams
from tests import s3_store
from tests.s3_store import S3Store

SMALL = TreeParams(leaf_size=1024)


@pytest.fixture(scope="session")
def s3_server():
    pytest.importorskip("moto", reason="NO S3 STORE WAS ASKED: pip install '.[dev]'")
    with s3_store.running() as store:
        yield store


@pytest.fixture
def s3(s3_server, monkeypatch):
    """The store, honest and empty, with botocore led to it and short pauses."""
    for name, value in s3_store.environment(s3_server).items():
        monkeypatch.setenv(name, value)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(s3_client, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(s3_client, "LONGEST_PAUSE", 0.01)
    s3_store.forget_clients()
    s3_server.empty()
    yield s3_server
    s3_store.forget_clients()


def state(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    return {"w": torch.randn(500, 9), "b": torch.randn(3), "n": {"step": seed}}


@dataclass(frozen=True)
class Run:
    """Saves of one run in a store, and loads of them."""

    store: S3Store
    keys: Any
    trust: Any
    now: Any

    def place(self, number: int) -> str:
        return f"s3://{s3_store.BUCKET}/run/step-{number}"

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
