# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A pack ten years on, by the witnesses' time; datasets and parents that other keys have signed."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from securetrain.artifacts.lineage.folder import proof_name
from securetrain.artifacts.statement.checkpoint_predicate import RankFile
from securetrain.artifacts.statement.dataset_predicate import DataFile, DatasetPredicate, Split
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetRef,
    Parent,
    ParentRole,
    digest_of,
    open_statement,
    sign,
)
from securetrain.artifacts.tree.layout import STATEMENT, Kind, TreeInfo
from securetrain.chain import judging, kept
from securetrain.chain.links import Subject, code_of, verified
from securetrain.chain.packing import pack
from securetrain.cli import clock
from securetrain.cli.main import main
from securetrain.core.hashtree import TreeParams
from securetrain.core.vocabulary import ChainLink
from securetrain.identity.keys import PrivateKey
from securetrain.identity.log import Log, LogPolicy, Witness, request_for
from securetrain.identity.trust import (
    Revoked,
    RoleKeys,
    TrustRole,
    TrustRoot,
    key_table,
    sign_document,
)
from tests.chain.worlds import (
    LATER,
    MINUTE,
    NOW,
    SHOWN,
    Job,
    Roles,
    Run,
    codes,
    opened,
    policy,
    trust_bytes,
)

ORIGIN = "log.example/team"
SEEN = NOW + timedelta(hours=1)
DECADE = NOW + timedelta(days=3653)

POLICY = """\
apiVersion: securetrain.dev/policy/v1
kind: Policy
metadata: {{id: asks, version: 1.0.0}}
extends: dev
gradients: {{mode: "off"}}
checkpoint: {{require_lineage: false, require_clean_verdict: false}}
chain: {{require: [{links}], depth: checkpoint}}
"""


@dataclass
class Logged(Run):
    """A run whose newest checkpoint a log has, with two witnesses."""

    def __post_init__(self) -> None:
        Run.__post_init__(self)
        self.log_key, *self.witnesses = (PrivateKey.generate() for _ in range(3))

    def document(self, *revoked: Revoked) -> bytes:
        """The trust root's bytes, with the log and its witnesses."""
        plain = Run.trust(self).document
        extra = {
            TrustRole.LOG: RoleKeys([self.log_key.key_id]),
            TrustRole.WITNESS: RoleKeys([key.key_id for key in self.witnesses], 2),
        }
        added = key_table([key.public for key in (self.log_key, *self.witnesses)])
        changed = replace(
            plain,
            keys={**plain.keys, **added},
            roles={**plain.roles, **extra},
            log_origin=ORIGIN,
            revoked=list(revoked),
        )
        return sign_document(changed, [self.roles.root])

    def trust(self, now: datetime = LATER) -> TrustRoot:
        return TrustRoot.parse(self.document(), now)

    def log(self, path: Path, num_witnesses: int = 2) -> None:
        """Have a checkpoint logged; its proof lies beside it."""
        folder = self.root / "logbook"
        Log.create(folder / "log", ORIGIN, self.log_key)
        log = Log(folder / "log", LogPolicy.from_trust_root(self.trust()))
        envelope = (path / STATEMENT).read_bytes()
        index = log.append(envelope, self.trust().keys, self.log_key)
        text = log.state()[1].text
        for number, key in enumerate(self.witnesses[:num_witnesses]):
            witness = Witness(f"w{number}", key, folder / f"w{number}", {ORIGIN: log.policy})
            line = witness.cosign(request_for(log, witness.seen(ORIGIN)), SEEN)
            log.add_cosignatures(text, [line])
        path.with_name(proof_name(path.name)).write_bytes(log.prove(index))


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    made = Logged(tmp_path / "run")
    made.save()
    made.log(made.save())
    return made


@pytest.fixture
def ask(capsys: Any, monkeypatch: Any, tmp_path: Path) -> Callable[..., tuple[int, Any]]:
    """Ask the command, on a machine with another clock; exit code and what it said."""

    def call(path: Path, root: bytes, now: datetime, *words: str) -> tuple[int, Any]:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
                return now.astimezone(tz)

        monkeypatch.setattr(clock, "datetime", Clock)
        trust = tmp_path / "trust.json"
        trust.write_bytes(root)
        asked = tmp_path / "asked.yaml"
        asked.write_text(POLICY.format(links=", ".join((*SHOWN, "log", "time"))))
        capsys.readouterr()
        command = ["verify", str(path), "--trust", str(trust), "--policy", str(asked), "--json"]
        code = main([*command, *words])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else None

    return call


