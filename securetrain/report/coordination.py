# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The messages of a running ``coordinator``: lines on standard error, or JSON lines."""

import json
import sys
import threading

import click

from securetrain.core import printable
from securetrain.ledger import Event
from securetrain.rendezvous.coordinator import Standalone


class Announcer:
    """The voice of the coordinator: lines for people on standard error, or JSON lines."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Print one line for people."""
        if not self._json:
            self._write(f"securetrain: {printable(text)}")

    def ready(self, running: Standalone) -> None:
        """Announce the address at which it listens."""
        plan = running.plan
        host, port = running.address
        if self._json:
            enrollment = ":".join(map(str, running.enrollment)) if running.enrollment else ""
            self._object(
                event="ready", job=plan.job, address=f"{host}:{port}", enrolment=enrollment
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
            self._object(event="token", node=node, token=text)
            return
        self.say(f"on {node}: securetrain enroll join TOKEN --out DIR   with the token")
        with self._lock:
            click.echo(text)
            sys.stdout.flush()

    def event(self, event: Event) -> None:
        """Announce an event of the ledger."""
        if self._json:
            details = {"code": event.code, "details": event.details}
            self._object(
                event=event.event, decision=event.decision.value, subject=event.subject, **details
            )
            return
        shown = ("label", "nodes", "address", "number")
        facts = [f"{k} {event.details[k]}" for k in shown if k in event.details]
        facts += [str(event.details["what"])] if "what" in event.details else []
        head = " ".join(filter(None, (event.event, event.code, event.subject)))
        self.say(f"{head}{': ' + ', '.join(facts) if facts else ''}")

    def _object(self, **fields: object) -> None:
        self._write(json.dumps(fields, sort_keys=True))

    def _write(self, line: str) -> None:
        with self._lock:
            click.echo(line, err=not self._json)
