# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.attest.node.software import collect_software
from securetrain.core import canonical
from securetrain.core.errors import AttestationError
from securetrain.evidence import selfreport
from securetrain.evidence.selfreport import (
    BODY_LIMIT,
    MAX_VALUES,
    SELF_ASSERTED_TYPE,
    SoftwareEvidence,
    parse_software,
)
from tests.tables import forgeries, items
from tests.vocabulary import refused


@pytest.fixture
def machine(tmp_path):
    """A machine's files below a root of their own."""
    files = {
        "proc/sys/kernel/osrelease": "6.1.0\n",
        "proc/cmdline": "quiet lockdown=integrity\n",
        "proc/sys/kernel/tainted": "0\n",
        "proc/cpuinfo": "processor: 0\nmodel name\t: A CPU\nmodel name\t: Another\n",
        "proc/meminfo": "MemTotal:       1024 kB\n",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t H200\nSerial: 7\n",
        "sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
        "sys/module/module/parameters/sig_enforce": "Y\n",
        "sys/class/dmi/id/sys_vendor": "Vendor\n",
        "sys/class/dmi/id/product_name": "Product\n",
        "sys/class/dmi/id/bios_version": "1.0\n",
        "etc/machine-id": "0123456789abcdef\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def collect(root, job="job-1", **environ):
    return collect_software(job=job, executable=root / "proc/cmdline", environ=environ, root=root)


def test_what_is_collected(machine):
    found = collect(machine, LD_PRELOAD="/evil.so", SECRET_TOKEN="hunter2")
    assert found.kernel.release == "6.1.0"
    assert found.kernel.lockdown == "none [integrity] confidentiality"
    assert found.kernel.tainted == "0"
    assert found.hardware.cpu_model == "A CPU"
    assert found.hardware.memory_bytes == 1024 * 1024
    assert found.hardware.gpus == ("H200",)
    assert found.hardware.tpm_device is False
    executable = (machine / "proc/cmdline").read_bytes()
    assert found.software.executable_sha256 == hashlib.sha256(executable).hexdigest()
    assert found.software.packages["securetrain"]
    assert found.software.loader_variables == {"LD_PRELOAD": "/evil.so"}
    assert found.missing == ()


def test_no_secrets_and_no_serial_numbers(machine):
    text = canonical.encode(collect(machine, SECRET_TOKEN="hunter2")).decode()
    assert "hunter2" not in text
    assert "0123456789abcdef" not in text, "the machine id is hashed"
    assert "Serial" not in text


def test_the_machine_id_cannot_be_linked_over_jobs(machine):
    one, two = collect(machine, "job-1"), collect(machine, "job-2")
    assert one.machine_id_sha256 != two.machine_id_sha256
    assert one.machine_id_sha256 == collect(machine, "job-1").machine_id_sha256


def test_what_is_missing_is_listed(machine):
    (machine / "sys/kernel/security/lockdown").unlink()
    (machine / "etc/machine-id").unlink()
    found = collect(machine)
    assert set(found.missing) == {"sys/kernel/security/lockdown", "etc/machine-id"}
    assert found.machine_id_sha256 == ""


def test_an_empty_machine(tmp_path):
    found = collect(tmp_path)
    assert "executable" in found.missing
    assert found.hardware.memory_bytes == 0
    assert parse_software(canonical.encode(found)) == found


@pytest.mark.parametrize("value", ["\u00b2 kB", "-5 kB", "", "many kB"])
def test_numbers_that_are_none(machine, value):
    (machine / "proc/meminfo").write_text(f"MemTotal: {value}\n")
    assert collect(machine).hardware.memory_bytes == 0


def test_long_files_are_cut(machine):
    (machine / "proc/cmdline").write_text("x" * 100_000)
    assert len(collect(machine).kernel.command_line) == 4096


def test_this_machine():
    found = collect_software(job="j", executable=Path(sys.executable), environ={})
    assert found.hardware.num_cpus > 0
    assert found.software.executable_sha256
    assert parse_software(canonical.encode(found)) == found


def names_of(kind) -> set[str]:
    found = set()
    for field in msgspec.structs.fields(kind):
        found.add(field.name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found |= names_of(field.type)
    return found


def test_nothing_in_it_claims_a_judgement():
    forbidden = ("verif", "attest", "trust", "secure_boot_ok", "valid", "tier", "pass")
    names = names_of(SoftwareEvidence)
    assert len(names) > 20
    assert [n for n in names for word in forbidden if word in n and n != "securetrain"] == []
    assert "self-asserted" in SELF_ASSERTED_TYPE


@items(
    "change",
    {"tier": "tpm"},
    {"attested": True},
    {"missing": "nothing"},
    {"machine_id_sha256": "x" * 129},
    {"missing": ["x"] * 65},
)
def test_claims_and_overlong_fields_are_refused(machine, change):
    body = canonical.loads(canonical.encode(collect(machine)))
    parse_software(canonical.dumps(body))  # the control
    refused(AttestationError, "ST-ATTS-001", parse_software, canonical.dumps({**body, **change}))


@pytest.mark.forgery
@items(
    "id, old, new",
    ("white-space", b'"tainted":"0"', b'"tainted": "0"'),
    ("a-key-twice", b'"tainted":"0"', b'"tainted":"0","tainted":"0"'),
    ("an-escape-without-need", b'"tainted":"0"', b'"tainted":"\\u0030"'),
    ("half-a-letter", b'"tainted":"0"', b'"tainted":"\\ud800"'),
    ("not-utf-8", b'"tainted":"0"', b'"tainted":"\xff"'),
    ("a-fraction", b'"memory_bytes":1048576', b'"memory_bytes":1048576.0'),
    ("an-exponent", b'"memory_bytes":1048576', b'"memory_bytes":1e6'),
    ("a-number-for-a-truth", b'"tpm_device":false', b'"tpm_device":0'),
    ("a-line-before", b'{"hardware":', b'\n{"hardware":'),
    ("a-byte-order-mark", b'{"hardware":', b'\xef\xbb\xbf{"hardware":'),
)
def test_there_is_one_spelling(machine, old, new):
    body = canonical.encode(collect(machine))
    assert parse_software(body) == collect(machine)
    altered = body.replace(old, new, 1)
    assert altered != body
    refused(AttestationError, "ST-ATTS-001", parse_software, altered)


def test_other_orders_of_keys_are_refused(machine):
    text = json.loads(canonical.encode(collect(machine)))
    body = json.dumps(dict(reversed(text.items())), separators=(",", ":")).encode()
    refused(AttestationError, "canonical", parse_software, body)


def test_letters_of_any_kind_are_spelt_as_rfc_8785_says(machine):
    found = collect(machine, LD_PRELOAD='/\u00e9\u2028\x7f\t"\\\U0001f600')
    assert parse_software(canonical.encode(found)) == found


def test_a_body_over_the_limit_is_not_read(monkeypatch, machine):
    body = canonical.encode(collect(machine))
    monkeypatch.setattr(selfreport, "BODY_LIMIT", len(body))
    parse_software(body)
    monkeypatch.setattr(selfreport, "BODY_LIMIT", len(body) - 1)
    refused(AttestationError, "the limit is", parse_software, body)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_code(data):
    refused(AttestationError, "ST-ATTS-001", parse_software, data)


@forgeries(
    "id, body, what",
    ("size", b" " * (BODY_LIMIT + 1), f"the limit is {BODY_LIMIT}"),
    ("values", b'{"missing":["x"' + b',"x"' * MAX_VALUES + b",x]}", "values"),
    ("depth", b"[" * 100_000, ""),
)
def test_sizes_are_looked_at_first(body, what):
    """Whatever it holds, it is not built before its bounds are known."""
    refused(AttestationError, "ST-ATTS-001", parse_software, body, says=what)
