# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Node evidence has one spelling and bounds; `test_everything_at_once` is the control."""

import base64
import hashlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import AttestationError
from securetrain.evidence.node_evidence import (
    BODY_LIMIT,
    MAX_DEVICES,
    MAX_VALUES,
    NODE_TYPE,
    AttestationKeys,
    DeviceEvidence,
    DeviceKind,
    Evidence,
    ImaList,
    NodeEvidence,
    TeeEvidence,
    TeeKind,
    TpmEvidence,
    device_nonce,
    parse_node,
    report_data,
    signed_message,
)
from tests import vocabulary
from tests.tables import each, forgeries

TPM = TpmEvidence(
    activation=b"a" * 32,
    quote=b"quote",
    signature=b"signature",
    pcrs={index: bytes([index]) * 32 for index in (0, 2, 10)},
    event_log=b"log",
    ima=ImaList(binary=True, first=3, entries=b"entries"),
)
TEE = TeeEvidence(kind=TeeKind.TDX, report=b"report", certificates=(b"c",), event_log=b"log")
GPU = DeviceEvidence(
    kind=DeviceKind.GPU, report=b"report", certificates=(b"leaf", b"root"), driver="580.1"
)
WHOLE = NodeEvidence(
    manifest=b'{"a":1}', tpm=TPM, tee=TEE, devices=(GPU, GPU), tokens=("a.b.c", "d.e.f")
)


def refused(body, said=""):
    how = {"says": said, "names": "evidence"}
    error = vocabulary.refused(AttestationError, "ST-ATTS-001", parse_node, body, **how)
    assert error.what.startswith("not node evidence: ")


def edited(*path, **changes):
    """The whole evidence as JSON, with fields of one object replaced (None removes)."""
    document = json.loads(WHOLE.encode())
    target = document
    for step in path:
        target = target[step]
    for name, value in changes.items():
        if value is None:
            del target[name]
        else:
            target[name] = value
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def b64(data):
    return base64.b64encode(data).decode()


def with_tpm(**changes):
    tpm = msgspec.structs.replace(TPM, **changes)
    return msgspec.structs.replace(WHOLE, tpm=tpm).encode()


# What must work.


def test_everything_at_once():
    body = WHOLE.encode()
    assert parse_node(body) == WHOLE
    assert edited() == body, "the helper's own spelling"
    assert json.loads(body)["tpm"]["pcrs"].keys() == {"0", "2", "10"}


def test_nothing_but_a_manifest():
    body = NodeEvidence(manifest=b"{}").encode()
    assert body == b'{"manifest":"e30="}'
    assert parse_node(body) == NodeEvidence(manifest=b"{}")


@each("kind", *TeeKind)
def test_every_kind_of_cpu(kind):
    said = NodeEvidence(manifest=b"", tee=TeeEvidence(kind=kind, report=b""))
    assert parse_node(said.encode()) == said


@given(
    st.builds(
        NodeEvidence,
        manifest=st.binary(max_size=40),
        tpm=st.none()
        | st.builds(
            TpmEvidence,
            activation=st.binary(max_size=32),
            quote=st.binary(max_size=40),
            signature=st.binary(max_size=40),
            pcrs=st.dictionaries(st.integers(0, 23), st.binary(max_size=32)),
            event_log=st.binary(max_size=40),
            ima=st.none()
            | st.builds(
                ImaList,
                binary=st.booleans(),
                first=st.integers(0, 1 << 32),
                entries=st.binary(max_size=40),
            ),
        ),
        devices=st.lists(
            st.builds(
                DeviceEvidence,
                kind=st.sampled_from(DeviceKind),
                report=st.binary(max_size=40),
                certificates=st.lists(st.binary(max_size=9), max_size=3).map(tuple),
                driver=st.text(max_size=9),
            ),
            max_size=3,
        ).map(tuple),
        tokens=st.lists(st.text(max_size=20), max_size=4).map(tuple),
    )
)
def test_what_is_written_is_read(said):
    assert parse_node(said.encode()) == said


# One spelling.


@forgeries(
    "id, respell",
    ("a-line-end", lambda body: body + b"\n"),
    ("a-space-before", lambda body: b" " + body),
    ("a-space-within", lambda body: body.replace(b":", b": ", 1)),
    ("an-escape", lambda body: body.replace(b"a.b.c", b"a.\\u0062.c")),
    ("no-padding", lambda body: body.replace(b"eyJhIjoxfQ==", b"eyJhIjoxfQ")),
    ("slack-bits", lambda body: body.replace(b"eyJhIjoxfQ==", b"eyJhIjoxfR==")),
    ("a-zero-before-a-key", lambda body: body.replace(b'"10":', b'"010":')),
    ("a-fraction", lambda body: body.replace(b'"first":3', b'"first":3.0')),
    ("an-exponent", lambda body: body.replace(b'"first":3', b'"first":3e0')),
    ("a-text", lambda body: body.replace(b'"first":3', b'"first":"3"')),
    ("another-order", lambda body: json.dumps(dict(reversed(json.loads(body).items()))).encode()),
)
def test_another_spelling_of_the_same(respell):
    forged = respell(WHOLE.encode())
    assert forged != WHOLE.encode()
    refused(forged)


