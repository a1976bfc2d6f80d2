# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Judge kept attestation evidence again, without the node, its TPM or the coordinator.

Rules, in order, for the results of one node from its first to the last that is asked about:

1. the policy is the one whose digest the result names, and the reference values are those that the
   result names, signed by a key that this policy names. Both are the run's own choice, so they
   count as far as the verifier made it, too: its policy judges TPMs, TEEs and GPUs alike and names
   that key, or it expects this very policy;
2. the node's key, the coordinator's key and the job are those of the result; the rest of the
   exchange (nonce, exporter, secret of the credential) is the coordinator's record. Another record
   gives another binding, which the node has not signed;
3. the same appraisers judge as in a job, at the time of the result. A renewal goes on from what the
   appraisal before it has proven here, and from nothing that is only said;
4. the outcome is the very result that the coordinator signed: tier, claims, times and all.

Not judged again: that the nonce was fresh, that nobody was revoked, and at a join that the TPM's
clock went on from an earlier job. Those are the coordinator's memory. Evidence that needs documents
of a maker (TDX, SEV-SNP, GPUs) is `NotKeptError`: they are not with it.
"""

import base64
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from securetrain.chain.links import Appraisal, Given
from securetrain.chain.store import Pieces
from securetrain.core import canonical
from securetrain.core.errors import AttestationError
from securetrain.evidence import (
    APPRAISERS,
    NODE_TYPE,
    Appraiser,
    Ask,
    AttestationKeys,
    Binding,
    CollateralKind,
    Evidence,
    Exchange,
    Lease,
    NodeAppraiser,
    appraise_evidence,
    open_reference_values,
    trusted_keys,
)
from securetrain.identity.keys import PublicKey
from securetrain.policy.schema import Node, Policy

_RECORDED: Final = ("nonce", "session", "exporter", "wireguard", "sealing")
"""The part of an exchange that only the coordinator can say."""


class NotKeptError(Exception):
    """Something that the appraisal needs is not at hand."""


@dataclass(frozen=True, slots=True)
class _ByDigest:
    """The documents that are named by their SHA-256; none that a maker publishes."""

    pieces: Pieces

    def get(self, kind: CollateralKind, name: str, now: datetime) -> bytes:
        """See `evidence.Collateral`."""
        del now
        found = self.pieces.get(name) if kind is CollateralKind.RUNTIME_POLICY else None
        if found is None:
            raise NotKeptError(f"the {kind} {name[:64]}")
        return found

    def has(self, kind: CollateralKind, name: str) -> bool:
        """See `evidence.Collateral`."""
        return kind is CollateralKind.RUNTIME_POLICY and self.pieces.get(name) is not None


def appraise_again(results: Sequence[Appraisal], coordinator: PublicKey, given: Given) -> None:
    """Judge the results of one node again, oldest first; see the module.

    Args:
        results: Of one node and key, from its first one on.
        coordinator: The key that signed them.
        given: The evidence, and the verifier's own policy.

    Raises:
        NotKeptError: A piece is not there, or rule 1: the verifier has nothing to judge by.
        AttestationError: The evidence does not show what the result says; ST-ATTS-014 where it
            shows something else, else the code of the rule that it breaks.
        IntegrityError: ST-CHAN-001 for a piece that is damaged.
    """
    lease: Lease | None = None
    appraisers: dict[tuple[str, ...], Appraiser] = {}
    for kept in sorted(results, key=lambda one: one.result.issued):
        edition = (kept.result.policy, kept.document.presented.media_type, *kept.document.documents)
        if edition not in appraisers:
            appraisers[edition] = _appraiser(kept, given)
        lease = _again(kept, appraisers[edition], coordinator.spki, given.pieces, lease)


def _again(
    kept: Appraisal, appraiser: Appraiser, server: bytes, pieces: Pieces, lease: Lease | None
) -> Lease | None:
    said, shown = kept.result, kept.document.presented
    record = shown.exchange
    key = PublicKey.from_spki(_bytes(record.client_spki))
    keys = None if shown.keys is None else _keys(_piece(pieces, shown.keys, "the TPM's keys"))
    secret = _bytes(record.secret)
    if keys is None or secret:
        lease = None
    elif lease is None:
        raise NotKeptError(f"what the renewal of {said.issued.isoformat()} goes on from")
    opening = None if keys is None else appraiser.open(keys, said.node, said.issued)
    result, appraisal = appraise_evidence(
        Evidence(
            media_type=shown.media_type,
            body=_piece(pieces, shown.body, "the evidence"),
            binding=_bytes(shown.binding),
            signature=_bytes(shown.signature),
        ),
        appraiser,
        Exchange(
            node=said.node,
            key=key,
            binding=Binding(
                job=said.job,
                client_spki=key.spki,
                server_spki=server,
                ak_name=b"" if opening is None else opening.ak_name,
                **{name: _bytes(getattr(record, name)) for name in _RECORDED},
            ),
            now=said.issued,
            expires=said.expires,
            ask=_ask(secret, lease),
            secret=secret,
            lease=lease,
            fetch=lambda _, digest: _piece(pieces, digest.hex(), "a part of the IMA list"),
        ),
        opening=lambda: opening,
        policy=said.policy,
    )
    if result != said:
        fields = said.__struct_fields__
        names = [one for one in fields if getattr(said, one) != getattr(result, one)]
        what = f"the evidence shows other values of: {', '.join(names)}"
        raise AttestationError("ST-ATTS-014", what, f"node {said.node}")
    return appraisal.lease


def _ask(secret: bytes, lease: Lease | None) -> Ask:
    if lease is not None:
        return Ask(full=False, ima_first=lease.ima.entries if lease.ima is not None else 0)
    # That there was a credential counts; what was in it is the secret.
    return Ask(credential=(b"", b"")) if secret else Ask()


def _appraiser(kept: Appraisal, given: Given) -> Appraiser:
    """Rule 1."""
    pieces, said, media_type = given.pieces, kept.result, kept.document.presented.media_type
    if media_type != said.media_type:
        raise AttestationError("ST-ATTS-014", "evidence of another type", f"node {said.node}")
    if not said.reference_values:
        found = APPRAISERS.get(media_type)
        if found is None:
            raise NotKeptError("reference values for it")
        return found
    if media_type != NODE_TYPE or not kept.document.documents:
        raise NotKeptError("the signed reference values")
    data = _piece(pieces, said.policy, "the policy")
    policy = canonical.decode(data, Policy, where="the policy", canonical=True)
    wanted = policy.node.reference_values
    if wanted is None:
        raise AttestationError(
            "ST-ATTS-009", "the policy names no reference values", f"node {said.node}"
        )
    where = "the reference values"
    envelope = _piece(pieces, kept.document.documents[0], where)
    keys = trusted_keys(wanted.signed_by, where)
    if not given.expects(said.policy):
        mine = _chosen(policy.node, None if given.policy is None else given.policy.node)
        keys = {name: key for name, key in keys.items() if name in mine}
    if not keys:
        raise NotKeptError(
            "a policy of the verifier's own that names a key for the reference values (--policy),"
            " or expects the run's policy (--expect-policy)"
        )
    reference = open_reference_values(envelope, keys, where)
    if reference.digest != said.reference_values:
        raise AttestationError(
            "ST-ATTS-014",
            f"judged by {said.reference_values[:16]}, and kept is {reference.digest[:16]}",
            where,
        )
    return NodeAppraiser(policy.node, reference, _ByDigest(pieces), said.issued)


def _chosen(run: Node, own: Node | None) -> Collection[str]:
    """Ids of the keys that the verifier's own policy names, where it judges as the run's does."""
    if own is None or own.reference_values is None:
        return ()
    if (own.tpm, own.tee, own.gpu) != (run.tpm, run.tee, run.gpu):
        raise NotKeptError("a policy that judges TPMs, TEEs and GPUs as the run's does")
    return trusted_keys(own.reference_values.signed_by, "the verifier's policy")


def _keys(data: bytes) -> AttestationKeys:
    return canonical.decode(data, AttestationKeys, where="the TPM's keys", canonical=True)


def _piece(pieces: Pieces, digest: str, what: str) -> bytes:
    found = pieces.get(digest)
    if found is None:
        raise NotKeptError(f"{what} {digest[:16]}")
    return found


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise AttestationError("ST-ATTS-001", "not base64", "the exchange") from error
