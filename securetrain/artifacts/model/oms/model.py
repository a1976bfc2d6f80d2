# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sign and verify a model directory in the format of OpenSSF Model Signing.

Rules of verifying, in order; the first three end the check when they fail:

1. the bundle is a regular file of the right shape, of the kind that the verifier has a root for:
   a key never verifies a bundle of certificates, nor the other way round;
2. its signature verifies, over DSSE's pre-authentication encoding and no older one;
3. its statement is sound (`manifest`);
4. everything below the model is a regular file that the statement names, but the bundle itself;
   links, special files, empty directories and files in any ignored place are problems;
5. every file is read once and has its digest.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.artifacts.model.oms import bundle as bundle_file
from securetrain.artifacts.model.oms import keys, manifest
from securetrain.artifacts.model.oms.manifest import Predicate, Resource
from securetrain.artifacts.tree.problems import Problem, most_telling
from securetrain.core import CODES, ExitCode
from securetrain.core.errors import IdentityError, IntegrityError, UsageError
from securetrain.core.files import FileEntry, open_regular, read_file, survey, write_atomic
from securetrain.identity import KeylessPolicy, verify_dsse
from securetrain.identity.dsse import IN_TOTO, pae
from securetrain.identity.keys import read_private

CHUNK: Final = 1 << 20
KEY_LIMIT: Final = 1 << 20
MAX_PROBLEMS: Final = 200
DEFAULT_NAME: Final = "model.sig"

Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySigner:
    """Signs with a bare key."""

    key: keys.PrivateKey

    def wrap(self, payload: bytes) -> bytes:
        """The bundle."""
        signature = keys.sign(self.key, pae(IN_TOTO, payload))
        return bundle_file.write(payload, signature, hint=keys.hint_of(self.key.public_key()))


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSigner:
    """Signs with a key whose certificate travels along."""

    key: keys.PrivateKey
    chain: tuple[x509.Certificate, ...]
    """The signer's first, then what leads to the root; the root itself may be left out."""

    def wrap(self, payload: bytes) -> bytes:
        """The bundle.

        Raises:
            IntegrityError: ST-OMSB-120 when the certificate is not of this key.
        """
        if not self.chain or self.chain[0].public_key() != self.key.public_key():
            raise IntegrityError(
                "ST-OMSB-120", "the certificate is not of this key", "", "give the key's own"
            )
        signature = keys.sign(self.key, pae(IN_TOTO, payload))
        der = tuple(one.public_bytes(Encoding.DER) for one in self.chain)
        return bundle_file.write(payload, signature, chain=der)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKey:
    """A verifier's root: one key."""

    key: keys.PublicKey

    def unwrap(self, bundle: bundle_file.Bundle, now: datetime, where: str) -> str:
        """Rules 1 and 2; who signed, in words.

        Raises:
            IntegrityError: ST-OMSB-110, ST-OMSB-120.
        """
        del now
        if bundle.hint is None:
            raise _other_kind("a key", where)
        keys.check_hint(self.key, bundle.hint, where)
        keys.verify(self.key, bundle.signature, pae(IN_TOTO, bundle.payload), where)
        return f"key {keys.hint_of(self.key)[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedRoots:
    """A verifier's root: certificates of authorities."""

    roots: tuple[x509.Certificate, ...]

    def unwrap(self, bundle: bundle_file.Bundle, now: datetime, where: str) -> str:
        """Rules 1 and 2; who signed, in words.

        Raises:
            IntegrityError: ST-OMSB-101, ST-OMSB-110, ST-OMSB-120, ST-OMSB-150.
        """
        if not bundle.chain:
            raise _other_kind("certificates", where)
        key, leaf = keys.check_chain(bundle.chain, self.roots, now, where)
        keys.verify(key, bundle.signature, pae(IN_TOTO, bundle.payload), where)
        return f"certificate {leaf.subject.rfc4514_string() or '(no subject)'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedIdentity:
    """A verifier's root: who signed, as a Sigstore instance vouches for it (keyless)."""

    policy: KeylessPolicy
    trusted_root: Path | None = None
    """The instance's trusted root; None for the public one."""

    def unwrap(self, bundle: bundle_file.Bundle, now: datetime, where: str) -> str:
        """Rules 1 and 2; who signed, in words. Nothing is fetched.

        Raises:
            IntegrityError: ST-OMSB-110, ST-OMSB-120.
            UsageError: ST-USAG-004 without the extra ``[sigstore]``.
        """
        del now  # a log says when it was signed
        if not bundle.is_keyless:
            raise _other_kind("an identity", where)
        try:
            found = verify_dsse(bundle.raw, IN_TOTO, self.policy, self.trusted_root, where)
        except IdentityError as error:
            code = "ST-OMSB-120" if error.code == "ST-IDEN-022" else "ST-OMSB-110"
            raise IntegrityError(code, f"{error.code}: {error.what}", where, error.fix) from error
        if found.payload.data != bundle.payload:
            raise IntegrityError("ST-OMSB-110", "another payload was verified", where)
        return f"{found.identity} (vouched for by {found.issuer})"


