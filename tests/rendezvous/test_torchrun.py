# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Real torchrun agents: an unmodified script under our backend, and the attack on the stock one."""

import os
import signal
import subprocess
import sys
import time

import pytest

from securetrain.drills.tcpstore_client import attack_store
from tests.vocabulary import ran

pytestmark = pytest.mark.dist

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]

# It knows nothing of securetrain.
SCRIPT = """
import os, pathlib, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(t)
rank, restart = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
pathlib.Path(sys.argv[1], f"out-{rank}-{restart}").write_text(
    f"{t.item()} {os.environ['MASTER_ADDR']} {os.environ['TORCHELASTIC_USE_AGENT_STORE']}")
dist.barrier()
if restart == 0:
    sys.exit(rank)
dist.destroy_process_group()
"""


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.slow
@pytest.mark.many
def test_an_unmodified_script_runs_and_restarts(job, tmp_path):
    """Rank 1 fails at first: the agent asks for another round, whose store is a fresh one."""
    job.start()
    job.identity()
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ran(
        [
            *(*TORCHRUN, "--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "1"),
            *("--monitor-interval", "0.1"),
            *("--rdzv-backend", "securetrain", "--rdzv-id", job.name),
            *("--rdzv-endpoint", f"{job.host}:{job.port}"),
            *("--rdzv-conf", f"identity={job.folder()},local_world=2"),
            *(str(script), str(tmp_path)),
        ],
        env=environment(),
    )
    for rank in range(2):
        assert (tmp_path / f"out-{rank}-1").read_text() == "3.0 127.0.0.1 True"
    events = [e.event for e in job.events()]
    assert events.count("node-admitted") == 1
    assert events.count("round-formed") == 2
    assert events[-2:] == ["job-closed", "node-left"]
    assert job.coordinator.membership.members[0].local_world == 2


# Needs no torch: it says where it is, and ends when it is told to.
WAITER = """
import os, pathlib, sys, time
env = os.environ
where = pathlib.Path(sys.argv[1])
with open(where / f"out-{env['WORLD_SIZE']}-{env['RANK']}", "a") as file:
    file.write(env["MASTER_PORT"] + "\\n")
while not (where / "enough").exists():
    time.sleep(0.05)
"""


def test_two_agents_scale_up_and_down(job, tmp_path, tools):
    """The first agent starts alone; when the second joins, its worker is restarted in a world of
    two; when the second is killed, in a world of one again. No worker failed, so no restart is
    counted: none is allowed."""
    job.start(1, 2, last_call=0.5)
    script = tmp_path / "waiter.py"
    script.write_text(WAITER)

    def agent(node):
        job.identity(node)
        return subprocess.Popen(
            [
                *(*TORCHRUN, "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "0"),
                *("--monitor-interval", "0.1"),
                *("--rdzv-backend", "securetrain", "--rdzv-id", job.name),
                *("--rdzv-endpoint", f"{job.host}:{job.port}"),
                *("--rdzv-conf", f"identity={job.folder(node)}", str(script), str(tmp_path)),
            ],
            env=environment(),
        )

    def ports(world, rank):
        path = tmp_path / f"out-{world}-{rank}"
        return path.read_text().split() if path.exists() else []

    agents = [agent("node-0")]
    try:
        tools.wait_until(lambda: ports(1, 0), "the first agent runs alone")
        agents.append(agent("node-1"))
        tools.wait_until(lambda: ports(2, 0) and ports(2, 1), "both run in a world of two")
        assert [m.node for m in job.coordinator.membership.members] == ["node-0", "node-1"]
        agents[1].kill()
        tools.wait_until(lambda: len(ports(1, 0)) == 2, "the first one runs alone again")
        (tmp_path / "enough").touch()
        assert agents[0].wait(60) == 0
    finally:
        (tmp_path / "enough").touch()
        for process in agents:
            process.kill()
            process.wait()
    assert ports(2, 0) == ports(2, 1)
    assert len({*ports(1, 0), *ports(2, 0)}) == 3, "each round had a store of its own"
    assert job.coordinator.membership.epoch == 2


def torchrun(job, node, script, *arguments, nodes="2"):
    """One agent of torch's own, under our rendezvous."""
    job.identity(node)
    return subprocess.Popen(
        [
            *(*TORCHRUN, "--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts", "0"),
            *("--monitor-interval", "0.1"),
            *("--rdzv-backend", "securetrain", "--rdzv-id", job.name),
            *("--rdzv-endpoint", f"{job.host}:{job.port}"),
            *("--rdzv-conf", f"identity={job.folder(node)}", str(script), *arguments),
        ],
        env=environment(),
        stderr=subprocess.DEVNULL,
    )


# Rank 0 waits until it may end, the others end at once.
FIRST_STAYS = """
import os, pathlib, sys, time
where = pathlib.Path(sys.argv[1])
(where / f"out-{os.environ['RANK']}").touch()
while os.environ["RANK"] == "0" and not (where / "enough").exists():
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param("for a round", marks=pytest.mark.many),
        "for rank 0's store",
        pytest.param("for what a member runs", marks=pytest.mark.many),
        pytest.param("at the end", marks=pytest.mark.many),
    ],
)
def test_a_signal_ends_every_wait_of_an_agent(job, tmp_path, tools, wait):
    """Also those in which torch's own agent would be in its store, for five minutes."""
    job.start(2, 2)
    script = tmp_path / "first_stays.py"
    script.write_text(FIRST_STAYS)
    agents = [torchrun(job, "node-1", script, str(tmp_path))]
    try:
        tools.wait_until(lambda: len(job.coordinator.admissions) == 1, "it has joined")
        if wait == "for rank 0's store":  # nobody listens where it is said to be
            job.join("node-0").next_round(lambda _: 1)
        elif wait == "for what a member runs":
            job.join("node-2").next_round(lambda _: 1)
            session = job.coordinator._nodes["node-1"]
            tools.wait_until(lambda: session.staffed, "it has said its own")
        elif wait == "at the end":
            agents.append(torchrun(job, "node-0", script, str(tmp_path)))
            tools.wait_until(lambda: job.coordinator._rounds.done == {"node-1"}, "it is done")
        assert agents[0].poll() is None
        agents[0].send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert agents[0].wait(60) != 0
        print(f"SIGTERM {wait}: {time.monotonic() - began:.1f} s")  # noqa: T201 - measured
        if wait == "at the end":
            (tmp_path / "enough").touch()
            assert agents[1].wait(60) == 0, "the other one ends as if nothing had happened"
    finally:
        (tmp_path / "enough").touch()
        for process in agents:
            process.kill()
            process.wait()


def test_the_attack_that_takes_over_a_stock_agent_is_refused_by_ours(job, tmp_path):
    """One connection, no credentials: SET a pickle where the agent will load it.

    That it does, in the agent itself, is what D-RDZ-PICKLE shows first, on a stock torchrun.
    """
    marker = tmp_path / "marker"
    job.start()
    member = job.join()
    found = attack_store(job.port, marker, run_id=job.name)
    assert found.connected
    assert not found.spoke_store
    job.expect("ST-ADMN-002", "connection-refused")
    assert member.next_round(lambda membership: 20000).rank == 0, "the job does not notice"
    assert not marker.exists()
