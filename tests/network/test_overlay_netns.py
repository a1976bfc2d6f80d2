# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Job networks on real kernels: hosts are network namespaces on a bridge, the engine is real.

Everybody on the bridge is an attacker here: they see every frame and can send any.
"""

import errno
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue

import pytest

from securetrain.cli.main import main
from securetrain.core.errors import NetworkError
from securetrain.network.addresses import address
from securetrain.network.engines import ENGINES
from securetrain.network.firewall import delete_table, load
from securetrain.network.leftovers import collect, devices
from securetrain.network.namespace import Namespace
from securetrain.network.overlay import Overlay
from securetrain.network.process_identity import running
from securetrain.network.system_tools import command_failed, run_command
from securetrain.network.wireguard import Endpoint, WireGuardKey
from securetrain.testing.cluster import NamespaceCluster, missing
from tests.network.worlds import Job, plan_on
from tests.vocabulary import is_running, needs, refused

pytestmark = [
    pytest.mark.netns,
    needs(missing),
]

PORT = 51820
CANARY = b"CANARY-GRADIENT-0123456789"
NODES = ("node-0", "node-1", "node-2")

# Says that it is ready, then what it received until somebody sent END, and a little longer.
RECEIVE = """
import json, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 7000)); s.settimeout(20)
print("ready", flush=True)
got = []
try:
    while True:
        data, peer = s.recvfrom(9000)
        got.append([data.decode(), peer[0]])
        if data == b"END": s.settimeout(0.3)
except TimeoutError:
    pass
print(json.dumps(got))
"""
# argv: address of the sender or '', target, text, how often
SEND = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if sys.argv[1]: s.bind((sys.argv[1], 0))
for _ in range(int(sys.argv[4])):
    s.sendto(sys.argv[3].encode(), (sys.argv[2], 7000))
"""
# argv: frames, one in hex a line. Sends them as they are.
INJECT = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("eth0", 0))
for line in open(sys.argv[1]): s.send(bytes.fromhex(line))
"""
# Prints the errno of reaching an address by TCP and UDP.
REACH = """
import socket, sys
host, port = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ":" in host else socket.AF_INET
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    s = socket.socket(family, kind); s.settimeout(3)
    try: s.connect((host, port)); s.send(b"x"); print(0)
    except TimeoutError: print("timeout")
    except OSError as error: print(error.errno)
"""


class Net:
    """A job on a cluster."""

    def __init__(self, cluster, state, engine) -> None:
        self.cluster = cluster
        # Names on this machine are derived from it, and somebody else may run these tests as well.
        self.name = f"job-{secrets.token_hex(4)}"
        self.state = state
        self.engine = engine
        self.hosts = dict(zip(NODES, cluster.hosts, strict=False))
        self.job = Job({node: Endpoint(host.address, PORT) for node, host in self.hosts.items()})
        self.overlays: dict[str, Overlay] = {}

    def plan(self, node):
        host = self.hosts[node]
        return plan_on(host, self.name, node=node, key=self.job.keys[node], port=PORT)

    def up(self, *nodes):
        for node in nodes:
            self.overlays[node] = Overlay.up(self.plan(node), state=self.state, engine=self.engine)
        return [self.overlays[node] for node in nodes]

    def apply(self, epoch, *nodes):
        for node in nodes:
            self.overlays[node].apply(epoch, self.job.members(node, nodes))

    def start(self, node, code, *arguments):
        command = self.overlays[node].command([sys.executable, "-I", "-c", code, *arguments])
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def python(self, node, code, *arguments):
        with self.start(node, code, *arguments) as process:
            out, _ = process.communicate(timeout=60)
            assert process.returncode == 0
        return out

    def send(self, node, target, text, times=1, source=""):
        self.python(node, SEND, source, str(self.address(target)), text, str(times))

    def address(self, node):
        return address(self.name, NODES.index(node))

    @contextmanager
    def receiver(self, node):
        """A function that says what a node received, after somebody sent END."""
        with self.start(node, RECEIVE, str(self.address(node))) as process:
            assert said(process) == "ready"

            def texts():
                found = json.loads(said(process))
                assert found.pop(-1)[0] == "END"
                return [text for text, _ in found]

            try:
                yield texts
            finally:
                process.kill()

    def heard(self, *sent, last="node-1"):
        """What node-0 receives of what these nodes send: who, the text, how often."""
        with self.receiver("node-0") as texts:
            for node, text, times in sent:
                self.send(node, "node-0", text, times)
            self.send(last, "node-0", "END")
            return texts()


def said(process):
    """The next line of a program."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture(scope="module")
