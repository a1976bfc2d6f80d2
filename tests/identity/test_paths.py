# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lines of certificates to a pinned root; `test_honest_lines` is the control of what is refused."""

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.verification import VerificationError

from securetrain.identity import paths
from tests.evidence.tpm.forge import resign
from tests.identity import worlds
from tests.identity.worlds import named, usage
from tests.rsa_keys import rsa_key
from tests.tables import each, forgeries

NOW = datetime(2026, 6, 1, tzinfo=UTC)
BEGIN, END = NOW - timedelta(days=365), NOW + timedelta(days=365)
SECOND = timedelta(seconds=1)
RULES = paths.Rules(name="Maker", scheme=paths.Scheme.ECDSA_P384_SHA384)
ALONE = replace(RULES, engine=paths.Engine.SCHEME)
ROLES = ("leaf", "low", "high", "root")
_KEYS: dict[str, ec.EllipticCurvePrivateKey] = {}


def key(name: str) -> ec.EllipticCurvePrivateKey:
    return _KEYS.setdefault(name, ec.generate_private_key(ec.SECP384R1()))


@dataclass(frozen=True)
class Spec:
    """A certificate to be made."""

    subject: str
    issuer: str
    public: Any = None
    signer: Any = None
    hash: Any = field(default_factory=hashes.SHA384)
    begin: datetime = BEGIN
    end: datetime = END
    serial: int = 77
    ca: bool | None = True
    critical: bool = True
    path_length: int | None = None
    uses: tuple[str, ...] | None = ("key_cert_sign", "crl_sign")
    more: tuple[tuple[x509.ExtensionType, bool], ...] = ()
    patch: tuple[bytes, bytes] | None = None

    def der(self) -> bytes:
        signer = key(self.issuer) if self.signer is None else self.signer
        length = self.path_length if self.ca else None
        made = worlds.certificate(
            self.subject,
            self.issuer,
            (self.public or key(self.subject)).public_key(),
            signer,
            (self.begin, self.end),
            None if self.ca is None else (x509.BasicConstraints(self.ca, length), self.critical),
            None if self.uses is None else (usage(*self.uses), True),
            *self.more,
            serial=self.serial,
            digest=None if isinstance(signer, ed25519.Ed25519PrivateKey) else self.hash,
        ).public_bytes(Encoding.DER)
        if self.patch is None:
            return made
        assert made.count(self.patch[0]) == 1
        return resign(made.replace(*self.patch), signer, "sha384")


HONEST = {
    "leaf": Spec("leaf", "low", ca=None, uses=("digital_signature",)),
    "low": Spec("low", "high"),
    "high": Spec("high", "root"),
    "root": Spec("root", "root"),
}


def made(**changes: dict[str, Any]) -> list[tuple[str, bytes]]:
    return [(role, replace(HONEST[role], **changes.get(role, {})).der()) for role in ROLES]


LINE = made()
PIN = paths.spki_sha256(x509.load_der_x509_certificate(LINE[-1][1]))


def verify(line, *, pins=(PIN,), now=NOW, rules=RULES, links=None):
    return paths.verify_line(line, pins, now, rules, links)


def refused(flaw, line, position=None, text="", **named) -> paths.BadPathError:
    with pytest.raises(paths.BadPathError) as caught:
        verify(line, **named)
    assert caught.value.flaw is flaw, caught.value
    assert text in caught.value.what
    if position is not None:
        assert caught.value.position == position, caught.value
    return caught.value


# Controls.


@each("id, rules", ("profile", RULES), ("scheme", ALONE))
def test_honest_lines(rules):
    held = verify(LINE, rules=rules)
    assert [link.certificate.subject for link in held] == [named(role) for role in ROLES]
    assert paths.spki_sha256(held[-1].certificate) == PIN
    assert (held[0].not_before, held[0].not_after) == (BEGIN, END)
    short = Spec("leaf", "root", ca=None, uses=("digital_signature",)).der()
    assert len(verify([("leaf", short), LINE[3]], rules=rules)) == 2
    verify(made(low={"path_length": 0}, high={"path_length": 1}, root={"path_length": 2}))
    assert verify(LINE, rules=rules, now=BEGIN)
    assert verify(LINE, rules=rules, now=END)
    assert verify(made(leaf={"ca": False}), rules=rules)


