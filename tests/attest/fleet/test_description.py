# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a bundle says, in words: everything that can be read, whatever else is broken."""

import json
from datetime import timedelta

import msgspec
import pytest

from securetrain.attest.fleet.bundle import make_question, verify_bundle
from securetrain.attest.fleet.description import describe, describe_verdict, parse_bundle, speakers
from securetrain.attest.fleet.sections import Fact, Section, Table, refused, tried
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.vocabulary import UNATTESTED
from securetrain.evidence.node_evidence import TeeEvidence, TeeKind, parse_node
from securetrain.evidence.tee.snp_report import SigningKey
from securetrain.evidence.tpm.constants import Hash
from securetrain.testing.bootlog import Boot
from securetrain.testing.measurement_lists import encode_ima, ima_list, measure_files, measured_file
from tests.attest.worlds import (
    AMD,
    Machine,
    World,
    bundle_of,
    replaced,
    resigned,
    self_report,
    together,
    with_devices,
    with_keys,
    with_snp,
    with_tdx,
    with_tokens,
)
from tests.evidence.gpu.forge import Device, hgx_gpu, hgx_switch
from tests.evidence.issuers import token
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge_amd import DEBUG, POLICY, PROVIDER, AmdWorld
from tests.evidence.tpm import bootlogs
from tests.evidence.tpm.forge import NOW, PCRS
from tests.evidence.vectors import needs_vectors, vector, vectors
from tests.tables import each
from tests.vocabulary import changed

GUEST_LOG = bootlogs.encode(bootlogs.good_guest(), (bootlogs.SHA384,))
GUEST_RTMRS = tuple(bootlogs.rtmrs(bootlogs.good_guest()))


@pytest.fixture(scope="module")
def machine():
    return Machine("node-0")


def sections_of(bundle):
    """Sections by name; every one of them can become JSON."""
    found = describe(bundle)
    json.dumps([section.to_dict() for section in found])
    return {section.name: section for section in found}


def facts(section):
    return {fact.name: fact.value for fact in section.facts}


def codes(sections):
    return {fact.code for section in sections.values() for fact in section.facts if fact.code}


def tpm(**changes):
    def forge(said, value):
        assert value
        return changed(said, tpm=changes)

    return forge


def of_tpm(machine, **changes):
    return sections_of(bundle_of(machine, tpm(**changes)))


# An honest node.


def test_an_honest_node(machine):
    found = sections_of(bundle_of(machine))
    assert list(found) == ["node", "self-report", "tpm", "pcrs", "boot", "ima"]
    assert codes(found) == set()
    assert found["node"].label == "not verified"
    assert facts(found["node"])["node"] == "node-0"
    assert facts(found["node"])["node key"] == machine.key.key_id
    assert facts(found["node"])["speaks"] == "TPM"
    assert facts(found["node"])["asked"] == "by nobody: the node asked itself"
    assert found["self-report"].label == UNATTESTED


def test_the_tpm(machine):
    said = facts(sections_of(bundle_of(machine))["tpm"])
    assert said["endorsement key"] == machine.ek_name
    assert said["attestation key"] == machine.tpm.ak.public.name.hex()
    assert said["template"].startswith(("H-", "L-"))
    assert said["issued by"] == "CN=a maker's root"
    assert " to " in said["valid"]
    assert said["TPM"].startswith("IFX") or "model" in said["TPM"]
    assert said["made for"] == "this bundle's binding"
    assert said["quoted"].startswith("SHA256 registers 0, 1, 2")
    assert said["resets"] == f"{machine.resets}, and 2 wake-ups since"
    assert said["credential"] == "none was asked for"


def test_the_registers(machine):
    table = sections_of(bundle_of(machine))["pcrs"].table
    assert [row[0] for row in table.rows] == [str(index) for index in PCRS]
    assert {row[2] for row in table.rows} == {"replays"}
    assert table.rows[7][1] == machine.tpm.pcrs[7].hex()
    assert table.rows[7][3].startswith("Secure Boot")


def test_the_firmwares_log(machine):
    boot = sections_of(bundle_of(machine))["boot"]
    said = facts(boot)
    assert said["format"] == "crypto-agile, digests of SHA256"
    assert said["entries"] == str(len(boot.table.rows))
    assert said["Secure Boot"] == "on, by the log's own word"
    assert said["command line"] == "/vmlinuz root=/dev/vda1 ro"
    types = [row[2] for row in boot.table.rows]
    assert "EV_EFI_BOOT_SERVICES_APPLICATION" in types
    ends = [row for row in boot.table.rows if row[2] == "EV_SEPARATOR"]
    assert {row[4] for row in ends} == {"end of the firmware's part"}


