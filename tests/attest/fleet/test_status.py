# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A fleet at a moment: nodes, leases, bars, what ends; and what cannot be read.

Commands of docs/how-to/share-a-fleet.md are tried here.
"""

import json
from contextlib import closing
from datetime import timedelta

import msgspec
import pytest
from click.testing import CliRunner

from securetrain.attest.fleet import fleet_status
from securetrain.attest.session import Revocation
from securetrain.attest.session.cache import Item, build_cache
from securetrain.attest.session.fleet_state import FleetState
from securetrain.attest.session.reference_file import write_reference_values
from securetrain.cli.fleet import command
from securetrain.cli.main import main
from securetrain.core import RunDir
from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import CollateralKind
from securetrain.identity import ClusterCA, How, Role
from securetrain.identity.keys import PrivateKey
from securetrain.ledger import Ledger, events
from securetrain.policy import load_policy
from securetrain.rendezvous.coordinator.standalone import prepare
from securetrain.report import fleet
from securetrain.report import html as pages
from securetrain.testing.machine import REFERENCE_FILE, write_policy
from tests.attest.worlds import Machine, World, reference_values
from tests.evidence.tpm.forge import NOW
from tests.vocabulary import refused

DOMAIN = "securetrain.local"
KEY = PrivateKey.generate()


@pytest.fixture
def policy(tmp_path):
    values = reference_values(Machine())
    values = msgspec.structs.replace(
        values,
        nodes={
            **values.nodes,
            "never-seen": msgspec.structs.replace(
                next(iter(values.nodes.values())), ek_names=("ek:" + "cd" * 34,)
            ),
        },
    )
    path = write_policy(tmp_path, values, KEY, tier="tpm", extends="hardened")
    path.write_text(path.read_text().replace('"file":', '"cache": "cache", "file":'))
    item = Item(
        kind=CollateralKind.AMD_CHAIN,
        id="Milan-VCEK",
        data=b"x",
        fetched=NOW,
        expires=NOW + timedelta(days=3),
    )
    build_cache(tmp_path / "cache", [item], KEY, NOW, NOW + timedelta(days=30))
    return load_policy(str(path))


@pytest.fixture
def state(tmp_path):
    with closing(FleetState(tmp_path / "state" / "fleet", DOMAIN)) as made:
        yield made


def run_of(tmp_path, policy, *said):
    run = RunDir(tmp_path / "run-7")
    ledger = Ledger(run.ledger, prepare(run, policy, NOW), "coordinator", lambda: NOW).begin()
    for event in said:
        ledger.write(event)
    return run.root


def spiffe(name):
    return f"spiffe://{DOMAIN}/job/run-7/node/{name}"


def admitted(name, tier=NodeTier.TPM):
    return events.NodeAdmitted(subject=spiffe(name), tier=tier)


def test_what_is_shown_is_what_was_proven(tmp_path, policy, state):
    machine = Machine()
    World(machine, state=state).join()
    state.revoke(Revocation(subject=f"ek:{machine.ek_name}", reason="it <i>lied</i>", since="then"))
    run = run_of(
        tmp_path,
        policy,
        admitted("node-0"),
        admitted("gone"),
        events.NodeLeft(subject=spiffe("gone")),
        admitted("guest", NodeTier.SELF_ASSERTED),
    )
    found = fleet_status(state, NOW, policy=policy, runs=[run])
    nodes = {node.name: node for node in found.nodes}
    assert list(nodes) == ["gone", "guest", "never-seen", "node-0"]
    node = nodes["node-0"]
    assert node.tier is NodeTier.TPM
    assert node.lease == NOW + timedelta(minutes=policy.policy.node.lease_minutes)
    assert node.evidence == NOW
    assert node.barred == "it <i>lied</i>", "by its hardware"
    assert nodes["never-seen"].enrolled
    assert nodes["never-seen"].evidence is None
    assert nodes["gone"].lease is None
    assert not nodes["guest"].enrolled
    assert found.leases == 2
    assert [one.kind for one in found.soon] == ["reference values", "collateral"][
        -len(found.soon) :
    ]
    assert not found.problems
    html = pages.render(fleet.status_page(found))
    assert "UNATTESTED" in html
    assert "it &lt;i&gt;lied" in html
    assert "<script" not in html
    assert fleet.status_page(found).exit_code == 3


def test_what_is_accepted_until_a_day_ends_with_that_day(tmp_path, policy, state):
    """A page that said "nothing ends soon" beside a kernel of two days was found by looking."""
    values = msgspec.structs.replace(
        reference_values(Machine("node-0")),
        version=9,
        until={
            "": {"/vmlinuz old": NOW + timedelta(days=2), "/vmlinuz gone": NOW - timedelta(days=2)}
        },
    )
    write_reference_values(tmp_path / REFERENCE_FILE, values, KEY)
    found = fleet_status(state, NOW, policy=policy)
    assert ("accepted value", "/vmlinuz old") in {(one.kind, one.name) for one in found.soon}
    assert not any("gone" in one.name for one in found.endings)
    assert not found.complete


def test_a_closed_job_holds_no_lease(tmp_path, policy, state):
    run = run_of(tmp_path, policy, admitted("node-0"), events.JobClosed(subject="run-7"))
    assert fleet_status(state, NOW, policy=policy, runs=[run]).leases == 0


def test_certificates_and_tokens_of_the_ca(tmp_path, state):
    now = NOW
    ca = ClusterCA.create(tmp_path / "ca", DOMAIN, now)
    with closing(ca):
        job = ca.job("run-7", now, lambda: ca.key(None))
        key = PrivateKey.generate().public
        ca.issue(job, Role.NODE, key, now, node="n-1", lifetime=timedelta(hours=1), how=How.COMMAND)
    found = fleet_status(state, now, ca=tmp_path / "ca")
    names = [one.name for one in found.endings]
    assert any("n-1" in name for name in names)
    assert f"the CA of {DOMAIN}" in names
    assert [one.kind for one in found.soon] == ["certificate"]


@pytest.mark.parametrize("what", ["values", "cache", "run", "ca"])
def test_what_cannot_be_read_is_told_and_is_no_empty_list(tmp_path, policy, state, what):
    run = run_of(tmp_path, policy, admitted("node-0"))
    if what == "values":
        next(tmp_path.glob("*reference*")).write_bytes(b"{}")
    elif what == "cache":
        (tmp_path / "cache" / "index.json").write_bytes(b"{}")
    elif what == "run":
        path = RunDir(run).ledger
        path.write_bytes(path.read_bytes().replace(b"node-0", b"node-9"))
    found = fleet_status(
        state, NOW, policy=policy, runs=[run], ca=tmp_path / "none" if what == "ca" else None
    )
    assert len(found.problems) == 1
    assert "ST-" in found.problems[0]
    assert not found.complete
    if what == "run":
        assert all(node.tier is None for node in found.nodes)


@pytest.mark.forgery
def test_a_state_that_was_edited_shows_nothing(state, policy):
    import sqlite3

    state.revoke(Revocation(subject="node:a/b", reason="it lied", since="then"))
    with closing(sqlite3.connect(state.folder / "state.sqlite")) as database, database:
        database.execute("DELETE FROM revoked")
    refused(AttestationError, "ST-ATTS-017", fleet_status, state, NOW, policy=policy)


def test_the_command(tmp_path, policy, state, monkeypatch, capsys):
    monkeypatch.setenv("SECURETRAIN_STATE", str(tmp_path / "state"))
    state.revoke(Revocation(subject="node:a/b", reason="it lied", since="then"))
    page = tmp_path / "fleet.html"
    file = str(next(tmp_path.glob("*.yaml")))
    code = main(["fleet", "status", "--policy", file, "--html", str(page), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 3
    assert found["version"] >= 1
    assert [node["name"] for node in found["nodes"]] == ["never-seen", "node-0"]
    assert page.read_text().startswith("<!doctype html>")
    assert main(["fleet", "status"]) == 3, "without a policy nobody says who is enrolled"
    told = capsys.readouterr().out
    assert "node:a/b" in told
    assert "no policy was named" in told
    assert CliRunner().invoke(command, ["--help"]).exit_code == 0
