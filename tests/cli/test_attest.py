# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest`` as a person uses it: real software TPMs, real files, exit codes.

Commands of docs/how-to/attest-a-fleet.md, docs/how-to/confidential-gpus.md,
docs/how-to/google-confidential-vms.md, docs/how-to/manage-reference-values.md,
docs/how-to/share-a-fleet.md are tried here.
"""

import base64
import json
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from securetrain.attest.fleet import gather
from securetrain.attest.fleet.bundle import key_text, read_bundle, read_question, write_bundle
from securetrain.attest.fleet.gather import Gathered
from securetrain.attest.session.cache import Item, build_cache
from securetrain.attest.session.reference_file import write_reference_values
from securetrain.attest.session.state import FileState, Revocation
from securetrain.cli.main import main
from securetrain.core import canonical
from securetrain.core.vocabulary import TEST_ONLY, UNATTESTED
from securetrain.evidence.collateral import CollateralKind
from securetrain.evidence.inventory import EnrolledNode
from securetrain.evidence.reference import ReferenceValues
from securetrain.evidence.result import verify_result
from securetrain.evidence.tpm import BootReference, LateReference
from securetrain.identity.keys import PrivateKey
from securetrain.testing.bootlog import Boot
from securetrain.testing.machine import Machine, runtime_policy
from tests.attest.swtpms import needs_swtpm
from tests.attest.worlds import replaced
from tests.evidence.tee.forge import pem
from tests.evidence.tee.forge_amd import AmdWorld
from tests.evidence.tpm import lateboots
from tests.rsa_keys import rsa_key

WIDTH = 80


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs a command in a folder of its own; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        code = main(["attest", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def ok(result, code=0):
    assert result[0] == code, result
    return result[1]


def as_json(result, code=0):
    assert result[0] == code, result
    assert result[2] == ""
    return json.loads(result[1])


def error(result, code):
    """The code of the one error that was printed."""
    exit_code, out, err = result
    assert exit_code == code, result
    assert out == ""
    assert err.count("error ST-") == 1, err
    assert "fix:" in err
    return err.split()[1].rstrip(":")


# A fleet with software TPMs.


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two machines of one manufacturer, on for all tests, and a folder."""
    folder = tmp_path_factory.mktemp("fleet")
    with (
        Machine(folder / "node-0", "node-0", ca=folder / "ca") as first,
        Machine(folder / "node-1", "node-1", ca=folder / "ca") as second,
    ):
        for machine in (first, second):
            machine.boot()
            machine.write_settings(folder / f"{machine.name}.settings")
        yield folder, first, second


class Fleet:
    """The same for one test, with an operator, and a policy where it is asked for."""

    def __init__(self, run, fleet, here):
        self.run = run
        self.folder, self.first, self.second = fleet
        self.here = here
        ok(run("keygen", "operator.pem"))

    def collect(self, machine, out, *more):
        settings = self.folder / f"{machine.name}.settings"
        state = self.folder / f"{machine.name}.state"
        return self.run(
            *("collect", "--node", machine.name, "--attester", settings, "--state", state),
            *("--out", out, *more),
        )

    def enroll(
        self, *bundles, root="--virtual-root", more=("--learn-boot", "--secret", "e.secret")
    ):
        (self.here / "root.pem").write_text(self.first.tpm.root_certificate)
        (self.here / "issuer.pem").write_text(self.first.tpm.issuer_certificate)
        return self.run(
            *("enroll", *bundles, "--reference-values", "fleet.json", "--key", "operator.pem"),
            *(root, "root.pem", "--intermediate", "issuer.pem", *more),
        )

    def prove(self, machine, bundle="n0.json"):
        """The machine's answer to the question that enrolling needs."""
        asked = ("--out", "e.json", "--secret", "e.secret")
        ok(self.run("challenge", bundle, "--to-enroll", *asked))
        ok(self.collect(machine, "e-answer.json", "--question", "e.json"))
        return "e-answer.json"

    def write_policy(self, tier="vtpm", ima="log"):
        signed_by = as_json(
            self.run(
                "enroll", "--reference-values", "fleet.json", "--key", "operator.pem", "--json"
            )
        )["signed_by"]
        node = {
            "min_tier": tier,
            "reference_values": {"file": "fleet.json", "signed_by": [signed_by]},
            "tpm": {"ima": ima},
        }
        if tier == "test-only":
            node["allow_self_asserted"] = {"max_nodes": 1, "reason": "a test"}
        document = {
            "extends": "baseline",
            "apiVersion": "securetrain.dev/policy/v1",
            "kind": "Policy",
            "metadata": {"id": "fleet", "version": "1.0.0", "title": "A fleet"},
            "node": node,
        }
        (self.here / "fleet.yaml").write_text(json.dumps(document))

    def signed_by(self):
        return key_text(PrivateKey.load(self.here / "operator.pem").public)

    def answer(self, machine, bundle="n0.json"):
        ok(
            self.run(
                *("challenge", bundle, "--policy", "fleet.yaml"),
                *("--out", "q.json", "--secret", "q.secret"),
            )
        )
        return self.collect(machine, "a.json", "--question", "q.json")

    def verify(self, bundle, *more):
        return self.run("verify", bundle, "--policy", "fleet.yaml", *more)


