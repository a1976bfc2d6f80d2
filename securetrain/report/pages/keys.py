# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answers of ``key``, ``ca``, ``enroll``, ``trust`` and ``log``: keys and who may use them."""

import base64
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from securetrain.identity import ClusterCA, Kind, Outcome, SpiffeId, Token, fingerprint
from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.identity.log import Logged, SignedCheckpoint
from securetrain.identity.trust import Signatures, TrustDocument
from securetrain.report.document import (
    Document,
    Row,
    Section,
    facts,
    moment,
    picked,
    plural,
    said,
    stated,
    told,
    verbatim,
)

IN_CLEAR: Final = "is not encrypted (--encrypt); only this user can read it"

# --- key -----------------------------------------------------------------------------------------


def generated(key: PrivateKey, path: Path, public: Path, *, encrypted: bool) -> Document:
    """A new key."""
    told = {"path": path, "public": public, "encrypted": encrypted}
    data = picked(key, "key_id", kind=_kind(key.public), **told)
    files = [("private", str(path)), ("public", str(public))]
    closed = "" if encrypted else f"it {IN_CLEAR}"
    head = said(f"{data['kind']} key {key.key_id}")
    return Document(sections=[head, facts(files), said(closed)], data=data)


def public_half(public: PublicKey, vkey: str) -> Document:
    """A public key, and its verifier key when a name was given."""
    pem, named = public.file_pem.decode(), {"vkey": vkey} if vkey else {}
    data = picked(public, "key_id", kind=_kind(public), pem=pem, **named)
    copied = verbatim(*named.values(), *pem.removesuffix("\n").split("\n"))
    return Document(sections=[said(f"{data['kind']} key {public.key_id}"), copied], data=data)


def _kind(public: PublicKey) -> str:
    other = public.companion
    return str(public.kind) if other is None else f"{public.kind}+{other.kind}"


def passphrase(key: PrivateKey, *, encrypted: bool) -> Document:
    """A key whose passphrase was changed."""
    state = "encrypted" if encrypted else "not encrypted"
    return told(f"key {key.key_id}: {state}", data={"key_id": key.key_id, "encrypted": encrypted})


# --- ca and enroll -------------------------------------------------------------------------------


def made(cluster: ClusterCA, folder: Path, *, encrypted: bool) -> Document:
    """A new CA."""
    digest, ends = fingerprint(cluster.certificate), cluster.certificate.not_valid_after_utc
    told = {"folder": folder, "fingerprint": digest, "ends": moment(ends), "encrypted": encrypted}
    head = said(f"cluster CA of {cluster.trust_domain} in {folder}")
    closed = said("" if encrypted else f"its key {IN_CLEAR}")
    about = facts([("SHA-256", digest), ("until", moment(ends))])
    return Document(sections=[head, about, closed], data=picked(cluster, "trust_domain", **told))


def revoked(kind: Kind, name: str, number: int) -> Document:
    """A new revocation."""
    data = {"kind": kind, "name": name, "number": number}
    return told(f"revoked {kind} {name}; list number {number}", data=data)


def listed(cluster: ClusterCA, now: datetime) -> Document:
    """The certificates that were issued, and those that are revoked."""
    revocations = cluster.revocations()
    issued = []
    for entry in cluster.register.issued():
        state = "good" if now <= entry.ends else "expired"
        if revocations.find(entry.node, entry.serial, entry.job) is not None:
            state = "revoked"
        issued.append(picked(entry, "serial spiffe how", ends=moment(entry.ends), state=state))
    gone = [picked(e, "kind name reason", since=moment(e.since)) for e in revocations.entries]
    rows = [(one["state"], "{spiffe} until {ends} {how} {serial}".format(**one)) for one in issued]
    for one in gone:
        why = one["reason"] or "no reason given"
        rows.append(("revoked", "{kind} {name} since {since}: ".format(**one) + why))
    data = {"number": revocations.number, "issued": issued, "revoked": gone}
    return Document(sections=[stated(rows, empty="nothing was issued yet")], data=data)


def token(given: Token, node: str, job: str, ends: datetime) -> Document:
    """A token: alone on standard output, so that it can be told from what is said about it."""
    words = said(f"for {given.spiffe}, once, until {ends:%Y-%m-%d %H:%M} UTC")
    data = {"token": given.text(), "node": node, "job": job, "ends": moment(ends)}
    return Document(answer=given.text(), sections=[words], data=data)


def joined(spiffe: SpiffeId, folder: Path, ends: datetime) -> Document:
    """An identity that a token was exchanged for."""
    line = f"join with: --rdzv-id {spiffe.job} --rdzv-conf identity={folder}"
    data = {"spiffe": str(spiffe), "folder": str(folder), "ends": moment(ends)}
    head = said(f"{spiffe} in {folder}, until {moment(ends)}")
    return Document(sections=[head, verbatim(line)], data=data)


def identity(spiffe: SpiffeId, folder: Path, serial: int, ends: datetime) -> Document:
    """An identity that a CA issued here."""
    return told(f"{spiffe} in {folder}", f"serial {serial:x}, until {moment(ends)}")


def coordinator(job: str, folder: Path) -> Document:
    """The folder that a coordinator on another machine needs."""
    line = f"start it with: securetrain coordinator --ca DIR --job {job}"
    return told(f"for the coordinator of {job}: {folder}", line)


