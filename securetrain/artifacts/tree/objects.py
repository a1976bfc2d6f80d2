# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Requests to S3, Google Cloud Storage and Azure Blob, through obstore (the extra ``[stores]``).

obstore knows how each store is spoken to and what it wants signed; what goes over the wire is
bounded in `egress.py`. Where the store is, and by which credentials, its environment variables say
(``AWS_``, ``GOOGLE_``, ``AZURE_``). Rules, in order:

1. each request goes by TLS, or to a loopback address, and never to a link-local one, where clouds
   keep their metadata; credentials come from there only when the environment names the address. An
   address that an answer names is not gone to;
2. nothing is waited for without end, and no answer is larger than `egress.ANSWER`; content is asked
   for in pieces of that. A range has the place and length that were asked for;
3. what may succeed when it is asked again is asked again, `TRIES` times in all, after a random
   pause that grows; how often is counted (`Requests.repeated`);
4. an object is put on a condition: nothing lies there, or exactly what was seen there. A store that
   does not keep conditions is found out and refused (`ST-USAG-024`);
5. a request whose answer was lost may have been carried out, and may be carried out twice. So each
   object has a word of its own writer (`WRITER`), by which its writer knows it again; that a
   condition failed says nothing by itself;
6. nothing that the store says is evidence: not its ETags, not its listings, not the sizes. They
   steer requests; what bytes are worth is decided above, by hashes.

One file of a store, written from front to back without knowing how long it becomes.

A small one is one object of its name. A larger one is several, each put on a condition as the first
one is: ``NAME.part-000001`` and so on, and at last ``NAME``, the first part, with the size of all
(ADR 0016). So a file is there when it is whole, no store's multipart upload is begun, which no
listing shows and no condition guards, and whatever a dead saver leaves is an object with a name.
"""

import os
import random
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec

from securetrain.artifacts.tree import egress
from securetrain.artifacts.tree.egress import Egress
from securetrain.core import install_hint
from securetrain.core.errors import UsageError

TRIES: Final = 6
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
WRITER: Final = "securetrainwriter"
"""The object's metadata that says who has put it; Azure takes no hyphen."""
WHOLE: Final = "securetrainsize"
"""The metadata that says how large a file is of which the object is the first part."""
ENTRIES: Final = 200_000
"""Objects that one listing may have."""

_STS: Final = "https://sts.{region}.amazonaws.com"
_LOGIN: Final = "https://login.microsoftonline.com"
_GOOGLE: Final = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN")
_CREDENTIALS: Final = {
    "s3": {
        "AWS_ACCESS_KEY_ID": "",
        "AWS_WEB_IDENTITY_TOKEN_FILE": _STS,
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "{value}",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "http://169.254.170.2",
        "AWS_METADATA_ENDPOINT": "{value}",
        "AWS_SKIP_SIGNATURE": "",
    },
    "gs": {**dict.fromkeys(_GOOGLE, ""), "GCE_METADATA_HOST": "http://{value}"},
    "az": {
        "AZURE_STORAGE_ACCOUNT_KEY": "",
        "AZURE_STORAGE_SAS_KEY": "",
        "AZURE_CLIENT_SECRET": _LOGIN,
        "AZURE_FEDERATED_TOKEN_FILE": _LOGIN,
        "AZURE_MSI_ENDPOINT": "{value}",
    },
}
"""The variables that name credentials, and where those are got from then."""

_S3: Final = {"conditional_put": "etag", "disable_bulk_delete": "true"}

Result = TypeVar("Result")
_Data: TypeAlias = bytes | bytearray


