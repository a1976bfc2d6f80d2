# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values of a boot, and how the events of one register are judged by them.

Rules, the same for PCRs and for the registers of a TDX guest:

1. an event counts by its digest alone: it is a known action, a separator, or a reference value of a
   kind that its register may hold. What the log calls it decides nothing, except the code and the
   words of a refusal;
2. each register is judged in one of three ways: by its whole value, where `registers` lists it;
   else it is left to its replay, where `unjudged` says so; else by every one of its events;
3. where boot applications or kernel command lines are listed, one of them must have been measured:
   a boot loader that measures nothing is not a boot without a kernel;
4. commands are compared as GRUB measures them: the text without its prefix ("grub_cmd: ",
   "kernel_cmdline: "), with or without the zero byte at its end. The prefix is in no digest, so a
   command line may pass as a command and the other way round: both lists name what may run.

Reference values are learned from a boot that a person knows to be good (`learn_boot`, `learn_ccel`)
and merged over several boots and nodes. GRUB measures its environment block as a file, and that
file changes when a boot fails: learn from a good boot and from the boot after a failed one.

Sources: TCG PC Client Platform Firmware Profile 1.05, 3.3.4 (use of each PCR) and 10.4.4 (actions);
GNU GRUB manual, "Measuring boot components"; shim, README.tpm.
"""

import hmac
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.efi import describe, printable
from securetrain.evidence.tpm.eventlog import Event, EventLog, EventType
from securetrain.evidence.tpm.secureboot import OPEN_FIRMWARE, PolicyVariable, SecureBoot

_LIST_LIMIT: Final = 16384
_DIGESTS_LIMIT: Final = 1 << 18
"""Two to five are each node's own (boot order, GUIDs): enough for 50,000 nodes."""
Digest: TypeAlias = Annotated[str, Meta(pattern=r"\A([0-9a-f]{64}|[0-9a-f]{96})\Z")]
"""Lower-case hex: SHA-256 for PCRs, SHA-384 for TDX."""
Digests: TypeAlias = Annotated[tuple[Digest, ...], Meta(max_length=_DIGESTS_LIMIT)]
Texts: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(max_length=65536)], ...], Meta(max_length=_LIST_LIMIT)
]
RegisterIndex: TypeAlias = Annotated[int, Meta(ge=0, le=23)]
RegisterName: TypeAlias = Annotated[str, Meta(pattern=r"\A([0-9]|1[0-9]|2[0-3])\Z")]
"""The same as text: keys of JSON objects."""


class BootReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The measurements of a good boot. Every empty list accepts nothing of its kind."""

    registers: dict[RegisterName, Digests] = {}
    """Whole values, by number of the PCR or RTMR. A register that is listed here must have one of
    these values, and its events need no other reference value."""
    unjudged: tuple[RegisterIndex, ...] = ()
    """Registers whose events are accepted whatever they are, as long as they replay. Use it for
    what your fleet cannot pin, PCR 1 for example, where boot orders differ."""
    firmware: Digests = ()
    """What the firmware measured of itself, its settings, option ROMs, boot variables and the
    partition table: PCR 0, 1, 2, 3, 5 and 6, RTMR0 and RTMR1."""
    variables: dict[PolicyVariable, Digests] = {}
    """Events of PK, KEK, db, dbx and, where they exist, dbt and dbr: PCR 7, RTMR0."""
    authorities: Digests = ()
    """Events that name the key by which an image ran: PCR 7, RTMR0."""
    allow_unprotected_dma: bool = False
    """Whether the firmware may say that devices could reach all memory while it ran. Judged with
    the events above, so not where `registers` or `unjudged` has their register."""
    boot_applications: Digests = ()
    """Authenticode digests of boot loaders and kernels that the firmware or shim ran: PCR 4,
    RTMR1."""
    boot_commands: Texts = ()
    """Commands of the boot loader, without GRUB's prefix: PCR 8, RTMR2."""
    kernel_command_lines: Texts = ()
    """Kernel image and parameters, as GRUB spells them: PCR 8, RTMR2."""
    loaded_files: Digests = ()
    """Files that the boot loader read, the kernel and initrd among them, and what the kernel's EFI
    stub measured: PCR 8 and 9, RTMR2."""
    owner_keys: Digests = ()
    """shim's lists of machine owner keys: PCR 14, RTMR2."""


