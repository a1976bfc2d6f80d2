# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Measurement lists that come in parts: what they prove is what the whole list proves.

`test_parts_prove_what_the_whole_list_proves` is the control of every forgery.
"""

import hashlib
import random
from collections.abc import Callable

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence import node_evidence
from securetrain.evidence.node_evidence import ImaParts, cut_list
from securetrain.evidence.tpm.ima import ImaState, Progress, TemplateCache, appraise_ima
from securetrain.evidence.tpm.ima_list import MAX_DATA
from securetrain.evidence.tpm.ima_parts import appraise_parts
from securetrain.evidence.tpm.ima_violations import Violations
from securetrain.testing.measurement_lists import (
    Measurement,
    aggregate,
    encode_ima,
    ima_list,
    measured_buffer,
    measured_file,
    replayed,
)
from tests import vocabulary
from tests.evidence.tpm.test_ima import policy_for

BOOT = hashlib.sha256(b"PCR 0 to 9").digest()
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
        self,
        entries: bytes,
        first: int = 0,
        *,
        lie: Callable[[bytes], bytes] = bytes,
        at: int = -1,
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
        start=start,
        violations=Violations(allow=allow),
        cache=cache or TemplateCache(),
    )


def refused(code: str, sender: Sender, pcr10: bytes, **how: object) -> AttestationError:
    return vocabulary.refused(AttestationError, code, appraise, sender, pcr10, **how)


@pytest.mark.parametrize("seed", range(8))
def test_parts_prove_what_the_whole_list_proves(seed):
    made = machine_list(seed)
    measured = [one for one in made[1:] if not one.violation]
    policy = policy_for(measured)
    whole = appraise_ima(
        ima_list(made),
        pcr10=replayed(made),
        boot_aggregate=BOOT,
        policy=policy,
        start=None,
        violations=Violations(allow=True),
        cache=TemplateCache(),
    )
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
    state = appraise(sender, replayed(made[:3]))
    assert state.progress.entries == 3
    assert len(sender.asked) < sender.announced.count


# What a node that knows the code may try.


@pytest.mark.forgery
@pytest.mark.parametrize("seed", range(5))
def test_a_part_that_is_not_the_one_announced(seed):
    drawn = random.Random(seed)
    made = machine_list(seed)
    honest = Sender(encode_ima(made))
    at = drawn.randrange(1, honest.announced.count)
    other = drawn.choice([one for one in range(honest.announced.count) if one != at])
    lies: dict[str, Callable[[bytes], bytes]] = {
        "altered": lambda data: bytes([data[0] ^ 1]) + data[1:],
        "another one": lambda _: honest.parts[other],
        "the one before": lambda _: honest.parts[at - 1],
        "shorter": lambda data: data[:-1],
        "longer": lambda data: data + b"\0",
        "empty": lambda _: b"",
        "huge": lambda data: data * 9,
    }
    for lie, change in lies.items():
        sender = Sender(encode_ima(made), lie=change, at=at)
        error = refused("ST-ATTS-314", sender, replayed(made))
        assert f"part {at + 1} of" in error.where, lie
        assert sender.asked[-1] == at, "nothing is asked for after a lie"


@pytest.mark.forgery
@pytest.mark.parametrize("seed", range(5))
def test_another_list_under_its_own_announcement(seed):
    """Digests that fit what is sent: then the quote decides."""
    drawn = random.Random(seed)
    made = machine_list(seed)
    target = replayed(made)
    at = drawn.randrange(1, len(made) - 1)
    lists = {
        "one less": made[:at] + made[at + 1 :],
        "cut off": made[:-1],
        "one more": [*made[:at], measured_file("/tmp/planted"), *made[at:]],
        "one twice": [*made[:at], made[at], *made[at:]],
        "another order": [*made[:at], made[at + 1], made[at], *made[at + 2 :]],
    }
    for lie, entries in lists.items():
        if replayed(entries) != target:  # two violations in a row are alike
            error = refused("ST-ATTS-306", Sender(encode_ima(entries)), target)
            assert error.where == "IMA list", lie
    with pytest.raises(AttestationError, match=r"ST-ATTS-30[68]"):
        appraise(Sender(encode_ima(made[1:])), target)
    parts = cut_list(encode_ima(made))
    swapped = Sender(b"".join((parts[0], *parts[:0:-1])))
    with pytest.raises(AttestationError, match=r"ST-ATTS-30[13456]"):
        appraise(swapped, target)


@pytest.mark.forgery
def test_announcements_that_are_not_of_their_parts():
    made = machine_list(3)
    pcr10 = replayed(made)
    sender = Sender(encode_ima(made))
    honest = sender.announced
    for announced in (
        msgspec.structs.replace(honest, size=honest.size + PART),
        msgspec.structs.replace(honest, size=1),
        msgspec.structs.replace(honest, digests=honest.digests[:-1]),
        msgspec.structs.replace(honest, digests=honest.digests + bytes(32)),
    ):
        sender.announced, sender.asked = announced, []
        refused("ST-ATTS-301", sender, pcr10)
        assert not sender.asked
    sender.announced = msgspec.structs.replace(honest, size=0, digests=b"")  # no schema allows it
    refused("ST-ATTS-306", sender, pcr10)
    sender.announced = msgspec.structs.replace(honest, size=honest.size - 1)
    refused("ST-ATTS-314", sender, pcr10)


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


@pytest.mark.forgery
@pytest.mark.parametrize(
    "tail",
    [
        b"\x0a\0\0\0" + bytes(20) + b"\x06\0\0\0ima-ng" + (MAX_DATA + 1).to_bytes(4, "little"),
        b"\x0a\0\0\0" + bytes(20) + b"\xff\xff\xff\xff",
        b"\x0a\0\0\0" + bytes(20) + b"\x06\0\0\0ima-xx",
    ],
    ids=["too long an entry", "too long a template", "another template"],
)
def test_an_entry_that_never_ends_is_refused_at_once(tail):
    made = machine_list(5)
    entries = encode_ima(made) + tail
    sender = Sender(entries + bytes(20 * PART))
    with pytest.raises(AttestationError, match=r"ST-ATTS-30[15]"):
        appraise(sender, bytes(range(32)))
    assert len(sender.asked) <= len(cut_list(entries)) + 1


def test_a_list_that_ends_inside_an_entry():
    made = machine_list(6)
    for cut in (1, 30, 200):
        with pytest.raises(AttestationError, match=r"ST-ATTS-30[15]"):
            appraise(Sender(encode_ima(made)[:-cut]), replayed(made))


def test_nothing_was_ever_measured():
    refused("ST-ATTS-306", Sender(encode_ima(machine_list(7))), bytes(32))


@pytest.mark.forgery
@pytest.mark.parametrize("seed", range(3))
def test_random_damage_is_never_accepted(seed):
    """Bytes changed before they are announced: 40 of them, each a list of its own."""
    drawn = random.Random(seed)
    made = machine_list(seed, count=15)
    target, entries = replayed(made), encode_ima(made)
    for _ in range(40):
        at = drawn.randrange(len(entries))
        flipped = entries[at] ^ (1 << drawn.randrange(8))
        damaged = Sender(entries[:at] + bytes([flipped]) + entries[at + 1 :])
        if _is_in_a_violation(made, at):
            continue  # its words are the list's own: the quote has ones for it, whatever it says
        with pytest.raises(AttestationError, match="ST-ATTS-3"):
            appraise(damaged, target)


def _is_in_a_violation(made: list[Measurement], at: int) -> bool:
    end = 0
    for one in made:
        end += len(one.binary())
        if at < end:
            return one.violation
    return False
