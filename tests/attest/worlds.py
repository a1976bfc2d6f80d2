# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whole nodes without a process: the forger's TPMs, what they booted, and a verifier to ask them.

What `securetrain.testing.machine` is with swtpm, at a thousandth of its cost, and able to lie in
every field. The verifier under test is the real one; only its clocks are moved by hand.
"""

import dataclasses
import hmac
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.attest.fleet.bundle import Bundle, Question, Secret, collect_bundle, own_question
from securetrain.attest.node.attester import SoftwareAttester, sign_evidence
from securetrain.attest.node.software import collect_software
from securetrain.attest.session.cache import CachedCollateral, CollateralCache
from securetrain.attest.session.state import MemoryState, StateStore
from securetrain.attest.session.verifier import Verifier
from securetrain.core import canonical
from securetrain.core.errors import AttestationError
from securetrain.evidence.appraiser import APPRAISERS
from securetrain.evidence.binding import Binding
from securetrain.evidence.case import Ask
from securetrain.evidence.inventory import EnrolledNode
from securetrain.evidence.node_appraiser import NodeAppraiser
from securetrain.evidence.node_evidence import (
    NODE_TYPE,
    AttestationKeys,
    Evidence,
    NodeEvidence,
    TeeEvidence,
    TeeKind,
    TpmEvidence,
    device_nonce,
    report_data,
)
from securetrain.evidence.reference import ReferenceValues, SignedReferenceValues
from securetrain.evidence.result import AttestationResult
from securetrain.evidence.tpm.boot import learn_boot
from securetrain.evidence.tpm.certificates import TpmReference
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.credential import Credential
from securetrain.evidence.tpm_appraiser import BOOT_PCRS
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.policy import load_policy
from securetrain.testing.bootlog import Boot
from securetrain.testing.measurement_lists import (
    Measurement,
    ima_list,
    measure_files,
    measured_file,
)
from tests import vocabulary
from tests.evidence.gpu import forge as gpu
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge_amd import AmdWorld, good_chain, good_leaf
from tests.evidence.tpm.forge import FIRMWARE, MAKER, NOW, PCRS, Authority, Tpm
from tests.vocabulary import changed

MAKER_CA: Final = Authority("a maker's root")
MANIFEST: Final = canonical.encode(
    collect_software(job="job-1", executable=Path("/nowhere"), environ={}, root=Path("/nowhere"))
)
FILES: Final = {"/usr/bin/python3.11": b"the interpreter", "/opt/train.py": b"the script"}

Forger = Callable[[NodeEvidence], NodeEvidence]


class Machine:
    """A node: its identity key, its TPM, what it booted and what it has run."""

    def __init__(
        self,
        name: str = "node-0",
        maker: Authority = MAKER_CA,
        attributes: Mapping[str, str] = MAKER,
        tpm: Tpm | None = None,
    ) -> None:
        self.name = name
        self.key = PrivateKey.generate(KeyKind.P256)
        self.tpm = tpm or Tpm()
        self.certificate = maker.endorse(self.tpm.ek.public, attributes=attributes)
        self.clock, self.resets, self.firmware = 1_000_000, 5, FIRMWARE
        self.what = Boot()
        self.measured: list[Measurement] = []
        self.boot()

    def boot(self, what: Boot | None = None, files: Mapping[str, bytes] = FILES) -> None:
        """Off and on again: measure what it boots and runs."""
        self.what = what or self.what
        self.resets += 1
        registers = self.what.registers()
        self.tpm.pcrs = {**dict.fromkeys(range(24), bytes(32)), **registers}
        self.measured = []
        for entry in measure_files(files, registers):
            self._measure(entry)

    def execute(self, path: str, content: bytes) -> None:
        """Run one more file."""
        self._measure(measured_file(path, content, "ima-ng"))

    def extend(self, pcr: int, digest: bytes) -> None:
        """TPM2_PCR_Extend."""
        self.tpm.pcrs[pcr] = Hash.SHA256.digest(self.tpm.pcrs[pcr] + digest)

    def _measure(self, entry: Measurement) -> None:
        self.measured.append(entry)
        self.extend(10, entry.extends)

    @property
    def ek_name(self) -> str:
        """As inventories name its TPM."""
        return self.tpm.ek.public.name.hex()

    def keys(self, **changes: Any) -> AttestationKeys:
        """What it says in Hello."""
        keys = AttestationKeys(
            ek_public=self.tpm.ek.public.tpm2b,
            ek_certificate=self.certificate,
            ak_public=self.tpm.ak.public.tpm2b,
        )
        return msgspec.structs.replace(keys, **changes)

    def open(self, ask: Ask, value: bytes) -> bytes:
        """The proof that its TPM opened the challenge's credential."""
        if ask.credential is None:
            return b""
        secret = self.tpm.activate(Credential(*ask.credential))
        return hmac.new(secret, value, "sha256").digest()

    def quote(self, value: bytes, **changes: Any) -> tuple[bytes, bytes]:
        """A quote for a binding; `changes` as in `Tpm.attest`."""
        self.clock += 1000
        fields = {"clock": self.clock, "reset": self.resets, "firmware": self.firmware}
        return self.tpm.quote(**{"extra": value, **fields, **changes})

    def evidence(self, value: bytes, ask: Ask, **changes: Any) -> TpmEvidence:
        """Its TPM's part; `changes` as in `Tpm.attest`."""
        quote, signature = self.quote(value, **changes)
        return TpmEvidence(
            activation=self.open(ask, value),
            quote=quote,
            signature=signature,
            pcrs=dict(self.tpm.values(PCRS)),
            event_log=self.what.log() if ask.full else b"",
            ima=ima_list(self.measured[ask.ima_first :], first=ask.ima_first),
        )

    def collect(self, binding: Binding, ask: Ask, **changes: Any) -> NodeEvidence:
        """Everything that it says."""
        value = binding.value(MANIFEST)
        return NodeEvidence(manifest=MANIFEST, tpm=self.evidence(value, ask, **changes))

    def sign(
        self, said: NodeEvidence, binding: Binding, media_type: str = NODE_TYPE, body: bytes = b""
    ) -> Evidence:
        """Bind and sign as the node itself."""
        value = binding.value(said.manifest)
        return sign_evidence(media_type, body or said.encode(), value, self.key)


