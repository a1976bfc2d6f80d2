# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Measurement lists that come in parts: what they prove is what the whole list proves.

`test_parts_prove_what_the_whole_list_proves` is the control of every forgery.
"""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence import node_evidence
from securetrain.evidence.node_evidence import ImaParts, cut_list
from securetrain.evidence.tpm.ima import ImaState, Progress, TemplateCache
from securetrain.evidence.tpm.ima_list import MAX_DATA
from securetrain.evidence.tpm.ima_parts import Segment, appraise_parts
from securetrain.evidence.tpm.ima_violations import Violations
from securetrain.testing.measurement_lists import (
    Measurement,
    aggregate,
    encode_ima,
    measured_buffer,
    measured_file,
    replayed,
)
from tests import vocabulary
from tests.evidence.tpm.test_ima import BOOT, accepted, policy_for
from tests.tables import each, forgeries, items

PART = 512
TEMPLATES = ("ima-ng", "ima-sig", "ima-ngv2")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts of half a kilobyte, so that entries lie across them."""
    monkeypatch.setattr(node_evidence, "PART_SIZE", PART)


def machine_list(seed: int, count: int = 40) -> list[Measurement]:
    """A boot's list of files, buffers and violations, drawn at random."""
    drawn = random.Random(seed)
    made = [aggregate(BOOT, "ima-ng")]
    for number in range(count):
        path = f"/usr/{'x' * drawn.randrange(200)}/{number}"
        if drawn.random() < 0.1:
            made.append(
                measured_buffer(f"kexec{number}", drawn.randbytes(drawn.randrange(1, 2000)))
            )
        else:
            made.append(measured_file(path, b"", drawn.choice(TEMPLATES)))
        if drawn.random() < 0.1:
            made.append(violation(path))
    return made


def violation(path: str) -> Measurement:
    """A file that changed while it was measured."""
    return Measurement(name=path.encode(), digest=b"sha256:\0" + bytes(32), violation=True)


class Sender:
    """A node that sends a list; it lies about the part `at`."""

    def __init__(
        self, entries: bytes, first: int = 0, *, lie: Callable[[bytes], bytes] = bytes, at: int = -1
    ) -> None:
        self.parts = cut_list(entries)
        self.announced = ImaParts.of(first, self.parts)
        self.asked: list[int] = []
        self.lie, self.at = lie, at

    def fetch(self, index: int, digest: bytes) -> bytes:
        assert digest == self.announced.digest(index)
        self.asked.append(index)
        part = self.parts[index]
        return self.lie(part) if index == self.at else part


def appraise(
    sender: Sender,
    pcr10: bytes,
    *,
    start: Progress | None = None,
    cache: TemplateCache | None = None,
    measured: list[Measurement] | None = None,
    allow: bool = True,
) -> ImaState:
    return appraise_parts(
        sender.announced,
        sender.fetch,
        pcr10=pcr10,
        boot_aggregate=BOOT,
        policy=None if measured is None else policy_for(measured),
        segment=Segment(start),
        violations=Violations(allow=allow),
        cache=cache or TemplateCache(),
    )


def refused(code: str, sender: Sender, pcr10: bytes, **how: Any) -> AttestationError:
    return vocabulary.refused(AttestationError, code, appraise, sender, pcr10, **how)


@each("seed", *range(8))
def test_parts_prove_what_the_whole_list_proves(seed):
    made = machine_list(seed)
    measured = [one for one in made[1:] if not one.violation]
    policy = policy_for(measured)
    whole = accepted(made, policy=policy, violations=Violations(allow=True))
    sender = Sender(encode_ima(made))
    assert sender.announced.count > 5
    cache = TemplateCache()
    for _ in range(2):  # the second time all verdicts are known
        assert appraise(sender, replayed(made), measured=measured, cache=cache) == whole
    assert sender.asked == [*range(sender.announced.count)] * 2


def test_a_renewal_in_parts_goes_on_from_the_last():
    made = machine_list(1)
    before = Progress(10, replayed(made[:10]))
    sender = Sender(encode_ima(made[10:]), first=10)
    state = appraise(sender, replayed(made), start=before)
    assert (state.progress.entries, state.num_entries) == (len(made), len(made) - 10)
    assert not state.aggregate_compared
    assert appraise(sender, before.pcr, start=before).num_entries == 0
    refused("ST-ATTS-311", sender, replayed(made), start=Progress(9, replayed(made[:9])))
    refused("ST-ATTS-311", sender, replayed(made))


def test_what_was_measured_after_the_quote_is_not_asked_for():
    made = machine_list(2)
    sender = Sender(encode_ima(made))
    assert appraise(sender, replayed(made[:3])).progress.entries == 3
    assert len(sender.asked) < sender.announced.count


# What a node that knows the code may try.


PART_LIES: dict[str, Callable[[Sender, int], bytes]] = {
    "altered": lambda node, at: bytes([node.parts[at][0] ^ 1]) + node.parts[at][1:],
    "the one after": lambda node, at: node.parts[(at + 1) % len(node.parts)],
    "the one before": lambda node, at: node.parts[at - 1],
    "shorter": lambda node, at: node.parts[at][:-1],
    "longer": lambda node, at: node.parts[at] + b"\0",
    "empty": lambda *_: b"",
    "huge": lambda node, at: node.parts[at] * 9,
}


@forgeries("lie", *PART_LIES)
@each("seed", *range(5))
def test_a_part_that_is_not_the_one_announced(seed, lie):
    made = machine_list(seed)
    honest = Sender(encode_ima(made))
    at = random.Random(seed).randrange(1, honest.announced.count)
    sender = Sender(encode_ima(made), lie=lambda _: PART_LIES[lie](honest, at), at=at)
    assert f"part {at + 1} of" in refused("ST-ATTS-314", sender, replayed(made)).where
    assert sender.asked[-1] == at, "nothing is asked for after a lie"


