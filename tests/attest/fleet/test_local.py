# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collecting on this machine; with a TPM in `tests/cli/test_attest.py`."""

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.attest.fleet import local
from securetrain.attest.fleet.bundle import own_question
from securetrain.attest.fleet.local import collect_here
from securetrain.attest.node.attester import SoftwareAttester
from securetrain.attest.node.settings import AttesterSettings, TpmSettings
from securetrain.core import default_state
from securetrain.core.errors import AttestationError, IdentityError, UsageError
from securetrain.core.vocabulary import UNATTESTED
from securetrain.identity.keys import KeyKind, PrivateKey
from tests.vocabulary import refused

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def collect(tmp_path, node="node-0", attester="", **how):
    return collect_here(
        node, state=tmp_path / "state", now=NOW, attester=attester, environ={}, **how
    )


def test_a_nodes_own_word(tmp_path):
    collected = collect(tmp_path)
    assert collected.unattested
    assert UNATTESTED in collected.speakers
    assert collected.bundle.node == "node-0"
    assert collected.bundle.asked_itself
    assert collected.bundle.collected == NOW
    assert collected.bundle.keys is None
    assert collected.notes == ()


def test_the_key_is_made_once_and_private(tmp_path):
    first, second = collect(tmp_path), collect(tmp_path)
    assert (first.key_is_new, second.key_is_new) == (True, False)
    assert first.bundle.key == second.bundle.key
    path = tmp_path / "state" / "node-key.pem"
    assert first.key_file == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert PrivateKey.load(path).kind is KeyKind.P256


def test_a_key_of_ones_own(tmp_path):
    key = PrivateKey.create(tmp_path / "key.pem")
    collected = collect(tmp_path, key_file=tmp_path / "key.pem")
    assert collected.bundle.key == key.public.spki
    assert not collected.key_is_new
    with pytest.raises((UsageError, IdentityError)):
        collect(tmp_path, key_file=tmp_path / "nothing.pem")
    assert not (tmp_path / "nothing.pem").exists()


def test_an_answer(tmp_path):
    question = own_question("node-0")
    collected = collect(tmp_path, question=question)
    assert collected.bundle.question == question
    assert not collected.bundle.asked_itself
    error = refused(UsageError, "ST-USAG-001", collect, tmp_path, "node-1", question=question)
    assert error.what == "the question is for node node-0, not node-1"


@pytest.mark.parametrize("name", ["", "a/b", "..\\x", "a b", "x" * 65, "n\n", "\x1b[2J"])
def test_a_name_that_is_none(tmp_path, name):
    refused(UsageError, "ST-USAG-001", collect, tmp_path, name)
    assert not (tmp_path / "state").exists()


def test_what_this_machine_has_not_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "settings_for", lambda choice, state: AttesterSettings())
    collected = collect(tmp_path, attester="auto")
    assert collected.notes == ("TPM: this machine shows none at /dev/tpmrm0",)


def test_a_tpm_that_auto_finds_is_not_missed(tmp_path, monkeypatch):
    found = AttesterSettings(tpm=TpmSettings(address="/nowhere", state="/nowhere"))
    monkeypatch.setattr(local, "settings_for", lambda choice, state: found)

    class Collector(SoftwareAttester):
        notes = ("the log",)

    def make(settings, key, environ):
        return Collector(key=key, executable=tmp_path, environ=environ, root=tmp_path)

    monkeypatch.setattr(local, "make_attester", make)
    assert collect(tmp_path, attester="auto").notes == ("the log",)


def test_settings_that_cannot_be_met(tmp_path):
    settings = tmp_path / "attester.json"
    settings.write_text('{"tpm": {"address": "/nowhere", "state": "/nowhere"}}')
    refused(AttestationError, "ST-ATTS-150", collect, tmp_path, attester=str(settings))
    settings.write_text('{"tpm": "yes"}')
    refused(UsageError, "ST-USAG-008", collect, tmp_path, attester=str(settings))


def test_where_keys_are_kept():
    assert default_state(Path("/home/me"), 1000) == Path("/home/me/.local/state/securetrain")
    assert default_state(Path("/root"), 0) == Path("/var/lib/securetrain")
