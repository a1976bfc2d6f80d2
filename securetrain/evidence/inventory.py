# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The inventory of a fleet: which machine a node is, and the measurements that are its alone.

A small inventory stands in the reference values themselves. A large one stands in **pages** beside
them, read and verified when a node is asked for, so that a fleet of 100,000 nodes costs a verifier
no more than the nodes that it sees. Rules:

1. the signed document names the SHA-256 of the table, the table that of each page. Nothing is
   parsed before its digest has been checked: a page is what was signed, or a refusal (ST-ATTS-009);
2. pages are in the order of the nodes' names, and each says its first; a node stands in one place;
3. everything is bounded: the table, a page, a node's entry, the number of nodes, what is kept.

Layout of the pages: page after page, each one JSON object of nodes by name in canonical form, then
the table, an array of ``[first name, nodes, size in bytes, SHA-256]``.
"""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AttestationError, SecureTrainError, reason
from securetrain.evidence.recent import Recent

GROUP_PATTERN: Final = r"\A([a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?)?\Z"
"""Of an image group's name, as in `gpu-h100-2026.11`; empty for the group without a name."""
MAX_NODES: Final = 1 << 17
INLINE_NODES: Final = 1000
"""A larger inventory stands in pages."""
MAX_OWN: Final = 64
"""Measurements of its own that a node may have in one register: of several boots."""
PAGE_SIZE: Final = 16 << 10
"""A page ends behind the node with which it reaches this size, in bytes."""
NODE_LIMIT: Final = 64 << 10
"""Most bytes of a node's entry in a page."""
PAGE_LIMIT: Final = PAGE_SIZE + NODE_LIMIT + 1024
TABLE_LIMIT: Final = 32 << 20
PAGES_LIMIT: Final = 1 << 30
"""Most bytes of all pages."""
_KEPT_NODES: Final = 1 << 13
_NAME: Final = re.compile(r"[!-~]{1,256}")

T = TypeVar("T")

GroupName: TypeAlias = Annotated[str, Meta(pattern=GROUP_PATTERN)]
VmId: TypeAlias = Annotated[
    str, Meta(pattern=r"\A([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[1-9][0-9]{0,19})\Z")
]
"""Azure's id of a VM, or Compute Engine's of an instance."""
OwnRegister: TypeAlias = Annotated[str, Meta(pattern=r"\A[15]\Z")]
"""PCR 1 (settings, boot order, serial numbers) and PCR 5 (partition tables with their GUIDs)."""
OwnDigests: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")], ...], Meta(max_length=MAX_OWN)
]
"""SHA-256, lower-case hex."""


class EnrolledNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The hardware that one node may present, and what its boot alone may measure."""

    ek_names: tuple[str, ...] = ()
    """Names of endorsement keys, hex: one for each key template of its TPM."""
    chips: tuple[str, ...] = ()
    """SEV-SNP chip ids or TDX PPIDs, hex; empty leaves the chip open."""
    devices: tuple[str, ...] = ()
    """PDIs of its GPUs and switches, hex; empty leaves them open."""
    group: GroupName = ""
    """Its image group."""
    own: dict[OwnRegister, OwnDigests] = {}
    """Digests of firmware events that this node alone may measure, by PCR."""
    vms: tuple[VmId, ...] = ()
    """Ids of its VM, where a paravisor or Google speaks for its TPM."""


class PagesRoot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The pages of an inventory, as the signed document names them."""

    nodes: Annotated[int, Meta(ge=1, le=MAX_NODES)]
    pages_size: Annotated[int, Meta(ge=2, le=PAGES_LIMIT)]
    """Bytes of all pages; the table begins there."""
    table_size: Annotated[int, Meta(ge=2, le=TABLE_LIMIT)]
    table: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    """SHA-256 of the table, hex."""


