# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Limits of memory and tasks: on a tree of files, and where a machine has cgroup v2 for real."""

import errno
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from securetrain.launch.sandbox import cgroup
from securetrain.launch.sandbox.cgroup import (
    Group,
    Limits,
    NoLimitsError,
    Place,
    collect_groups,
    find_place,
    make_group,
    own_group,
)
from tests.launch.sandbox.machine import lacking
from tests.tables import items
from tests.vocabulary import needs, refused
from tests.waiting import until

BOTH = Limits(memory_mib=64, tasks=100)
SCOPE = "user.slice/user-0.slice/session-3.scope"


class Kernel:
    """A machine of files that behaves as the kernel does, as far as it matters here."""

    def __init__(self, root: Path) -> None:
        self.proc, self.mount = root / "proc", root / "cgroup fs"
        for folder in ("self/ns", "sys/kernel/random"):
            (self.proc / folder).mkdir(parents=True)
        (self.proc / "sys/kernel/random/boot_id").write_text("boot\n")
        for name in ("pid", "net"):
            (self.proc / "self/ns" / name).symlink_to(f"{name}:[77]")
        self.process(os.getpid(), 1)
        shown = str(self.mount).replace(" ", "\\040")
        rows = [
            f"30 24 0:26 / {root}/v1 rw - cgroup cgroup rw,memory",
            f"31 24 0:27 / {shown} rw shared:9 - cgroup2 cgroup2 rw",
        ]
        (self.proc / "self/mountinfo").write_text("\n".join(rows) + "\n")
        self.mount.mkdir()
        self.group("", "memory pids cpu", given="memory pids cpu", is_root=True)
        self.stand("")

    def process(self, pid: int, parent: int, started: int = 5) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        text = f"{pid} (x) S {parent} " + "0 " * 15 + f"1 0 {started}"
        (self.proc / str(pid) / "stat").write_text(text)

    def group(
        self, path: str, has: str, *pids: int, given: str = "", is_root: bool = False
    ) -> Path:
        place = self.mount / path
        place.mkdir(parents=True, exist_ok=True)
        files = {"controllers": has, "subtree_control": given, "procs": "\n".join(map(str, pids))}
        for name, text in files.items():
            (place / f"cgroup.{name}").write_text(text)
        if not is_root:
            (place / "cgroup.type").write_text("domain\n")
        return place

    def stand(self, path: str) -> None:
        (self.proc / "self/cgroup").write_text(f"4:memory:/elsewhere\n0::/{path}\n")

    def write(self, path: str, text: str) -> None:
        file = Path(path)
        match file.name:
            case "cgroup.procs":
                for other in self.mount.rglob("cgroup.procs"):
                    other.write_text("\n".join(w for w in other.read_text().split() if w != text))
                before = file.read_text().split() if file.exists() else []
                file.write_text("\n".join([*before, text]))
                return
            case "cgroup.kill":
                (file.parent / "cgroup.procs").write_text("")
                return
            case "cgroup.subtree_control":
                has_pids = (file.parent / "cgroup.procs").read_text().split()
                if has_pids and (file.parent / "cgroup.type").exists():
                    raise OSError(errno.EBUSY, "Device or resource busy")
                names = {word.lstrip("+") for word in text.split()}
                text = " ".join(sorted({*file.read_text().split(), *names}))
            case _:
                given = (file.parent.parent / "cgroup.subtree_control").read_text().split()
                if file.name.partition(".")[0] not in given:
                    raise PermissionError(errno.EACCES, "Permission denied", path)
        file.write_text(text)

    def rmdir(self, path: Path) -> None:
        procs = path / "cgroup.procs"
        if procs.exists() and procs.read_text().split():
            raise OSError(errno.EBUSY, "Device or resource busy")
        for file in path.iterdir():
            if file.is_dir():
                raise OSError(errno.EBUSY, "Device or resource busy")
        for file in path.iterdir():
            file.unlink()
        os.rmdir(path)  # noqa: PTH106 - Path.rmdir is this


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    made = Kernel(tmp_path)
    monkeypatch.setattr(cgroup, "write", made.write)
    monkeypatch.setattr(Path, "rmdir", lambda path: made.rmdir(path))  # noqa: PLW0108 - to bind
    monkeypatch.setattr(cgroup, "_PATIENCE_SECONDS", 0.02)
    return made


