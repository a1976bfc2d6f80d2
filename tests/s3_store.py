# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A store on loopback, and a proxy before it that does what goes wrong.

S3 is moto in server mode; the two others are in `tests/artifacts/stores/worlds.py`. obstore is led
to the proxy by environment variables. The proxy numbers the requests and asks `S3Store.fault` about
each; what that returns is done to it.
"""

import http.client
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit

from securetrain.artifacts.tree import objects
from tests.artifacts.stores.worlds import Memory

BUCKET: Final = "bucket"
KINDS: Final = ("s3", "gs", "az")
_CONDITIONS: Final = frozenset({"if-match", "if-none-match", "x-goog-if-generation-match"})
_ANYBODY: Final = (
    "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
)
"""moto asks for a name and does not check what it has signed."""


class Fault(StrEnum):
    """What becomes of one request."""

    SLOW = "slow"
    INTERNAL = "500"
    BUSY = "503"
    REFUSED = "cut before it was carried out"
    LOST = "carried out, no answer"
    TWICE = "carried out twice"
    CUT = "answer cut, full length announced"
    SHORT = "answer cut, short length announced"
    FLIPPED = "another bit in the answer"
    WHOLE = "the whole object for a range"
    OTHER_RANGE = "another range, named as such"
    SHIFTED = "another range, named as the right one"
    SWAPPED = "another object"
    STALE = "an earlier answer"
    ABSENT = "404"
    REDIRECT = "a redirect to the address of metadata"
    ENDLESS = "an answer without end"
    IGNORED = "the condition is ignored"


TRANSPORT: Final = (
    Fault.SLOW,
    Fault.INTERNAL,
    Fault.BUSY,
    Fault.REFUSED,
    Fault.LOST,
    Fault.TWICE,
    Fault.CUT,
)
"""What networks and honest stores do."""

LIES: Final = tuple(fault for fault in Fault if fault not in TRANSPORT)
"""What a store does that lies."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    number: int
    method: str
    key: str
    """Of its object; empty for the bucket's requests."""
    query: str
    wanted: str = ""
    """The range of bytes."""

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.key.rpartition("/")[2]


