# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Google's launch endorsements: what a confidential VM of Google Cloud measures before it starts.

Google signs, for each build of its firmware, the MEASUREMENT (SEV-SNP) that a VM has by its number
of virtual CPUs, and the MRTD (TDX) by its memory. An endorsement is a file; the operator names it,
and it becomes part of the signed reference values. Rules:

1. an endorsement counts when its certificate leads to a pinned root and its signature (RSA-PSS with
   SHA-256, salt of 32 bytes) holds. Of what is signed, only the certificates are looked at before;
2. the wire format of protocol buffers is walked here, with bounds: a dependency that parses it
   would be asked for two messages. Numbers are in their shortest form, a field that stands once
   stands once, and fields that are not known are stepped over, as Google adds some;
3. a measurement is accepted for the numbers of virtual CPUs and the memory that the reference
   names (all that are endorsed, where it names none), from its smallest security version on, and
   while all certificates of the path are in date;
4. the measurement of a VM with an SVSM (a paravisor) is none of a guest, and is not taken.

Sources: google/gce-tcb-verifier, proto/endorsement.proto (VMLaunchEndorsement) and README;
protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from OpenSSL import crypto

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.google_certificates import (
    certificates_of,
    check_signer,
    find_path,
    load,
    validity_of,
)
from securetrain.identity import path_search

REFUSED: Final = "ST-ATTS-442"
NOT_ENDORSED: Final = "ST-ATTS-443"
ENDORSEMENT_LIMIT: Final = 64 << 10
MAX_FIELDS: Final = 1 << 12
MEASUREMENT_SIZE: Final = 48
_MAX_COUNT: Final = 1 << 16
_MAX_SVN: Final = (1 << 32) - 1
_MAX_VARINT: Final = (1 << 64) - 1
_MAX_BUNDLE: Final = 8
_WHERE: Final = "launch endorsement"

