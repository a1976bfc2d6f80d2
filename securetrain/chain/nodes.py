# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The links ``membership`` and ``nodes``: who trained, by what coordinators signed, and only that.

Rules, in order. Membership:

1. the statement binds the document of its epoch, and that names a membership which an accepted
   coordinator signed (`coordinators`), at a time when its word counted;
2. it is of the epoch, policy and time that the statement says, and of the run's own job where the
   run itself vouches for the coordinator.

Nodes, for a membership that is verified:

3. the statement names exactly its members, each with the ranks, tier and result that stand in it;
4. a node's tier counts while results of the same coordinator, job, policy and key were valid
   without a gap, from when the steps were done (the later of the membership and the checkpoint
   before it) until the checkpoint was made. It is the lowest tier of those results. Gossip, ledger
   lines and the statement's own word add nothing;
5. where it is asked (`Given.again`), the evidence behind those results is judged again
   (`reappraise`): evidence that is not there is missing, whatever its result says;
6. `SLACK` is allowed at the end: the coordinator's clock and the launcher's are two.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from securetrain.artifacts.statement import NodeRef
from securetrain.chain import documents
from securetrain.chain.coordinators import Accepted, accept_any
from securetrain.chain.documents import Appraised, Credential
from securetrain.chain.links import (
    Given,
    Subject,
    Verdict,
    broken,
    missing,
    verified,
)
from securetrain.chain.reappraise import Kept, NotKeptError, appraise_again
from securetrain.chain.store import document, documents_at_hand
from securetrain.core.errors import AttestationError, SecureTrainError, reason
from securetrain.core.vocabulary import ChainLink, NodeTier
from securetrain.evidence import AttestationResult, verify_result
from securetrain.identity import Role, SpiffeId
from securetrain.rendezvous.wire import Membership, node_ranks, read_membership

SLACK: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """A membership that is verified, and the coordinator behind it."""

    document: documents.Membership
    membership: Membership
    coordinators: Sequence[Accepted]
    """With the key that signed it: one for each time that its certificate was renewed."""

    def speaks(self, at: datetime) -> bool:
        """Tell whether the coordinator's word counted at a time."""
        return any(one.counts(at) for one in self.coordinators)

    def spiffe(self, node: str) -> str:
        """A member's full name, as statements have it."""
        of = self.coordinators[0].spiffe
        return str(SpiffeId(of.trust_domain, of.job, Role.NODE, node))


def judge_membership(subject: Subject, given: Given) -> Verdict:
    """Judge the membership by rules 1 and 2."""
    found = epoch_of(subject, given)
    if isinstance(found, Verdict):
        return found
    names = ", ".join(member.node for member in found.membership.members[:8])
    what = f"epoch {found.membership.epoch} of {found.coordinators[0].spiffe}: {names}"
    return verified(ChainLink.MEMBERSHIP, what)


def judge_nodes(subject: Subject, given: Given) -> Verdict:
    """Judge the tiers by rules 3 to 6."""
    epoch = epoch_of(subject, given)
    if isinstance(epoch, Verdict):
        say = missing if epoch.state == "missing" else broken
        return say(ChainLink.NODES, f"the membership: {epoch.what}", where=epoch.where)
    if (differs := _differs(subject.said.nodes, epoch)) is not None:
        return differs
    issued = epoch.membership.issued
    begins = max(issued, subject.since) if subject.since is not None else issued
    ends = subject.said.created
    kept = _results(epoch, given)
    results = [one.result for one in kept]
    tiers: dict[str, NodeTier] = {}
    for member in epoch.membership.members:
        name = epoch.spiffe(member.node)
        mine = [one for one in results if one.node == member.node]
        first = next((one for one in mine if one.digest == member.result), None)
        if first is None:
            return missing(ChainLink.NODES, f"the result {member.result[:16]} of {name}")
        if first.tier is not member.tier:
            return _contradicts(name, "its tier", member.tier, first.tier)
        mine = [one for one in mine if one.key_id == first.key_id]
        covering, until = _covering(mine, begins, ends)
        if until < ends - SLACK:
            return broken(
                ChainLink.NODES,
                f"no result of {name} was valid meanwhile",
                expected=f"results from {begins.isoformat()} to {ends.isoformat()}",
                found=f"none at {until.isoformat()}",
            )
        tiers[name] = min(one.tier for one in covering)
        if given.again:
            digests = {one.digest for one in mine if one.issued <= covering[-1].issued}
            chosen = [one for one in kept if one.result.digest in digests]
            try:
                appraise_again(chosen, epoch.coordinators[0].key, given.pieces)
            except NotKeptError as error:
                return missing(ChainLink.NODES, f"{name} cannot be appraised again: {error}")
            except AttestationError as error:
                what = f"{name}: appraised again: {error.code}: {reason(error)}"
                return broken(ChainLink.NODES, what, where=error.where)
    shown = ", ".join(f"{name.rpartition('/')[2]} {tier}" for name, tier in tiers.items())
    how = "appraised again: " if given.again else ""
    return verified(ChainLink.NODES, how + shown[:500], tiers)


