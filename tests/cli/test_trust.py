# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain trust``, as the people who hold root keys use it."""

import json
from datetime import UTC, datetime

import click
import pytest

from securetrain.cli.main import main
from securetrain.identity.cluster_ca import CERTIFICATE_FILE, ClusterCA
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole
from securetrain.identity.trustfolder import TrustFolder
from tests.tables import items


class Team:
    """Two people with root keys, one who trains, and the folder."""

    def __init__(self, folder):
        self.folder = folder
        self.trust = str(folder / "trust")
        self.keys = {
            name: PrivateKey.create(folder / f"{name}.pem") for name in ("r1", "r2", "r3", "w1")
        }
        for name, key in self.keys.items():
            (folder / f"{name}.pub").write_bytes(key.public.pem)

    def key(self, name):
        return ["--key", str(self.folder / f"{name}.pem")]

    def public(self, role, name):
        return ["--add", f"{role}={self.folder / name}.pub"]

    def init(self, *more):
        command = ["trust", "init", self.trust, *self.public("checkpoint", "w1")]
        return main([*command, "--threshold", "root=2", *more])


@pytest.fixture
def team(tmp_path, capsys):
    return Team(tmp_path)


def test_two_people_make_a_root_together(team, capsys):
    assert team.init(*team.key("r1"), *team.public("root", "r2"), "--json") == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["published"] is False
    assert outcome["missing"] == {"its own root keys": 1}
    assert TrustFolder(team.folder / "trust").newest() is None
    assert main(["trust", "sign", team.trust, *team.key("r3"), "--yes"]) == 0  # nobody
    assert "draft" in capsys.readouterr().out
    assert main(["trust", "sign", team.trust, *team.key("r2"), "--yes"]) == 0
    assert "version 1 is published" in capsys.readouterr().out
    newest = TrustFolder(team.folder / "trust").newest()
    assert newest is not None
    assert set(newest.keys_for(TrustRole.CHECKPOINT)) == {team.keys["w1"].key_id}
    assert team.init(*team.key("r1"), *team.key("r2")) == 2  # there is one
    assert "ST-USAG-005" in capsys.readouterr().err
    assert main(["trust", "sign", team.trust, *team.key("r1"), "--yes"]) == 2
    assert "there is no draft" in capsys.readouterr().err


def test_a_draft_is_shown_before_it_is_signed(team, capsys, monkeypatch):
    assert team.init(*team.key("r1"), *team.public("root", "r2")) == 0

    def no(*_, **__):
        raise click.Abort

    monkeypatch.setattr("click.confirm", no)
    assert main(["trust", "sign", team.trust, *team.key("r2")]) == 130
    assert team.keys["w1"].key_id in capsys.readouterr().out
    assert TrustFolder(team.folder / "trust").newest() is None


@pytest.fixture
def made(team):
    assert team.init(*team.key("r1"), *team.key("r2"), "--log-origin", "log.example") == 0
    return team


def test_a_root_key_is_replaced(made, capsys):
    old = made.keys["r1"].key_id
    command = ["trust", "rotate", made.trust, *made.public("root", "r3"), "--remove", f"root={old}"]
    assert main([*command, *made.key("r3"), *made.key("r2")]) == 0
    assert "1 more of the root keys of version 1" in capsys.readouterr().out
    assert main([*command, *made.key("r3")]) == 2  # one draft at a time
    assert main(["trust", "sign", made.trust, *made.key("r1"), "--yes"]) == 0
    capsys.readouterr()
    assert main(["trust", "show", f"{made.trust}/root.json", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == 2
    assert document["roles"]["root"]["keys"] == [made.keys[n].key_id for n in ("r2", "r3")]


def test_a_key_is_revoked_and_machines_follow(made, capsys):
    store = str(made.folder / "store")
    assert main(["trust", "update", store, "--pin", f"{made.trust}/root.json"]) == 0
    worker = made.keys["w1"].key_id
    both = [*made.key("r1"), *made.key("r2")]
    command = ["trust", "revoke", made.trust, worker[:12], "--reason", "stolen", *both]
    assert main([*command, "--valid-before", "7"]) == 0
    assert main(["trust", "update", store, "--from", made.trust]) == 0
    capsys.readouterr()
    assert main(["trust", "show", store]) == 0
    shown = capsys.readouterr().out
    assert "version 2" in shown
    assert f"{worker}  REVOKED" in shown
    assert "stolen; what was logged below 7 counts" in " ".join(shown.split())
    # The machine does not go back.
    (made.folder / "trust" / "2.root.json").unlink()
    assert main(["trust", "update", store, "--from", made.trust]) == 0
    assert "version 2 is trusted" in capsys.readouterr().out
    assert main(["trust", "update", store, "--pin", f"{made.trust}/1.root.json"]) == 2
    assert "ST-USAG-005" in capsys.readouterr().err


def test_a_leapt_over_version_is_refused(made, capsys):
    """T39, at the command line."""
    store = str(made.folder / "store")
    assert main(["trust", "update", store, "--pin", f"{made.trust}/root.json"]) == 0
    both = [*made.key("r1"), *made.key("r2")]
    for _ in range(2):
        assert main(["trust", "rotate", made.trust, *both]) == 0
    folder = made.folder / "trust"
    (folder / "3.root.json").replace(folder / "2.root.json")
    assert main(["trust", "update", store, "--from", made.trust]) == 12
    assert "ST-IDEN-016" in capsys.readouterr().err
    assert main(["trust", "rotate", made.trust, *both]) == 12  # nor is it built upon


def test_a_cluster_as_an_authority(made, capsys):
    folder = made.folder / "ca"
    ClusterCA.create(folder, "cluster.example", datetime.now(UTC), None).close()
    path = folder / CERTIFICATE_FILE
    both = [*made.key("r1"), *made.key("r2")]
    assert main(["trust", "rotate", made.trust, "--authority", f"checkpoint={path}", *both]) == 0
    assert main(["trust", "show", f"{made.trust}/root.json"]) == 0
    assert "checkpoint: also member of cluster.example, every job" in capsys.readouterr().out
    for bad in (",job=", ",job=a/b"):  # a job without a name would be every job
        assert main(["trust", "rotate", made.trust, "--authority", f"node={path}{bad}", *both]) != 0
    named = f"node={path},job=run-7"
    assert main(["trust", "rotate", made.trust, "--authority", named, "--apart", *both]) == 0
    assert main(["trust", "show", f"{made.trust}/root.json"]) == 0
    assert "node: also coordinator of cluster.example, run-7" in capsys.readouterr().out


@items(
    "arguments",
    ["--add", "nobody=x"],
    ["--add", "checkpoint"],
    ["--threshold", "root=two"],
    ["--remove", "checkpoint=abc"],
    ["--remove", "checkpoint=ffffffff"],
    ["--threshold", "checkpoint=9"],
)
def test_bad_arguments(arguments, made, capsys):
    command = ["trust", "rotate", made.trust, *made.key("r1"), *made.key("r2"), *arguments]
    assert main(command) in {2, 12}
    assert "error" in capsys.readouterr().err
    newest = TrustFolder(made.folder / "trust").newest()
    assert newest is not None
    assert newest.version == 1
    assert main(["trust", "update", str(made.folder / "store")]) == 2
