# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about sudo: rules that ask the job's user for no password (sudoers(5)).

Rules:

1. files are read where they are included; a folder's files in order, without those whose name has a
   dot or ends in a tilde. A file that cannot be read leaves everything unknown;
2. aliases are expanded, a ``!`` takes away, the last word that fits decides;
3. the part about hosts is taken to fit this one;
4. kept is how far the commands reach, not the commands.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from securetrain.audit.subjects.node.collect.host import Host, TooMuchError, at_most
from securetrain.audit.subjects.node.collect.machine import foreign_sources
from securetrain.audit.subjects.node.facts.access import Reach, SudoRule

_MAIN: Final = "/etc/sudoers"
_PROGRAMS: Final = ("/usr/bin/sudo", "/bin/sudo", "/usr/local/bin/sudo")
_MAX_DEPTH: Final = 16
_MAX_FILES: Final = 256
_MAX_RULES: Final = 512
_INCLUDE: Final = re.compile(r"[@#]include(dir)?\s+(?:\"([^\"]+)\"|(\S+))")
_ALIAS: Final = re.compile(r"(User|Runas|Host|Cmnd|Cmd)_Alias\s+(.*)")
_SPEC: Final = re.compile(r"((?:\\.|[^\s,=])+(?:\s*,\s*(?:\\.|[^\s,=])+)*)\s+([^=]+)=\s*(.*)")
_DEFAULTS: Final = re.compile(r"Defaults(?:([:@!>])(\S+))?\s+(.*)")
_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*\Z")
_TAG: Final = re.compile(r"\b(NOPASSWD|PASSWD)\s*:")
_ANY_TAG: Final = re.compile(r"^(?:\s*(?:[A-Z_]+\s*:|\([^)]*\)|sha\d+:\S+))*\s*")
_SHELLS: Final = re.compile(
    r"(?:ba|z|k|c|tc|da|fi)?sh|python[0-9.]*|perl|ruby|lua|node|vim?|view|nano|emacs|ed|less|more|man"
    r"|find|awk|gawk|sed|env|xargs|tar|cp|mv|rsync|install|dd|tee|chmod|chown|mount|su|sudo|ssh|scp"
    r"|nsenter|unshare|chroot|systemctl|systemd-run|docker|podman|nerdctl|ctr|crictl|apptainer"
    r"|singularity|kubectl|apt|apt-get|dnf|yum|pip[0-9.]*|git|visudo|crontab|insmod|modprobe|gdb"
)
"""Programs that start another, or write any file."""


@dataclass(slots=True)
class _Reader:
    host: Host
    aliases: dict[str, list[str]] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    all_groups_known: bool = True
    files: int = 0

    def lines(self, path: str, depth: int = 0) -> Iterator[tuple[str, int, str]]:
        """Path, number and text of each logical line, those of included files where they stand."""
        self.files += 1
        if depth > _MAX_DEPTH or self.files > _MAX_FILES:
            raise TooMuchError(f"{path}: includes nested deeper than {_MAX_DEPTH}, or in a circle")
        rest = ""
        for number, raw in enumerate(self.host.text(path).split("\n"), 1):
            if raw.endswith("\\"):
                rest += raw[:-1]
                continue
            line, rest = (rest + raw).strip(), ""
            if found := _INCLUDE.match(line):
                target = found[2] or found[3]
                target = target if target.startswith("/") else f"/etc/{target}"
                yield from self._included(target, bool(found[1]), depth)
            elif text := _without_comment(line):
                yield path, number, text

    def _included(self, path: str, folder: bool, depth: int) -> Iterator[tuple[str, int, str]]:  # noqa: FBT001
        if "%" in path:
            raise ValueError(f"includes {path}, which depends on the name of the host")
        if not folder:
            yield from self.lines(path, depth + 1)
            return
        try:
            names = self.host.names(path)
        except FileNotFoundError:
            return  # sudo takes it for an empty one
        for name in names:
            if "." not in name and not name.endswith("~"):
                yield from self.lines(f"{path}/{name}", depth + 1)

    def expand(self, words: Sequence[str], depth: int = 0) -> Iterator[str]:
        """Words with aliases replaced by what they stand for."""
        if depth > _MAX_DEPTH:
            raise TooMuchError("aliases that stand for each other")
        for word in words:
            sign, name = ("!", word[1:].strip()) if word.startswith("!") else ("", word)
            if _NAME.match(name) and name in self.aliases:
                for inner in self.expand(self.aliases[name], depth + 1):
                    yield inner[1:] if sign and inner.startswith("!") else sign + inner
            else:
                yield sign + name

    def is_about(self, words: Sequence[str]) -> bool | None:
        """Return whether a list of users has the job's; None when only a directory knows."""
        answer: bool | None = False
        for word in self.expand(words):
            found = self._fits(word.removeprefix("!").replace("\\", ""))
            if found is not False:
                answer = None if found is None else not word.startswith("!")
        return answer

    def _fits(self, word: str) -> bool | None:
        host = self.host
        if word == "ALL" or word in {host.user, f"#{host.uid}", f"%#{host.gid}"}:
            return True
        if word.startswith("%") and not word.startswith("%:"):
            return True if word[1:] in self.groups else (False if self.all_groups_known else None)
        return None if word.startswith(("+", "%:")) else False


