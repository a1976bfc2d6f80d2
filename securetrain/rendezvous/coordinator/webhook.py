# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Notices of a coordinator to a webhook: a bar, a refusal, something that ends.

Rules:

1. the coordinator never waits: notices stand in a queue with a limit and are sent by a thread. What
   does not fit, or comes faster than `PER_MINUTE`, is counted, and the next notice says how many;
2. a notice holds the event's name, subject, code and text, and nothing else: no evidence, no
   address, no key. Its body is signed: ``Securetrain-Signature: t=SECONDS,v1=HEX``, the HMAC-SHA256
   of ``SECONDS.BODY`` under the shared secret, so that a reader can refuse what is old or forged;
3. HTTPS with the server's name verified, or HTTP on loopback. A redirect is not followed. The name
   is resolved once for each attempt, and the connection goes to the address that was checked: never
   to link-local addresses (clouds' metadata), multicast or "any", whatever the name server says;
4. an attempt has a time limit; there are `ATTEMPTS` of them, with pauses, and none after an answer
   that another attempt would not change (4xx).

Source: RFC 2104 (HMAC), RFC 3927 (link-local), RFC 9110 (status codes).
"""

import hashlib
import hmac
import http.client
import ipaddress
import queue
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from securetrain.core import CODES, canonical
from securetrain.core.errors import UsageError
from securetrain.core.files import read_file
from securetrain.ledger import Event

ATTEMPTS: Final = 4
QUEUE_LIMIT: Final = 256
PER_MINUTE: Final = 60
TEXT_LIMIT: Final = 500
SECRET_BYTES: Final = 32
SIGNATURE: Final = "Securetrain-Signature"
_SECONDS: Final = 5.0
_ENDINGS: Final = frozenset(
    {"collateral-ending", "reference-values-ending", "reference-values-not-read"}
)
_REFUSALS: Final = frozenset({"node-refused", "enrolment-refused"})
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a webhook."""

    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> "Target":
        """Read a URL.

        Raises:
            UsageError: ST-USAG-001, without the URL: it may hold a secret.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise _no_target("it is no URL") from error
        secure = parts.scheme == "https"
        if parts.username is not None or parts.password is not None:
            raise _no_target("it holds a user or a password")
        if not host or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
            raise _no_target("it names no server, or has a fragment or a blank")
        if not secure and (parts.scheme != "http" or host not in _LOOPBACK):
            raise _no_target("it is not https, nor http on loopback")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(secure, host, port or (443 if secure else 80), path)


def _no_target(what: str) -> UsageError:
    return UsageError(
        "ST-USAG-001", what, "--webhook", "write https://HOST/PATH, or http:// on 127.0.0.1"
    )


def read_webhook_secret(path: Path) -> bytes:
    """The shared secret of a file, at least `SECRET_BYTES` long.

    Raises:
        UsageError: ST-USAG-001 when it is short or others may read it, ST-USAG-002.
    """
    secret = read_file(path, 4096).strip()
    if len(secret) < SECRET_BYTES or path.stat().st_mode & 0o077:
        raise UsageError(
            "ST-USAG-001",
            f"it is shorter than {SECRET_BYTES} bytes, or others may read it",
            str(path),
            f"make one: (umask 077; openssl rand -hex {SECRET_BYTES} > {path.name})",
        )
    return secret


def signature(secret: bytes, seconds: int, body: bytes) -> str:
    """The value of the header `SIGNATURE`."""
    mac = hmac.new(secret, b"%d." % seconds + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={mac}"


class Webhook:
    """Sends notices until it is stopped."""

    def __init__(
        self,
        target: Target,
        secret: bytes,
        job: str,
        clock: Callable[[], datetime],
        *,
        trust: ssl.SSLContext | None = None,
        pause: float = 1.0,
    ) -> None:
        """Start the thread.

        Args:
            target: of the notices.
            secret: shared with whoever reads them.
            job: of the coordinator.
            clock: the time, timezone-aware.
            trust: the CAs of the server; None for the system's.
            pause: seconds before the second attempt; each later one waits twice as long.
        """
        self._target, self._secret, self._job, self._clock = target, secret, job, clock
        self._trust = trust or ssl.create_default_context()
        self._pause = pause
        self._queue: queue.Queue[dict[str, str]] = queue.Queue(QUEUE_LIMIT)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._minute, self._in_minute, self._left_out = 0, 0, 0
        self.sent = 0
        self.lost = 0
        self.problem = ""
        """The reason for the last loss of a notice."""
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    def take(self, event: Event) -> None:
        """Put a notice of an event into the queue, if it is one of which there are notices."""
        kind = kind_of(event)
        if not kind:
            return
        notice = {
            "id": str(uuid.uuid4()),
            "at": self._clock().isoformat(),
            "kind": kind,
            "event": event.event,
            "job": self._job,
            "subject": event.subject[:TEXT_LIMIT],
            "code": event.code,
            "text": str(event.details.get("what", event.details.get("days", "")))[:TEXT_LIMIT],
        }
        with self._lock:
            minute = int(time.monotonic() // 60)
            if minute != self._minute:
                self._minute, self._in_minute = minute, 0
            self._in_minute += 1
            # A flood of refusals leaves room for what matters more.
            if kind == "refusal" and self._in_minute > PER_MINUTE:
                self._left_out += 1
                return
            try:
                self._queue.put_nowait(notice)
            except queue.Full:
                self._left_out += 1

    def stop(self, seconds: float = _SECONDS) -> None:
        """Send what is left for some seconds, then no more."""
        end = time.monotonic() + seconds
        while self._queue.unfinished_tasks and time.monotonic() < end:
            self._stopping.wait(0.02)
        self._stopping.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                notice = self._queue.get(timeout=0.2)
            except queue.Empty:
                continue
            with self._lock:
                left_out, self._left_out = self._left_out, 0
            if self._deliver({**notice, "left_out": str(left_out)}):
                self.sent += 1
            else:
                self.lost += 1
            self._queue.task_done()

    def _deliver(self, notice: dict[str, str]) -> bool:
        body = canonical.encode(notice)
        for attempt in range(ATTEMPTS):
            if attempt and self._stopping.wait(self._pause * 2 ** (attempt - 1)):
                return False
            try:
                status = self._post(body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.problem = type(error).__name__  # its text may hold the URL
                continue
            if 200 <= status < 300:
                return True
            self.problem = f"status {status}"
            if 300 <= status < 500 and status not in {408, 429}:
                return False
        return False

    def _post(self, body: bytes) -> int:
        target = self._target
        address = checked_address(target)
        connection = http.client.HTTPConnection(target.host, target.port, timeout=_SECONDS)
        plain = socket.create_connection((address, target.port), timeout=_SECONDS)
        try:
            connection.sock = (
                self._trust.wrap_socket(plain, server_hostname=target.host)
                if target.secure
                else plain
            )
            seconds = int(self._clock().timestamp())
            connection.request(
                "POST",
                target.path,
                body,
                {
                    "Content-Type": "application/json",
                    "User-Agent": "securetrain",
                    SIGNATURE: signature(self._secret, seconds, body),
                },
            )
            return connection.getresponse().status  # the body of an answer is nobody's business
        finally:
            connection.close()
            plain.close()


def checked_address(target: Target) -> str:
    """The address to connect to.

    Raises:
        OSError: the name has none, or one that no webhook has.
    """
    found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    for *_, place in found:
        address = ipaddress.ip_address(str(place[0]).partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        if (
            mapped.is_link_local
            or mapped.is_multicast
            or mapped.is_unspecified
            or (mapped.is_loopback and target.host not in _LOOPBACK)
            or (not mapped.is_loopback and not target.secure)
        ):
            raise OSError("the name leads to an address that no webhook has")
    return str(found[0][4][0])


def kind_of(event: Event) -> str:
    """``bar``, ``refusal`` or ``expiry``; empty for what is no notice."""
    row = CODES.get(event.code)
    if event.event == "node-evicted":
        return "bar" if row is not None and row.bars_node else "refusal"
    if event.event in _REFUSALS:
        return "refusal"
    return "expiry" if event.event in _ENDINGS else ""
