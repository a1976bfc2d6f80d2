# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Requests to an S3 store, through botocore (the extra ``[s3]``), bounded in every direction.

Where the store is, and by which credentials, is botocore's own configuration: ``AWS_PROFILE``,
``AWS_ENDPOINT_URL_S3``, ``AWS_CA_BUNDLE``, the files below ``~/.aws``, roles of machines and pods.
Rules, in order:

1. each request goes by TLS, or to a loopback address, and never to a link-local one, where clouds
   keep their metadata (`check_address`, asked about every request and not only about what was
   configured). An address that an answer names is not gone to;
2. nothing is waited for without end: connecting, each read, and an answer as a whole, which has to
   come at `SLOWEST` bytes a second; an answer that is not an object's content is `ANSWER` bytes at
   most. A range has the place and length that were asked for before a byte of it is taken;
3. what may succeed when it is asked again is asked again, `TRIES` times in all, after a random
   pause that grows; how often is counted (`Requests.repeated`);
4. an object is put on a condition: nothing lies there, or exactly what was seen there. A store that
   does not keep conditions is found out and refused (`ST-USAG-024`);
5. a request whose answer was lost may have been carried out, and may be carried out twice. So each
   object has a word of its own writer (`WRITER`), by which its writer knows it again; that a
   condition failed says nothing by itself;
6. nothing that the store says is evidence: not its ETags, not its listings, not the sizes. They
   steer requests; what bytes are worth is decided above, by hashes.
"""

import ipaddress
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from securetrain.core import install_hint
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
"""Bytes of an answer that is no content: a listing of 1,000 names has about two million."""
TRIES: Final = 6
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
POOL: Final = 64
"""Connections: as many as threads read (`pool.MOST`)."""
PAGES: Final = 1000
"""Answers to one listing, of 1,000 names each."""
WRITER: Final = "securetrain-writer"
"""The object's metadata that says who has put it."""

