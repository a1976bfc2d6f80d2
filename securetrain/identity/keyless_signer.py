# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sign without a key to keep: a Sigstore instance vouches for an OIDC identity (``[sigstore]``).

Rules, in order:

1. the identity token is a file that a person names, or what the CI system offers; it is never
   printed, and never in a command line;
2. the instance is the one of a trust configuration (``ClientTrustConfig``), or the public one;
   every request to it ends after `TIMEOUT_SECONDS`;
3. the key is made for this and lives in memory; the instance's CA certifies it for minutes;
4. what the instance answers is not believed: before a bundle is handed out, it is verified offline
   under the instance's trusted root, as a reader would, and where the configuration names
   timestamp authorities it must hold a timestamp (RFC 3161).

Everything that goes wrong on the way is ST-IDEN-026. sigstore-python signs in-toto statements of
known digests only; the envelopes here are of our own types, so its steps are called one by one.
"""

import base64
import json
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl, urlsplit

from securetrain.core import canonical, install_hint
from securetrain.core.errors import IdentityError, UsageError
from securetrain.core.files import read_file
from securetrain.identity import sigstore
from securetrain.identity.dsse import pae
from securetrain.identity.keyless import Identity
from securetrain.identity.keys import PrivateKey, PublicKey

SCHEME: Final = "keyless:"
TIMEOUT_SECONDS: Final = 30.0
TOKEN_LIMIT: Final = 64 << 10
CONFIG_LIMIT: Final = 4 << 20
_PARTS: Final = frozenset({"token", "config"})


class KeylessSigner:
    """A `Signer` and `EnvelopeSigner` by identity. It lives as long as its certificate: minutes."""

    def __init__(self, signer: Any, context: Any, token: Any, root: bytes, instance: str) -> None:
        """Use `open`."""
        self._signer = signer
        self._context = context
        self._root = root
        self.identity = Identity(
            identity=token.identity, issuer=token.federated_issuer, instance=instance
        )

    @classmethod
    def open(cls, token: bytes | None = None, config: bytes | None = None) -> "KeylessSigner":
        """Get a certificate.

        Args:
            token: The identity token; what the CI system offers by default.
            config: The instance's trust configuration; the public instance's by default.

        Raises:
            IdentityError: ST-IDEN-026.
            UsageError: ST-USAG-004 without the extra.
        """
        try:
            from sigstore.models import ClientTrustConfig  # noqa: PLC0415 - an extra
            from sigstore.oidc import IdentityToken, detect_credential  # noqa: PLC0415 - an extra
            from sigstore.sign import Signer, SigningContext  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UsageError(
                "ST-USAG-004",
                f"keyless signatures need the package sigstore: {error}",
                fix=install_hint("sigstore"),
            ) from error
        try:
            raw = detect_credential() if token is None else token.decode("ascii").strip()
            if not raw:
                raise _failed("no identity token: none was given, and no CI system offers one")
            found = (
                ClientTrustConfig.production()
                if config is None
                else ClientTrustConfig.from_json(config.decode("utf-8"))
            )
            identity = IdentityToken(raw)
            context = SigningContext.from_trust_config(found)
            _bound(context)
            root = found.trusted_root._inner.to_json().encode()  # noqa: SLF001 - see the module
            instance = "public" if config is None else "private"
            return cls(Signer(identity, context), context, identity, root, instance)
        except IdentityError:
            raise
        except Exception as error:  # sigstore and what it uses raise many types
            raise _failed(f"{type(error).__name__}: {error}") from error

    @property
    def public(self) -> PublicKey:
        """The key of the certificate."""
        return PublicKey(self._signer._private_key.public_key())  # noqa: SLF001 - see the module

    @property
    def key_id(self) -> str:
        """The id of the identity."""
        return self.identity.id

    def sign(self, data: bytes) -> NoReturn:
        """Refuse: a bare signature would say nothing about the certificate or the time.

        Raises:
            UsageError: ST-USAG-001.
        """
        del data
        raise UsageError(
            "ST-USAG-001",
            "an identity signs envelopes, and this needs the signature of a key",
            fix="give a key file, a pkcs11: URI or a key of a cloud's key service",
        )

    def sign_envelope(self, payload: bytes, payload_type: str) -> bytes:
        """The bundle, in canonical JSON, after it was verified.

        Raises:
            IdentityError: ST-IDEN-026.
        """
        try:
            made = self._bundle(payload, payload_type)
        except Exception as error:  # sigstore and what it uses raise many types
            raise _failed(f"{type(error).__name__}: {error}") from error
        bundle = canonical.dumps(json.loads(made.to_json()))
        try:
            name = sigstore.claimed_name(bundle)
            policy = sigstore.KeylessPolicy(identity=name, issuer=self.identity.issuer)
            found = sigstore.verify_dsse(bundle, payload_type, policy, self._root)
        except IdentityError as error:
            raise _failed(f"what the instance answered does not verify: {error.what}") from error
        if found.payload.data != payload:
            raise _failed("the instance answered with another payload")
        stamps = made.verification_material.timestamp_verification_data
        if self._context._tsa_clients and not (  # noqa: SLF001 - see the module
            stamps is not None and stamps.rfc3161_timestamps
        ):
            raise _failed("the instance's timestamp authority gave no timestamp")
        return bundle

    def _bundle(self, payload: bytes, payload_type: str) -> Any:
        from sigstore.dsse import Envelope  # noqa: PLC0415 - an extra

        signer, log = self._signer, self._context._rekor  # noqa: SLF001 - see the module
        certificate = signer._signing_cert()  # noqa: SLF001 - see the module
        key = PrivateKey(signer._private_key)  # noqa: SLF001 - see the module
        document = {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": payload_type,
            "signatures": [
                {"sig": base64.b64encode(key.sign(pae(payload_type, payload))).decode()}
            ],
        }
        content = Envelope._from_json(json.dumps(document))  # noqa: SLF001 - see the module
        entry = log._build_dsse_request(envelope=content, certificate=certificate)  # noqa: SLF001
        return signer._finalize_sign(certificate, content, entry)  # noqa: SLF001 - see the module


def open_named(name: str) -> KeylessSigner:
    """Open the signer that ``keyless:`` names, with ``?token=FILE&config=FILE`` where they are.

    Raises:
        IdentityError: ST-IDEN-026.
        UsageError: ST-USAG-001 for another form, ST-USAG-002 for a file, ST-USAG-004.
    """
    parts = urlsplit(name)
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=False, strict_parsing=bool(parts.query))
    except ValueError:
        pairs = [("", "")]
    given = dict(pairs)
    if parts.path or parts.fragment or len(given) != len(pairs) or not given.keys() <= _PARTS:
        raise UsageError(
            "ST-USAG-001",
            f"not a keyless signer: {name[:200]!r}",
            fix="write keyless: or keyless:?token=FILE&config=FILE",
        )
    token, config = given.get("token"), given.get("config")
    return KeylessSigner.open(
        None if token is None else read_file(Path(token), TOKEN_LIMIT),
        None if config is None else read_file(Path(config), CONFIG_LIMIT),
    )


def _bound(context: Any) -> None:
    """Give every request to the instance an end; sigstore-python gives most of them none."""
    from requests.adapters import HTTPAdapter  # noqa: PLC0415 - sigstore brings it

    class Bounded(HTTPAdapter):
        def send(self, *args: Any, **given: Any) -> Any:
            given["timeout"] = given.get("timeout") or TIMEOUT_SECONDS
            return super().send(*args, **given)

    fulcio, log = context._fulcio, context._rekor  # noqa: SLF001 - see the module
    for session in (fulcio.session, getattr(log, "session", None), getattr(log, "_session", None)):
        if session is not None:
            session.mount("https://", Bounded())
            session.mount("http://", Bounded())


def _failed(what: str) -> IdentityError:
    return IdentityError("ST-IDEN-026", what[:500], "keyless signing")
