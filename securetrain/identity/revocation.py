# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The revocation list of a cluster CA: a DSSE envelope that the CA's own key signed.

It names nodes, which X.509 revocation lists cannot: a node that is revoked is out of every job, and
certificates that are issued to it later are as bad as the old ones.

A reader checks, in order:

1. the envelope is signed by the cluster CA's key and of the right type;
2. it is of this trust domain;
3. its number is not below the highest that was seen: entries are only ever added, and the number
   is how many there are, so a lower one is an old list.

Each is ST-IDEN-012, and so is a list that is missing: whoever removes it revokes nothing back.
"""

from datetime import datetime
from typing import Annotated, Final

import msgspec
from cryptography import x509
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, SecureTrainError
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.identity.register import Kind, Revoked, serial_text

PAYLOAD_TYPE: Final = "application/vnd.securetrain.revocations+json"
LIST_LIMIT: Final = 4 << 20


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One node, certificate or job."""

    kind: Kind
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    reason: Annotated[str, Meta(max_length=500)]
    since: Annotated[datetime, Meta(tz=True)]


class RevocationList(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The document."""

    trust_domain: str
    number: Annotated[int, Meta(ge=0, le=1 << 20)]
    """How many entries there are."""
    issued: Annotated[datetime, Meta(tz=True)]
    entries: tuple[Entry, ...]

    def find(self, node: str, serial: str, job: str) -> Entry | None:
        """The entry that speaks of a node, of a certificate's serial (hex) or of a job."""
        wanted = {Kind.NODE: node, Kind.SERIAL: serial, Kind.JOB: job}
        return next((e for e in self.entries if e.name == wanted[e.kind]), None)

    def check(self, node: str, certificate: x509.Certificate, job: str) -> None:
        """Refuse what has been revoked.

        Raises:
            IdentityError: ST-IDEN-011.
        """
        entry = self.find(node, serial_text(certificate), job)
        if entry is not None:
            raise revoked(entry.kind, entry.name, entry.reason, entry.since)


def revoked(kind: Kind, name: str, reason: str, since: datetime) -> IdentityError:
    """The refusal of somebody who was revoked."""
    return IdentityError(
        "ST-IDEN-011",
        f"{kind} {name} was revoked at {since:%Y-%m-%dT%H:%M:%SZ}: {reason or 'no reason given'}",
        "revocation list",
        "start the job under another id" if kind is Kind.JOB else "",
    )


def sign_list(trust_domain: str, entries: list[Revoked], key: PrivateKey, now: datetime) -> bytes:
    """The envelope."""
    document = RevocationList(
        trust_domain=trust_domain,
        number=len(entries),
        issued=now,
        entries=tuple(
            Entry(kind=e.kind, name=e.name, reason=e.reason, since=e.since) for e in entries
        ),
    )
    return dsse.sign(canonical.encode(document), PAYLOAD_TYPE, [key])


def verify_list(
    data: bytes, key: PublicKey, trust_domain: str, *, least: int = 0, where: str = ""
) -> RevocationList:
    """Read a list; see the module.

    Args:
        data: the envelope.
        key: the cluster CA's.
        trust_domain: the cluster CA's.
        least: the lowest number that is accepted.
        where: for the refusal.

    Raises:
        IdentityError: ST-IDEN-012.
    """
    try:
        payload = dsse.verify(data, PAYLOAD_TYPE, {key.key_id: key})
        found = canonical.decode(payload.data, RevocationList, limit=LIST_LIMIT, canonical=True)
    except SecureTrainError as error:
        raise bad_list(f"{error.code}: {error.what}", where) from error
    if found.trust_domain != trust_domain:
        raise bad_list(f"it is of {found.trust_domain}, not of {trust_domain}", where)
    if found.number != len(found.entries):
        raise bad_list(f"number {found.number} with {len(found.entries)} entries", where)
    if found.number < least:
        raise bad_list(f"number {found.number} after number {least}: an old list", where)
    return found


def bad_list(what: str, where: str) -> IdentityError:
    """ST-IDEN-012."""
    return IdentityError("ST-IDEN-012", what, where)
