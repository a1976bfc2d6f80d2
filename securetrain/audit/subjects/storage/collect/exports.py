# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""Lines of exports(5), read as nfs-utils reads them (``support/nfs/exports.c``).

Rules:

1. a line ends at an unquoted ``#``; a backslash at its end joins the next one;
2. the first word is the path, in quotes or with ``\040`` for a blank; each further word is a
   client, its options in parentheses right behind it: a blank before them makes them options of
   everybody; a word that begins with ``-`` changes the defaults of the rest of its line;
3. options count in order, the last of a pair wins; those behind a ``sec=`` are for its flavors, and
   those in force before it are where they begin from;
4. squashing maps root to the anonymous user: with ``anonuid=0`` that is root again;
5. without ``sec=`` the flavor is ``sys``; without ``xprtsec=`` no TLS is needed;
6. a value that a template leaves open stays open until a later option settles it.
"""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from securetrain.audit.facts import Location, Reading
from securetrain.audit.parser.values import failed, ok, opened
from securetrain.audit.subjects.storage.facts import Export, Filesystem

EVERYBODY: Final = "*"
MAX_EXPORTS: Final = 4096
_TEMPLATE: Final = re.compile(
    r"\{\{[^{}]*\}\}|\{%[^{%]*%\}|<%[^<%]*%>|\$\{[^${}]*\}|\$[A-Za-z_]\w*"
)
_BLANKS: Final = str.maketrans(" \t", "\ue000\ue001")
"""Blanks inside a template end no word: they are hidden behind private characters."""
_BLANKS_BACK: Final = str.maketrans("\ue000\ue001", " \t")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_WORD: Final = re.compile(r'(?:"[^"]*"|[^\s"])+')
_CLIENT: Final = re.compile(r"([^()]*)(?:\(([^()]*)\))?\Z")
_PRIVATE: Final = frozenset({"krb5p"})
"""Flavors that encrypt; krb5 and krb5i only say who asked, and that nothing was changed."""
_TLS: Final = frozenset({"tls", "mtls"})
_GSS: Final = "gss/"


@dataclass(frozen=True, slots=True)
class Line:
    """One logical line, and where each physical one in it begins."""

    text: str
    starts: tuple[tuple[int, int, int], ...]
    """Place in the text, number of the line, column there."""

    def at(self, place: int, file: str) -> Location:
        """The location of a place in the text."""
        start, number, column = next(s for s in reversed(self.starts) if s[0] <= place)
        return Location(path=file, line=number, column=column + place - start)


@dataclass(frozen=True, slots=True)
class _Squash:
    """The flags of one flavor; None: a template decides."""

    root: bool | None = True
    everybody: bool | None = False

    def of_root(self) -> bool | None:
        """Return whether one of the two squashes root."""
        if self.everybody or self.root:
            return True
        return None if None in (self.everybody, self.root) else False


@dataclass(slots=True)
class _Options:
    """The options of one client, while they are read."""

    squash: _Squash = field(default_factory=_Squash)
    flavors: dict[str, _Squash] = field(default_factory=dict)
    active: tuple[str, ...] = ()
    anonymous: int | None = 65534
    transport: tuple[str, ...] | None = ("none",)
    open_flavors: bool = False
    """Whether a template may have added a flavor."""
    template: str = ""
    """The last template that was met."""

    def copy(self) -> "_Options":
        return replace(self, flavors=dict(self.flavors))

    def read(self, text: str) -> None:
        """Apply a list of options, in order.

        Raises:
            ValueError: when one has a value that nothing takes.
        """
        for word in text.split(","):
            name, _, value = word.strip().partition("=")
            if found := _TEMPLATE.search(word):
                self._leave_open(name, found[0])
            elif name == "sec":
                self._take_flavors(value.split(":"))
            elif name == "xprtsec":
                self.transport = tuple(value.split(":"))
            elif name == "anonuid":
                self.anonymous = int(value)
            elif name in _SQUASH:
                self._change(name)

    def _leave_open(self, name: str, template: str) -> None:
        self.template = template.translate(_BLANKS_BACK)
        if name == "sec":
            self.open_flavors = True
        elif name == "xprtsec":
            self.transport = None
        elif name == "anonuid":
            self.anonymous = None
        elif _TEMPLATE.search(name):  # any option at all
            self.open_flavors, self.transport, self.anonymous = True, None, None
            self.squash = _Squash(None, None)
            self.flavors = dict.fromkeys(self.flavors, _Squash(None, None))

    def _take_flavors(self, names: Sequence[str]) -> None:
        self.active = tuple(name for name in names if name)
        for name in self.active:
            self.flavors.setdefault(name, self.squash)

    def _change(self, name: str) -> None:
        attribute, value = _SQUASH[name]
        change = {attribute: value}
        self.squash = replace(self.squash, **change)
        for flavor in self.active:
            self.flavors[flavor] = replace(self.flavors[flavor], **change)

    def squashes(self) -> bool | None:
        """Return whether root is somebody else under every flavor; None: a template decides."""
        each = [one.of_root() for one in (self.flavors.values() or [self.squash])]
        each.append(None if self.anonymous is None else self.anonymous != 0)
        return _weakest(each)

    def encrypts(self) -> bool | None:
        """Return whether nothing may pass in clear; None: a template decides."""
        if self.transport is not None and self.transport and _TLS.issuperset(self.transport):
            return True
        flavors = self.flavors or ({} if self.open_flavors else {"sys": self.squash})
        if not _PRIVATE.issuperset(flavors):
            return None if self.transport is None else False
        return None if self.open_flavors else True


_SQUASH: Final = {
    "root_squash": ("root", True),
    "no_root_squash": ("root", False),
    "all_squash": ("everybody", True),
    "no_all_squash": ("everybody", False),
}


def _weakest(values: Sequence[bool | None]) -> bool | None:
    if False in values:
        return False
    return None if None in values else True


def lines_of(text: str, first: int = 1, column: int = 1) -> Iterator[Line]:
    """Logical lines without comments (rule 1); a template's own lines are left out."""
    whole = ""
    starts: list[tuple[int, int, int]] = []
    for number, raw in enumerate(text.split("\n"), first):
        line = raw.rstrip("\r")
        starts.append((len(whole), number, column))
        if line.endswith("\\"):
            whole += line[:-1] + " "
            continue
        yield from _line(whole + line, starts)
        whole, starts = "", []
    yield from _line(whole, starts)


