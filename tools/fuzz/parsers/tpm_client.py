# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes what the TPM client reads: responses of a TPM, certificates in its NV, the stored key."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from securetrain.attest.node.tpm.agent import StoredKey
from securetrain.attest.node.tpm.client import Range, Tpm
from securetrain.attest.node.tpm.commands import Command
from securetrain.attest.node.tpm.endorsement import split_certificates
from securetrain.core import canonical
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.keys import AK_TEMPLATE
from securetrain.evidence.tpm.structures import PcrSelection, encode_selections, number, tpm2b
from tools.fuzz.engine import Parser

_INDEX: Final = 0x1C00002
_PCRS: Final = (0, 1, 7, 10)


@dataclass
class _Answers:
    """A channel that gives the same response to every command; only flushing always succeeds."""

    response: bytes
    where: str = "fuzz"
    managed: bool = True

    def exchange(self, command: bytes, timeout: float) -> bytes:
        """The response."""
        del timeout
        return _plain(b"") if command[6:10] == _FLUSH else self.response

    def close(self) -> None:
        """Nothing to close."""


def parsers() -> list[Parser]:
    """One for each kind of response that has a structure of its own, and what is stored."""
    selections = encode_selections([PcrSelection(Hash.SHA256, _PCRS)])
    name, attributes = tpm2b(b"\0\x0b" + bytes(32)), number(0x62072801, 4)
    nv = number(_INDEX, 4) + number(Hash.SHA256, 2) + attributes + tpm2b(b"") + number(900, 2)
    handles = number(0, 1) + number(1, 4) + number(2, 4) + bytes.fromhex("01c0000201c00016")
    banks = number(0, 1) + number(5, 4) + selections
    values = number(len(_PCRS), 4) + tpm2b(bytes(32)) * len(_PCRS)
    created = tpm2b(bytes(100)) + AK_TEMPLATE.tpm2b + tpm2b(b"data") + tpm2b(b"hash") + _TICKET
    return [
        _response("handles", _plain(handles), lambda tpm: tpm.handles(Range.NV)),
        _response("banks", _plain(banks), lambda tpm: tpm.pcr_banks()),
        _response(
            "pcrs",
            _plain(number(9, 4) + selections + values),
            lambda tpm: tpm.pcr_read(Hash.SHA256, _PCRS),
        ),
        _response(
            "read-public",
            _plain(AK_TEMPLATE.tpm2b + name + name),
            lambda tpm: tpm.read_public(0x81010001),
        ),
        _response("nv", _plain(tpm2b(nv) + name), lambda tpm: tpm.nv_read_public(_INDEX)),
        _response("create", _authorised(created), lambda tpm: tpm.create(1, 2, AK_TEMPLATE)),
        _response(
            "session",
            _plain(number(0x03000000, 4) + tpm2b(bytes(32))),
            lambda tpm: _entered(tpm.policy_session(Hash.SHA256)),
        ),
        _response(
            "load",
            _authorised(name, handle=number(0x80000000, 4)),
            lambda tpm: _entered(tpm.load(1, 2, b"", b"")),
        ),
        _response(
            "activate",
            _authorised(tpm2b(bytes(32)), sessions=2),
            lambda tpm: tpm.activate_credential(1, 2, 3, b"", b""),
        ),
        _response(
            "quote",
            _authorised(tpm2b(bytes(140)) + bytes(72)),
            lambda tpm: tpm.quote(1, bytes(32), ()),
        ),
        Parser("tpm-certificates", _certificates, split_certificates),
        Parser("tpm-stored-key", _stored_keys, _read_stored),
    ]


_TICKET: Final = number(0x8021, 2) + number(0x40000007, 4) + tpm2b(b"")
_FLUSH: Final = number(Command.FlushContext, 4)


def _response(name: str, seed: bytes, read: Callable[[Tpm], object]) -> Parser:
    def parse(data: bytes) -> object:
        return read(Tpm(_Answers(data)))

    return Parser(f"tpm-{name}", lambda: [seed], parse, share=0.3)


def _entered(block: AbstractContextManager[int]) -> int:
    """Enter and leave."""
    with block as handle:
        return handle


def _plain(parameters: bytes) -> bytes:
    return number(0x8001, 2) + number(10 + len(parameters), 4) + bytes(4) + parameters


def _authorised(parameters: bytes, handle: bytes = b"", sessions: int = 1) -> bytes:
    area = bytes.fromhex("0000010000") * sessions
    body = handle + number(len(parameters), 4) + parameters + area
    return number(0x8002, 2) + number(10 + len(body), 4) + bytes(4) + body


def _certificates() -> list[bytes]:
    one = b"\x30\x82\x01\x00" + bytes(256)
    return [one, one * 3 + b"\xff" * 40]


def _stored_keys() -> list[bytes]:
    key = StoredKey(ek_name=bytes(34), private=bytes(100), public=AK_TEMPLATE.tpm2b)
    return [canonical.encode(key)]


def _read_stored(data: bytes) -> object:
    return canonical.decode(data, StoredKey, canonical=True)
