# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Asking a kernel for a report; the kernel is a thread behind two pipes."""

import contextlib
import errno
import os
import threading
import uuid
from pathlib import Path

import pytest

from securetrain.attest.node import configfs
from securetrain.attest.node.configfs import collect, parse_certificate_table
from securetrain.core.errors import AttestationError
from securetrain.evidence.node_evidence import TeeKind
from securetrain.evidence.tee.snp_report import SigningKey
from tests import vocabulary
from tests.evidence.tee import forge, forge_amd
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge_amd import REPORT_DATA, AmdWorld
from tests.tables import forgeries, items

WORLD = AmdWorld()
VCEK, VLEK = "63da758d-e664-4564-adc5-f4b93be8accd", "a8074bc2-a25a-483e-aae6-39c045a0b8a1"
ASK, ARK = "4ab7b379-bbac-4fe4-a02f-05aef327c782", "c0b406a4-a803-4952-9743-3fb6014cd0ae"
OTHER = "ecae0c0f-9502-43b1-afa2-0ae2e0d565b6"


def table(*entries, end=True, shift=0, grow=0) -> bytes:
    """A certificate table of pairs of GUID and certificate."""
    offset = 24 * (len(entries) + end)
    head, body = b"", b""
    for guid, data in entries:
        place = offset + len(body) + shift
        head += uuid.UUID(guid).bytes
        head += place.to_bytes(4, "little") + (len(data) + grow).to_bytes(4, "little")
        body += data
    return head + bytes(24 if end else 0) + body


class Kernel:
    """Serves the requests that are made below a folder, one after the other."""

    def __init__(self, root: Path, monkeypatch, **behaviour):
        self.root = root
        self.provider = behaviour.get("provider", "sev_guest")
        self.report = behaviour.get("report", lambda data: WORLD.report(report_data=data))
        self.aux = behaviour.get("aux", b"")
        self.writes = list(behaviour.get("writes", []))
        """How often the generation is raised for each request; once when the list is over."""
        self.made: list[Path] = []
        self.removed: list[Path] = []
        mkdir, rmdir = Path.mkdir, Path.rmdir

        def make(path, *arguments, **options):
            mkdir(path, *arguments, **options)
            if path.parent == root:
                self.serve(path)

        def remove(path):
            if path.parent == root:
                self.removed.append(path)
            else:
                rmdir(path)

        monkeypatch.setattr(Path, "mkdir", make)
        monkeypatch.setattr(Path, "rmdir", remove)

    def serve(self, entry: Path):
        self.made.append(entry)
        (entry / "provider").write_text(f"{self.provider}\n")
        (entry / "generation").write_text("7\n")
        (entry / "auxblob").write_bytes(self.aux)
        os.mkfifo(entry / "inblob")
        os.mkfifo(entry / "outblob")
        threading.Thread(target=self.answer, args=(entry,), daemon=True).start()

    def answer(self, entry: Path):
        data = (entry / "inblob").read_bytes()
        writes = self.writes.pop(0) if self.writes else 1
        (entry / "generation").write_text(f"{7 + writes}\n")
        with contextlib.suppress(BrokenPipeError):
            (entry / "outblob").write_bytes(self.report(data))


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "report"
    folder.mkdir()
    return folder


def refused(code, text, root, **options):
    error = vocabulary.refused(AttestationError, code, collect, REPORT_DATA, root=root, **options)
    assert text in f"{error.what} {error.where}", error


def test_a_report_with_the_hosts_certificates(root, monkeypatch):
    good = [forge_amd.good_leaf(WORLD), *forge_amd.good_chain(WORLD)]
    aux = table((ARK, good[2]), (OTHER, b"more"), (VCEK, good[0]), (ASK, good[1]))
    kernel = Kernel(root, monkeypatch, aux=aux + bytes(100))
    evidence = collect(REPORT_DATA, root=root)
    assert evidence.kind is TeeKind.SEV_SNP
    assert evidence.certificates == tuple(good)
    assert evidence.event_log == b""
    assert WORLD.verify(evidence.report, certificates=evidence.certificates, vendor_chain=[])
    assert kernel.removed == kernel.made
    assert len(kernel.made) == 1


def test_a_report_signed_by_a_loaded_key(root, monkeypatch):
    world = AmdWorld(key=SigningKey.VLEK)
    aux = table((VCEK, b"chip"), (VLEK, b"loaded"), (ASK, b"intermediate"))
    make = {"report": lambda data: world.report(report_data=data), "aux": aux}
    Kernel(root, monkeypatch, **make)
    assert collect(REPORT_DATA, root=root).certificates == (b"loaded", b"intermediate")


@pytest.mark.parametrize("aux", [b"", table(), table((VLEK, b"x"), (ARK, b"y"))])
def test_a_host_without_the_keys_certificate(root, monkeypatch, aux):
    Kernel(root, monkeypatch, aux=aux)
    assert collect(REPORT_DATA, root=root).certificates == ()