def test_the_measurement_list(machine):
    ima = sections_of(bundle_of(machine))["ima"]
    said = facts(ima)
    assert (said["entries"], said["violations"]) == ("3", "0")
    assert (said["first"], said["last"]) == ("boot_aggregate", "/opt/train.py")
    assert said["of this boot"].startswith("yes")
    assert [row[0] for row in ima.table.rows] == ["1", "2", "3"]
    assert ima.table.rows[1][1].startswith("sha256:")


def test_an_answer_says_that_somebody_asked(machine):
    world = World(machine)
    secret = make_question(bundle_of(machine), world.appraiser, NOW)
    found = sections_of(bundle_of(machine, answer_to=secret))
    assert facts(found["node"])["asked"] == "by a verifier"
    assert facts(found["tpm"])["credential"] == "was opened"
    bare = changed(secret, question={"credential": None})
    found = sections_of(bundle_of(machine, answer_to=bare))
    assert facts(found["node"])["asked"] == "by a verifier, without a credential for the TPM"


def test_a_nodes_own_word(machine, tmp_path):
    found = sections_of(self_report(machine, tmp_path))
    assert list(found) == ["node", "self-report"]
    assert UNATTESTED in facts(found["node"])["speaks"]
    assert found["self-report"].label == UNATTESTED
    said = facts(found["self-report"])
    assert said["GPUs"] == "none"
    assert "etc/machine-id" in said["could not be read"]


# What is broken hides nothing else.


@each(
    "id, code, changes",
    ("quote", "ST-ATTS-101", {"quote": b"\xffTCG"}),
    ("no-quote", "ST-ATTS-101", {"quote": b""}),
    ("signature", "ST-ATTS-101", {"signature": b""}),
    ("log-of-noise", "ST-ATTS-201", {"event_log": b"\xff" * 64}),
    ("log-cut-off", "ST-ATTS-201", {"event_log": Boot().log()[:-3]}),
    ("empty-list", "ST-ATTS-301", {"ima": ima_list([])}),
)
def test_a_part_that_cannot_be_read(machine, code, changes):
    found = of_tpm(machine, **changes)
    assert list(found) == ["node", "self-report", "tpm", "pcrs", "boot", "ima"]
    if "ima" in changes:
        assert facts(found["ima"])["entries"] == "0"
    else:
        assert codes(found) == {code}
    assert facts(found["node"])["node"] == "node-0"
    assert len(found["pcrs"].table.rows) == len(PCRS)
    assert facts(found["tpm"])["endorsement key"] == machine.ek_name


def test_registers_that_the_log_does_not_explain(machine):
    table = of_tpm(machine, event_log=Boot(kernel=b"another").log())["pcrs"].table
    assert [row[0] for row in table.rows if row[2] == "DIFFERS"] == ["4", "9"]
    assert {row[2] for row in of_tpm(machine, event_log=b"")["pcrs"].table.rows[:10]} == {"no log"}
    sha1 = Boot().log([Hash.SHA384])
    assert {row[2] for row in of_tpm(machine, event_log=sha1)["pcrs"].table.rows[:10]} == {
        "SHA384 only"
    }


def test_a_locality_that_contradicts_itself(machine):
    entries = [
        bootlogs.event(0, bootlogs.NO_ACTION, b"StartupLocality\0\x09"),
        *bootlogs.good_boot(),
    ]
    found = of_tpm(machine, event_log=bootlogs.encode(entries))
    assert {row[2] for row in found["pcrs"].table.rows[:10]} == {"ST-ATTS-201"}


def test_a_log_of_the_old_format(machine):
    found = of_tpm(machine, event_log=bootlogs.encode_legacy(bootlogs.good_boot()))
    assert "proves nothing" in facts(found["boot"])["format"]
    assert found["boot"].table.rows
    assert {row[2] for row in found["pcrs"].table.rows[:10]} == {"SHA1 only"}


def test_secure_boot_that_is_off_or_unreadable(machine):
    off = of_tpm(machine, event_log=Boot(secure_boot=False).log())["boot"]
    assert not facts(off)["Secure Boot"].startswith("on")
    odd = bootlogs.encode([*bootlogs.good_boot(), bootlogs.policy("db", b"late")])
    assert any(
        f.name == "Secure Boot" and f.code for f in of_tpm(machine, event_log=odd)["boot"].facts
    )


