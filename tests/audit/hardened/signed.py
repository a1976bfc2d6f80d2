# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed artifacts of a machine: a dataset, and a checkpoint with the head of its run."""

import hashlib
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from securetrain.artifacts.dataset.write import sign_documents
from securetrain.artifacts.lineage import head
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    IndexFile,
    RankFile,
    TreeInfo,
    sign,
)
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.layout import INDEX, LEAVES_SUFFIX, STATEMENT
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.audit.subjects.node.collect.host import Named, NamedPath
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from tests.trees import tree_of
from tests.vocabulary import trust_document

RUN, STEP, DOCS = "/data/run", "/data/run/step-00000100", "/data/docs"
NAMED = Named(
    checkpoints=(NamedPath(path=RUN, origin="--checkpoint"),),
    datasets=(NamedPath(path=DOCS, origin="--dataset"),),
    requirements=(NamedPath(path="/job/requirements.txt", origin="--requirements"),),
    trust=NamedPath(path="/data/trust.json", origin="--trust"),
)
_PARAMS = TreeParams(leaf_size=1024)


@cache
def _signed() -> Path:
    """The folder /data of a machine, made once in a process."""
    base = Path(tempfile.mkdtemp(prefix="audit-data-"))
    base.chmod(0o755)
    now = datetime.now(UTC)
    key, root = PrivateKey.generate(), PrivateKey.generate()
    roles = {
        TrustRole.ROOT: [root.public],
        TrustRole.CHECKPOINT: [key.public],
        TrustRole.DATASET: [key.public],
    }
    document = trust_document(roles, now - timedelta(days=1), now + timedelta(days=400))
    data = sign_document(document, [root])
    (base / "trust.json").write_bytes(data)
    documents = [("train", "a", b"a" * 1500), ("train", "b", b"b" * 700)]
    sign_documents(documents, base / "docs", name="docs", key=key, now=now, params=_PARAMS)
    step = base / "run/step-00000100"
    step.mkdir(parents=True)
    predicate = weights(step, now)
    (step / STATEMENT).write_bytes(sign(predicate, step.name, key))
    trust = TrustRoot.parse(data, now)
    head.advance(LocalStorage(base / "run"), predicate, key, trust, now)
    (base / "run/.head.lock").unlink()
    (base / "run/latest").symlink_to("step-00000100")
    return base


def weights(step: Path, now: datetime) -> CheckpointPredicate:
    data = bytes(range(250)) * 10
    tree = tree_of(_PARAMS, data)
    (step / "rank-00000.bin").write_bytes(data)
    (step / f"rank-00000.bin{LEAVES_SUFFIX}").write_bytes(tree.leaves)
    chunk = index_file.Chunk(
        offsets=(0,), sizes=(2500,), file="rank-00000.bin", offset=0, length=2500
    )
    entry = index_file.TensorEntry(fqn="w", dtype="uint8", shape=(2500,), chunks=(chunk,))
    raw = index_file.encode(index_file.Index(version=1, tensors=(entry,), values=()))
    (step / INDEX).write_bytes(raw)
    return CheckpointPredicate(
        run_id="run-1",
        step=100,
        seq=3,
        save_id="0" * 32,
        created=now - timedelta(hours=1),
        world_size=1,
        tree=TreeInfo.of(_PARAMS),
        files=[RankFile(name="rank-00000.bin", size=len(data), root=tree.root.hex(), rank=0)],
        index=IndexFile(name=INDEX, size=len(raw), sha256=hashlib.sha256(raw).hexdigest()),
    )


def put_signed(root: Path) -> None:
    """Put them below the root of a machine."""
    shutil.copytree(_signed(), root / "data", symlinks=True)
