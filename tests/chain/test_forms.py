# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The same question about a directory and about its pack has the same answer."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from securetrain.artifacts import Wanted, verify_path
from securetrain.chain.verifying import Evidence, Question, answer
from securetrain.core import ExitCode
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.report import packs
from tests.chain.test_packs import LIES
from tests.chain.worlds import LATER, SHOWN, Run, Whole, policy


@pytest.mark.forgery
@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_alike_in_a_directory_and_in_its_pack(run: Run, name: str) -> None:
    """Every link that is said to be broken, with or without a policy, and every missing one that
    the policy requires; without one, what leads to the checkpoint is looked for beside it.
    """
    run.save(LIES[name][1](run))
    path = run.pack()
    for asked in (None, policy(*SHOWN, depth="checkpoint"), policy(*SHOWN)):
        packed = run.verify(path, policy=asked)
        found = [one.code for one in run.beside(asked, walked=asked is not None).problems]
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


def asked(whole: Whole, path: Path, **more: Any) -> Any:
    whole.keep()
    return answer(path, Question(trust=whole.root.parent / "trust.json", **more), LATER)


def claiming(whole: Whole) -> Path:
    """Signed by the checkpoint's own key: nodes better than the evidence beside it shows."""
    nodes = [msgspec.structs.replace(one, tier=NodeTier.TEE_GPU) for one in whole.said().nodes]
    return whole.save_whole(nodes=nodes)


@pytest.mark.forgery
def test_a_claim_that_evidence_contradicts_refuses_without_a_policy(whole, monkeypatch) -> None:
    honest = asked(whole, max((whole.root / "checkpoints").iterdir()))
    assert honest.result.ok, honest.result.problems
    path = claiming(whole)
    assert verify_path(path, trust=whole.trust(), policy=None, now=LATER).ok, "its bytes hold"
    found = asked(whole, path)
    assert found.result.exit_code is ExitCode.LINEAGE
    assert {one.code for one in found.result.problems} == {"ST-CHAN-010"}
    assert asked(whole, whole.pack()).exit_code is ExitCode.LINEAGE
    monkeypatch.setattr(Evidence, "problems", lambda *_: [])
    assert asked(whole, path).result.ok, "the control"


def test_the_answer_says_of_each_claim_whose_word_it_is(whole: Whole) -> None:
    newest = max((whole.root / "checkpoints").iterdir())
    trust_file = whole.root.parent / "trust.json"
    document = packs.answer(asked(whole, newest), None, trust_file)
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
    document = packs.answer(asked(whole, alone), None, trust_file)
    assert document.code == ExitCode.OK
    text = {row.name: row.text for section in document.sections for row in section.rows}
    for name in ("node", "dataset", "made under", "gradients"):
        assert text[name].endswith("(the signer's word)"), text[name]


def test_floors_are_not_raised_by_a_checkpoint_whose_evidence_is_broken(whole: Whole) -> None:
    remembering = Wanted(floors=whole.root.parent / "floors.json")
    old = max((whole.root / "checkpoints").iterdir())
    assert not asked(whole, claiming(whole), wanted=remembering).result.ok
    assert asked(whole, old, wanted=remembering).result.ok
