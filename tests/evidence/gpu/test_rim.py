# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""RIMs: content, validity, cache, and NVIDIA's own. `test_a_rim` is the control."""

import hashlib
from datetime import timedelta
from typing import Any

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu import rim as rim_module
from securetrain.evidence.gpu.certificates import CertificateStatus
from securetrain.evidence.gpu.rim import (
    MAX_ALTERNATIVES,
    NVIDIA_RIM_ROOTS,
    RimCache,
    RimKind,
    parse_rim,
)
from tests import vocabulary
from tests.evidence.gpu.authority import DAY, NOW, YEAR, make_authority
from tests.evidence.gpu.rimforge import SHA384, SWID, TCG, digest_of, manifest, resource, sign
from tests.evidence.vectors import needs_vectors, vector, vectors
from tests.tables import each, forgeries

AUTHORITY = make_authority(not_before=NOW - YEAR, not_after=NOW + DAY)
TEXT = manifest()
GOOD = sign(TEXT, AUTHORITY)


def parse(data, **changes):
    return parse_rim(data, **{"roots": AUTHORITY.roots, "now": NOW, "where": "RIM x", **changes})


def refused(code, data, **changes):
    return vocabulary.refused(
        AttestationError, f"ST-ATTS-{code}", parse, data, **{"names": "RIM x", **changes}
    )


def test_a_rim():
    rim = parse(GOOD)
    assert rim.kind is RimKind.VBIOS
    assert (rim.version, rim.product, rim.manufacturer) == ("96.00.5E.00.01", "GH100", "5703")
    assert rim.tag == "ab" * 48
    assert rim.sha256 == hashlib.sha256(GOOD).hexdigest()
    assert set(rim.measurements) == {0, 1, 62, 63}
    assert set(rim.golden) == {0, 1}
    assert rim.golden[1] == {digest_of(1), digest_of(100)}
    assert rim.measurements[1].digests == rim.golden[1]
    assert (rim.measurements[1].size, rim.measurements[1].name) == (48, "Measurement_1")
    assert not rim.measurements[62].active
    assert rim.valid_from == NOW - YEAR
    assert rim.valid_until == NOW + DAY
    assert rim.certificates[0] == AUTHORITY.signer.certificate


@each(
    "edition, version, kind",
    ("GPU", "550.144.03", RimKind.DRIVER),
    ("GPU", "545.00", RimKind.DRIVER),
    ("GPU", "96.00.5e.00.01", RimKind.VBIOS),
    ("SWITCH", "96.10.55.00.01", RimKind.SWITCH),
)
def test_kinds(edition, version, kind):
    rim = parse(sign(manifest(version, edition=edition), AUTHORITY))
    assert rim.kind is kind
    assert rim.version == version.upper()


def test_many_alternatives_and_any_hex():
    digests = [digest_of(number) for number in range(MAX_ALTERNATIVES)]
    text = manifest(measurements={255: digests}).replace(digests[0].hex(), digests[0].hex().upper())
    assert parse(sign(text, AUTHORITY)).golden[255] == set(digests)


# Content that its signer should not have signed.


