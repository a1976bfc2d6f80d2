# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetRef,
    GradientRecord,
    GradientVerdict,
    IndexFile,
    NodeRef,
    PolicyRef,
    RankFile,
    TreeInfo,
    sign,
)
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.layout import INDEX, LEAVES_SUFFIX, STATEMENT
from securetrain.core.hashtree import TreeParams
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.identity.trust import (
    Revoked,
    TrustRole,
    TrustRoot,
    sign_document,
)
from tests.trees import tree_of
from tests.vocabulary import trust_document

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Keys:
    root: PrivateKey = field(default_factory=PrivateKey.generate)
    checkpoint: PrivateKey = field(default_factory=PrivateKey.generate)
    dataset: PrivateKey = field(default_factory=PrivateKey.generate)
    stranger: PrivateKey = field(default_factory=PrivateKey.generate)
    admitter: PrivateKey = field(default_factory=PrivateKey.generate)
    operators: tuple[PrivateKey, ...] = field(
        default_factory=lambda: tuple(PrivateKey.generate() for _ in range(3))
    )

    def trust_file(self, *checkpoint: PublicKey, revoked: Sequence[str] = ()) -> bytes:
        """Two of three operators must sign; `checkpoint` replaces the checkpoint role's keys."""
        roles = {
            TrustRole.ROOT: [self.root.public],
            TrustRole.CHECKPOINT: list(checkpoint) or [self.checkpoint.public],
            TrustRole.DATASET: [self.dataset.public],
            TrustRole.NODE: [self.admitter.public],
            TrustRole.OPERATOR: [key.public for key in self.operators],
        }
        document = trust_document(
            roles,
            NOW - timedelta(days=400),
            NOW + timedelta(days=4000),
            revoked=[Revoked(key_id=key_id, since=NOW) for key_id in revoked],
        )
        return sign_document(document, [self.root])


@pytest.fixture(scope="session")
def now() -> datetime:
    return NOW


@pytest.fixture(scope="session")
def keys() -> Keys:
    return Keys()


@pytest.fixture(scope="session")
def trust(keys) -> TrustRoot:
    return TrustRoot.parse(keys.trust_file(), NOW)


@pytest.fixture(scope="session")
def lineage() -> dict[str, Any]:
    """Everything that the strictest policy wants a statement to say."""
    return {
        "dataset": DatasetRef(name="corpus", digest="ab" * 32, cursor={"row": 320}),
        "policy": PolicyRef(id="baseline", digest="cd" * 32),
        "gradients": GradientRecord(verdict=GradientVerdict.CLEAN, judged=10),
        "nodes": [NodeRef(node="node-0", tier=NodeTier.TPM, ranks=[0])],
    }


def index_of(**tensors: tuple[int, int]) -> index_file.Index:
    """An index of uint8 vectors: name=(offset, length) in rank-00000.bin."""
    return index_file.Index(
        version=1,
        tensors=tuple(
            index_file.TensorEntry(
                fqn=name,
                dtype="uint8",
                shape=(length,),
                chunks=(
                    index_file.Chunk(
                        offsets=(0,),
                        sizes=(length,),
                        file="rank-00000.bin",
                        offset=offset,
                        length=length,
                    ),
                ),
            )
            for name, (offset, length) in sorted(tensors.items())
        ),
        values=(index_file.ValueEntry(fqn="step", value=7),),
    )


@pytest.fixture(scope="session")
def forge(keys, lineage) -> Callable[..., CheckpointPredicate]:
    """Write a signed checkpoint without torch, and without any of the checks that `save` makes."""

    def make(
        root: Path,
        data: bytes = bytes(range(250)) * 10,
        *,
        index: index_file.Index | bytes | None = None,
        key: PrivateKey | None = None,
        params: TreeParams | None = None,
        **said: Any,
    ) -> CheckpointPredicate:
        root.mkdir()
        params = params or TreeParams(leaf_size=1024)
        tree = tree_of(params, data)
        (root / "rank-00000.bin").write_bytes(data)
        (root / f"rank-00000.bin{LEAVES_SUFFIX}").write_bytes(tree.leaves)
        if index is None:
            index = index_of(first=(0, 1000), second=(1024, len(data) - 1024))
        raw = index if isinstance(index, bytes) else index_file.encode(index)
        (root / INDEX).write_bytes(raw)
        fields: dict[str, Any] = {
            "run_id": "run-1",
            "step": 100,
            "seq": 3,
            "save_id": "0" * 32,
            "created": NOW - timedelta(hours=1),
            "world_size": 1,
            "tree": TreeInfo.of(params),
            "files": [
                RankFile(name="rank-00000.bin", size=len(data), root=tree.root.hex(), rank=0)
            ],
            "index": IndexFile(name=INDEX, size=len(raw), sha256=hashlib.sha256(raw).hexdigest()),
            **lineage,
            **said,
        }
        predicate = CheckpointPredicate(**fields)
        envelope = sign(predicate, root.name, key or keys.checkpoint)
        (root / STATEMENT).write_bytes(envelope)
        return predicate

    return make
