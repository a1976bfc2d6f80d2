# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed facts, and the inventory that says which assets there are and whose key speaks for each.

::

    apiVersion: securetrain.dev/policy/v1
    kind: Inventory
    authorities:
    - {file: ca.crt, revocations: revocations.dsse}
    assets:
    - {asset: "node:gpu-17"}
    - {asset: "node:login", keys: [BASE64 of the public key], key_files: [login.pub]}
    - {asset: "slurm:prod", key_files: [controller.pub], speaks_for: ["manifest:jobs/*"]}

Rules:

1. facts are signed as a whole, with their time, boot id and the auditor's nonce: an envelope (DSSE)
   of the document's bytes, by a key of that asset;
2. a document counts only with a good signature by a key that the inventory names for the asset that
   the document is about. Another asset's key is a refusal, and so is no signature;
3. a node without keys in the inventory is spoken for by its certificate, which goes with the
   signature: an authority of the inventory (the cluster's CA, or a job's) issued it, for this node
   by name, good at the time of the facts, and not on the authority's list of what it revoked. A
   node with keys is spoken for by those alone;
4. an asset with neither can prove nothing: its facts are refused, as are those about an asset that
   the inventory does not list, by its name or by ``speaks_for`` of another that is no node;
5. where the auditor asked with a nonce, a document with another one answers an older question.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from cryptography import x509
from msgspec import Meta

from securetrain.audit.facts import FACTS_LIMIT, Body
from securetrain.audit.parser.files import read_document
from securetrain.core import canonical
from securetrain.core.errors import AuditError, IdentityError, UsageError
from securetrain.core.files import read_file
from securetrain.identity import (
    Chain,
    RevocationList,
    Role,
    SpiffeId,
    check_job_ca,
    check_leaf,
    dsse,
    load_certificate,
    public_key_of,
    trust_domain_of,
    verify_list,
)
from securetrain.identity.keys import PublicKey, Signer

PAYLOAD_TYPE: Final = "application/vnd.securetrain.facts+json"
ENVELOPE_LIMIT: Final = FACTS_LIMIT * 4 // 3 + (64 << 10)
FILE_LIMIT: Final = ENVELOPE_LIMIT + (64 << 10)
"""With certificates."""
INVENTORY_LIMIT: Final = 4 << 20
KEY_LIMIT: Final = 8 << 10
REVOCATIONS_LIMIT: Final = 8 << 20
MAX_ASSETS: Final = 10_000
_CERTIFIED: Final = b'{"certificates"'


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Strict keys."""


class _Authority(_Base, frozen=True, kw_only=True):
    file: Annotated[str, Meta(min_length=1, max_length=400)]
    revocations: Annotated[str, Meta(max_length=400)] = ""


class _Asset(_Base, frozen=True, kw_only=True):
    asset: Annotated[str, Meta(pattern=r"^[a-z]{1,16}:.{1,400}\Z")]
    keys: Annotated[tuple[str, ...], Meta(max_length=8)] = ()
    key_files: Annotated[tuple[str, ...], Meta(max_length=8)] = ()
    certified_as: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{0,64}\Z")] = ""
    """The node's name in its certificate, where that is another."""
    speaks_for: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^(?!node:)[a-z]{1,16}:.{1,400}\Z")], ...],
        Meta(max_length=64),
    ] = ()
    """Other assets, by names or globs, that this one's keys sign for; never another node."""


class _File(_Base, frozen=True, kw_only=True):
    apiVersion: Literal["securetrain.dev/policy/v1"]  # noqa: N815 - the field's name in the file
    kind: Literal["Inventory"]
    authorities: Annotated[tuple[_Authority, ...], Meta(max_length=16)] = ()
    assets: Annotated[tuple[_Asset, ...], Meta(min_length=1, max_length=MAX_ASSETS)]


class _Certified(_Base, frozen=True, kw_only=True):
    """Signed facts with the certificates of their signer."""

    certificates: Chain
    envelope: dsse.Envelope


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA that says which key is which node's."""

    certificate: x509.Certificate
    revoked: RevocationList | None
    """None where nobody gave its list."""

    def holder(self, chain: Sequence[x509.Certificate], at: datetime) -> SpiffeId:
        """The node that a chain is about.

        Raises:
            IdentityError: ST-IDEN-005, -006; ST-IDEN-011 when it was revoked.
        """
        issuer = self.certificate
        if len(chain) == 2 and chain[1] != issuer:
            issuer = chain[1]
            check_job_ca(issuer, self.certificate, at)
        node = check_leaf(chain[0], issuer, Role.NODE, at)
        if self.revoked is not None:
            self.revoked.check(node.node, chain[0], node.job)
        return node


