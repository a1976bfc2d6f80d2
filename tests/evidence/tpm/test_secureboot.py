# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""PCR 7 in its one order: `test_honest_secure_boot` is the control of every refusal here."""

import dataclasses

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.eventlog import parse
from securetrain.evidence.tpm.secureboot import PolicyVariable, read_secure_boot
from tests import vocabulary
from tests.evidence.tpm import bootlogs
from tests.evidence.tpm.bootlogs import (
    ACTION,
    AUTHORITY,
    DRIVER_CONFIG,
    EVENT_TAG,
    GLOBAL,
    SECURITY,
    SEPARATOR,
    SHIM,
    authority,
    event,
    policy,
    renamed,
    secure_boot,
    separator,
    variable,
)
from tests.tables import each, forgeries

ON = secure_boot()
OFF = secure_boot(b"\0")
LINE = separator(7)
SHIM_CERTIFICATE = authority("Shim", b"certificate")
NO_DMA = event(7, ACTION, b"DMA Protection Disabled")
DBT, TAG = policy("dbt", b""), event(7, EVENT_TAG, b"x")
SOME = event(7, ACTION, b"some action")
DEBUGGER = event(7, ACTION, b"UEFI Debug Mode")


def read(entries):
    return read_secure_boot(parse(bootlogs.encode(entries)).of(7), Hash.SHA256, "PCR 7")


def refused(code, entries, said="", entry=None):
    error = vocabulary.refused(AttestationError, code, read, entries, says=said)
    assert error.where.startswith("PCR 7" if entry is None else f"PCR 7, entry {entry} ("), error
    return error


def test_honest_secure_boot():
    state = read([*ON, LINE, authority(), SHIM_CERTIFICATE])
    assert state.off == ""
    assert [(name, e.index) for name, e in state.variables.items()] == [
        ("PK", 2),
        ("KEK", 3),
        ("db", 4),
        ("dbx", 5),
    ]
    assert [e.index for e in state.authorities] == [7, 8]
    assert state.unprotected_dma is None


# Off, and why.


@forgeries(
    "id, entries, why",
    ("zero", [*OFF, LINE, authority()], "SecureBoot is 00"),
    ("empty", [*secure_boot(b""), LINE, authority()], "SecureBoot is empty"),
    ("two", [*secure_boot(b"\2"), LINE, authority()], "SecureBoot is 02"),
    ("long", [*secure_boot(b"\1\0"), LINE, authority()], "SecureBoot is 0100"),
    ("1-1", [*secure_boot(b"\1\1"), LINE, authority()], "SecureBoot is 0101"),
    ("setup-mode", [ON[0], policy("PK", b""), *ON[2:], LINE, authority()], "no platform key"),
    ("no-authority", [*ON, LINE], "no image"),
    ("no-authority-of-db", [*ON, LINE, SHIM_CERTIFICATE], "no image"),
    ("shim-off", [*ON, LINE, authority(), authority("MokSBState", b"\1")], "MokSBState"),
    ("shim-unclear", [*ON, LINE, authority(), authority("MokSBState", b"")], "MokSBState"),
    ("shim-first", [*ON, LINE, authority("MokSBState", b"\1"), authority()], "MokSBState"),
)
def test_secure_boot_that_is_off(entries, why):
    assert why in read(entries).off


@each(
    "id, last",
    ("shim may say that its validation is on", authority("MokSBState", b"\0")),
    ("of another vendor", event(7, AUTHORITY, variable(SECURITY, "MokSBState", b"\1"))),
)
def test_a_variable_of_shims_that_does_no_harm(last):
    assert read([*ON, LINE, authority(), last]).off == ""


# Quirks of real machines.


@each(
    "extra, names",
    ([policy("dbt", b"t")], ["dbt"]),
    ([policy("dbr", b"r")], ["dbr"]),
    ([policy("dbt", b"t"), policy("dbr", b"r")], ["dbt", "dbr"]),
)
def test_the_databases_that_few_have(extra, names):
    state = read([*ON, *extra, LINE, authority()])
    assert state.off == ""
    assert list(state.variables)[4:] == [PolicyVariable(name) for name in names]


def test_option_roms_may_run_before_the_line():
    state = read([*ON, authority(value=b"signer of a card"), LINE, authority()])
    assert state.off == ""
    assert len(state.authorities) == 2


