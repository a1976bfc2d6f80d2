# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A small copy of a job's model: what the mesh cuts of the large one it cuts of it, and a job whose
copy differs does not begin.
"""

import pytest
import torch

from securetrain.cli.main import main
from securetrain.core import ExitCode
from securetrain.core.errors import RuntimeRefusal
from securetrain.parallel import Degrees, Settings, engine, make_mesh, num_stages
from securetrain.testing.processes import run_ranks
from securetrain.train.composition import check_composition, check_world
from securetrain.train.config import parse_job, settings_of, shape_of
from securetrain.train.self_check import (
    check_job,
    check_rank,
    small_degrees,
    small_settings,
    small_shape,
)
from tests.parallel.matrix import MATRIX
from tests.train.jobs import JOB
from tests.train.test_run import recorded, train
from tests.vocabulary import refused

TEXT = JOB.replace("batch_rows: 4", "batch_rows: 8").replace("rows: 4", "rows: 8")


def job_of(case, model=None):
    lines = [line for line in TEXT.splitlines() if not line.startswith("model:")]
    lines += [f"model: {model or case.model}", f"parallel: {case.parallel}", case.extra]
    return parse_job("\n".join(lines) + "\n", "job.yaml")


@pytest.mark.parametrize("case", MATRIX, ids=lambda case: case.name)
def test_every_mesh_can_cut_the_small_shape(case):
    job = job_of(case)
    degrees = check_world(job, case.ranks, "job.yaml")
    settings, large = settings_of(job), shape_of(job)
    shape = small_shape(large, degrees, settings)
    assert shape.layers >= max(2, num_stages(settings.schedule, degrees.pp))
    assert bool(shape.experts) == bool(large.experts)
    assert (shape.keys < shape.heads) == (large.keys < large.heads)
    text = (
        f"{{dim: {shape.dim}, layers: {shape.layers}, heads: {shape.heads}, ffn: {shape.ffn},"
        f" kv_heads: {shape.keys}, head_size: 8, experts: {shape.experts}}}"
    )
    check_composition(job_of(case, text), degrees, "job.yaml")
    small = small_settings(settings, degrees)
    assert small.microbatches <= settings.microbatches
    assert small_degrees(degrees).world <= degrees.world


def test_large_meshes_get_two_ranks_on_an_axis():
    large = Degrees(pp=8, dp_replicate=3, dp_shard=16, cp=2, tp=8, ep=16)
    assert small_degrees(large) == Degrees(pp=2, dp_replicate=2, dp_shard=2, cp=2, tp=2, ep=2)
    settings = Settings(microbatches=64)
    assert small_settings(settings, large).microbatches == 8
    assert small_settings(settings, Degrees()).microbatches == 2


PARALLEL = "parallel: {dp_shard: 2}\n"


@pytest.mark.dist
def test_plan_checks_a_small_mesh_here(tmp_path, capsys, monkeypatch):
    path = tmp_path / "job.yaml"
    path.write_text(JOB + PARALLEL + "precision: bf16\n")
    arguments = ["plan", str(path), "--nproc-per-node", "2", "--check", "--json"]
    assert main(arguments) == 0
    said = capsys.readouterr().err
    assert said.startswith("checked: 2 steps of a small copy on dp_shard 2 equal one process")
    assert said.endswith("; not compared: precision\n")
    found = ("ST-RUNT-013", "the output of layers.1 differs", "layers.1", "")
    monkeypatch.setattr("securetrain.drills.run_ranks", lambda *_, **__: [found])
    assert main(arguments) == ExitCode.FAILURE
    assert '"what": "the output of layers.1 differs"' in capsys.readouterr().out


def all_cases(cases):
    found = {}
    for case in cases:
        job = job_of(case)
        degrees = check_world(job, case.ranks, "job.yaml")
        found[case.name] = check_rank(job, degrees)
    return found


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.many
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_meshes_of_the_matrix_pass(ranks):
    cases = [case for case in MATRIX if case.ranks == ranks]
    for found in run_ranks(all_cases, ranks, cases, timeout=60 + 20 * len(cases)):
        for name, result in found.items():
            assert not isinstance(result, tuple), (name, result)
            assert max(result.loss, result.norm) < 1e-5, name


@pytest.mark.usefixtures("one_rank")
def test_a_job_whose_copy_differs_does_not_begin(new_run, monkeypatch):
    made = new_run()
    with monkeypatch.context() as patched:
        # The mesh's loss is wrong, and the reference's is its own.
        patched.setattr(engine, "detach_loss", lambda loss: 1.01 * loss.detach())
        said = "the loss, behind the last block"
        refused(RuntimeRefusal, "ST-RUNT-013", train, made.run_dir, says=said)
    assert recorded(made)[1:] == [
        ("dataset-opened", "allow", ""),
        ("mesh-refused", "refuse", "ST-RUNT-013"),
    ]
    assert not made.run_dir.checkpoints.exists() or not list(made.run_dir.checkpoints.glob("step*"))
    # Begun again it is checked, and gone on with it is not.
    assert train(made.run_dir, stop_after=1) is ExitCode.OK
    assert train(made.run_dir, resume="auto", stop_after=2) is ExitCode.OK
    assert [event for event, *_ in recorded(made)].count("mesh-checked") == 1


@pytest.mark.usefixtures("one_rank")
def test_nothing_of_the_process_is_changed():
    mesh = make_mesh(Degrees(), "cpu")
    before = torch.get_rng_state()
    found = check_job(parse_job(JOB, "job.yaml"), mesh, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
    assert found.steps == 2
    assert found.left_out == ()
