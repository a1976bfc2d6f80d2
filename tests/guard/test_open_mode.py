# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A liar in a sharded model that cannot be reduced again after the step (open_steps.py)."""

import hashlib
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import torch

from securetrain.artifacts.statement.rules import check_words
from securetrain.core.errors import GuardError, UsageError
from securetrain.guard.dispute import OpenTable
from securetrain.guard.exclusion import Ground
from securetrain.guard.kept import Kept
from securetrain.guard.open_mode import STEPS, OpenMode
from securetrain.guard.response import Findings
from securetrain.guard.settlement import Settlement
from securetrain.identity import JobCA
from securetrain.identity.trust import TrustRoot
from securetrain.launch.setup import make_identity, prepare_run
from securetrain.testing.processes import run_ranks
from tests import vocabulary
from tests.guard import open_steps
from tests.guard.open_steps import FAULTS, LIAR, LIES, START

SAMPLE = ("sends other than it says", "denies", "accuses")


def assert_survived(found: dict[str, Any], clean: dict[str, Any]) -> None:
    lost = [v["step"] for v in found["verdicts"] if v["response"] == "skip-step"]
    assert len(lost) <= 2
    assert all(v["response"] != "halt" for v in found["verdicts"])
    assert found["finite"]
    assert found["held_out"] < 1.1 * clean["held_out"]
    for verdict in found["verdicts"]:
        assert set(verdict["outliers"]) | set(verdict["excluded"]) <= {LIAR}
        assert all(LIAR in pair for pair in verdict["disputes"])
        for honest in (0, 1, 3):
            assert f"rank {honest}" not in verdict["reason"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run, with a key for the ranks of its node."""
    folder, now = tmp_path_factory.mktemp("run"), datetime.now(UTC)
    setup = prepare_run(folder, "dev", now)
    ca = JobCA.create(setup.policy.policy.identity.trust_domain, setup.job, now)
    make_identity(setup, ca, now).store(folder / "key.pem", folder / "key.cert")
    return setup


@pytest.fixture(scope="module")
def seen(run):
    said = (SAMPLE, str(run.run.root), run.job)
    return run_ranks(open_steps.campaign, 4, "fsdp", "large", *said, timeout=280)


@pytest.mark.dist
@pytest.mark.slow
def test_a_liar_in_a_large_sharded_model_costs_one_step(seen):
    for found in seen:
        assert not any(found["clean"]["opened"])
        for name in SAMPLE:
            assert_survived(found[name], found["clean"])
            assert found[name]["opened"] == [step > START for step in range(open_steps.STEPS)]
        refused = found["sends other than it says"]["verdicts"][START]
        assert refused["codes"] == ["ST-GRAD-003"]
        assert not refused["outliers"], "the step in which nobody could be found out"


@pytest.mark.dist
@pytest.mark.slow
def test_who_denies_what_it_sent_is_named_and_who_accuses_one_is_set_apart(seen):
    for found in seen:
        denied = found["denies"]["verdicts"][-1]
        assert denied["excluded"] == [LIAR]
        accused = [v for v in found["accuses"]["verdicts"][START + 1 :] if v["codes"]]
        assert accused
        for verdict in accused:
            assert verdict["settled"]
            assert verdict["disputes"] == [[0, LIAR]]
            assert verdict["excluded"] == []


@pytest.mark.dist
@pytest.mark.slow
def test_evidence_is_collected_in_the_open_and_all_ranks_decide_alike(seen):
    for other in seen[1:]:
        for name in SAMPLE:
            assert other[name]["verdicts"] == seen[0][name]["verdicts"]
    assert all(value is not None for value in seen[0]["accuses"]["evidence"])


@pytest.mark.dist
@pytest.mark.slow
def test_ranks_that_were_told_different_tables_reduce_alike():
    seen = run_ranks(open_steps.two_tables, 4, timeout=100)
    first = [found["read"][START] for found in seen]
    assert first == [False, False, True, False], "one rank has read something else"
    for found in seen:
        assert not any(found["opened"]), "one reading opens nothing"
        assert all(v["ok"] for v in found["verdicts"]), "and refuses nothing"
        assert found["verdicts"][START]["disputes"] == [[0, 2]]
        assert found["finite"]


@pytest.mark.dist
@pytest.mark.slow
def test_the_words_of_a_dispute_are_signed_and_can_be_verified_afterwards(seen, run, tmp_path):
    assert not seen[0]["clean"]["words"]
    trust = TrustRoot.load(run.run.trust, datetime.now(UTC))
    for name in ("denies", "accuses"):
        for other in seen[1:]:
            assert other[name]["words"] == seen[0][name]["words"], "all hold the same"
        step, data = seen[0][name]["words"][-1]
        assert step > START
        path = tmp_path / f"{hashlib.sha256(data).hexdigest()}.json"
        path.write_bytes(data)
        checked = check_words(path, trust)
        assert checked.is_signed
        assert not checked.uncertified
        assert checked.transcript.ranks == [0, 1, 2, 3]
        assert not checked.ruling.named
        # Another name, another run, another trust root.
        with pytest.raises(UsageError, match="not its name"):
            check_words(path.rename(tmp_path / "other.json"), trust)
        other = tmp_path / f"{name}-run"
        stranger = prepare_run(other, "dev", datetime.now(UTC))
        foreign = TrustRoot.load(stranger.run.trust, datetime.now(UTC))
        path.write_bytes(data)
        unknown = check_words(path, foreign)
        assert unknown.ruling.unsigned == (0, 1, 2, 3)
        assert list(unknown.uncertified) == [0, 1, 2, 3]


@pytest.mark.many
@pytest.mark.dist
@pytest.mark.slow
def test_a_liar_in_a_large_model_of_fsdp1_costs_one_step():
    name = "sends other than it says"
    for found in run_ranks(open_steps.campaign, 4, "fsdp1", "large", (name,), timeout=280):
        assert_survived(found[name], found["clean"])
        assert found[name]["opened"] == [step > START for step in range(open_steps.STEPS)]
        assert [v["step"] for v in found[name]["verdicts"] if v["response"] == "skip-step"] == [
            START
        ]


@pytest.mark.many
@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("budget", ["large", "small"])
@pytest.mark.parametrize("kind", ["fsdp", "hsdp", "fsdp1"])
def test_no_liar_stalls_a_sharded_model_with_or_without_copies(kind, budget):
    names = (*LIES, *FAULTS)
    for found in run_ranks(open_steps.campaign, 4, kind, budget, names, timeout=580):
        for name in names:
            assert_survived(found[name], found["clean"])


# -- the mode itself -------------------------------------------------------------------------------


class Scripted:
    """Settles as it is told, or raises."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.calls: list[tuple[Any, ...]] = []

    def settle(self, kept, offences, held, assess, before):
        self.calls.append((kept[0].chunk, list(offences), set(before)))
        result = self.results.pop(0)
        if isinstance(result, GuardError):
            raise result
        return result


def table(ranks: int = 4, k: int = 4) -> OpenTable:
    sent = np.arange(ranks * ranks * k, dtype=np.float64).reshape(ranks, ranks, k)
    return OpenTable(
        owners=tuple(range(ranks)),
        sent=sent,
        heard=sent.transpose(1, 0, 2),
        got=sent,
        included=np.ones((ranks, ranks), dtype=np.bool_),
        shared=False,
        roundoff=2.0**-24,
        own=np.ones((ranks, k)),
        moments=np.ones((ranks, k)),
    )


def settled(**options: Any) -> Settlement:
    values: dict[str, Any] = {
        "means": (torch.ones(2),), "offences": [], "disputes": (), "texts": (), "undecided": False,
        "out": (), "table": table(), "sent_bytes": 1,
    }  # fmt: skip
    return Settlement(**{**values, **options})


def mode(*results: Any) -> tuple[OpenMode, Scripted]:
    scripted = Scripted(*results)
    return OpenMode(lambda: scripted), scripted  # type: ignore[arg-type,return-value]


def length_of(one: OpenMode) -> int:
    steps = 0
    while one.active:
        assert one.end() is None
        steps += 1
    return steps


def kept(chunk: str = "0-1-a", parts: int = 4) -> Kept:
    return Kept(chunk=chunk, local=torch.ones(8), parts=parts, replace=None)


def test_it_lasts_twice_as_long_each_time():
    one, _ = mode()
    lasted = [length_of(one)]
    for _ in range(3):
        one.start()
        lasted.append(length_of(one))
    assert lasted == [0, STEPS, 2 * STEPS, 4 * STEPS]


def test_what_one_module_finds_out_holds_for_the_next():
    found = [(2, Ground.PROOF)]
    one, scripted = mode(settled(offences=found, apart=((1, 0),), out=(2,)), settled())
    one.start()
    result = torch.zeros(2)
    one.fill(result, kept("0-1-a"), "a", scale=0.5, part=None)
    assert result.tolist() == [2.0, 2.0]
    one.fill(result, kept("0-2-b"), "b", scale=1.0, part=None)
    assert scripted.calls[1] == ("0-2-b", found, {(1, 0)})


def test_a_module_without_a_result_is_zero_and_the_step_is_refused():
    one, _ = mode(settled(means=None))
    one.start()
    result = torch.ones(2)
    one.fill(result, kept(), "a", scale=1.0, part=None)
    assert result.tolist() == [0.0, 0.0]
    step = one.end()
    assert step is not None
    findings = Findings()
    step.add_to(findings, range(4))
    assert findings.refused
    assert findings.codes == ["ST-GRAD-003"]
    assert not findings.outliers


def test_silence_in_a_backward_pass_is_raised_by_the_judge():
    one, scripted = mode(GuardError("ST-GRAD-010", "rank 3 did not speak", "x"))
    one.start()
    result = torch.ones(2)
    for chunk in ("0-1-a", "0-2-b"):
        one.fill(result, kept(chunk), "a", scale=1.0, part=None)
    assert len(scripted.calls) == 1, "no collective after a silence"
    vocabulary.refused(GuardError, "ST-GRAD-010", one.end)


def test_a_guilty_rank_is_named_once_and_the_step_is_used():
    guilty = settled(offences=[(1, Ground.PROOF)], out=(1,), texts=((1, "contradicts itself"),))
    one, _ = mode(guilty, guilty)
    for excluded in (set(), {11}):
        one.start()
        one.reduce(kept(), "a")
        step = one.end()
        assert step is not None
        findings = Findings(excluded=set(excluded))
        step.add_to(findings, range(10, 14))
        assert not findings.refused
        assert findings.offences == [(1, Ground.PROOF)]
        assert findings.outliers == ({11} if not excluded else set())
        assert findings.codes == (["ST-GRAD-003"] if not excluded else [])
        assert findings.excluded == {11}


def test_the_rows_of_a_group_are_those_of_its_modules_and_of_nothing_else():
    one, _ = mode(settled(), settled(), settled())
    one.start()
    for group in ("a", "b", "a"):
        one.reduce(kept(), group)
    step = one.end()
    assert step is not None
    rows, odd = step.rows((0, 1, 2, 3))
    assert rows is not None
    assert rows.groups == ("a", "b")
    assert odd == ()
    whole = table().sent.sum(axis=1)
    assert np.allclose(rows.gradients[0], 2 * whole)
    assert np.allclose(rows.gradients[1], whole)
    assert rows.momentum is not None