class Page(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One line of the table."""

    first: str
    nodes: Annotated[int, Meta(ge=1, le=MAX_NODES)]
    size: Annotated[int, Meta(ge=2, le=PAGE_LIMIT)]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


ReadAt: TypeAlias = Callable[[int, int], bytes]
"""Gives `size` bytes at an offset, or fewer where there are no more."""


class PagedNodes(Mapping[str, EnrolledNode]):
    """An inventory in pages: a mapping that reads what it is asked for. Safe for threads."""

    def __init__(self, root: PagesRoot, read: ReadAt, where: str) -> None:
        """Read and verify the table.

        Args:
            root: from a signed document.
            read: gives bytes of the pages' file.
            where: names that file in errors.

        Raises:
            AttestationError: ST-ATTS-009.
        """
        self.root = root
        self._read, self._where = read, where
        table = self._verified(root.pages_size, root.table_size, root.table, "the table")
        self.table = self._parsed(table, list[Page], TABLE_LIMIT, "the table")
        self._firsts = [page.first for page in self.table]
        ends = list(accumulate(page.size for page in self.table))
        self._offsets = [0, *ends]
        in_order = all(a < b for a, b in pairwise(self._firsts))
        count = sum(page.nodes for page in self.table)
        if not in_order or count != root.nodes or self._offsets[-1] != root.pages_size:
            raise self._bad("the table does not fit what was signed")
        self._kept: Recent[str, EnrolledNode] = Recent(_KEPT_NODES)
        self.check: Callable[[str, EnrolledNode], None] = lambda _name, _node: None
        """Refuses a node that does not fit the document."""

    def __len__(self) -> int:
        return self.root.nodes

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self.table)):
            yield from self.page(index)

    def __getitem__(self, name: str) -> EnrolledNode:
        known = self._kept.get(name)
        if known is not None:
            return known
        index = self.place(name)
        if index < 0:
            raise KeyError(name)
        return self._kept.put(name, self.page(index)[name])

    def items(self) -> ItemsView[str, EnrolledNode]:
        """All nodes in order, page by page: nothing of it is kept."""
        return _PagedItems(self)

    def place(self, name: str) -> int:
        """The page that holds a name, if one does; -1 before the first."""
        return bisect_right(self._firsts, name) - 1

    def raw(self, index: int) -> bytes:
        """A page as it was signed.

        Raises:
            AttestationError: ST-ATTS-009.
        """
        page = self.table[index]
        return self._verified(self._offsets[index], page.size, page.sha256, f"page {index}")

    def page(self, index: int) -> dict[str, EnrolledNode]:
        """The nodes of a page, in order.

        Raises:
            AttestationError: ST-ATTS-009.
        """
        line, what = self.table[index], f"page {index}"
        nodes = self._parsed(self.raw(index), dict[str, EnrolledNode], PAGE_LIMIT, what)
        names = list(nodes)
        end = self._firsts[index + 1] if index + 1 < len(self._firsts) else None
        in_order = all(a < b for a, b in pairwise(names))
        if (
            len(names) != line.nodes
            or names[0] != line.first
            or not in_order
            or (end is not None and names[-1] >= end)
        ):
            raise self._bad(f"{what} does not fit the table")
        for name, node in nodes.items():
            self.check(name, node)
        return nodes

    def _verified(self, offset: int, size: int, sha256: str, what: str) -> bytes:
        data = self._read(offset, size)
        if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
            raise self._bad(f"{what} is not what was signed")
        return data

    def _parsed(self, data: bytes, kind: type[T], limit: int, what: str) -> T:
        try:
            return canonical.decode(data, kind, limit=limit, where=self._where)
        except SecureTrainError as error:
            raise self._bad(f"{what}: {reason(error)}") from error

    def _bad(self, what: str) -> AttestationError:
        return AttestationError(
            "ST-ATTS-009",
            what,
            self._where,
            "copy the reference values and the file of their nodes again, both of one edition",
        )


class _PagedItems(ItemsView[str, EnrolledNode]):
    """All of them, without looking each up."""

    _mapping: PagedNodes

    def __iter__(self) -> Iterator[tuple[str, EnrolledNode]]:
        nodes = self._mapping
        for index in range(len(nodes.table)):
            yield from nodes.page(index).items()


class EditedNodes(Mapping[str, EnrolledNode]):
    """An inventory with changes over it, which are all that it holds itself."""

    def __init__(self, base: Mapping[str, EnrolledNode]) -> None:
        """Begin without a change."""
        self.base: Mapping[str, EnrolledNode] = base
        self.changes: dict[str, EnrolledNode | None] = {}
        self._count = len(base)
        if isinstance(base, EditedNodes):
            self.base, self.changes = base.base, dict(base.changes)

    def put(self, name: str, node: EnrolledNode) -> None:
        """Add a node, or change it."""
        self._count += name not in self
        self.changes[name] = node

    def remove(self, name: str) -> None:
        """Take a node out.

        Raises:
            KeyError: It is not there.
        """
        if name not in self:
            raise KeyError(name)
        self.changes[name] = None
        self._count -= 1

    def settled(self) -> Mapping[str, EnrolledNode]:
        """The same inventory; a plain one where nothing of it stands in pages."""
        return self if isinstance(self.base, PagedNodes) else dict(self.items())

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self.base if name not in self.changes)
        yield from (name for name, node in self.changes.items() if node is not None)

    def __getitem__(self, name: str) -> EnrolledNode:
        if name in self.changes:
            node = self.changes[name]
            if node is None:
                raise KeyError(name)
            return node
        return self.base[name]

    def items(self) -> ItemsView[str, EnrolledNode]:
        """All nodes; those that did not change come page by page."""
        return _EditedItems(self)


class _EditedItems(ItemsView[str, EnrolledNode]):
    _mapping: EditedNodes

    def __iter__(self) -> Iterator[tuple[str, EnrolledNode]]:
        edited = self._mapping
        yield from (one for one in edited.base.items() if one[0] not in edited.changes)
        yield from ((name, node) for name, node in edited.changes.items() if node is not None)


class PageWriter:
    """Lays an inventory out in pages, in order; pages without a change are taken over."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        """Begin.

        Args:
            write: takes the bytes of the file in order.
        """
        self._write = write
        self._table: list[Page] = []
        self._size = 0
        self._open: list[tuple[str, bytes]] = []
        self._open_size = 0

    def write(self, nodes: Mapping[str, EnrolledNode], where: str) -> PagesRoot:
        """Write all pages and the table.

        Raises:
            AttestationError: ST-ATTS-018 for what no verifier would read; ST-ATTS-009 from pages
                that are taken over.
        """
        if not 0 < len(nodes) <= MAX_NODES:
            raise _too_much(f"{len(nodes)} nodes, the limit is {MAX_NODES}", where)
        edited = nodes if isinstance(nodes, EditedNodes) else EditedNodes(nodes)
        if isinstance(edited.base, PagedNodes):
            self._merge(edited.base, edited.changes, where)
        else:
            for name, node in sorted(edited.items()):
                self._add(name, node, where)
        self._close(where)
        table = canonical.encode(self._table)
        if len(table) > TABLE_LIMIT:
            raise _too_much(f"the table has {len(table)} bytes, the limit is {TABLE_LIMIT}", where)
        self._write(table)
        return PagesRoot(
            nodes=sum(page.nodes for page in self._table),
            pages_size=self._size,
            table_size=len(table),
            table=hashlib.sha256(table).hexdigest(),
        )

    def _merge(
        self, base: PagedNodes, changes: Mapping[str, EnrolledNode | None], where: str
    ) -> None:
        by_page: dict[int, list[str]] = {}
        for name in sorted(changes):
            by_page.setdefault(max(0, base.place(name)), []).append(name)
        for index, line in enumerate(base.table):
            if index not in by_page:
                self._close(where)
                self._take(line, base.raw(index), where)
                continue
            nodes: dict[str, EnrolledNode | None] = {**base.page(index)}
            nodes.update((name, changes[name]) for name in by_page[index])
            for name, node in sorted(nodes.items()):
                if node is not None:
                    self._add(name, node, where)

    def _add(self, name: str, node: EnrolledNode, where: str) -> None:
        if not _NAME.fullmatch(name):
            raise _too_much(f"{name[:80]!r} is no name of a node", where)
        entry = canonical.encode(node)
        if len(entry) > NODE_LIMIT:
            raise _too_much(
                f"it has {len(entry)} bytes, the limit is {NODE_LIMIT}", f"{where}: nodes.{name}"
            )
        if len(node.own) and (most := max(map(len, node.own.values()))) > MAX_OWN:
            raise _too_much(
                f"{most} measurements of its own in one register, the limit is {MAX_OWN}",
                f"{where}: nodes.{name}.own",
            )
        self._open.append((name, canonical.dumps(name) + b":" + entry))
        self._open_size += len(self._open[-1][1]) + 1
        if self._open_size >= PAGE_SIZE:
            self._close(where)

    def _close(self, where: str) -> None:
        if not self._open:
            return
        data = b"{" + b",".join(entry for _, entry in self._open) + b"}"
        line = Page(self._open[0][0], len(self._open), len(data), hashlib.sha256(data).hexdigest())
        self._take(line, data, where)
        self._open, self._open_size = [], 0

    def _take(self, line: Page, data: bytes, where: str) -> None:
        self._size += len(data)
        if self._size > PAGES_LIMIT:
            raise _too_much(f"its pages have over {PAGES_LIMIT} bytes", where)
        self._table.append(line)
        self._write(data)


def with_nodes(
    nodes: Mapping[str, EnrolledNode], changes: Mapping[str, EnrolledNode | None]
) -> Mapping[str, EnrolledNode]:
    """An inventory with nodes added or changed, or taken out (None).

    Raises:
        KeyError: One that is to be taken out is not there.
    """
    edited = EditedNodes(nodes)
    for name, node in changes.items():
        if node is None:
            edited.remove(name)
        else:
            edited.put(name, node)
    return edited.settled()


def hardware_of(node: EnrolledNode) -> Iterable[tuple[str, str]]:
    """Give what belongs to this node alone: kind and name of TPMs, chips, devices and VMs."""
    for kind in ("ek_names", "chips", "devices", "vms"):
        for name in getattr(node, kind):
            yield kind, name


def _too_much(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-018", what, where)