def test_a_group_is_made_with_its_limits_and_removed(kernel):
    (kernel.mount / "cgroup.subtree_control").write_text("cpu")
    group = make_group(BOTH, kernel.proc)
    assert group.path.parent == kernel.mount
    assert group.path.name.startswith(f"securetrain-{os.getpid()}-5-77-")
    assert (group.path / "memory.max").read_text() == str(64 << 20)
    assert (group.path / "pids.max").read_text() == "100"
    assert (kernel.mount / "cgroup.subtree_control").read_text() == "cpu memory pids"
    assert group.entry == group.path / "cgroup.procs"
    kernel.write(str(group.entry), "4711")
    assert group.remove(), "with what is in it"
    assert not group.path.exists()
    assert group.remove()


def test_only_what_was_asked_for_is_limited(kernel):
    (kernel.mount / "cgroup.controllers").write_text("pids")
    group = make_group(Limits(tasks=5), kernel.proc)
    assert {path.name for path in group.path.iterdir()} == {"pids.max"}
    refused(NoLimitsError, "no controller memory", make_group, Limits(memory_mib=5), kernel.proc)


def test_swap_is_none_where_the_kernel_counts_it(kernel, monkeypatch):
    plain = Path.mkdir

    def mkdir(path, **how):
        plain(path, **how)
        (path / "memory.swap.max").write_text("max")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    group = make_group(Limits(memory_mib=1), kernel.proc)
    assert (group.path / "memory.swap.max").read_text() == "0"


def test_a_launcher_that_is_alone_moves_and_stays_in_what_limits_it(kernel):
    own = kernel.group("job.scope", "memory pids", os.getpid(), 900, 901)
    kernel.process(900, os.getpid())
    kernel.process(901, 900)
    kernel.stand("job.scope")
    assert find_place(BOTH, kernel.proc) == Place(path=own, moves=True)
    group = make_group(BOTH, kernel.proc)
    assert group.path.parent == own
    inner = own / f"securetrain-launcher-{os.getpid()}-5-77"
    assert set((inner / "cgroup.procs").read_text().split()) == {str(os.getpid()), "900", "901"}
    # And a second sandbox of the same launcher finds the same place.
    kernel.stand(f"job.scope/{inner.name}")
    second = make_group(BOTH, kernel.proc)
    assert second.path.parent == own
    assert second.path != group.path


def test_what_others_run_is_never_moved(kernel):
    kernel.process(950, 1)
    for others in ((950,), (0,)):  # another's, and one of a pid namespace that cannot be seen
        own = kernel.group("box", "memory pids", os.getpid(), *others)
        kernel.stand("box")
        refused(
            NoLimitsError,
            r"not this launcher's.*systemd-run --scope",
            make_group,
            BOTH,
            kernel.proc,
        )
        assert (own / "cgroup.procs").read_text().split() == [str(os.getpid()), *map(str, others)]
        assert not (own / "cgroup.subtree_control").read_text()


def test_in_a_logins_session_the_group_lies_beside_it(kernel):
    slice_ = kernel.group("user.slice/user-0.slice", "memory pids", given="memory pids")
    session = kernel.group(SCOPE, "memory pids", os.getpid(), 1)
    kernel.stand(SCOPE)
    (session / "pids.max").write_text("max\n")
    (session / "cpu.max").write_text("max 100000\n")
    assert find_place(BOTH, kernel.proc) == Place(path=slice_)
    group = make_group(BOTH, kernel.proc)
    assert group.path.parent == slice_
    assert (session / "cgroup.procs").read_text().split() == [str(os.getpid()), "1"]
    (slice_ / "cgroup.subtree_control").write_text("pids")
    refused(NoLimitsError, "gives its groups no controller memory", find_place, BOTH, kernel.proc)


@items(
    "name, text",
    ("memory.max", "1048576"),
    ("memory.high", "1"),
    ("memory.swap.max", "0"),
    ("pids.max", "10"),
    ("cpu.max", "50000 100000"),
    ("cpu.weight", "1"),
    ("cpuset.cpus", "0-1"),
    ("cpuset.mems", "0"),
    ("io.max", "8:0 rbps=1"),
)
def test_nobody_leaves_the_limits_of_a_session(kernel, name, text):
    kernel.group("user.slice/user-0.slice", "memory pids", given="memory pids")
    session = kernel.group(SCOPE, "memory pids", os.getpid(), 1)
    kernel.stand(SCOPE)
    (session / name).write_text(text + "\n")
    refused(NoLimitsError, f"limit of its own \\({name}\\)", find_place, BOTH, kernel.proc)


