# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Workers of one node have a network of their own: what they reach under torchrun, and under ours.

Everything runs in a network namespace of the test's, with addresses that only stand for what they
are elsewhere: another job's port on loopback, a metadata service, a private network, a name server.
"""

import json
import subprocess
import sys

import pytest

from tests.launch.sandbox.machine import lacking
from tests.launch.worlds import clean_environment, write_policy
from tests.vocabulary import needs

pytestmark = [pytest.mark.dist, pytest.mark.netns, needs(lacking)]

# argv: a command. Serves, and runs it.
MACHINE = """\
import socket, subprocess, sys, threading
for one in ("link set lo up", "address add 169.254.169.254/32 dev lo",
            "address add 10.9.8.7/32 dev lo", "address add fd00:ec2::254/128 dev lo nodad"):
    subprocess.run(["ip", *one.split()], check=True)

def serve(server):
    while True:
        client, _ = server.accept()
        client.sendall(b"here")
        client.close()

def answer(server):
    while True:
        data, source = server.recvfrom(512)
        server.sendto(data, source)

for host, port in (("127.0.0.1", 4001), ("169.254.169.254", 80), ("10.9.8.7", 443)):
    threading.Thread(target=serve, args=(socket.create_server((host, port)),), daemon=True).start()
six = socket.create_server(("::", 4006), family=socket.AF_INET6)
threading.Thread(target=serve, args=(six,), daemon=True).start()
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(("127.0.0.53", 53))
threading.Thread(target=answer, args=(names,), daemon=True).start()
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0securetrain-test-own-network")
abstract.listen()
threading.Thread(target=serve, args=(abstract,), daemon=True).start()
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""

# argv: where to write. Each try comes to "here", what was answered, or an error.
SCRIPT = """\
import json, os, socket, stat, sys, urllib.request

def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False

# The launcher's hands in the sandbox are sockets: one that a worker holds is the launcher's power.
said = {"sockets that it was given": sum(map(is_socket, range(1024)))}
import torch, torch.distributed as dist

def tried(name, action):
    try:
        said[name] = str(action())
    except OSError as error:
        said[name] = type(error).__name__ + (f" {error.errno}" if error.errno else "")

def connect(place, kind=socket.AF_INET):
    with socket.socket(kind) as client:
        client.settimeout(5)
        client.connect(place)
        return client.recv(10).decode()

def ask():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        client.connect(("127.0.0.53", 53))
        client.send(b"here")
        return client.recv(10).decode()

def through(place):
    proxy = os.environ.get("HTTPS_PROXY", "").removeprefix("http://").split(":")
    if len(proxy) != 2:
        host, port = place.split(":")
        return connect((host, int(port)))
    with socket.create_connection((proxy[0], int(proxy[1])), 5) as client:
        client.sendall(f"CONNECT {place} HTTP/1.1\\r\\n\\r\\n".encode())
        head, _, rest = client.recv(1000).partition(b"\\r\\n\\r\\n")
        status = head.split()[1].decode()
        return (rest or client.recv(10)).decode() if status == "200" else status

dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.ones(1)
dist.all_reduce(total)
if rank == 0:
    tried("another job's port", lambda: connect(("127.0.0.1", 4001)))
    tried("the same by IPv6", lambda: connect(("::1", 4006), socket.AF_INET6))
    tried("metadata", lambda: connect(("169.254.169.254", 80)))
    tried("metadata by IPv6", lambda: connect(("fd00:ec2::254", 4006), socket.AF_INET6))
    tried("a private address", lambda: connect(("10.9.8.7", 443)))
    tried("a name server", ask)
    tried("an abstract socket",
          lambda: connect("\\0securetrain-test-own-network", socket.AF_UNIX))
    tried("loopback by the proxy", lambda: through("127.0.0.1:4001"))
    tried("metadata by the proxy", lambda: through("169.254.169.254:80"))
    tried("a private address by the proxy", lambda: through("10.9.8.7:443"))
    said["total"] = total.item()
    said["own name"] = socket.gethostbyname(socket.gethostname())
    open(sys.argv[1], "w").write(json.dumps(said))
dist.barrier()
dist.destroy_process_group()
"""
REFUSED, NO_ROUTE = "ConnectionRefusedError 111", "OSError 101"
ALONE = {
    "another job's port": REFUSED,
    "the same by IPv6": REFUSED,
    "metadata": NO_ROUTE,
    "metadata by IPv6": NO_ROUTE,
    "a private address": NO_ROUTE,
    "a name server": REFUSED,
    "an abstract socket": REFUSED,
    "loopback by the proxy": "403",
    "metadata by the proxy": "403",
    "a private address by the proxy": "403",
    "sockets that it was given": 0,
    "total": 2.0,
    "own name": "127.0.0.1",
}
USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")


