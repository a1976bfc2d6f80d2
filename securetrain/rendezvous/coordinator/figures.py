# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A coordinator's figures in Prometheus' text format, over HTTP.

Rules:

1. figures are counted from the events of the ledger, and name no node, job or address: labels are
   codes and tiers, of which there are few;
2. it serves one page, to one reader at a time, with limits on what it reads and for how long. The
   coordinator never waits for it;
3. it listens on loopback unless another address is named: there is no password.
"""

import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar, Final

from securetrain.core import exposition
from securetrain.core.errors import UsageError, os_error
from securetrain.ledger import Event, events

PREFIX: Final = "securetrain_coordinator"
_CONTENT: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = 2.0
# Events that are counted, with the detail that is their label.
_COUNTED: Final = {
    "node-admitted": ("nodes_admitted_total", "tier", "Nodes that were admitted."),
    "lease-renewed": ("leases_renewed_total", "tier", "Leases that were renewed."),
    "node-refused": ("nodes_refused_total", "code", "Nodes that were not admitted."),
    "node-evicted": ("nodes_evicted_total", "code", "Nodes that were put out."),
    "connection-refused": ("connections_refused_total", "code", "Peers that were refused."),
    "enrolment-refused": ("enrollments_refused_total", "code", "Machines with a token, refused."),
    "node-enrolled": ("nodes_enrolled_total", "", "Machines that enrolled with a token."),
    "reference-values-read": ("values_read_total", "", "Editions of the values that were taken."),
    "reference-values-not-read": ("values_refused_total", "code", "Editions that were refused."),
}
_LEAVING: Final = frozenset({"node-left", "node-lost", "node-evicted"})


class Figures:
    """The counts since the coordinator was started. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._gauges: dict[str, float] = {"up": 1.0, "nodes": 0.0}
        self._inside: set[str] = set()
        self._followed: dict[str, Callable[[], float]] = {}

    def take(self, event: Event) -> None:
        """Count an event."""
        try:
            events.decode_event(event)  # its details are what the event says that they are
        except ValueError:
            return
        with self._lock:
            if event.event in _COUNTED:
                label = _COUNTED[event.event][1]
                value = event.code if label == "code" else str(event.details.get(label, ""))
                self._counts[event.event, value] += 1
            if event.event == "node-admitted":
                self._inside.add(event.subject)
            elif event.event in _LEAVING:
                self._inside.discard(event.subject)
            self._gauges["nodes"] = float(len(self._inside))
            for name, kind, detail in (
                ("barred", "fleet-state-opened", "barred"),
                ("fleet_version", "fleet-state-opened", "version"),
                ("values_end_days", "reference-values-ending", "days"),
                ("collateral_end_days", "collateral-ending", "days"),
            ):
                if event.event == kind:
                    self._gauges[name] = float(event.details[detail])

    def follow(self, name: str, read: Callable[[], float]) -> None:
        """Ask another part of the coordinator for a figure whenever somebody reads."""
        self._followed[name] = read

    def page(self) -> str:
        """All figures."""
        with self._lock:
            counts, gauges = dict(self._counts), dict(self._gauges)
        gauges |= {name: float(read()) for name, read in self._followed.items()}
        lines: list[str] = []
        for kind, (name, label, text) in _COUNTED.items():
            samples = [
                (exposition.labels({label: value}) if label else "", float(count))
                for (event, value), count in sorted(counts.items())
                if event == kind
            ]
            lines += exposition.metric(
                f"{PREFIX}_{name}", "counter", text, samples or ([] if label else [("", 0.0)])
            )
        for name, value in sorted(gauges.items()):
            lines += exposition.metric(f"{PREFIX}_{name}", "gauge", _GAUGES[name], [("", value)])
        return "\n".join(lines) + "\n"


_GAUGES: Final = {
    "up": "Whether the coordinator runs.",
    "nodes": "Nodes that are admitted now.",
    "barred": "Nodes and hardware that were let in no more when the coordinator was started.",
    "fleet_version": "The version of the fleet's state when the coordinator was started.",
    "values_end_days": "The reference values end within so many days.",
    "collateral_end_days": "Collateral, or the cache of it, ends within so many days.",
    "notices_sent": "Notices that the webhook took.",
    "notices_lost": "Notices that the webhook did not take.",
}


class FiguresServer:
    """Serves ``/metrics``."""

    def __init__(self, figures: Figures, host: str, port: int) -> None:
        """Listen.

        Raises:
            UsageError: ST-USAG-003 when the address is taken, ST-USAG-002 when it is not ours.
        """

        class Handler(_Handler):
            source = figures

        try:
            self._server = _Server((host, port), Handler)
        except OSError as error:
            raise os_error(error, f"--metrics {host}:{port}") from error
        self.address: tuple[str, int] = (host, int(self._server.server_address[1]))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="figures", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(HTTPServer):
    request_queue_size = 16

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of readers that go away."""


class _Handler(BaseHTTPRequestHandler):
    source: ClassVar[Figures]
    timeout = _SECONDS
    server_version = "securetrain"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a reader."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = self.source.page().encode()
        self.send_response(200)
        self.send_header("Content-Type", _CONTENT)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep no log: it would be as long as its readers like."""


def address_of(text: str) -> tuple[str, int]:
    """The address of ``--metrics``: PORT on loopback, or HOST:PORT.

    Raises:
        UsageError: ST-USAG-001.
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(
            "ST-USAG-001", f"{text[:80]!r} is no PORT or HOST:PORT", "--metrics", "name a port"
        )
    return host.strip("[]") or "127.0.0.1", int(port)