Fields = Mapping[int, Sequence[int | bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One way in which a VM may be started, and its measurement."""

    measurement: str
    """MEASUREMENT or MRTD, hex."""
    count: int
    """SEV-SNP: virtual CPUs. TDX: memory in GiB."""
    svn: int
    """Google's security version of the firmware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endorsement:
    """An endorsement whose signature has been checked."""

    firmware: str
    """SHA-384 of the firmware's image, hex."""
    issued: datetime
    build: int
    """Google's number of the change that it was built from."""
    snp: tuple[Launch, ...]
    tdx: tuple[Launch, ...]
    validity: path_search.Validity
    """Of all certificates of its path together."""


def open_endorsement(data: bytes, roots: Sequence[crypto.X509], where: str = _WHERE) -> Endorsement:
    """Check an endorsement's signature, then read it; its certificates may be out of date.

    Args:
        data: VMLaunchEndorsement.
        roots: pinned certificates.
        where: names it in errors.

    Raises:
        AttestationError: ST-ATTS-442.
    """
    if len(data) > ENDORSEMENT_LIMIT:
        raise _bad(f"{len(data)} bytes, the limit is {ENDORSEMENT_LIMIT}", where)
    outer = _fields(data, where)
    signed = _bytes(outer, 1, where, "serialized_uefi_golden")
    signature = _bytes(outer, 2, where, "signature")
    golden = _fields(signed, where)
    path = _path(golden, roots, where)
    _check_signature(path[0], signed, signature, where)
    validity = validity_of(path, REFUSED, f"{where}: cert")
    snp = _once(golden, 7, where)
    tdx = _once(golden, 8, where)
    found = Endorsement(
        firmware=_sized(golden, 5, where, "digest").hex(),
        issued=_time(_bytes(golden, 1, where, "timestamp"), where),
        build=_number(golden, 2, where, _MAX_VARINT),
        snp=_snp(snp, where) if isinstance(snp, bytes) else (),
        tdx=_tdx(tdx, where) if isinstance(tdx, bytes) else (),
        validity=validity,
    )
    if not found.snp and not found.tdx:
        raise _bad("it endorses no measurement", where)
    return found


def endorsed(
    endorsements: Iterable[Endorsement],
    kind: str,
    measurement: str,
    now: datetime,
    *,
    counts: Sequence[int],
    min_svn: int,
) -> tuple[Endorsement, Launch]:
    """The endorsement of a measurement.

    Args:
        endorsements: checked ones.
        kind: ``sev-snp`` or ``tdx``.
        measurement: as the maker's hardware has signed it, hex.
        now: the time of the check.
        counts: accepted numbers of virtual CPUs, or memory in GiB; empty for all.
        min_svn: the smallest security version.

    Raises:
        AttestationError: ST-ATTS-443.
    """
    why = "Google's endorsements that the reference values hold do not name it"
    unit = "virtual CPUs" if kind == "sev-snp" else "GiB of memory"
    for one in endorsements:
        for launch in one.snp if kind == "sev-snp" else one.tdx:
            if launch.measurement != measurement:
                continue
            if not one.validity.covers(now):
                begins, ends = one.validity
                why = f"its endorsement is good from {begins} to {ends}, and it is {now}"
            elif launch.svn < min_svn:
                why = f"its firmware has security version {launch.svn}, {min_svn} is asked for"
            elif counts and launch.count not in counts:
                why = f"it is that of a VM with {launch.count} {unit}, {list(counts)} are accepted"
            else:
                return one, launch
    raise AttestationError(NOT_ENDORSED, f"{measurement[:16]}...: {why}", f"{kind}, measurement")


def _path(golden: Fields, roots: Sequence[crypto.X509], where: str) -> Sequence[crypto.X509]:
    """The certificates from the signer's to a pinned root."""
    leaf = load(_bytes(golden, 4, where, "cert"), REFUSED, f"{where}: cert")
    bundle = _once(golden, 6, where)
    between: list[crypto.X509] = []
    if isinstance(bundle, bytes) and bundle:
        between = certificates_of(bundle, REFUSED, f"{where}: ca_bundle", limit=_MAX_BUNDLE)
    read = check_signer(leaf, REFUSED, f"{where}: cert")
    # At a time at which the signer's certificate is good; `endorsed` asks for all of them at its.
    begin = read.not_valid_before_utc
    return find_path(leaf, between, roots, begin, code=REFUSED, where=f"{where}: cert")


def _check_signature(signer: crypto.X509, signed: bytes, signature: bytes, where: str) -> None:
    key = signer.get_pubkey().to_cryptography_key()
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < 2048:
        raise _bad("its signer's key is no RSA key of 2048 bits or more", f"{where}: cert")
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
    try:
        key.verify(signature, signed, pss, hashes.SHA256())
    except InvalidSignature as error:
        raise _bad("it is not signed by its certificate's key", f"{where}: signature") from error


def _snp(data: bytes, where: str) -> tuple[Launch, ...]:
    fields = _fields(data, where)
    svn = _number(fields, 1, where, _MAX_SVN)
    found: dict[int, Launch] = {}
    for entry in fields.get(2, ()):
        pair = _fields(_only_bytes(entry, where), where)
        count = _number(pair, 1, where, _MAX_COUNT)
        if not count or count in found:
            raise _bad(f"a measurement for {count} virtual CPUs, or two of them", where)
        value = _sized(pair, 2, where, "measurement").hex()
        found[count] = Launch(measurement=value, count=count, svn=svn)
    return tuple(found.values())


def _tdx(data: bytes, where: str) -> tuple[Launch, ...]:
    fields = _fields(data, where)
    svn = _number(fields, 1, where, _MAX_SVN)
    found = []
    for entry in fields.get(2, ()):
        one = _fields(_only_bytes(entry, where), where)
        memory = _number(one, 1, where, _MAX_COUNT)
        value = _sized(one, 3, where, "mrtd").hex()
        found.append(Launch(measurement=value, count=memory, svn=svn))
    return tuple(found)


def _time(data: bytes, where: str) -> datetime:
    seconds = _number(_fields(data, where), 1, where, _MAX_VARINT)
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise _bad(f"its timestamp is {seconds} seconds", where) from error


# The wire format.


def _fields(data: bytes, where: str) -> Fields:
    """The fields of one message, by number."""
    found: dict[int, list[int | bytes]] = {}
    for count, (number, value) in enumerate(_walk(data, where)):
        if count == MAX_FIELDS:
            raise _bad(f"a message of more than {MAX_FIELDS} fields", where)
        if value is not None:
            found.setdefault(number, []).append(value)
    return found


def _walk(data: bytes, where: str) -> Iterator[tuple[int, int | bytes | None]]:
    """Number and value of each field: None for those of fixed size, which no message here has."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at, where)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise _bad(f"field {number} before offset {at}", where)
        match wire:
            case 0:
                value, at = _varint(data, at, where)
                yield number, value
            case 2:
                size, at = _varint(data, at, where)
                if size > len(data) - at:
                    raise _bad(f"a field of {size} bytes at offset {at} of {len(data)}", where)
                yield number, data[at : at + size]
                at += size
            case 1 | 5:
                at += 8 if wire == 1 else 4
                if at > len(data):
                    raise _bad(f"it ends within the field before offset {at}", where)
                yield number, None
            case _:
                raise _bad(f"wire type {wire} before offset {at}", where)


def _varint(data: bytes, at: int, where: str) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            if (index and not byte) or value > _MAX_VARINT:
                raise _bad(f"a number at offset {at} that is not in its shortest form", where)
            return value, at + index + 1
    raise _bad(f"a number at offset {at} that does not end", where)


def _once(fields: Fields, number: int, where: str) -> int | bytes | None:
    values = fields.get(number, ())
    if len(values) > 1:
        raise _bad(f"field {number} stands {len(values)} times", where)
    return values[0] if values else None


def _number(fields: Fields, number: int, where: str, limit: int) -> int:
    value = _once(fields, number, where)
    if value is None:
        return 0
    if not isinstance(value, int) or value > limit:
        raise _bad(f"field {number} is no number up to {limit}", where)
    return value


def _bytes(fields: Fields, number: int, where: str, name: str) -> bytes:
    value = _once(fields, number, where)
    if not isinstance(value, bytes) or not value:
        raise _bad(f"it has no {name} (field {number})", where)
    return value


def _sized(fields: Fields, number: int, where: str, name: str) -> bytes:
    value = _bytes(fields, number, where, name)
    if len(value) != MEASUREMENT_SIZE:
        raise _bad(f"{name} has {len(value)} bytes, not {MEASUREMENT_SIZE}", where)
    return value


def _only_bytes(value: int | bytes, where: str) -> bytes:
    if not isinstance(value, bytes):
        raise _bad("a measurement that is a number", where)
    return value


def _bad(what: str, where: str) -> AttestationError:
    return AttestationError(REFUSED, what, where)
