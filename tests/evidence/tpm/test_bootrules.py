# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values of a boot: their document, learning and merging."""

import msgspec
import pytest

from securetrain.core import canonical
from securetrain.core.errors import AttestationError, UsageError
from securetrain.evidence.tpm.boot import learn_boot, merge
from securetrain.evidence.tpm.bootrules import BootReference, Kind, Learner, Register, Rules
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.eventlog import Event
from securetrain.evidence.tpm.secureboot import PolicyVariable, unread
from tests import vocabulary
from tests.evidence.tpm import bootlogs
from tests.evidence.tpm.bootlogs import APPLICATION, IPL
from tests.tables import each

HEX = "ab" * 32
GOOD = bootlogs.good_boot()
REFERENCE = learn_boot(bootlogs.encode(GOOD), bootlogs.pcrs(GOOD))


def measured(kind, data, content):
    return Event(1, 8, kind, Hash.SHA256.digest(content), data)


def learn(register, *events):
    learner = Learner(Hash.SHA256)
    learner.learn(register, events)
    return learner.reference(unread(""), {})


# The document.


def test_reference_values_have_one_spelling():
    document = canonical.encode(REFERENCE)
    assert canonical.decode(document, BootReference, canonical=True) == REFERENCE
    assert b'"registers":{"0":[' in document
    assert b'"variables":{"KEK":[' in document


@each(
    "fields",
    {"surprise": 1},
    {"firmware": [HEX.upper()]},
    {"firmware": [HEX + "\n"]},
    {"firmware": ["\n" + HEX]},
    {"firmware": [HEX[:-1]]},
    {"firmware": [HEX + "00"]},
    {"firmware": [HEX + HEX]},
    {"firmware": ["zz" * 32]},
    {"registers": {"24": [HEX]}},
    {"registers": {"-1": [HEX]}},
    {"registers": {"07": [HEX]}},
    {"registers": {"7\n": [HEX]}},
    {"registers": {"7": [7]}},
    {"unjudged": [24]},
    {"unjudged": [-1]},
    {"unjudged": ["7"]},
    {"variables": {"SetupMode": [HEX]}},
    {"allow_unprotected_dma": 1},
    {"boot_commands": [1]},
)
def test_malformed_reference_values(fields):
    with pytest.raises(UsageError):
        canonical.decode(canonical.dumps(fields), BootReference)


def test_both_hashes_may_stand_in_a_list():
    both = (HEX, "cd" * 48)
    assert canonical.decode(canonical.dumps({"firmware": both}), BootReference).firmware == both


def test_the_defaults_accept_nothing():
    empty = BootReference()
    for field in msgspec.structs.fields(BootReference):
        assert not getattr(empty, field.name)


# Learning: what an event counts as.

LOADER = Register(8, 8, "PCR 8", (Kind.FILE, Kind.COMMAND, Kind.COMMAND_LINE))


@each(
    "data, content, field, value",
    (b"grub_cmd: set a=b\0", b"set a=b", "boot_commands", "set a=b"),
    (b"grub_cmd set a=b\0", b"set a=b\0", "boot_commands", "set a=b"),
    (b"module_cmdline: x\0", b"x", "boot_commands", "x"),
    (b"kernel_cmdline: /vmlinuz ro\0", b"/vmlinuz ro", "kernel_command_lines", "/vmlinuz ro"),
    (b"grub_kernel_cmdline /v ro\0", b"/v ro", "kernel_command_lines", "/v ro"),
    (b"grub_cmd: \0", b"", "boot_commands", ""),
    ("grub_cmd: \u00e9\0".encode(), "\u00e9".encode(), "boot_commands", "\u00e9"),
    (b"grub_cmd: \xff\0", b"\xff", "loaded_files", None),
    (b"grub_cmd: set a=b\0", b"set a=c", "loaded_files", None),
    (b"kernel_cmdline: /vmlinuz ro\0", b"/vmlinuz rw", "loaded_files", None),
    (b"other: x\0", b"x", "loaded_files", None),
    (b"MokList\0", b"x", "loaded_files", None),
)
def test_commands_are_learned_as_text_only_when_they_were_measured(data, content, field, value):
    reference = learn(LOADER, measured(IPL, data, content))
    expected = Hash.SHA256.digest(content).hex() if value is None else value
    assert reference == msgspec.convert({field: (expected,)}, BootReference)


