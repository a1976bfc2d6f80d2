# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""securetrain-rdzv/6: the messages between a node and the coordinator, without I/O.

Rules:

1. a frame is its length in four big-endian bytes and that many bytes of canonical JSON;
2. a frame has at most 64 KiB; only where evidence or a membership may come next, both after TLS
   authentication, up to 4 MiB. The length is judged before any of the frame is kept;
3. a message is one of a closed set, told apart by its ``type``; unknown types, unknown or duplicate
   fields, other spellings of the same JSON and values out of bounds are refused (ST-ADMN-001);
4. nothing here can name code.

::

    node                          coordinator
    Hello            ->
                     <-           Challenge
    Proof            ->
                     <-           Admit                  (or Refuse, at any time)
    Ready            ->                                  (with what it has seen as newest)
                     <-           Status...              (who waits, whether the job is closed)
                     <-           Formed                 (the signed membership; this member's keys)
    Store            ->                                  (rank 0 only)
                     <-           Store                  (to every member)
    Workers          ->                                  (a node that could not say so in Hello)
                     <-           Staffed                (the membership with everybody's workers)
    Heartbeat        ->
                     <-           Status
    Renew            ->           Challenge, Proof, Admit again, a third of the lease after Admit;
                                  with the node's next certificate when half of its life is over
    Suspect          ->                                  (recorded; evicts nobody by itself)
    AskSecrets       ->                                  (a member of an epoch, once for each)
                     <-           Secrets                (sealed to the key of Hello, or refused)
    Arrival          ->                                  (whether its ranks are in the group, and
                                                          for whom they wait)
    Done             ->                                  (its workers have ended well)
    Going            ->                                  (it will leave: form a round without it)
    Close            ->
                     <-           Status                 (whether it counts)
    Leave            ->
"""

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core import CODES, canonical
from securetrain.core.errors import AdmissionError, SecureTrainError, UsageError
from securetrain.core.vocabulary import NetworkProfile, NodeTier
from securetrain.evidence import MAX_PARTS, PART_SIZE, AttestationKeys, Structure
from securetrain.policy.schema import MAX_SECRETS

PROTOCOL: Final = "securetrain-rdzv/6"
"""Its number changes with any message: TLS (ALPN) and Hello refuse another one, before the rest."""
HEADER_SIZE: Final = 4
ANSWER_HEARTBEATS: Final = 2
"""So long may a member's machine answer nothing at all: it is switched off, or cut off."""
MISSED_HEARTBEATS: Final = 3
"""So many in a row, and either side takes the other for dead."""
FRAME_LIMIT: Final = 64 << 10
DOCUMENT_LIMIT: Final = 4 << 20
"""For a frame that carries evidence (base64) or a membership."""

PART_LIMIT: Final = 384 << 10
"""For a frame that may carry a part of a measurement list (base64)."""

MAX_EVICTED: Final = 256
"""Names and records of evicted nodes in one message: the newest ones, which nobody has heard."""

MAX_FLOORS: Final = 4
"""Floors that one node shows."""
FLOOR_LIMIT: Final = 8 << 10
"""Bytes of one of them."""
TRANSCRIPT_LIMIT: Final = 32 << 10
"""Bytes of an audit's transcript."""
MAX_SHOWN: Final = 64
"""Different floors in one membership."""
SECRET_LIMIT: Final = 32 << 10
"""Bytes of one secret."""
SEALED_LIMIT: Final = SECRET_LIMIT + 128

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Text: TypeAlias = Annotated[str, Meta(max_length=2000)]
Address: TypeAlias = Annotated[str, Meta(min_length=2, max_length=45)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 20)]
Epoch: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 52)]
WireGuardText: TypeAlias = Annotated[str, Meta(max_length=44)]
Port0: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
NumWorkers: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 16)]
"""Workers of one node; 0 when it has not said."""
WorkerRole: TypeAlias = Annotated[str, Meta(max_length=256)]
"""torchelastic's name for a node's kind of workers (``--role``); empty when it has not said."""
Floor: TypeAlias = Annotated[bytes, Meta(min_length=1, max_length=FLOOR_LIMIT)]
"""A statement about the newest checkpoint of the run, opaque here (`gossip`)."""
PartIndex: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_PARTS)]
Digest: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Message(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type"
):
    """Anything that may stand in a frame."""


class GenerationStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A coordinator's word, signed, about which of the job's starts it is (`generation`)."""

    number: Annotated[int, Meta(ge=1, le=1 << 52)]
    certificate: Annotated[str, Meta(max_length=8192)]
    """The coordinator's (PEM), under the job CA."""
    signature: Annotated[bytes, Meta(max_length=512)]


