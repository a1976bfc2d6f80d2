# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain ca``, ``enroll`` and ``coordinator``, as a person uses them.

Commands of README.md, docs/how-to/run-your-script.md, docs/how-to/two-nodes.md are tried here.
"""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.cli.jobs.options import node_range
from securetrain.cli.main import main
from securetrain.cli.signals import is_any
from securetrain.identity.cluster_ca import ClusterCA
from securetrain.rendezvous.member.identity_dir import load_identity


@pytest.fixture
def ca(tmp_path, capsys):
    assert main(["ca", "init", str(tmp_path / "ca")]) == 0
    capsys.readouterr()
    return str(tmp_path / "ca")


def now():
    return datetime.now(UTC)


def test_init_says_what_it_made(tmp_path, capsys):
    folder = str(tmp_path / "ca")
    assert main(["ca", "init", folder, "--trust-domain", "a.example", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["trust_domain"], facts["encrypted"]) == ("a.example", False)
    assert main(["ca", "init", folder]) == 2
    assert "ST-USAG-005" in capsys.readouterr().err


def test_an_identity_for_a_node(ca, tmp_path, capsys):
    out = tmp_path / "id"
    assert main(["ca", "issue", ca, "--job", "j", "--node", "n", "--out", str(out)]) == 0
    assert str(load_identity(out, now()).spiffe) == "spiffe://securetrain.local/job/j/node/n"
    assert main(["ca", "issue", ca, "--job", "j", "--node", "n", "--out", str(out)]) == 2
    assert "ST-USAG-005" in capsys.readouterr().err
    assert main(["ca", "list", ca, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["issued"]) == 1, "nothing was issued in vain"


def test_revoking(ca, tmp_path, capsys):
    def issue(out):
        return main(["ca", "issue", ca, "--job", "j", "--node", "n", "--out", str(tmp_path / out)])

    assert issue("id") == 0
    assert main(["ca", "revoke", ca, "--node", "n", "--reason", "sold"]) == 0
    assert issue("again") == 16
    assert "ST-IDEN-011" in capsys.readouterr().err
    assert main(["ca", "list", ca]) == 0
    out = capsys.readouterr().out
    assert out.startswith("revoked  spiffe://securetrain.local/job/j/node/n")
    assert "sold" in out


def test_revoking_a_serial_in_any_spelling(ca, tmp_path, capsys):
    assert main(["ca", "issue", ca, "--job", "j", "--node", "n", "--out", str(tmp_path / "i")]) == 0
    serial = f"{load_identity(tmp_path / 'i', now()).certificate.serial_number:x}"
    assert main(["ca", "revoke", ca, "--serial", f"00{serial.upper()}", "--json"]) == 0
    capsys.readouterr()
    assert main(["ca", "list", ca, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in document["issued"]] == ["revoked"]


def test_a_passphrase_from_a_file(tmp_path, capsys):
    secret, folder = tmp_path / "secret", str(tmp_path / "ca")
    secret.write_text("correct horse\n")
    assert main(["ca", "init", folder, "--passphrase-file", str(secret)]) == 0
    issue = ["ca", "issue", folder, "--job", "j", "--node"]
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong\n")
    out = ["--out", str(tmp_path / "a")]
    assert main([*issue, "a", *out, "--passphrase-file", str(wrong)]) == 2
    assert "ST-IDEN-001" in capsys.readouterr().err
    assert main([*issue, "a", *out, "--passphrase-file", str(secret)]) == 0
    assert main([*issue, "b", "--out", str(tmp_path / "b")]) == 0, "the job's CA is there now"
    wrong.write_text("\n")
    assert main(["ca", "revoke", folder, "--node", "a", "--passphrase-file", str(wrong)]) == 2


def test_a_passphrase_that_is_typed(tmp_path, monkeypatch):
    typed = iter(["correct horse", "correct horse"])
    monkeypatch.setattr("click.prompt", lambda *_, **__: next(typed))
    folder = str(tmp_path / "ca")
    assert main(["ca", "init", folder, "--encrypt"]) == 0
    assert main(["ca", "revoke", folder, "--node", "n"]) == 0
    assert next(typed, None) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["ca", "issue", "CA", "--job", "j"],
        ["ca", "issue", "CA", "--job", "j", "--node", "n", "--coordinator"],
        ["ca", "revoke", "CA"],
        ["ca", "revoke", "CA", "--node", "n", "--serial", "1"],
        ["coordinator", "--ca", "CA", "--job", "j", "--nnodes", "0"],
        ["coordinator", "--ca", "CA", "--job", "j", "--nnodes", "3:2"],
        ["coordinator", "--ca", "CA", "--job", "j", "--nnodes", "1", "--invite", "n"],
        [
            *("coordinator", "--ca", "CA", "--job", "j", "--nnodes", "1"),
            *("--bind", "0.0.0.0", "--enroll-port", "0"),
        ],
        ["enroll", "token", "--ca", "CA", "--job", "j", "--node", "n"],
        ["enroll", "token", "--ca", "CA", "--job", "j", "--node", "n", "--address", "nowhere"],
        ["enroll", "join", "st1_nonsense", "--out", "OUT"],
        ["ca", "list", "NONE"],
    ],
    ids=lambda value: " ".join(value)[:60],
)
def test_bad_usage(ca, tmp_path, arguments, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([ca if word == "CA" else word for word in arguments]) == 2
    assert capsys.readouterr().err.startswith("error ST-")
    assert not (tmp_path / "OUT").exists()


def test_numbers_of_nodes():
    assert node_range("2") == (2, 2)
    assert node_range("1:4") == (1, 4)


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_every_interface(address):
    assert is_any(address)
    assert not is_any("10.0.0.1")
    assert not is_any("head.example")


def test_a_folder_for_a_coordinator_elsewhere(ca, tmp_path):
    out = tmp_path / "there"
    assert main(["ca", "issue", ca, "--job", "j", "--coordinator", "--out", str(out)]) == 0
    assert not (out / "ca.pem").exists()
    there = ClusterCA.load(out, now())
    assert there.job("j", now(), there.key).job == "j"
    there.close()


class Running:
    """``securetrain coordinator --json`` in a process of its own."""

    def __init__(self, ca: str, cwd: Path, *more: str) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "securetrain", "coordinator", "--ca", ca, "--job", "run-7"),
                *("--nnodes", "2", "--policy", "dev", "--port", "0", "--json", *more),
            ],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def wait_for(self, event: str) -> dict[str, str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found: dict[str, str] = json.loads(line)
            if found["event"] == event:
                return found
        raise AssertionError(f"no {event}: {self.process.communicate()}")


@pytest.fixture
def running(ca, tmp_path):
    made = Running(ca, tmp_path, "--enroll-port", "0", "--invite", "node-0")
    yield made
    made.process.kill()
    made.process.communicate()


def test_three_commands_make_a_node(running, ca, tmp_path, capsys):
    ready = running.wait_for("ready")
    text = running.wait_for("token")["token"]
    assert main(["enroll", "join", text, "--out", str(tmp_path / "id")]) == 0
    assert running.wait_for("node-enrolled")["subject"].endswith("/run-7/node/node-0")
    assert main(["enroll", "join", text, "--out", str(tmp_path / "id-2")]) == 1
    assert "ST-ADMN-016" in capsys.readouterr().err
    # A second one, made by another process while the coordinator runs.
    assert main(["enroll", "token", "--ca", ca, "--job", "run-7", "--node", "b", "--json"]) == 0
    token = json.loads(capsys.readouterr().out)["token"]
    assert main(["enroll", "join", token, "--out", str(tmp_path / "b"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spiffe"].endswith("/run-7/node/b")
    assert ready["enrolment"]
    identity = load_identity(tmp_path / "id", now())
    assert identity.spiffe.node == "node-0"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_closed_ledger(running, tmp_path, number):
    running.wait_for("ready")
    running.process.send_signal(number)
    out, err = running.process.communicate(timeout=60)
    assert running.process.returncode == 130, err
    assert json.loads(out.splitlines()[-1])["event"] == "close"
    ledger = tmp_path / "runs/run-7-coordinator/ledger.jsonl"
    assert json.loads(ledger.read_bytes().splitlines()[-1])["body"]["event"]["event"] == "close"
