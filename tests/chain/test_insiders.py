# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attacks by insiders who know the code, on what is asked of a pack as a whole. No torch.

Each is taken with its own check off, in the same test.
"""

import base64
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from securetrain.artifacts import Expectation
from securetrain.artifacts.lineage import machine, quarantine, waivers
from securetrain.artifacts.lineage.folder import LogProof
from securetrain.artifacts.statement import members
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    Parent,
    digest_of,
    open_statement,
    sign,
)
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.chain import judging, kept, packed, packing
from securetrain.chain.container import Document, Pack
from securetrain.chain.links import verified
from securetrain.chain.verdict import Verdict
from securetrain.chain.verifying import verify
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import Revoked, TrustRole, TrustRoot, sign_document
from securetrain.ledger import Ledger, events, read_ledger
from securetrain.policy.schema import Policy, TransparencyLog
from tests.artifacts.statement import worlds as signing
from tests.chain.test_other_keys import Logged
from tests.chain.test_packs import of_nodes
from tests.chain.worlds import (
    LATER,
    MINUTE,
    NOW,
    Run,
    codes,
    dataset,
    policy,
    put_together,
    taken_apart,
    trust_bytes,
)


def without(path: Path, out: Path, *numbers: int) -> Path:
    """A pack from which some of the listed statements are left out."""
    subject, found, plain = taken_apart(path)
    for number in sorted(numbers, reverse=True):
        del found[plain["statements"].pop(number)["statement"]]
    return put_together(out, subject, found, plain)


# --- ancestors that are not asked ---


@pytest.fixture
def unattested(tmp_path: Path) -> Run:
    """A checkpoint whose parent's launcher has lied about a tier, and that one's honest parent."""
    made = Run(tmp_path / "run")
    made.save()
    made.save(of_nodes(made, tier=NodeTier.TEE_GPU))
    made.save()
    return made


@pytest.mark.forgery
def test_an_ancestor_is_not_left_out_to_have_it_not_asked(unattested, tmp_path, monkeypatch):
    """Whoever has the pack, and no key: the policy asks for the nodes of all ancestors."""
    run, path, asked = unattested, unattested.pack(), policy("nodes")
    assert codes(run.verify(path, policy=asked)) == {"ST-CHAN-010"}
    for number, numbers in enumerate(((1,), (1, 2))):
        out = without(path, tmp_path / f"{number}.stpack", *numbers)
        result = run.verify(out, policy=asked)
        assert codes(result) == {"ST-CHAN-010"}, result.problems
        assert "is not at hand" in result.problems[0].what
        # Where the policy asks for the checkpoint alone, so does the verifier.
        assert run.verify(out, policy=policy("nodes", depth="checkpoint")).ok
        with monkeypatch.context() as patch:
            patch.setattr(judging, "_lost", lambda _: ())
            assert run.verify(out, policy=asked).ok, "the control"


@pytest.mark.forgery
def test_another_statement_on_an_ancestors_bytes_is_not_the_bound_one(
    unattested: Run, tmp_path: Path, monkeypatch: Any
) -> None:
    """With the checkpoint's key: the lie is signed again, honestly, and put in its place.

    Of the checkpoint itself every link is asked, of its ancestors those that are required: the
    lie is two checkpoints back.
    """
    run, asked = unattested, policy("nodes")
    run.save()
    subject, found, plain = taken_apart(run.pack())
    lie = run.made[1]
    honest = msgspec.structs.replace(
        lie, nodes=[msgspec.structs.replace(one, tier=NodeTier.TPM) for one in lie.nodes]
    )
    again = Document.of(packing.STATEMENT_TYPE, sign(honest, "step-00000020", run.key))
    del found[plain["statements"][2]["statement"]]
    plain["statements"][2]["statement"] = again.digest
    out = put_together(tmp_path / "x.stpack", subject, {**found, again.digest: again}, plain)
    result = run.verify(out, policy=asked)
    assert codes(result) == {"ST-CHAN-010"}, result.problems
    assert "not by the bound statement" in result.problems[0].what
    assert codes(run.verify(out, policy=policy("nodes", "parents"))) >= {"ST-CHAN-018"}
    monkeypatch.setattr(judging, "_lost", lambda _: ())
    assert run.verify(out, policy=asked).ok, "the control"


@pytest.mark.forgery
def test_a_circle_ends_and_proves_nothing(tmp_path: Path) -> None:
    """Two statements that name each other's bytes; no statement can bind both of each other."""
    run = Run(tmp_path / "run")
    first = run.said()
    second = run.said(
        step=20,
        seq=1,
        created=NOW + 6 * MINUTE,
        files=[msgspec.structs.replace(first.files[0], root="be" * 32)],
    )
    bare = msgspec.structs.replace(first.bound, parents=[])

    def on(said: CheckpointPredicate, other: CheckpointPredicate) -> CheckpointPredicate:
        return msgspec.structs.replace(said, parents=[Parent(digest=digest_of(other))], bound=bare)

    run.save(on(first, second))
    run.save(on(second, first))
    path = run.pack()
    for depth in ("all", "checkpoint"):
        result = run.verify(path, policy=policy("parents", depth=depth))
        assert codes(result) == {"ST-CHAN-018"}
        assert len(result.pack.ancestors) == 1


