# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of a node enters another: in the domain that they share, and in one each."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from securetrain.core.errors import RuntimeRefusal
from securetrain.core.vocabulary import RankIsolation
from securetrain.launch.node import confinement
from securetrain.launch.sandbox import landlock
from securetrain.launch.sandbox.sandbox import Sandbox
from securetrain.launch.sandbox.user import reserve
from securetrain.launch.sandbox.view import Scene
from tests.launch.sandbox.machine import lacking
from tests.tables import each
from tests.vocabulary import free_port, needs, outcome, refused

pytestmark = [pytest.mark.netns, needs(lacking)]


@pytest.fixture
def sandbox(tmp_path):
    """Starts sandboxes of a job in a folder of this test's, which end with it."""
    made = []
    for name in ("run/keys", "work"):
        (tmp_path / name).mkdir(parents=True)

    def start(*, apart, version=None, **changed):
        scene = Scene(
            run=tmp_path / "run",
            keys=tmp_path / "run" / "keys",
            writable=(),
            cwd=tmp_path / "work",
            search_path=tuple(sys.path),
            code=(Path(sys.prefix), Path(sys.base_prefix)),
            homes=(Path("/root"), Path("/home")),
            user=reserve() if os.geteuid() == 0 else None,
            own_user_namespace=os.geteuid() != 0,
            landlock_version=version or landlock.version(),
            **changed,
        )
        made.append(Sandbox.start(scene, ranks_apart=apart))
        return made[-1]

    yield start
    for one in made:
        one.close()


VICTIM = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
held = os.memfd_create("held"); os.write(held, b"secret"); print(os.getpid(), held, flush=True)
time.sleep(600)
"""
ATTACKER = """
import ctypes, json, os, signal, sys
pid, held = int(sys.argv[1]), int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
def descriptor():
    got = libc.syscall(438, os.pidfd_open(pid), held, 0)
    return got >= 0 and os.pread(got, 6, 0) == b"secret"
def environ():
    return b"SECRET=1" in open(f"/proc/{pid}/environ", "rb").read()
def memory():
    start = int(open(f"/proc/{pid}/maps").readline().split("-")[0], 16)
    return len(os.pread(os.open(f"/proc/{pid}/mem", os.O_RDWR), 8, start)) == 8
def reach(what):
    try:
        return what()
    except OSError as error:
        return False
found = {one.__name__: reach(one) for one in (descriptor, environ, memory)}
found["signal"] = reach(lambda: os.kill(pid, signal.SIGUSR1) is None)
print(json.dumps(found))
"""


@contextmanager
def victim(started):
    words = started.command([sys.executable, "-I", "-S", "-c", VICTIM])
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={"SECRET": "1"}, cwd="/") as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().decode().split()
        finally:
            process.kill()


def attacked(started, place):
    words = [sys.executable, "-I", "-S", "-c", ATTACKER, *place]
    done = outcome(started.command(words), cwd="/", env={})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.forgery
@pytest.mark.parametrize("apart", [False, True], ids=["shared", "domains"])
def test_a_rank_enters_another(sandbox, apart):
    """The first row is the control: in the domain that they share, all of it works."""
    started = sandbox(apart=apart)
    assert ("ranks kept apart" in started.label) == apart
    signalled = not apart or landlock.version() < 6
    with victim(started) as (process, place):
        found = attacked(started, place)
        assert found == {
            **dict.fromkeys(("descriptor", "environ", "memory"), not apart),
            "signal": signalled,
        }
        assert (process.wait(60) == 7) if signalled else process.poll() is None


@pytest.mark.forgery
def test_below_version_6_a_domain_keeps_all_but_signals_and_files_still_move(sandbox):
    started = sandbox(apart=True, version=2)
    assert "but for signals" in started.label
    with victim(started) as (_, place):
        found = attacked(started, place)
    assert found == {"descriptor": False, "environ": False, "memory": False, "signal": True}
    move = "import os; os.mkdir('/tmp/d'); open('/tmp/f', 'w'); os.rename('/tmp/f', '/tmp/d/f')"
    done = outcome(started.command([sys.executable, "-I", "-S", "-c", move]), cwd="/", env={})
    assert (done.returncode, done.stderr) == (0, "")


@each(
    "asked, version, gpus, apart",
    (RankIsolation.NONE, 0, ["nvidia0"], False),
    (RankIsolation.WITHOUT_GPU, 7, ["nvidia0"], False),
    (RankIsolation.WITHOUT_GPU, 2, [], True),
    (RankIsolation.DOMAINS, 7, [], True),
    (RankIsolation.WITHOUT_GPU, 1, [], None),
    (RankIsolation.DOMAINS, 0, [], None),
    (RankIsolation.DOMAINS, 7, ["nvidia0"], None),
)
def test_what_cannot_hold_is_refused(asked, version, gpus, apart):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confinement, "gpu_devices", lambda: gpus)
        if apart is None:
            refused(RuntimeRefusal, "ST-RUNT-024", confinement._ranks_apart, asked, version)
        else:
            assert confinement._ranks_apart(asked, version) is apart


TRAINS = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset
def child(shared):
    shared += 1
def main():
    dist.init_process_group("gloo")
    rows = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2)
    total = sum(batch[0].sum() for batch in rows)
    shared = torch.zeros(4).share_memory_()
    mp.spawn(child_of, args=(shared,), nprocs=1)
    total = total + shared.sum()
    dist.all_reduce(total)
    print(total.item(), flush=True)
    dist.destroy_process_group()
def child_of(_, shared):
    child(shared)
if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_groups_loaders_and_children_work_in_domains(sandbox, tmp_path):
    work = tmp_path / "work"
    (work / "trains.py").write_text(TRAINS)
    started = sandbox(apart=True, script=work / "trains.py")
    port = str(free_port())
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    words = started.command([sys.executable, str(work / "trains.py")])
    ranks = [
        subprocess.Popen(
            words,
            env={**group, "RANK": str(rank), "OMP_NUM_THREADS": "1", "HOME": "/root"},
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for one in ranks:
        said, wrong = one.communicate(timeout=180)
        assert (one.returncode, said) == (0, "64.0\n"), wrong
