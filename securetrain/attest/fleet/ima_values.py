# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Changes of what reference values say of measured files: the runtime policy, keys, violations.

Rules:

1. a policy takes the place of the last one; with a day for it, the last one is accepted beside it
   until then. One policy is kept beside the newest: a second upgrade within the window replaces it;
2. keys are added to those that are there and taken out by their id, as ``evmctl`` prints it;
3. rules for violations are replaced as a whole: their order counts;
4. everything is compiled before it is signed, so that no verifier finds what it cannot read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.core.errors import UsageError
from securetrain.core.files import read_file
from securetrain.evidence import ReferenceValues
from securetrain.evidence.tpm import (
    FormerPolicy,
    ImaKey,
    ImaReference,
    PathPatterns,
    RuntimePolicies,
    ViolationMode,
    ViolationRule,
    Violations,
    key_id_of,
)

_KEY_LIMIT: Final = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ImaChange:
    """The order of a person; what is not named stays."""

    policy: ImaReference | None = None
    """The next runtime policy."""
    former_until: datetime | None = None
    """Until when the last one is accepted beside it."""
    no_former: bool = False
    """Whether the one before is to go now."""
    keys: tuple[ImaKey, ...] = ()
    without_keys: tuple[str, ...] = ()
    """Key ids, 8 digits of hex."""
    violations: tuple[ViolationRule, ...] | None = None


def set_ima(values: ReferenceValues, change: ImaChange, now: datetime) -> ReferenceValues:
    """The values after a change.

    Raises:
        AttestationError: ST-ATTS-320 to 325 for what no verifier could read.
        UsageError: ST-USAG-001 for a day that is over, a key that is not there, or nothing to keep.
    """
    ima = values.ima
    former = None if change.no_former else ima.former
    if change.former_until is not None:
        former = _former(ima, change, now)
    elif change.policy is not None:
        former = None  # it stood beside the policy that goes
    if change.policy is not None:
        ima = msgspec.structs.replace(
            ima,
            policy=change.policy.policy,
            policy_sha256=change.policy.policy_sha256,
            signed_by=change.policy.signed_by,
        )
    ima = msgspec.structs.replace(
        ima,
        former=former,
        keys=_keys(ima.keys, change),
        violations=ima.violations if change.violations is None else change.violations,
    )
    _compile(ima)
    return msgspec.structs.replace(values, ima=ima)


def _former(ima: ImaReference, change: ImaChange, now: datetime) -> FormerPolicy:
    assert change.former_until is not None, "the caller has looked"
    if change.policy is None or not (ima.policy or ima.policy_sha256):
        raise UsageError(
            "ST-USAG-001",
            "there is no policy to keep beside another one",
            "--former-until",
            "name it together with --policy, once the values have a policy",
        )
    if change.former_until <= now:
        raise UsageError(
            "ST-USAG-001", f"{change.former_until} is over", "--former-until", "name a later day"
        )
    return FormerPolicy(
        policy=ima.policy,
        policy_sha256=ima.policy_sha256,
        signed_by=ima.signed_by,
        until=change.former_until,
    )


def _keys(known: Sequence[ImaKey], change: ImaChange) -> tuple[ImaKey, ...]:
    ids = {key_id_of(key.key) for key in known}
    for gone in change.without_keys:
        if gone not in ids:
            raise UsageError(
                "ST-USAG-001",
                f"no key has the id {gone[:40]!r}",
                "--drop-ima-key",
                f"name one of {', '.join(sorted(ids)) or 'none: there is no key'}",
            )
    left = [key for key in known if key_id_of(key.key) not in change.without_keys]
    fresh = {(key.key, key.keyring) for key in change.keys}
    return (*(key for key in left if (key.key, key.keyring) not in fresh), *change.keys)


def _compile(ima: ImaReference) -> None:
    """Refuse what a verifier could not read; a policy in the cache is read when it is used."""
    for key in ima.keys:
        key_id_of(key.key)
    Violations(ima.violations, allow=False)
    if ima.policy is not None and not ima.named:
        RuntimePolicies().get(ima, {})
        RuntimePolicies().with_former(ima, {})


def ima_key(path: Path, keyring: str, paths: Sequence[str] = ()) -> ImaKey:
    """Read a key that signs files.

    Args:
        path: a certificate or public key, PEM, or a certificate in DER.
        keyring: the kernel's.
        paths: patterns of what it vouches for; none for all.

    Raises:
        AttestationError: ST-ATTS-326.
        UsageError: ST-USAG-001 for a keyring or pattern; ST-USAG-002 when it cannot be read.
    """
    data = read_file(path, _KEY_LIMIT)
    try:
        text = data.decode() if b"-----BEGIN" in data else _pem(data)
        read = msgspec.convert({"key": text, "keyring": keyring, "paths": list(paths)}, ImaKey)
    except (ValueError, x509.InvalidVersion) as error:  # msgspec's errors are ValueErrors
        raise UsageError(
            "ST-USAG-001", f"{error}", str(path), "name a certificate (PEM)"
        ) from error
    key_id_of(read.key)
    PathPatterns(read.paths, "--paths")
    return read


def _pem(data: bytes) -> str:
    return x509.load_der_x509_certificate(data).public_bytes(Encoding.PEM).decode()


def violation_rule(text: str) -> ViolationRule:
    """Read ``PATTERN=MODE``.

    Raises:
        UsageError: ST-USAG-001.
    """
    paths, _, mode = text.rpartition("=")
    if not paths or mode not in set(ViolationMode):
        raise UsageError(
            "ST-USAG-001",
            f"{text[:80]!r} is not PATTERN=MODE",
            "--violations",
            "end it with =log, =warn or =refuse",
        )
    return ViolationRule(paths=paths, mode=ViolationMode(mode))
