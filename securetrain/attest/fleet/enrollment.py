# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Enrolling nodes: from a node's own evidence to signed reference values.

Rules:

1. a person vouches for what is enrolled: that this machine is ours, and (`learn_boot`) that it is
   in a good state. The tool checks what can be checked - that the bundle is what the node signed,
   that the quote is of this TPM, that the log explains it, that reports lead to their makers - and
   leaves the rest to that person;
2. nothing is learned as good from a node's own word: its TPM is certified (or listed) and has
   opened the credential of a question that a person asked (ST-ATTS-019), or `unproven` is asked
   for, which the edition names for as long as it lasts;
3. which TPM, chip and devices a node has is always taken over; its boot, its guest's measurements
   and the CPU's firmware only with `learn_boot` (`learn`);
4. a node is enrolled once, in one image group; other hardware or another group under the same name
   must be asked for (`replace`). What is learned is learned for that group alone;
5. a TPM, chip or device belongs to one node;
6. the new edition has the next version, and keeps everything that the last one said.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from securetrain.attest.fleet.bundle import (
    Bundle,
    Secret,
    check_asked_keys,
    check_made_for,
    check_question,
    key_text,
    node_key,
)
from securetrain.attest.fleet.learn import MAKERS, CpuRoots, Teacher, learn
from securetrain.attest.session.cache import CachedCollateral, CollateralCache
from securetrain.attest.session.floors import require_newest_cache
from securetrain.attest.session.reference_file import (
    editing,
    read_reference_values,
    write_reference_values,
)
from securetrain.attest.session.state import StateStore
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.vocabulary import tier_label
from securetrain.evidence import (
    GROUP_PATTERN,
    NODE_TYPE,
    Ask,
    AttestationKeys,
    Collateral,
    EditedNodes,
    EnrolledNode,
    NodeEvidence,
    ReferenceValues,
    check_activation,
    check_signature,
    hardware_of,
    parse_node,
    trusted_keys,
)
from securetrain.evidence.tpm import (
    ImaReference,
    TpmReference,
    check_endorsement,
)
from securetrain.identity.keys import Signer

