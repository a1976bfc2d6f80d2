# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The reference implementation accepts ours, we accept its, and its known holes are refused here.

It is installed into an environment of its own: it pins libraries that we do not.
"""

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from securetrain.artifacts.model.oms import Scope, sign_model
from securetrain.artifacts.model.signers import (
    CertificateSigner,
    KeySigner,
    TrustedKey,
    TrustedRoots,
)
from tests.artifacts.worlds import verify_model
from tests.identity.worlds import private_pem

from .conftest import NOW, Authority, pem_of

pytestmark = pytest.mark.slow

Key = ec.EllipticCurvePrivateKey


def call(*command: object) -> bool:
    done = subprocess.run(
        [str(part) for part in command], check=False, capture_output=True, text=True, timeout=60
    )
    sys.stderr.write(done.stdout + done.stderr)  # shown when the test fails
    return done.returncode == 0


@pytest.fixture
def files(tmp_path: Path, key: Key, authority: Authority) -> Path:
    """key.pem, public.pem, leaf.pem and root.pem; the certificate is good today."""
    today = dt.datetime.now(dt.UTC)
    shift = today - NOW
    leaf = authority.issue(
        key.public_key(), begins=shift - dt.timedelta(hours=1), ends=shift + dt.timedelta(days=1)
    )
    (tmp_path / "key.pem").write_bytes(private_pem(key))
    (tmp_path / "public.pem").write_bytes(pem_of(key.public_key()))
    (tmp_path / "leaf.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "root.pem").write_bytes(
        authority.certificate.public_bytes(serialization.Encoding.PEM)
    )
    return tmp_path


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def test_keys_in_both_directions(reference: Path, model: Path, files: Path, key: Key) -> None:
    ours, theirs = model / "model.sig", files / "theirs.sig"
    for name in (".git/HEAD", ".cache/huggingface/x.lock"):  # a clone
        (model / name).parent.mkdir(parents=True)
        (model / name).write_text("x")
    sign_model(model, ours, KeySigner(key=key))
    public = files / "public.pem"
    assert call(reference, "verify", "key", "--signature", ours, "--public_key", public, model)
    ours.unlink()
    private = files / "key.pem"
    assert call(reference, "sign", "key", "--signature", theirs, "--private_key", private, model)
    assert verify_model(model, theirs, TrustedKey(key=key.public_key()), now()).ok
    # And a changed model is refused by both.
    (model / "config.json").write_text("[]")
    assert not call(
        reference, "verify", "key", "--signature", theirs, "--public_key", public, model
    )
    result = verify_model(model, theirs, TrustedKey(key=key.public_key()), now())
    assert [problem.code for problem in result.problems] == ["ST-OMSB-130"]


def test_certificates_in_both_directions(reference, model, files, key, authority):
    from cryptography import x509

    leaf = x509.load_pem_x509_certificate((files / "leaf.pem").read_bytes())
    ours, theirs = files / "ours.sig", files / "theirs.sig"
    sign_model(model, ours, CertificateSigner(key=key, chain=(leaf,)))
    root, leaf_file, private = files / "root.pem", files / "leaf.pem", files / "key.pem"
    verify = (reference, "verify", "certificate", "--certificate_chain", root, "--signature")
    assert call(*verify, ours, model)
    sign = (reference, "sign", "certificate", "--private_key", private)
    assert call(
        *sign, "--signing_certificate", leaf_file, "--certificate_chain", root,
        "--signature", theirs, model,
    )  # fmt: skip
    trust = TrustedRoots(roots=(authority.certificate,))
    assert verify_model(model, theirs, trust, now()).ok


def test_holes_of_the_reference(reference, model, files, key, authority):
    """What it accepts, shown, and refused here for the reason."""
    trusted = TrustedKey(key=key.public_key())
    bundle = model / "model.sig"
    sign = (reference, "sign", "key", "--private_key", files / "key.pem", "--signature")
    verify = (reference, "verify", "key", "--public_key", files / "public.pem", "--signature")
    assert call(*sign, bundle, model)

    def refused(scope: Scope | None = None) -> set[str]:
        result = verify_model(model, bundle, trusted, now(), scope=scope)
        return {problem.code for problem in result.problems}

    # A payload in a place that the format leaves out: named here, and refused to who asks.
    (model / ".github").mkdir()
    (model / ".github" / "payload.py").write_text("x")
    assert call(*verify, bundle, model)
    assert verify_model(model, bundle, trusted, now()).bundled.left_out == [".github"]
    assert refused(Scope(ignore_git=False)) == {"ST-OMSB-141"}
    (model / ".github" / "payload.py").unlink()
    (model / ".github").rmdir()

    # A file that nobody signed, when told to be lenient; an empty directory always.
    (model / "new").mkdir()
    assert call(*verify, bundle, model)
    assert refused() == {"ST-OMSB-142"}
    (model / "new").rmdir()

    # A certificate that expired 700 days ago.
    begins = now() - dt.timedelta(days=800)
    leaf = authority.issue(
        key.public_key(),
        begins=begins - NOW,
        ends=begins + dt.timedelta(days=100) - NOW,
    )
    expired = files / "expired.sig"
    bundle.unlink()
    sign_model(model, expired, CertificateSigner(key=key, chain=(leaf,)))
    chain = ("--certificate_chain", files / "root.pem", "--signature", expired)
    assert call(reference, "verify", "certificate", *chain, model)
    trust = TrustedRoots(roots=(authority.certificate,))
    result = verify_model(model, expired, trust, now())
    assert [problem.code for problem in result.problems] == ["ST-OMSB-150"]
