# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""PCR 11 to 15: what boots as a unified kernel image, and everything that could be said instead."""

import functools
import random
import subprocess
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm import userspace_log
from securetrain.evidence.tpm.eventlog import parse
from securetrain.evidence.tpm.late import (
    LATE_PCRS,
    SECTIONS,
    LateAppraiser,
    LateReference,
    learn_late,
    merge_late,
)
from securetrain.evidence.tpm.pcr_policy import DOCUMENT_LIMIT, TRIES, load_policy_key
from securetrain.evidence.tpm.userspace_log import LOG_LIMIT, leads_to, parse_userspace_log
from tests import vocabulary
from tests.evidence.tpm import bootlogs
from tests.evidence.tpm import lateboots as uki
from tests.evidence.vectors import needs_vectors, vector, vectors
from tests.rsa_keys import rsa_key
from tests.tables import each, forgeries

GOOD = uki.UkiBoot()
KEY = rsa_key(2048, 5)
OTHER = rsa_key(2048, 6)
MEASURE = Path("/usr/lib/systemd/systemd-measure")


@functools.cache
def good():
    return taught(GOOD)


def learned(boot=GOOD):
    return good() if boot is GOOD else taught(boot)


def taught(boot):
    return learn_late(parse(boot.log()), boot.userspace_log(), boot.pcrs())


def judge(boot=GOOD, reference=None, *, pcrs=None, userspace=None, signatures=b"", before=None):
    log = parse(boot.log()) if before is None else None
    said = boot.userspace_log() if userspace is None else userspace
    appraiser = LateAppraiser(reference or learned())
    return appraiser.appraise(log, said, signatures, pcrs or boot.pcrs(), before)


def refused(code, *args, **kwargs):
    return vocabulary.refused(AttestationError, code, judge, *args, **kwargs)


def without(reference=None, **changes):
    return msgspec.structs.replace(reference or learned(), **changes)


# What must work.


def test_a_unified_kernel_image_that_was_learned():
    reference = learned()
    assert list(reference.sections) == list(uki.IMAGE)
    assert reference.words == {"12": (uki.LINE,), "15": (uki.ROOT,)}
    assert {name: len(values) for name, values in reference.digests.items()} == {
        "12": 1,
        "13": 1,
        "14": 1,
    }
    assert reference.any_machine_id
    assert reference.volume_keys == 1
    progress = judge()
    assert (progress.phase, progress.free) == (4, 1)


def test_another_machine_of_the_same_image():
    boot = GOOD.changed(userspace=[*uki.PHASES, uki.word(15, "machine-id:" + "77" * 16)])
    judge(boot)
    refused("ST-ATTS-241", boot, without(any_machine_id=False, machine_ids=("5e" * 16,)))
    judge(boot, without(any_machine_id=False, machine_ids=("77" * 16,)))


def test_a_machine_that_measures_nothing_there():
    nothing = uki.UkiBoot(firmware=[], userspace=[])
    assert learned(nothing) == LateReference()
    judge(nothing, LateReference())
    assert "no unified kernel image" in refused("ST-ATTS-241", nothing).what


@each("done", *range(8))
def test_entries_behind_the_quoted_value_are_no_evidence(done):
    """The log is read after the quote: it may be further."""
    assert judge(pcrs=GOOD.pcrs(done)).phase == min(done, 4)


def test_a_boot_that_goes_on_during_a_lease():
    late = judge(before=judge(pcrs=GOOD.pcrs(2)))
    assert late.phase == 4
    assert judge(before=late) is late


def test_both_of_two_boots_merged():
    other = uki.UkiBoot(firmware=[*uki.sections({".linux": b"another kernel"}), uki.line("other")])
    merged = merge_late(merge_late(None, learned()), learned(other))
    judge(GOOD, merged)
    judge(other, merged)
    refused("ST-ATTS-241", other)


@each("id, key", ("RSA", KEY), ("P", ec.generate_private_key(ec.SECP256R1())))
def test_a_signed_prediction(key):
    reference = without(sections={}, policy_keys=(uki.pem(OTHER), uki.pem(key)))
    pcrs = GOOD.pcrs()
    judge(reference=reference, signatures=uki.signed(uki.prediction(key, pcrs)))
    both = uki.signed(uki.prediction(key, GOOD.pcrs(1)), uki.prediction(key, pcrs, (11, 12)))
    judge(reference=reference, signatures=both)


