# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed policies: whoever can write to a policy can make every check pass.

What is signed is the digest of the resolved policy, so that a change of what it extends is seen
too, with its name and the time. The envelope, or keyless bundle, stands beside the file
(`beside`). A reader checks, in order:

1. it is signed by the trust root's role ``operator``;
2. it is of a policy of this name and digest;
3. it was signed by now, and not longer ago than the reader allows.
"""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import PolicyError
from securetrain.core.files import read_file
from securetrain.identity import dsse
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.policy.load import LoadedPolicy

PAYLOAD_TYPE: Final = "application/vnd.securetrain.policy+json"
LIMIT: Final = 1 << 20
SUFFIX: Final = ".sig"


class SignedPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The signed document."""

    schema: Literal["securetrain.signed-policy/v1"] = "securetrain.signed-policy/v1"
    name: Annotated[str, Meta(min_length=1, max_length=255)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    signed: Annotated[datetime, Meta(tz=True)]


def beside(path: Path) -> Path:
    """The file of a policy's signature."""
    return path.with_name(f"{path.name}{SUFFIX}")


def sign_policy(path: Path, loaded: LoadedPolicy, key: Signer, now: datetime) -> bytes:
    """The envelope, or bundle, of a policy's signature."""
    said = SignedPolicy(name=path.name, digest=loaded.digest, signed=now.replace(microsecond=0))
    return dsse.sign(canonical.encode(said), PAYLOAD_TYPE, [key], keyless=True)


def verify_policy(
    path: Path,
    loaded: LoadedPolicy,
    signature: Path,
    trust: TrustRoot,
    now: datetime,
    *,
    max_age: timedelta | None = None,
) -> tuple[SignedPolicy, frozenset[str]]:
    """Check a policy against its signature; see the module. Gives what was signed, and by whom.

    Raises:
        IdentityError: Those of `TrustRoot.verify`.
        PolicyError: ST-PLCY-006 when it is not the policy that was signed, or too old.
        UsageError: ST-USAG-002, ST-USAG-008.
    """
    where = str(signature)
    payload = trust.verify(read_file(signature, LIMIT), PAYLOAD_TYPE, TrustRole.OPERATOR, where)
    said = canonical.decode(payload.data, SignedPolicy, limit=LIMIT, where=where, canonical=True)
    if said.name != path.name:
        raise _other(f"{said.name[:80]!r} was signed, and this is {path.name!r}", path)
    if said.digest != loaded.digest:
        raise _other(f"{said.digest[:16]} was signed, and this is {loaded.digest[:16]}", path)
    if said.signed > now or (max_age is not None and now - said.signed > max_age):
        raise _other(f"it was signed at {said.signed}, and now is {now}", path)
    return said, payload.key_ids


def _other(what: str, path: Path) -> PolicyError:
    return PolicyError("ST-PLCY-006", what, str(path))
