# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The links ``membership`` and ``nodes``: who trained, by what coordinators signed, and only that.

Rules, in order. Membership:

1. the statement binds the document of its epoch, and that names a membership which an accepted
   coordinator signed (`coordinators`), at a time when its word counted;
2. it is of the epoch, policy and time that the statement says, and of the run's own job where the
   run itself vouches for the coordinator.

Nodes, for a membership that is verified:

3. the statement names exactly its members, each with the ranks, tier and result that stand in it,
   and with that tier's label, which people read;
4. a node's tier counts while results of the same coordinator, job, policy and key were valid
   without a gap, from when the steps were done (the later of the membership and the checkpoint
   before it) until the checkpoint was made. It is the lowest tier of those results. Gossip, ledger
   lines and the statement's own word add nothing;
5. a tier above self-asserted is shown by evidence that is judged again here (`reappraise`), or by
   a coordinator that the trust root places apart from the machines that train. Else it is the
   signer's word: keys of a run lie on the machine that launched it. Where appraisal is asked
   (`Given.appraises`), nobody's word counts, and evidence that is not there is missing;
6. `SLACK` is allowed at the end: the coordinator's clock and the launcher's are two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final

from securetrain.artifacts.statement.statements import NodeRef
from securetrain.chain import documents
from securetrain.chain.documents import Appraised, Credential
from securetrain.chain.links import (
    Appraisal,
    Given,
    LinkVerdict,
    Subject,
    broken,
    claimed,
    missing,
    verified,
)
from securetrain.chain.store import document, documents_at_hand
from securetrain.core.errors import AttestationError, SecureTrainError, reason
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier, tier_label
from securetrain.evidence import AttestationResult, read_named, verify_result
from securetrain.identity import Role, SpiffeId
from securetrain.rendezvous.wire import Membership, node_ranks, read_membership

if TYPE_CHECKING:
    from securetrain.chain.coordinators import Accepted

SLACK: Final = timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """A membership that is verified, and the coordinator behind it."""

    digest: str
    """Of the document."""
    document: documents.Membership
    membership: Membership
    coordinators: "Sequence[Accepted]"
    """With the key that signed it: one for each time that its certificate was renewed."""

    def speaks(self, at: datetime) -> bool:
        """Tell whether the coordinator's word counted at a time."""
        return any(one.counts(at) for one in self.coordinators)

    @property
    def apart(self) -> bool:
        """Tell whether the trust root places it apart from the machines that train."""
        return all(one.apart for one in self.coordinators)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The members' full names, as statements have them."""
        of = self.coordinators[0].spiffe
        return {
            member.node: str(SpiffeId(of.trust_domain, of.job, Role.NODE, member.node))
            for member in self.membership.members
        }

    @cached_property
    def joined(self) -> frozenset[str]:
        """The digests of results that the signed membership names."""
        return frozenset(member.result for member in self.membership.members)

    @cached_property
    def ranks(self) -> Mapping[str, Sequence[int]]:
        """The ranks of each member, by its full name."""
        return {self.names[one.node]: list(one.ranks) for one in node_ranks(self.membership)}


def judge_membership(subject: Subject, given: Given) -> LinkVerdict:
    """Judge the membership by rules 1 and 2."""
    found = epoch_of(subject, given)
    if isinstance(found, LinkVerdict):
        return found
    names = ", ".join(member.node for member in found.membership.members[:8])
    what = f"epoch {found.membership.epoch} of {found.coordinators[0].spiffe}: {names}"
    return verified(ChainLink.MEMBERSHIP, what)


def judge_nodes(subject: Subject, given: Given) -> LinkVerdict:
    """Judge the tiers by rules 3 to 6."""
    epoch = epoch_of(subject, given)
    if isinstance(epoch, LinkVerdict):
        say = missing if epoch.state == "missing" else broken
        return say(ChainLink.NODES, f"the membership: {epoch.what}", where=epoch.where)
    if (differs := _differs(subject.said.nodes, epoch)) is not None:
        return differs
    issued, ends = epoch.membership.issued, subject.said.created
    begins = max(issued, subject.since) if subject.since is not None else issued
    tiers: dict[str, NodeTier] = {}
    whys = []
    for number, member in enumerate(epoch.membership.members):
        found = _judge_member(number, epoch, (begins, ends), given)
        if isinstance(found, LinkVerdict):
            return found
        tiers[epoch.names[member.node]], why = found
        whys += [why] if why is not None else []
    shown = ", ".join(f"{name.rpartition('/')[2]} {tier}" for name, tier in tiers.items())[:500]
    unshown = next(filter(None, whys), "")
    if unshown and given.appraises:
        return missing(ChainLink.NODES, unshown)
    if unshown:
        what = f"{shown}; {unshown}, and its coordinator is not placed apart from the nodes"
        return claimed(ChainLink.NODES, what)
    return verified(ChainLink.NODES, ("appraised again: " if whys else "") + shown, tiers)


