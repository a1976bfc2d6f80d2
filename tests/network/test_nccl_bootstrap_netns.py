# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Where a real NCCL listens, which needs no GPU: `ncclGetUniqueId` opens the bootstrap socket.

Attack 31 of the catalogue: interfaces whose names begin alike, a machine-wide configuration file
and variables of the user, each of which takes NCCL out of the job network. Each is tried on NCCL as
it comes, then with the environment and the namespace of a worker.
"""

import ctypes.util
import importlib.util
import secrets
import sys
from functools import cache
from pathlib import Path

import pytest

from securetrain.core.vocabulary import NetworkProfile
from securetrain.network.environment import worker_environment
from securetrain.network.namespace import Namespace, write_names
from securetrain.policy import load_policy
from securetrain.testing.cluster import missing
from tests.vocabulary import needs, ran


@cache
def find_nccl() -> str:
    """The NCCL of torch's CUDA wheels, or the machine's."""
    package = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.nccl")
    for folder in package.submodule_search_locations or () if package else ():
        if (path := Path(folder, "lib", "libnccl.so.2")).exists():
            return str(path)
    return ctypes.util.find_library("nccl") or ""


def without_nccl() -> list[str]:
    return [] if find_nccl() else ["libnccl.so.2"]


pytestmark = [
    pytest.mark.netns,
    needs(missing, without_nccl),
]

TUNNEL, EVIL = "100.64.0.1", "198.18.9.9"

# argv: library. Prints where the bootstrap socket is: the id is a magic number and an address.
UNIQUE_ID = """
import ctypes, socket, sys
library, found = ctypes.CDLL(sys.argv[1]), (ctypes.c_char * 128)()
code = library.ncclGetUniqueId(ctypes.byref(found))
listens = [l.split()[1] for l in open("/proc/self/net/tcp") if l.split()[3] == "0A"]
ours = [bytes.fromhex(entry[:8])[::-1] for entry in listens]
print(code, socket.inet_ntoa(bytes(found)[12:16]), *sorted(map(socket.inet_ntoa, ours)))
"""


@pytest.fixture
def inside(tmp_path):
    """A namespace with the tunnel and a device whose name only begins like the tunnel's."""
    namespace = Namespace(f"nccl-{secrets.token_hex(4)}")
    namespace.create()
    try:
        # The kernel lists the newest device last: the evil one comes first.
        for name, address in (("st0evil", EVIL), ("st0", TUNNEL)):
            namespace.ip("link", "add", name, "type", "veth", "peer", "name", f"{name}-p")
            namespace.ip("address", "add", f"{address}/24", "dev", name)
            for end in (name, f"{name}-p"):
                namespace.ip("link", "set", "dev", end, "up")
        write_names(tmp_path, {})
        yield namespace
    finally:
        namespace.remove()


def ask(command: list[str], env: dict[str, str]) -> str:
    full = [*command, sys.executable, "-I", "-c", UNIQUE_ID, find_nccl()]
    done = ran(full, env=env)
    return done.stdout.strip()


def workers(environ: dict[str, str], folder: Path) -> dict[str, str]:
    """What the launcher makes of a user's environment."""
    policy = load_policy("dev").policy
    (folder / "nccl.conf").write_bytes(b"")
    found = worker_environment(environ, policy, NetworkProfile.OVERLAY, folder)
    return dict(found.env)


def test_a_device_whose_name_begins_alike(inside, tmp_path):
    plain = inside.enter_command()
    assert ask(plain, {"NCCL_SOCKET_IFNAME": "st0"}).split()[1] == EVIL  # a prefix, for NCCL
    env = workers({"NCCL_SOCKET_IFNAME": "st0"}, tmp_path)
    assert ask(plain, env) == f"0 {TUNNEL} {TUNNEL}"


def test_an_address_from_the_environment(inside, tmp_path):
    plain, hostile = inside.enter_command(), {"NCCL_COMM_ID": f"{EVIL}:7777"}
    assert ask(plain, hostile).split()[1] == EVIL
    assert ask(plain, workers(hostile, tmp_path)) == f"0 {TUNNEL} {TUNNEL}"


def test_an_address_from_a_file(inside, tmp_path, monkeypatch):
    """/etc/nccl.conf is read whatever NCCL_CONF_FILE says; a worker finds it empty."""
    etc = tmp_path / "etc"
    etc.mkdir()
    for name in ("hosts", "nsswitch.conf", "resolv.conf"):
        (etc / name).touch()
    (etc / "nccl.conf").write_text(f"NCCL_COMM_ID={EVIL}:7777\n")
    env = workers({}, tmp_path)
    # The machine has such a file: laid over its /etc, for this test's processes alone.
    mount = f'mount --bind {etc} /etc && exec "$@"'
    machine = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh"]
    assert ask([*machine, *inside.enter_command()], env).split()[1] == EVIL
    monkeypatch.setattr(Path, "exists", lambda path: True)  # as on such a machine
    program = inside.program_command([], tmp_path)
    monkeypatch.undo()
    assert ask([*machine, *program], env) == f"0 {TUNNEL} {TUNNEL}"
