# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A CPU's report and the devices' reports in words, unjudged.

A device's certificates are read by leading them to their own root, whatever that is: who the maker
is, is for `verify`.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from cryptography import x509

from securetrain.attest.fleet.sections import Fact, Section, Table, refused, tried
from securetrain.core.errors import AttestationError, SecureTrainError
from securetrain.evidence import DeviceEvidence, TeeEvidence, TeeKind, device_nonce, report_data
from securetrain.evidence.gpu import (
    NVIDIA_DEVICE_ROOTS,
    UNREADABLE,
    DeviceState,
    verify_device,
)
from securetrain.evidence.gpu import parse_report as parse_device_report
from securetrain.evidence.tee import (
    AMD,
    PlatformBit,
    PolicyBit,
    Report,
    Tcb,
    attributes_of,
    chain,
    claimed_key,
    claimed_platform,
    claimed_provider,
    parse_quote,
    parse_report,
    read_tcb,
)
from securetrain.evidence.tpm import Hash, describe, eventlog
from securetrain.identity import paths

_DEBUGGED = 0xFF
_RTMRS = (
    "firmware settings, Secure Boot",
    "boot loaders and kernels",
    "command lines and loaded files",
    "the guest's own, at run time",
)


def describe_tee(evidence: TeeEvidence, binding: bytes) -> tuple[Section, ...]:
    """The CPU's report, and a TDX guest's log."""
    expected = report_data(binding)
    match evidence.kind:
        case TeeKind.SEV_SNP:
            facts = tried("report", lambda: _snp(evidence, expected))
            return (Section(name="tee", title="AMD SEV-SNP report", facts=tuple(facts)),)
        case TeeKind.TDX:
            facts = tried("quote", lambda: _tdx(evidence, expected))
            section = Section(
                name="tee",
                title="Intel TDX quote",
                facts=tuple(facts),
                table=_run_time_registers(evidence),
            )
            return (section, _guest_log(evidence))


def describe_devices(
    devices: Sequence[DeviceEvidence], binding: bytes, collected: datetime
) -> Section:
    """All GPUs and switches.

    Args:
        devices: what the node sent.
        binding: what the bundle says that it was made for.
        collected: when, by the bundle.
    """
    facts, rows = [], []
    for number, evidence in enumerate(devices):
        name = f"{evidence.kind} {number}"
        try:
            state, root = _device(evidence, collected, name)
        except SecureTrainError as error:
            facts.append(refused(name, error))
            continue
        if state.nonce != device_nonce(binding):
            facts.append(Fact(name, "it answers another nonce than this bundle's", "ST-ATTS-604"))
        if root not in NVIDIA_DEVICE_ROOTS:
            facts.append(Fact(name, f"its root is not NVIDIA's: {root}", "ST-ATTS-609"))
        rows.append(
            (
                name,
                state.chip,
                state.pdi,
                state.driver or "-",
                state.vbios,
                str(state.mode or "-"),
                ", ".join(sorted(state.peers)) or "-",
            )
        )
    columns = ("device", "chip", "PDI", "driver", "VBIOS", "mode", "links")
    return Section(
        name="devices",
        title="GPUs and switches",
        facts=(Fact("devices", str(len(devices))), *facts),
        table=Table(columns, tuple(rows)),
    )


def _device(evidence: DeviceEvidence, when: datetime, where: str) -> tuple[DeviceState, str]:
    """The device by its own certificates, and what they lead to."""
    try:
        root = paths.spki_sha256(x509.load_der_x509_certificate(evidence.certificates[-1]))
    except (IndexError, *UNREADABLE) as error:
        raise AttestationError("ST-ATTS-605", f"no root: {error}", where) from error
    nonce = parse_device_report(evidence.report, f"{where}: SPDM report").nonce
    return verify_device(evidence, nonce=nonce, now=when, roots={root}, where=where), root


def _snp(evidence: TeeEvidence, expected: bytes) -> Iterator[Fact]:
    report = parse_report(evidence.report)
    yield Fact("version", f"{report.version}, firmware {_dotted(report.current_version)}")
    yield from tried("key", lambda: _snp_key(report, evidence))
    yield Fact("chip", report.chip_id.hex() if any(report.chip_id) else "hidden by the host")
    yield Fact("measurement", report.measurement.hex())
    yield Fact("made for", _made_for(report.report_data, expected))
    yield Fact("guest", f"security version {report.guest_svn}, privilege level {report.vmpl}")
    yield from _policy(report)
    yield Fact("host data", _or_none(report.host_data))
    yield Fact("id key", _or_none(report.id_key_digest))
    yield Fact("author key", _or_none(report.author_key_digest))
    checked = report.has_platform(PlatformBit.ALIAS_CHECK_COMPLETE)
    yield Fact("memory aliases", "the firmware found none" if checked else "not checked")


