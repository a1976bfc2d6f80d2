# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A TPM's part of the evidence in words, unjudged: keys, quote, registers, both logs.

That a register "replays" compares the log with the register's value as it came along; whether the
TPM signed that value is for `verify`.
"""

import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa

from securetrain.attest.fleet.sections import Fact, Section, Table, refused, tried, yes
from securetrain.core import text
from securetrain.core.errors import SecureTrainError
from securetrain.evidence import AttestationKeys, ImaList, TpmEvidence
from securetrain.evidence.tpm import (
    SEPARATORS,
    EccKey,
    Entry,
    Event,
    EventLog,
    EventType,
    Hash,
    PublicArea,
    QuoteInfo,
    Refusal,
    RsaKey,
    TemplateCache,
    Violations,
    appraise_ima,
    check_attestation_key,
    check_endorsement_key,
    check_endorsement_profile,
    describe,
    eventlog,
    leads_to,
    parse_ascii,
    parse_attest,
    parse_binary,
    parse_public,
    parse_signature,
    printable,
    read_secure_boot,
    split_ascii,
    split_binary,
)

IMA_PCR: Final = 10
HOLDS: Final[Mapping[int, str]] = {
    0: "firmware code",
    1: "firmware settings, boot order",
    2: "option ROMs",
    3: "settings of option ROMs",
    4: "boot loaders and kernels",
    5: "partition table, boot attempts",
    6: "the maker's own",
    7: "Secure Boot: state, keys, signers",
    8: "command lines of boot loader and kernel",
    9: "files that the boot loader read",
    IMA_PCR: "files that the kernel measured (IMA)",
    11: "unified kernel image",
    12: "kernel command line overrides",
    13: "system extensions",
    14: "machine owner keys (shim)",
    15: "machine id, file systems, volume keys",
}
"""What is measured into a register. TCG PC Client Platform Firmware Profile 1.05, 3.3.4; 8 and 9 by
GRUB, 11 to 13 and 15 by systemd, 14 by shim."""
_COMMAND_LINES: Final = (b"kernel_cmdline: ", b"grub_kernel_cmdline ")
_CERTIFICATE: Final = "certificate"
_TEXT_LIMIT: Final = 1024
_HEX: Final = re.compile(r"([0-9A-F]{2}){1,8}")


def describe_keys(keys: AttestationKeys) -> Iterator[Fact]:
    """The two keys of Hello, and the certificate of the first."""
    yield from tried("endorsement key", lambda: _endorsement_key(keys.ek_public))
    if keys.ek_certificate:
        yield from _certificate(keys.ek_certificate)
        yield Fact("certificates above it", f"{len(keys.ek_chain)} sent along")
    else:
        yield Fact(_CERTIFICATE, "none: the TPM holds no certificate of its maker")
    yield from tried("attestation key", lambda: _attestation_key(keys.ak_public))


def describe_tpm(
    evidence: TpmEvidence, binding: bytes, keys: AttestationKeys | None
) -> tuple[Section, ...]:
    """Everything that the TPM's part says.

    Args:
        evidence: the part.
        binding: what the bundle says that it was made for.
        keys: what came in Hello.
    """
    try:
        log = eventlog.read(evidence.event_log) if evidence.event_log else None
        log_facts = _log_facts(log)
    except SecureTrainError as error:
        log, log_facts = None, [refused("event log", error)]
    found = tuple(describe_keys(keys)) if keys is not None else ()
    return (
        Section(
            name="tpm",
            title="TPM",
            facts=(*found, *tried("quote", lambda: _quote(evidence, binding))),
        ),
        Section(
            name="pcrs",
            title="Registers (SHA-256 bank)",
            facts=_registers_facts(evidence),
            table=_registers(evidence, log),
        ),
        Section(
            name="boot",
            title="Firmware's event log",
            facts=tuple(log_facts),
            table=_events(log),
        ),
        _ima(evidence),
    )


def _endorsement_key(public: bytes) -> Iterator[Fact]:
    key = parse_public(public, "endorsement key")
    yield Fact("endorsement key", key.name.hex())
    yield from tried(
        "template", lambda: [Fact("template", f"{check_endorsement_key(key)}, {_kind(key)}")]
    )


def _attestation_key(public: bytes) -> Iterator[Fact]:
    key = parse_public(public, "attestation key")
    yield Fact("attestation key", key.name.hex())
    check_attestation_key(key)
    yield Fact("its kind", f"{_kind(key)}, {key.scheme}, restricted, of the TPM alone")


def _kind(key: PublicArea) -> str:
    match key.unique:
        case RsaKey(bits=bits):
            return f"RSA {bits}"
        case EccKey(curve=curve):
            return f"ECC {curve.name}"


def _certificate(der: bytes) -> Iterator[Fact]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # makers' serial numbers and encodings
            loaded = x509.load_der_x509_certificate(der)
            subject, issuer = loaded.subject.rfc4514_string(), loaded.issuer.rfc4514_string()
            begins, ends = loaded.not_valid_before_utc, loaded.not_valid_after_utc
            is_rsa = isinstance(loaded.public_key(), rsa.RSAPublicKey)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        yield Fact(_CERTIFICATE, f"it cannot be shown: {error}", "ST-ATTS-105")
        return
    yield Fact(_CERTIFICATE, f"subject {_text(subject.encode()) or '(empty)'}")
    yield Fact("issued by", _text(issuer.encode()))
    yield Fact("valid", f"{begins:%Y-%m-%d} to {ends:%Y-%m-%d}")
    yield from tried("TPM", lambda: _model(der, is_rsa=is_rsa))


def _model(der: bytes, *, is_rsa: bool) -> Iterator[Fact]:
    identity = check_endorsement_profile(der, "endorsement key certificate", rsa=is_rsa)
    maker = _vendor(identity.manufacturer)
    yield Fact("TPM", f"{maker}, model {identity.model}, version {identity.version}")


def _vendor(manufacturer: str) -> str:
    """``id:49424D00`` with the four letters that it stands for."""
    digits = manufacturer.removeprefix("id:")
    letters = bytes.fromhex(digits).strip(b"\0 ") if _HEX.fullmatch(digits) else b""
    shown = printable(letters.decode("ascii", "replace"))
    return f"{shown} ({manufacturer})" if shown.isalnum() else printable(manufacturer)


def _quote(evidence: TpmEvidence, binding: bytes) -> Iterator[Fact]:
    attest = parse_attest(evidence.quote, "quote")
    clock = attest.clock
    safe = "" if clock.safe else ", not safe: it may have gone back"
    own = "this bundle's binding" if attest.extra_data == binding else attest.extra_data.hex()
    yield Fact("its firmware", f"{attest.firmware:016x}")
    yield Fact("powered", f"{clock.clock / 3_600_000:.1f} hours by its own clock{safe}")
    yield Fact("resets", f"{clock.reset_count}, and {clock.restart_count} wake-ups since")
    yield Fact("made for", own)
    if isinstance(attest.attested, QuoteInfo):
        for selection in attest.attested.selections:
            pcrs = ", ".join(map(str, selection.pcrs))
            yield Fact("quoted", f"{selection.bank.name} registers {pcrs}")
    else:
        yield Fact("quoted", "nothing: it is the certification of a key", "ST-ATTS-112")
    signature = parse_signature(evidence.signature, "quote's signature")
    yield Fact("signature", f"{signature.scheme}")
    opened = "was opened" if evidence.activation else "none was asked for"
    yield Fact("credential", opened)


def _registers_facts(evidence: TpmEvidence) -> tuple[Fact, ...]:
    return () if evidence.pcrs else (Fact("registers", "none came along"),)


def _registers(evidence: TpmEvidence, log: EventLog | None) -> Table:
    replayed, why = _replayed(log)
    rows = []
    for index, value in sorted(evidence.pcrs.items()):
        if index == IMA_PCR:
            state = _ima_state(evidence)
        elif why:
            state = why
        else:
            state = _state(evidence, index, replayed.get(index, bytes(32)))
        rows.append((str(index), value.hex(), state, HOLDS.get(index, "")))
    return Table(("register", "value", "log", "what is measured into it"), tuple(rows))


def _state(evidence: TpmEvidence, index: int, replayed: bytes) -> str:
    """Compare a register with what the firmware's log, and then systemd's, make of it."""
    try:
        same = leads_to(evidence.userspace_log, index, replayed, evidence.pcrs[index])
    except SecureTrainError as error:
        return error.code
    return "replays" if same else "DIFFERS"


def _replayed(log: EventLog | None) -> tuple[Mapping[int, bytes], str]:
    """Values of the registers by the log, or why there are none."""
    if log is None:
        return {}, "no log"
    if log.bank is not Hash.SHA256:
        return {}, f"{log.bank.name} only"
    try:
        return eventlog.replay(log), ""
    except SecureTrainError as error:
        return {}, error.code


def _ima_state(evidence: TpmEvidence) -> str:
    """Tell whether the kernel's list leads to its register."""
    value = evidence.pcrs[IMA_PCR]
    if evidence.ima is None:
        return "no list"
    if evidence.ima.first:
        return "in part"
    try:
        appraise_ima(
            evidence.ima,
            pcr10=value,
            boot_aggregate=None,
            policy=None,
            start=None,
            violations=Violations(allow=True),
            cache=TemplateCache(0),
        )
    except SecureTrainError as error:
        return "DIFFERS" if error.code == "ST-ATTS-306" else error.code
    return "replays"


