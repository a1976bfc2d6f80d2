# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A fleet's desk for tests: the real record, doorkeeper and listener; machines of the forger."""

import contextlib
from datetime import timedelta
from typing import Any

from securetrain.attest.fleet.bundle import Bundle, Question, collect_bundle, key_text
from securetrain.attest.fleet.desk import Desk
from securetrain.attest.fleet.doorkeeper import Asked, Doorkeeper, Knock
from securetrain.attest.fleet.enrollment import Roots
from securetrain.attest.fleet.guest_list import Guest, make_fleet_tokens
from securetrain.attest.fleet.intake import Intake
from securetrain.attest.fleet.token import FleetToken, channel_nonce, knock_statement
from securetrain.attest.session.state import MemoryState
from securetrain.identity.keys import PrivateKey
from securetrain.rendezvous.coordinator.fleet_desk import FleetDesk, Seen
from securetrain.rendezvous.member.fleet_entry import prove_to_fleet
from tests.attest.bundles import Collector
from tests.attest.small_fleet import MAKER_CA, Machine
from tests.evidence.tpm.forge import NOW

ROOTS = Roots(hardware=(MAKER_CA.pem,))
OPERATOR = PrivateKey.generate()
EXPORTER = bytes(range(32))


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