def test_whole_values_and_registers_that_are_left_open():
    pcrs = GOOD.pcrs()
    pinned = LateReference(registers={str(n): (pcrs[n].hex(),) for n in LATE_PCRS})
    judge(reference=pinned)
    assert refused("ST-ATTS-216", reference=pinned, pcrs=GOOD.pcrs(3)).where == "PCR 11"
    judge(reference=LateReference(unjudged=tuple(LATE_PCRS)), pcrs={**pcrs, 12: bytes(32)})


@pytest.mark.skipif(not MEASURE.exists(), reason="NO ORACLE: systemd-measure is not installed")
def test_systemd_measure_predicts_what_we_replay(tmp_path):
    arguments = [str(MEASURE), "calculate", "--bank=sha256"]
    image = {name: content for name, content in uki.IMAGE.items() if name in SECTIONS[:4]}
    for name, content in image.items():
        (tmp_path / name[1:]).write_bytes(content)
        arguments.append(f"--{name[1:]}={tmp_path / name[1:]}")
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=120)
    predicted = [row.rpartition("=")[2] for row in done.stdout.splitlines() if row.startswith("11")]
    boot = uki.UkiBoot(firmware=list(uki.sections(image)), userspace=uki.PHASES)
    assert predicted == [boot.pcrs(count)[11].hex() for count in range(1, 5)]
    judge(boot, without(registers={"11": tuple(predicted)}))


@needs_vectors
def test_real_logs_of_shim():
    """Every crypto-agile log of others with machine owner's keys, learned and judged."""
    seen = 0
    for name in vectors("google__go-tpm-tools/**/*.bin"):
        try:
            log = parse(vector(name))
        except AttestationError:
            continue
        values = {n: bytes(32) for n in range(16)}
        for event in log.events:
            if event.register in LATE_PCRS and event.type != bootlogs.NO_ACTION:
                values[event.register] = uki.sha256(values[event.register] + event.digest)
        reference = learn_late(log, b"", values)
        LateAppraiser(reference).appraise(log, b"", b"", values)
        seen += bool(reference.digests.get("14"))
    assert seen >= 6


# Forgeries. Registers hold what the forger extended: only the rules stand between.


def forged(**lists):
    return GOOD.changed(**lists)


def replaced(image=None, **changes):
    return [*uki.sections({**uki.IMAGE, **(image or {}), **changes}), *GOOD.firmware[14:]]


@forgeries("name", *uki.IMAGE)
def test_another_section(name):
    """The plain stack (PCR 0 to 10 alone) sees no difference."""
    boot = forged(firmware=replaced({name: b"of the attacker"}))
    assert {n: boot.pcrs()[n] for n in range(11)} == {n: GOOD.pcrs()[n] for n in range(11)}
    assert name in refused("ST-ATTS-241", boot).what


FIRST, KERNEL, REST = GOOD.firmware[:2], GOOD.firmware[:14], GOOD.firmware[14:]
ANYTHING = bootlogs.event(11, bootlogs.IPL, b"anything")


@forgeries(
    "id, firmware",
    ("command-line", [*GOOD.firmware, uki.line("root=/dev/vda1 init=/bin/sh")]),
    ("add-on", [*GOOD.firmware, uki.addon(b"another add-on")]),
    ("extension", [*GOOD.firmware, uki.addon(b"an extension", 13)]),
    ("owner-keys", [*GOOD.firmware, uki.owner_keys(b"the attacker's key")]),
    ("identity", [*GOOD.firmware, bootlogs.event(15, bootlogs.IPL, b"?")]),
    ("two-images", [*uki.sections({".linux": b"first"}), *GOOD.firmware]),
    ("order", [*GOOD.firmware[2:], *FIRST]),
    ("no-kernel", GOOD.firmware[2:]),
    ("name-without-content", [FIRST[0], *GOOD.firmware[2:]]),
    ("name-alone", [*KERNEL, FIRST[0], *REST]),
    ("twice", [*FIRST, *GOOD.firmware]),
    ("more", [*KERNEL, ANYTHING, *REST]),
    ("nothing", REST),
)
def test_other_events_of_the_firmware(firmware):
    refused("ST-ATTS-241", forged(firmware=firmware))


@forgeries(
    "userspace",
    [uki.word(11, "leave-initrd"), uki.word(11, "enter-initrd")],
    [uki.word(11, "ready"), uki.word(11, "ready")],
    [*uki.PHASES, uki.word(11, "something")],
    [*uki.PHASES, uki.word(12, "something")],
    [*uki.PHASES, uki.word(13, "something")],
    [*uki.PHASES, uki.word(14, "something")],
    [*uki.PHASES, uki.volume_key(), uki.volume_key("again")],
    [*uki.PHASES, uki.volume_key(), uki.word(15, "file-system:/:btrfs")],
    [uki.Said(11, b"something", "enter-initrd")],
    [uki.Said(12, b"something", uki.LINE)],
    [uki.Said(15, b"x", "y"), uki.Said(15, b"x", uki.MACHINE)],
    [*uki.PHASES[:1], *map(uki.Said, [11], [b".linux\0"], [".linux"])],
)
def test_other_extensions_of_root(userspace):
    refused("ST-ATTS-241", forged(userspace=userspace))