def test_a_separator_that_reports_an_error(machine):
    log = bootlogs.encode([bootlogs.separator(3, b"\1\0\0\0")])
    assert of_tpm(machine, event_log=log)["boot"].table.rows[0][4] == "an ERROR is reported"


def test_no_registers_and_no_logs(machine):
    found = of_tpm(machine, pcrs={}, event_log=b"", ima=None)
    assert found["pcrs"].table.rows == ()
    assert facts(found["pcrs"])["registers"] == "none came along"
    assert facts(found["boot"])["event log"] == "none came along"
    assert facts(found["ima"])["list"] == "none came along"
    found = of_tpm(machine, ima=None)
    assert found["pcrs"].table.rows[10][2] == "no list"


def test_a_list_that_leads_elsewhere_ends_early_or_begins_late(machine):
    short = ima_list(machine.measured[:-1])
    assert of_tpm(machine, ima=short)["pcrs"].table.rows[10][2] == "DIFFERS"
    whole = ima_list(machine.measured)
    cut = msgspec.structs.replace(whole, entries=whole.entries[:-5])
    found = of_tpm(machine, ima=cut)["ima"]
    assert facts(found)["entries"] == "2"
    assert [f.code for f in found.facts if f.name == "list"] == ["ST-ATTS-301"]
    assert "(entry 3)" in facts(found)["list"]
    late = msgspec.structs.replace(ima_list(machine.measured[2:]), first=2)
    found = of_tpm(machine, ima=late)
    assert facts(found["ima"])["entries"] == "1, after 2 that were attested before"
    assert found["ima"].table.rows[0][0] == "3"
    assert found["pcrs"].table.rows[10][2] == "in part"


def test_a_list_of_another_boot(machine):
    pcrs = {**machine.tpm.values(range(11)), 0: bytes(32)}
    said = facts(of_tpm(machine, pcrs=pcrs)["ima"])
    assert said["of this boot"].startswith("no")
    assert "of this boot" not in facts(of_tpm(machine, pcrs={10: bytes(32)})["ima"])


def test_an_ascii_list(machine):
    files = measure_files({"/bin/a": b"a"}, machine.what.registers())
    entries = encode_ima(files, binary=False)
    ima = msgspec.structs.replace(ima_list([]), binary=False, entries=entries)
    said = facts(of_tpm(machine, ima=ima)["ima"])
    assert (said["format"], said["last"]) == ("ASCII", "/bin/a")


def test_escape_sequences_in_a_path_stay_text(machine):
    entry = measured_file("/tmp/\x1b[2Jx", b"x", "ima-ng")
    row = of_tpm(machine, ima=ima_list([entry]))["ima"].table.rows[0]
    assert row[2] == "/tmp/\\x1b[2Jx"


@each(
    "id, code, keys",
    ("endorsement-key", "ST-ATTS-101", {"ek_public": b"noise"}),
    ("certificate", "ST-ATTS-105", {"ek_certificate": b"noise"}),
    ("attestation-key", "ST-ATTS-101", {"ak_public": b"noise"}),
)
def test_keys_that_cannot_be_read(machine, code, keys):
    found = sections_of(with_keys(bundle_of(machine), **keys))
    assert code in codes(found)
    assert facts(found["tpm"])["made for"] == "this bundle's binding"


def test_keys_of_the_wrong_kind(machine):
    keys = machine.keys()
    swapped = with_keys(bundle_of(machine), ek_public=keys.ak_public, ak_public=keys.ek_public)
    assert codes(sections_of(swapped)) == {"ST-ATTS-103", "ST-ATTS-104"}


def test_a_tpm_without_a_certificate(machine):
    bare = with_keys(bundle_of(machine), ek_certificate=b"")
    assert "none" in facts(sections_of(bare)["tpm"])["certificate"]


def test_keys_without_evidence(machine):
    bundle = bundle_of(machine)
    silent = msgspec.structs.replace(parse_node(bundle.body), tpm=None)
    found = sections_of(resigned(bundle, machine, silent.encode()))
    assert facts(found["tpm"])["endorsement key"] == machine.ek_name
    assert facts(found["node"])["speaks"].startswith("only the node itself")
    assert "tpm" not in sections_of(replaced(bundle_of(machine, tpm=False), keys=None))


