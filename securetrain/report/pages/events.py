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


class _Writer:
    """Lines for people, or objects for programs."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._lock = threading.Lock()

    def _tell(self, line: str, **fields: object) -> None:
        with self._lock:
            if not self._json:
                click.echo(f"securetrain: {printable(line, keep='')}", err=True)
            elif fields:
                click.echo(json.dumps(fields, sort_keys=True))
                sys.stdout.flush()


class Announcer(_Writer):
    """The voice of a coordinator."""

    def say(self, text: str) -> None:
        """Print one line for people."""
        if not self._json:
            self._tell(text)

    def ready(self, running: Standalone) -> None:
        """Announce the address at which it listens."""
        plan = running.plan
        host, port = running.address
        if self._json:
            enrollment = ":".join(map(str, running.enrollment)) if running.enrollment else ""
            self._tell(
                "", event="ready", job=plan.job, address=f"{host}:{port}", enrolment=enrollment
            )
            return
        self.say(f"policy       {plan.policy.policy.metadata.id} ({plan.policy.digest[:16]})")
        self.say(f"run          {plan.run_dir}")
        self.say(f"job          {plan.job}, {plan.min_nodes} to {plan.max_nodes} nodes")
        self.say(f"coordinator  {host}:{port}, TLS 1.3 with certificates on both sides")
        if running.enrollment:
            self.say(f"enrollment   {running.enrollment[0]}:{running.enrollment[1]}, with tokens")

    def token(self, node: str, text: str) -> None:
        """Print a token on standard output, apart from what is said about it."""
        if self._json:
            self._tell("", event="token", node=node, token=text)
            return
        self.say(f"on {node}: securetrain enroll join TOKEN --out DIR   with the token")
        with self._lock:
            click.echo(text)
            sys.stdout.flush()

    def event(self, event: Event) -> None:
        """Announce an event of the ledger."""
        if self._json:
            details = {"code": event.code, "details": event.details}
            self._tell(
                "",
                event=event.event,
                decision=event.decision.value,
                subject=event.subject,
                **details,
            )
            return
        shown = ("label", "nodes", "address", "number")
        facts = [f"{k} {event.details[k]}" for k in shown if k in event.details]
        facts += [str(event.details["what"])] if "what" in event.details else []
        head = " ".join(filter(None, (event.event, event.code, event.subject)))
        self.say(f"{head}{': ' + ', '.join(facts) if facts else ''}")


class DeskAnnouncer(_Writer):
    """The voice of a server that enrolls machines."""

    def ready(self, address: str, pin: str) -> None:
        """Announce the address."""
        self._tell(
            f"the desk listens at {address}, key {pin[:16]}",
            event="ready",
            address=address,
            pin=pin,
        )

    def seen(self, seen: Seen) -> None:
        """Announce the end of a visit."""
        who = seen.node or "a stranger"
        if seen.proven is not None and seen.error is None:
            one = seen.proven
            self._tell(
                f"{who} has proven itself: {one.worth}, from {seen.remote}",
                event="proven",
                node=one.node,
                group=one.group,
                ek=one.ek,
                remote=seen.remote,
            )
            return
        if seen.error is None:
            return
        error = seen.error
        self._tell(
            f"{who} from {seen.remote} was refused: {error.code}: {error.what} ({error.where})",
            event="refused",
            node=seen.node,
            code=error.code,
            what=error.what,
            remote=seen.remote,
        )

    def taken(self, what: Taken | SecureTrainError) -> None:
        """Announce what a rule signed, or what kept it from signing."""
        if isinstance(what, SecureTrainError):
            self._tell(
                f"nothing was signed: {what.code}: {what.what} ({what.where})",
                event="not-signed",
                code=what.code,
                what=what.what,
            )
            return
        if what.edition is not None:
            made = what.edition
            names = [one.name for one in made.nodes]
            self._tell(
                f"signed as version {made.values.version}: {', '.join(names)}",
                event="signed",
                version=made.values.version,
                nodes=names,
            )
        for one in what.held:
            self._tell(
                f"{one.proven.node} waits for a person: {one.why}",
                event="held",
                node=one.proven.node,
                why=one.why,
            )
