# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A signed checkpoint of Hugging Face's format, trained further on signed documents."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from securetrain.artifacts import SaveContext, sign_safetensors
from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.dataset.verified import Dataset
from securetrain.artifacts.verify import verify_path
from securetrain.core.codes import ExitCode
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.core.rundir import RunDir
from securetrain.identity.trust import TrustRole
from securetrain.ledger import verify_ledger
from securetrain.testing.processes import run_ranks
from securetrain.testing.runs import SmallRun, make_run
from securetrain.train import setup
from securetrain.train.config import JobConfig, override, parse_job
from securetrain.train.data.open import open_data
from securetrain.train.run import run_job
from securetrain.train.setup import Worker
from tests.tables import items
from tests.train.data.test_open import json_files
from tests.train.data.tokenizers import bpe
from tests.train.jobs import flip
from tests.train.models.hf_files import CONFIG, logits, make, weights
from tests.vocabulary import changed, refused

JOB = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: fine-tune
steps: 6
model: {weights: WEIGHTS}
data: {tokenizer: "model:tokenizer.json", seq_len: 16, batch_rows: 8, epochs: 9}
optimizer: {warmup_steps: 2, lr: 0.001}
checkpoint: {every: 3}
metrics: {console_every: 0, tensorboard: false}
eval: {every: 3, rows: 8}
parallel: MESH
"""


def clock() -> datetime:
    return datetime.now(UTC)


class Never:
    requested = False


def run_directory(root: Path) -> SmallRun:
    """With a signed dataset of JSON lines, and a signed model beside it."""
    made = make_run(root, clock=clock)
    for name, data in json_files().items():
        path = made.run_dir.dataset / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    sign_in_place(made.run_dir.dataset, About(name="d"), key=made.keys["dataset"], now=clock())
    model = make(root / "model")
    (model / "tokenizer.json").write_bytes(bpe())
    context = SaveContext(run_id="", step=0, created=clock(), save_id="0" * 32)
    sign_safetensors(model, key=made.keys["checkpoint"], context=context)
    return made


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., SmallRun]:
    return lambda name="run": run_directory(tmp_path / name)


def job_of(run: RunDir, mesh: str = "{}") -> JobConfig:
    text = JOB.replace("WEIGHTS", json.dumps(str(run.root / "model"))).replace("MESH", mesh)
    return parse_job(text, "job.yaml")


def train(run: RunDir, job: JobConfig | None = None, stop_after: int | None = None) -> ExitCode:
    worker = Worker(
        run=run,
        device=torch.device("cpu"),
        clock=clock,
        stop=Never(),
        console=None,
        is_node_leader=dist.get_rank() == 0,
    )
    return run_job(job or job_of(run), "job.yaml", worker, stop_after=stop_after)


def losses(run: RunDir) -> list[tuple[float, float]]:
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return [(line["loss"], line["grad_norm"]) for line in lines]


@pytest.fixture
def one_rank() -> Any:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_first_loss_is_that_of_the_formats_formula_on_the_rows_of_an_auditor(new_run, one_rank):
    made = new_run()
    run = made.run_dir
    assert train(run) is ExitCode.OK
    job = job_of(run)
    sized = parse_job(
        JOB.replace("{weights: WEIGHTS}", "{vocab: 300}").replace("MESH", "{}"), "job.yaml"
    )
    dataset = Dataset.open(run.dataset, trust=made.trust, policy=None, now=clock())
    with dataset:
        data = open_data(sized, "job.yaml", dataset, model_file=lambda _: bpe())
        inputs, targets = data.train.batch(1, range(job.data.batch_rows))
    wanted = F.cross_entropy(
        logits(CONFIG, weights(CONFIG), inputs).flatten(0, 1), targets.flatten()
    )
    found = losses(run)
    assert abs(found[0][0] - float(wanted)) < 1e-4
    assert found[-1][0] < found[0][0]


def test_what_was_trained_says_what_it_was_made_from(new_run, one_rank):
    made = new_run()
    run = made.run_dir
    train(run)
    result = verify_path(run.checkpoint(6), trust=made.trust, policy=None, now=clock())
    assert result.ok
    said: Any = result.statement
    base = verify_path(run.root / "model", trust=made.trust, policy=None, now=clock())
    assert {(p.role, p.digest) for p in said.parents} >= {("base", base.digest)}
    assert {"tokenizer", "tokenizers", "tokenizerEnd", "index", "validationIndex"} <= set(said.env)
    entries = verify_ledger(run.ledger.read_bytes(), made.trust.keys_for(TrustRole.LEDGER)).entries
    events = {entry.body.event.event: entry.body.event for entry in entries}
    assert events["weights-loaded"].details["digest"] == base.digest
    assert events["dataset-opened"].details["index"] == said.env["index"]
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert lines[0]["bits_per_byte"] is None
    assert lines[2]["val_loss"] > 0
    assert all(line["data_seconds"] >= 0 for line in lines)


def test_a_resumed_run_is_the_uninterrupted_one_and_reads_no_weights_again(new_run, one_rank):
    whole, cut = new_run("whole").run_dir, new_run("cut").run_dir
    train(whole)
    train(cut, stop_after=4)
    train(cut)
    assert losses(cut) == losses(whole)
    text = cut.ledger.read_text()
    assert text.count("weights-loaded") == 1
    assert text.count("run-resumed") == 1


def test_who_may_sign_what_comes_from_outside_stands_in_the_job(new_run, one_rank):
    """An organisation's own trust root, beside the run's, which trusts nobody else."""
    run, theirs = new_run().run_dir, new_run("organisation")
    inputs = theirs.run_dir.root
    job = job_of(run)
    outside = changed(
        job, model={"weights": str(inputs / "model")}, data={"dataset": str(theirs.run_dir.dataset)}
    )
    refused(IntegrityError, "ST-CKPT-120", train, run, outside)
    named = msgspec.structs.replace(outside, trust=str(theirs.run_dir.trust))
    assert train(run, named) is ExitCode.OK
    # The run's own trust root does not vouch for what is theirs, nor theirs for what is the run's.
    crossed = msgspec.structs.replace(
        named, data=msgspec.structs.replace(job.data, dataset=str(run.dataset))
    )
    refused(IntegrityError, "ST-DATA-120", train, new_run("third").run_dir, crossed)


def spoil_weights(run: RunDir) -> None:
    path = run.root / "model" / "model.safetensors"
    flip(path, -1)


def spoil_tokenizer(run: RunDir) -> None:
    path = run.root / "model" / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b"</s>", b"<!s>"))


def spoil_config(run: RunDir) -> None:
    path = run.root / "model" / "config.json"
    path.write_bytes(path.read_bytes().replace(b"5000.0", b"5001.0"))


@items(
    "spoil, code, event",
    (spoil_weights, "ST-CKPT-130", "weights-refused"),
    (spoil_tokenizer, "ST-CKPT-132", "dataset-refused"),
    (spoil_config, "ST-CKPT-132", "weights-refused"),
)
def test_a_model_that_is_not_as_signed_is_refused_and_recorded(
    new_run, one_rank, spoil, code, event
):
    run = new_run().run_dir
    spoil(run)
    refused(IntegrityError, code, train, run)
    assert event in run.ledger.read_text()
    assert not list(run.checkpoints.iterdir())


def test_a_size_that_contradicts_the_weights_is_refused(new_run, one_rank):
    run = new_run().run_dir
    text = JOB.replace("{weights: WEIGHTS}", f"{{weights: '{run.root / 'model'}', layers: 7}}")
    with pytest.raises(UsageError) as caught:
        train(run, parse_job(text.replace("MESH", "{}"), "job.yaml"))
    assert caught.value.where == "job.yaml: model.layers"
    assert "config.json of the weights says 2" in caught.value.what


def test_ranks_that_would_read_other_rows_refuse_each_other(new_run, one_rank, monkeypatch):
    """Rank 0 has another version of the tokenizer's library, say."""
    run = new_run().run_dir
    monkeypatch.setattr(setup, "rank_zero_decides", lambda decide, device: decide() ^ 1)
    refused(IntegrityError, "ST-DATA-133", train, run, says="not that of rank 0")


