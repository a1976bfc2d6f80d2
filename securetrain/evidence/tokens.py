# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attestation tokens: what other verifiers say about a node, taken over from pinned issuers.

An EAT or EAR (RFC 9711, draft-ietf-rats-ear) is a result, not evidence: whoever pins its issuer
trusts that issuer's appraisal. It therefore proves no more than the tier `cloud-token`, and
NVIDIA's, which speak of devices only, no tier at all. Rules, in order:

1. the issuer is pinned; its token is signed by one of its pinned keys (`jws`);
2. times are whole seconds: not expired (ST-ATTS-805, told apart from the others), issued neither
   in the future nor longer ago than `max_age_seconds`, not valid for longer than
   `max_lifetime_seconds`. A token that never says when it ends does so after `max_age_seconds`;
3. it carries this exchange's nonce, and no other;
4. it is for our audience: the pinned one, or nobody;
5. its claims are what its profile demands (`token_profiles`) and what the reference values ask;
6. a bundle of NVIDIA's holds a token for each device beside the overall one, which names each by
   the SHA-256 of its text. None may be missing, added or swapped; each obeys rules 1 to 5, no two
   are of one device, and there are as many as the reference values say.

The nonce is compared as text in the few spellings that issuers give it: hex, base64 and base64url
of the bytes, and base64 of the hex.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AttestationError, UsageError
from securetrain.evidence.case import Case, Part
from securetrain.evidence.jws import TOKEN_LIMIT, KeyMemory, Signing, Unverified, malformed, parse
from securetrain.evidence.node_evidence import MAX_DEVICES, device_nonce
from securetrain.evidence.recent import Recent
from securetrain.evidence.result import Submodule, trust_vector
from securetrain.evidence.token_profiles import (
    JUDGES,
    Claims,
    Fact,
    TokenDevice,
    TokenProfile,
    nras_device,
)

CLOCK_SKEW: Final = timedelta(seconds=60)
_MAX_TIME: Final = 1 << 37
"""Seconds; the year 6325, so that every time is a `datetime`."""

MAX_ISSUERS: Final = 64
_MIN_NONCE: Final = 16
_MISSING: Final = object()
_DEVICE: Final = re.compile(r"(GPU|SWITCH)-[0-9]{1,3}")

Pointer: TypeAlias = Annotated[str, Meta(pattern=r"^(/([^~/]|~[01])*)*\Z", max_length=512)]
"""A JSON pointer (RFC 6901); empty for the default."""
Scalar: TypeAlias = str | int | bool | None


class TokenIssuer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The tokens that are accepted from one issuer."""

    profile: TokenProfile
    signing: Signing = Signing()
    """Its keys and algorithms; without any, no token is accepted."""
    audience: Annotated[str, Meta(max_length=512)] = ""
    """The audience that tokens must name; empty: they must name none."""
    nonce: Pointer = ""
    """Where the nonce stands, when not where the profile has it. Trustee:
    ``/submods/cpu0/ear.veraison.annotated-evidence/runtime_data_claims/nonce``."""
    equal: dict[Pointer, tuple[Scalar, ...]] = {}
    """Claims by JSON pointer, with the values that are accepted: image digests, projects..."""
    minimum: dict[Pointer, int] = {}
    """Claims that are numbers, with the least that is accepted: security versions..."""
    device_equal: dict[Pointer, tuple[Scalar, ...]] = {}
    """As `equal`, for every device of a bundle: driver and firmware versions."""
    gpus: Annotated[int, Meta(ge=0, le=MAX_DEVICES)] = 0
    """GPUs that a bundle of NVIDIA's must speak for; with 0, none with GPUs is accepted."""
    switches: Annotated[int, Meta(ge=0, le=MAX_DEVICES)] = 0
    """As `gpus`, for bundles about switches."""
    max_age_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 300
    """How long ago a token may have been issued."""
    max_lifetime_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 3600
    """How long a token may be valid; Azure's are for 8 hours."""


class TokenReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The issuers whose tokens are accepted, by their ``iss``; none by default."""

    issuers: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=512)], TokenIssuer],
        Meta(max_length=MAX_ISSUERS),
    ] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenState:
    """The facts that a token has proven, in its issuer's words."""

    issuer: str
    profile: TokenProfile
    issued: datetime
    expires: datetime
    hwmodel: str
    instance: str
    """The issuer's name of the machine; empty where it gives none."""
    trust_vector: Mapping[str, Mapping[str, int]]
    affirmed: frozenset[str]
    facts: Mapping[str, Fact]
    devices: tuple[TokenDevice, ...]


@dataclass(frozen=True, slots=True)
class _Verifier:
    """Rules 1 to 4, the same for every token of one exchange."""

    reference: TokenReference
    nonce: bytes
    now: datetime
    keys: KeyMemory | None

    def issuer_of(self, token: Unverified) -> TokenIssuer:
        issuer = self.reference.issuers.get(token.issuer)
        if issuer is None:
            raise AttestationError(
                "ST-ATTS-802",
                f"its issuer is {token.issuer[:200]!r}, which is not pinned",
                token.where,
            )
        return issuer

    def verify(self, token: Unverified, issuer: TokenIssuer) -> tuple[Claims, datetime, datetime]:
        """The claims, when the token was issued and when it ends."""
        payload = token.verify(issuer.signing, self.keys)
        issued, expires = self._check_times(payload, issuer, token.where)
        self._check_nonce(payload, issuer, token.where)
        _check_audience(payload, issuer, token.where)
        return Claims(payload, token.where), issued, expires

    def _check_times(
        self, payload: Mapping[str, Any], issuer: TokenIssuer, where: str
    ) -> tuple[datetime, datetime]:
        age = timedelta(seconds=issuer.max_age_seconds)
        issued = _time(payload, "iat", where)
        if issued is None:
            raise malformed("it does not say when it was issued (iat)", where)
        expires = _time(payload, "exp", where) or issued + age
        begins = _time(payload, "nbf", where) or issued
        if self.now >= expires:
            raise AttestationError(
                "ST-ATTS-805",
                f"expired at {expires.isoformat()}, now {self.now.isoformat()}",
                f"{where}/exp",
            )
        lifetime = timedelta(seconds=issuer.max_lifetime_seconds)
        for wrong, claim, what in (
            (issued > self.now + CLOCK_SKEW, "iat", f"issued in the future, {issued.isoformat()}"),
            (begins > self.now + CLOCK_SKEW, "nbf", f"not valid before {begins.isoformat()}"),
            (
                self.now - issued > age,
                "iat",
                f"issued at {issued.isoformat()}, longer than {age} ago",
            ),
            (
                expires - issued > lifetime,
                "exp",
                f"valid for {expires - issued}, at most {lifetime}",
            ),
        ):
            if wrong:
                raise AttestationError(
                    "ST-ATTS-806", f"{what}, now {self.now.isoformat()}", f"{where}/{claim}"
                )
        return issued, expires

    def _check_nonce(self, payload: Mapping[str, Any], issuer: TokenIssuer, where: str) -> None:
        pointer = issuer.nonce or issuer.profile.nonce
        found = _find(payload, pointer)
        if isinstance(found, list) and len(found) == 1:
            # One nonce may be a list; with more the token would answer somebody else too.
            found = found[0]
        if not (isinstance(found, str) and _is_nonce(found, self.nonce)):
            raise AttestationError(
                "ST-ATTS-807",
                f"expected {self.nonce.hex()}, found {_shown(found)}",
                where + pointer,
            )


