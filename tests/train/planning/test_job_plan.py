# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from securetrain.cli.jobs.plan import command
from securetrain.core.errors import UsageError
from securetrain.parallel.degrees import Axis, Degrees
from securetrain.train.config import JobConfig, parse_job
from securetrain.train.planning.axis_groups import groups_of
from securetrain.train.planning.devices import DEVICES, GIB, Device
from securetrain.train.planning.job_plan import JobPlan, make_plan
from tests.vocabulary import refused

EXAMPLES = Path(__file__).parents[3] / "examples"

BIG = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: big
steps: 10
precision: bf16
model: {dim: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256}
data: {seq_len: 8192, batch_rows: 128}
eval: {rows: 128}
"""


def job_of(parallel: str, text: str = BIG) -> JobConfig:
    return parse_job(f"{text}parallel: {parallel}\n", "job.yaml")


def plan_of(parallel: str, nodes: int = 1, device: Device | None = DEVICES["h200"]) -> JobPlan:
    return make_plan(job_of(parallel), "job.yaml", per_node=8, nodes=nodes, device=device)


def test_512_ranks_are_laid_out_in_one_process():
    plan = plan_of("{pp: 4, dp_replicate: 2, tp: 8, microbatches: 8}", nodes=64)
    assert plan.degrees == Degrees(pp=4, dp_replicate=2, dp_shard=8, tp=8)
    assert plan.fits
    assert [rank.layers for rank in plan.ranks] == [
        tuple(range(8 * n, 8 * n + 8)) for n in range(4)
    ]
    # The ends have embedding and head; those between are alike.
    ends, between = plan.ranks[0].parameters, plan.ranks[1].parameters
    assert ends > between == plan.ranks[2].parameters
    groups = {group.axis: group for group in plan.groups}
    assert groups[Axis.TP].first == tuple(range(8))
    assert groups[Axis.TP].nodes == 1
    assert groups[Axis.PP].first == (0, 128, 256, 384)
    assert not any("tp groups" in warning for warning in plan.warnings)


def test_what_does_not_fit_is_a_finding_with_a_mesh_that_does():
    plan = plan_of("{dp_replicate: 8}")
    assert plan.fits is False
    assert plan.suggestion
    changed = dict(line.split(": ") for line in plan.suggestion)
    parallel = {k.removeprefix("parallel."): v for k, v in changed.items() if "parallel" in k}
    compute = {k.removeprefix("compute."): v for k, v in changed.items() if "compute" in k}

    def mapping(values: dict[str, str]) -> str:
        return "{" + ", ".join(f"{k}: {v}" for k, v in values.items()) + "}"

    again = job_of(mapping(parallel), f"{BIG}compute: {mapping(compute)}\n")
    found = make_plan(again, "job.yaml", per_node=8, nodes=1, device=DEVICES["h200"])
    assert found.fits, found.fullest.memory


def test_suggestions_are_the_fastest_that_fit_and_say_why():
    plan = plan_of("{dp_replicate: 8}")
    times = [found.time.total for found in plan.suggestions if found.time is not None]
    assert 1 < len(times) == len(plan.suggestions) <= 3
    # Estimates within a fiftieth are alike, and the smaller change comes first.
    assert all(before <= after * 1.03 for before, after in pairwise(times))
    assert plan.suggestion == plan.suggestions[0].fields
    for found in plan.suggestions:
        assert found.fields
        assert found.memory * (1 + plan.error) <= DEVICES["h200"].budget
    assert len({found.degrees for found in plan.suggestions}) == len(plan.suggestions)


def test_a_job_that_fits_is_told_of_what_is_faster_by_more_than_a_little():
    slow = plan_of("{tp: 8, pp: 2, microbatches: 8}", nodes=4)
    assert slow.fits
    assert not slow.suggestion
    assert slow.time is not None
    assert slow.suggestions
    for found in slow.suggestions:
        assert found.time is not None
        assert found.time.total < 0.9 * slow.time.total


def test_without_a_speed_the_smallest_change_that_fits_comes_first():
    plan = plan_of("{}", device=Device("a device", 100 * 10**9))
    assert plan.time is None
    assert plan.suggestion
    assert all(line.startswith(("parallel.micro", "compute.")) for line in plan.suggestion)
    assert all(found.time is None for found in plan.suggestions)


LARGEST = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: largest
steps: 10
precision: bf16
model: {dim: 16384, layers: 126, heads: 128, kv_heads: 8, ffn: 53248, vocab: 128256}
data: {seq_len: 8192, batch_rows: 4096}
eval: {rows: 4096}
"""


def test_suggestions_for_16384_ranks_are_for_16384_ranks():
    job = job_of("{pp: 16, tp: 8, microbatches: 32}", LARGEST)
    plan = make_plan(job, "job.yaml", per_node=8, nodes=2048, device=DEVICES["h100"])
    assert plan.suggestions
    assert all(found.degrees.world == 16384 for found in plan.suggestions)
    # Parameters over thousands of ranks: nobody measured that, and the plan says so.
    wide = [found for found in plan.suggestions if found.degrees.fsdp > 512]
    assert all(any("compared up to 64" in why for why in found.beyond) for found in wide)
    assert plan.beyond == ("fsdp over 128 nodes, compared up to 64",)
    small = make_plan(job, "job.yaml", per_node=8, nodes=2048, device=DEVICES["l4"])
    assert small.beyond == ("no l4 was compared", *plan.beyond)
    assert not plan_of("{}").beyond


