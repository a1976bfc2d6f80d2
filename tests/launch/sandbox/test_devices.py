# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A machine with GPUs and RDMA cards: what of it comes out visible to workers, and how.

There is none at hand: its paths are made, out of ``/dev/null``, in a mount namespace of the test's.
"""

import json
import os
import resource
import stat
import sys
from pathlib import Path

import pytest

from securetrain.launch.sandbox import holder, landlock
from securetrain.launch.sandbox.devices import (
    device_groups,
    lacking_devices,
    memory_to_lock,
    shown_devices,
)
from securetrain.launch.sandbox.user import JobUser
from tests.launch.sandbox.machine import lacking
from tests.vocabulary import needs, ran

ALWAYS = {"full", "null", "random", "tty", "urandom", "zero"}
GPU = {
    "nvidia0": 0o666,
    "nvidia15": 0o666,
    "nvidiactl": 0o666,
    "nvidia-uvm": 0o666,
    "nvidia-uvm-tools": 0o666,
    "nvidia-modeset": 0o666,
    "nvidia-caps-imex-channels/channel0": 0o666,
    "gdrdrv": 0o666,
    "kfd": 0o660,
    "dri/renderD128": 0o660,
}
MIG = {"nvidia-caps/nvidia-cap1": 0o400, "nvidia-caps/nvidia-cap21": 0o444}
"""The right to configure MIG is root's; the right to one instance is everybody's."""
RDMA = {
    "infiniband/uverbs0": 0o666,
    "infiniband/uverbs11": 0o660,
    "infiniband/rdma_cm": 0o666,
}
OTHERS = {
    "dri/card0": 0o660,
    "infiniband/issm0": 0o666,
    "infiniband/umad0": 0o666,
    "kmsg": 0o666,
    "kvm": 0o666,
    "mem": 0o666,
    "nvidia-nvswitchctl": 0o666,
    "nvme0": 0o666,
    "sda": 0o666,
    "tpmrm0": 0o666,
    "vfio/vfio": 0o666,
}
RENDER, VERBS = 970, 971
"""Groups of the machine, without which the devices of mode 0660 open to nobody but root."""


def populate(dev: Path) -> None:
    """A folder like the ``/dev`` of such a machine; every device is ``/dev/null``."""
    modes = {**dict.fromkeys(ALWAYS, 0o666), **GPU, **MIG, **RDMA, **OTHERS}
    for name, mode in modes.items():
        path = dev / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        path.chmod(mode)
    for name, group in {
        "kfd": RENDER,
        "dri/renderD128": RENDER,
        "infiniband/uverbs11": VERBS,
    }.items():
        os.chown(dev / name, 0, group)


def shown(dev, *, rdma):
    names = {path.relative_to(dev).as_posix() for path in shown_devices(rdma=rdma, dev=dev)}
    folders = {name for name in names if (dev / name).is_dir()}
    below = {p.relative_to(dev).as_posix() for name in folders for p in (dev / name).iterdir()}
    return (names - folders) | below


@needs(lacking)
@pytest.mark.netns
def test_devices_by_name_and_the_groups_that_open_them(tmp_path):
    populate(tmp_path)
    user = JobUser(uid=12345, gid=12345, name="job")
    assert shown(tmp_path, rdma=False) == ALWAYS | set(GPU) | set(MIG)
    assert shown(tmp_path, rdma=True) == ALWAYS | set(GPU) | set(MIG) | set(RDMA)
    assert device_groups(user, rdma=False, dev=tmp_path) == [RENDER]
    assert device_groups(user, rdma=True, dev=tmp_path) == [RENDER, VERBS]


def test_what_cuda_cannot_make_itself_is_said(tmp_path):
    driver = tmp_path / "version"
    assert lacking_devices(tmp_path, driver) == "", "no driver, nothing to say"
    driver.touch()
    assert "nvidiactl and" in lacking_devices(tmp_path, driver)
    (tmp_path / "nvidiactl").touch()
    said = lacking_devices(tmp_path, driver)
    assert said.startswith(f"workers cannot make {tmp_path}/nvidia-uvm for CUDA")
    assert "nvidia-modprobe" in said
    (tmp_path / "nvidia-uvm").touch()
    assert lacking_devices(tmp_path, driver) == ""


def test_memory_that_rdma_may_lock(monkeypatch):
    kind, none = resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY
    has, asked = [(65536, none)], []

    def take(which, limits):
        assert which == kind
        asked.append(limits)
        if refuses:
            raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: has[0] if which == kind else None)
    monkeypatch.setattr(resource, "setrlimit", take)
    refuses = True
    assert memory_to_lock() == ""
    assert asked == []
    has[0] = (65536, 8 << 20)
    assert memory_to_lock().startswith("RDMA may lock 8192 KiB of memory only")
    refuses = False
    assert memory_to_lock() == ""
    assert asked[-2:] == [(65536, none), (65536, 8 << 20)], "it was tried, and put back"


def test_landlock_leaves_requests_to_devices_alone():
    """CUDA and verbs are ioctl(2); Landlock 5 could refuse it (LANDLOCK_ACCESS_FS_IOCTL_DEV)."""
    for version in (2, 5, 7):
        assert not landlock.rules(version, ["/x"], readable=["/y"])["handled"] & 1 << 15


# As root, in a mount namespace of its own: the machine, then a sandbox on it. argv: folder, rdma.
MACHINE = """
import json, os, resource, subprocess, sys
from pathlib import Path
from securetrain.launch.sandbox.sandbox import Sandbox
from securetrain.launch.sandbox.kernel import call
from securetrain.launch.sandbox import landlock
from securetrain.launch.sandbox.user import reserve
from securetrain.launch.sandbox.view import Scene
folder, rdma = Path(sys.argv[1]), sys.argv[2] == "rdma"
for name, place in (("dev", "/dev"), ("class", "/sys/class"), ("run", "/run")):
    if name == "dev":
        call("mount", b"tmpfs", str(folder / "shm").encode(), b"tmpfs", 0, b"size=64m")
        call("mount", str(folder / "shm").encode(), f"{folder}/dev/shm".encode(), None, 4096, None)
        call("mount", b"/dev/pts", f"{folder}/dev/pts".encode(), None, 4096, None)
    call("mount", str(folder / name).encode(), place.encode(), None, 4096 | 16384, None)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 14, 1 << 16))