def appraise_token(
    token: str,
    *,
    nonce: bytes,
    reference: TokenReference,
    now: datetime,
    where: str = "token",
    keys: KeyMemory | None = None,
) -> TokenState:
    """Judge one token, or one bundle of NVIDIA's.

    Args:
        token: a compact JWS, or ``[["JWT", overall], {device: token}]``.
        nonce: what this exchange asked the issuer to sign.
        reference: whose tokens are accepted.
        now: timezone-aware.
        where: names the token in errors.
        keys: pinned keys that were loaded before, for an appraiser of many tokens to keep.

    Raises:
        AttestationError: ST-ATTS-801 to 811.
        ValueError: when the nonce is too short to be one.
    """
    if len(nonce) < _MIN_NONCE:
        raise ValueError(f"a nonce of {len(nonce)} bytes")
    verifier = _Verifier(reference, nonce, now, keys)
    bundled = token.startswith("[")
    text, detached = unbundle(token, where) if bundled else (token, {})
    parsed = parse(text, where)
    issuer = verifier.issuer_of(parsed)
    if bundled is not (issuer.profile is TokenProfile.NRAS):
        raise malformed("NVIDIA's tokens come in bundles, all others alone", where)
    claims, issued, expires = verifier.verify(parsed, issuer)
    facts = JUDGES[issuer.profile](claims)
    _check_claims(parsed.payload, issuer.equal, issuer.minimum, where)
    devices: tuple[TokenDevice, ...] = ()
    if bundled:
        _check_detached(claims.get("submods"), detached, where)
        judged = [
            _judge_device(verifier, issuer, parsed, name, detached[name])
            for name in sorted(detached)
        ]
        devices = tuple(device for device, _ in judged)
        expires = min(expires, *(end for _, end in judged))
        _check_devices(devices, issuer, where)
    return TokenState(
        issuer=parsed.issuer,
        profile=issuer.profile,
        issued=issued,
        expires=expires,
        hwmodel=facts.hwmodel,
        instance=facts.instance,
        trust_vector=facts.trust_vector,
        affirmed=facts.affirmed,
        facts=facts.more,
        devices=devices,
    )


@dataclass(frozen=True, slots=True)
class TokenAppraiser:
    """Judges a node's tokens for as long as one edition of the reference values stands."""

    reference: TokenReference
    _keys: KeyMemory = field(default_factory=lambda: Recent(MAX_ISSUERS))

    def appraise(self, tokens: Sequence[str], case: Case) -> tuple[Part, ...]:
        """Judge every token; they answer the nonce that devices answer.

        Raises:
            AttestationError: ST-ATTS-801 to 811.
        """
        nonce = device_nonce(case.binding)
        return tuple(
            _part(
                f"token-{number}",
                appraise_token(
                    token,
                    nonce=nonce,
                    reference=self.reference,
                    now=case.now,
                    where=f"token {number}",
                    keys=self._keys,
                ),
            )
            for number, token in enumerate(tokens)
        )


def _part(name: str, state: TokenState) -> Part:
    claims: dict[str, Fact] = {
        "issuer": state.issuer,
        "profile": state.profile.value,
        "hwmodel": state.hwmodel,
        "instance": state.instance,
        "expires": state.expires.isoformat(),
        **state.facts,
    }
    for device in state.devices:
        shown = (device.hwmodel, device.ueid, device.driver, device.firmware)
        claims[device.name] = " ".join(filter(None, shown))
    identities = [f"device:{device.ueid}" for device in state.devices]
    if state.instance:
        identities.append(f"instance:{state.issuer}:{state.instance}")
    return Part(
        name=name,
        tier=state.profile.tier,
        submodule=Submodule(trust_vector=trust_vector(*state.affirmed), claims=claims),
        identities=tuple(identities),
    )


def unbundle(token: str, where: str) -> tuple[str, Mapping[str, str]]:
    """The overall token of a bundle, and the devices' by name.

    Raises:
        AttestationError: ST-ATTS-801.
    """
    try:
        bundle = canonical.loads(token.encode(), limit=TOKEN_LIMIT, where=where)
    except (UsageError, UnicodeEncodeError) as error:
        raise malformed(str(error), where) from error
    match bundle:
        case [["JWT", str(overall)], dict(detached)] if len(detached) <= MAX_DEVICES:
            if all(isinstance(one, str) for one in detached.values()):
                return overall, detached
    raise malformed('a bundle is [["JWT", overall], {device: token}]', where)


