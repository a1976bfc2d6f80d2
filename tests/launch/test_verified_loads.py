# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Loads of a script: refused before they are parsed, and parsed from what was hashed."""

import hashlib
import io
import pickle
import types
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.utils import _create_file_view as _view

from securetrain.artifacts.statement import saved_files
from securetrain.artifacts.statement.saved_files import SavedFile, sidecar, sign_saved
from securetrain.artifacts.statement.statements import PolicyRef
from securetrain.core.errors import IntegrityError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, sign_root
from securetrain.launch.seams.verified_loads import VerifiedLoads
from tests.launch.worlds import bomb
from tests.vocabulary import refused

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


class Bench:
    """A trust root, a signed file, and the loads of a worker."""

    def __init__(self, folder):
        self.key, root = PrivateKey.generate(), PrivateKey.generate()
        until = NOW + timedelta(days=1)
        trust = folder / "trust.json"
        roles = {TrustRole.CHECKPOINT: [self.key.public]}
        trust.write_bytes(sign_root(roles, root, NOW - timedelta(days=1), until))
        self.heard: list[IntegrityError] = []
        self.path = folder / "model.pt"
        self.loads = VerifiedLoads(
            trust=(trust,), clock=lambda: NOW, refused=lambda error, _: self.heard.append(error)
        )
        torch.save({"weight": torch.ones(64)}, self.path)
        self.sign()
        module: Any = types.ModuleType("torch.serialization")
        module.load = torch.load
        self.loads.patches()["torch.serialization"](module)
        self.load = module.load

    def sign(self):
        data = self.path.read_bytes()
        file = SavedFile(
            name=self.path.name, size=len(data), sha256=hashlib.sha256(data).hexdigest()
        )
        said = saved_files.SavedFiles(
            run_id="job-1",
            name="job-1",
            policy=PolicyRef(digest="cd" * 32),
            rank=0,
            world_size=1,
            number=1,
            step=None,
            created=NOW,
            way="torch.save",
            form=saved_files.Form.FILE,
            place=self.path.parent.name,
            files=[file],
        )
        sidecar(self.path, saved_files.Form.FILE).write_bytes(sign_saved(said, self.key))


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_a_signed_file_loads_in_every_usual_way(bench):
    assert bench.load(bench.path)["weight"].sum() == 64
    assert bench.load(f=str(bench.path), map_location="cpu")["weight"].sum() == 64
    assert bench.load(bench.path, mmap=True, weights_only=True)["weight"].sum() == 64
    with bench.path.open("rb") as file:
        assert bench.load(file)["weight"].sum() == 64
    held = io.BytesIO(bench.path.read_bytes())
    assert bench.load(held)["weight"].sum() == 64, "memory is no file"
    assert bench.heard == []
    with pytest.raises(FileNotFoundError):
        bench.load(bench.path.with_name("none.pt"))


def test_code_in_an_altered_file_runs_in_plain_torch_and_never_here(bench, tmp_path):
    proof = tmp_path / "it-ran"
    size = bench.path.stat().st_size
    evil = pickle.dumps(bomb(proof), protocol=2)
    other = io.BytesIO()
    torch.save({"weight": bomb(proof)}, other)
    assert len(evil) < size
    bench.path.write_bytes(other.getvalue())
    torch.load(bench.path, weights_only=False)
    assert proof.exists(), "the control"
    proof.rmdir()
    for data in (other.getvalue(), other.getvalue().ljust(size, b"\0")[:size]):
        bench.path.write_bytes(data)
        with pytest.raises(IntegrityError) as refused:
            bench.load(bench.path, weights_only=False)
        assert refused.value.code in {"ST-CKPT-130", "ST-CKPT-131"}
    assert not proof.exists()
    assert len(bench.heard) == 2


def test_what_changes_after_the_check_changes_nothing(bench):
    """Somebody writes into the file between hash and parser."""
    with bench.loads.opened(bench.path) as copy:
        signed = bench.path.read_bytes()
        bench.path.write_bytes(b"\0" * len(signed))
        assert copy.read() == signed


def test_unsigned_begun_and_foreign_streams_are_refused(bench):
    statement = sidecar(bench.path, saved_files.Form.FILE)
    statement.write_bytes(b"")
    streams = [bench.path, types.SimpleNamespace(read=lambda _: b"", readinto=None)]
    for given in (*streams, "s3://bucket/model.pt"):
        refused(IntegrityError, "ST-CKPT-100", bench.load, given)
    statement.unlink()
    refused(IntegrityError, "ST-CKPT-100", bench.load, bench.path)


def test_what_torch_swallows_is_said(bench):
    """`dcp.load` goes on without metadata that it cannot read; the refusal still ends it."""
    module: Any = types.ModuleType("torch.distributed.checkpoint.state_dict_loader")

    def load(path):
        try:
            with bench.loads.opened(path):
                return "loaded"
        except Exception:  # noqa: BLE001 - as torch does
            return "by way of another file"

    module.load = load
    bench.loads.patches()[module.__name__](module)
    assert module.load(bench.path) == "loaded"
    bench.path.write_bytes(b"x")
    refused(IntegrityError, "ST-CKPT-131", module.load, bench.path)


def test_shards_are_read_from_the_verified_copy(bench):
    module: Any = types.ModuleType(filesystem.__name__)
    module.FileSystem = type("FileSystem", (filesystem.FileSystem,), {})
    bench.loads.patches()[filesystem.__name__](module)
    signed = bench.path.read_bytes()
    with module.FileSystem().create_stream(bench.path, "rb") as stream:
        bench.path.write_bytes(b"\0" * len(signed))
        assert stream.read() == signed
        stream.seek(0)
        assert bench.load(_view(stream, 0, len(signed)))["weight"].sum() == 64
    with (
        pytest.raises(IntegrityError) as refused,
        module.FileSystem().create_stream(bench.path, "rb"),
    ):
        pass
    assert refused.value.code == "ST-CKPT-130"
    with module.FileSystem().create_stream(bench.path.with_name("new"), "wb") as stream:
        stream.write(b"free")
