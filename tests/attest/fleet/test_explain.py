# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Refusals in words: from runs' ledgers and results, of software TPMs and for every code.

Commands of docs/how-to/share-a-fleet.md are tried here.
"""

import json
import random
import shlex
from datetime import UTC, datetime

import click
import msgspec
import pytest

from securetrain.attest.fleet import explain
from securetrain.attest.fleet.refusals import TEXT_LIMIT
from securetrain.attest.session.appraisers import appraisers_for
from securetrain.attest.session.state import MemoryState
from securetrain.attest.session.verifier import Verifier
from securetrain.cli.main import cli, main
from securetrain.core import RunDir
from securetrain.core.codes import CODES, Node
from securetrain.core.errors import AttestationError, IntegrityError, UsageError
from securetrain.evidence.binding import Binding
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.ledger import Ledger, events
from securetrain.policy import load_policy
from securetrain.rendezvous.coordinator.standalone import prepare
from securetrain.testing.machine import Machine as SoftwareMachine
from securetrain.testing.machine import reference_values as software_values
from securetrain.testing.machine import write_policy
from tests import vocabulary
from tests.attest.swtpms import without_swtpm
from tests.attest.worlds import World
from tests.evidence.tpm.forge import NOW
from tests.tables import each
from tests.vocabulary import changed, refused

DOMAIN = "securetrain.local"
ALL = sorted(code for code, row in CODES.items() if row.family == "ATTS")


def exists(step):
    """Whether a step that names a command of ours names one that there is."""
    words: list[str] = shlex.split(step)[1:]
    found: click.Command = cli
    for word in words:
        if not isinstance(found, click.Group):
            break
        given = found.get_command(click.Context(found), word)
        if given is None:
            return False
        found = given
    options = {name for one in found.params for name in one.opts}
    return all(word in options for word in words if word.startswith("--"))


@each("code", *ALL)
def test_every_refusal_of_evidence_has_an_explanation(code):
    (one,) = explain(code).refusals
    assert one.rule == CODES[code].title
    assert one.steps[0] == CODES[code].fix
    commands = [step for step in one.steps if step.startswith("securetrain ")]
    assert commands, "it says what to type"
    assert all(map(exists, commands)), commands
    assert any("attest restore" in step for step in commands) is CODES[code].bars_node


def refused_run(tmp_path, *errors):
    run = RunDir(tmp_path / "run-7")
    ledger = Ledger(run.ledger, prepare(run, load_policy("dev"), NOW), "c", lambda: NOW).begin()
    for error in errors:
        ledger.write(events.NodeRefused.of(error, f"spiffe://{DOMAIN}/job/run-7/node/node-0"))
    ledger.write(events.NodeLeft(subject="node-1"))
    return run


def changed_boots(count):
    """Refusals of machines whose boot was changed at random, a lease before it or not."""
    chance, found = random.Random(0), []
    for _ in range(count):
        world = World()
        if chance.random() < 0.5:
            world.join()
        world.machine.extend(chance.randrange(10), chance.randbytes(32))
        with pytest.raises(AttestationError) as caught:
            world.join()
        found.append(caught.value)
    return found


def test_refusals_of_a_run_name_register_found_and_expected(tmp_path):
    refusals = changed_boots(12)
    explained = explain(str(refused_run(tmp_path, *refusals).root))
    assert explained.signed
    assert len(explained.refusals) == 12
    for error, one in zip(refusals, explained.refusals, strict=True):
        assert one.code == error.code
        assert one.node == "node-0"
        assert one.found == error.what
        assert one.where == error.where
        assert one.at.startswith("2026-")
        assert "PCR" in f"{one.where} {one.found}" or one.code == "ST-ATTS-118"
        assert CODES[one.code].node in {Node.BARRED, Node.OUT}
    with_values = [step for one in explained.refusals for step in one.steps]
    assert any("attest values show" in step for step in with_values)


@pytest.mark.tpm
@without_swtpm
def test_refusals_of_a_software_tpm(tmp_path):
    """One that nobody has enrolled, and one with another boot than the one that was."""
    key, operator = PrivateKey.generate(KeyKind.P256), PrivateKey.generate()
    with SoftwareMachine(tmp_path / "node-0", "node-0", ca=tmp_path / "ca") as machine:
        machine.reboot()
        now = datetime.now(UTC)
        values = software_values([machine], now)
        nobody = msgspec.structs.replace(values, nodes={"node-9": values.nodes["node-0"]})
        unknown = changed(values, boot={"boot_applications": ("0" * 64,)})
        attester, found = machine.attester(key), []
        for number, given in enumerate((values, nobody, unknown)):
            folder = tmp_path / str(number)
            folder.mkdir()
            policy = load_policy(str(write_policy(folder, given, operator)))
            verifier = Verifier(
                policy=policy.policy,
                policy_digest=policy.digest,
                clock=lambda: now,
                appraisers=appraisers_for(policy, now, MemoryState()),
            )
            try:
                challenge = verifier.challenge("node-0", attester.keys())
                binding = Binding(
                    nonce=challenge.nonce,
                    session=bytes(16),
                    job="job-1",
                    client_spki=key.public.spki,
                    server_spki=b"coordinator",
                    exporter=bytes(32),
                    ak_name=challenge.ak_name,
                )
                evidence = attester.collect(binding, challenge.ask)
                verifier.appraise(evidence, binding, node="node-0", key=key.public)
            except AttestationError as error:
                found.append(error)
        assert [error.code for error in found] == ["ST-ATTS-012", "ST-ATTS-213"]
        owner, boot = explain(str(refused_run(tmp_path, *found).root)).refusals
        assert "node-0" in owner.where
        assert boot.where.startswith("PCR 4")
        assert "boot_applications" in boot.found
        assert any("--section boot" in step for step in boot.steps)


@pytest.mark.forgery
def test_a_ledger_that_was_changed_explains_nothing(tmp_path):
    run = refused_run(tmp_path, AttestationError("ST-ATTS-012"))
    run.ledger.write_bytes(run.ledger.read_bytes().replace(b"node-0", b"node-9"))
    refused(IntegrityError, "ST-LEDG-00", explain, str(run.root))


def test_the_json_of_a_result_and_of_a_coordinator(tmp_path, capsys):
    error = AttestationError("ST-ATTS-213", "\x1b[31mfound " + "x" * 5000, "PCR 4, event 17", "fix")
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"error": error.to_dict(), "node": "node-17", "ok": False}))
    explained = explain(str(result))
    assert not explained.signed
    (one,) = explained.refusals
    assert (one.node, one.where, one.steps[0]) == ("node-17", "PCR 4, event 17", "fix")
    assert len(one.found) == TEXT_LIMIT
    assert main(["attest", "explain", str(result)]) == 0
    shown = capsys.readouterr().out
    assert "PCR 4, event 17" in shown
    assert "not signed" in shown
    assert "\x1b[31m" not in shown
    result.write_text(json.dumps({"error": None, "node": "n", "open": ["freshness"]}))
    assert main(["attest", "explain", str(result), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["open"] == ["freshness"]
    line = {"event": "node-refused", "decision": "refuse", "subject": "n", "code": "ST-ATTS-012"}
    ready = {"event": "ready", "job": "j", "address": "a", "enrolment": ""}
    result.write_text(f"{json.dumps(ready)}\n{json.dumps(line | {'details': {'what': 'w'}})}\n")
    assert [one.found for one in explain(str(result)).refusals] == ["w"]


@pytest.mark.parametrize("text", ["", "x", "[]", '{"error": 1}', '{"error": {}}', "{}\n{}", "\xff"])
def test_what_is_no_result(tmp_path, text):
    file = tmp_path / "x.json"
    file.write_text(text)
    if not text:
        assert explain(str(file)).refusals == ()
        return
    vocabulary.refused(UsageError, "ST-USAG-001", explain, str(file))


@each("code", "ST-ATTS-000", "ST-ATTS-120", "ST-", "ST-ATTS-1")
def test_a_code_that_there_is_not(code):
    vocabulary.refused(UsageError, "ST-USAG-001", explain, code)


def test_what_is_not_there(tmp_path):
    vocabulary.refused(UsageError, "ST-USAG-002", explain, str(tmp_path / "none"))
