# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's own certificate: issued by the job CA, renewed at half its life."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from OpenSSL import SSL

from securetrain.identity import JobCA, Role
from securetrain.identity.keys import PrivateKey
from securetrain.rendezvous.wire.tls import TlsIdentity


@dataclass(slots=True, kw_only=True)
class Reception:
    """Makes the TLS context with which a listener of the coordinator receives its peers."""

    ca: JobCA
    key: PrivateKey
    lifetime: timedelta
    clock: Callable[[], datetime]
    make: Callable[[TlsIdentity], SSL.Context]
    keep: Callable[[x509.Certificate], None] = field(default=lambda _: None)
    """Hears of every certificate before a peer sees it."""
    _current: tuple[SSL.Context, datetime] | None = None
    """The context, and when there must be another."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def context(self) -> SSL.Context:
        """The context for the next connection."""
        with self._lock:
            now = self.clock()
            if self._current is None or now >= self._current[1]:
                certificate = self.ca.issue(
                    Role.COORDINATOR, self.key.public, now, lifetime=self.lifetime
                )
                self.keep(certificate)
                identity = TlsIdentity(
                    key=self.key, certificate=certificate, ca=self.ca.certificate
                )
                self._current = self.make(identity), now + self.lifetime / 2
            return self._current[0]
