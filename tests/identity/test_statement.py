# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import msgspec
import pytest

from securetrain.core import canonical
from securetrain.core.errors import IdentityError
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from securetrain.identity.statement import PREDICATE_BASE, Subject, parse, sign
from tests.tables import each
from tests.vocabulary import refused

KEY = PrivateKey.generate()
TYPE = f"{PREDICATE_BASE}/example/v1"


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    step: int


def payload(data):
    return dsse.verify(data, dsse.IN_TOTO, {KEY.key_id: KEY.public})


def frame(**changes):
    fields = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "a", "digest": {"sha256": "00"}}],
        "predicateType": TYPE,
        "predicate": {"step": 3},
    }
    fields = {k: v for k, v in {**fields, **changes}.items() if v is not None}
    return dsse.sign(canonical.dumps(fields), dsse.IN_TOTO, [KEY])


def test_round_trip():
    subjects = [Subject("model", {"blake3": "ab"})]
    found = parse(payload(sign(subjects, TYPE, Example(3), KEY)), TYPE, Example)
    assert found.subjects == tuple(subjects)
    assert found.predicate == Example(3)


def test_a_frame_written_by_hand_is_read():
    assert parse(payload(frame()), TYPE, Example).predicate.step == 3


@each(
    "changes",
    {"_type": "https://in-toto.io/Statement/v0.1"},
    {"predicateType": f"{PREDICATE_BASE}/other/v1"},
    {"predicate": {"step": "3"}},
    {"predicate": {"step": 3, "more": 1}},
    {"predicate": {}},
    {"predicate": None},
    {"subject": [{"name": "a"}]},
    {"more": 1},
)
def test_refused(changes):
    refused(IdentityError, "ST-IDEN-004", parse, payload(frame(**changes)), TYPE, Example, "s.json")


def test_signed_bytes_that_are_no_statement():
    with pytest.raises(IdentityError, match="ST-IDEN-004"):
        parse(payload(dsse.sign(b"x", dsse.IN_TOTO, [KEY])), TYPE, Example)