def test_a_tree_that_is_not_ours(kernel, monkeypatch):
    own = kernel.group("box", "memory pids", os.getpid())
    kernel.stand("box")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "cgroup.procs")
    refused(NoLimitsError, r"cgroup.procs is not writable", make_group, BOTH, kernel.proc)
    assert not list(own.glob("securetrain-*"))


def test_no_hierarchy(kernel):
    (kernel.proc / "self/cgroup").write_text("4:memory:/elsewhere\n")
    refused(NoLimitsError, "no cgroup v2 is mounted", own_group, kernel.proc)
    kernel.stand("")
    (kernel.proc / "self/mountinfo").write_text("30 24 0:26 / /x rw - cgroup cgroup rw\n")
    refused(NoLimitsError, "no cgroup v2 is mounted", own_group, kernel.proc)
    refused(NoLimitsError, "No such file", own_group, kernel.proc / "none")


def test_a_group_that_cannot_be_seen(kernel):
    """Of a container that has a view of its own, or none of its own group."""
    for path in ("../other", "not-there"):
        kernel.stand(path)
        refused(NoLimitsError, "cannot be seen", own_group, kernel.proc)
    inside = kernel.group("in/box", "memory pids")
    kernel.stand("pod/in/box")
    row = f"31 24 0:27 /pod {str(kernel.mount).replace(' ', chr(92) + '040')} rw - cgroup2 c rw\n"
    (kernel.proc / "self/mountinfo").write_text(row)
    assert own_group(kernel.proc) == inside


def test_a_limit_that_the_kernel_refuses_leaves_nothing(kernel, monkeypatch):
    plain = kernel.write

    def refusing(path, text):
        if path.endswith("pids.max"):
            raise OSError(errno.EINVAL, "Invalid argument", path)
        plain(path, text)

    monkeypatch.setattr(cgroup, "write", refusing)
    refused(NoLimitsError, r"pids.max: Invalid argument", make_group, BOTH, kernel.proc)
    assert not list(kernel.mount.glob("securetrain-*"))


def left_behind(kernel):
    """Groups by what became of their owners: pid 800 runs, 801 is another process by now."""
    kernel.process(800, 1, started=9)
    kernel.process(801, 1, started=9)
    names = {
        "alive": "securetrain-800-9-77-00000000",
        "reused": "securetrain-801-8-77-00000000",
        "dead": "securetrain-802-9-77-00000000",
        "launcher": "securetrain-launcher-802-9-77",
        "container": "securetrain-802-9-78-00000000",
        "another": "securetrain-job",
    }
    found = {key: kernel.group(f"a.slice/{name}", "") for key, name in names.items()}
    (found["dead"] / "cgroup.procs").write_text("4711")
    return found


def test_what_dead_owners_left_is_collected(kernel):
    found = left_behind(kernel)
    (found["launcher"] / "cgroup.procs").write_text("4712")
    done = collect_groups(kernel.proc)
    assert set(done.removed) == {found["reused"].name, found["dead"].name}
    assert set(done.alive) == {found["alive"].name, found["container"].name}
    assert list(done.problems) == [found["launcher"].name]
    assert "4712" in (found["launcher"] / "cgroup.procs").read_text(), "nobody of it was ended"
    (found["launcher"] / "cgroup.procs").write_text("")
    assert collect_groups(kernel.proc).removed == (found["launcher"].name,)
    assert {key for key, path in found.items() if path.exists()} == {
        "alive",
        "container",
        "another",
    }


def test_the_next_launcher_clears_the_place(kernel):
    found = left_behind(kernel)
    place = kernel.mount / "a.slice"
    kernel.group("a.slice", "memory pids", os.getpid())
    kernel.stand("a.slice")
    group = make_group(BOTH, kernel.proc)
    assert group.path.parent == place
    assert not found["dead"].exists()
    assert found["alive"].exists()
    assert found["container"].exists()