def test_rules_that_ask_less_of_a_leaf():
    bare = made(leaf={"uses": None, "public": ec.generate_private_key(ec.SECP256R1())})
    assert verify(bare, rules=replace(RULES, leaf_key=False, leaf_usage=False))
    refused(paths.Flaw.UNTRUSTED, bare, 0, "not one of P-384")
    refused(paths.Flaw.UNTRUSTED, made(leaf={"uses": None}), 0, "no keyUsage")
    ca = made(low={"public": P256}, leaf={"signer": P256})
    refused(UNTRUSTED, ca, 1, "not one of P-384", rules=replace(RULES, leaf_key=False))


def test_a_time_that_not_all_share_is_no_time():
    # They were never valid together: whatever the time is, one of them is out of date.
    line = made(leaf={"begin": NOW, "end": END}, low={"begin": BEGIN, "end": NOW - SECOND})
    refused(paths.Flaw.EXPIRED, line, 1, now=NOW)
    refused(paths.Flaw.NOT_YET, line, 0, now=NOW - SECOND)
    forged = made(leaf={"begin": NOW, "end": END, "signer": key("x")}, low={"end": NOW - SECOND})
    refused(paths.Flaw.UNTRUSTED, forged, 0, "did not sign it")


# What is remembered.


def test_links_are_remembered_for_their_place_pins_and_rules(monkeypatch):
    calls: list[int] = []
    link = paths._link

    def counted(*arguments):
        calls.append(arguments[1])
        return link(*arguments)

    monkeypatch.setattr(paths, "_link", counted)
    links = paths.Links()
    for _ in range(3):
        verify(LINE, links=links)
    assert calls == [3, 2, 1, 0]
    refused(paths.Flaw.UNPINNED, LINE, 3, "is not pinned", links=links, pins=("00" * 32,))
    verify(LINE, links=links, rules=ALONE)
    assert calls == [3, 2, 1, 0, 3, 3, 2, 1, 0]
    assert len(links) == 8
    refused(paths.Flaw.EXPIRED, LINE, 0, links=links, now=END + SECOND)
    verify(LINE, links=links)


def test_what_is_remembered_is_bounded():
    links = paths.Links(4)
    verify(LINE, links=links)
    verify(made(leaf={"serial": 78}), links=links)
    assert len(links) == 4


# One wrong thing at a time.

