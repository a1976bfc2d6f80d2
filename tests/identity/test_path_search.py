# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Paths that OpenSSL finds; `test_honest_searches` is the control of everything that is refused."""

from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from OpenSSL import crypto

from securetrain.identity import path_search, paths
from tests.evidence.tpm.forge import resign
from tests.identity.test_paths import (
    BEGIN,
    END,
    HONEST,
    LINE,
    NOW,
    ROLES,
    SECOND,
    UNTRUSTED,
    Spec,
    key,
    made,
    wrong,
)
from tests.rsa_keys import rsa_key
from tests.tables import each, forgeries
from tests.vocabulary import refused


def loaded(der: bytes) -> crypto.X509:
    return crypto.load_certificate(crypto.FILETYPE_ASN1, der)


def find(line, *, now=NOW, pinned=None, sent=None):
    leaf, *above = (loaded(der) for _, der in line)
    anchors = path_search.Anchors(above[-1:] if pinned is None else pinned)
    return anchors.find(leaf, above[:-1] if sent is None else sent, now)


def test_honest_searches():
    for order in (LINE, [LINE[0], LINE[2], LINE[1], LINE[3]]):
        found = find(order)
        assert [path_search.encoded(one) for one in found] == [der for _, der in LINE]
    for position, one in enumerate(found):
        assert path_search.weigh(one, position, is_root=position == 3) == (BEGIN, END)
    validity = path_search.Validity(BEGIN, END)
    times = (BEGIN - SECOND, BEGIN, END, END + SECOND)
    assert [validity.covers(now) for now in times] == [False, True, True, False]
    nearest = find(LINE, pinned=[loaded(LINE[1][1])])
    assert len(nearest) == 2


def not_found(flaw, line, text="", **named):
    with pytest.raises(paths.BadPathError) as caught:
        find(line, **named)
    assert caught.value.flaw is flaw, caught.value
    assert text in caught.value.what


@forgeries("role", *ROLES)
@each("name", "another-signer", "expired", "not-yet")
def test_a_search_with_one_wrong_thing(role, name):
    changes, flaw, _ = wrong(role, name)
    if (role, name) == ("root", "another-signer"):
        assert find(made(root=changes)), "a pinned certificate is believed as it is"
        return
    not_found(flaw, made(**{role: changes}))


@forgeries("role", "low", "high")
@each("name", "no-ca", "may-not-issue", "unknown-critical")
def test_a_search_by_way_of_no_ca(role, name):
    not_found(UNTRUSTED, made(**{role: wrong(role, name)[0]}))


@pytest.mark.forgery
def test_searches_that_end_nowhere():
    not_found(UNTRUSTED, LINE, pinned=[])
    not_found(UNTRUSTED, LINE, sent=[])
    not_found(UNTRUSTED, LINE, "no pinned root", pinned=[loaded(LINE[0][1])])
    same = made(root={"public": key("other"), "signer": key("other")})[-1]
    not_found(UNTRUSTED, LINE, pinned=[loaded(same[1])])


@pytest.mark.forgery
def test_a_search_among_cas_that_sign_each_other():
    # Five that certify one another in every way: OpenSSL comes to an end, without the root.
    names = [f"ring-{n}" for n in range(5)]
    ring = [loaded(Spec(a, b).der()) for a in names for b in names if a != b]
    leaf = Spec("leaf", names[0], ca=None, uses=("digital_signature",)).der()
    not_found(UNTRUSTED, [("leaf", leaf), LINE[-1]], sent=ring)


@pytest.mark.forgery
def test_paths_that_are_too_weak():
    old = loaded(resign(LINE[1][1], key("high"), "sha1"))
    refused(paths.BadPathError, "SHA1", path_search.weigh, old, 1, is_root=False)
    path_search.weigh(old, 1, is_root=True)
    for changes, text in (
        ({"public": ec.generate_private_key(ec.SECP224R1())}, "224 bits"),
        ({"public": rsa_key(1024)}, "1024 bits"),
    ):
        weak = loaded(replace(HONEST["low"], **changes).der())
        caught = refused(paths.BadPathError, text, path_search.weigh, weak, 1, is_root=False)
        assert caught.flaw is UNTRUSTED


@pytest.mark.forgery
def test_keys_and_times_that_cannot_be_read():
    """A CA's key of another kind or none; a validity that is no time."""
    edwards = loaded(replace(HONEST["low"], public=ed25519.Ed25519PrivateKey.generate()).der())
    der = LINE[1][1]
    curve = bytes.fromhex("06052b81040022")  # secp384r1
    assert curve in der
    unknown = loaded(der.replace(curve, curve[:-1] + b"\x70"))
    for bad, text in ((edwards, "neither RSA nor ECC"), (unknown, "cannot be read")):
        for call in (
            lambda one: path_search.weigh(one, 1, is_root=False),
            lambda one: path_search.native_key(one, 1),
        ):
            caught = refused(paths.BadPathError, text, call, bad)
            assert (caught.flaw, caught.position) == (paths.Flaw.MALFORMED, 1)
    when = BEGIN.strftime("%y%m%d%H%M%SZ").encode()
    assert when in der
    for other in (b"99" + b"1" * 10 + b"?", b"+" * 13):
        timeless = loaded(der.replace(when, other))
        with pytest.raises(paths.BadPathError, match="validity cannot be read") as lately:
            path_search.weigh(timeless, 1, is_root=False)
        assert lately.value.flaw is paths.Flaw.MALFORMED


@pytest.mark.forgery
def test_a_search_without_a_time_is_strict():
    def strict(line):
        leaf, *between, root = (loaded(der) for _, der in line)
        return path_search.openssl_path(leaf, between, [root], now=None)

    identifiers: dict[str, dict[str, Any]] = {
        role: {
            "more": (
                (x509.SubjectKeyIdentifier.from_public_key(key(role).public_key()), False),
                (
                    x509.AuthorityKeyIdentifier.from_issuer_public_key(
                        key(HONEST[role].issuer).public_key()
                    ),
                    False,
                ),
            )
        }
        for role in ROLES
    }
    late = {role: {**more, "end": NOW - SECOND} for role, more in identifiers.items()}
    assert len(strict(made(**late))) == 4, "dates are the caller's"
    with pytest.raises(paths.BadPathError):
        strict(LINE)
    identifiers["root"]["signer"] = key("mallory")
    refused(paths.BadPathError, "signature", strict, made(**identifiers))