_AGAIN: Final = frozenset(
    {
        "ConditionalRequestConflict",
        "OperationAborted",
        "RequestTimeout",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
_TAKEN: Final = frozenset({"PreconditionFailed", "412"})

Result = TypeVar("Result")


class ConditionError(OSError):
    """An object at a name that is not the one the request has made its condition."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object, by the store's word."""

    size: int
    version: str
    """Its ETag: a condition for the next request, and nothing else."""
    kind: str = ""
    """Its content type."""
    writer: str = ""
    age: float = 0.0
    """Seconds since it was put, by the store's clock; 0 when it does not say."""


def check_address(url: str) -> None:
    """Rule 1.

    Raises:
        UsageError: ST-USAG-023.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        loopback, local = host == "localhost", False
    else:
        address = getattr(address, "ipv4_mapped", None) or address
        loopback = address.is_loopback
        local = address.is_link_local or str(address) == "fd00:ec2::254"
    if local or not host:
        raise UsageError("ST-USAG-023", "an address that no store has", parts.netloc)
    if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
        raise UsageError("ST-USAG-023", "not by TLS, and not on this machine", parts.netloc)


class _Answer:
    """The body of an answer, within limits of size and time (rule 2)."""

    def __init__(self, raw: Any, length: int, clock: Callable[[], float]) -> None:
        self._raw = raw
        self._clock = clock
        self._until = clock() + GRACE + length / SLOWEST

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def read(self, amount: int | None = None) -> bytes:
        """The next bytes, as many as have come."""
        if self._clock() > self._until:
            raise TimeoutError("the answer comes too slowly")
        if amount is None:
            return b"".join(self.stream())
        data: bytes = self._raw.read1(amount)
        return data

    def stream(self, amount: int = 1 << 16, **_: Any) -> Iterator[bytes]:
        """An answer without content, piece by piece."""
        taken = 0
        while data := self.read(amount):
            taken += len(data)
            if taken > ANSWER:
                raise OSError(f"an answer of more than {ANSWER} bytes")
            yield data


def _client() -> Any:
    """A client of botocore that sends as rules 1 and 2 say.

    Raises:
        UsageError: ST-USAG-004 without botocore, ST-USAG-023, ST-USAG-001 when the configuration
            does not hold together.
    """
    try:
        from botocore.config import Config  # noqa: PLC0415 - the extra
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - the extra
        from botocore.httpsession import URLLib3Session  # noqa: PLC0415 - the extra
        from botocore.session import get_session  # noqa: PLC0415 - the extra
        from botocore.utils import get_environ_proxies  # noqa: PLC0415 - the extra
    except ImportError as error:
        raise UsageError("ST-USAG-004", "s3:// needs botocore", "s3", install_hint("s3")) from error
    config = Config(
        connect_timeout=CONNECT,
        read_timeout=READ,
        max_pool_connections=POOL,
        # Ours are counted, and know what a lost answer means (rules 3 and 5).
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Every byte is hashed above; the store's own sum would be one more, of the same source.
        response_checksum_validation="when_required",
    )
    try:
        session = get_session()
        client = session.create_client("s3", config=config)
        ca = session.get_config_variable("ca_bundle")
    except (BotoCoreError, ValueError) as error:
        raise UsageError("ST-USAG-001", str(error), "s3", "correct AWS's configuration") from error
    url = str(client.meta.endpoint_url)
    check_address(url)
    http = URLLib3Session(
        verify=ca or True,
        proxies=get_environ_proxies(url),
        timeout=(CONNECT, READ),
        max_pool_connections=POOL,
    )

    def send(request: Any, **_: Any) -> Any:
        check_address(request.url)
        request.stream_output = True  # nothing is read before it is bounded
        answer = http.send(request)
        said = str(answer.headers.get("content-length", ""))
        length = int(said) if said.isdecimal() and len(said) < 16 else 0
        answer.raw = _Answer(answer.raw, length, time.monotonic)
        return answer

    client.meta.events.register_first("before-send.s3.*", send)
    return client


@dataclass(slots=True)
class Requests:
    """The requests of one process to one bucket."""

    bucket: str
    client: Any = field(repr=False)
    pause: Callable[[float], None] = time.sleep
    repeated: int = 0
    """Requests that were asked again."""
    _keeps_conditions: bool = False

    def head(self, key: str) -> Found:
        """An object.

        Raises:
            OSError: FileNotFoundError when there is none.
        """
        said = self._ask("head_object", Key=key)
        return Found(
            size=_size(said.get("ContentLength")),
            version=str(said.get("ETag", "")),
            kind=str(said.get("ContentType", "")),
            writer=str(said.get("Metadata", {}).get(WRITER, "")),
            age=_age(said),
        )

    def read_into(self, key: str, view: memoryview, offset: int) -> None:
        """Fill `view` from an object; EOFError when it ends first.

        Raises:
            OSError: FileNotFoundError when there is none.
        """
        if len(view):
            self._tried(f"GET {key}", partial(self._read, key, view, offset))

    def _read(self, key: str, view: memoryview, offset: int) -> None:
        end = offset + len(view) - 1
        try:
            said = self.client.get_object(
                Bucket=self.bucket, Key=key, Range=f"bytes={offset}-{end}"
            )
        except Exception as error:
            if _code(error) == "InvalidRange":
                raise EOFError from error
            raise
        body = said["Body"]
        try:
            begin, last, size = _range(said)
            if begin == offset and last < end and last == size - 1:
                raise EOFError
            if (begin, last) != (offset, end) or _size(said.get("ContentLength")) != len(view):
                raise _WrongAnswerError("the store answered with another range")
            done = 0
            while done < len(view):
                data = body.read(min(1 << 20, len(view) - done))
                if not data:
                    raise _WrongAnswerError("the answer ends early")
                view[done : done + len(data)] = data
                done += len(data)
        except BaseException:
            body.close()  # a connection with something left in it is not used again
            raise
        body.read(1)  # the end, which gives the connection back

    def put(
        self, key: str, data: bytes | bytearray, writer: str, *, over: str = "", kind: str = ""
    ) -> str:
        """Put an object where nothing lies, or in place of the version `over`; its version.

        Raises:
            ConditionError: something else lies there, and it is not this writer's (rule 5).
        """
        said = {"IfMatch": over} if over else {"IfNoneMatch": "*"}
        if kind:
            said["ContentType"] = kind
        try:
            made = self._ask("put_object", Key=key, Body=data, Metadata={WRITER: writer}, **said)
        except (ConditionError, FileNotFoundError):  # nothing lies there any more
            return self._own(key, writer, len(data)).version
        return str(made.get("ETag", ""))

    def _own(self, key: str, writer: str, size: int) -> Found:
        """The object that this writer has put, where an answer said otherwise (rule 5)."""
        try:
            found = self.head(key)
        except FileNotFoundError:
            found = Found(-1, "")
        if found.writer != writer or found.size != size:
            raise ConditionError("something else lies there", key)
        return found

    def begin_parts(self, key: str, writer: str) -> str:
        """Begin an upload in parts; its id."""
        said = self._ask("create_multipart_upload", Key=key, Metadata={WRITER: writer})
        return str(said["UploadId"])

    def put_part(self, key: str, upload: str, number: int, data: bytearray) -> str:
        """One part; its version. The same one again changes nothing."""
        said = self._ask("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=data)
        return str(said["ETag"])

    def end_parts(self, key: str, upload: str, parts: list[str], writer: str, size: int) -> None:
        """Make the object of its parts, where nothing lies.

        Raises:
            ConditionError: something else lies there.
        """
        named = [{"ETag": etag, "PartNumber": n} for n, etag in enumerate(parts, 1)]
        try:
            self._ask(
                "complete_multipart_upload",
                Key=key,
                UploadId=upload,
                MultipartUpload={"Parts": named},
                IfNoneMatch="*",
            )
        except (ConditionError, FileNotFoundError):
            self._own(key, writer, size)

    def abort_parts(self, key: str, upload: str) -> None:
        """Give an upload up; none is fine."""
        try:
            self._ask("abort_multipart_upload", Key=key, UploadId=upload)
        except FileNotFoundError:
            return

    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        """Key and id of the uploads that have not ended, of one answer at most."""
        said = self._ask("list_multipart_uploads", Prefix=prefix)
        return [
            (str(one["Key"]), str(one["UploadId"]))
            for one in said.get("Uploads", ())
            if str(one["Key"]).startswith(prefix)
        ]

    def delete(self, key: str) -> None:
        """Remove an object; none is fine."""
        self._ask("delete_object", Key=key)

    def listed(self, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The objects below a prefix, as many as the store says, in its order."""
        for said in self._pages(prefix):
            for one in said.get("Contents", ()):
                yield _below(prefix, one.get("Key")), one

    def folders(self, prefix: str) -> Iterator[str]:
        """The folders right below a prefix."""
        for said in self._pages(prefix, Delimiter="/"):
            for one in said.get("CommonPrefixes", ()):
                yield _below(prefix, one.get("Prefix")).rstrip("/")

    def any_below(self, prefix: str) -> bool:
        """Tell whether the store says that anything is below a prefix."""
        said = self._ask("list_objects_v2", Prefix=prefix, MaxKeys=1)
        return bool(said.get("Contents"))

    def _pages(self, prefix: str, **options: Any) -> Iterator[Any]:
        token: dict[str, str] = {}
        for _ in range(PAGES):
            said = self._ask("list_objects_v2", Prefix=prefix, **options, **token)
            yield said
            if not said.get("IsTruncated"):
                return
            if not said.get("NextContinuationToken"):
                raise OSError("a listing that does not say how it goes on")
            token = {"ContinuationToken": said["NextContinuationToken"]}
        raise OSError(f"a listing of more than {PAGES} answers")

    def check_conditions(self, key: str) -> None:
        """Put over what lies at `key` on a condition that fails, once a process (rule 4).

        Raises:
            UsageError: ST-USAG-024 when the store does it.
        """
        if self._keeps_conditions:
            return
        for said in ({"IfNoneMatch": "*"}, {"IfMatch": '"00000000000000000000000000000000"'}):
            try:
                self._ask("put_object", Key=key, Body=b"", **said)
            except ConditionError:
                continue
            raise UsageError("ST-USAG-024", f"{', '.join(said)} was ignored", self.bucket)
        self._keeps_conditions = True

    def _ask(self, name: str, **said: Any) -> Any:
        method = getattr(self.client, name)
        return self._tried(name, partial(method, Bucket=self.bucket, **said))

    def _tried(self, what: str, ask: Callable[[], Result]) -> Result:
        """Rule 3.

        Raises:
            OSError: refused, or not answered.
        """
        for number in range(TRIES):
            try:
                return ask()
            except (EOFError, UsageError):
                raise
            except Exception as error:
                said = _meant(error)
                if said is not None:
                    raise said from error
                if number == TRIES - 1:
                    raise OSError(f"{_words(error)}; asked {TRIES} times: {what}") from error
            self.repeated += 1
            longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2**number)
            self.pause(random.uniform(0, longest))  # noqa: S311 - no secret
        raise AssertionError


class _WrongAnswerError(Exception):
    """An answer that does not fit its request; the next one may."""


def _code(error: Exception) -> str:
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return ""
    return str(response.get("Error", {}).get("Code", ""))


def _status(error: Exception) -> int:
    response = getattr(error, "response", None)
    said = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    return int(said.get("HTTPStatusCode", 0))


def _meant(error: Exception) -> OSError | None:
    """The meaning of a refusal; None when it may be asked again."""
    code, status = _code(error), _status(error)
    words = _words(error)
    if not status:
        # Cut off, too slow, not understood. What is wrong on this side stays wrong.
        hopeless = type(error).__name__ in {
            "NoCredentialsError",
            "PartialCredentialsError",
            "ParamValidationError",
            "InvalidBucketName",
            "SSLError",
            "CredentialRetrievalError",
        }
        return OSError(words) if hopeless else None
    if code in _AGAIN or status >= 500 or status == 429 or status < 300:
        return None
    if code in _TAKEN or status == 412:
        return ConditionError(words)
    if code in {"NoSuchKey", "NoSuchUpload", "404"}:
        return FileNotFoundError(words)
    return PermissionError(words) if status in {401, 403} else OSError(words)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:400]


