# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - methods are named as commands are
"""The forger's TPM behind TPM 2.0 commands: it tests a client without swtpm, and can misbehave."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.exceptions import InvalidSignature

from securetrain.attest.node.tpm.commands import Command
from securetrain.evidence.reader import Reader
from securetrain.evidence.tpm.constants import Algorithm, Handle, Hash
from securetrain.evidence.tpm.credential import Credential
from securetrain.evidence.tpm.keys import AK_TEMPLATE
from securetrain.evidence.tpm.structures import (
    PcrSelection,
    PublicArea,
    encode_selections,
    number,
    parse_selections,
    tpm2b,
)
from tests.evidence.tpm import forge

EMPTY: Final = tpm2b(b"")
SESSION: Final = 0x03000001
INTEGRITY: Final = 0x1DF
LOCKOUT: Final = 0x921
SLOTS: Final = 3
# Handles of each command, and how many sessions authorise it.
_AREAS: Final[dict[Command, tuple[int, int]]] = {
    Command.ReadPublic: (1, 0),
    Command.NV_ReadPublic: (1, 0),
    Command.NV_Read: (2, 1),
    Command.StartAuthSession: (2, 0),
    Command.PolicySecret: (2, 1),
    Command.PolicyOR: (1, 0),
    Command.CreatePrimary: (1, 1),
    Command.Create: (1, 1),
    Command.Load: (1, 1),
    Command.ContextSave: (1, 0),
    Command.ActivateCredential: (2, 2),
    Command.Quote: (1, 1),
    Command.PCR_Extend: (1, 1),
}


class RefusedError(Exception):
    pass


@dataclass
class Simulator:
    """A `Channel` with a TPM behind it."""

    template: str = "L-1"
    managed: bool = True
    where: str = "simulator"
    persistent: dict[int, PublicArea] = field(default_factory=dict)
    nv: dict[int, bytes] = field(default_factory=dict)
    nv_attributes: int = 1 << 29 | 1 << 18
    pcrs: dict[int, bytes] = field(default_factory=lambda: dict.fromkeys(range(24), bytes(32)))
    counter: int = 7
    epoch: bytes = b"epoch-1"
    """Saved contexts and wrapped keys are good in one epoch."""
    refuse: dict[Command, list[int]] = field(default_factory=dict)
    """Response codes in turn, by command; 0 lets one through."""
    alter: dict[Command, Callable[[bytes], bytes]] = field(default_factory=dict)
    """Changes to parameters of responses, by command."""
    after: dict[Command, Callable[[], Any]] = field(default_factory=dict)
    """What happens behind a command's back."""

    def __post_init__(self) -> None:
        self.tpm = forge.Tpm(self.template)
        self.loaded: dict[int, Any] = {}
        self.keys: list[forge.Key] = []
        self.saved: list[Any] = []
        self.sent: list[Command] = []
        self.commands: list[bytes] = []
        self.closed = 0

    def exchange(self, command: bytes, timeout: float) -> bytes:
        reader = Reader(command, "ST-ATTS-152", "command")
        tag, size, code = reader.u16(), reader.u32(), Command(reader.u32())
        assert size == len(command)
        assert timeout > 0
        self.sent.append(code)
        self.commands.append(command)
        handle_count, sessions = _AREAS.get(code, (0, 0))
        handles = [reader.u32() for _ in range(handle_count)]
        assert tag == (0x8002 if sessions else 0x8001)
        if sessions:
            assert len(reader.sized(4, 64)) == 9 * sessions
        try:
            if (codes := self.refuse.get(code)) and (refused := codes.pop(0)):
                raise RefusedError(refused)
            handle, body = getattr(self, f"do_{code.name}")(handles, reader)
            reader.end()
        except RefusedError as error:
            return b"\x80\x01" + number(10, 4) + number(error.args[0], 4)
        response = _frame(handle, self.alter.get(code, bytes)(body), sessions)
        self.after.get(code, int)()
        return response

    def close(self) -> None:
        assert self.managed or not self.loaded
        self.closed += 1

    def load(self, what: Any) -> int:
        free = [h for h in range(0x80000000, 0x80000000 + SLOTS) if h not in self.loaded]
        if not free:
            raise RefusedError(0x902)
        self.loaded[free[0]] = what
        return free[0]

    def key(self, handle: int) -> forge.Key:
        if handle in self.persistent:
            return forge.Key(self.persistent[handle], self.tpm.ek.private)
        found = self.loaded.get(handle)
        if not isinstance(found, forge.Key):
            raise RefusedError(0x18B)
        return found

    def reset(self) -> None:
        """Lose power and come back."""
        self.loaded = {}
        self.epoch += b"+"
        self.pcrs = dict.fromkeys(range(24), bytes(32))

    # Commands: handles and parameters in, a handle or None and parameters out.

    def do_GetCapability(self, _, reader):
        kind, first, count = reader.u32(), reader.u32(), reader.u32()
        if kind == 1:
            return None, self.list_handles(first, count)
        if kind == 5:
            banks = [PcrSelection(Hash.SHA256, tuple(self.pcrs)), PcrSelection(Hash.SHA1, ())]
            return None, number(0, 1) + number(kind, 4) + encode_selections(banks)
        pairs = [(0x100, 0x322E3000), (0x105, 0x49424D00)]
        found = b"".join(number(k, 4) + number(v, 4) for k, v in pairs if k >= first)
        return None, number(0, 1) + number(kind, 4) + number(len(found) // 8, 4) + found

    def list_handles(self, first: int, count: int) -> bytes:
        everything = sorted([*self.nv, *self.persistent, *self.loaded])
        # Loaded sessions are asked for as HMAC sessions, whatever they are.
        kind = 0x03 if first >> 24 == 0x02 else first >> 24
        found = [h for h in everything if h >> 24 == kind and h % (1 << 24) >= first % (1 << 24)]
        body = b"".join(number(h, 4) for h in found[:count])
        return number(len(found) > count, 1) + number(1, 4) + number(len(body) // 4, 4) + body

    def do_ReadPublic(self, handles, reader):
        public = self.key(handles[0]).public
        return None, public.tpm2b + tpm2b(public.name) + tpm2b(b"qualified")

    def do_NV_ReadPublic(self, handles, reader):
        index = handles[0]
        area = number(index, 4) + number(Hash.SHA256, 2) + number(self.nv_attributes, 4)
        area += EMPTY + number(len(self.nv[index]), 2)
        return None, tpm2b(area) + tpm2b(b"name")

    def do_NV_Read(self, handles, reader):
        size, offset = reader.u16(), reader.u16()
        expected = handles[1] if self.nv_attributes >> 18 & 1 else Handle.OWNER
        if handles[0] != expected:
            raise RefusedError(0x149)
        return None, tpm2b(self.nv[handles[1]][offset : offset + size])

    def do_StartAuthSession(self, _, reader):
        assert len(reader.sized(2, 64)) >= 16
        assert reader.take(5) == EMPTY + bytes.fromhex("010010")
        reader.u16()
        self.loaded[SESSION] = "session"
        return None, number(SESSION, 4) + tpm2b(b"nonce")

    def do_PolicySecret(self, handles, reader):
        assert handles == [Handle.ENDORSEMENT, SESSION]
        assert reader.take(10) == bytes(10)
        return None, EMPTY + number(0x8023, 2) + number(Handle.NULL, 4) + EMPTY

    def do_PolicyOR(self, handles, reader):
        assert reader.u32() == 2
        reader.sized(2, 64)
        reader.sized(2, 64)
        return None, b""

    def do_CreatePrimary(self, handles, reader):
        assert handles == [Handle.ENDORSEMENT]
        assert reader.take(6) == bytes.fromhex("000400000000")
        reader.sized(2, 1024)
        assert reader.take(6) == bytes(6)
        return self.load(self.tpm.ek), self.tpm.ek.public.tpm2b + b"not read further"

    def do_Create(self, handles, reader):
        assert self.key(handles[0]).public == self.tpm.ek.public
        assert reader.take(6) == bytes.fromhex("000400000000")
        assert reader.sized(2, 1024) == AK_TEMPLATE.encoded
        assert reader.take(6) == bytes(6)
        self.keys.append(forge.make_key(AK_TEMPLATE))
        private = tpm2b(b"wrapped" + number(len(self.keys) - 1, 1))
        ticket = number(0x8021, 2) + number(Handle.NULL, 4) + EMPTY
        creation = tpm2b(b"creation data") + tpm2b(b"hash")
        return None, private + self.keys[-1].public.tpm2b + creation + ticket

    def do_Load(self, handles, reader):
        assert self.key(handles[0]).public == self.tpm.ek.public
        private, public = reader.sized(2, 1024), reader.sized(2, 1024)
        if not private.startswith(b"wrapped") or private[-1] >= len(self.keys):
            raise RefusedError(INTEGRITY)
        key = self.keys[private[-1]]
        if key.public.encoded != public:
            raise RefusedError(INTEGRITY)
        return self.load(key), tpm2b(key.public.name)

    def do_ContextSave(self, handles, reader):
        self.saved.append(self.loaded[handles[0]])
        return None, self.epoch + number(len(self.saved) - 1, 2)

    def do_ContextLoad(self, _, reader):
        context = reader.rest()
        if context[:-2] != self.epoch:
            raise RefusedError(INTEGRITY)
        return None, number(self.load(self.saved[int.from_bytes(context[-2:], "big")]), 4)

    def do_FlushContext(self, _, reader):
        if self.loaded.pop(reader.u32(), None) is None:
            raise RefusedError(0x1CB)
        return None, b""

    def do_ActivateCredential(self, handles, reader):
        name = self.key(handles[0]).public.name
        assert self.key(handles[1]).public == self.tpm.ek.public
        credential = Credential(tpm2b(reader.sized(2, 1024)), tpm2b(reader.sized(2, 1024)))
        try:
            return None, tpm2b(self.tpm.activate(credential, name))
        except (InvalidSignature, ValueError) as error:
            raise RefusedError(INTEGRITY) from error

    def do_Quote(self, handles, reader):
        key, extra = self.key(handles[0]), reader.sized(2, 64)
        assert reader.u16() == Algorithm.NULL
        selections = parse_selections(reader.rest())
        changes = {"banks": {Hash.SHA256: self.pcrs}, "ak": key.public}
        attest = self.tpm.attest(extra=extra, selections=selections, **changes)
        return None, tpm2b(attest) + key.sign(attest)

    def do_PCR_Read(self, _, reader):
        asked = parse_selections(reader.rest())
        # A TPM tells at most eight registers at once.
        given = [PcrSelection(s.bank, s.pcrs[:8] if s.bank is Hash.SHA256 else ()) for s in asked]
        values = [tpm2b(self.pcrs[pcr]) for s in given for pcr in s.pcrs]
        head = number(self.counter, 4) + encode_selections(given)
        return None, head + number(len(values), 4) + b"".join(values)

    def do_PCR_Extend(self, handles, reader):
        assert reader.u32() == 1
        assert reader.u16() == Hash.SHA256
        self.extend(handles[0], reader.take(32))
        return None, b""

    def extend(self, pcr: int, digest: bytes) -> None:
        self.pcrs[pcr] = Hash.SHA256.digest(self.pcrs[pcr] + digest)
        self.counter += 1

    def do_Shutdown(self, _, reader):
        assert reader.u16() == 0
        return None, b""


def _frame(handle: int | None, body: bytes, sessions: int) -> bytes:
    first = b"" if handle is None else number(handle, 4)
    if sessions:
        body = first + number(len(body), 4) + body + bytes.fromhex("0000010000") * sessions
    else:
        body = first + body
    return number(0x8002 if sessions else 0x8001, 2) + number(10 + len(body), 4) + bytes(4) + body
