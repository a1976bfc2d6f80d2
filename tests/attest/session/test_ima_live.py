# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Packages of a live node are upgraded: a software TPM, its agent, renewals, editions of values.

Each test boots the machine, joins it with every measured file judged, and goes on from there.
"""

import dataclasses
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.fleet.ima_values import ImaChange, set_ima
from securetrain.attest.fleet.values import change_values
from securetrain.attest.session.appraisers import appraisers_for
from securetrain.attest.session.state import MemoryState
from securetrain.attest.session.values_watch import ValuesWatch
from securetrain.attest.session.verifier import Verifier
from securetrain.core.errors import AttestationError
from securetrain.evidence.binding import Binding
from securetrain.evidence.tpm.ima_keys import ImaKey
from securetrain.evidence.tpm.runtime_policy import ImaReference, ViolationMode, ViolationRule
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.policy import load_policy
from securetrain.testing.machine import (
    FILES,
    REFERENCE_FILE,
    Machine,
    reference_values,
    runtime_policy,
    write_policy,
)
from securetrain.testing.measurement_lists import measured_file
from securetrain.testing.signed_files import Maker
from tests import vocabulary
from tests.attest.swtpms import without_swtpm

pytestmark = [pytest.mark.tpm, without_swtpm]
OPERATOR = PrivateKey.generate()
KEY = PrivateKey.generate(KeyKind.P256)
AFTER = {**FILES, "/usr/bin/python3.11": b"the next interpreter", "/usr/bin/new": b"a new tool"}
WINDOW = timedelta(days=2)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with Machine(tmp_path_factory.mktemp("machine"), "node-0") as made:
        yield made


class Fleet:
    """One node under a coordinator that looks after its reference values."""

    def __init__(self, folder, machine):
        self.machine, self.seconds = machine, 0.0
        machine.files = dict(FILES)
        machine.reboot()
        self.now = datetime.now(UTC)
        self.file = folder / REFERENCE_FILE
        values = reference_values([machine], self.now, lifetime=timedelta(days=30))
        ima = ImaReference(policy=runtime_policy(FILES))
        values = msgspec.structs.replace(values, ima=ima)
        path = write_policy(folder, values, OPERATOR, ima="enforce")
        policy, state = load_policy(str(path)), MemoryState()
        self.operators = MemoryState()
        watch = ValuesWatch(
            policy=policy,
            state=state,
            clock=lambda: self.now,
            monotonic=lambda: self.seconds,
            refused=self.fail,
        )
        self.verifier = Verifier(
            policy=policy.policy,
            policy_digest=policy.digest,
            clock=lambda: self.now,
            monotonic=lambda: self.seconds,
            appraisers=appraisers_for(policy, self.now, state),
            watch=watch,
        )
        self.attester = machine.attester(KEY)
        self.sent = []

    def fail(self, error):
        raise AssertionError(error)

    def sign(self, **change):
        """The operator signs the next edition, and the coordinator's next look is due."""
        ordered = ImaChange(**change)
        change_values(
            self.file,
            lambda old: set_ima(old, ordered, self.now),
            key=OPERATOR,
            signed_by=(key_text(OPERATOR.public),),
            now=self.now,
            lifetime=None,
            state=self.operators,
        )
        self.seconds += 2

    def upgrade(self, **change):
        """The list of the packages after an upgrade, with the one before it for the window."""
        policy = ImaReference(policy=runtime_policy(AFTER))
        self.sign(policy=policy, former_until=self.now + WINDOW, **change)

    def ask(self):
        challenge = self.verifier.challenge("node-0", self.attester.keys())
        binding = Binding(
            nonce=challenge.nonce,
            session=bytes(16),
            job="job-1",
            client_spki=KEY.public.spki,
            server_spki=b"coordinator",
            exporter=bytes(32),
            ak_name=challenge.ak_name,
        )
        return challenge.ask, binding

    def renew(self, asked=None):
        """Join, or renew the lease; the claims about the TPM."""
        ask, binding = asked or self.ask()
        self.sent.append(ask.ima_first)
        evidence = self.attester.collect(binding, ask)
        result = self.verifier.appraise(evidence, binding, node="node-0", key=KEY.public)
        return result.submods["tpm"].claims

    def refused(self, code, asked=None):
        return vocabulary.refused(AttestationError, code, self.renew, asked)


@pytest.fixture
def fleet(tmp_path, machine):
    fleet = Fleet(tmp_path, machine)
    assert fleet.renew()["ima_entries"] == 4
    return fleet


def _install(machine):
    """What ``apt upgrade`` leads to: the new files are run, and old ones are still mapped."""
    for path, content in AFTER.items():
        if FILES.get(path) != content:
            machine.execute(path, content)


