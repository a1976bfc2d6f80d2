# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Strangers against a job on two machines: another machine of the network, another local user.

The same script runs twice at the same time on the same two hosts, under stock torchrun and under
`securetrain run`; a third host sees every frame and can send any. Each test attacks the stock job
first, where the attack succeeds.
"""

import errno
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.drills.tcpstore_client import StoreClient
from securetrain.network.addresses import Names
from securetrain.network.namespace import Namespace
from securetrain.testing.cluster import Host, NamespaceCluster, missing
from tests.launch.two_nodes import NODES, POLICY, coordinated
from tests.launch.worlds import clean_environment
from tests.vocabulary import needs, ran
from tests.waiting import in_time, until

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    needs(missing),
]

PATIENCE = 150
NOBODY = 65534
SECRET = "hf_a_secret_of_the_user"
CANARIES = ("TENSOR", "OBJECT", "STORE-KEY", "STORE-VALUE", "NCCL-ID")

# argv: folder. Knows nothing of securetrain. Makes a group whenever it is told to ("group-N"), and
# sends eight times 42 in it from rank 1 to rank 0; ends when it is told to ("stop").
JOB = """
import json, os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

folder = sys.argv[1]
label = os.path.basename(folder)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()

def canary(what):
    return f"CANARY-{label}-{what}"

tensor = torch.tensor(list(canary("TENSOR").encode() * 50), dtype=torch.uint8)
dist.broadcast(tensor, 0)
dist.all_gather_object([None, None], canary("OBJECT") * 20)  # gloo sends it in pieces
store.set(canary("STORE-KEY") + f"-{rank}", canary("STORE-VALUE"))
store.set(f"nccl-unique-id-{rank}", canary("NCCL-ID"))
inodes = set()
for name in os.listdir("/proc/self/fd"):
    try:
        inodes.add(os.readlink(f"/proc/self/fd/{name}"))
    except OSError:
        pass
rows = [line.split() for line in open("/proc/self/net/tcp")][1:]
listens = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]

try:
    from torch.distributed import debug
    if rank == 1:  # rank 0 starts a front end too, which needs packages that torch does not bring
        debug.start_debug_server()
    debugging = debug._WORKER_SERVER.port if rank == 1 else 0
except Exception as error:
    debugging = getattr(error, "code", repr(error))

def say(name, value):
    with open(f"{folder}/{name}.part", "w") as file:
        json.dump(value, file)
    os.rename(f"{folder}/{name}.part", f"{folder}/{name}")

say(f"rank-{rank}", {
    "pid": os.getpid(), "store": [os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])],
    "listens": listens, "environ": dict(os.environ), "debug": debugging,
})
number = 1
while not os.path.exists(f"{folder}/stop"):
    time.sleep(0.01)
    if not os.path.exists(f"{folder}/group-{number}"):
        continue
    time.sleep(0.3 * rank)  # a straggler, as some rank of a job always is
    try:
        group = dist.new_group([0, 1], timeout=timedelta(seconds=20))
        found = torch.full((8,), 42.0)
        if rank == 0:
            dist.recv(found, 1, group=group)
        else:
            dist.send(found, 0, group=group)
        say(f"group-{number}-rank-{rank}", found.tolist())
    except Exception as error:
        say(f"group-{number}-rank-{rank}", repr(error))
    number += 1
os._exit(0)
"""

# argv: host, port. Prints the errno of connecting, and what a store says to a ping.
PING = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as s:
        s.sendall(b"\\0" + (0x3C85F7CE).to_bytes(4, "little") + b"\\x0dPING")
        print(0, s.recv(4).decode())
except OSError as error:
    print(error.errno)
"""

# argv: paths. Prints what of them this user can read or connect to.
SNOOP = """
import os, socket, sys
for path in sys.argv[1:]:
    try:
        if path.endswith(".sock"):
            socket.socket(socket.AF_UNIX).connect(path)
        elif os.path.isdir(path):
            os.listdir(path)
        else:
            open(path, "rb").read(1)
        print(path)
    except OSError:
        pass
"""


