# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Enrolling nodes: from a node's own evidence to signed reference values.

Rules:

1. a person vouches for what is enrolled: that this machine is ours, and that it booted well. The
   tool checks what can be checked - that the quote is of this TPM and that the log explains it -
   and leaves the rest to that person;
2. a node is enrolled once; another TPM under the same name must be asked for (`replace`);
3. a TPM belongs to one node;
4. the new edition has the next version, and keeps everything that the last one said.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from securetrain.attest.bundle import Bundle
from securetrain.attest.evidence import NODE_TYPE, NodeEvidence, parse_node
from securetrain.attest.reference import EnrolledNode, ReferenceValues
from securetrain.attest.tpm.appraisal import BOOT_PCRS, QUOTED
from securetrain.attest.tpm.boot import learn_boot
from securetrain.attest.tpm.bootrules import BootReference, merge
from securetrain.attest.tpm.keys import check_attestation_key, check_endorsement_key
from securetrain.attest.tpm.quote import Quote, verify_quote
from securetrain.attest.tpm.structures import parse_public
from securetrain.attest.verifier import check_signature
from securetrain.core.errors import AttestationError, UsageError
from securetrain.identity.keys import PublicKey

LIFETIME: Final = timedelta(days=90)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """PEM of certificates to pin, by what they are worth."""

    hardware: tuple[str, ...] = ()
    virtual: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    intermediates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """One node to be enrolled."""

    bundle: Bundle
    learn_boot: bool = False
    """Whether this boot is a good one, to compare others with."""
    uncertified: bool = False
    """Accept an endorsement key that no maker has certified."""
    replace: bool = False


def enroll(
    values: ReferenceValues | None,
    enrolments: Sequence[Enrolment],
    *,
    roots: Roots,
    now: datetime,
    lifetime: timedelta = LIFETIME,
) -> ReferenceValues:
    """The next edition of the reference values.

    Args:
        values: the last edition; None for a first one.
        enrolments: nodes to add.
        roots: certificates to pin beside those that are.
        now: the time, timezone-aware.
        lifetime: how long the edition is good.

    Raises:
        AttestationError: a bundle that does not hold together.
        UsageError: ST-USAG-005 for a node or TPM that is enrolled already.
    """
    old = values or ReferenceValues(version=1, issued=now, expires=now + lifetime)
    tpm = msgspec.structs.replace(
        old.tpm,
        roots=_joined(old.tpm.roots, roots.hardware),
        virtual_roots=_joined(old.tpm.virtual_roots, roots.virtual),
        test_roots=_joined(old.tpm.test_roots, roots.test),
        intermediates=_joined(old.tpm.intermediates, roots.intermediates),
    )
    boot, nodes = old.boot, dict(old.nodes)
    for one in enrolments:
        evidence, name = _read(one.bundle), one.bundle.node
        node, quote = _node(one.bundle, evidence)
        _check_new(nodes, name, node, replace=one.replace)
        nodes[name] = node
        if one.uncertified:
            tpm = msgspec.structs.replace(
                tpm, allow_uncertified=_joined(tpm.allow_uncertified, node.ek_names)
            )
        if one.learn_boot:
            boot = merge([boot, _learn(one.bundle, evidence, quote)])
    return msgspec.structs.replace(
        old,
        version=old.version + 1 if values is not None else 1,
        issued=now,
        expires=now + lifetime,
        nodes=nodes,
        tpm=tpm,
        boot=boot,
    )


def _read(bundle: Bundle) -> NodeEvidence:
    if bundle.media_type != NODE_TYPE:
        raise AttestationError(
            "ST-ATTS-013",
            "it is only a self-report: there is nothing to enrol",
            f"node {bundle.node}",
            "collect the evidence as root on a machine with a TPM",
        )
    check_signature(bundle.evidence, bundle.node, PublicKey.from_spki(bundle.key))
    return parse_node(bundle.body)


def _node(bundle: Bundle, evidence: NodeEvidence) -> tuple[EnrolledNode, Quote | None]:
    """The TPM behind a bundle, if its quote holds."""
    if bundle.keys is None or evidence.tpm is None:
        return EnrolledNode(), None
    ek = parse_public(bundle.keys.ek_public, "endorsement key")
    ak = parse_public(bundle.keys.ak_public, "attestation key")
    check_endorsement_key(ek)
    check_attestation_key(ak)
    quote = verify_quote(
        evidence.tpm.quote,
        evidence.tpm.signature,
        ak=ak,
        ek=ek,
        extra_data=bundle.binding,
        pcrs=evidence.tpm.pcrs,
        required=QUOTED,
    )
    return EnrolledNode(ek_names=(ek.name.hex(),)), quote


def _learn(bundle: Bundle, evidence: NodeEvidence, quote: Quote | None) -> BootReference:
    if quote is None or evidence.tpm is None or not evidence.tpm.event_log:
        raise AttestationError(
            "ST-ATTS-013",
            "there is no firmware log to learn from",
            f"node {bundle.node}",
            "collect the evidence as root, or enrol without --learn-boot",
        )
    return learn_boot(evidence.tpm.event_log, {n: quote.pcrs[n] for n in BOOT_PCRS})


def _check_new(
    nodes: dict[str, EnrolledNode], name: str, node: EnrolledNode, *, replace: bool
) -> None:
    known = nodes.get(name)
    if known is not None and known.ek_names != node.ek_names and not replace:
        raise UsageError(
            "ST-USAG-005",
            "the node is enrolled with another TPM",
            f"node {name}",
            "use --replace when its board was really changed",
        )
    for other, entry in nodes.items():
        shared = set(entry.ek_names) & set(node.ek_names)
        if other != name and shared:
            raise UsageError(
                "ST-USAG-005",
                f"the TPM {min(shared)[:20]}... is enrolled as {other}",
                f"node {name}",
                "one machine is one node: enrol it under one name",
            )


def _joined(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
