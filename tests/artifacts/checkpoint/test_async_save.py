# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Saving in the background, in a thread and with a helper process."""

import subprocess
import sys
import threading

import pytest
import torch

from securetrain.artifacts import SaveContext, async_save, load, save, verify_path
from securetrain.artifacts.checkpoint.async_save import SaveMode
from securetrain.artifacts.checkpoint.containers import RankWriter
from securetrain.artifacts.checkpoint.helper import LIMIT, Answer
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError
from tests import s3_store
from tests.artifacts.checkpoint.worlds import SMALL, context_of
from tests.tables import each
from tests.vocabulary import refused

MODES = list(SaveMode)


def state():
    torch.manual_seed(3)
    return {
        "w": torch.randn(300, 7),
        "b": torch.randn(3).bfloat16(),
        "empty": torch.zeros(0, 4),
        "inner": {"step": 5, "ids": [1, 2]},
    }


@pytest.fixture
def start(keys, now, tmp_path):
    def run(content, name="ckpt", *, mode=SaveMode.THREAD, key=keys.checkpoint, params=SMALL):
        how = {"key": key, "context": context_of(now, seq=1), "params": params, "mode": mode}
        return async_save(content, tmp_path / name, **how)

    return run


@pytest.fixture
def read(trust, now, tmp_path):
    def run(name="ckpt"):
        target = {
            "w": torch.zeros(300, 7),
            "b": torch.zeros(3).bfloat16(),
            "empty": torch.zeros(0, 4),
            "inner": {"step": 0, "ids": [0, 0]},
        }
        load(target, tmp_path / name, trust=trust, policy=None, now=now)
        return target

    return run


@pytest.mark.parametrize("mode", MODES)
def test_what_was_copied_is_what_is_saved(start, read, mode):
    content = state()
    future = start(content, mode=mode)
    # The trainer goes on at once.
    content["w"].zero_()
    content["b"].fill_(7)
    content["inner"]["step"] = 6
    content["inner"]["ids"].append(3)
    future.result(timeout=60)
    good, found = state(), read()
    assert torch.equal(found["w"], good["w"])
    assert torch.equal(found["b"], good["b"])
    assert found["inner"] == good["inner"]


@pytest.mark.parametrize("mode", MODES)
def test_the_bytes_are_those_of_an_ordinary_save(start, keys, now, tmp_path, mode):
    saved = start(state(), mode=mode).result(timeout=60)
    context = SaveContext(run_id="r", step=1, seq=1, created=now)
    plain = save(state(), tmp_path / "plain", key=keys.checkpoint, context=context, params=SMALL)
    assert saved.digest == plain.digest
    for path in (tmp_path / "plain").glob("rank-*"):
        assert path.read_bytes() == (tmp_path / "ckpt" / path.name).read_bytes()


def test_a_save_waits_for_the_one_before(start, monkeypatch, trust, now, tmp_path):
    order = []
    gate = threading.Event()
    real = RankWriter.write

    def write(self, data):
        gate.wait(30)
        order.append("wrote")
        return real(self, data)

    monkeypatch.setattr(RankWriter, "write", write)
    first = start({"w": torch.ones(4)}, "one")
    assert not first.done()
    threading.Timer(0.2, gate.set).start()
    second = start({"w": torch.ones(4)}, "two")
    assert first.done()
    second.result(timeout=60)
    assert order == ["wrote", "wrote"]
    for name in ("one", "two"):
        assert verify_path(tmp_path / name, trust=trust, policy=None, now=now).ok


@pytest.mark.parametrize("mode", MODES)
def test_errors_come_out_of_the_future(start, tmp_path, mode):
    (tmp_path / "ckpt").mkdir()
    refused(IntegrityError, "ST-CKPT-201", start(state(), mode=mode).result, timeout=60)
    refused(UsageError, "no key", start(state(), "other", mode=mode, key=None).result, timeout=60)
    assert not list(tmp_path.glob("*.tmp-*"))
    # A failure is in nobody's way.
    start(state(), "third", mode=mode).result(timeout=60)


def test_a_helper_that_dies_is_a_refusal(start, monkeypatch, tmp_path):
    monkeypatch.setattr("securetrain.artifacts.checkpoint.async_save.HELPER", "nonsense.module")
    refused(IntegrityError, "ST-CKPT-200", start(state(), mode=SaveMode.PROCESS).result, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_a_helper_writes_to_local_directories_only(keys, now):
    context = SaveContext(run_id="r", step=1, created=now)
    with s3_store.lent(), pytest.raises(UsageError, match="local directories"):
        async_save(
            state(), "gs://bucket/y", key=keys.checkpoint, context=context, mode=SaveMode.PROCESS
        )


@each("data", b"", b"{}", b"x" * (LIMIT + 1), b'{"fd":-1}')
def test_the_helper_answers_nonsense_with_an_error(data):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "securetrain.artifacts.checkpoint.helper"],
        input=data,
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    assert canonical.decode(done.stdout, Answer).error


def test_the_helper_does_not_import_torch():
    program = (
        "import sys, securetrain.artifacts.checkpoint.helper; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
