# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The boot of a node, judged by the PCRs that its TPM quoted and the log that explains them.

Rules:

1. PCR 0 to 9 are all quoted, and each equals its replay; PCR 14 (shim's keys) too where it is
   quoted, which it must be where `owner_keys` are listed. What the log says of any other register
   is not looked at: nobody signed it;
2. PCR 7 is read in the strict order of `secureboot`; with `secure_boot` it must have been on;
3. every register is judged by its reference values (`bootrules`);
4. PCR 0 to 6 have exactly one separator each, found by its digest and not by its label. Behind it
   come only events of the operating system's loader: any in PCR 4, partition tables and actions in
   PCR 5, nothing in the others. A register whose whole value is a reference value is as the good
   boot was, and not looked at again.

Quirks of real firmware, by register, type and position; nothing else is allowed:

* PCR 0, EV_S_CRTM_CONTENTS before the separator with the digest of four zero bytes: Intel firmware
  that measures an empty entry of the FIT (type 0x2D). It is not the separator.
* PCR 1, EV_EFI_VARIABLE_BOOT and EV_EFI_VARIABLE_BOOT2 after the separator: AMI firmware of client
  boards reads the boot options when it is ready to boot.
* PCR 1, EV_EFI_HANDOFF_TABLES and EV_EFI_HANDOFF_TABLES2 after the separator: server firmware that
  measures SMBIOS tables last.

Source: TCG PC Client Platform Firmware Profile 1.05, 3.3.4 (use of PCRs), 8.2 (order of events).
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.bootrules import (
    SEPARATORS,
    BootReference,
    Kind,
    Learner,
    Measurement,
    Register,
    Rules,
    check_replay,
    check_value,
    merge,
    shown,
)
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.eventlog import Event, EventLog, EventType, parse, replay
from securetrain.evidence.tpm.secureboot import BAD_SEPARATOR, SecureBoot, read_secure_boot, unread

SIGNED: Final = range(10)
"""What a quote must cover; IMA's boot_aggregate covers the same."""
OWNER_KEYS_PCR: Final = 14

_BANK: Final = Hash.SHA256
_FIRMWARE: Final = (Kind.FIRMWARE, Kind.SEPARATOR)
_HOLDS: Final = {
    0: _FIRMWARE,
    1: _FIRMWARE,
    2: _FIRMWARE,
    3: _FIRMWARE,
    4: (Kind.APPLICATION, Kind.ACTION, Kind.SEPARATOR),
    5: (Kind.FIRMWARE, Kind.ACTION, Kind.SEPARATOR),
    6: _FIRMWARE,
    8: (Kind.FILE, Kind.COMMAND, Kind.COMMAND_LINE),
    9: (Kind.FILE,),
    OWNER_KEYS_PCR: (Kind.OWNER_KEYS,),
}
_REGISTERS: Final = tuple(Register(i, i, f"PCR {i}", holds) for i, holds in _HOLDS.items())
_SECURE_BOOT: Final = Register(7, 7, "PCR 7", (Kind.AUTHORITY,))
_AFTER_SEPARATOR: Final[dict[int, frozenset[EventType] | None]] = {
    0: frozenset(),
    1: frozenset(
        {
            EventType.EFI_VARIABLE_BOOT,
            EventType.EFI_VARIABLE_BOOT2,
            EventType.EFI_HANDOFF_TABLES,
            EventType.EFI_HANDOFF_TABLES2,
        }
    ),
    2: frozenset(),
    3: frozenset(),
    4: None,
    5: frozenset({EventType.EFI_GPT_EVENT, EventType.EFI_GPT_EVENT2, EventType.EFI_ACTION}),
    6: frozenset(),
}
"""Types that may follow the separator; None is any."""
OWN: Final = (1, 5)
"""Registers in which each machine measures something of its own: boot order, serial numbers, GUIDs
of partitions."""
_PINNED: Final = (0, 2, 3, 6)
"""Registers that stay the same from boot to boot, which `learn_boot` takes as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootState:
    """A boot that was accepted, for the rules that build on it and for people."""

    secure_boot: bool
    secure_boot_off: str
    """Why Secure Boot does not count as on; empty when it was on."""
    registers: dict[int, bytes]
    """Values of the registers that were judged."""
    boot_aggregate: bytes
    """SHA-256 over PCR 0 to 9, the first entry of IMA's list; empty for a TDX guest."""
    measurements: tuple[Measurement, ...]


class BootAppraiser:
    """Judges boots for as long as one edition of the reference values stands."""

    def __init__(self, reference: BootReference) -> None:
        """Make the reference values ready: what a good boot measures."""
        self._rules = Rules(reference, _BANK)

    def appraise(
        self,
        log: bytes,
        pcrs: Mapping[int, bytes],
        *,
        secure_boot: bool,
        own: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> BootState:
        """Judge a boot.

        Args:
            log: the firmware's event log, crypto-agile.
            pcrs: quoted values of the SHA-256 bank.
            secure_boot: whether Secure Boot must have been on.
            own: digests (hex) that this machine alone may measure, by PCR.

        Raises:
            AttestationError: ST-ATTS-201 to 219; `where` names the PCR and the log's entry.
        """
        parsed = _replayed(log, pcrs)
        rules = self._rules
        _check_values(pcrs, rules.reference)
        state = _secure_boot(parsed, rules, secure_boot=secure_boot)
        way = rules.unread(_SECURE_BOOT.index)
        if way is None:
            measurements = rules.judge_secure_boot(_SECURE_BOOT, state)
        else:
            measurements = shown(_SECURE_BOOT, parsed.of(_SECURE_BOOT.number), way)
        for register in _judged(pcrs):
            events = parsed.of(register.number)
            way = rules.unread(register.index)
            if way is not Kind.PINNED:
                _check_separator(register, events)
            if way is None:
                mine = own.get(str(register.index), ())
                measurements += rules.judge(register, events, mine)
            else:
                measurements += shown(register, events, way)
        return BootState(
            secure_boot=not state.off,
            secure_boot_off=state.off,
            registers={r.index: pcrs[r.index] for r in (*_judged(pcrs), _SECURE_BOOT)},
            boot_aggregate=hashlib.sha256(b"".join(pcrs[index] for index in SIGNED)).digest(),
            measurements=tuple(sorted(measurements, key=lambda m: m.entry)),
        )


def appraise_boot(
    log: bytes, pcrs: Mapping[int, bytes], reference: BootReference, *, secure_boot: bool
) -> BootState:
    """Judge one boot; see `BootAppraiser.appraise`, which many boots want."""
    return BootAppraiser(reference).appraise(log, pcrs, secure_boot=secure_boot)


def learn_boot(log: bytes, pcrs: Mapping[int, bytes]) -> BootReference:
    """Make reference values from a boot that is known to be good.

    The firmware's own registers are taken as a whole, the others event by event. The boot must keep
    the rules that need no reference value; Secure Boot may be off.

    Raises:
        AttestationError: ST-ATTS-201 to 207, 209, 210 or 219.
    """
    parsed = _replayed(log, pcrs)
    state = read_secure_boot(parsed.of(_SECURE_BOOT.number), _BANK, _SECURE_BOOT.name)
    learner = Learner(_BANK)
    for register in _judged(pcrs):
        events = parsed.of(register.number)
        _check_separator(register, events)
        if register.index not in _PINNED:
            learner.learn(register, events)
    return learner.reference(state, {str(index): (pcrs[index].hex(),) for index in _PINNED})


def split_own(log: bytes, boot: BootReference) -> tuple[BootReference, dict[str, tuple[str, ...]]]:
    """Take what is one machine's alone out of a boot that `learn_boot` has learned from this log.

    Returns:
        The boot without it, and digests (hex) by PCR of `OWN`.

    Raises:
        AttestationError: ST-ATTS-201 to 203.
    """
    parsed, learned = parse(log, _BANK), set(boot.firmware)
    own = {
        str(index): tuple(
            dict.fromkeys(d for e in parsed.of(index) if (d := e.digest.hex()) in learned)
        )
        for index in OWN
    }
    mine = {digest for digests in own.values() for digest in digests}
    shared = tuple(digest for digest in boot.firmware if digest not in mine)
    return msgspec.structs.replace(boot, firmware=shared), {n: ds for n, ds in own.items() if ds}


def _judged(pcrs: Mapping[int, bytes]) -> list[Register]:
    """Registers but PCR 7 whose events are looked at."""
    return [register for register in _REGISTERS if register.index in pcrs]


def _replayed(log: bytes, pcrs: Mapping[int, bytes]) -> EventLog:
    """The log, if it is the one behind the quoted values."""
    for index in SIGNED:
        if index not in pcrs:
            raise _not_signed(index)
    parsed = parse(log, _BANK)
    values = replay(parsed)
    for register in (*_judged(pcrs), _SECURE_BOOT):
        replayed = values.get(register.number, bytes(_BANK.size))
        check_replay(register, parsed, replayed, pcrs[register.index])
    return parsed


def _check_values(pcrs: Mapping[int, bytes], reference: BootReference) -> None:
    """Whole values, also of registers that no rule here knows."""
    if reference.owner_keys and OWNER_KEYS_PCR not in pcrs:
        raise _not_signed(OWNER_KEYS_PCR)
    for name, allowed in reference.registers.items():
        index = int(name)
        if index not in pcrs:
            raise _not_signed(index)
        check_value(f"PCR {name}", pcrs[index], allowed)


def _not_signed(index: int) -> AttestationError:
    return AttestationError("ST-ATTS-205", "the quote does not cover it", f"PCR {index}")


def _secure_boot(parsed: EventLog, rules: Rules, *, secure_boot: bool) -> SecureBoot:
    """Read PCR 7; it must be readable where anything depends on it."""
    try:
        state = read_secure_boot(parsed.of(_SECURE_BOOT.number), _BANK, _SECURE_BOOT.name)
    except AttestationError as error:
        if secure_boot or rules.unread(_SECURE_BOOT.index) is None:
            raise
        return unread(error.what)
    if secure_boot:
        check_on(state, _SECURE_BOOT)
    return state


def check_on(state: SecureBoot, register: Register) -> None:
    """Refuse a boot without Secure Boot.

    Raises:
        AttestationError: ST-ATTS-208.
    """
    if state.off:
        raise AttestationError("ST-ATTS-208", state.off, register.name)


def _check_separator(register: Register, events: Sequence[Event]) -> None:
    """One line between the firmware's part and the loader's, and nothing behind it by mistake."""
    if register.index not in _AFTER_SEPARATOR:
        return
    allowed = _AFTER_SEPARATOR[register.index]
    values = {_BANK.digest(value) for value in SEPARATORS}
    line = False
    for event in events:
        if event.digest in values and not (_is_empty_fit_entry(event) and not line):
            if line:
                raise _bad_separator("a second separator", register.where(event))
            line = True
        elif event.type == EventType.SEPARATOR:
            raise _bad_separator("the separator reports an error", register.where(event))
        elif line and allowed is not None and event.type not in allowed:
            raise AttestationError(
                "ST-ATTS-210",
                "an event after the separator, where the firmware's part is over",
                register.where(event),
            )
    if not line:
        raise _bad_separator("no separator", register.name)


def _is_empty_fit_entry(event: Event) -> bool:
    return event.register == 0 and event.type == EventType.S_CRTM_CONTENTS


def _bad_separator(what: str, where: str) -> AttestationError:
    return AttestationError(BAD_SEPARATOR, what, where)


__all__ = [
    "BootAppraiser",
    "BootReference",
    "BootState",
    "appraise_boot",
    "learn_boot",
    "merge",
    "split_own",
]