@dataclass(frozen=True, slots=True)
class Signed:
    """Bytes whose signature verified, and what is known of who signed them."""

    data: bytes
    key_ids: frozenset[str]
    node: str = ""
    """The node that an authority certified, where it was that."""
    begins: datetime | None = None
    ends: datetime | None = None
    """The time for which it did."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The assets that there are, each with the keys that may sign for it."""

    assets: Mapping[str, frozenset[str]]
    """Asset to the ids of its keys."""
    keys: Mapping[str, PublicKey]
    authorities: tuple[Authority, ...] = ()
    certified_as: Mapping[str, str] = field(default_factory=dict)
    """Node to the name in its certificate."""
    others: tuple[tuple[str, str], ...] = ()
    """A pattern of assets, and the asset that speaks for them."""

    def owners(self, signed: Signed) -> list[str]:
        """The assets that what was signed speaks for."""
        return [asset for asset in self.assets if self._speaks(asset, signed)]

    def speaks(self, asset: str, signed: Signed) -> bool | None:
        """Tell whether a signature counts for an asset; None when it is not in the inventory."""
        if asset in self.assets:
            return self._speaks(asset, signed)
        mine = [owner for pattern, owner in self.others if fnmatchcase(asset, pattern)]
        return any(self._speaks(owner, signed) for owner in mine) if mine else None

    def _speaks(self, asset: str, signed: Signed) -> bool:
        if keys := self.assets[asset]:
            return bool(keys & signed.key_ids)
        return bool(signed.node) and self.certified_as.get(asset) == signed.node

    def notes(self) -> Iterator[str]:
        """The degree to which its authorities can be relied on."""
        if any(one.revoked is None for one in self.authorities):
            yield "an authority of the inventory has no list of revocations: what it revoked counts"


def read_inventory(path: Path) -> Inventory:
    """Read an inventory, and the files that it names, which stand beside it.

    Raises:
        AuditError: ST-AUDT-005 naming the file and the asset.
        UsageError: ST-USAG-002 when a file cannot be read.
    """
    fix = "kind: Inventory with a list of assets, each with keys or key_files, or with authorities"
    file = read_document(path, _File, limit=INVENTORY_LIMIT, code="ST-AUDT-005", fix=fix)
    assets: dict[str, frozenset[str]] = {}
    keys: dict[str, PublicKey] = {}
    for entry in file.assets:
        where = f"{path}: {entry.asset}"
        if entry.asset in assets:
            raise AuditError("ST-AUDT-005", "the asset stands twice", where, fix)
        mine = [*(_from_text(text, where) for text in entry.keys)]
        mine += [_from_file(path.parent / name, where) for name in entry.key_files]
        assets[entry.asset] = frozenset(key.key_id for key in mine)
        for key in mine:
            if key.key_id in keys:
                raise AuditError("ST-AUDT-005", "its key is another asset's too", where, fix)
            keys[key.key_id] = key
    return Inventory(
        assets,
        keys,
        tuple(_authority(path.parent, one, f"{path}: {one.file}") for one in file.authorities),
        _certified_names(file.assets, str(path)),
        tuple((other, one.asset) for one in file.assets for other in one.speaks_for),
    )


def _certified_names(entries: Sequence[_Asset], where: str) -> dict[str, str]:
    """Nodes without keys of their own by the names in certificates, each of one node alone."""
    found: dict[str, str] = {}
    for entry in entries:
        kind, _, name = entry.asset.partition(":")
        if kind == "node" and not entry.keys and not entry.key_files:
            found[entry.asset] = entry.certified_as or name
        elif entry.certified_as:
            what = "certified_as is for a node without keys"
            raise AuditError("ST-AUDT-005", what, f"{where}: {entry.asset}")
    if len(set(found.values())) < len(found):
        raise AuditError("ST-AUDT-005", "two nodes have one name in certificates", where)
    return found


def _authority(folder: Path, entry: _Authority, where: str) -> Authority:
    fix = "name a CA's certificate (PEM) and its signed revocation list, beside the inventory"
    try:
        certificate = load_certificate(read_file(folder / entry.file, KEY_LIMIT), entry.file)
        revoked = None
        if entry.revocations:
            data = read_file(folder / entry.revocations, REVOCATIONS_LIMIT)
            domain = trust_domain_of(certificate)
            revoked = verify_list(data, public_key_of(certificate), domain, where=entry.revocations)
    except IdentityError as error:
        raise AuditError("ST-AUDT-005", f"{error.code}: {error.what}", where, fix) from error
    return Authority(certificate, revoked)


def _from_text(text: str, where: str) -> PublicKey:
    try:
        return PublicKey.from_spki(base64.b64decode(text, validate=True))
    except (IdentityError, binascii.Error, ValueError) as error:
        fix = "the public key (SPKI) in base64: the lines of its .pub file as one"
        raise AuditError("ST-AUDT-005", f"no public key: {error}", where, fix) from error


