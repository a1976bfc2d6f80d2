# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A table of what a thief can make `verify` say with each key of a run, alone and with others.

The keys are those that lie on a machine that launched: the checkpoint's, the endorsing one of the
role ``node``, the coordinator's with its job CA, and a dataset's. The thief claims TEEs with GPUs
for nodes that proved nothing, and a million clean steps. No torch.
"""

import shutil
from copy import copy
from datetime import timedelta
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

import securetrain
from securetrain.artifacts.lineage import judging, machine, quarantine, waivers
from securetrain.artifacts.lineage.head import sign_head
from securetrain.artifacts.statement import members
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    GradientRecord,
    GradientVerdict,
    open_statement,
)
from securetrain.artifacts.tree.layout import QUARANTINE, STATEMENT, Kind
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.chain import Verdict, counted, verify, verifying
from securetrain.chain import judging as chain_judging
from securetrain.chain.packing import Wanted
from securetrain.chain.verifying import Known, Options
from securetrain.core.errors import IntegrityError
from securetrain.core.vocabulary import ChainLink, NodeTier
from securetrain.identity.keyless import Identity
from securetrain.identity.keys import PrivateKey
from securetrain.identity.rotation import Change, amended, next_root
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from securetrain.policy import load_policy
from securetrain.policy.schema import Policy
from tests.chain.worlds import (
    LATER,
    NOW,
    Job,
    Roles,
    Run,
    Whole,
    codes,
    policy,
    signed_by,
    trust_bytes,
)
from tests.s3_store import stored
from tests.tables import items

KEYS = ("checkpoint", "node", "coordinator", "dataset")
ROWS = [frozenset(some) for n in range(1, 5) for some in combinations(KEYS, n)]
NODES = ChainLink.NODES
HARDENED = load_policy("hardened").policy
CLAIMED_STEPS = GradientRecord(verdict=GradientVerdict.CLEAN, judged=10**6, clean_steps=10**6)


def root(run: Run, *, apart: bool) -> TrustRoot:
    data = trust_bytes(run.roles.root, run.named(), apart=apart or UNSET)
    return TrustRoot.parse(data, LATER)


def job_of(run: Run, keys: frozenset[str], tier: NodeTier) -> Job:
    """A job whose nodes have any tier, as far as these keys make one."""
    if "coordinator" not in keys:
        node = run.roles.node if "node" in keys else PrivateKey.generate()
        roles = Roles(root=run.roles.root, node=node, worker=run.roles.worker)
        made = Job(roles=roles, policy=run.policy, lease=run.job.lease, pieces=run.job.pieces)
    else:
        made = copy(run.job)  # its CA, certificate and key, and the run's own endorsement
        made.keeper._appraised.clear()
    made.tier = tier
    made.results = {node: made.attest(node, made.began) for node in made.nodes}
    made.form()
    return made


def forged(
    folder: Path, keys: frozenset[str], tier: NodeTier = NodeTier.TEE_GPU
) -> tuple[Run, list[Path]]:
    """A run with a thief's checkpoint, as a directory and as a pack."""
    run = Run(folder / "run")
    run.job = Job(roles=run.roles, policy=run.policy, tier=NodeTier.SELF_ASSERTED,
                  lease=run.job.lease, pieces=run.job.pieces)  # fmt: skip
    run.save()
    run.job = job_of(run, keys, tier)
    stolen = run.key if "checkpoint" in keys else PrivateKey.generate()
    path = run.save(run.said(gradients=CLAIMED_STEPS), key=stolen)
    run.keep()
    return run, [path, run.pack()] if "checkpoint" in keys else [path]


def judged(run: Run, path: Path, asked: Policy | None, *, apart: bool = False) -> Verdict:
    return verify(path, trust=root(run, apart=apart), policy=asked, now=LATER)


def shows(found: Verdict) -> list[NodeTier]:
    """The tiers above self-asserted that the verdict calls verified."""
    tiers = found.judged[0].verdicts[NODES].tiers.values() if found.judged else ()
    lines = [one.text for one in found.lines() if one.name == "node" and one.state == "verified"]
    assert (found.judged and found.judged[0].shows(NODES)) or not lines
    return [one for one in tiers if one > NodeTier.SELF_ASSERTED]


