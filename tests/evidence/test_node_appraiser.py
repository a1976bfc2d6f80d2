# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whole exchanges with the forger's own TPMs: what every part of a node's evidence adds up to.

`test_a_whole_node` is the control of every forgery. The same with swtpm: `test_appraise_on_swtpm`.
"""

import dataclasses
import hashlib
from datetime import timedelta

import msgspec
import pytest

from securetrain.attest.session.appraisers import appraisers_for
from securetrain.attest.session.cache import CollateralCache, Item, build_cache
from securetrain.attest.session.reference_file import write_reference_values
from securetrain.attest.session.state import MemoryState
from securetrain.attest.session.verifier import Verifier
from securetrain.core import canonical
from securetrain.core.errors import PolicyError
from securetrain.core.vocabulary import UNATTESTED, NodeTier
from securetrain.evidence.appraiser import APPRAISERS
from securetrain.evidence.case import Ask, Part
from securetrain.evidence.collateral import CollateralKind
from securetrain.evidence.node_appraiser import tier_of
from securetrain.evidence.node_evidence import BODY_LIMIT, NODE_TYPE, NodeEvidence, device_nonce
from securetrain.evidence.reference import sign_reference_values
from securetrain.evidence.result import Submodule
from securetrain.evidence.selfreport import SELF_ASSERTED_TYPE
from securetrain.evidence.tpm.runtime_policy import ImaReference
from securetrain.identity.keys import PrivateKey
from securetrain.policy import load_policy
from securetrain.policy.schema import Gpu, SelfAsserted
from securetrain.testing.machine import REFERENCE_FILE, runtime_policy, write_policy
from tests import vocabulary
from tests.attest.worlds import (
    FILES,
    MANIFEST,
    Machine,
    World,
    node_policy,
    own_binding,
    refused,
    tpm,
)
from tests.evidence import test_gpu_appraiser as gpus
from tests.evidence import test_tee_appraiser as tees
from tests.evidence.tee.forge import pem
from tests.evidence.test_tee_appraiser import AMD
from tests.evidence.tpm.forge import NOW
from tests.tables import each, forgeries, items
from tools.fuzz.engine import bounded_memory

OPERATOR = PrivateKey.generate()


@pytest.fixture
def world():
    return World(Machine("node-0"), Machine("node-1"))


def equipped(world, devices=(gpus.GPU,), policy=None):
    """Have the world judge the forger's CPUs and GPUs, as if their makers' roots were pinned."""
    world.appraiser._tee = tees.appraiser()
    world.appraiser._gpu = gpus.appraiser(devices, gpus.rims(*devices), policy)
    return world


def whole(said, binding, devices=(gpus.GPU,)):
    """A CPU and GPUs speak for the node as well."""
    value = binding.value(MANIFEST)
    return msgspec.structs.replace(
        said,
        tee=tees.snp(value),
        devices=tuple(device.evidence(nonce=device_nonce(value)) for device in devices),
    )


def exchange(world, machine=None, node="", make=whole):
    machine = machine or world.machine
    ask, binding = world.ask(machine, node=node)
    said = make(machine.collect(binding, ask), binding)
    return world.answer(machine.sign(said, binding), binding, machine, node=node)


def without_tpm(world, make=whole):
    """An exchange of a node that has announced no TPM."""
    binding = own_binding(world)
    said = make(NodeEvidence(manifest=MANIFEST), binding)
    return world.answer(world.machine.sign(said, binding), binding)


def only(*names):
    """Leave out all parts but these."""

    def make(said, binding):
        full = whole(said, binding)
        gone = {"tee": None, "devices": ()}
        return msgspec.structs.replace(full, **{n: v for n, v in gone.items() if n not in names})

    return make


# What must work.


def test_a_whole_node(world):
    equipped(world)
    result = exchange(world)
    assert result.tier is NodeTier.TEE_GPU
    assert set(result.submods) == {"self-report", "tpm", "sev-snp", "gpu-0"}
    assert not world.ask()[0].full
    assert exchange(world).tier is NodeTier.TEE_GPU, "a renewal brings them again"


def test_a_node_without_a_tpm(world):
    equipped(world)
    assert without_tpm(world).tier is NodeTier.TEE_GPU
    assert without_tpm(world, only("tee")).tier is NodeTier.TEE


def test_gpus_lift_no_tpm(world):
    equipped(world)
    assert exchange(world, make=only("devices")).tier is NodeTier.TPM
    assert exchange(world, make=only("tee")).tier is NodeTier.TEE


def test_chips_and_devices_that_are_enrolled(world):
    chip = equipped(world) and exchange(world).submods["sev-snp"].claims["chip"]
    entry = msgspec.structs.replace(
        world.values.nodes["node-0"], chips=(chip,), devices=(gpus.PDI,)
    )
    world.values = msgspec.structs.replace(world.values, nodes={"node-0": entry})
    world.appraiser = world.make_appraiser()
    world.restart()
    assert exchange(equipped(world)).tier is NodeTier.TEE_GPU


def test_a_node_that_only_speaks_for_itself():
    """Node evidence in which no hardware speaks is worth as much as a self-report."""
    allowed = SelfAsserted(max_nodes=1, reason="a test")
    world = World(policy=node_policy(allow_self_asserted=allowed))
    binding = own_binding(world)
    signed = world.machine.sign(NodeEvidence(manifest=MANIFEST), binding)
    result = world.answer(signed, binding)
    assert result.tier is NodeTier.SELF_ASSERTED
    assert result.label == UNATTESTED
    assert set(result.submods) == {"self-report"}


def test_the_largest_evidence_in_64_mib(world):
    """A measurement list that fills the body, with a CPU and a GPU beside it."""
    equipped(world)
    world.machine.boot(files={f"/{number:x}": b"" for number in range(31_000)})
    ask, binding = world.ask()
    said = whole(world.machine.collect(binding, ask), binding)
    evidence = world.machine.sign(said, binding)
    assert BODY_LIMIT * 9 // 10 < len(evidence.body) <= BODY_LIMIT
    with bounded_memory(64 << 20):
        result = world.answer(evidence, binding)
    assert result.submods["tpm"].claims["ima_entries"] == 31_001


# CPUs and GPUs.


@pytest.mark.forgery
@items(
    "id, code, part",
    ("cpu-report-replay", "ST-ATTS-410", lambda _: {"tee": tees.snp(bytes(32))}),
    (
        "gpu-report-replay",
        "ST-ATTS-604",
        lambda _: {"devices": (gpus.GPU.evidence(nonce=bytes(32)),)},
    ),
    (
        "gpu-answers-the-tpm",
        "ST-ATTS-604",
        lambda value: {"devices": (gpus.GPU.evidence(nonce=value),)},
    ),
    (
        "one-gpu-twice",
        "ST-ATTS-631",
        lambda value: {"devices": (gpus.GPU.evidence(nonce=device_nonce(value)),) * 2},
    ),
    (
        "cpu-in-debug",
        "ST-ATTS-409",
        lambda value: {"tee": tees.snp(value, policy=(1 << 17) | (1 << 19))},
    ),
)
def test_what_is_sent_must_hold_also_where_it_is_not_asked_for(world, code, part):
    """The policy is content with a TPM; a part that does not verify is a refusal all the same."""
    equipped(world)
    if code == "ST-ATTS-631":
        world.appraiser._gpu = gpus.appraiser((gpus.GPU,), gpus.rims(gpus.GPU), gpus=2)

    def make(said, binding):
        return msgspec.structs.replace(said, **part(binding.value(MANIFEST)))

    refused(code, lambda: exchange(world, make=make))


@pytest.mark.forgery
@pytest.mark.parametrize("field", ["chips", "devices"])
def test_the_cpu_and_the_gpu_of_another_node(world, field):
    other = {"chips": "ab" * 64, "devices": "ee" * 8}[field]
    entry = msgspec.structs.replace(world.values.nodes["node-0"], **{field: (other,)})
    world.values = msgspec.structs.replace(world.values, nodes={"node-0": entry})
    world.appraiser = world.make_appraiser()
    world.restart()
    equipped(world)
    error = refused("ST-ATTS-012", lambda: exchange(world))
    assert error.where == f"node node-0: {field}"


@pytest.mark.forgery
@pytest.mark.parametrize("part", ["tee", "devices"])
def test_one_cpu_or_gpu_in_two_nodes_at_once(world, part):
    equipped(world)
    exchange(world, make=only(part))
    error = refused("ST-ATTS-011", lambda: exchange(world, world.machines[1], make=only(part)))
    assert error.where.startswith("node node-1: " + {"tee": "chip:", "devices": "device:"}[part])
    world.verifier.release("node-0")
    exchange(world, world.machines[1], make=only(part))


@pytest.mark.forgery
@pytest.mark.parametrize("part", ["tee", "devices"])
def test_a_revoked_cpu_or_gpu(world, part):
    equipped(world)
    result = exchange(world, make=only(part))
    name, field, kind = {"tee": ("sev-snp", "chip", "chip"), "devices": ("gpu-0", "pdi", "device")}[
        part
    ]
    subject = f"{kind}:{result.submods[name].claims[field]}"
    world.verifier.revoke(subject, "stolen")
    assert refused("ST-ATTS-010", lambda: exchange(world, make=only(part))).where == subject
    exchange(world, make=only())


@forgeries("id, sends", ("nothing", ()), ("only-the-cpu", ("tee",)))
def test_gpus_are_asked_for_and_none_speaks(sends):
    world = equipped(World(policy=node_policy(gpu={"confidential": True})))
    error = refused("ST-ATTS-013", lambda: exchange(world, make=only(*sends)))
    assert error.where.endswith("node.gpu.confidential")
    assert exchange(world).tier is NodeTier.TEE_GPU


@pytest.mark.forgery
def test_a_fabric_is_asked_for_and_the_gpus_name_none():
    world = equipped(World(), policy=Gpu(revocation=False, fabric=True))
    assert refused("ST-ATTS-013", lambda: exchange(world)).where == "node.gpu.fabric"


def test_makers_documents_come_from_a_cache_that_the_policy_names(world):
    """Without one, evidence that needs them is refused, by name."""

    def tdx(said, binding):
        return msgspec.structs.replace(said, tee=tees.tdx(binding.value(MANIFEST)))

    error = refused("ST-ATTS-009", lambda: exchange(world, make=tdx))
    assert error.where == "node.reference_values.cache"
    assert "tcb-info" in error.what
    error = refused("ST-ATTS-009", lambda: exchange(world, make=only("tee")))
    assert "amd-chain" in error.what


@pytest.fixture
def cached(world, tmp_path):
    """A world whose cache has AMD's chain and a GPU's manifests, and no list of revocations."""
    documents = {**gpus.rims(gpus.GPU), ("amd-chain", "Milan-VCEK"): pem(AMD.ask(), AMD.ark())}
    items = [
        Item(kind=CollateralKind(kind), id=name, data=data, fetched=NOW)
        for (kind, name), data in documents.items()
    ]
    build_cache(tmp_path, items, OPERATOR, NOW, NOW + timedelta(days=1))
    cache = CollateralCache.open(tmp_path, {OPERATOR.key_id: OPERATOR.public}, NOW)
    world.values = msgspec.structs.replace(
        world.values,
        gpu=gpus.appraiser((gpus.GPU,), {}).reference,
        snp=AMD.reference(require_crl=False),
    )

    def judged(cache):
        world.appraiser = world.make_appraiser(cache)
        tee = dataclasses.replace(world.appraiser._tee, amd_roots=AMD.roots)
        world.appraiser._tee = tee
        world.restart()
        return world

    return judged, cache


def test_documents_that_the_cache_has_and_has_not(cached):
    judged, cache = cached
    world = judged(cache)
    result = exchange(world, make=only("tee"))
    assert result.submods["sev-snp"].claims["revocation_checked"] is False
    error = refused("ST-ATTS-735", lambda: exchange(world, make=only("devices")))
    assert "ocsp" in error.what
    error = refused("ST-ATTS-009", lambda: exchange(judged(None), make=only("devices")))
    assert "ocsp" in error.what


# Relay: right machine, wrong connection.


@pytest.mark.forgery
@items(
    "id, elsewhere",
    ("another-tls-connection", {"exporter": b"\x01" * 32}),
    ("another-session", {"session": b"\x01" * 16}),
    ("another-job", {"job": "job-2"}),
    ("another-coordinator", {"server_spki": b"impostor"}),
    ("another-node-key", {"client_spki": b"other"}),
    ("another-wireguard-key", {"wireguard": b"other"}),
    ("another-attestation-key", {"ak_name": b"other"}),
    ("another-nonce", {"nonce": b"\x01" * 32}),
)
@pytest.mark.parametrize("part", ["tpm", "tee", "devices"])
def test_evidence_made_for_another_connection(world, elsewhere, part):
    """First as it was made, then under the right binding, which the relay can compute as well."""
    machine = world.machine
    equipped(world)
    ask, binding = world.ask()
    other = dataclasses.replace(binding, **elsewhere)
    there = whole(machine.collect(other, ask), other)
    refused("ST-ATTS-003", lambda: world.answer(machine.sign(there, other), binding))
    ask, binding = world.ask()
    other = dataclasses.replace(binding, **elsewhere)
    here, there = (whole(machine.collect(one, ask), one) for one in (binding, other))
    relayed = msgspec.structs.replace(here, **{part: getattr(there, part)})
    if part == "tpm":
        relayed = tpm(activation=here.tpm.activation)(relayed)
    code = {"tpm": "ST-ATTS-113", "tee": "ST-ATTS-410", "devices": "ST-ATTS-604"}[part]
    refused(code, lambda: world.answer(machine.sign(relayed, binding), binding))


@pytest.mark.forgery
@pytest.mark.parametrize("part", ["all", "tpm", "tee", "devices"])
def test_what_was_sent_for_the_last_renewal(world, part):
    """The nonce of an earlier epoch: whole under its old binding, then part by part."""
    equipped(world)
    machine = world.machine
    exchange(world)
    ask, binding = world.ask()
    old = whole(machine.collect(binding, ask), binding)
    world.answer(machine.sign(old, binding), binding)
    if part == "all":
        refused("ST-ATTS-002", lambda: world.answer(machine.sign(old, binding), binding))
    ask, fresh = world.ask()
    if part == "all":
        refused("ST-ATTS-003", lambda: world.answer(machine.sign(old, binding), fresh))
        return
    now = whole(machine.collect(fresh, ask), fresh)
    mixed = msgspec.structs.replace(now, **{part: getattr(old, part)})
    code = {"tpm": "ST-ATTS-113", "tee": "ST-ATTS-410", "devices": "ST-ATTS-604"}[part]
    refused(code, lambda: world.answer(machine.sign(mixed, fresh), fresh))


# Parts left out, or dressed as something better.


@pytest.mark.forgery
def test_evidence_of_a_tpm_that_was_not_announced(world):
    """No keys in Hello means no challenge for them: nothing would tie the quote to a TPM."""
    binding = own_binding(world)
    said = world.machine.collect(binding, Ask())
    error = refused("ST-ATTS-013", lambda: world.answer(world.machine.sign(said, binding), binding))
    assert error.where == "node node-0: tpm"


@pytest.mark.forgery
@pytest.mark.parametrize("sends", [(), ("tee",), ("tee", "devices")], ids=str)
def test_a_tpm_that_was_announced_stays_silent(world, sends):
    equipped(world)

    def make(said, binding):
        return msgspec.structs.replace(only(*sends)(said, binding), tpm=None)

    assert refused("ST-ATTS-013", lambda: exchange(world, make=make)).where == "node node-0: tpm"


@pytest.mark.forgery
@pytest.mark.parametrize(
    "claim",
    [
        {"tier": "tpm"},
        {"label": "tpm"},
        {"verified": True},
        {"attested": True},
        {"trusted": True},
        {"submods": {"tpm": {}}},
        {"ear_status": 2},
        {"trust_vector": {"hardware": 2}},
        {"lease": {"expires": "2030-01-01T00:00:00Z"}},
        {"enrolled": True},
    ],
    ids=lambda claim: next(iter(claim)),
)
@pytest.mark.parametrize("place", ["self-report", "manifest", "node", "tpm"])
def test_a_claim_that_no_field_is_for(world, claim, place):
    """The verifier computes what it says of a node: no spelling of a claim is read at all."""
    body = canonical.loads(MANIFEST)
    if place == "self-report":
        binding = own_binding(world)
        forged = canonical.dumps({**body, **claim})
        value = dataclasses.replace(binding).value(forged)
        evidence = world.machine.sign(
            NodeEvidence(manifest=forged), binding, SELF_ASSERTED_TYPE, forged
        )
        assert evidence.binding == value
    else:
        ask, binding = world.ask()
        said = world.machine.collect(binding, ask)
        node = canonical.loads(said.encode())
        match place:
            case "manifest":
                forged = canonical.dumps({**body, **claim})
                said = msgspec.structs.replace(said, manifest=forged)
                node = canonical.loads(said.encode())
            case "tpm":
                node["tpm"].update(claim)
            case _:
                node.update(claim)
        evidence = world.machine.sign(said, binding, body=canonical.dumps(node))
    refused("ST-ATTS-001", lambda: world.answer(evidence, binding))


@pytest.mark.forgery
@items(
    "id, media_type",
    ("node-evidence-as-self-report", SELF_ASSERTED_TYPE),
    ("self-report-as-node-evidence", NODE_TYPE),
)
def test_a_body_under_the_other_kind(world, media_type):
    binding = own_binding(world)
    said = NodeEvidence(manifest=MANIFEST)
    body = said.encode() if media_type == SELF_ASSERTED_TYPE else MANIFEST
    evidence = world.machine.sign(said, binding, media_type, body)
    refused("ST-ATTS-001", lambda: world.answer(evidence, binding))


@pytest.mark.forgery
def test_a_self_report_of_a_node_whose_tpm_was_challenged(world):
    """It answers the TPM's challenge without the TPM: the best that it gets is the lowest tier."""
    _, binding = world.ask()
    evidence = world.machine.sign(
        NodeEvidence(manifest=MANIFEST), binding, SELF_ASSERTED_TYPE, MANIFEST
    )
    refused("ST-ATTS-005", lambda: world.answer(evidence, binding))
    allowed = SelfAsserted(max_nodes=1, reason="a test")
    lenient = World(policy=node_policy(allow_self_asserted=allowed))
    _, binding = lenient.ask()
    evidence = lenient.machine.sign(
        NodeEvidence(manifest=MANIFEST), binding, SELF_ASSERTED_TYPE, MANIFEST
    )
    assert lenient.answer(evidence, binding).label == UNATTESTED


