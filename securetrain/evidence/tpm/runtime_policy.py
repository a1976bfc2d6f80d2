# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keylime runtime policies: which files a node may have measured, and with which digests.

The document is Keylime's own JSON (keylime 7.14, ``keylime/ima/ima.py``, RUNTIME_POLICY_SCHEMA),
plain or in the DSSE envelope that ``keylime-policy sign`` writes. Rules:

1. it is read strictly: bounded, no duplicate keys, no unknown keys. ``meta`` (version 1),
   ``release`` and ``meta.generator`` are read and mean nothing here;
2. a digest is compared with its algorithm. A bare one is SHA-1, SHA-256, SHA-384 or SHA-512 by its
   length, ``algorithm:hex`` says so itself. SHA-1 digests accept nothing unless ``allow_sha1``:
   two files with one SHA-1 digest can be made;
3. ``excludes`` match whole paths (Keylime: a prefix is enough, so ``/tmp`` would also exclude
   ``/tmp-evil``), and only patterns that match in linear time (`path_patterns`);
4. ``keyrings`` and ``ima-buf`` list buffers by name. A keyring in ``ima.ignored_keyrings`` may
   hold any key; ``*`` is refused, since keys are not told from other buffers here;
5. a file that is not listed may bear a signature by a key of the reference values or of
   ``verification-keys`` (`ima_keys`). A path that is listed has the digests that are listed: no
   signature makes another one good, so that an older signed file cannot be put back;
6. what is not enforced is refused, never passed over: ``ima.dm_policy`` and a ``log_hash_alg``
   other than sha1 (the digest of the kernel's ordinary list, recomputed beside the SHA-256 that the
   quote covers). A key whose digest ``keyrings`` lists may be loaded, and signs for nothing;
7. the kernel writes ``_`` for a space in a path, and so do the paths of the policy; patterns are
   matched with what the kernel wrote;
8. beside the policy stands the one before it, for the time of an upgrade: until its day what either
   accepts is accepted.
"""

import binascii
import hashlib
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, StrEnum
from threading import Lock
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AttestationError, IdentityError, UsageError
from securetrain.evidence.tpm.ima_keys import MAX_KEYS, NO_SIGNERS, ImaKey, Signers, read_signers
from securetrain.evidence.tpm.path_patterns import MAX_PATTERNS, PathPatterns
from securetrain.identity import dsse
from securetrain.identity.keys import PublicKey

POLICY_LIMIT: Final = 64 << 20
MAX_PATHS: Final = 1_000_000
MAX_POLICIES: Final = 64
"""How many compiled policies are kept."""
PAYLOAD_TYPE: Final = "application/vnd.keylime+json"
_SIZES: Final = {"sha1": 20, "sha256": 32, "sha384": 48, "sha512": 64}
_BY_SIZE: Final = {size: name for name, size in _SIZES.items()}

_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4096)]
_Digests: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(max_length=160)], ...], Meta(min_length=1, max_length=1024)
]
_Lists: TypeAlias = Annotated[dict[_Name, _Digests], Meta(max_length=MAX_PATHS)]
_Sha256: TypeAlias = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]


class ViolationMode(StrEnum):
    """The answer to a file that changed while the kernel measured it."""

    LOG = "log"
    WARN = "warn"
    REFUSE = "refuse"


class ViolationRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The answer for some paths."""

    paths: Annotated[str, Meta(min_length=1, max_length=512)]
    """Pattern of whole paths."""
    mode: ViolationMode


class FormerPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The runtime policy before this one, for as long as an upgrade takes."""

    policy: dict[str, Any] | None = None
    policy_sha256: _Sha256 = ""
    signed_by: Annotated[tuple[str, ...], Meta(max_length=8)] = ()
    """As in `ImaReference`."""
    until: Annotated[datetime, Meta(tz=True)]
    """From then on it accepts nothing."""


class ImaReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The runtime policy that the measured files of a node are compared with.

    Exactly one of `policy` and `policy_sha256` is needed; with neither no file is accepted.
    """

    policy: dict[str, Any] | None = None
    """The runtime policy itself, or its DSSE envelope."""
    policy_sha256: _Sha256 = ""
    """SHA-256 of the file that holds it."""
    signed_by: Annotated[tuple[str, ...], Meta(max_length=8)] = ()
    """Public keys (PEM; P-256 or Ed25519) of which one must have signed the policy's DSSE envelope.
    Empty: the policy is not in an envelope, and these reference values vouch for it."""
    allow_sha1: bool = False
    """Accept SHA-1 digests of files."""
    keys: Annotated[tuple[ImaKey, ...], Meta(max_length=MAX_KEYS)] = ()
    """Keys that sign files, and that may be in the kernel's keyrings."""
    former: FormerPolicy | None = None
    """The policy before this one."""
    violations: Annotated[tuple[ViolationRule, ...], Meta(max_length=64)] = ()
    """Answers to violations by path, the first that matches; what matches none goes by
    `node.tpm.allow_ima_violations`."""

    @property
    def named(self) -> tuple[str, ...]:
        """SHA-256 of each policy that is not in here."""
        both = self.policy_sha256, self.former.policy_sha256 if self.former is not None else ""
        return tuple(filter(None, both))


class _Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: Annotated[int, Meta(ge=1, le=1)]
    generator: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    timestamp: Annotated[str, Meta(max_length=64)] = ""