@pytest.mark.parametrize("log", [b"", b"log" * 1000])
def test_a_quote_with_the_firmwares_log(root, monkeypatch, tmp_path, log):
    def make(data):
        return intel.quote(td={"report_data": data}) + bytes(3000)

    Kernel(root, monkeypatch, provider="tdx_guest", report=make)
    ccel = tmp_path / "CCEL"
    ccel.write_bytes(log)
    evidence = collect(intel.REPORT_DATA, root=root, event_log=ccel)
    assert evidence.kind is TeeKind.TDX
    assert intel.verify(evidence.report)
    assert evidence.certificates == ()
    assert evidence.event_log == log
    nothing = collect(intel.REPORT_DATA, root=root, event_log=tmp_path / "none")
    assert nothing.event_log == b""


def test_logs_that_cannot_be_read(root, monkeypatch, tmp_path):
    make = {"report": lambda data: intel.quote(td={"report_data": data}), "provider": "tdx_guest"}
    Kernel(root, monkeypatch, **make)
    refused("ST-ATTS-955", str(tmp_path), root, event_log=tmp_path)
    large = tmp_path / "large"
    large.write_bytes(bytes((1 << 20) + 1))
    refused("ST-ATTS-955", "more than", root, event_log=large)


def test_a_request_that_others_wrote_to_is_made_again(root, monkeypatch):
    kernel = Kernel(root, monkeypatch, writes=[2, 0, 1])
    assert collect(REPORT_DATA, root=root).report
    assert len(set(kernel.made)) == 3
    assert kernel.removed == kernel.made


def test_others_who_do_not_stop(root, monkeypatch):
    kernel = Kernel(root, monkeypatch, writes=[2] * 9)
    refused("ST-ATTS-953", "3 requests", root)
    assert len(kernel.made) == 3


@pytest.mark.forgery
def test_a_report_over_something_else_is_asked_for_again(root, monkeypatch):
    kernel = Kernel(root, monkeypatch, report=lambda _: WORLD.report(report_data=bytes(64)))
    refused("ST-ATTS-953", "3 requests", root)
    assert len(kernel.made) == 3


def test_no_confidential_guest(tmp_path):
    refused("ST-ATTS-950", "there is no", tmp_path / "none")


@items(
    "id, error, code",
    ("no-provider", errno.ENXIO, "ST-ATTS-950"),
    ("not-root", errno.EACCES, "ST-ATTS-952"),
)
def test_no_request_can_be_made(root, monkeypatch, error, code):
    def fail(path, *arguments, **options):
        raise OSError(error, "no")

    monkeypatch.setattr(Path, "mkdir", fail)
    refused(code, "no", root)


def test_a_provider_that_is_not_known(root, monkeypatch):
    kernel = Kernel(root, monkeypatch, provider="arm_cca_guest")
    refused("ST-ATTS-951", "arm_cca_guest", root)
    assert kernel.removed == kernel.made


@items(
    "behaviour, code",
    ({"report": lambda _: bytes(1184)}, "ST-ATTS-401"),
    ({"report": lambda _: b""}, "ST-ATTS-401"),
    ({"report": lambda _: bytes(70000)}, "ST-ATTS-952"),
    ({"report": lambda _: b"", "provider": "tdx_guest"}, "ST-ATTS-501"),
    ({"aux": bytes((64 << 10) + 1)}, "ST-ATTS-952"),
    ({"aux": table((VCEK, b"x"), grow=1)}, "ST-ATTS-954"),
    ({"provider": "\xff"}, "ST-ATTS-952"),
    ({"provider": "x" * 300}, "ST-ATTS-952"),
)
def test_kernels_that_answer_something_else(root, monkeypatch, behaviour, code):
    Kernel(root, monkeypatch, **behaviour)
    refused(code, "", root)


def test_report_data_of_another_size(root):
    vocabulary.refused(ValueError, "not 64", collect, bytes(32), root=root)


# Certificate tables.


def test_a_table():
    data = table((VCEK, b"abc"), (ASK, b""), (OTHER, b"de"))
    found = {str(guid): value for guid, value in parse_certificate_table(data).items()}
    assert found == {VCEK: b"abc", ASK: b"", OTHER: b"de"}
    assert parse_certificate_table(b"") == {}
    assert parse_certificate_table(bytes(24)) == {}


@forgeries(
    "data, text",
    (bytes(23), "wanted"),
    (table((VCEK, b"abc"), end=False), "wanted"),
    (table((VCEK, b"abc"), grow=1), "4 bytes at 48"),
    (table((VCEK, b"abc"), shift=1), "bytes at"),
    (table((VCEK, b"abc"), shift=-1), "free from"),
    (table((VCEK, b"abc"), (ASK, b"def"), grow=1), "free from"),
    (table((VCEK, b"abc"), (VCEK, b"abc")), "twice"),
    (table((VCEK, bytes(8193))), "8193 bytes"),
    (table(*((str(uuid.UUID(int=n)), b"") for n in range(1, 18))), "more than 16"),
    (table((VCEK, b"abc"), grow=(1 << 32) - 3 - 1), "bytes at"),
    (bytes((64 << 10) + 1), "the limit is"),
)
def test_tables_that_lie(data, text):
    vocabulary.refused(AttestationError, "ST-ATTS-954", parse_certificate_table, data, says=text)


def test_a_full_table():
    data = table(*((str(uuid.UUID(int=n)), bytes([n])) for n in range(1, 17)))
    assert len(parse_certificate_table(data)) == 16


def test_names_of_the_kernel():
    assert Path("/sys/kernel/config/tsm/report") == configfs.REPORTS
    assert forge.NOW.tzinfo is not None