@dataclass
class Running:
    """A job that trains."""

    folder: Path
    launchers: list["subprocess.Popen[str]"]
    run_dirs: list[Path]

    def rank(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"rank-{number}").read_text())
        return found

    @property
    def store(self) -> tuple[str, int]:
        host, port = self.rank(0)["store"]
        return host, port

    def listens(self, number: int) -> list[tuple[str, int]]:
        """Where a rank listens."""
        found = []
        for entry in self.rank(number)["listens"]:
            address, _, port = entry.partition(":")
            found.append((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
        return found

    def group(self, number: int, rank: int) -> Any:
        """What a rank received in a group that was made on demand."""
        (self.folder / f"group-{number}").touch()
        path = self.folder / f"group-{number}-rank-{rank}"
        self.wait_for(path)
        return json.loads(path.read_text())

    def wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + PATIENCE
        while not path.exists():
            for launcher in self.launchers:
                assert launcher.poll() is None, (self.folder / "err").read_text()[-3000:]
            in_time(deadline, f"never happened: {path.name}")
            time.sleep(0.02)


@dataclass
class Scene:
    """Both jobs, the hosts that they share, and what crossed the wire until they trained."""

    stranger: Host
    members: tuple[Host, Host]
    stock: Running
    ours: Running
    control_port: int
    """Of our coordinator, which everybody may knock at."""
    job: str
    frames: list[bytes] = field(repr=False)


@contextmanager
def running_stock(folder, hosts, env) -> Iterator[Running]:
    folder.mkdir()
    with (folder / "err").open("w") as err, ExitStack() as stack:
        launchers = []
        for number, host in enumerate(hosts):
            command = [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
                *("--nproc-per-node", "1", "--node-rank", str(number)),
                *("--master-addr", str(hosts[0].address), "--master-port", "29500"),
                *(str(folder.parent / "job.py"), str(folder)),
            ]
            launcher = subprocess.Popen(
                host.command(*command), env=env, stdout=err, stderr=err, text=True
            )
            stack.callback(launcher.wait)
            stack.callback(launcher.kill)
            launchers.append(launcher)
        yield Running(folder=folder, launchers=launchers, run_dirs=[])
        (folder / "stop").touch()
        for launcher in launchers:
            launcher.wait(60)


@contextmanager
def running_ours(nodes) -> Iterator[Running]:
    with (nodes.folder / "err").open("w"):
        for node in NODES:
            nodes.start(node, "--require", "overlay")
        yield Running(
            folder=nodes.folder,
            launchers=[nodes.launchers[node] for node in NODES],
            run_dirs=[nodes.folder / f"run-{node}" for node in NODES],
        )
        (nodes.folder / "stop").touch()
        for node in NODES:
            assert nodes.wait(node) == 0, nodes.err(node)[-3000:]


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    root = tmp_path_factory.mktemp("jobs")
    (root / "job.py").write_text(JOB)
    env = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), HF_TOKEN=SECRET)
    ours = root / "OURS"
    ours.mkdir()
    (ours / "train.py").write_text(JOB)
    (ours / "policy.yaml").write_text(POLICY)
    job = f"strangers-{os.getpid()}"
    with ExitStack() as stack:
        cluster = stack.enter_context(NamespaceCluster.up(3))
        # The stranger has the lower address: gloo connects from the higher one to the lower.
        stranger, *members = cluster.hosts
        on_two = SimpleNamespace(hosts=tuple(members))
        capture = cluster.capture()
        wire = capture.__enter__()
        stock_env = {**env, "GLOO_SOCKET_IFNAME": "eth0"}
        stock_job = stack.enter_context(running_stock(root / "STOCK", members, stock_env))
        nodes = stack.enter_context(coordinated(cluster=on_two, folder=ours, job=job, env=env))
        our_job = stack.enter_context(running_ours(nodes))
        for running in (stock_job, our_job):
            for rank in range(2):
                running.wait_for(running.folder / f"rank-{rank}")
        frames = wire.read()
        capture.__exit__(None, None, None)
        yield Scene(
            stranger=stranger,
            members=(members[0], members[1]),
            stock=stock_job,
            ours=our_job,
            control_port=nodes.port,
            job=job,
            frames=frames,
        )


REFUSED = {errno.ENETUNREACH, errno.ECONNREFUSED}


def answer(place: Namespace, host: str, port: int) -> int:
    """What a TCP connection from a place ends with: an errno, 0 when it is accepted."""
    with place.entered():
        try:
            socket.create_connection((host, port), 5).close()
        except OSError as error:
            return error.errno or -1
    return 0


def require_out_of_reach(scene, *targets: tuple[str, int]) -> None:
    """Nothing of our job is there: not at its own address, nor at its hosts', nor on loopback."""
    places = [scene.stranger.namespace, *(host.namespace for host in scene.members)]
    stock = {scene.stock.store[1], *(port for n in range(2) for _, port in scene.stock.listens(n))}
    for host, port in targets:
        hosts = [*(str(member.address) for member in scene.members), "127.0.0.1"]
        at = [host, *(hosts if port not in stock else [])]  # the stock job's port of that number
        found = {(place.name, to): answer(place, to, port) for place in places for to in at}
        assert set(found.values()) <= REFUSED, found
        assert found[scene.stranger.name, host] == errno.ENETUNREACH