class ConditionError(OSError):
    """An object at a name that is not the one the request has made its condition."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object, by the store's word."""

    size: int
    version: str
    """Its ETag and its version or generation: a condition for the next request, nothing else."""
    kind: str = ""
    """Its content type."""
    writer: str = ""
    age: float = 0.0
    """Seconds since it was put, by the store's clock."""
    whole: int | None = None
    """The size of the file of which it is the first part, when it has more."""


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def _endpoint(scheme: str) -> str:
    """Find where the environment says that the store is."""
    account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    names, theirs = {
        "s3": ("AWS_ENDPOINT_URL_S3 AWS_ENDPOINT_URL", f"https://s3.{_region()}.amazonaws.com"),
        "gs": ("GOOGLE_BASE_URL", "https://storage.googleapis.com"),
        "az": ("AZURE_STORAGE_ENDPOINT", f"https://{account}.blob.core.windows.net"),
    }[scheme]
    return next(filter(None, map(os.environ.get, names.split())), theirs)


def _places(scheme: str) -> list[str]:
    """Find the places that requests may go to, the store first (rule 1).

    Raises:
        UsageError: ST-USAG-023; ST-USAG-001 when nothing names credentials.
    """
    store = _endpoint(scheme)
    egress.check_address(store)
    known = _CREDENTIALS[scheme]
    named = {name: value for name in known if (value := os.environ.get(name))}
    if not named:
        raise UsageError(
            "ST-USAG-001",
            "no credentials are named, and a cloud's metadata is not asked for them unasked",
            f"{scheme}://",
            f"set one of {', '.join(known)} (AWS's profiles: aws configure export-credentials)",
        )
    urls = [known[name].format(value=named[name], region=_region()) for name in named]
    return [store, *filter(None, urls)]


def _plain(url: str) -> str:
    """A URL as obstore is told of it: what it sends goes to `Egress`, which makes the TLS."""
    return urlsplit(url)._replace(scheme="http").geturl()


def _client(scheme: str, bucket: str) -> tuple[Any, Egress]:
    """A store of obstore, and the proxy that it goes through.

    Raises:
        UsageError: ST-USAG-004 without obstore, ST-USAG-023, ST-USAG-001 when the configuration
            does not hold together.
    """
    try:
        from obstore import store  # noqa: PLC0415 - the extra
    except ImportError as error:
        raise UsageError(
            "ST-USAG-004", f"{scheme}:// needs obstore", scheme, install_hint("stores")
        ) from error
    places = _places(scheme)
    try:
        way = Egress(places)
    except OSError as error:
        raise UsageError("ST-USAG-001", str(error), "AWS_CA_BUNDLE", "name a PEM file") from error
    place = _plain(places[0])
    options: dict[str, Any] = {
        "client_options": {
            "allow_http": True,
            "proxy_url": way.url,
            "connect_timeout": timedelta(seconds=egress.CONNECT),
            "timeout": timedelta(seconds=egress.LONGEST),
        },
        # Ours are counted, and know what a lost answer means (rules 3 and 5).
        "retry_config": {"max_retries": 0},
    }
    sts = _plain(_STS.format(region=_region()))
    kind, more = {
        "s3": ("S3Store", {"aws_endpoint_url_s3": place, "aws_endpoint_url_sts": sts} | _S3),
        "gs": ("GCSStore", {"base_url": place}),
        "az": ("AzureStore", {"endpoint": place, "authority_host": _plain(_LOGIN)}),
    }[scheme]
    try:
        return getattr(store, kind)(bucket, **options, **more), way
    except Exception as error:
        way.server_close()
        raise UsageError(
            "ST-USAG-001", _words(error), f"{scheme}://", "correct the environment of the store"
        ) from error