def _from_file(path: Path, where: str) -> PublicKey:
    try:
        return PublicKey.from_pem(read_file(path, KEY_LIMIT), str(path))
    except IdentityError as error:
        raise AuditError("ST-AUDT-005", f"{error.what} ({path})", where, error.fix) from error


def sign_facts(
    body: Body,
    keys: Sequence[Signer],
    nonce: str = "",
    certificates: Sequence[x509.Certificate] = (),
) -> bytes:
    """An envelope of facts that answer an auditor's nonce, with the signer's certificates."""
    collected = msgspec.structs.replace(body.collected, nonce=nonce)
    answer = msgspec.structs.replace(body, collected=collected)
    envelope = dsse.sign(answer.to_json(), PAYLOAD_TYPE, keys)
    if not certificates:
        return envelope
    parsed = canonical.decode(envelope, dsse.Envelope, limit=ENVELOPE_LIMIT)
    return canonical.encode(_Certified(certificates=Chain.of(certificates), envelope=parsed))


def is_envelope(data: bytes) -> bool:
    """Return whether a file says of itself that it is signed."""
    return data.lstrip()[:16].startswith((b'{"payload"', _CERTIFIED))


def unverified_payload(data: bytes, where: str) -> bytes:
    """The bytes in an envelope, whoever signed it.

    Raises:
        AuditError: ST-AUDT-002 when it is none.
    """
    try:
        if data.lstrip().startswith(_CERTIFIED):
            envelope = canonical.decode(data, _Certified, limit=FILE_LIMIT, where=where).envelope
        else:
            envelope = canonical.decode(data, dsse.Envelope, limit=ENVELOPE_LIMIT, where=where)
        return base64.b64decode(envelope.payload, validate=True)
    except (UsageError, ValueError) as error:
        raise AuditError("ST-AUDT-002", f"no envelope: {error}", where) from error


def open_envelope(data: bytes, inventory: Inventory, where: str) -> Signed:
    """The bytes that a key of the inventory signed, or one that an authority of it certified.

    Nothing of the payload is read before its signature has been checked.

    Raises:
        AuditError: ST-AUDT-002 when it is no envelope.
        IdentityError: those of `dsse.verify`, and of the check of a certificate.
    """
    if not data.lstrip().startswith(_CERTIFIED):
        payload = dsse.verify(data, PAYLOAD_TYPE, inventory.keys, where=where)
        return Signed(payload.data, payload.key_ids)
    try:
        file = canonical.decode(data, _Certified, limit=FILE_LIMIT, where=where, canonical=True)
    except UsageError as error:
        raise AuditError("ST-AUDT-002", f"no envelope: {error.what}", where) from error
    chain = file.certificates.parse(where)
    leaf = chain[0]
    # Whether it was good when the facts were collected is asked when these can be believed.
    node = _holder(chain, inventory, leaf.not_valid_after_utc, where)
    key = public_key_of(leaf)
    keys = {**inventory.keys, key.key_id: key}
    payload = dsse.verify(canonical.encode(file.envelope), PAYLOAD_TYPE, keys, where=where)
    certified = node.node if key.key_id in payload.key_ids else ""
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return Signed(payload.data, payload.key_ids, certified, begins, ends)


def _holder(
    chain: Sequence[x509.Certificate], inventory: Inventory, at: datetime, where: str
) -> SpiffeId:
    refusal = IdentityError("ST-IDEN-003", "the inventory names no authority", where)
    for authority in inventory.authorities:
        try:
            return authority.holder(chain, at)
        except IdentityError as error:
            refusal = IdentityError(error.code, error.what, where, error.fix)
    raise refusal


def refusal(body: Body, signed: Signed, inventory: Inventory) -> str:
    """Explain why signed facts do not count; empty when they do."""
    speaks = inventory.speaks(body.asset, signed)
    if speaks is None:
        return f"the inventory does not list {body.asset}"
    if not speaks:
        owners = inventory.owners(signed)
        if not owners and signed.node:
            return f"about {body.asset}, signed by node {signed.node}, which its CA certified"
        return f"about {body.asset}, signed by the key of {', '.join(owners)}"
    at = body.collected.at
    if signed.begins is None or signed.ends is None or signed.begins <= at <= signed.ends:
        return ""
    good = f"{signed.begins:%Y-%m-%dT%H:%M:%SZ} to {signed.ends:%Y-%m-%dT%H:%M:%SZ}"
    return f"from {at:%Y-%m-%dT%H:%M:%SZ}, signed by a certificate that is good from {good}"
