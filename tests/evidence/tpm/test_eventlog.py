# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The parser of event logs: real and made-up logs are read, every misfit is refused."""

import base64
import hashlib
import json
import struct

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.eventlog import LOG_LIMIT, EventType, parse, read, replay
from tests import vocabulary
from tests.evidence.tpm import bootlogs
from tests.evidence.tpm.bootlogs import (
    CRTM_VERSION,
    NO_ACTION,
    SHA1,
    SHA256,
    SHA384,
    SM3,
    encode,
    encode_entry,
    encode_legacy,
    event,
    good_boot,
    header,
)
from tests.evidence.vectors import needs_vectors, vector, vectors
from tests.tables import each, forgeries

FIRST = event(0, CRTM_VERSION, b"firmware")
BODY, HEAD = encode([FIRST])[: -len(FIRST.data) - 4], header()[:28]


def refused(code, log, *args, **more):
    return vocabulary.refused(AttestationError, code, parse, log, *args, **more)


# What is good.


@each("algorithms", (SHA256,), (SHA1, SHA256), (SHA1, SHA256, SHA384), (SHA384, SM3, SHA256))
def test_a_log_is_read_and_replays(algorithms):
    entries = good_boot()
    log = parse(encode(entries, algorithms))
    assert [(e.register, e.type, e.data, e.digest) for e in log.events] == [
        (e.register, e.type, e.data, e.digest()) for e in entries
    ]
    assert [e.index for e in log.events] == list(range(1, len(entries) + 1))
    values = replay(log)
    honest = bootlogs.registers(entries)
    assert values == {index: honest[index] for index in values}
    assert sorted(values) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14]


def test_the_bank_that_was_asked_for_is_read():
    log = parse(encode(good_boot(), (SHA256, SHA384)), Hash.SHA384)
    assert log.bank is Hash.SHA384
    assert log.banks == ("SHA256", "SHA384")
    assert replay(log)[7] == bootlogs.registers(good_boot(), SHA384)[7]


def test_digests_may_come_in_another_order_than_announced():
    digests = struct.pack("<IH", 2, SHA384) + FIRST.digest(SHA384)
    digests += struct.pack("<H", SHA256) + FIRST.digest(SHA256)
    log = header((SHA256, SHA384)) + encode_entry(FIRST, digests=digests)
    assert parse(log).events[0].digest == FIRST.digest(SHA256)


def test_a_header_alone_is_a_log_of_nothing():
    assert parse(header()).events == ()
    assert replay(parse(header())) == {}


def test_the_header_of_tdx_firmware_names_register_1():
    assert parse(header(register=1)).events == ()


def test_vendor_bytes_of_the_header_are_skipped():
    assert parse(header(vendor=b"\3abc")).banks == ("SHA256",)


def test_names():
    events = parse(encode([FIRST, event(0, 0x12345, b"")])).events
    assert [e.name for e in events] == ["EV_S_CRTM_VERSION", "event type 0x12345"]
    assert EventType(0x800000E0).name == "EFI_VARIABLE_AUTHORITY"


def test_the_events_of_one_register():
    log = parse(encode([FIRST, event(7, 4, b"x"), event(0, NO_ACTION, b"note"), FIRST]))
    assert [e.index for e in log.of(0)] == [1, 4]


@each("locality", 0, 3, 4)
def test_pcr_0_starts_from_the_locality(locality):
    start = event(0, NO_ACTION, b"StartupLocality\0" + bytes([locality]))
    value = replay(parse(encode([start, FIRST])))[0]
    assert value == hashlib.sha256(bytes(31) + bytes([locality]) + FIRST.digest()).digest()


def test_notes_measure_nothing_whatever_register_they_name():
    notes = [event(register, NO_ACTION, b"note") for register in (0, 7, 23, 24, 0xFFFFFFFF)]
    assert replay(parse(encode(notes))) == {}


# What is refused.