@pytest.mark.forgery
def test_a_record_says_what_its_digest_is_of():
    """The words beside another digest are kept as a claim, and say nothing."""
    honest, lie = uki.word(11, "ready"), uki.Said(11, b"something", "ready")
    found = parse_userspace_log(honest.record() + lie.record())
    assert [(one.text, one.claimed) for one in found] == [("ready", "ready"), ("", "ready")]


def test_a_log_has_so_many_records(monkeypatch):
    monkeypatch.setattr(userspace_log, "_RECORDS", 3)
    assert len(parse_userspace_log(uki.word(11, "ready").record() * 3)) == 3
    vocabulary.refused(
        AttestationError, "ST-ATTS-240", parse_userspace_log, uki.word(11, "ready").record() * 4
    )


def test_a_register_that_the_quote_leaves_out_teaches_nothing():
    log, said = parse(GOOD.log()), GOOD.userspace_log()
    for left_out in LATE_PCRS:
        pcrs = {index: value for index, value in GOOD.pcrs().items() if index != left_out}
        error = vocabulary.refused(AttestationError, "ST-ATTS-205", learn_late, log, said, pcrs)
        assert error.where == f"PCR {left_out}"


def test_sections_are_learned_of_their_register_alone():
    twelve = [bootlogs.event(12, bootlogs.IPL, word) for word in (b".linux\0", b"more\0")]
    found = taught(GOOD.changed(firmware=[*GOOD.firmware[:14], *twelve, *GOOD.firmware[14:]]))
    assert found.sections == learned().sections


def test_a_phase_is_one_in_its_register_alone():
    boot = GOOD.changed(
        userspace=[*uki.PHASES, uki.word(11, "something"), uki.word(12, "enter-initrd")]
    )
    found = taught(boot)
    assert found.words["11"] == ("something",)
    assert "enter-initrd" in found.words["12"]
    judge(boot, found)


def test_a_machine_id_in_another_register_opens_none():
    boot = GOOD.changed(userspace=[*uki.PHASES, uki.word(12, uki.MACHINE)])
    assert not taught(boot).any_machine_id
    assert taught(GOOD).any_machine_id


def test_only_what_root_measured_of_a_node_is_a_volume_key():
    without_text = GOOD.changed(
        firmware=[*GOOD.firmware, bootlogs.event(15, bootlogs.IPL, b"", b"of the firmware")],
        userspace=[*uki.PHASES, uki.Said(12, b"something", "")],
    )
    found = taught(without_text)
    assert found.volume_keys == 0
    assert len(found.digests["15"]) == 1
    assert len(found.digests["12"]) == len(learned().digests.get("12", ())) + 1


@each("first", True, False)
@each("second", True, False)
def test_machine_ids_are_open_when_either_boot_leaves_them_open(first, second):
    one, other = (without(any_machine_id=held) for held in (first, second))
    assert merge_late(one, other).any_machine_id is (first or second)


@forgeries(
    "id, key",
    ("short", rsa_key(1024)),
    ("curve", ec.generate_private_key(ec.SECP256K1())),
    ("kind", ed25519.Ed25519PrivateKey.generate()),
)
def test_a_key_that_signs_predictions_is_too_weak_or_of_another_kind(key):
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    vocabulary.refused(AttestationError, "ST-ATTS-009", load_policy_key, pem, "late.policy_keys")
    load_policy_key(uki.pem(KEY), "late.policy_keys")


@forgeries(
    "id, mine",
    ("RSA", KEY),
    ("P-256", ec.generate_private_key(ec.SECP256R1())),
    ("P-384", ec.generate_private_key(ec.SECP384R1())),
)
def test_a_prediction_by_another_key_of_the_same_kind(mine):
    other = OTHER if mine is KEY else ec.generate_private_key(mine.curve)
    reference, pcrs = predicted(mine), GOOD.pcrs()
    judge(reference=reference, signatures=uki.signed(uki.prediction(mine, pcrs)))
    refused("ST-ATTS-242", reference=reference, signatures=uki.signed(uki.prediction(other, pcrs)))


def predicted(key=KEY):
    """Reference values by which signed predictions alone open PCR 11."""
    return without(sections={}, policy_keys=(uki.pem(key),))


