# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The index of a checkpoint of torch.distributed.checkpoint, read without torch.

``.metadata`` is a pickle. Rules, in order:

1. it is analysed first, and refused when it names anything but the 13 globals that torch writes
   there, and dtypes;
2. then it is read with inert stand-ins for those names, made anew for each file: nothing of torch,
   and nothing that does anything, can be reached from it;
3. what comes out is checked before it is used: file names stay inside the directory, ranges are
   integers within their files.
"""

import io
import pickle
from dataclasses import dataclass
from typing import Any, Final, Self

from securetrain.artifacts.scan.pickles import Analysis
from securetrain.artifacts.scan.safe_globals import DCP_METADATA, DTYPE_NAMES
from securetrain.artifacts.scan.window import Window
from securetrain.core.files import unsafe_name

METADATA_LIMIT: Final = 256 << 20
ALLOWED: Final = DCP_METADATA | DTYPE_NAMES


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """The place of one value of the state dict."""

    file: str
    offset: int
    length: int
    name: str


class UnreadableMetadataError(ValueError):
    """``.metadata`` is not what torch writes."""


def read_items(window: Window, found: Analysis) -> list[Item]:
    """The items that ``.metadata`` names, sorted by place; `found` is what its analysis says.

    Raises:
        UnreadableMetadataError: it names other globals, is malformed, too large, or names places
            that cannot be.
    """
    if window.size > METADATA_LIMIT:
        raise UnreadableMetadataError(f"{window.size} bytes, the limit is {METADATA_LIMIT}")
    check(found)
    data = bytearray(window.size)
    window.seek(0)
    view = memoryview(data)
    while view and (count := window.readinto(view)):
        view = view[count:]
    return items_of(data)


def check(found: Analysis) -> None:
    """Rule 1.

    Raises:
        UnreadableMetadataError: it is anything but an index.
    """
    others = [name for name in found.globals if name not in ALLOWED]
    if others or found.unfollowed or found.problem:
        raise UnreadableMetadataError(
            found.problem or (f"it names {others[0]}" if others else "globals without a name")
        )


def items_of(data: bytes | bytearray) -> list[Item]:
    """Rules 2 and 3, for bytes that passed `check`."""
    try:
        metadata = _Reader.of(data).load()
        places = metadata.storage_data
        items = [_item(index, place) for index, place in places.items()]
    except UnreadableMetadataError:
        raise
    except Exception as error:
        raise UnreadableMetadataError(f"not an index: {error}") from error
    return sorted(items)


def _item(index: Any, place: Any) -> Item:
    name, file = index.fqn, place.relative_path
    offset, length = place.offset, place.length
    if not isinstance(name, str) or not isinstance(file, str):
        raise UnreadableMetadataError("a name that is not text")
    if reason := unsafe_name(file):
        raise UnreadableMetadataError(f"{name} lies in {file!r}: {reason}")
    if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
        raise UnreadableMetadataError(f"{name} lies at {offset!r}, {length!r} bytes")
    return Item(file=file, offset=offset, length=length, name=name)


class _Reader(pickle.Unpickler):
    """Gives inert stand-ins for the names of rule 1, and refuses every other."""

    stand_ins: dict[str, Any]

    @classmethod
    def of(cls, data: bytes | bytearray) -> "_Reader":
        """A reader with stand-ins of its own."""
        reader = cls(io.BytesIO(data))
        reader.stand_ins = {name: type("Inert", (_Inert,), {}) for name in ALLOWED}
        return reader

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """The stand-in.

        Raises:
            UnreadableMetadataError: there is none.
        """
        name = f"{module_name}.{global_name}"
        if name not in self.stand_ins:
            raise UnreadableMetadataError(f"it names {name}")
        return self.stand_ins[name]

    def persistent_load(self, pid: Any, /) -> Any:
        """Refused: an index has no persistent ids."""
        raise UnreadableMetadataError(f"a persistent id {str(pid)[:40]!r}")


class _Inert:
    """Takes any arguments and any state, and does nothing with them."""

    def __new__(cls, *_args: object, **_options: object) -> Self:
        return super().__new__(cls)

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(
                (key, value) for key, value in state.items() if isinstance(key, str)
            )