@forgeries(
    "id, log, said",
    ("empty", b"", "4 bytes wanted"),
    ("header-cut", header()[:31], "bytes wanted"),
    ("header-event-cut", header()[:-1], "bytes wanted"),
    ("last-byte-cut", encode([FIRST])[:-1], "bytes wanted"),
    ("entry-cut", encode([FIRST])[:-20], "bytes wanted"),
    ("one-byte-too-many", encode([FIRST]) + b"\0", "12 bytes wanted"),
    ("padded-with-zeros", encode([FIRST]) + bytes(64), "0 digests"),
    ("padded-with-ones", encode([FIRST]) + b"\xff" * 64, "digests"),
    ("event-of-4-gigabytes", BODY + b"\xff" * 4 + FIRST.data, "a length of 4294967295"),
    ("header-of-4-gigabytes", HEAD + b"\xff" * 4 + header()[32:], "a length of 4294967295"),
    ("over-1-MiB", encode([FIRST]) + bytes(LOG_LIMIT), "the limit is"),
    ("algorithm-twice", header((SHA256, SHA256)), "announced twice"),
    ("algorithm-unknown", header((SHA256, 0x77)), "0x0077 is unknown"),
    ("algorithm-zero", header((SHA256, 0)), "0x0000 is unknown"),
    ("digest-too-short", header(sizes={SHA256: 20}), "digests of SHA256 have 32 bytes"),
    ("digest-too-long", header(sizes={SHA256: 64}), "digests of SHA256 have 32 bytes"),
    ("no-algorithm", header(()), "0 algorithms"),
    ("4-G-algorithms", header(count=0xFFFFFFFF), "4294967295 algorithms"),
    ("too-many-algorithms", header(count=9), "9 algorithms"),
    ("more-algorithms-than-there-are", header(count=2), "bytes wanted"),
    ("another-major-version", header(version=(3, 0)), "version 3.0"),
    ("another-minor-version", header(version=(2, 1)), "version 2.1"),
    ("vendor-size-lies", header(vendor=b"\5abc"), "5 bytes wanted"),
    ("header-has-a-tail", header(vendor=b"\0abc"), "3 bytes follow"),
    ("header-names-a-register", header(register=7), "it names a register"),
    ("header-has-a-digest", header(digest=b"\1" + bytes(19)), "or has a digest"),
)
def test_malformed_logs(log, said):
    assert refused("ST-ATTS-201", log, says=said).where.startswith("event log")


@forgeries(
    "id, digests, said",
    ("none", struct.pack("<I", 0), "0 digests, the header announces 2"),
    ("one-of-two", struct.pack("<IH", 1, SHA256) + bytes(32), "1 digests, the header"),
    ("three-of-two", struct.pack("<I", 3) + bytes(34 * 3), "3 digests, the header"),
    ("2-G", struct.pack("<I", 1 << 31), "2147483648 digests"),
    ("twice", struct.pack("<IH32sH32s", 2, SHA256, b"", SHA256, b""), "or there twice"),
    ("unannounced", struct.pack("<IH32sH20s", 2, SHA256, b"", SHA1, b""), "unannounced"),
)
def test_digests_that_are_not_those_of_the_header(digests, said):
    log = header((SHA256, SHA384)) + encode_entry(FIRST, (SHA256, SHA384))
    wrong = log + encode_entry(FIRST, digests=digests)
    refused("ST-ATTS-201", wrong, says=said, names="event log, entry 2")


@forgeries("register", 24, 25, 0xFFFFFFFF)
def test_a_register_that_does_not_exist(register):
    log = encode([FIRST, event(register, CRTM_VERSION, b"x")])
    refused("ST-ATTS-201", log, says=f"register {register}", names="event log, entry 2")


@forgeries("register", 0, 5)
def test_a_measurement_register_that_does_not_exist(register):
    log = encode([event(register, CRTM_VERSION, b"x")], (SHA384,))
    refused("ST-ATTS-201", log, Hash.SHA384, registers=range(1, 5), says=f"register {register}")


@forgeries(
    "id, log",
    ("sha1-log", encode_legacy([FIRST])),
    ("event00", encode_legacy([event(0, NO_ACTION, b"Spec ID Event00\0")])),
    ("event02", encode_legacy([event(0, NO_ACTION, b"Spec ID Event02\0")])),
    ("header-that-was-measured", header(kind=CRTM_VERSION)),
    ("header-of-another-kind", header(signature=b"Spec ID Event04\0")),
)
def test_the_sha1_format_is_recognised_and_refused(log):
    assert "SHA-1" in refused("ST-ATTS-202", log).what
    assert read(log).legacy
    vocabulary.refused(AttestationError, "ST-ATTS-202", replay, read(log))


@forgeries("algorithms, named", ((SHA1,), "SHA1"), ((SM3,), "SM3_256"), ((SHA1, SHA384), "SHA384"))
def test_a_log_without_the_bank(algorithms, named):
    error = refused("ST-ATTS-203", encode(good_boot(), algorithms), says=named)
    assert "SHA256" in error.fix


def start(rest, register=0):
    return event(register, NO_ACTION, b"StartupLocality\0" + rest)


@forgeries(
    "id, entries, entry",
    ("late", [FIRST, start(b"\3")], 2),
    ("twice", [start(b"\3")] * 2, 2),
    ("locality-1", [start(b"\1")], 1),
    ("locality-2", [start(b"\2")], 1),
    ("empty", [start(b"")], 1),
    ("too-long", [start(b"\3\0")], 1),
    ("of-pcr-7", [start(b"\3", 7)], 1),
)
def test_a_startup_locality_that_cannot_be(entries, entry):
    log, where = parse(encode(entries)), f"event log, entry {entry}"
    vocabulary.refused(AttestationError, "ST-ATTS-201", replay, log, names=where)


# Padding, which CCEL tables have.


