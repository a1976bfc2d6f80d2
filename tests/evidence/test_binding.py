# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import hashlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from securetrain.evidence.binding import Binding, binding_value
from tests.tables import each
from tests.vocabulary import refused

BINDING = Binding(
    nonce=bytes(range(32)),
    session=bytes(16),
    job="job-1",
    client_spki=b"client",
    server_spki=b"server",
    exporter=bytes(32),
    ak_name=b"ak",
    wireguard=b"wg",
    sealing=b"seal",
)

CHANGES: dict[str, Any] = {
    "nonce": bytes(32),
    "session": b"\x01" * 16,
    "job": "job-2",
    "client_spki": b"other",
    "server_spki": b"other",
    "exporter": b"\x01" * 32,
    "ak_name": b"",
    "wireguard": b"",
    "sealing": b"",
}


def changed(**changes: Any) -> Binding:
    return dataclasses.replace(BINDING, **changes)


def test_the_value_is_what_the_description_says():
    """Written out by hand, so that the encoding cannot change without a new label."""

    def field(data):
        return len(data).to_bytes(4, "big") + data

    message = b"securetrain-attestation-binding-v1" + b"".join(
        field(data)
        for data in (
            bytes(range(32)),
            bytes(16),
            b"job-1",
            hashlib.sha256(b"client").digest(),
            hashlib.sha256(b"server").digest(),
            bytes(32),
            b"ak",
            b"wg",
            hashlib.sha256(b"manifest").digest(),
        )
    )
    # A node without a key to seal to has the binding of before; with one there is a field more.
    assert changed(sealing=b"").value(b"manifest") == hashlib.sha256(message).digest()
    assert BINDING.value(b"manifest") == hashlib.sha256(message + field(b"seal")).digest()


@each("name", *CHANGES)
def test_every_field_changes_the_value(name):
    assert changed(**{name: CHANGES[name]}).value(b"manifest") != BINDING.value(b"manifest")


def test_no_field_was_forgotten():
    assert set(CHANGES) == {field.name for field in dataclasses.fields(Binding)}


def test_the_manifest_changes_the_value():
    assert BINDING.value(b"a") != BINDING.value(b"b")


@each("name", "nonce", "session", "exporter")
def test_fields_of_fixed_size(name):
    refused(ValueError, name, changed(**{name: b"short"}).value, b"")


@given(st.text(max_size=6), st.binary(max_size=6), st.binary(max_size=6), st.integers(0, 6))
def test_bytes_cannot_move_from_one_field_to_the_next(job, ak_name, wireguard, cut):
    both = ak_name + wireguard
    moved = (both[:cut], both[cut:])
    one = dataclasses.replace(BINDING, job=job, ak_name=ak_name, wireguard=wireguard)
    two = dataclasses.replace(BINDING, job=job, ak_name=moved[0], wireguard=moved[1])
    assert (one.value(b"") == two.value(b"")) == ((ak_name, wireguard) == moved)


def test_the_function_and_the_class_agree():
    fields = {f.name: getattr(BINDING, f.name) for f in dataclasses.fields(Binding)}
    assert binding_value(**fields, manifest=b"m") == BINDING.value(b"m")
