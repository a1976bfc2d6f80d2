# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Node evidence as a whole: which environments speak for a node, and what tier that makes.

Rules:

1. whatever a node sends must hold: evidence that does not verify is a refusal, also where the
   policy would have been content with less;
2. what the policy asks for must be there (ST-ATTS-013);
3. the tier is computed from what verified: a TPM's from the root that certifies it, `tee` from a
   CPU's report, `tee+gpu` when all GPUs of such a node have proven themselves too, `cloud-token`
   from the word of a pinned issuer. The best of them counts. A software TPM that stands for nothing
   makes a node `test-only` unless hardware speaks for it as well;
4. everything that a node presents - TPM, chip, devices - is its own for the time of the lease.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.appraiser import Appraisal
from securetrain.evidence.case import Case, Claims, Lease, Opening, Part
from securetrain.evidence.collateral import Collateral, CollateralKind
from securetrain.evidence.gpu_appraiser import GpuAppraiser
from securetrain.evidence.node_evidence import (
    AttestationKeys,
    NodeEvidence,
    TeeEvidence,
    parse_node,
)
from securetrain.evidence.recent import Recent
from securetrain.evidence.reference import SignedReferenceValues
from securetrain.evidence.result import Submodule, trust_vector
from securetrain.evidence.selfreport import parse_software
from securetrain.evidence.staged import in_force, next_end
from securetrain.evidence.tee.google import GoogleAppraiser
from securetrain.evidence.tee_appraiser import TeeAppraiser, check_google_vtpm
from securetrain.evidence.tokens import TokenAppraiser
from securetrain.evidence.tpm_appraiser import TpmAppraiser, TpmState
from securetrain.policy.schema import Node

SHORT_MANIFEST: Final = 8 << 10
"""Bytes of a self-report that is remembered."""
MAX_MANIFESTS: Final = 1 << 10