LIFETIME: Final = timedelta(days=90)
_KINDS: Final[Mapping[str, str]] = {
    "ek_names": "TPM",
    "chips": "chip",
    "devices": "device",
    "vms": "VM",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """PEM of certificates to pin, by what they are worth."""

    hardware: tuple[str, ...] = ()
    virtual: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    intermediates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrollment:
    """One node to be enrolled."""

    bundle: Bundle
    learn_boot: bool = False
    """Whether this boot is a good one, to compare others with."""
    uncertified: bool = False
    """Accept an endorsement key that no maker has certified."""
    replace: bool = False
    secret: Secret | None = None
    """Of the question that the bundle answers."""
    unproven: bool = False
    """Learn its boot although nobody asked it a question."""
    group: str | None = None
    """Its image group; None for the one that it has, or the one without a name."""
    answered: datetime | None = None
    """When the answer came, where whoever asked has waited since; None for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolled:
    """The outcome for one node."""

    name: str
    entry: EnrolledNode
    endorsement: str
    """What its TPM's certificate is worth; empty without a TPM, or where it is refused."""
    learned: tuple[str, ...]
    """What was taken as good, for people."""
    notes: tuple[str, ...]
    """What was left out or became weaker, and what a verifier will refuse as things are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition:
    """An edition of the reference values, and how it came about."""

    values: ReferenceValues
    nodes: tuple[Enrolled, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Of all nodes."""
        return tuple(note for one in self.nodes for note in one.notes)


@dataclass(slots=True, kw_only=True)
class _Draft:
    """An edition while it is being made."""

    values: ReferenceValues
    nodes: EditedNodes
    """The inventory of `values`."""
    owners: dict[tuple[str, str], str]
    """The node that each piece of hardware is."""
    done: list[Enrolled] = field(default_factory=list)


def enroll(
    values: ReferenceValues | None,
    enrollments: Sequence[Enrollment],
    *,
    roots: Roots,
    now: datetime,
    lifetime: timedelta = LIFETIME,
    ima: ImaReference | None = None,
    collateral: Collateral | None = None,
    makers: CpuRoots = MAKERS,
) -> Edition:
    """The next edition of the reference values.

    Args:
        values: the last edition; None for a first one.
        enrollments: nodes to add.
        roots: certificates to pin beside those that are.
        now: the time, timezone-aware.
        lifetime: how long the edition is good.
        ima: the runtime policy; None keeps the last edition's.
        collateral: where AMD's certificates are looked up that a node does not send.
        makers: roots of the CPUs.

    Raises:
        AttestationError: a bundle that does not hold together.
        UsageError: ST-USAG-005 for a node that is enrolled with other hardware, or hardware that is
            enrolled as another node.
    """
    old = values or ReferenceValues(version=1, issued=now, expires=now + lifetime)
    nodes = EditedNodes(old.nodes)
    draft = _Draft(
        nodes=nodes,
        owners={hard: name for name, node in old.nodes.items() for hard in hardware_of(node)}
        if enrollments
        else {},
        values=msgspec.structs.replace(
            old,
            nodes=nodes,
            version=old.version + 1 if values is not None else 1,
            issued=now,
            expires=now + lifetime,
            tpm=pinned(old.tpm, roots),
            ima=_with_policy(old.ima, ima),
        ),
    )
    for one in enrollments:
        teacher = Teacher(
            now=now,
            good=one.learn_boot,
            proven=_is_proven(draft.values.tpm, one, now),
            collateral=collateral,
            roots=makers,
            group=_group_of(draft.values, one),
        )
        _add(draft, one, teacher)
    values = msgspec.structs.replace(draft.values, nodes=nodes.settled())
    return Edition(values=values, nodes=tuple(draft.done))


def enroll_into(
    path: Path,
    enrollments: Sequence[Enrollment],
    *,
    key: Signer,
    signed_by: Sequence[str],
    roots: Roots,
    now: datetime,
    lifetime: timedelta = LIFETIME,
    ima: ImaReference | None = None,
    cache: Path | None = None,
    state: StateStore,
) -> Edition:
    """Write the next edition of a file, or its first.

    Args:
        path: the file.
        enrollments: nodes to add; none renews the file.
        key: signs the new edition.
        signed_by: keys (SPKI, base64) of which one must have signed what is there: file and cache.
        roots: certificates to pin beside those that are.
        now: the time, timezone-aware.
        lifetime: how long the edition is good.
        ima: the runtime policy; None keeps the last edition's.
        cache: folder with AMD's certificates, for nodes that do not send them.
        state: knows the editions that were accepted before; remembers this one.

    Raises:
        AttestationError: ST-ATTS-009 when the file is not signed by one of these keys, ST-ATTS-731
            to 733 about the cache; and as `enroll`.
        UsageError: as `enroll`, and ST-USAG-002 when the file cannot be written.
    """
    with editing(path):
        old = read_reference_values(path, signed_by, state).values if path.exists() else None
        if old is None and not enrollments:
            raise UsageError(
                "ST-USAG-002",
                "there is no such file to make a new edition of",
                str(path),
                "name at least one bundle: securetrain attest collect makes them",
            )
        collateral = None
        if cache is not None:
            keys = trusted_keys(signed_by, str(path))
            opened = CollateralCache.open(cache, keys, now)
            require_newest_cache(state, opened.index, keys, str(cache))
            collateral = CachedCollateral(opened)
        edition = enroll(
            old,
            enrollments,
            roots=roots,
            now=now,
            lifetime=lifetime,
            ima=ima,
            collateral=collateral,
        )
        write_reference_values(path, edition.values, key)
        read_reference_values(path, (key_text(key.public),), state)
        return edition


def _with_policy(old: ImaReference, ima: ImaReference | None) -> ImaReference:
    """Another runtime policy; keys, rules and the policy before stay what they were."""
    if ima is None:
        return old
    return msgspec.structs.replace(
        old, policy=ima.policy, policy_sha256=ima.policy_sha256, signed_by=ima.signed_by
    )


def pinned(old: TpmReference, roots: Roots) -> TpmReference:
    """The certificates that are pinned, and these."""
    return msgspec.structs.replace(
        old,
        roots=_joined(old.roots, roots.hardware),
        virtual_roots=_joined(old.virtual_roots, roots.virtual),
        test_roots=_joined(old.test_roots, roots.test),
        intermediates=_joined(old.intermediates, roots.intermediates),
    )


def _add(draft: _Draft, one: Enrollment, teacher: Teacher) -> None:
    """Add one node to the draft."""
    name, evidence = one.bundle.node, _read(one.bundle)
    warnings = _check_proof(draft.values.tpm, one, evidence, teacher)
    learned = learn(one.bundle, evidence, draft.values, teacher)
    if learned.node == EnrolledNode():
        raise AttestationError(
            "ST-ATTS-013",
            "; ".join(learned.notes) or "no hardware that could be enrolled speaks for it",
            f"node {name}",
        )
    known = draft.nodes
    _check_own(draft.owners, name, learned.node)
    entry = learned.node
    if name in known and not one.replace:
        entry = _completed(name, known[name], learned.node)
    elif name in known and {*known[name].ek_names} & {*entry.ek_names}:
        entry = msgspec.structs.replace(entry, own=_own_of_both(known[name], entry))
    entry = msgspec.structs.replace(entry, group=teacher.group)
    tpm = learned.values.tpm
    if one.uncertified:
        listed = _joined(tpm.allow_uncertified, entry.ek_names)
        tpm = msgspec.structs.replace(tpm, allow_uncertified=listed)
    unproven = learned.values.unproven
    if warnings:
        listed = _joined(unproven.get(teacher.group, ()), (name,))
        unproven = {**unproven, teacher.group: listed}
    before = known.get(name, EnrolledNode())
    for hard in hardware_of(before):
        draft.owners.pop(hard, None)
    draft.owners.update((hard, name) for hard in hardware_of(entry))
    draft.nodes.put(name, entry)
    draft.values = msgspec.structs.replace(learned.values, tpm=tpm, unproven=unproven)
    endorsement, notes = _endorsed(tpm, one.bundle.keys, teacher.now)
    draft.done.append(
        Enrolled(
            name=name,
            entry=entry,
            endorsement=endorsement,
            learned=learned.good,
            notes=(*warnings, *learned.notes, *notes),
        )
    )


def _group_of(values: ReferenceValues, one: Enrollment) -> str:
    """The image group that a node is enrolled in (rule 4)."""
    known, where = values.nodes.get(one.bundle.node), f"node {one.bundle.node}: --group"
    group = one.group
    if group is None:
        group = known.group if known is not None else ""
    if not re.fullmatch(GROUP_PATTERN, group):
        raise UsageError(
            "ST-USAG-001",
            f"{group!r} is no name of an image group",
            where,
            "use lower-case letters, digits, '.', '_' and '-', as in gpu-h100-2026.11",
        )
    if known is not None and known.group != group and not one.replace:
        raise UsageError(
            "ST-USAG-005",
            f"the node is of the image group {known.group!r}",
            where,
            "use --replace to move it: a node has exactly one group",
        )
    if group and group not in values.groups and not one.learn_boot:
        raise UsageError(
            "ST-USAG-001",
            f"there is no image group {group!r}",
            where,
            "name one of 'securetrain attest values show', or learn its first boot: --learn-boot",
        )
    return group


def _check_proof(
    tpm: TpmReference, one: Enrollment, evidence: NodeEvidence, teacher: Teacher
) -> tuple[str, ...]:
    """Rule 2; gives what is to be said where the proof was waived."""
    bundle, where = one.bundle, f"node {one.bundle.node}"
    if one.secret is not None:
        question = check_question(bundle, one.secret, one.answered or teacher.now)
        check_asked_keys(bundle, one.secret)
        if evidence.tpm is not None:
            ask = Ask(credential=question.credential)
            check_activation(evidence.tpm, ask, one.secret.secret, bundle.binding)
    if not one.learn_boot:
        return ()
    if one.unproven:
        words = f"the boot of {bundle.node} is taken on its word alone"
        group = f"of the image group {teacher.group}" if teacher.group else "without an image group"
        return (f"UNPROVEN: {words}, for every node {group}",)
    if one.secret is None:
        raise AttestationError(
            "ST-ATTS-019", "nobody has asked this machine a question", f"{where}: --learn-boot"
        )
    if bundle.keys is None:
        return ()
    if one.secret.question.credential is None:
        raise AttestationError(
            "ST-ATTS-019", "the question had no credential for its TPM", f"{where}: --learn-boot"
        )
    if one.uncertified:
        listed = _joined(tpm.allow_uncertified, (bundle.ek_name.hex(),))
        tpm = msgspec.structs.replace(tpm, allow_uncertified=listed)
    keys = bundle.keys
    check_endorsement(keys.ek_public, keys.ek_certificate, keys.ek_chain, tpm, teacher.now)
    return ()


def _is_proven(tpm: TpmReference, one: Enrollment, now: datetime) -> bool:
    """Tell a certified TPM that was asked a question; `_check_proof` checks the answer."""
    keys, secret = one.bundle.keys, one.secret
    if secret is None or secret.question.credential is None or keys is None:
        return False
    try:
        check_endorsement(keys.ek_public, keys.ek_certificate, keys.ek_chain, tpm, now)
    except AttestationError:
        return False
    return True


def _read(bundle: Bundle) -> NodeEvidence:
    """Evidence that is what this node signed for this bundle's question."""
    if bundle.media_type != NODE_TYPE:
        raise AttestationError(
            "ST-ATTS-013",
            "it is only a self-report: there is nothing to enroll",
            f"node {bundle.node}",
        )
    check_signature(bundle.evidence, bundle.node, node_key(bundle))
    evidence = parse_node(bundle.body)
    check_made_for(bundle, bundle.question, evidence.manifest)
    return evidence


def _check_own(owners: Mapping[tuple[str, str], str], name: str, found: EnrolledNode) -> None:
    """Rule 5."""
    for kind, one in hardware_of(found):
        other = owners.get((kind, one), name)
        if other != name:
            raise UsageError(
                "ST-USAG-005",
                f"the {_KINDS[kind]} {one[:20]}... is enrolled as {other}",
                f"node {name}",
                "enroll the machine under one name: one machine is one node",
            )


def _completed(name: str, known: EnrolledNode, found: EnrolledNode) -> EnrolledNode:
    """Rule 4; what a bundle does not speak of stays as it was enrolled."""
    fields = {}
    for kind, words in _KINDS.items():
        before, after = getattr(known, kind), getattr(found, kind)
        if before and after and set(before) != set(after):
            raise UsageError(
                "ST-USAG-005",
                f"the node is enrolled with another {words}",
                f"node {name}",
                "use --replace when its hardware was really changed",
            )
        fields[kind] = after or before
    return msgspec.structs.replace(known, own=_own_of_both(known, found), **fields)


def _own_of_both(known: EnrolledNode, found: EnrolledNode) -> dict[str, tuple[str, ...]]:
    """Own measurements of one machine, of its boots before and this one."""
    return {
        register: _joined(known.own.get(register, ()), found.own.get(register, ()))
        for register in sorted({*known.own, *found.own})
    }


def _endorsed(
    tpm: TpmReference, keys: AttestationKeys | None, now: datetime
) -> tuple[str, tuple[str, ...]]:
    """Foretell a verifier's verdict on the TPM's certificate, with a note when it is a refusal."""
    if keys is None:
        return "", ()
    try:
        found = check_endorsement(keys.ek_public, keys.ek_certificate, keys.ek_chain, tpm, now)
    except AttestationError as error:
        return "", (f"a verifier will refuse its TPM: {error.code}: {error.what} ({error.where})",)
    return f"{tier_label(found.tier)}, {found.model or 'without a certificate'}", ()


def _joined(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
