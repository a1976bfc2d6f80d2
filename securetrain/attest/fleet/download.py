# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Downloads from named services, within bounds. Nothing that comes from here is believed.

Rules:

1. only origins (scheme, host and port) that were named beforehand are asked; no redirect is
   followed, for it would leave them;
2. outside of loopback the scheme is https, with the system's trusted CAs;
3. an answer has status 200 and at most the size that the caller allows, and is all there within a
   time, however slowly it comes;
4. proxies are taken from the environment (``HTTPS_PROXY``, ``NO_PROXY``), as `urllib` does.

What makes a document trustworthy is its signature, which the caller checks; these rules keep a bad
service or a man in the middle from costing more than time.
"""

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from securetrain.core.errors import AttestationError

TIMEOUT: Final = 20.0
_CHUNK: Final = 64 << 10
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_CODE: Final = "ST-ATTS-741"


@dataclass(frozen=True, slots=True)
class Answer:
    """A service's answer."""

    body: bytes
    headers: Mapping[str, str]
    """By lower-case name."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect to be an error."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Never."""


class Downloader:
    """Asks the origins that it was made for."""

    def __init__(
        self,
        origins: Collection[str],
        *,
        timeout: float = TIMEOUT,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Name the origins.

        Args:
            origins: ``https://host`` or ``https://host:port``; http for loopback only.
            timeout: seconds for a whole answer, and for each wait in it.
            monotonic: a clock.

        Raises:
            AttestationError: ST-ATTS-741 when an origin is none.
        """
        for origin in origins:
            parts = urlsplit(origin)
            secure = parts.scheme == "https" or parts.hostname in _LOOPBACK
            if origin != f"{parts.scheme}://{parts.netloc}" or not parts.hostname or not secure:
                raise _refused("not an https origin", origin)
        self._origins = frozenset(origins)
        self._timeout = timeout
        self._monotonic = monotonic
        self._opener = urllib.request.build_opener(_NoRedirect)

    def get(self, url: str, limit: int, headers: Mapping[str, str] | None = None) -> Answer:
        """A document of at most `limit` bytes.

        Raises:
            AttestationError: ST-ATTS-741.
        """
        return self._ask(url, None, limit, headers or {})

    def post(self, url: str, body: bytes, kind: str, limit: int) -> Answer:
        """The answer to a body of media type `kind`.

        Raises:
            AttestationError: ST-ATTS-741.
        """
        return self._ask(url, body, limit, {"Content-Type": kind})

    def _ask(self, url: str, body: bytes | None, limit: int, headers: Mapping[str, str]) -> Answer:
        parts = urlsplit(url)
        if f"{parts.scheme}://{parts.netloc}" not in self._origins:
            raise _refused("the service is none of those that were named", url)
        deadline = self._monotonic() + self._timeout
        request = urllib.request.Request(  # noqa: S310 - the origin was compared above
            url, data=body, headers={"User-Agent": "securetrain", **headers}
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                if response.status != 200:
                    raise _refused(f"it answered with status {response.status}", url)
                declared = response.headers.get("Content-Length", "")
                length = int(declared) if declared.isdecimal() else None
                data = self._read(response.read1, length, limit, deadline, url)
                names = {name.lower(): value for name, value in response.headers.items()}
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(f"it answered with status {error.code}", url) from error
        except (OSError, HTTPException, ValueError) as error:
            raise _refused(str(getattr(error, "reason", error)) or repr(error), url) from error
        return Answer(data, names)

    def _read(
        self,
        read: Callable[[int], bytes],
        length: int | None,
        limit: int,
        deadline: float,
        url: str,
    ) -> bytes:
        data = bytearray()
        # Piece by piece as it comes, so that who sends slowly is noticed.
        while length is None or len(data) < length:
            piece = read(_CHUNK)
            if not piece:
                break
            data += piece
            if len(data) > limit:
                raise _refused(f"more than {limit} bytes", url)
            if self._monotonic() > deadline:
                raise _refused(f"no whole answer within {self._timeout:g} s", url)
        if length is not None and len(data) != length:
            raise _refused(f"{len(data)} of {length} bytes came", url)
        return bytes(data)


def _refused(what: str, url: str) -> AttestationError:
    return AttestationError(
        _CODE, what, url, "check the network and proxy, or bring the document by hand"
    )