def test_an_upgrade_of_a_live_node(fleet, machine):
    fleet.upgrade()
    assert fleet.renew()["ima_entries"] == 4, "the list of the next packages bars nobody"
    _install(machine)
    assert fleet.renew()["ima_entries"] == 6
    machine.execute("/usr/bin/python3.11", FILES["/usr/bin/python3.11"])
    assert fleet.renew()["ima_entries"] == 7, "an old process maps the old file within the window"
    assert fleet.sent == [0, 0, 4, 6], "the new edition asks for all once, renewals for what is new"
    # Half of the fleet is not upgraded yet, some of it starts anew: it joins all the same.
    machine.reboot()
    fleet.verifier.release("node-0")
    fleet.renew()
    fleet.now += WINDOW + timedelta(hours=1)
    assert "python3.11" in fleet.refused("ST-ATTS-310").where
    machine.files = dict(AFTER)
    machine.reboot()
    fleet.attester = machine.attester(KEY)
    assert fleet.renew()["ima_entries"] == 5, "it was refused, and never barred"
    assert not fleet.verifier.state.revocations()


@pytest.mark.forgery
@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_foreign_binary_is_refused_at_the_next_lease(fleet, machine, when):
    """Also under a name of the upgrade, and whether or not a window is open."""
    if when != "before":
        fleet.upgrade()
        fleet.renew()
        _install(machine)
        fleet.renew()
    machine.execute("/usr/bin/new", b"not what the package has")
    if when == "after":
        machine.files = dict(AFTER)
        machine.reboot()
        fleet.now += WINDOW + timedelta(hours=1)
        fleet.verifier.release("node-0")
        fleet.attester = machine.attester(KEY)
        fleet.renew()
        machine.execute("/usr/bin/new", b"not what the package has")
    fleet.refused("ST-ATTS-309" if when == "before" else "ST-ATTS-310")
    fleet.refused("ST-ATTS-010")


@pytest.mark.forgery
def test_an_upgrade_that_was_not_signed_first_is_a_foreign_binary(fleet, machine):
    """The control of the story: what makes the difference is the operator's list, in time."""
    _install(machine)
    fleet.refused("ST-ATTS-310")


def test_an_edition_between_question_and_answer_bars_nobody(fleet, machine):
    asked = fleet.ask()
    machine.execute("/opt/train/train.py", FILES["/opt/train/train.py"])
    without = {path: data for path, data in FILES.items() if path != "/opt/train/train.py"}
    fleet.sign(policy=ImaReference(policy=runtime_policy(without)))
    fleet.ask()  # somebody else's question makes the coordinator look
    fleet.refused("ST-ATTS-309", asked)
    assert not fleet.verifier.state.revocations()
    fleet.sign(policy=ImaReference(policy=runtime_policy(FILES)))
    assert fleet.renew()["ima_entries"] == 5


def test_packages_that_their_maker_signs(fleet, machine):
    """No list before the upgrade: the maker's key is enough, in the kernel's keyring too."""
    maker = Maker(ec.generate_private_key(ec.SECP256R1()), "maker")
    stranger = Maker(ec.generate_private_key(ec.SECP256R1()), "stranger")
    fleet.sign(keys=(ImaKey(key=maker.pem),))
    fleet.renew()
    machine.measure(maker.loaded())
    machine.measure(maker.file("/usr/bin/signed", b"a signed tool"))
    assert fleet.renew()["ima_signed"] == 2
    machine.measure(stranger.file("/usr/bin/signed", b"another tool"))
    fleet.refused("ST-ATTS-312")
    fleet.refused("ST-ATTS-010")


@pytest.mark.forgery
def test_a_key_that_root_loads_into_the_keyring(fleet, machine):
    maker = Maker(ec.generate_private_key(ec.SECP256R1()), "maker")
    fleet.sign(keys=(ImaKey(key=maker.pem),))
    fleet.renew()
    machine.measure(Maker(ec.generate_private_key(ec.SECP256R1()), "maker").loaded())
    fleet.refused("ST-ATTS-313")


def test_violations_by_path_on_a_live_node(fleet, machine):
    rules = (
        ViolationRule(paths="/var/log/.*", mode=ViolationMode.WARN),
        ViolationRule(paths="/usr/.*", mode=ViolationMode.REFUSE),
    )
    fleet.sign(violations=rules)
    fleet.renew()
    machine.measure(dataclasses.replace(measured_file("/var/log/journal"), violation=True))
    claims = fleet.renew()
    assert claims["ima_warnings"] == claims["ima_violations"] == 1
    assert claims["ima_violated"] == "entry 5: /var/log/journal"
    machine.measure(dataclasses.replace(measured_file("/usr/bin/python3.11"), violation=True))
    fleet.refused("ST-ATTS-307")
    assert not fleet.verifier.state.revocations(), "the node is out, and not barred"