run, work = folder / "run-dir", folder / "work"
for path in (run / "keys", run / "cache", work):
    path.mkdir(parents=True)
sandbox = Sandbox.start(Scene(
    run=run, keys=run / "keys", writable=(), cwd=work, search_path=tuple(sys.path),
    code=(Path(sys.prefix), Path(sys.base_prefix)), homes=(Path("/root"),), home=Path("/root"),
    landlock_version=landlock.version(), user=reserve(), rdma=rdma))
probe = [sys.executable, "-c", (folder / "probe.py").read_text(), *sys.argv[3:]]
done = subprocess.run(sandbox.command(probe), cwd=work, capture_output=True, text=True)
missing, notes = list(sandbox.missing), list(sandbox.notes)
sandbox.close()
print(json.dumps({"code": done.returncode, "out": done.stdout, "err": done.stderr,
                  "missing": missing, "notes": notes}))
"""

# A worker: what it can open, and what GPU libraries do besides.
PROBE = """
import array, ctypes, errno, fcntl, json, mmap, os, resource, socket, sys, termios
found = {}
for name in sys.argv[1:]:
    for how, flags in (("rw", os.O_RDWR), ("r", os.O_RDONLY)):
        try:
            fd = os.open(name, flags | os.O_CLOEXEC)
        except OSError as error:
            found[name] = errno.errorcode[error.errno]
        else:
            found[name] = how
            break
def outcome(action):
    try:
        return action() or "done"
    except OSError as error:
        return errno.errorcode[error.errno]
def share():
    shm = os.open("/dev/shm/nccl-test", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(shm, 1 << 20)
    mmap.mmap(shm, 1 << 20)[:4] = b"nccl"
    ours, theirs = socket.socketpair()
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [shm]))])
    _, rights, _, _ = theirs.recvmsg(1, 64)
    other = array.array("i", rights[0][2])[0]
    assert os.pread(other, 4, 0) == b"nccl"
    # As cuMem does between processes: pidfd_getfd of one's own.
    libc = ctypes.CDLL(None, use_errno=True)
    again = libc.syscall(438, os.pidfd_open(os.getpid()), other, 0)
    assert os.pread(again, 4, 0) == b"nccl"
def request():  # that it comes to the driver, which knows no such one
    with open("/dev/nvidia0" if "/dev/nvidia0" in found else "/dev/null", "rb") as device:
        fcntl.ioctl(device, termios.TCGETS, b" " * 64)
