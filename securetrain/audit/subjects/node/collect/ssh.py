# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about SSH, read as OpenSSH reads its files (sshd_config(5), ssh_config(5)).

Rules:

1. the first value of an option wins, so that the order counts: an Include is read where it stands;
2. a Match or Host block lasts until the next one or the end of its file; what is included inside a
   block belongs to it, and a block of an included file does not reach beyond that file;
3. a ``#`` that begins a word ends the line;
4. a file that cannot be read, or that includes itself, leaves what depends on it unknown.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from securetrain.audit.facts import Outcome
from securetrain.audit.subjects.node.collect.host import (
    HiddenError,
    Host,
    TooMuchError,
    at_most,
    outcome_of,
)
from securetrain.audit.subjects.node.facts.node import (
    ConfFile,
    ConfVariable,
    SshdConfig,
    SshdOption,
)

_SYSTEM: Final = "/etc/ssh"
_SSHD: Final = ("/usr/sbin/sshd", "/usr/local/sbin/sshd", "/sbin/sshd")
_CLIENT_OPTIONS: Final = frozenset({"stricthostkeychecking", "userknownhostsfile"})
_SERVER_OPTIONS: Final = frozenset(
    {
        "permitrootlogin",
        "passwordauthentication",
        "kbdinteractiveauthentication",
        "permitemptypasswords",
        "usepam",
    }
)
_OLD_NAMES: Final = {
    "challengeresponseauthentication": "kbdinteractiveauthentication",
    "skeyauthentication": "kbdinteractiveauthentication",
}
_MATCH_ALL: Final = "match all"
_FOR_ALL: Final = frozenset({"", "host *", _MATCH_ALL})
_MAX_DEPTH: Final = 16
"""The depth to which OpenSSH itself follows includes."""
_MAX_FILES: Final = 256
_MAX_OPTIONS: Final = 256
_Failure = OSError | ValueError | TooMuchError | HiddenError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assignment:
    """An option of one file."""

    name: str
    value: str
    block: str
    """The criteria of its block, with the word that begins it; empty for the global part."""
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A file that could not be read."""

    path: str
    error: _Failure


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Reads a file with everything that it includes."""

    host: Host
    base: str
    """The folder of relative includes."""
    wanted: frozenset[str]
    blocks: frozenset[str]
    """The words that begin a block."""
    files: int = 0

    def read(self, path: str, block: str = "", depth: int = 0) -> Iterator[_Assignment | _Trouble]:
        """Yield options and troubles in the order in which OpenSSH meets them."""
        self.files += 1
        try:
            if depth > _MAX_DEPTH or self.files > _MAX_FILES:
                raise TooMuchError(f"includes nested deeper than {_MAX_DEPTH}, or in a circle")
            lines = self.host.text(path).split("\n")
        except (OSError, ValueError, TooMuchError, HiddenError) as error:
            yield _Trouble(path, error)
            return
        here = block
        for number, line in enumerate(lines, 1):
            name, arguments = _split(line)
            if name in self.blocks:
                own = " ".join([name, *arguments]).lower()
                here = f"{block}, {own}" if block else own
            elif name == "include":
                for pattern in arguments:
                    yield from self._included(pattern, path, here, depth)
            elif name in self.wanted:
                value = " ".join(arguments)
                yield _Assignment(name=name, value=value, block=here, path=path, line=number)

    def _included(
        self, pattern: str, path: str, block: str, depth: int
    ) -> Iterator[_Assignment | _Trouble]:
        try:
            if "%" in pattern or "${" in pattern:
                raise ValueError(f"includes {pattern}, which depends on the connection")
            if pattern.startswith("~/"):
                pattern = f"{self.host.home}/{pattern[2:]}"
            files = list(
                _expand(self.host, pattern if pattern[0] == "/" else f"{self.base}/{pattern}")
            )
        except (OSError, ValueError, TooMuchError, HiddenError) as error:
            yield _Trouble(path, error)
            return
        for file in files:
            yield from self.read(file, block, depth + 1)


def _split(line: str) -> tuple[str, list[str]]:
    """The option in lower case, and its arguments."""
    words = line.strip(' \t\r\f"')
    end = next((i for i, char in enumerate(words) if char in ' \t\r"='), len(words))
    name = words[:end].lower()
    if not name or name.startswith("#"):
        return "", []
    rest = words[end:].lstrip(' \t\r"')
    arguments = _arguments(rest.removeprefix("="))
    return _OLD_NAMES.get(name, name), arguments


def _arguments(text: str) -> list[str]:
    """Words with quotes and escapes resolved, up to a comment."""
    found: list[str] = []
    word: str | None = None
    quote = ""
    chars = iter(text)
    for char in chars:
        if quote:
            if char == quote:
                quote = ""
            else:
                word = (word or "") + (next(chars, "") if char == "\\" else char)
        elif char in " \t\r":
            if word is not None:
                found.append(word)
            word = None
        elif char == "#" and word is None:
            break
        elif char in "\"'":
            quote, word = char, word or ""
        else:
            word = (word or "") + (next(chars, "") if char == "\\" else char)
    return found if word is None else [*found, word]