def sudo(host: Host) -> tuple[SudoRule, ...]:
    """The rules that give the job's user more rights without a password."""
    host.names("/etc")  # without it nothing below says anything
    if not any(host.at(path).exists() for path in _PROGRAMS):
        try:
            host.at(_MAIN).stat()
        except FileNotFoundError:
            host.refuse_hidden(_MAIN)
            return ()  # no sudo
    reader = _Reader(host)
    reader.groups, reader.all_groups_known = _groups(host)
    lines = list(reader.lines(_MAIN))
    if not lines:
        raise ValueError(f"{_MAIN} says nothing: it is not sudo's")
    for _, _, line in lines:
        if found := _ALIAS.match(line):
            for part in found[2].split(":"):
                name, _, members = part.partition("=")
                reader.aliases[name.strip()] = _list(members)
    found_rules = tuple(rule for line in lines for rule in _rules(reader, *line))
    return at_most(_MAX_RULES, found_rules, "rules")


def _rules(reader: _Reader, path: str, number: int, line: str) -> Iterator[SudoRule]:
    if _ALIAS.match(line):
        return
    if found := _DEFAULTS.match(line):
        if "!authenticate" not in (word.strip() for word in found[3].split(",")):
            return
        # for everybody, or for some users; those of hosts, commands and targets may be about this
        words, reach = (_list(found[2]) if found[1] == ":" else ["ALL"]), Reach.ALL
    elif found := _SPEC.match(line):
        commands = list(_without_password(found[3]))
        if not commands:
            return
        words, reach = _list(found[1]), _reach(reader, commands)
    else:
        raise ValueError(f"{path}:{number} is not understood")
    applies = reader.is_about(words)
    if applies is not False and words != ["root"]:
        who = ", ".join(words)
        yield SudoRule(who=who, applies=applies, reach=reach, path=path, line=number)


def _without_password(text: str) -> Iterator[str]:
    """The commands that a tag NOPASSWD is in force for."""
    free = False
    for part in _list(text):
        for tag in _TAG.findall(part):
            free = tag == "NOPASSWD"
        if free:
            yield _ANY_TAG.sub("", part, count=1)


def _reach(reader: _Reader, commands: Sequence[str]) -> Reach:
    reach = Reach.NAMED
    for command in reader.expand([one.strip() for one in commands]):
        program = command.partition(" ")[0]
        if command == "ALL":
            return Reach.ALL
        name = program.rpartition("/")[2]
        if not command.startswith("!") and (
            _SHELLS.fullmatch(name)
            or any(char in program for char in "*?[^")
            or program.endswith("/")
        ):
            reach = Reach.SHELL
    return reach


def _list(text: str) -> list[str]:
    """Members between commas that are not escaped."""
    return [part.strip() for part in re.split(r"(?<!\\),", text) if part.strip()]


def _without_comment(line: str) -> str:
    """The line up to a comment; ``#`` before a number is a user."""
    return re.sub(r"(?<!\\)(?<!%)#(?!-?\d).*", "", line).strip()


def _groups(host: Host) -> tuple[frozenset[str], bool]:
    """The groups of the job's user by the local files, and whether there are no others."""
    users = host.rows("/etc/passwd")
    gids = {str(host.gid), *(row[3] for row in users if len(row) > 3 and row[0] == host.user)}
    found = frozenset(
        row[0]
        for row in host.rows("/etc/group")
        if len(row) > 3 and (row[2] in gids or host.user in row[3].split(","))
    )
    return found, not foreign_sources(host, "group")