@forgeries("tier", "cloud-token", "vtpm", "tpm", "tee", "tee+gpu")
def test_nothing_but_a_manifest_is_below_every_tier(tier):
    world = World(policy=node_policy(min_tier=NodeTier(tier)))
    binding = own_binding(world)
    evidence = world.machine.sign(NodeEvidence(manifest=MANIFEST), binding)
    refused("ST-ATTS-005", lambda: world.answer(evidence, binding))


# Reference values.


@pytest.mark.forgery
def test_reference_values_that_are_over(world):
    ask, binding = world.ask()
    bare = own_binding(world)
    world.now += timedelta(days=1)
    said = world.machine.collect(binding, ask)
    refused("ST-ATTS-009", lambda: world.answer(world.machine.sign(said, binding), binding))
    only_a_word = world.machine.sign(NodeEvidence(manifest=MANIFEST), bare)
    refused("ST-ATTS-009", lambda: world.answer(only_a_word, bare))
    refused("ST-ATTS-009", world.ask)


def test_a_node_with_a_tpm_needs_reference_values(world):
    dev = load_policy("dev")
    verifier = Verifier(policy=dev.policy, policy_digest=dev.digest, clock=lambda: NOW)
    refused("ST-ATTS-009", lambda: verifier.challenge("node-0", world.machine.keys()))


