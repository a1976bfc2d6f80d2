# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Pins: the policy, the checks and the advisories that an audit should use, signed by a person.

Whoever can write to a policy or a folder of checks can make every audit pass. Rules:

1. pins are digests of what counts when it is loaded: the resolved policy, every check with its
   definition, the table of a standard that checks ask, every advisory. Another file with the same
   content is the same;
2. the pins are an envelope (DSSE), and nothing of them is read before its signature has verified;
3. what differs is a finding (ST-AUD-004) and an integrity problem: the audit goes on, and ends with
   exit code 4.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from securetrain.audit.engine.check import Check
from securetrain.audit.engine.functions.advisories import Advisories, shipped_advisories
from securetrain.audit.subjects.kubernetes.standards import controls
from securetrain.core import canonical
from securetrain.core.errors import SecureTrainError
from securetrain.identity import dsse
from securetrain.identity.keys import PublicKey, Signer
from securetrain.policy.load import digest_of
from securetrain.policy.schema import Policy

PAYLOAD_TYPE: Final = "application/vnd.securetrain.audit-pins+json"
LIMIT: Final = 64 << 10
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Pins(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The digests."""

    schema: Literal["securetrain.audit-pins/v1"] = "securetrain.audit-pins/v1"
    policy: _Digest
    checks: _Digest
    advisories: _Digest

    @classmethod
    def of(cls, policy: Policy, checks: Sequence[Check], advisories: Advisories | None) -> "Pins":
        """The pins of what was loaded."""
        specs = [msgspec.to_builtins(check.spec) for check in sorted(checks, key=lambda c: c.id)]
        specs += [msgspec.to_builtins(one) for one in controls().values()]
        listed = (advisories or shipped_advisories()).listed()
        return cls(policy=digest_of(policy), checks=_sha256(specs), advisories=_sha256(listed))

    def signed(self, key: Signer) -> bytes:
        """The envelope of these pins."""
        return dsse.sign(canonical.encode(self), PAYLOAD_TYPE, [key])

    def mismatches(self, data: bytes, key: PublicKey, where: str) -> list[tuple[str, str]]:
        """List what of these differs from signed ones: its name, and why."""
        try:
            payload = dsse.verify(data, PAYLOAD_TYPE, {key.key_id: key}, where=where)
            pinned = canonical.decode(payload.data, Pins, limit=LIMIT, where=where, canonical=True)
        except SecureTrainError as error:
            return [("pins", f"{where} is not signed by the key that was given: {error.what}")]
        return [
            (name, f"the {name}: {found[:12]} is used, and {wanted[:12]} is pinned")
            for name in ("policy", "checks", "advisories")
            if (wanted := getattr(pinned, name)) != (found := getattr(self, name))
        ]


def _sha256(value: object) -> str:
    return hashlib.sha256(canonical.encode(value)).hexdigest()
