# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keep what a coordinator signs while it decides, so that nobody has to believe a ledger for it.

Rules:

1. a result is kept before the node hears that it is admitted, a membership before its members do:
   what cannot be kept is not decided (the coordinator refuses, as it does without a ledger);
2. the evidence that a result was judged on is kept beside it, renewals included;
3. a launcher that joins a coordinator elsewhere keeps the membership that it was sent.
"""

import base64
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from securetrain.chain.documents import Appraised, Credential, Exchange, Membership, Presented
from securetrain.chain.store import Shelf
from securetrain.core import canonical
from securetrain.evidence import AttestationResult
from securetrain.rendezvous.coordinator import Shown
from securetrain.rendezvous.wire import Membership as Epoch

MAX_DOCUMENTS: Final = 16
RECORDED: Final = tuple(one for one in Exchange.__struct_fields__ if one != "secret")


def no_endorsement(_ca: x509.Certificate) -> str:
    """Endorse nobody: an authority of the trust root does."""
    return ""


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Keeps one job's memberships, results and evidence. Safe to use from several threads."""

    store: Shelf
    endorse: Callable[[x509.Certificate], str] = no_endorsement
    """Gives the run's own word on a job CA (`coordinators.endorse`)."""
    _credentials: list[str] = field(default_factory=list)
    _appraised: dict[str, str] = field(default_factory=dict)
    """Of the results so far: that of the document that holds each, in order."""
    _epoch: tuple[str, int, str, frozenset[str]] | None = None
    """Job, number, envelope and members' names of the latest epoch."""
    _documents: dict[int, tuple[bytes, str]] = field(default_factory=dict)
    """What results were judged by, by the object's id: the same for a whole fleet, and large."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def credential(self, job: str, certificates: Sequence[x509.Certificate]) -> None:
        """Keep a coordinator's certificate with that of its job CA.

        Raises:
            IntegrityError: ST-CHAN-002.
        """
        made = Credential(
            job=job,
            certificates=tuple(_text(_der(one)) for one in certificates),
            endorsement=self.endorse(certificates[1]),
        )
        digest = self.store.keep(made)
        with self._lock:
            if digest not in self._credentials:
                self._credentials.append(digest)

    def result(self, token: str, result: AttestationResult, shown: Shown) -> None:
        """Keep a signed result and the evidence that it was judged on.

        Raises:
            IntegrityError: ST-CHAN-002.
        """
        keys = None if shown.keys is None else self.store.put(canonical.encode(shown.keys))
        bound = shown.binding
        made = Appraised(
            node=result.node,
            result=result.digest,
            token=self.store.put(token.encode()),
            documents=tuple(map(self._document, shown.documents)),
            presented=Presented(
                media_type=shown.evidence.media_type,
                body=self.store.put(shown.evidence.body),
                binding=_text(shown.evidence.binding),
                signature=_text(shown.evidence.signature),
                keys=keys,
                exchange=Exchange(
                    secret=_text(shown.secret),
                    **{name: _text(getattr(bound, name)) for name in RECORDED},
                ),
            ),
        )
        digest = self.store.keep(made)
        with self._lock:
            self._appraised[digest] = result.node

    def _document(self, data: bytes) -> str:
        """Keep a document of a fleet; it is written and hashed once, as long as it stands."""
        known = self._documents.get(id(data))
        if known is None or known[0] is not data:
            known = self._documents[id(data)] = (data, self.store.put(data))
            while len(self._documents) > MAX_DOCUMENTS:
                del self._documents[next(iter(self._documents))]
        return known[1]

    def membership(self, signed: str, membership: Epoch) -> None:
        """Keep a membership in its envelope.

        Raises:
            IntegrityError: ST-CHAN-002.
        """
        envelope = self.store.put(signed.encode())
        nodes = frozenset(member.node for member in membership.members)
        with self._lock:
            self._epoch = membership.job, membership.epoch, envelope, nodes

    def bound(self, epoch: int | None) -> str | None:
        """Keep the document of the latest epoch as it stands now; its digest.

        Args:
            epoch: The membership that is in force; None when there is none yet.

        Raises:
            IntegrityError: ST-CHAN-002.
        """
        with self._lock:
            if self._epoch is None or epoch != self._epoch[1]:
                return None
            job, number, envelope, nodes = self._epoch
            made = Membership(
                job=job,
                epoch=number,
                envelope=envelope,
                credentials=tuple(self._credentials),
                appraised=tuple(one for one, node in self._appraised.items() if node in nodes),
            )
        return self.store.keep(made)


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