@pytest.fixture
def on_disk(world, tmp_path):
    """A policy file and the signed values that it names."""
    path = write_policy(tmp_path, world.values, OPERATOR, tier="tpm", extends="hardened")
    return load_policy(str(path))


def test_appraisers_of_a_policy_file(world, on_disk):
    found = appraisers_for(on_disk, NOW, MemoryState())
    assert set(found) == {*APPRAISERS, NODE_TYPE}
    world.policy, world.appraiser = on_disk.policy, found[NODE_TYPE]
    world.restart()
    result = world.join()
    assert result.tier is NodeTier.TPM
    assert result.reference_values == found[NODE_TYPE].reference_values
    assert appraisers_for(load_policy("dev"), NOW, MemoryState()) is APPRAISERS


def test_a_resolved_policy_does_not_know_where_its_files_are(on_disk):
    lost = dataclasses.replace(on_disk, sources={})
    vocabulary.refused(PolicyError, "ST-PLCY-004", appraisers_for, lost, NOW, MemoryState())


@pytest.mark.forgery
def test_an_older_edition_is_not_taken_back(world, on_disk, tmp_path):
    state = MemoryState()
    appraisers_for(on_disk, NOW, state)
    old = (tmp_path / REFERENCE_FILE).read_bytes()
    newer = msgspec.structs.replace(world.values, version=2)
    write_reference_values(tmp_path / REFERENCE_FILE, newer, OPERATOR)
    appraisers_for(on_disk, NOW, state)
    (tmp_path / REFERENCE_FILE).write_bytes(old)
    appraisers_for(on_disk, NOW, MemoryState())  # the control: by itself it is good
    error = refused("ST-ATTS-009", lambda: appraisers_for(on_disk, NOW, state))
    assert "was accepted before" in error.what


