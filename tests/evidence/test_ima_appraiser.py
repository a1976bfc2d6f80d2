# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Measurement lists in parts, in whole exchanges; `test_a_list_in_parts` is the control."""

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.node_evidence import ImaParts, cut_list
from securetrain.policy.schema import ImaMode
from tests import vocabulary
from tests.attest.worlds import Machine, World, node_policy
from tests.tables import forgeries


class Exchange:
    """One machine that announces its list, and what it is asked for."""

    def __init__(self, **policy):
        self.world = World(Machine("node-0"), policy=node_policy(**policy))
        self.machine = self.world.machine
        self.asked = []

    def join(self, change=lambda tpm: tpm, *, fetch=True, **quoted):
        ask, binding = self.world.ask()
        said = self.machine.collect(binding, ask, **quoted)
        assert said.tpm is not None
        assert said.tpm.ima is not None
        parts = cut_list(said.tpm.ima.entries)
        announced = ImaParts.of(ask.ima_first, parts)
        tpm = msgspec.structs.replace(said.tpm, ima=None, ima_parts=announced)
        said = msgspec.structs.replace(said, tpm=change(tpm))

        def give(index, digest):
            assert digest == announced.digest(index)
            self.asked.append(index)
            return parts[index]

        return self.world.verifier.appraise(
            self.machine.sign(said, binding),
            binding,
            node=self.machine.name,
            key=self.machine.key.public,
            fetch=give if fetch else None,
        )

    def refused(self, code, *args, **how):
        error = vocabulary.refused(AttestationError, code, self.join, *args, **how)
        assert not self.asked, "it was asked for before everything else held"
        return error


def test_a_list_in_parts():
    exchange = Exchange()
    result = exchange.join()
    assert result.tier is NodeTier.TPM
    exchange.machine.execute("/usr/bin/new-tool", b"started during the lease")
    renewed = exchange.join()
    claims = [one.submods["tpm"].claims["ima_entries"] for one in (result, renewed)]
    assert claims[1] == claims[0] + 1
    assert exchange.asked == [0, 0]


def test_a_list_that_the_policy_does_not_want_is_not_asked_for():
    exchange = Exchange(tpm={"ima": ImaMode.OFF})
    assert exchange.join().tier is NodeTier.TPM
    assert not exchange.asked


def test_where_nobody_can_be_asked_an_announcement_is_no_list():
    error = Exchange().refused("ST-ATTS-013", fetch=False)
    assert "only announced" in error.what
    assert error.where == "node.tpm.ima_parts"


@pytest.mark.forgery
def test_a_list_as_a_whole_and_in_parts():
    exchange = Exchange()
    ask, binding = exchange.world.ask()
    said = exchange.machine.collect(binding, ask).tpm
    assert said is not None
    whole = said.ima
    exchange.refused("ST-ATTS-001", lambda tpm: msgspec.structs.replace(tpm, ima=whole))


@forgeries(
    "field, code",
    ("activation", "ST-ATTS-016"),
    ("signature", "ST-ATTS-111"),
    ("event_log", "ST-ATTS-013"),
)
def test_evidence_that_does_not_hold_is_asked_for_nothing(field, code):
    def change(tpm):
        data = getattr(tpm, field)
        altered = data[:-1] + bytes([data[-1] ^ 1]) if field != "event_log" else b""
        return msgspec.structs.replace(tpm, **{field: altered})

    Exchange().refused(code, change)


@pytest.mark.forgery
def test_a_list_that_leads_elsewhere_bars_during_a_lease():
    """As a whole list does: the announcement is no way around it."""
    exchange = Exchange()
    exchange.join()
    exchange.machine.execute("/usr/bin/new-tool", b"x")
    exchange.machine.extend(10, bytes(range(32)))
    vocabulary.refused(AttestationError, "ST-ATTS-306", exchange.join)
    vocabulary.refused(AttestationError, "ST-ATTS-010", exchange.join)
