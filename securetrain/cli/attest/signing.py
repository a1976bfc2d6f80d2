# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options of whoever signs the next edition of reference values, or of the cache."""

from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from securetrain.cli.clock import now
from securetrain.cli.fleet.memory import fleet_memory
from securetrain.cli.options import DAYS, OPERATOR_FILE, OPERATOR_KEY, SignedBy
from securetrain.cli.passphrase import asker

if TYPE_CHECKING:
    from securetrain.attest.fleet import Change, Difference
    from securetrain.evidence import ReferenceValues
    from securetrain.identity.keys import PrivateKey, Signer
    from securetrain.report import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """The keys that may have signed what is there: by default, the one that signs now."""

    signed_by: SignedBy

    def signer(self) -> "Signer":
        """The operator's key, opened."""
        raise NotImplementedError

    def by(self, key: "Signer") -> tuple[str, ...]:
        """The keys that may have signed what is there."""
        from securetrain.attest.fleet import key_text

        return self.signed_by or (key_text(key.public),)

    def change(
        self,
        file: Path,
        change: "Change",
        days: int | None = None,
        **more: Any,
    ) -> "ReferenceValues":
        """Make and sign the next edition of reference values."""
        from securetrain.attest.fleet import change_values

        at, key = now(), self.signer()
        with closing(fleet_memory()) as state:
            return change_values(
                file,
                change,
                key=key,
                signed_by=self.by(key),
                now=at,
                lifetime=None if days is None else timedelta(days=days),
                state=state,
                **more,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySigning(Signing):
    """With a key in a file, a token or a key service."""

    key: Annotated[str, OPERATOR_KEY]

    def signer(self) -> "Signer":
        """The operator's key, opened."""
        from securetrain.identity import open_signer

        return open_signer(self.key, asker(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSigning(Signing):
    """With a key in a file."""

    key: Annotated[Path, OPERATOR_FILE]

    def signer(self) -> "PrivateKey":
        """The operator's key, read."""
        from securetrain.identity.keys import PrivateKey

        return PrivateKey.load(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextVersion(KeySigning):
    """The signer of the next edition, and its lifetime."""

    days: Annotated[int | None, DAYS]
    """Days that it lasts. Default: as before."""

    def make(self, file: Path, change: "Change") -> "Document":
        """Make it, and show what changed."""
        from securetrain.attest.fleet import compare
        from securetrain.report import values

        found: list[Difference] = []

        def noted(old: "ReferenceValues") -> "ReferenceValues":
            new = change(old)
            found[:] = compare(old, new)
            return new

        made = self.change(file, noted, self.days)
        return values.changed_page(found, made, file, now())
