# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One call of a function that saves, with its signature: which it is, and which rank signs."""

import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from securetrain.core.errors import IntegrityError

if TYPE_CHECKING:
    from securetrain.artifacts import signer

_METADATA: Final = ".metadata"
_TOGETHER: Final = frozenset({"dcp.save", "dcp.async_save"})
_OLD: Final = "dcp.save_state_dict"


@dataclass(frozen=True, slots=True)
class Kept:
    """The save's own result."""

    result: Any


def signed_call(
    signing: "signer.SaveSigner",
    way: str,
    save: Callable[..., Any],
    place: str,
    given: tuple[Sequence[Any], dict[str, Any]],
) -> Kept | None:
    """Save and have it signed; None, and nothing is saved, where this save cannot be signed.

    Raises:
        RuntimeRefusal: ST-RUNT-030 to 035, the launcher does not sign.
        IntegrityError: ST-CKPT-200, what was saved is no regular file, or not the one that was
            named.
    """
    from securetrain.artifacts import saved_files  # noqa: PLC0415 - needs cryptography

    args, kwargs = given
    if "://" in place or not Path(place).is_absolute() or way == _OLD:
        return None
    saved = args[0] if args else next(iter(kwargs.values()), None)
    if way in _TOGETHER:
        if not kwargs.get("use_collectives", True) or not _is_on_disk(kwargs):
            return None
        if not _signs_for_all(kwargs):
            return Kept(save(*args, **kwargs))
        begun = signing.begin(way, saved_files.Form.DIRECTORY, place, saved)
        result = save(*args, **kwargs)
        names = names_of(result, begun.path)
        if names is None:
            raise IntegrityError(
                "ST-CKPT-200", "what torch has saved does not say which files it wrote", place
            )
        signing.finish(begun, names)
        return Kept(result)
    if not may_become_file(place):
        return None
    begun = signing.begin(way, saved_files.Form.FILE, place, saved)
    result = save(*args, **kwargs)
    _flush(args, kwargs)
    signing.finish(begun)
    return Kept(result)


def _is_on_disk(kwargs: dict[str, Any]) -> bool:
    """Tell whether torch's own writer of files is used."""
    writer = kwargs.get("storage_writer")
    return writer is None or type(writer).__name__ == "FileSystemWriter"


def _signs_for_all(kwargs: dict[str, Any]) -> bool:
    """Tell whether this is the first rank of those that save together."""
    dist = sys.modules.get("torch.distributed")
    if kwargs.get("no_dist") or dist is None or not dist.is_available():
        return True
    return not dist.is_initialized() or bool(dist.get_rank(kwargs.get("process_group")) == 0)


def _flush(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Write out what an open file still holds."""
    target: Any = kwargs.get("f", args[1] if len(args) > 1 else None)
    if hasattr(target, "flush"):
        target.flush()


def names_of(metadata: Any, folder: Path) -> list[str] | None:
    """The files that a distributed save has written; None where nothing says it."""
    entries = getattr(metadata, "storage_data", None)
    if not isinstance(entries, dict) or not (folder / _METADATA).is_file():
        return None
    paths = {getattr(one, "relative_path", None) for one in entries.values()}
    if not all(isinstance(path, str) for path in paths):
        return None
    return sorted({_METADATA, *(str(path) for path in paths)})


def may_become_file(place: str) -> bool:
    """Tell whether a place is a regular file, or nothing yet, on a disk of this machine."""
    return Path(place).is_absolute() and (_is_plain_file(place) or not Path(place).exists())


def _is_plain_file(place: str) -> bool:
    try:
        return stat.S_ISREG(Path(place).stat().st_mode)
    except OSError:
        return False