class NodeAppraiser:
    """Judges node evidence for as long as one edition of the reference values stands."""

    def __init__(
        self,
        policy: Node,
        reference: SignedReferenceValues,
        collateral: Collateral,
        now: datetime,
    ) -> None:
        """Read what is pinned.

        Args:
            policy: what is asked of a node.
            reference: what nodes are compared with.
            collateral: what makers publish.
            now: the time, timezone-aware.

        Raises:
            AttestationError: ST-ATTS-009, 3xx and 7xx for bad reference values.
        """
        self._values = values = in_force(reference.values, now)
        self._policy = policy
        self._reference = reference
        self._collateral = collateral
        self._changes = next_end(reference.values, now)
        self._manifests: Recent[bytes, bool] = Recent(MAX_MANIFESTS)
        documents = {
            named: collateral.get(CollateralKind.RUNTIME_POLICY, named, now)
            for named in values.ima.named
        }
        self.documents: tuple[bytes, ...] = (reference.envelope, *documents.values())
        self._tpm = TpmAppraiser(
            policy.tpm,
            tpm=values.tpm,
            boots={name: values.group(name).boot for name in ("", *values.groups)},
            late={name: values.group(name).late for name in ("", *values.groups)},
            ima=values.ima,
            documents=documents,
            inventory=self._ek_names,
            group=self._group_of,
            own=self._own_of,
            unproven=frozenset(values.unproven),
        )
        self._tee = TeeAppraiser(
            snp=values.snp,
            tdx=values.tdx,
            tcb_statuses=policy.tee.tcb_statuses,
            secure_boot=policy.tpm.secure_boot,
            collateral=collateral,
            paravisor=values.paravisor,
            google=GoogleAppraiser(values.google),
        )
        self._gpu = GpuAppraiser(policy=policy.gpu, reference=values.gpu, collateral=collateral)
        self._tokens = TokenAppraiser(values.tokens)

    @property
    def reference_values(self) -> str:
        """SHA-256 (hex) of the reference values."""
        return self._reference.digest

    @property
    def ends(self) -> datetime:
        """The end of the reference values."""
        return self._reference.values.expires

    @property
    def collateral(self) -> Collateral:
        """The collateral that makers publish, as it was given."""
        return self._collateral

    @property
    def changes(self) -> datetime | None:
        """The next instant at which something is accepted no longer."""
        return self._changes

    def at(self, now: datetime) -> "NodeAppraiser":
        """An appraiser by the same edition, without what has ended by `now`.

        Raises:
            AttestationError: as the constructor.
        """
        return NodeAppraiser(self._policy, self._reference, self._collateral, now)

    def open(self, keys: AttestationKeys, node: str, now: datetime) -> Opening:
        """Look at a TPM's keys; see `TpmAppraiser.open`."""
        self._reference.check_time(now)
        return self._tpm.open(keys, node, now)

    def credential(
        self, opening: Opening, secret: bytes, random: Callable[[int], bytes]
    ) -> tuple[bytes, bytes]:
        """The secret, for that TPM alone."""
        return self._tpm.credential(opening, secret, random)

    def read(self, body: bytes) -> Claims:
        """Parse node evidence and its self-report.

        Raises:
            AttestationError: ST-ATTS-001.
        """
        node = parse_node(body)
        manifest = node.manifest
        # A node says the same at every renewal; what was well-formed once still is.
        if len(manifest) > SHORT_MANIFEST:
            parse_software(manifest)
        elif self._manifests.get(manifest) is None:
            parse_software(manifest)
            self._manifests.put(manifest, True)
        return Claims(manifest=node.manifest, node=node)

    def appraise(self, claims: Claims, case: Case) -> Appraisal:
        """Judge everything that a node sent.

        Raises:
            AttestationError: the first rule that was broken, and where.
        """
        assert claims.node is not None, "read() made them"
        self._reference.check_time(case.now)
        if self._changes is not None and case.now >= self._changes:
            return self.at(case.now).appraise(claims, case)
        evidence = claims.node
        self._check_complete(evidence, case)
        tpm = self._judge_tpm(evidence, case)
        parts = [tpm.part] if tpm is not None else []
        enrolled = self._values.nodes.get(case.node)
        if evidence.tee is not None and evidence.tee.paravisor is not None:
            vms = enrolled.vms if enrolled is not None else ()
            part, runtime = self._tee.appraise_vm(evidence.tee, case, vms)
            vtpm = self._tpm.appraise_vouched(evidence.tee.paravisor.vtpm, case, runtime.ak)
            parts += [part, vtpm]
        elif evidence.tee is not None and evidence.tee.google is not None:
            parts += self._google_parts(evidence.tee, case)
        elif evidence.tee is not None:
            chips = enrolled.chips if enrolled is not None else ()
            group = self._values.group(self._group_of(case.node))
            parts.append(self._tee.appraise(evidence.tee, case, chips, group.tdx_boot))
        if evidence.devices:
            devices = enrolled.devices if enrolled is not None else ()
            parts += self._gpu.appraise(evidence.devices, case, devices)
        if evidence.tokens:
            parts += self._tokens.appraise(evidence.tokens, case)
        identities = tuple(identity for part in parts for identity in part.identities)
        return Appraisal(
            tier=tier_of(parts, devices=bool(evidence.devices)),
            submods={
                "self-report": Submodule(trust_vector=trust_vector()),
                **{part.name: part.submodule for part in parts},
            },
            lease=Lease(
                identities=identities,
                expires=case.expires,
                ak_name=case.opening.ak_name if case.opening is not None else b"",
                clock=tpm.clock if tpm is not None else None,
                registers=tpm.registers if tpm is not None else b"",
                secure_boot=tpm.secure_boot if tpm is not None else None,
                ima=tpm.ima if tpm is not None else None,
                late=tpm.late if tpm is not None else None,
            ),
        )

    def _google_parts(self, tee: TeeEvidence, case: Case) -> list[Part]:
        """The parts of a VM of Google's: the CPU's, and the virtual TPM's that its report names."""
        assert tee.google is not None, "the caller has seen it"
        enrolled = self._values.nodes.get(case.node)
        vms = enrolled.vms if enrolled is not None else ()
        group = self._values.group(self._group_of(case.node))
        part, certified = self._tee.appraise_google(tee, case, vms, group.tdx_boot)
        vtpm = self._tpm.appraise_vouched(tee.google.vtpm, case, certified.ak)
        check_google_vtpm(tee)
        return [part, vtpm]

    def _judge_tpm(self, evidence: NodeEvidence, case: Case) -> TpmState | None:
        if evidence.tpm is None:
            return None
        assert case.opening is not None, "_check_complete() has seen both"
        return self._tpm.appraise(evidence.tpm, case, case.opening)

    def _check_complete(self, evidence: NodeEvidence, case: Case) -> None:
        """Rule 2, and that a TPM that was announced has spoken."""
        if (evidence.tpm is None) != (case.opening is None):
            raise AttestationError(
                "ST-ATTS-013",
                "a TPM's keys without its evidence, or evidence without the keys",
                f"node {case.node}: tpm",
                "join again from the node itself",
            )
        if self._policy.gpu.confidential and not evidence.devices:
            raise AttestationError(
                "ST-ATTS-013",
                "the policy asks for GPUs in confidential mode, and none has spoken",
                f"node {case.node}: node.gpu.confidential",
                "switch confidential computing on, and let the node send its GPUs' reports",
            )

    def _group_of(self, node: str) -> str:
        entry = self._values.nodes.get(node)
        return "" if entry is None else entry.group

    def _own_of(self, node: str) -> Mapping[str, tuple[str, ...]]:
        entry = self._values.nodes.get(node)
        return {} if entry is None else entry.own

    def _ek_names(self, node: str) -> tuple[str, ...] | None:
        entry = self._values.nodes.get(node)
        return None if entry is None else entry.ek_names


def tier_of(parts: Sequence[Part], *, devices: bool) -> NodeTier:
    """Compute the tier that the environments which have proven themselves make together.

    Args:
        parts: all of them.
        devices: whether the node's GPUs have proven themselves.
    """
    tiers = {part.tier for part in parts}
    if NodeTier.TEE in tiers and devices:
        return NodeTier.TEE_GPU
    best = max(tiers, default=NodeTier.SELF_ASSERTED)
    if NodeTier.TEST_ONLY in tiers and best <= NodeTier.SELF_ASSERTED:
        return NodeTier.TEST_ONLY
    return best