@dataclass(slots=True)
class Requests:
    """The requests of one process to one bucket."""

    bucket: str
    client: Any = field(repr=False)
    way: Egress = field(repr=False)
    pause: Callable[[float], None] = time.sleep
    repeated: int = 0
    """Requests that were asked again."""
    _keeps_conditions: bool = False

    def head(self, key: str) -> Found:
        """An object.

        Raises:
            OSError: FileNotFoundError when there is none.
        """
        said = self._tried(f"HEAD {key}", partial(self.client.get, key, options={"head": True}))
        meta, more = said.meta, said.attributes
        whole = str(more.get(WHOLE, ""))
        return Found(
            size=meta["size"],
            version=_version(meta),
            kind=str(more.get("Content-Type", "")),
            writer=str(more.get(WRITER, "")),
            age=time.time() + self.way.ahead - meta["last_modified"].timestamp(),
            whole=int(whole) if whole.isdecimal() and len(whole) < 19 else None,
        )

    def read_into(self, key: str, view: memoryview, offset: int) -> None:
        """Fill `view` from an object; EOFError when it ends first.

        Raises:
            OSError: FileNotFoundError when there is none.
        """
        for start in range(0, len(view), egress.ANSWER):
            piece = view[start : start + egress.ANSWER]
            self._tried(f"GET {key}", partial(self._read, key, piece, offset + start))

    def _read(self, key: str, view: memoryview, offset: int) -> None:
        end = offset + len(view)
        try:
            said = self.client.get(key, options={"range": (offset, end)})
        except Exception as error:
            if "416 Range Not Satisfiable" in str(error):
                raise EOFError from error
            raise
        begin, last = said.range
        if begin == offset and last < end and last == said.meta["size"]:
            raise EOFError
        data = said.bytes() if (begin, last) == (offset, end) else b""
        if len(data) != len(view):
            raise _WrongAnswerError("the store answered with another range")
        view[:] = memoryview(data)

    def put(
        self, key: str, data: _Data, writer: str, *, over: str = "", kind: str = "", whole: int = 0
    ) -> str:
        """Put an object where nothing lies, or in place of the version `over`; its version.

        `whole` is the size of the file of which it is the first part.

        Raises:
            ConditionError: something else lies there, and it is not this writer's (rule 5).
        """
        more = {WRITER: writer} | ({"Content-Type": kind} if kind else {})
        more |= {WHOLE: str(whole)} if whole else {}

        def once() -> str:
            try:
                made = self.client.put(
                    key, bytes(data), mode=_mode(over), attributes=more, use_multipart=False
                )
                return _version(made)
            except Exception as error:
                if not isinstance(said := _meant(error), ConditionError | FileNotFoundError):
                    raise
                try:
                    found = self.head(key)
                except FileNotFoundError:
                    found = Found(-1, "")
                if found.writer == writer and found.size == len(data):
                    return found.version
                if found.version == over:  # another request stood in its way, and has ended
                    raise _WrongAnswerError(str(error)) from error
                raise ConditionError("something else lies there", key) from said

        return self._tried(f"PUT {key}", once)

    def delete(self, key: str) -> None:
        """Remove an object; none is fine."""
        with suppress(FileNotFoundError):
            self._tried(f"DELETE {key}", partial(self.client.delete, key))

    def listed(self, prefix: str) -> Iterator[tuple[str, int]]:
        """The names and sizes of the objects below a prefix, as the store says."""
        for one in self._tried(f"LIST {prefix}", partial(self._list, prefix)):
            if one["path"] != prefix.rstrip("/"):  # what consoles put to show a folder
                yield _below(prefix, one["path"]), one["size"]

    def _list(self, prefix: str) -> list[Any]:
        self.way.pages = egress.PAGES
        found: list[Any] = []
        for some in self.client.list(prefix):
            found += some
            if len(found) > ENTRIES:
                raise OSError(f"more than {ENTRIES} objects below {prefix}")
        return found

    def folders(self, prefix: str) -> Iterator[str]:
        """The folders right below a prefix."""
        self.way.pages = egress.PAGES
        said = self._tried(f"LIST {prefix}", partial(self.client.list_with_delimiter, prefix))
        for one in said["common_prefixes"]:
            yield _below(prefix, one).rstrip("/")

    def check_conditions(self, key: str) -> None:
        """Put over what lies at `key` on a condition that fails, once a process (rule 4).

        Raises:
            UsageError: ST-USAG-024 when the store does it.
        """
        if self._keeps_conditions:
            return
        for over in ("", '"00000000000000000000000000000000"\n1'):
            try:
                ask = partial(self.client.put, key, b"", mode=_mode(over), use_multipart=False)
                self._tried(f"PUT {key}", ask)
            except ConditionError:
                continue
            with suppress(OSError):
                self.delete(key)  # it is nobody's any more
            raise UsageError("ST-USAG-024", "a condition was ignored", self.bucket)
        self._keeps_conditions = True

    def _tried(self, what: str, ask: Callable[[], Result]) -> Result:
        """Rule 3.

        Raises:
            OSError: refused, or not answered.
        """
        for number in range(TRIES):
            try:
                return ask()
            except (EOFError, UsageError, ConditionError):
                raise
            except Exception as error:
                if said := _meant(error):
                    raise said from error
                if number == TRIES - 1:
                    raise OSError(f"{_words(error)}; asked {TRIES} times: {what}") from error
            except BaseException as error:  # obstore's code has ended where it does not expect to
                if type(error).__name__ == "PanicException":
                    raise OSError(_words(error)) from error
                raise
            self.repeated += 1
            longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2**number)
            self.pause(random.uniform(0, longest))  # noqa: S311 - no secret
        raise AssertionError


