# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Unpickle what another rank sent, or a file holds, without giving it code execution.

Plain containers, strings and numbers need no global and always pass. Rules for the rest:

1. a global passes when it is on the allow-list, in the policy's ``checkpoint.allow_globals``,
   declared safe by the training script itself (`torch.serialization.add_safe_globals`), or a known
   type of a framework that this process has imported;
2. functions are handed out inside a new `functools.partial`, so that a pickle's BUILD opcode cannot
   change them; classes are compared with what they were before, and put back;
3. four names get a stand-in: tensor storages are read with ``weights_only=True`` (torch's own way
   to unpickle them is an unrestricted nested pickle), ``_codecs.encode`` knows latin-1 only,
   ``bytearray`` takes no size, ``getattr`` finds members of enums and two methods of torch's RPC;
4. in mode ``warn`` anything else is let through and said once; in mode ``enforce`` it is refused
   with ST-RUNT-001 (a file's with ST-RUNT-037), and a peer's pickle larger than the limit with
   ST-RUNT-008.

This protects a rank from its peers, and an honest script from a file. It does not protect a process
from the script that it runs.
"""

import _compat_pickle
import builtins
import enum
import functools
import io
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, ClassVar, Final

from securetrain.core import errors
from securetrain.core.errors import RuntimeRefusal, SecureTrainError
from securetrain.launch.seams import allowlist
from securetrain.policy.schema import UnpickleMode

PICKLE_LIMIT: Final = 4 << 30
"""Bytes of one object collective; far above what plans, metadata and metrics need."""

_IMMUTABLE: Final = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE: classes written in C, which nothing can change."""


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of pickles, in the words of a refusal."""

    code: str
    whose: str
    where: str
    fix: str
    """Holds ``{name}``, the global."""


PEERS: Final = Source(
    "ST-RUNT-001",
    "a pickle from another rank",
    "an object collective, RPC or checkpoint index of torch.distributed",
    "send plain data or tensors; if you trust every rank with it, add '{name}' to"
    " checkpoint.allow_globals in the policy",
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for globals."""

    mode: UnpickleMode
    allowed: frozenset[str]
    """Names of the policy, on top of the built-in list."""
    on_event: Callable[[UnpickleMode, str, SecureTrainError], None]
    """Called with each refused (or, in mode warn, merely noticed) global, before the refusal."""
    limit: int = PICKLE_LIMIT
    source: Source = PEERS


class AllowListUnpickler(pickle.Unpickler):
    """Reads one pickle under `rules`; made by `make_unpickler`."""

    rules: ClassVar[Rules]

    def __init__(self, file: IO[bytes], **options: Any) -> None:
        _check_size(file, self.rules)
        super().__init__(file, **options)
        self._classes: dict[type, Mapping[str, object]] = {}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Find a global under rules 1 to 3."""
        module_name, global_name = _python3_name(module_name, global_name)
        name = f"{module_name}.{global_name}"
        if stand_in := _STAND_INS.get(name):
            return functools.partial(stand_in, self.rules.source)
        if not is_allowed(module_name, global_name, self.rules.allowed):
            refuse(name, self.rules, f"names {name}")
        found = super().find_class(module_name, global_name)
        if not isinstance(found, type):
            return functools.partial(found) if callable(found) else found
        if not found.__flags__ & _IMMUTABLE:
            self._classes.setdefault(found, _contents(found))
        return found

    def load(self) -> Any:
        """Read the pickle, and see that it left the classes as they were."""
        value = super().load()
        for cls, before in self._classes.items():
            if _contents(cls) != before:
                _restore(cls, before)
                name = f"{cls.__module__}.{cls.__qualname__}"
                error = _refused(self.rules.source, f"changed the class {name}", name)
                self.rules.on_event(UnpickleMode.ENFORCE, name, error)
                raise error
        return value


def make_unpickler(rules: Rules) -> type[pickle.Unpickler]:
    """The class that takes the place of `pickle.Unpickler` in torch's modules."""
    if rules.mode is UnpickleMode.OFF:
        return pickle.Unpickler
    return type("AllowListUnpickler", (AllowListUnpickler,), {"rules": rules})


def refuse(name: str, rules: Rules, what: str) -> None:
    """Tell of something that the rules do not allow, and refuse it unless they only warn.

    Raises:
        RuntimeRefusal: Under ``enforce``, with the code of the source.
    """
    error = _refused(rules.source, what, name)
    rules.on_event(rules.mode, name, error)
    match rules.mode:
        case UnpickleMode.ENFORCE:
            raise error
        case UnpickleMode.WARN:
            return
        case _:
            raise ValueError(f"unknown mode {rules.mode!r}")


def is_allowed(module: str, name: str, extra: frozenset[str]) -> bool:
    """Return whether a global may be named (rule 1)."""
    full = f"{module}.{name}"
    if full in allowlist.ALLOWED or full in extra or full in _declared_safe():
        return True
    if full in allowlist.FRAMEWORKS:
        return module in sys.modules
    match module:
        case "builtins":
            return _is_subclass(getattr(builtins, name, None), Exception)
        case "securetrain.core.errors":
            return _is_subclass(getattr(errors, name, None), SecureTrainError)
        case "torch":
            return _is_torch_constant(name)
        case "numpy.dtypes":
            return name.endswith("DType") and name.isidentifier()
        case _:
            return False


class SafePickle:
    """The names of the `pickle` module that torch's modules use, with the restricted reader."""

    __name__ = "pickle"
    dump = staticmethod(pickle.dump)
    dumps = staticmethod(pickle.dumps)
    Pickler = pickle.Pickler
    PickleError = pickle.PickleError
    UnpicklingError = pickle.UnpicklingError
    HIGHEST_PROTOCOL = pickle.HIGHEST_PROTOCOL
    DEFAULT_PROTOCOL = pickle.DEFAULT_PROTOCOL

    def __init__(self, unpickler: type[pickle.Unpickler]) -> None:
        self._unpickler = unpickler

    @property
    def Unpickler(self) -> type[pickle.Unpickler]:  # noqa: N802 - pickle's name
        """The restricted reader."""
        return self._unpickler

    def load(self, file: IO[bytes], **options: Any) -> Any:
        """As `pickle.load`."""
        return self.Unpickler(file, **options).load()

    def loads(self, data: bytes, **options: Any) -> Any:
        """As `pickle.loads`."""
        return self.Unpickler(io.BytesIO(data), **options).load()


def _python3_name(module: str, name: str) -> tuple[str, str]:
    """Translate Python 2's name, which protocols below 3 use: it is judged under today's."""
    if (module, name) in _compat_pickle.NAME_MAPPING:
        return _compat_pickle.NAME_MAPPING[module, name]
    return _compat_pickle.IMPORT_MAPPING.get(module, module), name


def _refused(source: Source, what: str, name: str) -> RuntimeRefusal:
    return RuntimeRefusal(
        source.code, f"{source.whose} {what}", source.where, source.fix.replace("{name}", name)
    )


def _check_size(file: IO[bytes], rules: Rules) -> None:
    """Refuse an oversized pickle before it is read, where its size can be known."""
    if not file.seekable():
        return
    here = file.tell()
    size = file.seek(0, io.SEEK_END) - here
    file.seek(here)
    if size > rules.limit:
        error = RuntimeRefusal(
            "ST-RUNT-008",
            f"{size} bytes, the limit is {rules.limit}",
            rules.source.where,
        )
        rules.on_event(rules.mode, "size", error)
        if rules.mode is UnpickleMode.ENFORCE:
            raise error


def _contents(cls: type) -> dict[str, object]:
    # copyreg caches __slotnames__ on a class the first time that anybody pickles an instance.
    return {name: value for name, value in vars(cls).items() if name != "__slotnames__"}


def _restore(cls: type, before: Mapping[str, object]) -> None:
    for name in _contents(cls):
        if name not in before:
            delattr(cls, name)
    for name, value in before.items():
        if vars(cls).get(name) is not value:
            setattr(cls, name, value)


def _is_subclass(found: object, base: type) -> bool:
    return isinstance(found, type) and issubclass(found, base)


def _is_torch_constant(name: str) -> bool:
    """dtypes, layouts, memory formats and typed storages are attributes of torch itself."""
    torch = sys.modules.get("torch")
    if torch is None or not name.isidentifier():
        return False
    found = getattr(torch, name, None)
    if isinstance(found, torch.dtype | torch.layout | torch.memory_format | torch.qscheme):
        return True
    return isinstance(found, type) and found in torch._storage_classes  # noqa: SLF001 - torch's list


def _declared_safe() -> frozenset[str]:
    """The globals that this process's own code gave to `torch.serialization.add_safe_globals`."""
    serialization = sys.modules.get("torch.serialization")
    if serialization is None:
        return frozenset()
    return frozenset(
        entry[1] if isinstance(entry, tuple) else f"{entry.__module__}.{entry.__qualname__}"
        for entry in serialization.get_safe_globals()
    )


def _load_storage(_source: Source, data: bytes) -> Any:
    """Stand-in for `torch.storage._load_from_bytes`, which unpickles without any restriction."""
    import torch  # noqa: PLC0415 - the process has it: it is reading a tensor

    return torch.load(io.BytesIO(data), weights_only=True)


def _encode(source: Source, text: str, encoding: str = "latin1") -> bytes:
    """Stand-in for `_codecs.encode`, by which older protocols carry bytes."""
    if encoding not in {"latin1", "latin-1"}:
        raise _refused(source, f"encodes text as {encoding!r}", "_codecs.encode")
    return text.encode("latin-1")


def _bytearray(source: Source, data: bytes | str = b"", encoding: str = "latin-1") -> bytearray:
    """Stand-in for `bytearray`, which would allocate any size that it is given."""
    if isinstance(data, str):
        return bytearray(_encode(source, data, encoding))
    if not isinstance(data, bytes):
        raise _refused(source, "asks for a sized bytearray", "bytearray")
    return bytearray(data)


def _getattr(source: Source, owner: object, name: str) -> Any:
    """Stand-in for `getattr`, by which enums and torch's RPC methods are pickled."""
    if isinstance(owner, enum.EnumMeta) and name in owner.__members__:
        return owner.__members__[name]
    is_rpc = f"{getattr(owner, '__module__', '')}.{getattr(owner, '__qualname__', '')}"
    if is_rpc == allowlist.RPC_PICKLER and name in allowlist.RPC_RECEIVERS:
        return functools.partial(getattr(owner, name))
    raise _refused(source, f"asks for the attribute {name!r}", "getattr")


_STAND_INS: Final[Mapping[str, Callable[..., Any]]] = {
    "torch.storage._load_from_bytes": _load_storage,
    "_codecs.encode": _encode,
    "builtins.bytearray": _bytearray,
    "builtins.getattr": _getattr,
}
