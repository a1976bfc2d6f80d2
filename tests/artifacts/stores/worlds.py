# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Google Cloud Storage and Azure Blob, as far as obstore asks them, in this process's memory."""

import itertools
import re
import threading
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

Answer = tuple[int, dict[str, str], bytes]


@dataclass(slots=True)
class Memory:
    """One bucket of one kind: "gs" or "az"."""

    kind: str
    bucket: str
    page: int = 1000
    """Names in one answer to a listing."""
    objects: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    """Generation, headers and bytes."""
    _count: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1000))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def forward(self, method: str, path: str, headers: dict[str, str], data: bytes) -> Answer:
        """The answer to a request."""
        parts = urlsplit(path)
        key = unquote(parts.path).partition(f"/{self.bucket}")[2].lstrip("/")
        said = {name.lower(): value for name, value in headers.items()}
        with self._lock:
            if method == "POST":
                return self._batch(data)
            if not key:
                return self._list(parse_qs(parts.query, keep_blank_values=True))
            if method == "PUT":
                return self._put(key, said, data)
            if key not in self.objects:
                return 404, {"x-ms-error-code": "BlobNotFound"}, b"<Error/>"
            if method == "DELETE":
                del self.objects[key]
                return 204 if self.kind == "gs" else 202, {}, b""
            return self._get(key, said, head=method == "HEAD")

    def _batch(self, data: bytes) -> Answer:
        """Azure's way to delete, also of one."""
        answers = ""
        for number, path in enumerate(re.findall(rb"^DELETE (\S+) ", data, re.MULTILINE)):
            key = unquote(path.decode()).partition(f"/{self.bucket}/")[2]
            gone = self.objects.pop(key, None)
            status = "202 Accepted" if gone else "404 Not Found\r\nx-ms-error-code: BlobNotFound"
            answers += "--batch\r\nContent-Type: application/http\r\n"
            answers += f"Content-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\n\r\n\r\n"
        headers = {"Content-Type": "multipart/mixed; boundary=batch"}
        return 202, headers, f"{answers}--batch--\r\n".encode()

    def _etag(self, generation: int) -> str:
        return f'"0x{generation:X}"'

    def _put(self, key: str, said: dict[str, str], data: bytes) -> Answer:
        old = self.objects.get(key, (0, {}, b""))[0]
        if "x-goog-if-generation-match" in said and said["x-goog-if-generation-match"] != str(old):
            return 412, {}, b"<Error/>"
        if said.get("if-none-match") == "*" and old:
            return 409, {"x-ms-error-code": "BlobAlreadyExists"}, b"<Error/>"
        if "if-match" in said and said["if-match"] != self._etag(old):
            return 412, {"x-ms-error-code": "ConditionNotMet"}, b"<Error/>"
        generation = next(self._count)
        kept = {n: v for n, v in said.items() if n.startswith(("x-goog-meta-", "x-ms-meta-"))}
        kind = said.get("content-type") or said.get("x-ms-blob-content-type")
        kept["Content-Type"] = kind or "application/octet-stream"
        kept["Last-Modified"] = formatdate(usegmt=True)
        self.objects[key] = generation, kept, data
        return 200 if self.kind == "gs" else 201, self._told(key), b""

    def _told(self, key: str) -> dict[str, str]:
        generation, kept, _ = self.objects[key]
        told = {**kept, "ETag": self._etag(generation), "Date": formatdate(usegmt=True)}
        return told | ({"x-goog-generation": str(generation)} if self.kind == "gs" else {})

    def _get(self, key: str, said: dict[str, str], *, head: bool) -> Answer:
        data, told = self.objects[key][2], self._told(key)
        if head:
            return 200, {**told, "Content-Length": str(len(data))}, b""
        wanted = said.get("x-ms-range") or said.get("range")
        if not wanted:
            return 200, told, data
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last), len(data) - 1)
        if begin >= len(data):
            return 416, {}, b"<Error/>"
        told["content-range"] = f"bytes {begin}-{end}/{len(data)}"
        return 206, told, data[begin : end + 1]

    def _list(self, asked: dict[str, list[str]]) -> Answer:
        prefix = asked.get("prefix", [""])[0]
        after = (asked.get("continuation-token") or asked.get("marker") or [""])[0]
        found: list[str] = []
        for key in sorted(key for key in self.objects if key.startswith(prefix)):
            rest = key.removeprefix(prefix)
            folder = prefix + rest.partition("/")[0] + "/"
            name = folder if "delimiter" in asked and "/" in rest else key
            if name > after and name not in found:
                found.append(name)
        page, more = found[: self.page], found[self.page :]
        one = self._goog if self.kind == "gs" else self._azure
        body = "".join(one(name) for name in page)
        following = escape(page[-1]) if more else ""
        if self.kind == "gs":
            token = f"<NextContinuationToken>{following}</NextContinuationToken>" if more else ""
            text = f"<ListBucketResult><IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
            text += f"{token}{body}</ListBucketResult>"
        else:
            text = f"<EnumerationResults><Blobs>{body}</Blobs>"
            text += f"<NextMarker>{following}</NextMarker></EnumerationResults>"
        return 200, {"Content-Type": "application/xml"}, text.encode()

    def _goog(self, name: str) -> str:
        if name not in self.objects:
            return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        generation, _, data = self.objects[name]
        return (
            f"<Contents><Key>{escape(name)}</Key><Size>{len(data)}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{self._etag(generation)}</ETag></Contents>"
        )

    def _azure(self, name: str) -> str:
        if name not in self.objects:
            return f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>"
        generation, kept, data = self.objects[name]
        return (
            f"<Blob><Name>{escape(name)}</Name><Properties>"
            f"<Last-Modified>{kept['Last-Modified']}</Last-Modified>"
            f"<Content-Length>{len(data)}</Content-Length>"
            f"<Content-Type>{escape(kept['Content-Type'])}</Content-Type>"
            f"<Etag>{self._etag(generation)}</Etag></Properties></Blob>"
        )