@pytest.mark.forgery
@pytest.mark.parametrize("keys", ROWS, ids=lambda keys: "+".join(sorted(keys)))
def test_no_key_of_a_run_makes_a_tier(tmp_path: Path, keys: frozenset[str]) -> None:
    run, forms = forged(tmp_path, keys)
    for path in forms:
        for asked in (HARDENED, policy("nodes", tier="vtpm"), policy("nodes"), None):
            found = judged(run, path, asked)
            assert shows(found) == []
            assert not found.ok or asked is None, found.answer
            assert "tee+gpu" not in found.answer
        required = msgspec.structs.replace(policy("nodes").chain, appraise=True)
        alone = msgspec.structs.replace(policy(), chain=required)
        assert not judged(run, path, alone, apart=True).ok, "nobody's word counts"
        # The control: the check is whether the trust root places these keys apart.
        enough = "checkpoint" in keys and keys & {"node", "coordinator"} != set()
        off = judged(run, path, policy("nodes", depth="checkpoint"), apart=True)
        assert bool(shows(off)) is enough
    if not enough:
        # Nor is it for another reason: with the keys that are lacking, it is taken.
        run, (path, _) = forged(tmp_path / "all", keys | {"checkpoint", "node"})
        assert shows(judged(run, path, policy("nodes", depth="checkpoint"), apart=True))


@pytest.mark.forgery
@settings(max_examples=25, deadline=None)
@given(
    keys=st.frozensets(st.sampled_from(KEYS)),
    tier=st.sampled_from([one for one in NodeTier if one > NodeTier.SELF_ASSERTED]),
    asked=st.sampled_from(["hardened", "baseline", "dev", "none"]),
)
def test_no_keys_and_claims_make_one(tmp_path_factory, keys, tier, asked):
    run, forms = forged(tmp_path_factory.mktemp("thief"), keys, tier)
    rules = None if asked == "none" else load_policy(asked).policy
    for path in forms:
        found = judged(run, path, rules)
        assert shows(found) == []
        assert asked not in {"hardened", "baseline"} or not found.ok


# --- the trust root that places keys apart is rotated ---


NEW = PrivateKey.generate()
BY = Identity(identity="a@b.example", issuer="https://b.example", instance="public")
ROTATED: dict[str, tuple[bool, dict[str, Any]]] = {
    "nothing": (True, {}),
    "another role's key": (True, {"add": {TrustRole.DATASET: [NEW.public]}}),
    "a key that is said to be apart": (
        True,
        {"add": {TrustRole.NODE: [NEW.public]}, "apart": True},
    ),
    "a key": (False, {"add": {TrustRole.NODE: [NEW.public]}}),
    "an identity": (False, {"add_identities": {TrustRole.NODE: [BY]}}),
}


@pytest.mark.forgery
@items("name", *ROTATED)
def test_keys_are_apart_until_one_is_added_of_which_nobody_says_so(
    tmp_path: Path, name: str
) -> None:
    """Lost in silence, evidence counts no more; kept in silence, a further key makes tiers."""
    kept, changes = ROTATED[name]
    run = Run(tmp_path / "run").saved(2)
    run.keep()
    path = max((run.root / "checkpoints").iterdir())
    first = root(run, apart=True)
    second = amended(
        first.document, Change(created=NOW, expires=LATER + timedelta(days=1), **changes)
    )
    assert (second.roles[TrustRole.NODE].apart is True) is kept
    if name == "an identity":
        return  # it needs an instance of Sigstore before it counts
    rotated = next_root(first, sign_document(second, [run.roles.root]))
    for trust, expected in (first, True), (rotated, kept), (root(run, apart=False), False):
        found = verify(path, trust=trust, policy=policy("nodes", depth="checkpoint"), now=LATER)
        assert bool(shows(found)) is expected


# --- what lies beside a checkpoint ---


def opened_at(run: Run, path: Path) -> Any:
    return open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, run.trust())


def write_head(run: Run, path: Path, **changes: Any) -> None:
    opened = opened_at(run, path)
    said = opened.checkpoint
    head = machine.Head(
        run_id=said.run_id,
        seq=said.seq,
        step=said.step,
        digest=opened.digest,
        created=NOW,
        expires=LATER + timedelta(days=1),
    )
    made = sign_head(msgspec.structs.replace(head, **changes), run.key)
    (path.parent / machine.HEAD).write_bytes(made)


def put_aside(run: Run, path: Path) -> None:
    write_head(run, path)
    why = quarantine.Quarantine(node="n", code="ST-ATTS-001", last_good=NOW, epoch=1, created=NOW)
    quarantine.set_aside(path, opened_at(run, path), why, run.key).rename(path)


def write_record(run: Run, path: Path) -> None:
    write_head(run, path)
    (path / QUARANTINE).write_bytes(b"{}")


def write_no_head(run: Run, path: Path) -> None:
    (path.parent / machine.HEAD).write_bytes(b"{}")