@forgeries(
    "id, old, new, what",
    ("patch-tag", 'supplemental="false"', 'supplemental="true"', "supplemental"),
    ("corpus", 'corpus="false"', 'corpus="true"', "corpus"),
    ("patch", 'patch="false"', 'patch="true"', "patch"),
    ("tag-id", 'tagId="ab', 'tagId="xx', "tagId"),
    ("no-tag-version", ' tagVersion="0"', "", "other attributes"),
    ("id", " corpus=", ' Id="a" corpus=', "other attributes"),
    ("root", "SoftwareIdentity", "Tag", "SoftwareIdentity"),
    ("role", 'role="soft', 'role="Soft', "role"),
    ("creator", 'name="NVIDIA Corporation"', 'name="ACME"', "name is 'ACME'"),
    ("firmware-by", 'FirmwareManufacturerId="5703"', 'FirmwareManufacturerId="311"', "311"),
    ("platform-by", 'PlatformManufacturerId="5703"', 'PlatformManufacturerId="311"', "311"),
    ("payload", 'PayloadType="direct"', 'PayloadType="indirect"', "PayloadType"),
    ("binding", 'BindingSpec="RIMIM"', 'BindingSpec="X"', "BindingSpec"),
    ("product", 'product="GH100"', 'product="GB100"', "differ"),
    ("platform-model", 'PlatformModel="GH100"', 'PlatformModel="GB100"', "differ"),
    ("tag-name", ' name="GH100"', ' name="GB100"', "differ"),
    ("edition", 'edition="GPU"', 'edition="SWITCHES"', "edition"),
    ("version", "96.00.5E.00.01", "96.00.5E.00", "version"),
    ("long-version", "96.00.5E.00.01", "96.00.5E.00.01.02", "version"),
    ("version-with-path", "96.00.5E.00.01", "../../x", "colloquialVersion"),
    ("meta-namespace", f' xmlns:ns1="{TCG}"', f' xmlns:ns1="{SWID}"', "other"),
    ("link", "></ns0:Entity>", "><ns0:Link></ns0:Link></ns0:Entity>", "content"),
    ("in-meta", "></ns0:Meta>", ">x</ns0:Meta>", "content"),
    ("payload-attribute", f'SHA384="{SHA384}"', f'SHA384="{SHA384}" size="1"', "other"),
    ("payloads", "</ns0:Payload>", "</ns0:Payload><ns0:Payload></ns0:Payload>", "expected Entity"),
    ("entity-name", "ns0:Entity", "ns0:Entities", "Entity"),
    ("meta-name", "ns0:Meta", "ns0:Metas", "Meta"),
    ("evidence", "ns0:Payload", "ns0:Evidence", "Payload"),
    ("file", "ns0:Resource", "ns0:File", "Resource"),
    ("type", 'type="Measurement"', 'type="Other"', "type"),
    ("active", 'active="True"', 'active="true"', "active"),
    ("size", 'size="48"', 'size="32"', "size"),
    ("index-twice", 'index="1"', 'index="0"', "a second measurement 0"),
    ("index-too-large", 'index="1"', 'index="256"', "index 256"),
    ("index-negative", 'index="1"', 'index="-1"', "index"),
    ("index-spelling", 'index="1"', 'index="01"', "index"),
    ("index-digits-of-another-script", 'index="1"', 'index="\u0661"', "index"),
    ("fewer", 'alternatives="2"', 'alternatives="1"', "1 alternatives, but"),
    ("more", 'alternatives="2"', 'alternatives="3"', "3 alternatives, but"),
    ("gap", "ns2:Hash1=", "ns2:Hash2=", "2 alternatives, but"),
    ("name", "ns2:Hash1=", "ns2:hash1=", "2 alternatives, but"),
    ("hash-of-no-namespace", ' active="T', ' Hash1="0" active="T', "other"),
    ("short-digest", digest_of(0).hex(), "00" * 32, "Hash0"),
    ("digest-that-is-no-hex", digest_of(0).hex(), "0g" * 48, "Hash0"),
    ("digest-with-a-space", digest_of(0).hex(), " " + "0" * 95, "Hash0"),
    ("in-resource", "></ns0:Resource>", ">x</ns0:Resource>", "content"),
    ("attribute", ' name="Me', ' more="1" name="Me', "other attributes"),
)
def test_content_that_is_no_rim(old, new, what):
    whole = {"SoftwareIdentity", "ns0:Entity", "ns0:Meta", "ns0:Payload", "ns0:Resource"}
    text = TEXT.replace(old, new, -1 if old in whole else 1)
    assert text != TEXT
    refused(701, sign(text, AUTHORITY), says=what)


TOO_MANY = {0: [digest_of(number) for number in range(MAX_ALTERNATIVES + 1)]}
TWICE = resource(1, [digest_of(7)], active=False) + "</ns0:Payload>"
OTHER_NAMES = f'<ns0:Resource xmlns:ns5="{TCG}"'
ONE = manifest(measurements={0: [digest_of(0)]}).replace("ns2:Hash0", "ns5:Hash0")


@forgeries(
    "id, text, what",
    ("nothing-active", manifest(measurements={}), "no measurement is active"),
    ("empty", manifest(measurements={}, inactive=()), "no measurement"),
    ("no-alternatives", manifest(measurements={0: []}), "with 0 alternatives"),
    ("too-many-alternatives", manifest(measurements=TOO_MANY), "with 33 alternatives"),
    ("switch-driver", manifest("550.144.03", edition="SWITCH"), "edition"),
    ("twice", manifest(inactive=()).replace("</ns0:Payload>", TWICE), "a second measurement 1"),
    ("another-namespace", ONE.replace("<ns0:Resource", OTHER_NAMES), "other attributes"),
)
def test_manifests_that_say_nothing_or_two_things(text, what):
    refused(701, sign(text, AUTHORITY), says=what)


