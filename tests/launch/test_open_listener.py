# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attack: a script, or something that it imports, listens on every interface of the machine."""

import os
import socket
import subprocess
import sys

import pytest

from securetrain.core.vocabulary import Boundary, Decision
from securetrain.testing.cluster import missing
from tests.launch.two_nodes import PATIENCE, POLICY
from tests.launch.worlds import clean_environment, run_command
from tests.vocabulary import needs
from tests.waiting import until

# argv: folder. It listens before torch has made a group, and waits for a visitor afterwards.
SCRIPT = """
import socket, sys, time
from pathlib import Path
import torch.distributed as dist
folder = Path(sys.argv[1])
server = socket.create_server(("0.0.0.0", 0))
(folder / "port.tmp").write_text(str(server.getsockname()[1]))
(folder / "port.tmp").rename(folder / "port")
dist.init_process_group("gloo")
(folder / "trained").touch()
deadline = time.monotonic() + 60
while not (folder / "visited").exists() and time.monotonic() < deadline:
    time.sleep(0.02)
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "listens.py"
    path.write_text(SCRIPT)
    return path


def visit(folder, process):
    """Whether the script's listener answers on the machine's loopback once the group is there."""
    until((folder / "trained").exists, "it never trained", alive=process)
    try:
        socket.create_connection(("127.0.0.1", int((folder / "port").read_text())), 5).close()
    except OSError:
        return False
    finally:
        (folder / "visited").touch()
    return True


@pytest.mark.dist
def test_the_attack_works_under_plain_torchrun(tmp_path, script):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", str(script)]
    with subprocess.Popen([*command, str(tmp_path)], env=clean_environment()) as process:
        try:
            assert visit(tmp_path, process)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@pytest.mark.dist
def test_on_loopback_it_ends_the_run(tmp_path, script, launch):
    done = launch(tmp_path / "run", "--standalone", str(script), str(tmp_path))
    assert done.code == 1
    assert "ST-NETW-002" in done.err
    assert not (tmp_path / "trained").exists()
    assert (done.summary["outcome"], done.summary["code"]) == ("failed", "ST-NETW-002")
    (refused,) = done.events("socket-outside-network")
    assert (refused.boundary, refused.decision) == (Boundary.NETWORK, Decision.REFUSE)
    (worker,) = done.summary["workers"]
    port = int((tmp_path / "port").read_text())
    assert {"address": "0.0.0.0", "port": port} in worker["sockets"]["outside"]
    assert not done.events("sockets-inside-network")


@pytest.mark.netns
@pytest.mark.dist
@needs(missing)
def test_in_a_job_network_nobody_outside_reaches_it(tmp_path, script):
    """Every interface is loopback and the tunnel there: it is listed, and out of reach."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    command = run_command(tmp_path / "run", "--policy", str(tmp_path / "policy.yaml"), "--json")
    env = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    with subprocess.Popen(
        [*command, str(script), str(tmp_path)], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert not visit(tmp_path, process)
            out, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
        finally:
            process.kill()
    port = int((tmp_path / "port").read_text())
    assert f'"address":"0.0.0.0","port":{port}' in out
    assert '"network":"overlay"' in out
