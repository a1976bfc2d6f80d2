# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a person may change about measured files, and what is refused before it is signed."""

from datetime import UTC, datetime, timedelta

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.attest.fleet.ima_values import ImaChange, ima_key, set_ima, violation_rule
from securetrain.core.errors import AttestationError, SecureTrainError, UsageError
from securetrain.evidence.reference import ReferenceValues
from securetrain.evidence.tpm.ima_keys import ImaKey
from securetrain.evidence.tpm.runtime_policy import ImaReference, ViolationMode, ViolationRule
from securetrain.testing.machine import runtime_policy
from securetrain.testing.signed_files import Maker
from tests import vocabulary
from tests.tables import each

NOW = datetime(2026, 11, 23, tzinfo=UTC)
LATER = NOW + timedelta(days=3)
MAKERS = [Maker(ec.generate_private_key(ec.SECP256R1()), "maker") for _ in range(2)]
FIRST, SECOND = (ImaReference(policy=runtime_policy({"/x": bytes([n])})) for n in range(2))
VALUES = ReferenceValues(version=1, issued=NOW, expires=LATER)


def changed(values=VALUES, **change):
    return set_ima(values, ImaChange(**change), NOW)


def refused(code, values=VALUES, **change):
    return vocabulary.refused(SecureTrainError, code, changed, values, **change)


def test_a_policy_and_the_one_before_it():
    values = changed(policy=FIRST)
    assert values.ima == FIRST
    staged = changed(values, policy=SECOND, former_until=LATER)
    assert staged.ima.policy == SECOND.policy
    assert staged.ima.former is not None
    assert (staged.ima.former.policy, staged.ima.former.until) == (FIRST.policy, LATER)
    assert changed(staged, no_former=True).ima == SECOND
    assert changed(staged, policy=FIRST).ima == FIRST, "it stood beside the policy that went"
    ruled = changed(staged, violations=(ViolationRule(paths="/x", mode=ViolationMode.LOG),))
    assert ruled.ima.former == staged.ima.former


def test_a_window_needs_two_policies_and_time():
    refused("ST-USAG-001", policy=FIRST, former_until=LATER)
    values = changed(policy=FIRST)
    refused("ST-USAG-001", values, former_until=LATER)
    refused("ST-USAG-001", values, policy=SECOND, former_until=NOW)


def test_keys_come_and_go():
    keys = tuple(ImaKey(key=maker.pem) for maker in MAKERS)
    values = changed(keys=keys)
    assert changed(values, keys=keys[:1]).ima.keys == (keys[1], keys[0]), "none is there twice"
    narrower = msgspec.structs.replace(keys[0], paths=("/opt/.*",))
    assert changed(values, keys=(narrower,)).ima.keys == (keys[1], narrower)
    left = changed(values, without_keys=(MAKERS[0].key_id.hex(),))
    assert left.ima.keys == keys[1:]
    refused("ST-USAG-001", left, without_keys=(MAKERS[0].key_id.hex(),))


def test_what_no_verifier_could_read_is_not_signed():
    refused("ST-ATTS-320", policy=ImaReference(policy={"meta": 1}))
    refused("ST-ATTS-323", violations=(ViolationRule(paths=".*", mode=ViolationMode.LOG),))
    refused("ST-ATTS-326", keys=(ImaKey(key="nothing"),))


def test_a_key_from_a_file(tmp_path):
    path = tmp_path / "key"
    for data in (MAKERS[0].pem.encode(), MAKERS[0].certificate.public_bytes(Encoding.DER)):
        path.write_bytes(data)
        assert ima_key(path, ".ima") == ImaKey(key=MAKERS[0].pem)
    vocabulary.refused(UsageError, "ST-USAG-001", ima_key, path, "no keyring")
    vocabulary.refused(AttestationError, "ST-ATTS-323", ima_key, path, ".ima", ["(a"])
    for data in (b"", b"x" * 99, MAKERS[0].certificate.public_bytes(Encoding.DER)[:-1]):
        path.write_bytes(data)
        vocabulary.refused(UsageError, "ST-USAG-001", ima_key, path, ".ima")


def test_rules_as_they_are_typed():
    rule = violation_rule("/a=b/.*=warn")
    assert rule == ViolationRule(paths="/a=b/.*", mode=ViolationMode.WARN)


@each("text", "", "/x", "=log", "/x=", "/x=other", "/x=LOG")
def test_rules_that_are_none(text):
    vocabulary.refused(UsageError, "ST-USAG-001", violation_rule, text)
