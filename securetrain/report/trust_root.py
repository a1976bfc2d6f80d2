# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``trust``: trust roots, drafts of them and what follows."""

from collections.abc import Iterator

import msgspec

from securetrain.identity import Outcome
from securetrain.identity.trust import Signatures, TrustDocument
from securetrain.report.document import Document, moment


def root(document: TrustDocument) -> Document:
    """A trust root: which keys may sign what."""
    return Document(data=msgspec.to_builtins(document), text=list(_lines(document)))


def followed(document: TrustDocument) -> Document:
    """The trust of a machine from now on."""
    until = f"version {document.version} is trusted, until {moment(document.expires)}"
    return Document(data=msgspec.to_builtins(document), text=[until])


def change(outcome: Outcome) -> Document:
    """A version that is published, or a draft that others must sign."""
    version = outcome.document.version
    data = {
        "path": str(outcome.path),
        "version": version,
        "published": not outcome.missing,
        "missing": outcome.missing,
    }
    state = "a draft" if outcome.missing else "published"
    text = [f"version {version} is {state}: {outcome.path}"]
    text += [
        f"  {count} more of {who} must sign it: securetrain trust sign"
        for who, count in outcome.missing.items()
    ]
    return Document(data=data, text=text)


def _about(document: TrustDocument, key_id: str) -> str:
    if (one := document.identities.get(key_id)) is not None:
        return f"  {one.identity} (vouched for by {one.issuer}, Sigstore instance {one.instance})"
    return "  with an ML-DSA companion" if key_id in document.companions else ""


def _lines(document: TrustDocument) -> Iterator[str]:
    created, expires = moment(document.created), moment(document.expires)
    yield f"trust root, version {document.version}, from {created} to {expires}"
    revoked = {entry.key_id: entry for entry in document.revoked}
    for role, entry in sorted(document.roles.items()):
        both = ", with both signatures" if entry.signatures is Signatures.BOTH else ""
        yield f"{role}: {entry.threshold} of {len(entry.keys)}{both}"
        for key_id in entry.keys:
            yield f"  {key_id}{_about(document, key_id)}{'  REVOKED' if key_id in revoked else ''}"
    for authority in document.authorities:
        parties = ", ".join(authority.parties)
        job = authority.job or "every job"
        yield f"{authority.role}: also {parties} of {authority.trust_domain}, {job}"
    if document.log_origin:
        yield f"log: {document.log_origin}"
    for gone in revoked.values():
        spared = "nothing of it counts"
        if gone.valid_before is not None:
            spared = f"what was logged below {gone.valid_before} counts"
        why = gone.reason or "no reason given"
        yield f"revoked {gone.key_id[:16]} at {moment(gone.since)}: {why}; {spared}"
