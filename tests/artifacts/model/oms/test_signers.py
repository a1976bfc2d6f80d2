# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys of models in files, under a passphrase and in a token; without SoftHSM2, loudly skipped.

Commands of docs/how-to/verify-in-ci.md are tried here.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from securetrain.artifacts.model.oms import sign_model
from securetrain.artifacts.model.signers import (
    HeldKey,
    IdentitySigner,
    ModelSigner,
    TrustedKey,
    TrustedRoots,
    read_signer,
)
from securetrain.core.errors import IdentityError, IntegrityError
from securetrain.identity.keys import PrivateKey
from tests import vocabulary
from tests.artifacts.worlds import verify_model
from tests.identity.worlds import private_pem
from tests.vocabulary import refused

from .conftest import NOW, Authority

PIN = "1234"
MODULES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/softhsm/libsofthsm.so")
MODULE = next((path for path in MODULES if Path(path).exists()), "")


def never(what: str) -> bytes:
    raise AssertionError(f"asked for {what}")


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The beginning of the URIs of a token's keys, and their end."""
    tool = shutil.which("softhsm2-util")
    if not (tool and MODULE):
        pytest.skip("SoftHSM2 is not installed: no model is signed with a key in a token")
    pkcs11 = pytest.importorskip(
        "pkcs11", reason="python-pkcs11 is not installed: no model is signed with a key in a token"
    )
    from pkcs11.util.ec import encode_named_curve_parameters

    folder = tmp_path_factory.mktemp("hsm")
    (folder / "tokens").mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder}/tokens\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(folder / "softhsm2.conf"))
        command = [tool, "--init-token", "--free", "--label", "models", "--pin", PIN]
        subprocess.run([*command, "--so-pin", "5678"], check=True, capture_output=True)
        library = pkcs11.lib(MODULE)
        library.reinitialize()
        with library.get_token(token_label="models").open(user_pin=PIN, rw=True) as session:
            session.create_domain_parameters(
                pkcs11.KeyType.EC,
                {pkcs11.Attribute.EC_PARAMS: encode_named_curve_parameters("secp256r1")},
                local=True,
            ).generate_keypair(store=True, label="model", id=b"\x01")
        yield f"pkcs11:token=models;object=model?module-path={MODULE}"
        pkcs11.unload(MODULE)


def public_of(signer: ModelSigner) -> ec.EllipticCurvePublicKey:
    assert not isinstance(signer, IdentitySigner)
    key = signer.key
    return key.public if isinstance(key, HeldKey) else key.public_key()


def test_a_key_in_a_token(token: str, model: Path, authority: Authority, tmp_path: Path) -> None:
    signer = read_signer(token, None, (), lambda _: PIN.encode())
    sign_model(model, tmp_path / "b.sig", signer)
    trust = TrustedKey(key=public_of(signer))
    assert verify_model(model, tmp_path / "b.sig", trust, NOW).ok
    leaf = tmp_path / "leaf.pem"
    issued = authority.issue(public_of(signer))
    leaf.write_bytes(issued.public_bytes(serialization.Encoding.PEM))
    certified = read_signer(token, leaf, (), lambda _: PIN.encode())
    sign_model(model, tmp_path / "c.sig", certified)
    roots = TrustedRoots(roots=(authority.certificate,))
    assert verify_model(model, tmp_path / "c.sig", roots, NOW).ok


def test_a_key_that_is_not_in_the_token(token: str) -> None:
    with pytest.raises(IdentityError) as error:
        read_signer(token.replace("object=model", "object=other"), None, (), lambda _: b"1234")
    assert error.value.code == "ST-IDEN-019"


def test_a_key_of_a_kind_that_the_format_does_not_know() -> None:
    vocabulary.refused(IntegrityError, "ST-OMSB-120", HeldKey.of, PrivateKey.generate(), "pkcs11")


def test_a_key_under_a_passphrase(model: Path, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    file = tmp_path / "key.pem"
    file.write_bytes(private_pem(key, serialization.BestAvailableEncryption(b"secret")))
    file.chmod(0o600)
    signer = read_signer(str(file), None, (), lambda _: b"secret")
    sign_model(model, tmp_path / "b.sig", signer)
    assert verify_model(model, tmp_path / "b.sig", TrustedKey(key=key.public_key()), NOW).ok
    refused(IntegrityError, "ST-OMSB-120", read_signer, str(file), None, (), lambda _: b"wrong")
    file.write_bytes(private_pem(key))
    assert public_of(read_signer(str(file), None, (), never)) == key.public_key()
    file.chmod(0o644)
    vocabulary.refused(IdentityError, "ST-IDEN-010", read_signer, str(file), None, (), never)