def test_ten_years_on_a_pack_is_judged_at_its_witnesses_time(logged: Logged, ask: Any) -> None:
    path, root = logged.pack(), logged.document()
    code, said = ask(path, root, DECADE)
    assert code != 0, "the root has expired: nothing counts without the witnesses' time"
    code, said = ask(path, root, DECADE, "--at", "witness")
    assert (code, said["problems"]) == (0, [])
    assert said["at"] == said["seen"] == str(SEEN)
    states = said["checkpoints"][0]["links"]
    assert (states["log"]["state"], states["time"]["state"]) == ("verified", "verified")


@pytest.mark.forgery
def test_who_lacks_witnesses_is_not_judged_at_their_time(tmp_path: Path, ask: Any) -> None:
    """No proof, and one that one witness of two has seen."""
    for number in (None, 1):
        run = Logged(tmp_path / f"run-{number}")
        saved = run.save()
        if number is not None:
            run.log(saved, number)
        path = run.pack()
        code, said = ask(path, run.document(), DECADE, "--at", "witness")
        assert code != 0
        assert said is None or not said.get("ok")
        # The control: with its witnesses, the same run passes.
    run = Logged(tmp_path / "run")
    run.log(run.save())
    assert ask(run.pack(), run.document(), DECADE, "--at", "witness")[0] == 0


@pytest.mark.forgery
def test_a_proof_of_another_entry_is_named(logged: Logged) -> None:
    newest = max(one for one in (logged.root / "checkpoints").iterdir() if one.is_dir())
    proof = newest.with_name(proof_name(newest.name))
    asked = policy(*SHOWN, "log", "time", depth="checkpoint")
    assert logged.verify(logged.pack(), policy=asked).ok, "the control"
    another = logged.save()
    proof.rename(another.with_name(proof_name(another.name)))
    result = logged.verify(logged.pack("b.stpack"), policy=asked)
    assert {"ST-CHAN-020", "ST-CHAN-021", "ST-CKPT-180"} == codes(result)


def signed_dataset(
    run: Run, key: PrivateKey, name: str = "prose", root: str = "22" * 32, where: Path | None = None
) -> tuple[DatasetRef, str]:
    """A dataset's statement that another key signs; its reference, and the statement's digest."""
    said = DatasetPredicate(
        name=name,
        seq=0,
        created=NOW,
        tree=TreeInfo.of(TreeParams(leaf_size=1024)),
        files=[DataFile(name="train.bin", size=9, root=root)],
        splits=[Split(name="train", files=["train.bin"])],
    )
    folder = (where or run.root) / f"data-{key.key_id[:8]}"
    folder.mkdir(parents=True)
    envelope = sign(said, name, key)
    (folder / STATEMENT).write_bytes(envelope)
    opened = open_statement(envelope, Kind.DATASET, data_trust(run, key), "")
    return DatasetRef(name=name, digest=digest_of(said)), opened.statement


def data_trust(run: Run, key: PrivateKey, role: TrustRole = TrustRole.DATASET) -> TrustRoot:
    return TrustRoot.parse(trust_bytes(run.roles.root, {role: [key]}), LATER)


def with_dataset(run: Run, ref: DatasetRef, statement: str) -> CheckpointPredicate:
    honest = run.said(dataset=ref)
    bound = replace(honest.bound, dataset=statement)
    return replace(honest, bound=bound)


def test_a_dataset_with_a_key_of_its_own(tmp_path: Path) -> None:
    """The measured defect: it broke the chain under the run's own root."""
    run, key = Run(tmp_path / "run"), PrivateKey.generate()
    data = data_trust(run, key)
    run.save(with_dataset(run, *signed_dataset(run, key)))
    run.keep()
    out = run.root / "a.stpack"
    pack(run.root / "checkpoints" / "step-00000010", out, trust=run.trust(), data=data)
    asked = policy(*SHOWN, "dataset")
    assert run.verify(out, policy=asked, data=data).ok
    # Under the run's own root alone it is nobody's dataset, and its own link says so.
    result = run.verify(out, policy=asked)
    assert codes(result) == {"ST-CHAN-015"}
    assert "ST-DATA-120" in result.problems[0].what


