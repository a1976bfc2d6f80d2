# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whoever watches a coordinator from outside: figures for Prometheus, notices to a webhook."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from securetrain.core.errors import UsageError
from securetrain.ledger import Event
from securetrain.rendezvous.coordinator.figures import Figures, FiguresServer, address_of
from securetrain.rendezvous.coordinator.webhook import Target, Webhook, read_webhook_secret


class Watchers:
    """Those that a command line names; none of them can hold up the coordinator."""

    def __init__(
        self,
        job: str,
        clock: Callable[[], datetime],
        *,
        metrics: str = "",
        webhook: str = "",
        secret: Path | None = None,
    ) -> None:
        """Check what is named, then start.

        Args:
            job: of the coordinator.
            clock: the time, timezone-aware.
            metrics: PORT, or HOST:PORT; empty for none.
            webhook: its URL; empty for none.
            secret: the file of the webhook's secret.

        Raises:
            UsageError: ST-USAG-001 to 003, naming the option.
        """
        if bool(webhook) is not bool(secret):
            raise UsageError(
                "ST-USAG-001", "one is named without the other", "--webhook, --webhook-secret"
            )
        target = Target.of(webhook) if webhook else None
        shared = read_webhook_secret(secret) if secret else b""
        self._figures = Figures()
        self._server = FiguresServer(self._figures, *address_of(metrics)) if metrics else None
        self.webhook = Webhook(target, shared, job, clock) if target else None
        if (hook := self.webhook) is not None:
            self._figures.follow("notices_sent", lambda: hook.sent)
            self._figures.follow("notices_lost", lambda: hook.lost)

    @property
    def metrics(self) -> str:
        """The address of the figures; empty without any."""
        if self._server is None:
            return ""
        host, port = self._server.address
        return f"{host}:{port}"

    def take(self, event: Event) -> None:
        """Hear an event of the ledger."""
        self._figures.take(event)
        if self.webhook is not None:
            self.webhook.take(event)

    def stop(self) -> None:
        """Send what is left, for some seconds, and stop."""
        if self.webhook is not None:
            self.webhook.stop()
        if self._server is not None:
            self._server.stop()
