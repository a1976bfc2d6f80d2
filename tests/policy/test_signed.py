# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Policies that an operator has signed, by key and by identity."""

from datetime import UTC, datetime, timedelta

import pytest

from securetrain.cli.main import main
from securetrain.core.errors import IdentityError, PolicyError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from securetrain.policy import beside, load_policy, sign_policy, verify_policy
from tests.vocabulary import refused

NOW = datetime.now(UTC)
KEY = PrivateKey.generate_pair()


def trusting(key, role=TrustRole.OPERATOR):
    day = timedelta(days=1)
    return TrustRoot.parse(sign_root({role: [key.public]}, key, NOW - day, NOW + day), NOW)


@pytest.fixture
def policy(tmp_path):
    (tmp_path / "base.yaml").write_text("extends: baseline\n")
    path = tmp_path / "team.yaml"
    path.write_text("extends: ./base.yaml\ncheckpoint: {max_age_days: 30}\n")
    beside(path).write_bytes(sign_policy(path, load_policy(str(path)), KEY, NOW))
    return path


def check(path, trust=None, now=NOW, max_age=None):
    trust = trust or trusting(KEY)
    return verify_policy(path, load_policy(str(path)), beside(path), trust, now, max_age=max_age)


def test_what_an_operator_has_signed(policy):
    said, by = check(policy)
    assert said.digest == load_policy(str(policy)).digest
    assert by == {KEY.key_id}
    policy.write_text(policy.read_text() + "# a remark changes nothing\n")
    check(policy)


@pytest.mark.forgery
def test_another_policy_or_what_it_extends(policy):
    (policy.parent / "base.yaml").write_text("extends: dev\n")
    refused(PolicyError, "ST-PLCY-006", check, policy)
    (policy.parent / "base.yaml").write_text("extends: baseline\n")
    policy.write_text("extends: ./base.yaml\n")
    refused(PolicyError, "ST-PLCY-006", check, policy)
    other = policy.with_name("lax.yaml")
    other.write_text("extends: ./base.yaml\ncheckpoint: {max_age_days: 30}\n")
    beside(other).write_bytes(beside(policy).read_bytes())
    refused(PolicyError, "ST-PLCY-006", check, other)


@pytest.mark.forgery
def test_another_signer(policy):
    refused(IdentityError, "ST-IDEN-003", check, policy, trusting(PrivateKey.generate()))
    refused(IdentityError, "ST-IDEN-003", check, policy, trusting(KEY, TrustRole.CHECKPOINT))


def test_an_old_signature_and_one_from_the_future(policy):
    refused(PolicyError, "ST-PLCY-006", check, policy, now=NOW - timedelta(hours=1))
    later, day = NOW + timedelta(hours=5), timedelta(hours=4)
    refused(PolicyError, "ST-PLCY-006", check, policy, now=later, max_age=day)


def test_the_verbs(policy, tmp_path, capsys):
    assert main(["key", "generate", str(tmp_path / "ops.pem")]) == 0
    trust = ["trust", "init", str(tmp_path / "trust"), "--key", str(tmp_path / "ops.pem")]
    trust += ["--add", f"operator={tmp_path / 'ops.pem.pub'}", "--signatures", "operator=both"]
    assert main(trust) == 0
    root = str(tmp_path / "trust" / "root.json")
    assert main(["policy", "verify", str(policy), "--trust", root]) == 12
    assert main(["policy", "sign", str(policy), "--key", str(tmp_path / "ops.pem")]) == 0
    assert main(["policy", "verify", str(policy), "--trust", root, "--max-age-days", "2"]) == 0
    assert "signed by" in capsys.readouterr().out


def test_an_identity_signs_a_policy(policy):
    pytest.importorskip("sigstore", reason="sigstore is not installed: nothing is signed keyless")
    from securetrain.identity.keyless_signer import KeylessSigner
    from tests.identity.sigstore_services import serve, token
    from tests.identity.test_keyless import trusting as naming

    with serve() as services:
        signer = KeylessSigner.open(token(), services.config())
        made = sign_policy(policy, load_policy(str(policy)), signer, NOW)
        trust = naming(services, role=TrustRole.OPERATOR)
        other = naming(services, role=TrustRole.CHECKPOINT)
    beside(policy).write_bytes(made)
    assert len(check(policy, trust)[1]) == 1
    refused(IdentityError, "ST-IDEN-022", check, policy, other)
