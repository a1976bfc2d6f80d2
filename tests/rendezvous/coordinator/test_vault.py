# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The vault alone: each rule that it decides by, on both of its sides."""

import base64
import os
import string
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securetrain.core.errors import AdmissionError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.result import AttestationResult, Submodule
from securetrain.policy.schema import Secret
from securetrain.rendezvous.coordinator.vault import Asker, Source, Vault, parse_source, read_secret
from securetrain.rendezvous.wire.protocol import AskSecrets
from securetrain.rendezvous.wire.sealing import check_sealing, sealing_text
from tests.tables import each
from tests.vocabulary import refused

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GROUPED = Secret(min_tier=NodeTier.TPM, groups=("h100",))


def asker(tier=NodeTier.TPM, group="h100", sealing=None, epoch=3, asked=2):
    """A member of epoch 3 that has not asked in it."""
    claims = {"group": group}
    result = AttestationResult(
        job="job-1",
        node="node-0",
        key_id="0" * 64,
        tier=tier,
        label=str(tier),
        media_type="application/json",
        evidence="0" * 64,
        policy="0" * 64,
        issued=NOW,
        expires=NOW + timedelta(hours=1),
        submods={"tpm": Submodule(trust_vector={}, claims=claims)},
    )
    own = sealing_text(X25519PrivateKey.generate())
    return Asker(
        job="job-1",
        node="node-0",
        subject="spiffe://job-1/node-0",
        sealing=own if sealing is None else sealing,
        result=result,
        epoch=epoch,
        asked=asked,
        exporter=b"\1" * 32,
    )


def answered(of, epoch=3, rule=GROUPED):
    """The code that the one secret is withheld with; empty when it is given."""
    source = Source(name="key", path=None, held=b"secret")
    vault = Vault(rules={"key": rule}, sources={"key": source})
    said, _ = vault.answer(AskSecrets(epoch=epoch, nonce=b"\7" * 16), of)
    assert len(said.given) + len(said.withheld) == 1
    return said.withheld[0].code if said.withheld else ""


@pytest.mark.forgery
def test_who_is_given_a_secret_and_who_is_not():
    assert answered(asker()) == ""
    assert answered(asker(group="a100")) == "ST-ADMN-043"
    assert answered(asker(group="")) == "ST-ADMN-043"
    assert answered(asker(tier=NodeTier.VTPM)) == "ST-ADMN-043"
    assert answered(asker(group=""), rule=Secret(min_tier=NodeTier.TPM)) == ""


@pytest.mark.forgery
def test_the_question_is_of_the_members_own_epoch_and_the_first_in_it():
    assert answered(asker(epoch=None)) == "ST-ADMN-046"
    assert answered(asker(), epoch=4) == "ST-ADMN-046"
    assert answered(asker(epoch=4), epoch=3) == "ST-ADMN-046"
    assert answered(asker(asked=3)) == "ST-ADMN-046"
    assert answered(asker(sealing="")) == "ST-ADMN-046"


@pytest.mark.forgery
def test_a_key_has_one_spelling():
    """Two texts of one key would be two keys to whoever compares texts."""
    text = sealing_text(X25519PrivateKey.generate())
    check_sealing(text)
    alphabet = f"{string.ascii_uppercase}{string.ascii_lowercase}{string.digits}+/"
    other = f"{text[:-2]}{alphabet[alphabet.index(text[-2]) ^ 1]}="
    assert base64.b64decode(other, validate=True) == base64.b64decode(text), "plain base64 takes it"
    for bad in (other, text[:-1], f" {text}", text[4:]):
        refused(AdmissionError, "ST-ADMN-001", check_sealing, bad)


@pytest.mark.forgery
def test_a_file_of_another_user_is_no_secret(tmp_path, monkeypatch):
    """Another user's file, though nobody else may read it: its owner chooses what is in it."""
    path = tmp_path / "key"
    path.write_bytes(b"secret")
    path.chmod(0o600)
    about = path.stat()
    assert read_secret(path) == b"secret"

    def owned_by(user, mode=about.st_mode):
        changed = os.stat_result((mode, *about[1:4], user, *about[5:]))
        monkeypatch.setattr("securetrain.rendezvous.coordinator.vault.os.fstat", lambda _: changed)

    # `open_regular` asks as well: the same answer serves it.
    owned_by(os.geteuid() + 4242)
    refused(UsageError, "ST-USAG-001", read_secret, path)
    owned_by(0)
    assert read_secret(path) == b"secret"
    owned_by(os.geteuid(), about.st_mode | 0o004)
    refused(UsageError, "ST-USAG-001", read_secret, path)


@each("text", "=file:/x", "key", "key=", "key=file", "key=file:", "key=env:")
def test_a_line_that_says_no_place(text):
    refused(UsageError, "ST-USAG-001", parse_source, text, {"": "x"}, says="where a secret lies")


def test_a_program_that_fails_after_it_wrote_gives_no_secret():
    line = "key=command:sh -c 'printf half; exit 3'"
    assert "ended with 3" in refused(UsageError, "ST-USAG-001", parse_source, line, {}).what