@pytest.fixture
def world(run, fleet, tmp_path):
    made = Fleet(run, fleet, tmp_path)
    ok(made.collect(made.first, "n0.json"))
    return made


@pytest.fixture
def enrolled(world):
    ok(world.enroll(world.prove(world.first)))
    world.write_policy()
    return world


@needs_swtpm
def test_from_a_new_machine_to_a_proven_node(world):
    out = ok(world.enroll(world.prove(world.first)))
    assert out.startswith("fleet.json: version 1, good until ")
    assert "vtpm, swtpm" in out
    assert "signed_by: [MCowBQYDK2VwAyEA" in out
    world.write_policy()
    out = ok(world.answer(world.first))
    assert "asked by  a verifier" in out
    out = ok(world.verify("a.json", "--secret", "q.secret"))
    assert out.startswith("PROVEN  node-0: vtpm\n")
    assert "Not proven" not in out
    assert "affirmed       instance-identity, executables" in out


@needs_swtpm
def test_without_a_question_it_stays_open(enrolled):
    out = ok(enrolled.verify("n0.json"), 3)
    assert out.startswith("OPEN  node-0: vtpm\n")
    assert "freshness            the node asked itself" in out
    document = as_json(enrolled.verify("n0.json", "--json"), 3)
    assert document["ok"] is False
    assert document["exit"] == 3
    assert len(document["open"]) == 2
    assert document["result"]["tier"] == "vtpm"
    assert document["error"] is None


@needs_swtpm
def test_json_of_every_step(world):
    document = as_json(world.collect(world.first, "n0.json", "--json"))
    assert (document["node"], document["unattested"], document["speaks"]) == (
        "node-0",
        False,
        "TPM",
    )
    document = as_json(world.enroll("n0.json", more=("--learn-boot", "--unproven", "--json")), 3)
    assert document["nodes"][0]["notes"][0].startswith("UNPROVEN: the boot of node-0")
    (node,) = document["nodes"]
    assert node["entry"]["ek_names"]
    assert document["version"] == 1
    world.write_policy()
    document = as_json(
        world.run(
            *("challenge", "n0.json", "--policy", "fleet.yaml", "--json"),
            *("--out", "q.json", "--secret", "q.secret"),
        )
    )
    assert document["node"] == "node-0"
    ok(world.collect(world.first, "a.json", "--question", "q.json"))
    document = as_json(world.verify("a.json", "--secret", "q.secret", "--json"))
    assert document["ok"] is True
    assert document["open"] == []
    assert document["result"]["submods"]["tpm"]["claims"]["secure_boot"] is True
    document = as_json(world.run("show", "a.json", "--json"))
    assert [section["name"] for section in document["sections"]][:3] == [
        "node",
        "self-report",
        "tpm",
    ]


@needs_swtpm
@pytest.mark.forgery
def test_another_machine_under_the_same_name(enrolled):
    settings = enrolled.folder / "node-1.settings"
    ok(
        enrolled.run(
            *("collect", "--node", "node-0", "--attester", settings),
            *("--state", enrolled.folder / "cuckoo.state", "--out", "wrong.json"),
        )
    )
    out = ok(enrolled.verify("wrong.json"), 1)
    assert out.startswith("REFUSED  node-0: ST-ATTS-012, the TPM's endorsement key is not enrolled")
    assert "where  node node-0: endorsement key" in out
    document = as_json(enrolled.verify("wrong.json", "--json"), 1)
    assert document["error"]["code"] == "ST-ATTS-012"
    assert document["result"] is None
    question = ("challenge", "wrong.json", "--policy", "fleet.yaml")
    asked = enrolled.run(*question, "--out", "q.json", "--secret", "q.secret")
    assert error(asked, 1) == "ST-ATTS-012"
    assert not (enrolled.here / "q.json").exists()
    unasked = ("--learn-boot", "--unproven")
    assert error(enrolled.enroll("wrong.json", more=unasked), 2) == "ST-USAG-005"
    ok(enrolled.enroll("wrong.json", more=("--replace",)))


