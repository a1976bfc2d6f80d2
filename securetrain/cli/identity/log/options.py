# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options of verbs about a transparency log."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from securetrain.cli.clock import now
from securetrain.cli.options import KEY, KEY_FORMS, TRUST, Key

if TYPE_CHECKING:
    from securetrain.identity.log import Log
    from securetrain.identity.trust import TrustRoot


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKey(Key):
    """The key of the log, or of a witness."""

    key: Annotated[str, KEY.told(f"The key: {KEY_FORMS}.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTrust:
    """The trust root, which names the log and its witnesses."""

    trust: Annotated[Path, TRUST]
    """The trust root: a file, or a folder that 'trust update' keeps."""

    def root(self) -> "TrustRoot":
        """The trust root."""
        from securetrain.identity import load_trust

        return load_trust(self.trust, now())

    def log(self, folder: Path, root: "TrustRoot | None" = None) -> "Log":
        """The log in a folder, under the policy of the trust root."""
        from securetrain.identity.log import Log, LogPolicy

        return Log(folder, LogPolicy.from_trust_root(root or self.root()))