def reference_values(*machines: Machine, **changes: Any) -> ReferenceValues:
    """Machines that are on, enrolled with their boots as the good ones."""
    first = machines[0]
    boot = learn_boot(first.what.log(), {n: first.tpm.pcrs[n] for n in BOOT_PCRS})
    values = ReferenceValues(
        version=1,
        issued=NOW - timedelta(seconds=1),
        expires=NOW + timedelta(days=1),
        nodes={m.name: EnrolledNode(ek_names=(m.ek_name,)) for m in machines},
        tpm=TpmReference(roots=(MAKER_CA.pem,)),
        boot=boot,
    )
    return msgspec.structs.replace(values, **changes)


def node_policy(base: str = "hardened", **changes: Any) -> Any:
    """A policy; `changes` are of its node section, or of `tpm`, `tee` and `gpu` below it."""
    policy = load_policy(base).policy
    node = policy.node
    for name, value in changes.items():
        new = value
        if isinstance(value, dict):
            new = msgspec.structs.replace(getattr(node, name), **value)
        node = msgspec.structs.replace(node, **{name: new})
    return msgspec.structs.replace(policy, node=node)


class World:
    """A verifier with clocks that a test moves, and the nodes that ask it."""

    def __init__(
        self,
        *machines: Machine,
        values: ReferenceValues | None = None,
        policy: Any = None,
        state: StateStore | None = None,
        job: str = "job-1",
    ) -> None:
        self.now: datetime = NOW
        self.seconds = 0.0
        self.boot = ""  # of the verifier's machine; with one, its uptime is `seconds`
        self.job = job
        self.machines = machines or (Machine(),)
        self.values = values or reference_values(*self.machines)
        self.policy = policy or node_policy()
        self.state = state or MemoryState()
        self.appraiser = self.make_appraiser()
        self.verifier = self.make_verifier()

    def make_appraiser(
        self, cache: CollateralCache | None = None, values: ReferenceValues | None = None
    ) -> NodeAppraiser:
        signed = SignedReferenceValues(
            values=values or self.values, digest="ab" * 32, where="values", signed_by={}
        )
        return NodeAppraiser(self.policy.node, signed, CachedCollateral(cache), self.now)

    def make_verifier(self) -> Verifier:
        return Verifier(
            policy=self.policy,
            policy_digest="cd" * 32,
            clock=lambda: self.now,
            monotonic=lambda: self.seconds,
            uptime=lambda: (self.boot, round(self.seconds * 1000)),
            appraisers={**APPRAISERS, NODE_TYPE: self.appraiser},
            state=self.state,
        )

    def restart(self) -> None:
        """Another process with the same state."""
        self.verifier = self.make_verifier()

    @property
    def machine(self) -> Machine:
        """The first."""
        return self.machines[0]

    def ask(
        self,
        machine: Machine | None = None,
        *,
        node: str = "",
        keys: AttestationKeys | None = None,
        **binding: Any,
    ) -> tuple[Ask, Binding]:
        """A challenge, as the machine's connection sees it."""
        machine = machine or self.machine
        challenge = self.verifier.challenge(node or machine.name, keys or machine.keys())
        fields = {
            "nonce": challenge.nonce,
            "session": bytes(16),
            "job": self.job,
            "client_spki": machine.key.public.spki,
            "server_spki": b"coordinator",
            "exporter": bytes(32),
            "ak_name": challenge.ak_name,
        }
        return challenge.ask, Binding(**{**fields, **binding})

    def answer(
        self,
        evidence: Evidence,
        binding: Binding,
        machine: Machine | None = None,
        *,
        node: str = "",
    ) -> AttestationResult:
        """What the verifier says to evidence."""
        machine = machine or self.machine
        return self.verifier.appraise(
            evidence, binding, node=node or machine.name, key=machine.key.public
        )

    def join(
        self,
        machine: Machine | None = None,
        *,
        node: str = "",
        forge: Forger = lambda said: said,
        **changes: Any,
    ) -> AttestationResult:
        """One exchange; `forge` changes what is signed, `changes` what is quoted."""
        machine = machine or self.machine
        ask, binding = self.ask(machine, node=node)
        said = forge(machine.collect(binding, ask, **changes))
        return self.answer(machine.sign(said, binding), binding, machine, node=node)

    def refused(self, code: str, *args: Any, **how: Any) -> AttestationError:
        """One exchange that ends with `code`."""
        return vocabulary.refused(AttestationError, code, self.join, *args, **how)