def epoch_of(subject: Subject, given: Given) -> Epoch | Verdict:
    """The verified membership of a checkpoint, or why there is none."""
    link, said = ChainLink.MEMBERSHIP, subject.said
    if said.bound.membership is None or said.epoch is None:
        return missing(link, "the statement binds no membership")
    kept = document(given.pieces, said.bound.membership, documents.Membership)
    if kept is None:
        return missing(link, f"the evidence {said.bound.membership[:16]}")
    envelope = given.pieces.get(kept.envelope)
    if envelope is None:
        return missing(link, f"the membership {kept.envelope[:16]}")
    credentials = [
        found
        for digest in kept.credentials
        if (found := document(given.pieces, digest, Credential)) is not None
    ] or list(_credentials_elsewhere(kept.job, given))
    if not credentials:
        return missing(link, "the coordinator's certificate")
    accepted, refused = accept_any(credentials, given.trust)
    if not accepted:
        return broken(link, f"nobody vouches for its coordinator: {refused[0]}")
    return _read(kept, envelope, accepted, subject)


def _read(
    kept: documents.Membership, envelope: bytes, accepted: Sequence[Accepted], subject: Subject
) -> Epoch | Verdict:
    link, said = ChainLink.MEMBERSHIP, subject.said
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
    coordinator = mine[0]
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
    epoch = Epoch(document=kept, membership=membership, coordinators=mine)
    if not epoch.speaks(membership.issued):
        return broken(link, f"nobody vouched for its coordinator at {membership.issued}")
    if membership.issued > said.created + SLACK:
        return broken(
            link,
            "it is younger than the checkpoint",
            expected=f"until {said.created.isoformat()}",
            found=membership.issued.isoformat(),
        )
    return epoch


def _credentials_elsewhere(job: str, given: Given) -> Iterable[Credential]:
    """Those that a coordinator elsewhere kept: they prove themselves, wherever they lie."""
    for found in documents_at_hand(given.pieces, Credential):
        if found.job == job:
            yield found


def _differs(nodes: Sequence[NodeRef], epoch: Epoch) -> Verdict | None:
    """Rule 3."""
    link = ChainLink.NODES
    ranks = {epoch.spiffe(one.node): list(one.ranks) for one in node_ranks(epoch.membership)}
    members = {epoch.spiffe(one.node): one for one in epoch.membership.members}
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
        if node.ranks != ranks[name]:
            return _contradicts(name, "its ranks", ranks[name], node.ranks)
    return None


def _contradicts(name: str, what: str, expected: object, found: object) -> Verdict:
    return broken(ChainLink.NODES, f"{name}: {what}", expected=str(expected), found=str(found))


def _results(epoch: Epoch, given: Given) -> list[Kept]:
    """Every result of this epoch's coordinator for its members that is at hand."""
    known = [
        found
        for digest in epoch.document.appraised
        if (found := document(given.pieces, digest, Appraised)) is not None
    ]
    known = known or list(documents_at_hand(given.pieces, Appraised))
    kept: dict[str, Kept] = {}
    tokens: dict[str, AttestationResult | None] = {}
    for one in known:
        if one.token not in tokens:
            tokens[one.token] = _result(one.token, epoch, given)
        result = tokens[one.token]
        # A document that speaks of another result than its token's is not the one that was kept.
        if result is not None and (one.node, one.result) == (result.node, result.digest):
            kept.setdefault(result.digest, Kept(result=result, document=one))
    return sorted(kept.values(), key=lambda one: one.result.issued)


def _result(token: str, epoch: Epoch, given: Given) -> AttestationResult | None:
    """A result that counts for this epoch; None for one of another key, job, policy or time."""
    data = given.pieces.get(token)
    if data is None:
        return None
    try:
        result = verify_result(data.decode("ascii"), epoch.coordinators[0].key)
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
