# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Quotes by a forger who can sign anything with a key of their own, except what is true.

`test_honest_...` are the controls. Every forged structure is signed afresh, so that no refusal can
be the signature's when another rule is meant.
"""

import base64
import dataclasses
import json
from typing import Any

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import Algorithm, Curve, Handle, Hash
from securetrain.evidence.tpm.keys import (
    AK_TEMPLATE,
    EK_TEMPLATES,
    check_attestation_key,
    qualified_name,
)
from securetrain.evidence.tpm.quote import (
    Clock,
    Quote,
    check_clock,
    composite,
    verify_quote,
    verify_signature,
)
from securetrain.evidence.tpm.structures import (
    EccKey,
    PcrSelection,
    QuoteInfo,
    Scheme,
    number,
    parse_attest,
    parse_public_area,
    tpm2b,
)
from tests import vocabulary
from tests.evidence.tpm.forge import (
    EXTRA,
    FIRMWARE,
    PCRS,
    Tpm,
    flip,
    make_key,
    rsa_attestation_template,
)
from tests.evidence.vectors import needs_vectors, vector
from tests.tables import each, forgeries

TPM = Tpm()
OTHER = Tpm()
SHA256, SHA1 = (PcrSelection(bank, PCRS) for bank in (Hash.SHA256, Hash.SHA1))
BEFORE = Clock(clock=999_999, reset_count=5, restart_count=2, firmware=FIRMWARE)


def judge(quote, signature, *, tpm=TPM, **changes) -> Quote:
    fields = {
        "ak": tpm.ak.public,
        "ek": tpm.ek.public,
        "extra_data": EXTRA,
        "pcrs": tpm.values(),
        "required": PCRS,
    }
    return verify_quote(quote, signature, **{**fields, **changes})


def forged(changes, **expected) -> Quote:
    """Judge a structure that the forger has altered and then signed."""
    return judge(*TPM.quote(**changes), **expected)


def refused(code, call, *arguments, **named):
    return vocabulary.refused(AttestationError, code, call, *arguments, **named)


P384 = dataclasses.replace(
    AK_TEMPLATE, scheme=Scheme(Algorithm.ECDSA, Hash.SHA384), unique=EccKey(curve=Curve.P384)
)


# Controls.


@each(
    "id, tpm",
    ("rsa-ek-p256-ak", Tpm("L-1")),
    ("p384-ek-p384-ak", Tpm("H-3", P384)),
    ("rsassa", Tpm(ak=rsa_attestation_template(Algorithm.RSASSA))),
    ("rsapss", Tpm(ak=rsa_attestation_template(Algorithm.RSAPSS))),
    ("sha512", Tpm(ak=rsa_attestation_template(Algorithm.RSASSA, Hash.SHA512))),
)
def test_honest_quotes(tpm):
    quote = judge(*tpm.quote(), tpm=tpm)
    assert quote.pcrs == tpm.values()
    assert quote.clock == Clock(clock=1_000_000, reset_count=5, restart_count=2, firmware=FIRMWARE)
    assert quote.safe


def test_an_honest_quote_may_cover_more_than_asked():
    assert judge(*TPM.quote(), required=[0, 7]).pcrs.keys() == set(PCRS)
    assert judge(*TPM.quote(), required=[]).pcrs.keys() == set(PCRS)


def test_an_honest_clock_that_is_not_safe():
    assert not forged({"safe": 0}).safe
    assert not forged({"safe": 0}, previous=BEFORE).safe


def test_honest_renewals():
    assert forged({}, previous=BEFORE).clock.clock == 1_000_000


@each(
    "id, changes",
    ("rebooted", {"reset": 6, "restart": 0, "clock": 5}),
    ("resumed", {"restart": 3, "clock": 5}),
    ("updated", {"firmware": FIRMWARE + 1, "reset": 6}),
    ("downgraded", {"firmware": FIRMWARE - 1, "clock": 1_000_001}),
)
def test_a_node_that_joins_anew_may_have_been_rebooted(changes):
    forged(changes, previous=BEFORE, running=False)


def test_registers_digest_in_the_order_of_the_selection():
    banks = {Hash.SHA1: {1: b"a" * 20}, Hash.SHA256: {0: b"b" * 32, 2: b"c" * 32}}
    one, two = PcrSelection(Hash.SHA1, (1,)), PcrSelection(Hash.SHA256, (0, 2))
    expected = Hash.SHA256.digest(b"b" * 32 + b"c" * 32 + b"a" * 20)
    assert composite([two, one], banks, Hash.SHA256) == expected
    assert composite([one, two], banks, Hash.SHA256) != expected
    assert composite([], banks, Hash.SHA1) == Hash.SHA1.digest(b"")


# Signature and structure.


QUOTED, SIGNATURE = TPM.quote()


@forgeries(
    "id, code, quote, signature",
    *((f"quote {at}", 111, flip(QUOTED, at), SIGNATURE) for at in (0, 4, 6, 30, 60, -1)),
    *((f"signature {at}", 111, QUOTED, flip(SIGNATURE, at)) for at in (6, 20, -1)),
    # The signature comes before the structure.
    *((f"{size} bytes", 111, bytes(size), SIGNATURE) for size in (0, 4000)),
    ("empty numbers", 111, QUOTED, b"\0\x18\0\x0b\0\0\0\0"),
    *((f"{size} more", 101, QUOTED, SIGNATURE + bytes(size)) for size in (1, 100)),
    *((f"cut at {size}", 101, QUOTED, SIGNATURE[:size]) for size in (0, 1, 4, 20)),
)
def test_quotes_and_signatures_that_do_not_fit(code, quote, signature):
    refused(f"ST-ATTS-{code}", judge, quote, signature)


@forgeries(
    "id, r, s",
    ("zeros", 0, 0),
    ("ones", 1, 1),
    ("r-0", 0, 1),
    ("s-0", 1, 0),
    ("huge", 2**528 - 1, 2**528 - 1),
)
def test_signatures_out_of_thin_air(r, s):
    forged = b"\0\x18\0\x0b" + b"".join(tpm2b(number(value, 66)) for value in (r, s))
    refused("ST-ATTS-111", judge, QUOTED, forged, says="does not verify")


@forgeries(
    "scheme",
    Scheme(Algorithm.ECDSA, Hash.SHA1),
    Scheme(Algorithm.ECDSA, Hash.SHA384),
    Scheme(Algorithm.ECDSA, Hash.SHA512),
)
def test_a_good_signature_by_another_hash(scheme):
    quote = TPM.attest()
    error = refused("ST-ATTS-111", judge, quote, TPM.ak.sign(quote, scheme))
    assert f"signed by {scheme}, the key's own scheme is ECDSA-SHA256" in error.what


@forgeries("own, used", (Algorithm.RSASSA, Algorithm.RSAPSS), (Algorithm.RSAPSS, Algorithm.RSASSA))
def test_a_good_signature_by_another_padding(own, used):
    tpm = Tpm(ak=rsa_attestation_template(own))
    quote = tpm.attest()
    signature = tpm.ak.sign(quote, Scheme(used, Hash.SHA256))
    refused("ST-ATTS-111", judge, quote, signature, tpm=tpm, says="own scheme")
    relabelled = number(own, 2) + signature[2:]
    assert "not verify" in refused("ST-ATTS-111", judge, quote, relabelled, tpm=tpm).what


@pytest.mark.forgery
def test_the_algorithms_of_an_ecc_signature_say_rsa():
    quote, signature = TPM.quote()
    refused("ST-ATTS-101", judge, quote, b"\0\x14" + signature[2:])
    rsa_shaped = b"\0\x14\0\x0b" + tpm2b(bytes(256))
    assert "own scheme" in refused("ST-ATTS-111", judge, quote, rsa_shaped).what


@pytest.mark.forgery
def test_the_scheme_is_not_one_of_the_keys_kind():
    # The rule for attestation keys refuses such a key; verifying must hold without it.
    ak = dataclasses.replace(TPM.ak.public, scheme=Scheme(Algorithm.RSASSA, Hash.SHA256))
    signature = b"\0\x14\0\x0b" + tpm2b(bytes(256))
    assert "not verify" in refused("ST-ATTS-111", verify_signature, ak, b"", signature).what


@pytest.mark.forgery
def test_a_key_without_a_scheme_of_its_own_takes_none_from_the_signature():
    tpm = Tpm()
    quote, signature = tpm.quote()
    ak = dataclasses.replace(tpm.ak.public, scheme=None)
    refused("ST-ATTS-111", judge, quote, signature, tpm=tpm, ak=ak, says="own scheme is NULL")


# Whose quote, and for whom.


KEYS = (TPM.ek.public, TPM.ak.public)
DIGESTS = {hash_: composite((SHA256,), {Hash.SHA256: TPM.pcrs}, hash_) for hash_ in Hash}
SIGNED_FORGERIES: dict[tuple[int, str], dict[str, Any]] = {
    (113, "extra"): {
        "empty": b"",
        "prefix": EXTRA[:-1],
        "longer": EXTRA + b"\0",
        "zeros": bytes(32),
        "reversed": EXTRA[::-1],
        "one-bit": flip(EXTRA, 31),
    },
    (114, "signer"): {
        "owner": qualified_name(KEYS, Handle.OWNER),
        "null": qualified_name(KEYS, Handle.NULL),
        "under-another-ek": qualified_name((OTHER.ek.public, TPM.ak.public)),
        "another-ak": qualified_name((TPM.ek.public, OTHER.ak.public)),
        "primary-of-its-own": qualified_name((TPM.ak.public,)),
        "one-level-deeper": qualified_name((TPM.ek.public, OTHER.ek.public, TPM.ak.public)),
        "name-not-qualified": TPM.ak.public.name,
        "empty": b"",
    },
    # CVE-2024-29038: an attestation key signs any data that does not begin with the magic.
    (112, "magic"): {hex(magic): magic for magic in (0, 0xFF544346, 0x41414141)},
    (112, "tag"): {hex(tag): tag for tag in (0x8014, 0x8016, 0x8019, 0x801A, 0x801C)},
    (116, "digest"): {
        **{f"{size} zeros": bytes(size) for size in (0, 16, 32, 64)},
        "by-another-hash": DIGESTS[Hash.SHA384],
        "prefix": DIGESTS[Hash.SHA256][:31],
    },
    (101, "tail"): {"a byte": b"\0"},
}
WHERE = {"extra": "extraData", "signer": "qualifiedSigner", "digest": "pcrDigest"}


@forgeries(
    "id, code, field, value",
    *(
        (f"{field}: {name}", code, field, value)
        for (code, field), values in SIGNED_FORGERIES.items()
        for name, value in values.items()
    ),
)
def test_structures_that_are_refused_though_signed(code, field, value):
    error = refused(f"ST-ATTS-{code}", forged, {field: value})
    assert error.where == WHERE.get(field, error.where)
    assert field != "magic" or "magic" in error.what


@forgeries(
    "id, code, quote, how",
    ("of another TPM", 111, OTHER.quote(), {}),
    ("of another TPM, with its key", 114, OTHER.quote(), {"ak": OTHER.ak.public}),
    ("under another endorsement key", 114, TPM.quote(), {"ek": OTHER.ek.public}),
    ("an old quote under a new challenge", 113, TPM.quote(), {"extra_data": bytes(32)}),
    ("a certification", 112, TPM.certify(TPM.ak.public), {"says": "not a quote"}),
)
def test_genuine_quotes_that_are_not_the_one_asked_for(code, quote, how):
    refused(f"ST-ATTS-{code}", judge, *quote, **how)


# Registers.


@forgeries(
    "id, selections, word",
    ("nothing", (), "selected are: none"),
    ("no-register", (PcrSelection(Hash.SHA256, ()),), "without PCR 0, 1"),
    ("without-10", (PcrSelection(Hash.SHA256, tuple({*PCRS} - {10})),), "without PCR 10"),
    ("sha1-bank", (SHA1,), "SHA1"),
    ("sha384-bank", (PcrSelection(Hash.SHA384, PCRS),), "SHA384"),
    ("the-same-bank-twice", (SHA256, SHA256), "twice"),
    ("in-two-parts", [PcrSelection(Hash.SHA256, part) for part in (PCRS[:8], PCRS[8:])], "twice"),
    ("another-bank-first", (SHA1, SHA256), "SHA1, SHA256"),
    ("another-bank-last", (SHA256, SHA1), "SHA256, SHA1"),
    ("an-empty-bank-beside", (SHA256, PcrSelection(Hash.SHA512, ())), "SHA512"),
)
def test_other_selections(selections, word):
    banks = {bank: dict.fromkeys(range(24), bytes(bank.size)) for bank in Hash}
    changes = {"selections": selections, "banks": {**banks, Hash.SHA256: TPM.pcrs}}
    refused("ST-ATTS-115", forged, changes, says=word, names="pcrSelect")


@forgeries("required", [16], [0, 23], [24], [-1])
def test_a_register_that_is_asked_for_is_not_quoted(required):
    refused("ST-ATTS-115", judge, *TPM.quote(), required=required)


@pytest.mark.forgery
def test_a_register_under_another_number():
    # CVE-2024-29039: a quote over PCR 16, which anybody may reset, is shown as one over PCR 10.
    quote, signature = TPM.quote(selections=(PcrSelection(Hash.SHA256, (16,)),))
    shown = {10: TPM.pcrs[16]}
    refused("ST-ATTS-115", judge, quote, signature, pcrs=shown, required=[10])
    refused("ST-ATTS-116", judge, quote, signature, pcrs=shown, required=[], names="PCR 10, 16")


@pytest.mark.forgery
def test_two_registers_swap_their_numbers():
    # The values digest as they did; only which is which has changed.
    values = dict(TPM.values((4, 7)))
    quote, signature = TPM.quote(selections=(PcrSelection(Hash.SHA256, (4, 7)),))
    assert judge(quote, signature, pcrs=values, required=[4, 7]).pcrs == values
    swapped = {4: values[7], 7: values[4]}
    refused("ST-ATTS-116", judge, quote, signature, pcrs=swapped, required=[4, 7])
    # The order in which they come makes no difference: it is the selection's that counts.
    turned = dict(reversed(values.items()))
    assert judge(quote, signature, pcrs=turned, required=[4, 7]).pcrs == values


@forgeries("cut", 1, 31, 33)
def test_the_border_between_two_values_is_moved(cut):
    # Concatenated, the values are the same bytes: the digest alone would not notice.
    values = dict(TPM.values())
    both = values[3] + values[4]
    values[3], values[4] = both[:cut], both[cut:]
    refused("ST-ATTS-116", judge, *TPM.quote(), pcrs=values, says=f"{cut} bytes", names="PCR 3")


@pytest.mark.forgery
def test_values_of_other_registers():
    values = dict(TPM.values())
    extra = {**values, 16: TPM.pcrs[16]}
    assert refused("ST-ATTS-116", judge, *TPM.quote(), pcrs=extra).where == "PCR 16"
    del values[10]
    assert refused("ST-ATTS-116", judge, *TPM.quote(), pcrs=values).where == "PCR 10"
    refused("ST-ATTS-116", judge, *TPM.quote(), pcrs={})


@forgeries(
    "pcr, value, where",
    *((pcr, flip(TPM.pcrs[pcr], pcr), "pcrDigest") for pcr in PCRS),
    *((15, bytes(size), "PCR 15") for size in (0, 20, 31, 33, 64)),
)
def test_a_value_is_altered(pcr, value, where):
    values = {**TPM.values(), pcr: value}
    refused("ST-ATTS-116", judge, *TPM.quote(), pcrs=values, names=where)


# Time.


@forgeries("running", True, False)
@each(
    "id, changes",
    ("equal", {"clock": 999_999}),
    ("zero", {"clock": 0}),
    ("less", {"clock": 999_998}),
    ("reset-back", {"reset": 4, "clock": 2_000_000}),
    ("reset-back-restart-on", {"reset": 4, "restart": 9, "clock": 2_000_000}),
    ("restart-back", {"restart": 1, "clock": 2_000_000}),
    ("cleared", {"reset": 0, "restart": 0, "clock": 2_000_000}),
)
def test_time_that_goes_back(changes, running):
    refused("ST-ATTS-117", forged, changes, previous=BEFORE, running=running, names="clockInfo")


@forgeries(
    "id, changes",
    ("rebooted", {"reset": 6, "restart": 0}),
    ("rebooted-all-else-on", {"reset": 6, "restart": 2, "clock": 2_000_000}),
    ("resumed", {"restart": 3}),
    ("far-ahead", {"reset": 2**32 - 1, "restart": 2**32 - 1}),
)
def test_a_reboot_while_the_lease_runs(changes):
    refused("ST-ATTS-118", forged, changes, previous=BEFORE, says="reset 5, restart 2")


@forgeries("firmware", 0, FIRMWARE + 1, FIRMWARE - 1)
def test_other_firmware_while_the_lease_runs(firmware):
    refused("ST-ATTS-119", forged, {"firmware": firmware}, previous=BEFORE, names="firmwareVersion")


def test_the_clock_alone():
    after = msgspec.structs.replace(BEFORE, clock=BEFORE.clock + 1)
    check_clock(after, BEFORE, running=True)
    refused("ST-ATTS-117", check_clock, BEFORE, BEFORE, running=True)


# A real quote: a Windows virtual machine with a vTPM, from another project's tests.


@needs_vectors
@pytest.mark.forgery
def test_a_real_vtpm_with_a_sha1_key_is_genuine_and_refused():
    name = "google__go-attestation/attest/testdata/windows_gcp_shielded_vm.json"
    found = json.loads(vector(name))
    area, quote, signature = (
        base64.b64decode(text)
        for text in (found["AK"]["Public"], found["Quote"]["Quote"], found["Quote"]["Signature"])
    )
    ak = parse_public_area(area)
    assert ak.encoded == area
    verify_signature(ak, quote, signature)
    attested = parse_attest(quote).attested
    assert isinstance(attested, QuoteInfo)
    values = {one["Index"]: base64.b64decode(one["Digest"]) for one in found["Log"]["PCRs"]}
    assert composite(attested.selections, {Hash.SHA1: values}, Hash.SHA1) == attested.digest
    assert "RSASSA-SHA1" in refused("ST-ATTS-104", check_attestation_key, ak).what
    refused("ST-ATTS-111", verify_signature, ak, flip(quote, -1), signature)
    # Its attestation key is the owner's, not the endorsement hierarchy's.
    ek = make_key(EK_TEMPLATES["L-1"]).public
    how = {"ak": ak, "ek": ek, "extra_data": b"", "pcrs": values, "required": []}
    refused("ST-ATTS-114", judge, quote, signature, **how)
