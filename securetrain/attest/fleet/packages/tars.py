# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Archives that are read through once and bounded, never unpacked."""

import struct
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Final, Self

from securetrain.attest.fleet.packages.listing import unusable

BROKEN: Final = (
    *(tarfile.TarError, EOFError, OSError, ValueError),
    *(RecursionError, TypeError, LookupError, struct.error, zlib.error),
)
"""What the standard library ends with: it reads a long name inside of the one before, and a byte of
a gzip header without looking whether there is one."""
MAX_HEADER: Final = 1 << 20
MAX_MEMBERS: Final = 2_000_000
MAX_BYTES: Final = 1 << 40
_LONG: Final = frozenset(
    {
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
    }
)


class _Header(tarfile.TarInfo):
    """A header whose names and attributes are bounded before they are read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read 512 bytes."""
        made = super().frombuf(buf, encoding, errors)
        if made.size < 0 or (made.type in _LONG and made.size > MAX_HEADER):
            raise tarfile.ReadError(f"a header of {made.size} bytes")
        return made


def members(
    file: IO[bytes], where: str, compression: str = ""
) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Each member with its content; the content is to be read before the next one is asked for.

    Args:
        file: the archive.
        where: names it in errors.
        compression: gz, xz or bz2; empty for none.

    Raises:
        UsageError: ST-USAG-008 for one that is damaged or has too much in it.
    """
    count = total = 0
    try:
        # The mode is one of four known strings.
        with tarfile.open(
            fileobj=file,
            mode=f"r|{compression}",  # type: ignore[call-overload]
            tarinfo=_Header,
        ) as tar:
            for member in tar:
                count += 1
                total += member.size
                if count > MAX_MEMBERS or total > MAX_BYTES:
                    raise unusable("there is too much in it", where, "list fewer packages")
                yield member, tar.extractfile(member) if member.isreg() else None
                tar.members.clear()  # they are kept for seeking, which a stream does not do
    except BROKEN as error:
        raise unusable(f"not a readable archive: {error}", where, "get it again") from error