@dataclass(slots=True)
class S3Store:
    """The store and its proxy."""

    upstream: tuple[str, int]
    memory: Memory | None = None
    """The store itself, unless it is moto's S3."""
    fault: Callable[[Asked], Fault | None] = lambda _: None
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    earlier: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)
    _putting: Any = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        """Where the proxy listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def scheme(self) -> str:
        """Of its URLs."""
        return self.memory.kind if self.memory else "s3"

    def honest(self) -> None:
        """No more faults, and a new count."""
        self.fault = lambda _: None
        self.asked.clear()

    def empty(self) -> None:
        """Forget everything but the bucket."""
        self.honest()
        self.earlier.clear()
        if self.memory:
            self.memory.objects.clear()
            return
        self.forward("POST", "/moto-api/reset", {}, b"")
        self.direct("PUT", "")

    def direct(self, method: str, key: str, data: bytes = b"", query: str = "") -> bytes:
        """A request of an administrator, past the proxy."""
        path = f"/{BUCKET}/{key}" + (f"?{query}" if query else "")
        status, _, body = self.forward(method, path, {"Authorization": _ANYBODY}, data)
        assert status < 300, (status, method, key, body)
        return body

    def forward(
        self, method: str, path: str, headers: dict[str, str], data: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """The store's answer."""
        if self.memory:
            return self.memory.forward(method, path, headers, data)
        connection = http.client.HTTPConnection(*self.upstream, timeout=60)
        # moto looks at a condition and puts the object in two steps; no store does.
        with self._putting, closing(connection):
            sent = {k: v for k, v in headers.items() if k.lower() not in {"host", "expect"}}
            connection.request(method, path, data or None, sent)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def note(self, method: str, path: str, wanted: str) -> Asked:
        """Number a request."""
        parts = urlsplit(path)
        key = unquote(parts.path).partition(f"/{BUCKET}")[2].lstrip("/")
        with self._lock:
            one = Asked(len(self.asked), method, key, parts.query, wanted)
            self.asked.append(one)
        return one


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store: S3Store

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Say nothing."""

    def handle_one_request(self) -> None:
        """Read a request, and do to it what the store's fault says."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        length = int(self.headers.get("content-length") or 0)
        data = self.rfile.read(length)
        if len(data) < length:
            self.close_connection = True
            return
        asked = self.store.note(
            self.command, self.path, self.headers.get("x-ms-range", self.headers.get("range", ""))
        )
        fault = self.store.fault(asked)
        try:
            if not self._without_the_store(fault):
                self._answer(asked, fault, data)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _without_the_store(self, fault: Fault | None) -> bool:
        """End a request that is not carried out; whether it was one."""
        match fault:
            case Fault.INTERNAL:
                self._send(500, {}, b"<Error><Code>InternalError</Code></Error>")
            case Fault.BUSY:
                self._send(503, {}, b"<Error><Code>SlowDown</Code></Error>")
            case Fault.ABSENT:
                self._send(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
            case Fault.REDIRECT:
                to = "http://169.254.169.254/latest/meta-data/"
                self._send(307, {"Location": to}, b"")
            case Fault.REFUSED:
                self.close_connection = True
            case _:
                return False
        return True

    def _answer(self, asked: Asked, fault: Fault | None, data: bytes) -> None:
        headers = dict(self.headers.items())
        if fault is Fault.IGNORED:
            headers = {n: v for n, v in headers.items() if n.lower() not in _CONDITIONS}
        if fault is Fault.SLOW:
            time.sleep(0.02)
        if fault is Fault.TWICE:
            self.store.forward(self.command, self.path, headers, data)
        path = self._other(asked) if fault is Fault.SWAPPED and asked.key else self.path
        status, said, body = self.store.forward(self.command, path, headers, data)
        if fault is Fault.LOST:
            self.close_connection = True
            return
        which = asked.key or "".join(parse_qs(asked.query).get("prefix", ()))
        if fault is Fault.STALE and self.command == "GET":
            status, said, body = self.store.earlier.get(which, (status, said, body))
        elif self.command == "GET":
            self.store.earlier.setdefault(which, (status, said, body))
        if self.command == "GET" and status < 300:
            status, said, body = self._changed(asked, fault, (status, said, body))
        announced = len(body)
        if fault is Fault.CUT:
            body = body[: len(body) // 2]
            self.close_connection = True
        if fault is Fault.ENDLESS and self.command == "GET":
            body, announced = body + bytes(16 << 20), announced + (1 << 40)
            self.close_connection = True
        self._send(status, said, body, announced)

    def _other(self, asked: Asked) -> str:
        """The path of another object of the same name, or of the same directory."""
        known = [one.key for one in self.store.asked if one.key and one.key != asked.key]
        same = [key for key in known if key.rpartition("/")[2] == asked.name]
        found = (same or known or [asked.key])[0]
        return self.path.replace(asked.key, found)

    def _changed(
        self, asked: Asked, fault: Fault | None, answer: tuple[int, dict[str, str], bytes]
    ) -> tuple[int, dict[str, str], bytes]:
        status, said, body = answer
        match fault:
            case Fault.SHORT:
                return status, said, body[: len(body) // 2]
            case Fault.FLIPPED if body:
                middle = len(body) // 2
                return status, said, body[:middle] + bytes([body[middle] ^ 4]) + body[middle + 1 :]
            case Fault.WHOLE | Fault.OTHER_RANGE | Fault.SHIFTED if asked.key:
                whole = self.store.direct("GET", asked.key)
                if fault is Fault.WHOLE:
                    said.pop("content-range", None)
                    return 200, said, whole
                moved = (whole + whole)[7 : 7 + len(body)]
                if fault is Fault.OTHER_RANGE:
                    said["content-range"] = f"bytes 7-{6 + len(body)}/{len(whole) + 7}"
                return status, said, moved
        return status, said, body

    def _send(
        self, status: int, said: dict[str, str], body: bytes, announced: int | None = None
    ) -> None:
        self.send_response_only(status)
        size = str(len(body) if announced is None else announced)
        for name, value in said.items():
            if name.lower() == "content-length" and self.command == "HEAD":
                size = value
            if name.lower() not in {"content-length", "connection", "transfer-encoding"}:
                self.send_header(name, value)
        self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def running(kind: str = "s3") -> Iterator[S3Store]:
    """A store with one empty bucket, until the block ends."""
    with ExitStack() as stack:
        if kind == "s3":
            store = S3Store(stack.enter_context(_moto()))
        else:
            store = S3Store(("", 0), Memory(kind, BUCKET))
        handler = type("Proxy", (_Proxy,), {"store": store})
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        proxy.daemon_threads = True
        proxy.handle_error = lambda *_: None  # type: ignore[method-assign]
        store.port = proxy.server_port
        serving = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        serving.start()
        try:
            store.empty()
            yield store
        finally:
            proxy.shutdown()
            proxy.server_close()
            serving.join()


@contextmanager
def lent() -> Iterator[S3Store]:
    """A store to which this process's environment leads, until the block ends."""
    with running("gs") as store, mock.patch.dict(os.environ, environment(store)):
        forget_clients()
        yield store
        forget_clients()


@contextmanager
def _moto() -> Iterator[tuple[str, int]]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    try:
        yield moto.get_host_and_port()
    finally:
        moto.stop()


def environment(store: S3Store) -> dict[str, str]:
    """The variables that lead obstore to a store."""
    match store.scheme:
        case "gs":
            return {"GOOGLE_BASE_URL": store.endpoint, "GOOGLE_BEARER_TOKEN": "test"}
        case "az":
            return {
                "AZURE_STORAGE_ENDPOINT": f"{store.endpoint}/account",
                "AZURE_STORAGE_ACCOUNT_NAME": "account",
                "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
            }
    return {
        "AWS_ENDPOINT_URL_S3": store.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def forget_clients() -> None:
    """Make new clients from now on, by what the environment says now."""
    objects._requests.cache_clear()
    for _, way in objects._first:
        way.server_close()
    objects._first.clear()


@contextmanager
def stored(root: Path) -> Iterator[str]:
    """A run's directory in a store, by its URL."""
    with lent() as store:
        for path in (one for one in root.rglob("*") if one.is_file()):
            store.direct("PUT", f"runs/run/{path.relative_to(root)}", path.read_bytes())
        yield f"gs://{BUCKET}/runs/run"
