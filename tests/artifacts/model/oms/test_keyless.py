# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keyless Model Signing bundles, of a Sigstore instance of our own, verified offline.

Without the package sigstore, the tests that verify skip themselves.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from securetrain.artifacts.model import manifest
from securetrain.artifacts.model.oms import sign_model
from securetrain.artifacts.model.signers import KeySigner, TrustedIdentity, TrustedKey, read_signer
from securetrain.artifacts.report import Report
from securetrain.core.errors import UsageError
from securetrain.identity.sigstore import KeylessPolicy
from tests.artifacts.worlds import verify_model
from tests.identity.private_sigstore import ISSUER, SPIFFE, Instance
from tests.identity.sigstore_services import ISSUER as SERVICES_ISSUER
from tests.identity.sigstore_services import PIPELINE, Services, serve, token
from tests.tables import items
from tests.vocabulary import refused

from .conftest import NOW

if TYPE_CHECKING:
    from securetrain.artifacts.model.manifest import Resource

POLICY = KeylessPolicy(identity=SPIFFE, issuer=ISSUER)


@pytest.fixture(scope="module")
def instance() -> Instance:
    return Instance()


@pytest.fixture
def trusted_root(instance: Instance, tmp_path: Path) -> Path:
    pytest.importorskip(
        "sigstore", reason="sigstore is not installed: keyless bundles are not verified in tests"
    )
    path = tmp_path / "trusted_root.json"
    path.write_bytes(instance.trusted_root())
    return path


@pytest.fixture
def bundle(instance: Instance, model: Path, tmp_path: Path) -> Path:
    """What a maker signed without a key of its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    probe = tmp_path / "probe.sig"
    resources: list[Resource] = sign_model(model, probe, KeySigner(key=key)).resources
    payload = manifest.write("model", resources, [])
    path = tmp_path / "keyless.sig"
    path.write_text(json.dumps(instance.sign(payload)))
    return path


def verify(model: Path, bundle: Path, root: Path, policy: KeylessPolicy = POLICY) -> Report:
    return verify_model(model, bundle, TrustedIdentity(policy=policy, trusted_root=root), NOW)


def codes(result: Report) -> set[str]:
    return {problem.code for problem in result.problems}


def test_the_identity_that_was_named_is_accepted(model, bundle, trusted_root):
    result = verify(model, bundle, trusted_root)
    assert result.ok
    assert result.bundled.signer == f"{SPIFFE} (vouched for by {ISSUER})"


@pytest.mark.forgery
@items("identity, issuer", (SPIFFE[:-1], ISSUER), ("*", ISSUER), (SPIFFE, f"{ISSUER}/"))
def test_another_identity_or_issuer_is_refused(identity, issuer, model, bundle, trusted_root):
    policy = KeylessPolicy(identity=identity, issuer=issuer)
    assert codes(verify(model, bundle, trusted_root, policy)) == {"ST-OMSB-120"}


@pytest.mark.forgery
def test_a_changed_model_is_refused(model: Path, bundle: Path, trusted_root: Path) -> None:
    (model / "config.json").write_text("[]")
    assert codes(verify(model, bundle, trusted_root)) == {"ST-OMSB-130"}


@pytest.mark.forgery
def test_another_instance_is_refused(model: Path, bundle: Path, trusted_root: Path) -> None:
    trusted_root.write_bytes(Instance().trusted_root())
    assert codes(verify(model, bundle, trusted_root)) == {"ST-OMSB-110"}


@pytest.mark.forgery
def test_a_changed_statement_is_refused(instance, model, bundle, trusted_root):
    other = json.loads(json.dumps(instance.sign(b'{"another":1}')))
    document = json.loads(bundle.read_text())
    document["dsseEnvelope"]["payload"] = other["dsseEnvelope"]["payload"]
    bundle.write_text(json.dumps(document))
    assert codes(verify(model, bundle, trusted_root)) == {"ST-OMSB-110"}


@pytest.mark.forgery
def test_the_kinds_of_bundles_are_not_mixed_up(model: Path, bundle: Path, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    root = tmp_path / "none"
    keyed = tmp_path / "keyed.sig"
    sign_model(model, keyed, KeySigner(key=key))
    assert codes(verify(model, keyed, root)) == {"ST-OMSB-120"}
    result = verify_model(model, bundle, TrustedKey(key=key.public_key()), NOW)
    assert codes(result) == {"ST-OMSB-120"}


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    pytest.importorskip("sigstore", reason="sigstore is not installed: nothing is signed keyless")
    with serve() as found:
        yield found


def test_a_model_is_signed_by_an_identity(services: Services, model: Path, tmp_path: Path) -> None:
    """Through the servers of an instance: its CA, its log and its timestamp authority."""
    paths = {"token": token(), "config": services.config()}
    for name, data in paths.items():
        (tmp_path / name).write_bytes(data)
    name = f"keyless:?token={tmp_path}/token&config={tmp_path}/config"
    signer = read_signer(name, None, (), lambda _: b"")
    sign_model(model, model / "model.sig", signer)
    root = tmp_path / "trusted_root.json"
    root.write_bytes(services.instance.trusted_root())
    policy = KeylessPolicy(identity=PIPELINE, issuer=SERVICES_ISSUER)
    assert verify(model, model / "model.sig", root, policy).ok
    other = KeylessPolicy(identity=PIPELINE + "x", issuer=SERVICES_ISSUER)
    assert codes(verify(model, model / "model.sig", root, other)) == {"ST-OMSB-120"}
    (model / "config.json").write_text("[]")
    assert codes(verify(model, model / "model.sig", root, policy)) == {"ST-OMSB-130"}
    refused(UsageError, "ST-USAG-001", read_signer, name, tmp_path / "leaf.pem", (), lambda _: b"")