class _Ima(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    ignored_keyrings: Annotated[tuple[_Name, ...], Meta(max_length=256)] = ()
    log_hash_alg: str = "sha1"
    dm_policy: Any = None


class _Document(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="kebab"
):
    meta: _Meta
    release: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    digests: _Lists
    excludes: Annotated[tuple[str, ...], Meta(max_length=MAX_PATTERNS)]
    keyrings: _Lists
    ima: _Ima
    ima_buf: _Lists
    verification_keys: str


class Verdict(Enum):
    """A policy's word on one measured file or buffer."""

    ACCEPTED = "its digest is listed"
    EXCLUDED = "its path is excluded: the digest was not compared"
    UNKNOWN = "it is not listed"
    WRONG = "its digest is not among those that are listed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePolicy:
    """A policy in the form that measurements are looked up in."""

    digest: str
    """SHA-256 of the document; with `allow_sha1` it says which policy this is."""
    allow_sha1: bool
    files: Mapping[bytes, tuple[bytes, ...]]
    """By path: digest fields as IMA writes them, ``algorithm ':' NUL digest``."""
    buffers: Mapping[bytes, tuple[bytes, ...]]
    ignored: frozenset[bytes]
    excludes: PathPatterns
    left_out: int
    """SHA-1 digests that accept nothing."""
    patterns: tuple[str, ...] = ()
    """What `excludes` was compiled from."""
    signers: Signers = NO_SIGNERS
    former: str = ""
    """`digest` of the policy that is accepted beside this one."""

    @property
    def identity(self) -> tuple[str, bool, str, str]:
        """The things that a verdict depends on beside the measurement."""
        return self.digest, self.allow_sha1, self.signers.digest, self.former

    def beside(self, former: "RuntimePolicy") -> "RuntimePolicy":
        """Join with another policy: what either accepts is accepted.

        Raises:
            AttestationError: ST-ATTS-323 when both have more patterns than one may have.
        """
        patterns = tuple(dict.fromkeys((*self.patterns, *former.patterns)))
        return replace(
            self,
            files=_united(self.files, former.files),
            buffers=_united(self.buffers, former.buffers),
            ignored=self.ignored | former.ignored,
            excludes=PathPatterns(patterns),
            patterns=patterns,
            former=former.digest,
        )

    def judge(self, name: bytes, digest: bytes, *, is_buffer: bool) -> Verdict:
        """Look up one measurement.

        Args:
            name: the path, or the buffer's name, without the NUL behind it.
            digest: the digest field, as in `files`.
            is_buffer: whether it comes from an ``ima-buf`` entry.
        """
        listed = (self.buffers if is_buffer else self.files).get(name)
        if listed is not None and digest in listed:
            return Verdict.ACCEPTED
        if (is_buffer and name in self.ignored) or self.excludes.matches(name):
            return Verdict.EXCLUDED
        return Verdict.UNKNOWN if listed is None else Verdict.WRONG


class RuntimePolicies:
    """Compiled policies, each kept once for all nodes that it judges."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._compiled: dict[tuple[str, bool, bytes], RuntimePolicy] = {}

    def get(self, reference: ImaReference, documents: Mapping[str, bytes]) -> RuntimePolicy:
        """The policy that reference values name.

        The document is read and hashed each time: ask when reference values are loaded, not for
        every node.

        Args:
            reference: names the policy.
            documents: policy files by their SHA-256 in hex; the bytes are hashed again.

        Raises:
            AttestationError: ST-ATTS-320 malformed, 321 missing or another one, 322 asks for what
                is not enforced, 323 an unsafe pattern, 324 not signed by a pinned key.
        """
        data = _document(reference, documents)
        if reference.signed_by:
            data = _unwrap(data, reference.signed_by)
        keys = canonical.encode(list(reference.keys))
        key = (hashlib.sha256(data).hexdigest(), reference.allow_sha1, keys)
        # Under the lock, so that many nodes that join at once compile it once.
        with self._lock:
            if key not in self._compiled:
                compiled = parse_runtime_policy(
                    data, allow_sha1=reference.allow_sha1, keys=reference.keys
                )
                if len(self._compiled) >= MAX_POLICIES:
                    del self._compiled[next(iter(self._compiled))]
                self._compiled[key] = compiled
            return self._compiled[key]

    def with_former(
        self, reference: ImaReference, documents: Mapping[str, bytes]
    ) -> RuntimePolicy | None:
        """The policy of reference values while the policy before theirs counts; None without one.

        Raises:
            AttestationError: as `get`.
        """
        former = reference.former
        if former is None:
            return None
        # Its own verification-keys are not taken over: keys are those of the newest policy.
        before = msgspec.structs.replace(
            reference,
            policy=former.policy,
            policy_sha256=former.policy_sha256,
            signed_by=former.signed_by,
        )
        return self.get(reference, documents).beside(self.get(before, documents))


def parse_runtime_policy(
    data: bytes, *, allow_sha1: bool = False, keys: Sequence[ImaKey] = ()
) -> RuntimePolicy:
    """Read and compile a document that is not in an envelope.

    Args:
        data: the document.
        allow_sha1: accept SHA-1 digests of files.
        keys: that sign files, beside those of the document.

    Raises:
        AttestationError: ST-ATTS-320, 322, 323 or 325.
    """
    try:
        document = canonical.decode(data, _Document, limit=POLICY_LIMIT, where="runtime policy")
    except UsageError as error:
        raise _malformed(error.what) from error
    _refuse_unenforced(document)
    files, files_left = _compile(document.digests, "digests", allow_sha1=allow_sha1)
    buffers, buffers_left = _compile(
        _joined(document.keyrings, document.ima_buf), "ima-buf", allow_sha1=allow_sha1
    )
    return RuntimePolicy(
        digest=hashlib.sha256(data).hexdigest(),
        allow_sha1=allow_sha1,
        files=files,
        buffers=buffers,
        ignored=frozenset(name.encode() for name in document.ima.ignored_keyrings),
        excludes=PathPatterns(document.excludes),
        left_out=files_left + buffers_left,
        patterns=document.excludes,
        signers=read_signers(keys, document.verification_keys),
    )


def _document(reference: ImaReference, documents: Mapping[str, bytes]) -> bytes:
    match reference:
        case ImaReference(policy=dict() as inline, policy_sha256=""):
            return _spelt(inline)
        case ImaReference(policy=None, policy_sha256=wanted) if wanted:
            data = documents.get(wanted)
        case _:
            raise _missing("the reference values must hold one policy, or the SHA-256 of one")
    if data is None:
        raise _missing(f"no file with SHA-256 {wanted}")
    if hashlib.sha256(data).hexdigest() != wanted:
        raise _missing(f"the file has another SHA-256 than {wanted}")
    return data


def _spelt(inline: dict[str, Any]) -> bytes:
    try:
        return canonical.dumps(inline)
    except UsageError as error:
        raise _malformed(error.what) from error


def _unwrap(data: bytes, signers: tuple[str, ...]) -> bytes:
    """The payload of a DSSE envelope that one of the keys has signed.

    Keylime's envelopes are not canonical JSON and name keys in their own way, so every signature
    is tried with every pinned key.
    """
    try:
        envelope = canonical.decode(
            data, dsse.Envelope, limit=dsse.ENVELOPE_LIMIT, where="runtime policy"
        )
        payload = b64decode(envelope.payload, validate=True)
        signatures = [b64decode(one.sig, validate=True) for one in envelope.signatures]
    except (UsageError, binascii.Error, ValueError) as error:
        raise _unsigned(f"not a DSSE envelope: {error}") from error
    if envelope.payloadType != PAYLOAD_TYPE:
        raise _unsigned(f"payload type {envelope.payloadType!r}, expected {PAYLOAD_TYPE!r}")
    if len(signatures) > dsse.MAX_SIGNATURES:
        raise _unsigned(f"{len(signatures)} signatures, the limit is {dsse.MAX_SIGNATURES}")
    message = dsse.pae(envelope.payloadType, payload)
    keys = [_key(pem) for pem in signers]
    if not any(_verifies(key, one, message) for one in signatures for key in keys):
        raise _unsigned(f"none of {len(signatures)} signatures is by a pinned key")
    return payload


def _key(pem: str) -> PublicKey:
    try:
        native = serialization.load_pem_public_key(pem.encode())
        return PublicKey.from_spki(
            native.public_bytes(
                serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
    except (ValueError, UnsupportedAlgorithm, IdentityError) as error:
        raise _unsigned(f"a key in signed_by cannot be used: {error}") from error


def _verifies(key: PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except IdentityError:
        return False
    return True


def _refuse_unenforced(document: _Document) -> None:
    ima = document.ima
    for asked, what in (
        (ima.dm_policy is not None, "ima.dm_policy: device-mapper entries are not evaluated"),
        (ima.log_hash_alg != "sha1", f"ima.log_hash_alg {ima.log_hash_alg!r}, only sha1 is read"),
        ("*" in ima.ignored_keyrings, "ima.ignored_keyrings *: name the keyrings"),
    ):
        if asked:
            raise AttestationError("ST-ATTS-322", what, "runtime policy")


def _united(
    first: Mapping[bytes, tuple[bytes, ...]], second: Mapping[bytes, tuple[bytes, ...]]
) -> dict[bytes, tuple[bytes, ...]]:
    """Digest fields by path of both; most files of an upgrade are the same."""
    united = dict(first)
    for path, fields in second.items():
        known = united.get(path)
        if known is None:
            united[path] = fields
        elif known != fields:
            united[path] = tuple(dict.fromkeys((*known, *fields)))
    return united


def _joined(
    first: Mapping[str, tuple[str, ...]], second: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Digests by name of both."""
    joined = dict(first)
    for name, digests in second.items():
        joined[name] = joined.get(name, ()) + digests
    return joined


def _compile(
    lists: Mapping[str, tuple[str, ...]], where: str, *, allow_sha1: bool
) -> tuple[dict[bytes, tuple[bytes, ...]], int]:
    """Digest fields by path, and how many were left out because they are SHA-1."""
    compiled: dict[bytes, tuple[bytes, ...]] = {}
    left_out = 0
    for name, texts in lists.items():
        fields = [_field(text, f"{where}[{name[:200]!r}]") for text in texts]
        accepted = [f for f in fields if allow_sha1 or not f.startswith(b"sha1:")]
        left_out += len(fields) - len(accepted)
        # Two names with one spelling in the list share their digests: they cannot be told apart.
        key = name.replace(" ", "_").encode()
        compiled[key] = tuple(dict.fromkeys((*compiled.get(key, ()), *accepted)))
    return compiled, left_out


def _field(text: str, where: str) -> bytes:
    name, _, digits = text.rpartition(":")
    try:
        digest = bytes.fromhex(digits)
    except ValueError as error:
        raise _malformed(f"not a digest: {text[:80]!r}", where) from error
    name = name or _BY_SIZE.get(len(digest), "")
    if digest.hex() != digits or _SIZES.get(name) != len(digest):
        raise _malformed(f"not a digest in lower-case hex: {text[:80]!r}", where)
    return name.encode() + b":\0" + digest


def _malformed(what: str, where: str = "runtime policy") -> AttestationError:
    return AttestationError("ST-ATTS-320", f"not a Keylime runtime policy: {what}", where)


def _missing(what: str) -> AttestationError:
    return AttestationError("ST-ATTS-321", what, "runtime policy")


def _unsigned(what: str) -> AttestationError:
    return AttestationError("ST-ATTS-324", what, "runtime policy")
