# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys in a PKCS#11 token: an HSM, a smart card, or SoftHSM. The key never leaves the token.

A key is named by a URI (RFC 7512), as other tools name it::

    pkcs11:token=release;object=checkpoint?module-path=/usr/lib/softhsm/libsofthsm2.so

Rules, in order:

1. the URI is at most 2048 characters; ``token`` or ``serial``, and ``object`` or ``id``, must be
   there, attributes that are not known are refused, and so is ``pin-value``: a PIN in a command
   line is read by everybody on the machine. It comes from ``pin-source=file:...`` or is asked for;
2. ``module-path`` is absolute and an ordinary file. Loading it runs it: it is a person's choice and
   is never taken from anything that was signed or received;
3. exactly one token, one private and one public key match;
4. the key is Ed25519, or ECDSA on P-256 (signed over SHA-256, since that is what tokens have), by
   its parameters;
5. a signature that the token makes over a fixed text verifies under the public key that it shows;
6. the key is used by the process that opened it: after a fork, open it anew.

Everything that the token refuses is ST-IDEN-019. Needs the extra ``[pkcs11]``.
"""

import hashlib
import os
import re
import stat
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import unquote_to_bytes

from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from securetrain.core import install_hint
from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity.keys import PublicKey, read_private

SCHEME: Final = "pkcs11:"
URI_LIMIT: Final = 2048
_SELF_TEST: Final = b"securetrain/pkcs11/self-test/1\n"
_P256: Final = bytes.fromhex("06082a8648ce3d030107")
_ED25519: Final = (b"\x13\x0cedwards25519", bytes.fromhex("06032b6570"))
_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PATH: Final = frozenset({"token", "serial", "object", "id", "type"})
_QUERY: Final = frozenset({"module-path", "pin-source"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Uri:
    """A key's name."""

    module: Path
    token: str = ""
    serial: str = ""
    object: str = ""
    id: bytes = b""
    pin_file: Path | None = None


def parse_uri(text: str) -> Uri:
    """Read a URI.

    Raises:
        IdentityError: ST-IDEN-019.
    """
    if len(text) > URI_LIMIT or not text.startswith(SCHEME) or not text.isascii():
        raise _bad(f"not a URI that begins with {SCHEME}")
    path, _, query = text.removeprefix(SCHEME).partition("?")
    found = _attributes(path.split(";"), _PATH) | _attributes(
        query.split("&") if query else [], _QUERY
    )
    if not (found.get("token") or found.get("serial")):
        raise _bad("it names no token: token=LABEL or serial=NUMBER")
    if not (found.get("object") or found.get("id")):
        raise _bad("it names no key: object=LABEL or id=%01")
    if found.get("type", b"private") != b"private":
        raise _bad("type is not private")
    module = found.get("module-path")
    if not module:
        raise _bad("it names no module: ?module-path=/usr/lib/.../libsomething.so")
    pin = found.get("pin-source")
    return Uri(
        module=_absolute(module, "module-path"),
        token=_text(found.get("token", b"")),
        serial=_text(found.get("serial", b"")),
        object=_text(found.get("object", b"")),
        id=found.get("id", b""),
        pin_file=None if pin is None else _absolute(pin.removeprefix(b"file:"), "pin-source"),
    )


