# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The boot of TDX guests; `test_an_honest_guest` is the control of every refusal here."""

import dataclasses

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.bootrules import BootReference, Kind
from securetrain.evidence.tpm.ccel import appraise_ccel, learn_ccel
from tests import vocabulary
from tests.evidence.tpm import bootlogs
from tests.evidence.tpm.bootlogs import (
    AUTHORITY,
    CONFIG_FLAGS,
    EVENT_TAG,
    IPL,
    NO_ACTION,
    SHA256,
    SHA384,
    authority,
    encode,
    encode_entry,
    event,
    good_guest,
    policy,
    position,
    renamed,
    separator,
)
from tests.evidence.vectors import needs_vectors, vector
from tests.tables import each, forgeries

GOOD = good_guest()
LOG = encode(GOOD, (SHA384,))
RTMRS = bootlogs.rtmrs(GOOD)
REFERENCE = learn_ccel(LOG, RTMRS)


def appraise(entries=GOOD, rtmrs=None, reference=REFERENCE, *, secure_boot=True, log=None):
    return appraise_ccel(
        encode(entries, (SHA384,)) if log is None else log,
        bootlogs.rtmrs(entries) if rtmrs is None else rtmrs,
        reference,
        secure_boot=secure_boot,
    )


def refused(code, *args, where="", **more):
    error = vocabulary.refused(AttestationError, code, appraise, *args, **more)
    assert error.where.startswith(where), error
    return error


def changed(**fields):
    return msgspec.structs.replace(REFERENCE, **fields)


def edited(index, entry=None):
    return [*GOOD[:index], *([entry] if entry else []), *GOOD[index + 1 :]]


def at(**fields):
    return position(GOOD, **fields)


def moved(entry, register=1):
    return dataclasses.replace(entry, register=register)


# The honest guest.


@each("padding", b"", bytes(5000), b"\xff" * 5000)
def test_an_honest_guest(padding):
    state = appraise(log=LOG + padding, rtmrs=RTMRS)
    assert state.secure_boot
    assert state.registers == dict(enumerate(RTMRS))
    assert state.boot_aggregate == b""
    shown = {(m.register, m.kind, m.text) for m in state.measurements}
    assert ("RTMR2", Kind.COMMAND_LINE, bootlogs.COMMAND_LINE.decode()) in shown
    assert ("RTMR0", Kind.VARIABLE, "db, 18 bytes") in shown
    assert ("RTMR0", Kind.FIRMWARE, "ACPI DATA") in shown
    assert ("RTMR1", Kind.APPLICATION, "\\EFI\\BOOT\\BOOTX64.EFI") in shown
    assert [m.entry for m in state.measurements] == sorted(m.entry for m in state.measurements)


def test_what_is_learned():
    assert REFERENCE.registers == {}
    assert list(REFERENCE.variables) == ["PK", "KEK", "db", "dbx"]
    assert len(REFERENCE.firmware) == 4, "TDX table, variables, ACPI tables, partition table"
    assert len(REFERENCE.authorities) == 2
    assert len(REFERENCE.boot_applications) == 2
    assert REFERENCE.kernel_command_lines == (bootlogs.COMMAND_LINE.decode(),)
    assert len(REFERENCE.boot_commands) == 2
    assert len(REFERENCE.loaded_files) == 1
    assert len(REFERENCE.owner_keys) == 1
    digests = (*REFERENCE.firmware, *REFERENCE.authorities, *REFERENCE.loaded_files)
    assert {len(digest) for digest in digests} == {96}


def test_the_register_of_the_run_time():
    """RTMR3 is extended by the guest, and the firmware's table knows nothing of it."""
    late = [*RTMRS[:3], b"\1" * 48]
    refused("ST-ATTS-204", rtmrs=late, where="RTMR3")
    assert appraise(rtmrs=late, reference=changed(unjudged=(3,))).secure_boot
    pinned = changed(registers={"3": (late[3].hex(),)})
    assert appraise(rtmrs=late, reference=pinned).secure_boot
    refused("ST-ATTS-216", rtmrs=RTMRS, reference=pinned, where="RTMR3")


def test_separators_stand_for_several_pcrs():
    entries = [*GOOD, separator(1), separator(1), *[separator(2)] * 4, separator(3)]
    assert appraise(entries).secure_boot


def test_events_that_are_not_judged_one_by_one_are_shown():
    state = appraise(reference=changed(unjudged=(1,), registers={"2": (RTMRS[2].hex(),)}))
    kinds = {(m.register, m.kind) for m in state.measurements}
    assert ("RTMR1", Kind.UNJUDGED) in kinds
    assert ("RTMR2", Kind.PINNED) in kinds


# The table and its replay.


@forgeries("index", *range(len(GOOD)))
def test_an_event_is_removed(index):
    refused("ST-ATTS-204", edited(index), RTMRS, where=f"RTMR{GOOD[index].register - 1}, ")