@needs_swtpm
@pytest.mark.forgery
def test_an_altered_bundle(enrolled):
    bundle = read_bundle(enrolled.here / "n0.json")
    body = bundle.body.replace(b'"quote":"', b'"quote":"AAAA', 1)
    write_bundle(enrolled.here / "altered.json", replaced(bundle, body=body))
    assert "ST-ATTS-003" in ok(enrolled.verify("altered.json"), 1)
    assert error(enrolled.enroll("altered.json", more=()), 1) == "ST-ATTS-003"
    out = ok(enrolled.run("show", "altered.json"))
    assert "ST-ATTS-112: " in out, "what is broken is said"


@needs_swtpm
@pytest.mark.forgery
def test_another_boot_is_refused_by_its_log_entry(enrolled):
    usual = enrolled.first.what
    try:
        enrolled.first.what = Boot(kernel=b"a kernel with a back door")
        enrolled.first.reboot()
        ok(enrolled.collect(enrolled.first, "bad.json"))
        out = ok(enrolled.verify("bad.json"), 1)
    finally:
        enrolled.first.what = usual
        enrolled.first.reboot()
    assert "ST-ATTS-213, a boot application is not among the reference\n  values" in out
    assert "where  PCR 4, entry 22 (EV_EFI_BOOT_SERVICES_APPLICATION)" in out


@needs_swtpm
@pytest.mark.forgery
def test_an_old_answer(enrolled):
    ok(enrolled.answer(enrolled.first))
    (enrolled.here / "a.json").rename(enrolled.here / "old.json")
    (enrolled.here / "q.secret").rename(enrolled.here / "old.secret")
    ok(enrolled.answer(enrolled.first))
    out = ok(enrolled.verify("old.json", "--secret", "q.secret"), 1)
    assert "ST-ATTS-002" in out
    late = (datetime.now(UTC) + timedelta(hours=25)).isoformat()
    out = ok(enrolled.verify("a.json", "--secret", "q.secret", "--at", late), 1)
    assert "ST-ATTS-002" in out
    soon = (datetime.now(UTC) + timedelta(hours=23)).isoformat()
    ok(enrolled.verify("a.json", "--secret", "q.secret", "--at", soon))


@needs_swtpm
def test_a_test_tpm_proves_no_machine(world):
    out = ok(world.enroll(world.prove(world.first), root="--test-root"))
    assert f"{TEST_ONLY}, swtpm" in out
    world.write_policy("test-only")
    ok(world.answer(world.first))
    out = ok(world.verify("a.json", "--secret", "q.secret"), 3)
    assert out.startswith(f"OPEN  node-0: {TEST_ONLY}\n")
    assert "the machine  its TPM is a program that nobody vouches for" in out
    assert "let in by  the policy's exception: a test" in out


@needs_swtpm
@pytest.mark.forgery
def test_a_boot_is_learned_from_an_answer_alone(world):
    refused = world.enroll("n0.json", more=("--learn-boot",))
    assert error(refused, 1) == "ST-ATTS-019"
    assert not (world.here / "fleet.json").exists()
    answer = world.prove(world.first)
    assert error(world.enroll(answer, more=("--learn-boot",)), 1) == "ST-ATTS-019"
    assert error(world.enroll("n0.json"), 1) == "ST-ATTS-002"
    ok(world.collect(world.second, "other.json", "--question", "e.json"), 2)
    assert error(world.enroll("n0.json", answer, more=("--unproven",)), 2) == "ST-USAG-001"
    twice = ("--learn-boot", "--secret", "e.secret", "--secret", "e.secret")
    assert error(world.enroll(answer, more=twice), 2) == "ST-USAG-001"


@needs_swtpm
def test_an_image_group_by_its_name(world):
    group = ("--learn-boot", "--secret", "e.secret", "--group", "gpu-h100-2026.11")
    out = ok(world.enroll(world.prove(world.first), more=group))
    assert "image group  gpu-h100-2026.11" in out
    world.write_policy()
    ok(world.answer(world.first))
    document = as_json(world.verify("a.json", "--secret", "q.secret", "--json"))
    assert document["result"]["submods"]["tpm"]["claims"]["group"] == "gpu-h100-2026.11"
    ok(world.collect(world.second, "n1.json"))
    ok(world.enroll("n1.json", more=()))
    refused = ok(world.verify("n1.json"), 1)
    assert "ST-ATTS-2" in refused, "a boot of another group"
    page = ok(world.run("values", "show", "fleet.json", "--signed-by", world.signed_by()))
    assert "image group gpu-h100-2026.11" in page