def tpm(**changes: Any) -> Forger:
    """A forger of the TPM's part."""

    def forge(said: NodeEvidence) -> NodeEvidence:
        assert said.tpm is not None
        return changed(said, tpm=changes)

    return forge


def ima(**changes: Any) -> Forger:
    """A forger of the measurement list."""

    def forge(said: NodeEvidence) -> NodeEvidence:
        assert said.tpm is not None
        assert said.tpm.ima is not None
        return tpm(ima=msgspec.structs.replace(said.tpm.ima, **changes))(said)

    return forge


def refused(code: str, what: Callable[..., object], *args: Any, **how: Any) -> AttestationError:
    """What `what` ends with, which must be `code`."""
    return vocabulary.refused(AttestationError, code, what, *args, **how)


def own_binding(world: World, machine: Machine | None = None) -> Binding:
    """A question to a node that has announced no TPM."""
    machine = machine or world.machine
    asked, binding = world.verifier.challenge(machine.name), world.ask(machine)[1]
    return dataclasses.replace(binding, nonce=asked.nonce, ak_name=b"")


# Bundles: honest ones, and such as lie in any part.

BundleForger = Callable[[NodeEvidence, bytes], NodeEvidence]
"""Changes what is said, given the binding that it is said for."""


def honest(said: NodeEvidence, value: bytes) -> NodeEvidence:
    return said


