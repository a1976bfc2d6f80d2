# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's identity on disk: ``node.pem`` (key, 0600), ``node.crt`` and ``ca.crt`` in one folder.

This is the only thing that a node needs to join, and the only secret in it is the key, which
belongs to this node and this job and lives at most a day.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from securetrain.core.errors import IdentityError, UsageError
from securetrain.core.files import make_private_dir, read_file, write_atomic
from securetrain.identity import (
    ClusterCA,
    How,
    JobCA,
    Role,
    SpiffeId,
    certificate_pem,
    check_leaf,
    load_certificate,
)
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.rendezvous.wire.tls import TlsIdentity, spki_of

KEY_FILE: Final = "node.pem"
CERTIFICATE_FILE: Final = "node.crt"
CA_FILE: Final = "ca.crt"
_LIMIT: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """This node's identity in one job."""

    key: PrivateKey
    certificate: x509.Certificate
    ca: x509.Certificate
    spiffe: SpiffeId

    @property
    def tls(self) -> TlsIdentity:
        """The part that TLS needs."""
        return TlsIdentity(key=self.key, certificate=self.certificate, ca=self.ca)


def write_identity(
    folder: Path,
    ca: JobCA,
    node: str,
    now: datetime,
    *,
    lifetime: timedelta = timedelta(hours=24),
    key: PrivateKey | None = None,
) -> NodeIdentity:
    """Issue a node's certificate and write its identity folder (0700).

    Args:
        folder: made when it does not exist; an older identity in it is replaced.
        ca: the job's CA.
        node: the node's name.
        now: timezone-aware.
        lifetime: at most 24 hours.
        key: an existing P-256 key; a new one by default.

    Raises:
        IdentityError: ST-IDEN-005 or ST-IDEN-006.
        UsageError: ST-USAG-002 when the folder cannot be written.
    """
    key = key or PrivateKey.generate(KeyKind.P256)
    certificate = ca.issue(Role.NODE, key.public, now, node=node, lifetime=lifetime)
    return store_identity(folder, key, certificate, ca.certificate, now)


def issue_identity(
    cluster: ClusterCA, ca: JobCA, node: str, folder: Path, now: datetime, *, lifetime: timedelta
) -> NodeIdentity:
    """Issue a node's certificate by command, in the CA's register, into a new identity folder.

    Raises:
        IdentityError: ST-IDEN-005 or ST-IDEN-006.
        UsageError: ST-USAG-002 or 005.
    """
    with new_folder(folder):
        key = PrivateKey.generate(KeyKind.P256)
        certificate = cluster.issue(
            ca, Role.NODE, key.public, now, node=node, lifetime=lifetime, how=How.COMMAND
        )
        return store_identity(folder, key, certificate, ca.certificate, now)


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Make a folder for an identity. When the block fails, it goes again, if it is empty.

    Raises:
        UsageError: ST-USAG-005 when there is one in it, ST-USAG-002.
    """
    taken = [folder / n for n in (KEY_FILE, CERTIFICATE_FILE, CA_FILE) if (folder / n).exists()]
    if taken:
        raise UsageError(
            "ST-USAG-005",
            "there is an identity in it already, which is never overwritten",
            str(taken[0]),
        )
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    make_private_dir(folder)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # there is something in it
            for path in made:
                path.rmdir()
        raise


def store_identity(
    folder: Path,
    key: PrivateKey,
    certificate: x509.Certificate,
    ca: x509.Certificate,
    now: datetime,
) -> NodeIdentity:
    """Write an identity folder (0700), and read it again. What cannot be, is not left in part.

    Raises:
        IdentityError: ST-IDEN-005 or ST-IDEN-006.
        UsageError: ST-USAG-002 when the folder cannot be written.
    """
    make_private_dir(folder)
    files = {CERTIFICATE_FILE: certificate_pem(certificate), CA_FILE: certificate_pem(ca)}
    key.save(folder / KEY_FILE)
    try:
        for name, data in files.items():
            write_atomic(folder / name, data)
        return load_identity(folder, now)
    except BaseException:
        for name in (KEY_FILE, *files):
            (folder / name).unlink(missing_ok=True)
        raise


def replace_certificate(folder: Path, certificate: x509.Certificate) -> None:
    """Put a renewed certificate beside the key that it is for.

    Raises:
        UsageError: ST-USAG-002 when the folder cannot be written.
    """
    write_atomic(folder / CERTIFICATE_FILE, certificate_pem(certificate))


def load_identity(folder: Path, now: datetime) -> NodeIdentity:
    """Read and check an identity folder.

    Raises:
        IdentityError: ST-IDEN-001, 005, 006 or 010, naming the file.
        UsageError: ST-USAG-002 when a file is missing.
    """
    key = PrivateKey.load(folder / KEY_FILE)
    where = folder / CERTIFICATE_FILE
    certificate = load_certificate(read_file(where, _LIMIT), str(where))
    ca = load_certificate(read_file(folder / CA_FILE, _LIMIT), str(folder / CA_FILE))
    try:
        spiffe = check_leaf(certificate, ca, Role.NODE, now)
    except IdentityError as error:
        raise IdentityError(error.code, error.what, str(where), error.fix) from error
    if spki_of(certificate) != key.public.spki:
        raise IdentityError(
            "ST-IDEN-005",
            "the certificate is for another key than the one beside it",
            str(where),
            "enroll the node again",
        )
    return NodeIdentity(key=key, certificate=certificate, ca=ca, spiffe=spiffe)
