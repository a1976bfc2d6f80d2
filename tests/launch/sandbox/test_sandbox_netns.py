# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a program finds in a sandbox, and how it ends."""

import errno
import itertools
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from securetrain.launch.sandbox import enter, server
from securetrain.launch.sandbox import orders as orders_module
from securetrain.launch.sandbox import sandbox as sandbox_module
from securetrain.launch.sandbox.cgroup import Group, Limits, NoLimitsError
from securetrain.launch.sandbox.devices import shared_memory_size
from securetrain.launch.sandbox.sandbox import Sandbox
from securetrain.launch.sandbox.user import JobUser, reserve
from tests.launch.sandbox.machine import lacking
from tests.tables import items
from tests.vocabulary import is_running, needs, outcome, outside, ran
from tests.waiting import until

pytestmark = [pytest.mark.netns, needs(lacking)]


def test_files_belong_to_the_folders_owner_on_the_disk(inside, tmp_path, scene):
    scene()
    before = (tmp_path / "work").stat()
    done = inside("import os; open('x', 'w'); os.mkdir('y'); print(os.stat('x').st_uid)")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    made = [(tmp_path / "work" / name).stat() for name in "xy"]
    assert {(one.st_uid, one.st_gid) for one in made} == {(before.st_uid, before.st_gid)}
    after = (tmp_path / "work").stat()
    assert (after.st_mode, after.st_uid) == (before.st_mode, before.st_uid)


def test_files_of_somebody_else_keep_their_owner(inside, tmp_path, scene):
    scene()
    theirs = tmp_path / "work" / "theirs"
    theirs.write_text("theirs")
    theirs.chmod(0o600)
    os.chown(theirs, 4242, 4242)
    done = inside("import os; print(os.stat('theirs').st_uid); open('theirs')")
    assert done.stdout == "4242\n"
    assert "PermissionError" in done.stderr


@items(
    "code, end",
    ("raise SystemExit(7)", 7),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11),
    ("import os; os.abort()", -6),
)
def test_an_end_is_the_programs_own(inside, code, end):
    assert inside(code).returncode == end


WAITING = """\
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
child = os.fork()
if child:
    pathlib.Path("ready.part").write_text(f"{os.getpid()} {child}")
    os.rename("ready.part", "ready")
time.sleep(600)
"""


@pytest.fixture
def waiting(sandbox, tmp_path):
    """A program that waits, by its outer process; its child and itself by their own numbers."""
    started = sandbox()
    process = subprocess.Popen(
        started.command([sys.executable, "-c", WAITING]),
        cwd=tmp_path / "work",
        start_new_session=True,
    )
    ready = tmp_path / "work" / "ready"
    until(ready.exists)
    pids = [outside(int(word), os.getpid()) for word in ready.read_text().split()]
    yield started, process, pids
    process.kill()
    process.wait()


def gone(pids):
    until(lambda: not any(map(is_running, pids)), "a process is left")
    return True


def test_a_signal_reaches_the_whole_group(waiting):
    _, process, pids = waiting
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 9
    assert gone(pids)


def test_killing_the_outer_process_kills_the_worker(waiting):
    _, process, pids = waiting
    process.kill()
    assert gone(pids)


def test_closing_ends_everything(waiting):
    started, process, pids = waiting
    started.close()
    assert gone(pids)
    assert process.wait(30) == 125


