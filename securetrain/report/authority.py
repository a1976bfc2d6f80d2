# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``ca`` and ``enroll``: a cluster's CA, its certificates and its tokens."""

from datetime import datetime
from pathlib import Path

import click

from securetrain.identity import ClusterCA, Issued, Kind, SpiffeId, Token, fingerprint
from securetrain.report.document import Document, moment
from securetrain.report.keys import IN_CLEAR


def made(cluster: ClusterCA, folder: Path, *, encrypted: bool) -> Document:
    """A new CA."""
    data = {
        "folder": str(folder),
        "trust_domain": cluster.trust_domain,
        "fingerprint": fingerprint(cluster.certificate),
        "ends": moment(cluster.certificate.not_valid_after_utc),
        "encrypted": encrypted,
    }
    text = [
        f"cluster CA of {cluster.trust_domain} in {folder}",
        f"SHA-256 {data['fingerprint']}, until {data['ends']}",
    ]
    closed = [] if encrypted else [f"its key {IN_CLEAR}"]
    return Document(data=data, text=text + closed)


def revoked(kind: Kind, name: str, number: int) -> Document:
    """A new revocation."""
    data = {"kind": kind, "name": name, "number": number}
    return Document(data=data, text=[f"revoked {kind} {name}; list number {number}"])


def listed(cluster: ClusterCA, now: datetime) -> Document:
    """The certificates that were issued, and those that are revoked."""
    revocations = cluster.revocations()

    def state(entry: Issued) -> str:
        if revocations.find(entry.node, entry.serial, entry.job) is not None:
            return "revoked"
        return "good" if now <= entry.ends else "expired"

    issued = [
        {
            "serial": entry.serial,
            "spiffe": entry.spiffe,
            "how": entry.how.value,
            "ends": moment(entry.ends),
            "state": state(entry),
        }
        for entry in cluster.register.issued()
    ]
    gone = [
        {"kind": e.kind.value, "name": e.name, "reason": e.reason, "since": moment(e.since)}
        for e in revocations.entries
    ]
    text = [
        f"{row['state']:8} {row['spiffe']}  until {row['ends']}  {row['how']}  {row['serial']}"
        for row in issued
    ]
    text += [
        f"revoked  {row['kind']} {row['name']} since {row['since']}:"
        f" {row['reason'] or 'no reason given'}"
        for row in gone
    ]
    data = {"number": revocations.number, "issued": issued, "revoked": gone}
    return Document(data=data, text=text or ["nothing was issued yet"])


def token(given: Token, node: str, job: str, ends: datetime) -> Document:
    """A token: alone on standard output, so that it can be told from what is said about it."""

    def text() -> None:
        click.echo(given.text())
        click.echo(f"for {given.spiffe}, once, until {ends:%Y-%m-%d %H:%M} UTC", err=True)

    data = {"token": given.text(), "node": node, "job": job, "ends": moment(ends)}
    return Document(data=data, text=text)


def joined(spiffe: SpiffeId, folder: Path, ends: datetime) -> Document:
    """An identity that a token was exchanged for."""
    text = [
        f"{spiffe} in {folder}, until {moment(ends)}",
        f"join with: --rdzv-id {spiffe.job} --rdzv-conf identity={folder}",
    ]
    data = {"spiffe": str(spiffe), "folder": str(folder), "ends": moment(ends)}
    return Document(data=data, text=text)


def identity(spiffe: SpiffeId, folder: Path, serial: int, ends: datetime) -> Document:
    """An identity that a CA issued here."""
    text = [f"{spiffe} in {folder}", f"serial {serial:x}, until {moment(ends)}"]
    return Document(text=text)


def coordinator(job: str, folder: Path) -> Document:
    """The folder that a coordinator on another machine needs."""
    text = [
        f"for the coordinator of {job}: {folder}",
        f"start it with: securetrain coordinator --ca DIR --job {job}",
    ]
    return Document(text=text)
