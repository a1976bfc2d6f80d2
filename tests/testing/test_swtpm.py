# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest
from cryptography import x509

from securetrain.attest.node.tpm.client import Range, Tpm
from securetrain.attest.node.tpm.endorsement import find
from securetrain.core.errors import UsageError
from securetrain.evidence.tpm.constants import Hash
from securetrain.testing import swtpm
from securetrain.testing.bootlog import Boot, replay
from securetrain.testing.measurement_lists import measure_files
from securetrain.testing.swtpm import SoftwareTpm
from tests.attest.swtpms import needs_swtpm
from tests.vocabulary import refused


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return tmp_path_factory.mktemp("ca")


def registers(machine):
    with Tpm.open(machine.address) as tpm:
        return tpm.pcr_read(Hash.SHA256, range(24))[1]


def test_missing_commands_are_named_with_their_packages(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "swtpm_setup" else name)
    assert swtpm.missing_commands() == ("swtpm_setup",)
    with pytest.raises(UsageError) as error:
        SoftwareTpm(tmp_path)
    assert error.value.code == "ST-USAG-004"
    assert "swtpm_setup" in error.value.what
    assert "apt-get install swtpm swtpm-tools" in error.value.fix
    assert list(tmp_path.iterdir()) == []


@needs_swtpm
def test_a_machine_has_what_attestation_needs(tmp_path, ca):
    with SoftwareTpm(tmp_path / "tpm", ca=ca) as machine, Tpm.open(machine.address) as tpm:
        assert tpm.pcr_banks() == {Hash.SHA256: tuple(range(24))}
        assert tpm.handles(Range.PERSISTENT) == (0x81010001, 0x81010016)
        key = find(tpm)
        assert key.template == "H-3"
        leaf = x509.load_der_x509_certificate(key.certificate)
        issuer = x509.load_pem_x509_certificate(machine.issuer_certificate.encode())
        root = x509.load_pem_x509_certificate(machine.root_certificate.encode())
        leaf.verify_directly_issued_by(issuer)
        issuer.verify_directly_issued_by(root)
        root.verify_directly_issued_by(root)


@needs_swtpm
def test_machines_of_one_ca_are_different(tmp_path, ca):
    with (
        SoftwareTpm(tmp_path / "1", ca=ca) as one,
        SoftwareTpm(tmp_path / "2", ca=ca) as two,
        SoftwareTpm(tmp_path / "3") as other,
    ):
        keys = []
        for machine in (one, two, other):
            with Tpm.open(machine.address) as tpm:
                keys.append(find(tpm).public.name)
        assert len(set(keys)) == 3
        assert one.root_certificate == two.root_certificate != other.root_certificate


@needs_swtpm
@pytest.mark.parametrize("tcp", [False, True])
def test_a_boot_is_simulated_and_forgotten(tmp_path, ca, tcp):
    boot = Boot()
    files = measure_files({"/bin/sh": b"sh"}, boot.registers())
    with SoftwareTpm(tmp_path / "tpm", ca=ca, tcp=tcp) as machine:
        assert machine.address.startswith("tcp:127.0.0.1:" if tcp else "unix:")
        address = machine.address
        empty = registers(machine)
        machine.boot(boot.digests(), files)
        expected = replay([*boot.digests(), *((10, entry.extends) for entry in files)])
        assert registers(machine) == {**empty, **expected}
        for orderly in (True, False):
            machine.reboot(orderly=orderly)
            assert registers(machine) == empty
            machine.boot(boot.digests())
        assert machine.address == address


@needs_swtpm
def test_the_same_folder_is_the_same_tpm(tmp_path, ca):
    names = []
    for _ in range(2):
        with SoftwareTpm(tmp_path / "tpm", ca=ca) as machine, Tpm.open(machine.address) as tpm:
            names.append(find(tpm).public.name)
    assert names[0] == names[1]


@needs_swtpm
def test_starting_and_stopping_twice_does_nothing(tmp_path, ca):
    machine = SoftwareTpm(tmp_path / "tpm", ca=ca)
    machine.stop()
    assert machine.pid == 0
    machine.start()
    pid = machine.pid
    machine.start()
    assert machine.pid == pid > 0
    machine.stop()
    machine.stop()
    assert machine.pid == 0


@needs_swtpm
def test_only_this_user_may_talk_to_it(tmp_path, ca):
    with SoftwareTpm(tmp_path / "tpm", ca=ca) as machine:
        path = Path(machine.address.removeprefix("unix:"))
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@needs_swtpm
def test_a_deep_folder_gets_a_socket_elsewhere(tmp_path, ca):
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    with SoftwareTpm(deep, ca=ca) as machine:
        path = Path(machine.address.removeprefix("unix:"))
        assert len(os.fsencode(path)) < 108
        assert registers(machine)
        machine.reboot()
        assert registers(machine)
        path = Path(machine.address.removeprefix("unix:"))
    assert not path.parent.exists()


@needs_swtpm
def test_a_relative_folder_is_made_absolute(tmp_path, ca, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SoftwareTpm(Path("tpm"), ca=ca) as machine:
        monkeypatch.chdir("/")
        assert registers(machine)
        machine.reboot()


@needs_swtpm
def test_what_a_killed_parent_left_is_ended(tmp_path, ca):
    first = SoftwareTpm(tmp_path / "tpm", ca=ca)
    first.start()
    left = first._process
    assert left is not None
    # As if the parent had been killed: nobody remembers the process.
    with SoftwareTpm(tmp_path / "tpm", ca=ca) as second:
        assert left.wait(10) == -signal.SIGKILL
        assert registers(second)


@needs_swtpm
def test_another_process_with_that_number_is_left_alone(tmp_path, ca):
    machine = SoftwareTpm(tmp_path / "tpm", ca=ca)
    with subprocess.Popen(["sleep", "60"]) as bystander:
        (tmp_path / "tpm" / "swtpm.pid").write_text(str(bystander.pid))
        with machine:
            assert registers(machine)
        assert bystander.poll() is None
        bystander.kill()


@needs_swtpm
@pytest.mark.parametrize("content", ["", "x", "-1", "999999999"])
def test_a_pid_file_may_hold_anything(tmp_path, ca, content):
    machine = SoftwareTpm(tmp_path / "tpm", ca=ca)
    (tmp_path / "tpm" / "swtpm.pid").write_text(content)
    with machine:
        assert registers(machine)


@needs_swtpm
def test_a_tpm_that_was_killed_starts_again(tmp_path, ca):
    with SoftwareTpm(tmp_path / "tpm", ca=ca) as machine:
        os.kill(machine.pid, signal.SIGKILL)
        time.sleep(0.05)
        machine.reboot()
        assert registers(machine)


@needs_swtpm
def test_a_failure_to_start_is_told(tmp_path, ca):
    machine = SoftwareTpm(tmp_path / "tpm", ca=ca, tcp=True)
    port = int(machine._server().rpartition("port=")[2].partition(",")[0])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen(1)
        with pytest.raises(UsageError) as error:
            machine.start()
    assert error.value.code == "ST-USAG-002"
    assert "did not come up" in error.value.what
    assert machine.pid == 0


@needs_swtpm
def test_a_failure_to_make_one_is_told(tmp_path):
    ca = tmp_path / "ca"
    ca.mkdir()
    (ca / "issuercert.pem").mkdir()
    refused(
        UsageError, "ST-USAG-002", SoftwareTpm, tmp_path / "tpm", ca=ca, says="swtpm_setup failed"
    )
