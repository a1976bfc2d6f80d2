# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files that makers sign, and the keys of the kernel's keyrings."""

import base64
import dataclasses
import hashlib
import json
import random
from collections.abc import Callable
from struct import pack
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.ima import ImaState, TemplateCache
from securetrain.evidence.tpm.ima_keys import ImaKey, key_id_of, read_signers
from securetrain.evidence.tpm.runtime_policy import RuntimePolicy, parse_runtime_policy
from securetrain.testing.measurement_lists import (
    Measurement,
    aggregate,
    ima_list,
    measured_buffer,
    measured_file,
    replayed,
)
from securetrain.testing.signed_files import Maker
from tests import vocabulary
from tests.evidence.tpm import evmctl
from tests.evidence.tpm.lateboots import pem
from tests.evidence.tpm.test_ima import BOOT, accepted, document
from tests.evidence.tpm.test_ima import appraise as appraise_list
from tests.rsa_keys import rsa_key
from tests.tables import each, forgeries

LISTED = measured_file("/usr/bin/listed")
TOOL = b"a tool that its maker has signed"
MAKERS = {
    "rsa": Maker(rsa_key(2048), "rsa"),
    "p256": Maker(ec.generate_private_key(ec.SECP256R1()), "p256"),
    "p384": Maker(ec.generate_private_key(ec.SECP384R1()), "p384"),
}
STRANGER = Maker(ec.generate_private_key(ec.SECP256R1()), "p256")
KEYS = tuple(ImaKey(key=maker.pem) for maker in MAKERS.values())
EACH = pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
BOTH = pytest.mark.parametrize("binary", [True, False], ids=["binary", "ascii"])


def policy_for(*keys: ImaKey, **changes: Any) -> RuntimePolicy:
    listed = {"/usr/bin/listed": [hashlib.sha256(b"/usr/bin/listed").hexdigest()]}
    data = json.dumps(document(**{"digests": listed, **changes})).encode()
    return parse_runtime_policy(data, keys=keys)


SIGNED = policy_for(*KEYS)


def appraise(
    *measurements: Measurement,
    policy: RuntimePolicy = SIGNED,
    binary: bool = True,
    cache: TemplateCache | None = None,
) -> ImaState:
    """The list of these, quoted right behind the last."""
    whole = [aggregate(BOOT), LISTED, *measurements]
    how = {"policy": policy, "cache": cache or TemplateCache()}
    return accepted(whole, binary=binary, **how)


def refused(code: str, *measurements: Measurement, **named: Any) -> AttestationError:
    return vocabulary.refused(AttestationError, code, appraise, *measurements, **named)


# What must work.


@each(
    "id, certificate, signature",
    ("rsa", evmctl.RSA_CERTIFICATE, evmctl.RSA_SIGNATURE),
    ("ec", evmctl.EC_CERTIFICATE, evmctl.EC_SIGNATURE),
)
def test_what_evmctl_signs(certificate, signature):
    pem = x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM).decode()
    file = dataclasses.replace(measured_file("/usr/bin/hello", evmctl.CONTENT), extra=signature)
    refused("ST-ATTS-309", file, policy=policy_for())
    assert appraise(file, policy=policy_for(ImaKey(key=pem))).signed == 1


@BOTH
@EACH
@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_a_signed_file_needs_no_digest_in_the_list(maker, algorithm, binary):
    file = maker.file("/opt/new tool".replace(" ", "_"), TOOL, algorithm)
    refused("ST-ATTS-309", file, policy=policy_for(), binary=binary)
    state = appraise(file, binary=binary)
    assert (state.signed, state.excluded, state.num_entries) == (1, 0, 3)


@BOTH
@EACH
def test_fs_verity(maker, binary):
    assert appraise(maker.file("/opt/tool", TOOL, verity=True), binary=binary).signed == 1


@EACH
def test_the_keys_of_a_keyring(maker):
    assert appraise(maker.loaded()).signed == 1
    bare = maker.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    named = policy_for(ImaKey(key=bare.decode(), keyring=".builtin_trusted_keys"))
    assert appraise(maker.loaded(".builtin_trusted_keys"), policy=named).signed == 1
    refused("ST-ATTS-309", maker.loaded(), policy=named)