def _snp_key(report: Report, evidence: TeeEvidence) -> Iterator[Fact]:
    product, key = claimed_key(evidence.report, evidence.certificates)
    yield Fact("processor", str(product or "unknown"))
    signed = key.name if key is not None else f"unknown kind {report.signing_key}"
    if report.mask_chip_key:
        signed = "nobody: the host had it left unsigned"
    provider = claimed_provider(evidence.certificates)
    yield Fact("signed by", f"{signed} {provider}".strip())
    if product is not None:
        yield Fact("firmware level", _tcb(read_tcb(report.reported_tcb, product)))
        yield Fact("at launch", _tcb(read_tcb(report.launch_tcb, product)))
    for number, der in enumerate(evidence.certificates):
        loaded = chain.load_certificate(der, AMD, f"certificates[{number}]")
        ends = loaded.not_valid_after_utc
        yield Fact("certificate", f"{chain.common_name(loaded.subject)}, until {ends:%Y-%m-%d}")
    if not evidence.certificates:
        yield Fact("certificate", "none came along: the cache must have it")


def _policy(report: Report) -> Iterator[Fact]:
    names = [bit.name.lower().replace("_", "-") for bit in PolicyBit if report.has_policy(bit)]
    code = "ST-ATTS-409" if report.has_policy(PolicyBit.DEBUG) else ""
    yield Fact("guest policy", f"{report.policy:#x}: {', '.join(names) or 'nothing allowed'}", code)


def _tcb(tcb: Tcb) -> str:
    return ", ".join(f"{name} {getattr(tcb, name)}" for name in Tcb.__struct_fields__)


def _dotted(version: tuple[int, int, int]) -> str:
    major, minor, build = version
    return f"{major}.{minor} build {build}"


def _tdx(evidence: TeeEvidence, expected: bytes) -> Iterator[Fact]:
    quote = parse_quote(evidence.report)
    report = quote.report
    yield Fact("version", str(quote.version))
    yield from tried("platform", lambda: _platform(evidence.report))
    yield Fact("MRTD", report.mr_td.hex())
    yield Fact("made for", _made_for(report.report_data, expected))
    names = ", ".join(attributes_of(report.td_attributes)) or "none that are known"
    debugged = bool(report.td_attributes & _DEBUGGED)
    yield Fact(
        "attributes",
        f"{report.td_attributes:#x}: {'under debug, ' if debugged else ''}{names}",
        "ST-ATTS-516" if debugged else "",
    )
    yield Fact("XFAM", f"{report.xfam:#x}")
    yield Fact("TDX module", f"SVNs {report.tee_tcb_svn.hex()}")
    yield Fact("MRSEAM", report.mr_seam.hex())
    for name, value in (
        ("MRCONFIGID", report.mr_config_id),
        ("MROWNER", report.mr_owner),
        ("MROWNERCONFIG", report.mr_owner_config),
        ("MRSERVICETD", report.mr_service_td),
    ):
        yield Fact(name, _or_none(value))
    yield Fact("CCEL log", f"{len(evidence.event_log)} bytes" if evidence.event_log else "none")


def _platform(quote: bytes) -> Iterator[Fact]:
    platform = claimed_platform(quote)
    yield Fact("platform", f"PPID {platform.ppid}")
    yield Fact("FMSPC", f"{platform.fmspc}, certified by Intel's {platform.ca} CA")


def _run_time_registers(evidence: TeeEvidence) -> Table | None:
    try:
        rtmrs = parse_quote(evidence.report).report.rtmrs
    except SecureTrainError:
        return None
    states = _replay(evidence.event_log, rtmrs)
    rows = tuple(
        (f"RTMR{number}", value.hex(), state, what)
        for number, (value, state, what) in enumerate(zip(rtmrs, states, _RTMRS, strict=True))
    )
    return Table(("register", "value", "log", "what is measured into it"), rows)


def _replay(log: bytes, rtmrs: Sequence[bytes]) -> list[str]:
    """Tell whether the log explains each register."""
    if not log:
        return ["no log"] * len(rtmrs)
    try:
        parsed = eventlog.parse(log, Hash.SHA384, registers=range(1, 5), padded=True)
        values = eventlog.replay(parsed)
    except SecureTrainError as error:
        return [error.code] * len(rtmrs)
    zeros = bytes(Hash.SHA384.size)
    return [
        "replays" if values.get(number, zeros) == value else "DIFFERS"
        for number, value in enumerate(rtmrs, 1)
    ]


def _guest_log(evidence: TeeEvidence) -> Section:
    name, title = "tee-boot", "TDX guest's event log (CCEL)"
    if not evidence.event_log:
        return Section(name=name, title=title, facts=(Fact("log", "none came along"),))
    try:
        log = eventlog.parse(evidence.event_log, Hash.SHA384, registers=range(1, 5), padded=True)
    except SecureTrainError as error:
        return Section(name=name, title=title, facts=(refused("log", error),))
    rows = tuple(
        (
            str(event.index),
            f"RTMR{event.register - 1}" if event.register else "-",
            event.name,
            event.digest.hex(),
            describe(event),
        )
        for event in log.events
    )
    return Section(
        name=name,
        title=title,
        facts=(Fact("entries", str(len(rows))),),
        table=Table(("entry", "register", "type", "digest", "what the log says of it"), rows),
    )


def _made_for(found: bytes, expected: bytes) -> str:
    return "this bundle's binding" if found == expected else found.hex()


def _or_none(value: bytes) -> str:
    return value.hex() if any(value) else "none"
