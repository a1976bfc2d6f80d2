# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet`` as an operator uses it; the machines are the forger's.

Commands of docs/how-to/attest-a-fleet.md are tried here.
"""

import json
import signal
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest

from securetrain.attest.fleet.token import parse_fleet_token
from securetrain.cli.main import main
from securetrain.core.errors import AdmissionError
from securetrain.rendezvous.member.fleet_entry import prove_to_fleet
from securetrain.testing.bootlog import Boot
from tests.attest.worlds import MAKER_CA, Collector, Machine

WAIT = 240
VALUES = ("--reference-values", "fleet.json", "--key", "operator.pem")


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs a command in a folder of its own; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("SECURETRAIN_STATE", str(tmp_path / "state"))
    (tmp_path / "maker.pem").write_text(MAKER_CA.pem)

    def run(*arguments):
        capsys.readouterr()
        code = main(["fleet", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def serve(run, tmp_path):
    """Starts ``fleet serve`` in a process; gives its events as they come."""
    started: list[subprocess.Popen[str]] = []
    timers: list[threading.Timer] = []

    def serve(*arguments):
        command = [sys.executable, "-m", "securetrain", "fleet", "serve", "--json"]
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", *map(str, arguments)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        timer = threading.Timer(WAIT, process.kill)  # whatever happens, a test ends
        timer.start()
        timers.append(timer)
        assert process.stdout is not None
        return process, (json.loads(line) for line in process.stdout)

    yield serve
    for timer in timers:
        timer.cancel()
    for process in started:
        process.kill()
        process.communicate()


def come(token_text, machine):
    """The machine's side."""
    return prove_to_fleet(
        parse_fleet_token(token_text),
        Collector(machine),
        machine.key,
        clock=lambda: datetime.now(UTC),
    )


def token_for(run, node, *more):
    code, out, _ = run("admit", "--node", node, *more)
    assert code == 0
    return out.strip()


def refused(result, code):
    exit_code, out, err = result
    assert f"error {code}:" in err, result
    assert out == ""
    return exit_code


def test_a_desk_that_runs_and_an_operator_who_looks_and_signs(run, serve, tmp_path):
    process, events = serve("--root", "maker.pem", "--coordinator", "10.0.0.1:29400")
    ready = next(events)
    assert ready["event"] == "ready"
    machines = [Machine(f"node-{n}") for n in range(3)]
    machines[2].boot(Boot(kernel=b"another kernel"))
    for machine in machines:
        _, kept = come(token_for(run, machine.name, "--group", "image"), machine)
        assert kept.coordinator == "10.0.0.1:29400"
        event = next(events)
        assert (event["event"], event["node"]) == ("proven", machine.name)
    code, out, _ = run("show", "--json")
    assert code == 0
    assert [one["node"] for one in json.loads(out)["waiting"]] == ["node-0", "node-1", "node-2"]
    code, out, _ = run("show")
    assert code == 0
    assert out.count("image group image") == 2, "two boots are two parts of the page"
    # They do not agree: a person names those that are good.
    code, out, _ = run("sign", "--all", *VALUES)
    assert code == 3
    assert "do not boot the same" in " ".join(out.split())
    assert not (tmp_path / "fleet.json").exists()
    assert run("sign", "node-0", *VALUES)[0] == 0
    code, out, _ = run("sign", "--all", *VALUES, "--json")
    assert code == 3
    taken = json.loads(out)
    assert [one["name"] for one in taken["nodes"]] == ["node-1"]
    assert [one["node"] for one in taken["held"]] == ["node-2"]
    assert run("show", "node-2")[0] == 0
    assert run("reject", "node-2")[0] == 0
    assert json.loads(run("show", "--json")[1])["waiting"] == []
    assert refused(run("sign", "node-2", *VALUES), "ST-USAG-001") == 2
    code, out, _ = run("decisions", "--json", "node-0", "node-2")
    assert code == 0
    assert [(one["node"], one["event"]) for one in json.loads(out)["decisions"]] == [
        ("node-0", "fleet-token-made"),
        ("node-0", "machine-proven"),
        ("node-2", "fleet-token-made"),
        ("node-2", "machine-proven"),
        ("node-0", "machine-enrolled"),
        ("node-2", "machine-rejected"),
    ]
    assert "machine-enrolled" in run("decisions")[1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT) == 130