@pytest.mark.forgery
def test_a_fork_is_another_chain_and_each_answers_for_itself(tmp_path: Path) -> None:
    """Two checkpoints with one number after the same parent: the fork's own lie stays its own."""
    run = Run(tmp_path / "run").saved(1)
    honest = run.save()
    fork = run.said(step=20, seq=1, created=NOW + 6 * MINUTE)
    on_first = msgspec.structs.replace(
        fork,
        files=[msgspec.structs.replace(fork.files[0], root="f0" * 32)],
        parents=[Parent(digest=digest_of(run.made[0]))],
        bound=msgspec.structs.replace(fork.bound, parents=run.statements[:1]),
    )
    shutil.rmtree(honest)
    run.save(on_first)
    child = run.said(step=30, seq=2, parents=[Parent(digest=digest_of(run.made[1]))])
    # It says that it goes on from the honest one, and binds the fork's statement.
    run.save(child)
    result = run.verify(run.pack(), policy=policy("parents"))
    assert codes(result) == {"ST-CHAN-018"}
    # Both numbers cannot follow each other.
    after = run.said(step=40, seq=1, parents=[Parent(digest=digest_of(on_first))])
    bound = msgspec.structs.replace(after.bound, parents=[run.statements[2]])
    run.save(msgspec.structs.replace(after, bound=bound))
    assert codes(run.verify(run.pack("b.stpack"), policy=policy("parents"))) == {"ST-CHAN-018"}


@pytest.mark.forgery
def test_an_ancestor_that_has_expired_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    run = Run(tmp_path / "run")
    run.save(run.said(expires=NOW + timedelta(hours=2)))
    run.save()
    path = run.pack()
    result = run.verify(path, policy=policy("nodes"))
    assert codes(result) == {"ST-CKPT-153"}
    assert "step 10" in result.problems[0].what
    assert run.verify(path, policy=policy("nodes"), now=NOW + timedelta(hours=1)).ok
    monkeypatch.setattr(machine, "expired", lambda *_: [])
    assert run.verify(path, policy=policy("nodes")).ok, "the control"


