# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A fleet's desk for tests: the real record, doorkeeper and listener; machines of the forger."""

import contextlib
import copy
from datetime import timedelta
from typing import Any

from securetrain.attest.fleet.bundle import (
    Bundle,
    Question,
    Verdict,
    collect_bundle,
    key_text,
    make_question,
    verify_bundle,
)
from securetrain.attest.fleet.desk import Desk
from securetrain.attest.fleet.doorkeeper import Asked, Doorkeeper, Knock
from securetrain.attest.fleet.enrollment import Roots
from securetrain.attest.fleet.guest_list import Guest, make_fleet_tokens
from securetrain.attest.fleet.intake import Intake
from securetrain.attest.fleet.token import FleetToken, channel_nonce, knock_statement
from securetrain.attest.session.cache import CachedCollateral
from securetrain.attest.session.state import MemoryState
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.node_appraiser import NodeAppraiser
from securetrain.evidence.reference import ReferenceValues, SignedReferenceValues
from securetrain.evidence.tpm.keys import AK_TEMPLATE
from securetrain.identity.keys import PrivateKey
from securetrain.rendezvous.coordinator.fleet_desk import FleetDesk, Seen
from securetrain.rendezvous.member.fleet_entry import prove_to_fleet
from securetrain.testing.bootlog import Boot
from tests.attest.worlds import MAKER_CA, Collector, Machine, bundle_of, node_policy
from tests.evidence.tpm.forge import NOW, make_key

ROOTS = Roots(hardware=(MAKER_CA.pem,))
OPERATOR = PrivateKey.generate()
EXPORTER = bytes(range(32))
BACK_DOOR = Boot(kernel=b"a kernel with a back door")


class Office:
    """A desk in a folder, with a clock that a test moves, and an operator."""

    def __init__(self, folder, *, roots=ROOTS):
        self.folder, self.now = folder, NOW
        self.state = MemoryState()
        self.desk = Desk(folder / "admission", self.state)
        self.desk.configure(NOW, roots=roots)
        self.intake = Intake(
            path=folder / "fleet.json",
            key=OPERATOR,
            signed_by=(key_text(OPERATOR.public),),
            state=self.state,
            clock=lambda: self.now,
        )
        self.keeper = self.make_keeper()
        self.seen: list[Seen] = []
        self.address = ("127.0.0.1", 29500)

    def make_keeper(self):
        return Doorkeeper(
            self.desk, clock=lambda: self.now, values=self.intake.current, state=self.state
        )

    def reopen(self):
        """Another process with the same folder."""
        self.desk.close()
        self.desk = Desk(self.folder / "admission", self.state)
        self.keeper = self.make_keeper()

    @contextlib.contextmanager
    def open(self, **how: Any):
        """The real listener, on loopback."""
        served = FleetDesk(self.keeper, clock=lambda: self.now, tell=self.seen.append, **how)
        self.address = served.start("127.0.0.1", 0)
        try:
            yield served
        finally:
            served.stop()

    def tokens(self, *guests: Guest, hours: float = 24, **how: Any) -> list[FleetToken]:
        ends = self.now + timedelta(hours=hours)
        return make_fleet_tokens(self.desk, guests, self.address, ends=ends, now=self.now, **how)

    def token(self, node: str = "node-4", group: str = "", ek: str = "", **how: Any) -> FleetToken:
        return self.tokens(Guest(node=node, group=group, ek=ek), **how)[0]

    def join(self, token: FleetToken, machine: Machine, attester: Any = None):
        """The whole exchange, over TLS."""
        return prove_to_fleet(
            token, attester or Collector(machine), machine.key, clock=lambda: self.now
        )

    # The same without a connection.

    def ask(self, token: FleetToken, machine: Machine, exporter: bytes = EXPORTER, **changes: Any):
        keys = changes.pop("keys", machine.keys())
        return self.keeper.ask(knock(token, machine, keys, exporter, **changes), exporter)

    def prove(self, token: FleetToken, machine: Machine, attester: Any = None):
        """The whole exchange, within this process."""
        asked = self.ask(token, machine)
        return self.keeper.judge(asked, answer(asked, token, machine, attester), "192.0.2.1:1")


def knock(token, machine, keys, exporter=EXPORTER, **changes: Any) -> Knock:
    secret, spki = token.key, machine.key.public.spki
    signed = knock_statement(secret.key_id, spki, keys, exporter)
    fields = {
        "token": secret.key_id,
        "key": machine.key.public,
        "keys": keys,
        "proof": secret.sign(signed),
        "possession": machine.key.sign(signed),
    }
    return Knock(**{**fields, **changes})


def answer(
    asked: Asked, token: FleetToken, machine: Machine, attester: Any = None, exporter=EXPORTER
) -> Bundle:
    """What a machine computes from its own view of the connection."""
    spki = machine.key.public.spki
    question = Question(
        node=token.node,
        nonce=channel_nonce(asked.fresh, exporter, token.pin, token.key.key_id, spki),
        credential=asked.question.credential,
    )
    return collect_bundle(
        attester or Collector(machine), machine.key.public, NOW, question, asked_itself=False
    )


def appraiser(values: ReferenceValues, **policy: Any) -> NodeAppraiser:
    """A job's appraiser by these values."""
    signed = SignedReferenceValues(values=values, digest="ab" * 32, where="v", signed_by={})
    return NodeAppraiser(node_policy(**policy).node, signed, CachedCollateral(None), NOW)


def verdict(machine: Machine, values: ReferenceValues, **policy: Any) -> Verdict:
    """What a job's verifier says to a fresh answer."""
    judge = appraiser(values, **policy)
    secret = make_question(bundle_of(machine), judge, NOW)
    answered, minute = bundle_of(machine, answer_to=secret), timedelta(minutes=1)
    return verify_bundle(answered, judge, secret=secret, policy="", lease=minute, now=NOW)


def judged(machine: Machine, values: ReferenceValues, **policy: Any) -> NodeTier:
    """The tier of a fresh answer."""
    found = verdict(machine, values, **policy)
    assert bool(found.open) is (found.result.tier is NodeTier.TEST_ONLY)
    return found.result.tier


def impostor(machine: Machine, what: Boot = BACK_DOOR) -> Any:
    """The machine's public parts, an attestation key of a program, and an invented boot."""
    forged: Any = copy.copy(machine)
    forged.tpm = copy.copy(machine.tpm)
    forged.tpm.ak = make_key(AK_TEMPLATE, 3)
    forged.open = lambda ask, value: b"" if ask.credential is None else bytes(32)
    forged.boot(what)
    return forged
