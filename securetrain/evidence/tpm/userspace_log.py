# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""systemd's own measurement log: what it extended after the firmware's log had ended.

The log (`/run/log/systemd/tpm2-measure.log`) is a JSON text sequence: each record stands between a
record separator (0x1E) and a line feed. As with every log, only digests become evidence, and only
where they replay to a register that a TPM has signed.

Rules of the parser:

1. a log has at most 256 KiB and 1,024 records of at most 8 KiB each;
2. a record is a JSON object. `pcr` and `digests` are read strictly; everything else in it is for
   people, and what systemd may add there changes nothing. Records without `pcr` are of other
   registers of the TPM (NV indexes) and are stepped over;
3. a record of a PCR has one SHA-256 digest;
4. the text of a record is believed only where the digest is its hash. It is not for keys of
   volumes, whose digest is an HMAC by the key.

Sources: systemd, docs/TPM2_PCR_MEASUREMENTS.md and src/shared/tpm2-util.c (tpm2_pcr_extend_bytes,
tpm2_userspace_log); RFC 7464 (JSON text sequences); TCG Canonical Event Log Format, section 5.3.
"""

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Hash

LOG_LIMIT: Final = 256 << 10
MALFORMED: Final = "ST-ATTS-240"
_RECORDS: Final = 1024
_RECORD_LIMIT: Final = 8 << 10
_SEPARATOR: Final = b"\x1e"
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = "the userspace measurement log"


class _Digest(msgspec.Struct, frozen=True):
    hash: str = msgspec.field(name="hashAlg")
    digest: str


class _Content(msgspec.Struct, frozen=True):
    string: str = ""


class _Record(msgspec.Struct, frozen=True):
    pcr: Annotated[int, Meta(ge=0, le=23)] | None = None
    digests: Annotated[tuple[_Digest, ...], Meta(max_length=8)] = ()
    content: _Content | None = None


class Extension(msgspec.Struct, frozen=True):
    """One extension of a register. Everything in it is the log's own word."""

    index: int
    """Position in the log, from 0."""
    register: int
    digest: bytes
    text: str
    """Its word, if the digest is the hash of it; else empty."""
    claimed: str
    """What the log calls it."""


_DECODER: Final = msgspec.json.Decoder(_Record, strict=True)


def parse_userspace_log(log: bytes) -> tuple[Extension, ...]:
    """Read a log.

    Raises:
        AttestationError: ST-ATTS-240.
    """
    if len(log) > LOG_LIMIT:
        raise _bad(f"{len(log)} bytes, the limit is {LOG_LIMIT}")
    if not log:
        return ()
    if not log.startswith(_SEPARATOR):
        raise _bad("it does not begin with a record separator")
    if log.count(_SEPARATOR) > _RECORDS:
        raise _bad(f"more than {_RECORDS} records")
    found = (_extension(index, text) for index, text in enumerate(log[1:].split(_SEPARATOR)))
    return tuple(one for one in found if one is not None)


def leads_to(log: bytes, register: int, start: bytes, quoted: bytes) -> bool:
    """Tell whether a register comes from one value to another by this log; what follows is ignored.

    Raises:
        AttestationError: ST-ATTS-240.
    """
    value = start
    for one in parse_userspace_log(log):
        if value == quoted:
            break
        if one.register == register:
            value = Hash.SHA256.digest(value + one.digest)
    return value == quoted


def _extension(index: int, text: bytes) -> Extension | None:
    where = f"{_NAME}, record {index}"
    if len(text) > _RECORD_LIMIT or not text.endswith(b"\n"):
        raise _bad("it is cut off, or over its limit", where)
    try:
        record = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(str(error), where) from error
    if record.pcr is None:
        return None
    digests = [one.digest for one in record.digests if one.hash == "sha256"]
    if len(digests) != 1 or not _HEX.fullmatch(digests[0]):
        raise _bad(f"{len(digests)} SHA-256 digests, expected one of 64 hex digits", where)
    digest = bytes.fromhex(digests[0])
    claimed = record.content.string if record.content is not None else ""
    said = claimed if Hash.SHA256.digest(claimed.encode()) == digest and claimed else ""
    return Extension(index, record.pcr, digest, said, claimed)


def _bad(what: str, where: str = _NAME) -> AttestationError:
    return AttestationError(MALFORMED, what, where)