BESIDE: dict[str, tuple[set[str], Any]] = {
    "no head": ({"ST-CKPT-152"}, lambda *_: None),
    "its head": (set(), write_head),
    "set aside": ({"ST-CKPT-160"}, put_aside),
    "a record that nobody signed": ({"ST-CKPT-160"}, write_record),
    "a head of another run": ({"ST-CKPT-170"}, partial(write_head, run_id="other")),
    "a head that goes on": ({"ST-CKPT-151"}, partial(write_head, seq=9, digest="ab" * 32)),
    "a head that has expired": ({"ST-CKPT-152"}, partial(write_head, expires=NOW)),
    "a head that nobody signed": ({"ST-CKPT-152"}, write_no_head),
}


@pytest.mark.forgery
@items("name", *BESIDE)
def test_a_pack_is_refused_for_what_its_directory_is(tmp_path, name, monkeypatch):
    """With the check off, as it was measured, a pack is taken whatever lies beside."""
    expected, attack = BESIDE[name]
    run = Whole(tmp_path / "run")
    run.save_whole()
    path = run.save_whole()
    attack(run, path)
    asked = policy("policy", depth="checkpoint", require_head=True)
    packed = run.pack(wanted=Wanted(weights=True))
    for form in (path, packed):
        found = run.verify(form, policy=asked)
        assert codes(found) == expected, (form, found.problems)
        assert found.ok is not bool(expected)
    only = lambda opened, _, asked: judging.Judged(problems=judging.judge_statement(opened, asked))  # noqa: E731
    monkeypatch.setattr(judging, "judge", only)
    assert run.verify(packed, policy=asked).ok, "the control"


OPERATORS = PrivateKey.generate(), PrivateKey.generate()


class Operated(Whole):
    """A run whose trust root names two operators, and whose newest checkpoint was set aside."""

    def named(self) -> dict[TrustRole, list[PrivateKey]]:
        return {**super().named(), TrustRole.OPERATOR: [*OPERATORS]}

    def waive(self, opened: Any, by: Any = OPERATORS, **changes: Any) -> bytes:
        said = waivers.Waiver(run_id=opened.checkpoint.run_id, digest=opened.digest, reason="r",
                              issued=NOW, expires=LATER + timedelta(days=1))  # fmt: skip
        return waivers.sign_waiver(msgspec.structs.replace(said, **changes), by)


WAIVERS: dict[str, dict[str, Any]] = {
    "one that counts": {},
    "of another run": {"run_id": "job-2"},
    "of another checkpoint": {"digest": "ab" * 32},
    "that has expired": {"expires": LATER},
    "that does not count yet": {"issued": LATER + timedelta(seconds=1)},
    "by a stranger": {"by": [OPERATORS[0], PrivateKey.generate()]},
    "by one operator of two": {"by": OPERATORS[:1]},
    "cut off": {},
    "none": {},
}


@pytest.mark.forgery
def test_a_waiver_counts_alike_wherever_it_lies(tmp_path: Path, monkeypatch: Any) -> None:
    """In the run's directory, a store, a pack, or as it is given; with others, and by a loader."""
    run = Operated(tmp_path / "run")
    run.save_whole()
    path = run.save_whole()
    write_record(run, path)
    opened, beside, given = opened_at(run, path), run.root / "waivers", tmp_path / "given.json"
    beside.mkdir()
    (beside / "another.json").write_bytes(run.waive(opened, digest="cd" * 32))
    for name, changes in WAIVERS.items():
        made = run.waive(opened, **changes)
        (beside / "it.json").write_bytes(made[:-9] if name == "cut off" else made)
        if name == "none":
            (beside / "it.json").unlink()
        packed = run.pack(f"{name}.stpack", Wanted(weights=True))
        with stored(run.root) as url:
            forms: list[Path | str] = [path, packed, f"{url}/checkpoints/{path.name}"]
            found = [verify(one, trust=run.trust(), now=LATER) for one in forms]
        counts = name == "one that counts"
        assert [codes(one) for one in found] == [set() if counts else {"ST-CKPT-160"}] * 3, name
        said = [[one for one in each.lines() if one.name == "excused"] for each in found]
        assert [len(one) for one in said] == [int(counts)] * 3, "and the answer says so"
        asked = judging.Asked(trust=run.trust(), policy=None, now=LATER)
        assert bool(judging.judge(opened, LocalStorage(path), asked).problems) is not counts
    # The one that is given needs no folder; there it was none.
    given.write_bytes(run.waive(opened))
    known = Options(known=Known(waiver=[given]))
    for one in (path, packed):
        assert verify(one, trust=run.trust(), now=LATER, options=known).ok
    monkeypatch.setattr(waivers, "open_waiver", lambda data, *_: waivers.read_unverified(data))
    (beside / "it.json").write_bytes(run.waive(opened, by=[PrivateKey.generate()]))
    assert verify(path, trust=run.trust(), now=LATER).ok, "the control: nobody asks who signed it"


