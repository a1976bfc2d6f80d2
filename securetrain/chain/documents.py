# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The documents of a run's evidence, which statements name by their SHA-256.

Rules:

1. a document is canonical JSON (RFC 8785) of one closed schema; its field ``media_type`` says which
   and in which version, and nothing else is read as it;
2. it is bounded: bytes before it is parsed, items by its schema;
3. it names other pieces of evidence by SHA-256 only. No path of a machine and no name of a host is
   in it but the names of nodes, which certificates have, too;
4. none of them proves anything by itself. A membership or result inside is signed by the
   coordinator, for whom a `Credential` says who vouches; the rest is the launcher's word, bound by
   the checkpoint's signature, and says so where a worker only declared it.
"""

import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError, reason

BASE: Final = "application/vnd.securetrain.chain"
DOCUMENT_LIMIT: Final = 16 << 20
"""Bytes of one document."""
MAX_FILES: Final = 65_536
"""Files of code, and distributions, of one manifest."""
MAX_NODES: Final = 1 << 14
MALFORMED: Final = "ST-CHAN-001"

Hex32: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=255)]
Text: TypeAlias = Annotated[str, Meta(max_length=4096)]
Time: TypeAlias = Annotated[datetime, Meta(tz=True)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Base64: TypeAlias = Annotated[str, Meta(max_length=16 << 10)]
Relative: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=1024, pattern=r"^(?!/)(?!.*(^|/)\.\.?(/|\Z))[^\0\\]*\Z")
]
"""A name below a folder that is not said: never absolute, never upwards."""


class Document(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="media_type"
):
    """A piece of evidence that is kept by digest."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of a document."""


class Endorsement(Part, frozen=True):
    """A run's own word on its coordinator, in DSSE by a key of the role ``node``."""

    job: Name
    ca: Hex32
    """SHA-256 of the job CA's certificate (DER)."""
    begins: Time
    ends: Time


class Credential(Document, frozen=True, tag=f"{BASE}.credential.v1+json"):
    """A coordinator's certificates, and who vouches for them.

    An authority of the trust root vouches for a job CA that a cluster CA certified; a run of its
    own has a job CA of one launch, for which the run's key of the role ``node`` vouches.
    """

    job: Name
    certificates: Annotated[tuple[Base64, ...], Meta(min_length=2, max_length=2)]
    """DER in base64: the coordinator's, and the job CA's."""
    endorsement: Annotated[str, Meta(max_length=16 << 10)] = ""
    """A DSSE envelope of an `Endorsement`; empty where an authority vouches."""


class Exchange(Part, frozen=True):
    """The coordinator's view of the connection on which a node proved itself; base64.

    Nothing in it is secret any more: the nonce is spent, and so is the secret of the credential
    that only the node's TPM could open.
    """

    nonce: Base64
    session: Base64
    exporter: Base64
    client_spki: Base64
    server_spki: Base64
    ak_name: Base64 = ""
    wireguard: Base64 = ""
    sealing: Base64 = ""
    secret: Base64 = ""


class Presented(Part, frozen=True):
    """The evidence that a node presented, in the words of its message."""

    media_type: Name
    body: Hex32
    """The evidence itself, kept by its digest."""
    binding: Base64
    signature: Base64
    exchange: Exchange
    keys: Hex32 | None = None
    """The TPM keys of its Hello (canonical JSON of `evidence.AttestationKeys`); None without."""


class Appraised(Document, frozen=True, tag=f"{BASE}.appraised.v1+json"):
    """An attestation result as the coordinator signed it, and what it was judged on."""

    node: Name
    result: Hex32
    """The result's digest, by which memberships and statements name it."""
    token: Hex32
    """The signed result (an EAR in a JWT), kept by the digest of its bytes."""
    presented: Presented
    documents: Annotated[tuple[Hex32, ...], Meta(max_length=64)] = ()
    """What it was judged by: the signed reference values, then the documents that they name."""


class Membership(Document, frozen=True, tag=f"{BASE}.membership.v1+json"):
    """An epoch of a job: the signed membership, its coordinator, and its members' results.

    Renewals are among the results as far as the writer had heard of them: a launcher that joins a
    coordinator elsewhere hears of the membership alone, and its coordinator keeps the rest.
    """

    job: Name
    epoch: Count
    envelope: Hex32
    """The membership in the coordinator's DSSE envelope, kept by the digest of its bytes."""
    credentials: Annotated[tuple[Hex32, ...], Meta(max_length=1024)] = ()
    appraised: Annotated[tuple[Hex32, ...], Meta(max_length=1 << 17)] = ()
    """`Appraised` documents, oldest first."""