def on_the_machine(tmp_path, *command):
    """Run a command there; what the script said, and what the command did."""
    (tmp_path / "script").mkdir(exist_ok=True)
    script, said = tmp_path / "script" / "s.py", tmp_path / "said.json"
    script.write_text(SCRIPT)
    inside = ["unshare", "--net", "--", sys.executable, "-c", MACHINE]
    given = [*inside, *command, "--nproc-per-node=2", str(script), str(said)]
    env = clean_environment(GLOO_SOCKET_IFNAME="lo", HOME=str(tmp_path))
    done = subprocess.run(
        given, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False
    )
    return (json.loads(said.read_text()) if said.exists() else {}), done


def ours(tmp_path, *options, user=()):
    run = (sys.executable, "-m", "securetrain", "run", "--standalone", "--run-dir", "run")
    return on_the_machine(tmp_path, *user, *run, "--output", str(tmp_path), *options)


def test_nothing_of_the_machine_is_reached(tmp_path):
    """And the end names what was asked for, with the option that opens it."""
    reached, done = ours(tmp_path)
    assert reached == ALONE, done.stderr
    assert "own mounts, processes, memory and network" in done.stderr
    assert "egress       public addresses on port 443" in done.stderr
    assert "refused 10.9.8.7:443: --egress 10.9.8.7:443 opens it" in done.stderr
    assert "attempts beside the proxy found no route" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("user", [(), USER], ids=["root", "user"])
@pytest.mark.parametrize("egress", [[], ["*:443"], ["10.9.8.7:443"]], ids=str)
def test_by_user_and_policy(tmp_path, user, egress):
    policy = write_policy(tmp_path / "policy.yaml", network={"egress": egress})
    reached, done = ours(tmp_path, "--policy", policy, user=user)
    named = {"a private address by the proxy": "here"} if egress == ["10.9.8.7:443"] else {}
    assert reached == ALONE | named, done.stderr


@pytest.mark.slow
def test_without_it_all_is_reached(tmp_path):
    """The control: torchrun, and ours without a sandbox, which says so."""
    stock, done = on_the_machine(
        tmp_path, sys.executable, "-m", "torch.distributed.run", "--standalone"
    )
    (tmp_path / "said.json").unlink()
    policy = write_policy(tmp_path / "policy.yaml", host={"sandbox": "off"})
    open_, said = ours(tmp_path, "--policy", policy)
    assert "DEGRADED EGRESS" in said.stderr
    for tried in (stock, open_):
        left = {name for name in ALONE if tried.get(name) != "here"}
        assert left == {"sockets that it was given", "total", "own name"}, (
            done.stderr,
            said.stderr,
        )


@pytest.mark.slow
def test_where_no_network_can_be_made_that_is_said_or_refused(tmp_path):
    """No more network namespaces may be made: the rest of the sandbox stands."""
    full = ("sh", "-c", 'echo 0 > /proc/sys/user/max_net_namespaces; exec "$@"', "sh")
    inside = ("unshare", "--user", "--map-root-user", "--")
    reached, done = ours(tmp_path, user=(*inside, *full))
    assert "without a network of their own" in done.stderr
    assert reached.get("total") == 2.0, done.stderr
    (tmp_path / "said.json").unlink()
    reached, done = ours(tmp_path, "--require", "sandbox", user=(*inside, *full))
    assert "ST-RUNT-020" in done.stderr
    assert reached == {}
