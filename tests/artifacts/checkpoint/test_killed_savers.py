# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Savers that get SIGKILL or SIGTERM at any time, and disks that are full at any byte.

What is asked: the newest checkpoint that was committed loads, the next save leaves nothing of the
dead in the folder, and a refusal names the disk.
"""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, random, shutil, signal, sys, time
from datetime import datetime
from pathlib import Path
import torch
from securetrain.artifacts import SaveContext, async_save, load, save
from securetrain.core.errors import SecureTrainError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot

root, what, times = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
now = datetime.fromisoformat(sys.argv[4])
trust = TrustRoot.load(root / "trust.json", now)
KEY = PrivateKey.load(root / "key.pem")
folder = root / "checkpoints"
folder.mkdir(exist_ok=True)
draw = random.Random(17)
torch.set_num_threads(1)
STATE = {f"w{i}": torch.full((20_000,), float(i)) for i in range(8)}

def saving(step, how):
    context = SaveContext(run_id="r", step=step, created=now)
    path = folder / f"step-{step:08d}"
    if how == "async":
        async_save({**STATE, "step": step}, path, key=KEY, context=context).result()
    elif how == "process":
        async_save(
            {**STATE, "step": step}, path, key=KEY, context=context, mode="process"
        ).result()
    else:
        save({**STATE, "step": step}, path, key=KEY, context=context)

def check(path):
    target = {name: torch.zeros(20_000) for name in STATE} | {"step": 0}
    load(target, path, trust=trust, policy=None, now=now)
    assert target["step"] == int(path.name[5:])
    assert all(torch.equal(target[name], STATE[name]) for name in STATE)

def forked(function):
    pid = os.fork()
    if pid == 0:
        try:
            function()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    return pid

def endless(first, how):
    for step in range(first, first + 1000):
        saving(step, how)

def named():
    return sorted(path for path in folder.iterdir() if ".tmp-" not in path.name)

def left():
    return [path.name for path in folder.iterdir() if ".tmp-" in path.name and path.is_dir()]

def kills():
    worst, by = 0, {"KILL": 0, "TERM": 0}
    for number in range(times):
        term = draw.random() < 0.5
        how = draw.choice(["save", "async"])
        before = set(left())
        pid = forked(lambda: endless(number * 1000, how))
        time.sleep(draw.uniform(0.002, 0.06))
        os.kill(pid, signal.SIGTERM if term else signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == -(signal.SIGTERM if term else signal.SIGKILL), status
        by["TERM" if term else "KILL"] += bool(set(left()) - before)
        worst = max(worst, len(left()))
        if named():
            check(named()[-1])
        for old in named()[:-1]:
            shutil.rmtree(old)
        if draw.random() < 0.3:
            pid = forked(lambda: saving(number * 1000 + 999, "save"))
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert not left(), left()
    return {"worst": worst, "left_by": by}

def full():
    said = {}
    for number in range(times):
        size = draw.randrange(700 << 10)  # the save needs 640 KiB and more
        filler = root / "checkpoints" / "filler"
        filler.write_bytes(b"")
        room = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        os.truncate(filler, 0)
        with filler.open("wb") as file:
            file.write(b"x" * (room - size))
        how = ["save", "async", "process"][number % 3]
        try:
            saving(number, how)
        except SecureTrainError as error:
            said[error.code] = said.get(error.code, 0) + 1
            assert int(error.exit_code) == 20, error
        else:
            said["saved"] = said.get("saved", 0) + 1
        assert not left(), left()
        for path in named():
            if path.is_dir():
                check(path)
                shutil.rmtree(path)
        filler.unlink()
    return said

print(json.dumps({"kills": kills, "full": full}[what]()))
"""


@pytest.fixture
def report(keys, now, tmp_path):
    def run(what, times):
        keys.checkpoint.save(tmp_path / "key.pem")
        (tmp_path / "trust.json").write_bytes(keys.trust_file())
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path), what, str(times), now.isoformat()],
            check=True,
            timeout=900,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return json.loads(done.stdout)

    return run


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "st-small", str(folder)]
    subprocess.run(command, check=True, timeout=60)
    yield
    subprocess.run(["umount", str(folder)], check=True, timeout=60)


@pytest.mark.dist
@pytest.mark.parametrize("times", [12, pytest.param(200, marks=pytest.mark.many)])
def test_a_signal_at_any_time(report, times):
    said = report("kills", times)
    assert said["worst"] <= 1
    assert said["left_by"]["TERM"] == 0


@pytest.mark.netns  # it mounts a disk
@pytest.mark.parametrize("times", [9, pytest.param(60, marks=pytest.mark.many)])
@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_is_full_at_any_byte(report, times):
    said = report("full", times)
    assert said.keys() <= {"saved", "ST-CKPT-202"}
    assert said["ST-CKPT-202"] > times / 2
