# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whole runs: what is written, what is refused, and that a resumed run is the same run."""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from cryptography.hazmat.primitives import serialization

from securetrain.artifacts.dataset.verified import sign_documents
from securetrain.artifacts.lineage import quarantine
from securetrain.artifacts.lineage.quarantine import Quarantine
from securetrain.artifacts.statement.statements import CheckpointPredicate, open_statement
from securetrain.artifacts.tree.encryption import DecryptionKey
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.verify import verify_path
from securetrain.core import canonical
from securetrain.core.codes import ExitCode
from securetrain.core.errors import GuardError, IntegrityError, SecureTrainError
from securetrain.core.files import write_atomic
from securetrain.core.rundir import RunDir
from securetrain.core.vocabulary import Decision
from securetrain.guard import Verdict
from securetrain.guard.verdict import StepRecord
from securetrain.identity.trust import TrustRole
from securetrain.ledger import events, read_ledger, verify_ledger
from securetrain.policy.load import bundled_dir, load_resolved
from securetrain.policy.schema import GuardResponse
from securetrain.testing.processes import run_ranks
from securetrain.testing.runs import SmallRun
from securetrain.train.checkpointing import Checkpoints
from securetrain.train.config import JobConfig, override, parse_job
from securetrain.train.run import FIRST_TIMEOUT, STEADY_TIMEOUT, _Loop, run_job
from securetrain.train.setup import Worker, open_session
from securetrain.train.trainer import Trainer
from tests import vocabulary
from tests.train.conftest import now
from tests.train.jobs import JOB, flip

pytestmark = pytest.mark.usefixtures("one_rank")

NewRun = Callable[..., SmallRun]


@dataclass
class StopAt:
    """Asks to stop when it has been asked this often."""

    calls: int = 10**9

    @property
    def requested(self) -> bool:
        self.calls -= 1
        return self.calls < 0


def worker(run: RunDir, stop: StopAt | None = None, console: io.StringIO | None = None) -> Worker:
    return Worker(
        run=run,
        device=torch.device("cpu"),
        clock=now,
        stop=stop or StopAt(),
        console=console,
    )


def train(
    run: RunDir,
    job: JobConfig | None = None,
    *,
    resume: str | None = None,
    stop: StopAt | None = None,
    stop_after: int | None = None,
) -> ExitCode:
    job = override(job or parse_job(JOB, "job.yaml"), "job.yaml", resume=resume)
    return run_job(job, "job.yaml", worker(run, stop), stop_after=stop_after)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def curve(run: RunDir) -> list[tuple[Any, ...]]:
    keys = ("step", "loss", "grad_norm", "lr", "val_bits_per_byte", "tokens", "verdict")
    return [tuple(line[key] for key in keys) for line in lines(run.metrics)]


def recorded(run: SmallRun) -> list[tuple[str, str, str]]:
    data = run.run_dir.ledger.read_bytes()
    verified = verify_ledger(data, run.trust.keys_for(TrustRole.LEDGER))
    return [
        (e.body.event.event, e.body.event.decision, e.body.event.code) for e in verified.entries[1:]
    ]


def weights(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.glob("rank-*.bin")}


def test_a_run_writes_what_it_should(new_run: NewRun):
    made = new_run()
    run = made.run_dir
    console = io.StringIO()
    job = parse_job(
        JOB.replace("console_every: 0, tensorboard: false", "console_every: 2"), "job.yaml"
    )
    assert run_job(job, "job.yaml", worker(run, console=console)) is ExitCode.OK
    metrics = lines(run.metrics)
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    assert {line["verdict"] for line in metrics} == {"clean"}
    assert [line["val_bits_per_byte"] is not None for line in metrics] == [0, 0, 1, 0, 0, 1]
    assert metrics[-1]["bigram_bits"] < metrics[-1]["unigram_bits"] < 8
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    assert metrics[0]["mfu"] is None
    assert metrics[-1]["tokens"] == 6 * 4 * 32
    records = [json.loads(line) for line in run.sketches.read_text().splitlines()]
    assert [r["verdict"]["step"] for r in records] == [1, 2, 3, 4, 5, 6]
    assert set(records[0]) == set(StepRecord.__struct_fields__)
    assert list(run.tensorboard.glob("events.out.tfevents.*"))
    text = console.getvalue()
    assert "step 2/6" in text
    assert "done: 6 steps" in text
    assert recorded(made)[1:] == [
        ("dataset-opened", Decision.ALLOW, ""),
        ("mesh-checked", Decision.ALLOW, ""),
        ("checkpoint-signed", Decision.ALLOW, ""),
        ("checkpoint-signed", Decision.ALLOW, ""),
        ("training-finished", Decision.OBSERVE, ""),
    ]
    names = sorted(p.name for p in run.checkpoints.iterdir() if p.name != ".head.lock")
    assert names == ["head.json", "step-00000003", "step-00000006"]
    # What was trained is proven by its statement alone.
    for name in names[1:]:
        result = verify_path(run.checkpoints / name, trust=made.trust, policy=None, now=now())
        assert result.ok, result.problems
    said: Any = result.statement
    assert said.step == 6
    assert said.gradients.verdict == "clean"
    assert said.gradients.judged == 6
    assert said.dataset.cursor["step"] == 6
    assert said.policy.digest == made.policy.digest
    assert len(said.parents) == 1
    assert said.run_id.startswith("job-")
    assert said.code["job"] == "tiny"


