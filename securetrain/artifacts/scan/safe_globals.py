# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The globals that a pickle may name and still do nothing but build a value. Data only; no torch.

A name is here when calling it with any arguments does nothing but build a value, or hands its
arguments to another global, which must then be here as well. The torch names follow the list of
torch's own weights-only unpickler (torch/_weights_only_unpickler.py). Names are matched whole: a
dotted path below an allowed name is another name.
"""

from typing import Final

from securetrain.artifacts.tree.foreign import DTYPES

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

VALUES: Final = BUILTINS | STANDARD | NUMPY | TORCH
"""Names that are safe wherever they come from."""

DTYPE_NAMES: Final = frozenset(f"torch.{name}" for name in DTYPES)
"""Dtypes are pickled by name."""

DCP_METADATA: Final = frozenset(
    {
        "pathlib.PosixPath",
        "pathlib._local.PosixPath",
        "torch.Size",
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
        "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
        "torch.distributed.checkpoint.metadata.Metadata",
        "torch.distributed.checkpoint.metadata.MetadataIndex",
        "torch.distributed.checkpoint.metadata.StorageMeta",
        "torch.distributed.checkpoint.metadata.TensorProperties",
        "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
        "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
        "torch.serialization._get_layout",
    }
)
"""All that ``.metadata`` of torch.distributed.checkpoint needs, but for the dtypes."""

STORAGES: Final = {
    "torch.UntypedStorage": 1,
    "torch.storage.UntypedStorage": 1,
    **{
        f"torch.{name}Storage": size
        for size, names in {
            1: "Bool Byte Char QInt8 QUInt2x4 QUInt4x2 QUInt8",
            2: "BFloat16 Half Short",
            4: "Float Int QInt32",
            8: "ComplexFloat Double Long",
            16: "ComplexDouble",
        }.items()
        for name in names.split()
    },
}
"""Torch's storages, with the bytes of an element."""

STORED: Final = VALUES | DTYPE_NAMES | DCP_METADATA | frozenset(STORAGES) | {"_codecs.encode"}
"""What a pickle in a file may name: values, and torch's storages with their dtypes."""