class Input(Part, frozen=True):
    """Something that a job reads, by its digest."""

    name: Name
    """Its last name; never a path."""
    sha256: Hex32
    """Of a file: of its bytes. Of a signed directory: of its statement's envelope."""
    kind: str = "file"


class Argument(Part, frozen=True):
    """One word of the command line."""

    text: Text = ""
    """As it was given; of one that is a path, its last name alone."""
    input: Input | None = None
    """What it names, if that was there when the run began."""


class Job(Document, frozen=True, tag=f"{BASE}.job.v1+json"):
    """The job, resolved: what was started with which inputs, without a path."""

    program: Input | None
    """The script; None for a module."""
    module: Text = ""
    """The module of ``-m``; empty for a script."""
    arguments: Annotated[tuple[Argument, ...], Meta(max_length=4096)] = ()
    nodes: tuple[Count, Count] = (1, 1)
    """The least and the most nodes."""
    workers: Text = ""
    """Of a node, as it was given."""
    declared: Hex32 | None = None
    """What the program itself says of its job (`Declared`), by its workers' word."""


class Declared(Document, frozen=True, tag=f"{BASE}.declared.v1+json"):
    """A program's own resolved settings, as its rank 0 declared them: bound, not judged."""

    program: Name
    settings: dict[Name, Any] = {}


class Witness(StrEnum):
    """The one whose word an entry of a manifest is."""

    LAUNCHER = "launcher"
    """The launcher has read the bytes itself."""
    WORKER = "worker"
    """A worker declared it, and the launcher could not look."""


class CodeFile(Part, frozen=True):
    """A file of code that was imported from outside the installed distributions."""

    module: Name
    path: Relative
    """Below the folder of the program, or of the package that it belongs to."""
    sha256: Hex32
    size: Count
    by: Witness = Witness.LAUNCHER


class Distribution(Part, frozen=True):
    """An installed distribution."""

    name: Name
    version: Name
    record: Hex32 | None = None
    """SHA-256 of its RECORD, which lists its files with their digests; None without one."""


class Code(Document, frozen=True, tag=f"{BASE}.code.v1+json"):
    """The code that ran."""

    files: Annotated[tuple[CodeFile, ...], Meta(max_length=MAX_FILES)] = ()
    distributions: Annotated[tuple[Distribution, ...], Meta(max_length=MAX_FILES)] = ()
    python: Text = ""
    commit: Annotated[str, Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})?\Z")] = ""
    """Of git; empty outside of a repository."""
    dirty: bool | None = None
    """Whether files differ from the commit; None where nobody could say."""
    image: Annotated[str, Meta(pattern=r"^(sha256:[0-9a-f]{64})?\Z")] = ""
    """Of the container, where the launcher was told."""
    lock_file: Input | None = None


class Processor(Part, frozen=True):
    """The machine's processors, as the kernel names them."""

    model: Text = ""
    architecture: Text = ""
    count: Count = 0


class Environment(Document, frozen=True, tag=f"{BASE}.environment.v1+json"):
    """The machine and the settings that decide whether a step can be made again bit for bit."""

    processor: Processor = Processor()
    devices: Annotated[tuple[Text, ...], Meta(max_length=1024)] = ()
    """Names of the accelerators, as rank 0 declared them."""
    python: Text = ""
    torch: Text = ""
    """Version and build."""
    variables: Annotated[dict[Name, Text], Meta(max_length=1024)] = {}
    """Those of the workers that decide about arithmetic: threads, MKL_CBWR, CUBLAS and so on."""
    declared: Annotated[dict[Name, Text], Meta(max_length=1024)] = {}
    """Rank 0's own word: threads, determinism flags, precision."""


D = TypeVar("D", bound=Document)


def encode(document: Document) -> bytes:
    """The canonical bytes of a document; their SHA-256 is its name.

    Raises:
        IntegrityError: ST-CHAN-001 when a field has a value that its type does not allow.
    """
    data = canonical.encode(document)
    decode(data, type(document))
    return data


def digest_of(document: Document) -> str:
    """SHA-256 (hex) of a document's canonical bytes."""
    return hashlib.sha256(encode(document)).hexdigest()


def decode(data: bytes, kind: type[D], where: str = "") -> D:
    """Read a document of one kind; see the module.

    Raises:
        IntegrityError: ST-CHAN-001.
    """
    try:
        found = canonical.decode(data, kind, limit=DOCUMENT_LIMIT, where=where, canonical=True)
    except UsageError as error:
        raise IntegrityError(MALFORMED, reason(error)[:500], where) from error
    # A tag that is left out is let through by the parser, where only one kind is asked for.
    if not canonical.spells(found, data):
        raise IntegrityError(MALFORMED, f"not a {kind.__struct_config__.tag}, in full", where)
    return found