def test_what_is_cut_where():
    job = job_of("{pp: 2, tp: 2, dp_shard: 2, microbatches: 4}")
    plan = make_plan(job, "job.yaml", per_node=8, nodes=1, device=None, explain=True)
    cuts = {cut.name: cut for cut in plan.cuts}
    queries, down = cuts["layers.*.attention.wq.weight"], cuts["layers.*.feed_forward.w2.weight"]
    assert queries.whole == (4096, 4096)
    assert queries.axes == ("fsdp 0", "tp 0")
    assert queries.local == (1024, 4096)
    assert down.axes == ("fsdp 0", "tp 1")
    assert down.local == (2048, 7168)
    assert cuts["layers.*.attention_norm.weight"].axes == ("fsdp 0", "tp whole")
    # Those of the other stage are there, too.
    assert {"tok_embeddings.weight", "norm.weight", "output.weight"} <= set(cuts)


def test_nothing_fits_into_nothing():
    plan = plan_of("{}", device=Device("tiny", 4 * GIB))
    assert plan.fits is False
    assert not plan.suggestion


def test_tensor_parallelism_over_nodes_is_warned_about():
    plan = make_plan(
        job_of("{tp: 8}"), "job.yaml", per_node=4, nodes=2, device=DEVICES["h200"]
    )  # fmt: skip
    assert any("tp groups reach over 2 nodes" in warning for warning in plan.warnings)


def test_a_long_wait_is_warned_about():
    plan = plan_of("{pp: 8, microbatches: 8}")
    assert plan.bubble == pytest.approx(7 / 15)
    assert any("wait 47%" in warning for warning in plan.warnings)


def test_traffic_is_counted_for_the_axes_that_there_are():
    plan = plan_of("{dp_replicate: 2, tp: 4, dp_shard: 1}")
    traffic = plan.fullest.traffic
    assert set(traffic) == {Axis.DP_REPLICATE, Axis.TP}
    # An all-reduce among two ranks sends everything that a rank keeps once, in float32.
    assert traffic[Axis.DP_REPLICATE] == plan.fullest.parameters * 4


@pytest.mark.parametrize("axis", ["pp", "dp_replicate", "dp_shard", "cp", "tp"])
def test_groups_are_rows_of_the_mesh(axis):
    degrees = Degrees(pp=2, dp_replicate=2, dp_shard=2, cp=2, tp=2)
    by_axis = {group.axis.value: group for group in groups_of(degrees, 8)}
    strides = {"pp": 16, "dp_replicate": 8, "dp_shard": 4, "cp": 2, "tp": 1}
    group = by_axis[axis]
    assert (group.stride, group.count) == (strides[axis], 16)
    assert group.first == (0, strides[axis])
    assert group.nodes == (2 if strides[axis] >= 8 else 1)


def test_what_a_run_would_refuse_is_refused():
    error = refused(UsageError, "tp 6 does not divide heads 32", plan_of, "{tp: 6}", nodes=3)
    assert error.fix == "tp: 4"


def test_the_command(tmp_path):
    file = tmp_path / "job.yaml"
    launch = "launch: {nproc_per_node: 8, device: h200}\nparallel: {microbatches: 16}\n"
    file.write_text(BIG + launch)
    runner = CliRunner()
    shown = runner.invoke(command, [str(file)], standalone_mode=False)
    assert shown.return_value == 0, shown.output
    assert "8.03 B parameters" in shown.output
    assert "FITS" in shown.output
    as_json = runner.invoke(command, [str(file), "--memory", "24", "--json"], standalone_mode=False)
    document = json.loads(as_json.output)
    assert as_json.return_value == 1
    assert document["fits"] is False
    assert document["world"] == 8
    # The memory is another one, the device is the job's.
    assert document["time"]["total"] > 0
    named = ["--device", "h100", "--memory", "24", "--network", "100", "--json"]
    timed = runner.invoke(command, [str(file), *named], standalone_mode=False)
    document = json.loads(timed.output)
    assert document["time"]["total"] > 0
    assert document["time_error"] == 0.25
    assert document["device"]["speed"]["network"] == 12.5e9
    assert "about" in shown.output
    explained = runner.invoke(command, [str(file), "--explain"], standalone_mode=False)
    assert "layers.*.attention.wq.weight" in explained.output
    unknown = runner.invoke(command, [str(file), "--device", "abacus"], standalone_mode=False)
    assert isinstance(unknown.exception, UsageError)
    assert "h200" in unknown.exception.fix


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_fits(path):
    text = path.read_text()
    if "kind: TrainJob" not in text:
        pytest.skip("not a job file")
    job = parse_job(text, str(path))
    device = DEVICES.get(job.launch.device or "")
    plan = make_plan(
        job,
        str(path),
        per_node=job.launch.nproc_per_node,
        nodes=job.launch.nnodes,
        device=device,
    )
    assert plan.fits is not False, plan.fullest
    assert not plan.warnings