def _judge_member(
    number: int, epoch: Epoch, during: tuple[datetime, datetime], given: Given
) -> LinkVerdict | tuple[NodeTier, str | None]:
    """The tier of a member, and why it is not appraised again: empty when it is, None unasked."""
    member, (begins, ends) = epoch.membership.members[number], during
    name = epoch.names[member.node]
    by_node = given.memory.of("results", epoch.digest, lambda: _results(epoch, given))
    kept = by_node.get(member.node, [])
    first = next((one.result for one in kept if one.result.digest == member.result), None)
    if first is None:
        return missing(ChainLink.NODES, f"the result {member.result[:16]} of {name}")
    if first.tier is not member.tier:
        return _contradicts(name, "its tier", member.tier, first.tier)
    mine = [one.result for one in kept if one.result.key_id == first.key_id]
    covering, until = _covering(mine, begins, ends)
    if until < ends - SLACK:
        return broken(
            ChainLink.NODES,
            f"no result of {name} was valid meanwhile",
            expected=f"results from {begins.isoformat()} to {ends.isoformat()}",
            found=f"none at {until.isoformat()}",
        )
    tier = min(one.tier for one in covering)
    if not given.appraises and (epoch.apart or tier <= NodeTier.SELF_ASSERTED):
        return tier, None
    digests = frozenset(one.digest for one in mine if one.issued <= covering[-1].issued)
    refused = _appraise_again(name, epoch, kept, digests, given)
    if refused is not None and refused.state is LinkState.BROKEN:
        return refused
    return tier, "" if refused is None else refused.what


def _appraise_again(
    name: str, epoch: Epoch, kept: Sequence[Appraisal], digests: frozenset[str], given: Given
) -> LinkVerdict | None:
    """Rule 5, once for each selection of one node's results; None where it holds."""
    # Every appraiser comes with it, and few verifiers ask.
    from securetrain.chain.reappraise import NotKeptError, appraise_again  # noqa: PLC0415

    def again() -> bool:
        chosen = [one for one in kept if one.result.digest in digests]
        appraise_again(chosen, epoch.coordinators[0].key, given)
        return True

    room = len(epoch.membership.members) + 1
    try:
        given.memory.of("again", (epoch.digest, digests), again, room=room)
    except NotKeptError as error:
        return missing(ChainLink.NODES, f"{name} cannot be appraised again: {error}")
    except AttestationError as error:
        what = f"{name}: appraised again: {error.code}: {reason(error)}"
        return broken(ChainLink.NODES, what, where=error.where)
    return None


def epoch_of(subject: Subject, given: Given) -> Epoch | LinkVerdict:
    """The verified membership of a checkpoint, or why there is none."""
    link, said = ChainLink.MEMBERSHIP, subject.said
    digest = said.bound.membership
    if digest is None or said.epoch is None:
        return missing(link, "the statement binds no membership")
    found = given.memory.of("epoch", digest, lambda: _signed_epoch(digest, given))
    return found if isinstance(found, LinkVerdict) else _of_subject(found, subject) or found


def _signed_epoch(digest: str, given: Given) -> Epoch | LinkVerdict:
    """Rule 1, for whatever statement binds the document."""
    link = ChainLink.MEMBERSHIP
    kept = document(given.pieces, digest, documents.Membership)
    if kept is None:
        return missing(link, f"the evidence {digest[:16]}")
    envelope = given.pieces.get(kept.envelope)
    if envelope is None:
        return missing(link, f"the membership {kept.envelope[:16]}")
    credentials = [
        found
        for digest in kept.credentials
        if (found := document(given.pieces, digest, Credential)) is not None
    ]
    # Those that a coordinator elsewhere kept prove themselves, wherever they lie.
    elsewhere = documents_at_hand(given.pieces, Credential)
    credentials = credentials or [one for one in elsewhere if one.job == kept.job]
    if not credentials:
        return missing(link, "the coordinator's certificate")
    from securetrain.chain.coordinators import accept_any  # noqa: PLC0415 - not without a membership

    accepted, refused = accept_any(credentials, given.trust)
    if not accepted:
        return broken(link, f"nobody vouches for its coordinator: {refused[0]}")
    problem = ""
    for key in {one.key.key_id: one.key for one in accepted}.values():
        try:
            membership = read_membership(envelope.decode("ascii", "replace"), key)
            break
        except SecureTrainError as error:
            problem = f"{error.code}: {error.what}"
    else:
        return broken(link, f"no accepted coordinator signed it: {problem}")
    mine = [one for one in accepted if one.key.key_id == key.key_id]
    return Epoch(digest=digest, document=kept, membership=membership, coordinators=mine)


