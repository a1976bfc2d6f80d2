# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Closing the seams of torch and of multiprocessing. One function a seam, no state.

Each takes the freshly imported module. A seam that is not where it should be means a version of
torch that this package does not know: ST-RUNT-007, and the import fails.
"""

import functools
import inspect
import pickle
import sys
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any, Final

from securetrain.core.errors import RuntimeRefusal
from securetrain.launch.seams.unpickler import SafePickle

CHILD: Final = "securetrain.launch.worker.child"
"""Installs the shim in a process that a worker starts."""


def apply_all(patches: Sequence[Callable[[ModuleType], None]], module: ModuleType) -> None:
    """Several seams of one module."""
    for patch in patches:
        patch(module)


def replace_unpickler(reader: type[pickle.Unpickler], module: ModuleType) -> None:
    """torch.distributed.distributed_c10d and rpc.internal: the module's ``_unpickler``."""
    find(module, "_unpickler")
    vars(module)["_unpickler"] = reader


def replace_pickle(safe: SafePickle, module: ModuleType) -> None:
    """Modules that call ``pickle.load`` or ``pickle.loads``: the name ``pickle`` in them."""
    find(module, "pickle")
    vars(module)["pickle"] = safe


def restrict_torch_load(safe: SafePickle, function: str, module: ModuleType) -> None:
    """Functions that call ``torch.load(weights_only=False)``: the name ``torch`` in them.

    The function is made again over the same code with a ``torch`` whose ``load`` uses `safe`; the
    module and everybody else keep the real one.
    """
    owner_name, _, name = function.rpartition(".")
    owner = find(module, owner_name) if owner_name else module
    original = find(owner, name)
    if not isinstance(original, FunctionType) or "torch" not in original.__code__.co_names:
        raise _unknown(f"{module.__name__}.{function}")
    scope = dict(original.__globals__) | {"torch": _TorchWithSafeLoad(safe)}
    restricted = FunctionType(
        original.__code__, scope, original.__name__, original.__defaults__, original.__closure__
    )
    restricted.__kwdefaults__ = original.__kwdefaults__
    setattr(owner, name, functools.update_wrapper(restricted, original))


def wrap(
    wrapper: Callable[[Callable[..., Any]], Callable[..., Any]], name: str, module: ModuleType
) -> None:
    """Put `wrapper` around a function of the module."""
    vars(module)[name] = wrapper(find(module, name))


def wrap_if_there(
    wrapper: Callable[[Callable[..., Any]], Callable[..., Any]], name: str, module: ModuleType
) -> None:
    """As `wrap`, for a part of torch that some builds leave out."""
    if hasattr(module, name):
        wrap(wrapper, name, module)


def wrap_method(
    wrapper: Callable[[Callable[..., Any]], Callable[..., Any]],
    owner: str,
    name: str,
    module: ModuleType,
) -> None:
    """Put `wrapper` around a method of a class of the module."""
    found = find(module, owner)
    setattr(found, name, wrapper(find(found, name)))


def wrap_method_if_there(
    wrapper: Callable[[Callable[..., Any]], Callable[..., Any]],
    owner: str,
    name: str,
    module: ModuleType,
) -> None:
    """Put `wrapper` around a method that a class of the module defines itself, or a function of
    the module where `owner` is empty; nothing where there is none.
    """
    found = getattr(module, owner, None) if owner else module
    if found is not None and name in vars(found):
        setattr(found, name, wrapper(vars(found)[name]))


def hearing_reductions(
    function: Callable[..., Any], hear: Callable[[Any], None]
) -> Callable[..., Any]:
    """A function again, over the same code, that has `hear` told each tensor which it reduces.

    The function calls ``dist.all_reduce``; its decorators are left out.

    Raises:
        RuntimeRefusal: ST-RUNT-007, it does not.
    """
    original = inspect.unwrap(function)
    names = original.__code__.co_names if isinstance(original, FunctionType) else ()
    if not isinstance(original, FunctionType) or not {"dist", "all_reduce"} <= set(names):
        raise _unknown(getattr(function, "__qualname__", str(function)))
    scope = dict(original.__globals__)
    scope["dist"] = _HeardReductions(scope["dist"], hear)
    copied = FunctionType(
        original.__code__, scope, original.__name__, original.__defaults__, original.__closure__
    )
    copied.__kwdefaults__ = original.__kwdefaults__
    return copied


class _HeardReductions:
    """``torch.distributed`` for one function."""

    def __init__(self, real: Any, hear: Callable[[Any], None]) -> None:
        self._real = real
        self._hear = hear

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def all_reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce, then tell."""
        work = self._real.all_reduce(tensor, *args, **kwargs)
        if work is not None:
            work.wait()
        self._hear(tensor)
        return work


def protect_spawned(module: ModuleType) -> None:
    """multiprocessing.spawn: a spawned interpreter installs the shim before anything else."""
    original = find(module, "get_command_line")

    @functools.wraps(original)
    def get_command_line(**kwargs: Any) -> list[str]:
        command = list(original(**kwargs))
        if "-c" in command:
            place = command.index("-c") + 1
            command[place] = f"__import__({CHILD!r}); {command[place]}"
        return command

    vars(module)["get_command_line"] = get_command_line


def protect_forkserver(module: ModuleType) -> None:
    """multiprocessing.forkserver: the server, and so every child of it, has the shim."""
    server = find(module, "_forkserver")
    preload = list(find(server, "_preload_modules"))
    server.set_forkserver_preload([CHILD, *(name for name in preload if name != CHILD)])


class _TorchWithSafeLoad:
    """torch, but for `load`."""

    def __init__(self, safe: SafePickle) -> None:
        self._safe = safe

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["torch"], name)

    def load(self, file: Any, **options: Any) -> Any:
        """As `torch.load`; what it would unpickle freely it reads under the allow-list."""
        if not options.get("weights_only", True):
            options["pickle_module"] = self._safe
        return sys.modules["torch"].load(file, **options)


def find(owner: Any, name: str) -> Any:
    """The attribute of a module or class of torch.

    Raises:
        RuntimeRefusal: ST-RUNT-007, there is none.
    """
    if not hasattr(owner, name):
        raise _unknown(f"{getattr(owner, '__name__', owner)}.{name}")
    return getattr(owner, name)


def _unknown(seam: str) -> RuntimeRefusal:
    return RuntimeRefusal(
        "ST-RUNT-007",
        f"{seam} is not what it was in the versions of torch that this package knows",
        seam,
        "install a torch that this version knows (docs/reference/compatibility.md),"
        " or turn off in the policy what needs the seam (checkpoint.unpickle, gradients.mode)",
    )