def test_a_resumed_run_equals_the_uninterrupted_one(new_run: NewRun):
    whole, cut = new_run("whole"), new_run("cut")
    assert train(whole.run_dir) is ExitCode.OK
    # Stopped by a signal in step 4, between two checkpoints; then killed while writing a line.
    assert train(cut.run_dir, stop=StopAt(3)) is ExitCode.INTERRUPTED
    assert [p.name for p in sorted(cut.run_dir.checkpoints.iterdir())][-1] == "step-00000004"
    with cut.run_dir.metrics.open("a") as file:
        file.write('{"step": 5, "lo')
    assert train(cut.run_dir) is ExitCode.OK
    assert curve(cut.run_dir) == curve(whole.run_dir)
    last = "step-00000006"
    assert weights(cut.run_dir.checkpoints / last) == weights(whole.run_dir.checkpoints / last)
    found = [name for name, _, _ in recorded(cut)]
    assert found.count("run-resumed") == 1
    # A finished run has nothing left to do.
    before = cut.run_dir.metrics.read_bytes()
    assert train(cut.run_dir) is ExitCode.OK
    assert cut.run_dir.metrics.read_bytes() == before


def test_a_run_encrypts_for_whom_its_policy_names(new_run: NewRun, tmp_path: Path) -> None:
    key = DecryptionKey.generate()
    path = tmp_path / "storage.key"
    write_atomic(
        path,
        key.native.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        mode=0o600,
    )
    policy = Path(bundled_dir("policies") / "dev.yaml").read_text()
    recipient = key.recipient.public.hex()
    (tmp_path / "policy.yaml").write_text(
        policy.replace("\ncheckpoint:", f"\ncheckpoint:\n  encrypt_to: [{recipient}]", 1)
        if "\ncheckpoint:" in policy
        else f"{policy}\ncheckpoint:\n  encrypt_to: [{recipient}]\n"
    )
    run = new_run("sealed", policy=str(tmp_path / "policy.yaml"))
    assert train(run.run_dir, stop_after=3) is ExitCode.OK
    step = max(run.run_dir.checkpoints.glob("step-*"))
    opened = open_statement((step / STATEMENT).read_bytes(), Kind.CHECKPOINT, run.trust)
    assert isinstance(opened.predicate, CheckpointPredicate)
    assert all(file.sealed is not None for file in opened.predicate.files)
    vocabulary.refused(IntegrityError, "ST-CKPT-124", train, run.run_dir)
    job = parse_job(JOB, "job.yaml")
    asked = msgspec.structs.replace(job.checkpoint, decryption_key=str(path))
    assert train(run.run_dir, msgspec.structs.replace(job, checkpoint=asked)) is ExitCode.OK


def two_rank_runs(whole: Path, cut: Path) -> None:
    assert train(RunDir(whole)) is ExitCode.OK
    assert train(RunDir(cut), stop_after=3) is ExitCode.OK
    assert train(RunDir(cut)) is ExitCode.OK


def test_another_runs_checkpoint_counts_under_the_trust_root_that_the_job_names(new_run: NewRun):
    first, second, third = new_run("first"), new_run("second"), new_run("third")
    assert train(first.run_dir) is ExitCode.OK
    middle = first.run_dir.checkpoint(3)

    def under(run: RunDir) -> JobConfig:
        plain = parse_job(JOB, "job.yaml")
        data = msgspec.structs.replace(plain.data, dataset=str(run.dataset))
        return msgspec.structs.replace(plain, trust=str(run.trust), data=data)

    job = under(first.run_dir)
    assert train(second.run_dir, job, resume=str(middle)) is ExitCode.OK
    # No key of the first run was needed, and the steps are its own, bit for bit.
    assert curve(second.run_dir) == curve(first.run_dir)[3:]
    assert weights(second.run_dir.checkpoint(6)) == weights(first.run_dir.checkpoint(6))
    # Not without the root, and not under another one.
    for n, wrong in enumerate((None, under(third.run_dir))):
        with pytest.raises(IntegrityError) as caught:
            train(new_run(f"refused-{n}").run_dir, wrong, resume=str(middle))
        assert caught.value.code == "ST-CKPT-120"