# --- numbers that only a key has written ---


ROWS_DIFFER = {"ST-CHAN-016"}
"""The job of this run does not say how its rows are drawn."""


class Counted(Whole):
    """A run whose ranks sign their records, ten clean steps for each checkpoint."""

    def save(self, said: CheckpointPredicate | None = None, key: PrivateKey | None = None) -> Path:
        assert said is not None
        term = (NOW - timedelta(minutes=1), NOW + timedelta(days=1))
        signers = {
            node: members.issue(self.job.name, self.job.spiffe(node), term, self.roles.node)
            for node in self.job.nodes
        }
        return super().save(signed_by(said, self.job, signers), key)

    def saved_with(self, first: int) -> Path:
        """Two checkpoints; of the first one, the key says so many clean steps."""
        for number in (first, first + 10):
            clean = GradientVerdict.CLEAN
            said = GradientRecord(verdict=clean, judged=number, clean_steps=number)
            path = self.save_whole(gradients=said)
        self.keep()
        return path


@pytest.mark.forgery
def test_clean_steps_are_counted_from_records_whatever_the_parent_says(tmp_path, monkeypatch):
    """With the checkpoint's key: its parent says a million, and it goes on from there, so that its
    own link holds. Ten steps are recorded with it, and those of the parent are not what it says.
    """
    honest, liar = Counted(tmp_path / "honest"), Counted(tmp_path / "liar")
    paths = {id(honest): honest.saved_with(10), id(liar): liar.saved_with(10**6)}
    for run, wanted, expected in (
        (honest, 1, set()),
        (honest, 20, set()),
        (honest, 10**6, set()),  # there were no more
        (liar, 10, set()),
        (liar, 11, {"ST-CHAN-017"}),
    ):
        asked = policy("gradients", depth="checkpoint", min_clean_steps=wanted)
        for form in (paths[id(run)], run.pack(f"{wanted}.stpack", Wanted(weights=True))):
            found = run.verify(form, policy=asked)
            assert codes(found) - ROWS_DIFFER == expected, found.problems
            assert found.judged[0].shows(ChainLink.GRADIENTS)
    monkeypatch.setattr(chain_judging, "counted_steps", lambda *_: [])
    assert codes(liar.verify(paths[id(liar)], policy=asked)) == ROWS_DIFFER, "the control"
    # Nobody did its steps again.
    monkeypatch.undo()
    asked = policy(depth="checkpoint", max_audit_age_steps=10**6)
    found = honest.verify(paths[id(honest)], policy=asked)
    assert codes(found) - ROWS_DIFFER == {"ST-CHAN-023"}


@pytest.mark.forgery
def test_a_loader_counts_steps_by_the_evidence_beside_it_or_refuses(tmp_path, monkeypatch):
    """Its key says a million; with the check off, as it was, the loader takes its word."""
    honest, liar = Counted(tmp_path / "honest"), Counted(tmp_path / "liar")
    paths = {id(honest): honest.saved_with(10), id(liar): liar.saved_with(10**6)}

    def loads(run: Counted, *, count: bool = True, **asks: Any) -> str:
        asked, state = policy("gradients", **asks), {"step": 0}
        rules = counted(asked, trust=run.trust(), now=LATER) if count else asked
        try:
            securetrain.load(state, paths[id(run)], trust=run.trust(), policy=rules, now=LATER)
        except IntegrityError as error:
            assert state == {"step": 0}, "nothing of it is used"
            return error.code
        return "" if state["step"] else "nothing was loaded"

    assert loads(honest, min_clean_steps=20) == ""
    assert loads(liar, min_clean_steps=10) == ""
    assert loads(liar, min_clean_steps=11) == "ST-CHAN-017"
    assert loads(honest, max_audit_age_steps=10**6) == "ST-CHAN-023"
    for name in ("min_clean_steps", "max_audit_age_steps"):
        assert loads(honest, count=False, **{name: 1}) == "ST-CHAN-017"
    assert loads(honest, count=False) == ""
    shutil.rmtree(honest.root / "evidence")
    assert loads(honest, min_clean_steps=1) == "ST-CHAN-017"
    monkeypatch.setattr(verifying, "counted_steps", lambda *_: [])
    assert loads(liar, min_clean_steps=11) == "", "the control"
