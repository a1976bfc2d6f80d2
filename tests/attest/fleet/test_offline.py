# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verifier without a job, under policies from files; the first test is the control."""

import dataclasses
import hashlib
from datetime import timedelta

import jwt
import msgspec
import pytest

from securetrain.attest.fleet.bundle import Verdict
from securetrain.attest.fleet.enrollment import Enrollment, Roots, enroll
from securetrain.attest.fleet.offline import Judgement, ask, judge, open_state, write_ear
from securetrain.attest.session.state import FileState, MemoryState, Revocation
from securetrain.core.codes import ExitCode
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.result import verify_result
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.policy import load_policy
from securetrain.testing.bootlog import Boot
from securetrain.testing.machine import write_policy
from tests import vocabulary
from tests.attest.worlds import MAKER_CA, Machine, bundle_of, replaced, self_report, with_snp
from tests.evidence.tpm.forge import NOW
from tests.tables import forgeries
from tests.vocabulary import refused

OPERATOR = PrivateKey.generate()


@pytest.fixture(scope="module")
def machine():
    return Machine("node-0")


def values_for(machine, **roots):
    pinned = Roots(**(roots or {"hardware": (MAKER_CA.pem,)}))
    return enroll(
        None,
        [Enrollment(bundle=bundle_of(machine), learn_boot=True, unproven=True)],
        roots=pinned,
        now=NOW,
    ).values


