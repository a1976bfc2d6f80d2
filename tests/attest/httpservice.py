# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An HTTP service on loopback that says what a test wants it to."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Service:
    """What is answered, by path with query, and what was asked."""

    origin: str = ""
    routes: dict[str, Any] = field(default_factory=dict)
    """Bytes; (status, headers, body); or a function of the request's body that gives either."""
    asked: list[tuple[str, str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def serve() -> Iterator[Service]:
    """A running service."""
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            service.asked.append((self.command, self.path, body))
            service.headers.append(dict(self.headers.items()))
            found = service.routes.get(self.path, (404, {}, b"none"))
            if isinstance(found, Callable):  # type: ignore[arg-type]
                found = found(body)
            status, headers, data = found if isinstance(found, tuple) else (200, {}, found)
            self.send_response(status)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(data)))
            for name, value in headers.items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = answer  # noqa: N815 - the names that http.server calls
        do_POST = answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.origin = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