class Hello(Message, frozen=True, tag="hello"):
    """A node introduces itself. What it says must equal its certificate."""

    protocol: str
    job: Name
    node: Name
    address: Address
    """Where this node would listen for the other members: an IP address."""
    local_world: NumWorkers = 0
    """Workers that this node runs; 0 when the launcher does not say (`Workers`)."""
    role: WorkerRole = ""
    """Their role; empty when the launcher does not say."""
    wireguard: WireGuardText = ""
    """Public key (base64) of this node's end of the job network; empty when it has none."""
    wireguard_port: Port0 = 0
    """UDP port at `address` where that end listens; 0 when there is none."""
    network: NetworkProfile | None = None
    """The network profile that this node achieved, when the job has a network of its own."""
    sealing: WireGuardText = ""
    """X25519 public key (base64) of this connection, to which secrets are sealed; in the binding of
    the evidence. Empty for a node that asks for none."""
    tpm: AttestationKeys | None = None
    """The keys of the node's TPM, to which the challenge's credential is encrypted."""
    resume: Epoch | None = None
    """The epoch that this node runs, when it comes back to the coordinator after another one."""
    membership: Digest | None = None
    """Of that epoch (`membership.digest_of`): two coordinators may have had one of its number."""
    generation: GenerationStatement | None = None
    """The latest coordinator that this node has seen."""


class Challenge(Message, frozen=True, tag="challenge"):
    """The coordinator asks for evidence."""

    nonce: Annotated[bytes, Meta(min_length=32, max_length=32)]
    session: Annotated[bytes, Meta(min_length=16, max_length=16)]
    credential: tuple[Structure, Structure] | None = None
    """TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET, for the keys of Hello."""
    ima_first: Annotated[int, Meta(ge=0, le=1 << 32)] = 0
    """Entries of the measurement list that were attested before."""
    full: bool = True
    """False when a renewal needs no firmware log."""


class Proof(Message, frozen=True, tag="proof"):
    """The node's evidence."""

    media_type: Annotated[str, Meta(max_length=128)]
    body: bytes
    binding: Annotated[bytes, Meta(min_length=32, max_length=32)]
    signature: Annotated[bytes, Meta(max_length=512)]


class AskPart(Message, frozen=True, tag="ask-part"):
    """The coordinator asks for a part of the measurement list that the evidence announces.

    It has verified the evidence as far as it came.
    """

    index: PartIndex


class ListPart(Message, frozen=True, tag="list-part"):
    """The answer to AskPart."""

    index: PartIndex
    data: Annotated[bytes, Meta(min_length=1, max_length=PART_SIZE)]

    def __repr__(self) -> str:
        """Without the bytes."""
        return f"ListPart(index={self.index}, {len(self.data)} bytes)"


class Admit(Message, frozen=True, tag="admit"):
    """The node is in until the lease ends."""

    tier: NodeTier
    label: Text
    result: Annotated[str, Meta(max_length=32768)]
    """The attestation result: an EAR, signed by the coordinator (a JWT)."""
    svid: Annotated[str, Meta(max_length=8192)]
    """The node's key under the job CA for the time of the lease (PEM)."""
    certificate: Annotated[str, Meta(max_length=8192)]
    """The node's next certificate (PEM), for its next connection; mostly empty: see `renewal`."""
    policy: Digest
    lease_seconds: Annotated[float, Meta(gt=0, le=86400)]
    heartbeat_seconds: Annotated[float, Meta(gt=0, le=3600)]
    join_timeout_seconds: Annotated[float, Meta(gt=0, le=86400)]
    min_nodes: Count
    max_nodes: Count
    epoch: Annotated[int, Meta(ge=-1, le=1 << 52)] = -1
    """The job's latest epoch, over restarts of the coordinator; -1 before the first one."""
    generation: GenerationStatement | None = None
    """Of this coordinator; in the first Admit of a connection."""


class Ready(Message, frozen=True, tag="ready"):
    """The node's agent waits for the next round."""

    floors: Annotated[tuple[Floor, ...], Meta(max_length=MAX_FLOORS)]
    """What this node has seen as the newest checkpoint of the run."""


class CloseState(StrEnum):
    """The fate of a node's own Close."""

    NONE = "none"
    """It has sent none."""
    COUNTED = "counted"
    """It is a vote; the job is over once the policy's quorum has voted."""
    IGNORED = "ignored"
    """It counts for nothing: the node is in no round, or has no place in it."""


