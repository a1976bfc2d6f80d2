# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint leads back to its parents and its dataset by signatures, or the chain is broken."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.dataset.write import sign_documents
from securetrain.artifacts.lineage.walk import Link, problems, walk_back
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetRef,
    IndexFile,
    NodeRef,
    Parent,
    PolicyRef,
    TreeInfo,
    digest_of,
    open_statement,
    sign,
)
from securetrain.artifacts.tree.layout import INDEX, STATEMENT, Kind
from securetrain.core.hashtree import TreeParams
from securetrain.core.vocabulary import NodeTier


@pytest.fixture
def make(tmp_path: Path, keys: Any, now: Any) -> Callable[..., str]:
    """Write a checkpoint's statement; its digest."""

    def write(name: str, *parents: str, dataset: str = "", key: Any = None) -> str:
        folder = tmp_path / "run" / "checkpoints" / name
        folder.mkdir(parents=True)
        predicate = CheckpointPredicate(
            run_id="r1",
            step=1,
            seq=0,
            save_id=f"{len(list(folder.parent.iterdir())):032x}",
            created=now,
            world_size=1,
            tree=TreeInfo.of(TreeParams()),
            files=[],
            # The digest is over the files, so each checkpoint needs another index.
            index=IndexFile(name=INDEX, size=1, sha256=name.encode().hex().ljust(64, "0")),
            parents=[Parent(digest=digest) for digest in parents],
            dataset=DatasetRef(name="corpus", digest=dataset),
            policy=PolicyRef(id="baseline", digest="b" * 64),
            nodes=[NodeRef(node="n1", tier=NodeTier.TPM)],
        )
        (folder / STATEMENT).write_bytes(sign(predicate, name, key or keys.checkpoint))
        return digest_of(predicate)

    return write


@pytest.fixture
def corpus(tmp_path: Path, keys: Any, now: Any) -> str:
    documents = [("train", "a", b"text")]
    out = tmp_path / "run" / "dataset"
    (tmp_path / "run").mkdir()
    return sign_documents(documents, out, name="corpus", key=keys.dataset, now=now).digest


def follow(root: Path, name: str, trust: Any, *places: Path) -> Link:
    path = root / "run" / "checkpoints" / name
    opened = open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust)
    return walk_back(path, opened, trust, places or [root / "run"])


def broken(link: Link) -> list[str]:
    return [problem.what for problem in problems(link)]


def test_the_whole_chain_is_found(corpus: str, make: Any, tmp_path: Path, trust: Any) -> None:
    first = make("step-1", dataset=corpus)
    second = make("step-2", first, dataset=corpus)
    make("step-3", second, first, dataset=corpus)
    chain = follow(tmp_path, "step-3", trust)
    assert broken(chain) == []
    assert [link.role for link in chain.links] == [
        "parent previous",
        "parent previous",
        "dataset",
    ]
    assert chain.links[0].links[0].digest == first
    assert "node n1: tpm" in chain.facts
    assert any("policy baseline" in fact for fact in chain.facts)
    assert chain.links[2].facts[0] == "corpus, version 0"
    plain = chain.to_dict()
    assert isinstance(plain["links"], list)


@pytest.mark.forgery
def test_a_missing_link_breaks_it(corpus: str, make: Any, tmp_path: Path, trust: Any) -> None:
    make("step-2", "f" * 64, dataset="e" * 64)
    found = broken(follow(tmp_path, "step-2", trust))
    assert len(found) == 2
    assert all("not found" in what for what in found)
    assert corpus


@pytest.mark.forgery
def test_a_link_signed_by_a_stranger_breaks_it(corpus, make, tmp_path, trust, keys):
    first = make("step-1", dataset=corpus, key=keys.stranger)
    make("step-2", first, dataset=corpus)
    (what,) = broken(follow(tmp_path, "step-2", trust))
    assert "ST-CKPT-120" in what


@pytest.mark.forgery
def test_a_directory_that_claims_to_be_the_link_is_not_believed(corpus, make, tmp_path, trust):
    first = make("step-1", dataset=corpus)
    make("step-2", first, dataset=corpus)
    path = tmp_path / "run" / "checkpoints" / "step-1" / STATEMENT
    path.write_bytes(path.read_bytes().replace(b'"sig":"', b'"sig":"AA'))
    (what,) = broken(follow(tmp_path, "step-2", trust))
    assert "ST-CKPT-1" in what
    path.write_bytes(b"{}")
    (what,) = broken(follow(tmp_path, "step-2", trust))
    assert "not found" in what


@pytest.mark.forgery
def test_a_circle_breaks_it(make: Any, tmp_path: Path, trust: Any, keys: Any) -> None:
    first = make("step-1")
    path = tmp_path / "run" / "checkpoints" / "step-1" / STATEMENT
    predicate = open_statement(path.read_bytes(), Kind.CHECKPOINT, trust).predicate
    assert isinstance(predicate, CheckpointPredicate)
    # The digest is over the files only, so that a statement can name itself.
    itself = msgspec.structs.replace(predicate, parents=[Parent(digest=first)])
    path.write_bytes(sign(itself, "step-1", keys.checkpoint))
    (what,) = broken(follow(tmp_path, "step-1", trust))
    assert "back to itself" in what


def test_links_are_not_followed_on_the_disk(corpus, make, tmp_path, trust):
    make("step-1", dataset=corpus)
    outside = tmp_path / "run" / "dataset"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(outside)
    (what,) = broken(follow(tmp_path, "step-1", trust, tmp_path / "elsewhere"))
    assert "not found" in what
