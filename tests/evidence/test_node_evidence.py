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
    with pytest.raises(AttestationError) as caught:
        parse_node(body)
    error = caught.value
    assert (error.code, error.where) == ("ST-ATTS-001", "evidence")
    assert error.what.startswith("not node evidence: ")
    assert said in error.what, error.what


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


@pytest.mark.parametrize("kind", TeeKind)
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


@pytest.mark.forgery
@pytest.mark.parametrize(
    "respell",
    [
        pytest.param(lambda body: body + b"\n", id="a-line-end"),
        pytest.param(lambda body: b" " + body, id="a-space-before"),
        pytest.param(lambda body: body.replace(b":", b": ", 1), id="a-space-within"),
        pytest.param(lambda body: body.replace(b"a.b.c", b"a.\\u0062.c"), id="an-escape"),
        pytest.param(lambda body: body.replace(b"eyJhIjoxfQ==", b"eyJhIjoxfQ"), id="no-padding"),
        pytest.param(lambda body: body.replace(b"eyJhIjoxfQ==", b"eyJhIjoxfR=="), id="slack-bits"),
        pytest.param(lambda body: body.replace(b'"10":', b'"010":'), id="a-zero-before-a-key"),
        pytest.param(lambda body: body.replace(b'"first":3', b'"first":3.0'), id="a-fraction"),
        pytest.param(lambda body: body.replace(b'"first":3', b'"first":3e0'), id="an-exponent"),
        pytest.param(lambda body: body.replace(b'"first":3', b'"first":"3"'), id="a-text"),
        pytest.param(
            lambda body: json.dumps(dict(reversed(json.loads(body).items()))).encode(),
            id="another-order",
        ),
    ],
)
def test_another_spelling_of_the_same(respell):
    forged = respell(WHOLE.encode())
    assert forged != WHOLE.encode()
    refused(forged)


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(b'{"devices":', b'{"devices":[],"devices":', id="devices"),
        pytest.param(b'"manifest":', b'"manifest":"e30=","manifest":', id="manifest"),
        pytest.param(b'"tpm":', b'"tpm":null,"tpm":', id="tpm"),
        pytest.param(b'"quote":', b'"quote":"","quote":', id="quote"),
        pytest.param(b'"pcrs":{', b'"pcrs":{"0":"",', id="register"),
        pytest.param(b'"pcrs":{', b'"pcrs":{"00":"",', id="register-in-two-spellings"),
    ],
)
def test_a_field_twice(first, second):
    """Whichever of the two a reader takes, another reader may take the other."""
    body = WHOLE.encode()
    assert body.count(first) == 1
    refused(body.replace(first, second))


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("path", "changes"),
    [
        pytest.param((), {"devices": []}, id="devices"),
        pytest.param((), {"tokens": []}, id="tokens"),
        pytest.param(("tpm",), {"event_log": ""}, id="event-log"),
        pytest.param(("tpm",), {"activation": ""}, id="activation"),
        pytest.param(("tee",), {"certificates": []}, id="certificates"),
        pytest.param(("devices", 0), {"driver": ""}, id="driver"),
    ],
)
def test_a_default_that_is_written_out(path, changes):
    refused(edited(*path, **changes), "canonical")


# The schema.


