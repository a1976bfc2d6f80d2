# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one way from obstore to a store: a proxy of this process, on loopback (ADR 0016).

obstore's own HTTP goes where an answer redirects it to, reserves what an answer announces, which
ends the process when that is a terabyte, and reads as long as bytes come; it can be told none of
this. So it is led here by plain HTTP, and every connection to a store is made here. Rules:

1. only to the places that the configuration names (`Place`), by TLS unless they are this machine.
   The address that a name was resolved to is looked at before a request is sent: no link-local one,
   where clouds keep their metadata, unless the configuration names it. A redirect is refused;
2. connecting, each read and an answer as a whole have their time, `SLOWEST` bytes a second beyond
   `GRACE`; an answer announces and has `ANSWER` bytes at most, and a listing `PAGES` answers;
3. a request is passed on once. What is cut on one side is cut on the other;
4. only whoever knows the word of this proxy is served, so that no other user of the machine is.
"""

import base64
import http.client
import ipaddress
import os
import re
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from multiprocessing.connection import wait
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from securetrain.core.errors import UsageError

CONNECT: Final = 10.0
"""Seconds to connect in."""
READ: Final = 30.0
"""Seconds without a byte after which an answer is given up."""
GRACE: Final = 60.0
"""Seconds that an answer has in any case."""
SLOWEST: Final = 64 << 10
"""Bytes a second that an answer has to come at beyond that."""
ANSWER: Final = 8 << 20
"""Bytes of an answer: a listing of 1,000 names has two million, content is asked in pieces."""
LONGEST: Final = 600.0
"""Seconds of one request, whatever it is."""
PAGES: Final = 1000
"""Answers to one listing, of 1,000 names each."""
ASK: Final = "/ask"
"""The path of what forked children ask."""
_PIECE: Final = 1 << 20
_ADDRESS: Final = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,4}|:[1-5]\d{4})?", re.ASCII)
_HOPS: Final = frozenset(
    {"connection", "content-length", "keep-alive", "te", "transfer-encoding", "upgrade"}
    | {"proxy-authorization", "proxy-connection"}
)


def is_local(host: str) -> tuple[bool, bool]:
    """Tell whether a host or address is this machine, and whether it is link-local."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost", False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback, address.is_link_local or str(address) == "fd00:ec2::254"


def check_address(url: str) -> None:
    """Rule 1, of a configured address.

    Raises:
        UsageError: ST-USAG-023.
    """
    parts = urlsplit(url)
    loopback, local = is_local(parts.hostname or "")
    if local or not _ADDRESS.fullmatch(parts.netloc):
        raise UsageError("ST-USAG-023", "an address that no store has", parts.netloc)
    if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
        raise UsageError("ST-USAG-023", "not by TLS, and not on this machine", parts.netloc)


class Egress(ThreadingHTTPServer):
    """The proxy.

    `places` are the URLs that requests may go to: the store first, then what credentials are got
    from. Plain HTTP is for this machine, and for a cloud's metadata that the configuration names.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, places: list[str]) -> None:
        """Listen, and serve until the process ends."""
        self._tls = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
        super().__init__(("127.0.0.1", 0), _Handler)
        self.places = {urlsplit(url).netloc: urlsplit(url) for url in reversed(places)}
        self.store = urlsplit(places[0])
        self.word = secrets.token_urlsafe(32)
        self.ahead = 0.0
        """Seconds by which the store's clock is ahead of this one, by its last answer."""
        self.pages = PAGES
        """Answers that the listing that goes on may still have."""
        self.ask: Callable[[bytes], bytes] = bytes
        """What a forked child asks of this process, in which obstore would wait for ever."""
        self.idle: dict[str, list[Any]] = {netloc: [] for netloc in self.places}
        threading.Thread(target=self.serve_forever, name="egress", daemon=True).start()

    def asked(self, data: bytes) -> bytes:
        """The answer of the process that this one was forked from."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=LONGEST)
        with closing(connection):
            connection.request("POST", ASK, data, _authorized(urlsplit(self.url)))
            return connection.getresponse().read()

    @property
    def url(self) -> str:
        """The proxy as obstore is told of it."""
        return f"http://securetrain:{self.word}@127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A request that ended badly has had its connection cut, which says it all."""

    def server_close(self) -> None:
        """Stop for good."""
        self.shutdown()
        super().server_close()
        for connection in chain.from_iterable(self.idle.values()):
            connection.close()

    def take(self, netloc: str) -> Any:
        """A connection, of which nothing is left from before."""
        while idle := self.idle[netloc]:
            with suppress(IndexError):  # another thread has been faster
                found = idle.pop()
                if not wait([found.sock], 0):
                    return found
                found.close()
        return self._new(self.places[netloc])

    def _new(self, parts: SplitResult) -> Any:
        host = parts.hostname or ""
        proxy = urlsplit("" if proxy_bypass(host) else getproxies().get(parts.scheme, ""))
        kind: Any = http.client.HTTPConnection
        options: dict[str, Any] = {"timeout": CONNECT}
        if parts.scheme == "https":
            kind, options["context"] = http.client.HTTPSConnection, self._tls
        port = parts.port or kind.default_port
        made: Any = kind(proxy.hostname or host, proxy.port or port, **options)
        if proxy.hostname:
            made.set_tunnel(host, port, _authorized(proxy))
        made.connect()
        credentials = parts.scheme == "http" and parts != self.store
        if not (proxy.hostname or credentials) and is_local(made.sock.getpeername()[0])[1]:
            made.close()
            raise _RefusedError(f"{host} is at an address that no store has")
        made.sock.settimeout(READ)
        return made


