# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes what lists of measured files are made of: packages, archives, images; and inventories."""

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

from securetrain.attest.fleet.packages import dpkg, image, rpm
from securetrain.attest.fleet.packages.listing import FileListing, digest_of
from securetrain.attest.fleet.packages.tars import members
from securetrain.core import canonical
from securetrain.evidence.inventory import EnrolledNode, PagedNodes, PagesRoot, PageWriter
from tests.attest.fleet import packages_made as made
from tests.evidence.tpm.forge import NOW
from tools.fuzz.engine import Parser

_NAMES = tuple(f"node-{number:04}" for number in range(300))


def packages(folder: Path) -> list[Parser]:
    """The parsers.

    Args:
        folder: For the files that are read; it is made.
    """
    folder.mkdir(parents=True)
    files: dict[str, bytes | str | None] = {
        "./usr/bin/tool": made.TOOL,
        "./bin/link": "->/usr/bin/tool",
        "./usr/lib/" + "long" * 40: b"x",
    }
    layers = [made.tar(files), made.tar({"usr/bin/.wh.tool": b"", "etc/new": b"new"})]
    layout = made.oci(folder / "layout", layers)
    root = made.dpkg_root(folder / "root", {"tool": {"/usr/bin/tool": made.TOOL}})
    status = root / "var/lib/dpkg/status"
    return [
        Parser("package-rpm", lambda: [made.RPM], _listed(folder / "a.rpm", rpm.list_rpm)),
        Parser(
            "package-rpm-header",
            lambda: [_body(made.RPM)],
            lambda data: rpm.Header(data, "h").list_files(FileListing(), None),
        ),
        Parser(
            "package-deb",
            lambda: [
                made.deb(
                    folder / f"seed{n}.deb", made.tar(files, kind), f"data.tar{end}"
                ).read_bytes()
                for n, (kind, end) in enumerate((("xz", ".xz"), ("gz", ".gz"), ("", "")))
            ],
            _listed(folder / "a.deb", dpkg.list_deb),
        ),
        Parser(
            "package-status",
            lambda: [status.read_bytes()],
            lambda data: (status.write_bytes(data), _list(dpkg.list_installed, root)),
        ),
        Parser("package-tar", lambda: [layers[0], _chained(4)], _read),
        Parser(
            "package-image", lambda: [_packed(layout)], _listed(folder / "a.tar", image.list_image)
        ),
        *_inventories(),
    ]


def _listed(path: Path, read: Callable[[Path, FileListing], object]) -> Callable[[bytes], object]:
    def parse(data: bytes) -> object:
        path.write_bytes(data)
        return _list(read, path)

    return parse


def _list(read: Callable[[Path, FileListing], object], path: Path) -> bytes:
    """List, and spell what was found as the two files of a list do."""
    listing = FileListing()
    read(path, listing)
    found = [sorted(listing.packages), listing.notes, dict(listing.signed_by)]
    return listing.document(NOW) + canonical.dumps(found)


def _read(data: bytes) -> None:
    for member, content in members(io.BytesIO(data), "a.tar"):
        if content is not None:
            digest_of(content, member.size)


def _body(package: bytes) -> bytes:
    """The header that lists the files, behind the one with the signatures."""
    magic = package[96:104]
    return package[package.index(magic, 104) + 8 :]


def _chained(count: int) -> bytes:
    """Long names of a long name: each header is read inside of the one before."""
    made_of = io.BytesIO()
    with tarfile.open(fileobj=made_of, mode="w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo("x" * 200)
        archive.addfile(info)
    header = made_of.getvalue()[:1024]
    return header * count + made_of.getvalue()


def _packed(layout: Path) -> bytes:
    """The layout as one archive."""
    names = sorted(path for path in layout.rglob("*") if path.is_file())
    return made.tar({str(path.relative_to(layout)): path.read_bytes() for path in names})


def _inventories() -> list[Parser]:
    """The table and a page of an inventory, as a signer could have made them."""
    written: list[bytes] = []
    nodes = {
        name: EnrolledNode(ek_names=("000b" + "ab" * 32,), own={"1": ("cd" * 32,)})
        for name in _NAMES
    }
    root = PageWriter(written.append).write(nodes, "seed")
    whole = b"".join(written)
    table = whole[root.pages_size :]

    def opened(pages: bytes, table: bytes, count: int) -> int:
        data = pages + table
        signed = PagesRoot(
            nodes=max(1, count),
            pages_size=max(2, len(pages)),
            table_size=max(2, len(table)),
            table=hashlib.sha256(table).hexdigest(),
        )
        found = PagedNodes(signed, lambda offset, size: data[offset : offset + size], "pages")
        return len(dict(found.items())) + len(list(found))

    def page(data: bytes) -> int:
        digest = hashlib.sha256(data).hexdigest()
        line = canonical.encode([["node-0000", 2, max(2, len(data)), digest]])
        return opened(data, line, 2)

    first = (
        b"{"
        + b",".join(
            canonical.dumps(name) + b":" + canonical.encode(nodes[name]) for name in _NAMES[:2]
        )
        + b"}"
    )
    return [
        Parser(
            "inventory-table",
            lambda: [table],
            lambda data: opened(whole[: root.pages_size], data, len(nodes)),
        ),
        Parser("inventory-page", lambda: [first], page),
    ]
