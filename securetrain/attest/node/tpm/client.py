# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A TPM 2.0 client that needs no library: the commands that attestation uses, and no others.

Source: TCG TPM 2.0 Library, Part 3 (Commands). Methods have the commands' names.

::

    with Tpm.open("/dev/tpmrm0") as tpm, tpm.create_primary(template) as ek:
        print(tpm.read_public(ek).name.hex())

Rules:

1. parameters of a response are read to their last byte, and must be about what was asked;
2. what is loaded or started is flushed when its `with` block ends, also when that ends badly;
3. nothing here changes what a TPM keeps: no persistent handles, no NV writes, no clearing. Only
   `pcr_extend` and `shutdown`, which tests use, leave traces.

Authorisation is by empty passwords and by policy sessions without HMAC, which nobody on the bus is
kept from reading. What must not be read goes through `protected`.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from securetrain.attest.node.tpm.commands import PASSWORD, Command, Session, policy, run
from securetrain.attest.node.tpm.transport import Channel, connect
from securetrain.core.errors import AttestationError
from securetrain.evidence import Reader
from securetrain.evidence.tpm import (
    Algorithm,
    Handle,
    Hash,
    PcrSelection,
    PublicArea,
    encode_selections,
    number,
    parse_public,
    parse_selections,
    tpm2b,
)

TIMEOUT: Final = 30.0
"""Seconds for a command; discrete TPMs need up to a second for most."""
NV_LIMIT: Final = 8 << 10
"""Most bytes of an NV index that are read."""
STRUCTURE_LIMIT: Final = 4 << 10
_MAX_DIGEST: Final = 64
_NONCE: Final = 16
_HANDLES_AT_ONCE: Final = 64
_MAX_BATCHES: Final = 16
_MAX_BANKS: Final = 16
_NV_AT_ONCE: Final = 512
"""Less than the smallest TPM_PT_NV_BUFFER_MAX in use."""
_POLICY_SESSION: Final = 1
_POLICY_SESSIONS: Final = 0x03000000
_KIND: Final = 1 << 24
"""The upper octet of a handle says its kind."""


class Range(IntEnum):
    """First handles of the kinds that `Tpm.handles` lists."""

    NV = 0x01000000
    SESSION = 0x02000000
    """That are loaded."""
    TRANSIENT = 0x80000000
    PERSISTENT = 0x81000000


class _Capability(IntEnum):
    HANDLES = 1
    PCRS = 5


@dataclass(frozen=True, slots=True)
class NvPublic:
    """The fields of TPMS_NV_PUBLIC that a reader needs."""

    index: int
    attributes: int
    size: int

    @property
    def written(self) -> bool:
        """Tell whether anything was ever written to it."""
        return bool(self.attributes >> 29 & 1)

    @property
    def reader(self) -> int:
        """The handle that may read it with an empty password: the index itself, else the owner."""
        return self.index if self.attributes >> 18 & 1 else Handle.OWNER