def test_a_body_that_cannot_be_read(machine):
    bundle = bundle_of(machine)
    for broken, code in (
        (replaced(bundle, body=b"{}"), "ST-ATTS-001"),
        (replaced(bundle, media_type="text/plain"), "ST-ATTS-006"),
    ):
        found = sections_of(broken)
        assert list(found) == ["node", "evidence", "tpm"]
        assert codes(found) == {code}
        assert facts(found["node"])["speaks"] == "nothing that can be read"


def test_a_self_report_that_cannot_be_read(machine):
    said = msgspec.structs.replace(parse_node(bundle_of(machine).body), manifest=b"{}")
    found = sections_of(replaced(bundle_of(machine), body=said.encode()))
    assert codes({"s": found["self-report"]}) == {"ST-ATTS-001"}
    assert found["self-report"].label == ""


def test_a_node_key_that_is_none(machine):
    assert codes(sections_of(replaced(bundle_of(machine), key=b"noise"))) == {"ST-ATTS-001"}


# CPUs.


def test_an_snp_report(machine):
    tee = sections_of(bundle_of(machine, with_snp()))["tee"]
    said = facts(tee)
    assert tee.title == "AMD SEV-SNP report"
    assert said["processor"] == "Milan"
    assert said["signed by"] == "VCEK"
    assert said["chip"] == AMD.chip.hex()
    assert said["measurement"] == "4d" * 48
    assert said["made for"] == "this bundle's binding"
    assert said["firmware level"] == "bootloader 4, tee 0, snp 29, microcode 217, fmc 0"
    assert said["host data"] == said["id key"] == said["author key"] == "none"
    assert [f.value for f in tee.facts if f.name == "certificate"] == [
        "SEV-VCEK, until 2040-01-01",
        "SEV-Milan, until 2040-01-01",
        "ARK-Milan, until 2040-01-01",
    ]


def test_what_an_snp_guest_should_not_be(machine):
    found = sections_of(
        bundle_of(
            machine, with_snp(policy=POLICY | DEBUG, report_data=bytes(64), chip_id=bytes(64))
        )
    )
    assert codes(found) == {"ST-ATTS-409"}
    said = facts(found["tee"])
    assert "debug" in said["guest policy"]
    assert said["made for"] == "00" * 64
    assert said["chip"] == "hidden by the host"
    unsigned = facts(sections_of(bundle_of(machine, with_snp(flags=2)))["tee"])
    assert "nobody" in unsigned["signed by"]


def test_an_snp_report_of_a_cloud(machine):
    cloud = AmdWorld(key=SigningKey.VLEK)
    said = facts(sections_of(bundle_of(machine, with_snp(cloud)))["tee"])
    assert said["signed by"] == f"VLEK {PROVIDER}"
    bare = sections_of(bundle_of(machine, with_snp(certificates=False)))["tee"]
    assert "none came along" in facts(bare)["certificate"]


def test_a_td(machine):
    found = sections_of(bundle_of(machine, with_tdx(GUEST_LOG, rtmrs=GUEST_RTMRS)))
    said = facts(found["tee"])
    assert said["MRTD"] == intel.MR_TD.hex()
    assert said["platform"] == f"PPID {intel.PPID.hex()}"
    assert said["made for"] == "this bundle's binding"
    assert said["attributes"] == "0x10000000: sept-ve-disable"
    assert [row[2] for row in found["tee"].table.rows] == ["replays"] * 4
    assert facts(found["tee-boot"])["entries"] == str(len(found["tee-boot"].table.rows))
    assert {row[1] for row in found["tee-boot"].table.rows} >= {"RTMR0", "RTMR1", "RTMR2"}


def test_what_a_td_should_not_be(machine):
    found = sections_of(bundle_of(machine, with_tdx(GUEST_LOG, attributes=1)))
    assert codes(found) == {"ST-ATTS-516"}
    assert "DIFFERS" in [row[2] for row in found["tee"].table.rows]
    found = sections_of(bundle_of(machine, with_tdx()))
    assert [row[2] for row in found["tee"].table.rows] == ["no log"] * 4
    assert facts(found["tee-boot"])["log"] == "none came along"
    found = sections_of(bundle_of(machine, with_tdx(b"\1" * 99)))
    assert codes({"b": found["tee-boot"]}) == {"ST-ATTS-201"}
    assert [row[2] for row in found["tee"].table.rows] == ["ST-ATTS-201"] * 4