class _WrongAnswerError(Exception):
    """An answer that does not fit its request; the next one may."""


_MEANT: Final[dict[str, type[OSError]]] = {
    "AlreadyExistsError": ConditionError,
    "PreconditionError": ConditionError,
    "FileNotFoundError": FileNotFoundError,
    "OSError": OSError,
    "PermissionDeniedError": PermissionError,
    "UnauthenticatedError": PermissionError,
}


def _meant(error: Exception) -> OSError | None:
    """The meaning of a refusal; None when it may be asked again."""
    meant = _MEANT.get(type(error).__name__)
    return meant(_words(error)) if meant else None


def _words(error: BaseException) -> str:
    """Say what obstore says, without the trace of its own code."""
    return f"{type(error).__name__}: {error}".partition("\n\nDebug source")[0][:400]


def _version(said: Any) -> str:
    return f"{said['e_tag'] or ''}\n{said['version'] or ''}"


def _mode(over: str) -> Any:
    tag, _, version = over.partition("\n")
    named = {"e_tag": tag, "version": version}
    return {name: value for name, value in named.items() if value} if over else "create"


def _below(prefix: str, key: str) -> str:
    if not key.startswith(prefix):
        raise OSError("the store listed something else than what was asked for")
    return key.removeprefix(prefix)


@dataclass(slots=True)
class _ReadClient:
    """A store of obstore as a forked child has it, where obstore would wait for ever.

    Reads are asked through the process that it was forked from.
    """

    scheme: str
    bucket: str
    way: Egress

    def get(self, key: str, options: Any) -> Any:
        """See `obstore.get`."""
        asked = msgspec.msgpack.encode((self.scheme, self.bucket, key, options))
        said = msgspec.msgpack.decode(self.way.asked(asked))
        if "error" in said:
            raise type(said["error"], (Exception,), {})(said["words"])
        return SimpleNamespace(**said, bytes=lambda: said["data"])

    def __getattr__(self, name: str) -> Any:
        raise UsageError(
            "ST-USAG-007",
            f"{name} in a process that was forked after its parent had asked a store",
            f"{self.scheme}://{self.bucket}",
            "list and save in the parent, or start the process by spawn",
        )


def _for_child(asked: bytes) -> bytes:
    scheme, bucket, key, options = msgspec.msgpack.decode(asked)
    try:
        said = requests_of(scheme, bucket).client.get(key, options=options)
        data = b"" if "head" in options else bytes(said.bytes())
        found = {name: getattr(said, name) for name in ("meta", "attributes", "range")}
        return msgspec.msgpack.encode({**found, "data": data})
    except Exception as error:  # noqa: BLE001 - whoever asked is told of it
        return msgspec.msgpack.encode({"error": type(error).__name__, "words": _words(error)})


def requests_of(scheme: str, bucket: str) -> Requests:
    """The requests of this process to a bucket.

    Raises:
        UsageError: ST-USAG-004, ST-USAG-023, ST-USAG-001.
    """
    return _requests(scheme, bucket, os.getpid())


