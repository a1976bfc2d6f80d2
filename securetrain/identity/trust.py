# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The trust root: which keys may sign what, signed by its own root keys.

Modelled on TUF's root role (https://theupdateframework.github.io/specification/latest/#root): a
version, an expiry, and for each role its keys and threshold. A verifier is given the file by a
person (``--trust``) and takes its bytes as the pin.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, UsageError, reason
from securetrain.core.files import read_file
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey, PublicKey

PAYLOAD_TYPE: Final = "application/vnd.securetrain.trust-root+json"
LIMIT: Final = 1 << 20


class TrustRole(StrEnum):
    """What keys are trusted for."""

    ROOT = "root"
    CHECKPOINT = "checkpoint"
    DATASET = "dataset"
    LEDGER = "ledger"
    NODE = "node"
    """Who admits nodes to a run: signs the certificates of its members' own signing keys."""
    OPERATOR = "operator"
    """Who may excuse a rollback or a quarantine, by a waiver that names one digest."""


class RoleKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of one role and how many of them must sign."""

    keys: list[str]
    threshold: int = 1


class TrustDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The signed document. `keys` maps key ids to SPKI DER in base64; times are RFC 3339 UTC."""

    version: int
    created: datetime
    expires: datetime
    keys: dict[str, str]
    roles: dict[TrustRole, RoleKeys]


@dataclass(frozen=True, slots=True)
class TrustRoot:
    """A checked trust root."""

    document: TrustDocument
    keys: Mapping[str, PublicKey]

    def keys_for(self, role: TrustRole) -> dict[str, PublicKey]:
        """The keys that may sign for `role` (none when the root does not name it)."""
        entry = self.document.roles.get(role)
        return {} if entry is None else {key_id: self.keys[key_id] for key_id in entry.keys}

    def threshold(self, role: TrustRole) -> int:
        """How many of the role's keys must sign."""
        entry = self.document.roles.get(role)
        return 1 if entry is None else entry.threshold

    def verify(
        self, envelope: bytes, payload_type: str, role: TrustRole, where: str = ""
    ) -> dsse.VerifiedPayload:
        """Verify an envelope against the keys of `role`; see `dsse.verify`."""
        return dsse.verify(
            envelope, payload_type, self.keys_for(role), threshold=self.threshold(role), where=where
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
        try:
            envelope = canonical.decode(data, dsse.Envelope, limit=LIMIT, where=where)
            unverified = canonical.decode(
                base64.b64decode(envelope.payload, validate=True), TrustDocument, where=where
            )
            keys = _keys(unverified)
            root = unverified.roles[TrustRole.ROOT]
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
        if not unverified.created <= now < unverified.expires:
            raise _refused(
                f"valid from {unverified.created} to {unverified.expires}, now {now}", where
            )
        return cls(unverified, keys)


def sign_root(
    roles: Mapping[TrustRole, Sequence[PublicKey]],
    root_key: PrivateKey,
    created: datetime,
    expires: datetime,
    version: int = 1,
) -> bytes:
    """Make a trust root file's bytes with one root key and a threshold of one for every role."""
    everyone = {key.key_id: key for keys in roles.values() for key in keys}
    everyone[root_key.key_id] = root_key.public
    document = TrustDocument(
        version=version,
        created=created,
        expires=expires,
        keys={key_id: base64.b64encode(key.spki).decode() for key_id, key in everyone.items()},
        roles={
            TrustRole.ROOT: RoleKeys([root_key.key_id]),
            **{role: RoleKeys([key.key_id for key in keys]) for role, keys in roles.items()},
        },
    )
    return dsse.sign(canonical.encode(document), PAYLOAD_TYPE, [root_key])


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
    return keys


def _refused(what: str, where: str) -> IdentityError:
    return IdentityError(
        "ST-IDEN-008", what, where, "get the trust root again from the people who run the job"
    )