class Collector:
    """An attester of one machine."""

    def __init__(self, machine: Machine, forge: BundleForger = honest, *, tpm: bool = True) -> None:
        self.machine = machine
        self.forge = forge
        self.tpm = tpm

    def keys(self) -> AttestationKeys | None:
        return self.machine.keys() if self.tpm else None

    def collect(self, binding: Binding, ask: Ask) -> Evidence:
        value = binding.value(MANIFEST)
        said = NodeEvidence(manifest=MANIFEST)
        if self.tpm:
            said = self.machine.collect(binding, ask)
        body = self.forge(said, value).encode()
        return sign_evidence(NODE_TYPE, body, value, self.machine.key)


def bundle_of(
    machine: Machine,
    forge: BundleForger = honest,
    *,
    answer_to: Secret | None = None,
    tpm: bool = True,
    now: datetime = NOW,
) -> Bundle:
    """What a machine says, to itself or to a verifier."""
    question = answer_to.question if answer_to else own_question(machine.name)
    collector = Collector(machine, forge, tpm=tpm)
    return collect_bundle(
        collector, machine.key.public, now, question, asked_itself=answer_to is None
    )


def self_report(machine: Machine, tmp_path, question: Question | None = None) -> Bundle:
    """The node's own word."""
    collector = SoftwareAttester(key=machine.key, executable=tmp_path / "python", root=tmp_path)
    return collect_bundle(
        collector,
        machine.key.public,
        NOW,
        question or own_question(machine.name),
        asked_itself=question is None,
    )


def replaced(bundle: Bundle, **changes: object) -> Bundle:
    """The bundle as a file could hold it."""
    return msgspec.structs.replace(bundle, **changes)


def with_keys(bundle: Bundle, **changes: object) -> Bundle:
    """The bundle with other keys of a TPM; each may be changed."""
    assert bundle.keys is not None
    return replaced(bundle, keys=msgspec.structs.replace(bundle.keys, **changes))


def resigned(bundle: Bundle, machine: Machine, body: bytes) -> Bundle:
    """Another body under the same binding, signed by the node's own key."""
    evidence = sign_evidence(bundle.media_type, body, bundle.binding, machine.key)
    return replaced(bundle, body=body, signature=evidence.signature)


def document(bundle: object) -> bytes:
    """The file."""
    return canonical.encode(bundle)


# Parts that speak beside the TPM.

AMD = AmdWorld()


def with_snp(world: AmdWorld = AMD, *, certificates: bool = True, **guest: object) -> BundleForger:
    def add(said: NodeEvidence, value: bytes) -> NodeEvidence:
        report = world.report(**{"report_data": report_data(value), **guest})
        chain = (good_leaf(world), *good_chain(world)) if certificates else ()
        tee = TeeEvidence(kind=TeeKind.SEV_SNP, report=report, certificates=chain)
        return msgspec.structs.replace(said, tee=tee)

    return add


def with_tdx(log: bytes = b"", **td: object) -> BundleForger:
    def add(said: NodeEvidence, value: bytes) -> NodeEvidence:
        quote = intel.quote(td={"report_data": report_data(value), **td})
        tee = TeeEvidence(kind=TeeKind.TDX, report=quote, event_log=log)
        return msgspec.structs.replace(said, tee=tee)

    return add


def with_devices(*devices: gpu.Device, nonce: bytes = b"") -> BundleForger:
    def add(said: NodeEvidence, value: bytes) -> NodeEvidence:
        asked = nonce or device_nonce(value)
        found = tuple(device.evidence(nonce=asked) for device in devices)
        return msgspec.structs.replace(said, devices=found)

    return add


def with_tokens(*tokens: str) -> BundleForger:
    def add(said: NodeEvidence, value: bytes) -> NodeEvidence:
        return msgspec.structs.replace(said, tokens=tokens)

    return add


def together(*forgers: BundleForger) -> BundleForger:
    def add(said: NodeEvidence, value: bytes) -> NodeEvidence:
        for forge in forgers:
            said = forge(said, value)
        return said

    return add