def test_a_rule_signs_while_they_come(run, serve, tmp_path):
    process, events = serve("--root", "maker.pem", *VALUES, "--auto-sign", "first")
    assert next(events)["event"] == "ready"
    first, odd = Machine("node-0"), Machine("node-1")
    odd.boot(Boot(kernel=b"another kernel"))
    text = token_for(run, "node-0", "--group", "image")
    _, kept = come(text, first)
    assert len(kept.signed_by) == 1
    assert {next(events)["event"], next(events)["event"]} == {"proven", "signed"}
    come(token_for(run, "node-1", "--group", "image"), odd)
    assert {next(events)["event"], next(events)["event"]} == {"proven", "held"}
    with pytest.raises(AdmissionError) as caught:
        come(text, first)
    assert caught.value.code == "ST-ADMN-016"
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT) == 130
    code, out, _ = run("show", "--json", "--reference-values", "fleet.json", "--signed-by",
                       kept.signed_by[0])  # fmt: skip
    assert code == 0
    (waits,) = json.loads(out)["waiting"]
    assert waits["node"] == "node-1"
    assert set(waits["adds"]) == {"boot_applications", "loaded_files"}


def test_a_list_becomes_a_private_file_of_tokens(run, tmp_path):
    (tmp_path / "nodes.csv").write_text("node,group\nn-1,\nn-2,other\n")
    arguments = ("admit", "--csv", "nodes.csv", "--group", "image", "--out", "tokens.csv")
    code, out, err = run(*arguments, "--advertise", "desk.example.org:29500")
    assert (code, out) == (0, "")
    assert "2 nodes" in err
    assert stat.S_IMODE((tmp_path / "tokens.csv").stat().st_mode) == 0o600
    head, *rows = (tmp_path / "tokens.csv").read_text().splitlines()
    assert head == "node,token"
    tokens = [parse_fleet_token(row.partition(",")[2]) for row in rows]
    assert [(one.node, one.group) for one in tokens] == [("n-1", "image"), ("n-2", "other")]
    assert (tokens[0].host, tokens[0].port) == ("desk.example.org", 29500)
    assert refused(run(*arguments), "ST-USAG-005") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("admit",),
        ("admit", "--node", "n", "--csv", "x.csv"),
        ("admit", "--csv", "x.csv", "--ek", "ab"),
        ("admit", "--node", "n"),
        ("admit", "--node", "n", "--advertise", "0.0.0.0:1"),
        ("admit", "--node", "n", "--key", "operator.pem"),
        ("admit", "--node", "n", "--reference-values", "fleet.json"),
        ("admit", "--node", "n", "--auto-sign", "same"),
        ("serve", "--listen", "nowhere"),
        ("show", "--reference-values", "fleet.json"),
        ("sign", *VALUES),
        ("sign", "n", "--all", *VALUES),
        ("reject", "n"),
    ],
    ids=range(13),
)
def test_a_bad_command_line(run, tmp_path, arguments):
    assert refused(run(*arguments), "ST-USAG-001") == 2
    assert not (tmp_path / "operator.pem").exists()
    assert not (tmp_path / "fleet.json").exists()


def test_what_is_wrong_in_a_list_is_named(run, tmp_path):
    (tmp_path / "nodes.csv").write_text("node\nn-1\nn-1\n")
    result = run("admit", "--csv", "nodes.csv", "--advertise", "h:1")
    assert refused(result, "ST-ADMN-024") == 2
    assert "line 3" in result[2]
    assert refused(run("admit", "--node", "a b", "--advertise", "h:1"), "ST-ADMN-024") == 2
    assert refused(run("join", "sf1_nonsense"), "ST-IDEN-014") == 2


def test_a_key_is_never_made_beside_a_file_that_another_one_signed(run, tmp_path):
    (tmp_path / "fleet.json").write_text("{}")
    result = run("sign", "--all", "--reference-values", "fleet.json", "--key", "typo.pem")
    assert result[0] != 0
    assert "error ST-" in result[2]
    assert not (tmp_path / "typo.pem").exists()