class Kind(StrEnum):
    """The kind of a measurement, by the reference value that accepts it."""

    SEPARATOR = "separator"
    ACTION = "action"
    FIRMWARE = "firmware"
    VARIABLE = "secure-boot-variable"
    AUTHORITY = "authority"
    APPLICATION = "boot-application"
    COMMAND = "boot-command"
    COMMAND_LINE = "kernel-command-line"
    FILE = "loaded-file"
    OWNER_KEYS = "owner-keys"
    PINNED = "pinned"
    """By the value of its whole register."""
    UNJUDGED = "unjudged"


_NEEDED: Final = (Kind.APPLICATION, Kind.COMMAND_LINE)
SEPARATORS: Final = (bytes(4), b"\xff" * 4)
"""Both say that the firmware's part ended well; 01000000 says that it did not."""
ACTIONS: Final = (
    "Calling EFI Application from Boot Option",
    "Returning from EFI Application from Boot Option",
    "BOOT ATTEMPTS OMITTED",
    "Exit Boot Services Invocation",
    "Exit Boot Services Returned with Failure",
    "Exit Boot Services Returned with Success",
)
_PREFIXES: Final = (
    (b"grub_cmd: ", Kind.COMMAND),
    (b"grub_cmd ", Kind.COMMAND),
    (b"kernel_cmdline: ", Kind.COMMAND_LINE),
    (b"grub_kernel_cmdline ", Kind.COMMAND_LINE),
    (b"module_cmdline: ", Kind.COMMAND),
)


@dataclass(frozen=True, slots=True)
class Register:
    """The content of one register, by the profile."""

    index: int
    """In reference values."""
    number: int
    """In the log."""
    name: str
    holds: tuple[Kind, ...]
    """The first is what an event counts as that nothing else explains."""

    def where(self, event: Event) -> str:
        """Names an event of this register in errors."""
        return f"{self.name}, entry {event.index} ({event.name})"


class Measurement(msgspec.Struct, frozen=True):
    """One event of a register that replayed, for people."""

    register: str
    kind: Kind
    event: Event
    claimed: bool
    """Whether `text` is only the log's word, with nothing in the digest behind it."""
    known: str = ""
    """What the reference values call it, if they do."""

    @property
    def entry(self) -> int:
        """Its place in the log."""
        return self.event.index

    @property
    def digest(self) -> bytes:
        """The digest that was extended."""
        return self.event.digest

    @property
    def text(self) -> str:
        """A description; empty where nothing readable says what it is."""
        return printable(self.known) or describe(self.event)


