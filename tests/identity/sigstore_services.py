# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The servers of a private Sigstore instance on loopback, and what they do wrong when told to.

A CA that certifies whatever an identity token says (as Fulcio does after it has checked the token),
a log with Rekor's second API, and a timestamp authority.
"""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tests.identity.private_sigstore import Instance

ISSUER = "https://ci.example"
PIPELINE = "https://ci.example/acme/models/.ci/release.yml@refs/tags/v1.0"


def token(name: str = PIPELINE, issuer: str = ISSUER, lives: float = 600) -> bytes:
    """An identity token. Its signature is for the CA to check, and ours asks for none."""
    now = datetime.now(UTC)
    claims = {
        "aud": "sigstore",
        "iss": issuer,
        "sub": name,
        "iat": now - timedelta(seconds=700),
        "exp": now + timedelta(seconds=lives),
    }
    return jwt.encode(
        claims, "not-checked-by-our-own-test-server-at-all", algorithm="HS256"
    ).encode()


@dataclass
class Services:
    """The instance behind the servers; its switches are faults."""

    instance: Instance = field(default_factory=Instance)
    issued_at: timedelta = timedelta()
    """How far from now the certificates' ten minutes are."""
    stamps: bool = True
    other_entry: dict[str, Any] | None = None
    """Answer every request for an entry with this one."""
    last_entry: dict[str, Any] | None = None
    broken: bool = False
    url: str = ""

    def certify(self, header: str, request: dict[str, Any]) -> dict[str, Any]:
        claims = jwt.decode(header.removeprefix("Bearer "), options={"verify_signature": False})
        pem = base64.b64decode(request["certificateSigningRequest"])
        key = x509.load_pem_x509_csr(pem).public_key()
        leaf = self.instance.certificate(
            _Public(key),
            [x509.UniformResourceIdentifier(claims["sub"])],
            claims["iss"],
            at=datetime.now(UTC) + self.issued_at,
        )
        chain = [
            one.public_bytes(serialization.Encoding.PEM).decode()
            for one in (leaf, self.instance.ca)
        ]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}

    def record(self, request: dict[str, Any]) -> dict[str, Any]:
        self.last_entry = self.instance.record(request)
        return self.other_entry or self.last_entry

    def config(self) -> bytes:
        """The instance's trust configuration."""

        def service(version: int, path: str = "") -> dict[str, Any]:
            return {
                "url": self.url + path,
                "majorApiVersion": version,
                "validFor": {"start": "2026-01-01T00:00:00Z"},
                "operator": "private",
            }

        signing = {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [service(1)],
            "oidcUrls": [],
            "rekorTlogUrls": [service(2)],
            "rekorTlogConfig": {"selector": "ANY"},
            "tsaUrls": [service(1, "/timestamp")],
            "tsaConfig": {"selector": "ANY"},
        }
        document = {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": json.loads(self.instance.trusted_root()),
            "signingConfig": signing,
        }
        return json.dumps(document).encode()


class _Public:
    """What `Instance.certificate` asks of a key."""

    def __init__(self, key: Any) -> None:
        self._key = key

    def public_key(self) -> Any:
        return self._key


@contextmanager
def serve(services: Services | None = None) -> Iterator[Services]:
    """Serve an instance on loopback."""
    found = services or Services()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if found.broken:
                self._answer(500, b"{}", "application/json")
            elif self.path == "/timestamp":
                if found.stamps:
                    answer = found.instance.stamp(body, datetime.now(UTC))
                    self._answer(200, answer, "application/timestamp-reply")
                else:
                    self._answer(503, b"", "text/plain")
            elif self.path == "/api/v2/log/entries":
                self._json(found.record(json.loads(body)))
            else:
                self._json(found.certify(self.headers["Authorization"], json.loads(body)))

        def do_GET(self) -> None:
            # Some clients look an issuer up that they then have no use for.
            self._json({"authorization_endpoint": found.url, "token_endpoint": found.url})

        def _json(self, value: dict[str, Any]) -> None:
            self._answer(200, json.dumps(value).encode(), "application/json")

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
