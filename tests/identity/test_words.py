# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signed words of a dispute: what can be proved by them, and that nobody can bend them."""

import base64
import copy
import random
from typing import Any

import msgspec
import pytest

from securetrain.core import canonical
from securetrain.core.errors import UsageError
from securetrain.identity import words
from securetrain.identity.keys import KeyKind, PrivateKey
from tests.tables import each
from tests.vocabulary import refused

RANKS = [0, 2, 4, 6]
KEYS = [PrivateKey.generate(KeyKind.P256) for _ in RANKS]
PUBLIC = [key.public for key in KEYS]
PIECE, TABLE = "ab" * 32, "cd" * 32


def digest(*of: object) -> str:
    return words.root(list(map(str, of)))


def attempt(number: int = 1, changes: Any = None, piece: str = PIECE) -> words.Attempt:
    """Everybody tells the truth; `changes` by place: fields of what it says."""
    owners = [0, 1, 3]
    said = []
    for place in range(len(RANKS)):
        fields = {
            "whole": digest("whole", place, piece),
            "sent": [digest(place, part) for part in range(len(owners))],
            "heard": [digest(i, owners.index(place)) for i in range(len(RANKS))]
            if place in owners
            else [],
        }
        said.append(words.Said(**{**fields, **(changes or {}).get(place, {})}))
    return words.Attempt(number=number, piece=piece, table=TABLE, owners=owners, said=said)


def signed(*attempts: words.Attempt, silent: Any = ()) -> words.Transcript:
    bare = words.Transcript(
        run_id="job-1",
        world_size=8,
        ranks=RANKS,
        guard=0,
        turn=12,
        attempts=list(attempts),
        certificates=[""] * len(RANKS),
    )
    done = [
        msgspec.structs.replace(
            one,
            said=[
                said
                if place in silent
                else msgspec.structs.replace(said, sig=signature(bare, one, place))
                for place, said in enumerate(one.said)
            ],
        )
        for one in attempts
    ]
    return msgspec.structs.replace(bare, attempts=done)


def signature(transcript: words.Transcript, one: words.Attempt, place: int) -> str:
    message = words.message_of(words.word_of(transcript, one, place))
    return base64.b64encode(KEYS[place].sign(message)).decode()


def test_an_honest_transcript_names_nobody_and_is_read_as_it_was_written():
    made = signed(attempt(), attempt(2))
    assert words.read_transcript(canonical.encode(made)) == made
    assert words.rule(made, PUBLIC) == words.Ruling(disputes=(), named={}, unsigned=())


def test_a_sender_and_an_owner_that_differ_are_a_pair_and_neither_is_named():
    other = digest("another")
    sent = [digest(2, 0), other, digest(2, 2)]
    ruling = words.rule(signed(attempt(changes={2: {"sent": sent}})), PUBLIC)
    assert ruling.disputes == ((2, 4),), "by their numbers in the job"
    assert not ruling.named


def test_who_signs_two_gradients_in_one_step_is_named():
    turned = attempt(2, {1: {"whole": digest("another")}})
    assert list(words.rule(signed(attempt(), turned), PUBLIC).named) == [2]
    elsewhere = attempt(2, piece="ef" * 32)
    assert not words.rule(signed(attempt(), elsewhere), PUBLIC).named, "another piece"


def test_who_contradicts_itself_about_its_own_shard_is_named():
    heard = [digest(0, 0), digest("another"), digest(2, 0), digest(3, 0)]
    wrong = [*[digest(0, 1)], digest("another"), digest(2, 1), digest(3, 1)]
    assert list(words.rule(signed(attempt(changes={1: {"heard": wrong}})), PUBLIC).named) == [2]
    assert not words.rule(signed(attempt(changes={0: {"heard": heard}})), PUBLIC).named


def test_nobody_is_named_for_what_it_did_not_sign():
    turned = attempt(2, {1: {"whole": digest("another")}})
    ruling = words.rule(signed(attempt(), turned, silent={1}), PUBLIC)
    assert not ruling.named
    assert ruling.unsigned == (2,)
    nobody = words.rule(signed(attempt(), turned), [None] * 4)
    assert not nobody.named
    assert nobody.unsigned == (0, 2, 4, 6)


def test_a_word_under_the_key_of_another_rank_does_not_count():
    made = signed(attempt())
    assert words.rule(made, [PUBLIC[1], PUBLIC[0], *PUBLIC[2:]]).unsigned == (0, 2)


