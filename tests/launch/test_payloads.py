# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What honest programs send through object collectives, and must be able to send under the shim.

The list follows the survey of torch's own pull request #189353 (which types its ``weights_only``
flag breaks) and its follow-up #189453 (which types torch itself sends).
"""

import contextlib
import dataclasses
import importlib
import pickle
import sys
import types
from collections import namedtuple
from pathlib import Path, PosixPath
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed._mesh_layout import _FlatLayout, _MeshLayout
from torch.distributed.tensor import Partial, Replicate, Shard

from securetrain.core.errors import RuntimeRefusal
from securetrain.launch.seams import allowlist
from securetrain.launch.seams.unpickler import Rules, SafePickle, make_unpickler
from securetrain.policy.schema import UnpickleMode
from tests.vocabulary import refused

STRICT = SafePickle(
    make_unpickler(Rules(UnpickleMode.ENFORCE, frozenset(), lambda *_: None, 1 << 24))
)


def sent(value: Any) -> Any:
    """What arrives at a rank that has the shim."""
    return STRICT.loads(pickle.dumps(value))


def checkpoint_payloads():
    from torch.distributed.checkpoint import api, metadata, planner, storage
    from torch.distributed.checkpoint.filesystem import _StorageInfo, _StoragePrefix

    size, index = torch.Size([2]), metadata.MetadataIndex("w", torch.Size([0]), 0)
    chunk = metadata.ChunkStorageMetadata(offsets=size, sizes=size)
    properties = metadata.TensorProperties(dtype=torch.bfloat16)
    item = planner.WriteItem(
        index,
        planner.WriteItemType.SHARD,
        tensor_data=planner.TensorWriteData(chunk, properties, size),
    )
    read = planner.ReadItem(planner.LoadItemType.TENSOR, index, size, index, size, size)
    tensor = metadata.TensorStorageMetadata(properties, size, [chunk])
    whole = metadata.Metadata({"w": tensor, "s": metadata.BytesStorageMetadata()})
    whole.storage_data = {index: _StorageInfo("__0_0.distcp", 0, 7)}
    whole.storage_meta = metadata.StorageMeta(PosixPath("/ckpt"), "id")
    yield planner.SavePlan([item], storage_data=_StoragePrefix("__0_"), planner_data={"w": ("w",)})
    yield planner.LoadPlan([read])
    yield whole
    yield [storage.WriteResult(index, 7, _StorageInfo("__0_0.distcp", 0, 7))]
    yield api.CheckpointException(
        "save", {1: (ValueError("disk"), api._wrap_exception(OSError())[1])}
    )


def sharding_payloads():
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharded_tensor.metadata import (
        ShardedTensorMetadata,
        TensorProperties,
    )
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    from torch.distributed._state_dict_utils import _TensorInfo
    from torch.distributed.fsdp import _optim_utils

    yield ShardMetadata([0], [2], "rank:0/cpu")
    yield (0, ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cpu"]))
    yield ShardedTensorMetadata([ShardMetadata([0], [2], "rank:0/cpu")], torch.Size([2]))
    yield TensorProperties(dtype=torch.float16)
    yield {"w": _TensorInfo(torch.Size([2]), torch.float32), "lr": 0.1}
    yield _optim_utils.StateInfo(
        {"exp_avg": _optim_utils._PosDimTensorInfo(torch.Size([2]), torch.float32)}, {}, {}
    )
    yield _optim_utils._OptimStateKey(("w",), is_fsdp_managed=True)
    yield [Shard(0), Replicate(), Partial("sum")]


def pipeline_payloads():
    from torch.distributed.pipelining import _utils

    plain = _utils._TensorMeta(torch.Size([2]), (1,), torch.float32, requires_grad=True)
    layout = _MeshLayout((_FlatLayout(((2, 1),)),))
    size, mesh = torch.Size([2]), (("tp",), layout)
    distributed = _utils._DTensorMeta(size, (1,), torch.half, True, size, (1,), (Shard(0),), *mesh)
    yield _utils._StageForwardMeta((plain, distributed))
    yield _utils._StageBackwardMeta((plain, None))


def compiler_payloads():
    from torch._dynamo.pgo import FrameStateSizeEntry, InferStride
    from torch._dynamo.symbolic_convert import LocalState

    yield LocalState({"L['x']": FrameStateSizeEntry(size=(2, 3), stride=(InferStride(1), 1))})


def everyday_payloads():
    import numpy as np

    yield {"loss": 0.5, "tokens": 10**12, "lr": [1e-3, None], "done": False, "run": "a"}
    yield {"array": np.arange(3), "scalar": np.float64(0.5), "where": Path("/data")}
    yield [torch.arange(3), {"state": torch.ones(2, dtype=torch.bfloat16)}, torch.device("cpu")]
    yield ("rank-0", 2, {"rank-1": {torch.device("cpu"): torch.device("cpu")}}, [])  # RPC's devices
    yield ValueError("a rank says why")


PAYLOADS = {
    family.__name__: family
    for family in (
        checkpoint_payloads,
        sharding_payloads,
        pipeline_payloads,
        compiler_payloads,
        everyday_payloads,
    )
}


@pytest.mark.parametrize("family", PAYLOADS)
def test_what_torch_and_scripts_send_passes(family):
    for value in PAYLOADS[family]():
        found = sent(value)
        assert type(found) is type(value)
        assert repr(found) == repr(value)


# Frameworks that this machine need not have: modules with their names and the same kinds of types.


class _TensorMetadata(NamedTuple):
    device: str
    dtype: Any
    size: Any


@dataclasses.dataclass
class _Handle:
    local_reader_ranks: list[int]
    buffer_handle: tuple[int, int, int, str] | None = None


@dataclasses.dataclass
class _ShardedTensor:
    key: str
    data: Any
    dtype: Any
    global_shape: tuple[int, ...]

    def __post_init__(self):
        if self.data is not None:
            raise ValueError(self.data)


FRAMEWORK_VALUES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "vllm.distributed.parallel_state.TensorMetadata": (
        namedtuple("TensorMetadata", _TensorMetadata._fields),  # noqa: PYI024 - as vLLM makes it
        ("cuda", torch.float16, torch.Size([2])),
    ),
    "vllm.distributed.device_communicators.shm_broadcast.Handle": (
        _Handle,
        ([1, 2], (3, 24 << 20, 10, "psm_1")),
    ),
    "megatron.core.dist_checkpointing.mapping.ShardedTensor": (
        _ShardedTensor,
        ("decoder.weight", None, torch.bfloat16, (2, 4)),
    ),
}


@contextlib.contextmanager
def imported(monkeypatch, name, cls):
    """A framework's module with one class, as long as the block lasts."""
    module_name, _, cls_name = name.rpartition(".")
    module = types.ModuleType(module_name)
    cls.__module__, cls.__qualname__ = module_name, cls_name
    setattr(module, cls_name, cls)
    with monkeypatch.context() as patch:
        for dots, letter in enumerate(f"{module_name}."):  # its packages too, as an import does
            if letter == ".":
                patch.setitem(sys.modules, module_name[:dots], module)
        yield


