# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The memory that hashing takes: bounded by threads, not by files or bytes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from securetrain.artifacts import content
from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.tree.pool import Pool
from securetrain.artifacts.verify import verify_path

PEAK = """
import json, resource, sys
from datetime import datetime
from pathlib import Path
from securetrain.artifacts.verify import verify_path
from securetrain.identity.trust import TrustRoot

root, now = Path(sys.argv[1]), datetime.fromisoformat(sys.argv[2])
trust = TrustRoot.load(root / "trust.json", now)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
assert verify_path(root / "small", trust=trust, policy=None, now=now).ok
before = peak()
result = verify_path(root / "large", trust=trust, policy=None, now=now)
assert result.ok and result.num_bytes > 300 << 20
print(json.dumps(peak() - before))
"""


def dataset(folder: Path, files: int, size: int, keys, now) -> None:
    folder.mkdir()
    for number in range(files):
        with (folder / f"{number:03d}.bin").open("wb") as file:
            file.truncate(size)  # a hole costs no disk
    sign_in_place(folder, About(name="d"), key=keys.dataset, now=now)


def test_three_hundred_megabytes_are_verified_in_a_few(tmp_path, keys, now):
    (tmp_path / "trust.json").write_bytes(keys.trust_file())
    dataset(tmp_path / "small", 8, 1000, keys, now)
    dataset(tmp_path / "large", 10, 32 << 20, keys, now)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path), now.isoformat()],
        check=True,
        stdout=subprocess.PIPE,
        timeout=200,
    )
    assert json.loads(done.stdout) < 48 << 20


def test_few_files_are_open_at_once(tmp_path, keys, trust, now, monkeypatch):
    dataset(tmp_path / "d", 60, 100, keys, now)
    monkeypatch.setattr(content, "Pool", lambda _: Pool(2))
    most, real = [], content._FileJob.hash

    def hashing(job, *arguments):
        most.append(len(list(Path("/proc/self/fd").iterdir())))
        return real(job, *arguments)

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(content._FileJob, "hash", hashing)
    assert verify_path(tmp_path / "d", trust=trust, policy=None, now=now).ok
    assert len(most) == 60
    assert max(most) - before <= 2 * 2 + 2


def test_an_error_leaves_no_file_open(tmp_path, keys, trust, now, monkeypatch):
    dataset(tmp_path / "d", 20, 100, keys, now)

    def failing(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr(content._FileJob, "hash", failing)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(RuntimeError):
        verify_path(tmp_path / "d", trust=trust, policy=None, now=now)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
