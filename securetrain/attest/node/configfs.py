# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Asks the kernel of a confidential guest for a report (Linux 6.7 or newer, configfs-tsm).

A request is a folder below ``/sys/kernel/config/tsm/report``: what is written to ``inblob`` comes
back signed in ``outblob``, with the host's certificates in ``auxblob``.

Rules:

1. every request has a folder of its own, and is thrown away when its generation shows that
   somebody else wrote to it meanwhile;
2. what comes back is bounded, and of the form that the provider's name stands for. The host made
   the certificate table: it is read strictly, by GUID. Whether its certificates are good is the
   verifier's to say;
3. a TDX guest's event log is sent as the firmware left it, padding included.

Source: Linux, Documentation/ABI/testing/configfs-tsm-report; AMD 56421, SEV-ES Guest-Hypervisor
Communication Block Standardization, section 4.1.8.1 (certificate table); ACPI 6.5, CCEL.
"""

import contextlib
import errno
import os
import secrets
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from securetrain.core.errors import AttestationError
from securetrain.evidence import Reader, TeeEvidence, TeeKind
from securetrain.evidence.tee import QUOTE_LIMIT, SigningKey, parse_quote, parse_report

REPORTS: Final = Path("/sys/kernel/config/tsm/report")
EVENT_LOG: Final = Path("/sys/firmware/acpi/tables/data/CCEL")
REPORT_DATA_SIZE: Final = 64
ATTEMPTS: Final = 3
_TABLE: Final = "ST-ATTS-954"
_TABLE_LIMIT: Final = 64 << 10
_EVENT_LOG_LIMIT: Final = 1 << 20
_MAX_ENTRIES: Final = 16
_CERTIFICATE_LIMIT: Final = 8 << 10
_GUID_VCEK: Final = uuid.UUID("63da758d-e664-4564-adc5-f4b93be8accd")
_GUID_VLEK: Final = uuid.UUID("a8074bc2-a25a-483e-aae6-39c045a0b8a1")
_GUID_ASK: Final = uuid.UUID("4ab7b379-bbac-4fe4-a02f-05aef327c782")
_GUID_ARK: Final = uuid.UUID("c0b406a4-a803-4952-9743-3fb6014cd0ae")
_PROVIDERS: Final = {"sev_guest": TeeKind.SEV_SNP, "tdx_guest": TeeKind.TDX}


def collect(
    report_data: bytes, *, root: Path = REPORTS, event_log: Path = EVENT_LOG
) -> TeeEvidence:
    """A report over `report_data`, with what the host adds to it.

    Args:
        report_data: 64 bytes.
        root: the folder of requests.
        event_log: the data of the ACPI table CCEL.

    Raises:
        AttestationError: ST-ATTS-950 to 955.
        ValueError: when `report_data` has another size.
    """
    if len(report_data) != REPORT_DATA_SIZE:
        raise ValueError(f"report_data has {len(report_data)} bytes, not {REPORT_DATA_SIZE}")
    if not root.is_dir():
        raise _no_guest(f"there is no {root}", root)
    for _ in range(ATTEMPTS):
        evidence = _request(report_data, root)
        if evidence is not None:
            kind, report, table = evidence
            if kind is TeeKind.SEV_SNP:
                return TeeEvidence(
                    kind=kind, report=report, certificates=_certificates(table, report)
                )
            return TeeEvidence(kind=kind, report=report, event_log=_event_log(event_log))
    raise AttestationError("ST-ATTS-953", f"{ATTEMPTS} requests were changed by others", str(root))


def parse_certificate_table(table: bytes) -> dict[uuid.UUID, bytes]:
    """The certificates in a host's table, by the GUID of their kind.

    Entries point at places behind the table's end mark; they may not overlap, and no kind may be
    there twice. Kinds that are not known here are kept: hosts may add their own.

    Raises:
        AttestationError: ST-ATTS-954.
    """
    reader = Reader(table, _TABLE, "certificate table (auxblob)", "little")
    if not table:
        return {}
    if len(table) > _TABLE_LIMIT:
        raise reader.bad(f"{len(table)} bytes, the limit is {_TABLE_LIMIT}")
    places: dict[uuid.UUID, tuple[int, int]] = {}
    while True:
        guid, offset, size = uuid.UUID(bytes=reader.take(16)), reader.u32(), reader.u32()
        if not guid.int and not offset and not size:
            break
        if guid in places:
            raise reader.bad(f"has {guid} twice")
        if len(places) == _MAX_ENTRIES:
            raise reader.bad(f"has more than {_MAX_ENTRIES} entries")
        places[guid] = offset, size
    end = reader.position
    for guid, (offset, size) in sorted(places.items(), key=lambda item: item[1]):
        if offset < end or size > _CERTIFICATE_LIMIT or offset + size > len(table):
            raise reader.bad(f"{guid}: {size} bytes at {offset} of {len(table)}, free from {end}")
        end = offset + size
    return {guid: table[offset : offset + size] for guid, (offset, size) in places.items()}


def _request(report_data: bytes, root: Path) -> tuple[TeeKind, bytes, bytes] | None:
    """Kind, report and certificate table; None when somebody else wrote to the request."""
    try:
        with _entry(root) as entry:
            provider = _text(entry / "provider")
            kind = _PROVIDERS.get(provider)
            if kind is None:
                raise AttestationError(
                    "ST-ATTS-951",
                    f"the provider is {provider!r}, {' and '.join(_PROVIDERS)} are known",
                    str(root),
                )
            before = int(_text(entry / "generation"))
            (entry / "inblob").write_bytes(report_data)
            report = _bounded(entry / "outblob", QUOTE_LIMIT)
            table = _bounded(entry / "auxblob", _TABLE_LIMIT) if kind is TeeKind.SEV_SNP else b""
            after = int(_text(entry / "generation"))
    except (OSError, ValueError) as error:
        # What the kernel answers to everything while no provider is registered.
        if isinstance(error, OSError) and error.errno == errno.ENXIO:
            raise _no_guest("the kernel has no provider of reports", root) from error
        raise AttestationError(
            "ST-ATTS-952", f"the kernel gave no report: {error}", str(root)
        ) from error
    # Every write raises the generation by one, and there was to be exactly one.
    if after != before + 1:
        return None
    if _report_data(kind, report) != report_data:
        return None
    return kind, report, table


@contextlib.contextmanager
def _entry(root: Path) -> Iterator[Path]:
    entry = root / f"securetrain-{os.getpid()}-{secrets.token_hex(4)}"
    entry.mkdir()
    try:
        yield entry
    finally:
        # configfs takes the attributes away with the folder.
        with contextlib.suppress(OSError):
            entry.rmdir()


def _report_data(kind: TeeKind, report: bytes) -> bytes:
    """Read what the report was made for, to notice here what the verifier would refuse."""
    if kind is TeeKind.TDX:
        return parse_quote(report).report.report_data
    return parse_report(report).report_data


def _certificates(table: bytes, report: bytes) -> tuple[bytes, ...]:
    """The key's certificate first; none at all when the host did not offer it."""
    found = parse_certificate_table(table)
    signed_by_vlek = parse_report(report).signing_key == SigningKey.VLEK
    leaf = found.get(_GUID_VLEK if signed_by_vlek else _GUID_VCEK)
    if leaf is None:
        return ()
    return (leaf, *(found[guid] for guid in (_GUID_ASK, _GUID_ARK) if guid in found))


def _event_log(path: Path) -> bytes:
    try:
        return _bounded(path, _EVENT_LOG_LIMIT)
    except FileNotFoundError:
        return b""
    except (OSError, ValueError) as error:
        raise AttestationError("ST-ATTS-955", f"cannot be read: {error}", str(path)) from error


def _no_guest(what: str, root: Path) -> AttestationError:
    return AttestationError("ST-ATTS-950", what, str(root))


def _text(path: Path) -> str:
    return _bounded(path, 256).decode("ascii").strip()


def _bounded(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path.name} has more than {limit} bytes")
    return data