@lru_cache(maxsize=16)
def _requests(scheme: str, bucket: str, pid: int) -> Requests:
    """One client for all threads; a forked child reads through its parent's."""
    if _first and _first[0][0] != pid:
        way = _first[0][1]
        return Requests(bucket, _ReadClient(scheme, bucket, way), way)
    client, way = _client(scheme, bucket)
    way.ask = _for_child
    _first.append((pid, way))
    return Requests(bucket, client, way)


_first: Final[list[tuple[int, Egress]]] = []
"""The process that has asked stores, and its ways there."""


PART: Final = 32 << 20
"""Bytes of a part: 200,000 objects (`objects.ENTRIES`) are 6.7 TB."""
AT_ONCE: Final = 2
_PART: Final = re.compile(r"(.+)\.part-(\d{6})", re.DOTALL)


def part_name(name: str, number: int) -> str:
    """The name of a part, counted from 0."""
    return f"{name}.part-{number:06d}" if number else name


def joined(listed: list[tuple[str, int]]) -> dict[str, int]:
    """The files that listed objects are, by name: those of parts once, with the size of all.

    A part without those before it keeps its own name, under which no statement names it.
    """
    files = dict(listed)
    following: dict[str, int] = {}
    for name, size in sorted(listed):
        found = _PART.fullmatch(name)
        whole = found[1] if found else ""
        if whole in files and name == part_name(whole, following.get(whole, 1)):
            following[whole] = following.get(whole, 1) + 1
            files[whole] += size
            del files[name]
    return files


def new_writer(save_id: str) -> str:
    """A word by which a writer knows its object again."""
    return f"{save_id}.{secrets.token_hex(8)}"


@dataclass(slots=True)
class Upload:
    """A file in the making."""

    requests: Requests
    key: str
    writer: str
    pool: ThreadPoolExecutor
    size: int = 0
    _first: bytearray | None = None
    _buffer: bytearray = field(default_factory=bytearray)
    _parts: "deque[tuple[str, Future[str]]]" = field(default_factory=deque)
    _done: list[str] = field(default_factory=list)

    @classmethod
    @contextmanager
    def create(cls, requests: Requests, key: str, save_id: str) -> Iterator["Upload"]:
        """A new file, which is there when the block ends well, and not otherwise.

        Raises:
            OSError: FileExistsError when something of another writer lies there.
        """
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="upload") as pool:
            upload = cls(requests, key, new_writer(save_id), pool)
            try:
                yield upload
                upload.end()
            except BaseException as error:
                upload.abort()
                if isinstance(error, ConditionError):
                    raise FileExistsError(f"{key}: somebody else has put it") from error
                raise

    def write(self, data: memoryview) -> None:
        """Append all of `data`."""
        data = data.cast("B")
        self.size += len(data)
        while len(data):
            room = PART - len(self._buffer)
            # The last part stays here until something follows it: it may be the only one.
            if not room:
                self._send()
                continue
            self._buffer += data[:room]
            data = data[room:]

    def end(self) -> None:
        """Put the first part, after all others."""
        if self._first is None:
            self.requests.put(self.key, self._buffer, self.writer)
            return
        self._send()
        while self._parts:
            self._wait()
        self.requests.put(self.key, self._first, self.writer, whole=self.size)

    def abort(self) -> None:
        """Give it up: remove the parts that are this writer's, as far as the store is reached."""
        for name, part in self._parts:
            if not part.cancel() and part.exception() is None:
                self._done.append(name)
        for name in self._done:
            with suppress(OSError):
                self.requests.delete(name)

    def _send(self) -> None:
        part, self._buffer = self._buffer, bytearray()
        if self._first is None:
            self._first = part
            return
        name = part_name(self.key, len(self._done) + len(self._parts) + 1)
        self._parts.append((name, self.pool.submit(self.requests.put, name, part, self.writer)))
        while len(self._parts) > AT_ONCE:
            self._wait()

    def _wait(self) -> None:
        name, part = self._parts.popleft()
        part.result()
        self._done.append(name)
