# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Text to tokens: bytes, or the `tokenizer.json` of the tokenizers library.

Who controls the tokenizer controls what the model is taught, so rules for a tokenizer file, in
order:

1. it is a file of the signed dataset (``dataset:NAME``), a document of the signed model
   (``model:NAME``), or its SHA-256 stands in the job; an unsigned one is refused;
2. its bytes are read once: what was verified is what is parsed, at most 64 MiB;
3. text cannot spell a control token: ``</s>`` inside of a document is four characters, not the end
   of the document. Truncation and padding, which the file may ask for, are turned off;
4. a document ends with the end token, which the job names or the file leaves no doubt about.

Its digest covers the file, the end token and the library's version: another version may cut the
same text otherwise.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final, Protocol

from securetrain.core import install_hint
from securetrain.core.errors import IntegrityError, UsageError

BYTES: Final = "bytes"
LIMIT: Final = 64 << 20
END_TOKENS: Final = ("</s>", "<|end_of_text|>", "<|endoftext|>")
"""The tokens that end documents in models that people fine-tune."""
_EXTRA: Final = install_hint("train")


class Tokenizer(Protocol):
    """Cuts text."""

    @property
    def vocab(self) -> int:
        """Every token is below this."""

    @property
    def eos(self) -> int:
        """The token after each document."""

    @property
    def digest(self) -> str:
        """The digest (hex) of its identity and of how it cuts text."""

    @property
    def environment(self) -> dict[str, str]:
        """The entries for a statement."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, without an end token."""


class ByteTokenizer:
    """UTF-8 bytes, and one more token that ends a document."""

    vocab: Final = 257
    eos: Final = 256
    digest: Final = hashlib.sha256(b"securetrain/tokenizer/bytes/1").hexdigest()

    @property
    def environment(self) -> dict[str, str]:
        """The entries for a statement."""
        return {"tokenizer": BYTES}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The bytes of each text."""
        return [list(text.encode()) for text in texts]


class FileTokenizer:
    """A `tokenizer.json`: BPE, and whatever else the library reads."""

    def __init__(self, data: bytes, eos: str | None, where: str) -> None:
        """Parse a file whose bytes were verified.

        Args:
            data: The file.
            eos: The end token; None when the file leaves no doubt.
            where: For messages.

        Raises:
            UsageError: ST-USAG-004 without the library, ST-USAG-007 when it is no tokenizer or its
                end token is not known.
        """
        self._where = where
        self._tokenizer = _parse(data, where)
        self.eos = _end_token(self._tokenizer, eos, where)
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocab = max(ids, default=0) + 1
        self._sha256 = hashlib.sha256(data).hexdigest()
        said = f"{self._sha256}:{self.eos}:{version('tokenizers')}"
        self.digest = hashlib.sha256(f"securetrain/tokenizer/file/1:{said}".encode()).hexdigest()

    @property
    def environment(self) -> dict[str, str]:
        """The entries for a statement: the file's SHA-256, the end token, the library."""
        return {
            "tokenizer": self._sha256,
            "tokenizerEnd": str(self.eos),
            "tokenizers": version("tokenizers"),
        }

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, with what the file puts around a text (a beginning, say).

        Raises:
            UsageError: ST-USAG-007 when the file contradicts itself.
        """
        with _answering(self._where):
            found = self._tokenizer.encode_batch(list(texts), add_special_tokens=True)
        ids = [one.ids for one in found]
        if max(map(max, filter(None, ids)), default=0) >= self.vocab:
            raise _contradiction("a token beyond its own vocabulary", self._where)
        return [_without_end(one, self.eos) for one in ids]


def check_named(data: bytes, sha256: str, where: str) -> None:
    """Refuse a tokenizer that is not the one which the job names.

    Raises:
        IntegrityError: ST-DATA-134.
    """
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise IntegrityError(
            "ST-DATA-134", f"its SHA-256 is {found[:16]}..., the job names {sha256[:16]}...", where
        )


def unsigned(path: str, where: str) -> UsageError:
    """The refusal of a tokenizer that nobody vouches for."""
    return UsageError(
        "ST-USAG-007",
        f"nobody vouches for {path}",
        where,
        "write dataset:NAME or model:NAME for a signed file, or set data.tokenizer_sha256 to the"
        " file's digest, as its maker gives it",
    )


def _parse(data: bytes, where: str) -> Any:
    try:
        import tokenizers  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            "ST-USAG-004", "the package tokenizers is not installed", where, _EXTRA
        ) from error
    try:
        with _answering(where):
            tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except ValueError as error:
        raise UsageError(
            "ST-USAG-007",
            f"not a tokenizer: {str(error)[:200]}",
            where,
            "set data.tokenizer to the tokenizer.json of the tokenizers library",
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


@contextmanager
def _answering(where: str) -> Iterator[None]:
    """The library's panics, which are not Exceptions, as refusals."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException" and type(error) is not Exception:
            raise
        raise _contradiction(str(error)[:200], where) from error


def _contradiction(what: str, where: str) -> UsageError:
    return UsageError(
        "ST-USAG-007",
        f"the tokenizer contradicts itself: {what}",
        where,
        "set data.tokenizer to a file as the tokenizers library writes it",
    )


def _end_token(tokenizer: Any, name: str | None, where: str) -> int:
    names = END_TOKENS if name is None else (name,)
    found = {one: tokenizer.token_to_id(one) for one in names}
    known = {one: number for one, number in found.items() if number is not None}
    if len(known) != 1:
        what = f"has no token {name!r}" if name is not None else "does not say how a document ends"
        raise UsageError(
            "ST-USAG-007",
            f"the tokenizer {what}",
            where,
            f"data.eos: the end token{f', one of {sorted(known)}' if known else ''}",
        )
    return int(next(iter(known.values())))


def _without_end(ids: list[int], eos: int) -> list[int]:
    """A file may put the end token itself; there is one, and packing puts it."""
    return ids[:-1] if ids and ids[-1] == eos else ids