class Status(Message, frozen=True, tag="status"):
    """The state of the job."""

    waiting: Count
    """Nodes that wait for another round, so that the agents restart."""
    ready: Count
    """Nodes that have joined the round that is forming."""
    closed: bool
    spare: bool = False
    """This node has no place in the current round; it waits without a time limit."""
    evicted: Annotated[tuple[Name, ...], Meta(max_length=MAX_EVICTED)] = ()
    """Members of the current epoch that are out: nobody hears them any more, from now on and not
    from the next epoch on."""
    unfinished: Count = 0
    """Members of this node's round that have neither closed the job nor gone."""
    running: Count = 0
    """Members of this node's round whose workers have not ended well."""
    owed: Count = 0
    """Members of the epoch that have not come back to this coordinator yet, and may."""
    close: CloseState = CloseState.NONE
    """The fate of this node's Close."""


class Formed(Message, frozen=True, tag="formed"):
    """A round is complete: the membership, signed by the coordinator (a DSSE envelope)."""

    membership: str
    preshared: dict[Name, WireGuardText] = {}
    """WireGuard's pre-shared keys (base64) between the member that this is sent to and each other
    one, for this epoch only. They stand in no other message and in no record."""
    nccl: WireGuardText = ""
    """NCCL's pre-shared key (base64) of this epoch, the same for all members; empty when the job
    has no network of its own."""

    def __repr__(self) -> str:
        """Without the keys."""
        return "Formed(...)"


class Store(Message, frozen=True, tag="store"):
    """The address at which rank 0 of an epoch listens with the workers' store."""

    epoch: Epoch
    host: Address
    port: Annotated[int, Meta(ge=1, le=65535)]


class Workers(Message, frozen=True, tag="workers"):
    """The workers of this node, from an agent that its Hello knew nothing of; once."""

    epoch: Epoch
    local_world: Annotated[int, Meta(ge=1, le=1 << 16)]
    role: Annotated[str, Meta(min_length=1, max_length=256)]


class Staffed(Message, frozen=True, tag="staffed"):
    """The membership of the epoch once more, with the workers of every member."""

    membership: str


class ArrivalState(StrEnum):
    """The place of a node's ranks on their way into the workers' group."""

    UNSEEN = "nobody watches its ranks"
    WORKING = "its ranks are at work"
    WAITING = "its ranks wait in the group"
    ARRIVED = "its ranks are in the group"
    FAILED = "its ranks have lost the group"


class Arrival(Message, frozen=True, tag="arrival"):
    """The word of this node about its ranks and the workers' group: `coordinator.arrivals`."""

    epoch: Epoch
    stand: ArrivalState
    missing: Annotated[tuple[Name, ...], Meta(max_length=MAX_EVICTED)] = ()
    """The nodes that its ranks wait for."""
    timeout: Annotated[float, Meta(ge=0, le=1 << 31)] = 0.0
    """Seconds that its script gives the group; 0 when not known."""


class Done(Message, frozen=True, tag="done"):
    """The workers of this node have ended well; it waits for those of the others."""


class Going(Message, frozen=True, tag="going"):
    """This node will leave when its workers have ended: the next round is without it."""


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """The node is alive."""


class Renew(Message, frozen=True, tag="renew"):
    """The node asks to be challenged again before its lease ends."""


class Suspect(Message, frozen=True, tag="suspect"):
    """This node does not trust another member of its epoch."""

    node: Name
    epoch: Epoch
    code: Annotated[str, Meta(pattern=r"^ST-[A-Z]{4}-\d{3}\Z")]
    """The reason: what the other was caught at."""
    what: Text = ""
    transcript: Annotated[bytes, Meta(max_length=TRANSCRIPT_LIMIT)] = b""
    """Of an audit that the coordinator can check; empty where it is this node's word alone."""


class AskSecrets(Message, frozen=True, tag="ask-secrets"):
    """A member of an epoch asks for the secrets that the policy gives it."""

    epoch: Epoch
    nonce: Annotated[bytes, Meta(min_length=16, max_length=16)]
    """Fresh; also the context of the TLS exporter that the secrets are bound to."""


class SealedSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A secret that only the node can open (`sealing`)."""

    name: Name
    edition: Annotated[int, Meta(ge=1, le=1 << 31)]
    """One more each time that the coordinator reads other bytes."""
    sealed: Annotated[bytes, Meta(max_length=SEALED_LIMIT)]


class WithheldSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A secret that the node does not get, and why."""

    name: Name
    code: Annotated[str, Meta(pattern=r"^ST-[A-Z]{4}-\d{3}\Z")]
    what: Text


