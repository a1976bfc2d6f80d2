# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from securetrain.attest.node.tpm import measurements
from securetrain.attest.node.tpm.measurements import Measurements, Sources
from securetrain.evidence.node_evidence import ImaList, ImaParts
from securetrain.testing.bootlog import Boot
from securetrain.testing.measurement_lists import encode_ima, measure_files

FILES = measure_files({f"/usr/bin/tool-{n}": bytes([n]) for n in range(9)}, Boot().registers())
BINARY, ASCII = encode_ima(FILES), encode_ima(FILES, binary=False)


@pytest.fixture
def sources(tmp_path):
    found = Sources(
        event_log=tmp_path / "log", ima_binary=tmp_path / "binary", ima_ascii=tmp_path / "ascii"
    )
    found.event_log.write_bytes(Boot().log())
    found.ima_binary.write_bytes(BINARY)
    found.ima_ascii.write_bytes(ASCII)
    return found


def test_everything_is_there(sources):
    logs = Measurements(sources)
    assert logs.event_log() == Boot().log()
    assert logs.ima(0) == ImaList(binary=True, first=0, entries=BINARY)
    assert logs.notes == []


def test_nothing_is_there(tmp_path):
    names = {field.name: tmp_path / field.name for field in dataclasses.fields(Sources)}
    logs = Measurements(Sources(**names))
    assert logs.event_log() == b""
    assert logs.ima(0) is None
    assert len(logs.notes) == 3
    assert all("No such file" in note for note in logs.notes)


@pytest.mark.parametrize("count", [1, 9, 10])
def test_entries_that_were_seen_before_are_left_out(sources, count):
    logs = Measurements(sources)
    left = ImaList(binary=True, first=count, entries=encode_ima(FILES[count:]))
    assert logs.ima(count) == left
    sources.ima_binary.unlink()
    left = ImaList(binary=False, first=count, entries=encode_ima(FILES[count:], binary=False))
    assert logs.ima(count) == left


@pytest.mark.parametrize("binary", [True, False])
def test_a_shorter_list_is_that_of_another_boot(sources, binary):
    if not binary:
        sources.ima_binary.unlink()
    found = Measurements(sources).ima(11)
    assert found == ImaList(binary=binary, first=0, entries=BINARY if binary else ASCII)


def test_entries_of_the_oldest_template_are_skipped(sources):
    entry = bytes(4 + 20) + b"\3\0\0\0ima" + bytes(20) + b"\4\0\0\0/bin"
    sources.ima_binary.write_bytes(entry * 3)
    assert Measurements(sources).ima(2) == ImaList(binary=True, first=2, entries=entry)


def test_a_list_that_cannot_be_cut_is_left_out(sources):
    sources.ima_binary.write_bytes(BINARY[:-1])
    logs = Measurements(sources)
    assert logs.ima(10) is None
    assert "the IMA list is left out" in logs.notes[0]


@pytest.mark.parametrize("over", [0, 1])
def test_logs_over_their_limits_are_left_out(sources, monkeypatch, over):
    log = sources.event_log.read_bytes()
    monkeypatch.setattr(measurements, "EVENT_LOG_LIMIT", len(log) - over)
    monkeypatch.setattr(measurements, "IMA_SEND_LIMIT", len(BINARY) - over)
    logs = Measurements(sources)
    assert logs.event_log() == (b"" if over else log)
    assert (logs.ima(0) is None) == bool(over)
    assert len(logs.notes) == 2 * over
    # What was seen before does not count.
    rest = logs.ima(1)
    assert rest is not None
    assert rest.entries == encode_ima(FILES[1:])


@pytest.mark.parametrize("first", [0, 1])
def test_a_list_that_is_too_long_is_announced_where_it_will_be_asked_for(
    sources, monkeypatch, first
):
    monkeypatch.setattr(measurements, "IMA_SEND_LIMIT", 1)
    logs = Measurements(sources)
    assert logs.ima(first, in_parts=True) is None
    assert not logs.notes
    assert b"".join(logs.parts) == encode_ima(FILES[first:])
    assert logs.announced == ImaParts.of(first, logs.parts)
    sources.ima_binary.unlink()  # lines are not sent in parts
    logs = Measurements(sources)
    assert logs.ima(first, in_parts=True) is None
    assert logs.announced is None
    assert "over 1" in logs.notes[-1]


def test_a_list_over_the_limit_of_reading_is_left_out(sources, monkeypatch):
    monkeypatch.setattr(measurements, "IMA_READ_LIMIT", 100)
    logs = Measurements(sources)
    assert logs.ima(0) is None
    assert "limit of 100" in logs.notes[0]


def test_what_systemd_has_measured_and_what_came_with_the_image(tmp_path):
    """Most machines have neither, and nobody needs to hear of it."""
    found = Sources(userspace_log=tmp_path / "measure.log", pcr_signatures=tmp_path / "sig.json")
    logs = Measurements(found)
    assert (logs.userspace_log(), logs.pcr_signatures(), logs.notes) == (b"", b"", [])
    found.userspace_log.write_bytes(b"\x1e{}\n")
    found.pcr_signatures.write_bytes(b"{}")
    assert (logs.userspace_log(), logs.pcr_signatures()) == (b"\x1e{}\n", b"{}")
    found.userspace_log.write_bytes(bytes(measurements.USERSPACE_LOG_LIMIT + 1))
    assert logs.userspace_log() == b""
    assert len(logs.notes) == 1
