# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from securetrain.cli.main import main

REFERENCE = Path(__file__).parents[1] / "audit" / "fixtures" / "reference.json"


@pytest.fixture
def facts(tmp_path):
    """The reference node, collected just now, with changes."""

    def write(change=lambda document: None, *, age=timedelta()):
        document = json.loads(REFERENCE.read_text())
        document["collected"]["at"] = (datetime.now(UTC) - age).isoformat()
        change(document)
        path = tmp_path / "facts.json"
        path.write_text(json.dumps(document))
        return str(path)

    return write


def open_port(document):
    document["node"]["listeners"]["value"].append(
        {"address": "0.0.0.0", "port": 8888, "scope": "any", "uid": 0, "process": None}
    )


def deny_everything(document):
    for section in document["node"].values():
        section.update(outcome="denied", reason="no rights", value=None)


@pytest.mark.parametrize(
    ("change", "age", "code"),
    [
        (lambda document: None, timedelta(), 0),
        (open_port, timedelta(), 1),
        (deny_everything, timedelta(), 3),
        (open_port, timedelta(days=2), 4),
    ],
)
def test_exit_codes(facts, capsys, change, age, code):
    assert main(["audit", "--facts", facts(change, age=age), "--json"]) == code
    assert json.loads(capsys.readouterr().out)["exit_code"] == code


def test_text_says_what_to_fix_first_and_what_is_not_known(facts, capsys):
    def change(document):
        open_port(document)
        document["node"]["sysctls"] = {"outcome": "denied", "reason": "no rights", "value": None}

    assert main(["audit", "--facts", facts(change)]) == 1
    text = capsys.readouterr().out
    for part in (
        "Node node-a against policy baseline",
        "Fix first",
        "ST-NET-011 (high)",
        "node.listeners[0.0.0.0:8888]",
        "fix (an administrator)",
        "Not known (missing evidence is never a pass)",
        "no rights",
        "Not judged from one machine",
        "Exit code 1",
    ):
        assert part in text, part
    for boundary in ("identity", "host", "supply-chain", "debug"):
        assert f"\n{boundary}" in text
    assert "What this machine cannot pass" not in text


def test_a_folder_of_nodes_is_one_audit_that_names_each(facts, tmp_path, capsys):
    folder = tmp_path / "nodes"
    folder.mkdir()
    for name, change in (("gpu-1", open_port), ("gpu-2", lambda document: None)):

        def named(document, name=name, change=change):
            document["collected"]["hostname"] = name
            change(document)

        (folder / f"{name}.json").write_text(Path(facts(named)).read_text())
    assert main(["audit", "--facts", str(folder)]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "2 assets against policy baseline" in text
    assert "no one asked for (1 of 2)" in text
    assert "seen: node:gpu-1 node.listeners[0.0.0.0:8888]" in text
    assert "node:gpu-2" not in text


def test_a_laptop_is_told_what_it_cannot_pass(facts, capsys):
    def laptop(document):
        document["node"]["hardware"]["value"]["tpm"] = {
            "outcome": "absent", "reason": "does not exist", "value": None,
        }  # fmt: skip

    assert main(["audit", "--facts", facts(laptop)]) == 1
    text = capsys.readouterr().out
    assert "What this machine cannot pass" in text
    assert "UNATTESTED" in text
    assert main(["audit", "--facts", facts(laptop), "--policy", "dev"]) == 0


def test_waivers(facts, tmp_path, capsys):
    today = datetime.now(UTC).date()
    item = {
        "id": "W-1", "check": "ST-NET-011", "subject": "*", "ticket": "SEC-1",
        "justification": "a monitoring agent", "owner": "network", "approved_by": "security",
        "created": str(today), "expires": str(today + timedelta(days=10)),
    }  # fmt: skip
    path = tmp_path / "waivers.yaml"
    head = {"apiVersion": "securetrain.dev/policy/v1", "kind": "Waivers"}
    path.write_text(json.dumps(head | {"items": [item]}))
    assert main(["audit", "--facts", facts(open_port), "--waivers", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"W-1 for ST-NET-011, until {item['expires']}: applied" in text
    path.write_text(json.dumps(head | {"items": [item | {"approved_by": "network"}]}))
    assert main(["audit", "--facts", facts(open_port), "--waivers", str(path)]) == 1
    assert "rejected: approved by its owner" in capsys.readouterr().out
    path.write_text("nothing")
    assert main(["audit", "--facts", facts(open_port), "--waivers", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ST-AUDT-003"


def test_malformed_facts_are_an_integrity_error(facts, capsys):
    path = facts(lambda document: document.update(extra=1))
    assert main(["audit", "--facts", path, "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ST-AUDT-002"


@pytest.mark.parametrize(
    "args",
    [[], ["--node", "--facts", "x"], ["--facts", "x", "--save-facts", "y"], ["--policy", "gone"],
     ["--node", "--policy", "gone"]],
)  # fmt: skip
def test_a_bad_command_line(args, capsys):
    assert main(["audit", *args]) == 2
    assert "fix:" in capsys.readouterr().err


def test_skipped_checks_are_said(facts, tmp_path, capsys):
    policy = tmp_path / "p.yaml"
    policy.write_text(
        "extends: baseline\napiVersion: securetrain.dev/policy/v1\nkind: Policy\n"
        "metadata: {id: p, version: 1.0.0}\nhost: {skip_checks: [ST-NET-011, ST-NET-999]}\n"
    )
    assert main(["audit", "--facts", facts(open_port), "--policy", str(policy)]) == 0
    text = capsys.readouterr().out
    assert "Skipped by the policy: ST-NET-011" in text
    assert "names no such check: ST-NET-999" in text


def test_list(capsys):
    assert main(["audit", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) >= 20
    assert {"id", "title", "severity", "boundary", "evidence", "remediation", "threats"} <= set(
        rows[0]
    )
    assert main(["audit", "--list"]) == 0
    assert rows[0]["id"] in capsys.readouterr().out


def test_this_node_without_torch_and_facts_that_are_judged_again(tmp_path):
    saved = tmp_path / "facts.json"
    code = (
        "import sys; from securetrain.cli.main import main;"
        f" code = main(['audit', '--node', '--save-facts', {str(saved)!r}, '--json']);"
        " heavy = {'torch', 'numpy', 'rich'} & set(sys.modules);"
        " sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    first = json.loads(done.stdout)
    assert done.returncode == first["exit_code"], done.stderr
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    again = subprocess.run(
        [sys.executable, "-m", "securetrain", "audit", "--facts", str(saved), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    second = json.loads(again.stdout)
    assert second["assets"] == first["assets"]
    assert second["findings"] == first["findings"]