def _expand(host: Host, pattern: str) -> Iterator[str]:
    """The files that a pattern names, in order; a folder that cannot be listed is an error.

    Raises:
        OSError: when something on the way cannot be looked at.
        HiddenError: when an empty mount is on the way.
    """
    found = [""]
    for part in [part for part in pattern.split("/") if part]:
        if any(char in part for char in "*?["):
            found = [
                f"{folder}/{name}" for folder in found for name in _matching(host, folder, part)
            ]
        else:
            found = [f"{folder}/{part}" for folder in found]
        at_most(_MAX_FILES, found, f"files of {pattern}")
    for path in found:
        try:
            host.at(path).stat()
        except FileNotFoundError:
            host.refuse_hidden(path)  # else a pattern that matches nothing, which OpenSSH ignores
            continue
        yield path


def _matching(host: Host, folder: str, pattern: str) -> list[str]:
    try:
        names = host.names(folder or "/")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        n for n in names if fnmatchcase(n, pattern) and n.startswith(".") <= (pattern[0] == ".")
    ]


def sshd(host: Host) -> SshdConfig:
    """The server's options, each the first of its name in its block."""
    main = f"{_SYSTEM}/sshd_config"
    reader = _Reader(host=host, base=_SYSTEM, wanted=_SERVER_OPTIONS, blocks=frozenset({"match"}))
    first: dict[tuple[str, str], _Assignment] = {}
    for found in reader.read(main):
        if isinstance(found, _Trouble):
            outcome, reason = outcome_of(found.error)
            absent = outcome is Outcome.ABSENT
            if absent and any(host.at(program).exists() for program in _SSHD):
                outcome, reason = Outcome.ERROR, f"sshd is here and {main} is not"
            return SshdConfig(outcome=outcome, reason=reason, path=main)
        key = "" if found.block == _MATCH_ALL else found.block, found.name
        # a block for all stands over what is outside of blocks
        if key not in first or (found.block == _MATCH_ALL and not first[key].block):
            first[key] = found
    at_most(_MAX_OPTIONS, first, f"options in {main}")
    options = tuple(
        SshdOption(
            name=one.name,
            value=one.value.lower(),
            match=block.removeprefix("match "),
            path=one.path,
            line=one.line,
        )
        for (block, _), one in first.items()
        if one.value
    )
    return SshdConfig(outcome=Outcome.OK, path=main, options=options)


def ssh(host: Host) -> tuple[ConfFile, ...]:
    """The client's options about host keys for any host, for this user and then for everybody."""
    files: dict[str, list[_Assignment]]
    broken: dict[str, _Trouble] = {}
    settled: set[str] = set()
    files = {f"{host.home}/.ssh/config": [], f"{_SYSTEM}/ssh_config": []}
    for found in _client(host, _CLIENT_OPTIONS):
        if isinstance(found, _Trouble):
            broken[found.path] = found
            continue
        own = files.setdefault(found.path, [])
        if found.name not in settled:
            own.append(found)
        if found.block in _FOR_ALL:
            settled.add(found.name)  # for every host: what follows has no effect
    at_most(_MAX_OPTIONS, [one for own in files.values() for one in own], "options")
    return tuple(_conf_file(path, files.get(path, []), broken.get(path)) for path in files | broken)


def _client(host: Host, wanted: frozenset[str]) -> Iterator[_Assignment | _Trouble]:
    """Options and troubles of the user's own file, then of everybody's."""
    own = f"{host.home}/.ssh"
    for main, base in ((f"{own}/config", own), (f"{_SYSTEM}/ssh_config", _SYSTEM)):
        reader = _Reader(host=host, base=base, wanted=wanted, blocks=frozenset({"match", "host"}))
        yield from reader.read(main)


def _conf_file(path: str, found: list[_Assignment], trouble: _Trouble | None) -> ConfFile:
    outcome, reason = outcome_of(trouble.error) if trouble else (Outcome.OK, "")
    options = tuple(
        ConfVariable(name=one.name, value=one.value.lower(), line=one.line) for one in found
    )
    return ConfFile(outcome=outcome, reason=reason, path=path, options=None if trouble else options)


def identity_files(host: Host) -> Iterator[str]:
    """The private keys that the client's files name."""
    for found in _client(host, frozenset({"identityfile"})):
        if isinstance(found, _Trouble) or "%" in found.value.replace("%d", ""):
            continue  # `ssh` says that a file could not be read
        path = found.value.replace("%d", str(host.home))
        path = f"{host.home}/{path[2:]}" if path.startswith("~/") else path
        if path.startswith("/"):
            yield path
