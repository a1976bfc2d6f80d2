# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The messages of what runs for long: lines on standard error, or JSON lines on the other."""

import json
import sys
import threading

import click

from securetrain.attest.fleet import Taken
from securetrain.core import printable
from securetrain.core.errors import SecureTrainError
from securetrain.ledger import Event
from securetrain.rendezvous.coordinator import Seen, Standalone
from securetrain.report.document import picked


class _Writer:
    """Lines for people, or objects for programs."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._lock = threading.Lock()

    def say(self, *lines: str, event: str = "", **fields: object) -> None:
        """Tell people these lines, or programs of an event, where it is one."""
        with self._lock:
            if not self._json:
                for line in lines:
                    click.echo(f"securetrain: {printable(line, keep='')}", err=True)
            elif event:
                click.echo(json.dumps({"event": event, **fields}, sort_keys=True))
                sys.stdout.flush()


class Announcer(_Writer):
    """The voice of a coordinator."""

    def ready(self, running: Standalone) -> None:
        """Announce the address at which it listens."""
        plan, (host, port) = running.plan, running.address
        enrollment = ":".join(map(str, running.enrollment or ()))
        self.say(
            f"policy       {plan.policy.policy.metadata.id} ({plan.policy.digest[:16]})",
            f"run          {plan.run_dir}",
            f"job          {plan.job}, {plan.min_nodes} to {plan.max_nodes} nodes",
            f"coordinator  {host}:{port}, TLS 1.3 with certificates on both sides",
            *([f"enrollment   {enrollment}, with tokens"] if enrollment else []),
            event="ready",
            job=plan.job,
            address=f"{host}:{port}",
            enrolment=enrollment,
        )

    def token(self, node: str, text: str) -> None:
        """Print a token on standard output, apart from what is said about it."""
        how = f"on {node}: securetrain enroll join TOKEN --out DIR   with the token"
        self.say(how, event="token", node=node, token=text)
        if not self._json:
            with self._lock:
                click.echo(text)
                sys.stdout.flush()

    def event(self, event: Event) -> None:
        """Announce an event of the ledger."""
        shown = ("label", "nodes", "address", "number")
        facts = [f"{k} {event.details[k]}" for k in shown if k in event.details]
        facts += [str(event.details["what"])] if "what" in event.details else []
        head = " ".join(filter(None, (event.event, event.code, event.subject)))
        line = f"{head}{': ' + ', '.join(facts) if facts else ''}"
        fields = picked(event, "subject code details", decision=event.decision.value)
        self.say(line, event=event.event, **fields)


class DeskAnnouncer(_Writer):
    """The voice of a server that enrolls machines."""

    def ready(self, address: str, pin: str) -> None:
        """Announce the address."""
        line = f"the desk listens at {address}, key {pin[:16]}"
        self.say(line, event="ready", address=address, pin=pin)

    def seen(self, seen: Seen) -> None:
        """Announce the end of a visit."""
        who, error, remote = seen.node or "a stranger", seen.error, seen.remote
        if error is not None:
            line = f"{who} from {remote} was refused: {error.code}: {error.what} ({error.where})"
            fields = picked(error, "code what", node=seen.node, remote=remote)
            self.say(line, event="refused", **fields)
        elif seen.proven is not None:
            line = f"{who} has proven itself: {seen.proven.worth}, from {remote}"
            self.say(line, event="proven", **picked(seen.proven, "node group ek", remote=remote))

    def taken(self, what: Taken | SecureTrainError) -> None:
        """Announce what a rule signed, or what kept it from signing."""
        if isinstance(what, SecureTrainError):
            line = f"nothing was signed: {what.code}: {what.what} ({what.where})"
            self.say(line, event="not-signed", **picked(what, "code what"))
            return
        if (made := what.edition) is not None:
            names, version = [one.name for one in made.nodes], made.values.version
            line = f"signed as version {version}: {', '.join(names)}"
            self.say(line, event="signed", version=version, nodes=names)
        for one in what.held:
            node = one.proven.node
            line = f"{node} waits for a person: {one.why}"
            self.say(line, event="held", node=node, why=one.why)
