# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Answers of a server's own tools about its shares, as somebody saved them.

Rules:

1. ``showmount -e`` names paths and clients and no options: what depends on them is an error there;
2. ``exportfs -v`` says what the kernel uses, a path on one line and its clients on the same or the
   following ones;
3. Lustre (``lctl get_param nodemap.*`` and ``mdt.*``): with nodemaps on, ``admin_nodemap`` lets
   root of its clients be root; with nodemaps off that is up to ``root_squash`` of the MDTs, and
   whoever ``nosquash_nids`` names is exempt. Only ``skpi`` and ``krb5p`` encrypt;
4. GPFS (``mmauth show all``): ``root allowed`` is no squash, and a cipher list that names no cipher
   (AUTHONLY, EMPTY, NULL-...) leaves data in clear. Nodes of the own cluster share one root.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from securetrain.audit.facts import Location, Reading
from securetrain.audit.parser.values import failed, ok
from securetrain.audit.subjects.storage.collect.exports import EVERYBODY, export_of, shared
from securetrain.audit.subjects.storage.facts import Export, Filesystem

_SHOWMOUNT: Final = re.compile(r"^Export list for (\S+):\s*$")
_NODEMAP: Final = re.compile(r"^nodemap\.([^.=\s]+)(?:\.([a-z_]+))?\s*=\s*(.*)$")
_MDT: Final = re.compile(r"^mdt\.([^.=\s]+)\.(root_squash|nosquash_nids)\s*=\s*(.*)$")
_FLAVOR: Final = re.compile(r"^([^.=\s]+)\.srpc\.flavor\.(\S+?)\s*=\s*(\S+)")
_PRIVATE: Final = frozenset({"skpi", "krb5p"})
_ACCESS: Final = re.compile(
    r"(?:^|\s)(\S+)\s+\((r[wo])?(?:, *)?(root allowed|root remapped to [^\s)]+)?"
)
_NO_CIPHER: Final = re.compile(r"^(?:AUTHONLY|EMPTY|\(none specified\)|NULL-\S*)?$", re.IGNORECASE)


def parse_showmount(text: str, path: str) -> tuple[Export, ...]:
    """The exports that ``showmount -e`` lists (rule 1).

    Raises:
        ValueError: when it does not begin as its output does.
    """
    lines = text.splitlines()
    if not lines or not _SHOWMOUNT.match(lines[0]):
        raise ValueError("does not begin with 'Export list for HOST:'")
    found = []
    for number, line in enumerate(lines[1:], 2):
        words = line.split()
        for client in words[1].split(",") if len(words) > 1 else [EVERYBODY] if words else []:
            place = Location(path=path, line=number)
            silent: Reading[bool] = failed("showmount does not say it: read the exports", place)
            name = EVERYBODY if client in ("(everyone)", "") else client
            found.append(shared(words[0], name, place, silent, silent))
    return tuple(found)


def parse_exportfs(text: str, path: str) -> tuple[Export, ...]:
    """The exports that ``exportfs -v`` or ``exportfs -s`` lists (rule 2)."""
    found: list[Export] = []
    shared = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not line[0].isspace():
            shared, words = words[0], words[1:]
        for word in words:
            client = word.replace("<world>", EVERYBODY)
            found.append(export_of(shared, client, Location(path=path, line=number)))
    return tuple(found)


@dataclass(slots=True)
class _Lustre:
    """The parameters, with the place of each."""

    active: tuple[bool, Location] | None = None
    admin: dict[str, tuple[bool, Location]] = field(default_factory=dict)
    squash: dict[str, tuple[bool, Location]] = field(default_factory=dict)
    exempt: dict[str, tuple[str, Location]] = field(default_factory=dict)
    flavors: dict[str, tuple[str, Location]] = field(default_factory=dict)

    def take(self, line: str, place: Location) -> None:
        """Read one line."""
        if found := _NODEMAP.match(line):
            name, parameter, value = found.groups()
            if parameter is None and name == "active":
                self.active = (value.strip() == "1", place)
            elif parameter == "admin_nodemap":
                self.admin[name] = (value.strip() == "1", place)
        elif found := _MDT.match(line):
            target, parameter, value = found.groups()
            if parameter == "root_squash":
                self.squash[target] = (value.partition(":")[0].strip() != "0", place)
            elif value.strip() not in ("", "NONE", "clear"):
                self.exempt[target] = (value.strip(), place)
        elif found := _FLAVOR.match(line):
            self.flavors[f"{found[1]} by {found[2]}"] = (found[3], place)