def test_a_key_may_be_listed_by_its_digest():
    loaded = STRANGER.loaded()
    policy = policy_for(*KEYS, keyrings={".ima": [hashlib.sha256(loaded.extra).hexdigest()]})
    assert appraise(loaded, policy=policy).signed == 0
    signed = STRANGER.file("/opt/tool", TOOL)
    error = refused("ST-ATTS-312", loaded, signed, policy=policy)
    assert "not among the reference values" in error.what, "what was loaded signs for nothing"


def test_marks_are_counted_apart_also_from_the_cache():
    policy = policy_for(*KEYS, excludes=["/tmp/.*"])
    cache = TemplateCache()
    files = [
        MAKERS["rsa"].file("/opt/a", b"a"),
        measured_file("/tmp/x"),
        measured_file("/tmp/y"),
        MAKERS["p256"].loaded(),
    ]
    for _ in range(2):
        state = appraise(*files, policy=policy, cache=cache)
        assert (state.signed, state.excluded) == (2, 2)


def spki(public: Any) -> bytes:
    der: bytes = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return der


def keylime(*makers: Maker, **changes: Any) -> str:
    """The text of ``verification-keys`` as Keylime's tenant writes it."""
    ders = [spki(maker.key.public_key()) for maker in makers]
    listed = {
        "meta": {"version": 1},
        "pubkeys": [base64.b64encode(der).decode() for der in ders],
        "keyids": [int.from_bytes(maker.key_id, "big") for maker in makers],
    }
    return json.dumps({**listed, **changes})


@each("id, changes", ("all", {}), ("ids", {"keyids": []}), ("meta", {"meta": {}}))
def test_keylimes_verification_keys(changes):
    policy = policy_for(**{"verification-keys": keylime(*MAKERS.values(), **changes)})
    for maker in MAKERS.values():
        assert appraise(maker.file("/opt/tool", TOOL), policy=policy).signed == 1
    refused("ST-ATTS-312", STRANGER.file("/opt/tool", TOOL), policy=policy)


def test_two_keys_with_one_id():
    twin = Maker(ec.generate_private_key(ec.SECP256R1()), "twin")
    twin.key_id = MAKERS["p256"].key_id
    listed = json.loads(keylime(twin, MAKERS["p256"]))
    policy = policy_for(**{"verification-keys": json.dumps(listed)})
    for maker in (twin, MAKERS["p256"]):
        assert appraise(maker.file("/opt/tool", TOOL), policy=policy).signed == 1


def test_a_key_for_some_paths():
    keys = ImaKey(key=MAKERS["rsa"].pem, paths=("/opt/vendor/.*",))
    policy = policy_for(keys)
    assert appraise(MAKERS["rsa"].file("/opt/vendor/tool", TOOL), policy=policy).signed == 1
    error = refused("ST-ATTS-312", MAKERS["rsa"].file("/usr/sbin/sshd", TOOL), policy=policy)
    assert "does not vouch for this path" in error.what


def test_the_id_that_evmctl_prints():
    for maker in MAKERS.values():
        assert key_id_of(maker.pem) == maker.key_id.hex()


# What must not.


@pytest.mark.forgery
def test_an_older_signed_file_does_not_take_the_place_of_a_listed_one():
    old = MAKERS["rsa"].file("/usr/bin/listed", b"an older one, with a hole")
    refused("ST-ATTS-310", old)


@pytest.mark.forgery
def test_another_key_in_a_guarded_keyring_is_refused_though_it_is_ignored_or_excluded():
    policy = policy_for(*KEYS, excludes=["\\.ima"], ima={"ignored_keyrings": [".ima", ".platform"]})
    plain = policy_for(excludes=["\\.ima"], ima={"ignored_keyrings": [".ima", ".platform"]})
    assert appraise(STRANGER.loaded(), policy=plain).excluded == 1
    refused("ST-ATTS-313", STRANGER.loaded(), policy=policy)
    assert appraise(STRANGER.loaded(".platform"), policy=policy).excluded == 1