@each("position", 0, 1, 5)
@each("end", b"", b"\0")
def test_unprotected_dma_is_told_before_the_line(position, end):
    entries = [*ON, LINE, authority()]
    entries.insert(position, event(7, ACTION, b"DMA Protection Disabled" + end))
    state = read(entries)
    assert state.off == ""
    assert state.unprotected_dma is not None
    assert state.unprotected_dma.index == position + 1


def old_shim(name="Shim", value=b"certificate", slack=b"\0\0\0\0\0\xaf", short=1, guid=SHIM):
    data = variable(guid, name, value, slack)
    return event(7, AUTHORITY, data, data[: len(data) - short])


@each("made", old_shim(), old_shim("db", guid=SECURITY))
def test_old_shim_measures_a_byte_less_than_it_logs(made):
    state = read([*ON, LINE, authority(), made])
    assert state.off == ""
    assert len(state.authorities) == 2


def test_old_shim_cannot_hide_that_it_is_off():
    assert "MokSBState" in read([*ON, LINE, authority(), old_shim("MokSBState", b"\1")]).off


@forgeries(
    "id, made",
    ("slack-that-is-measured", old_shim(short=0)),
    ("two-bytes-short", old_shim(short=2)),
    ("five-bytes-of-slack", old_shim(slack=b"\0\0\0\0\xaf")),
    ("seven-bytes-of-slack", old_shim(slack=b"\0\0\0\0\0\0\xaf")),
    ("no-slack", old_shim(slack=b"")),
    ("another-digest", dataclasses.replace(old_shim(), content=b"other")),
    ("authority-not-measured", dataclasses.replace(authority(), content=b"other")),
)
def test_the_quirk_of_old_shim_is_exact(made):
    refused("ST-ATTS-206", [*ON, LINE, authority(), made], "not the hash of", entry=8)


RELABELLED = [renamed(e, EVENT_TAG) for e in [*OFF, LINE]]
EDITED = dataclasses.replace(OFF[0], data=ON[0].data)
SLACK = event(7, DRIVER_CONFIG, variable(GLOBAL, "SecureBoot", b"\1", b"\0"))
NOT_MEASURED = event(7, SEPARATOR, bytes(4), b"something else")


@forgeries(
    "id, code, entries, said, entry",
    ("old shim before the line", 206, [*ON, old_shim(), LINE, authority()], "", 6),
    ("forged one appended", 207, [*OFF, LINE, ON[0]], "SecureBoot where an authority was", 7),
    ("whole forged one appended", 207, [*RELABELLED, *ON, LINE, authority()], "", 1),
    ("data edited", 206, [EDITED, *ON[1:], LINE, authority()], "SecureBoot", 1),
    ("slack in a variable", 206, [SLACK, *ON[1:], LINE, authority()], "", 1),
    ("an authority, no separator", 209, [*ON, authority()], "", None),
    ("a second separator", 209, [*ON, LINE, authority(), LINE], "a second separator", 8),
    ("separator not measured", 209, [*ON, NOT_MEASURED], "four zero bytes", 6),
)
def test_forged_boots(code, entries, said, entry):
    refused(f"ST-ATTS-{code}", entries, said, entry)


# Type confusion: root of a machine without Secure Boot extends and relabels.


@forgeries("kind", 0x02, EVENT_TAG, ACTION, 0x0D, 0x8000000A)
def test_the_true_secure_boot_under_another_name(kind):
    """What a naive check that looks for the variable anywhere is fooled by."""
    forged = [renamed(OFF[0], kind), *OFF[1:], LINE, ON[0], authority()]
    refused("ST-ATTS-207", forged, "where SecureBoot was expected", entry=1)


@forgeries("index", 1, 2, 3, 4)
def test_the_data_of_a_variable_edited_without_its_digest(index):
    entries = [*ON, LINE, authority()]
    good = entries[index]
    entries[index] = dataclasses.replace(good, data=good.data[:-1] + b"X")
    refused("ST-ATTS-206", entries, entry=index + 1)


# Order.