def parse_lustre(text: str, path: str) -> tuple[Export, ...]:
    """The nodemaps and targets of a Lustre server (rule 3).

    Raises:
        ValueError: when it has no parameter that says anything.
    """
    seen = _Lustre()
    for number, line in enumerate(text.splitlines(), 1):
        seen.take(line.strip(), Location(path=path, line=number))
    found = tuple(_lustre(seen))
    if not found:
        raise ValueError("has no nodemap.* and no mdt.*.root_squash")
    return found


def _lustre(seen: _Lustre) -> Iterator[Export]:
    nodemaps = seen.active is not None and seen.active[0]
    if nodemaps:
        for name, (admin, place) in seen.admin.items():
            yield _target(seen, f"nodemap {name}", EVERYBODY, place, squashed=not admin)
        if not seen.admin and seen.active is not None:
            why = "nodemap is on, and no admin_nodemap is listed"
            yield _target(seen, "nodemap", EVERYBODY, seen.active[1], why=why)
        return
    for target, (squashed, place) in seen.squash.items():
        yield _target(seen, target, EVERYBODY, place, squashed=squashed)
        if squashed and target in seen.exempt:
            nids, where = seen.exempt[target]
            yield _target(seen, target, nids, where, squashed=False)
    if not seen.squash and seen.active is not None:
        why = "nodemap is off, and mdt.*.root_squash is not listed"
        yield _target(seen, "every target", EVERYBODY, seen.active[1], why=why)


def _target(
    seen: _Lustre,
    path: str,
    client: str,
    place: Location,
    *,
    squashed: bool = False,
    why: str = "",
) -> Export:
    squash = failed(why, place) if why else ok(squashed, place)
    weakest = next((f for f in seen.flavors.values() if f[0] not in _PRIVATE), None)
    private: Reading[bool] = failed("no srpc.flavor is listed", place)
    if seen.flavors:
        private = ok(weakest is None, weakest[1] if weakest else place)
    return shared(path, client, place, squash, private, filesystem=Filesystem.LUSTRE)


def parse_gpfs(text: str, path: str) -> tuple[Export, ...]:
    """The access of other clusters (rule 4).

    Raises:
        ValueError: when it names no cluster.
    """
    cluster, ciphers, own, seen = "", "", False, False
    found: list[Export] = []
    access = False
    for number, line in enumerate(text.splitlines(), 1):
        name, colon, value = line.partition(":")
        if colon and not line[0].isspace():
            value = value.strip()
            access = name == "File system access"
            if name == "Cluster name":
                seen, own = True, "(this cluster)" in value
                cluster = value.split()[0] if value else ""
            elif name == "Cipher list":
                ciphers = value
        else:
            value = line.strip()
        if access and not own:
            place = Location(path=path, line=number)
            for match in _ACCESS.finditer(value):
                found.append(_gpfs(match, cluster, ciphers, place))  # noqa: PERF401 - the state moves
    if not seen:
        raise ValueError("names no cluster: it is no output of mmauth show")
    return tuple(found)


def _gpfs(match: re.Match[str], cluster: str, ciphers: str, place: Location) -> Export:
    root = match[3]
    squash = ok(root != "root allowed", place)
    if root is None:
        squash = failed("it does not speak of root", place)
    private = ok(not _NO_CIPHER.match(ciphers), place)
    words = tuple(word for word in (match[2], root) if word)
    return shared(match[1], cluster, place, squash, private, words, Filesystem.GPFS)
