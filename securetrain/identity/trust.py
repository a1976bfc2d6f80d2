# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The trust root: which keys may sign what, signed by its own root keys.

Modelled on TUF's root role (https://theupdateframework.github.io/specification/latest/#root): a
version, an expiry, and for each role its keys and threshold. A verifier is given the file by a
person (``--trust``) and takes its bytes as the pin; how it changes is `identity.rotation`.

A reader checks, in order:

1. an envelope of bounded size in canonical form, and a document of the closed schema;
2. every key is stored under its own id, every role names keys or identities that are there, none
   of them twice, and a threshold that they can reach; a companion is the ML-DSA-65 key of one
   classical key and stands in no role of its own, and a role that asks for both signatures names
   only keys that have one;
3. no key of the root role is revoked, and a revocation that spares what was logged says which log
   by naming its origin;
4. signed by the threshold of its own root keys;
5. created already, and not expired.

A key that was revoked counts for nothing, but for what is proven to have been logged at an index
below the revocation's ``valid_before``. How many must sign is said by the threshold and never
lowered by a revocation. Revoking an identity, or a companion, works like revoking a key.
"""

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, SecureTrainError, reason
from securetrain.core.files import read_file
from securetrain.identity import dsse, keyless
from securetrain.identity.keyless import Identity
from securetrain.identity.keys import KeyKind, PublicKey, Signer
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
    """Signs the checkpoints of the transparency log; Ed25519, or a pair with ML-DSA-44."""
    WITNESS = "witness"
    """Cosigns them; Ed25519 or ML-DSA-44. The threshold is the quorum."""
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


class Signatures(StrEnum):
    """The signatures of a pair of keys that must hold."""

    CLASSICAL = "classical"
    """That of the classical key; a companion's is checked where it is there."""
    BOTH = "both"
    """That of the classical key and that of its ML-DSA companion."""


class RoleKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys and identities of one role and how many of them must sign."""

    keys: list[str]
    """Ids, of `TrustDocument.keys` or `TrustDocument.identities`."""
    threshold: int = 1
    signatures: Signatures = Signatures.CLASSICAL
    apart: bool | UnsetType = UNSET
    """Of the role `node`: whether the keys, and the coordinators that they vouch for, lie on no
    machine that trains. Roots before that do not say so."""


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
    apart: bool | UnsetType = UNSET
    """See `RoleKeys.apart`."""


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
    companions: Annotated[dict[str, str], Meta(max_length=MAX_KEYS)] = {}
    """Id of a classical key to that of its ML-DSA companion; both are in `keys`."""
    identities: Annotated[dict[str, Identity], Meta(max_length=64)] = {}
    """People and pipelines who sign without keys of their own, by `Identity.id`."""
    sigstore: Annotated[dict[str, str], Meta(max_length=4)] = {}
    """Name of a Sigstore instance to its trusted root (base64), which identities name."""


KEYED: Final = frozenset(
    {
        TrustRole.ROOT,
        TrustRole.LOG,
        TrustRole.WITNESS,
        TrustRole.NODE,
        TrustRole.LEDGER,
        TrustRole.LEDGER_COORDINATOR,
        TrustRole.LEDGER_LAUNCHER,
        TrustRole.LEDGER_RANK,
        TrustRole.LEDGER_WORKER,
    }
)
"""Roles of keys alone: what they sign is no envelope, or must outlive every Sigstore instance."""


@dataclass(frozen=True, slots=True)
class TrustRoot:
    """A checked trust root.

    >>> TrustRoot.load(Path("trust.json"), now).version
    1
    """

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
        found = {}
        for key_id in entry.keys if entry is not None else []:
            key = self.keys.get(key_id)
            if key is None:
                continue  # an identity
            ids = [key_id] if key.companion is None else [key_id, key.companion.key_id]
            if all(one not in revoked or _spares(revoked[one], logged) for one in ids):
                found[key_id] = key
        return found

    def identities_for(self, role: TrustRole) -> dict[str, Identity]:
        """The identities that may sign for `role` without a key of their own."""
        entry = self.document.roles.get(role)
        known = self.document.identities
        return {
            name: known[name]
            for name in (entry.keys if entry is not None else [])
            if name in known and name not in self.revoked
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
        """Verify an envelope, or a keyless bundle, against the keys or identities of `role`.

        See `dsse.verify`, `keyless.verify` and `keys_for`.
        """
        if keyless.is_bundle(envelope):
            return self._verify_keyless(envelope, payload_type, role, where)
        keys = self.keys_for(role, logged)
        return dsse.verify(
            envelope,
            payload_type,
            keys,
            threshold=self.threshold(role),
            revoked=self.revoked.keys() - keys.keys(),
            both=self.signatures(role) is Signatures.BOTH,
            where=where,
        )

    def signatures(self, role: TrustRole) -> Signatures:
        """The signatures of a pair that must hold for `role`."""
        entry = self.document.roles.get(role)
        return Signatures.CLASSICAL if entry is None else entry.signatures

    def _verify_keyless(
        self, bundle: bytes, payload_type: str, role: TrustRole, where: str
    ) -> dsse.VerifiedPayload:
        if self.threshold(role) > 1:
            raise IdentityError(
                "ST-IDEN-009",
                f"one keyless signature, {self.threshold(role)} of the role {role} are needed",
                where,
            )
        if self.signatures(role) is Signatures.BOTH:
            raise IdentityError(
                "ST-IDEN-024", f"a keyless signature is classical, and {role} asks for both", where
            )
        roots = {
            name: base64.b64decode(data, validate=True)
            for name, data in self.document.sigstore.items()
        }
        return keyless.verify(
            bundle,
            payload_type,
            self.identities_for(role),
            roots,
            revoked={n: i for n, i in self.document.identities.items() if n in self.revoked},
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
                both=root.signatures is Signatures.BOTH,
                where=where,
            )
        except (SecureTrainError, ValueError, KeyError) as error:
            if isinstance(error, IdentityError) and error.code == "ST-IDEN-025":
                raise
            what = f"malformed or not signed by its own root keys: {reason(error)}"
            raise _refused(what, where) from error
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
    *,
    both: Collection[TrustRole] = (),
) -> bytes:
    """Make a trust root file's bytes with one root key and a threshold of one for every role.

    Args:
        roles: the keys of each role but ``root``.
        root_key: signs the root.
        created: from when on it is good.
        expires: until when.
        version: its number.
        both: roles of pairs alone, for which both signatures of a pair must hold.
    """
    named = {
        role: RoleKeys(
            [key.key_id for key in keys],
            signatures=Signatures.BOTH if role in both else Signatures.CLASSICAL,
        )
        for role, keys in {TrustRole.ROOT: [root_key.public], **roles}.items()
    }
    keys = [root_key.public, *(key for keys in roles.values() for key in keys)]
    document = TrustDocument(
        version=version,
        created=created,
        expires=expires,
        keys=key_table(keys),
        roles=named,
        companions=companion_table(keys),
    )
    return sign_document(document, [root_key])


def sign_document(document: TrustDocument, keys: Sequence[Signer]) -> bytes:
    """The envelope of a document; whether enough root keys signed it is for `parse` to say."""
    return dsse.sign(canonical.encode(document), PAYLOAD_TYPE, keys)


def key_table(keys: Sequence[PublicKey]) -> dict[str, str]:
    """Keys, and their companions, as a document holds them."""
    whole = [one for key in keys for one in (key, key.companion) if one is not None]
    return {key.key_id: base64.b64encode(key.spki).decode() for key in whole}


def companion_table(keys: Sequence[PublicKey]) -> dict[str, str]:
    """The pairs among keys, as a document holds them."""
    return {key.key_id: key.companion.key_id for key in keys if key.companion is not None}


def _spares(entry: Revoked, logged: int | None) -> bool:
    return logged is not None and entry.valid_before is not None and logged < entry.valid_before


def _keys(document: TrustDocument) -> dict[str, PublicKey]:
    keys = {}
    for key_id, spki in document.keys.items():
        key = PublicKey.from_spki(base64.b64decode(spki, validate=True))
        if key.key_id != key_id:
            raise ValueError(f"key {key_id[:16]} is stored under another key's id")
        keys[key_id] = key
    _pair(document, keys)
    _check_identities(document)
    known = keys.keys() | document.identities.keys()
    for name, role in document.roles.items():
        if len(set(role.keys)) != len(role.keys) or not 1 <= role.threshold <= len(role.keys):
            raise ValueError(f"role {name}: threshold {role.threshold} of {len(role.keys)} keys")
        if lone := set(role.keys) & set(document.companions.values()):
            raise ValueError(f"role {name}: key {min(lone)[:16]} is a companion, no signer")
        if missing := set(role.keys) - known:
            raise ValueError(f"role {name}: key {min(missing)[:16]} is not there")
        _check_kinds(name, role, keys)
    return keys


def _pair(document: TrustDocument, keys: dict[str, PublicKey]) -> None:
    """Give keys their companions."""
    if len(set(document.companions.values())) != len(document.companions):
        raise ValueError("one companion of two keys")
    for key_id, companion in document.companions.items():
        keys[key_id] = keys[key_id].with_companion(keys[companion])


def _check_kinds(name: TrustRole, role: RoleKeys, keys: Mapping[str, PublicKey]) -> None:
    for key_id in role.keys:
        key = keys.get(key_id)
        if key is None:
            if name in KEYED:
                raise ValueError(f"role {name}: an identity cannot sign for it")
            if role.signatures is Signatures.BOTH:
                raise ValueError(f"role {name}: an identity signs classically, not with both")
            continue
        if not key.kind.is_classical and not (
            name is TrustRole.WITNESS and key.kind is KeyKind.ML_DSA_44
        ):
            raise ValueError(f"role {name}: key {key_id[:16]} is {key.kind}, which stands alone")
        if role.signatures is Signatures.BOTH and key.companion is None:
            raise ValueError(f"role {name}: key {key_id[:16]} has no companion to sign with both")


def _check_identities(document: TrustDocument) -> None:
    for name, identity in document.identities.items():
        if identity.id != name:
            raise ValueError(f"identity {name[:16]} is stored under another id")
        identity.check()
        if identity.instance not in document.sigstore:
            raise ValueError(f"the Sigstore instance {identity.instance!r} is not there")
    for data in document.sigstore.values():
        base64.b64decode(data, validate=True)


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
