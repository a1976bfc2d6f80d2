# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The records of a desk: a machine that may come, and what one that came has proven."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from securetrain.attest.fleet.bundle import Bundle, Secret
from securetrain.core.errors import AdmissionError, IdentityError, reason
from securetrain.evidence.tpm import BootReference
from securetrain.identity.keys import PublicKey

WAITS: Final = timedelta(days=30)
"""Of what was proven and not signed: then the machine must prove it anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invited:
    """The desk's record of a token."""

    key: PublicKey
    node: str
    group: str
    ends: datetime
    ek: str = ""
    """Name of the endorsement key that must answer, hex; empty for any that is certified."""
    replace: bool = False
    """Whether the node may have new hardware, or another group."""
    tries: int = 0
    used: str = ""
    """When it was, RFC 3339."""
    used_by: str = ""
    """Name of the endorsement key that used it."""

    @property
    def id(self) -> str:
        """The id of its key."""
        return self.key.key_id


class Proven(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The proof of one machine, as it waits for a person."""

    token: str
    node: str
    group: str
    replace: bool
    answered: Annotated[datetime, Meta(tz=True)]
    remote: str
    bundle: Bundle
    secret: Secret
    """Of the question that the bundle answers."""
    worth: str
    """Of its TPM's certificate, for people."""
    boot: BootReference
    """What it booted, as its image group would learn it."""
    own: dict[str, tuple[str, ...]]
    """What this machine alone measures, by register."""
    learned: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ek(self) -> str:
        """Name of its endorsement key, hex."""
        return self.secret.ek_name.hex()


def invited_from(row: Any) -> Invited:
    """A row of the desk's table of tokens.

    Raises:
        AdmissionError: ST-ADMN-023 when its key was edited.
    """
    _, key, node, group, ek, replace, ends, tries, used, used_by = row
    try:
        public = PublicKey.from_spki(key)
    except IdentityError as error:
        raise AdmissionError("ST-ADMN-023", reason(error), f"token of {node}") from error
    return Invited(
        key=public,
        node=node,
        group=group,
        ends=datetime.fromisoformat(ends),
        ek=ek,
        replace=bool(replace),
        tries=tries,
        used=used or "",
        used_by=used_by or "",
    )