ModelSigner: TypeAlias = KeySigner | CertificateSigner
ModelTrust: TypeAlias = TrustedKey | TrustedRoots | TrustedIdentity


def read_signer(key_file: Path, certificate: Path | None, chain: Sequence[Path]) -> ModelSigner:
    """A signer from files; with the key's certificate, it and `chain` travel along."""
    key = keys.load_private(read_private(key_file), None, str(key_file))
    if certificate is None:
        return KeySigner(key=key)
    files = (certificate, *chain)
    found = [one for file in files for one in _certificates(file)]
    return CertificateSigner(key=key, chain=tuple(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoots:
    """Files and names that a verifier's root is read from; exactly one kind."""

    public_key: Path | None = None
    ca: Path | None = None
    identity: str | None = None
    issuer: str | None = None
    trusted_root: Path | None = None

    def read(self, where: str) -> ModelTrust:
        """The root.

        Raises:
            UsageError: ST-USAG-001 when it is not exactly one kind.
        """
        keyless = self.identity or self.issuer or self.trusted_root
        if sum(map(bool, (self.public_key, self.ca, keyless))) != 1:
            raise one_root(where)
        if self.public_key is not None:
            pem = read_file(self.public_key, KEY_LIMIT)
            return TrustedKey(key=keys.load_public(pem, str(self.public_key)))
        if self.ca is not None:
            return TrustedRoots(roots=tuple(_certificates(self.ca)))
        policy = KeylessPolicy(identity=self.identity or "", issuer=self.issuer or "")
        return TrustedIdentity(policy=policy, trusted_root=self.trusted_root)


def one_root(where: str) -> UsageError:
    """The refusal of a question that does not say whose signature counts, or on what."""
    return UsageError(
        "ST-USAG-001",
        "a Model Signing bundle is verified with one root",
        where,
        "give --bundle FILE, and one of --public-key, --ca, --identity with --issuer",
    )


@dataclass(slots=True, kw_only=True)
class ModelResult:
    """The result of verifying a model."""

    path: Path
    bundle: Path
    signer: str = ""
    """Who signed; empty when no signature verified."""
    resources: Sequence[Resource] = ()
    problems: list[Problem] = field(default_factory=list)
    num_files: int = 0
    num_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Tell whether everything held and something was checked."""
        return not self.problems and self.num_files > 0

    @property
    def exit_code(self) -> ExitCode:
        """0 when ok, else the exit code of the most telling problem."""
        if self.problems:
            return CODES[most_telling(self.problems).code].exit
        return ExitCode.OK if self.ok else ExitCode.FAILURE

    def add(self, code: str, what: str, file: str = "") -> None:
        """Note a problem."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(code=code, what=what, file=file))


def sign_model(
    path: Path, bundle: Path, signer: ModelSigner, *, progress: Progress | None = None
) -> Predicate:
    """Hash every file of a model, sign the list and write the bundle, which must not exist.

    Raises:
        UsageError: ST-USAG-002 when `path` holds links or special files, or is unreadable;
            ST-USAG-005 when the bundle exists.
        IntegrityError: ST-OMSB-101 for a model without files.
    """
    if not path.is_dir():
        raise UsageError("ST-USAG-002", "there is no such directory", str(path))
    bundle_name = _name_below(path, bundle)
    files, unsafe = survey(path)
    if unsafe:
        raise UsageError(
            "ST-USAG-002",
            f"{unsafe[0].reason}, which cannot be signed",
            str(path / unsafe[0].name),
            "remove or rename it",
        )
    total, done, resources = sum(file.size for file in files), 0, []
    for file in files:
        if file.name == bundle_name:
            raise UsageError("ST-USAG-005", "already exists", str(bundle))
        resources.append(Resource(name=file.name, digest=_digest(path, file)))
        done += file.size
        if progress is not None:
            progress(done, total)
    payload = manifest.write(path.resolve().name, resources, [bundle_name] if bundle_name else [])
    write_atomic(bundle, signer.wrap(payload), replace=False)
    return manifest.read(payload, str(bundle))


def verify_model(
    path: Path,
    bundle: Path,
    trust: ModelTrust,
    now: datetime,
    *,
    progress: Progress | None = None,
) -> ModelResult:
    """Verify a model directory against its bundle.

    Raises:
        UsageError: ST-USAG-002 when there is no such directory.
    """
    if not path.is_dir():
        raise UsageError("ST-USAG-002", "there is no such directory", str(path))
    result = ModelResult(path=path, bundle=bundle)
    try:
        predicate = _open(result, trust, now)
        files = _listing(result, predicate)
    except IntegrityError as error:
        result.problems.append(Problem(code=error.code, what=error.what, file=bundle.name))
        return result
    except OSError as error:
        result.add("ST-OMSB-200", str(error.strerror or error))
        return result
    total = sum(file.size for file in files.values())
    for resource in predicate.resources:
        if file := files.get(resource.name):
            _compare(result, resource, file)
            if progress is not None:
                progress(result.num_bytes, total)
    return result


def _certificates(file: Path) -> list[x509.Certificate]:
    return list(keys.load_certificates(read_file(file, KEY_LIMIT), str(file)))


def _open(result: ModelResult, trust: ModelTrust, now: datetime) -> Predicate:
    """Rules 1 to 3."""
    where = str(result.bundle)
    if not result.bundle.exists() and not result.bundle.is_symlink():
        raise IntegrityError("ST-OMSB-100", "there is no bundle: nothing says who made this", where)
    try:
        data = read_file(result.bundle, bundle_file.LIMIT)
    except UsageError as error:
        raise IntegrityError("ST-OMSB-142", f"the bundle: {error.what}", where) from error
    bundle = bundle_file.parse(data, where)
    result.signer = trust.unwrap(bundle, now, where)
    predicate = manifest.read(bundle.payload, where)
    result.resources = predicate.resources
    return predicate


def _listing(result: ModelResult, predicate: Predicate) -> dict[str, FileEntry]:
    """Rule 4; the files that are there and signed."""
    files, unsafe = survey(result.path)
    bundle_name = _name_below(result.path, result.bundle)
    signed = {resource.name for resource in predicate.resources}
    if bundle_name in signed:
        raise manifest.malformed("it names itself", str(result.bundle))
    for entry in unsafe:
        result.add("ST-OMSB-142", f"{entry.reason}, which is never followed or read", entry.name)
    found = {file.name: file for file in files if file.name != bundle_name}
    for name in sorted(signed - set(found) - {entry.name for entry in unsafe}):
        result.add("ST-OMSB-140", "a signed file is missing", name)
    for name in sorted(set(found) - signed):
        result.add("ST-OMSB-141", "a file that was not signed", name)
    return {name: file for name, file in found.items() if name in signed}


def _compare(result: ModelResult, resource: Resource, file: FileEntry) -> None:
    """Rule 5."""
    try:
        digest = _digest(result.path, file)
    except UsageError as error:
        result.add("ST-OMSB-200", error.what, file.name)
        return
    if digest != resource.digest:
        result.add("ST-OMSB-130", "the content is not what was signed", file.name)
    result.num_files += 1
    result.num_bytes += file.size


def _digest(root: Path, file: FileEntry) -> str:
    """SHA-256 of a file, hex.

    Raises:
        UsageError: ST-USAG-002.
    """
    fd = open_regular(root / file.name)
    try:
        with os.fdopen(fd, "rb", buffering=0) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(
            "ST-USAG-002", str(error.strerror or error), str(root / file.name)
        ) from error


def _name_below(root: Path, bundle: Path) -> str:
    """The bundle's name below the model; empty when it lies elsewhere."""
    folder = bundle.parent.resolve()
    try:
        return (folder / bundle.name).relative_to(root.resolve()).as_posix()
    except ValueError:
        return ""


def _other_kind(wanted: str, where: str) -> IntegrityError:
    return IntegrityError(
        "ST-OMSB-120",
        f"the bundle was not made with {wanted}, which is what was given to verify it",
        where,
        "give what verifies this kind of bundle",
    )