def test_nothing_outlives_the_launcher(tmp_path, scene):
    """Killed at once, with no time to clean up."""
    scene()
    code = (
        "import subprocess, sys, json, os\n"
        "from tests.launch.sandbox.test_sandbox_netns import started_for\n"
        "started_for(sys.argv[1], sys.argv[2])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), WAITING]
    launcher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    ready = tmp_path / "work" / "ready"
    until(ready.exists, alive=launcher)
    pids = [outside(int(word), launcher.pid) for word in ready.read_text().split()]
    launcher.kill()
    assert "the worker has ended with its sandbox" in launcher.communicate()[1]
    assert gone(pids)


def started_for(folder: str, code: str) -> None:
    """A launcher that waits for its worker."""
    from securetrain.launch.sandbox import landlock
    from securetrain.launch.sandbox.view import Scene

    root = Path(folder)
    made = Scene(
        run=root / "run",
        keys=root / "run" / "keys",
        writable=(),
        cwd=root / "work",
        search_path=tuple(sys.path),
        code=(Path(sys.prefix), Path(sys.base_prefix)),
        user=reserve(),
        landlock_version=landlock.version(),
    )
    started = Sandbox.start(made)
    subprocess.run(started.command([sys.executable, "-c", code]), cwd=root / "work", check=False)


def test_two_ranks_share_processes_and_memory(sandbox, tmp_path):
    """As NCCL and CUDA IPC need it; another job shares neither."""
    first, second = sandbox(), sandbox()
    say = (
        "import json, os, sys; open(f'/dev/shm/{sys.argv[1]}', 'w');"
        "print(json.dumps([os.readlink(f'/proc/self/ns/{n}') for n in ('pid', 'ipc', 'mnt', 'uts')]"
        " + [sorted(os.listdir('/dev/shm')), os.getuid()]))"
    )

    def told(one, name):
        words = one.command([sys.executable, "-c", say, name])
        done = ran(words, cwd=tmp_path / "work")
        return json.loads(done.stdout)

    a, b, c = told(first, "a"), told(first, "b"), told(second, "c")
    assert a[:4] == b[:4]
    assert b[4] == ["a", "b"]
    assert a[5] == b[5]
    assert not set(a[:4]) & set(c[:4])
    assert c[4] == ["c"]
    assert c[5] != a[5]
    assert str(Path("/proc/self/ns/pid").readlink()) not in a


def test_somebody_stands_in_a_folder_of_the_system(inside, scene, tmp_path):
    scene()
    done = inside("open('/etc/x', 'w')", cwd=Path("/etc"), inputs=(tmp_path / "work",))
    assert "Read-only file system" in done.stderr


def test_our_code_and_other_keys_in_a_writable_folder(inside, tmp_path, scene):
    scene()
    work = tmp_path / "work"
    (work / "venv").mkdir()
    (work / "venv" / "module.py").write_text("")
    key = work / "deep" / "ca.pem"
    key.parent.mkdir()
    key.write_text("-----BEGIN PRIVATE KEY-----\nsecret\n")
    (work / "deep" / "note.pem").write_text("-----BEGIN PRIVATE KEY-----\nsecret\n")
    code = (
        "print(repr(open('deep/ca.pem').read()), len(open('deep/note.pem').read()))\n"
        "open('venv/module.py', 'w')"
    )
    prefixes = (Path(sys.prefix), Path(sys.base_prefix), work / "venv")
    done = inside(code, code=prefixes)
    assert done.stdout == "'' 35\n"
    assert "Read-only file system" in done.stderr


def test_what_lies_where_nobody_may_enter_is_shown_alone(inside, tmp_path):
    closed = tmp_path / "closed"
    (closed / "in").mkdir(parents=True)
    (closed / "in" / "data").write_text("data")
    (closed / "other").write_text("other")
    closed.chmod(0o700)
    code = f"import os; print(open('{closed}/in/data').read(), os.listdir('{closed}'))"
    assert inside(code, inputs=(closed / "in",)).stdout == "data ['in']\n"


@pytest.mark.parametrize("where", ["outputs", "cwd"])
def test_closed_folders_of_what_is_shown_are_no_obstacle(sandbox, tmp_path, where):
    """A run of root's lies in a checkout below a home folder, and the checkout is shown."""
    tree = tmp_path / "home" / "checkout"
    out, other = tree / "run" / "out", tree / "run" / "other"
    for folder in (out, other):
        folder.mkdir(parents=True)
    for folder in (out, tree / "run", tree.parent):
        folder.chmod(0o700)
    place = {"cwd": out} if where == "cwd" else {"outputs": (out,)}
    shown = (*sys.path, str(tree))
    started = sandbox(homes=(tree.parent,), search_path=shown, **place)
    code = f"import os; open('{out}/made', 'w'); print(os.listdir('{tree / 'run'}'))"
    done = outcome(started.command([sys.executable, "-c", code]), cwd=out)
    assert done.stdout == "['out']\n", done.stderr
    assert (out / "made").stat().st_uid == out.stat().st_uid


def test_a_machine_without_shared_memory_has_a_sandbox_with_it(sandbox, monkeypatch, tmp_path):
    """Some containers have no /dev/shm; a missing size was no sandbox at all."""
    assert shared_memory_size(str(tmp_path / "none")) == ""
    monkeypatch.setattr(orders_module, "shared_memory_size", lambda: "")
    started = sandbox()
    assert started.features.namespaces
    ran(
        started.command([sys.executable, "-c", "open('/dev/shm/x', 'w').write('x' * 9)"]),
        cwd=tmp_path / "work",
    )


@pytest.mark.parametrize("part", ["user", "landlock", "seccomp"])
def test_a_part_that_fails_is_left_out_and_named(sandbox, monkeypatch, part):
    """Each by orders that cannot be carried out."""
    plain = orders_module.orders

    def broken(scene, features, numbers):
        made = plain(scene, features, numbers)
        if getattr(features, part):
            match part:
                case "user":
                    made["user"] = {**made["user"], "uid": 1 << 32}
                case "landlock":
                    made["landlock"] = {**made["landlock"], "handled": 1 << 60}
                case "seccomp":
                    made["seccomp"] = "ff" * 8
        return made

    monkeypatch.setattr(sandbox_module, "orders", broken)
    started = sandbox()
    assert started.degraded
    assert len(started.missing) == 1
    assert started.label.startswith("DEGRADED: ")
    assert not getattr(started.features, part)
    # The store's relay lets in who this says: never a user that the workers are not.
    wanted = started.scene.user
    assert started.user == (wanted.uid if wanted is not None and part != "user" else os.geteuid())


LIMITS = """
import json, os, resource
names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
tried = []
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except OSError as error:
    tried.append(error.errno)
try:
    os.setpriority(os.PRIO_PROCESS, 0, -5)
except OSError as error:
    tried.append(error.errno)
print(json.dumps([{name: resource.getrlimit(getattr(resource, name)) for name in names}, tried]))
"""


def test_limits_of_a_process_are_the_launchers_but_those_that_harm_others(inside):
    """RDMA locks memory, loaders open files, CUDA reserves address space."""
    low = {"RLIMIT_CORE", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO"}
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    mine = {name: list(resource.getrlimit(getattr(resource, name))) for name in names}
    done = inside(LIMITS)
    assert done.returncode == 0, done.stderr
    found, tried = json.loads(done.stdout)
    assert {name: pair for name, pair in found.items() if name in low} == {
        key: [0, 0] for key in low
    }
    assert {n: p for n, p in found.items() if n not in low} == {
        n: p for n, p in mine.items() if n not in low
    }
    assert tried == [errno.EPERM, errno.EACCES]


@pytest.mark.parametrize("stage", ["made", "entered"])
def test_limits_that_cannot_be_had_are_named(sandbox, monkeypatch, tmp_path, stage):
    made: list[Group] = []
    removed: list[Group] = []

    def make(limits):
        if stage == "made":
            raise NoLimitsError("no cgroup v2 is mounted")
        made.append(Group(path=tmp_path / "group", limits=limits))
        return made[0]

    def removing(group):
        removed.append(group)

    monkeypatch.setattr(sandbox_module, "make_group", make)
    monkeypatch.setattr(Group, "remove", removing)
    if stage == "entered":  # a file that nobody can write
        monkeypatch.setattr(Group, "entry", Path("/proc/version"))
    started = sandbox(limits=Limits(tasks=50))
    assert started.degraded
    (said,) = started.missing
    assert said.startswith("limits of memory and tasks (")
    assert ("no cgroup v2" if stage == "made" else "/proc/version: ") in said
    assert "no limit of memory or tasks; without limits" in started.label
    assert not started.features.limits
    started.close()
    assert removed == made, "at once, or with the sandbox"


def test_without_limits_nothing_is_missing(sandbox):
    assert sandbox().label.endswith("system calls refused, no limit of memory or tasks")


def test_a_job_that_has_all_its_tasks_keeps_its_sandbox(tmp_path):
    """No worker is started then; the next may be."""
    name = f"securetrain-test-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen()
    lifeline, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        lifeline.close()
        refusal = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        os.fork = Mock(side_effect=itertools.chain([refusal], iter(os.fork, None)))
        orders = {"launcher": os.getuid(), "variables": {}, "errors": str(tmp_path), "domain": {}}
        with suppress(BaseException):
            server.Server(listener, theirs.fileno(), orders).serve()
        os._exit(0)
    theirs.close()

    def run():
        words = [sys.executable, "-I", "-S", enter.__file__, name, "--", sys.executable, "-c"]
        return outcome([*words, "print(1)"])

    try:
        done = run()
        assert done.returncode == enter.FAILED
        assert "the worker cannot be started: Resource temporarily unavailable" in done.stderr
        assert run().stdout == "1\n"
    finally:
        lifeline.close()
        listener.close()
        assert os.waitpid(pid, 0)[1] == 0


@pytest.fixture
def no_namespaces(monkeypatch):
    """As in a container that has no right to any."""
    plain = orders_module.orders

    def forbidden(scene, features, numbers):
        made = plain(scene, features, numbers)
        return made | {"netns": "/nowhere"} if features.namespaces else made

    monkeypatch.setattr(sandbox_module, "orders", forbidden)


@pytest.mark.usefixtures("no_namespaces")
def test_a_run_in_the_working_directory_leaves_it_to_imports(sandbox, tmp_path):
    """``runs/`` lies there by default; what cannot be listed, Python imports nothing from."""
    work = tmp_path / "work"
    keys = work / "runs" / "r1" / "keys"
    keys.mkdir(parents=True)
    (keys / "root.pem").write_text("secret")
    (work / "helper.py").write_text("said = 'imported'")
    named = str(keys / "root.pem")
    started = sandbox(run=keys.parent, keys=keys, writable=(), arguments=(named,))
    assert not started.features.namespaces
    code = (
        "import helper, sys; print(helper.said)\n"
        "for name, how in ((sys.argv[1], 'r'), ('made', 'w')):\n"
        "    try: open(name, how)\n"
        "    except PermissionError: print('refused')\n"
    )
    done = outcome(started.command([sys.executable, "-c", code, named]), cwd=work)
    assert done.stdout == "imported\nrefused\nrefused\n", done.stderr


@pytest.mark.usefixtures("no_namespaces")
def test_without_namespaces_landlock_alone(sandbox, tmp_path):
    """The launcher's user, and what it may not see."""
    started = sandbox()
    assert not started.features.namespaces
    assert started.user == os.geteuid()
    assert "mounts, processes and memory" in started.missing[0]
    code = (
        "import os, sys\n"
        "def tried(f):\n"
        "    try:\n"
        "        f()\n"
        "    except OSError as error:\n"
        "        return error.errno\n"
        "root, parent = sys.argv[1:]\n"
        "print([tried(f) for f in (\n"
        "    lambda: open('/etc/st-x', 'w'), lambda: os.listdir('/root'),\n"
        "    lambda: open(root + '/keys/root.pem'), lambda: open(root + '/keys/worker.pem'),\n"
        "    lambda: open(root + '/policy.json', 'w'), lambda: os.kill(int(parent), 0),\n"
        "    lambda: open('mine', 'w'), lambda: open(root + '/checkpoints/mine', 'w'))])\n"
    )
    done = outcome(
        started.command([sys.executable, "-c", code, str(tmp_path / "run"), str(os.getpid())]),
        cwd=tmp_path / "work",
    )
    assert done.stdout == "[13, 13, 13, 13, 13, 1, None, None]\n", done.stderr


def test_another_user_of_the_machine_gets_nothing_started(sandbox):
    started = sandbox()
    request = json.dumps({"argv": ["/bin/true"]}).encode()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(f"\0{started.name}")
                with suppress(OSError):
                    sock.sendall(struct.pack("!I", len(request)) + request)
                code = 0 if sock.recv(1) == b"" else 2
        except ConnectionResetError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    words = started.command([sys.executable, "-c", "raise SystemExit(5)"])
    assert subprocess.run(words, check=False, timeout=60, cwd="/").returncode == 5


def test_a_user_is_who_was_asked_for(inside):
    user = JobUser(uid=4242, gid=4243, name="somebody")
    done = inside("import os; print(os.getresuid(), os.getresgid(), os.getgroups())", user=user)
    assert done.stdout == "(4242, 4242, 4242) (4243, 4243, 4243) []\n"
