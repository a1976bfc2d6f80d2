# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A small model, keys and certificates."""

import datetime as dt
import fcntl
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.identity import worlds
from tests.vocabulary import pip_for

REFERENCE = "model-signing==1.1.1"
# The reference imports pyOpenSSL without declaring it.
UNDECLARED = "pyOpenSSL"
NOW = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)


def pem_of(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@dataclass
class Authority:
    """A root, and what it issues."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, name: str = "root", days: int = 3650) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        valid = (NOW - dt.timedelta(days=days), NOW + dt.timedelta(days=days))
        top = worlds.limits(ca=True, path_length=0)
        return cls(key, worlds.certificate(name, name, key.public_key(), key, valid, top))

    def issue(
        self,
        key: ec.EllipticCurvePublicKey,
        *,
        begins: dt.timedelta = dt.timedelta(days=-1),
        ends: dt.timedelta = dt.timedelta(days=1),
        usage: bool | None = True,
        purpose: x509.ObjectIdentifier | None = ExtendedKeyUsageOID.CODE_SIGNING,
        is_ca: bool = False,
    ) -> x509.Certificate:
        may = worlds.usage(*["digital_signature"] * bool(usage), *["key_cert_sign"] * is_ca)
        return worlds.certificate(
            "maker",
            self.certificate.subject,
            key,
            self.key,
            (NOW + begins, NOW + ends),
            worlds.limits(ca=is_ca),
            (may, True) if usage is not None else None,
            (x509.ExtendedKeyUsage([purpose]), False) if purpose else None,
        )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "weights.bin").write_bytes(bytes(range(256)))
    return folder


@pytest.fixture
def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority.create()


@pytest.fixture(scope="session")
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference's command, in an environment that is made once and kept in pytest's cache."""
    cache = getattr(request.config, "cache", None)
    folder = Path(cache.mkdir("oms-reference")) if cache else tmp_path_factory.mktemp("reference")
    asked = f"{REFERENCE} {UNDECLARED} {sys.version}"
    made, stamp = folder / "venv", folder / "made"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers share the cache
        if not stamp.exists() or stamp.read_text() != asked:
            stamp.unlink(missing_ok=True)
            venv.create(made, clear=True)
            done = subprocess.run(
                [*pip_for(made / "bin" / "python"), "-q", REFERENCE, UNDECLARED],
                check=False,
                capture_output=True,
                text=True,
                timeout=300,
            )
            if done.returncode != 0:
                pytest.skip(f"the reference cannot be installed: {done.stderr[-300:]}")
            stamp.write_text(asked)
    return made / "bin" / "model_signing"
