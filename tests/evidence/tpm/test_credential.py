# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Credentials open for the one TPM and the one key that they were made for, and nowhere else."""

import dataclasses
import hashlib
import hmac
import os

import pytest
from cryptography.exceptions import InvalidSignature

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.credential import Credential, kdfa, kdfe, make_credential
from securetrain.evidence.tpm.keys import AK_TEMPLATE, EK_TEMPLATES
from securetrain.evidence.tpm.structures import number
from tests.evidence.tpm.forge import Tpm, flip, make_key
from tests.tables import each, forgeries
from tests.vocabulary import refused

SECRET = bytes(range(32))
KINDS = ["L-1", "L-2", "H-1", "H-2", "H-3", "H-4", "H-6"]


def make(tpm, name=None, secret=SECRET):
    return make_credential(tpm.ek.public, name or tpm.ak.public.name, secret, os.urandom)


@each("template", *KINDS)
def test_the_right_tpm_opens_it(template):
    tpm = Tpm(template)
    assert tpm.activate(make(tpm)) == SECRET
    assert tpm.activate(make(tpm, secret=b"")) == b""


def test_the_seed_comes_from_the_given_source():
    asked = []

    def source(size):
        asked.append(size)
        return bytes(size)

    tpm = Tpm("L-1")
    first, second = (
        make_credential(tpm.ek.public, tpm.ak.public.name, SECRET, source) for _ in range(2)
    )
    assert asked == [32, 32]
    assert first.id_object == second.id_object, "the same seed encrypts alike"
    assert first.encrypted_secret != second.encrypted_secret


def test_no_two_credentials_are_alike():
    tpm = Tpm("H-2")
    made = {(one.id_object, one.encrypted_secret) for one in (make(tpm) for _ in range(8))}
    assert len(made) == 8


def test_kdfa_is_the_specifications():
    # Part 1, 11.4.10.2, written out: one block of HMAC for each counter.
    key, context, size = b"key", b"context", 80
    stream = b"".join(
        hmac.digest(
            key, number(i, 4) + b"STORAGE\0" + context + number(size * 8, 4), hashlib.sha256
        )
        for i in (1, 2, 3)
    )
    assert kdfa(Hash.SHA256, key, b"STORAGE", context, size) == stream[:size]


def test_kdfe_is_the_specifications():
    # Part 1, 11.4.10.3, written out.
    expected = hashlib.sha384(number(1, 4) + b"z" + b"IDENTITY\0" + b"u" + b"v").digest()
    assert kdfe(Hash.SHA384, b"z", b"IDENTITY", b"u", b"v") == expected


# Refusals.


@forgeries("template", "L-1", "H-3")
def test_another_attestation_key_does_not_open_it(template):
    tpm = Tpm(template)
    software = make_key(AK_TEMPLATE).public
    with pytest.raises(InvalidSignature):
        tpm.activate(make(tpm), software.name)
    with pytest.raises(InvalidSignature):
        tpm.activate(make(tpm, name=software.name))


@pytest.mark.forgery
def test_a_weaker_copy_of_the_attestation_key_does_not_open_it():
    # The Name covers the attributes: the same key without `restricted` is another object.
    tpm = Tpm("H-3")
    copy = dataclasses.replace(tpm.ak.public, attributes=tpm.ak.public.attributes & ~(1 << 16))
    with pytest.raises(InvalidSignature):
        tpm.activate(make(tpm, name=copy.name))


@pytest.mark.forgery
def test_another_tpm_with_an_rsa_key_does_not_open_it():
    made = make(Tpm("L-1", key=0))
    refused(ValueError, r"[Dd]ecrypt", Tpm("L-1", key=7).activate, made)


@pytest.mark.forgery
def test_another_tpm_with_an_ecc_key_does_not_open_it():
    ours, theirs = Tpm("H-3"), Tpm("H-3")
    with pytest.raises(InvalidSignature):
        theirs.activate(make(ours), ours.ak.public.name)


@forgeries("id, at", ("integrity", 4), ("start-of-identity", 40), ("end", -1))
def test_an_altered_credential_does_not_open(at):
    tpm = Tpm("H-2")
    made = make(tpm)
    with pytest.raises(InvalidSignature):
        tpm.activate(Credential(flip(made.id_object, at), made.encrypted_secret))


@forgeries("name", "L-1", "H-3")
def test_a_template_cannot_be_encrypted_to(name):
    with pytest.raises(AttestationError) as caught:
        make_credential(EK_TEMPLATES[name], bytes(34), SECRET, os.urandom)
    assert caught.value.code == "ST-ATTS-101"


def test_a_secret_that_does_not_fit():
    tpm = Tpm("H-2")
    refused(ValueError, "33 bytes, at most 32", make, tpm, secret=bytes(33))
    assert Tpm("H-4").ek.public.name_alg is Hash.SHA512
    make(Tpm("H-4"), secret=bytes(64))


def test_only_storage_keys_are_encrypted_to():
    with pytest.raises(ValueError, match="not a storage key"):
        make_credential(make_key(AK_TEMPLATE).public, bytes(34), SECRET, os.urandom)
