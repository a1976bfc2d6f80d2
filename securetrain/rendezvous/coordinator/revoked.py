# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's view of the cluster CA's revocation list.

Rules:

1. the list is read again whenever its file has changed, and verified every time
   (`identity.revocation`); its number never goes back while the coordinator runs;
2. without a good list nobody is let in and no lease is renewed (ST-ADMN-012): who breaks the list
   gains nothing. Nodes that are in stay until their lease ends.
"""

import threading
from dataclasses import dataclass, field

from cryptography import x509

from securetrain.core.errors import AdmissionError, IdentityError
from securetrain.identity import ClusterCA, RevocationList, SpiffeId


@dataclass(slots=True)
class RevocationWatch:
    """Call `check` for a peer, and `refresh` now and then. Safe to use from several threads."""

    ca: ClusterCA
    _list: RevocationList | None = None
    _error: IdentityError | None = None
    _seen: tuple[int, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> bool:
        """Read the list if its file has changed; whether it had."""
        with self._lock:
            stamp = self._stamp()
            if stamp == self._seen:
                return False
            self._seen = stamp
            try:
                self._list = self.ca.revocations(self._list.number if self._list else 0)
                self._error = None
            except IdentityError as error:
                self._error = error
            return True

    @property
    def number(self) -> int:
        """Of the last good list."""
        return self._list.number if self._list is not None else -1

    @property
    def problem(self) -> IdentityError | None:
        """The reason why there is no good list, if so."""
        return self._error

    def check(self, peer: SpiffeId, certificate: x509.Certificate) -> None:
        """Refuse a peer that was revoked.

        Raises:
            AdmissionError: ST-ADMN-013, or ST-ADMN-012 when it cannot be known.
        """
        self.refresh()
        found, error = self._list, self._error
        if found is None or error is not None:
            what = f"{error.code}: {error.what}" if error is not None else "it was never read"
            raise AdmissionError(
                "ST-ADMN-012",
                f"the revocation list cannot be used: {what}",
                str(self.ca.revocations_file),
                "copy the CA's revoked.json again",
            )
        try:
            found.check(peer.node, certificate, peer.job)
        except IdentityError as refusal:
            raise AdmissionError("ST-ADMN-013", refusal.what, str(peer), refusal.fix) from refusal

    def _stamp(self) -> tuple[int, ...]:
        try:
            info = self.ca.revocations_file.lstat()
        except OSError:
            return (0,)
        return (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)
