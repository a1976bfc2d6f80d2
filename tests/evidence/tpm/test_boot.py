# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whole boots: the honest one of `bootlogs.good_boot` is accepted, every change is refused.

Two kinds of forger: one that edits the log (the quote stays), and root, who also extends registers
after the boot and writes a log that replays.
"""

import base64
import dataclasses
import hashlib

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.boot import BootAppraiser, BootReference, appraise_boot, learn_boot
from securetrain.evidence.tpm.bootrules import Kind
from securetrain.evidence.tpm.eventlog import parse, replay
from securetrain.evidence.tpm.secureboot import PolicyVariable
from securetrain.testing.bootlog import Boot
from tests import vocabulary
from tests.evidence.tpm import bootlogs
from tests.evidence.tpm.bootlogs import (
    ACTION,
    APPLICATION,
    AUTHORITY,
    COMMAND_LINE,
    CRTM_CONTENTS,
    EVENT_TAG,
    GPT,
    HANDOFF,
    IPL,
    NO_ACTION,
    OMIT,
    POST_CODE,
    SHA1,
    SHA256,
    VARIABLE_BOOT,
    authority,
    command,
    encode,
    event,
    good_boot,
    image,
    policy,
    position,
    renamed,
    separator,
)
from tests.evidence.vectors import needs_vectors, vector, vectors
from tests.tables import each, forgeries

GOOD = good_boot()
LOG = encode(GOOD)
PCRS = bootlogs.pcrs(GOOD)
REFERENCE = learn_boot(LOG, PCRS)
LISTED = msgspec.structs.replace(
    REFERENCE,
    registers={},
    firmware=tuple(e.digest().hex() for e in GOOD if e.register in {0, 1, 2, 3, 5, 6}),
)
"""The same, with every register judged event by event."""


def appraise(entries=GOOD, pcrs=None, reference=REFERENCE, *, secure_boot=True, log=None):
    return appraise_boot(
        encode(entries) if log is None else log,
        bootlogs.pcrs(entries) if pcrs is None else pcrs,
        reference,
        secure_boot=secure_boot,
    )


def refused(code, *args, where="", **more):
    error = vocabulary.refused(AttestationError, code, appraise, *args, **more)
    assert error.where.startswith(where), error
    return error


def changed(reference=REFERENCE, **fields):
    return msgspec.structs.replace(reference, **fields)


def edited(index, entry=None):
    """The good boot with one entry replaced, or taken out."""
    return [*GOOD[:index], *([entry] if entry else []), *GOOD[index + 1 :]]


def at(**fields):
    return position(GOOD, **fields)


# The honest boot.


@each("id, reference", ("pinned", REFERENCE), ("listed", LISTED))
def test_an_honest_boot(reference):
    state = appraise(reference=reference)
    assert state.secure_boot
    assert state.secure_boot_off == ""
    assert state.registers == {index: PCRS[index] for index in (*range(10), 14)}
    assert state.boot_aggregate == hashlib.sha256(b"".join(PCRS[i] for i in range(10))).digest()
    shown = {(m.register, m.kind, m.text, m.claimed) for m in state.measurements}
    line = COMMAND_LINE.decode()
    assert ("PCR 8", Kind.COMMAND_LINE, line, False) in shown
    assert ("PCR 8", Kind.COMMAND, f"linux {line}", False) in shown
    assert ("PCR 4", Kind.APPLICATION, "\\EFI\\BOOT\\SHIMX64.EFI", True) in shown
    assert ("PCR 4", Kind.ACTION, "Calling EFI Application from Boot Option", False) in shown
    assert ("PCR 7", Kind.VARIABLE, "dbx, 18 bytes", False) in shown
    assert ("PCR 7", Kind.AUTHORITY, "db, 25 bytes", False) in shown
    assert ("PCR 9", Kind.FILE, "/initrd", True) in shown
    assert ("PCR 14", Kind.OWNER_KEYS, "MokList", True) in shown
    assert [m.entry for m in state.measurements] == sorted(m.entry for m in state.measurements)


def test_what_is_learned():
    assert sorted(REFERENCE.registers) == ["0", "2", "3", "6"]
    assert list(REFERENCE.variables) == ["PK", "KEK", "db", "dbx"]
    assert REFERENCE.kernel_command_lines == (COMMAND_LINE.decode(),)
    assert REFERENCE.boot_commands == tuple(text.decode() for text in bootlogs.COMMANDS)
    images = [image(name) for name in (b"shim", b"grub", b"kernel")]
    assert REFERENCE.boot_applications == tuple(e.digest().hex() for e in images)
    assert len(REFERENCE.loaded_files) == 3
    assert len(REFERENCE.owner_keys) == 1
    assert len(REFERENCE.authorities) == 3
    assert len(REFERENCE.firmware) == 3, "ACPI tables, the boot order and the partition table"
    assert not REFERENCE.unjudged
    assert not REFERENCE.allow_unprotected_dma


def test_pinned_registers_are_shown_as_such():
    state = appraise()
    assert {m.kind for m in state.measurements if m.register == "PCR 0"} == {Kind.PINNED}
    state = appraise(reference=changed(unjudged=(1, 7, 9)))
    unjudged = {m.register for m in state.measurements if m.kind is Kind.UNJUDGED}
    assert unjudged == {"PCR 1", "PCR 7", "PCR 9"}


def test_the_logs_of_other_banks_and_notes_do_not_matter():
    notes = [event(0, NO_ACTION, b"note"), event(7, NO_ACTION, b"note")]
    assert appraise(pcrs=PCRS, log=encode([*notes, *GOOD], (SHA1, SHA256))).secure_boot


def test_registers_that_nobody_quoted_are_not_looked_at():
    """Their entries are claims; here they are even of another boot."""
    entries = [*GOOD, event(11, EVENT_TAG, b"x"), event(12, ACTION, b"y")]
    assert all(m.register != "PCR 11" for m in appraise(entries).measurements)
    unquoted = {index: PCRS[index] for index in range(10)}
    state = appraise([*GOOD, event(14, IPL, b"x")], unquoted, changed(owner_keys=()))
    assert 14 not in state.registers
    assert all(m.register != "PCR 14" for m in state.measurements)


def test_the_testing_packages_boot():
    boot, off = Boot(), Boot(secure_boot=False)
    reference = learn_boot(boot.log(), boot.registers())
    assert appraise(log=boot.log(), pcrs=boot.registers(), reference=reference).secure_boot
    refused("ST-ATTS-208", log=off.log(), pcrs=off.registers(), reference=reference)


# Replay.


@forgeries("index", *range(len(GOOD)))
def test_an_event_is_removed(index):
    pcr = GOOD[index].register
    refused("ST-ATTS-204", edited(index), PCRS, where=f"PCR {pcr}, ")


@forgeries("pcr", *range(10), 14)
def test_an_event_is_added(pcr):
    added = event(pcr, EVENT_TAG, b"x")
    refused("ST-ATTS-204", [*GOOD, added], PCRS, says="replays to", where=f"PCR {pcr}, ")


@forgeries("pcr", 0, 1, 4, 5, 7, 8, 9)
def test_two_events_of_a_register_are_swapped(pcr):
    first, second = [i for i, e in enumerate(GOOD) if e.register == pcr][-2:]
    entries = [*GOOD]
    entries[first], entries[second] = entries[second], entries[first]
    refused("ST-ATTS-204", entries, PCRS, where=f"PCR {pcr}, ")


OTHER_SECURE_BOOT = edited(at(register=7), policy("SecureBoot", b"\0"))
MOVED = edited(at(register=9), dataclasses.replace(GOOD[at(register=9)], register=8))
NOTE = edited(2, renamed(GOOD[2], NO_ACTION))
LOCALITY = event(0, NO_ACTION, b"StartupLocality\0\3")
NEVER_QUOTED = changed(registers={**REFERENCE.registers, "12": ("00" * 32,)})
SHIM_OFF = authority("MokSBState", b"\1")
SHIM_KNOWN = changed(authorities=(*REFERENCE.authorities, SHIM_OFF.digest().hex()))
NO_LINE = edited(at(data=b"kernel_cmdline: " + COMMAND_LINE + b"\0"))
NO_APPLICATION = [e for e in GOOD if e.type != APPLICATION]
STRANGER = [*GOOD, authority(value=b"signer of something else")]
WHO = f"PCR 7, entry {len(STRANGER)}"


@forgeries(
    "id, code, boot",
    ("edited with its digest", 204, {"entries": OTHER_SECURE_BOOT, "pcrs": PCRS, "where": "PCR 7"}),
    ("moved to another register", 204, {"entries": MOVED, "pcrs": PCRS, "where": "PCR 8"}),
    ("called a note", 204, {"entries": NOTE, "pcrs": PCRS, "where": "PCR 7"}),
    ("another locality", 204, {"log": encode([LOCALITY, *GOOD]), "where": "PCR 0"}),
    ("pinned and not quoted", 205, {"reference": NEVER_QUOTED, "where": "PCR 12"}),
    ("no owner keys", 205, {"pcrs": {i: PCRS[i] for i in range(10)}, "where": "PCR 14"}),
    ("no reference values", 211, {"reference": BootReference()}),
    (
        *("shim's validation is off", 208),
        {"entries": [*GOOD, SHIM_OFF], "reference": SHIM_KNOWN, "says": "MokSBState"},
    ),
    ("an authority", 212, {"entries": STRANGER, "where": WHO, "says": "db, 24 bytes"}),
    # Else another boot loader of the list could start a kernel and say nothing.
    (
        *("no command line", 214),
        {"entries": NO_LINE, "says": "none of kernel_command_lines", "where": "PCR 8"},
    ),
    (
        *("no boot application", 213),
        {"entries": NO_APPLICATION, "says": "none of boot_applications", "where": "PCR 4"},
    ),
    ("an empty log", 201, {"log": b""}),
    ("a log that is cut", 201, {"log": LOG[:-3]}),
    ("a legacy log", 202, {"log": bootlogs.encode_legacy(GOOD)}),
    ("the SHA-1 bank alone", 203, {"log": encode(GOOD, (SHA1,))}),
    ("no events", 204, {"log": bootlogs.header()}),
)
def test_boots_that_are_refused(code, boot):
    refused(f"ST-ATTS-{code}", **boot)


@pytest.mark.forgery
def test_bank_confusion():
    """The SHA-1 digests are of the true boot, the SHA-256 ones of another."""
    wrong = dataclasses.replace(GOOD[0], content=b"other")
    log = bytearray(encode([wrong, *GOOD[1:]], (SHA1, SHA256)))
    place = log.index(wrong.digest(SHA1))
    log[place : place + 20] = GOOD[0].digest(SHA1)
    refused("ST-ATTS-204", log=bytes(log), where="PCR 0")


@forgeries("pcr", 0, 3, 7, 9, 14)
@each("value", bytes(32), b"\xff" * 32, b"", bytes(31))
def test_a_register_has_another_value(pcr, value):
    refused("ST-ATTS-204", pcrs={**PCRS, pcr: value}, where=f"PCR {pcr}, ")


@forgeries("pcr", *range(10))
def test_a_register_is_not_quoted(pcr):
    pcrs = {index: value for index, value in PCRS.items() if index != pcr}
    refused("ST-ATTS-205", pcrs=pcrs, where=f"PCR {pcr}")


# Secure Boot.


@pytest.mark.forgery
def test_secure_boot_off():
    off = good_boot(b"\0")
    learned = learn_boot(encode(off), bootlogs.pcrs(off))
    refused("ST-ATTS-208", off, reference=learned, says="SecureBoot is 00", where="PCR 7")
    state = appraise(off, reference=learned, secure_boot=False)
    assert not state.secure_boot
    assert "SecureBoot is 00" in state.secure_boot_off


@forgeries("secure_boot", True, False)
def test_secure_boot_off_is_not_hidden_by_its_register_value(secure_boot):
    off = good_boot(b"\0")
    reference = changed(registers={"7": (bootlogs.pcrs(off)[7].hex(),), **REFERENCE.registers})
    if secure_boot:
        refused("ST-ATTS-208", off, reference=reference)
    else:
        assert not appraise(off, reference=reference, secure_boot=False).secure_boot


@forgeries("free", "registers", "unjudged", "listed")
def test_a_forged_secure_boot_extended_after_the_boot(free):
    """Root relabels what says "off", extends PCR 7 with "on", and logs that: it all replays."""
    on, off = policy("SecureBoot", b"\1"), policy("SecureBoot", b"\0")
    truth = good_boot(b"\0")
    forged = [renamed(e, POST_CODE) if e == off else e for e in truth] + [on]
    reference = LISTED
    if free == "registers":
        reference = changed(LISTED, registers={"7": (bootlogs.pcrs(forged)[7].hex(),)})
    elif free == "unjudged":
        reference = changed(LISTED, unjudged=(7,))
    refused("ST-ATTS-207", forged, reference=reference, where="PCR 7, entry 3")
    if free != "listed":
        state = appraise(forged, reference=reference, secure_boot=False)
        assert not state.secure_boot
        assert "where SecureBoot was expected" in state.secure_boot_off
    else:
        refused("ST-ATTS-207", forged, reference=reference, secure_boot=False)


@forgeries("name", "PK", "KEK", "db", "dbx")
@each("known", "other", "none")
def test_a_variable_that_is_no_reference_value(name, known):
    variables = {**REFERENCE.variables, PolicyVariable(name): ("00" * 32,)}
    if known == "none":
        del variables[PolicyVariable(name)]
    error = refused("ST-ATTS-211", reference=changed(variables=variables), where="PCR 7, entry")
    assert f"{name}, " in error.what


@pytest.mark.forgery
def test_a_variable_does_not_pass_as_another():
    """The digest of db is known, but as dbx."""
    entries = edited(at(data=policy("dbx", b"revoked signatures").data), policy("dbx", b""))
    variables = {**REFERENCE.variables}
    known = policy("dbx", b"").digest().hex()
    variables[PolicyVariable.DB] = (*variables[PolicyVariable.DB], known)
    refused("ST-ATTS-211", entries, reference=changed(variables=variables), says="dbx, 0 bytes")


@pytest.mark.forgery
def test_unprotected_dma():
    entries = edited(2, GOOD[2])
    entries.insert(2, event(7, ACTION, b"DMA Protection Disabled"))
    refused("ST-ATTS-219", entries, says="DMA", where="PCR 7, entry 3")
    reference = learn_boot(encode(entries), bootlogs.pcrs(entries))
    assert reference.allow_unprotected_dma
    assert appraise(entries, reference=reference).secure_boot


# Reference values of the other registers.


@forgeries(
    "id, code, entry",
    ("boot-application", 213, image(b"another boot loader")),
    ("unknown-action", 213, event(4, ACTION, b"some action")),
    ("called-an-action", 213, renamed(image(b"other"), ACTION, bootlogs.CALLING)),
    ("called-something-else", 213, event(4, EVENT_TAG, b"x")),
    ("command", 214, command(b"linux /evil")),
    ("kernel-command-line", 214, command(COMMAND_LINE + b" init=/bin/sh", b"kernel_cmdline: ")),
    (
        "command-that-was-not-measured",
        215,
        dataclasses.replace(command(COMMAND_LINE), content=b"/evil"),
    ),
    ("unread-command", 215, event(8, IPL, b"anything\0", b"x")),
    ("initrd", 215, event(9, IPL, b"/initrd\0", b"other initrd")),
    ("load-options", 215, event(9, EVENT_TAG, b"x")),
    ("command-in-another-register", 215, command(COMMAND_LINE, register=9)),
    ("boot-variable", 217, event(1, VARIABLE_BOOT, b"x")),
    ("partition-table", 217, event(5, GPT, b"EFI PART")),
    ("action-of-pcr-5", 217, event(5, ACTION, b"some action")),
    ("owner-keys", 218, event(14, IPL, b"MokList\0", b"my keys")),
    ("other-of-pcr-14", 218, event(14, EVENT_TAG, b"x")),
)
def test_a_measurement_that_is_no_reference_value(code, entry):
    entries = [*GOOD, entry]
    refused(f"ST-ATTS-{code}", entries, where=f"PCR {entry.register}, entry {len(entries)} (")


@forgeries("pcr", 0, 1, 2, 3, 6)
def test_firmware_that_is_no_reference_value(pcr):
    entries = [event(pcr, POST_CODE, b"other firmware"), *GOOD]
    refused("ST-ATTS-217", entries, reference=LISTED, where=f"PCR {pcr}, entry 1 (")


@forgeries("pcr", 0, 2, 3, 6)
def test_a_register_that_is_not_as_it_should_be(pcr):
    entries = [event(pcr, POST_CODE, b"other firmware"), *GOOD]
    refused("ST-ATTS-216", entries, says="none of the 1 values", where=f"PCR {pcr}")


@forgeries("pcr", 1, 4, 5, 7, 8, 9, 10, 14)
def test_any_register_may_have_reference_values(pcr):
    pinned = {**REFERENCE.registers, str(pcr): ("11" * 32, PCRS[pcr].hex())}
    assert appraise(reference=changed(registers=pinned)).secure_boot
    pinned[str(pcr)] = ("11" * 32,)
    refused("ST-ATTS-216", reference=changed(registers=pinned), where=f"PCR {pcr}")


@forgeries(
    "code, field",
    ("ST-ATTS-211", {"variables": {}}),
    ("ST-ATTS-212", {"authorities": ()}),
    ("ST-ATTS-213", {"boot_applications": ()}),
    ("ST-ATTS-214", {"boot_commands": ()}),
    ("ST-ATTS-214", {"kernel_command_lines": ()}),
    ("ST-ATTS-215", {"loaded_files": ()}),
    ("ST-ATTS-217", {"registers": {}}),
    ("ST-ATTS-217", {"firmware": ()}),
    ("ST-ATTS-218", {"owner_keys": ()}),
)
def test_an_empty_list_accepts_nothing(code, field):
    refused(code, reference=changed(**field))


def test_a_boot_loader_that_measures_no_commands():
    """systemd-boot, for example: then the kernel is a boot application."""
    entries = [e for e in GOOD if e.register != 8]
    reference = learn_boot(encode(entries), bootlogs.pcrs(entries))
    assert reference.kernel_command_lines == ()
    assert appraise(entries, reference=reference).secure_boot


def test_the_label_of_a_known_measurement_does_not_matter():
    """A command under the prefix of a command line is judged by what was measured."""
    entries = edited(at(data=b"grub_cmd: set default=0\0"), command(b"set default=0", b"?: "))
    assert appraise(entries).secure_boot


def test_old_grub_measures_the_zero_byte_too():
    text = bootlogs.COMMANDS[0] + b"\0"
    index = at(data=b"grub_cmd: set default=0\0")
    entries = edited(index, event(8, IPL, b"grub_cmd " + text, text))
    assert appraise(entries).secure_boot
    assert learn_boot(encode(entries), bootlogs.pcrs(entries)) == REFERENCE


@each(
    "extra",
    event(4, ACTION, b"Returning from EFI Application from Boot Option"),
    event(4, OMIT, b"BOOT ATTEMPTS OMITTED"),
    event(5, ACTION, b"Exit Boot Services Returned with Failure"),
)
def test_known_actions_need_no_reference_value(extra):
    assert appraise([*GOOD, extra]).secure_boot


# Separators of PCR 0 to 6, and what comes after them.


def unjudged(*pcrs):
    return changed(registers={}, unjudged=(0, 1, 2, 3, 4, 5, 6, *pcrs))


@forgeries("id, reference", ("listed", LISTED), ("unjudged", unjudged()))
@each("pcr", *range(7))
def test_no_separator(pcr, reference):
    entries = edited(at(register=pcr, type=0x04))
    refused("ST-ATTS-209", entries, reference=reference, says="no separator", where=f"PCR {pcr}")


@forgeries("value", bytes(4), b"\xff" * 4)
@each("pcr", *range(7))
def test_a_second_separator(pcr, value):
    entries = [*GOOD, separator(pcr, value)]
    where = f"PCR {pcr}, entry {len(entries)}"
    refused("ST-ATTS-209", entries, reference=unjudged(), says="second", where=where)


@forgeries("pcr", *range(7))
def test_the_true_separator_under_another_name(pcr):
    """Root extends the register and a separator, and calls the true one something else."""
    index = at(register=pcr, type=0x04)
    entries = [*edited(index, renamed(GOOD[index], EVENT_TAG)), separator(pcr)]
    refused("ST-ATTS-209", entries, reference=unjudged(), says="second")


@forgeries("value", b"\1\0\0\0", b"error", bytes(5))
@each("pcr", *range(7))
def test_a_separator_that_reports_an_error(pcr, value):
    entries = edited(at(register=pcr, type=0x04), separator(pcr, value))
    refused("ST-ATTS-209", entries, reference=unjudged(), says="reports an error")


@each("pcr", *range(7))
def test_the_other_separator_of_the_specification(pcr):
    entries = edited(at(register=pcr, type=0x04), separator(pcr, b"\xff" * 4))
    assert appraise(entries, reference=unjudged()).secure_boot


def fit(pcr=0):
    return event(pcr, CRTM_CONTENTS, b"FIT Type 0x2D Measured S-CRTM\0", bytes(4))


def test_an_empty_fit_entry_is_no_separator():
    entries = [fit(), *GOOD]
    assert appraise(entries, reference=unjudged()).secure_boot
    assert learn_boot(encode(entries), bootlogs.pcrs(entries)).registers["0"]


@forgeries("pcr, entries", (0, [*GOOD, fit()]), (3, [fit(3), *GOOD]))
def test_the_empty_fit_entry_is_of_pcr_0_and_before_the_separator(pcr, entries):
    refused("ST-ATTS-209", entries, reference=unjudged(), says="second", where=f"PCR {pcr}")


@forgeries(
    "pcr, kind",
    *((pcr, kind) for pcr in (0, 1, 2, 3, 6) for kind in (EVENT_TAG, APPLICATION, ACTION)),
    (0, CRTM_CONTENTS),
    (2, VARIABLE_BOOT),
    (5, EVENT_TAG),
    (5, APPLICATION),
)
def test_an_event_after_the_separator(pcr, kind):
    entries = [*GOOD, event(pcr, kind, b"x")]
    where = f"PCR {pcr}, entry {len(entries)}"
    refused("ST-ATTS-210", entries, reference=unjudged(), where=where)
    refused("ST-ATTS-210", entries, reference=LISTED, where=where)


@each(
    "pcr, kind",
    *((1, kind) for kind in (VARIABLE_BOOT, 0x8000000C, HANDOFF, 0x8000000B)),
    *((5, kind) for kind in (GPT, 0x8000000D, ACTION)),
    (4, EVENT_TAG),
)
def test_what_real_machines_measure_after_the_separator(pcr, kind):
    assert appraise([*GOOD, event(pcr, kind, b"x")], reference=unjudged()).secure_boot


def test_a_pinned_register_is_as_it_was():
    """Its value says all: it is one that a person has accepted."""
    entries = [*GOOD, event(0, EVENT_TAG, b"late, but always so on this machine")]
    pinned = {**REFERENCE.registers, "0": (bootlogs.pcrs(entries)[0].hex(),)}
    assert appraise(entries, reference=changed(registers=pinned)).secure_boot


# Learning.


@forgeries(
    "id, code, entries",
    ("secure-boot-out-of-order", "ST-ATTS-207", edited(2)),
    ("no-separator", "ST-ATTS-209", edited(at(register=3, type=0x04))),
    ("late-event", "ST-ATTS-210", [*GOOD, event(0, EVENT_TAG, b"x")]),
    ("not-measured", "ST-ATTS-206", [*GOOD, event(7, AUTHORITY, authority().data, b"x")]),
    ("not-replayed", "ST-ATTS-204", edited(0)),
)
def test_a_boot_that_breaks_the_rules_is_not_learned(code, entries):
    pcrs = PCRS if code == "ST-ATTS-204" else bootlogs.pcrs(entries)
    vocabulary.refused(AttestationError, code, learn_boot, encode(entries), pcrs)


def test_without_owner_keys_quoted_nothing_is_learned_of_them():
    assert learn_boot(LOG, {index: PCRS[index] for index in range(10)}).owner_keys == ()


# Real boots, with the registers that their own logs replay to.

SECURE_BOOT = {
    "arch-linux-workstation.bin": "SecureBoot is empty, expected 01",
    "confidential-gke-debug-251000_eventlog.bin": "",
    "cos-101-amd-sev.bin": "",
    "cos-93-amd-sev.bin": "",
    "crypto_agile_eventlog": "SecureBoot is empty, expected 01",
    "eventlogwithsp800155.bin": "",
    "gdc-host.bin": "SecureBoot is 00, expected 01",
    "glinux-alex.bin": "SecureBoot is 00, expected 01",
    "rhel8-uefi.bin": "",
    "ubuntu-1804-amd-sev.bin": "SecureBoot is 00, expected 01",
    "ubuntu-2104-no-dbx.bin": "SecureBoot is 00, expected 01",
    "ubuntu-2404-amd-sevsnp.bin": "SecureBoot is 00, expected 01",
    "ubuntu_2104_shielded_vm_no_secure_boot_eventlog": "SecureBoot is 00, expected 01",
    "mb_log.b64": "",
}
"""What the strict order finds in each."""
NOT_WHOLE = {"debian-10.bin", "option_rom_eventlog", "sb_cert_eventlog"}
"""Two have the SHA-1 format; from the third somebody has cut all but four registers."""


def real(name):
    raw = vector(name)
    log = base64.b64decode(raw) if name.endswith(".b64") else raw
    values = replay(parse(log))
    return log, {index: values.get(index, bytes(32)) for index in (*range(10), 14)}


def real_boots():
    names = vectors("google__go-tpm-tools/**/*.bin") + vectors("keylime__keylime/**/*.b64")
    names += vectors("google__go-attestation/**/*_eventlog")
    return [name for name in names if name.rpartition("/")[2] not in NOT_WHOLE] or ["none"]


@needs_vectors
@each("name", *real_boots())
def test_real_boots(name):
    log, pcrs = real(name)
    off = SECURE_BOOT[name.rpartition("/")[2]]
    reference = learn_boot(log, pcrs)
    state = appraise_boot(log, pcrs, reference, secure_boot=False)
    assert state.secure_boot_off == off
    assert state.secure_boot == (not off)
    if off:
        refused("ST-ATTS-208", log=log, pcrs=pcrs, reference=reference, says=off)
    else:
        assert appraise_boot(log, pcrs, reference, secure_boot=True) == state
    assert sum(m.kind is Kind.APPLICATION for m in state.measurements) >= 1
    refused("ST-ATTS-216", log=log, pcrs=pcrs, secure_boot=False)


@needs_vectors
def test_a_real_log_without_separators():
    name = "google__go-attestation/attest/testdata/sb_cert_eventlog"
    log, pcrs = real(name)
    refused("ST-ATTS-209", log=log, pcrs=pcrs, reference=unjudged(7), says="no separator")


@needs_vectors
@each("name", "rhel8-uefi.bin", "cos-101-amd-sev.bin")
def test_every_event_of_a_real_boot_counts(name):
    """Without its reference values one by one, the boot is refused each time."""
    log, pcrs = real(f"google__go-tpm-tools/internal/test/eventlogs/{name}")
    reference = learn_boot(log, pcrs)
    lists = ("firmware", "authorities", "boot_applications", "loaded_files", "owner_keys")
    for field in (*lists, "boot_commands", "kernel_command_lines"):
        values = getattr(reference, field)
        assert values
        for value in values:
            rest = tuple(other for other in values if other != value)
            how = {"log": log, "pcrs": pcrs, "reference": changed(reference, **{field: rest})}
            vocabulary.refused(AttestationError, "ST-ATTS-21", appraise, **how)


# What an appraiser remembers.


def outcome(appraiser, log, pcrs):
    try:
        return appraiser.appraise(log, pcrs, secure_boot=True)
    except AttestationError as error:
        return error.code, error.where, error.what


@pytest.mark.forgery
def test_a_boot_that_was_accepted_says_nothing_about_another():
    """Everything that a verdict depends on is compared: log, registers, Secure Boot."""
    appraiser = BootAppraiser(REFERENCE)
    log, pcrs = LOG, dict(PCRS)
    first = appraiser.appraise(log, pcrs, secure_boot=True)
    assert appraiser.appraise(log, dict(reversed(pcrs.items())), secure_boot=True) is first
    for number in range(60):
        index = sorted(set(pcrs) & set(range(10)))[number % 10]
        value = bytes([pcrs[index][0] ^ 1 + number]) + pcrs[index][1:]
        for altered in (
            (log, pcrs | {index: value}),
            (log[:-1] + bytes([log[-1] ^ 1 + number]), pcrs),
            (log[: -1 - number], pcrs),
            (log, {n: v for n, v in pcrs.items() if n != index}),
        ):
            # Not all of a log's bytes are measured: the verdict is that of who remembers nothing.
            assert outcome(appraiser, *altered) == outcome(BootAppraiser(REFERENCE), *altered)
    assert appraiser.appraise(log, pcrs, secure_boot=True) is first
    assert appraiser.appraise(log, pcrs, secure_boot=False) is not first
