# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The cluster CA: it outlives jobs, and certifies one CA for each of them.

::

    <folder>/
      ca.pem         the cluster CA's key, 0600, encrypted if asked for; may be kept elsewhere
      ca.crt         its certificate
      revoked.json   the revocation list, signed with ca.pem
      register.sqlite what was issued, revoked and invited
      jobs/JOB/      ca.pem and ca.crt of a job's CA

Rules:

1. the cluster CA signs job CAs and revocation lists, and nothing else. No leaf is ever under it
   directly, so that its key can be encrypted, or stay on another machine, while jobs run;
2. a job CA may sign leaves only (path length 0) and only in this trust domain (a critical name
   constraint; X.509 constrains a URI's host and no path, so the job is not in it);
3. the nodes of a job pin the job's CA, not the cluster's: `ca.check_leaf` stays what it is, and a
   stolen job CA makes no certificate that another job accepts;
4. every leaf is in the register before it is given out; nothing is issued to a revoked node.

See docs/adr/0007-a-ca-per-job-under-the-cluster-ca.md.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from securetrain.core.errors import IdentityError, UsageError
from securetrain.core.files import locked, make_private_dir, read_file, write_atomic
from securetrain.identity.job_ca import (
    JobCA,
    ca_builder,
    ca_name,
    certificate_pem,
    load_certificate,
    public_key_of,
)
from securetrain.identity.keys import KeyKind, PrivateKey, PublicKey
from securetrain.identity.register import How, Kind, Register, Revoked
from securetrain.identity.revocation import (
    LIST_LIMIT,
    RevocationList,
    revoked,
    sign_list,
    verify_list,
)
from securetrain.identity.spiffe import SEGMENT, Role, SpiffeId

CLUSTER_LIFETIME: Final = timedelta(days=5 * 365)
JOB_LIFETIME: Final = timedelta(days=90)
KEY_FILE: Final = "ca.pem"
CERTIFICATE_FILE: Final = "ca.crt"
REVOCATIONS_FILE: Final = "revoked.json"
REGISTER_FILE: Final = "register.sqlite"
_LIMIT: Final = 64 << 10

Unlock = Callable[[], PrivateKey]
"""Gives the cluster CA's key, asking for its passphrase where it has one."""


@dataclass(frozen=True, slots=True)
class ClusterCA:
    """An open folder."""

    folder: Path
    certificate: x509.Certificate
    trust_domain: str
    register: Register

    @classmethod
    def create(
        cls, folder: Path, trust_domain: str, now: datetime, passphrase: bytes | None = None
    ) -> "ClusterCA":
        """Make a cluster CA with a new key.

        Args:
            folder: must not hold a CA yet.
            trust_domain: of every certificate below.
            now: timezone-aware.
            passphrase: encrypts the key's file.

        Raises:
            UsageError: ST-USAG-005 when there is one already, ST-USAG-002 or 006.
            IdentityError: ST-IDEN-006 for a bad trust domain, ST-IDEN-013.
        """
        SpiffeId(trust_domain, "job", Role.COORDINATOR)  # refuses bad names
        make_private_dir(folder)
        if any((folder / name).exists() for name in (KEY_FILE, CERTIFICATE_FILE)):
            raise UsageError(
                "ST-USAG-005",
                "there is a CA in it already, which is never overwritten",
                str(folder),
            )
        key = PrivateKey.generate(KeyKind.P256)
        name = ca_name(f"securetrain cluster CA {trust_domain}")
        certificate = (
            ca_builder(
                name, key.public, now, path_length=1, ends=now + CLUSTER_LIFETIME, issuer=name
            )
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.UniformResourceIdentifier(f"spiffe://{trust_domain}")]
                ),
                critical=False,
            )
            .sign(key.native, hashes.SHA256())
        )
        key.save(folder / KEY_FILE, passphrase)
        write_atomic(folder / REVOCATIONS_FILE, sign_list(trust_domain, [], key, now))
        write_atomic(folder / CERTIFICATE_FILE, certificate_pem(certificate))  # last: it is whole
        return cls.load(folder, now)

    @classmethod
    def load(cls, folder: Path, now: datetime) -> "ClusterCA":
        """Open a folder that `create` or `export` made.

        Raises:
            IdentityError: ST-IDEN-005 when the certificate is not valid, ST-IDEN-013 when the
                folder is not one of a cluster CA.
        """
        path = folder / CERTIFICATE_FILE
        if not path.is_file():
            raise IdentityError(
                "ST-IDEN-013",
                f"there is no {CERTIFICATE_FILE} in it",
                str(folder),
                "make it with 'securetrain ca init'",
            )
        certificate = load_certificate(read_file(path, _LIMIT), str(path))
        _check_dates(certificate, now, str(path))
        return cls(
            folder, certificate, trust_domain_of(certificate), Register(folder / REGISTER_FILE)
        )

    def close(self) -> None:
        """Let go of the register."""
        self.register.close()

    @property
    def key_file(self) -> Path:
        """The cluster CA's key."""
        return self.folder / KEY_FILE

    @property
    def revocations_file(self) -> Path:
        """The revocation list."""
        return self.folder / REVOCATIONS_FILE

    @property
    def public(self) -> PublicKey:
        """The cluster CA's public key."""
        return public_key_of(self.certificate)

    def key(self, passphrase: bytes | None = None) -> PrivateKey:
        """Read the cluster CA's key.

        Raises:
            IdentityError: ST-IDEN-001 without the right passphrase, ST-IDEN-010, ST-IDEN-013 when
                it is not here or another CA's.
        """
        if not self.key_file.exists():
            raise IdentityError(
                "ST-IDEN-013",
                "the cluster CA's key is not in this folder",
                str(self.key_file),
                "do this where 'securetrain ca init' was run",
            )
        key = PrivateKey.load(self.key_file, passphrase)
        if key.public.spki != self.public.spki:
            raise IdentityError("ST-IDEN-013", "it is another CA's key", str(self.key_file))
        return key

    # Jobs.

    def job(self, job: str, now: datetime, unlock: Unlock) -> JobCA:
        """The CA of a job: the one that is there, or a new one.

        Raises:
            IdentityError: ST-IDEN-005 when it is not one of ours or has ended, ST-IDEN-006 for a
                bad name, ST-IDEN-011 when it was revoked, and what `unlock` raises when a new one
                must be signed.
        """
        SpiffeId(self.trust_domain, job, Role.COORDINATOR)  # refuses bad names
        if job.startswith("."):  # it names a folder
            raise IdentityError("ST-IDEN-006", f"the job's name begins with a dot: {job}")
        self.refuse_revoked(job=job)
        with self._locked():
            if not self._job_folder(job).exists():
                self._certify(job, now, unlock())
        return self._open_job(job, now)

    def _job_folder(self, job: str) -> Path:
        return self.folder / "jobs" / job

    def _certify(self, job: str, now: datetime, root: PrivateKey) -> None:
        key = PrivateKey.generate(KeyKind.P256)
        ends = min(now + JOB_LIFETIME, self.certificate.not_valid_after_utc)
        certificate = (
            ca_builder(
                ca_name(f"securetrain job CA {job}"),
                key.public,
                now,
                path_length=0,
                ends=ends,
                issuer=self.certificate.subject,
            )
            .add_extension(_constraint(self.trust_domain), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(root.native.public_key()),
                critical=False,
            )
            .sign(root.native, hashes.SHA256())
        )
        folder = self._job_folder(job)
        make_private_dir(folder.parent)
        partial = folder.with_name(f".{folder.name}.new")
        make_private_dir(partial)
        key.save(partial / KEY_FILE)
        write_atomic(partial / CERTIFICATE_FILE, certificate_pem(certificate))
        partial.rename(folder)

    def _open_job(self, job: str, now: datetime) -> JobCA:
        folder = self._job_folder(job)
        path = folder / CERTIFICATE_FILE
        certificate = load_certificate(read_file(path, _LIMIT), str(path))
        check_job_ca(certificate, self.certificate, now, str(path))
        key = PrivateKey.load(folder / KEY_FILE)
        if key.public.spki != public_key_of(certificate).spki:
            raise IdentityError(
                "ST-IDEN-005", "the certificate is for another key", str(path), "restore the folder"
            )
        return JobCA(key, certificate, self.trust_domain, job)

    def issue(
        self,
        ca: JobCA,
        role: Role,
        key: PublicKey,
        now: datetime,
        *,
        node: str,
        lifetime: timedelta,
        how: How,
    ) -> x509.Certificate:
        """Issue a leaf, with the register knowing of it.

        Raises:
            IdentityError: ST-IDEN-005 or 006 as `JobCA.issue`, ST-IDEN-011 for a revoked node or
                job.
        """
        self.refuse_revoked(node, ca.job)
        certificate = ca.issue(role, key, now, node=node, lifetime=lifetime)
        self.register.record(certificate, how)
        return certificate

    # Revocation.

    def refuse_revoked(self, node: str = "", job: str = "") -> None:
        """Refuse a node or job that was revoked, by the register and by the list.

        Raises:
            IdentityError: ST-IDEN-011, ST-IDEN-012.
        """
        for entry in self.register.revoked():
            if (entry.kind, entry.name) in {(Kind.NODE, node), (Kind.JOB, job)}:
                raise revoked(entry.kind, entry.name, entry.reason, entry.since)
        listed = self.revocations().find(node, "", job)
        if listed is not None:
            raise revoked(listed.kind, listed.name, listed.reason, listed.since)

    def revoke(
        self, kind: Kind, name: str, reason: str, now: datetime, key: PrivateKey
    ) -> RevocationList:
        """Revoke a node, one certificate or a job, and sign the new list.

        Raises:
            IdentityError: ST-IDEN-006 for a bad name, ST-IDEN-013.
        """
        if not SEGMENT.fullmatch(name) or (kind is Kind.SERIAL and not _is_serial(name)):
            raise IdentityError("ST-IDEN-006", f"not the name of a {kind}: {name[:80]!r}")
        with self._locked():
            if self.revocations().number > len(self.register.revoked()):
                raise IdentityError(
                    "ST-IDEN-013",
                    "the register knows fewer revocations than the signed list",
                    str(self.folder / REGISTER_FILE),
                    "restore the register; an empty one would revoke everybody back",
                )
            self.register.revoke(Revoked(kind=kind, name=name, reason=reason[:500], since=now))
            envelope = sign_list(self.trust_domain, self.register.revoked(), key, now)
            write_atomic(self.revocations_file, envelope)
        return self.revocations()

    def revocations(self, least: int = 0) -> RevocationList:
        """The signed list, not older than the register beside it and than `least`.

        Raises:
            IdentityError: ST-IDEN-012.
        """
        least = max(least, len(self.register.revoked()))
        where = str(self.revocations_file)
        try:
            data = read_file(self.revocations_file, 2 * LIST_LIMIT)
        except UsageError as error:
            raise IdentityError("ST-IDEN-012", error.what, where, error.fix) from error
        return verify_list(data, self.public, self.trust_domain, least=least, where=where)

    # A folder for a coordinator on another machine.

    def export(self, job: str, folder: Path, now: datetime, unlock: Unlock) -> None:
        """Write what a job's coordinator needs: the job's CA and no other, no key of the cluster.

        Raises:
            UsageError: ST-USAG-005 when there is a CA in `folder` already.
        """
        ca = self.job(job, now, unlock)
        if (folder / CERTIFICATE_FILE).exists():
            raise UsageError("ST-USAG-005", "there is a CA in it already", str(folder))
        target = folder / "jobs" / self._job_folder(job).name
        for path in (folder, target.parent, target):
            make_private_dir(path)
        ca.key.save(target / KEY_FILE)
        write_atomic(target / CERTIFICATE_FILE, certificate_pem(ca.certificate))
        write_atomic(folder / REVOCATIONS_FILE, read_file(self.revocations_file, 2 * LIST_LIMIT))
        write_atomic(folder / CERTIFICATE_FILE, certificate_pem(self.certificate))

    def _locked(self) -> AbstractContextManager[None]:
        """One writer of the folder at a time."""
        return locked(self.folder / ".lock")