def _of_subject(epoch: Epoch, subject: Subject) -> LinkVerdict | None:
    """Rule 2, and the rest of rule 1: why the membership is not the statement's."""
    link, said = ChainLink.MEMBERSHIP, subject.said
    kept, membership = epoch.document, epoch.membership
    coordinator = epoch.coordinators[0]
    for name, expected, found in (
        ("its coordinator", membership.coordinator, str(coordinator.spiffe)),
        ("its job", membership.job, coordinator.spiffe.job),
        ("the evidence's job", kept.job, membership.job),
        ("the evidence's epoch", kept.epoch, membership.epoch),
        ("its epoch", said.epoch, membership.epoch),
        ("its policy", said.policy.digest, membership.policy),
    ):
        if expected != found:
            return broken(link, name, expected=str(expected), found=str(found))
    if coordinator.own and membership.job != said.run_id:
        return broken(link, "its job", expected=said.run_id, found=membership.job)
    if not epoch.speaks(membership.issued):
        return broken(link, f"nobody vouched for its coordinator at {membership.issued}")
    if membership.issued > said.created + SLACK:
        return broken(
            link,
            "it is younger than the checkpoint",
            expected=f"until {said.created.isoformat()}",
            found=membership.issued.isoformat(),
        )
    return None


def _differs(nodes: Sequence[NodeRef], epoch: Epoch) -> LinkVerdict | None:
    """Rule 3."""
    link = ChainLink.NODES
    members = {epoch.names[one.node]: one for one in epoch.membership.members}
    said = {node.node: node for node in nodes}
    if len(said) != len(nodes) or said.keys() != members.keys():
        return broken(
            link,
            "other nodes than the members",
            expected=", ".join(members)[:300],
            found=", ".join(node.node for node in nodes)[:300],
        )
    for name, node in said.items():
        member = members[name]
        if node.tier is not member.tier:
            return _contradicts(name, "its tier", member.tier, node.tier)
        if node.result != member.result:
            return _contradicts(name, "its result", member.result, node.result)
        if node.ranks != epoch.ranks[name]:
            return _contradicts(name, "its ranks", epoch.ranks[name], node.ranks)
        if node.label not in {"", node.tier.value, tier_label(node.tier)}:
            return _contradicts(name, "its label", tier_label(node.tier), node.label)
    return None


def _contradicts(name: str, what: str, expected: object, found: object) -> LinkVerdict:
    return broken(ChainLink.NODES, f"{name}: {what}", expected=str(expected), found=str(found))


def _results(epoch: Epoch, given: Given) -> Mapping[str, Sequence[Appraisal]]:
    """Every result of this epoch's coordinator that is at hand, by node, the oldest first."""
    known = [
        found
        for digest in epoch.document.appraised
        if (found := document(given.pieces, digest, Appraised)) is not None
    ]
    known = known or list(documents_at_hand(given.pieces, Appraised))
    kept: dict[str, Appraisal] = {}
    tokens: dict[str, AttestationResult | None] = {}
    for one in known:
        if one.token not in tokens:
            tokens[one.token] = _result(one, epoch, given)
        result = tokens[one.token]
        # A document that speaks of another result than its token's is not the one that was kept.
        if result is not None and (one.node, one.result) == (result.node, result.digest):
            kept.setdefault(result.digest, Appraisal(result=result, document=one))
    by_node: dict[str, list[Appraisal]] = {}
    for counted in sorted(kept.values(), key=lambda of: of.result.issued):
        by_node.setdefault(counted.result.node, []).append(counted)
    return by_node


def _result(one: Appraised, epoch: Epoch, given: Given) -> AttestationResult | None:
    """A result that counts for this epoch; None for one of another key, job, policy or time.

    The digests of the results with which members joined stand in the signed membership: one
    signature for all of them. A renewal counts by the signature of its own token.
    """
    data = given.pieces.get(one.token)
    if data is None:
        return None
    try:
        token = data.decode("ascii")
        if one.result in epoch.joined:
            result = read_named(token, one.result)
        else:
            result = verify_result(token, epoch.coordinators[0].key)
    except (SecureTrainError, UnicodeDecodeError):
        return None
    said = (result.job, result.policy)
    if said != (epoch.membership.job, epoch.membership.policy) or not epoch.speaks(result.issued):
        return None
    return result


def _covering(
    results: Sequence[AttestationResult], begins: datetime, ends: datetime
) -> tuple[list[AttestationResult], datetime]:
    """The results that were valid from `begins` on without a gap, and until when they were."""
    until, used = begins, []
    for one in sorted(results, key=lambda result: result.issued):
        if one.issued > until or one.issued > ends:
            break
        if one.expires > begins:
            used.append(one)
            until = max(until, one.expires)
    return used, until if used else begins