@forgeries(
    "id, entries, said, entry",
    ("no-secureboot", [*ON[1:], LINE], "PK where SecureBoot", 1),
    ("no-pk", [ON[0], *ON[2:], LINE], "KEK where PK", 2),
    ("no-kek", [*ON[:2], *ON[3:], LINE], "db where KEK", 3),
    ("no-db", [*ON[:3], ON[4], LINE], "dbx where db", 4),
    ("no-dbx", [*ON[:4], LINE], "the separator where dbx", 5),
    ("swapped", [ON[1], ON[0], *ON[2:], LINE], "PK where SecureBoot", 1),
    ("db-and-dbx-swapped", [*ON[:3], ON[4], ON[3], LINE], "dbx where db", 4),
    ("secureboot-twice", [ON[0], *ON, LINE], "SecureBoot where PK", 2),
    ("off-then-on", [OFF[0], *ON, LINE], "SecureBoot where PK", 2),
    ("dbx-twice", [*ON, ON[4], LINE], "dbx where the separator", 6),
    ("on-again", [*ON, ON[0], LINE], "SecureBoot where the separator", 6),
    ("dbt-after-dbr", [*ON, policy("dbr", b""), DBT, LINE], "dbt where the separator", 7),
    ("audit-mode", [*ON, policy("AuditMode", b"\1"), LINE], "AuditMode where the separator", 6),
    ("variable-after-authority", [*ON, authority(), DBT, LINE], "dbt where the separator", 7),
    ("line-first", [LINE, *ON], "the separator where SecureBoot", 1),
    ("authority-first", [authority(), *ON, LINE], "an authority where Sec", 1),
    ("authority-before-dbx", [*ON[:4], authority(), ON[4], LINE], "an authority where dbx", 5),
    ("dbx-after-the-line", [*ON, LINE, policy("dbx", b"")], "dbx where an authority", 7),
    ("dbt-after-the-line", [*ON, LINE, DBT], "dbt where an authority", 7),
    ("other-type-after-the-line", [*ON, LINE, TAG], "EV_EVENT_TAG where an authority", 7),
    ("other-type-before-the-line", [*ON, TAG, LINE], "EV_EVENT_TAG where the separator", 6),
    ("action-after-the-line", [*ON, LINE, SOME], "EV_EFI_ACTION where an authority", 7),
    ("dma-after-the-line", [*ON, LINE, NO_DMA], "DMA Protection Disabled where", 7),
    ("dma-twice", [NO_DMA, *ON, NO_DMA, LINE], "DMA Protection Disabled where", 7),
    ("line-named-an-authority", [*ON, LINE, renamed(LINE, AUTHORITY)], "wanted", 7),
)
def test_the_order_is_strict(entries, said, entry):
    refused("ST-ATTS-207", entries, said, entry)


@forgeries("end", 0, 1, 4, 5)
def test_no_separator(end):
    error = refused("ST-ATTS-209", ON[:end], f"{end} variables and no separator")
    assert error.where == "PCR 7"


@forgeries("value", b"\1\0\0\0", b"\xff" * 4, b"", bytes(5))
def test_a_separator_of_another_value(value):
    refused("ST-ATTS-209", [*ON, separator(7, value)], "four zero bytes", entry=6)


@forgeries("index, guid", (0, SECURITY), (1, SHIM), (2, SECURITY), (3, GLOBAL), (4, GLOBAL))
def test_a_variable_of_another_vendor(index, guid):
    """Anyone may make a variable called db under a GUID of their own."""
    name = ["SecureBoot", "PK", "KEK", "db", "dbx"][index]
    entries = [*ON, LINE, authority()]
    entries[index] = event(7, DRIVER_CONFIG, variable(guid, name, b"\1"))
    refused("ST-ATTS-207", entries, f"{name} has the vendor GUID {guid}", entry=index + 1)


@forgeries("data", b"", b"\1" * 32, variable(GLOBAL, "SecureBoot", b"\1")[:-1])
def test_a_variable_that_is_none(data):
    refused("ST-ATTS-207", [event(7, DRIVER_CONFIG, data), *ON[1:], LINE], entry=1)


@forgeries("position", 0, 3, 5, 6, 7)
@each("kind", ACTION, EVENT_TAG)
def test_a_debugger_is_found_under_any_name(position, kind):
    entries = [*ON, LINE, authority()]
    entries.insert(position, renamed(DEBUGGER, kind))
    refused("ST-ATTS-219", entries, "debugger", entry=position + 1)


def test_names_in_refusals_are_printable():
    entries = [event(7, DRIVER_CONFIG, variable(GLOBAL, "\x1b[2J\n", b""))]
    assert refused("ST-ATTS-207", entries).what.isprintable()