def _size(said: Any) -> int:
    if not isinstance(said, int) or said < 0:
        raise _WrongAnswerError("the store does not say how large an object is")
    return said


def _age(said: Mapping[str, Any]) -> float:
    put: Any = said.get("LastModified")
    date = said.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return float((parsedate_to_datetime(str(date)) - put).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def _range(said: Mapping[str, Any]) -> tuple[int, int, int]:
    """First and last byte of an answer, and the size of its object."""
    words = str(said.get("ContentRange", "")).removeprefix("bytes ")
    begin, dash, rest = words.partition("-")
    last, slash, size = rest.partition("/")
    numbers = (begin, last, size)
    if not dash or not slash or not all(n.isdecimal() and len(n) < 19 for n in numbers):
        raise _WrongAnswerError("the store answered without the range")
    return int(begin), int(last), int(size)


def _below(prefix: str, key: Any) -> str:
    if not isinstance(key, str) or not key.startswith(prefix):
        raise OSError("the store listed something else than what was asked for")
    return key.removeprefix(prefix)


def requests_of(bucket: str) -> Requests:
    """The requests of this process to a bucket.

    Raises:
        UsageError: ST-USAG-004, ST-USAG-023, ST-USAG-001.
    """
    return _requests(bucket, os.getpid())


@lru_cache(maxsize=16)
def _requests(bucket: str, pid: int) -> Requests:
    """One client for all threads; a forked child makes its own."""
    del pid
    return Requests(bucket, _client())
