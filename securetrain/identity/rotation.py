# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rotation of a trust root: from version N to N + 1, and by whose word.

The rules are TUF's (https://theupdateframework.github.io/specification/latest/#update-root). A new
root follows from the trusted one when, in order:

1. it is a good root by itself (`trust.TrustRoot.parse_of_any_time`): among other things signed by
   the threshold of its *own* root keys;
2. its version is exactly one more: nobody can leap over a root, or use the room to roll back later;
3. it is signed by the threshold of the *trusted* root's root keys too: new keys alone are nothing;
4. revocations are only ever added, and the log index up to which one spares things never rises;
5. the log's origin stays as long as a revocation speaks of an index in it.

Only the last root of a chain must not have expired: those on the way are stepping stones.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET

from securetrain.core.errors import IdentityError
from securetrain.identity import dsse
from securetrain.identity.keyless import Identity
from securetrain.identity.keys import PublicKey
from securetrain.identity.trust import (
    PAYLOAD_TYPE,
    Authority,
    Revoked,
    RoleKeys,
    Signatures,
    TrustDocument,
    TrustRole,
    TrustRoot,
    companion_table,
    key_table,
)

MAX_STEPS: Final = 1024


def next_root(trusted: TrustRoot, data: bytes, where: str = "") -> TrustRoot:
    """The root that follows the trusted one; its time is not looked at.

    Raises:
        IdentityError: ST-IDEN-008 not a good root, ST-IDEN-017 an older one, ST-IDEN-016 otherwise.
    """
    new = TrustRoot.parse_of_any_time(data, where)
    if new.version <= trusted.version:
        raise IdentityError(
            "ST-IDEN-017", f"version {new.version}, and version {trusted.version} is trusted", where
        )
    if new.version != trusted.version + 1:
        raise _refused(f"version {new.version} after version {trusted.version}", where)
    root = TrustRole.ROOT
    try:
        dsse.verify(
            data,
            PAYLOAD_TYPE,
            trusted.keys_for(root),
            threshold=trusted.threshold(root),
            both=trusted.signatures(root) is Signatures.BOTH,
            where=where,
        )
    except IdentityError as error:
        raise _refused(
            f"not signed by the root keys of version {trusted.version}: {error.what}", where
        ) from error
    _check_revocations(trusted.document, new.document, where)
    return new


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The differences of the next version."""

    created: datetime
    expires: datetime
    add: Mapping[TrustRole, Sequence[PublicKey]] = field(default_factory=dict)
    """Keys that a role gets."""
    remove: Mapping[TrustRole, Sequence[str]] = field(default_factory=dict)
    """Ids of keys that a role loses. Their signatures are no longer trusted, logged or not: to keep
    it, revoke the key with `Revoked.valid_before` instead."""
    thresholds: Mapping[TrustRole, int] = field(default_factory=dict)
    revoke: Sequence[Revoked] = ()
    """Revoking a root key also removes it from the root role."""
    log_origin: str | None = None
    add_authorities: Sequence[Authority] = ()
    add_identities: Mapping[TrustRole, Sequence[Identity]] = field(default_factory=dict)
    """Identities that a role gets."""
    sigstore: Mapping[str, bytes] = field(default_factory=dict)
    """Trusted roots of Sigstore instances, by the names that identities have for them."""
    signatures: Mapping[TrustRole, Signatures] = field(default_factory=dict)
    apart: bool = False
    """Whether the role `node` and the authorities that are added are `RoleKeys.apart`. Of a role it
    is said anew with each further key."""


def amended(document: TrustDocument, change: Change) -> TrustDocument:
    """The document of the next version; `trust.sign_document` makes it a root.

    Raises:
        IdentityError: ST-IDEN-016 when it speaks of a key that is not there.
    """
    lost = {entry.key_id for entry in change.revoke}
    for ids in ([*lost], *change.remove.values()):
        if strangers := set(ids) - document.keys.keys() - document.identities.keys():
            raise _refused(f"there is no key {min(strangers)[:16]}", "")
    roles = {
        role: _amended_role(role, document.roles.get(role), change, lost)
        for role in dict.fromkeys([*document.roles, *change.add, *change.add_identities])
    }
    added = [key for keys in change.add.values() for key in keys]
    keys = {**document.keys, **key_table(added)}
    companions = {**document.companions, **companion_table(added)}
    used = {key_id for role in roles.values() for key_id in role.keys} | lost
    used |= {entry.key_id for entry in document.revoked}
    companions = {key: other for key, other in companions.items() if key in used}
    used |= set(companions.values())
    new = (one for identities in change.add_identities.values() for one in identities)
    identities = {**document.identities, **{one.id: one for one in new}}
    identities = {name: one for name, one in identities.items() if name in used}
    sigstore = document.sigstore | {
        name: base64.b64encode(data).decode() for name, data in change.sigstore.items()
    }
    apart = change.apart or UNSET
    more = [msgspec.structs.replace(one, apart=apart) for one in change.add_authorities]
    instances = {one.instance for one in identities.values()}
    revoked = {entry.key_id: entry for entry in [*document.revoked, *change.revoke]}
    return msgspec.structs.replace(
        document,
        version=document.version + 1,
        created=change.created,
        expires=change.expires,
        keys={key_id: spki for key_id, spki in keys.items() if key_id in used},
        roles={role: entry for role, entry in roles.items() if entry.keys},
        revoked=list(revoked.values()),
        log_origin=document.log_origin if change.log_origin is None else change.log_origin,
        authorities=[*document.authorities, *more],
        companions=companions,
        identities=identities,
        sigstore={name: data for name, data in sigstore.items() if name in instances},
    )


def _amended_role(
    role: TrustRole, old: RoleKeys | None, change: Change, lost: set[str]
) -> RoleKeys:
    gone = {*change.remove.get(role, ()), *(lost if role is TrustRole.ROOT else ())}
    ids = [key_id for key_id in (old.keys if old else []) if key_id not in gone]
    ids += [key.key_id for key in change.add.get(role, ()) if key.key_id not in ids]
    ids += [one.id for one in change.add_identities.get(role, ()) if one.id not in ids]
    apart = UNSET if old is None or {*ids} - {*old.keys} else old.apart
    return RoleKeys(
        ids,
        change.thresholds.get(role, old.threshold if old else 1),
        change.signatures.get(role, old.signatures if old else Signatures.CLASSICAL),
        True if change.apart and role is TrustRole.NODE else apart,
    )


def missing_signatures(
    data: bytes, document: TrustDocument, trusted: TrustRoot | None
) -> dict[str, int]:
    """Count the root signatures that a draft still needs: its own keys' and the trusted root's.

    Only signatures that verify are counted; what else may be wrong is for `next_root`.
    """
    role = TrustRole.ROOT
    entry = document.roles[role]
    own = {key_id: _own_key(document, key_id) for key_id in entry.keys}
    needs = {"its own root keys": (own, entry.threshold, entry.signatures)}
    if trusted is not None:
        name = f"the root keys of version {trusted.version}"
        needs[name] = (trusted.keys_for(role), trusted.threshold(role), trusted.signatures(role))
    return {
        name: max(0, count - _count(data, keys, signatures))
        for name, (keys, count, signatures) in needs.items()
    }


def _own_key(document: TrustDocument, key_id: str) -> PublicKey:
    key = PublicKey.from_spki(base64.b64decode(document.keys[key_id]))
    companion = document.companions.get(key_id)
    if companion is None:
        return key
    return key.with_companion(PublicKey.from_spki(base64.b64decode(document.keys[companion])))


def _count(data: bytes, keys: Mapping[str, PublicKey], signatures: Signatures) -> int:
    good = 0
    for key_id, key in keys.items():
        try:
            dsse.verify(data, PAYLOAD_TYPE, {key_id: key}, both=signatures is Signatures.BOTH)
        except IdentityError:
            continue
        good += 1
    return good


def _check_revocations(old: TrustDocument, new: TrustDocument, where: str) -> None:
    later = {entry.key_id: entry for entry in new.revoked}
    for entry in old.revoked:
        kept = later.get(entry.key_id)
        if kept is None:
            raise _refused(f"the revocation of key {entry.key_id[:16]} is taken back", where)
        if kept.valid_before is not None and (
            entry.valid_before is None or kept.valid_before > entry.valid_before
        ):
            raise _refused(f"the revocation of key {entry.key_id[:16]} spares more", where)
    speaks = any(entry.valid_before is not None for entry in new.revoked)
    if speaks and old.log_origin and new.log_origin != old.log_origin:
        raise _refused("another log, while a revocation speaks of an index in the old one", where)


def _refused(what: str, where: str) -> IdentityError:
    return IdentityError("ST-IDEN-016", what, where)