@forgeries("damage", *range(12))
def test_a_damaged_certificate_in_a_keyring(damage):
    chance, honest = random.Random(damage), MAKERS["rsa"].loaded().extra
    payload = bytearray(honest)
    spot = payload.find(spki(MAKERS["rsa"].certificate.public_key()))
    payload[chance.randrange(spot, spot + 290)] ^= 1 << chance.randrange(8)
    for forged in (
        bytes(payload),
        bytes(payload[: chance.randrange(len(payload))]),
        honest + b"\0",
    ):
        refused("ST-ATTS-313", measured_buffer(".ima", forged))


@pytest.mark.forgery
def test_a_certificate_of_an_unknown_version_in_a_keyring():
    payload = MAKERS["p256"].loaded().extra
    refused("ST-ATTS-313", measured_buffer(".ima", payload.replace(b"\2\1\2", b"\2\1\6", 1)))


def _header(signature: bytes, **changes: int) -> bytes:
    fields = {
        "kind": signature[0],
        "version": signature[1],
        "hashed": signature[2],
        "key_id": int.from_bytes(signature[3:7], "big"),
        "size": int.from_bytes(signature[7:9], "big"),
        **changes,
    }
    return pack(">BBBIH", *fields.values()) + signature[9:]


def _other_size(signature: bytes, chance: random.Random) -> bytes:
    return _header(signature, size=len(signature) - 9 + chance.choice([-1, 1, 7, 200]))


Forgery = Callable[[Maker, Measurement, random.Random], Measurement]


def _extra(change: Callable[[bytes, random.Random], bytes]) -> Forgery:
    return lambda _, file, chance: dataclasses.replace(file, extra=change(file.extra, chance))


def _signature_of_another(maker: Maker, file: Measurement, chance: random.Random) -> Measurement:
    other = maker.file("/opt/other", chance.randbytes(20))
    return dataclasses.replace(file, extra=other.extra)


def _content_of_another(maker: Maker, file: Measurement, chance: random.Random) -> Measurement:
    evil = measured_file("/opt/tool", chance.randbytes(20))
    return dataclasses.replace(file, digest=evil.digest)


def _by_a_twin(maker: Maker, file: Measurement, _: random.Random) -> Measurement:
    """A stranger who gives their key another one's id."""
    signed = STRANGER.file("/opt/tool", TOOL)
    return dataclasses.replace(file, extra=signed.extra[:3] + maker.key_id + signed.extra[7:])


def _under_another_hash(maker: Maker, file: Measurement, chance: random.Random) -> Measurement:
    other = maker.sign(hashlib.sha512(TOOL).digest(), "sha512")
    return dataclasses.replace(file, extra=chance.choice([other, _header(other, hashed=4)]))


def _verity_as_file(maker: Maker, file: Measurement, chance: random.Random) -> Measurement:
    """What fs-verity's signature covers is no file's digest, and the other way round."""
    digest = hashlib.sha256(TOOL).digest()
    verity, plain = maker.sign(digest, verity=True), maker.sign(digest)
    as_verity = {"template": b"ima-sigv2", "digest": b"verity:sha256:\0" + digest}
    changes: list[dict[str, Any]] = [
        {"extra": verity},
        {"extra": _header(verity, kind=3, version=2)},
        {"extra": plain, **as_verity},
        {"extra": _header(plain, kind=6, version=3), **as_verity},
    ]
    return dataclasses.replace(file, **chance.choice(changes))


FORGERIES: dict[str, Forgery] = {
    "a bit flipped": _extra(
        lambda s, c: (
            s[: (at := c.randrange(9, len(s)))] + bytes([s[at] ^ 1 << c.randrange(8)]) + s[at + 1 :]
        )
    ),
    "cut": _extra(lambda s, c: s[: c.randrange(1, len(s))]),
    "trailing bytes": _extra(lambda s, c: s + c.randbytes(c.randrange(1, 9))),
    "trailing bytes, and counted": _extra(
        lambda s, c: _header(s + (more := c.randbytes(4)), size=len(s) - 9 + len(more))
    ),
    "another length": _extra(_other_size),
    "another type": _extra(lambda s, c: _header(s, kind=c.choice([0, 1, 2, 4, 5, 7, 255]))),
    "another version": _extra(lambda s, c: _header(s, version=c.choice([0, 1, 3, 255]))),
    "another hash": _extra(lambda s, c: _header(s, hashed=c.choice([0, 1, 2, 5, 6, 7, 21, 255]))),
    "another key's id": _extra(lambda s, c: _header(s, key_id=c.getrandbits(32))),
    "the zero signature": _extra(lambda s, _: s[:9] + bytes(len(s) - 9)),
    "r and s of zero": _extra(
        lambda s, _: _header(s[:9] + bytes.fromhex("3006020100020100"), size=8)
    ),
    "of another file": _signature_of_another,
    "for another content": _content_of_another,
    "by a key with the same id": _by_a_twin,
    "by a stranger": lambda _, file, __: STRANGER.file("/opt/tool", TOOL),
    "under another hash": _under_another_hash,
    "fs-verity's for a file's": _verity_as_file,
}