def test_what_crosses_the_wire(scene):
    """Attack 28: somebody on the path reads along."""
    seen = b"\n".join(scene.frames)
    assert [word for word in CANARIES if f"CANARY-STOCK-{word}".encode() not in seen] == []
    assert [word for word in CANARIES if f"CANARY-OURS-{word}".encode() in seen] == []
    assert b"CANARY-OURS" not in seen


def test_the_store_is_read_and_written_by_members_only(scene):
    """Attack 20: list, read, overwrite and delete keys from another machine."""
    key = "CANARY-STOCK-STORE-KEY-1"
    with scene.stranger.namespace.entered(), StoreClient(*scene.stock.store) as client:
        client.hello()
        (full,) = (found for found in client.list_keys() if found.endswith(key))
        assert client.get(full) == b"CANARY-STOCK-STORE-VALUE"
        client.set(full, b"another")
        assert client.get(full) == b"another"
        assert client.delete(full)
        assert full not in client.list_keys()
    require_out_of_reach(scene, scene.ours.store)


def test_the_store_is_filled_by_members_only(scene):
    """Attack 22: eight megabytes a key, until the launcher has no memory."""
    pid = scene.stock.launchers[0].pid
    before, size, count = resident(pid), (8 << 20) - 64, 12
    with scene.stranger.namespace.entered(), StoreClient(*scene.stock.store) as client:
        client.hello()
        for number in range(count):
            client.set(f"filling-{number}", bytes(size))
        assert client.ping()
        assert resident(pid) - before > size * count // 2
        assert all(client.delete(f"filling-{number}") for number in range(count))
    require_out_of_reach(scene, scene.ours.store)


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def as_nobody(host: Host, code: str, *arguments: str) -> str:
    """Run code on a host as another user of it."""
    # It becomes the user once it has what that user may be unable to read: Python itself.
    become = "import encodings.idna, os, socket, sys; os.setgroups([]); "
    become += f"os.setgid({NOBODY}); os.setuid({NOBODY})"
    done = ran(host.command(sys.executable, "-I", "-c", f"{become}\n{code}", *arguments))
    return done.stdout.strip()


def test_the_store_is_nowhere_but_in_the_job_network(scene):
    """Attack 23: on the underlay, on the host, and for another user of the host."""
    first = scene.members[0]
    assert as_nobody(first, PING, *map(str, scene.stock.store)) == "0 PING"
    assert "[::]" in listeners(first)[scene.stock.store[1]]

    require_out_of_reach(scene, scene.ours.store)
    host, port = map(str, scene.ours.store)
    assert as_nobody(first, PING, host, port) == str(errno.ENETUNREACH)
    for member, node in zip(scene.members, NODES, strict=True):
        # Neither can that user enter the job's network.
        inside = Namespace(Names.of(scene.job, node).namespace)
        entered = subprocess.run(
            [*inside.enter_command(), "true"], capture_output=True, user=NOBODY, check=False
        )
        assert b"denied" in entered.stderr or b"not permitted" in entered.stderr
        # Of our job a host has the coordinator's port, and no other.
        number = NODES.index(node)
        stock = {scene.stock.store[1], scene.stock.rank(number)["debug"]}
        stock |= {port for _, port in scene.stock.listens(number)}
        ours = listeners(member).keys() - stock
        assert ours <= {scene.control_port}, ours


def listeners(host: Host) -> dict[int, str]:
    """The TCP ports of a host that listen, and where."""
    found = {}
    for table in ("tcp", "tcp6"):
        rows = host.namespace.execute("cat", f"/proc/self/net/{table}").decode().splitlines()
        for row in (line.split() for line in rows[1:]):
            address, _, port = row[1].partition(":")
            if row[3] == "0A":
                found[int(port, 16)] = "[::]" if set(address) == {"0"} else address
    return found


def test_a_strangers_tensor(scene):
    """Attack 25: put one's own address in the place of rank 1's, be rank 1, send a tensor."""
    assert scene.stock.group(1, 0) == [42.0] * 8  # an honest group, whose keys are to be learnt
    for number in range(2, 22):  # a race with the honest rank, which the stranger wins soon
        victim = poison(scene, number)
        if victim == [-1337.0] * 8:
            break
    assert victim == [-1337.0] * 8
    assert scene.ours.group(1, 0) == [42.0] * 8
    require_out_of_reach(scene, scene.ours.store, *scene.ours.listens(0), *scene.ours.listens(1))
    assert scene.ours.group(2, 0) == [42.0] * 8


