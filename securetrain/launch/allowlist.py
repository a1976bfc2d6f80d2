# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The globals that a pickle from another rank may name. Data only; free of torch.

A name is here when calling it with any arguments does nothing but build a value. The torch names
follow the list of torch's own weights-only unpickler (torch/_weights_only_unpickler.py) and the
types that torch's checkpoint, FSDP, pipelining and compiler code sends through object collectives.
Names are matched whole: a dotted path below an allowed name is another name.

`FRAMEWORKS` are names of packages that are built on torch. They pass only when this process has
imported their module itself: a peer cannot have anything imported that the script does not use.
"""

from typing import Final

BUILTINS: Final = frozenset(
    f"builtins.{name}"
    for name in (
        "bool", "complex", "dict", "float", "frozenset", "int", "list", "object",
        "range", "set", "slice", "str", "tuple",
    )
)  # fmt: skip

STANDARD: Final = frozenset(
    {
        "collections.Counter",
        "collections.OrderedDict",
        "collections.defaultdict",
        "collections.deque",
        "copyreg._reconstructor",
        "datetime.date",
        "datetime.datetime",
        "datetime.time",
        "datetime.timedelta",
        "datetime.timezone",
        "decimal.Decimal",
        "fractions.Fraction",
        "pathlib.PosixPath",
        "pathlib.PurePosixPath",
        "pathlib._local.PosixPath",
        "pathlib._local.PurePosixPath",
        "traceback.FrameSummary",
        "traceback.StackSummary",
        "types.SimpleNamespace",
        "uuid.UUID",
    }
)

NUMPY: Final = frozenset(
    {
        "numpy.dtype",
        "numpy.ndarray",
        "numpy._core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "numpy._core.numeric._frombuffer",
        "numpy.core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar",
        "numpy.core.numeric._frombuffer",
    }
)

TORCH: Final = frozenset(
    {
        "torch.Size",
        "torch.Tensor",
        "torch.device",
        "torch.nn.parameter.Buffer",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
        "torch.storage.UntypedStorage",
        "torch._tensor._rebuild_from_type_v2",
        *(
            f"torch._utils.{name}"
            for name in (
                "_rebuild_device_tensor_from_cpu_tensor",
                "_rebuild_device_tensor_from_numpy",
                "_rebuild_meta_tensor_no_storage",
                "_rebuild_nested_tensor",
                "_rebuild_parameter",
                "_rebuild_parameter_with_state",
                "_rebuild_qtensor",
                "_rebuild_sparse_tensor",
                "_rebuild_tensor",
                "_rebuild_tensor_v2",
                "_rebuild_tensor_v3",
                "_rebuild_wrapper_subclass",
            )
        ),
    }
)

TORCH_DISTRIBUTED: Final = frozenset(
    f"torch.distributed.{name}"
    for name in (
        "_mesh_layout._FlatLayout",
        "_mesh_layout._MeshLayout",
        "_shard.metadata.ShardMetadata",
        "_shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
        "_shard.sharded_tensor.metadata.ShardedTensorMetadata",
        "_shard.sharded_tensor.metadata.TensorProperties",
        "_shard.sharding_spec.api.EnumerableShardingSpec",
        "_shard.sharding_spec.chunk_sharding_spec.ChunkShardingSpec",
        "_state_dict_utils._TensorInfo",
        "checkpoint._pg_transport._DTensorMeta",
        "checkpoint._pg_transport._ShardedTensorMeta",
        "checkpoint._pg_transport._StateDictMeta",
        "checkpoint._pg_transport._TensorMeta",
        "checkpoint.api.CheckpointException",
        "checkpoint.filesystem._StorageInfo",
        "checkpoint.filesystem._StoragePrefix",
        "checkpoint.metadata.BytesStorageMetadata",
        "checkpoint.metadata.ChunkStorageMetadata",
        "checkpoint.metadata.Metadata",
        "checkpoint.metadata.MetadataIndex",
        "checkpoint.metadata.StorageMeta",
        "checkpoint.metadata.TensorProperties",
        "checkpoint.metadata.TensorStorageMetadata",
        "checkpoint.metadata._MEM_FORMAT_ENCODING",
        "checkpoint.planner.BytesIOWriteData",
        "checkpoint.planner.LoadItemType",
        "checkpoint.planner.LoadPlan",
        "checkpoint.planner.ReadItem",
        "checkpoint.planner.SavePlan",
        "checkpoint.planner.TensorWriteData",
        "checkpoint.planner.WriteItem",
        "checkpoint.planner.WriteItemType",
        "checkpoint.storage.WriteResult",
        "collective_utils.SyncPayload",
        "fsdp._optim_utils.StateInfo",
        "fsdp._optim_utils._OptimStateKey",
        "fsdp._optim_utils._PosDimTensorInfo",
        "pipelining._utils._DTensorMeta",
        "pipelining._utils._StageBackwardMeta",
        "pipelining._utils._StageForwardMeta",
        "pipelining._utils._TensorMeta",
        "remote_device._remote_device",
        "rpc.api.AllGatherStates",
        "rpc.api._broadcast_to_followers",
        "rpc.api._gather_to_leader",
        "rpc.internal.PythonUDF",
        "rpc.internal.RPCExecMode",
        "rpc.internal.RemoteException",
        "rpc.internal._InternalRPCPickler",
        "tensor.placement_types.Partial",
        "tensor.placement_types.Replicate",
        "tensor.placement_types.Shard",
        "tensor.placement_types._StridedShard",
    )
)

TORCH_COMPILE: Final = frozenset(
    f"torch._dynamo.{name}"
    for name in (
        "pgo.AutoDynamic",
        "pgo.AutoUnset",
        "pgo.FrameStateSizeEntry",
        "pgo.InferStride",
        "symbolic_convert.LocalState",
    )
)
"""What ranks tell each other when they compile together."""

FRAMEWORKS: Final = frozenset(
    {
        # NVIDIA/Megatron-LM: which shards every rank has, without their data
        "megatron.core.dist_checkpointing.core.CheckpointingException",
        "megatron.core.dist_checkpointing.exchange_utils.ShardDistribution",
        "megatron.core.dist_checkpointing.mapping.ShardedObject",
        "megatron.core.dist_checkpointing.mapping.ShardedTensor",
        # vllm-project/vllm: what tensors follow, and where the message queue is
        "vllm.distributed.device_communicators.shm_broadcast.Handle",
        "vllm.distributed.parallel_state.TensorMetadata",
    }
)
"""Named tuples, dataclasses and exceptions: they hold what they are given. Those whose construction
validates compare shapes, and do nothing else."""

ALLOWED: Final = BUILTINS | STANDARD | NUMPY | TORCH | TORCH_DISTRIBUTED | TORCH_COMPILE
"""Every name that is allowed as it stands; `unpickler` adds the few that need a safe stand-in."""

RPC_PICKLER: Final = "torch.distributed.rpc.internal._InternalRPCPickler"
RPC_RECEIVERS: Final = frozenset({"_tensor_receiver", "_py_rref_receiver"})
"""Methods of torch's RPC pickler that only look a value up; its third one runs TorchScript."""