@each(
    "holds, kind, data, field",
    ((Kind.FIRMWARE, Kind.APPLICATION), APPLICATION, b"x", "boot_applications"),
    ((Kind.FIRMWARE, Kind.ACTION), APPLICATION, b"x", "firmware"),
    ((Kind.FIRMWARE, Kind.APPLICATION), 0x06, b"x", "firmware"),
    ((Kind.FILE, Kind.OWNER_KEYS), IPL, b"MokListX\0", "owner_keys"),
    ((Kind.FILE, Kind.OWNER_KEYS), 0x06, b"MokListX\0", "loaded_files"),
    ((Kind.FILE,), IPL, b"grub_cmd: x\0", "loaded_files"),
    ((Kind.OWNER_KEYS,), 0x06, b"x", "owner_keys"),
)
def test_an_event_is_learned_as_its_register_allows(holds, kind, data, field):
    reference = learn(Register(1, 1, "PCR 1", holds), measured(kind, data, b"x"))
    assert reference == msgspec.convert({field: (Hash.SHA256.digest(b"x").hex(),)}, BootReference)


def test_known_measurements_are_not_learned():
    known = [b"Exit Boot Services Invocation", bytes(4), b"\xff" * 4]
    register = Register(5, 5, "PCR 5", (Kind.FIRMWARE,))
    assert learn(register, *(measured(0x06, b"", c) for c in known)) == BootReference()


def test_a_value_is_learned_once():
    assert len(learn(LOADER, *[measured(IPL, b"file\0", b"x")] * 3).loaded_files) == 1


# Merging.

OTHER = BootReference(
    registers={"10": (HEX,), "0": (HEX,)},
    unjudged=(5, 1),
    firmware=(HEX, REFERENCE.firmware[0]),
    variables={PolicyVariable.DBT: (HEX,), PolicyVariable.DB: (HEX,)},
    authorities=(HEX,),
    allow_unprotected_dma=True,
    boot_applications=(HEX,),
    boot_commands=("x",),
    kernel_command_lines=("y",),
    loaded_files=(HEX,),
    owner_keys=(HEX,),
)


def test_merging_accepts_what_either_accepts():
    merged = merge([REFERENCE, OTHER])
    assert list(merged.registers) == ["0", "2", "3", "6", "10"]
    assert merged.registers["0"] == (*REFERENCE.registers["0"], HEX)
    assert merged.unjudged == (1, 5)
    assert list(merged.variables) == ["PK", "KEK", "db", "dbx", "dbt"]
    assert merged.variables[PolicyVariable.DB] == (*REFERENCE.variables[PolicyVariable.DB], HEX)
    assert merged.firmware == (REFERENCE.firmware[0], *REFERENCE.firmware[1:], HEX)
    assert merged.allow_unprotected_dma
    assert merged.boot_commands == (*REFERENCE.boot_commands, "x")
    assert merged.kernel_command_lines == (*REFERENCE.kernel_command_lines, "y")
    for field in ("authorities", "boot_applications", "loaded_files", "owner_keys"):
        assert getattr(merged, field) == (*getattr(REFERENCE, field), HEX)


@each("reference", REFERENCE, OTHER, BootReference())
def test_merging_keeps_what_is_there(reference):
    merged = merge([reference, BootReference(), reference])
    for field in msgspec.structs.fields(BootReference):
        value, before = getattr(merged, field.name), getattr(reference, field.name)
        assert value == (before if isinstance(before, bool | dict) else type(value)(value))
        if isinstance(before, tuple):
            assert set(value) == set(before)
    assert merge([merged]) == merged
    assert merge([]) == BootReference()


# Judging.


def test_a_refusal_names_everything():
    judge = Rules(BootReference(), Hash.SHA256).judge
    given = (judge, LOADER, [measured(IPL, b"grub_cmd: reboot\0", b"reboot")])
    where = "PCR 8, entry 1 (EV_IPL)"
    error = vocabulary.refused(AttestationError, "ST-ATTS-214", *given, names=where)
    digest = Hash.SHA256.digest(b"reboot").hex()
    assert all(said in error.what for said in (digest, "boot_commands", "grub_cmd: reboot"))
    assert "enroll" in error.fix


def test_a_digest_of_another_hash_accepts_nothing():
    reference = BootReference(loaded_files=(Hash.SHA384.digest(b"x").hex(),))
    with pytest.raises(AttestationError):
        Rules(reference, Hash.SHA256).judge(LOADER, [measured(IPL, b"file\0", b"x")])