def _judge_device(
    verifier: _Verifier, issuer: TokenIssuer, overall: Unverified, name: str, text: str
) -> tuple[TokenDevice, datetime]:
    """Judge the token of one device: its claims, and when it ends."""
    token = parse(text, f"{overall.where}/{name}")
    if token.issuer != overall.issuer:
        raise _wrong_devices("its issuer is not that of the overall token", token.where)
    claims, _, expires = verifier.verify(token, issuer)
    device = nras_device(claims, name)
    _check_claims(token.payload, issuer.device_equal, {}, token.where)
    return device, expires


def _check_detached(submods: object, detached: Mapping[str, str], where: str) -> None:
    """The overall token must name exactly the devices' tokens that came with it."""
    if not isinstance(submods, dict) or not submods:
        raise _wrong_devices("the overall token names no devices", where)
    if set(submods) != set(detached):
        raise _wrong_devices(
            f"the overall token names {', '.join(sorted(submods))},"
            f" the bundle holds {', '.join(sorted(detached)) or 'none'}",
            where,
        )
    for name, text in detached.items():
        if not _DEVICE.fullmatch(name):
            raise _wrong_devices(f"{ascii(name)[:80]} is neither a GPU nor a switch", where)
        digest = hashlib.sha256(text.encode()).hexdigest()
        if submods[name] != ["DIGEST", ["SHA-256", digest]]:
            raise _wrong_devices(
                "its token is not the one that the overall token names", f"{where}/{name}"
            )


def _check_devices(devices: Sequence[TokenDevice], issuer: TokenIssuer, where: str) -> None:
    if len({device.ueid for device in devices}) != len(devices):
        raise _wrong_devices("one device is there twice", where)
    for prefix, wanted in (("GPU-", issuer.gpus), ("SWITCH-", issuer.switches)):
        found = sum(device.name.startswith(prefix) for device in devices)
        if found not in {0, wanted}:
            raise _wrong_devices(
                f"{found} devices {prefix}*, the reference values say {wanted}", where
            )


def _check_claims(
    payload: Mapping[str, Any],
    equal: Mapping[str, tuple[Scalar, ...]],
    minimum: Mapping[str, int],
    where: str,
) -> None:
    """Rule 5, the part of the reference values."""
    for pointer, accepted in equal.items():
        found = _find(payload, pointer)
        if not any(type(found) is type(one) and found == one for one in accepted):
            expected = " or ".join(map(repr, accepted)) or "nothing"
            raise _wrong_claim(f"expected {expected}, found {_shown(found)}", where + pointer)
    for pointer, least in minimum.items():
        found = _find(payload, pointer)
        if type(found) is not int or found < least:
            raise _wrong_claim(f"expected at least {least}, found {_shown(found)}", where + pointer)


def _check_audience(payload: Mapping[str, Any], issuer: TokenIssuer, where: str) -> None:
    found = payload.get("aud")
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    if found != (issuer.audience or None):
        raise AttestationError(
            "ST-ATTS-808",
            f"expected {issuer.audience or 'none'!r}, found {_shown(found)}",
            f"{where}/aud",
        )


def _time(payload: Mapping[str, Any], name: str, where: str) -> datetime | None:
    value = payload.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < _MAX_TIME:
        raise malformed(f"{name} is no time in whole seconds: {_shown(value)}", where)
    return datetime.fromtimestamp(value, UTC)


def _is_nonce(text: str, nonce: bytes) -> bool:
    """Tell whether the text is one of the spellings of exactly these bytes."""
    padded = base64.b64encode(nonce).decode()
    url = base64.urlsafe_b64encode(nonce).decode()
    of_hex = base64.b64encode(nonce.hex().encode()).decode()
    return text in {nonce.hex(), padded, padded.rstrip("="), url, url.rstrip("="), of_hex}


def _find(payload: Mapping[str, Any], pointer: str) -> Any:
    """The value at a JSON pointer, or `_MISSING`."""
    value: Any = payload
    for escaped in pointer.split("/")[1:]:
        name = escaped.replace("~1", "/").replace("~0", "~")
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _shown(value: object) -> str:
    return "nothing" if value is _MISSING else ascii(value)[:200]


def _wrong_claim(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-809", what, where)


def _wrong_devices(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-810", what, where)
