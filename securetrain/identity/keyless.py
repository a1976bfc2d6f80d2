# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Identities in place of keys: what a trust root says of them, and their bundles.

A role of a trust root may name an **identity**: the name that a Sigstore certificate carries, and
the issuer that vouched for it. What such a signer makes is a Sigstore bundle in canonical JSON. A
reader checks, in order:

1. a bundle begins as its canonical form does, and is in that form: one document, one spelling;
2. the certificate carries one name, and an identity of the role is that name, or a template of it;
3. everything that `identity.sigstore` checks, with that exact name and issuer, and the trusted root
   of the instance that the trust root carries. Nothing is fetched;
4. the payload type.

A template is a name in which ``*`` stands for one or more characters other than ``/``, after at
least three parts of the name (``https://host/owner/``) without one: it can leave a tag open, and
never an owner. The issuer is always exact.

The signer's id is that of the identity as the trust root has it: numbers that never go back are
kept under it, since the key of each bundle lives for minutes.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity import dsse

_BEGIN: Final = b'{"dsseEnvelope":'
_FREE: Final = 3
_MAX_STARS: Final = 4


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A person or pipeline that signs without a key to keep."""

    identity: Annotated[str, Meta(min_length=1, max_length=2048)]
    """The certificate's one name, or a template of it."""
    issuer: Annotated[str, Meta(min_length=1, max_length=2048)]
    """The OIDC issuer that vouches for it: its URL, in full."""
    instance: Annotated[str, Meta(min_length=1, max_length=64)] = "public"
    """The Sigstore instance, by its name in the trust root."""

    @property
    def id(self) -> str:
        """The id that roles and revocations call it by."""
        text = canonical.dumps(
            ["securetrain/identity/1", self.instance, self.issuer, self.identity]
        )
        return hashlib.sha256(text).hexdigest()

    def check(self) -> None:
        """Check the form of a template.

        Raises:
            ValueError: It would leave open whose name it is.
        """
        if not self.identity.isprintable() or not self.issuer.isprintable():
            raise ValueError("an identity holds characters that cannot be printed")
        if "*" in self.issuer:
            raise ValueError(f"issuer {self.issuer!r}: an issuer is given in full")
        head, star, _ = self.identity.partition("*")
        parts = head.split("/")
        if star and ("://" not in head or len(parts) < _FREE + 2 or not all(parts[2:-1])):
            raise ValueError(
                f"identity {self.identity!r}: * stands only after scheme://host/owner/"
            )
        if self.identity.count("*") > _MAX_STARS:
            raise ValueError(f"identity {self.identity!r}: more than {_MAX_STARS} times *")

    def covers(self, name: str) -> bool:
        """Return whether a certificate's name is this identity."""
        pattern = "[^/]+".join(re.escape(part) for part in self.identity.split("*"))
        return re.fullmatch(pattern, name) is not None


def is_bundle(data: bytes) -> bool:
    """Return whether a file claims to be a bundle rather than an envelope."""
    return data.startswith(_BEGIN)


def envelope_unverified(data: bytes, limit: int = dsse.ENVELOPE_LIMIT) -> dsse.Envelope:
    """The envelope of a file that may be a bundle, before any signature was checked.

    Raises:
        UsageError: ST-USAG-008.
    """
    if not is_bundle(data):
        return canonical.decode(data, dsse.Envelope, limit=limit)
    found = canonical.loads(data, limit=limit).get("dsseEnvelope")
    try:
        signatures = [{"keyid": "", **one} for one in found["signatures"]]
        return msgspec.convert({**found, "signatures": signatures}, dsse.Envelope, strict=True)
    except (msgspec.ValidationError, TypeError, KeyError) as error:
        raise UsageError("ST-USAG-008", f"not an envelope in a bundle: {error}") from error


def verify(
    bundle: bytes,
    payload_type: str,
    identities: Mapping[str, Identity],
    roots: Mapping[str, bytes],
    *,
    revoked: Mapping[str, Identity] | None = None,
    where: str = "",
) -> dsse.VerifiedPayload:
    """Verify a bundle; see the module.

    Args:
        bundle: its bytes.
        payload_type: the only one that is accepted.
        identities: those that may have signed, by id.
        roots: the trusted roots of the instances that they name.
        revoked: identities that count no more; they only make the refusal say so.
        where: for the refusal.

    Raises:
        IdentityError: ST-IDEN-020 malformed, ST-IDEN-015 by a revoked identity, ST-IDEN-022 by
            another, ST-IDEN-021 it does not verify, ST-IDEN-004 another payload type.
        UsageError: ST-USAG-004 without the extra.
    """
    from securetrain.identity import sigstore  # noqa: PLC0415 - few statements have a bundle

    try:
        canonical.decode(
            bundle, dict[str, Any], limit=sigstore.BUNDLE_LIMIT, where=where, canonical=True
        )
    except UsageError as error:
        raise IdentityError("ST-IDEN-020", error.what, where) from error
    name = sigstore.claimed_name(bundle, where)
    asked = {key: one for key, one in identities.items() if one.covers(name)}
    if not asked:
        if any(one.covers(name) for one in (revoked or {}).values()):
            raise IdentityError("ST-IDEN-015", f"signed by {name}, who was revoked", where)
        raise IdentityError(
            "ST-IDEN-022",
            f"signed by {name[:200]!r}, whom the trust root does not name for this",
            where,
        )
    refusals: list[IdentityError] = []
    for key, one in asked.items():
        policy = sigstore.KeylessPolicy(identity=name, issuer=one.issuer)
        try:
            found = sigstore.verify_dsse(bundle, payload_type, policy, roots[one.instance], where)
        except IdentityError as error:
            refusals.append(error)
            continue
        return dsse.VerifiedPayload(
            found.payload.data, payload_type, frozenset({key}), identities=frozenset({name})
        )
    # A bundle that verifies and is of another issuer says more than one of another instance.
    raise next((one for one in refusals if one.code != "ST-IDEN-021"), refusals[0])