@each("kind, code", (TeeKind.SEV_SNP, "ST-ATTS-401"), (TeeKind.TDX, "ST-ATTS-501"))
def test_a_cpus_report_that_cannot_be_read(machine, kind, code):
    def noise(said, value):
        return msgspec.structs.replace(said, tee=TeeEvidence(kind=kind, report=value))

    assert code in codes(sections_of(bundle_of(machine, noise)))


def test_a_cpus_certificate_that_cannot_be_read(machine):
    def noise(said, value):
        said = with_snp()(said, value)
        tee = msgspec.structs.replace(said.tee, certificates=(b"noise",))
        return msgspec.structs.replace(said, tee=tee)

    found = sections_of(bundle_of(machine, noise))
    assert codes(found) == {"ST-ATTS-402"}
    assert facts(found["tee"])["measurement"] == "4d" * 48


# Devices and tokens.


def test_devices(machine):
    board = (hgx_gpu(0, ("00" * 7 + "05",)), hgx_switch(0, ("0000000000001000",)))
    section = sections_of(bundle_of(machine, with_devices(Device(), *board)))["devices"]
    rows = section.table.rows
    assert rows[0][:6] == ("gpu 0", "GH100", Device().pdi, "590.12", "96.00.A5.00.01", "spt")
    assert rows[1][5:] == ("ppcie", "0000000000000005")
    assert rows[2][:4] == ("switch 2", "LS_10", "0000000000005000", "-")
    assert rows[2][5] == "-"
    assert {fact.code for fact in section.facts} == {"", "ST-ATTS-609"}, "the root is the forger's"


def test_devices_that_cannot_be_read_or_answer_another(machine):
    def broken(said, value):
        said = with_devices(Device(), Device())(said, value)
        first = msgspec.structs.replace(said.devices[0], report=b"noise")
        second = msgspec.structs.replace(said.devices[1], certificates=())
        return msgspec.structs.replace(said, devices=(first, second))

    section = sections_of(bundle_of(machine, broken))["devices"]
    assert [fact.code for fact in section.facts] == ["", "ST-ATTS-601", "ST-ATTS-605"]
    assert section.table.rows == ()
    stale = sections_of(bundle_of(machine, with_devices(Device(), nonce=bytes(32))))["devices"]
    assert "ST-ATTS-604" in {fact.code for fact in stale.facts}
    assert len(stale.table.rows) == 1


def test_a_root_whose_key_nobody_can_read(machine):
    def odd(said, value):
        said = with_devices(Device())(said, value)
        *chain, root = said.devices[0].certificates
        on_p384, unknown = bytes.fromhex("06052b81040022"), bytes.fromhex("06052f81040022")
        assert on_p384 in root
        device = msgspec.structs.replace(
            said.devices[0], certificates=(*chain, root.replace(on_p384, unknown))
        )
        return msgspec.structs.replace(said, devices=(device,))

    section = sections_of(bundle_of(machine, odd))["devices"]
    assert [fact.code for fact in section.facts] == ["", "ST-ATTS-605"]


def test_tokens(machine):
    good = token({"iss": "https://issuer.example", "iat": 1780000000, "exp": 1780003600})
    odd = token({"exp": 1e300, "iat": True, "eat_profile": "x" * 300})
    bundle = bundle_of(machine, with_tokens(good, odd, "not a token"))
    section = sections_of(bundle)["tokens"]
    assert section.label == "not verified"
    assert [(fact.name, fact.value) for fact in section.facts[:4]] == [
        ("token 0", "issuer https://issuer.example"),
        ("algorithm", "ES256"),
        ("issued", "2026-05-28T20:26:40+00:00"),
        ("expires", "2026-05-28T21:26:40+00:00"),
    ]
    rest = {fact.name: fact for fact in section.facts[4:]}
    assert rest["token 1"].value == "issuer not named"
    assert (rest["issued"].value, rest["expires"].value) == ("not said", "not a time")
    assert len(rest["eat_profile"].value) == 200
    assert rest["token 2"].code == "ST-ATTS-801"


def test_a_bundle_of_tokens(machine):
    overall = token({"iss": "https://nras.example"})
    both = json.dumps([["JWT", overall], {"GPU-1": overall, "GPU-0": overall}])
    section = sections_of(bundle_of(machine, with_tokens(both, "[]")))["tokens"]
    assert facts(section)["devices"] == "GPU-0, GPU-1"
    assert section.facts[-1].code == "ST-ATTS-801"