LIST_LIES: dict[str, Callable[[list[Measurement], int], list[Measurement]]] = {
    "one less": lambda made, at: made[:at] + made[at + 1 :],
    "cut off": lambda made, _: made[:-1],
    "one more": lambda made, at: [*made[:at], measured_file("/tmp/planted"), *made[at:]],
    "one twice": lambda made, at: [*made[:at], made[at], *made[at:]],
    "another order": lambda made, at: [*made[:at], made[at + 1], made[at], *made[at + 2 :]],
    "another file": lambda made, at: [*made[:at], measured_file("/tmp/other"), *made[at + 1 :]],
}


@forgeries("lie", *LIST_LIES)
@each("seed", *range(5))
def test_another_list_under_its_own_announcement(seed, lie):
    """Digests that fit what is sent: then the quote decides."""
    made = machine_list(seed)
    target = replayed(made)
    # Two violations in a row are alike: an order of theirs would be the list itself.
    at = next(n for n in range(2 + 3 * seed, len(made)) if not made[n].violation)
    refused("ST-ATTS-306", Sender(encode_ima(LIST_LIES[lie](made, at))), target, names="IMA list")


@forgeries("seed", *range(5))
def test_a_list_without_its_beginning_or_with_its_parts_in_another_order(seed):
    made = machine_list(seed)
    target = replayed(made)
    with pytest.raises(AttestationError, match=r"ST-ATTS-30[68]"):
        appraise(Sender(encode_ima(made[1:])), target)
    parts = cut_list(encode_ima(made))
    swapped = Sender(b"".join((parts[0], *parts[:0:-1])))
    vocabulary.refused(AttestationError, r"ST-ATTS-30[13456]", appraise, swapped, target)


@pytest.mark.forgery
@items(
    "id, change, code",
    ("a part more", lambda one: {"size": one.size + PART}, "ST-ATTS-301"),
    ("one byte", lambda _: {"size": 1}, "ST-ATTS-301"),
    ("half a digest", lambda one: {"digests": one.digests[:-1]}, "ST-ATTS-301"),
    ("a digest more", lambda one: {"digests": one.digests + bytes(32)}, "ST-ATTS-301"),
    ("nothing", lambda _: {"size": 0, "digests": b""}, "ST-ATTS-306"),  # no schema allows it
    ("a byte less", lambda one: {"size": one.size - 1}, "ST-ATTS-314"),
)
def test_announcements_that_are_not_of_their_parts(change, code):
    made = machine_list(3)
    sender = Sender(encode_ima(made))
    sender.announced = msgspec.structs.replace(sender.announced, **change(sender.announced))
    refused(code, sender, replayed(made))
    assert bool(sender.asked) is (code == "ST-ATTS-314")


@pytest.mark.forgery
def test_a_bad_entry_ends_it_where_it_stands():
    made = machine_list(4)
    measured = [one for one in made[1:] if not one.violation]
    planted = [*made[:20], measured_file("/tmp/planted"), *made[20:]]
    sender = Sender(encode_ima(planted))
    error = refused("ST-ATTS-309", sender, replayed(planted), measured=measured)
    assert error.where == "IMA entry 21: /tmp/planted"
    assert len(sender.asked) < sender.announced.count
    violated = [*made[:5], violation("/x")]
    sender = Sender(encode_ima(violated))
    refused("ST-ATTS-307", sender, replayed(violated), allow=False)


@forgeries(
    "id, tail",
    (
        "too long an entry",
        b"\x0a\0\0\0" + bytes(20) + b"\x06\0\0\0ima-ng" + (MAX_DATA + 1).to_bytes(4, "little"),
    ),
    ("too long a template", b"\x0a\0\0\0" + bytes(20) + b"\xff\xff\xff\xff"),
    ("another template", b"\x0a\0\0\0" + bytes(20) + b"\x06\0\0\0ima-xx"),
)
def test_an_entry_that_never_ends_is_refused_at_once(tail):
    entries = encode_ima(machine_list(5)) + tail
    sender = Sender(entries + bytes(20 * PART))
    vocabulary.refused(AttestationError, r"ST-ATTS-30[15]", appraise, sender, bytes(range(32)))
    assert len(sender.asked) <= len(cut_list(entries)) + 1


def test_a_list_that_ends_inside_an_entry():
    made = machine_list(6)
    for cut in (1, 30, 200):
        with pytest.raises(AttestationError, match=r"ST-ATTS-30[15]"):
            appraise(Sender(encode_ima(made)[:-cut]), replayed(made))


def test_nothing_was_ever_measured():
    refused("ST-ATTS-306", Sender(encode_ima(machine_list(7))), bytes(32))


@forgeries("seed", *range(24))
def test_random_damage_is_never_accepted(seed):
    """Bytes changed before they are announced: five of them, each a list of its own."""
    drawn = random.Random(seed)
    made = machine_list(seed, count=15)
    target, entries = replayed(made), encode_ima(made)
    tried = 0
    while tried < 5:
        at = drawn.randrange(len(entries))
        flipped = entries[at] ^ (1 << drawn.randrange(8))
        damaged = Sender(entries[:at] + bytes([flipped]) + entries[at + 1 :])
        if _is_in_a_violation(made, at):
            continue  # its words are the list's own: the quote has ones for it, whatever it says
        tried += 1
        vocabulary.refused(AttestationError, "ST-ATTS-3", appraise, damaged, target)


def _is_in_a_violation(made: list[Measurement], at: int) -> bool:
    end = 0
    for one in made:
        end += len(one.binary())
        if at < end:
            return one.violation
    return False
