# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Run one step of one rank on tensors without data, and count the storages that are alive.

This is the step itself: `parallelize`, the engine, torch's schedules, FSDP's hooks and AdamW, on a
fake process group of the job's size and fake tensors. Rules:

1. a storage counts from the operator that made it until nothing refers to it; FSDP frees some
   without dropping them, so sizes are read and not remembered;
2. the peak is the largest sum after any operator;
3. norms keep what the kernels of accelerators keep (the input and one number a token), where the
   CPU's keep several float32 copies;
4. modules that FSDP does not hold need real tensors: small models only. DDP is not simulated;
5. experts are not counted: how many rows each gets is data.
"""

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from securetrain.parallel import (
    DataParallelism,
    Degrees,
    Description,
    Settings,
    kind_of,
    make_mesh,
    parallelize,
)
from securetrain.train.planning.fake_mesh import fake_group


def peak_of(
    model: Description,
    degrees: Degrees,
    settings: Settings,
    *,
    rows: int,
    length: int,
    pipeline_rank: int = 0,
) -> int:
    """Bytes that the first rank of a pipeline rank holds at the fullest moment of its second step.

    Args:
        model: The model; its `materialize` is not called.
        degrees: The mesh.
        settings: The job's settings; compiling, float8 and offloading are not simulated.
        rows: Rows of a data-parallel rank in a step.
        length: Positions of a row.
        pipeline_rank: Which one.
    """
    if settings.cpu_offload or settings.compile or settings.float8:
        raise ValueError("compiling, float8 and offloading are not simulated")
    rank = pipeline_rank * degrees.world // degrees.pp
    described = Description(build=model.build, materialize=_zero, plan=model.plan)
    # What DTensor remembers of its operators names process groups that are gone.
    _clear_sharding_prop_cache()
    with fake_group(rank, degrees.world):
        mesh = make_mesh(degrees, "cpu")
        fake = kind_of(degrees, settings) in {DataParallelism.FSDP, DataParallelism.HSDP}
        tensors = FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext()
        with tensors, _accelerator_kernels(), _real_meshes():
            storages = _Storages()
            with storages, _uncounted_shapes(storages):
                parallel = parallelize(described, mesh, settings, torch.device("cpu"))
                parameters = list(parallel.parameters())
                optimizer = torch.optim.AdamW(parameters)
                tokens = torch.zeros(rows, length, dtype=torch.int64)
                # The first step makes the optimizer's state.
                for _ in range(2):
                    storages.peak = 0  # of this step
                    parallel.forward_backward(tokens, tokens, float(rows * length))
                    optimizer.step()
                    optimizer.zero_grad()
    return storages.peak


@torch.no_grad()
def _zero(part: nn.Module) -> None:
    """Give parameters and buffers a value: what is left without one is refused."""
    for tensor in (*part.parameters(), *part.buffers()):
        tensor.zero_()


class _Storages(TorchDispatchMode):
    """Storages that are alive, and the most that they ever took."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.paused = False
        self._total = 0
        self._sizes: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __enter__(self) -> Self:
        kept = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> None:
            kept(storage, size)
            if storage._cdata in self._alive:  # noqa: SLF001
                self._count(storage)

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        self._restore = partial(setattr, torch.UntypedStorage, "resize_", kept)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._restore()

    def watch(self, tensors: Any) -> None:
        """Count the storages of some tensors."""
        for tensor in _plain(tensors):
            storage = tensor.untyped_storage()
            key = storage._cdata  # noqa: SLF001
            if key not in self._alive:
                self._alive[key] = weakref.ref(storage, partial(self._drop, key))
                self._count(storage)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            # It computes on ordinary tensors, which are seen one by one.
            return NotImplemented
        reads = func is torch.ops.aten._local_scalar_dense.default  # noqa: SLF001
        if reads and isinstance(args[0], FakeTensor):
            # Nothing is missing; and numbers that ranks agree on before a step: each says yes.
            return args[0].dtype is not torch.bool
        found = func(*args, **(kwargs or {}))
        if not self.paused:
            self.watch(found)
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001
        self._total += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self._total)

    def _drop(self, key: int, _reference: object) -> None:
        del self._alive[key]
        self._total -= self._sizes.pop(key)


def _plain(value: Any) -> Iterator[torch.Tensor]:
    """The tensors with storages of their own inside some values."""
    for leaf in tree_leaves(value):
        if not isinstance(leaf, torch.Tensor):
            continue
        if hasattr(leaf, "_local_tensor"):
            yield from _plain(leaf._local_tensor)  # noqa: SLF001
        elif hasattr(leaf, "elem"):
            yield from _plain(leaf.elem)
        elif leaf.device.type != "meta":
            yield leaf


class _Norm(torch.autograd.Function):
    """RMSNorm that keeps its input, its weight and one float32 a token."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scale = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(x, weight, scale)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *_grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


@contextmanager
def _accelerator_kernels() -> Iterator[None]:
    """Rule 3."""
    kept, attend = F.rms_norm, F.scaled_dot_product_attention

    def norm(
        x: torch.Tensor, shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
    ) -> torch.Tensor:
        if weight is None:
            return kept(x, shape, weight, eps)
        if not isinstance(x, DTensor):
            return _Norm.apply(x, weight)  # type: ignore[no-any-return]
        assert isinstance(weight, DTensor)
        found = _Norm.apply(x.to_local(), weight.to_local())
        return DTensor.from_local(found, x.device_mesh, x.placements, run_check=False)

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs.pop("attn_mask", None)  # kernels take a causal mask as a name
        return attend(*args, **kwargs)

    replaced: Any = F
    replaced.rms_norm, replaced.scaled_dot_product_attention = norm, attention
    try:
        yield
    finally:
        replaced.rms_norm, replaced.scaled_dot_product_attention = kept, attend


@contextmanager
def _real_meshes() -> Iterator[None]:
    """Let torch cut and join meshes while tensors are fake: ranks are numbers in one."""
    with ExitStack() as stack:
        for name in ("__init__", "__getitem__", "_concatenate"):
            kept = DeviceMesh.__dict__[name]
            setattr(DeviceMesh, name, _with_real_tensors(kept))
            stack.callback(setattr, DeviceMesh, name, kept)
        yield


def _with_real_tensors(method: Any) -> Any:
    function = method.__func__ if isinstance(method, staticmethod) else method

    @wraps(function)
    def real(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return staticmethod(real) if isinstance(method, staticmethod) else real


@contextmanager
def _uncounted_shapes(storages: _Storages) -> Iterator[None]:
    """DTensor finds shapes on fake tensors of its own, of whole sizes: nobody holds them."""
    kept = ShardingPropagator._propagate_tensor_meta_non_cached  # noqa: SLF001

    def propagate(*args: Any, **kwargs: Any) -> Any:
        before, storages.paused = storages.paused, True
        try:
            return kept(*args, **kwargs)
        finally:
            storages.paused = before

    ShardingPropagator._propagate_tensor_meta_non_cached = propagate  # type: ignore[method-assign]  # noqa: SLF001
    try:
        yield
    finally:
        ShardingPropagator._propagate_tensor_meta_non_cached = kept  # type: ignore[method-assign]  # noqa: SLF001
