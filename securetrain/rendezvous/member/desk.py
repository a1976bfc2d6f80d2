# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's named secrets: asked for in each epoch, opened in this process's memory.

Rules:

1. the key is drawn for this node's connection, and its evidence covers it (`wire.sealing`);
2. one question at a time, of one thread. An answer to another question, of another epoch, or one
   that does not open for this connection ends it (ST-ADMN-045): no coordinator says such things;
3. what was withheld is kept with its reason, for whoever asks for it.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securetrain.core.errors import AdmissionError
from securetrain.rendezvous.wire.protocol import AskSecrets, Secrets, WithheldSecret
from securetrain.rendezvous.wire.sealing import info_of, open_sealed, sealing_text

NONCE_SIZE: Final = 16
LOOK_SECONDS: Final = 0.5
"""Longest wait between two looks at what nobody announces: that this node is out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The answer of an epoch."""

    epoch: int
    secrets: dict[str, bytes] = field(repr=False)
    withheld: dict[str, WithheldSecret]


@dataclass(slots=True, kw_only=True)
class Desk:
    """One node's side."""

    job: str
    node: str
    key: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _asked: AskSecrets | None = None
    _answer: Opened | None = None

    @property
    def public(self) -> str:
        """The key, for Hello."""
        return sealing_text(self.key)

    def ask(
        self,
        epoch: int,
        timeout: float,
        post: Callable[[AskSecrets], None],
        is_out: Callable[[], bool],
    ) -> Opened | None:
        """Ask, and wait for the answer; None when none came in time, or this node is out.

        Args:
            epoch: The one that this node is in.
            timeout: Seconds.
            post: Has a message sent.
            is_out: Tells whether there will be no answer.
        """
        with self._changed:
            asked = self._asked = AskSecrets(epoch=epoch, nonce=secrets.token_bytes(NONCE_SIZE))
            self._answer = None
        post(asked)
        deadline = time.monotonic() + timeout
        with self._changed:
            while not is_out():
                answer: Opened | None = self._answer
                left = deadline - time.monotonic()
                if answer is not None or left <= 0:
                    return answer
                self._changed.wait(min(left, LOOK_SECONDS))
            return None

    def hear(self, said: Secrets, exporter: Callable[[bytes], bytes]) -> None:
        """Open an answer. Called by the connection's thread.

        Args:
            said: The answer.
            exporter: Of the connection that it came on.

        Raises:
            AdmissionError: ST-ADMN-045.
        """
        with self._changed:
            asked = self._asked
            if asked is None or (said.nonce, said.epoch) != (asked.nonce, asked.epoch):
                raise AdmissionError("ST-ADMN-045", "an answer that nobody asked for", "Secrets")
            bound = exporter(said.nonce)
            found = {
                one.name: open_sealed(
                    self.key,
                    one,
                    info_of(
                        job=self.job,
                        node=self.node,
                        epoch=said.epoch,
                        name=one.name,
                        edition=one.edition,
                        exporter=bound,
                    ),
                )
                for one in said.given
            }
            withheld = {one.name: one for one in said.withheld}
            self._asked = None
            self._answer = Opened(epoch=said.epoch, secrets=found, withheld=withheld)
            self._changed.notify_all()