@needs_swtpm
def test_an_unknown_maker_is_said_when_it_is_enrolled(world):
    out = ok(
        world.run(
            *("enroll", "n0.json", "--reference-values", "fleet.json", "--key", "operator.pem")
        ),
        3,
    )
    assert "note  a verifier will refuse its TPM: ST-ATTS-107" in out


@needs_swtpm
def test_a_runtime_policy_is_enforced(enrolled):
    machine = enrolled.first
    (enrolled.here / "ima.json").write_text(json.dumps(runtime_policy(machine.files)))
    common = ("--reference-values", "fleet.json", "--key", "operator.pem")
    ok(enrolled.run("enroll", *common, "--ima-policy", "ima.json"))
    enrolled.write_policy(ima="enforce")
    ok(enrolled.verify("n0.json"), 3)
    machine.execute("/tmp/backdoor", b"unknown")
    try:
        ok(enrolled.collect(machine, "bad.json"))
        out = ok(enrolled.verify("bad.json"), 1)
    finally:
        machine.reboot()
    assert "ST-ATTS-309" in out
    assert "/tmp/backdoor" in out


@needs_swtpm
def test_a_signed_result(enrolled):
    ok(enrolled.run("keygen", "verifier.pem", "--kind", "ecdsa-p256"))
    ok(enrolled.answer(enrolled.first))
    ear = ("--ear", "ear.jwt", "--sign-key", "verifier.pem")
    out = ok(enrolled.verify("a.json", "--secret", "q.secret", *ear))
    assert "ear.jwt: the signed result" in out
    key = PrivateKey.load(enrolled.here / "verifier.pem").public
    token = (enrolled.here / "ear.jwt").read_text().strip()
    assert verify_result(token, key).node == "node-0"
    (enrolled.here / "ear.jwt").unlink()
    out = ok(enrolled.verify("n0.json", *ear), 3)
    assert "not written, not proven" in out
    assert not (enrolled.here / "ear.jwt").exists()
    wrong = enrolled.verify("a.json", "--ear", "x", "--sign-key", "operator.pem")
    assert error(wrong, 2) == "ST-USAG-001"


@needs_swtpm
def test_what_show_prints(world):
    out = ok(world.run("show", "n0.json"))
    lines = out.splitlines()
    for text in (
        "Bundle  not verified",
        f"What the node says of itself  {UNATTESTED}",
        "Registers (SHA-256 bank)",
        "  entries       27",
        "--section boot lists all 27 entries.",
        "  last          /opt/train/train.py",
    ):
        assert text in lines, text
    prose = [line for line in lines if len(line) > WIDTH]
    assert all(len(max(line.split(), key=len)) > 50 for line in prose), "only digests may be long"
    boot = ok(world.run("show", "n0.json", "--section", "boot")).splitlines()
    assert len(boot) == 2 + 27
    assert boot[0] == "Firmware's event log"
    assert boot[-1].split()[:3] == ["27", "5", "EV_EFI_ACTION"]
    pcrs = ok(world.run("show", "n0.json", "--section", "pcrs"))
    assert read_bundle(world.here / "n0.json").body
    assert len(pcrs.splitlines()) == 2 + 16
    assert all("replays" in line for line in pcrs.splitlines()[2:])
    assert error(world.run("show", "n0.json", "--section", "gpus"), 2) == "ST-USAG-001"


@needs_swtpm
def test_a_tpm_that_is_not_there(world):
    settings = world.here / "settings"
    settings.write_text('{"tpm": {"address": "/nowhere", "state": "/nowhere"}}')
    collected = world.run(
        *("collect", "--node", "n", "--attester", settings, "--state", world.here / "s")
    )
    assert error(collected, 1) == "ST-ATTS-150"


# Without a TPM.


@pytest.fixture
def word(run, tmp_path):
    """A node's own word in a file."""
    out = ok(
        run(
            "collect", "--node", "n", "--attester", "", "--state", tmp_path / "s", "--out", "w.json"
        )
    )
    assert out.startswith(f"w.json: evidence of n  {UNATTESTED}\n")
    assert "No hardware speaks for this node." in out
    return run


