# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import errno
import json
import os
import re
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from securetrain.cli.main import main
from tests.audit.conftest import named
from tests.tables import items

REFERENCE = Path(__file__).parents[1] / "audit" / "fixtures" / "reference.json"


AGENT = {"pid": 1, "name": "agent", "loads_torch": False, "program": "other", "tensorpipe": False}


@pytest.fixture
def facts(tmp_path):
    """The reference node, collected just now, with changes."""

    def write(change=lambda document: None, *, age=timedelta()):
        document = json.loads(REFERENCE.read_text())
        document["collected"]["at"] = (datetime.now(UTC) - age).isoformat()
        begins, ends = (datetime.now(UTC) + timedelta(hours=n) for n in (-1, 20))
        for one in document["node"]["identities"]["value"]:
            for name in ("anchor", "certificate"):
                one[name]["value"] |= {"begins": begins.isoformat(), "ends": ends.isoformat()}
        change(document)
        path = tmp_path / "facts.json"
        path.write_text(json.dumps(document))
        return str(path)

    return write


def open_port(document):
    document["node"]["listeners"]["value"].append(
        {"address": "0.0.0.0", "port": 8888, "scope": "any", "uid": 0, "process": AGENT}
    )


def deny_everything(document):
    for section in document["node"].values():
        section.update(outcome="denied", reason="no rights", value=None)