class Secrets(Message, frozen=True, tag="secrets"):
    """The answer to AskSecrets: every secret of the policy, sealed or withheld."""

    epoch: Epoch
    nonce: Annotated[bytes, Meta(min_length=16, max_length=16)]
    given: Annotated[tuple[SealedSecret, ...], Meta(max_length=MAX_SECRETS)] = ()
    withheld: Annotated[tuple[WithheldSecret, ...], Meta(max_length=MAX_SECRETS)] = ()

    def __repr__(self) -> str:
        """Without the bytes, although they are sealed."""
        return "Secrets(...)"


class Close(Message, frozen=True, tag="close"):
    """This node is done with the job; with a quorum of its round, the job is over for all."""

    failed: bool = False
    """Whether its workers have failed: then it is no vote that the job is over."""


class Leave(Message, frozen=True, tag="leave"):
    """This node goes; the job goes on."""


class Refuse(Message, frozen=True, tag="refuse"):
    """A refusal with its stable code; the connection ends with it."""

    code: Annotated[str, Meta(pattern=r"^ST-[A-Z]{4}-\d{3}\Z")]
    what: Text
    fix: Text


AnyMessage: TypeAlias = (
    Hello
    | Challenge
    | Proof
    | AskPart
    | ListPart
    | Admit
    | Ready
    | Status
    | Formed
    | Store
    | Workers
    | Staffed
    | Arrival
    | Done
    | Going
    | Heartbeat
    | Renew
    | Suspect
    | AskSecrets
    | Secrets
    | Close
    | Leave
    | Refuse
)


def refusal_of(message: Refuse, where: str, *others: type[SecureTrainError]) -> SecureTrainError:
    """A peer's refusal as an error: of admission, or of `others`; else ST-ADMN-012 quotes it.

    Args:
        message: The refusal.
        where: The peer.
        others: The further kinds of errors that it may be.
    """
    code = CODES.get(message.code)
    kinds: tuple[type[SecureTrainError], ...] = (AdmissionError, *others)
    for kind in kinds:
        if code is not None and code.family in kind.families:
            return kind(message.code, message.what, where, message.fix)
    return AdmissionError("ST-ADMN-012", f"{message.code}: {message.what}", where, message.fix)


def encode_frame(message: AnyMessage) -> bytes:
    """A message behind its length.

    Raises:
        AdmissionError: ST-ADMN-001 when it is larger than any receiver accepts.
    """
    body = canonical.encode(message)
    large = isinstance(message, Proof | ListPart | Formed | Staffed | Secrets)
    limit = DOCUMENT_LIMIT if large else FRAME_LIMIT
    if len(body) > limit:
        raise _bad(f"a {type(message).__name__} of {len(body)} bytes, the limit is {limit}")
    return len(body).to_bytes(HEADER_SIZE, "big") + body


def decode_message(body: bytes, limit: int = DOCUMENT_LIMIT) -> AnyMessage:
    """Read one frame's body.

    Raises:
        AdmissionError: ST-ADMN-001.
    """
    try:
        return canonical.decode(body, AnyMessage, limit=limit, canonical=True)  # type: ignore[arg-type]
    except UsageError as error:
        raise _bad(error.what[:500]) from error


class FrameReader:
    """Cuts a stream into frames; keeps at most one frame and one read."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes from the peer."""
        self._buffer += data

    def next(self, limit: int) -> bytes | None:
        """The next frame's body, or None until more has come.

        Raises:
            AdmissionError: ST-ADMN-001 when the peer announces an empty frame or more than `limit`.
        """
        if len(self._buffer) < HEADER_SIZE:
            return None
        size = int.from_bytes(self._buffer[:HEADER_SIZE], "big")
        if not 0 < size <= limit:
            raise _bad(f"a frame of {size} bytes, the limit here is {limit}")
        if len(self._buffer) < HEADER_SIZE + size:
            return None
        body = bytes(self._buffer[HEADER_SIZE : HEADER_SIZE + size])
        del self._buffer[: HEADER_SIZE + size]
        return body


def unexpected(message: Message, wanted: str) -> AdmissionError:
    """The refusal of a message that has no place here."""
    return _bad(f"a {type(message).__name__} where {wanted} was expected")


def _bad(what: str) -> AdmissionError:
    return AdmissionError("ST-ADMN-001", what, "control connection")
