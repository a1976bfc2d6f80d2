# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page of ``verify``: nothing that a statement claims stands there without its state. No torch.

A statement is drawn that has a marker in every field that a page could repeat. Wherever a marker
comes out, it must be in a row, or in an object of the JSON, that says whose word it is.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from securetrain.artifacts import Kind
from securetrain.artifacts.statement.saved_files import (
    Form,
    SavedFile,
    SavedFiles,
    sidecar,
    sign_saved,
)
from securetrain.artifacts.statement.statements import (
    DatasetRef,
    GradientRecord,
    GradientVerdict,
    NodeRef,
    Parent,
    PolicyRef,
)
from securetrain.chain import Options, Verdict, verify
from securetrain.chain.verdict import LineState
from securetrain.core.vocabulary import NodeTier
from securetrain.policy.load import load_policy
from securetrain.report import html, verification, written
from securetrain.report.document import Document, facts
from tests import s3_store
from tests.chain.worlds import LATER, NOW, Whole, policy

STATES = set(map(str, LineState))
MARKERS = {
    "name": "marker-name",
    "step": 7654321,
    "seq": 8765432,
    "dataset": DatasetRef(name="marker-data", digest="da" * 32, cursor={"step": 6543219}),
    "policy": PolicyRef(id="marker-policy", digest="9e" * 32),
    "code": {"marker-code": "marker-commit"},
    "env": {"marker-env": "marker-torch"},
    "gradients": GradientRecord(verdict=GradientVerdict.CLEAN, judged=5432198, clean_steps=4321987),
    "parents": [Parent(digest="7c" * 32)],
}
WORDS = (
    *("marker-", "7654321", "8765432", "6543219", "5432198", "4321987"),
    *("dadada", "9e9e9e", "7c7c7c"),
)


@pytest.fixture
def whole(tmp_path: Path) -> Whole:
    made = Whole(tmp_path / "run")
    made.save_whole()
    return made


def lying(whole: Whole) -> Path:
    """A checkpoint with a marker in every field, and one of the evidence's nodes."""
    nodes = [NodeRef(node="marker-node", tier=NodeTier.TEE_GPU, label="marker-label", ranks=[0, 1])]
    path = whole.save_whole(nodes=nodes, **MARKERS)
    whole.keep()
    return path


def directory(whole: Whole) -> Verdict:
    return verify(lying(whole), trust=whole.trust(), now=LATER)


def walked(whole: Whole) -> Verdict:
    """With what it was made from as a tree, and links that somebody requires."""
    asked = policy("nodes", "parents", "dataset")
    options = Options(walk=True)
    return verify(lying(whole), trust=whole.trust(), policy=asked, now=LATER, options=options)


def packed(whole: Whole) -> Verdict:
    lying(whole)
    return verify(whole.pack(), trust=whole.trust(), now=LATER)


def stored(whole: Whole) -> Verdict:
    path = lying(whole)
    with s3_store.lent() as store:
        for file in (file for file in whole.root.rglob("*") if file.is_file()):
            store.direct("PUT", f"run/{file.relative_to(whole.root)}", file.read_bytes())
        url = f"gs://bucket/run/checkpoints/{path.name}"
        return verify(url, trust=whole.trust(), now=LATER)


def saved(whole: Whole) -> Verdict:
    folder = whole.root / "marker-out"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"weights")
    file = SavedFile(name="model.pt", size=7, sha256=hashlib.sha256(b"weights").hexdigest())
    said = SavedFiles(
        run_id="marker-run",
        name="marker-name",
        policy=PolicyRef(id="marker-policy", digest="9e" * 32),
        rank=0,
        world_size=1,
        number=8765432,
        step=7654321,
        created=NOW,
        way="torch.save",
        form=Form.FILE,
        place=folder.name,
        files=[file],
    )
    sidecar(folder / "model.pt", Form.FILE).write_bytes(sign_saved(said, whole.key))
    return verify(folder / "model.pt", trust=whole.trust(), now=LATER)


