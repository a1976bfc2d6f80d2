# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The parsers of firmware event logs, with valid inputs to start from.

A mutated log never replays to the registers of the original. So registers are made from the log
itself: what a machine would have whose root user forged everything.
"""

import msgspec

from securetrain.core import canonical
from securetrain.evidence.tpm.boot import BootReference, appraise_boot, learn_boot
from securetrain.evidence.tpm.ccel import RTMRS, appraise_ccel, learn_ccel
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.efi import describe
from securetrain.evidence.tpm.eventlog import parse, read, replay
from securetrain.evidence.tpm.late import LateAppraiser, LateReference, learn_late
from securetrain.evidence.tpm.pcr_policy import check_signed_policy, load_policy_key
from securetrain.evidence.tpm.userspace_log import parse_userspace_log
from tests.evidence.tpm import bootlogs, lateboots
from tests.rsa_keys import rsa_key
from tools.fuzz.engine import Parser

_PCRS = (*range(10), 14)


def boot() -> list[Parser]:
    """All of them."""
    entries = bootlogs.good_boot()
    log = bootlogs.encode(entries, (bootlogs.SHA1, bootlogs.SHA256))
    locality = bootlogs.event(0, bootlogs.NO_ACTION, b"StartupLocality\0\3")
    guest = bootlogs.encode(bootlogs.good_guest(), (bootlogs.SHA384,)) + bytes(64)
    return [
        Parser("event-log", lambda: [log, bootlogs.encode([locality, *entries])], _read),
        Parser("event-log-sha1", lambda: [bootlogs.encode_legacy(entries), log], _show),
        Parser("boot", lambda: [log], _judge_boot),
        Parser("ccel", lambda: [guest], _judge_guest),
        Parser(
            "boot-reference",
            lambda: [canonical.encode(learn_boot(log, bootlogs.pcrs(entries)))],
            lambda data: canonical.decode(data, BootReference, canonical=True),
        ),
        *_late(),
    ]


def _late() -> list[Parser]:
    """PCR 11 to 15."""
    good, key = lateboots.UkiBoot(), rsa_key(2048, 5)
    pcrs = good.pcrs()
    reference = learn_late(parse(good.log()), good.userspace_log(), pcrs)
    signing = msgspec.structs.replace(reference, policy_keys=(lateboots.pem(key),))
    judge = LateAppraiser(signing)
    fixed = load_policy_key(lateboots.pem(key), "fuzz")

    def userspace(data: bytes) -> None:
        values = dict(good.pcrs(0))
        for one in parse_userspace_log(data):
            if one.register in values:
                values[one.register] = lateboots.sha256(values[one.register] + one.digest)
        LateAppraiser(reference).appraise(parse(good.log()), data, b"", values)

    def firmware(data: bytes) -> None:
        log = parse(data)
        values = {index: replay(log).get(index, bytes(32)) for index in range(16)}
        learn_late(log, b"", values)

    documents = lateboots.signed(
        lateboots.prediction(key, pcrs), lateboots.prediction(key, good.pcrs(2), (11, 12))
    )
    return [
        Parser("userspace-log", lambda: [good.userspace_log()], userspace),
        Parser("late-log", lambda: [good.log()], firmware, share=0.3),
        Parser(
            "pcr-signatures",
            lambda: [documents],
            lambda data: check_signed_policy(data, pcrs, register=11, keys=[fixed]),
        ),
        Parser(
            "late-evidence",
            lambda: [documents],
            lambda data: judge.appraise(parse(good.log()), good.userspace_log(), data, pcrs),
            share=0.2,
        ),
        Parser(
            "late-reference",
            lambda: [canonical.encode(signing)],
            lambda data: LateAppraiser(canonical.decode(data, LateReference, canonical=True)),
            share=0.3,
        ),
    ]


def _read(data: bytes) -> None:
    replay(parse(data))


def _show(data: bytes) -> None:
    for event in read(data).events:
        describe(event)


def _judge_boot(data: bytes) -> None:
    values = replay(parse(data))
    pcrs = {index: values.get(index, bytes(32)) for index in _PCRS}
    reference = learn_boot(data, pcrs)
    appraise_boot(data, pcrs, reference, secure_boot=True)


def _judge_guest(data: bytes) -> None:
    parsed = parse(data, Hash.SHA384, registers=range(1, RTMRS + 1), padded=True)
    values = replay(parsed)
    rtmrs = [values.get(number, bytes(48)) for number in range(1, RTMRS + 1)]
    appraise_ccel(data, rtmrs, learn_ccel(data, rtmrs), secure_boot=False)