def _attributes(parts: list[str], known: frozenset[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for part in parts:
        name, separator, value = part.partition("=")
        if name == "pin-value":
            raise _bad("pin-value would show the PIN to everybody: use pin-source=file:/path")
        if not separator or name not in known or name in found or _PERCENT.search(value):
            raise _bad(f"the attribute {part[:40]!r} is unknown, twice there or malformed")
        found[name] = unquote_to_bytes(value)
    return found


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad("an attribute is not UTF-8") from error


def _absolute(value: bytes, name: str) -> Path:
    path = Path(_text(value))
    if not path.is_absolute() or "\x00" in str(path):
        raise _bad(f"{name} is not an absolute path")
    return path


class Pkcs11Key:
    """A `Signer` whose key is in a token."""

    def __init__(self, public: PublicKey, private: Any, session: Any) -> None:
        """Use `open`."""
        self._public = public
        self._private = private
        self._session = session
        self._process = os.getpid()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, uri: str, pin: bytes | None = None) -> "Pkcs11Key":
        """Find a key and try it; see the module.

        Args:
            uri: its name.
            pin: the user's PIN, when the URI names no file that has it.

        Raises:
            IdentityError: ST-IDEN-019, ST-IDEN-010 for a PIN file that others may read.
            UsageError: ST-USAG-004 when the extra is not installed, ST-USAG-002.
        """
        wanted = parse_uri(uri)
        if wanted.pin_file is not None:
            pin = read_private(wanted.pin_file).split(b"\n", 1)[0].rstrip(b"\r")
        module = _module(wanted.module)
        with ExitStack() as failing:
            try:
                session = _login(module, _token(module, wanted), pin)
                failing.callback(session.close)
                public, private = _pair(session, wanted)
                key = cls(public, private, session)
                public.verify(key.sign(_SELF_TEST), _SELF_TEST)
            except module.PKCS11Error as error:
                raise _refused(error) from error
            except IdentityError as error:
                if error.code != "ST-IDEN-002":
                    raise
                raise _bad(
                    "what it signs does not verify under the public key beside it"
                ) from error
            failing.pop_all()
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
        """Sign `data` in the token.

        Raises:
            IdentityError: ST-IDEN-019.
        """
        from pkcs11 import Mechanism, PKCS11Error  # noqa: PLC0415 - an extra

        if os.getpid() != self._process:
            raise _bad("another process opened it: open it anew after a fork")
        try:
            with self._lock:
                if isinstance(self._public.native, ed25519.Ed25519PublicKey):
                    return bytes(self._private.sign(data, mechanism=Mechanism.EDDSA))
                digest = hashlib.sha256(data).digest()
                raw = bytes(self._private.sign(digest, mechanism=Mechanism.ECDSA))
        except PKCS11Error as error:
            raise _refused(error) from error
        half = len(raw) // 2
        return encode_dss_signature(
            int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big")
        )

    def close(self) -> None:
        """Log out of the token, and all its keys that this process has open."""
        self._session.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key in a token is not copied to other processes; give them its URI")


def _module(path: Path) -> Any:
    """The bindings, if they are installed and the module's file is one."""
    try:
        import pkcs11  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            "ST-USAG-004",
            "keys in PKCS#11 tokens need the package python-pkcs11",
            fix=install_hint("pkcs11"),
        ) from error
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise _bad(f"module-path {path}: {error.strerror}") from error
    if not is_file:
        raise _bad(f"module-path {path} is not a file")
    return pkcs11


def _token(module: Any, wanted: Uri) -> Any:
    library = module.lib(str(wanted.module))
    tokens = [
        token
        for token in library.get_tokens(token_flags=module.TokenFlag.TOKEN_INITIALIZED)
        if wanted.token in {"", token.label}
        and wanted.serial in {"", token.serial.decode("utf-8", "replace").strip()}
    ]
    if len(tokens) != 1:
        raise _bad(f"{len(tokens)} tokens match, one is needed")
    return tokens[0]


def _login(module: Any, token: Any, pin: bytes | None) -> Any:
    try:
        text = None if pin is None else pin.decode()
    except UnicodeDecodeError:
        raise _bad("the PIN is not UTF-8") from None  # the context would hold it
    try:
        return token.open(user_pin=text)
    except module.UserAlreadyLoggedIn:
        # A process logs in to a token once: another key of it is open here.
        return token.open()


def _pair(session: Any, wanted: Uri) -> tuple[PublicKey, Any]:
    """The public and the private key."""
    from pkcs11 import Attribute, ObjectClass  # noqa: PLC0415 - an extra

    search: dict[Any, Any] = {}
    if wanted.object:
        search[Attribute.LABEL] = wanted.object
    if wanted.id:
        search[Attribute.ID] = wanted.id
    found = []
    for kind in (ObjectClass.PUBLIC_KEY, ObjectClass.PRIVATE_KEY):
        objects = list(session.get_objects({**search, Attribute.CLASS: kind}))
        if len(objects) != 1:
            raise _bad(f"{len(objects)} keys of class {kind.name} match, one is needed")
        found.append(objects[0])
    public, private = found
    point, parameters = bytes(public[Attribute.EC_POINT]), bytes(public[Attribute.EC_PARAMS])
    return _public_key(point, parameters), private


def _public_key(point: bytes, parameters: bytes) -> PublicKey:
    """The public key; tokens give its point as it is, or inside an OCTET STRING."""
    if point[:1] == b"\x04" and len(point) in {34, 67} and point[1] == len(point) - 2:
        point = point[2:]
    try:
        if parameters == _P256:
            return PublicKey(ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point))
        if parameters in _ED25519:
            return PublicKey(ed25519.Ed25519PublicKey.from_public_bytes(point))
    except ValueError as error:
        raise _bad(f"its public key is malformed: {error}") from error
    raise _bad("it is neither Ed25519 nor ECDSA P-256")


def _refused(error: Exception) -> IdentityError:
    return _bad(f"the token refused: {type(error).__name__} {error}".strip())


def _bad(what: str) -> IdentityError:
    return IdentityError("ST-IDEN-019", what, "the PKCS#11 key")