def _line(whole: str, starts: list[tuple[int, int, int]]) -> Iterator[Line]:
    masked = _TEMPLATE.sub(lambda found: found[0].translate(_BLANKS), whole)
    content = _without_comment(masked).rstrip()
    if content.strip() and not content.lstrip().startswith(("{%", "<%")):
        yield Line(content, tuple(starts))


def _without_comment(line: str) -> str:
    quoted = False
    for i, char in enumerate(line):
        if char == '"':
            quoted = not quoted
        elif char == "#" and not quoted:
            return line[:i]
    return line


def parse_exports(text: str, path: str) -> tuple[Export, ...]:
    """The exports of a file.

    Raises:
        ValueError: when there are more than `MAX_EXPORTS`.
    """
    found: list[Export] = []
    for line in lines_of(text):
        found += parse_line(line, path)
        if len(found) > MAX_EXPORTS:
            raise ValueError(f"more than {MAX_EXPORTS} exports")
    return tuple(found)


def parse_line(line: Line, file: str) -> list[Export]:
    """The exports of one line, one for each client."""
    words = list(_WORD.finditer(line.text))
    path = _path(words[0][0])
    defaults = _Options()
    exports = []
    for found in words[1:]:
        word, place = found[0], line.at(found.start(), file)
        if word.startswith("-"):
            try:
                defaults.read(word[1:])
            except ValueError as error:
                exports.append(_unreadable(path, word, place, str(error)))
        else:
            exports.append(export_of(path, word, place, defaults))
    if not exports:
        exports.append(export_of(path, EVERYBODY, line.at(words[0].start(), file), defaults))
    return exports


def export_of(path: str, word: str, place: Location, defaults: _Options | None = None) -> Export:
    """The export of a path to one client, as ``client(options)``."""
    found = _CLIENT.match(word)
    if found is None:
        return _unreadable(path, word, place, "the parentheses of its options do not match")
    client = found[1].translate(_BLANKS_BACK) or EVERYBODY
    options = (defaults or _Options()).copy()
    try:
        if client.startswith(_GSS):
            options.read(f"sec={client.removeprefix(_GSS)}")
        options.read(found[2] or "")
    except ValueError as error:
        return _unreadable(path, word, place, str(error))
    encrypted = True if _is_loopback(client) else options.encrypts()
    written = (found[2] or "").translate(_BLANKS_BACK)
    squashed, private = (
        opened(options.template, place) if one is None else ok(one, place)
        for one in (options.squashes(), encrypted)
    )
    words = tuple(word for word in written.split(",") if word)
    return shared(path, client, place, squashed, private, words)


def shared(  # noqa: PLR0917 - the parts of an export
    path: str,
    client: str,
    place: Location,
    squashed: Reading[bool],
    private: Reading[bool],
    options: tuple[str, ...] = (),
    filesystem: Filesystem = Filesystem.NFS,
) -> Export:
    """An export of what is known about it."""
    return Export(
        filesystem=filesystem,
        path=path,
        client=client,
        root_squash=squashed,
        encrypted=private,
        options=options,
        place=place,
    )


def _path(word: str) -> str:
    plain = _OCTAL.sub(lambda found: chr(int(found[1], 8)), word.replace('"', ""))
    return plain.translate(_BLANKS_BACK)


def _is_loopback(client: str) -> bool:
    try:
        return client == "localhost" or ipaddress.ip_network(client, strict=False).is_loopback
    except ValueError:
        return False


def _unreadable(path: str, word: str, place: Location, why: str) -> Export:
    client = word.partition("(")[0].translate(_BLANKS_BACK) or EVERYBODY
    return shared(path, client, place, failed(why, place), failed(why, place))