@pytest.mark.dist
def test_resuming_on_two_ranks_and_on_another_number(new_run: NewRun):
    alone, whole, cut = new_run("alone"), new_run("whole"), new_run("cut")
    run_ranks(two_rank_runs, 2, whole.run_dir.root, cut.run_dir.root, timeout=120)
    assert curve(cut.run_dir) == curve(whole.run_dir)
    last = "step-00000006"
    assert weights(cut.run_dir.checkpoints / last) == weights(whole.run_dir.checkpoints / last)
    assert len(weights(cut.run_dir.checkpoints / last)) == 2
    # Two ranks saved step 3; one rank goes on and computes the same, up to the order of sums.
    from_two = cut.run_dir.checkpoints / "step-00000003"
    with pytest.raises(SecureTrainError) as caught:
        train(alone.run_dir, resume=str(from_two))
    assert caught.value.code == "ST-CKPT-120", "another run's key is not trusted here"
    shutil.rmtree(cut.run_dir.checkpoints / last)
    job = parse_job(JOB, "job.yaml")
    assert train(cut.run_dir, job, resume=str(from_two)) is ExitCode.OK
    for got, want in zip(curve(cut.run_dir), curve(whole.run_dir), strict=True):
        assert got[:1] == want[:1]
        assert got[1:3] == pytest.approx(want[1:3], rel=1e-4)


def refused(run: SmallRun, **options: Any) -> str:
    with pytest.raises(SecureTrainError) as caught:
        train(run.run_dir, **options)
    assert recorded(run)[-1][1:] == (Decision.REFUSE, caught.value.code)
    return caught.value.code


def test_a_changed_byte_of_the_dataset_is_refused(new_run: NewRun):
    made = new_run()
    path = made.run_dir.dataset / "train.bin"
    before = path.read_bytes()[100]
    flip(path, 100)
    # A plain loader takes what is there.
    assert torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)[100] != before
    assert refused(made) == "ST-DATA-130"
    assert not run_has_trained(made)


def test_an_unsigned_dataset_is_refused(new_run: NewRun):
    made = new_run()
    (made.run_dir.dataset / "statement.json").unlink()
    assert refused(made) == "ST-DATA-100"
    assert not run_has_trained(made)


def test_a_dataset_that_others_signed_is_refused(new_run: NewRun):
    made, other = new_run(), new_run("other")
    job = parse_job(
        JOB.replace("{seq_len: 32", f"{{dataset: {other.run_dir.dataset}, seq_len: 32"), "job.yaml"
    )
    assert refused(made, job=job) == "ST-DATA-120"


def run_has_trained(run: SmallRun) -> bool:
    return run.run_dir.metrics.exists() and bool(run.run_dir.metrics.read_text())


def test_a_changed_checkpoint_is_refused(new_run: NewRun):
    made = new_run()
    train(made.run_dir, stop_after=3)
    flip(made.run_dir.checkpoint(3) / "rank-00000.bin", 1000)
    assert refused(made) == "ST-CKPT-130"


def test_a_checkpoint_that_was_rolled_back_is_refused_unless_asked_for(new_run: NewRun):
    made = new_run()
    train(made.run_dir)
    shutil.rmtree(made.run_dir.checkpoint(6))
    # Signed, whole and allowed by the policy: only the ledger knows that it is not the newest.
    old = made.run_dir.checkpoint(3)
    assert verify_path(old, trust=made.trust, policy=None, now=now()).ok
    assert refused(made) == "ST-CKPT-150"
    shutil.rmtree(made.run_dir.checkpoint(3))
    assert refused(made) == "ST-CKPT-150"


def test_an_old_checkpoint_under_a_new_name_is_refused(new_run: NewRun):
    made = new_run()
    train(made.run_dir)
    shutil.copytree(made.run_dir.checkpoint(3), made.run_dir.checkpoint(9))
    assert refused(made) == "ST-CKPT-150"


def test_a_checkpoint_of_another_dataset_is_not_continued(new_run: NewRun):
    """T36: the run's own key has signed both, and still they do not belong together."""
    made = new_run()
    train(made.run_dir)
    shutil.rmtree(made.run_dir.dataset)
    rows = [("train", "a.txt", b"other words " * 400), ("validation", "b.txt", b"and more " * 400)]
    key = made.keys["dataset"]
    sign_documents(rows, made.run_dir.dataset, name="prose", key=key, now=now())
    assert refused(made) == "ST-CKPT-170"


