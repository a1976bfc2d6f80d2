# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import time

import pytest

from securetrain.attest.node.tpm.commands import KEY_TIMEOUT, PASSWORD, Command, policy, run
from securetrain.core.errors import AttestationError
from tests.tables import each, forgeries
from tests.vocabulary import refused

HEAD = "8001 0000000a 00000000"
RETRY, TESTING, YIELDED = 0x922, 0x90A, 0x908


class Scripted:
    """A channel that gives prepared answers."""

    where = "scripted"
    managed = True

    def __init__(self, *answers: str) -> None:
        self.answers = [bytes.fromhex(answer) for answer in answers]
        self.sent: list[tuple[bytes, float]] = []

    def exchange(self, command: bytes, timeout: float) -> bytes:
        self.sent.append((command, timeout))
        return self.answers.pop(0)

    def close(self) -> None:
        pass


def code(number: int) -> str:
    return f"8001 0000000a {number:08x}"


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


def send(*answers: str, command: Command = Command.Quote, **options):
    channel = Scripted(*answers)
    return channel, run(channel, command, timeout=1.0, **options)


def test_a_command_without_sessions():
    channel, body = send(
        "8001 0000000c 00000000 abcd",
        command=Command.ReadPublic,
        handles=[0x81010001],
        parameters=b"\x01",
    )
    assert channel.sent == [(bytes.fromhex("8001 0000000f 00000173 81010001 01"), 1.0)]
    assert body.rest() == b"\xab\xcd"


def test_a_command_with_sessions():
    channel, body = send(
        "8002 0000001a 00000000 80000001 00000002 beef 0000 01 0000 0000 00".replace(
            "0000001a", "0000001e"
        )
        + "0000",
        command=Command.Load,
        handles=[1],
        sessions=[PASSWORD, policy(0x03000001)],
        parameters=b"\x02",
        handle=True,
    )
    area = "00000012 40000009 0000 00 0000 03000001 0000 01 0000"
    assert channel.sent[0][0] == bytes.fromhex(f"8002 00000025 00000157 00000001 {area} 02")
    assert body.u32() == 0x80000001
    assert body.rest() == b"\xbe\xef"


@each(
    "command, timeout",
    (Command.Create, KEY_TIMEOUT),
    (Command.CreatePrimary, KEY_TIMEOUT),
    (Command.Load, 1.0),
    (Command.ActivateCredential, 1.0),
)
def test_making_keys_gets_more_time(command, timeout):
    channel, _ = send(HEAD, command=command)
    assert channel.sent[0][1] == timeout


@pytest.mark.parametrize("asked", [RETRY, TESTING, YIELDED])
def test_a_command_is_sent_again_when_the_tpm_asks(asked, waits):
    channel, body = send(code(asked), code(asked), HEAD)
    assert len(channel.sent) == 3
    assert len({command for command, _ in channel.sent}) == 1
    assert body.left == 0
    assert waits == sorted(waits)
    assert 0 < waits[0] < waits[1]


def test_a_command_is_not_sent_again_for_ever(waits):
    channel = Scripted(*[code(RETRY)] * 100)
    error = refused(AttestationError, "ST-ATTS-153", run, channel, Command.Quote, timeout=1.0)
    assert "TPM_RC_RETRY" in error.what
    assert len(channel.sent) == 10
    assert sum(waits) < 3


@pytest.mark.parametrize(("number", "expected"), [(0x1DF, "ST-ATTS-153"), (0x921, "ST-ATTS-154")])
def test_a_refusal_is_not_sent_again(number, expected, waits):
    channel = Scripted(code(number), HEAD)
    error = refused(AttestationError, expected, run, channel, Command.Load, timeout=1.0)
    assert error.where == "scripted"
    assert "TPM2_Load" in error.what
    assert len(channel.sent) == 1
    assert not waits


@forgeries(
    "id, answer, sessions, says",
    ("sessions-that-were-not-sent", "8002 0000000e 00000000 00000000", 0, "tag 0x8002"),
    ("sessions-missing", "8001 0000000a 00000000", 1, "tag 0x8001"),
    ("tpm-1.2-tag", "00c4 0000000a 00000000", 0, "tag 0x00c4"),
    ("tpm-1.2-refusal", "00c4 0000000a 0000001e", 0, "code 0x1e"),
    ("refusal-with-sessions", "8002 0000000a 00000101", 1, "code 0x101"),
    ("refusal-with-a-body", "8001 0000000c 00000101 0000", 0, "12 bytes"),
    ("parameters-truncated", "8002 0000000e 00000000 00000001", 1, "1 bytes wanted"),
    (
        "parameters-of-four-gigabytes",
        "8002 0000000e 00000000 ffffffff",
        1,
        "4294967295 bytes wanted",
    ),
    ("session-area-missing", "8002 0000000e 00000000 00000000", 1, "2 bytes wanted"),
    ("second-session-missing", "8002 00000013 00000000 00000000 0000010000", 2, "2 bytes wanted"),
    (
        "a-session-too-many",
        "8002 00000018 00000000 00000000 00000100000000010000",
        1,
        "5 bytes follow",
    ),
    ("long-nonce", "8002 00000013 00000000 00000000 0041010000", 1, "limit is 64"),
    ("long-hmac", "8002 00000013 00000000 00000000 0000010041", 1, "limit is 64"),
    ("no-parameter-size", "8002 0000000c 00000000 0000", 1, "4 bytes wanted"),
)
def test_frames_that_are_refused(answer, sessions, says):
    channel = Scripted(answer)
    with pytest.raises(AttestationError) as error:
        run(channel, Command.Quote, [1], [PASSWORD] * sessions, timeout=1.0)
    assert error.value.code == "ST-ATTS-152"
    assert says in error.value.what
    assert error.value.where