def test_predictions_of_other_values_are_not_counted_as_tries():
    one = uki.prediction(KEY, GOOD.pcrs())
    others = [uki.prediction(KEY, GOOD.pcrs(1)) for _ in range(TRIES)]
    judge(reference=predicted(), signatures=uki.signed(*others, one))


def test_no_predictions_and_too_many():
    refused("ST-ATTS-242", reference=predicted(), says="sent no signatures")
    large = uki.signed(uki.prediction(KEY, GOOD.pcrs())) + b" " * DOCUMENT_LIMIT
    refused("ST-ATTS-242", reference=predicted(), signatures=large, says="the limit is")


@pytest.mark.forgery
def test_the_log_ends_behind_the_name_of_a_section():
    name = bootlogs.event(11, bootlogs.IPL, b".linux\0")
    refused("ST-ATTS-241", forged(firmware=[name], userspace=[]), says="has no content")


@pytest.mark.forgery
def test_the_firmware_measures_no_volume_key():
    """Root alone has keys of volumes; what anything before it measures there is not one."""
    rest = [one for one in GOOD.userspace if one != uki.volume_key()]
    assert learned().volume_keys == 1
    judge(forged(userspace=rest))
    firmware = [*GOOD.firmware, bootlogs.event(15, bootlogs.IPL, b"?")]
    refused("ST-ATTS-241", forged(firmware=firmware, userspace=rest))


def lies(source, base):
    """One lie about an honest boot: registers stay, the logs change."""
    kind = source.randrange(6)
    records = [one.record() for one in base.userspace]
    at = source.randrange(len(records))
    if kind == 0:
        del records[at]
    elif kind == 1:
        records.insert(at, uki.word(base.userspace[at].pcr, f"x{source.random()}").record())
    elif kind == 2:
        was = base.userspace[at].extends().hex().encode()
        records[at] = records[at].replace(was, source.randbytes(32).hex().encode())
    elif kind == 3:
        records[at] = records[at][: source.randrange(2, len(records[at]) - 1)]
    elif kind == 4:
        records[at] = records[at].replace(b'"pcr": 1', b'"pcr": ')
    else:
        other = source.choice([n for n in range(4) if n != at % 4])
        records[at % 4], records[other] = records[other], records[at % 4]
    return b"".join(records)


def refused_when_edited(seed):
    said = lies(random.Random(seed), GOOD)
    vocabulary.refused(AttestationError, "ST-ATTS-2(04|40)", judge, userspace=said)


@forgeries("seed", *range(60))
def test_a_log_that_was_edited(seed):
    refused_when_edited(seed)


@pytest.mark.many
def test_many_logs_that_were_edited():
    for seed in range(60, 5060):
        refused_when_edited(seed)


@forgeries("seed", *range(40))
def test_registers_that_root_extended_at_random(seed):
    """Root tells the truth about every extension, and calls it what it likes."""
    source = random.Random(seed)
    extra = [
        uki.Said(
            source.choice((11, 12, 13, 14)),
            source.randbytes(8),
            source.choice(("enter-initrd", "ready", uki.LINE, uki.MACHINE, ".linux", "")),
        )
        for _ in range(source.randrange(1, 4))
    ]
    rest = list(GOOD.userspace)
    rest[source.randrange(len(rest)) : 0] = extra
    refused("ST-ATTS-241", forged(userspace=rest))


@forgeries("index", *LATE_PCRS)
def test_a_register_that_was_not_quoted_or_changes_during_a_lease(index):
    before, pcrs = judge(), dict(GOOD.pcrs())
    where, value = f"PCR {index}", pcrs.pop(index)
    refused("ST-ATTS-205", pcrs=pcrs, names=where)
    pcrs[index] = uki.sha256(value + bytes(32))
    refused("ST-ATTS-008", pcrs=pcrs, before=before, names=where)
    more = forged(userspace=[*GOOD.userspace, uki.word(index, "something")])
    refused("ST-ATTS-241", more, before=before)


@pytest.mark.forgery
def test_phases_do_not_come_again_during_a_lease():
    before = judge()
    again = forged(userspace=[*GOOD.userspace, uki.word(11, "sysinit")])
    assert "is over" in refused("ST-ATTS-241", again, before=before).what
    keys = forged(userspace=[*GOOD.userspace, uki.volume_key("again")])
    refused("ST-ATTS-241", keys, before=before)
    judge(forged(userspace=[*GOOD.userspace, uki.word(11, "shutdown")]), before=before)


