# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The trust root: which keys may sign what, signed by its own root keys.

Modelled on TUF's root role (https://theupdateframework.github.io/specification/latest/#root): a
version, an expiry, and for each role its keys and threshold. A verifier is given the file by a
person (``--trust``) and takes its bytes as the pin; how it changes is `identity.rotation`.

A reader checks, in order:

1. an envelope of bounded size in canonical form, and a document of the closed schema;
2. every key is stored under its own id, every role names keys that are there, none of them twice,
   and a threshold that they can reach;
3. no key of the root role is revoked, and a revocation that spares what was logged says which log
   by naming its origin;
4. signed by the threshold of its own root keys;
5. created already, and not expired.

A key that was revoked counts for nothing, but for what is proven to have been logged at an index
below the revocation's ``valid_before``. How many must sign is said by the threshold and never
lowered by a revocation.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, UsageError, reason
from securetrain.core.files import read_file
from securetrain.identity import dsse
from securetrain.identity.keys import PublicKey, Signer
from securetrain.identity.spiffe import Role

PAYLOAD_TYPE: Final = "application/vnd.securetrain.trust-root+json"
LIMIT: Final = 1 << 20
MAX_KEYS: Final = 1024

KeyId: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Version: TypeAlias = Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]
Time: TypeAlias = Annotated[datetime, Meta(tz=True)]


class TrustRole(StrEnum):
    """The purpose for which keys are trusted."""

    ROOT = "root"
    """Signs the trust root itself."""
    CHECKPOINT = "checkpoint"
    DATASET = "dataset"
    LEDGER = "ledger"
    OPERATOR = "operator"
    """Signs what overrules a refusal: waivers of rollback and quarantine."""
    LOG = "log"
    """Signs the checkpoints of the transparency log; Ed25519."""
    WITNESS = "witness"
    """Cosigns them; Ed25519. The threshold is the quorum."""
    CI = "ci"
    """Signs what a pipeline says: scans, reviews, verification summaries."""
    NODE = "node"
    """Admits nodes to a run: signs the certificates of the keys with which their ranks sign."""
    LEDGER_COORDINATOR = "ledger-coordinator"
    """Of the ledger's keys, those that may write what a coordinator decides; so with the others. A
    key may be in several. See `ledger.reading` for a root that names none."""
    LEDGER_LAUNCHER = "ledger-launcher"
    LEDGER_RANK = "ledger-rank"
    LEDGER_WORKER = "ledger-worker"


class RoleKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of one role and how many of them must sign."""

    keys: list[str]
    threshold: int = 1


class Revoked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key that counts no more. It is never taken back."""

    key_id: KeyId
    since: Time
    reason: Annotated[str, Meta(max_length=500)] = ""
    valid_before: Annotated[int, Meta(ge=0, le=(1 << 53) - 1)] | None = None
    """Entries logged at an index below this stay valid; without it, none do."""