@forgeries("register", 0, 1, 2, 3)
def test_a_register_has_another_value(register):
    rtmrs = [*RTMRS]
    rtmrs[register] = b"\1" * 48
    refused("ST-ATTS-204", rtmrs=rtmrs, says="replays to", where=f"RTMR{register}")


def test_notes_may_name_any_register():
    entries = [event(0, NO_ACTION, b"note"), *GOOD]
    assert appraise(rtmrs=RTMRS, log=encode(entries, (SHA384,))).secure_boot


TAIL = encode_entry(event(4, EVENT_TAG, b"x"), (SHA384,))
NO_LINE = edited(at(data=b"kernel_cmdline: " + bootlogs.COMMAND_LINE + b"\0"))
MORE = {"says": "content follows the padding"}


@forgeries(
    "id, code, guest",
    ("of SHA-256", 203, {"log": encode(GOOD, (SHA256,)), "says": "SHA256, not of SHA384"}),
    ("of SM3", 203, {"log": encode(GOOD, (bootlogs.SM3,)), "says": "SM3_256, not of SHA384"}),
    ("legacy", 202, {"log": bootlogs.encode_legacy(GOOD)}),
    ("cut", 201, {"log": LOG[:-1]}),
    ("empty", 201, {"log": b""}),
    ("behind zeros", 201, {"log": LOG + bytes(100) + TAIL, **MORE}),
    ("behind ones", 201, {"log": LOG + b"\xff" * 100 + TAIL, **MORE}),
    ("a byte behind zeros", 201, {"log": LOG + bytes(100) + b"\1", **MORE}),
    ("a zero behind ones", 201, {"log": LOG + b"\xff" * 100 + b"\0", **MORE}),
    ("variables", 211, {"reference": changed(variables={}), "where": "RTMR0, entry 4 ("}),
    (
        *("no command line", 214),
        {"entries": NO_LINE, "says": "none of kernel_command_lines", "where": "RTMR2"},
    ),
    (
        *("a register that a guest does not have", 216),
        {"reference": changed(registers={"7": ("00" * 48,)}), "where": "RTMR7"},
    ),
    ("no reference values", 211, {"reference": BootReference()}),
    *(
        (
            *(f"register {register}", 201),
            {
                "entries": [*GOOD, event(register, EVENT_TAG, b"x")],
                "rtmrs": RTMRS,
                "says": f"register {register}, which does not exist",
            },
        )
        for register in (0, 5, 6, 0xFFFFFFFF)
    ),
)
def test_guests_that_are_refused(code, guest):
    refused(f"ST-ATTS-{code}", **guest)


@each("count", 0, 3, 5)
def test_a_quote_has_four_rtmrs(count):
    vocabulary.refused(ValueError, "a quote has 4", appraise, rtmrs=(RTMRS * 2)[:count])


# Secure Boot, which shares its register.


@pytest.mark.forgery
def test_secure_boot_off():
    off = good_guest(b"\0")
    reference = learn_ccel(encode(off, (SHA384,)), bootlogs.rtmrs(off))
    assert reference == REFERENCE, "whether it was on is no reference value"
    refused("ST-ATTS-208", off, says="SecureBoot is 00", where="RTMR0")
    state = appraise(off, secure_boot=False)
    assert not state.secure_boot
    assert "SecureBoot is 00" in state.secure_boot_off
    pinned = changed(registers={"0": (bootlogs.rtmrs(off)[0].hex(),)})
    refused("ST-ATTS-208", off, reference=pinned)
    assert not appraise(off, reference=pinned, secure_boot=False).secure_boot


@forgeries("kind", CONFIG_FLAGS, EVENT_TAG, 0x8000000A, AUTHORITY)
@each("count", 1, 6)
def test_a_forged_secure_boot_extended_after_the_boot(kind, count):
    """The true events under other names, and "on" appended: refused, for they are not known."""
    truth = good_guest(b"\0")
    start = position(truth, data=policy("SecureBoot", b"\0").data)
    for index in range(start, start + count):
        truth[index] = renamed(truth[index], kind)
    forged = [*truth, *GOOD[start : start + 6], moved(authority())]
    code = "ST-ATTS-217" if count == 6 else "ST-ATTS-207"
    refused(code, forged, where="RTMR0, entry")


@pytest.mark.forgery
def test_secure_boot_cannot_be_told_from_an_unjudged_register():
    refused("ST-ATTS-208", reference=changed(unjudged=(0,)), says="cannot be told", where="RTMR0")
    state = appraise(reference=changed(unjudged=(0,)), secure_boot=False)
    assert {m.kind for m in state.measurements if m.register == "RTMR0"} == {Kind.UNJUDGED}


def test_a_pinned_register_may_be_unjudged_too():
    pinned = changed(unjudged=(0,), registers={"0": (RTMRS[0].hex(),)})
    assert appraise(reference=pinned).secure_boot