@forgeries(
    "id, first, second",
    ("devices", b'{"devices":', b'{"devices":[],"devices":'),
    ("manifest", b'"manifest":', b'"manifest":"e30=","manifest":'),
    ("tpm", b'"tpm":', b'"tpm":null,"tpm":'),
    ("quote", b'"quote":', b'"quote":"","quote":'),
    ("register", b'"pcrs":{', b'"pcrs":{"0":"",'),
    ("register-in-two-spellings", b'"pcrs":{', b'"pcrs":{"00":"",'),
)
def test_a_field_twice(first, second):
    """Whichever of the two a reader takes, another reader may take the other."""
    body = WHOLE.encode()
    assert body.count(first) == 1
    refused(body.replace(first, second))


@forgeries(
    "id, path, changes",
    ("devices", (), {"devices": []}),
    ("tokens", (), {"tokens": []}),
    ("event-log", ("tpm",), {"event_log": ""}),
    ("activation", ("tpm",), {"activation": ""}),
    ("certificates", ("tee",), {"certificates": []}),
    ("driver", ("devices", 0), {"driver": ""}),
)
def test_a_default_that_is_written_out(path, changes):
    refused(edited(*path, **changes), "canonical")


# The schema.


@forgeries("path", (), ("tpm",), ("tpm", "ima"), ("tee",), ("devices", 0))
@each("name", "tier", "verified", "where")
def test_a_field_that_nobody_knows(path, name):
    refused(edited(*path, **{name: "tpm"}), f"unknown field `{name}`")


@forgeries(
    "path, name",
    ((), "manifest"),
    (("tpm",), "quote"),
    (("tpm",), "signature"),
    (("tpm",), "pcrs"),
    (("tpm", "ima"), "binary"),
    (("tpm", "ima"), "first"),
    (("tpm", "ima"), "entries"),
    (("tee",), "kind"),
    (("tee",), "report"),
    (("devices", 0), "kind"),
    (("devices", 0), "report"),
    (("devices", 0), "certificates"),
)
def test_a_field_that_is_missing(path, name):
    refused(edited(*path, **{name: None}), f"missing required field `{name}`")


@forgeries(
    "id, path, changes, said",
    ("no-object", (), {"tpm": "tpm"}, "$.tpm"),
    ("manifest-not-bytes", (), {"manifest": {}}, "$.manifest"),
    ("not-base64", (), {"manifest": "*"}, "$.manifest"),
    ("another-cpu", ("tee",), {"kind": "sgx"}, "sgx"),
    ("another-device", ("devices", 1), {"kind": "tpu"}, "tpu"),
    ("a-number-for-yes", ("tpm", "ima"), {"binary": 1}, "$.tpm.ima.binary"),
    ("before-the-list", ("tpm", "ima"), {"first": -1}, "$.tpm.ima.first"),
    ("far-too-many", ("tpm", "ima"), {"first": 2**32 + 1}, "$.tpm.ima.first"),
    ("register-24", ("tpm", "pcrs"), {"24": ""}, "$.tpm.pcrs"),
    ("a-register-before-0", ("tpm", "pcrs"), {"-1": ""}, "$.tpm.pcrs"),
    ("no-register", ("tpm", "pcrs"), {"x": ""}, "$.tpm.pcrs"),
)
def test_a_value_out_of_its_range(path, changes, said):
    refused(edited(*path, **changes), said)


@forgeries(
    "id, limit, make",
    ("activation", 32, lambda n: with_tpm(activation=bytes(n))),
    ("quote", 8 << 10, lambda n: with_tpm(quote=bytes(n))),
    ("signature", 8 << 10, lambda n: with_tpm(signature=bytes(n))),
    ("register", 8 << 10, lambda n: with_tpm(pcrs={0: bytes(n)})),
    ("event-log", 1 << 20, lambda n: with_tpm(event_log=bytes(n))),
    ("cpu-report", 64 << 10, lambda n: edited("tee", report=b64(bytes(n)))),
    ("cpu-log", 1 << 20, lambda n: edited("tee", event_log=b64(bytes(n)))),
    ("cpu-certificates", 8, lambda n: edited("tee", certificates=["AA=="] * n)),
    ("certificate", 8 << 10, lambda n: edited("tee", certificates=[b64(bytes(n))])),
    ("device-report", 64 << 10, lambda n: edited("devices", 0, report=b64(bytes(n)))),
    ("device-certificates", 8, lambda n: edited("devices", 0, certificates=["AA=="] * n)),
    ("driver", 64, lambda n: edited("devices", 0, driver="5" * n)),
    ("devices", MAX_DEVICES, lambda n: msgspec.structs.replace(WHOLE, devices=(GPU,) * n).encode()),
    ("tokens", 4, lambda n: edited(tokens=["t"] * n)),
    ("token", 64 << 10, lambda n: edited(tokens=["t" * n])),
    ("first-entry", 1 << 32, lambda n: edited("tpm", "ima", first=n)),
)
def test_every_size_has_its_limit(limit, make):
    parse_node(make(limit))
    refused(make(limit + 1), str(limit))


