# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The seams by which a script's loads are verified before anything of them is parsed.

Rules:

1. ``torch.load`` of a file, ``safe_open`` and ``load_file`` of safetensors, and every file that
   ``dcp.load`` opens count only under a statement of `artifacts.saved`, by a checkpoint key of this
   run's trust root, or of one that ``checkpoint.load_trust`` names;
2. the bytes that were hashed are the bytes that are parsed: the file is copied into memory that has
   no name while it is hashed, and the reader gets the copy. What changes the file afterwards
   changes nothing;
3. the size is compared with what was signed before anything is allocated;
4. what is in memory already is no file. A stream that is no file of this machine is refused.

Whole directories are judged by `folder_loads`.

=========================================  =====================================================
torch.serialization                        ``torch.load``
safetensors                                ``safe_open``, and so ``load_file``
torch.distributed.checkpoint.filesystem    ``FileSystem.create_stream``, by which it reads
..._fsspec_filesystem                      the same, refused: nothing verifies it
=========================================  =====================================================

This protects an honest script from a file. It does not protect the job from a script.
"""

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Final

from securetrain.core.errors import IntegrityError
from securetrain.core.files import open_regular
from securetrain.launch.seams import patches
from securetrain.launch.seams.import_hooks import Patch

_DCP: Final = "torch.distributed.checkpoint"
_IN_STREAM: Final[ContextVar[bool]] = ContextVar("verified-stream", default=False)
"""Whether ``dcp.load`` has a verified copy open, of which it loads pieces."""
_HEARD: Final[ContextVar[list[IntegrityError] | None]] = ContextVar("refusals", default=None)
"""The refusals of one ``dcp.load``, which torch may swallow."""
_UNSIGNED: Final = "ST-CKPT-100"
_COPY: Final = "securetrain-load"
"""The name, for people, of memory with a verified copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedLoads:
    """The loads of one worker."""

    trust: tuple[Path, ...]
    """Files of trust roots."""
    clock: Callable[[], datetime]
    refused: Callable[[IntegrityError, str], None]
    """Records a refusal."""

    def patches(self) -> dict[str, Patch]:
        """The seams, by module."""
        return {
            "torch.serialization": functools.partial(patches.wrap, self._torch, "load"),
            "safetensors": functools.partial(patches.wrap_if_there, self._safetensors, "safe_open"),
            f"{_DCP}.state_dict_loader": functools.partial(
                patches.wrap_if_there, self._saying_why, "load"
            ),
            f"{_DCP}.filesystem": self._distributed,
            f"{_DCP}._fsspec_filesystem": self._remote,
        }

    @contextlib.contextmanager
    def opened(self, given: Any) -> Iterator[BinaryIO]:
        """Open the verified copy of a file (rule 2).

        Args:
            given: A path, or an open file.

        Raises:
            IntegrityError: ST-CKPT-100 to 200.
            OSError: there is no such file.
        """
        try:
            copy = self._copy(given)
        except IntegrityError as error:
            self.refused(error, _shown(given))
            if (heard := _HEARD.get()) is not None:
                heard.append(error)
            raise
        with copy:
            yield copy

    def _copy(self, given: Any) -> BinaryIO:
        from securetrain.artifacts import judging  # noqa: PLC0415 - needs cryptography
        from securetrain.identity.trust import TrustRoot  # noqa: PLC0415

        path = _path_of(given)
        with open(open_regular(path), "rb", buffering=0) as source:  # noqa: PTH123 - a descriptor
            now = self.clock()
            covered = judging.covering(path, [TrustRoot.load(place, now) for place in self.trust])
            size = os.fstat(source.fileno()).st_size
            if size != covered.file.size:
                covered.check(size, "", str(path))
            fd = os.memfd_create(_COPY, os.MFD_CLOEXEC)
            copy = os.fdopen(fd, "w+b", buffering=0)
            try:
                covered.check(*_copied(source, copy, size), str(path))
            except BaseException:
                copy.close()
                raise
        copy.seek(0)
        return copy

    def _torch(self, load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def verified(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.get("f")
            is_part = _IN_STREAM.get() and not isinstance(given, str | os.PathLike)
            if given is None or isinstance(given, io.BytesIO) or is_part or _is_copy(given):
                return load(*args, **kwargs)
            with self.opened(given) as copy:
                is_path = isinstance(given, str | os.PathLike)
                if is_path:
                    file: Any = f"/proc/self/fd/{copy.fileno()}"
                else:
                    copy.seek(given.tell())
                    file = io.BufferedReader(copy)
                kwargs.pop("f", None)
                try:
                    return load(file, *args[1:], **kwargs)
                finally:
                    if not is_path:
                        given.seek(file.tell())
                        file.detach()

        return verified

    def _safetensors(self, safe_open: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(safe_open, updated=())
        def verified(filename: Any, *args: Any, **kwargs: Any) -> Any:
            with self.opened(filename) as copy:
                return safe_open(f"/proc/self/fd/{copy.fileno()}", *args, **kwargs)

        return verified

    def _saying_why(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """Raise the refusal, where torch goes on without a file and fails for another reason."""

        @functools.wraps(load)
        def said(*args: Any, **kwargs: Any) -> Any:
            heard: list[IntegrityError] = []
            token = _HEARD.set(heard)
            try:
                result = load(*args, **kwargs)
            except BaseException as error:
                if heard and error is not heard[0]:
                    raise heard[0] from error
                raise
            finally:
                _HEARD.reset(token)
            if heard:  # it was loaded by way of another file, and something here was altered
                raise heard[0]
            return result

        return said

    def _distributed(self, module: ModuleType) -> None:
        owner = patches.find(module, "FileSystem")
        original = patches.find(owner, "create_stream")
        opened = self.opened

        @contextlib.contextmanager
        def create_stream(self: Any, path: Any, mode: str) -> Iterator[Any]:
            if mode == "rb":
                with opened(path) as copy:
                    token = _IN_STREAM.set(True)
                    try:
                        yield io.BufferedReader(copy)
                    finally:
                        _IN_STREAM.reset(token)
            else:
                with original(self, path, mode) as stream:
                    yield stream

        owner.create_stream = create_stream

    def _remote(self, module: ModuleType) -> None:
        owner = patches.find(module, "FileSystem")
        original = patches.find(owner, "create_stream")
        loads = self

        @contextlib.contextmanager
        def create_stream(self: Any, path: Any, mode: str) -> Iterator[Any]:
            if mode == "rb":
                error = _not_a_file(str(path))
                loads.refused(error, _shown(path))
                raise error
            with original(self, path, mode) as stream:
                yield stream

        owner.create_stream = create_stream


def _path_of(given: Any) -> Path:
    """Name the file, with every link followed.

    Raises:
        IntegrityError: ST-CKPT-100, it is no file of this machine (rule 4).
        OSError: there is no such file.
    """
    if isinstance(given, str | bytes | os.PathLike):
        text = os.fsdecode(given)
        if "://" in text:
            raise _not_a_file(text)
        return Path(text).resolve(strict=True)
    try:
        path = Path(f"/proc/self/fd/{given.fileno()}").readlink()
        same = path.is_absolute() and os.path.samestat(path.stat(), os.fstat(given.fileno()))
    except (AttributeError, OSError, ValueError, TypeError):
        same = False
    if not same:
        raise _not_a_file(type(given).__name__)
    return path


def _is_copy(given: Any) -> bool:
    """Tell whether an open file is a verified copy already (`folder_loads`)."""
    try:
        place = Path(f"/proc/self/fd/{given.fileno()}").readlink()
    except (AttributeError, OSError, ValueError, TypeError):
        return False
    return str(place).startswith(f"/memfd:{_COPY} ")


def _not_a_file(what: str) -> IntegrityError:
    return IntegrityError(
        _UNSIGNED,
        "it is no file of this machine, so no statement lies beside it",
        what[:300],
        "load it from a directory of this machine",
    )


def _copied(source: Any, copy: Any, size: int) -> tuple[int, str]:
    """Copy at most `size` bytes, and one more to see that there are no more; hash them."""
    import hashlib  # noqa: PLC0415 - a worker that loads nothing does without

    digest, done = hashlib.sha256(), 0
    buffer = memoryview(bytearray(1 << 20))
    while done <= size and (count := source.readinto(buffer[: size - done + 1])):
        part = buffer[:count]
        digest.update(part)
        while part:
            part = part[copy.write(part) :]
        done += count
    return done, digest.hexdigest()


def _shown(given: Any) -> str:
    return str(getattr(given, "name", given))[:300]