@pytest.mark.parametrize("name", FRAMEWORK_VALUES)
def test_what_frameworks_send_passes_where_they_are_in_use(monkeypatch, name):
    cls, fields = FRAMEWORK_VALUES[name]
    with imported(monkeypatch, name, cls):
        value = cls(*fields)
        data = pickle.dumps([{"x": value}])
        assert sent([{"x": value}]) == [{"x": value}]
    refused(RuntimeRefusal, "ST-RUNT-001", STRICT.loads, data, says=name)


def test_a_framework_that_is_installed_is_not_imported_for_a_peer(monkeypatch, tmp_path):
    (tmp_path / "vllm" / "distributed").mkdir(parents=True)
    module = tmp_path / "vllm" / "distributed" / "parallel_state.py"
    module.write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nTensorMetadata = dict\n")
    monkeypatch.syspath_prepend(tmp_path)
    data = b"cvllm.distributed.parallel_state\nTensorMetadata\n)R."
    with pytest.raises(RuntimeRefusal):
        STRICT.loads(data)
    assert not (tmp_path / "imported").exists()
    with pytest.warns(ResourceWarning):
        pickle.loads(data)  # the plain unpickler does
    assert (tmp_path / "imported").exists()
    for name in ("vllm", "vllm.distributed", "vllm.distributed.parallel_state"):
        monkeypatch.delitem(sys.modules, name)


def test_the_rest_of_a_framework_does_not_pass(monkeypatch):
    with imported(monkeypatch, "vllm.distributed.parallel_state.GroupCoordinator", _Handle):
        data = pickle.dumps(_Handle([1]))
        with pytest.raises(RuntimeRefusal):
            STRICT.loads(data)


def test_every_name_of_the_compiler_exists():
    for name in allowlist.TORCH_COMPILE:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