@pytest.mark.forgery
def test_shims_validation_is_off():
    off = moved(authority("MokSBState", b"\1"))
    allowed = (*REFERENCE.authorities, off.digest(SHA384).hex())
    refused("ST-ATTS-208", [*GOOD, off], reference=changed(authorities=allowed), says="MokSBState")
    refused("ST-ATTS-217", [*GOOD, renamed(off, EVENT_TAG)], reference=changed(authorities=allowed))


EDITED = dataclasses.replace(GOOD[2], data=policy("SecureBoot", b"\0").data)
TABLES = event(1, CONFIG_FLAGS, b"ACPI DATA", b"tables")


@forgeries(
    "id, code, entries",
    ("no-pk", "ST-ATTS-207", edited(3)),
    ("no-separator", "ST-ATTS-207", [e for e in GOOD if e.type != 0x04]),
    ("no-rtmr0", "ST-ATTS-209", [e for e in GOOD if e.register != 1]),
    ("data-edited", "ST-ATTS-206", edited(2, EDITED)),
    ("interrupted", "ST-ATTS-207", [*GOOD[:4], TABLES, *GOOD[4:]]),
)
@each("secure_boot", True, False)
def test_secure_boot_out_of_order(code, entries, secure_boot):
    refused(code, entries, secure_boot=secure_boot, where="RTMR0")
    free = changed(unjudged=(0,))
    assert appraise(entries, reference=free, secure_boot=False).secure_boot_off
    pinned = changed(registers={"0": (bootlogs.rtmrs(entries)[0].hex(),)})
    if secure_boot:
        refused(code, entries, reference=pinned, where="RTMR0")
    else:
        assert appraise(entries, reference=pinned, secure_boot=False).secure_boot_off
    vocabulary.refused(
        AttestationError, code, learn_ccel, encode(entries, (SHA384,)), bootlogs.rtmrs(entries)
    )


# Reference values.


@forgeries(
    "id, code, entry",
    ("acpi", "ST-ATTS-217", event(1, CONFIG_FLAGS, b"ACPI DATA", b"other")),
    ("late-dbx", "ST-ATTS-217", moved(policy("dbx", b""))),
    ("authority", "ST-ATTS-212", moved(authority(value=b"other"))),
    ("application", "ST-ATTS-213", moved(bootlogs.image(b"other"), 2)),
    ("something-in-rtmr1", "ST-ATTS-217", event(2, EVENT_TAG, b"x")),
    ("command", "ST-ATTS-214", bootlogs.command(b"reboot", register=3)),
    ("command-line", "ST-ATTS-214", bootlogs.command(b"init=/x", b"kernel_cmdline: ", register=3)),
    ("file", "ST-ATTS-215", event(3, IPL, b"/initrd\0", b"other")),
    ("owner-keys", "ST-ATTS-218", event(3, IPL, b"MokListX\0", b"other")),
    ("run-time", "ST-ATTS-215", event(4, EVENT_TAG, b"x")),
)
def test_a_measurement_that_is_no_reference_value(code, entry):
    entries = [*GOOD, entry]
    refused(code, entries, where=f"RTMR{entry.register - 1}, entry {len(entries)} (")


@forgeries("register", 0, 1, 2, 3)
def test_a_register_that_is_not_as_it_should_be(register):
    values = {str(index): (value.hex(),) for index, value in enumerate(RTMRS)}
    reference = msgspec.convert({"registers": values}, BootReference)
    assert appraise(reference=reference).secure_boot
    reference.registers[str(register)] = ("00" * 47 + "01",)
    refused("ST-ATTS-216", reference=reference, where=f"RTMR{register}")


# A real guest.


@needs_vectors
def test_a_real_table_and_its_quote():
    home = "google__go-tdx-guest/testing/testdata/ccel/"
    log = vector(home + "ccel_data.dat")
    quote = vector(home + "cos-113-tdx-quote.dat")
    # Version 4: RTMR0 to 3 stand at 328 bytes of the TD report behind a header of 48.
    rtmrs = [quote[48 + 328 + 48 * index :][:48] for index in range(4)]
    reference = learn_ccel(log, rtmrs)
    state = appraise_ccel(log, rtmrs, reference, secure_boot=False)
    assert state.secure_boot_off == "SecureBoot is 00, expected 01"
    assert len(state.measurements) == 41
    refused("ST-ATTS-208", log=log, rtmrs=rtmrs, reference=reference)
    refused("ST-ATTS-211", log=log, rtmrs=rtmrs, secure_boot=False)
    refused("ST-ATTS-204", log=log, rtmrs=rtmrs[::-1], reference=reference)
    start = log.rstrip(b"\xff").rstrip(b"\0")
    for tail in (b"\xff" * 9 + b"x", bytes(40) + b"x"):
        refused("ST-ATTS-201", log=start + bytes(len(log) - len(start)) + tail, rtmrs=rtmrs)