def poison(scene, number: int) -> Any:
    """Have rank 0 of the stock job connect to the stranger in its next group; what it received."""
    honest, own = scene.members[1].address.packed, scene.stranger.address
    with ExitStack() as stack:
        with scene.stranger.namespace.entered():
            client = stack.enter_context(StoreClient(*scene.stock.store))
            server = stack.enter_context(socket.create_server((str(own), 0)))
        client.hello()
        (known,) = (key for key in client.list_keys() if key.endswith("//1//cpu//0/1"))
        blob = client.get(known)
        at = blob.index(honest)
        port = struct.pack(">H", server.getsockname()[1])
        forged = blob[: at - 2] + port + own.packed + blob[at + len(honest) :]
        target = known.replace("//1//cpu", f"//{number}//cpu")
        done = threading.Event()

        def overwrite() -> None:
            while not done.is_set():
                client.set(target, forged)
                time.sleep(0.0005)

        thread = threading.Thread(target=overwrite)
        thread.start()
        try:
            (scene.stock.folder / f"group-{number}").touch()
            play_rank_1(server, scene.stock, f"group-{number}-rank-0")
        finally:
            done.set()
            thread.join()
        return scene.stock.group(number, 0)


def play_rank_1(server: socket.socket, running: Running, result: str) -> None:
    """Gloo's side of the conversation: be asked for a tensor, and send one; then wait for `result`.

    A frame is six 64-bit words: bytes, operation, slot, offset, length, remote offset. Operation 3
    asks for what operation 1 brings.
    """
    server.settimeout(10)
    try:
        peer, _ = server.accept()
    except TimeoutError:
        return  # the honest rank's address came last
    with peer:
        peer.settimeout(10)
        peer.recv(8, socket.MSG_WAITALL)  # the sequence number by which gloo tells ranks apart
        while len(frame := peer.recv(48, socket.MSG_WAITALL)) == 48:
            _, operation, slot, *_ = struct.unpack("<6Q", frame)
            if operation == 3:
                tensor = struct.pack("<8f", *[-1337.0] * 8)
                header = struct.pack("<6Q", 48 + len(tensor), 1, slot, 0, len(tensor), 0)
                peer.sendall(header + tensor)
                running.wait_for(running.folder / result)
                return


def test_connections_that_gloo_keeps(scene):
    """Attack 26: connections from nobody, each of which stays open and takes a descriptor."""
    pid, count = scene.stock.rank(0)["pid"], 50
    before = num_descriptors(pid)
    with ExitStack() as stack:
        with scene.stranger.namespace.entered():
            target = scene.stock.listens(0)[0]
            for number in range(count):
                peer = stack.enter_context(socket.create_connection(target, 60))
                peer.sendall(struct.pack("<q", 1000 + number))
        until(lambda: num_descriptors(pid) >= before + count)
    assert scene.ours.listens(0)
    require_out_of_reach(scene, *scene.ours.listens(0), *scene.ours.listens(1))


def num_descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def test_what_the_debug_server_tells_everybody(scene):
    """Attack 38: the stack of every thread, over HTTP."""
    where = (str(scene.members[1].address), scene.stock.rank(1)["debug"])
    with scene.stranger.namespace.entered():
        peer = socket.create_connection(where, 20)
    with peer:
        request = "POST /handler/dump_traceback HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
        peer.sendall(f"{request}Connection: close\r\n\r\n".encode())
        answered = b"".join(iter(lambda: peer.recv(1 << 16), b""))
    assert b"job.py" in answered, answered[:500]
    assert scene.ours.rank(1)["debug"] == "ST-RUNT-006"


def test_what_another_user_of_the_machine_reads(scene):
    """Attack 36: keys, the engine's socket, environments; and secrets in the workers' own."""
    first = scene.members[0]
    run = scene.ours.run_dirs[0]
    sockets = Path("/run/wireguard").glob("*.sock")
    private = [
        *(path for path in (run / "keys").rglob("*") if path.is_file()),
        *(Path(f"/proc/{scene.ours.rank(n)['pid']}/environ") for n in range(2)),
        *(Path(f"/proc/{launcher.pid}/environ") for launcher in scene.ours.launchers),
        *(scene.ours.folder / node / "node.pem" for node in NODES),
        *sockets,
        run,
    ]
    assert len(private) >= 8
    public = scene.ours.folder / "public"
    public.write_text("what everybody may read")
    parents = [path for path in (public.parent, *public.parents) if path != Path("/")]
    with ExitStack() as stack:
        for path in parents:  # or else nothing below them is tried at all
            mode = path.stat().st_mode
            stack.callback(path.chmod, mode)
            path.chmod(mode | 0o055)
        found = as_nobody(first, SNOOP, str(public), *map(str, private))
    assert found == str(public)

    assert scene.stock.rank(0)["environ"]["HF_TOKEN"] == SECRET
    keys = [path.read_bytes() for path in private if path.suffix == ".pem" and path.is_file()]
    assert keys
    for rank in range(2):
        environ = "\0".join(scene.ours.rank(rank)["environ"].values())
        assert SECRET not in environ
        for key in keys:
            assert key.splitlines()[1].decode() not in environ
