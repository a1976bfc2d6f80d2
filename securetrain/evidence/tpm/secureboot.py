# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read the Secure Boot register: was it on, under which keys, and by whom was signed what ran.

The type of an event and its data are covered by no register. A root user of a machine that booted
with Secure Boot off may call the true event something else, extend the register with a digest of
"SecureBoot is 1" and log that. What cannot be changed is the order of the digests, and what came
first came from the firmware. So the events are read in the one order that the profile gives them:

1. SecureBoot, PK, KEK, db, dbx, each once and in this order, then dbt and dbr where they exist:
   EV_EFI_VARIABLE_DRIVER_CONFIG with the GUID that UEFI gives the name, and a digest that is the
   hash of the data;
2. one EV_SEPARATOR of four zero bytes;
3. then EV_EFI_VARIABLE_AUTHORITY alone, one for each key or hash that let an image run, and one for
   each variable by which shim changes its mind;
4. Secure Boot was on when SecureBoot is exactly one byte 1, a platform key is enrolled, an entry of
   db was used, and shim's own validation was not switched off (MokSBState).

Quirks of real firmware and boot loaders, by register, type and position; nothing else is allowed:

* PCR 7, EV_EFI_ACTION "DMA Protection Disabled", once before the separator: the position is not
  specified, servers measure it after dbx, others before SecureBoot. The caller judges it.
* PCR 7, EV_EFI_VARIABLE_AUTHORITY between dbx and the separator: firmware that draws the line of
  this register only when it is ready to boot has run signed option ROMs before.
* PCR 7, EV_EFI_VARIABLE_AUTHORITY after the separator with exactly six bytes of slack, and a digest
  over all bytes but the last: shim before its commit 8a27a4809a6a logged the size of its buffer and
  measured one byte less. Name and value are covered all the same.

Sources: TCG PC Client Platform Firmware Profile 1.05, 3.3.4.8 (PCR 7); EDK2,
SecurityPkg/Tcg/Tcg2Dxe (MeasureSecureBootPolicy); shim, README.tpm and MokVars.txt; Microsoft, OEM
guide of Kernel DMA Protection; canonical/secboot, efi/fw_load_handler.go (orders seen in the wild).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.efi import (
    GLOBAL_VARIABLE,
    IMAGE_SECURITY_DATABASE,
    SHIM_LOCK,
    Variable,
    parse_variable,
    printable,
)
from securetrain.evidence.tpm.eventlog import Event, EventType

NOT_MEASURED: Final = "ST-ATTS-206"
OUT_OF_ORDER: Final = "ST-ATTS-207"
BAD_SEPARATOR: Final = "ST-ATTS-209"
OPEN_FIRMWARE: Final = "ST-ATTS-219"


class PolicyVariable(StrEnum):
    """The variables that Secure Boot decides by, in the order of their measurement."""

    SECURE_BOOT = "SecureBoot"
    PK = "PK"
    KEK = "KEK"
    DB = "db"
    DBX = "dbx"
    DBT = "dbt"
    DBR = "dbr"