@pytest.fixture(scope="module")
def policy(machine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    return load_policy(
        str(
            write_policy(
                folder, values_for(machine), OPERATOR, tier="tpm", extends="hardened", ima="log"
            )
        )
    )


@pytest.fixture(scope="module")
def proven(machine, policy):
    secret = ask(bundle_of(machine), policy, NOW, MemoryState())
    return judge(
        bundle_of(machine, answer_to=secret), policy, secret=secret, now=NOW, state=MemoryState()
    )


def refusal(judgement):
    assert judgement.refusal is not None
    return judgement.refusal


def test_a_node_that_proves_everything(proven, policy):
    assert proven.proven
    assert proven.refusal is None
    assert proven.exit_code is ExitCode.OK
    result = proven.verdict.result
    assert result.tier is NodeTier.TPM
    assert result.policy == policy.digest
    assert result.expires == NOW + timedelta(minutes=policy.policy.node.lease_minutes)


def test_what_stays_open_is_no_pass(machine, policy):
    judgement = judge(bundle_of(machine), policy, secret=None, now=NOW, state=MemoryState())
    assert not judgement.proven
    assert judgement.refusal is None
    assert judgement.exit_code is ExitCode.INCOMPLETE


@pytest.mark.forgery
def test_a_refusal_is_a_result(machine, policy):
    usual = machine.what
    try:
        machine.boot(Boot(kernel=b"a kernel with a back door"))
        judgement = judge(bundle_of(machine), policy, secret=None, now=NOW, state=MemoryState())
    finally:
        machine.boot(usual)
    assert judgement.verdict is None
    assert not judgement.proven
    assert refusal(judgement).code == "ST-ATTS-213"
    assert refusal(judgement).where.startswith("PCR 4, entry ")
    assert judgement.exit_code is ExitCode.FAILURE


@forgeries(
    "id, code, forge",
    ("unsigned", "ST-ATTS-003", lambda b: replaced(b, signature=b"")),
    ("no-key", "ST-ATTS-001", lambda b: replaced(b, key=b"")),
    ("another-tpm", "ST-ATTS-012", lambda _: bundle_of(Machine("node-0"))),
    ("not-enrolled", "ST-ATTS-012", lambda _: bundle_of(Machine("node-7"))),
)
def test_forged_bundles(machine, policy, code, forge):
    judgement = judge(forge(bundle_of(machine)), policy, secret=None, now=NOW, state=MemoryState())
    assert refusal(judgement).code == code


def test_a_tier_that_is_too_low(machine, tmp_path):
    values = values_for(machine, virtual=(MAKER_CA.pem,))
    loaded = load_policy(
        str(write_policy(tmp_path, values, OPERATOR, tier="tpm", extends="hardened"))
    )
    judgement = judge(bundle_of(machine), loaded, secret=None, now=NOW, state=MemoryState())
    assert refusal(judgement).code == "ST-ATTS-004"
    assert refusal(judgement).where.endswith("node.min_tier")


def test_a_software_tpm_comes_in_by_the_exception_and_proves_no_machine(machine, tmp_path):
    values = values_for(machine, test=(MAKER_CA.pem,))
    loaded = load_policy(str(write_policy(tmp_path, values, OPERATOR)))
    secret = ask(bundle_of(machine), loaded, NOW, MemoryState())
    judgement = judge(
        bundle_of(machine, answer_to=secret), loaded, secret=secret, now=NOW, state=MemoryState()
    )
    assert judgement.exception.startswith("a software TPM proves")
    verdict = judgement.verdict
    assert verdict is not None
    assert [text.partition(":")[0] for text in verdict.open] == ["the machine"]
    assert judgement.exit_code is ExitCode.INCOMPLETE


def test_a_nodes_own_word(machine, tmp_path):
    bundle = self_report(machine, tmp_path)
    dev, hardened = load_policy("dev"), load_policy("hardened")
    judgement = judge(bundle, dev, secret=None, now=NOW, state=MemoryState())
    assert judgement.exit_code is ExitCode.INCOMPLETE
    assert judgement.exception
    assert (
        refusal(judge(bundle, hardened, secret=None, now=NOW, state=MemoryState())).code
        == "ST-ATTS-005"
    )
    assert ask(bundle, dev, NOW, MemoryState()).question.credential is None


def test_what_cannot_be_judged_is_an_error(machine, policy, tmp_path):
    def fails(code, bundle, loaded, now=NOW):
        for act in (
            lambda: judge(bundle, loaded, secret=None, now=now, state=MemoryState()),
            lambda: ask(bundle, loaded, now, MemoryState()),
        ):
            vocabulary.refused(AttestationError, code, act)

    fails("ST-ATTS-009", bundle_of(machine), load_policy("dev"))
    fails("ST-ATTS-009", bundle_of(machine, with_snp(), tpm=False), load_policy("dev"))
    fails("ST-ATTS-009", bundle_of(machine), policy, NOW + timedelta(days=99))
    strange = replaced(self_report(machine, tmp_path), media_type="text/plain")
    fails("ST-ATTS-006", strange, load_policy("dev"))


@pytest.mark.forgery
def test_a_self_report_with_keys_is_judged_as_hardware(machine, policy, tmp_path):
    """The keys of a TPM bring no TPM: its evidence must come with them."""
    bundle = replaced(self_report(machine, tmp_path), keys=machine.keys())
    judgement = judge(bundle, policy, secret=None, now=NOW, state=MemoryState())
    assert judgement.refusal is not None
    with pytest.raises(AttestationError, match="ST-ATTS-009"):
        judge(bundle, load_policy("dev"), secret=None, now=NOW, state=MemoryState())


# Signed results.


def test_a_signed_result(proven, tmp_path):
    key, path = PrivateKey.generate(KeyKind.P256), tmp_path / "ear.jwt"
    assert write_ear(path, proven, key)
    token = path.read_text().strip()
    assert verify_result(token, key.public, NOW) == proven.verdict.result
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["submods"]["tpm"]["ear_status"] == 2


def test_what_stays_open_is_not_signed(machine, policy, proven, tmp_path):
    key, path = PrivateKey.generate(KeyKind.P256), tmp_path / "ear.jwt"
    judgement = judge(bundle_of(machine), policy, secret=None, now=NOW, state=MemoryState())
    assert not write_ear(path, judgement, key)
    refused = Judgement(bundle=judgement.bundle, refusal=AttestationError("ST-ATTS-003", "x"))
    assert not write_ear(path, refused, key)
    half = Verdict(result=proven.verdict.result, open=("freshness: none",))
    assert not write_ear(path, dataclasses.replace(proven, verdict=half), key)
    assert not path.exists()


def test_a_key_that_cannot_sign_results(proven, tmp_path):
    with pytest.raises(UsageError) as caught:
        write_ear(tmp_path / "ear", proven, PrivateKey.generate())
    assert caught.value.code == "ST-USAG-001"
    assert "keygen --kind ecdsa-p256" in caught.value.fix


# What the verifiers of runs have kept.


def test_the_state_of_a_run(tmp_path):
    kept = FileState(tmp_path / "attestation.sqlite")
    kept.revoke(Revocation(subject="node:a", reason="it lied", since="then"))
    kept.close()
    for place in (tmp_path, tmp_path / "attestation.sqlite"):
        opened = open_state(place)
        assert [entry.subject for entry in opened.revocations()] == ["node:a"]
        opened.close()


def test_no_state_is_made_by_looking(tmp_path):
    for place in (tmp_path, tmp_path / "nothing"):
        refused(UsageError, "ST-USAG-002", open_state, place)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "attestation.sqlite").write_bytes(hashlib.sha256(b"noise").digest() * 99)
    refused(AttestationError, "ST-ATTS-015", open_state, tmp_path)


def test_a_judgement_is_plain(proven):
    assert msgspec.to_builtins(proven.verdict.result)["node"] == "node-0"