def test_asking_by_path_goes_back(new_run: NewRun):
    made = new_run()
    train(made.run_dir)
    before = curve(made.run_dir)
    old = made.run_dir.checkpoint(3)
    shutil.rmtree(made.run_dir.checkpoint(6))
    assert train(made.run_dir, resume=str(old)) is ExitCode.OK
    assert curve(made.run_dir) == before


def test_never_does_not_write_over_a_run(new_run: NewRun):
    made = new_run()
    train(made.run_dir, stop_after=3)
    vocabulary.refused(SecureTrainError, "ST-USAG-005", train, made.run_dir, resume="never")


def test_a_missing_dataset_is_a_clear_error(new_run: NewRun):
    made = new_run()
    shutil.rmtree(made.run_dir.dataset)
    vocabulary.refused(
        SecureTrainError, "ST-USAG-007", train, made.run_dir, names="job.yaml: data.dataset"
    )


def test_another_split_is_a_clear_error(new_run: NewRun):
    job = parse_job(JOB.replace("seq_len: 32", "seq_len: 32, train_split: tests"), "job.yaml")
    with pytest.raises(SecureTrainError) as caught:
        train(new_run().run_dir, job)
    assert caught.value.code == "ST-USAG-007"
    assert caught.value.where == "job.yaml: data.train_split"


def set_aside(made: SmallRun, step: int) -> Path:
    """What the launcher does when a node is evicted that last proved itself before `step`."""
    path = made.run_dir.checkpoint(step)
    opened = open_statement((path / "statement.json").read_bytes(), Kind.CHECKPOINT, made.trust)
    why = Quarantine(node="node-b", code="ST-ATTS-007", last_good=now(), epoch=0, created=now())
    ledger = made.ledger()
    error = IntegrityError("ST-CKPT-160", "in doubt", path.name)
    ledger.write(
        events.CheckpointQuarantined(
            subject=path.name, step=step, digest=opened.digest, **events.because(error)
        )
    )
    ledger.write(events.EpochStarted(epoch=7))
    return quarantine.set_aside(path, opened, why, made.keys["checkpoint"])


def test_a_run_goes_on_from_before_what_was_set_aside(new_run: NewRun):
    made = new_run()
    train(made.run_dir)
    before, last = curve(made.run_dir), weights(made.run_dir.checkpoint(6))
    moved = set_aside(made, 6)
    assert train(made.run_dir) is ExitCode.OK
    assert curve(made.run_dir) == before
    assert weights(made.run_dir.checkpoint(6)) == last
    found = verify_path(made.run_dir.checkpoint(6), trust=made.trust, policy=None, now=now())
    assert found.ok
    assert isinstance(found.statement, CheckpointPredicate)
    assert found.statement.epoch == 7
    assert moved.is_dir()
    assert train(made.run_dir) is ExitCode.OK  # made again, it is the run's own again


def test_a_run_goes_on_from_the_beginning_when_everything_was_set_aside(new_run: NewRun):
    made = new_run()
    train(made.run_dir, stop_after=3)
    set_aside(made, 3)
    assert train(made.run_dir) is ExitCode.OK
    assert [line["step"] for line in lines(made.run_dir.metrics)] == [1, 2, 3, 4, 5, 6]


def test_what_was_set_aside_does_not_come_back(new_run: NewRun):
    """With its record, and without it: then it is signed, whole and one step after the ledger's."""
    made = new_run()
    train(made.run_dir)
    moved = set_aside(made, 6)
    moved.rename(made.run_dir.checkpoint(6))
    assert refused(made) == "ST-CKPT-160"
    (made.run_dir.checkpoint(6) / "quarantine.json").unlink()
    path = made.run_dir.checkpoint(6)
    assert verify_path(path, trust=made.trust, policy=None, now=now()).ok
    assert refused(made) == "ST-CKPT-160"


def test_the_first_rank_of_another_node_enters_what_it_took_part_in(new_run: NewRun):
    made = new_run()
    trained = worker(made.run_dir)
    session = open_session(
        parse_job(JOB, "job.yaml"), "job.yaml", replace(trained, is_node_leader=True)
    )
    try:
        session.checkpoints.is_rank_zero = False
        session.checkpoints.save(session.trainer)
    finally:
        session.close()
    assert recorded(made)[-1] == ("checkpoint-seen", Decision.OBSERVE, "")