# The whole path.


OTHER = make_authority()
EDITED = GOOD.replace(b'index="0"', b'index="9"')
STOLEN = [holder.der for holder in AUTHORITY.chain]


@forgeries(
    "id, code, data, how",
    ("a comment", 701, b"<!-- -->" + GOOD, {}),
    ("not signed", 702, TEXT.encode(), {}),
    ("edited", 703, EDITED, {}),
    (
        "an expired one must still verify",
        703,
        EDITED,
        {"now": NOW + 9 * YEAR, "allow_expired": True},
    ),
    ("by another key", 704, sign(TEXT, AUTHORITY, key=OTHER.signer.key), {}),
    ("another signer's certificates", 704, sign(TEXT, OTHER, certificates=STOLEN), {}),
    ("by another", 705, sign(TEXT, OTHER), {}),
    ("another root", 705, GOOD, {"roots": OTHER.roots}),
    ("no root", 705, GOOD, {"roots": ()}),
    ("NVIDIA's roots", 705, GOOD, {"roots": NVIDIA_RIM_ROOTS}),
)
def test_reasons_are_told_apart(code, data, how):
    refused(code, data, **how)


# Time and revocation.


@pytest.mark.forgery
def test_expired_is_a_reason_of_its_own():
    end = NOW + DAY
    parse(GOOD, now=end)
    later = end + timedelta(seconds=1)
    assert "allow_expired_rims" in refused(706, GOOD, now=later).fix
    assert parse(GOOD, now=later, allow_expired=True).expired(later)


@pytest.mark.forgery
def test_not_valid_yet_is_refused_whatever_the_policy_says():
    start = NOW - YEAR
    parse(GOOD, now=start)
    for allow in (False, True):
        refused(707, GOOD, now=start - timedelta(seconds=1), allow_expired=allow)


@forgeries(
    "status, code",
    (CertificateStatus.REVOKED, 719),
    (CertificateStatus.HOLD, 720),
    (CertificateStatus.UNKNOWN, 721),
)
def test_a_revoked_signer(status, code):
    for allow in (False, True):
        refused(code, GOOD, status=lambda *_: status, allow_expired=allow)
    parse(GOOD, status=lambda *_: CertificateStatus.GOOD)


# The cache of verified RIMs.


@pytest.fixture
def counted(monkeypatch):
    verified = []
    original = rim_module._verified

    def counting(data, roots, where):
        verified.append(hashlib.sha256(data).hexdigest())
        return original(data, roots, where)

    monkeypatch.setattr(rim_module, "_verified", counting)
    return verified


def test_a_rim_is_verified_once(counted):
    cache = RimCache(AUTHORITY.roots)
    assert cache.parse(GOOD, now=NOW) is cache.parse(GOOD, now=NOW)
    assert len(counted) == len(cache) == 1


@pytest.mark.forgery
def test_what_was_refused_is_not_remembered(counted):
    cache = RimCache(AUTHORITY.roots)
    bad = GOOD.replace(b'index="0"', b'index="9"')
    for _ in range(2):
        vocabulary.refused(AttestationError, "ST-ATTS-703", cache.parse, bad, now=NOW)
    assert len(counted) == 2
    assert len(cache) == 0


@pytest.mark.forgery
def test_time_and_revocation_are_looked_at_again(counted):
    cache, later = RimCache(AUTHORITY.roots), NOW + 2 * DAY
    cache.parse(GOOD, now=NOW)
    vocabulary.refused(AttestationError, "ST-ATTS-706", cache.parse, GOOD, now=later)
    cache.parse(GOOD, now=later, allow_expired=True)
    vocabulary.refused(AttestationError, "ST-ATTS-706", cache.parse, GOOD, now=later)
    revoked: dict[str, Any] = {"now": NOW, "status": lambda *_: CertificateStatus.REVOKED}
    vocabulary.refused(AttestationError, "ST-ATTS-719", cache.parse, GOOD, **revoked)
    assert len(counted) == 1


def test_the_cache_is_bounded(counted):
    cache = RimCache(AUTHORITY.roots, size=2)
    one, two, three = (sign(manifest(f"96.00.5E.00.0{n}"), AUTHORITY) for n in (1, 2, 3))
    for data in (one, two, one, three, one):
        cache.parse(data, now=NOW)
    assert len(counted) == 3, "the one that was used last stays"
    assert len(cache) == 2
    cache.parse(two, now=NOW)
    assert len(counted) == 4