def test_a_nodes_own_word(word):
    out = ok(word("verify", "w.json", "--policy", "dev"), 3)
    assert out.startswith(f"OPEN  n: {UNATTESTED}\n")
    assert "the machine  nothing but the node's own word speaks for it" in out
    out = ok(word("verify", "w.json", "--policy", "baseline"), 1)
    assert "ST-ATTS-005" in out
    assert error(word("enroll", "w.json", "--reference-values", "f", "--key", "k"), 20)
    ok(word("keygen", "k"))
    enrolled = word("enroll", "w.json", "--reference-values", "f", "--key", "k")
    assert error(enrolled, 1) == "ST-ATTS-013"
    out = ok(word("show", "w.json"))
    assert f"only the node itself: {UNATTESTED}" in out


def test_a_default_name_and_place(run, tmp_path):
    out = ok(run("collect", "--node", "n", "--attester", "", "--state", tmp_path / "s"))
    assert out.startswith("n.bundle.json: ")
    assert read_bundle(tmp_path / "n.bundle.json").node == "n"


def test_what_auto_does_not_find_is_listed(run, tmp_path):
    document = as_json(run("collect", "--node", "n", "--state", tmp_path / "s", "--json"))
    assert document["missing"]
    out = ok(run("collect", "--node", "n", "--state", tmp_path / "s"))
    assert out.count("  missing  ") == len(document["missing"])


def test_a_question_to_a_node_without_a_tpm(word, tmp_path):
    question = ("challenge", "w.json", "--policy", "dev", "--out", "q.json", "--secret", "q.secret")
    out = ok(word(*question))
    assert "securetrain attest collect --node n" in out
    assert stat.S_IMODE((tmp_path / "q.secret").stat().st_mode) == 0o600
    assert read_question(tmp_path / "q.json").credential is None
    common = (
        "--attester",
        "",
        "--state",
        tmp_path / "s",
        "--question",
        "q.json",
        "--out",
        "a.json",
    )
    assert error(word("collect", "--node", "other", *common), 2) == "ST-USAG-001"
    ok(word("collect", "--node", "n", *common))
    ok(word("verify", "a.json", "--policy", "dev", "--secret", "q.secret"), 3)


@pytest.mark.parametrize(
    "content",
    [b"", b"not json", b"[]", b"{}", b'{"schema":"securetrain.dev/evidence-bundle/v1"}', b"\xff"],
)
@pytest.mark.parametrize("verb", ["show", "verify", "challenge", "enroll"])
def test_a_bad_file_is_one_clear_error(run, tmp_path, verb, content):
    (tmp_path / "bad").write_bytes(content)
    ok(run("keygen", "k.pem"))
    arguments = {
        "show": ("show", "bad"),
        "verify": ("verify", "bad", "--policy", "dev"),
        "challenge": ("challenge", "bad", "--policy", "dev", "--out", "q", "--secret", "s"),
        "enroll": ("enroll", "bad", "--reference-values", "f", "--key", "k.pem"),
    }[verb]
    result = run(*arguments)
    assert error(result, 2) == "ST-USAG-008"
    assert "where: bad" in result[2]
    document = json.loads(run(*arguments, "--json")[1])
    assert document["error"]["code"] == "ST-USAG-008"


def test_other_files_that_are_bad(word, tmp_path):
    (tmp_path / "bad").write_bytes(b"{}")
    verify = ("verify", "w.json", "--policy")
    assert error(word(*verify, "dev", "--secret", "bad"), 2) == "ST-USAG-008"
    assert error(word(*verify, "bad"), 2).startswith("ST-PLCY")
    collect = ("collect", "--node", "n", "--state", tmp_path / "s")
    assert error(word(*collect, "--question", "bad"), 2) == "ST-USAG-008"
    assert error(word(*collect, "--attester", "missing"), 20) == "ST-USAG-002"
    assert error(word(*collect, "--key", "bad"), 2).startswith("ST-IDEN")
    ok(word("keygen", "k.pem"))
    enroll = ("enroll", "--reference-values", "f", "--key", "k.pem")
    assert error(word(*enroll), 20) == "ST-USAG-002"
    assert error(word(*enroll, "--root", "bad"), 2) == "ST-USAG-008"
    assert error(word(*enroll, "--ima-policy", "bad"), 1) == "ST-ATTS-320"


@pytest.mark.parametrize(
    "options",
    [
        ("--ear", "x"),
        ("--sign-key", "x"),
        ("--at", "yesterday"),
        ("--at", "2026-06-01T12:00:00"),
        ("--ear", "x", "--sign-key", "y", "--at", "2026-06-01T12:00:00Z"),
    ],
)
def test_options_that_contradict(word, options):
    assert error(word("verify", "w.json", "--policy", "dev", *options), 2) == "ST-USAG-001"