def test_what_was_reached_is_said(tmp_path):
    group = Group(path=tmp_path, limits=BOTH)
    assert group.reached() == ()
    (tmp_path / "memory.events").write_text("low 0\nmax 17\noom 3\noom_kill 1\n")
    (tmp_path / "pids.events").write_text("max 0\n")
    (said,) = group.reached()
    assert said.startswith("the kernel ended 1 process: all workers of the node may use 64 MiB")
    assert said.endswith("(--max-memory-mib, host.max_memory_mib)")
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    (tmp_path / "pids.events").write_text("max 2\n")
    (said,) = group.reached()
    assert "2 processes were refused" in said
    assert "100 processes and threads together (--max-tasks, host.max_tasks)" in said


def test_limits_in_words_and_the_lower_of_two():
    assert str(BOTH) == "at most 64 MiB and 100 tasks"
    assert str(Limits(tasks=1)) == "at most 1 tasks"
    assert str(Limits()) == "no limit of memory or tasks"
    assert not Limits()
    assert BOTH.narrowed(Limits()) == BOTH == Limits().narrowed(BOTH)
    assert BOTH.narrowed(Limits(memory_mib=65, tasks=99)) == Limits(memory_mib=64, tasks=99)


# For real: where a hierarchy of cgroup v2 has a controller that is free, whatever it limits.


@dataclass(frozen=True)
class Huge:
    """Limits of huge pages, which no test uses."""

    file: str

    def __bool__(self) -> bool:
        return True

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset({"hugetlb"})

    @property
    def settings(self) -> dict[str, str]:
        return {self.file: "0"}


def huge() -> Any:
    sizes = sorted(Path("/sys/kernel/mm/hugepages").glob("hugepages-*kB"))
    for size in sizes:
        kib = int(size.name.removeprefix("hugepages-").removesuffix("kB"))
        name = f"{kib >> 20}GB" if kib >> 20 else f"{kib >> 10}MB" if kib >> 10 else f"{kib}KB"
        return Huge(f"hugetlb.{name}.max")
    return None


def no_hierarchy() -> list[str]:
    found = lacking()
    try:
        if huge() is None:
            return [*found, "huge pages"]
        find_place(huge())
    except NoLimitsError as error:
        found.append(f"a cgroup v2 of which it may use hugetlb ({error})")
    return found


@pytest.fixture
def given():
    """Controllers of the place are as before at the end."""
    place = find_place(huge()).path
    before = (place / "cgroup.subtree_control").read_text()
    yield
    if "hugetlb" not in before.split():
        with suppress(OSError):  # another test's group uses it
            (place / "cgroup.subtree_control").write_text("-hugetlb")


WORKER = """
import os, sys
own = [line[3:].strip() for line in open("/proc/self/cgroup") if line.startswith("0::")][0]
def tried(path, text):
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        return error.errno
folder = sys.argv[1] + own
top = sys.argv[1]
print(own, tried(f"{folder}/cgroup.procs", "0"), tried(f"{top}/cgroup.procs", "0"),
      tried(f"{folder}/{sys.argv[2]}", "max"))
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.netns
@needs(no_hierarchy)
@pytest.mark.usefixtures("given")
def test_a_worker_is_in_its_group_before_it_runs_and_cannot_leave(sandbox, tmp_path):
    limits = huge()
    started = sandbox(limits=limits)
    assert not started.degraded
    assert started.group is not None
    path = started.group.path
    assert (path / limits.file).read_text() == "0\n"
    with subprocess.Popen(
        started.command([sys.executable, "-c", WORKER, str(path.parent), limits.file]),
        cwd=tmp_path / "work",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        own, *errors = process.stdout.readline().split()
        assert own == f"/{path.name}"
        assert all(int(one) in {errno.EROFS, errno.EACCES} for one in errors), errors
        assert len(errors) == 3
        started.close()
        process.wait(30)
    assert not path.exists()


LAUNCHER = """
import sys
from tests.launch.sandbox.test_cgroup import huge
from securetrain.launch.sandbox.cgroup import make_group
import subprocess
group = make_group(huge())
child = subprocess.Popen(["sleep", "300"])
group.entry.write_text(str(child.pid))
print(group.path, child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.netns
@needs(no_hierarchy)
@pytest.mark.usefixtures("given")
def test_what_a_killed_launcher_left_is_removed_with_its_processes():
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        path, pid = launcher.stdout.readline().split()
        assert Path(path).name in collect_groups().alive
        assert (Path(path) / "cgroup.procs").read_text() == f"{pid}\n"
        launcher.kill()
        launcher.wait(30)
    assert Path(path).name in collect_groups().removed
    assert not Path(path).exists()
    until(lambda: not Path(f"/proc/{pid}/fd/0").exists())