def _lists(**changes):
    return lambda: uki.signed(uki.prediction(KEY, GOOD.pcrs(), **changes))


def _true():
    return uki.prediction(KEY, GOOD.pcrs())


@forgeries(
    "document",
    lambda: b"",
    lambda: b"{",
    lambda: b"[]",
    lambda: b" " * (65 << 10),
    uki.signed,
    lambda: uki.signed(uki.prediction(OTHER, GOOD.pcrs())),
    lambda: uki.signed(uki.prediction(KEY, GOOD.pcrs(3))),
    lambda: uki.signed(_true(), bank="sha1"),
    lambda: uki.signed(uki.prediction(KEY, GOOD.pcrs(), (12,))),
    lambda: uki.signed(uki.prediction(KEY, GOOD.pcrs(3), pol=_true()["pol"])),
    lambda: uki.signed(*[uki.prediction(OTHER, GOOD.pcrs())] * 16, _true()),
    *(_lists(pcrs=pcrs) for pcrs in ([11, 12], [], [11, 20], [99])),
    *(_lists(sig=sig) for sig in ("", "?", "AAAA", 7)),
    *(_lists(pol=pol) for pol in ("00" * 32, "")),
    lambda: b'{"sha256":' + b"[" * 50_000,
)
def test_predictions_that_do_not_count(document):
    refused("ST-ATTS-242", reference=predicted(), signatures=document())


@pytest.mark.forgery
def test_a_prediction_that_was_retired():
    """An old image keeps its signature for ever."""
    one = uki.prediction(KEY, GOOD.pcrs())
    reference = without(policy_keys=(uki.pem(KEY),))
    judge(reference=reference, signatures=uki.signed(one))
    retired = without(reference, retired=(one["pol"],))
    assert "retired" in refused("ST-ATTS-242", reference=retired, signatures=uki.signed(one)).what
    spelt = uki.signed({**one, "pol": one["pol"].upper()})
    refused("ST-ATTS-242", reference=retired, signatures=spelt)


@each("pem", "", "a key", uki.pem(rsa_key(2048, 5)).replace("A", "B", 3))
def test_a_policy_key_that_is_none(pem):
    vocabulary.refused(
        AttestationError, "ST-ATTS-009", LateAppraiser, LateReference(policy_keys=(pem,))
    )


def test_events_without_a_firmware_log():
    given = (None, GOOD.userspace_log(), b"", GOOD.pcrs())
    vocabulary.refused(AttestationError, "ST-ATTS-013", LateAppraiser(learned()).appraise, *given)


# The parser.


RECORD = uki.word(11, "enter-initrd").record()


@forgeries(
    "log",
    b"x",
    RECORD[1:],
    b"\x1e",
    b"\x1e\n",
    b"\x1e" + RECORD,
    RECORD[:-1],
    RECORD * 1025,
    b"\x1e" + b" " * (LOG_LIMIT + 1) + b"\n",
    b"\x1e" + b" " * 9000 + RECORD[1:],
    b"\x1e[1]\n",
    b"\x1e" + b"[" * 8000 + b"\n",
    RECORD.replace(b'"pcr": 11', b'"pcr": "11"'),
    RECORD.replace(b'"pcr": 11', b'"pcr": 24'),
    RECORD.replace(b'"pcr": 11', b'"pcr": -1'),
    RECORD.replace(b"sha256", b"sha1"),
    RECORD.replace(b'"digests": [', b'"digests": [{"hashAlg":"sha256","digest":"00"},'),
    RECORD.replace(b'"digest": "', b'"digest": "zz'),
    RECORD.replace(b'"string": "enter-initrd"', b'"string": 7'),
    RECORD.replace(b"enter-initrd", b"\xff"),
)
def test_malformed_logs(log):
    vocabulary.refused(AttestationError, "ST-ATTS-240", parse_userspace_log, log)


def test_a_log_leads_from_the_firmwares_end_to_the_quoted_value():
    start, end, said = GOOD.pcrs(0), GOOD.pcrs(), GOOD.userspace_log()
    assert all(leads_to(said, index, start[index], end[index]) for index in range(16))
    assert leads_to(b"", 12, start[12], end[12])
    assert not leads_to(b"", 11, start[11], end[11])
    assert not leads_to(said, 11, bytes(32), end[11])


def test_records_of_other_registers_are_stepped_over():
    other = b'\x1e{"nvIndex":1,"digests":[{"hashAlg":"sha256","digest":"00"}]}\n'
    assert parse_userspace_log(b"") == ()
    (one,) = parse_userspace_log(other + RECORD)
    assert (one.index, one.register, one.text) == (1, 11, "enter-initrd")
