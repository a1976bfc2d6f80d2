# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain log``: the way of a statement into a log, and out of it as a proof.

Commands of docs/how-to/rotate-a-key.md are tried here.
"""

import json
import shutil

import pytest

from securetrain.cli.main import main
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey

ORIGIN = "log.example/team"


class Place:
    """Keys, a trust root with two of three witnesses, a log, and statements."""

    def __init__(self, folder):
        self.folder = folder
        names = ("root", "signer", "log", "w0", "w1", "w2")
        self.keys = {name: PrivateKey.create(folder / f"{name}.pem") for name in names}
        for name, key in self.keys.items():
            (folder / f"{name}.pub").write_bytes(key.public.pem)
        roles = [("checkpoint", "signer"), ("log", "log")]
        roles += [("witness", f"w{n}") for n in range(3)]
        adds = [word for role, name in roles for word in ("--add", f"{role}={folder / name}.pub")]
        command = ["trust", "init", str(folder / "trust"), "--key", self.key("root"), *adds]
        assert main([*command, "--threshold", "witness=2", "--log-origin", ORIGIN]) == 0
        assert self.run("init", "--origin", ORIGIN, "--key", self.key("log"), trust=False) == 0

    def key(self, name):
        return str(self.folder / f"{name}.pem")

    def run(self, verb, *arguments, trust=True, log="log"):
        place = [] if verb == "verify" else [str(self.folder / log)]
        root = ["--trust", str(self.folder / "trust" / "root.json")] if trust else []
        return main(["log", verb, *place, *arguments, *root])

    def statement(self, text):
        path = self.folder / f"{text}.json"
        path.write_bytes(dsse.sign(text.encode(), "application/example", [self.keys["signer"]]))
        return str(path)

    def append(self, *texts, log="log"):
        paths = [self.statement(text) for text in texts]
        return self.run("append", *paths, "--key", self.key("log"), log=log)

    def witness(self, number, *more, log="log"):
        state = ["--state", str(self.folder / f"state-{number}")]
        name = ["--name", f"node-{number}.example", "--key", self.key(f"w{number}")]
        return self.run("witness", *name, *state, *more, log=log)


@pytest.fixture
def place(tmp_path, capsys):
    place = Place(tmp_path)
    capsys.readouterr()
    return place


def test_into_a_log_and_out_of_it(place, capsys):
    assert place.append("a", "b") == 0
    assert [place.witness(0), place.witness(1)] == [0, 0]
    capsys.readouterr()
    assert place.run("checkpoint", "--all", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["size"], len(facts["witnesses"])) == (2, 2)
    statement = place.statement("b")
    assert place.run("prove", statement) == 0
    shutil.rmtree(place.folder / "log")  # the proof is enough
    capsys.readouterr()
    assert place.run("verify", statement, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["index"], facts["origin"]) == (1, ORIGIN)
    assert place.run("verify", statement, "--max-age-hours", "1") == 0
    # Another statement does not get in by its proof.
    proof = ["--proof", f"{statement}.tlog-proof"]
    capsys.readouterr()
    assert place.run("verify", place.statement("c"), *proof) == 18
    assert "ST-IDEN-041" in capsys.readouterr().err


def test_too_few_witnesses(place, capsys):
    assert place.append("a") == 0
    assert place.witness(0) == 0
    for command in (["checkpoint"], ["prove", place.statement("a")]):
        assert place.run(*command) == 18
        assert "ST-IDEN-044" in capsys.readouterr().err
    assert place.witness(0) == 0  # the same one again is not another one
    assert place.run("checkpoint") == 18


def test_a_second_history_finds_no_witness(place, capsys):
    assert place.append("a") == 0
    shutil.copytree(place.folder / "log", place.folder / "fork")
    assert place.append("b") == 0
    assert [place.witness(0), place.witness(1)] == [0, 0]
    assert place.append("planted", log="fork") == 0
    capsys.readouterr()
    assert place.witness(0, log="fork") == 18
    assert "ST-IDEN-043" in capsys.readouterr().err
    shutil.rmtree(place.folder / "fork")
    shutil.copytree(place.folder / "log", place.folder / "fork")
    assert place.append("c") == 0
    assert place.witness(0) == 0
    assert place.witness(0, log="fork") == 18
    assert "ST-IDEN-042" in capsys.readouterr().err


def test_a_witness_that_cannot_write_to_the_log(place, capsys):
    assert place.append("a") == 0
    shutil.copytree(place.folder / "log", place.folder / "copy")
    capsys.readouterr()
    assert place.witness(0, "--json", "--print", log="copy") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["size"], facts["added"]) == (1, False)
    assert facts["line"].startswith("\u2014 node-0.example ")
    assert place.witness(0, "--print", log="copy") == 0
    line = place.folder / "line"
    line.write_text(capsys.readouterr().out)
    assert place.witness(1) == 0
    assert place.run("checkpoint", "--add", str(line)) == 0


def test_what_is_not_logged(place, capsys):
    assert place.append("a") == 0
    assert place.run("prove", place.statement("b")) == 18
    assert "ST-IDEN-041" in capsys.readouterr().err
    stranger = place.folder / "stranger.json"
    stranger.write_bytes(dsse.sign(b"x", "application/example", [PrivateKey.generate()]))
    assert place.run("append", str(stranger), "--key", place.key("log")) == 12
    assert "ST-IDEN-003" in capsys.readouterr().err
    stranger.write_text("{}")
    assert place.run("append", str(stranger), "--key", place.key("log")) == 10
    good = place.statement("b")
    assert place.run("append", good, "--key", place.key("w0")) == 18  # not the log's key


def test_a_damaged_log(place, capsys):
    assert place.append("a") == 0
    path = place.folder / "log" / "tile" / "0" / "000.p" / "1"
    path.write_bytes(bytes(32))
    assert place.append("b") == 18
    assert "ST-IDEN-045" in capsys.readouterr().err


def test_a_log_is_not_begun_twice(place, capsys):
    arguments = ["--origin", ORIGIN, "--key", place.key("log")]
    assert place.run("init", *arguments, trust=False) == 2
    assert "ST-USAG-005" in capsys.readouterr().err


def test_the_key_of_this_machine(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SECURETRAIN_STATE", str(tmp_path / "state"))
    assert main(["log", "witness-key"]) == 0
    spki = capsys.readouterr().out.strip()
    assert main(["log", "witness-key", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["key"] == spki
    kept = PrivateKey.load(tmp_path / "state" / "witness.pem")
    assert kept.public.key_id == again["key_id"]
    # As a policy takes it.
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "extends: dev\napiVersion: securetrain.dev/policy/v1\nkind: Policy\n"
        "metadata: {id: mine, version: 1.0.0}\n"
        f"checkpoint: {{log: {{witnesses: [{spki}]}}}}\n"
    )
    assert main(["policy", "lint", str(policy)]) == 0