def cluster():
    with NamespaceCluster.up(4) as made:
        yield made


@pytest.fixture(scope="module", params=ENGINES, ids=lambda engine: engine.name)
def encryption(request):
    lacking = request.param.missing()
    if lacking:
        pytest.skip(f"{request.param.name} needs: {'; '.join(lacking)}")
    return request.param


@pytest.fixture
def net(cluster, encryption, state):
    made = Net(cluster, state, encryption)
    yield made
    for overlay in made.overlays.values():
        overlay.down()
    for node, host in made.hosts.items():
        assert remains(made, node) == [], host.name


@pytest.fixture
def pair(net):
    net.up("node-0", "node-1")
    net.apply(1, "node-0", "node-1")
    return net


@pytest.fixture
def trio(net):
    net.up(*NODES)
    net.apply(1, *NODES)
    return net


@pytest.fixture
def attacker(cluster):
    return cluster.hosts[3]


def remains(net, node):
    """Everything that is left of a node's job network."""
    from securetrain.network.addresses import Names

    names, host = Names.of(net.name, node), net.hosts[node]
    found = []
    if Namespace(names.namespace).exists:
        found.append(names.namespace)
    found += {names.device} & set(devices(host.namespace))
    found += {names.table} & host.tables()
    found += [f"process {pid}" for pid in running("wireguard-go", names.device)]
    found += [path.name for path in net.state.iterdir() if path.name != "lock"]
    if PORT in host.udp_ports():
        found.append(f"port {PORT}")
    return found


def is_wireguard(frame):
    """Whether a frame is UDP between the tunnels' ports, and a WireGuard message (types 1 to 4)."""
    ip, udp = frame[14:34], frame[34:42]
    ports = {int.from_bytes(udp[:2], "big"), int.from_bytes(udp[2:4], "big")}
    message = frame[42:46]
    return (
        frame[12:14] == b"\x08\x00"
        and ip[0] == 0x45
        and ip[9] == 17
        and ports == {PORT}
        and message[0] in {1, 2, 3, 4}
        and message[1:] == b"\0\0\0"
    )


def is_neighbourhood(frame):
    """ARP, and the kernel's own housekeeping: IPv6's, and group membership (IGMP) of IPv4."""
    is_igmp = frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_IGMP
    is_other = frame[12:14] in {b"\x08\x06", b"\x86\xdd"}
    return (is_igmp or is_other) and CANARY not in frame


def inject(host, tmp_path, frames):
    path = tmp_path / "frames"
    path.write_text("".join(f"{frame.hex()}\n" for frame in frames))
    host.python(INJECT, str(path))


def test_members_talk_and_the_wire_shows_only_wireguard(pair, cluster, attacker):
    with cluster.capture() as capture:
        assert pair.heard(("node-1", CANARY.decode(), 50)) == [CANARY.decode()] * 50
        frames = capture.read()
        assert len([frame for frame in frames if is_wireguard(frame)]) > 50
        assert [f.hex() for f in frames if not is_wireguard(f) and not is_neighbourhood(f)] == []
        assert not [frame for frame in frames if CANARY in frame]
        # The control: what is sent in the clear is seen.
        attacker.python(SEND, "", str(pair.hosts["node-1"].address), CANARY.decode(), "1")
        wait_for(capture, lambda frame: CANARY in frame)