CRITICAL = (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0"), True)
NAMES = x509.NameConstraints([x509.DNSName("a.b")], None)
UNTRUSTED, MALFORMED = paths.Flaw.UNTRUSTED, paths.Flaw.MALFORMED
P256, ED = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()
WRONG: dict[str, tuple[dict[str, Any], paths.Flaw, str]] = {
    "another-signer": ({"signer": key("mallory")}, UNTRUSTED, "did not sign it"),
    "sha256": ({"hash": hashes.SHA256()}, UNTRUSTED, "not ecdsa-with-SHA384"),
    "another-issuer": ({"issuer": "nobody", "signer": key("nobody")}, UNTRUSTED, "does not name"),
    "unknown-critical": ({"more": (CRITICAL,)}, UNTRUSTED, ""),
    "p256": ({"public": P256}, UNTRUSTED, "not one of P-384"),
    "ed25519": ({"public": ED}, UNTRUSTED, "not one of P-384"),
    "rsa": ({"public": rsa_key(2048)}, UNTRUSTED, "not one of P-384"),
    "expired": ({"end": NOW - SECOND}, paths.Flaw.EXPIRED, "expired"),
    "not-yet": ({"begin": NOW + SECOND}, paths.Flaw.NOT_YET, "valid from"),
    "names": ({"more": ((NAMES, True),)}, UNTRUSTED, "2.5.29.30"),
    "names-not-critical": ({"more": ((NAMES, False),)}, UNTRUSTED, "2.5.29.30"),
}
WRONG_CA: dict[str, tuple[dict[str, Any], paths.Flaw, str]] = {
    "no-ca": ({"ca": False}, UNTRUSTED, "not a CA"),
    "no-constraints": ({"ca": None}, UNTRUSTED, "no critical basicConstraints"),
    "constraints-not-critical": ({"critical": False}, UNTRUSTED, "no critical basicConstraints"),
    "no-usage": ({"uses": None}, UNTRUSTED, "no keyUsage"),
    "may-not-issue": ({"uses": ("digital_signature", "crl_sign")}, UNTRUSTED, "(keyCertSign)"),
}
WRONG_LEAF: dict[str, tuple[dict[str, Any], paths.Flaw, str]] = {
    "ca": ({"ca": True}, UNTRUSTED, "a leaf was expected"),
    "may-issue": ({"uses": ("digital_signature", "key_cert_sign")}, UNTRUSTED, "alone"),
    "may-not-sign": ({"uses": ("key_agreement",)}, UNTRUSTED, "alone"),
    "no-usage": ({"uses": None}, UNTRUSTED, "no keyUsage"),
}
CASES = [
    (role, name)
    for role in ROLES
    for name in (*WRONG, *(WRONG_LEAF if role == "leaf" else WRONG_CA))
    # A root is its own issuer: another one is another root.
    if not (role == "root" and name in {"p256", "ed25519", "rsa"})
]


def wrong(role: str, name: str) -> tuple[dict[str, Any], paths.Flaw, str]:
    return {**WRONG, **(WRONG_LEAF if role == "leaf" else WRONG_CA)}[name]


def attack(role, name, rules=RULES, more=None, links=None):
    """Change one certificate; those below it are its own, as a forger would make them."""
    changes, flaw, text = wrong(role, name)
    line = {r: dict(more.get(r, {})) if more else {} for r in ROLES}
    line[role] |= changes
    below = ROLES.index(role) - 1
    if "public" in changes and below >= 0:
        signer, digest = changes["public"], hashes.SHA384()
        line[ROLES[below]] |= {"signer": signer, "hash": digest}
    refused(flaw, made(**line), ROLES.index(role), text, rules=rules, links=links)


@pytest.mark.forgery
@pytest.mark.parametrize("rules", [RULES, ALONE], ids=["profile", "scheme"])
@pytest.mark.parametrize(("role", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_one_wrong_thing(role, name, rules):
    attack(role, name, rules)


@forgeries("id, rules", ("profile", RULES), ("scheme", ALONE))
def test_more_cas_than_one_allows(rules):
    for role, length in (("high", 0), ("root", 1)):
        line = made(**{role: {"path_length": length}})
        refused(UNTRUSTED, line, ROLES.index(role), f"path length is {length}", rules=rules)


@forgeries("id, rules", ("profile", RULES), ("scheme", ALONE))
def test_orders_and_lengths(rules):
    refused(MALFORMED, [], 0, "0 certificates", rules=rules)
    refused(MALFORMED, LINE[-1:], 0, "1 certificates", rules=rules)
    refused(MALFORMED, LINE[:1] * (1 << 16), 0, "65536 certificates", rules=rules)
    refused(UNTRUSTED, LINE[::-1], 3, "does not name", rules=rules)
    refused(UNTRUSTED, [LINE[0], *LINE[2:]], 0, "does not name", rules=rules)
    refused(UNTRUSTED, [*LINE, LINE[-1]], 0, "comes twice", rules=rules)
    other = made(root={"public": key("other"), "signer": key("other")})[-1]
    refused(paths.Flaw.UNPINNED, [*LINE[:-1], other], 3, rules=rules)
    refused(paths.Flaw.UNPINNED, LINE, 3, "none is pinned", pins=(), rules=rules)


@forgeries("id, rules", ("profile", RULES), ("scheme", ALONE))
def test_a_loop_of_two_that_sign_each_other(rules):
    a, b = Spec("a", "b").der(), Spec("b", "a").der()
    leaf = Spec("leaf", "a", ca=None, uses=("digital_signature",)).der()
    line = [("leaf", leaf), ("a", a), ("b", b), ("a", a), ("b", b)]
    pins = {paths.spki_sha256(x509.load_der_x509_certificate(one)) for one in (a, b)}
    refused(UNTRUSTED, line, 4, "does not name", rules=rules)
    refused(UNTRUSTED, line, 4, "does not name", pins=pins, rules=rules)


@pytest.mark.forgery
def test_a_certificate_under_itself():
    # Its own issuer by name, its own key: no more than a second root, and never verified as one.
    again = Spec("root", "root", public=key("x"), serial=5).der()
    leaf = Spec("leaf", "root", signer=key("x"), ca=None, uses=("digital_signature",)).der()
    assert verify([("leaf", leaf), ("again", again), LINE[-1]])
    line = [("leaf", leaf), ("again", again), ("again", again), LINE[-1]]
    for rules in (RULES, ALONE):
        refused(UNTRUSTED, line, 1, "did not sign it", rules=rules)


@pytest.mark.forgery
def test_bytes():
    for data in (b"", b"\x30\x00", bytes(40), LINE[0][1][:-1], LINE[0][1] + b"\0"):
        refused(MALFORMED, [("leaf", data), *LINE[1:]], 0)
    large = bytes(paths.CERTIFICATE_LIMIT + 1)
    refused(MALFORMED, [("leaf", large), *LINE[1:]], 0, "the limit is")
    refused(MALFORMED, LINE, 3, "the limit is 100", rules=replace(RULES, limit=100))


@forgeries("id, rules", ("profile", RULES), ("scheme", ALONE))
def test_a_negative_serial_number(rules):
    # The builder makes none; the body is changed and signed again.
    for role in ROLES:
        changes = {role: {"serial": 0x7777777777777777, "patch": (b"\x77" * 8, b"\xf7" * 8)}}
        refused(MALFORMED, made(**changes), ROLES.index(role), "negative", rules=rules)


@pytest.mark.forgery
def test_a_bit_anywhere_in_a_line():
    drawn = random.Random(20260601)
    links = paths.Links()
    verify(LINE, links=links)
    for _ in range(10):
        _turn_a_bit(drawn, links)


def _turn_a_bit(drawn, links):
    position = drawn.randrange(len(LINE))
    role, der = LINE[position]
    bit = drawn.randrange(8 * len(der))
    altered = bytearray(der)
    altered[bit // 8] ^= 1 << bit % 8
    line = [*LINE[:position], (role, bytes(altered)), *LINE[position + 1 :]]
    with pytest.raises(paths.BadPathError):
        verify(line, links=links, rules=drawn.choice((RULES, ALONE)))


@pytest.mark.forgery
@pytest.mark.many
def test_many_forgeries_drawn_at_random():
    drawn = random.Random(1118)
    links = paths.Links()
    for _ in range(150):
        attack(*drawn.choice(CASES), rules=drawn.choice((RULES, ALONE)), links=links)
    for _ in range(400):
        _turn_a_bit(drawn, links)
    verify(LINE, links=links)


# Schemes.


def _pss(digest, salt=padding.PSS.DIGEST_LENGTH):
    return padding.PSS(padding.MGF1(digest), salt)


def test_a_scheme_takes_its_own_keys_and_signatures_alone():
    rsa_scheme, curve = paths.Scheme.RSA_4096_PSS_SHA384, paths.Scheme.ECDSA_P384_SHA384
    large, small, on_curve = rsa_key(4096), rsa_key(2048), key("leaf")
    sha384 = hashes.SHA384()
    by_rsa = large.sign(b"said", _pss(sha384), sha384)
    by_curve = on_curve.sign(b"said", ec.ECDSA(sha384))
    rsa_scheme.check(large.public_key(), by_rsa, b"said")
    curve.check(on_curve.public_key(), by_curve, b"said")
    weak = small.sign(b"said", _pss(sha384), sha384)
    other_curve = ec.generate_private_key(ec.SECP256R1())
    for scheme, public, signature, message in (
        (rsa_scheme, large.public_key(), by_rsa, b"not said"),
        (rsa_scheme, rsa_key(4096, 1).public_key(), by_rsa, b"said"),
        (rsa_scheme, large.public_key(), large.sign(b"said", padding.PKCS1v15(), sha384), b"said"),
        (rsa_scheme, small.public_key(), weak, b"said"),
        (rsa_scheme, on_curve.public_key(), by_curve, b"said"),
        (rsa_scheme, None, by_rsa, b"said"),
        (curve, on_curve.public_key(), by_curve, b"not said"),
        (curve, key("low").public_key(), by_curve, b"said"),
        (curve, on_curve.public_key(), on_curve.sign(b"said", ec.ECDSA(hashes.SHA256())), b"said"),
        (curve, other_curve.public_key(), other_curve.sign(b"said", ec.ECDSA(sha384)), b"said"),
        (curve, large.public_key(), by_rsa, b"said"),
    ):
        with pytest.raises(InvalidSignature):
            scheme.check(public, signature, message)


def test_who_is_judged_by_a_scheme_need_not_meet_the_profile(monkeypatch):
    def refuse(*_):
        raise VerificationError("not like the web's")

    monkeypatch.setattr(paths, "_check_profile", refuse)
    refused(paths.Flaw.UNTRUSTED, LINE, 2, "not like the web's")
    assert len(verify(LINE, rules=ALONE)) == len(ROLES)


@forgeries("id, rules", ("profile", RULES), ("scheme", ALONE))
def test_the_algorithm_beside_a_signature_is_not_the_one_that_was_signed(rules):
    """What was signed says SHA-256; the signature is by SHA-384, and says so."""
    sha256, sha384 = (bytes.fromhex(f"06082a8648ce3d0403{n}") for n in ("02", "03"))
    changed = LINE[0][1].replace(sha384, sha256, 1)
    certificate = x509.load_der_x509_certificate(changed)
    signature = key("low").sign(certificate.tbs_certificate_bytes, ec.ECDSA(hashes.SHA384()))
    head = changed[: -len(certificate.signature) - 3]  # BIT STRING, length, unused bits
    end = b"\x03" + bytes([len(signature) + 1]) + b"\0" + signature
    inner = head[4:] + end
    made_again = b"\x30\x82" + len(inner).to_bytes(2, "big") + inner
    assert x509.load_der_x509_certificate(made_again).signature == signature
    refused(paths.Flaw.UNTRUSTED, [("leaf", made_again), *LINE[1:]], 0, rules=rules)


@pytest.mark.forgery
def test_a_certificate_by_the_right_algorithm_with_weaker_parameters():
    """RSASSA-PSS names its hash in parameters: the scheme's is SHA-384."""
    rules = replace(ALONE, scheme=paths.Scheme.RSA_4096_PSS_SHA384, leaf_key=False)
    above = rsa_key(4096)

    def certificate(name, public, digest, *, ca):
        signs = ("key_cert_sign",) if ca else ("digital_signature",)
        more = (worlds.limits(ca=ca), (usage(*signs), True))
        how = {"digest": digest, "rsa_padding": _pss(digest)}
        return worlds.certificate(name, "root", public, above, (BEGIN, END), *more, **how)

    root = certificate("root", above.public_key(), hashes.SHA384(), ca=True)
    pins = (paths.spki_sha256(root),)
    for digest in (hashes.SHA384(), hashes.SHA256()):
        leaf = certificate("leaf", key("leaf").public_key(), digest, ca=False)
        leaf.verify_directly_issued_by(root)  # by its own word it is signed in both cases
        line = [("leaf", leaf), ("root", root)]
        if isinstance(digest, hashes.SHA384):
            assert len(verify(line, pins=pins, rules=rules)) == 2
        else:
            refused(paths.Flaw.UNTRUSTED, line, 0, "did not sign it", pins=pins, rules=rules)