def test_who_speaks(machine):
    everything = together(with_snp(), with_devices(Device(), Device("00112233445566bb")))
    everything = together(everything, with_tokens(token({})))
    bundle = bundle_of(machine, everything)
    assert speakers(parse_bundle(bundle)) == "TPM, sev-snp, 2 devices, 1 tokens"


# Verdicts.


def verify(world, bundle, secret=None):
    return verify_bundle(
        bundle,
        world.appraiser,
        secret=secret,
        policy="cd" * 32,
        lease=timedelta(minutes=1),
        now=NOW,
    )


def affirmed(section):
    return {row[0] for row in section.table.rows if row[1] == "affirmed"}


def test_a_verdict(machine):
    found = {s.name: s for s in describe_verdict(verify(World(machine), bundle_of(machine)))}
    assert list(found) == ["open", "result", "self-report", "tpm"]
    assert [fact.name for fact in found["open"].facts] == ["freshness", "the attestation key"]
    assert facts(found["result"])["tier"] == "tpm"
    said = facts(found["tpm"])
    assert (said["secure boot"], said["enrolled"], said["ima policy"]) == ("yes", "yes", "-")
    assert affirmed(found["tpm"]) == {"hardware", "instance-identity", "executables"}
    assert found["self-report"].label == UNATTESTED
    assert affirmed(found["self-report"]) == set()


def test_a_verdict_with_nothing_open(machine):
    world = World(machine)
    secret = make_question(bundle_of(machine), world.appraiser, NOW)
    proven = verify(world, bundle_of(machine, answer_to=secret), secret)
    names = [section.name for section in describe_verdict(proven)]
    assert names == ["result", "self-report", "tpm"]


# Sections.


def test_sections_as_data():
    section = Section(
        name="n",
        title="T",
        label="L",
        facts=(Fact("a", "b"), Fact("c", "d", "ST-ATTS-001")),
        table=Table(("x", "y"), (("1", "2"),)),
    )
    assert section.to_dict() == {
        "name": "n",
        "title": "T",
        "label": "L",
        "facts": [
            {"name": "a", "value": "b", "code": ""},
            {"name": "c", "value": "d", "code": "ST-ATTS-001"},
        ],
        "rows": [{"x": "1", "y": "2"}],
    }
    assert Section(name="n", title="T").to_dict()["rows"] == []


def test_what_is_tried():
    error = AttestationError("ST-ATTS-101", "what", "where")
    assert refused("name", error) == Fact("name", "what (where)", "ST-ATTS-101")
    assert refused("name", UsageError("ST-USAG-002", "what")) == Fact("name", "what", "ST-USAG-002")
    empty = refused("name", AttestationError("ST-ATTS-101", ""))
    assert empty.value == "a TPM structure is malformed"

    def fails():
        yield Fact("a", "b")
        raise error

    assert tried("name", fails) == [Fact("name", "what (where)", "ST-ATTS-101")]
    assert tried("name", lambda: [Fact("a", "b")]) == [Fact("a", "b")]


# Real evidence.


@needs_vectors
@each("name", *vectors("google__go-tpm-tools/**/*.bin"))
def test_real_firmware_logs(machine, name):
    found = of_tpm(machine, event_log=vector(name))
    assert found["boot"].table.rows
    assert not codes(found) & {"ST-ATTS-201", "ST-ATTS-203"}


@needs_vectors
def test_a_real_snp_report(machine):
    report = vector(vectors("google__go-sev-guest/**/attestation.bin")[0])

    def add(said, value):
        assert value
        return msgspec.structs.replace(said, tee=TeeEvidence(kind=TeeKind.SEV_SNP, report=report))

    said = facts(sections_of(bundle_of(machine, add))["tee"])
    assert len(said["measurement"]) == 96
    assert said["made for"] != "this bundle's binding"


@needs_vectors
@each("name", *vectors("google__go-tdx-guest/**/*quote*"))
def test_real_tdx_quotes(machine, name):
    def add(said, value):
        assert value
        tee = TeeEvidence(kind=TeeKind.TDX, report=vector(name))
        return msgspec.structs.replace(said, tee=tee)

    said = facts(sections_of(bundle_of(machine, add))["tee"])
    assert len(said["MRTD"]) == 96
    assert said["FMSPC"].endswith("CA")
