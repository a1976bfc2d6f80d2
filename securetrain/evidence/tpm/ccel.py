# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The boot of a TDX guest, judged by the RTMRs of its quote and the CCEL table that explains them.

The table is a crypto-agile event log with SHA-384 digests, in a buffer that is larger than its
content. Its entries name measurement registers: 1 is RTMR0, which takes what a PC measures into PCR
1 and 7, 2 is RTMR1 (PCR 2 to 6), 3 is RTMR2 (PCR 8 to 15), 4 is RTMR3. Rules:

1. RTMR0, RTMR1 and RTMR2 equal their replay. RTMR3 is the guest's own, at run time: it equals its
   replay (zero, with no entry) unless its value is a reference value or it is left unjudged;
2. RTMR0 mixes Secure Boot with the firmware's settings. Its first SecureBoot event starts the order
   of `secureboot`, up to the separator, and authorities may follow anywhere; everything else in the
   register must be a reference value. That is what makes the order sound: a true "Secure Boot is
   off", called something else by the log, is no reference value;
3. so where Secure Boot is asked for, RTMR0 may not be left unjudged;
4. everything else is as in `bootrules`. Separators may stand anywhere: firmware writes between one
   and five into a register that stands for several PCRs.

Sources: Intel TDX Virtual Firmware Design Guide, section 8; UEFI 2.10, 38.4.1 (mapping of PCRs);
ACPI 6.5, 5.2.34 (CCEL).
"""

from collections.abc import Sequence
from typing import Final

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.boot import BootState, check_on
from securetrain.evidence.tpm.bootrules import (
    BootReference,
    Kind,
    Learner,
    Measurement,
    Register,
    Rules,
    check_replay,
    check_value,
    shown,
)
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.eventlog import Event, EventLog, EventType, parse, replay
from securetrain.evidence.tpm.secureboot import SecureBoot, read_secure_boot, unread

RTMRS: Final = 4

_BANK: Final = Hash.SHA384
_SETTINGS: Final = Register(0, 1, "RTMR0", (Kind.FIRMWARE, Kind.SEPARATOR))
_BOOT: Final = Register(
    1, 2, "RTMR1", (Kind.FIRMWARE, Kind.APPLICATION, Kind.ACTION, Kind.SEPARATOR)
)
_LOADER: Final = Register(
    2, 3, "RTMR2", (Kind.FILE, Kind.COMMAND, Kind.COMMAND_LINE, Kind.OWNER_KEYS, Kind.SEPARATOR)
)
_RUN_TIME: Final = Register(3, 4, "RTMR3", (Kind.FILE,))
_REGISTERS: Final = (_SETTINGS, _BOOT, _LOADER, _RUN_TIME)


def appraise_ccel(
    log: bytes, rtmrs: Sequence[bytes], reference: BootReference, *, secure_boot: bool
) -> BootState:
    """Judge the boot of a TDX guest.

    Args:
        log: the CCEL data, with or without its padding.
        rtmrs: the four RTMRs of the verified quote.
        reference: what a good boot measures, with SHA-384 digests and the numbers of RTMRs.
        secure_boot: whether Secure Boot must have been on.

    Raises:
        AttestationError: ST-ATTS-201 to 208 and 211 to 219; `where` names the RTMR and the log's
            entry.
    """
    rules = Rules(reference, _BANK)
    fixed = _REGISTERS if rules.unread(_RUN_TIME.index) is None else _REGISTERS[:3]
    parsed = _replayed(log, rtmrs, fixed)
    for name, allowed in reference.registers.items():
        check_value(f"RTMR{name}", rtmrs[int(name)] if int(name) < RTMRS else b"", allowed)
    state, settings = _secure_boot(parsed, rules, secure_boot=secure_boot)
    measurements: list[Measurement] = []
    for register in _REGISTERS:
        events = parsed.of(register.number)
        if way := rules.unread(register.index):
            measurements += shown(register, events, way)
        elif register is _SETTINGS:
            measurements += rules.judge_secure_boot(register, state)
            measurements += rules.judge(register, settings)
        else:
            measurements += rules.judge(register, events)
    return BootState(
        secure_boot=not state.off,
        secure_boot_off=state.off,
        registers=dict(enumerate(rtmrs)),
        boot_aggregate=b"",
        measurements=tuple(sorted(measurements, key=lambda m: m.entry)),
        log=parsed,
    )


def learn_ccel(log: bytes, rtmrs: Sequence[bytes]) -> BootReference:
    """Make reference values from a boot that is known to be good, event by event.

    Raises:
        AttestationError: ST-ATTS-201 to 204, 206, 207 or 219.
    """
    parsed = _replayed(log, rtmrs, _REGISTERS)
    policy, settings = _split(parsed.of(_SETTINGS.number))
    state = read_secure_boot(policy, _BANK, _SETTINGS.name)
    learner = Learner(_BANK)
    learner.learn(_SETTINGS, settings)
    for register in _REGISTERS[1:]:
        learner.learn(register, parsed.of(register.number))
    return learner.reference(state, {})


def _replayed(log: bytes, rtmrs: Sequence[bytes], fixed: Sequence[Register]) -> EventLog:
    """The log, if it is the one behind the quoted values of these registers."""
    if len(rtmrs) != RTMRS:
        raise ValueError(f"{len(rtmrs)} RTMRs, a quote has {RTMRS}")
    parsed = parse(log, _BANK, registers=range(1, RTMRS + 1), padded=True)
    values = replay(parsed)
    for register in fixed:
        replayed = values.get(register.number, bytes(_BANK.size))
        check_replay(register, parsed, replayed, rtmrs[register.index])
    return parsed


def _secure_boot(
    parsed: EventLog, rules: Rules, *, secure_boot: bool
) -> tuple[SecureBoot, list[Event]]:
    """Read Secure Boot from RTMR0, and its other events."""
    way = rules.unread(_SETTINGS.index)
    if secure_boot and way is Kind.UNJUDGED:
        raise AttestationError(
            "ST-ATTS-208",
            "Secure Boot cannot be told from a register that is left unjudged",
            _SETTINGS.name,
            "list what the firmware measures, or take RTMR0 out of unjudged",
        )
    policy, settings = _split(parsed.of(_SETTINGS.number))
    try:
        state = read_secure_boot(policy, _BANK, _SETTINGS.name)
    except AttestationError as error:
        if secure_boot or way is None:
            raise
        return unread(error.what), settings
    if secure_boot:
        check_on(state, _SETTINGS)
    return state, settings


def _split(events: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """Secure Boot's events of RTMR0, and the rest of the register."""
    types = [event.type for event in events]
    start = _index(types, EventType.EFI_VARIABLE_DRIVER_CONFIG, 0)
    end = _index(types, EventType.SEPARATOR, start)
    policy, rest = list(events[start : end + 1]), list(events[:start])
    for event in events[end + 1 :]:
        (policy if event.type == EventType.EFI_VARIABLE_AUTHORITY else rest).append(event)
    return policy, rest


def _index(types: Sequence[int], wanted: EventType, start: int) -> int:
    """Find where a type comes first; the end when it does not come."""
    return next((i for i in range(start, len(types)) if types[i] == wanted), len(types))