def _log_facts(log: EventLog | None) -> list[Fact]:
    if log is None:
        return [Fact("event log", "none came along")]
    form = "SHA-1 format of TPM 1.2: proves nothing" if log.legacy else "crypto-agile"
    facts = [
        Fact("format", f"{form}, digests of {', '.join(log.banks)}"),
        Fact("entries", str(len(log.events))),
    ]
    if not log.legacy:
        facts += tried("Secure Boot", lambda: _secure_boot(log))
    facts += [
        Fact("command line", _text(event.data.removeprefix(prefix).rstrip(b"\0")))
        for event in log.events
        for prefix in _COMMAND_LINES
        if event.data.startswith(prefix)
    ]
    return facts


def _secure_boot(log: EventLog) -> Iterable[Fact]:
    state = read_secure_boot(log.of(7), log.bank, "PCR 7")
    return [Fact("Secure Boot", state.off or "on, by the log's own word")]


def _events(log: EventLog | None) -> Table | None:
    if log is None:
        return None
    rows = tuple(
        (
            str(event.index),
            "-" if event.type == EventType.NO_ACTION else str(event.register),
            event.name,
            event.digest.hex(),
            _said(event),
        )
        for event in log.events
    )
    return Table(("entry", "register", "type", "digest", "what the log says of it"), rows)


