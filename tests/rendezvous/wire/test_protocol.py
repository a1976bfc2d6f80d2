# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core import canonical
from securetrain.core.errors import AdmissionError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.rendezvous.wire.protocol import (
    DOCUMENT_LIMIT,
    FRAME_LIMIT,
    Admit,
    AnyMessage,
    Arrival,
    ArrivalState,
    AskPart,
    Challenge,
    Close,
    Done,
    Formed,
    FrameReader,
    Going,
    Heartbeat,
    Hello,
    Leave,
    ListPart,
    Proof,
    Ready,
    Refuse,
    Renew,
    Staffed,
    Status,
    Store,
    Workers,
    decode_message,
    encode_frame,
)
from tests.tables import each
from tests.vocabulary import refused

MESSAGES: list[AnyMessage] = [
    Hello(protocol="securetrain-rdzv/6", job="j", node="n", address="127.0.0.1", local_world=8),
    Challenge(nonce=bytes(32), session=bytes(16)),
    Proof(media_type="a/b", body=b"\x00\xff", binding=bytes(32), signature=b"sig"),
    AskPart(index=255),
    ListPart(index=0, data=b"\x00\xff"),
    Admit(
        tier=NodeTier.SELF_ASSERTED,
        label="l",
        result="{}",
        svid="",
        certificate="",
        policy="0" * 64,
        lease_seconds=600,
        heartbeat_seconds=5.5,
        join_timeout_seconds=600,
        min_nodes=1,
        max_nodes=2,
    ),
    Ready(floors=()),
    Arrival(epoch=3, stand=ArrivalState.WAITING, missing=("b",), timeout=1800.0),
    Status(waiting=1, ready=0, closed=False, spare=True),
    Formed(membership="{}"),
    Store(epoch=3, host="127.0.0.1", port=1),
    Heartbeat(),
    Renew(),
    Workers(epoch=3, local_world=8, role="default"),
    Staffed(membership="{}"),
    Done(),
    Going(),
    Close(),
    Leave(),
    Refuse(code="ST-ADMN-001", what="w", fix="f"),
]


@each("message", *MESSAGES)
def test_round_trip_in_any_pieces(message):
    reader = FrameReader()
    for byte in encode_frame(message):
        assert reader.next(FRAME_LIMIT) is None
        reader.feed(bytes([byte]))
    body = reader.next(FRAME_LIMIT)
    assert body is not None
    assert decode_message(body) == message
    assert reader.next(FRAME_LIMIT) is None


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_one_more_or_one_less_field_is_refused(message):
    fields = canonical.loads(encode_frame(message)[4:])
    refused(AdmissionError, "ST-ADMN-001", decode_message, canonical.dumps({**fields, "zzz": 1}))
    del fields["type"]
    refused(AdmissionError, "ST-ADMN-001", decode_message, canonical.dumps(fields))


def test_refused_bodies():
    for body in (
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"type":"store","epoch":-1,"host":"127.0.0.1","port":1}',
        b'{"epoch":1,"host":"127.0.0.1","port":70000,"type":"store"}',
        b'{"epoch":1e400,"host":"127.0.0.1","port":1,"type":"store"}',
        b'{"epoch":1.5,"host":"127.0.0.1","port":1,"type":"store"}',
        b'{"epoch":true,"host":"127.0.0.1","port":1,"type":"store"}',
        b'{"nonce":"AAAA","session":"AAAA","type":"challenge"}',
        b'{"code":"rm -rf","fix":"","type":"refuse","what":""}',
        b'\xef\xbb\xbf{"type":"ready"}',
        b'{"type":"ready"}\n',
        b'{"type":"\\u0072eady"}',
        b'{"type":"\xff"}',
    ):
        refused(AdmissionError, "ST-ADMN-001", decode_message, body)


def test_the_length_is_judged_before_the_body_has_come():
    reader = FrameReader()
    reader.feed((FRAME_LIMIT + 1).to_bytes(4, "big"))
    refused(AdmissionError, "ST-ADMN-001", reader.next, FRAME_LIMIT)
    assert reader.next(DOCUMENT_LIMIT) is None, "where a document may come, it may be larger"


def test_an_empty_frame_is_refused_at_its_length():
    reader = FrameReader()
    reader.feed(bytes(4))
    refused(AdmissionError, "a frame of 0 bytes", reader.next, FRAME_LIMIT)


def test_nothing_too_large_is_sent():
    with pytest.raises(AdmissionError, match="ST-ADMN-001"):
        encode_frame(Refuse(code="ST-ADMN-001", what="w" * FRAME_LIMIT, fix=""))
    assert encode_frame(Formed(membership="m" * FRAME_LIMIT))


def read(body):
    """The message, or None for a refusal with the right code; anything else fails the test."""
    try:
        return decode_message(body)
    except AdmissionError as error:
        if error.code != "ST-ADMN-001":
            raise
        return None


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_refusal(data):
    message = read(data)
    assert message is None or encode_frame(message)[4:] == data


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from(MESSAGES), st.text(max_size=10), _JSON, st.data())
def test_a_field_with_another_value_is_a_message_or_a_refusal(message, name, value, data):
    fields = canonical.loads(encode_frame(message)[4:])
    fields[data.draw(st.sampled_from([*fields, name]))] = value
    try:
        body = canonical.dumps(fields)
    except UsageError:
        return  # not JSON at all
    message = read(body)
    assert message is None or read(encode_frame(message)[4:]) == message


@given(st.lists(st.sampled_from(MESSAGES), max_size=5), st.integers(1, 50))
def test_frames_survive_any_cutting(messages, size):
    stream = b"".join(map(encode_frame, messages))
    reader, found = FrameReader(), []
    for start in range(0, len(stream), size):
        reader.feed(stream[start : start + size])
        while (body := reader.next(FRAME_LIMIT)) is not None:
            found.append(decode_message(body))
    assert found == messages
