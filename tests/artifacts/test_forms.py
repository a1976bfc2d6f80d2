# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The same question about a directory and about its pack has the same answer."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from securetrain.artifacts import Expectation, verify_path
from securetrain.artifacts.statement import DatasetRef
from securetrain.chain import kept, verifying
from securetrain.chain.judging import Judgement
from securetrain.chain.links import verified
from securetrain.chain.verdict import Verdict
from securetrain.chain.verifying import Known, Options
from securetrain.core import ExitCode
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.report import verification
from tests.chain.test_packs import LIES
from tests.chain.worlds import LATER, SHOWN, Run, Whole, policy


@pytest.mark.forgery
@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_alike_in_a_directory_and_in_its_pack(tmp_path: Path, name: str) -> None:
    """Every link that is said to be broken, with or without a policy, and every missing one that
    the policy requires; without one, what leads to the checkpoint is looked for beside it.
    """
    run = Run(tmp_path / "run").saved(3)
    run.save(LIES[name][1](run))
    path = run.pack()
    for asked in (None, policy(*SHOWN, depth="checkpoint"), policy(*SHOWN)):
        packed = run.verify(path, policy=asked)
        found = [one.code for one in run.beside(asked).problems]
        told = [one.code for one in packed.problems]
        assert sorted(found) == sorted(one for one in told if one.startswith("ST-CHAN"))
        if asked is None:
            states = {one.state for one in packed.judged[0].verdicts.values()}
            assert bool(found) is (LinkState.BROKEN in states)


@pytest.fixture
def whole(tmp_path: Path) -> Whole:
    made = Whole(tmp_path / "run")
    (tmp_path / "trust.json").write_bytes(made.trust_bytes())
    for _ in range(2):
        made.save_whole()
    return made


def asked(
    whole: Whole, path: Path | str, expect: Expectation | None = None, **more: Any
) -> Verdict:
    whole.keep()
    options, trust = Options(**more), whole.root.parent / "trust.json"
    return verifying.verify(path, expect, trust=trust, now=LATER, options=options)


def claiming(whole: Whole) -> Path:
    """Signed by the checkpoint's own key: nodes better than the evidence beside it shows."""
    nodes = [msgspec.structs.replace(one, tier=NodeTier.TEE_GPU) for one in whole.said().nodes]
    return whole.save_whole(nodes=nodes)


@pytest.mark.forgery
def test_a_claim_that_evidence_contradicts_refuses_without_a_policy(whole, monkeypatch) -> None:
    honest = asked(whole, max((whole.root / "checkpoints").iterdir()))
    assert honest.ok, honest.problems
    path = claiming(whole)
    assert verify_path(path, trust=whole.trust(), policy=None, now=LATER).ok, "its bytes hold"
    found = asked(whole, path)
    assert found.exit_code is ExitCode.LINEAGE
    assert {one.code for one in found.problems} == {"ST-CHAN-010"}
    assert asked(whole, whole.pack()).exit_code is ExitCode.LINEAGE
    monkeypatch.setattr(verifying, "judge_chain", lambda *_: Judgement())
    assert asked(whole, path).ok, "the control"


def test_the_answer_says_of_each_claim_whose_word_it_is(whole: Whole) -> None:
    newest = max((whole.root / "checkpoints").iterdir())
    document = verification.verified(asked(whole, newest))
    states = {name: one["state"] for name, one in document.data["links"].items()}
    assert states.keys() == set(map(str, ChainLink))
    assert states["nodes"] == states["dataset"] == states["parents"] == "verified"
    assert states["code"] == "missing"
    assert states["replay"] == "not asked"
    text = {row.name: row.text for section in document.sections for row in section.rows}
    assert text["node"].endswith("(verified)")
    assert text["dataset"].endswith("(verified)")
    # Outside of its run, nothing shows what the statement says.
    alone = whole.root.parent / "elsewhere" / "deeper" / newest.name
    alone.parent.mkdir(parents=True)
    newest.rename(alone)
    document = verification.verified(asked(whole, alone))
    assert document.code == ExitCode.OK
    text = {row.name: row.text for section in document.sections for row in section.rows}
    for name in ("node", "dataset", "made under", "gradients"):
        assert text[name].endswith("(the signer's word)"), text[name]


def test_floors_are_not_raised_by_a_checkpoint_whose_evidence_is_broken(whole: Whole) -> None:
    floors = whole.root.parent / "floors.json"
    old = max((whole.root / "checkpoints").iterdir())
    assert not asked(whole, claiming(whole), known=Known(floors=floors)).ok
    assert asked(whole, old, known=Known(floors=floors)).ok


QUESTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "the step": ({"step": 20}, ""),
    "an older step": ({"step": 10}, "ST-CKPT-127"),
    "a later step": ({"step": 30}, "ST-CKPT-127"),
    "the dataset's name": ({"dataset": "prose"}, ""),
    "another name": ({"dataset": "verse"}, "ST-CKPT-173"),
    "another dataset": ({"dataset": "ab" * 32}, "ST-CKPT-173"),
    "the policy": ({"policy": "baseline"}, ""),
    "another policy": ({"policy": "hardened"}, "ST-CKPT-174"),
    "a policy of another digest": ({"policy": "ab" * 32}, "ST-CKPT-174"),
    "the run": ({"run": "job-1"}, ""),
    "another run": ({"run": "job-2"}, "ST-CKPT-125"),
    "another signer": ({"signer": "ab" * 32}, "ST-CKPT-128"),
}


@pytest.mark.forgery
def test_the_question_has_one_answer_in_every_form(whole: Whole, subtests: pytest.Subtests) -> None:
    """Where a name is expected of its dataset, the dataset's own statement must show it."""
    newest = max((whole.root / "checkpoints").iterdir())
    path = whole.pack()
    for name, (fields, code) in QUESTIONS.items():
        with subtests.test(name):
            expect = Expectation(**fields)
            found = asked(whole, newest, expect)
            packed = asked(whole, path, expect)
            told = {one.code for one in found.problems}
            assert {code} - {""} == told == {one.code for one in packed.problems}
            assert not code or packed.exit_code is found.exit_code
    document = verification.verified(asked(whole, newest))
    answer = document.data["answer"]
    assert answer.startswith(
        "Step 20 of run job-1, trained on prose by 2 tpm nodes under baseline: verified; not shown"
    )
    assert "environment" in answer.partition("not shown")[2]
    shutil.rmtree(whole.root / "data")
    named = asked(whole, newest, Expectation(dataset="prose"))
    assert {one.code for one in named.problems} == {"ST-CHAN-015"}
    digest = Expectation(dataset=whole.dataset.digest)
    assert asked(whole, newest, digest).ok


@pytest.mark.forgery
def test_a_dataset_has_the_name_that_its_own_signer_gave(whole: Whole, monkeypatch: Any) -> None:
    """With the checkpoint's key: the data is another one than the statement's words say."""
    ref = DatasetRef(name="licensed-prose", digest=whole.dataset.digest)
    path = whole.save_whole(dataset=ref)
    expect = Expectation(dataset="licensed-prose")
    found = asked(whole, path, expect)
    assert {one.code for one in found.problems} == {"ST-CHAN-015"}
    assert found.exit_code is asked(whole, whole.pack(), expect).exit_code
    monkeypatch.setattr(kept, "broken", lambda *_, **__: verified(ChainLink.DATASET, "anything"))
    assert asked(whole, path, expect).ok, "the control"
