# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Renewing a node's certificate while it is in, so that a job may outlast a day.

Rules:

1. a certificate is renewed together with a lease, after the node's evidence was accepted again, and
   when half of its life is over. It is for the same name and the same key, for the next connection;
   this one goes on under the certificate that it began with;
2. one that has ended is not renewed, and neither is the lease: nobody vouches for the node then;
3. the ledger has it, and the CA's register where there is one, before the node gets it;
4. the node keeps it only if the job CA issued it for this node and key, and it ends no sooner.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from cryptography import x509

from securetrain.core.errors import AdmissionError, IdentityError
from securetrain.identity import SpiffeId, public_key_of, serial_text
from securetrain.identity.keys import PublicKey
from securetrain.ledger import events
from securetrain.rendezvous.coordinator.journal import Journal

Issue: TypeAlias = Callable[[str, PublicKey], x509.Certificate]
"""Issues a node's certificate: its name, its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """The coordinator's side."""

    issue: Issue
    clock: Callable[[], datetime]
    journal: Journal

    def renew(self, peer: SpiffeId, current: x509.Certificate) -> x509.Certificate | None:
        """The certificate that follows `current`; None while it is too early.

        Raises:
            AdmissionError: ST-ADMN-002 when `current` has ended, ST-ADMN-013 when the node was
                revoked, ST-ADMN-012 when nothing can be issued.
        """
        now = self.clock()
        begins, ends = current.not_valid_before_utc, current.not_valid_after_utc
        if now > ends:
            raise AdmissionError(
                "ST-ADMN-002",
                f"its certificate ended at {ends} and was not renewed in time",
                str(peer),
            )
        if now < begins + (ends - begins) / 2:
            return None
        try:
            made = self.issue(peer.node, public_key_of(current))
        except IdentityError as error:
            code = "ST-ADMN-013" if error.code == "ST-IDEN-011" else "ST-ADMN-012"
            raise AdmissionError(code, error.what, str(peer), error.fix) from error
        self.journal.write(
            events.CertificateRenewed(
                subject=str(peer),
                serial=serial_text(made),
                ends=made.not_valid_after_utc.isoformat(),
            )
        )
        return made