def check_job_ca(
    certificate: x509.Certificate, cluster: x509.Certificate, now: datetime, where: str = ""
) -> None:
    """Check that the cluster CA certified a job CA, with its limits.

    Raises:
        IdentityError: ST-IDEN-005.
    """
    try:
        certificate.verify_directly_issued_by(cluster)
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
        names = certificate.extensions.get_extension_for_class(x509.NameConstraints)
    except Exception as error:  # cryptography raises many types here; any of them is a refusal
        raise IdentityError(
            "ST-IDEN-005",
            f"not issued by the cluster CA, or incomplete: {type(error).__name__} {error}",
            where,
            "use the folder of the CA that made it",
        ) from error
    limited = names.critical and names.value == _constraint(trust_domain_of(cluster))
    if not (basic.ca and basic.path_length == 0 and usage.key_cert_sign and limited):
        raise IdentityError("ST-IDEN-005", "not limited as a job CA is", where, "make a new one")
    _check_dates(certificate, now, where)


def _check_dates(certificate: x509.Certificate, now: datetime, where: str) -> None:
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise IdentityError(
            "ST-IDEN-005",
            f"the CA is valid from {certificate.not_valid_before_utc} to"
            f" {certificate.not_valid_after_utc}, and it is {now}",
            where,
            "make a new CA (for a job: choose a new job id), or correct the clock",
        )


def _constraint(trust_domain: str) -> x509.NameConstraints:
    return x509.NameConstraints([x509.UniformResourceIdentifier(trust_domain)], None)


def trust_domain_of(cluster: x509.Certificate) -> str:
    """The trust domain of a cluster CA: its one URI name.

    Raises:
        IdentityError: ST-IDEN-005 when it names none, ST-IDEN-006 for a bad name.
    """
    try:
        san = cluster.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = san.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError) as error:
        raise IdentityError(
            "ST-IDEN-005",
            "not a cluster CA: it names no trust domain",
            CERTIFICATE_FILE,
            "use the folder of a cluster CA ('securetrain ca init' makes one)",
        ) from error
    domain = uri.removeprefix("spiffe://")
    SpiffeId(domain, "job", Role.COORDINATOR)  # refuses bad names
    return domain


def _is_serial(text: str) -> bool:
    return len(text) <= 40 and all(ch in "0123456789abcdef" for ch in text)
