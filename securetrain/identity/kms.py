# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys in a cloud's key service, through the signers of securesystemslib. The key stays there.

A key is named by a URI::

    awskms:arn:aws:kms:eu-central-1:111122223333:key/1234abcd-...
    gcpkms:projects/P/locations/L/keyRings/R/cryptoKeys/K/cryptoKeyVersions/V
    azurekms://VAULT.vault.azure.net/keys/NAME/VERSION

Rules, in order:

1. the URI is at most 2048 printable characters of one of these forms; credentials are those that
   the cloud's own library finds, and never in the URI;
2. the key is ECDSA on P-256, by the public half that the service shows;
3. a signature that it makes over a fixed text verifies under that public half;
4. every later signature is verified before it is used: what a service answers is not believed.

Everything that the service or its library refuses is ST-IDEN-027. Needs the extra ``[aws-kms]``,
``[gcp-kms]`` or ``[azure-kms]``.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

from securetrain.core import install_hint
from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity.keys import KeyKind, PublicKey

_ECDSA: Final = "ecdsa-sha2-nistp256"
_LIMIT: Final = 2048
_SELF_TEST: Final = b"securetrain: a key service shows that it can sign\n"
_AZURE: Final = re.compile(
    r"azurekms://(?P<vault>[A-Za-z0-9-]{3,24})\.vault\.azure\.net"
    r"/keys/(?P<name>[A-Za-z0-9-]{1,127})/(?P<version>[A-Za-z0-9]{1,64})"
)
_PATTERNS: Final = {
    "awskms": re.compile(r"awskms:(?P<key>[A-Za-z0-9:/_+=,.@-]+)"),
    "gcpkms": re.compile(
        r"gcpkms:(?P<key>projects/[^/?#]+/locations/[^/?#]+/keyRings/[^/?#]+/cryptoKeys/[^/?#]+"
        r"/cryptoKeyVersions/[0-9]+)"
    ),
    "azurekms": _AZURE,
}
_EXTRAS: Final = {"awskms": "aws-kms", "gcpkms": "gcp-kms", "azurekms": "azure-kms"}


def is_named(name: str) -> bool:
    """Return whether a name is the URI of a key in a key service."""
    return name.partition(":")[0] in _PATTERNS


class KmsKey:
    """A `Signer` whose key is in a key service."""

    def __init__(self, uri: str, public: PublicKey, sign: Callable[[bytes], Any]) -> None:
        """Use `open`."""
        self._uri = uri
        self._public = public
        self._sign = sign

    @classmethod
    def open(cls, uri: str) -> "KmsKey":
        """Read the public half and try the key; see the module.

        Raises:
            IdentityError: ST-IDEN-027.
            UsageError: ST-USAG-004 when the extra is not installed.
        """
        scheme = uri.partition(":")[0]
        found = _PATTERNS[scheme].fullmatch(uri)
        if found is None or len(uri) > _LIMIT:
            raise _bad(f"not the URI of a key version: {uri[:200]!r}", uri)
        maker, unsupported = _library(scheme)
        try:
            named, shown = _imported(maker, scheme, found)
            public = PublicKey.from_pem(shown.keyval["public"].encode("ascii"), uri)
            if scheme == "azurekms" and named != uri:
                raise _bad("the vault shows another version of the key than was named", uri)
            key = cls(uri, public, maker.from_priv_key_uri(uri, shown).sign)
        except IdentityError as error:
            raise _bad(error.what, uri) from error
        except unsupported as error:
            raise UsageError(
                "ST-USAG-004", f"{error}", uri, install_hint(_EXTRAS[scheme])
            ) from error
        except Exception as error:  # each cloud's library raises types of its own
            raise _bad(f"{type(error).__name__}: {error}", uri) from error
        if public.kind is not KeyKind.P256:
            raise _bad(f"it is {public.kind}, not ECDSA P-256", uri)
        key.sign(_SELF_TEST)
        return key

    @property
    def public(self) -> PublicKey:
        """The key that verifies what this signs."""
        return self._public

    @property
    def key_id(self) -> str:
        """The id of the public key."""
        return self._public.key_id

    def sign(self, data: bytes) -> bytes:
        """Have the service sign `data`, and verify the signature.

        Raises:
            IdentityError: ST-IDEN-027.
        """
        try:
            signature = bytes.fromhex(self._sign(data).signature)
            self._public.verify(signature, data)
        except IdentityError as error:
            raise _bad("what it signs does not verify under its public half", self._uri) from error
        except Exception as error:  # each cloud's library raises types of its own
            raise _bad(f"{type(error).__name__}: {error}", self._uri) from error
        return signature

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key in a key service is not copied to other processes; give its URI")


def _imported(maker: Any, scheme: str, found: re.Match[str]) -> tuple[str, Any]:
    """The URI and the public half, as the service shows them."""
    match scheme:
        case "awskms":
            named: tuple[str, Any] = maker.import_(found["key"], _ECDSA)
        case "gcpkms":
            named = maker.import_(found["key"])
        case "azurekms":
            named = maker.import_(found["vault"], found["name"])
        case _:
            raise ValueError(f"unknown scheme {scheme!r}")
    return named


def _library(scheme: str) -> tuple[Any, type[Exception]]:
    """The signer of a scheme, and what it raises when a cloud's own library is missing."""
    try:
        from securesystemslib import signer as signers  # noqa: PLC0415 - an extra
        from securesystemslib.exceptions import UnsupportedLibraryError  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "ST-USAG-004",
            "keys in key services need the package securesystemslib",
            fix=install_hint(_EXTRAS[scheme]),
        ) from error
    return vars(signers)["SIGNER_FOR_URI_SCHEME"][scheme], UnsupportedLibraryError


def _bad(what: str, uri: str) -> IdentityError:
    return IdentityError("ST-IDEN-027", what[:500], uri[:200])
