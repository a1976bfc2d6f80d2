# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A saver that is killed (a real SIGKILL) at every one of its system calls, one after the other."""

import json
import os
import subprocess
import sys

import pytest

KILLED = """
import json, os, signal, sys
from datetime import datetime
from pathlib import Path
import torch
from securetrain.artifacts import SaveContext, async_save, load, save, verify_path
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot

root, how = Path(sys.argv[1]), sys.argv[2]
now = datetime.fromisoformat(sys.argv[3])
trust = TrustRoot.load(root / "trust.json", now)
KEY = PrivateKey.load(root / "key.pem")
CALLS = ("mkdir", "open", "write", "fsync", "link", "unlink", "rename", "replace")

def run(name, value):
    context = SaveContext(run_id="r", step=1, created=now)
    state = {"w": torch.full((1000,), value), "n": {"x": 1}}
    if how == "async" and name != "last":
        async_save(state, root / name, key=KEY, context=context).result()
    else:
        save(state, root / name, key=KEY, context=context)

def child(name, limit):
    count = 0
    def counted(real):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)
        return call
    for call in CALLS:
        setattr(os, call, counted(getattr(os, call)))
    run(name, 2.0)
    return count

def forked(name, limit):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, str(child(name, limit)).encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    told = os.read(reader, 20)
    os.close(reader)
    return status, told

def loads(name, value):
    target = {"w": torch.zeros(1000), "n": {"x": 0}}
    load(target, root / name, trust=trust, policy=None, now=now)
    assert torch.equal(target["w"], torch.full((1000,), value)) and target["n"] == {"x": 1}

run("last", 1.0)
committed = 0
limit = 0
while True:
    limit += 1
    name = f"new-{limit:03d}"
    status, _ = forked(name, limit)
    if status == 0:
        break  # it ended before: what the save before had left took calls, too
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (limit, status)
    loads("last", 1.0)
    if (root / name).exists():
        loads(name, 2.0)
        committed += 1
    staged = [path for path in root.glob("*.tmp-*") if path.is_dir()]
    assert len(staged) <= 1, staged  # the save before has left one at most, and this one took it
    for left in root.glob(f"{name}.tmp-*"):
        if not left.is_dir():
            continue
        assert left.with_name(left.name + ".lease").exists()
        found = {p.code for p in verify_path(left, trust=trust, policy=None, now=now).problems}
        # Without a statement it is nothing; with one, it is whole.
        whole = (left / "statement.json").exists()
        assert not found if whole else found in ({"ST-CKPT-100"}, {"ST-DATA-100"}), (limit, found)
run("done", 3.0)
assert not list(root.glob("*.tmp-*")), list(root.glob("*.tmp-*"))
print(json.dumps({"calls": limit, "committed": committed}))
"""


@pytest.mark.dist
@pytest.mark.parametrize("how", ["save", "async"])
def test_a_kill_at_any_moment_leaves_the_last_checkpoint(keys, now, tmp_path, how):
    keys.checkpoint.save(tmp_path / "key.pem")
    (tmp_path / "trust.json").write_bytes(keys.trust_file())
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), how, now.isoformat()],
        check=True,
        timeout=200,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    report = json.loads(done.stdout)
    # The commit itself is one call of many: most kills come before it, some after.
    assert report["calls"] > 20
    assert 0 < report["committed"] < report["calls"] / 2