def test_a_trust_root_of_the_inputs_that_is_not_there_is_recorded(new_run: NewRun):
    made = new_run()
    job = parse_job(f"{JOB}trust: {made.run_dir.root / 'nowhere.json'}\n", "job.yaml")
    assert refused(made, job=job) == "ST-USAG-002"
    assert recorded(made)[-1][0] == "inputs-refused"


def test_what_the_guard_refuses_is_recorded(new_run: NewRun):
    made = new_run()
    session = SimpleNamespace(
        worker=SimpleNamespace(is_rank_zero=True),
        ledger=made.ledger("rank-0"),
        trainer=SimpleNamespace(progress=SimpleNamespace(step=3)),
    )
    loop: Any = SimpleNamespace(session=session)
    settled = Verdict(
        step=3, ok=False, response=GuardResponse.EXCLUDE_RANK, codes=("ST-GRAD-001",),
        outliers=(1,), reason="rank 1's gradient is not finite", settled=True, excluded=(1,),
        newly_excluded=(1,), readmitted=(2,),
    )  # fmt: skip
    refusal, halt = GuardError("ST-GRAD-002", "rank 1"), GuardError("ST-GRAD-005", "the third")
    for result in (
        SimpleNamespace(refusal=None, halt=None, judged=None),
        SimpleNamespace(refusal=refusal, halt=None, judged=None),
        SimpleNamespace(refusal=refusal, halt=halt, judged=None),
        SimpleNamespace(refusal=None, halt=None, judged=settled),
    ):
        _Loop._record(loop, result)  # type: ignore[arg-type]
    found = read_ledger(made.run_dir.ledger.read_bytes(), made.trust)
    assert found.events[1:] == (
        events.StepRefused.of(refusal, "step 3"),
        events.StepRefused.of(refusal, "step 3"),
        events.RunHalted.of(halt, "step 3"),
        events.StepSettled(subject="step 3", codes="ST-GRAD-001", reason=settled.reason),
        events.RankExcluded(
            subject="step 3",
            rank=1,
            codes="ST-GRAD-001",
            evidence=settled.reason,
            effect="reduced without it",
        ),
        events.RankReadmitted(subject="step 3", rank=2),
    )


def test_a_run_without_a_checkpoint_from_before_goes_on_and_says_so(new_run: NewRun):
    made = new_run()
    session = open_session(parse_job(JOB, "job.yaml"), "job.yaml", worker(made.run_dir))
    verdict = Verdict(
        step=9, ok=False, response=GuardResponse.ROLLBACK, newly_excluded=(2,), roll_back_to=3
    )
    try:
        session.trainer.progress.step = 6
        session.checkpoints.save(session.trainer)
        assert session.checkpoints.roll_back(session.trainer, verdict) is None
        assert session.trainer.progress.step == 6, "as it was"
    finally:
        session.close()
    said = read_ledger(made.run_dir.ledger.read_bytes(), made.trust).events[-1]
    assert said == events.RollbackImpossible(subject="step 9", since=3, ranks="2")


def test_a_rollback_without_a_launcher_is_refused(new_run: NewRun):
    made = new_run()
    policy = load_resolved(made.run_dir.resolved_policy).policy
    gradients = msgspec.structs.replace(policy.gradients, response=GuardResponse.ROLLBACK)
    changed = msgspec.structs.replace(policy, gradients=gradients)
    write_atomic(made.run_dir.resolved_policy, canonical.encode(changed))
    assert refused(made) == "ST-GRAD-021"


def test_a_checkpoint_may_take_longer_than_a_step(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's own group is tight in steps, and patient while a checkpoint is stored."""
    now_is = [FIRST_TIMEOUT]
    seen: list[tuple[str, timedelta]] = []

    def tell(what: str, name: str, owner: type) -> None:
        original = getattr(owner, name)

        def told(*args: Any, **named: Any) -> Any:
            seen.append((what, now_is[0]))
            return original(*args, **named)

        monkeypatch.setattr(owner, name, told)

    def set_timeout(timeout: timedelta, _group: object = None) -> None:
        now_is[0] = timeout

    monkeypatch.setattr("securetrain.train.run._set_pg_timeout", set_timeout)
    tell("step", "train_step", Trainer)
    tell("save", "save", Checkpoints)
    train(new_run().run_dir)
    steps = [timeout for what, timeout in seen if what == "step"]
    assert steps == [FIRST_TIMEOUT] + [STEADY_TIMEOUT] * 5
    assert [timeout for what, timeout in seen if what == "save"] == [FIRST_TIMEOUT] * 2
