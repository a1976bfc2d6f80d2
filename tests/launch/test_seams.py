# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Each seam of the installed torch: the attack on the plain module, then on the closed one."""

import io
import pickle
import types
from typing import Any

import pytest

from securetrain.core.errors import RuntimeRefusal
from securetrain.launch.seams import patches
from securetrain.launch.seams.unpickler import Rules, SafePickle, make_unpickler
from securetrain.policy.schema import UnpickleMode
from tests.launch.worlds import bomb
from tests.tables import items
from tests.vocabulary import refused


@pytest.fixture
def safe():
    return SafePickle(
        make_unpickler(Rules(UnpickleMode.ENFORCE, frozenset(), lambda *_: None, 1 << 24))
    )


@pytest.fixture
def closed(monkeypatch):
    """Applies a patch to a module and takes it back after the test."""

    def apply(patch, module, *names):
        for name in names:
            owner_name, _, attribute = name.rpartition(".")
            owner = getattr(module, owner_name) if owner_name else module
            monkeypatch.setattr(owner, attribute, getattr(owner, attribute))
        patch(module)

    return apply


def test_object_collectives_and_rpc(safe, closed, tmp_path):
    import torch
    from torch.distributed import distributed_c10d
    from torch.distributed.rpc import internal

    data = pickle.dumps(bomb(tmp_path / "hit"))
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def attacks():
        yield lambda: distributed_c10d._tensor_to_object(tensor, len(data), None)
        yield lambda: internal._internal_rpc_pickler.deserialize(data, [])

    for attack in attacks():
        attack()
        (tmp_path / "hit").rmdir()
    for module in (distributed_c10d, internal):
        closed(lambda m: patches.replace_unpickler(safe.Unpickler, m), module, "_unpickler")
    for attack in attacks():
        refused(RuntimeRefusal, "ST-RUNT-001", attack)
    assert not (tmp_path / "hit").exists()


def test_checkpoint_metadata(safe, closed, tmp_path):
    import torch
    from torch.distributed.checkpoint import filesystem
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        TensorProperties,
        TensorStorageMetadata,
    )

    chunk = ChunkStorageMetadata(offsets=torch.Size([0]), sizes=torch.Size([6]))
    storage = TensorStorageMetadata(TensorProperties(), torch.Size([6]), [chunk])
    good = Metadata(state_dict_metadata={"w": storage}, planner_data={"w": ("w",)})
    file = tmp_path / ".metadata"
    file.write_bytes(pickle.dumps(bomb(tmp_path / "hit")))
    with pytest.raises(AttributeError):  # None has no storage_meta, but the code has run
        FileSystemReader(tmp_path).read_metadata()
    (tmp_path / "hit").rmdir()
    closed(lambda m: patches.replace_pickle(safe, m), filesystem, "pickle")
    refused(RuntimeRefusal, "ST-RUNT-001", FileSystemReader(tmp_path).read_metadata)
    assert not (tmp_path / "hit").exists()
    file.write_bytes(pickle.dumps(good))
    assert FileSystemReader(tmp_path).read_metadata().state_dict_metadata == {"w": storage}


def test_objects_in_stock_checkpoints(safe, closed, tmp_path):
    import torch
    from torch.distributed.checkpoint import default_planner
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

    planner = default_planner.DefaultLoadPlanner(flatten_state_dict=False)
    planner.state_dict = {}
    index, size = MetadataIndex("x"), torch.Size([1])
    item = ReadItem(LoadItemType.BYTE_IO, index, size, index, size, size)

    def stored(value):
        file = io.BytesIO()
        torch.save(value, file)
        return io.BytesIO(file.getvalue())

    planner.load_bytes(item, stored(bomb(tmp_path / "hit")))
    (tmp_path / "hit").rmdir()
    name = "DefaultLoadPlanner.load_bytes"
    closed(lambda m: patches.restrict_torch_load(safe, name, m), default_planner, name)
    refused(RuntimeRefusal, "ST-RUNT-001", planner.load_bytes, item, stored(bomb(tmp_path / "hit")))
    assert not (tmp_path / "hit").exists()
    planner.load_bytes(item, stored({"lr": 0.1, "t": torch.arange(3)}))
    assert torch.equal(planner.state_dict["x"]["t"], torch.arange(3))
    assert vars(default_planner)["torch"] is torch


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_other_modules_have_their_seams(safe, closed):
    from torch.distributed import debug
    from torch.distributed.checkpoint import _pg_transport
    from torch.distributed.optim import zero_redundancy_optimizer

    zero: Any = zero_redundancy_optimizer
    closed(lambda m: patches.replace_pickle(safe, m), _pg_transport, "pickle")
    name = "_broadcast_object"
    closed(lambda m: patches.restrict_torch_load(safe, name, m), zero, name)
    assert zero._broadcast_object.__globals__["torch"].load is not zero.torch.load
    closed(
        lambda m: patches.wrap(lambda f: lambda: None, "start_debug_server", m),
        debug,
        "start_debug_server",
    )
    assert vars(debug)["start_debug_server"]() is None


@items(
    "patch",
    lambda safe, module: patches.replace_unpickler(safe.Unpickler, module),
    patches.replace_pickle,
    lambda safe, module: patches.restrict_torch_load(safe, "load", module),
    lambda safe, module: patches.wrap(lambda f: f, "start", module),
    lambda safe, module: patches.protect_spawned(module),
    lambda safe, module: patches.protect_forkserver(module),
)
def test_a_seam_that_is_not_there_fails_the_import(safe, patch):
    refused(RuntimeRefusal, "ST-RUNT-007", patch, safe, types.ModuleType("torch.distributed.new"))


def test_a_function_that_no_longer_calls_torch_is_an_unknown_seam(safe):
    module = types.ModuleType("m")
    module.load = lambda: None  # type: ignore[attr-defined]
    refused(RuntimeRefusal, "ST-RUNT-007", patches.restrict_torch_load, safe, "load", module)