_ORDER: Final = tuple(PolicyVariable)
_REQUIRED: Final = 5
"""The first five always have an event; one of size zero when they are not set."""
_GUIDS: Final = dict.fromkeys(_ORDER[:3], GLOBAL_VARIABLE) | dict.fromkeys(
    _ORDER[3:], IMAGE_SECURITY_DATABASE
)
_NO_DMA_PROTECTION: Final = (b"DMA Protection Disabled", b"DMA Protection Disabled\0")
_DEBUGGER: Final = b"UEFI Debug Mode"
_SHIM_SLACK: Final = 6
_SEPARATOR: Final = bytes(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureBoot:
    """The content of the register."""

    off: str
    """Why Secure Boot does not count as on; empty when it was on."""
    variables: dict[PolicyVariable, Event]
    """Those but SecureBoot itself."""
    authorities: tuple[Event, ...]
    unprotected_dma: Event | None
    """The event that says so, if the firmware let devices reach all memory."""


def read_secure_boot(events: Sequence[Event], bank: Hash, register: str) -> SecureBoot:
    """Read the events of Secure Boot.

    Args:
        events: what was measured into its register, in order.
        bank: of their digests.
        register: its name in errors.

    Raises:
        AttestationError: ST-ATTS-206 when a digest is not the hash of its data, ST-ATTS-207 when
            the events are not in the order above, ST-ATTS-209 when the separator is missing,
            repeated or reports an error, ST-ATTS-219 when a debugger was attached.
    """
    reading = _Reading(bank, register)
    for event in events:
        reading.take(event)
    return reading.finish()


def unread(why: str) -> SecureBoot:
    """The state of a register that cannot be read, where nothing depends on it."""
    return SecureBoot(off=why, variables={}, authorities=(), unprotected_dma=None)


class _Reading:
    """The reader's place in the order of the events."""

    def __init__(self, bank: Hash, register: str) -> None:
        self._bank = bank
        self._register = register
        self._no_dma_protection = frozenset(map(bank.digest, _NO_DMA_PROTECTION))
        self._debugger = bank.digest(_DEBUGGER)
        self._variables: dict[PolicyVariable, tuple[Event, Variable]] = {}
        self._authorities: list[tuple[Event, Variable]] = []
        self._separated = False
        self._unprotected_dma: Event | None = None

    def take(self, event: Event) -> None:
        """The next event."""
        if event.digest == self._debugger:
            raise self._refusal(OPEN_FIRMWARE, event, "a debugger of the firmware was attached")
        if event.digest in self._no_dma_protection:
            self._take_unprotected_dma(event)
        elif event.type == EventType.EFI_VARIABLE_DRIVER_CONFIG:
            self._take_variable(event)
        elif event.type == EventType.SEPARATOR:
            self._take_separator(event)
        elif event.type == EventType.EFI_VARIABLE_AUTHORITY:
            self._take_authority(event)
        else:
            raise self._misplaced(event, event.name)

    def finish(self) -> SecureBoot:
        """The verdict of the events, once all were taken."""
        if not self._separated:
            raise AttestationError(
                BAD_SEPARATOR, f"{len(self._variables)} variables and no separator", self._register
            )
        return SecureBoot(
            off=self._why_off(),
            variables={
                name: event
                for name, (event, _) in self._variables.items()
                if name is not PolicyVariable.SECURE_BOOT
            },
            authorities=tuple(event for event, _ in self._authorities),
            unprotected_dma=self._unprotected_dma,
        )

    def _take_unprotected_dma(self, event: Event) -> None:
        if self._separated or self._unprotected_dma:
            raise self._misplaced(event, "DMA Protection Disabled")
        self._unprotected_dma = event

    def _take_variable(self, event: Event) -> None:
        variable = self._variable(event)
        if self._separated or self._authorities:
            raise self._misplaced(event, variable.name)
        count = len(self._variables)
        expected = _ORDER[count : count + 1] if count < _REQUIRED else self._optional()
        name = next((name for name in expected if name == variable.name), None)
        if name is None:
            raise self._misplaced(event, variable.name)
        if variable.guid != _GUIDS[name]:
            raise self._refusal(
                OUT_OF_ORDER,
                event,
                f"{name} has the vendor GUID {variable.guid}, expected {_GUIDS[name]}",
            )
        self._variables[name] = (event, variable)

    def _optional(self) -> tuple[PolicyVariable, ...]:
        """The variables that may follow dbx."""
        last = next(reversed(self._variables))
        return _ORDER[_ORDER.index(last) + 1 :]

    def _take_separator(self, event: Event) -> None:
        if self._separated:
            raise self._refusal(BAD_SEPARATOR, event, "a second separator")
        if len(self._variables) < _REQUIRED:
            raise self._misplaced(event, "the separator")
        if event.digest != self._bank.digest(_SEPARATOR):
            raise self._refusal(BAD_SEPARATOR, event, "the separator is not of four zero bytes")
        self._separated = True

    def _take_authority(self, event: Event) -> None:
        if len(self._variables) < _REQUIRED:
            raise self._misplaced(event, "an authority")
        self._authorities.append((event, self._variable(event)))

    def _variable(self, event: Event) -> Variable:
        """The variable of an event whose digest covers it."""
        variable = parse_variable(event.data, OUT_OF_ORDER, self._where(event))
        if variable.slack == 0 and event.digest == self._bank.digest(event.data):
            return variable
        if (
            self._separated
            and variable.slack == _SHIM_SLACK
            and event.digest == self._bank.digest(event.data[:-1])
        ):
            return variable
        raise self._refusal(
            NOT_MEASURED, event, f"the digest is not the hash of {printable(variable.name)}"
        )

    def _why_off(self) -> str:
        _, secure_boot = self._variables[PolicyVariable.SECURE_BOOT]
        _, platform_key = self._variables[PolicyVariable.PK]
        if secure_boot.value != b"\x01":
            return f"SecureBoot is {secure_boot.value[:8].hex() or 'empty'}, expected 01"
        if not platform_key.value:
            return "no platform key is enrolled"
        authorities = [variable for _, variable in self._authorities]
        if not any(variable.guid == IMAGE_SECURITY_DATABASE for variable in authorities):
            return "no image was let run by an entry of db"
        if any(_switches_shim_off(variable) for variable in authorities):
            return "the validation of shim is switched off (MokSBState)"
        return ""

    def _misplaced(self, event: Event, what: str) -> AttestationError:
        if self._separated:
            expected = "an authority"
        elif len(self._variables) < _REQUIRED:
            expected = _ORDER[len(self._variables)]
        else:
            expected = "the separator"
        return self._refusal(
            OUT_OF_ORDER, event, f"{printable(what)} where {expected} was expected"
        )

    def _refusal(self, code: str, event: Event, what: str) -> AttestationError:
        return AttestationError(code, what, self._where(event))

    def _where(self, event: Event) -> str:
        return f"{self._register}, entry {event.index} ({event.name})"


def _switches_shim_off(variable: Variable) -> bool:
    return (variable.guid, variable.name) == (SHIM_LOCK, "MokSBState") and variable.value != b"\0"
