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

from securetrain.artifacts import VALUES

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
"""The messages of ranks that compile together."""

FRAMEWORKS: Final = frozenset(
    {
        # deepspeedai/DeepSpeed: what its checkpoints hold beside tensors
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
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
"""Named tuples, dataclasses, enums, records and exceptions: they hold what they are given. Those
whose construction validates compare shapes, and do nothing else."""

ALLOWED: Final = VALUES | TORCH_DISTRIBUTED | TORCH_COMPILE
"""Every name that is allowed as it stands; `unpickler` adds the few that need a safe stand-in."""

RPC_PICKLER: Final = "torch.distributed.rpc.internal._InternalRPCPickler"
RPC_RECEIVERS: Final = frozenset({"_tensor_receiver", "_py_rref_receiver"})
"""Methods of torch's RPC pickler that only look a value up; its third one runs TorchScript."""