class Rules:
    """Reference values, ready to judge events of one bank."""

    def __init__(self, reference: BootReference, bank: Hash) -> None:
        self.reference = reference
        self.bank = bank
        self._accepted: dict[Kind, dict[bytes, str]] = {
            Kind.SEPARATOR: {
                bank.digest(value): "end of the firmware's part" for value in SEPARATORS
            },
            Kind.ACTION: {bank.digest(text.encode()): text for text in ACTIONS},
            Kind.FIRMWARE: _digests(reference.firmware),
            Kind.AUTHORITY: _digests(reference.authorities),
            Kind.APPLICATION: _digests(reference.boot_applications),
            Kind.COMMAND: _texts(reference.boot_commands, bank),
            Kind.COMMAND_LINE: _texts(reference.kernel_command_lines, bank),
            Kind.FILE: _digests(reference.loaded_files),
            Kind.OWNER_KEYS: _digests(reference.owner_keys),
        }

    def unread(self, index: int) -> Kind | None:
        """The rule of a register whose events need no reference value; None for the others."""
        if str(index) in self.reference.registers:
            return Kind.PINNED
        return Kind.UNJUDGED if index in self.reference.unjudged else None

    def judge(
        self, register: Register, events: Sequence[Event], own: Collection[str] = ()
    ) -> list[Measurement]:
        """Judge the events of one register.

        Args:
            register: it.
            events: in order.
            own: digests (hex) that this machine alone may measure there.

        Raises:
            AttestationError: ST-ATTS-213 to 215, 217 or 218 for an event that no reference value
                accepts, by what it claims to be.
        """
        found = []
        for event in events:
            match = self._match(register, event)
            if match is None and event.digest.hex() in own:
                match = Measurement(register.name, register.holds[0], event, claimed=True)
            if match is None:
                raise self.refusal(register, event)
            found.append(match)
        kinds = {measurement.kind for measurement in found}
        for kind in _NEEDED:
            if kind in register.holds and self._accepted[kind] and kind not in kinds:
                code, field = _refusal(kind)
                raise AttestationError(
                    code, f"none of {field} was measured, one must be", register.name
                )
        return found

    def judge_secure_boot(self, register: Register, found: SecureBoot) -> list[Measurement]:
        """Judge what was read from the Secure Boot register.

        Raises:
            AttestationError: ST-ATTS-211 for a variable and ST-ATTS-212 for an authority that is no
                reference value, ST-ATTS-219 when the firmware did not protect memory from devices.
        """
        for name, event in found.variables.items():
            if event.digest.hex() not in self.reference.variables.get(name, ()):
                raise self.refusal(register, event, Kind.VARIABLE)
        for event in found.authorities:
            if event.digest not in self._accepted[Kind.AUTHORITY]:
                raise self.refusal(register, event, Kind.AUTHORITY)
        if found.unprotected_dma and not self.reference.allow_unprotected_dma:
            raise AttestationError(
                OPEN_FIRMWARE,
                "the firmware ran without DMA protection",
                register.where(found.unprotected_dma),
                "switch DMA protection (IOMMU) on in the firmware's settings",
            )
        shown = [(Kind.VARIABLE, found.variables.values()), (Kind.AUTHORITY, found.authorities)]
        return [
            Measurement(register.name, kind, event, claimed=False)
            for kind, events in shown
            for event in events
        ]

    def refusal(
        self, register: Register, event: Event, kind: Kind | None = None
    ) -> AttestationError:
        """The refusal of an event that is no reference value."""
        code, field = _refusal(kind or _claimed(register, event, self.bank)[0])
        said = describe(event) or "nothing readable"
        return AttestationError(
            code,
            f"{event.digest.hex()} is not in {field}; the log says of it: {said}",
            register.where(event),
        )

    def _match(self, register: Register, event: Event) -> Measurement | None:
        for kind in register.holds:
            text = self._accepted[kind].get(event.digest)
            if text is not None:
                return Measurement(register.name, kind, event, claimed=not text, known=text)
        return None


def _refusal(kind: Kind) -> tuple[str, str]:
    """The code of what is no reference value, and the field that would name it."""
    match kind:
        case Kind.FIRMWARE:
            code, field = "ST-ATTS-217", "firmware"
        case Kind.VARIABLE:
            code, field = "ST-ATTS-211", "variables"
        case Kind.AUTHORITY:
            code, field = "ST-ATTS-212", "authorities"
        case Kind.APPLICATION:
            code, field = "ST-ATTS-213", "boot_applications"
        case Kind.COMMAND:
            code, field = "ST-ATTS-214", "boot_commands"
        case Kind.COMMAND_LINE:
            code, field = "ST-ATTS-214", "kernel_command_lines"
        case Kind.FILE:
            code, field = "ST-ATTS-215", "loaded_files"
        case Kind.OWNER_KEYS:
            code, field = "ST-ATTS-218", "owner_keys"
        case _:
            raise ValueError(f"{kind!r} has no reference values")
    return code, field


def check_replay(register: Register, log: EventLog, replayed: bytes, signed: bytes) -> None:
    """Compare a register's replay with its signed value.

    Raises:
        AttestationError: ST-ATTS-204.
    """
    if not hmac.compare_digest(replayed, signed):
        raise AttestationError(
            "ST-ATTS-204",
            f"the log replays to {replayed.hex()}, the signed value is {signed.hex()}",
            f"{register.name}, {len(log.of(register.number))} events",
        )


def check_value(name: str, value: bytes, allowed: Digests) -> None:
    """Compare a whole register with its reference values.

    Raises:
        AttestationError: ST-ATTS-216.
    """
    if value.hex() not in allowed:
        raise AttestationError(
            "ST-ATTS-216",
            f"{value.hex()} is none of the {len(allowed)} values in registers",
            name,
        )