@pytest.mark.forgery
@items(
    "id, forge",
    ("signer", lambda v: sign_reference_values(v, PrivateKey.generate())),
    ("cut", lambda v: sign_reference_values(v, OPERATOR)[:-9]),
    ("not-signed", canonical.encode),
    ("over", lambda v: sign_reference_values(msgspec.structs.replace(v, expires=NOW), OPERATOR)),
    (
        "not-yet",
        lambda v: sign_reference_values(
            msgspec.structs.replace(v, issued=NOW + timedelta(seconds=1)), OPERATOR
        ),
    ),
)
def test_forged_reference_values(world, on_disk, tmp_path, forge):
    (tmp_path / REFERENCE_FILE).write_bytes(forge(world.values))
    refused("ST-ATTS-009", lambda: appraisers_for(on_disk, NOW, MemoryState()))


def test_documents_from_the_cache_of_the_policy(world, tmp_path):
    """A runtime policy by its digest: from the cache, and from nowhere else."""
    document = canonical.dumps(runtime_policy(FILES))
    digest = hashlib.sha256(document).hexdigest()
    values = msgspec.structs.replace(world.values, ima=ImaReference(policy_sha256=digest))
    path = write_policy(tmp_path, values, OPERATOR, tier="tpm", extends="hardened", ima="enforce")
    error = refused(
        "ST-ATTS-009", lambda: appraisers_for(load_policy(str(path)), NOW, MemoryState())
    )
    assert digest in error.what
    cache = tmp_path / "cache"
    item = Item(kind=CollateralKind.RUNTIME_POLICY, id=digest, data=document, fetched=NOW)
    build_cache(cache, [item], OPERATOR, NOW, NOW + timedelta(days=1))
    path.write_text(path.read_text().replace('"file":', '"cache": "cache", "file":'))
    policy = load_policy(str(path))
    world.policy, state = policy.policy, MemoryState()
    world.appraiser = appraisers_for(policy, NOW, state)[NODE_TYPE]
    world.restart()
    world.join()
    world.machine.execute("/tmp/implant.so", b"x")
    world.refused("ST-ATTS-309")
    (cache / "index.json").unlink()
    refused("ST-ATTS-731", lambda: appraisers_for(policy, NOW, state))