# --- trust ---------------------------------------------------------------------------------------

APART: Final = ("", ", on machines that do not train")


def root(document: TrustDocument) -> Document:
    """A trust root: which keys may sign what."""
    return Document(data=msgspec.to_builtins(document), sections=list(_root(document)))


def followed(document: TrustDocument) -> Document:
    """The trust of a machine from now on."""
    until = f"version {document.version} is trusted, until {moment(document.expires)}"
    return told(until, data=msgspec.to_builtins(document))


def change(outcome: Outcome) -> Document:
    """A version that is published, or a draft that others must sign."""
    version = outcome.document.version
    data = picked(outcome, "path missing", version=version, published=not outcome.missing)
    state = "a draft" if outcome.missing else "published"
    missing = [
        f"{count} more of {who} must sign it: securetrain trust sign"
        for who, count in outcome.missing.items()
    ]
    return told(f"version {version} is {state}: {outcome.path}", *missing, data=data)


def _root(document: TrustDocument) -> Iterator[Section]:
    term = f"from {moment(document.created)} to {moment(document.expires)}"
    yield said(f"trust root, version {document.version}, {term}")
    revoked = {entry.key_id: entry for entry in document.revoked}
    rows = []
    for role, entry in sorted(document.roles.items()):
        how = ", with both signatures" if entry.signatures is Signatures.BOTH else ""
        how += APART[entry.apart is True]
        rows.append(Row(text=f"{role}: {entry.threshold} of {len(entry.keys)}{how}"))
        for key_id in entry.keys:
            gone = "  REVOKED" if key_id in revoked else ""
            rows.append(Row(text=f"{key_id}{_about(document, key_id)}{gone}", depth=1))
    yield Section(rows=rows)
    for one in document.authorities:
        whose = f"{', '.join(one.parties)} of {one.trust_domain}, {one.job or 'every job'}"
        yield said(f"{one.role}: also {whose}{APART[one.apart is True]}")
    yield said(f"log: {document.log_origin}" if document.log_origin else "")
    for key in revoked.values():
        spared, why = f"what was logged below {key.valid_before} counts", key.reason
        spared = spared if key.valid_before is not None else "nothing of it counts"
        head = f"revoked {key.key_id[:16]} at {moment(key.since)}"
        yield said(f"{head}: {why or 'no reason given'}; {spared}")


def _about(document: TrustDocument, key_id: str) -> str:
    if (one := document.identities.get(key_id)) is not None:
        return f"  {one.identity} (vouched for by {one.issuer}, Sigstore instance {one.instance})"
    return "  with an ML-DSA companion" if key_id in document.companions else ""


# --- log -----------------------------------------------------------------------------------------


def begun(folder: Path, origin: str, vkey: str) -> Document:
    """An empty log."""
    data = {"folder": str(folder), "origin": origin, "vkey": vkey}
    return Document(sections=[said(f"log {origin} in {folder}"), verbatim(vkey)], data=data)


def appended(envelopes: Sequence[Path], first: int) -> Document:
    """Entries that were added."""
    rows = [{"path": str(path), "index": n} for n, path in enumerate(envelopes, first)]
    shown = facts((str(row["index"]), str(row["path"])) for row in rows)
    return Document(sections=[shown], data={"logged": rows})


def checkpoint(found: SignedCheckpoint, note: str) -> Document:
    """The state of a log, and the witnesses that saw it."""
    witnesses = {key_id: moment(time) for key_id, time in sorted(found.cosigned.items())}
    state = found.checkpoint
    data = picked(state, "origin size", root=state.root.hex(), witnesses=witnesses)
    seen = said(*(f"witness {key_id[:16]} at {time}" for key_id, time in witnesses.items()))
    return Document(sections=[verbatim(*note.removesuffix("\n").split("\n")), seen], data=data)


def proof(index: int, path: Path) -> Document:
    """A proof that was written."""
    return told(f"entry {index}: {path}", data={"index": index, "path": str(path)})


def logged(found: Logged) -> Document:
    """A proof that holds."""
    seen = "" if found.seen is None else moment(found.seen)
    state, witnesses = found.signed.checkpoint, sorted(found.signed.cosigned)
    told = {"index": found.index, "seen": seen, "witnesses": witnesses}
    many = plural(len(witnesses), "witness", "witnesses")
    return Document(
        word="LOGGED",
        about=f"entry {found.index} of {state.size} in {state.origin}",
        sections=[said(f"seen by {many}, by enough of them at {seen}")],
        data=picked(state, "origin size", **told),
    )


def cosigned(origin: str, size: int, line: str, *, added: bool, alone: bool) -> Document:
    """The cosignature of a witness; `alone` prints the line and nothing else."""
    data = {"origin": origin, "size": size, "line": line, "added": added}
    if alone:
        return Document(answer=line.removesuffix("\n"), data=data)
    nobody = "the trust root does not name this witness's key: it counts for nobody yet"
    return told(f"cosigned {origin} at size {size}", "" if added else nobody, data=data)


def witness_key(key: PrivateKey, path: Path) -> Document:
    """The key with which this machine cosigns."""
    spki = base64.b64encode(key.public.spki).decode()
    return Document(answer=spki, data={"key": spki, "key_id": key.key_id, "path": str(path)})