def test_escape_sequences_in_a_bundle_stay_text(word, tmp_path):
    bundle = read_bundle(tmp_path / "w.json")
    body = bundle.body.replace(b'"vendor":"', b'"vendor":"\\u001b[2J', 1)
    question = {**json.loads(canonical.encode(bundle.question)), "node": "n\x1b[2J"}
    document = json.loads(canonical.encode(bundle))
    document |= {"question": question, "body": base64.b64encode(body).decode()}
    (tmp_path / "w.json").write_bytes(canonical.dumps(document))
    for arguments in (("show", "w.json"), ("verify", "w.json", "--policy", "dev")):
        _, out, err = word(*arguments)
        assert "\x1b" not in out + err
        assert "\\x1b[2J" in out


# Keys, reference values.


def test_a_key(run, tmp_path):
    out = ok(run("keygen", "operator.pem"))
    assert out.startswith("operator.pem: a new private key")
    assert stat.S_IMODE((tmp_path / "operator.pem").stat().st_mode) == 0o600
    assert error(run("keygen", "operator.pem"), 2) == "ST-USAG-005"
    document = as_json(run("keygen", "other.pem", "--json"))
    key = PrivateKey.load(tmp_path / "other.pem")
    assert document["key_id"] == key.key_id
    assert base64.b64decode(document["signed_by"]) == key.public.spki


def test_reference_values_are_renewed_and_change_hands(run, tmp_path):
    keys = {name: as_json(run("keygen", name, "--json"))["signed_by"] for name in ("a", "b")}
    now = datetime.now(UTC)
    old = ReferenceValues(
        version=7,
        issued=now - timedelta(days=9),
        expires=now - timedelta(days=1),
        nodes={"n": EnrolledNode(chips=("ab",))},
    )
    write_reference_values(tmp_path / "f", old, PrivateKey.load(tmp_path / "a"))
    enroll = ("enroll", "--reference-values", "f")
    assert error(run(*enroll, "--key", "b"), 1) == "ST-ATTS-009"
    out = ok(run(*enroll, "--key", "b", "--signed-by", keys["a"], "--days", 5))
    assert f"version 8, good until {now + timedelta(days=5):%Y-%m-%d}" in out
    assert f"signed_by: [{keys['b']}]" in out
    ok(run(*enroll, "--key", "b"))


# The cache.


@pytest.fixture
def documents(tmp_path):
    world = AmdWorld()
    (tmp_path / "chain.pem").write_bytes(pem(world.ask(), world.ark()))
    start = datetime.now(UTC).replace(microsecond=0)
    (tmp_path / "crl").write_bytes(
        world.crl(start=start - timedelta(days=1), end=start + timedelta(days=9))
    )
    (tmp_path / "ima.json").write_text(json.dumps(runtime_policy({})))
    return tmp_path


def test_a_cache(run, documents):
    signed_by = as_json(run("keygen", "k.pem", "--json"))["signed_by"]
    add = ("cache", "add", "cache", "--key", "k.pem")
    out = ok(
        run(
            *(*add, "--amd-chain", "Milan-VCEK=chain.pem", "--crl", "amd-Milan-VCEK=crl"),
            *("--runtime-policy", "ima.json"),
        )
    )
    assert out.startswith("cache: version 1, good until ")
    assert [line.split()[0] for line in out.splitlines()[2:]] == [
        "amd-chain",
        "crl",
        "runtime-policy",
    ]
    document = as_json(run("cache", "list", "cache", "--signed-by", signed_by, "--json"))
    assert [entry["id"] for entry in document["entries"]][:2] == ["Milan-VCEK", "amd-Milan-VCEK"]
    assert document["ended"] == []
    out = ok(run(*add, "--days", 3))
    assert "version 2" in out
    assert error(run(*add, "--crl", "Milan=crl"), 1) == "ST-ATTS-739"
    assert error(run(*add, "--crl", "crl"), 2) == "ST-USAG-001"
    assert error(run("cache", "list", "cache", "--signed-by", "x"), 1) == "ST-ATTS-009"
    assert error(run("cache", "list", "none", "--signed-by", signed_by), 1) == "ST-ATTS-731"


def test_a_cache_that_is_over_is_still_listed(run, tmp_path):
    signed_by = as_json(run("keygen", "k.pem", "--json"))["signed_by"]
    now = datetime.now(UTC)
    key = PrivateKey.load(tmp_path / "k.pem")
    build_cache(tmp_path / "cache", [], key, now - timedelta(days=9), now - timedelta(days=1))
    out = ok(run("cache", "list", "cache", "--signed-by", signed_by), 3)
    assert "EXPIRED" in out
    document = as_json(run("cache", "list", "cache", "--signed-by", signed_by, "--json"), 3)
    assert document["expired"] is True