# Tiers are computed.


def part(tier, name="x"):
    return Part(name=name, tier=tier, submodule=Submodule(trust_vector={}))


@each(
    "tiers, devices, expected",
    ([], False, NodeTier.SELF_ASSERTED),
    ([], True, NodeTier.SELF_ASSERTED),
    ([NodeTier.SELF_ASSERTED], True, NodeTier.SELF_ASSERTED),
    ([NodeTier.TEST_ONLY], False, NodeTier.TEST_ONLY),
    ([NodeTier.TEST_ONLY, NodeTier.SELF_ASSERTED], True, NodeTier.TEST_ONLY),
    ([NodeTier.TEST_ONLY, NodeTier.CLOUD_TOKEN], False, NodeTier.CLOUD_TOKEN),
    ([NodeTier.TEST_ONLY, NodeTier.TEE], False, NodeTier.TEE),
    ([NodeTier.CLOUD_TOKEN], True, NodeTier.CLOUD_TOKEN),
    ([NodeTier.TPM], True, NodeTier.TPM),
    ([NodeTier.VTPM, NodeTier.TEE], False, NodeTier.TEE),
    ([NodeTier.TEE], False, NodeTier.TEE),
    ([NodeTier.TEE], True, NodeTier.TEE_GPU),
    ([NodeTier.TPM, NodeTier.TEE], True, NodeTier.TEE_GPU),
)
def test_the_tier_of_parts(tiers, devices, expected):
    assert tier_of([part(tier) for tier in tiers], devices=devices) is expected