class Tpm:
    """An open TPM. Not for use by several threads at once."""

    def __init__(self, channel: Channel, timeout: float = TIMEOUT) -> None:
        self._channel = channel
        self._timeout = timeout

    @classmethod
    def open(cls, address: str, timeout: float = TIMEOUT) -> Self:
        """Open a TPM by its address (see `transport`).

        Nothing manages the resources behind a socket: what a client that was killed left loaded is
        flushed here, because it would fill the TPM's few slots.

        Raises:
            AttestationError: ST-ATTS-150 there is none, or it may not be used; ST-ATTS-151, 152,
                153 it does not behave.
            UsageError: ST-USAG-001 not an address.
        """
        channel = connect(address, timeout)
        tpm = cls(channel, timeout)
        if not channel.managed:
            try:
                tpm._flush_leftovers()
            except BaseException:
                tpm.close()
                raise
        return tpm

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def where(self) -> str:
        """The address, for errors."""
        return self._channel.where

    def exchange(self, command: bytes) -> bytes:
        """Carry a command that another library made; returns the response.

        Raises:
            AttestationError: ST-ATTS-151 no answer, ST-ATTS-152 not as long as it says.
        """
        return self._channel.exchange(command, self._timeout)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    # What the TPM is.

    def handles(self, first: Range) -> tuple[int, ...]:
        """Every handle of one kind.

        Raises:
            AttestationError: ST-ATTS-155 when there are more than any TPM has.
        """
        found: list[int] = []
        # Loaded sessions are told by the handles that they are used by: HMAC or policy.
        kinds = {Range.SESSION, _POLICY_SESSIONS} if first is Range.SESSION else {first}
        for _ in range(_MAX_BATCHES):
            start = first + (found[-1] % _KIND + 1 if found else 0)
            body, more = self._ask_capability(_Capability.HANDLES, start, _HANDLES_AT_ONCE)
            batch = [body.u32() for _ in range(self._count(body, _HANDLES_AT_ONCE))]
            body.end()
            if any(handle - handle % _KIND not in kinds for handle in batch):
                raise body.bad("handles of another kind")
            found += batch
            if not (more and batch):
                return tuple(found)
        raise self.cannot(f"more than {len(found)} handles from {first:#x} on")

    def pcr_banks(self) -> dict[int, tuple[int, ...]]:
        """Registers of every bank that is switched on, by the hash's TPM_ALG_ID."""
        body = self._capability(_Capability.PCRS, 0, _HANDLES_AT_ONCE)
        banks = {}
        for _ in range(self._count(body, _MAX_BANKS)):
            # Banks of hashes that this project does not use are told as well.
            bank, bits = body.u16(), int.from_bytes(body.sized(1, 4), "little")
            if bits:
                banks[bank] = tuple(pcr for pcr in range(bits.bit_length()) if bits >> pcr & 1)
        body.end()
        return banks

    def read_public(self, handle: int) -> PublicArea:
        """A loaded or persistent key's public area."""
        return parse_public(self.read_public_area(handle))

    def read_public_area(self, handle: int) -> bytes:
        """The bytes of a loaded or persistent key's public area."""
        body = self._run(Command.ReadPublic, [handle])
        area = self._structure(body)
        for _ in ("name", "qualified name"):
            body.sized(2, STRUCTURE_LIMIT)
        body.end()
        return area

    def nv_read_public(self, index: int) -> NvPublic:
        """Attributes and size of an NV index."""
        body = self._run(Command.NV_ReadPublic, [index])
        area = Reader(body.sized(2, STRUCTURE_LIMIT), "ST-ATTS-152", "TPMS_NV_PUBLIC")
        body.sized(2, STRUCTURE_LIMIT)
        body.end()
        found, _, attributes = area.u32(), area.u16(), area.u32()
        area.sized(2, STRUCTURE_LIMIT)
        size = area.u16()
        area.end()
        if found != index:
            raise area.bad(f"NV index {found:#x}, not {index:#x}")
        return NvPublic(index, attributes, size)

    def nv_read(self, index: int) -> bytes:
        """All that an NV index holds.

        Raises:
            AttestationError: ST-ATTS-155 when that is more than `NV_LIMIT`.
        """
        public = self.nv_read_public(index)
        if public.size > NV_LIMIT:
            raise self.cannot(f"NV index {index:#x} has {public.size} bytes, over {NV_LIMIT}")
        data = b""
        while len(data) < public.size:
            size = min(_NV_AT_ONCE, public.size - len(data))
            asked = number(size, 2) + number(len(data), 2)
            body = self._run(Command.NV_Read, [public.reader, index], [PASSWORD], asked)
            piece = body.sized(2, size)
            body.end()
            if len(piece) != size:
                raise body.bad(f"{len(piece)} bytes of NV index {index:#x}, not {size}")
            data += piece
        return data

    # Sessions and keys.

    @contextmanager
    def policy_session(self, hash_: Hash) -> Iterator[int]:
        """A policy session, neither salted nor bound."""
        asked = (
            tpm2b(os.urandom(_NONCE))
            + tpm2b(b"")
            + number(_POLICY_SESSION, 1)
            + number(Algorithm.NULL, 2)
            + number(hash_, 2)
        )
        body = self._run(Command.StartAuthSession, [Handle.NULL, Handle.NULL], (), asked)
        session = body.u32()
        body.sized(2, STRUCTURE_LIMIT)
        body.end()
        with self._flushed(session):
            yield session

    def policy_secret(self, session: int, entity: int) -> None:
        """Show the empty password of an entity to a policy session."""
        asked = tpm2b(b"") * 3 + number(0, 4)
        body = self._run(Command.PolicySecret, [entity, session], [PASSWORD], asked)
        body.sized(2, STRUCTURE_LIMIT)
        self._ticket(body)
        body.end()

    def policy_or(self, session: int, digests: Sequence[bytes]) -> None:
        """Go on from any of several policies."""
        asked = number(len(digests), 4) + b"".join(map(tpm2b, digests))
        self._run(Command.PolicyOR, [session], (), asked).end()

    @contextmanager
    def create_primary(
        self, template: PublicArea, hierarchy: int = Handle.ENDORSEMENT
    ) -> Iterator[int]:
        """A primary key: the same one every time, for the same seed and template."""
        asked = tpm2b(tpm2b(b"") * 2) + template.tpm2b + tpm2b(b"") + number(0, 4)
        body = self._run(Command.CreatePrimary, [hierarchy], [PASSWORD], asked, handle=True)
        with self._flushed(body.u32()) as key:
            yield key

    def create(self, parent: int, session: int, template: PublicArea) -> tuple[bytes, bytes]:
        """A new key below `parent`: its TPM2B_PRIVATE (wrapped) and TPM2B_PUBLIC."""
        asked = tpm2b(tpm2b(b"") * 2) + template.tpm2b + tpm2b(b"") + number(0, 4)
        body = self._run(Command.Create, [parent], [policy(session)], asked)
        private, public = self._structure(body), self._structure(body)
        for _ in ("creation data", "creation hash"):
            body.sized(2, STRUCTURE_LIMIT)
        self._ticket(body)
        body.end()
        return private, public

    @contextmanager
    def load(self, parent: int, session: int, private: bytes, public: bytes) -> Iterator[int]:
        """Load a wrapped key below `parent`."""
        asked = private + public
        body = self._run(Command.Load, [parent], [policy(session)], asked, handle=True)
        key = body.u32()
        with self._flushed(key):
            body.sized(2, STRUCTURE_LIMIT)
            body.end()
            yield key

    def context_save(self, handle: int) -> bytes:
        """A loaded key as a TPMS_CONTEXT, which this TPM loads again until it is reset."""
        return self._run(Command.ContextSave, [handle]).rest()

    @contextmanager
    def context_load(self, context: bytes) -> Iterator[int]:
        """Load a saved context."""
        body = self._run(Command.ContextLoad, (), (), context, handle=True)
        key = body.u32()
        with self._flushed(key):
            body.end()
            yield key

    def flush_context(self, handle: int) -> None:
        """Remove a loaded key or a session."""
        self._run(Command.FlushContext, (), (), number(handle, 4)).end()

    # What keys do.

    def activate_credential(
        self, key: int, parent: int, session: int, id_object: bytes, secret: bytes
    ) -> bytes:
        """The secret of a credential (TPM2B_ID_OBJECT, TPM2B_ENCRYPTED_SECRET) for both keys."""
        sessions = [PASSWORD, policy(session)]
        asked = id_object + secret
        body = self._run(Command.ActivateCredential, [key, parent], sessions, asked)
        opened = body.sized(2, STRUCTURE_LIMIT)
        body.end()
        return opened

    def quote(
        self, key: int, qualifying: bytes, selections: Iterable[PcrSelection]
    ) -> tuple[bytes, bytes]:
        """TPMS_ATTEST and TPMT_SIGNATURE over registers and `qualifying` (extraData)."""
        asked = tpm2b(qualifying) + number(Algorithm.NULL, 2) + encode_selections(selections)
        return self._attested(self._run(Command.Quote, [key], [PASSWORD], asked))

    # Registers.

    def pcr_update_counter(self) -> int:
        """The number of changes of registers since the TPM was reset."""
        counter, _ = self._pcr_read(())
        return counter

    def pcr_read(self, bank: Hash, pcrs: Iterable[int]) -> tuple[int, dict[int, bytes]]:
        """The update counter and the values of registers, read until all are there.

        The counter is that of the first read: compare it with a later one to see whether the values
        belong together.

        Raises:
            AttestationError: ST-ATTS-155 when the bank or a register is not there.
        """
        left = tuple(sorted(set(pcrs)))
        first: int | None = None
        values: dict[int, bytes] = {}
        while left:
            counter, found = self._pcr_read((PcrSelection(bank, left),))
            first = counter if first is None else first
            if not found:
                raise self.cannot(f"PCR {left[0]} of the {bank.name} bank is not there")
            values |= found
            left = tuple(pcr for pcr in left if pcr not in values)
        return first or 0, values

    def pcr_extend(self, pcr: int, digests: Iterable[tuple[Hash, bytes]]) -> None:
        """Extend one register, in every bank for which there is a digest."""
        items = [number(bank, 2) + digest for bank, digest in digests]
        asked = number(len(items), 4) + b"".join(items)
        self._run(Command.PCR_Extend, [pcr], [PASSWORD], asked).end()

    def shutdown(self) -> None:
        """Prepare for losing power, as an operating system does that shuts down."""
        self._run(Command.Shutdown, (), (), number(0, 2)).end()

    # How commands are sent.

    def cannot(self, what: str) -> AttestationError:
        """The error for what this TPM does not offer."""
        fix = "switch the TPM's SHA-256 bank on in the firmware's setup, or update its firmware"
        return AttestationError("ST-ATTS-155", what, self.where, fix)

    def _run(
        self,
        command: Command,
        handles: Sequence[int] = (),
        sessions: Sequence[Session] = (),
        parameters: bytes = b"",
        *,
        handle: bool = False,
    ) -> Reader:
        return run(
            self._channel,
            command,
            handles,
            sessions,
            parameters,
            timeout=self._timeout,
            handle=handle,
        )

    @contextmanager
    def _flushed(self, handle: int) -> Iterator[int]:
        try:
            yield handle
        except BaseException:
            # The first error is the one to tell; a TPM that broke cannot be flushed anyway.
            with suppress(AttestationError):
                self.flush_context(handle)
            raise
        self.flush_context(handle)

    def _flush_leftovers(self) -> None:
        for kind in (Range.TRANSIENT, Range.SESSION):
            for handle in self.handles(kind):
                self.flush_context(handle)

    def _capability(self, kind: _Capability, first: int, count: int) -> Reader:
        return self._ask_capability(kind, first, count)[0]

    def _ask_capability(self, kind: _Capability, first: int, count: int) -> tuple[Reader, bool]:
        asked = number(kind, 4) + number(first, 4) + number(count, 4)
        body = self._run(Command.GetCapability, (), (), asked)
        more, told = body.u8(), body.u32()
        if told != kind:
            raise body.bad(f"capability {told}, not {int(kind)}")
        return body, bool(more)

    @staticmethod
    def _count(body: Reader, limit: int) -> int:
        count = body.u32()
        if count > limit:
            raise body.bad(f"{count} items, at most {limit} were asked for")
        return count

    @staticmethod
    def _structure(body: Reader) -> bytes:
        return tpm2b(body.sized(2, STRUCTURE_LIMIT))

    @staticmethod
    def _ticket(body: Reader) -> None:
        body.take(6)  # tag and hierarchy
        body.sized(2, STRUCTURE_LIMIT)

    @staticmethod
    def _attested(body: Reader) -> tuple[bytes, bytes]:
        return body.sized(2, STRUCTURE_LIMIT), body.rest()

    def _pcr_read(self, asked: Sequence[PcrSelection]) -> tuple[int, dict[int, bytes]]:
        body = self._run(Command.PCR_Read, (), (), encode_selections(asked))
        counter = body.u32()
        pcrs = [pcr for selection in self._selections(body, asked) for pcr in selection.pcrs]
        if body.u32() != len(pcrs):
            raise body.bad(f"not {len(pcrs)} digests for {len(pcrs)} registers")
        values = {pcr: body.sized(2, _MAX_DIGEST) for pcr in pcrs}
        body.end()
        return counter, values

    @staticmethod
    def _selections(body: Reader, asked: Sequence[PcrSelection]) -> tuple[PcrSelection, ...]:
        """Read what the TPM selected: a part of what was asked."""
        size = sum(3 + selection.size for selection in asked)
        selections = parse_selections(body.take(4 + size), body.where)
        if len(selections) != len(asked) or any(
            found.bank != wanted.bank or not set(found.pcrs) <= set(wanted.pcrs)
            for found, wanted in zip(selections, asked, strict=True)
        ):
            raise body.bad("registers that were not asked for")
        return selections
