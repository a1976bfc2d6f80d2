# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import hashlib
from datetime import UTC, datetime

import pytest
from cryptography import x509

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm import eventlog
from securetrain.evidence.tpm.boot import appraise_boot, learn_boot
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.ima_list import parse_ascii, parse_binary, split_ascii, split_binary
from securetrain.testing.bootlog import (
    Boot,
    certificate,
    replay,
)
from securetrain.testing.measurement_lists import encode_ima, measure_files
from tests.tables import items


def test_a_boot_has_the_same_bytes_on_every_run():
    assert hashlib.sha256(Boot().log()).hexdigest() == (
        "55494bf18ca33b5663364b731ec871b1db90714e0224e17853ee1e6097b42205"
    )


@pytest.mark.parametrize("banks", [(Hash.SHA256,), (Hash.SHA1, Hash.SHA256, Hash.SHA384)])
def test_the_strict_parser_reads_the_log_and_replays_it(banks):
    boot = Boot()
    for bank in banks[-1:]:
        log = eventlog.parse(boot.log(banks), bank)
        registers = eventlog.replay(log)
        assert registers == {pcr: boot.registers(bank)[pcr] for pcr in registers}
        assert set(registers) == set(range(10))


@pytest.mark.parametrize("enabled", [True, False])
def test_the_boot_is_one_that_a_verifier_understands(enabled):
    boot = Boot(secure_boot=enabled)
    reference = learn_boot(boot.log(), boot.registers())
    appraise_boot(boot.log(), boot.registers(), reference, secure_boot=enabled)
    if not enabled:
        with pytest.raises(AttestationError) as error:
            appraise_boot(boot.log(), boot.registers(), reference, secure_boot=True)
        assert error.value.code == "ST-ATTS-208"


@pytest.mark.forgery
@items(
    "id, other, code, where",
    ("firmware", Boot(firmware=b"other"), "ST-ATTS-216", "PCR 0"),
    ("boot-loader", Boot(boot_loader=b"other"), "ST-ATTS-213", "PCR 4"),
    ("kernel", Boot(kernel=b"other"), "ST-ATTS-213", "PCR 4"),
    ("initrd", Boot(initrd=b"other"), "ST-ATTS-215", "PCR 9"),
    ("command-line", Boot(command_line="init=/bin/sh"), "ST-ATTS-214", "PCR 8"),
    ("db", Boot(db=("other",)), "ST-ATTS-211", "PCR 7"),
    ("dbx", Boot(dbx=()), "ST-ATTS-211", "PCR 7"),
)
def test_another_boot_is_refused(other, code, where):
    reference = learn_boot(Boot().log(), Boot().registers())
    with pytest.raises(AttestationError) as error:
        appraise_boot(other.log(), other.registers(), reference, secure_boot=True)
    assert error.value.code == code
    assert error.value.where.startswith(where)


def test_every_field_is_measured():
    plain = Boot().registers()
    changes = {
        0: (Boot(firmware=b"x"), Boot(firmware_version="x")),
        4: (Boot(boot_loader=b"x"), Boot(kernel=b"x")),
        7: (Boot(secure_boot=False), Boot(db=("x",)), Boot(dbx=())),
        8: (Boot(command_line="x"),),
        9: (Boot(kernel=b"x"), Boot(initrd=b"x")),
    }
    for pcr, boots in changes.items():
        for boot in boots:
            differing = {p for p, value in boot.registers().items() if value != plain[p]}
            assert pcr in differing
            assert differing <= {pcr, 4, 9}


def test_files_are_measured_behind_the_boot_aggregate():
    registers = Boot().registers()
    entries = measure_files({"/bin/sh": b"sh"}, registers)
    aggregate = hashlib.sha256(b"".join(registers[pcr] for pcr in range(10))).digest()
    assert [(e.name, e.digest) for e in entries] == [
        (b"boot_aggregate", b"sha256:\0" + aggregate),
        (b"/bin/sh", b"sha256:\0" + hashlib.sha256(b"sh").digest()),
    ]


def test_both_spellings_of_the_list_say_the_same():
    entries = measure_files({"/bin/sh": b"sh", "/bin/ls": b"ls"}, Boot().registers())
    binary = [parse_binary(entry) for entry in split_binary(encode_ima(entries))]
    text = [parse_ascii(line) for line in split_ascii(encode_ima(entries, binary=False))]
    assert binary == text
    assert len(binary) == 3


def test_certificates_depend_on_their_name_alone():
    parsed = x509.load_der_x509_certificate(certificate("a"))
    parsed.verify_directly_issued_by(parsed)
    assert parsed.not_valid_after_utc > datetime(2100, 1, 1, tzinfo=UTC)
    certificate.cache_clear()
    assert x509.load_der_x509_certificate(certificate("a")) == parsed
    assert certificate("b") != certificate("a")


def test_replay_starts_at_zero():
    assert replay([]) == {pcr: bytes(32) for pcr in range(10)}
    one = hashlib.sha256(bytes(32) + b"d" * 32).digest()
    assert replay([(14, b"d" * 32)])[14] == one