def test_a_folder_that_is_not_there_is_named(new_run, one_rank):
    run = new_run().run_dir
    job = parse_job(JOB.replace("WEIGHTS", "nowhere").replace("MESH", "{}"), "job.yaml")
    refused(UsageError, "no directory nowhere", train, run, job)


def test_a_job_that_needs_more_data_is_refused_before_its_first_step(new_run, one_rank):
    run = new_run().run_dir
    with pytest.raises(SecureTrainError) as caught:
        train(run, override(job_of(run), "job.yaml", steps=10**6))
    assert caught.value.code == "ST-USAG-014"
    assert not run.metrics.exists()


def train_mesh(root: str, mesh: str) -> None:
    run = RunDir(Path(root))
    train(run, job_of(run, mesh))


@pytest.mark.dist
@pytest.mark.slow
@items("ranks, mesh", (4, "{dp_shard: 2, tp: 2}"), (2, "{pp: 2}"))
def test_every_mesh_starts_from_the_same_weights_and_reads_the_same_rows(
    new_run, tmp_path, ranks, mesh
):
    alone, many = new_run("alone").run_dir, new_run("many").run_dir
    run_ranks(train_mesh, 1, str(alone.root), "{}", timeout=120)
    run_ranks(train_mesh, ranks, str(many.root), mesh, timeout=200)
    for (loss, norm), (loss_alone, norm_alone) in zip(losses(many), losses(alone), strict=True):
        assert abs(loss - loss_alone) < 2e-4
        assert abs(norm / norm_alone - 1) < 1e-2
    assert len(list(many.index.iterdir())) == 2