def test_fetching_into_a_cache(run, word, tmp_path, monkeypatch):
    asked: list[str] = []
    problems: tuple[str, ...] = ()

    def answer(bundles, now):
        asked.extend(bundle.node for bundle in bundles)
        data = pem(AmdWorld().ask())
        item = Item(kind=CollateralKind.AMD_CHAIN, id="Milan-VCEK", data=data, fetched=now)
        return Gathered((item,), problems)

    monkeypatch.setattr(gather, "gather_from_makers", answer)
    ok(run("keygen", "k.pem"))
    fetch = ("cache", "fetch", "cache", "w.json", "w.json", "--key", "k.pem")
    out = ok(run(*fetch))
    assert asked == ["n", "n"]
    assert "amd-chain  Milan-VCEK" in out
    problems = ("ST-ATTS-741: it answered with status 503 (https://x)",)
    assert "note  ST-ATTS-741: it answered with status 503" in ok(run(*fetch), 3)
    document = as_json(run(*fetch, "--json"), 3)
    assert document["problems"] == list(problems)
    assert document["version"] == 3
    assert error(run("cache", "fetch", "cache", "--key", "k.pem"), 2) == "ST-USAG-001"
    assert error(run("cache", "fetch", "cache", "k.pem", "--key", "k.pem"), 2) == "ST-USAG-008"


# Reference values.