def lock():
    page = mmap.mmap(-1, 1 << 20)
    buffer = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(buffer), ctypes.c_size_t(1 << 20)):
        raise OSError(ctypes.get_errno(), "mlock")
def talk():
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20).close()
def abstract():
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        one.bind("\\0nccl-test"); one.listen(); two.connect("\\0nccl-test")
print(json.dumps({"open": found, "share": outcome(share), "ioctl": outcome(request),
                  "lock": outcome(lock), "netlink": outcome(talk), "abstract": outcome(abstract),
                  "memlock": list(resource.getrlimit(resource.RLIMIT_MEMLOCK))}))
"""
READ = {
    "/sys/class/infiniband/mlx5_0/ports/1/state": "r",
    "/sys/class/infiniband_verbs/uverbs0/ibdev": "r",
    "/sys/class/net/eth0/speed": "r",
    "/run/nvidia-topologyd/virtualTopology.xml": "r",
    "/sys/devices/system/node": "r",
    "/proc/driver": "r",
    "/proc/self/status": "r",
}
HIDDEN = ("/run/nvidia-persistenced/socket", "/run/docker.sock")


@needs(lacking)
@pytest.mark.netns
@pytest.mark.dist
@pytest.mark.parametrize("fabric", ["tunnel", "rdma"])
def test_a_worker_opens_what_gpu_libraries_need_and_nothing_else(tmp_path, fabric):
    for name in ("dev/shm", "dev/pts", "shm", "run/nvidia-topologyd", "run/nvidia-persistenced"):
        (tmp_path / name).mkdir(parents=True)
    populate(tmp_path / "dev")
    for path, text in (
        ("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
        ("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n"),
        ("class/net/eth0/speed", "100000\n"),
        ("run/nvidia-topologyd/virtualTopology.xml", "<system/>"),
        ("run/nvidia-persistenced/socket", ""),
        ("run/docker.sock", ""),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "probe.py").write_text(PROBE)
    devices = [f"/dev/{name}" for name in (*ALWAYS, *GPU, *MIG, *RDMA, *OTHERS)]
    command = ["unshare", "--mount", sys.executable, "-c", MACHINE, str(tmp_path), fabric]
    done = ran([*command, *devices, *READ, *HIDDEN])
    told = json.loads(done.stdout)
    assert told["code"] == 0, told["err"]
    assert told["missing"] == []
    said = json.loads(told["out"])
    seen = {name.removeprefix("/dev/"): how for name, how in said["open"].items()}
    is_rdma = fabric == "rdma"
    assert {name: seen[name] for name in (*GPU, *MIG)} == {
        **dict.fromkeys(GPU, "rw"),
        "nvidia-caps/nvidia-cap1": "EACCES",
        "nvidia-caps/nvidia-cap21": "r",
    }
    assert {name: seen[name] for name in RDMA} == dict.fromkeys(RDMA, "rw" if is_rdma else "ENOENT")
    assert {name: seen[name] for name in OTHERS} == dict.fromkeys(OTHERS, "ENOENT")
    assert {name: seen[name] for name in READ} == READ
    assert {name: seen[name] for name in HIDDEN} == dict.fromkeys(HIDDEN, "ENOENT")
    assert (said["share"], said["abstract"]) == ("done", "done")
    assert said["netlink"] in {"done", "EPROTONOSUPPORT"}, "a kernel without RDMA says so itself"
    assert said["ioctl"] == "ENOTTY", "it came to the driver"
    assert said["memlock"][0] == (said["memlock"][1] if is_rdma else 1 << 14)
    kept = [note for note in told["notes"] if "RDMA may lock 64 KiB of memory only" in note]
    is_free = said["memlock"][1] == resource.RLIM_INFINITY
    assert (is_free or bool(kept)) == is_rdma, "without a limit, or it is said"
    assert said["lock"] == ("done" if is_free else "ENOMEM")


@pytest.mark.parametrize("may", [True, False])
def test_rdma_locks_what_it_may(monkeypatch, may):
    kind, none, set_to = resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY, []

    def take(which, limits):
        if limits[1] == none and not may:
            raise ValueError("not allowed to raise maximum limit")
        set_to.append((which, limits))

    monkeypatch.setattr(resource, "getrlimit", lambda _which: (65536, 8 << 20))
    monkeypatch.setattr(resource, "setrlimit", take)
    holder.limit({"limits": [], "raised": [kind], "cgroup": ""})
    assert set_to == [(kind, (none, none) if may else (8 << 20, 8 << 20))]