@pytest.mark.forgery
@EACH
@BOTH
@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_forged_signatures(forge, maker, binary, request):
    """The genuine one is accepted in the same breath, so that the change is what is refused."""
    genuine = maker.file("/opt/tool", TOOL)
    appraise(genuine, binary=binary)
    chance = random.Random(request.node.name)
    for _ in range(3):
        refused("ST-ATTS-312", forge(maker, genuine, chance), binary=binary)


@forgeries("template", "ima-ng", "ima-buf", "ima-ngv2")
def test_a_signature_counts_where_the_template_has_one(template):
    """A buffer whose bytes are a signature, and templates without one, vouch for nothing."""
    signed = MAKERS["rsa"].file("/opt/tool", TOOL)
    kind = b"ima:" if template.endswith("v2") else b""
    forged = dataclasses.replace(signed, template=template.encode(), digest=kind + signed.digest)
    if template == "ima-buf":
        forged = measured_buffer("/opt/tool", signed.extra)
    refused("ST-ATTS-309", forged)


@pytest.mark.forgery
def test_a_signed_entry_with_another_file_s_name_keeps_its_own_register():
    """An entry that is sent twice is not what was quoted."""
    signed = MAKERS["rsa"].file("/opt/tool", TOOL)
    begun = [aggregate(BOOT), LISTED]
    sent, quoted = ima_list([*begun, signed, signed]), replayed([*begun, signed, LISTED])
    vocabulary.refused(AttestationError, "ST-ATTS-306", appraise_list, sent, quoted, policy=SIGNED)


@pytest.mark.forgery
def test_a_verdict_is_of_one_set_of_keys():
    cache = TemplateCache()
    file = MAKERS["rsa"].file("/opt/tool", TOOL)
    appraise(file, cache=cache)
    refused("ST-ATTS-312", file, policy=policy_for(KEYS[1]), cache=cache)
    refused("ST-ATTS-309", file, policy=policy_for(), cache=cache)


# Keys that cannot be used.


@each(
    "id, text, what",
    ("no key", "nothing", "neither"),
    ("no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "neither"),
    ("ed25519", pem(ed25519.Ed25519PrivateKey.generate()), "another kind"),
    ("a small curve", pem(ec.generate_private_key(ec.SECP224R1())), "another kind"),
    ("a small modulus", pem(rsa_key(1024)), "1024 bits"),
)
def test_keys_that_cannot_be_used(text, what):
    keys, how = [ImaKey(key=text)], {"says": what, "names": "ima.keys[0]"}
    vocabulary.refused(AttestationError, "ST-ATTS-326", read_signers, keys, **how)


@each(
    "text",
    "[]",
    "{}",
    "{",
    '{"pubkeys": ["?"]}',
    '{"pubkeys": ["AAAA"]}',
    '{"pubkeys": [], "other": 1}',
    keylime(MAKERS["rsa"], keyids=[1, 2]),
    keylime(MAKERS["rsa"], keyids=[-1]),
    keylime(MAKERS["rsa"], meta={"version": 2}),
)
def test_verification_keys_that_cannot_be_read(text):
    vocabulary.refused(AttestationError, "ST-ATTS-326", read_signers, [], text)


def test_too_many_keys():
    vocabulary.refused(AttestationError, "ST-ATTS-326", read_signers, [KEYS[1]] * 257)
