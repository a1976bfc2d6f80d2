# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The secrets of one launch's workers, between the coordinator and the signing socket.

Rules:

1. they are asked for at the beginning of each epoch, before its workers start, where the policy
   names any; those of the epoch before are forgotten. A secret that was changed comes with the next
   epoch;
2. they are in the launcher's memory only, and go to workers of this launch, by the socket that
   knows each by its process. Once this node is out of the job, or its lease has ended, nobody is
   given one any more;
3. one that was withheld ends nothing by itself: the worker that asks for it hears why.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn, Protocol

from securetrain.core import undumped
from securetrain.core.errors import RuntimeRefusal, UsageError
from securetrain.launch.node.recording import Recorder
from securetrain.launch.options import RunOptions
from securetrain.ledger import Ledger, events
from securetrain.policy.schema import Policy, Secret
from securetrain.rendezvous.coordinator import Vault
from securetrain.rendezvous.member import Opened

ANSWER_SECONDS: Final = 30.0
_CODE: Final = "ST-RUNT-036"


class Asks(Protocol):
    """This node's connection to the job: a `rendezvous.member.Member`."""

    @property
    def connected(self) -> bool:
        """Tell whether the node is in."""

    def ask_secrets(self, epoch: int, timeout: float) -> Opened | None:
        """Ask for an epoch's secrets."""


@dataclass(slots=True, kw_only=True)
class NodeSecrets:
    """The secrets that this node has in the current epoch."""

    rules: Mapping[str, Secret]
    """The policy's."""
    say: Callable[[str], None]
    _member: Asks | None = None
    _opened: Opened | None = field(default=None, repr=False)

    def begin(self, member: Asks | None, epoch: int) -> None:
        """Ask for the secrets of an epoch (rule 1)."""
        self._member, self._opened = member, None
        if not self.rules or member is None:
            return
        self._opened = opened = member.ask_secrets(epoch, ANSWER_SECONDS)
        if opened is None:
            self.say(f"secrets      the coordinator gave no answer for epoch {epoch}")
            return
        for name, why in sorted(opened.withheld.items()):
            self.say(f"secrets      {name} was withheld: {why.code}: {why.what}")

    def give(self, name: str) -> bytes:
        """Give a worker a secret.

        Raises:
            RuntimeRefusal: ST-RUNT-036.
        """
        opened, member = self._opened, self._member
        if opened is None or member is None:
            _refuse("this node has been given no secrets")
        if not member.connected:
            _refuse("this node is out of the job")
        if (why := opened.withheld.get(name)) is not None:
            _refuse(f"the coordinator withheld {name}: {why.code}: {why.what}")
        if name not in opened.secrets:
            _refuse(f"the coordinator's policy names no secret {name!r}")
        return opened.secrets[name]


def open_vault(policy: Policy, options: RunOptions, ledger: Ledger) -> Vault:
    """The secrets that the coordinator of this launch gives; none where it has no coordinator.

    Raises:
        UsageError: as `Vault.open`; ST-USAG-001 for secrets of another launch's coordinator.
    """
    if policy.node.secrets:
        undumped()
    if not options.joins:
        with Recorder(ledger, events.SecretsRefused):
            return Vault.open(policy, options.secrets, os.environ)
    if options.secrets:
        raise UsageError(
            "ST-USAG-001",
            "this launch joins a coordinator, which has the secrets",
            "--secret",
            "give it to securetrain coordinator",
        )
    return Vault()


def no_secrets(name: str) -> NoReturn:
    """Refuse every secret: of a launch that has none.

    Raises:
        RuntimeRefusal: ST-RUNT-036.
    """
    _refuse(f"there is no secret {name!r}")


def _refuse(what: str) -> NoReturn:
    raise RuntimeRefusal(_CODE, what, "node.secrets")