@each("padding", b"", b"\0" * 3, b"\0" * 5000, b"\xff" * 3, b"\xff" * 5000)
def test_padding_is_left_out(padding):
    assert parse(encode(good_boot()) + padding, padded=True) == parse(encode(good_boot()))


@forgeries(
    "id, tail",
    ("event-behind-zeros", bytes(64) + encode_entry(FIRST)),
    ("event-behind-ones", b"\xff" * 64 + encode_entry(FIRST)),
    ("one-byte-behind-zeros", bytes(8) + b"\1"),
    ("ones-behind-zeros", bytes(64) + b"\xff" * 64),
    ("zero-behind-ones", b"\xff" * 8 + b"\0"),
)
def test_content_behind_the_padding(tail):
    error = refused("ST-ATTS-201", encode([FIRST]) + tail, padded=True)
    assert error.what == "content follows the padding"


@forgeries("tail", b"\1" * 8, bytes(4) + b"\3" + bytes(3), b"\xff\xff\0\0")
def test_what_is_not_padding_is_an_entry(tail):
    assert "wanted" in refused("ST-ATTS-201", encode([FIRST]) + tail, padded=True).what


# For people.


def test_a_person_may_read_a_sha1_log():
    log = read(encode_legacy(good_boot()))
    assert log.legacy
    assert log.banks == ("SHA1",)
    assert [e.digest for e in log.events] == [e.digest(SHA1) for e in good_boot()]
    assert [e.index for e in log.events] == list(range(len(good_boot())))


@each(
    "algorithms, bank",
    ((SHA1, SHA384, SHA256), Hash.SHA256),
    ((SHA1, SHA384), Hash.SHA384),
    ((SHA1,), Hash.SHA1),
)
def test_a_person_sees_the_strongest_usual_bank(algorithms, bank):
    log = read(encode(good_boot(), algorithms) + bytes(100))
    assert log.bank is bank
    assert not log.legacy


@each(
    "code, log",
    ("ST-ATTS-201", encode_legacy([FIRST])[:-1]),
    ("ST-ATTS-201", encode_legacy([FIRST]) + b"\0"),
    ("ST-ATTS-201", bytes(LOG_LIMIT + 1)),
    ("ST-ATTS-203", encode([FIRST], (SM3,))),
)
def test_reading_for_people_is_strict_too(code, log):
    vocabulary.refused(AttestationError, code, read, log)


# Real logs.

LEGACY = {"debian-10.bin", "option_rom_eventlog"}


def real_logs():
    names = vectors("google__go-tpm-tools/**/*.bin")
    names += vectors("google__go-attestation/**/*_eventlog")
    return names or ["none"]


@needs_vectors
@each("name", *real_logs())
def test_real_logs_replay(name):
    log = vector(name)
    if name.rpartition("/")[2] in LEGACY:
        assert read(log).events
        refused("ST-ATTS-202", log)
        return
    assert replay(parse(log)) == _replay_by_hand(log)


def _replay_by_hand(log):
    sizes, values = {}, {}
    size = struct.unpack_from("<I", log, 28)[0]
    for index in range(struct.unpack_from("<I", log, 32 + 24)[0]):
        algorithm, length = struct.unpack_from("<HH", log, 32 + 28 + 4 * index)
        sizes[algorithm] = length
    at = 32 + size
    while at < len(log):
        register, kind, count = struct.unpack_from("<III", log, at)
        at += 12
        digests = {}
        for _ in range(count):
            (algorithm,) = struct.unpack_from("<H", log, at)
            digests[algorithm] = log[at + 2 : at + 2 + sizes[algorithm]]
            at += 2 + sizes[algorithm]
        (length,) = struct.unpack_from("<I", log, at)
        data = log[at + 4 : at + 4 + length]
        at += 4 + length
        if kind == NO_ACTION:
            if data.startswith(b"StartupLocality"):
                values[0] = bytes(31) + data[16:]
            continue
        before = values.get(register, bytes(32))
        values[register] = hashlib.sha256(before + digests[SHA256]).digest()
    return values


@needs_vectors
def test_keylimes_log_replays():
    log = base64.b64decode(vector("keylime__keylime/test/data/mb_log.b64"))
    assert len(parse(log).events) == 101
    assert replay(parse(log)) == _replay_by_hand(log)


@needs_vectors
def test_the_sha1_log_of_a_quoted_machine_gives_its_registers():
    """Nobody is judged by it; but its reading is right, for these registers were really quoted."""
    name = "google__go-attestation/attest/testdata/windows_gcp_shielded_vm.json"
    dump = json.loads(vector(name))["Log"]
    log = base64.b64decode(dump["Raw"])
    refused("ST-ATTS-202", log)
    quoted = {p["Index"]: base64.b64decode(p["Digest"]) for p in dump["PCRs"]}
    values: dict[int, bytes] = {}
    for entry in read(log).events:
        before = values.get(entry.register, bytes(20))
        values[entry.register] = hashlib.sha1(before + entry.digest).digest()
    assert {index: quoted[index] for index in values} == values