@items(
    "change, age, code",
    (lambda document: None, timedelta(), 0),
    (open_port, timedelta(), 1),
    (deny_everything, timedelta(), 3),
    (open_port, timedelta(days=2), 4),
)
def test_exit_codes(facts, capsys, change, age, code):
    assert main(["audit", "--facts", facts(change, age=age), "--unsigned", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["exit_code"] == code


def test_text_says_what_to_fix_first_and_what_is_not_known(facts, capsys):
    def change(document):
        open_port(document)
        document["node"]["sysctls"] = {"outcome": "denied", "reason": "no rights", "value": None}

    assert main(["audit", "--facts", facts(change), "--unsigned"]) == 1
    text = capsys.readouterr().out
    for part in (
        "node node-a",
        "policy     baseline",
        "\nnetwork\n  fail     ST-NET-011  high ",
        "listener 0.0.0.0:8888",
        "fix: (an administrator)",
        "unknown  ST-HST-006",
        "no rights",
        "passed  everywhere: identity ",
        "fix first  ST-NET-011 (high)",
        "Missing evidence is unknown, never a pass",
        "\nnot looked at\n",
        "Exit code 1",
    ):
        assert part in text, part
    assert "What this machine cannot pass" not in text


def test_a_folder_of_nodes_is_one_audit_that_names_each(facts, tmp_path, capsys):
    folder = tmp_path / "nodes"
    folder.mkdir()
    for name, change in (("gpu-1", open_port), ("gpu-2", lambda document: None)):
        document = json.loads(Path(facts(change)).read_text())
        (folder / f"{name}.json").write_text(json.dumps(named(document, name)))
    assert main(["audit", "--facts", str(folder), "--unsigned"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("FINDINGS 2 nodes 1 fail, ")
    assert "1 of 2 nodes" in text
    assert "gpu-1, listener 0.0.0.0:8888" in text
    assert "gpu-2, listener" not in text


def test_a_laptop_is_told_what_it_cannot_pass(facts, capsys):
    def laptop(document):
        document["node"]["hardware"]["value"]["tpm"] = {
            "outcome": "absent", "reason": "does not exist", "value": None,
        }  # fmt: skip

    assert main(["audit", "--facts", facts(laptop), "--unsigned"]) == 1
    text = capsys.readouterr().out
    assert "What this machine cannot pass" in text
    assert "UNATTESTED" in text
    assert main(["audit", "--facts", facts(laptop), "--unsigned", "--policy", "dev"]) == 0


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
    assert main(["audit", "--facts", facts(open_port), "--unsigned", "--waivers", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"applied W-1 ST-NET-011 until {item['expires']}" in " ".join(text.split())
    path.write_text(json.dumps(head | {"items": [item | {"approved_by": "network"}]}))
    assert main(["audit", "--facts", facts(open_port), "--unsigned", "--waivers", str(path)]) == 1
    assert "rejected W-1 ST-NET-011" in (text := " ".join(capsys.readouterr().out.split()))
    assert "approved by its owner" in text
    path.write_text("nothing")
    assert (
        main(["audit", "--facts", facts(open_port), "--unsigned", "--waivers", str(path), "--json"])
        == 2
    )
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ST-AUDT-003"


def test_malformed_facts_are_an_integrity_error(facts, capsys):
    path = facts(lambda document: document.update(extra=1))
    assert main(["audit", "--facts", path, "--unsigned", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ST-AUDT-002"


@items(
    "args",
    [], ["--node", "--facts", "x"], ["--facts", "x", "--save-facts", "y"], ["--policy", "gone"],
     ["--node", "--policy", "gone"], ["--node", "--new-only"],
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
    assert main(["audit", "--facts", facts(open_port), "--unsigned", "--policy", str(policy)]) == 0
    text = capsys.readouterr().out
    assert "skipped  by the policy: ST-NET-011" in text
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


def test_what_an_audit_judges_by_is_signed_for(facts, tmp_path, capsys):
    """The attack: a policy that fails on nothing turns exit 1 into exit 0."""
    from securetrain.identity.keys import PrivateKey

    key = PrivateKey.generate()
    key.save(tmp_path / "me.pem")
    (tmp_path / "me.pub").write_bytes(key.public.pem)
    policy = tmp_path / "p.yaml"
    head = "extends: baseline\napiVersion: securetrain.dev/policy/v1\nkind: Policy\n"
    policy.write_text(head + "metadata: {id: p, version: 1.0.0}\n")
    pins = ["--pins", str(tmp_path / "audit.pins"), "--pins-key"]
    judged = ["audit", "--facts", facts(open_port), "--unsigned", "--policy", str(policy)]
    assert main(["audit", "pins", "--policy", str(policy), *pins, str(tmp_path / "me.pem")]) == 0
    assert "wrote" in capsys.readouterr().out
    public = [*pins, str(tmp_path / "me.pub")]
    assert main([*judged, *public]) == 1
    policy.write_text(policy.read_text() + "host: {skip_checks: [ST-NET-011]}\n")
    assert main(judged) == 0, "the control: nobody sees it"
    capsys.readouterr()
    assert main([*judged, *public, "--json"]) == 4
    result = json.loads(capsys.readouterr().out)
    (found,) = [one for one in result["findings"] if one["check"] == "ST-AUD-004"]
    assert (found["subject"], found["severity"]) == ("pins[policy]", "critical")
    # another list of advisories, other checks, and pins that somebody else signed
    own = tmp_path / "own.yaml"
    own.write_text(
        "apiVersion: securetrain.dev/policy/v1\nkind: Advisories\n"
        "metadata: {id: own, version: 1.0.0}\ndated: 2026-11-18\nitems:\n"
        "- {id: SITE-1, package: ray, affected: '<2', summary: our fork is broken}\n"
    )
    main(["audit", "new", "ST-ABC-001", "--checks", str(tmp_path / "checks")])
    more = ["--advisories", str(own), "--checks", str(tmp_path / "checks")]
    capsys.readouterr()
    assert main([*judged, *more, *public, "--json"]) == 4
    result = json.loads(capsys.readouterr().out)
    named = {one["subject"] for one in result["findings"] if one["check"] == "ST-AUD-004"}
    assert named == {"pins[policy]", "pins[checks]", "pins[advisories]"}
    stranger = PrivateKey.generate()
    (tmp_path / "other.pub").write_bytes(stranger.public.pem)
    assert main([*judged, *pins, str(tmp_path / "other.pub")]) == 4
    assert "is not signed by the key" in " ".join(capsys.readouterr().out.split())
    assert main([*judged, "--pins", str(tmp_path / "audit.pins")]) == 2
    assert main(["audit", "pins"]) == 2


@pytest.mark.parametrize("wrong", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_an_output_that_cannot_be_written_is_one_error_and_no_part_of_a_file(
    facts, tmp_path, capsys, monkeypatch, wrong
):
    def fail(*_args):
        raise OSError(wrong, os.strerror(wrong))

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.html").write_text("last week's")
    asked = ["audit", "--facts", facts(open_port), "--unsigned"]
    monkeypatch.setattr(os, "fsync", fail)
    assert main([*asked, "--out", str(tmp_path / "out" / "a.html")]) == 20
    said = capsys.readouterr()
    assert (said.err.count("fix:"), said.out) == (1, "")
    assert "a.html" in said.err
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["a.html"]
    assert (tmp_path / "out" / "a.html").read_text() == "last week's"


def test_questions_without_a_check_are_said_wherever_a_result_is(facts, capsys):
    from securetrain.audit import NOT_JUDGED, load_checks

    assert not set(NOT_JUDGED) & {check.id for check in load_checks()}
    main(["audit", "--facts", facts(), "--unsigned"])
    page = " ".join(capsys.readouterr().out.split())
    for name, one in NOT_JUDGED.items():
        assert name in page
        assert main(["audit", "--explain", name.lower()]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert one.because in text
        assert "no check answers this" in text


def test_this_node_without_torch_and_facts_that_are_judged_again(tmp_path):
    saved = tmp_path / "facts.json"
    code = (
        "import sys; from securetrain.cli.main import main;"
        f" code = main(['audit', '--node', '--save-facts', {str(saved)!r}, '--json']);"
        " heavy = {'torch', 'numpy', 'rich', 'jinja2', 'xml.etree.ElementTree'} & set(sys.modules);"
        " sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    first = json.loads(done.stdout)
    assert done.returncode == first["exit_code"], done.stderr
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    again = subprocess.run(
        [
            sys.executable,
            "-m",
            "securetrain",
            "audit",
            "--facts",
            str(saved),
            "--unsigned",
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    second = json.loads(again.stdout)
    assert second["assets"] == first["assets"]
    assert second["findings"] == first["findings"]


def test_what_an_earlier_audit_had_is_known(facts, tmp_path, capsys):
    def other_port(document):
        open_port(document)
        document["node"]["listeners"]["value"][-1]["port"] = 9999

    base = tmp_path / "base.json"
    assert main(["audit", "--facts", facts(open_port), "--unsigned", "--out", str(base)]) == 1
    known = ["--baseline", str(base)]
    assert main(["audit", "--facts", facts(open_port), "--unsigned", *known]) == 1
    assert re.search(r"0 new, \d known, 0 gone", " ".join(capsys.readouterr().out.split()))
    assert main(["audit", "--facts", facts(open_port), "--unsigned", *known, "--new-only"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "ST-NET-011" not in text
    assert "Only what is new counts" in text
    assert (
        main(["audit", "--facts", facts(other_port), "--unsigned", *known, "--new-only", "--json"])
        == 1
    )
    result = json.loads(capsys.readouterr().out)
    assert result["baseline"]["gone"] >= 1
    assert not any(one["known"] for one in result["findings"] if "9999" in one["subject"])
    base.write_text("{}")
    assert main(["audit", "--facts", facts(open_port), "--unsigned", *known, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ST-AUDT-004"
    assert main(["audit", "--facts", facts(open_port), "--unsigned", "--new-only"]) == 2
    assert "--baseline" in capsys.readouterr().err


def test_one_audit_in_every_format(facts, tmp_path, capsys):
    files = [tmp_path / f"a{ending}" for ending in (".json", ".sarif", ".xml", ".html", ".md")]
    asked = [word for file in files for word in ("--out", str(file))]
    assert main(["audit", "--facts", facts(open_port), "--unsigned", *asked]) == 1
    for file in files:
        assert "ST-NET-011" in file.read_text()
    capsys.readouterr()
    for name, file in zip(("sarif", "junit", "html", "markdown"), files[1:], strict=True):
        assert main(["audit", "--facts", facts(open_port), "--unsigned", "--format", name]) == 1
        assert capsys.readouterr().out[:9] == file.read_text()[:9]
    assert (
        main(["audit", "--facts", facts(open_port), "--unsigned", "--out", str(tmp_path / "a.pdf")])
        == 2
    )
    assert ".sarif" in capsys.readouterr().err


def test_all_lists_what_passed_too(facts, capsys):
    assert main(["audit", "--facts", facts(), "--unsigned", "--all"]) == 0
    text = capsys.readouterr().out
    assert "pass            ST-NET-011" in text
    assert "--all" not in text


@pytest.mark.parametrize("columns", [40, 60, 80, 140, 300])
def test_no_line_is_wider_than_eighty_columns_where_there_is_no_terminal(
    facts, capsys, monkeypatch, columns
):
    monkeypatch.setenv("COLUMNS", str(columns))

    def deny(document):
        open_port(document)
        deny_everything(document)

    for extra in ([], ["--all"]):
        main(["audit", "--facts", facts(deny), "--unsigned", *extra])
        lines = capsys.readouterr().out.splitlines()
        assert all(len(one) <= 80 or len(one.split()) == 1 for one in lines), "no terminal: 80"


def test_signed_facts_from_collection_to_judgement(tmp_path, capsys):
    from securetrain.identity.keys import PrivateKey

    nonce = "4f1ac2d77e09b35d"
    key = PrivateKey.generate()
    key.save(tmp_path / "node.key")
    (tmp_path / "node.pub").write_bytes(key.public.pem)
    saved = tmp_path / "facts.json"
    made = ["--save-facts", str(saved), "--sign-key", str(tmp_path / "node.key")]
    main(["audit", "--node", *made, "--nonce", nonce, "--json"])
    own = json.loads(capsys.readouterr().out)
    inventory = tmp_path / "inventory.yaml"
    asset = own["assets"][0]["asset"]
    inventory.write_text(
        "apiVersion: securetrain.dev/policy/v1\nkind: Inventory\nassets:\n"
        f"- {{asset: '{asset}', key_files: [node.pub]}}\n"
    )
    asked = ["audit", "--facts", str(saved), "--inventory", str(inventory), "--json"]
    assert main([*asked, "--nonce", nonce]) == own["exit_code"]
    result = json.loads(capsys.readouterr().out)
    assert result["findings"] == own["findings"]
    assert main([*asked, "--nonce", nonce[::-1]]) == 4
    result = json.loads(capsys.readouterr().out)
    assert {"ST-AUD-005", "ST-AUD-006"} == {one["check"] for one in result["findings"]}
    assert main(["audit", "--facts", str(saved), "--unsigned"]) == own["exit_code"]
    assert "unsigned facts were accepted" in " ".join(capsys.readouterr().out.split())


def test_a_nonce_from_issue_to_replay_and_an_enrolled_nodes_signature(tmp_path, capsys):
    import socket

    from securetrain.identity import JobCA
    from securetrain.rendezvous.member import write_identity

    ca = JobCA.create("example.org", "job-1", datetime.now(UTC))
    write_identity(tmp_path / "identity", ca, socket.gethostname(), datetime.now(UTC))
    store, saved = tmp_path / "nonces", tmp_path / "facts.json"
    assert main(["audit", "nonce", "--nonce-store", str(store)]) == 0
    out = capsys.readouterr()
    nonce = out.out.strip()
    assert "good for one audit" in out.err
    signed = ["--sign-identity", str(tmp_path / "identity"), "--nonce", nonce]
    own = main(["audit", "--node", "--save-facts", str(saved), *signed, "--json"])
    asset = json.loads(capsys.readouterr().out)["assets"][0]["asset"]
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(
        "apiVersion: securetrain.dev/policy/v1\nkind: Inventory\nauthorities:\n"
        f"- {{file: identity/ca.crt}}\nassets:\n- {{asset: '{asset}'}}\n"
    )
    asked = ["audit", "--facts", str(saved), "--inventory", str(inventory)]
    asked += ["--nonce-store", str(store)]
    assert main([*asked, "--json"]) == own
    assert json.loads(capsys.readouterr().out)["problems"] == []
    assert main(asked) == 4
    assert "it is a replay" in " ".join(capsys.readouterr().out.split())


def test_files_and_slurm_are_saved_and_judged_again(tmp_path, capsys):
    (tmp_path / "exports").write_text("/data *(rw,no_root_squash)\n")
    (tmp_path / "pod.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
        "spec: {containers: [{name: c, image: x, securityContext: {privileged: true}}]}\n"
    )
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/slurm.conf").write_text("ClusterName=x\nAuthType=auth/none\n")
    given = ["-f", str(tmp_path / "exports"), str(tmp_path / "pod.yaml")]
    given += ["--slurm", str(tmp_path / "slurm"), "--json"]
    assert main(["audit", *given, "--save-facts", str(tmp_path / "set")]) == 1
    first = json.loads(capsys.readouterr().out)
    assert main(["audit", "--facts", str(tmp_path / "set"), "--unsigned", "--json"]) == 1
    again = json.loads(capsys.readouterr().out)
    for name in ("findings", "assets", "coverage", "counts"):
        assert again[name] == first[name]
    assert main(["audit", *given, "--save-facts", str(tmp_path / "set")]) == 2
    assert "choose another name" in capsys.readouterr().out


@items(
    "args",
    ["--node", "--unsigned"], ["--node", "--sign-key", "x"], ["--facts", "{}", "--nonce", "short"],
     ["--node", "--inventory", "{}"], ["--node", "--nonce-store", "{}"], ["nonce"],
     ["nonce", "more", "--nonce-store", "{}"], ["--nonce-store", "{}"],
     ["--node", "--sign-identity", "{}"], ["--facts", "{}", "--unsigned", "--nonce-store", "{}"],
)  # fmt: skip
def test_signing_options_that_make_no_sense(facts, args, capsys):
    path = facts()
    assert main(["audit", *(path if one == "{}" else one for one in args)]) == 2
    assert "fix:" in capsys.readouterr().err


def test_files_take_all_words_up_to_the_next_option(tmp_path, capsys):
    names = [tmp_path / name for name in ("exports", "old.exports", "new.exports")]
    for name in names:
        name.write_text("/data *(rw,no_root_squash)\n")
    words = [str(name) for name in names]
    assert main(["audit", "-f", *words, "--policy", "baseline", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    found = ["cluster:files", *sorted(f"storage:{one}" for one in words)]
    assert [one["asset"] for one in result["assets"]] == found
    failed = {one["location"]["path"] for one in result["findings"] if one["state"] == "fail"}
    assert failed == set(words)
    assert main(["audit", f"--files={words[0]}", "-f", words[1], "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["assets"]) == 3


def test_files_and_facts_are_one_audit(facts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exports = tmp_path / "exports"
    exports.write_text("/data *(rw,no_root_squash)\n")
    assert main(["audit", "--facts", facts(), "--unsigned", "-f", "exports"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("FINDINGS 1 node, 1 storage configuration")
    assert "exports:1, export /data for *" in text
    assert "note unsigned facts were accepted" in text


def test_a_folder_without_anything_to_judge_is_never_clean(tmp_path, capsys):
    (tmp_path / "README.md").write_text("nothing")
    assert main(["audit", "-f", str(tmp_path), "-v"]) == 3
    text = " ".join(capsys.readouterr().out.split())
    assert "nothing was judged" in text
    assert "no check asks for .md files" in text
    assert main(["audit", "-f", str(tmp_path / "gone")]) != 0


def test_an_audit_that_judges_nothing_is_incomplete(facts, tmp_path, capsys):
    policy = tmp_path / "p.yaml"
    main(["audit", "--list", "--json"])
    every = [one["id"] for one in json.loads(capsys.readouterr().out)]
    policy.write_text(
        "extends: baseline\napiVersion: securetrain.dev/policy/v1\nkind: Policy\n"
        f"metadata: {{id: p, version: 1.0.0}}\nhost: {{skip_checks: [{', '.join(every)}]}}\n"
    )
    assert main(["audit", "--facts", facts(), "--unsigned", "--policy", str(policy)]) == 3
    assert "nothing was judged" in " ".join(capsys.readouterr().out.split())


def test_a_slurm_configuration_with_an_include_that_is_not_here(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "slurm.conf").write_text("ClusterName=prod\nInclude site.conf\n")
    (tmp_path / "slurm" / "cgroup.conf").write_text("ConstrainCores=yes\n")
    assert main(["audit", "--slurm", "slurm"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("FINDINGS Slurm cluster prod")
    assert re.search(r"slurm/cgroup.conf:? ConstrainDevices is", text)
    cause = text.index("unknown slurm/slurm.conf:2 includes site.conf, which is not here")
    assert cause < text.index("ST-SLM-001 critical")
    assert "coverage Slurm's files 2/3" in text
    assert "unknown file" in text[text.index("not read") :]
    assert main(["audit", "--slurm", "slurm", "--all"]) == 1
    assert "ST-SLM-001 critical" in " ".join(capsys.readouterr().out.split())
    assert main(["audit", "--slurm", "gone"]) != 0


def test_a_check_is_explained(capsys):
    assert main(["audit", "--explain", "ST-NET-011"]) == 0
    text = capsys.readouterr().out
    for part in (
        "ST-NET-011",
        "Looks at: ",
        "Passes where",
        "no element of node.listeners has",
        "allowed_ports",
        "a policy sets it",
        "To fix it",
        "Threats: T-",
        "network.yaml",
    ):
        assert part in text, part
    assert main(["audit", "--explain", "ST-NET-999"]) == 2
    capsys.readouterr()
    assert main(["audit", "--explain", "ST-NET-011", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "node"


def test_every_check_can_be_explained():
    from securetrain.audit import load_checks
    from securetrain.audit.engine.predicates import _OPS
    from securetrain.report import checks, written
    from securetrain.report.pages.checks import _OPERATORS

    assert {*_OPS, "exists", "missing"} == set(_OPERATORS)
    for check in load_checks():
        assert len(written(checks.explanation(check), "text").splitlines()) > 8, check.id


def test_a_check_of_ones_own_from_nothing_to_a_finding(facts, tmp_path, capsys):
    folder = str(tmp_path / "checks")
    assert main(["audit", "new", "ST-ABC-001", "--checks", folder]) == 0
    assert "st-abc-001.yaml" in capsys.readouterr().out
    path = facts()
    assert main(["audit", "--facts", path, "--unsigned", "--checks", folder, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "ST-ABC-001" in {one["check"] for one in found}
    for wrong in (["new"], ["new", "abc"], ["old", "ST-ABC-001"], ["new", "ST-ABC-001", "x"]):
        assert main(["audit", *wrong, "--checks", folder]) == 2


def test_advisories_of_ones_own(facts, tmp_path, capsys):
    def old_ray(document):
        document["node"]["packages"]["value"]["ray"] = {"version": "2.60.0"}

    path = tmp_path / "own.yaml"
    path.write_text(
        "apiVersion: securetrain.dev/policy/v1\nkind: Advisories\n"
        f"metadata: {{id: own, version: 1.0.0}}\ndated: {datetime.now(UTC).date()}\nitems:\n"
        "- {id: SITE-1, package: ray, affected: '<3', summary: our fork is broken}\n"
    )
    given = ["audit", "--facts", facts(old_ray), "--unsigned", "--json"]
    assert main(given) == 0
    capsys.readouterr()
    assert main([*given, "--advisories", str(path)]) == 1
    assert "SITE-1" in capsys.readouterr().out


def on_a_terminal(*options: str) -> str:
    """What a command writes to a terminal's standard error."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "securetrain", "audit", *options]
    done = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    told = b""
    try:
        while data := os.read(ours, 1 << 16):
            told += data
    except OSError:  # nobody has the other end any more
        pass
    done.wait()
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told.decode())


def test_a_terminal_is_told_what_is_done_of_how_much(tmp_path, facts):
    for number in range(3):
        text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a{number}}}\n"
        (tmp_path / f"{number}.yaml").write_text(text)
    told = on_a_terminal("-f", str(tmp_path), "--facts", facts())
    assert re.search(r"reading files .* 4/4 0:00:", told)
    assert re.search(r"judging .* [0-9]+/[0-9]+ 0:00:", told)
    assert on_a_terminal("-q", "-f", str(tmp_path)) == ""
