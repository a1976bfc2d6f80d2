# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A chain is as long as a run: walking, showing and judging one does not recurse."""

import json
from datetime import timedelta

from securetrain.artifacts.lineage.walk import MAX_NESTED, problems, walk_back
from securetrain.artifacts.statement.statements import (
    DatasetRef,
    Parent,
    digest_of,
    open_statement,
)
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.core import canonical
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from tests.vocabulary import trust_document

LENGTH = 600


def opened(path, trust):
    return open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust)


def test_hundreds_of_ancestors_are_walked(forge, trust, now, tmp_path):
    parents: list[Parent] = []
    folder = tmp_path / "run"
    folder.mkdir()
    for step in range(LENGTH):
        data = step.to_bytes(4, "big") * 600
        made = forge(folder / f"step-{step:08d}", data, step=step, seq=step, parents=parents)
        parents = [Parent(digest=digest_of(made))]
    last = folder / f"step-{LENGTH - 1:08d}"
    chain = walk_back(last, opened(last, trust), trust, [folder])
    steps = [link.opened.checkpoint.step for link in chain.every() if link.opened is not None]
    assert steps == list(reversed(range(LENGTH)))
    # The datasets lie nowhere here: each is said once for each checkpoint that names it.
    assert len(problems(chain)) == LENGTH
    shown = json.loads(canonical.dumps(chain.to_dict()))
    assert len(shown["deeper"]) == 2 * LENGTH - 1 - 2 * MAX_NESTED
    # One that is gone in the middle is said, and so is nothing that lay behind it.
    (folder / f"step-{LENGTH // 2:08d}" / STATEMENT).unlink()
    cut = walk_back(last, opened(last, trust), trust, [folder])
    assert [one.problem for one in cut.every() if "parent" in one.role][-1].startswith("not found")


def test_a_circle_is_found_wherever_it_closes(forge, trust, tmp_path):
    """A digest covers the bytes alone, so a signer can name a descendant as a parent."""
    first = forge(tmp_path / "a", dataset=DatasetRef(name="d"))
    again = [Parent(digest=digest_of(first))]
    second = forge(
        tmp_path / "b", b"other bytes" * 200, parents=again, dataset=DatasetRef(name="d")
    )
    (tmp_path / "c").mkdir()
    (tmp_path / "a").rename(tmp_path / "c" / "old")
    forge(tmp_path / "a", parents=[Parent(digest=digest_of(second))], dataset=DatasetRef(name="d"))
    place = tmp_path / "a"
    chain = walk_back(place, opened(place, trust), trust, [tmp_path / "a", tmp_path / "b"])
    assert [one.problem for one in chain.every() if one.problem] == ["it leads back to itself"]


def test_a_dataset_of_another_maker_is_opened_by_its_own_root(forge, trust, now, tmp_path):
    from securetrain.artifacts.dataset.verified import sign_documents

    maker = PrivateKey.generate()
    sign_documents(
        [("train", "one", b"text of somebody else" * 9)],
        tmp_path / "data",
        name="theirs",
        key=maker,
        now=now - timedelta(days=1),
    )
    roles = {TrustRole.ROOT: [maker.public], TrustRole.DATASET: [maker.public]}
    made = trust_document(roles, now - timedelta(days=2), now + timedelta(days=9))
    theirs = TrustRoot.parse(sign_document(made, [maker]), now)
    data = (tmp_path / "data" / STATEMENT).read_bytes()
    digest = open_statement(data, Kind.DATASET, theirs).digest
    forge(tmp_path / "c", dataset=DatasetRef(name="theirs", digest=digest))
    place, near = tmp_path / "c", [tmp_path]
    (problem,) = problems(walk_back(place, opened(place, trust), trust, near))
    assert "ST-DATA-120" in problem.what
    assert problems(walk_back(place, opened(place, trust), trust, near, theirs)) == []