@pytest.mark.forgery
@pytest.mark.parametrize("path", [(), ("tpm",), ("tpm", "ima"), ("tee",), ("devices", 0)])
@pytest.mark.parametrize("name", ["tier", "verified", "where"])
def test_a_field_that_nobody_knows(path, name):
    refused(edited(*path, **{name: "tpm"}), f"unknown field `{name}`")


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("path", "name"),
    [
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
    ],
)
def test_a_field_that_is_missing(path, name):
    refused(edited(*path, **{name: None}), f"missing required field `{name}`")


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("path", "changes", "said"),
    [
        pytest.param((), {"tpm": "tpm"}, "$.tpm", id="no-object"),
        pytest.param((), {"manifest": {}}, "$.manifest", id="manifest-not-bytes"),
        pytest.param((), {"manifest": "*"}, "$.manifest", id="not-base64"),
        pytest.param(("tee",), {"kind": "sgx"}, "sgx", id="another-cpu"),
        pytest.param(("devices", 1), {"kind": "tpu"}, "tpu", id="another-device"),
        pytest.param(("tpm", "ima"), {"binary": 1}, "$.tpm.ima.binary", id="a-number-for-yes"),
        pytest.param(("tpm", "ima"), {"first": -1}, "$.tpm.ima.first", id="before-the-list"),
        pytest.param(("tpm", "ima"), {"first": 2**32 + 1}, "$.tpm.ima.first", id="far-too-many"),
        pytest.param(("tpm", "pcrs"), {"24": ""}, "$.tpm.pcrs", id="register-24"),
        pytest.param(("tpm", "pcrs"), {"-1": ""}, "$.tpm.pcrs", id="a-register-before-0"),
        pytest.param(("tpm", "pcrs"), {"x": ""}, "$.tpm.pcrs", id="no-register"),
    ],
)
def test_a_value_out_of_its_range(path, changes, said):
    refused(edited(*path, **changes), said)


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("limit", "make"),
    [
        pytest.param(32, lambda n: with_tpm(activation=bytes(n)), id="activation"),
        pytest.param(8 << 10, lambda n: with_tpm(quote=bytes(n)), id="quote"),
        pytest.param(8 << 10, lambda n: with_tpm(signature=bytes(n)), id="signature"),
        pytest.param(8 << 10, lambda n: with_tpm(pcrs={0: bytes(n)}), id="register"),
        pytest.param(1 << 20, lambda n: with_tpm(event_log=bytes(n)), id="event-log"),
        pytest.param(
            64 << 10,
            lambda n: edited("tee", report=b64(bytes(n))),
            id="cpu-report",
        ),
        pytest.param(1 << 20, lambda n: edited("tee", event_log=b64(bytes(n))), id="cpu-log"),
        pytest.param(8, lambda n: edited("tee", certificates=["AA=="] * n), id="cpu-certificates"),
        pytest.param(
            8 << 10, lambda n: edited("tee", certificates=[b64(bytes(n))]), id="certificate"
        ),
        pytest.param(
            64 << 10, lambda n: edited("devices", 0, report=b64(bytes(n))), id="device-report"
        ),
        pytest.param(
            8, lambda n: edited("devices", 0, certificates=["AA=="] * n), id="device-certificates"
        ),
        pytest.param(64, lambda n: edited("devices", 0, driver="5" * n), id="driver"),
        pytest.param(
            MAX_DEVICES,
            lambda n: msgspec.structs.replace(WHOLE, devices=(GPU,) * n).encode(),
            id="devices",
        ),
        pytest.param(4, lambda n: edited(tokens=["t"] * n), id="tokens"),
        pytest.param(64 << 10, lambda n: edited(tokens=["t" * n]), id="token"),
        pytest.param(1 << 32, lambda n: edited("tpm", "ima", first=n), id="first-entry"),
    ],
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


@pytest.mark.forgery
@pytest.mark.parametrize(
    ("shape", "said"),
    [
        pytest.param('{"manifest":"","tokens":["a"%s]}', "values", id="tokens"),
        pytest.param('{"devices":["a"%s],"manifest":""}', "values", id="devices"),
        pytest.param('{"manifest":"","x":["a"%s]}', "values", id="an-unknown-field"),
    ],
)
def test_more_values_than_any_body_has(shape, said):
    """Counted in the bytes: a million texts are not built to find that four are allowed."""
    refused((shape % (',"a"' * (MAX_VALUES + 1))).encode(), said)


def test_commas_within_a_token_are_no_values():
    said = NodeEvidence(manifest=b"", tokens=("," * (MAX_VALUES // 4),) * 3)
    assert parse_node(said.encode()) == said


@pytest.mark.forgery
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{}", id="no-manifest"),
        pytest.param(b"[]", id="a-list"),
        pytest.param(b"null", id="nothing"),
        pytest.param(b"\x80\x04.", id="a-pickle"),
        pytest.param(b'{"manifest":"\xff\xfe"}', id="not-utf-8"),
        pytest.param(b'{"\xff":""}', id="a-name-not-utf-8"),
        pytest.param(b'{"manifest":"e30=","tokens":["\xed\xa0\x80"]}', id="half-a-character"),
        pytest.param(b'{"manifest":"e30=","tokens":["\\ud800"]}', id="half-an-escape"),
        pytest.param(b"[" * 100_000, id="a-deep-list"),
        pytest.param(b'{"a":' * 100_000, id="a-deep-object"),
        pytest.param(b'{"manifest":"e30=","x":' + b"[" * 100_000, id="deep-below-an-unknown-name"),
        pytest.param(WHOLE.encode()[:-1], id="cut-off"),
        pytest.param(WHOLE.encode() * 2, id="two-bodies"),
    ],
)
def test_bytes_that_are_no_evidence(body):
    refused(body)


# What is signed, and what other environments sign.


def test_the_nodes_signature_covers_kind_body_and_binding():
    evidence = Evidence(media_type=NODE_TYPE, body=b"body", binding=b"b" * 32, signature=b"s")
    size = len(NODE_TYPE).to_bytes(4, "big")
    digest = hashlib.sha256(b"body").digest()
    expected = b"".join(
        (
            b"securetrain-evidence-v1",
            *(size, NODE_TYPE.encode()),
            *(b"\0\0\0\x20", digest),
            *(b"\0\0\0\x20", b"b" * 32),
        )
    )
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
        with pytest.raises(msgspec.ValidationError, match=name):
            decode(msgspec.json.encode(large))
    chain = msgspec.structs.replace(keys, ek_chain=(b"c",) * 9)
    with pytest.raises(msgspec.ValidationError, match="ek_chain"):
        decode(msgspec.json.encode(chain))