def test_values(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SECURETRAIN_STATE", str(tmp_path / "state"))
    key = PrivateKey.create(tmp_path / "k.pem")
    now = datetime.now(UTC)
    firmware, node = "ab" * 32, EnrolledNode(ek_names=("000b" + "cd" * 32,))
    values = ReferenceValues(
        version=1,
        issued=now,
        expires=now + timedelta(days=10),
        nodes={"n1": node, "n2": EnrolledNode(ek_names=("000b" + "ce" * 32,))},
        boot=BootReference(firmware=(firmware,), kernel_command_lines=("vmlinuz quiet",)),
    )
    path = tmp_path / "fleet.json"
    write_reference_values(path, values, key)
    signed_by = ("--signed-by", key_text(key.public))
    out = ok(run("values", "show", path, *signed_by), 3)
    assert "it ends in 9 days" in out
    for text in (firmware, "vmlinuz quiet", "n1", node.ek_names[0]):
        assert text in out
    with_key = ("--key", tmp_path / "k.pem")
    assert error(run("values", "retire", path, "ff" * 32, *with_key), 2) == "ST-USAG-001"
    made = as_json(run("values", "retire", path, firmware, *with_key, "--days", "90", "--json"))
    assert (made["version"], made["boot"]["firmware"]) == (2, [])
    assert error(run("values", "remove", path, "n3", *with_key), 2) == "ST-USAG-001"
    made = as_json(run("values", "remove", path, "n2", *with_key, "--json"))
    assert (made["version"], list(made["nodes"])) == (3, ["n1"])
    assert "good until" in ok(run("values", "show", path, *signed_by))
    assert "- nodes.n2" in ok(run("values", "diff", path, *signed_by))
    told = ok(run("values", "set", path, "snp.min_guest_svn=1", *with_key))
    assert "snp.min_guest_svn" in told
    assert node.ek_names[0] not in told, "what stays as it was is not told"
    assert "held already" in ok(run("values", "set", path, "snp.min_guest_svn=1", *with_key))
    made = as_json(run("values", "set", path, "snp.any_chip=true", *with_key, "--json"))
    assert made["snp"]["any_chip"]
    assert error(run("values", "set", path, "snp.anything=true", *with_key), 2) == "ST-USAG-001"
    assert error(run("values", "set", path, "a=1", "--group", "a", "--node", "b", *with_key), 2)
    (line,) = (
        one
        for one in as_json(run("values", "diff", path, *signed_by, "--json"))["differences"]
        if one["where"].startswith("snp")
    )
    assert line == {"where": "snp.any_chip", "old": "false", "new": "true"}
    staged = ("values", "retire", path, "vmlinuz quiet", *with_key, "--accept-until")
    assert error(run(*staged, "2020-01-01"), 2) == "ST-USAG-001"
    assert "accepted until 2999-01-01 00:00 and no longer: vmlinuz quiet" in ok(
        run(*staged, "2999-01-01")
    )
    ek = f"ek:{node.ek_names[0]}"
    assert as_json(run("values", "revoke", path, ek, *with_key, "--json"))["tpm"]["revoked"]
    assert error(run("values", "revoke", path, ek, *with_key), 2) == "ST-USAG-001"
    shown = ok(run("values", "show", path, *signed_by))
    for rule in ("tpm.revoked", node.ek_names[0], "snp.any_chip", "snp.min_guest_svn"):
        assert rule in shown.partition("rules of the fleet")[2], rule
    PrivateKey.create(tmp_path / "next.pem")
    again = ("values", "sign", path, "--key", tmp_path / "next.pem", "--days", "9")
    assert error(run(*again), 1) == "ST-ATTS-009"
    made = as_json(run(*again, *signed_by, "--json"), 3)
    assert made["version"] == 9
    write_reference_values(path, values, key)
    assert error(run("values", "show", path, *signed_by), 1) == "ST-ATTS-009"


def test_images(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SECURETRAIN_STATE", str(tmp_path / "state"))
    key = PrivateKey.create(tmp_path / "k.pem")
    now = datetime.now(UTC)
    values = ReferenceValues(
        version=1, issued=now, expires=now + timedelta(days=30), late=LateReference(volume_keys=1)
    )
    path = tmp_path / "fleet.json"
    write_reference_values(path, values, key)
    signing = tmp_path / "pcr.pem"
    signing.write_text(lateboots.pem(rsa_key(2048, 5)))
    with_key = ("--key", tmp_path / "k.pem")
    assert error(run("images", path, *with_key), 2) == "ST-USAG-001"
    assert error(run("images", path, *with_key, "--policy-key", path), 1) == "ST-ATTS-009"
    out = ok(run("images", path, *with_key, "--policy-key", signing, "--retire", "ab" * 32))
    assert "ab" * 32 in out
    made = as_json(run("values", "show", path, "--signed-by", key_text(key.public), "--json"))
    assert made["version"] == 2
    assert made["late"]["policy_keys"] == [signing.read_text()]


# Revocations.


def test_revocations_of_this_machine(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SECURETRAIN_STATE", str(tmp_path))
    assert ok(run("revocations")).startswith("Nobody is revoked")
    assert error(run("revoke", "node-17", "--reason", "stolen"), 2) == "ST-USAG-001"
    subject = "node:securetrain.local/node-17"
    assert ok(run("revoke", subject, "--reason", "stolen")) == f"{subject} is let in no more\n"
    assert "reason  stolen" in ok(run("revocations"))
    assert error(run("restore", "node:other"), 2) == "ST-USAG-001"
    assert ok(run("restore", subject)) == f"{subject} may join again\n"
    assert as_json(run("revocations", "--json"))["revoked"] == []


def test_revocations(run, tmp_path):
    assert error(run("revocations", tmp_path), 20) == "ST-USAG-002"
    state = FileState(tmp_path / "attestation.sqlite")
    assert ok(run("revocations", tmp_path)).startswith("Nobody is revoked")
    state.revoke(Revocation(subject="node:n", reason="ST-ATTS-309: it ran /tmp/x", since="2026"))
    state.close()
    out = ok(run("revocations", tmp_path / "attestation.sqlite"))
    assert "node:n" in out
    assert "reason  ST-ATTS-309: it ran /tmp/x" in out
    document = as_json(run("revocations", tmp_path, "--json"))
    assert document["revoked"][0]["subject"] == "node:n"
    assert error(run("restore", "node:other", "--state", tmp_path), 2) == "ST-USAG-001"
    assert ok(run("restore", "node:n", "--state", tmp_path)) == "node:n may join again\n"
    assert as_json(run("revocations", tmp_path, "--json"))["revoked"] == []


# The command line itself.


def test_help_of_every_command(run):
    listed = ok(run("--help"))
    names = ("keygen", "collect", "show", "challenge", "verify", "enroll", "cache")
    for name in (*names, "revocations", "revoke", "restore"):
        assert f"\n  {name} " in listed
        assert ok(run(name, "--help")).startswith(f"Usage: securetrain attest {name}")
    for name in names:
        assert "Example" in ok(run(name, "--help"))
    assert "Names, as verifiers ask for them" in ok(run("cache", "add", "--help"))
    assert ok(run("cache", "list", "--help"))
    assert "HTTPS_PROXY" in ok(run("cache", "fetch", "--help"))


def test_no_torch_and_no_rich_for_what_prints_json():
    script = (
        "import sys; from securetrain.cli.main import main; code = main(['attest', '--help']);"
        "print('LOADED', code, [m for m in ('torch', 'rich', 'msgspec', 'cryptography')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert "LOADED 0 []" in done.stdout