@pytest.mark.forgery
def test_an_ancestor_that_its_ranks_did_not_sign_is_refused(tmp_path, monkeypatch):
    run = Run(tmp_path / "run")
    term = (NOW - MINUTE, NOW + timedelta(days=1))
    signers = [
        members.issue(run.job.name, run.job.spiffe(node), term, run.roles.node)
        for node in run.job.nodes
    ]

    def signed(said: CheckpointPredicate) -> CheckpointPredicate:
        messages = members.messages_of(said)
        return msgspec.structs.replace(
            said,
            members=sorted(one.certificate for one in signers),
            signatures=[
                signing.signature_of(rank, signers[rank // 2], message)
                for rank, message in enumerate(messages)
            ],
        )

    asked = policy("nodes", require_rank_signatures=True)
    run.save(signed(run.said()))
    run.save(signed(run.said()))
    assert run.verify(run.pack(), policy=asked).ok
    run.save()  # its signatures are stripped, and it is signed again
    run.save(signed(run.said()))
    path = run.pack("b.stpack")
    result = run.verify(path, policy=asked)
    assert codes(result) == {"ST-CKPT-122"}
    assert "step 30" in result.problems[0].what
    monkeypatch.setattr(members, "check", lambda *_, **__: [])
    assert run.verify(path, policy=asked).ok, "the control"


@pytest.mark.forgery
def test_a_pack_about_a_dataset_is_no_checkpoints(tmp_path: Path, monkeypatch: Any) -> None:
    """With the dataset's key alone: nothing of it is a link, so nothing would be missing."""
    run, key = Run(tmp_path / "run"), PrivateKey.generate()
    named = {TrustRole.CHECKPOINT: [run.key], TrustRole.DATASET: [key]}
    trust = TrustRoot.parse(trust_bytes(run.roles.root, named), LATER)
    about = Document.of(packing.STATEMENT_TYPE, sign(dataset(), "prose", key))
    out = tmp_path / "x.stpack"
    put_together(out, about, {}, {"statements": [{"statement": about.digest}]})

    def answer() -> Verdict:
        with Pack.open(out) as opened:
            asked, wanted = policy("nodes", "dataset"), Expectation(run="job-1")
            return verify(opened, wanted, trust=trust, policy=asked, now=LATER)

    assert codes(answer()) == {"ST-PACK-101"}
    assert answer().opened is None
    monkeypatch.setattr(packed._Packed, "refusal", lambda _: ())
    assert answer().ok, "the control"


# --- the log ---


def asks_log(*links: str, **log: Any) -> Policy:
    return policy(*links, depth="checkpoint", log=TransparencyLog(**log))


@dataclass
class FewWitnesses(Logged):
    """A trust root for which one witness of its two is enough."""

    def document(self, *revoked: Revoked) -> bytes:
        made = TrustRoot.parse(Logged.document(self, *revoked), LATER).document
        role = msgspec.structs.replace(made.roles[TrustRole.WITNESS], threshold=1)
        roles = {**made.roles, TrustRole.WITNESS: role}
        return sign_document(msgspec.structs.replace(made, roles=roles), [self.roles.root])


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    made = FewWitnesses(tmp_path / "run")
    made.save()
    made.log(made.save(), num_witnesses=1)
    return made


@pytest.mark.forgery
def test_a_proof_is_not_left_out_where_the_policy_asks_for_a_log(logged, tmp_path):
    """As beside a directory: `checkpoint.log` alone asks for it, whatever links are required."""
    path, asked = logged.pack(), asks_log("nodes")
    assert logged.verify(path, policy=asked).ok
    subject, found, plain = taken_apart(path)
    del found[plain["statements"][0].pop("proof")]
    out = put_together(tmp_path / "x.stpack", subject, found, plain)
    result = logged.verify(out, policy=asked)
    assert codes(result) == {"ST-CKPT-180"}
    # A policy without a log does not ask.
    assert logged.verify(out, policy=policy("nodes", depth="checkpoint")).ok


@pytest.mark.forgery
def test_the_quorum_and_the_keys_of_the_log_are_the_policys_too(logged, monkeypatch):
    """One witness is enough for the trust root, and not for whoever asks for two."""
    path, unasked = logged.pack(), LogProof.judge
    stranger = PrivateKey.generate().public
    other = base64.b64encode(stranger.spki).decode()
    mine = [base64.b64encode(one.public.spki).decode() for one in logged.witnesses]
    for asked in (
        asks_log("log", "time", quorum=2, witnesses=tuple(mine)),
        asks_log("log", "time", witnesses=(other,)),
        asks_log("log", "time", keys=(other,), origin="log.example/team"),
        asks_log("log", "time", keys=(other,), origin="log.example/others"),
    ):
        result = logged.verify(path, policy=asked)
        assert codes(result) == {"ST-CKPT-180", "ST-CHAN-020", "ST-CHAN-021"}
        with monkeypatch.context() as patch:
            patch.setattr(LogProof, "judge", lambda *given: unasked(*given[:5]))
            assert logged.verify(path, policy=asked).ok, "the control"


# --- the ledger ---


@dataclass
class WithLedger(Run):
    """A run with a ledger, which its launcher writes."""

    launcher: PrivateKey = field(default_factory=PrivateKey.generate)

    def named(self) -> dict[TrustRole, list[PrivateKey]]:
        return {
            **super().named(),
            TrustRole.LEDGER: [self.launcher, self.roles.worker],
            TrustRole.LEDGER_LAUNCHER: [self.launcher],
            TrustRole.LEDGER_WORKER: [self.roles.worker],
            TrustRole.OPERATOR: [self.launcher, self.roles.node],
        }

    def write(self, said: events.LedgerEvent, key: PrivateKey | None = None) -> str:
        """Write an event; the new head."""
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / "ledger.jsonl"
        Ledger(path, self.launcher, "launcher", lambda: NOW).begin("", self.trust())
        Ledger(path, key or self.launcher, "launcher", lambda: NOW).write(said)
        lines = (self.root / "ledger.jsonl").read_bytes().splitlines()
        return hashlib.sha256(lines[-1]).hexdigest()

    def set_aside(self, key: PrivateKey | None = None) -> str:
        """Write that its first checkpoint was set aside; the digest."""
        aside, what = digest_of(self.made[0]), {"code": "ST-ATTS-001", "what": "evicted"}
        told = events.CheckpointQuarantined(subject="step-00000010", **what, step=10, digest=aside)
        self.write(told, key)
        return aside

    def bind(self, head: str) -> None:
        """Save the next checkpoint, which binds the ledger up to a head."""
        replace, said = msgspec.structs.replace, self.said()
        self.save(replace(said, bound=replace(said.bound, ledger_head=head)))


@pytest.mark.forgery
def test_a_checkpoint_that_was_set_aside_is_none_to_rely_on(tmp_path, monkeypatch):
    """Its own statement cannot know it; the ledger does, and so does that of its descendants."""
    run = WithLedger(tmp_path / "run")
    head = run.write(events.LedgerMended(subject="l", bytes=1, digest="0" * 64))
    for _ in range(2):
        run.bind(head)
    assert run.verify(run.pack(), policy=policy("ledger")).ok
    aside = run.set_aside()
    path = run.pack("b.stpack")
    result = run.verify(path, policy=policy("ledger"))
    assert codes(result) == {"ST-CHAN-019"}
    assert "step 10" in result.problems[0].what
    assert "set aside" in result.problems[0].what
    assert run.verify(path, policy=policy("ledger", depth="checkpoint")).ok
    # Operators let it be used: a pack has their waiver, as the directory of the run has.
    term = {"issued": NOW, "expires": LATER + MINUTE}
    waiver = waivers.Waiver(run_id="job-1", digest=aside, reason="r", **term)
    (run.root / "waivers").mkdir()
    made = waivers.sign_waiver(waiver, [run.launcher, run.roles.node])
    (run.root / "waivers" / "a.json").write_bytes(made)
    assert run.verify(run.pack("c.stpack"), policy=policy("ledger")).ok
    assert run.beside(policy("ledger")).problems == []
    assert codes(run.verify(path, policy=policy("ledger"))) == {"ST-CHAN-019"}
    monkeypatch.setattr(events, "CheckpointQuarantined", type("Nothing", (), {}))
    assert run.verify(path, policy=policy("ledger")).ok, "the control"


@pytest.mark.forgery
def test_a_worker_cannot_set_a_checkpoint_aside(tmp_path: Path, monkeypatch: Any) -> None:
    """A line of another role breaks the link, and says whose it is."""
    run = WithLedger(tmp_path / "run")
    head = run.write(events.LedgerMended(subject="l", bytes=1, digest="0" * 64))
    run.bind(head)
    run.set_aside(key=run.roles.worker)
    path = run.pack()
    result = run.verify(path, policy=policy("ledger"))
    assert codes(result) == {"ST-CHAN-019"}
    assert "worker" in result.problems[0].what
    assert "set aside" not in result.problems[0].what
    link = ChainLink.LEDGER
    monkeypatch.setattr(kept, "broken", lambda *_, **__: verified(link, "anything"))
    assert run.verify(path, policy=policy("ledger")).ok, "the control"


@dataclass
class NamesNoWriters(WithLedger):
    """Its trust root lets keys sign the ledger, and says of none which lines are its to write."""

    def trust(self, now: Any = LATER) -> TrustRoot:
        plain = super().trust(now).document
        roles = {
            role: keys
            for role, keys in plain.roles.items()
            if role not in {TrustRole.LEDGER_LAUNCHER, TrustRole.LEDGER_WORKER}
        }
        changed = msgspec.structs.replace(plain, roles=roles)
        return TrustRoot.parse(sign_document(changed, [self.roles.root]), now)


@pytest.mark.forgery
def test_a_ledger_is_none_to_rely_on_where_any_line_may_be_a_workers(tmp_path, monkeypatch):
    """The control: with the check away, a worker's line of the launcher's is believed."""
    run = NamesNoWriters(tmp_path / "run")
    line = events.LedgerMended(subject="l", bytes=1, digest="0" * 64)
    head = run.write(line, key=run.roles.worker)
    run.bind(head)
    path = run.pack()
    result = run.verify(path, policy=policy("ledger"))
    assert codes(result) == {"ST-CHAN-019"}
    assert "what it may write" in result.problems[0].what

    def all_named(*given: Any, **how: Any) -> Any:
        return replace(read_ledger(*given, **how), names_writers=True)

    monkeypatch.setattr(kept, "read_ledger", all_named)
    assert run.verify(path, policy=policy("ledger")).ok, "the control"


# --- keys that count no more ---


def revoking(run: Run, key: PrivateKey) -> TrustRoot:
    plain = run.trust().document
    gone = Revoked(key_id=key.key_id, since=NOW, reason="stolen")
    changed = msgspec.structs.replace(plain, revoked=[gone])
    return TrustRoot.parse(sign_document(changed, [run.roles.root]), LATER)


def accepted_all(run: Run, trust: TrustRoot, path: Path, links: str) -> Verdict:
    with Pack.open(path) as opened:
        return verify(opened, trust=trust, policy=policy(links), now=LATER)


@pytest.mark.forgery
def test_a_key_that_was_revoked_vouches_for_nobody(tmp_path: Path) -> None:
    """The node key's endorsements, and the checkpoint key's statements: ancestors included."""
    run = Run(tmp_path / "run").saved(2)
    path = run.pack()
    assert accepted_all(run, run.trust(), path, "nodes").ok
    result = accepted_all(run, revoking(run, run.roles.node), path, "nodes")
    assert codes(result) == {"ST-CHAN-010", "ST-CHAN-011"}
    assert result.judged[0].verdicts[ChainLink.MEMBERSHIP].state is LinkState.BROKEN
    result = accepted_all(run, revoking(run, run.key), path, "nodes")
    assert codes(result) == {"ST-CKPT-161"}
    assert result.opened is None


# --- beside directories ---


def exchange(run: Run) -> None:
    """The oldest one's lie is signed again, honestly, and put in its place."""
    path = run.root / "checkpoints" / "step-00000010" / STATEMENT
    honest = [msgspec.structs.replace(one, tier=NodeTier.TPM) for one in run.made[0].nodes]
    said = msgspec.structs.replace(run.made[0], nodes=honest)
    path.write_bytes(sign(said, "step-00000010", run.key))


def put_aside(run: Run) -> None:
    path = run.root / "checkpoints" / "step-00000010"
    opened = open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, run.trust())
    why = quarantine.Quarantine(node="n", code="ST-ATTS-001", last_good=NOW, epoch=1, created=NOW)
    quarantine.set_aside(path, opened, why, run.key)


BESIDE: dict[str, tuple[str, Callable[[Run], Any], Callable[[Run], object]]] = {
    "left out": (
        "ST-CHAN-010",
        lambda run: of_nodes(run, tier=NodeTier.TEE_GPU),
        lambda run: shutil.rmtree(run.root / "checkpoints" / "step-00000010"),
    ),
    "another statement": (
        "ST-CHAN-010",
        lambda run: of_nodes(run, tier=NodeTier.TEE_GPU),
        exchange,
    ),
    "expired": (
        "ST-CKPT-153",
        lambda run: run.said(expires=NOW + timedelta(hours=2)),
        lambda _: None,
    ),
    "set aside": ("ST-CKPT-160", lambda run: run.said(), put_aside),
    "not logged": ("ST-CKPT-180", lambda run: run.said(), lambda _: None),
}


@pytest.mark.forgery
@pytest.mark.parametrize("name", BESIDE)
def test_an_ancestor_beside_a_directory_is_asked_as_in_a_pack(tmp_path, name, monkeypatch):
    code, said, attack = BESIDE[name]
    run = Run(tmp_path / "run")
    run.save(said(run))
    run.save()
    run.save()
    asked = policy("nodes", log={} if code == "ST-CKPT-180" else None)
    attack(run)
    assert {one.code for one in run.beside(asked).problems} == {code}
    assert run.beside(policy("nodes", depth="checkpoint")).problems == []
    monkeypatch.setattr(judging, "_ask_statement", lambda *_: None)
    monkeypatch.setattr(judging, "_lost", lambda _: ())
    assert run.beside(asked).problems == [], "the control"
