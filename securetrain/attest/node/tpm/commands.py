# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sends TPM 2.0 commands and reads the frames of their responses.

Source: TCG TPM 2.0 Library, Part 1, 18 (command and response structure), Part 2, 6.5 (TPM_CC).

Rules:

1. a response has the tag that its command asks for, the size that it says, and behind its
   parameters exactly as many sessions as were sent. A refusal has nothing but its code;
2. a command is sent again when the TPM asks for it (TPM_RC_RETRY, TESTING, YIELDED), a bounded
   number of times and ever later.

Sessions authorise by an empty password, or by a policy without HMAC.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from securetrain.attest.node.tpm.responses import RETRIED, ResponseCode, refusal
from securetrain.attest.node.tpm.transport import HEADER, Channel
from securetrain.core.errors import AttestationError
from securetrain.evidence import Reader
from securetrain.evidence.tpm import Handle, Tag, number, tpm2b

KEY_TIMEOUT: Final = 300.0
"""Seconds for making a key: finding RSA primes takes long on a slow TPM, with bad luck minutes."""
_WAITS: Final = tuple(0.002 * 2**tries for tries in range(9))
"""Seconds before a command is sent again."""
_MAX_NONCE: Final = 64
_CONTINUE: Final = 1


class Command(IntEnum):
    """TPM_CC."""

    CreatePrimary = 0x131
    Shutdown = 0x145
    ActivateCredential = 0x147
    NV_Read = 0x14E
    PolicySecret = 0x151
    Create = 0x153
    Load = 0x157
    Quote = 0x158
    ContextLoad = 0x161
    ContextSave = 0x162
    FlushContext = 0x165
    NV_ReadPublic = 0x169
    PolicyOR = 0x171
    ReadPublic = 0x173
    StartAuthSession = 0x176
    GetCapability = 0x17A
    PCR_Read = 0x17E
    PCR_Extend = 0x182


@dataclass(frozen=True, slots=True)
class Session:
    """The authorisation of one handle of a command."""

    handle: int
    attributes: int = 0

    def encode(self) -> bytes:
        """TPMS_AUTH_COMMAND without nonce and HMAC."""
        return number(self.handle, 4) + tpm2b(b"") + number(self.attributes, 1) + tpm2b(b"")


PASSWORD: Final = Session(Handle.PASSWORD)
"""The empty password."""


def policy(session: int) -> Session:
    """A policy session that outlives the command, so that the client flushes it."""
    return Session(session, _CONTINUE)


def run(
    channel: Channel,
    command: Command,
    handles: Sequence[int] = (),
    sessions: Sequence[Session] = (),
    parameters: bytes = b"",
    *,
    timeout: float,
    handle: bool = False,
) -> Reader:
    """Send one command.

    Args:
        channel: to the TPM.
        command: which one.
        handles: its handle area.
        sessions: its authorisation area, one for each handle that needs it.
        parameters: marshalled.
        timeout: seconds; making a key gets `KEY_TIMEOUT` at least.
        handle: whether the response begins with a handle.

    Returns:
        A reader of the response's handle, if there is one, and its parameters.

    Raises:
        AttestationError: ST-ATTS-151 no answer, ST-ATTS-152 a malformed one.
        TpmRefusalError: ST-ATTS-153, or ST-ATTS-154 in lockout.
    """
    body = b"".join(number(item, 4) for item in handles)
    if sessions:
        area = b"".join(session.encode() for session in sessions)
        body += number(len(area), 4) + area
    body += parameters
    tag = Tag.SESSIONS if sessions else Tag.NO_SESSIONS
    head = number(tag, 2) + number(HEADER + len(body), 4) + number(command, 4)
    if command in {Command.Create, Command.CreatePrimary}:
        timeout = max(timeout, KEY_TIMEOUT)
    response = _until_done(channel, head + body, command, timeout)
    reader = Reader(response, "ST-ATTS-152", f"response to TPM2_{command.name}")
    _check_head(reader, tag)
    return _without_sessions(reader, len(sessions), 4 if handle else 0) if sessions else reader


def _until_done(channel: Channel, message: bytes, command: Command, timeout: float) -> bytes:
    """The response with code success, asked for again while the TPM says so."""
    response = channel.exchange(message, timeout)
    for wait in _WAITS:
        if _code(response) not in RETRIED:
            break
        time.sleep(wait)
        response = channel.exchange(message, timeout)
    code = _code(response)
    if code == ResponseCode.SUCCESS:
        return response
    if len(response) != HEADER or response[:2] != number(Tag.NO_SESSIONS, 2):
        what = f"code 0x{code:x} in a response of {len(response)} bytes: not a TPM 2.0's"
        raise AttestationError("ST-ATTS-152", what, channel.where)
    raise refusal(code, command.name, channel.where)


def _code(response: bytes) -> int:
    return int.from_bytes(response[6:HEADER], "big")


def _check_head(reader: Reader, tag: Tag) -> None:
    found = reader.u16()
    reader.take(HEADER - 2)  # size and code, which were looked at before
    if found != tag:
        raise reader.bad(f"tag {found:#06x}, not {tag:#06x}")


def _without_sessions(reader: Reader, sessions: int, handle: int) -> Reader:
    """The handle (`handle` bytes) and the parameters, which stand behind their own size."""
    first = reader.take(handle)
    parameters = reader.take(reader.u32())
    for _ in range(sessions):
        reader.sized(2, _MAX_NONCE)  # nonceTPM
        reader.u8()  # attributes
        reader.sized(2, _MAX_NONCE)  # HMAC
    reader.end()
    return Reader(first + parameters, "ST-ATTS-152", reader.where)