@pytest.mark.forgery
def test_the_limit_of_a_body():
    """By its size alone: not a byte of it is parsed."""
    room = BODY_LIMIT - len(NodeEvidence(manifest=b"").encode())
    largest = NodeEvidence(manifest=bytes(room // 4 * 3)).encode()
    assert BODY_LIMIT - 4 < len(largest) <= BODY_LIMIT
    parse_node(largest)
    refused(largest.ljust(BODY_LIMIT + 1), f"the limit is {BODY_LIMIT}")
    refused(b"\xff" * (BODY_LIMIT + 1), f"the limit is {BODY_LIMIT}")


@forgeries(
    "id, shape, said",
    ("tokens", '{"manifest":"","tokens":["a"%s]}', "values"),
    ("devices", '{"devices":["a"%s],"manifest":""}', "values"),
    ("an-unknown-field", '{"manifest":"","x":["a"%s]}', "values"),
)
def test_more_values_than_any_body_has(shape, said):
    """Counted in the bytes: a million texts are not built to find that four are allowed."""
    refused((shape % (',"a"' * (MAX_VALUES + 1))).encode(), said)


def test_commas_within_a_token_are_no_values():
    said = NodeEvidence(manifest=b"", tokens=("," * (MAX_VALUES // 4),) * 3)
    assert parse_node(said.encode()) == said


@forgeries(
    "id, body",
    ("empty", b""),
    ("no-manifest", b"{}"),
    ("a-list", b"[]"),
    ("nothing", b"null"),
    ("a-pickle", b"\x80\x04."),
    ("not-utf-8", b'{"manifest":"\xff\xfe"}'),
    ("a-name-not-utf-8", b'{"\xff":""}'),
    ("half-a-character", b'{"manifest":"e30=","tokens":["\xed\xa0\x80"]}'),
    ("half-an-escape", b'{"manifest":"e30=","tokens":["\\ud800"]}'),
    ("a-deep-list", b"[" * 100_000),
    ("a-deep-object", b'{"a":' * 100_000),
    ("deep-below-an-unknown-name", b'{"manifest":"e30=","x":' + b"[" * 100_000),
    ("cut-off", WHOLE.encode()[:-1]),
    ("two-bodies", WHOLE.encode() * 2),
)
def test_bytes_that_are_no_evidence(body):
    refused(body)


# What is signed, and what other environments sign.


def test_the_nodes_signature_covers_kind_body_and_binding():
    evidence = Evidence(media_type=NODE_TYPE, body=b"body", binding=b"b" * 32, signature=b"s")
    digest = hashlib.sha256(b"body").digest()
    parts = (NODE_TYPE.encode(), digest, b"b" * 32)
    sized = (len(part).to_bytes(4, "big") + part for part in parts)
    expected = b"".join((b"securetrain-evidence-v1", *sized))
    assert evidence.signed_message() == expected
    assert signed_message(NODE_TYPE, digest, b"b" * 32) == expected


def test_every_environment_signs_a_value_of_its_own():
    """One binding, three values: what a GPU has signed is no answer of a CPU."""
    binding = bytes(range(32))
    prefixed = b"\0\0\0\x20" + binding
    nonce = hashlib.sha256(b"securetrain-device-nonce-v1" + prefixed).digest()
    assert device_nonce(binding) == nonce
    data = hashlib.sha512(b"securetrain-report-data-v1" + prefixed).digest()
    assert report_data(binding) == data
    assert len({binding, nonce, data[:32], data[32:]}) == 4


def test_the_keys_of_hello_are_bounded():
    keys = AttestationKeys(ek_public=b"e", ak_public=b"a")
    decode = msgspec.json.Decoder(AttestationKeys).decode
    assert decode(msgspec.json.encode(keys)) == keys
    for name in ("ek_public", "ak_public", "ek_certificate"):
        large = msgspec.structs.replace(keys, **{name: bytes((8 << 10) + 1)})
        vocabulary.refused(msgspec.ValidationError, name, decode, msgspec.json.encode(large))
    chain = msgspec.structs.replace(keys, ek_chain=(b"c",) * 9)
    vocabulary.refused(msgspec.ValidationError, "ek_chain", decode, msgspec.json.encode(chain))
