# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One file proves a checkpoint: what is in it is judged, and what is not is missing. No torch.

Commands of docs/how-to/prove-a-checkpoint.md are tried here.
"""

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from securetrain.artifacts import Expectation
from securetrain.artifacts.statement.statements import (
    Bound,
    CheckpointPredicate,
    Parent,
    PolicyRef,
    sign,
)
from securetrain.chain import judging, packing
from securetrain.chain.container import Document, write_pack
from securetrain.chain.links import code_of, verified
from securetrain.chain.packing import pack
from securetrain.core import ExitCode, canonical
from securetrain.core.errors import IntegrityError, SecureTrainError
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.identity.keys import PrivateKey
from securetrain.policy.load import load_policy
from tests import vocabulary
from tests.chain.switches import hold
from tests.chain.worlds import (
    LATER,
    MINUTE,
    NOW,
    SHOWN,
    Job,
    Run,
    codes,
    documents_of,
    policy,
    put_together,
    taken_apart,
    why,
)


def test_what_is_there_is_verified_and_what_is_not_is_missing(run: Run) -> None:
    path = run.pack()
    result = run.verify(path, policy=policy(*SHOWN))
    assert result.problems == []
    assert result.exit_code is ExitCode.OK
    assert len(result.pack.ancestors) == 2
    assert len(result.judged) == 3
    states = {str(link): one.state for link, one in result.judged[0].verdicts.items()}
    assert {name for name, one in states.items() if one is LinkState.VERIFIED} == set(SHOWN)
    assert states["rows"] is LinkState.MISSING
    shown = result.judged[0].verdicts[ChainLink.NODES].tiers
    assert set(shown.values()) == {NodeTier.TPM}
    # Without a policy nothing is required, and what is missing stays open.
    found = run.verify(path)
    assert found.ok
    assert found.missing
    # What is missing is no pass where it is required.
    result = run.verify(path, policy=policy("rows"))
    assert codes(result) == {"ST-CHAN-016"}


def test_a_pack_says_the_same_wherever_and_in_whatever_order_it_is_made(run: Run) -> None:
    first, second = run.pack("a.stpack"), run.pack("b.stpack")
    assert first.read_bytes() == second.read_bytes()


def test_what_is_not_at_hand_is_said_and_is_missing(run: Run) -> None:
    run.keep()
    membership = run.made[-1].bound.membership
    (run.root / "evidence" / str(membership)).unlink()
    newest = max((run.root / "checkpoints").iterdir())
    made = pack(newest, run.root / "a.stpack", trust=run.trust())
    assert any("membership" in one for one in made.missing)
    result = run.verify(run.root / "a.stpack", policy=policy(*SHOWN, depth="checkpoint"))
    assert codes(result) == {"ST-CHAN-010", "ST-CHAN-011"}


def test_it_is_judged_at_another_time_by_whoever_says_so(run: Run) -> None:
    path = run.pack()
    vocabulary.refused(SecureTrainError, "ST-IDEN-008", run.trust, NOW + timedelta(days=3650))
    assert run.verify(path, now=LATER, policy=policy(*SHOWN)).ok


def test_another_one_than_was_expected(run: Run) -> None:
    path = run.pack()
    assert run.verify(path, policy=policy(*SHOWN), expect=Expectation(run="job-1")).ok
    result = run.verify(path, policy=policy(*SHOWN), expect=Expectation(run="job-2"))
    assert codes(result) == {"ST-CKPT-125"}
    result = run.verify(path, policy=policy(*SHOWN), expect=Expectation(min_step=40))
    assert not result.ok


# --- lies: each is accepted with the judge of its link away ---------------------------------------

Lie = Callable[[Run], CheckpointPredicate]


def altered(run: Run, **changes: Any) -> CheckpointPredicate:
    return run.said(**changes)


def of_bound(run: Run, **changes: Any) -> CheckpointPredicate:
    honest = run.said()
    return replace(honest, bound=replace(honest.bound, **changes))


def of_nodes(run: Run, **changes: Any) -> CheckpointPredicate:
    honest = run.said()
    first, *others = honest.nodes
    return replace(honest, nodes=[replace(first, **changes), *others])


def of_another_run(run: Run) -> CheckpointPredicate:
    """The membership of a job that another coordinator of the same root has led."""
    other = Job(name="job-9", roles=run.roles, policy=run.policy, lease=timedelta(hours=3))
    membership = other.keeper.bound(1)
    run.job.pieces.pieces.update(other.pieces.pieces)
    return of_bound(run, membership=membership)


def of_a_stranger(run: Run) -> CheckpointPredicate:
    """The same job, of a coordinator for whom nobody vouches."""
    other = Job(policy=run.policy, lease=timedelta(hours=3))
    bound = Bound(membership=other.keeper.bound(1), policy=run.policy, parents=run.statements[-1:])
    run.job.pieces.pieces.update(other.pieces.pieces)
    return run.said(bound=bound, nodes=other.refs())


def expired(run: Run) -> CheckpointPredicate:
    return run.said(created=NOW + timedelta(hours=9))


def other_policy(run: Run) -> CheckpointPredicate:
    other = run.job.pieces.put(canonical.encode(load_policy("dev").policy))
    return run.said(
        policy=PolicyRef(id="baseline", digest=other),
        bound=Bound(membership=run.job.keeper.bound(1), policy=other, parents=run.statements[-1:]),
    )


def made(run: Run, **changes: Any) -> CheckpointPredicate:
    return run.said(**changes)


LIES: dict[str, tuple[ChainLink, Lie]] = {
    "a tier": (ChainLink.NODES, lambda run: of_nodes(run, tier=NodeTier.TEE_GPU)),
    "a result": (ChainLink.NODES, lambda run: of_nodes(run, result="ab" * 32)),
    "a node's name": (ChainLink.NODES, lambda run: of_nodes(run, node="spiffe://x/job/j/node/n")),
    "a node's label": (ChainLink.NODES, lambda run: of_nodes(run, label="tee+gpu")),
    "a node's ranks": (ChainLink.NODES, lambda run: of_nodes(run, ranks=[0, 3])),
    "a node is left out": (ChainLink.NODES, lambda run: made(run, nodes=run.said().nodes[:1])),
    "a node twice": (ChainLink.NODES, lambda run: made(run, nodes=run.said().nodes[:1] * 2)),
    "results that have expired": (ChainLink.NODES, expired),
    "an epoch": (ChainLink.MEMBERSHIP, lambda run: made(run, epoch=2)),
    "no epoch": (ChainLink.MEMBERSHIP, lambda run: made(run, epoch=None)),
    "another run's membership": (ChainLink.MEMBERSHIP, of_another_run),
    "a stranger's membership": (ChainLink.MEMBERSHIP, of_a_stranger),
    "no membership": (ChainLink.MEMBERSHIP, lambda run: of_bound(run, membership=None)),
    "a membership that is not there": (
        ChainLink.MEMBERSHIP,
        lambda run: of_bound(run, membership="cd" * 32),
    ),
    "a policy as membership": (
        ChainLink.MEMBERSHIP,
        lambda run: of_bound(run, membership=run.policy),
    ),
    "a younger membership": (
        ChainLink.MEMBERSHIP,
        lambda run: made(run, created=NOW - timedelta(minutes=5)),
    ),
    "a policy's name": (
        ChainLink.POLICY,
        lambda run: made(run, policy=PolicyRef(id="hardened", digest=run.policy)),
    ),
    "another policy": (ChainLink.POLICY, other_policy),
    "no policy": (ChainLink.POLICY, lambda run: of_bound(run, policy=None)),
    "two policies": (ChainLink.POLICY, lambda run: of_bound(run, policy="ef" * 32)),
    "no statement of its parent": (ChainLink.PARENTS, lambda run: of_bound(run, parents=[])),
    "another statement of its parent": (
        ChainLink.PARENTS,
        lambda run: of_bound(run, parents=["12" * 32]),
    ),
    "a grandparent's statement": (
        ChainLink.PARENTS,
        lambda run: of_bound(run, parents=run.statements[:1]),
    ),
    "a parent that is not there": (
        ChainLink.PARENTS,
        lambda run: made(run, parents=[Parent(digest="34" * 32)]),
    ),
    "a number that was used": (ChainLink.PARENTS, lambda run: made(run, seq=1)),
    "a parent that is younger": (
        ChainLink.PARENTS,
        lambda run: made(run, created=NOW + 2 * MINUTE),
    ),
    "no job": (ChainLink.JOB, lambda run: run.said()),
    "a job that is another document": (
        ChainLink.JOB,
        lambda run: of_bound(run, job=run.said().bound.membership),
    ),
    "no code": (ChainLink.CODE, lambda run: run.said()),
    "code that is another document": (
        ChainLink.CODE,
        lambda run: of_bound(run, code=run.said().bound.membership),
    ),
    "no environment": (ChainLink.ENVIRONMENT, lambda run: run.said()),
    "an environment that is another document": (
        ChainLink.ENVIRONMENT,
        lambda run: of_bound(run, environment=run.policy),
    ),
    "no dataset": (ChainLink.DATASET, lambda run: run.said()),
    "no ledger": (ChainLink.LEDGER, lambda run: of_bound(run, ledger_head="56" * 32)),
    "not logged": (ChainLink.LOG, lambda run: run.said()),
    "nobody saw it": (ChainLink.TIME, lambda run: run.said()),
}


@pytest.mark.forgery
@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_named_by_its_link(checks, run, name, monkeypatch):
    """Signed by the checkpoint's own key; with the checks of the table off, it is taken, and with
    the link's judge away even where nothing is left to judge.
    """
    link, lie = LIES[name]
    run.save(lie(run))
    path = run.pack()
    asked = policy(link, depth="checkpoint")
    expected = code_of(link)
    result = run.verify(path, policy=asked)
    assert expected in codes(result), result.problems
    assert result.exit_code is not ExitCode.OK
    verdict = result.judged[0].verdicts[link]
    assert verdict.state in {LinkState.BROKEN, LinkState.MISSING}
    hold(checks, "statements", name, lambda: why(run.verify(path, policy=asked)))
    for one in ChainLink:
        monkeypatch.setitem(judging.JUDGES, one, lambda *_, one=one: verified(one, "anything"))
    assert run.verify(path, policy=asked).ok, "the control"


@pytest.mark.forgery
def test_an_ancestors_lie_is_found_where_all_are_asked(run: Run) -> None:
    run.save(of_nodes(run, tier=NodeTier.TEE_GPU))
    run.save()
    path = run.pack()
    assert run.verify(path, policy=policy("nodes", depth="checkpoint")).ok
    result = run.verify(path, policy=policy("nodes"))
    assert codes(result) == {"ST-CHAN-010"}
    assert "step 40" in result.problems[0].what


@pytest.mark.forgery
def test_a_tier_that_no_result_shows_meets_no_policy(run: Run) -> None:
    path = run.pack()
    assert run.verify(path, policy=policy("nodes", tier="tpm")).ok
    result = run.verify(path, policy=policy("nodes", tier="tee+gpu"))
    assert codes(result) == {"ST-CKPT-121"}, result.problems


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.forgery
def test_a_pack_without_any_one_of_its_documents_proves_less(run: Run, tmp_path: Path) -> None:
    """Written anew, so that the container itself is whole."""
    path = run.pack()
    subject, found = documents_of(path)
    asked = policy(*SHOWN)
    for number, digest in enumerate(sorted(found.keys() - {subject.digest})):
        out = tmp_path / f"{number}.stpack"
        write_pack(out, subject, [one for name, one in found.items() if name != digest])
        if found[digest].media_type == packing.CONTENTS_TYPE:
            vocabulary.refused(IntegrityError, "ST-PACK-101", run.verify, out, policy=asked)
            continue
        result = run.verify(out, policy=asked)
        needless = found[digest].source == b"" or b"quote of" in bytes(found[digest].source)  # type: ignore[arg-type]
        assert needless or not result.ok, found[digest]


@pytest.mark.forgery
def test_a_statement_that_a_stranger_signed_is_no_ancestor(run: Run, tmp_path: Path) -> None:
    path = run.pack()
    mine, found, plain = taken_apart(path)
    del found[mine.digest]
    stranger = PrivateKey.generate()
    forged = Document.of(packing.STATEMENT_TYPE, sign(run.made[-1], "x", stranger))
    for about, code in ((forged, "ST-CKPT-120"), (mine, "")):
        plain["statements"][0]["statement"] = about.digest
        out = put_together(tmp_path / f"{about.digest}.stpack", about, found, plain)
        result = run.verify(out, policy=policy(*SHOWN))
        assert result.ok is not bool(code)
        if code:
            assert code in codes(result)
            assert result.opened is None


@pytest.mark.forgery
def test_contents_are_hints_and_prove_nothing(run: Run, tmp_path: Path) -> None:
    subject, found, plain = taken_apart(run.pack())
    first = plain["statements"][0]
    draw = random.Random(7)
    names = [*found, "0" * 64]
    for number in range(30):
        entries = [dict(one) for one in plain["statements"]]
        for _ in range(draw.randrange(1, 4)):
            entry = draw.choice(entries)
            entry[draw.choice(["statement", "proof", "ledger"])] = draw.choice(names)
        if draw.random() < 0.3:
            entries.append(dict(draw.choice(entries)))
        if draw.random() < 0.3:
            entries.pop(draw.randrange(1, len(entries)))
        out = tmp_path / f"{number}.stpack"
        put_together(out, subject, found, {"statements": entries})
        try:
            result = run.verify(out, policy=policy(*SHOWN))
        except IntegrityError:
            continue
        # It names what it is about, or it is refused; it is never about another checkpoint.
        if result.ok:
            assert entries[0]["statement"] == first["statement"]
            assert result.opened is not None
            assert result.opened.checkpoint.step == 30


def test_a_long_chain_is_followed_without_recursion(run: Run) -> None:
    for _ in range(120):
        run.save()
    result = run.verify(run.pack(), policy=policy("parents"))
    assert result.ok
    assert len(result.pack.ancestors) == 122
    assert len(result.judged) == 123
