# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Small signed datasets, and a small tokenizer."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.dataset.verified import Dataset
from securetrain.artifacts.statement.reading import read_statement
from securetrain.artifacts.statement.statements import open_statement
from securetrain.artifacts.tree.layout import Kind
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from tests.train.data.tokenizers import bpe

NOW = datetime(2026, 5, 1, tzinfo=UTC)
SMALL = TreeParams(leaf_size=1024)


class Signing:
    """Signs directories, and opens them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.key, root = PrivateKey.generate(), PrivateKey.generate()
        data = sign_root(
            {TrustRole.DATASET: [self.key.public]}, root, NOW, NOW + timedelta(days=30)
        )
        self.trust = TrustRoot.parse(data, NOW)
        self._number = 0

    def __call__(self, files: dict[str, bytes], **about: Any) -> Dataset:
        self._number += 1
        root = self.folder / f"dataset-{self._number}"
        for name, data in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        sign_in_place(root, About(name="d", **about), key=self.key, now=NOW, params=SMALL)
        return self.open(root)

    def open(self, root: Path) -> Dataset:
        opened = Dataset.open(root, trust=self.trust, policy=None, now=NOW)
        return self._stack.enter_context(opened)

    def again(self, root: Path, **about: Any) -> Dataset:
        """A new version of what lies there."""
        kind = Kind.DATASET
        previous = open_statement(read_statement(root, kind), kind, self.trust, str(root))
        later = NOW + timedelta(minutes=1)
        sign_in_place(
            root, About(name="d", **about), key=self.key, now=later, previous=previous, params=SMALL
        )
        return self.open(root)


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[Signing]:
    with ExitStack() as stack:
        yield Signing(tmp_path, stack)


@pytest.fixture(scope="session")
def tokenizer_json() -> bytes:
    return bpe()


MakeDataset = Callable[..., Dataset]