TCP = """
import hashlib, socket, sys
size = 4 << 20
if sys.argv[1] == "serve":
    server = socket.create_server((sys.argv[2], 0))
    print(server.getsockname()[1], flush=True)
    s, peer = server.accept()
    seen = bytearray()
    while len(seen) < size: seen += s.recv(1 << 16)
    s.sendall(hashlib.sha256(seen).digest()); print(peer[0])
else:
    s = socket.create_connection((sys.argv[2], int(sys.argv[3])), 20)
    data = bytes(range(256)) * (size // 256)
    s.sendall(data)
    print(s.recv(32) == hashlib.sha256(data).digest())
"""


def test_tcp_by_name_in_both_directions(pair):
    for one, other in (("node-0", "node-1"), ("node-1", "node-0")):
        with pair.start(one, TCP, "serve", one) as server:
            assert pair.python(other, TCP, "send", one, said(server)) == "True\n"
            assert said(server) == str(pair.address(other))


def test_replayed_and_changed_frames_are_dropped(pair, cluster, attacker, tmp_path):
    text = "one message " * 20
    with cluster.capture() as capture, pair.receiver("node-1") as texts:
        pair.send("node-0", "node-1", text)
        frames = wait_for(capture, is_long)
        frame = next(frame for frame in frames if is_long(frame))
        changed = []
        for position in range(42, len(frame)):
            copy = bytearray(frame)
            copy[position] ^= 1
            changed.append(bytes(copy))
        inject(attacker, tmp_path, [frame] * 200 + changed)
        pair.send("node-0", "node-1", "END")
        assert texts() == [text]


def is_long(frame):
    """Whether a frame carries more than a handshake or keepalive: transport data (type 4)."""
    return is_wireguard(frame) and len(frame) > 250 and frame[42] == 4


def wait_for(capture, wanted, patience=200):
    for _ in range(patience):
        frames = capture.read()
        if any(map(wanted, frames)):
            return frames
        threading.Event().wait(0.02)
    raise AssertionError("nothing of the kind was captured")


@pytest.mark.parametrize("source", ["a member's", "the attacker's"])
def test_forged_handshakes_are_not_answered(pair, cluster, attacker, tmp_path, source):
    """Right form, wrong keys: from a member's endpoint, and from a stranger's."""
    with cluster.capture() as capture:
        pair.send("node-0", "node-1", "x")  # a handshake to copy
        frames = wait_for(capture, lambda frame: is_wireguard(frame) and frame[42] == 1)
        genuine = next(frame for frame in frames if is_wireguard(frame) and frame[42] == 1)
        # The control: this one was answered.
        wait_for(capture, lambda frame: is_wireguard(frame) and frame[42] == 2)
        forged = []
        for _ in range(20):
            frame = bytearray(genuine)
            frame[46:158] = os.urandom(112)  # all but type, MAC1 and MAC2
            if source == "the attacker's":
                frame[26:30] = attacker.address.packed
                frame[24:26] = b"\0\0"
                frame[24:26] = checksum(frame[14:34])
                frame[40:42] = b"\0\0"  # no UDP checksum, which is allowed over IPv4
            forged.append(bytes(frame))
    with cluster.capture(pair.hosts["node-1"]) as capture:
        inject(attacker, tmp_path, [*forged, genuine])
        wait_for(capture, lambda frame: frame == genuine)
        threading.Event().wait(0.3)
        answers = [frame for frame in capture.read() if is_wireguard(frame) and frame[42] in {2, 3}]
    assert answers == []