class Authority(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A cluster CA (or the CA of a job) whose members may sign for a role with attested keys."""

    role: TrustRole
    certificate: Annotated[str, Meta(max_length=16 << 10)]
    """DER in base64."""
    trust_domain: Annotated[str, Meta(min_length=1, max_length=255)]
    job: Annotated[str, Meta(max_length=64)] = ""
    """Exactly this job; empty for every job of the trust domain."""
    parties: Annotated[list[Role], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [Role.MEMBER]
    )


class TrustDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The signed document. `keys` maps key ids to SPKI DER in base64; times are RFC 3339 UTC."""

    version: Version
    created: Time
    expires: Time
    keys: Annotated[dict[str, str], Meta(max_length=MAX_KEYS)]
    roles: dict[TrustRole, RoleKeys]
    revoked: Annotated[list[Revoked], Meta(max_length=MAX_KEYS)] = []
    log_origin: Annotated[str, Meta(max_length=255)] = ""
    """The origin line of the one log that counts; empty when none does."""
    authorities: Annotated[list[Authority], Meta(max_length=64)] = []


@dataclass(frozen=True, slots=True)
class TrustRoot:
    """A checked trust root."""

    document: TrustDocument
    keys: Mapping[str, PublicKey]

    @property
    def version(self) -> int:
        """Its number; the next one is exactly one more."""
        return self.document.version

    @property
    def revoked(self) -> dict[str, Revoked]:
        """The revocations, by key id."""
        return {entry.key_id: entry for entry in self.document.revoked}

    def keys_for(self, role: TrustRole, logged: int | None = None) -> dict[str, PublicKey]:
        """The keys that may sign for `role` (none when the root does not name it).

        Args:
            role: The purpose of the signature.
            logged: The index at which the thing is proven to be logged (`log.proof.verify_logged`);
                keys that were revoked later still count for it.
        """
        entry = self.document.roles.get(role)
        revoked = self.revoked
        return {
            key_id: self.keys[key_id]
            for key_id in (entry.keys if entry is not None else [])
            if key_id not in revoked or _spares(revoked[key_id], logged)
        }

    def threshold(self, role: TrustRole) -> int:
        """The number of the role's keys that must sign."""
        entry = self.document.roles.get(role)
        return 1 if entry is None else entry.threshold

    def verify(
        self,
        envelope: bytes,
        payload_type: str,
        role: TrustRole,
        where: str = "",
        logged: int | None = None,
    ) -> dsse.VerifiedPayload:
        """Verify an envelope against the keys of `role`; see `dsse.verify` and `keys_for`."""
        keys = self.keys_for(role, logged)
        return dsse.verify(
            envelope,
            payload_type,
            keys,
            threshold=self.threshold(role),
            revoked=self.revoked.keys() - keys.keys(),
            where=where,
        )

    @classmethod
    def load(cls, path: Path, now: datetime) -> "TrustRoot":
        """Read and check a trust root file; see `parse`."""
        return cls.parse(read_file(path, LIMIT), now, str(path))

    @classmethod
    def parse(cls, data: bytes, now: datetime, where: str = "") -> "TrustRoot":
        """Check a trust root against its own root keys at time `now`.

        Raises:
            IdentityError: ST-IDEN-008.
        """
        root = cls.parse_of_any_time(data, where)
        root.check_time(now, where)
        return root

    @classmethod
    def parse_of_any_time(cls, data: bytes, where: str = "") -> "TrustRoot":
        """Check all but the time: for roots on the way to a newer one, which may have expired.

        Raises:
            IdentityError: ST-IDEN-008.
        """
        try:
            unverified = decode_unverified(data, where)
            keys = _keys(unverified)
            root = unverified.roles[TrustRole.ROOT]
            _check_revocations(unverified)
            dsse.verify(
                data,
                PAYLOAD_TYPE,
                {key_id: keys[key_id] for key_id in root.keys},
                threshold=root.threshold,
                where=where,
            )
        except (UsageError, IdentityError, ValueError, KeyError) as error:
            raise _refused(
                f"malformed or not signed by its own root keys: {reason(error)}", where
            ) from error
        return cls(unverified, keys)

    def check_time(self, now: datetime, where: str = "") -> None:
        """Refuse a root that is not created yet, or has expired.

        Raises:
            IdentityError: ST-IDEN-008.
        """
        document = self.document
        if not document.created <= now < document.expires:
            raise _refused(f"valid from {document.created} to {document.expires}, now {now}", where)


def decode_unverified(data: bytes, where: str = "") -> TrustDocument:
    """Decode an envelope before any signature was checked.

    Raises:
        UsageError: ST-USAG-008.
        ValueError: Bad base64.
    """
    envelope = canonical.decode(data, dsse.Envelope, limit=LIMIT, where=where)
    return canonical.decode(
        base64.b64decode(envelope.payload, validate=True), TrustDocument, limit=LIMIT, where=where
    )


def sign_root(
    roles: Mapping[TrustRole, Sequence[PublicKey]],
    root_key: Signer,
    created: datetime,
    expires: datetime,
    version: int = 1,
) -> bytes:
    """Make a trust root file's bytes with one root key and a threshold of one for every role."""
    named = {
        TrustRole.ROOT: RoleKeys([root_key.key_id]),
        **{role: RoleKeys([key.key_id for key in keys]) for role, keys in roles.items()},
    }
    keys = [root_key.public, *(key for keys in roles.values() for key in keys)]
    document = TrustDocument(
        version=version, created=created, expires=expires, keys=key_table(keys), roles=named
    )
    return sign_document(document, [root_key])


def sign_document(document: TrustDocument, keys: Sequence[Signer]) -> bytes:
    """The envelope of a document; whether enough root keys signed it is for `parse` to say."""
    return dsse.sign(canonical.encode(document), PAYLOAD_TYPE, keys)


def key_table(keys: Sequence[PublicKey]) -> dict[str, str]:
    """Keys as a document holds them."""
    return {key.key_id: base64.b64encode(key.spki).decode() for key in keys}


def _spares(entry: Revoked, logged: int | None) -> bool:
    return logged is not None and entry.valid_before is not None and logged < entry.valid_before


def _keys(document: TrustDocument) -> dict[str, PublicKey]:
    keys = {}
    for key_id, spki in document.keys.items():
        key = PublicKey.from_spki(base64.b64decode(spki, validate=True))
        if key.key_id != key_id:
            raise ValueError(f"key {key_id[:16]} is stored under another key's id")
        keys[key_id] = key
    for name, role in document.roles.items():
        if len(set(role.keys)) != len(role.keys) or not 1 <= role.threshold <= len(role.keys):
            raise ValueError(f"role {name}: threshold {role.threshold} of {len(role.keys)} keys")
        if missing := set(role.keys) - keys.keys():
            raise ValueError(f"role {name}: key {min(missing)[:16]} is not there")
    return keys


def _check_revocations(document: TrustDocument) -> None:
    named = [entry.key_id for entry in document.revoked]
    if len(set(named)) != len(named):
        raise ValueError("a key is revoked twice")
    if lost := set(named) & set(document.roles[TrustRole.ROOT].keys):
        raise ValueError(f"root key {min(lost)[:16]} is revoked")
    if any(e.valid_before is not None for e in document.revoked) and not document.log_origin:
        raise ValueError("a revocation names a log index, and the root names no log")


def _refused(what: str, where: str) -> IdentityError:
    return IdentityError("ST-IDEN-008", what, where)