@each(
    "change",
    {"run_id": "job-2"},
    {"world_size": 9},
    {"ranks": [0, 2, 4, 7]},
    {"guard": 1},
    {"turn": 13},
)
def test_words_fit_no_other_transcript(change):
    ruling = words.rule(msgspec.structs.replace(signed(attempt()), **change), PUBLIC)
    assert len(ruling.unsigned) == 4


@each("field", "number", "piece", "table")
def test_words_fit_no_other_attempt(field):
    made = signed(attempt())
    value = 7 if field == "number" else "09" * 32
    (one,) = made.attempts
    changed = msgspec.structs.replace(one, **{field: value})
    ruling = words.rule(msgspec.structs.replace(made, attempts=[changed]), PUBLIC)
    assert len(ruling.unsigned) == 4


def test_drawn_changes_of_a_transcript_name_nobody_who_did_not_sign_them():
    source = random.Random(4)
    honest = signed(attempt(), attempt(2))
    for _ in range(300):
        made = copy.deepcopy(honest)
        at, place = source.randrange(2), source.randrange(4)
        said = made.attempts[at].said[place]
        kind = source.choice(["whole", "sent", "heard", "sig"])
        if kind == "sig":
            said = msgspec.structs.replace(said, sig=source.choice(["", "AAAA", "%", "A" * 96]))
        elif kind == "whole":
            said = msgspec.structs.replace(said, whole=digest(source.random()))
        else:
            digests = list(getattr(said, kind))
            if digests:
                digests[source.randrange(len(digests))] = digest(source.random())
            said = msgspec.structs.replace(said, **{kind: digests})
        made.attempts[at].said[place] = said
        ruling = words.rule(made, PUBLIC)
        assert not ruling.named
        assert set(ruling.unsigned) <= {RANKS[place]}
        assert all(RANKS[place] in pair for pair in ruling.disputes)


def broken(transcript: words.Transcript) -> list[words.Transcript]:
    replace = msgspec.structs.replace
    one = transcript.attempts[0]
    return [
        replace(transcript, version=2),
        replace(transcript, ranks=[0, 2, 4]),
        replace(transcript, ranks=[0, 2, 4, 4]),
        replace(transcript, world_size=6),
        replace(transcript, certificates=[""]),
        replace(transcript, attempts=[one, one]),
        replace(transcript, attempts=[replace(one, owners=[0, 1])]),
        replace(transcript, attempts=[replace(one, owners=[0, 1, 1])]),
        replace(transcript, attempts=[replace(one, owners=[0, 1, 4])]),
        replace(transcript, attempts=[replace(one, said=one.said[:3])]),
        replace(transcript, attempts=[]),
        replace(transcript, attempts=[told(replace(one, owners=[0, 1, 1]), 3, heard=[])]),
        replace(transcript, attempts=[told(replace(one, owners=[0, 1, 4]), 3, heard=[])]),
        replace(transcript, attempts=[told(one, 2, heard=["00" * 32])]),  # it owns nothing
        replace(transcript, attempts=[told(one, 0, heard=one.said[0].heard[:3])]),
        replace(transcript, attempts=[told(one, 2, sent=one.said[2].sent[:2])]),
        replace(transcript, attempts=[told(one, 2, sent=[*one.said[2].sent, "00" * 32])]),
    ]


def told(one: words.Attempt, place: int, **changes: Any) -> words.Attempt:
    said = list(one.said)
    said[place] = msgspec.structs.replace(said[place], **changes)
    return msgspec.structs.replace(one, said=said)


@each("number", *range(17))
def test_a_transcript_whose_lists_do_not_fit_is_refused(number):
    data = canonical.encode(broken(signed(attempt()))[number])
    refused(UsageError, "ST-USAG-008", words.read_transcript, data)


@each("message", b"", b"{}", b"securetrain/rank-file/1\n{}", b"securetrain/dispute/1\n{}")
def test_nothing_else_is_read_as_a_word(message):
    refused(UsageError, "ST-USAG-008", words.read_message, message)


def test_a_word_is_read_exactly():
    word = words.word_of(signed(attempt()), attempt(), 1)
    message = words.message_of(word)
    assert words.read_message(message) == word
    bare = message.removeprefix(b"securetrain/dispute/1\n")
    assert bare != message
    for bad in (message + b" ", message.replace(b'"turn":12', b'"turn":12.0'), message[:-1], bare):
        with pytest.raises(UsageError):
            words.read_message(bad)


@each("text", "", "{}", '{"payload":"e30="}', "\x00")
def test_a_certificate_that_is_none_has_no_key(text):
    assert words.key_in(text) is None