@pytest.mark.forgery
@pytest.mark.parametrize("lie", ["of that name", "of another key", "another statement"])
def test_another_dataset_is_named_by_its_link(tmp_path: Path, lie: str, monkeypatch: Any) -> None:
    run, key, other = Run(tmp_path / "run"), PrivateKey.generate(), PrivateKey.generate()
    data = data_trust(run, key)
    ref, statement = signed_dataset(run, key)
    match lie:
        case "of that name":
            ref = replace(ref, digest="33" * 32)
        case "of another key":
            ref, statement = signed_dataset(run, other, root="44" * 32)
        case _:
            statement = "55" * 32
    run.save(with_dataset(run, ref, statement))
    run.keep()
    out = run.root / "a.stpack"
    pack(run.root / "checkpoints" / "step-00000010", out, trust=run.trust(), data=data)
    result = run.verify(out, policy=policy(*SHOWN, "dataset"), data=data)
    assert codes(result) == {"ST-CHAN-015"}, result.problems
    link = ChainLink.DATASET
    monkeypatch.setitem(judging.JUDGES, link, lambda *_: verified(link, "anything"))
    assert run.verify(out, policy=policy(*SHOWN, "dataset"), data=data).ok, "the control"


def test_a_base_model_of_another_run_is_an_ancestor(tmp_path: Path, roles: Roles) -> None:
    """It has its own evidence, its own job and its own place; the same root names its key."""
    run = Run(tmp_path / "run", roles=roles)
    base = Run(tmp_path / "base", key=run.key, roles=roles)
    kept = base.job.pieces.pieces[base.policy]
    base.job = Job(name="job-0", roles=roles, policy=base.policy, lease=timedelta(hours=3))
    base.job.pieces.put(kept)
    file = RankFile(name="rank-00000.bin", size=9, root="ba" * 32, rank=0)
    base.save(base.said(files=[file]))
    base.keep()
    said = run.said(parents=[Parent(digest=digest_of(base.made[-1]), role=ParentRole.BASE)])
    bound = replace(said.bound, parents=base.statements)
    run.save(replace(said, bound=bound, created=NOW + 9 * MINUTE))
    run.keep()
    out = run.root / "a.stpack"
    newest = run.root / "checkpoints" / "step-00000010"
    made = pack(newest, out, trust=run.trust(), places=(base.root,), evidence=(base.root,))
    assert made.missing == ()
    result = run.verify(out, policy=policy(*SHOWN))
    assert result.ok, result.problems
    assert len(result.pack.ancestors) == 1
    # Left behind, it is missing: the descendant's own link says so, and nothing that the policy
    # asks of every ancestor is shown.
    alone = run.root / "b.stpack"
    pack(newest, alone, trust=run.trust())
    assert codes(run.verify(alone, policy=policy("parents"))) == {"ST-CHAN-018"}
    asked_of_all = {code_of(ChainLink(link)) for link in SHOWN}
    assert codes(run.verify(alone, policy=policy(*SHOWN))) == asked_of_all
    assert codes(run.verify(alone, policy=policy(*SHOWN, depth="checkpoint"))) == {"ST-CHAN-018"}


def seen_at(time: datetime) -> Any:
    """A proof that holds, by what the judge of the time reads of it."""
    return SimpleNamespace(seen=time)


@pytest.mark.forgery
def test_witnesses_sign_whole_seconds() -> None:
    """Made and seen within a second is honest, and a second too early is not."""
    for micro, second, state in ((1, 0, "verified"), (999_999, 0, "verified"), (0, 1, "broken")):
        job = Job()
        made = SEEN.replace(microsecond=micro) + timedelta(seconds=second)
        about = Subject(opened=opened(job.checkpoint(made)), logged=seen_at(SEEN))
        assert kept.judge_time(about, job.given()).state == state
