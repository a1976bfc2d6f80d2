# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The bytes that signing leaves on the disk: the same inputs give the same bytes for ever."""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.dataset.write import sign_dataset, sign_documents
from securetrain.artifacts.statement.dataset_predicate import Removed
from securetrain.artifacts.statement.statements import Opened
from securetrain.artifacts.tree.layout import Kind
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey

KEY = PrivateKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
SMALL = TreeParams(leaf_size=1024)

# The digest that is signed, and that of all bytes on the disk.
COPY = (
    "72ddfca763e00261dd48b957b67d7eae37419b56c408bf15e0d814ceb0081f1d",
    "5f90acf2eaf7b590bb551a1904e4d93f6859d7b5a1da0b9c6f6b6cc4bab9e75c",
)
WHOLE = (
    "bbd825cc3cb7de539db18e51424b66e215dc7485efd52b3b89535815eaeb7fe9",
    "7486acabbfc3eb80bda76c1e51ae4c94d5b7c62a5cfd0ed1af8c1e9b2c34fc23",
)
DOCUMENTS = (
    "21d224acde97e0920345dd7d6caef06d8ccdd8a3a840d970e5dc490173e06ba4",
    "46d5448cb9fb6bebb34715901360cf92d01fb866fc5e8fb07a6c67f67924bbdd",
)
FIRST = (
    "a3388a4edebac49daa33223d5568acc3aa8bb896598c8eb71053f29b19dfd9aa",
    "119702f6c63bcac41836ef0e9618ca11d1958876c523bff71b3dac5d0c223497",
)
SECOND = (
    "2438245065d868d77b2b0e5e9e79f2afeaa09c59aca05d87f094e4e12bbfba74",
    "da7167a4ffdfa283804a0188a886895b2cec30458ec69d0de1c94112a3289ed3",
)


def corpus(root: Path) -> Path:
    (root / "train").mkdir(parents=True)
    (root / "test").mkdir()
    (root / "train" / "a.jsonl").write_text("".join(f'{{"text": "{n}"}}\n' for n in range(500)))
    (root / "test" / "b.jsonl").write_text('{"text": "t"}\n')
    return root


def on_disk(root: Path) -> str:
    """The digest of every name and every byte below a directory."""
    total = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name, data = path.relative_to(root).as_posix(), path.read_bytes()
        total.update(f"{name} {len(data)}\n".encode() + data)
    return total.hexdigest()


def test_a_copy(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = sign_dataset(
        corpus(tmp_path / "corpus"),
        out,
        name="c",
        key=KEY,
        now=NOW,
        splits={"b": ["test/b.jsonl"], "a": ["train/a.jsonl"]},
        metadata={"licence": "MIT"},
        seq=3,
        params=SMALL,
    )
    assert (made.digest, on_disk(out)) == COPY
    assert made.path == out
    whole = sign_dataset(tmp_path / "corpus", tmp_path / "w", name="c", key=KEY, now=NOW)
    assert (whole.digest, on_disk(whole.path)) == WHOLE


def test_documents(tmp_path: Path) -> None:
    documents = [("train", f"d{n}", b"text %d" % n * 300) for n in range(20)]
    out = tmp_path / "out"
    told: list[tuple[int, int]] = []
    made = sign_documents(
        [*documents, ("test", "t", b"x")],
        out,
        name="c",
        key=KEY,
        now=NOW,
        params=SMALL,
        progress=lambda done, total: told.append((done, total)),
    )
    assert (made.digest, on_disk(out)) == DOCUMENTS
    assert told[-1] == (sum(p.stat().st_size for p in out.glob("*.*") if p.suffix != ".json"), 0)


def test_in_place_and_grown(tmp_path: Path) -> None:
    root = corpus(tmp_path / "corpus")
    told: list[tuple[int, int]] = []
    first = sign_in_place(
        root,
        About(name="c", with_samples=True, licenses=["MIT"], sources=["s"]),
        key=KEY,
        now=NOW,
        params=SMALL,
        progress=lambda done, total: told.append((done, total)),
    )
    assert (first.digest, on_disk(root)) == FIRST
    size = (root / "train" / "a.jsonl").stat().st_size
    assert told[-1] == (size + (root / "test" / "b.jsonl").stat().st_size,) * 2
    with (root / "train" / "a.jsonl").open("a") as file:
        file.write('{"text": "more"}\n' * 200)
    (root / "train" / "c.jsonl").write_text('{"text": "c"}\n')
    second = sign_in_place(
        root,
        About(name="c", removed=[Removed(file="test/b.jsonl", offset=0, length=14, reason="r")]),
        key=KEY,
        now=NOW + timedelta(minutes=1),
        previous=Opened(
            kind=Kind.DATASET,
            predicate=first.predicate,
            digest=first.digest,
            key_ids=frozenset({KEY.key_id}),
        ),
    )
    assert (second.digest, on_disk(root)) == SECOND