def checksum(header):
    total = sum(int.from_bytes(header[n : n + 2], "big") for n in range(0, 20, 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (total ^ 0xFFFF).to_bytes(2, "big")


def test_a_member_cannot_speak_for_another(trio):
    """node-1 takes node-2's address in its own namespace, where its root may do that."""
    own = trio.overlays["node-1"].namespace
    stolen = trio.address("node-2")
    with trio.receiver("node-0") as texts:
        trio.send("node-1", "node-0", "as myself")
        own.ip("address", "add", f"{stolen}/32", "dev", "st0")
        trio.send("node-1", "node-0", "as node-2", 20, source=str(stolen))
        trio.send("node-2", "node-0", "END")
        assert texts() == ["as myself"]


def test_the_job_reaches_nothing_but_members(pair, attacker):
    host = pair.hosts["node-0"]
    near = [str(each.address) for each in (host, pair.hosts["node-1"], attacker)]
    metadata = ["169.254.169.254", "100.100.100.200"]
    unreachable = {str(errno.ENETUNREACH), str(errno.EINVAL)}  # EINVAL: fe80 without a device
    for target in (*near, *metadata, "8.8.8.8", "fe80::1", "2001:db8::1"):
        answers = set(pair.python("node-0", REACH, target, "80").split())
        assert answers <= unreachable, target
        assert answers
    # The control: its host reaches the others.
    assert str(errno.ECONNREFUSED) in host.python(REACH, str(attacker.address), "80")


def test_the_job_is_not_reached_from_the_underlay(pair, attacker):
    listen = "import socket, time; s = socket.create_server(('', 7001)); print('ready', flush=True)"
    with pair.start("node-0", listen + "; time.sleep(60)") as server:
        try:
            assert said(server) == "ready"
            # The control: a member gets through.
            reach = pair.python("node-1", REACH, str(pair.address("node-0")), "7001").split()
            assert reach[0] == "0"
            for target in (pair.hosts["node-0"].address, pair.address("node-0")):
                answer = attacker.python(REACH, str(target), "7001").split()
                assert answer[0] in {str(errno.ECONNREFUSED), str(errno.ENETUNREACH)}
            # The host itself is no member either.
            answer = pair.hosts["node-0"].python(REACH, str(pair.address("node-0")), "7001").split()
            assert answer[0] == str(errno.ENETUNREACH)
        finally:
            server.kill()
    assert pair.hosts["node-0"].udp_ports() == {PORT}
    assert set(devices(pair.overlays["node-0"].namespace)) == {"lo", "st0"}


@pytest.mark.parametrize("filtered", [True, False], ids=["filter", "wireguard-alone"])
def test_who_was_evicted_is_not_heard_with_its_old_keys(trio, filtered):
    assert trio.heard(("node-2", "still in", 1)) == ["still in"]
    trio.job.new_epoch()
    trio.apply(2, "node-0", "node-1")
    if not filtered:
        for node in ("node-0", "node-1"):
            load(trio.hosts[node].namespace, delete_table(trio.overlays[node].names.table))
    assert trio.heard(("node-2", "out", 50)) == []


def test_who_is_dropped_is_out_at_once_and_the_others_stay(trio):
    """In the middle of an epoch: old keys, old pre-shared key, and 0 packets accepted."""
    for node in ("node-0", "node-1"):
        trio.overlays[node].drop(["node-2", "nobody"])
    assert trio.heard(("node-2", "out", 50), ("node-1", "in", 1)) == ["in"]
    held = {peer.public_key for peer in trio.overlays["node-0"].read().peers}
    assert held == {trio.overlays["node-1"].plan.key.public}
    trio.job.new_epoch()
    trio.apply(2, "node-0", "node-1")  # the next epoch begins as always


def test_who_was_evicted_is_not_spoken_to(trio, cluster):
    trio.apply(2, "node-0", "node-1")
    code = "import json, os; print(json.dumps(open('/etc/hosts').read()))"
    assert "node-2" not in trio.python("node-0", code)
    with cluster.capture(trio.hosts["node-2"]) as capture:
        command = trio.overlays["node-0"].command(
            [sys.executable, "-I", "-c", SEND, "", str(trio.address("node-2")), "secret", "5"]
        )
        subprocess.run(command, capture_output=True, check=False)
        trio.send("node-0", "node-1", "x")
        threading.Event().wait(0.3)
        evicted = trio.hosts["node-2"].address.packed
        frames = [frame for frame in capture.read() if is_wireguard(frame)]
        assert frames, "nothing was captured"
        assert not [frame for frame in frames if evicted in frame[26:34]]


def test_who_comes_back_is_heard_again(trio):
    trio.apply(2, "node-0", "node-1")
    trio.job.new_epoch()
    trio.apply(3, *NODES)
    assert trio.heard(("node-2", "back", 1), last="node-2") == ["back"]


def test_keys_without_the_epochs_secret_open_nothing(net):
    """node-1 has every long-term key right, and the pre-shared keys of another epoch."""
    net.up(*NODES)
    for node in ("node-0", "node-2"):
        net.overlays[node].apply(1, net.job.members(node))
    net.job.new_epoch()
    net.overlays["node-1"].apply(1, net.job.members("node-1"))
    assert net.heard(("node-1", "old", 1), last="node-2") == []


def test_without_members_nobody_is_heard(net):
    net.up("node-0", "node-1")
    net.overlays["node-1"].apply(1, net.job.members("node-1", ["node-0", "node-1"]))
    net.overlays["node-0"].apply(1, net.job.members("node-0", ["node-0"]))
    assert net.heard(("node-1", "hello", 5), last="node-0") == []


STREAM = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print("ready", flush=True)
end = time.monotonic() + 20
while time.monotonic() < end:
    try: s.sendto(sys.argv[2].encode(), (sys.argv[1], 7000))
    except OSError as error: print(error.errno, flush=True); break
    time.sleep(0.001)
time.sleep(0.3)
for _ in range(200):
    try: s.sendto(sys.argv[2].encode(), (sys.argv[1], 7000)); print("sent")
    except OSError: pass
"""


def test_a_dead_engine_stops_the_job_and_nothing_goes_in_clear(pair, cluster):
    overlay = pair.overlays["node-0"]
    told: Queue[NetworkError] = Queue()
    overlay.watch(told.put)
    with cluster.capture() as capture:
        with pair.start("node-0", STREAM, str(pair.address("node-1")), CANARY.decode()) as sender:
            assert said(sender) == "ready"
            wait_for(capture, is_wireguard)
            kill_engine(overlay)
            assert told.get(timeout=10).code == "ST-NETW-014"
            out, _ = sender.communicate(timeout=60)
        assert out.split() == [str(errno.ENETUNREACH)]
        assert not [frame for frame in capture.read() if CANARY in frame]
    assert told.empty()
    refused(NetworkError, "ST-NETW-014", overlay.apply, 2, pair.job.members("node-0", NODES[:2]))
    assert set(devices(overlay.namespace)) == {"lo"}


def kill_engine(overlay):
    assert overlay._device is not None
    pid = overlay._device.process()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    else:
        overlay.namespace.ip("link", "delete", "dev", "st0")


PRISON = """
import json, os, socket, subprocess, sys
def ran(*argv): return subprocess.run(argv, capture_output=True).returncode
def opened(path):
    try:
        socket.socket(socket.AF_UNIX).connect(path); return "connected"
    except OSError as error: return type(error).__name__
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
try: socket.socket(socket.AF_PACKET, socket.SOCK_RAW); raw = "opened"
except PermissionError: raw = "refused"
print(json.dumps({
    "run": os.listdir("/run"),
    "link": ran("/usr/sbin/ip", "link", "add", "x", "type", "dummy"),
    "address": ran("/usr/sbin/ip", "address", "add", "10.0.0.1/8", "dev", "st0"),
    "filter": ran("/usr/sbin/nft", "flush", "ruleset"),
    "leave": ran("/usr/bin/nsenter", "--net=/proc/1/ns/net", "/bin/true"),
    "unmount": ran("/bin/umount", "/etc/hosts"),
    "socket": opened(sys.argv[1]),
    "raw": raw,
    "capabilities": status["CapEff"] + status["CapPrm"] + status["CapBnd"] + status["CapAmb"],
    "privileges": status["NoNewPrivs"],
}))
"""


def test_a_program_inside_cannot_change_or_leave_it(pair):
    overlay = pair.overlays["node-0"]
    socket = getattr(overlay._device, "socket", "/run/wireguard/x.sock")
    found = json.loads(pair.python("node-0", PRISON, socket))
    for name in ("link", "address", "filter", "leave", "unmount"):
        assert found[name] != 0, name
    assert found["socket"] in {"PermissionError", "FileNotFoundError"}
    assert found["raw"] == "refused"
    assert found["run"] == []
    assert set(found["capabilities"]) == {"0"}
    assert found["privileges"] == "1"


def test_no_key_in_an_environment_or_command_line(pair):
    overlay = pair.overlays["node-0"]
    assert overlay._device is not None
    secret = pair.job.keys["node-0"].secret()
    engine = overlay._device.process()
    seen = b"".join(path.read_bytes() for path in overlay.folder.iterdir())
    for pid in [*([engine] if engine else []), os.getpid()]:
        seen += Path(f"/proc/{pid}/environ").read_bytes()
        seen += Path(f"/proc/{pid}/cmdline").read_bytes()
    assert secret not in seen
    assert secret.hex().encode() not in seen


def test_an_engine_has_one_capability(pair):
    assert pair.overlays["node-0"]._device is not None
    pid = pair.overlays["node-0"]._device.process()
    if pid is None:
        pytest.skip("the kernel is no process")
    status = Path(f"/proc/{pid}/status").read_text()
    lines = dict(line.split(":\t") for line in status.splitlines())
    assert int(lines["CapEff"], 16) == int(lines["CapBnd"], 16) == 1 << 12  # CAP_NET_ADMIN
    assert lines["NoNewPrivs"] == "1"


def test_it_is_up_once(pair):
    refused(NetworkError, "ST-NETW-020", pair.up, "node-0")
    pair.send("node-0", "node-1", "still there")


def test_a_port_that_is_taken_is_a_failure(net):
    host = net.hosts["node-0"]
    code = "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
    code += f"; s.bind(('', {PORT})); print('ready', flush=True); time.sleep(60)"
    command = host.command(sys.executable, "-I", "-c", code)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert said(other) == "ready"
            with pytest.raises(NetworkError):
                net.up("node-0")
        finally:
            other.kill()
    assert remains(net, "node-0") == []


class Failing:
    """Runs commands; the one with a certain number does its work, and then fails."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, argv, *, data=b""):
        result = run_command(argv, data=data)
        self.left -= 1
        if self.left == 0:
            raise command_failed(" ".join(argv), "failed on purpose")
        return result


@pytest.mark.slow
def test_a_failure_after_any_step_leaves_nothing(net, encryption):
    run = Failing()

    def up(fail_at):
        run.left = fail_at
        return Overlay.up(net.plan("node-0"), state=net.state, engine=encryption, run=run)

    for step in range(1, 50):
        with suppress(NetworkError):
            net.overlays["node-0"] = up(step)
            break
        assert remains(net, "node-0") == [], f"command {step} of up"
    assert step > 8
    members = net.job.members("node-0", ["node-0", "node-1"])
    for step in range(1, 50):
        run.left = step
        with suppress(NetworkError):
            net.overlays["node-0"].apply(1, members)
            break
        assert remains(net, "node-0") == [], f"command {step} of apply"
        net.overlays["node-0"] = up(0)
    run.left = 0
    assert step > 3


OWNER = """
import sys, time
from ipaddress import ip_address
from pathlib import Path
from securetrain.network.overlay import Overlay, Plan
from securetrain.network.wireguard import WireGuardKey
job, state, host, endpoint, port = sys.argv[1:]
overlay = Overlay.up(
    Plan(job=job, node="node-0", key=WireGuardKey.generate(), endpoint=ip_address(endpoint),
         port=int(port), host=host),
    state=Path(state),
)
import subprocess
worker = subprocess.Popen(overlay.command(["/bin/sleep", "300"]))
print(worker.pid, flush=True)
time.sleep(300)
"""


@pytest.fixture(params=["the host's name is given", "the owner is in the host"])
def orphaned(net, request):
    """A job network with a worker in it, whose owner was killed."""
    host = net.hosts["node-0"]
    is_inside = request.param == "the owner is in the host"
    name = "" if is_inside else host.name
    arguments = [net.name, str(net.state), name, str(host.address), str(PORT)]
    entering = ["nsenter", f"--net=/run/netns/{host.name}", "--"] if is_inside else []
    with subprocess.Popen(
        [*entering, sys.executable, "-c", OWNER, *arguments], stdout=subprocess.PIPE, text=True
    ) as owner:
        try:
            worker = int(said(owner))
            assert collect(net.state).alive  # while it lives, nothing is touched
            assert remains(net, "node-0")
        finally:
            owner.kill()
    return worker


def test_a_killed_owner_leaves_nothing_after_gc(net, orphaned, capsys):
    left = remains(net, "node-0")
    assert len(left) >= 4, left
    assert Path(f"/proc/{orphaned}").exists()
    assert main(["network", "gc", "--state", str(net.state), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["removed"]) == 1
    assert remains(net, "node-0") == []
    assert not is_running(orphaned)


def test_a_killed_owner_is_no_obstacle(net, orphaned):
    net.up("node-0")
    assert not is_running(orphaned)


LISTEN = """
import socket, sys
s = socket.create_server((sys.argv[1], 7001)); print("ready", flush=True)
c, _ = s.accept(); c.settimeout(30); print("connected", flush=True)
try: print("end" if c.recv(1) == b"" else "data", flush=True)
except OSError as error: print(type(error).__name__, flush=True)
"""
CONNECT = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 7001), 30); time.sleep(300)
"""


def test_the_others_hear_of_the_end_before_the_tunnel_goes(pair):
    """Though the engine comes to its turn late: a peer without that word would wait for ever."""
    overlay = pair.overlays["node-0"]
    assert overlay._device is not None
    with pair.start("node-1", LISTEN, str(pair.address("node-1"))) as server:
        assert said(server) == "ready"
        with pair.start("node-0", CONNECT, str(pair.address("node-1"))) as client:
            assert said(server) == "connected"
            engine = overlay._device.process()
            if engine is not None:
                os.kill(engine, signal.SIGSTOP)
                late = threading.Timer(0.5, os.kill, (engine, signal.SIGCONT))
                late.start()
            overlay.down()
            assert client.wait(10) == -signal.SIGKILL
        assert said(server) == "end"


def test_programs_inside_end_with_it(pair):
    with pair.start("node-0", "import time; print('ready', flush=True); time.sleep(300)") as worker:
        assert said(worker) == "ready"
        pair.overlays["node-0"].down()
        assert worker.wait(10) == -signal.SIGKILL


def test_another_port_and_key_for_another_job(net):
    net.up("node-0")
    other = plan_on(net.hosts["node-0"], f"{net.name}-2", key=WireGuardKey.generate())
    with Overlay.up(other, state=net.state, engine=net.engine) as second:
        assert second.port not in {0, PORT}
        assert net.hosts["node-0"].udp_ports() == {PORT, second.port}
        assert second.names.namespace != net.overlays["node-0"].names.namespace
    assert net.hosts["node-0"].udp_ports() == {PORT}
