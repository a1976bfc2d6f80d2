# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The parsers of firmware event logs, with valid inputs to start from.

A mutated log never replays to the registers of the original. So registers are made from the log
itself: what a machine would have whose root user forged everything.
"""

from securetrain.core import canonical
from securetrain.evidence.tpm.boot import BootReference, appraise_boot, learn_boot
from securetrain.evidence.tpm.ccel import RTMRS, appraise_ccel, learn_ccel
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.efi import describe
from securetrain.evidence.tpm.eventlog import parse, read, replay
from tests.evidence.tpm import bootlogs
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
