# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""PCR 11 to 15: what a unified kernel image, shim and systemd measure after the firmware.

=======  =================================================================================
PCR 11   sections of the unified kernel image (systemd-stub), then the phases of the boot
PCR 12   command line, add-ons, credentials and configuration given beside the image
PCR 13   system extensions given beside the image
PCR 14   the machine owner's keys (shim)
PCR 15   machine id, file systems and volume keys (systemd)
=======  =================================================================================

The firmware's log ends where the kernel takes over; systemd goes on in a log of its own
(`userspace_log`). Rules:

1. all five are quoted. Each is what both logs replay to, one behind the other; what the second log
   says beyond the quoted value is no evidence. Between two quotes of a lease a register only goes
   on, by what the log has added;
2. each register is judged in one of four ways, the first that its reference values have: by its
   whole value (`registers`), not at all (`unjudged`), PCR 11 by a signed prediction
   (`policy_keys`), else by every one of its events. An empty list accepts nothing of its kind;
3. an event counts by its digest. In PCR 11 sections come first: the name and then the content of
   each, each section once, in the stub's own order; then phases, in their order. Nothing else but
   `words` may be there. Where sections are listed, `.linux` must have been measured;
4. words (`words`, phases, machine ids) are what the digest is the hash of, in the spelling of
   systemd: UTF-8, or UTF-16 with a zero at its end;
5. an event of PCR 15 that nothing explains counts as a volume key: its digest is an HMAC by the
   key, which nobody else can compute. There may be `volume_keys` of them.

Sources: systemd-stub(7), "TPM PCR Notes"; systemd-pcrphase.service(8); systemd,
docs/TPM2_PCR_MEASUREMENTS.md; UAPI.5 Unified Kernel Image; shim, README.tpm.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.bootrules import (
    Digests,
    Register,
    Texts,
    check_replay,
    check_value,
)
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.efi import printable
from securetrain.evidence.tpm.eventlog import Event, EventLog, replay
from securetrain.evidence.tpm.pcr_policy import PolicyKey, check_signed_policy, load_policy_key
from securetrain.evidence.tpm.userspace_log import Extension, parse_userspace_log

LATE_PCRS: Final = range(11, 16)
UNKNOWN: Final = "ST-ATTS-241"
CHANGED: Final = "ST-ATTS-008"
_IMAGE, _KEYS, _IDENTITY = 11, 14, 15
_BANK: Final = Hash.SHA256
_MACHINE_ID: Final = re.compile(r"machine-id:([0-9a-f]{32})")
PHASES: Final = ("enter-initrd", "leave-initrd", "sysinit", "ready", "shutdown", "final")
SECTIONS: Final = (
    *(".linux", ".osrel", ".cmdline", ".initrd", ".ucode", ".splash", ".dtb", ".dtbauto"),
    *(".hwids", ".uname", ".sbat", ".pcrpkey", ".profile", ".efifw"),
)
"""In the order in which systemd-stub measures them; `.profile` and `.efifw` stand where a later
stub puts them, so that their place is not judged."""
_UNORDERED: Final = frozenset({".profile", ".efifw"})

LateRegister: TypeAlias = Annotated[str, Meta(pattern=r"\A1[1-5]\Z")]
"""The number of a register as text: a key of a JSON object."""
SectionName: TypeAlias = Annotated[str, Meta(pattern=r"\A\.[a-z0-9]{1,7}\Z")]


class LateReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The measurements of a good boot in PCR 11 to 15."""

    registers: dict[LateRegister, Digests] = {}
    """Whole values, such as `systemd-measure calculate` prints for PCR 11."""
    unjudged: Annotated[
        tuple[Annotated[int, Meta(ge=11, le=15)], ...], Meta(max_length=len(LATE_PCRS))
    ] = ()
    """Registers that are accepted whatever they are."""
    policy_keys: Annotated[
        tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=8)
    ] = ()
    """Public keys (PEM) whose signed predictions of PCR 11 are accepted: whoever holds one can
    release images."""
    retired: Digests = ()
    """Policy digests of images that are no longer accepted, though their signatures are good."""
    sections: dict[SectionName, Digests] = {}
    """SHA-256 of the contents of the image's sections, by name: PCR 11."""
    words: dict[LateRegister, Texts] = {}
    """Texts that may be measured: command lines in PCR 12, file systems in PCR 15."""
    digests: dict[LateRegister, Digests] = {}
    """Other events: add-ons and credentials in PCR 12, extensions in 13, shim's lists in 14."""
    machine_ids: Annotated[
        tuple[Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")], ...], Meta(max_length=1 << 17)
    ] = ()
    any_machine_id: bool = False
    """Accept the machine id of every node: it says which machine it is, not what it runs."""
    volume_keys: Annotated[int, Meta(ge=0, le=64)] = 0
    """The number of events in PCR 15 that need no explanation."""


class LateProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The place up to which registers were judged: a renewal goes on from there."""

    values: bytes
    """PCR 11 to 15, one behind the other."""
    counts: tuple[int, ...]
    """Extensions of each that the userspace log was asked for."""
    phase: int
    """Phases of the boot that are over."""
    free: int
    """Events of PCR 15 that nothing explains."""


class Sort(StrEnum):
    """The kind of a measurement in these registers, for people."""

    SECTION = "section"
    PHASE = "phase"
    WORD = "word"
    MACHINE_ID = "machine-id"
    DIGEST = "digest"
    VOLUME_KEY = "volume-key"


@dataclass(frozen=True, slots=True)
class LateEvent:
    """One extension, from either log."""

    register: int
    digest: bytes
    data: bytes
    where: str
    userspace: bool

    @property
    def text(self) -> str:
        """The text that it is the hash of; empty where there is none."""
        for encoding in ("utf-8", "utf-16-le"):
            try:
                text = self.data.decode(encoding).removesuffix("\0")
            except UnicodeDecodeError:
                continue
            if text.isprintable() and self.digest in _spelt([text]):
                return text
        return ""


class LateAppraiser:
    """Judges PCR 11 to 15 for as long as one edition of the reference values stands."""

    def __init__(self, reference: LateReference, elsewhere: frozenset[int] = frozenset()) -> None:
        """Make the reference values ready.

        Args:
            reference: they.
            elsewhere: registers that other rules judge (`boot`).

        Raises:
            AttestationError: ST-ATTS-009 for a policy key that is none.
        """
        self.reference = reference
        self._keys: tuple[PolicyKey, ...] = tuple(
            load_policy_key(pem, f"late.policy_keys[{index}]")
            for index, pem in enumerate(reference.policy_keys)
        )
        self._retired = frozenset(reference.retired)
        self._skipped = elsewhere | frozenset(reference.unjudged)
        self._sections = {
            name: frozenset(map(bytes.fromhex, values))
            for name, values in reference.sections.items()
        }
        self._words = {index: _spelt(reference.words.get(str(index), ())) for index in LATE_PCRS}
        self._digests = {
            index: frozenset(map(bytes.fromhex, reference.digests.get(str(index), ())))
            for index in LATE_PCRS
        }
        self._machines = frozenset(reference.machine_ids)

    def appraise(
        self,
        log: EventLog | None,
        userspace: bytes,
        signatures: bytes,
        pcrs: Mapping[int, bytes],
        before: LateProgress | None = None,
    ) -> LateProgress:
        """Judge the registers.

        Args:
            log: the firmware's, where it is judged (not on a renewal).
            userspace: systemd's.
            signatures: signed predictions.
            pcrs: quoted values of the SHA-256 bank.
            before: where the lease stands; None at its beginning.

        Raises:
            AttestationError: ST-ATTS-008, 013, 204, 205, 216, 240 to 242.
        """
        for index in LATE_PCRS:
            if index not in pcrs:
                raise AttestationError("ST-ATTS-205", "the quote does not cover it", f"PCR {index}")
        values = b"".join(pcrs[index] for index in LATE_PCRS)
        if before is not None and before.values == values:
            return before
        chains = _Chains(log, parse_userspace_log(userspace), before)
        phase, free = (before.phase, before.free) if before is not None else (0, 0)
        counts = []
        for place, index in enumerate(LATE_PCRS):
            count = before.counts[place] if before is not None else 0
            if index in self._skipped:
                counts.append(count)
                continue
            by_value = str(index) in self.reference.registers
            by_policy = index == _IMAGE and bool(self._keys)
            if by_value:
                check_value(f"PCR {index}", pcrs[index], self.reference.registers[str(index)])
            elif by_policy:
                check_signed_policy(
                    signatures, pcrs, register=index, keys=self._keys, retired=self._retired
                )
            else:
                events = chains.events(index, pcrs[index])
                count += sum(event.userspace for event in events)
                if index == _IMAGE:
                    phase = self._judge_image(events, phase, fresh=before is None)
                else:
                    free = self._judge(index, events, free)
            counts.append(count)
        return LateProgress(values=values, counts=tuple(counts), phase=phase, free=free)

    def _judge_image(self, events: Sequence[LateEvent], phase: int, *, fresh: bool) -> int:
        """PCR 11: sections, then phases."""
        at = 0
        if fresh:
            at, seen = self._sections_of(events)
            if self._sections and ".linux" not in seen:
                raise AttestationError(
                    UNKNOWN,
                    "sections are listed and no unified kernel image was measured",
                    "PCR 11",
                )
        for event in events[at:]:
            word = _PHASE_DIGESTS.get(event.digest)
            if word is not None and word >= phase:
                phase = word + 1
            elif word is not None:
                raise _unknown(event, f"the phase {PHASES[word]} is over")
            elif event.digest not in self._words[_IMAGE]:
                raise _unknown(event, "it is no section, no phase and none of late.words")
        return phase

    def _sections_of(self, events: Sequence[LateEvent]) -> tuple[int, set[str]]:
        """The number of events that measure sections, and which sections those are."""
        seen: set[str] = set()
        last = -1
        at = 0
        while at < len(events) and (name := _SECTION_DIGESTS.get(events[at].digest)):
            if name in seen:
                raise _unknown(events[at], f"the section {name} comes twice")
            place = SECTIONS.index(name)
            if name not in _UNORDERED:
                if place < last:
                    raise _unknown(events[at], f"the section {name} is out of order")
                last = place
            if at + 1 == len(events):
                raise _unknown(events[at], f"the section {name} has no content")
            content = events[at + 1]
            if content.digest not in self._sections.get(name, frozenset()):
                raise _unknown(content, f"the content of {name} is not in late.sections")
            seen.add(name)
            at += 2
        return at, seen

    def _judge(self, index: int, events: Sequence[LateEvent], free: int) -> int:
        for event in events:
            if event.digest in self._digests[index] or event.digest in self._words[index]:
                continue
            if index == _IDENTITY:
                found = _MACHINE_ID.fullmatch(event.text)
                if found and (self.reference.any_machine_id or found[1] in self._machines):
                    continue
                if not found and event.userspace and free < self.reference.volume_keys:
                    free += 1
                    continue
            raise _unknown(event, f"it is in none of late.words and late.digests of PCR {index}")
        return free


class _Chains:
    """Both logs, register by register."""

    def __init__(
        self, log: EventLog | None, added: Sequence[Extension], before: LateProgress | None
    ) -> None:
        self._log = log
        self._starts = replay(log) if log is not None else {}
        self._added = added
        self._before = before

    def events(self, index: int, quoted: bytes) -> list[LateEvent]:
        """The events that lead to a quoted value: from the beginning, or on from the lease's.

        Raises:
            AttestationError: ST-ATTS-204 when they do not, ST-ATTS-008 during a lease, ST-ATTS-013
                when the firmware's log is missing.
        """
        added = [one for one in self._added if one.register == index]
        found: list[LateEvent] = []
        if self._before is None:
            if self._log is None:
                raise AttestationError(
                    "ST-ATTS-013",
                    f"PCR {index} is judged by its events, and the firmware's log is not asked for",
                    "node.tpm.event_log",
                    "switch event_log on in the policy, or list whole values in late.registers",
                )
            value = self._starts.get(index, bytes(_BANK.size))
            found += [_of_firmware(event) for event in self._log.of(index)]
        else:
            place = LATE_PCRS.index(index) * _BANK.size
            value = self._before.values[place : place + _BANK.size]
            added = added[self._before.counts[LATE_PCRS.index(index)] :]
        for one in added:
            if value == quoted:
                return found
            value = _BANK.digest(value + one.digest)
            found.append(_of_systemd(one))
        if self._before is not None and value != quoted:
            raise AttestationError(
                CHANGED,
                f"{quoted.hex()}, and nothing explains how it came from {value.hex()}",
                f"PCR {index}",
            )
        if self._before is None and value != quoted:
            register = Register(index, index, f"PCR {index}", ())
            assert self._log is not None
            check_replay(register, self._log, value, quoted)
        return found


def learn_late(log: EventLog, userspace: bytes, pcrs: Mapping[int, bytes]) -> LateReference:
    """Make reference values from a boot that is known to be good.

    Machine ids are accepted of every node, phases always; as many volume keys as there are. Values
    that another node of the same image will not have are not learned.

    Raises:
        AttestationError: ST-ATTS-204, 205, 240 and 241.
    """
    chains = _Chains(log, parse_userspace_log(userspace), None)
    sections: dict[str, tuple[str, ...]] = {}
    words: dict[str, tuple[str, ...]] = {}
    digests: dict[str, tuple[str, ...]] = {}
    any_machine_id, volume_keys = False, 0
    for index in LATE_PCRS:
        if index not in pcrs:
            raise AttestationError("ST-ATTS-205", "the quote does not cover it", f"PCR {index}")
        name = str(index)
        events = chains.events(index, pcrs[index])
        while index == _IMAGE and len(events) > 1 and events[0].digest in _SECTION_DIGESTS:
            section = _SECTION_DIGESTS[events[0].digest]
            sections[section] = (*sections.get(section, ()), events[1].digest.hex())
            events = events[2:]
        for event in events:
            text = event.text
            if event.digest in _PHASE_DIGESTS and index == _IMAGE:
                continue
            if index == _IDENTITY and _MACHINE_ID.fullmatch(text):
                any_machine_id = True
            elif text:
                words[name] = (*words.get(name, ()), text)
            elif index == _IDENTITY and event.userspace:
                volume_keys += 1
            else:
                digests[name] = (*digests.get(name, ()), event.digest.hex())
    learned = LateReference(
        sections=sections,
        words={name: _distinct(texts) for name, texts in words.items()},
        digests={name: _distinct(values) for name, values in digests.items()},
        any_machine_id=any_machine_id,
        volume_keys=volume_keys,
    )
    LateAppraiser(learned).appraise(log, userspace, b"", pcrs)
    return learned


def merge_late(first: LateReference | None, second: LateReference) -> LateReference:
    """Reference values that accept what one of both accepts, and mixtures of them."""
    if first is None:
        return second

    def both(name: str) -> dict[str, tuple[str, ...]]:
        one, other = getattr(first, name), getattr(second, name)
        return {
            key: _distinct((*one.get(key, ()), *other.get(key, ())))
            for key in sorted({*one, *other})
        }

    def joined(name: str) -> tuple[str, ...]:
        return _distinct((*getattr(first, name), *getattr(second, name)))

    return msgspec.structs.replace(
        first,
        registers=both("registers"),
        unjudged=tuple(sorted({*first.unjudged, *second.unjudged})),
        policy_keys=joined("policy_keys"),
        retired=joined("retired"),
        sections=both("sections"),
        words=both("words"),
        digests=both("digests"),
        machine_ids=joined("machine_ids"),
        any_machine_id=first.any_machine_id or second.any_machine_id,
        volume_keys=max(first.volume_keys, second.volume_keys),
    )


def _spelt(texts: Sequence[str]) -> frozenset[bytes]:
    """The digests of texts, in every spelling of systemd."""
    spellings = (
        spelling
        for text in texts
        for spelling in (
            *(text.encode(), text.encode() + b"\0"),
            *(text.encode("utf-16-le"), (text + "\0").encode("utf-16-le")),
        )
    )
    return frozenset(map(_BANK.digest, spellings))


_PHASE_DIGESTS: Final = {_BANK.digest(word.encode()): n for n, word in enumerate(PHASES)}
_SECTION_DIGESTS: Final = {_BANK.digest(name.encode() + b"\0"): name for name in SECTIONS}


def _of_firmware(event: Event) -> LateEvent:
    where = f"PCR {event.register}, entry {event.index} ({event.name})"
    return LateEvent(event.register, event.digest, event.data, where, userspace=False)


def _of_systemd(one: Extension) -> LateEvent:
    where = f"PCR {one.register}, record {one.index} of the userspace log"
    return LateEvent(one.register, one.digest, one.claimed.encode(), where, userspace=True)


def _unknown(event: LateEvent, why: str) -> AttestationError:
    said = printable(event.data[:200].decode("utf-8", "replace").strip("\0")) or "nothing readable"
    return AttestationError(
        UNKNOWN, f"{event.digest.hex()}: {why}; the log says of it: {said}", event.where
    )


def _distinct(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