def _said(event: Event) -> str:
    if event.type == EventType.SEPARATOR:
        return "end of the firmware's part" if event.data in SEPARATORS else "an ERROR is reported"
    return describe(event)


def _ima(evidence: TpmEvidence) -> Section:
    title = "Kernel's measurement list (IMA)"
    if evidence.ima is None:
        return Section(name="ima", title=title, facts=(Fact("list", "none came along"),))
    entries, problem = _ima_entries(evidence.ima)
    names = [_text(entry.name) for entry in entries]
    facts = [
        Fact("format", "binary" if evidence.ima.binary else "ASCII"),
        Fact("entries", f"{len(entries)}{_after(evidence.ima.first)}"),
        Fact("violations", str(sum(entry.is_violation for entry in entries))),
    ]
    if names:
        facts += [Fact("first", names[0]), Fact("last", names[-1])]
        facts += _aggregate(entries[0], evidence.pcrs)
    if problem is not None:
        facts.append(problem)
    rows = tuple(
        (
            str(evidence.ima.first + number),
            "VIOLATION" if entry.is_violation else _digest(entry.digest),
            name,
        )
        for number, (entry, name) in enumerate(zip(entries, names, strict=True), 1)
    )
    table = Table(("entry", "digest", "path"), rows)
    return Section(name="ima", title=title, facts=tuple(facts), table=table)


def _after(first: int) -> str:
    return f", after {first} that were attested before" if first else ""


def _ima_entries(ima: ImaList) -> tuple[list[Entry], Fact | None]:
    """Read the list as far as it can be read, and say why it ends there if it does."""
    split, parse = (split_binary, parse_binary) if ima.binary else (split_ascii, parse_ascii)
    found: list[Entry] = []
    try:
        found.extend(map(parse, split(ima.entries)))
    except Refusal as refusal:
        where = f"entry {ima.first + len(found) + 1}"
        return found, Fact("list", f"{refusal.what} ({where})", refusal.code)
    return found, None


def _aggregate(first: Entry, pcrs: Mapping[int, bytes]) -> list[Fact]:
    """Tell whether the list begins with the boot that these registers are of."""
    if first.name != b"boot_aggregate" or not all(index in pcrs for index in range(IMA_PCR)):
        return []
    expected = hashlib.sha256(b"".join(pcrs[index] for index in range(IMA_PCR))).digest()
    same = first.digest == b"sha256:\0" + expected
    return [Fact("of this boot", f"{yes(same)}: boot_aggregate and registers 0 to 9")]


def _text(data: bytes) -> str:
    """Bytes that are meant to be text, in one line of bounded length."""
    return text.printable(data[:_TEXT_LIMIT].decode("utf-8", "replace"), keep="")


def _digest(field: bytes) -> str:
    """``sha256:`` and hex, as the list spells it."""
    name, _, digest = field.partition(b":\0")
    return f"{printable(name.decode('ascii', 'replace'))}:{digest.hex()}"