# NVIDIA's own.

SDK = "NVIDIA__attestation-sdk/nv-attestation-sdk-cpp/unit-tests/testdata/"
GENUINE = {
    SDK + "NV_GPU_DRIVER_GH100_550.144.03.xml": (RimKind.DRIVER, "550.144.03", 21),
    SDK + "switchVBIOSRim_NV_SWITCH_BIOS_5612_0002_890_9610550001.xml": (
        RimKind.SWITCH,
        "96.10.55.00.01",
        31,
    ),
    # Called a mismatch because it does not match a sample report; NVIDIA signed it all the same.
    SDK + "sample_rims/NV_GPU_VBIOS_1010_0200_882_96005E0001_measurement_mismatch.xml": (
        RimKind.VBIOS,
        "96.00.5E.00.01",
        12,
    ),
    "g520_0200_885_9600740001_PROD.swidtag": (RimKind.VBIOS, "96.00.74.00.01", 12),
    "Driver_RIM_test_no_gpu.swidtag": (RimKind.DRIVER, "545.00", 21),
}
SAMPLES = SDK + "sample_rims/"
BAD = {
    # The issuer's place is taken by a root of NVIDIA's for debugging.
    SDK + "incorrect_cert_chain_driver_rim.xml": (705, "Debug Only"),
    SDK + "incorrect_signature_driver_rim.xml": (704, "does not verify"),
    # All of the others were edited after they had been signed.
    SAMPLES + "NV_GPU_DRIVER_GH100_535.86.09_measurement_mismatch.xml": (703, "was signed"),
    SAMPLES + "NV_GPU_DRIVER_GH100_570.124.03_expired.xml": (703, "was signed"),
    **{
        f"{SAMPLES}NV_SWITCH_BIOS_5612_0002_890_9610550001_{what}.xml": (703, "was signed")
        for what in ("invalid_signature", "measurement_mismatch")
    },
}
GENUINELY = {"roots": NVIDIA_RIM_ROOTS, "now": NOW}


def load(name):
    found = [path for path in vectors("NVIDIA__*/**/*") if path.endswith(name)]
    assert len(found) == 1, name
    return vector(found[0])


@needs_vectors
@each("name", *GENUINE)
def test_genuine_rims(name):
    data = load(name)
    rim = parse_rim(data, roots=NVIDIA_RIM_ROOTS, now=NOW, allow_expired=True)
    assert (rim.kind, rim.version, len(rim.golden)) == GENUINE[name]
    assert len(rim.measurements) == 64
    assert len(rim.certificates) == 4
    inside = rim.valid_from + (rim.valid_until - rim.valid_from) / 2
    assert parse_rim(data, roots=NVIDIA_RIM_ROOTS, now=inside) == rim
    for moment, code in ((rim.valid_until + DAY, 706), (rim.valid_from - DAY, 707)):
        refused(code, data, roots=NVIDIA_RIM_ROOTS, now=moment)


@needs_vectors
@forgeries("name", *BAD)
def test_nvidias_own_bad_rims(name):
    code, what = BAD[name]
    refused(code, load(name), **GENUINELY, allow_expired=True, says=what)


@needs_vectors
def test_every_rim_is_one_of_these():
    names = vectors("NVIDIA__*/**/*.xml") + vectors("NVIDIA__*/**/*.swidtag")
    assert len(names) == len(GENUINE) + len(BAD)
    assert all(any(name.endswith(known) for known in (*GENUINE, *BAD)) for name in names)


@needs_vectors
@forgeries(
    "old, new, code",
    (b'index="1" active="True"', b'index="1" active="False"', 703),
    (b"<ns0:Payload", b"<!--x--><ns0:Payload", 701),
    (b"</ns0:Payload>", b"<ns0:Resource/></ns0:Payload>", 703),
    (b"96.10.55.00.01", b"96.10.55.00.02", 703),
    (f'xmlns:SHA384="{SHA384}"'.encode(), b"", 703),
)
def test_a_genuine_rim_that_was_changed(old, new, code):
    data = load("switchVBIOSRim_NV_SWITCH_BIOS_5612_0002_890_9610550001.xml")
    assert old in data
    refused(code, data.replace(old, new, 1), **GENUINELY)