def _authorized(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    word = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(word).decode()}"}


class _RefusedError(Exception):
    """A request or answer that is not passed on, and will not be when it is asked again."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Egress

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Say nothing."""

    def handle_one_request(self) -> None:
        """Pass one request on."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self.begun = False
        try:
            self._pass_on()
        except _RefusedError as error:
            self.close_connection = True
            if not self.begun:
                self._whole(403, [("Connection", "close")], str(error).encode())
        except (OSError, http.client.HTTPException):
            self.close_connection = True

    def _begin(self, status: int, headers: list[tuple[str, str]], length: int) -> None:
        self.begun = True
        self.send_response_only(status)
        for name, value in [*headers, ("Content-Length", str(length))]:
            self.send_header(name, value)
        self.end_headers()

    def _whole(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self._begin(status, headers, len(data))
        self.wfile.write(data)

    def _pass_on(self) -> None:
        parts = urlsplit(self.path)
        known = _authorized(urlsplit(self.server.url))["Proxy-Authorization"]
        word = self.headers.get("Proxy-Authorization", "")
        if not secrets.compare_digest(word.encode(), known.encode()):
            raise _RefusedError("not a request of this process")
        if self.path == ASK:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            self._whole(200, [], self.server.ask(asked))
            return
        if parts.netloc not in self.server.places:
            raise _RefusedError(f"{parts.netloc} is not where the configuration leads to")
        if "marker=" in parts.query or "continuation-token=" in parts.query:
            self.server.pages -= 1
            if self.server.pages < 0:
                raise _RefusedError(f"a listing of more than {PAGES} answers")
        connection = self.server.take(parts.netloc)
        try:
            answer = self._ask(connection, parts)
            self._answer(answer)
        except BaseException:
            connection.close()
            raise
        if answer.will_close:
            connection.close()
        else:
            self.server.idle[parts.netloc].append(connection)

    def _ask(self, connection: Any, parts: SplitResult) -> Any:
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.putrequest(self.command, target, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOPS:
                connection.putheader(name, value)
        left = int(self.headers.get("Content-Length") or 0)
        if left or self.command in {"PUT", "POST"}:
            connection.putheader("Content-Length", str(left))
        connection.endheaders()
        while left:
            data = self.rfile.read(min(_PIECE, left))
            if not data:
                raise OSError("the request ends early")
            connection.send(data)
            left -= len(data)
        return connection.getresponse()

    def _answer(self, answer: Any) -> None:
        if 300 <= answer.status < 400 and answer.status != 304:
            raise _RefusedError("the store leads to another address, which is not gone to")
        with suppress(TypeError, ValueError):
            date = parsedate_to_datetime(str(answer.headers["Date"]))
            self.server.ahead = date.timestamp() - time.time()
        headers = [(n, v) for n, v in answer.headers.items() if n.lower() not in _HOPS]
        until = time.monotonic() + GRACE + (answer.length or 0) / SLOWEST
        if self.command == "HEAD":
            self._begin(answer.status, headers, int(answer.headers.get("Content-Length") or 0))
            answer.read()
            return
        if (answer.length or 0) > ANSWER:
            raise _RefusedError(f"an answer of more than {ANSWER} bytes")
        if answer.length is None:  # it is short, or refused
            self._whole(answer.status, headers, b"".join(_pieces(answer, until)))
            return
        self._begin(answer.status, headers, answer.length)
        for data in _pieces(answer, until):
            self.wfile.write(data)
        if answer.length:
            raise OSError("the answer ends early")
        answer.close()


def _pieces(answer: Any, until: float) -> Iterator[bytes]:
    taken = 0
    while data := answer.read1(_PIECE):
        taken += len(data)
        if taken > ANSWER:
            raise _RefusedError(f"an answer of more than {ANSWER} bytes")
        if time.monotonic() > until:
            raise OSError("the answer comes too slowly")
        yield data