def shown(register: Register, events: Iterable[Event], kind: Kind) -> list[Measurement]:
    """Events that are not judged one by one, for people."""
    return [Measurement(register.name, kind, event, claimed=True) for event in events]


class Learner:
    """Collects reference values from a boot that is known to be good."""

    def __init__(self, bank: Hash) -> None:
        self._bank = bank
        self._fixed = {bank.digest(text.encode()) for text in ACTIONS}
        self._fixed |= {bank.digest(value) for value in SEPARATORS}
        self._values: dict[Kind, dict[str, None]] = {kind: {} for kind in Kind}

    def learn(self, register: Register, events: Iterable[Event]) -> None:
        """Take over every event of a register."""
        for event in events:
            if event.digest not in self._fixed:
                kind, value = _claimed(register, event, self._bank)
                self._values[kind][value] = None

    def reference(
        self, secure_boot: SecureBoot, registers: dict[str, tuple[str, ...]]
    ) -> BootReference:
        """The reference values that were learned."""
        return BootReference(
            registers=registers,
            firmware=self._all(Kind.FIRMWARE),
            variables={
                name: (event.digest.hex(),) for name, event in secure_boot.variables.items()
            },
            authorities=_distinct(event.digest.hex() for event in secure_boot.authorities),
            allow_unprotected_dma=secure_boot.unprotected_dma is not None,
            boot_applications=self._all(Kind.APPLICATION),
            boot_commands=self._all(Kind.COMMAND),
            kernel_command_lines=self._all(Kind.COMMAND_LINE),
            loaded_files=self._all(Kind.FILE),
            owner_keys=self._all(Kind.OWNER_KEYS),
        )

    def _all(self, kind: Kind) -> tuple[str, ...]:
        return tuple(self._values[kind])


def merge(references: Iterable[BootReference]) -> BootReference:
    """Reference values that accept whatever one of these accepts, and mixtures of them."""
    every = tuple(references)
    registers = {name for reference in every for name in reference.registers}
    names = {name for reference in every for name in reference.variables}

    def both(field: str) -> tuple[str, ...]:
        return _distinct(value for reference in every for value in getattr(reference, field))

    return BootReference(
        registers={
            name: _distinct(v for r in every for v in r.registers.get(name, ()))
            for name in sorted(registers, key=int)
        },
        unjudged=tuple(sorted({index for r in every for index in r.unjudged})),
        firmware=both("firmware"),
        variables={
            name: _distinct(v for r in every for v in r.variables.get(name, ()))
            for name in PolicyVariable
            if name in names
        },
        authorities=both("authorities"),
        allow_unprotected_dma=any(r.allow_unprotected_dma for r in every),
        boot_applications=both("boot_applications"),
        boot_commands=both("boot_commands"),
        kernel_command_lines=both("kernel_command_lines"),
        loaded_files=both("loaded_files"),
        owner_keys=both("owner_keys"),
    )


def _claimed(register: Register, event: Event, bank: Hash) -> tuple[Kind, str]:
    """Classify an event by its own word, as far as its register allows."""
    digest = event.digest.hex()
    kind = register.holds[0]
    if event.type == EventType.EFI_BOOT_SERVICES_APPLICATION:
        kind = Kind.APPLICATION
    elif event.type == EventType.IPL and event.data.startswith(b"Mok"):
        kind = Kind.OWNER_KEYS
    elif event.type == EventType.IPL:
        command = _command(event, bank)
        if command and command[0] in register.holds:
            return command
    return (kind if kind in register.holds else register.holds[0]), digest


def _command(event: Event, bank: Hash) -> tuple[Kind, str] | None:
    """The text of a command of GRUB, if the digest is really of it."""
    for prefix, kind in _PREFIXES:
        if event.data.startswith(prefix):
            text = event.data.removeprefix(prefix).removesuffix(b"\0")
            if event.digest in {bank.digest(text), bank.digest(text + b"\0")}:
                try:
                    return kind, text.decode()
                except UnicodeDecodeError:
                    return None
    return None


def _digests(values: Iterable[str]) -> dict[bytes, str]:
    return dict.fromkeys(map(bytes.fromhex, values), "")


def _texts(values: Iterable[str], bank: Hash) -> dict[bytes, str]:
    return {bank.digest(text.encode() + end): text for text in values for end in (b"", b"\0")}


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