def bare_rows(page: Document) -> Iterator[str]:
    """Rows, titles and leads with a marker and without a state."""
    place = page.about.rpartition(" ")[2]
    for section in page.sections:
        texts = [section.title, section.lead]
        texts += [
            f"{one.name} {one.text} {one.about}"
            for one in section.rows
            if not one.state and one.name != "answer"
        ]
        for text in texts:
            left = text.replace(place, "")
            if any(word in left for word in WORDS) and not any(f"({s})" in text for s in STATES):
                yield text


def bare_values(value: Any, *, stated: bool = False) -> Iterator[str]:
    """Values of the JSON with a marker, in no object that says a state or a refusal."""
    if isinstance(value, dict):
        stated = stated or "state" in value or "code" in value
        for key, one in value.items():
            if key not in {"path", "answer"}:
                yield from bare_values(key, stated=stated)
                yield from bare_values(one, stated=stated)
    elif isinstance(value, list):
        for one in value:
            yield from bare_values(one, stated=stated)
    elif not stated and any(word in str(value) for word in WORDS):
        yield str(value)


@pytest.mark.forgery
@pytest.mark.parametrize("form", [directory, walked, packed, stored, saved])
def test_no_claim_is_printed_without_its_state(whole: Whole, form: Callable[[Whole], Verdict]):
    page = verification.verified(form(whole))
    rows = " ".join(one.text for section in page.sections for one in section.rows)
    assert "marker-" in rows, "the control: claims are printed"
    assert list(bare_rows(page)) == []
    assert list(bare_values(json.loads(written(page, "json")))) == []
    # A page shows no more than its sections.
    told = f"{rows} {page.about} {' '.join(one.title + one.lead for one in page.sections)}"
    told += " ".join(f"{one.name} {one.about}" for part in page.sections for one in part.rows)
    markup = html.render(page)
    assert {word for word in WORDS if word in markup} <= {word for word in WORDS if word in told}


def test_a_claim_without_a_state_is_found() -> None:
    """The control of the one above."""
    page = Document(about="directory x", sections=[facts([("name", "marker-name")])])
    assert list(bare_rows(page)) == ["name marker-name "]
    assert list(bare_values({"links": {"state": "broken"}, "run": ["marker-run"]})) == [
        "marker-run"
    ]


def test_a_dataset_has_states_too(whole: Whole) -> None:
    found = verify(whole.root / "data", trust=whole.trust(), now=LATER)
    assert found.ok
    assert found.kind is Kind.DATASET
    lines = {one.name: one for one in found.lines()}
    assert lines["dataset"].state is LineState.WORD
    assert lines["checked"].state is LineState.VERIFIED
    assert list(found.not_asked) == ["name", "digest", "signer"]


def test_a_refusal_by_policy_says_nothing_of_bytes(whole: Whole) -> None:
    newest = max((whole.root / "checkpoints").iterdir())

    def states() -> list[str]:
        found = verify(newest, trust=whole.trust(), policy=load_policy("hardened"), now=LATER)
        assert not found.ok
        lines = {one.name: one.state for one in found.lines()}
        return [lines["digest"], lines["checked"]]

    assert states() == [LineState.VERIFIED, LineState.VERIFIED]
    (newest / "extra").write_bytes(b"")
    assert states() == [LineState.WORD, LineState.BROKEN]


def test_the_page_of_a_checkpoint_and_the_formats_of_ci_servers(whole: Whole) -> None:
    newest = max((whole.root / "checkpoints").iterdir())
    whole.keep()
    found = verify(newest, trust=whole.trust(), policy=load_policy("dev"), now=LATER)
    text = written(verification.verified(found), "text")
    for words in ("key ", "run job-1, step 10", "prose (", "made under", "another than the one"):
        assert words in " ".join(text.split()), words
    (newest / "[bold red]x[").write_bytes(b"")
    (newest / "\x1b[2Jgone").write_bytes(b"")
    page = verification.verified(verify(newest, trust=whole.trust(), now=LATER))
    text = written(page, "text")
    assert "[bold red]x[" in text
    assert "\\x1b[2Jgone" in text
    assert "\x1b" not in text
    for form in ("sarif", "junit"):
        assert "ST-CKPT-141" in written(page, form)
    shutil.rmtree(newest)
