# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest google`` as a person types it.

Commands of docs/how-to/google-confidential-vms.md are tried here.
"""

import pytest
from click.testing import CliRunner

from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.session.reference_file import read_reference_values
from securetrain.attest.session.state import MemoryState
from securetrain.cli.attest import command
from securetrain.identity.keys import PrivateKey
from tests.evidence.tee import forge_google as google
from tests.tables import items


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECURETRAIN_STATE", str(tmp_path / "state"))
    PrivateKey.create(tmp_path / "operator.pem")
    for name, authority in (
        ("root", google.root()),
        ("intermediate", google.intermediate()),
        ("tcb-root", google.tcb_root()),
    ):
        (tmp_path / f"{name}.pem").write_text(authority.pem)
    (tmp_path / "endorsement.binarypb").write_bytes(google.good_endorsement())
    (tmp_path / "forged.binarypb").write_bytes(
        google.endorsement(key=google.short_rsa_key("stranger"))
    )
    return tmp_path


def typed(line):
    words = f"google fleet.json --key operator.pem {line}".split()
    return CliRunner().invoke(command, words, standalone_mode=False)


def values(folder):
    key = PrivateKey.load(folder / "operator.pem").public
    return read_reference_values(folder / "fleet.json", (key_text(key),), MemoryState()).values


NAMED = (
    "--root root.pem --intermediate intermediate.pem --endorsement-root tcb-root.pem"
    " --endorsement endorsement.binarypb --project training-project"
)


def test_rules_are_written_and_changed(folder):
    made = typed(f"--new {NAMED} --zone europe-west4-a --any-vm --json")
    assert made.return_value == 0, made.exception or made.output
    written = values(folder)
    assert written.version == 1
    assert written.google == google.reference(
        roots=(google.root().pem,), zones=("europe-west4-a",), any_vm=True
    )
    assert typed("--vcpus 8 --min-snp-svn 3 --enrolled-vms").return_value == 0
    changed = values(folder).google
    assert (changed.vcpus, changed.min_snp_svn, changed.any_vm) == ((8,), 3, False)
    assert changed.endorsements == (google.good_endorsement(),)
    assert typed("--clear endorsements").return_value == 0
    assert values(folder).google.endorsements == ()


@items(
    "line, code",
    ("--endorsement forged.binarypb", "ST-ATTS-009"),
    ("--root operator.pem", "ST-ATTS-009"),
    ("--vcpus 0", "ST-USAG-001"),
    ("", "ST-USAG-001"),
    ("--new --zone z", "ST-USAG-002"),
)
def test_what_is_refused_leaves_the_last_edition(folder, line, code):
    assert typed(f"--new {NAMED}").return_value == 0
    before = (folder / "fleet.json").read_bytes()
    assert getattr(typed(line).exception, "code", None) == code
    assert (folder / "fleet.json").read_bytes() == before


def test_a_file_that_is_not_there(folder):
    assert typed("--zone z").exception
    assert not (folder / "fleet.json").exists()
