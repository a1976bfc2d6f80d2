# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files that are nearly packs: each is refused by a code, whatever its bytes were made to do.

Nobody has signed a container, so whoever has the file can write all of it. Each attack is a whole
file, made from an honest one; what a tar program or a JSON parser takes is the control. No torch.
"""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from securetrain.artifacts import kinds
from securetrain.chain import container, packed, packing
from securetrain.chain.container import Document, Pack
from securetrain.core.errors import SecureTrainError, UsageError
from tests import vocabulary
from tests.chain.switches import Switches, hold, refusing_checks

BLOBS: Final = "blobs/sha256/"
MALFORMED: Final = "ST-PACK-101"
GONE: Final = "ST-PACK-140"
STATEMENT: Final = b'{"payload":"e30="}'
OTHERS: Final = tuple(bytes([65 + n]) * (n * 97) for n in range(5))
Edit = Callable[["Raw"], None]


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def dumps(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def member(name: str, data: bytes, size: int | None = None, **header: Any) -> bytes:
    """A member as a tar program writes it."""
    info = tarfile.TarInfo(name)
    info.mode, info.size = 0o644, len(data) if size is None else size
    for key, value in header.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def summed(head: bytes) -> bytes:
    """A header with its checksum."""
    plain = head[:148] + b" " * 8 + head[156:]
    return plain[:148] + b"%06o\0 " % sum(plain) + plain[156:]


@dataclass
class Raw:
    """A pack as whoever writes it has it in hand, from the list of contents up to the bytes."""

    contents: Any = field(default_factory=dict)
    manifest: Any = field(default_factory=dict)
    index: Any = field(default_factory=dict)
    listed: bytes | None = None
    """The list of contents, as it is spelled; else `contents` in canonical form."""
    manifested: Callable[[bytes], bytes] = bytes
    """Spells the manifest otherwise."""
    indexed: Callable[[bytes], bytes] = bytes
    edit_manifest: Callable[[Any], object] = lambda _: None
    edit_index: Callable[[Any], object] = lambda _: None
    edit_members: Callable[[list[tuple[str, bytes]]], object] = lambda _: None
    write: Callable[[str, bytes], bytes] = member
    edit_file: Callable[[bytes], bytes] = bytes
    more: list[tuple[str, bytes]] = field(default_factory=list)
    """Further documents: media type and bytes."""

    def __post_init__(self) -> None:
        self.contents = {"statements": [{"statement": digest_of(STATEMENT)}]}

    def documents(self) -> list[tuple[str, bytes]]:
        listed = dumps(self.contents) if self.listed is None else self.listed
        others = [(packing.PIECE_TYPE, data) for data in OTHERS]
        listing = [] if listed == b"none" else [(packing.CONTENTS_TYPE, listed)]
        found = {digest_of(data): (kind, data) for kind, data in [*listing, *others, *self.more]}
        return [(packing.STATEMENT_TYPE, STATEMENT), *(found[one] for one in sorted(found))]

    def made(self) -> bytes:
        documents = self.documents()
        empty = described(container.EMPTY_TYPE, container.EMPTY)
        manifest = {
            "schemaVersion": 2,
            "mediaType": container.MANIFEST_TYPE,
            "artifactType": container.ARTIFACT_TYPE,
            "config": empty,
            "layers": [described(kind, data) for kind, data in documents],
        }
        self.edit_manifest(manifest)
        manifest_data = self.manifested(dumps(manifest))
        named = described(container.MANIFEST_TYPE, manifest_data)
        index = {
            "schemaVersion": 2,
            "manifests": [named | {"artifactType": container.ARTIFACT_TYPE}],
        }
        self.edit_index(index)
        blobs = sorted(
            (digest_of(data), data)
            for data in {*(data for _, data in documents), manifest_data, container.EMPTY}
        )
        members = [
            ("oci-layout", container.LAYOUT),
            ("index.json", self.indexed(dumps(index))),
            *((BLOBS + digest, data) for digest, data in blobs),
        ]
        self.edit_members(members)
        body = b"".join(self.write(name, data) for name, data in members)
        return self.edit_file(body + container.END)


def described(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{digest_of(data)}", "size": len(data)}


def read_all(path: Path) -> None:
    """Everything that a verifier reads before it asks for a signature."""
    with Pack.open(path) as opened:
        packed.contents(opened)
        packed.claimed_time(opened)
        for digest in opened.layers:
            opened.read(digest, 1 << 20)


# --- the attacks ---

ATTACKS: dict[str, tuple[str, Edit]] = {}


def attack(name: str, edit: Edit, code: str = MALFORMED) -> None:
    assert name not in ATTACKS
    ATTACKS[name] = code, edit


def sets(**fields: Any) -> Edit:
    def do(raw: Raw) -> None:
        for name, value in fields.items():
            setattr(raw, name, value)

    return do


def fourth(**header: Any) -> Edit:
    """The fourth document's header says something more."""

    def write(name: str, data: bytes) -> bytes:
        return member(name, data, **(header if data == OTHERS[3] else {}))

    return sets(write=write)


def in_header(at: int, value: bytes) -> Edit:
    """The fourth document's header has other bytes, and their checksum."""

    def write(name: str, data: bytes) -> bytes:
        made = member(name, data)
        if data != OTHERS[3]:
            return made
        return summed(made[:at] + value + made[at + len(value) : 512]) + made[512:]

    return sets(write=write)


for kind, letter in {
    "a symbolic link": tarfile.SYMTYPE,
    "a hard link": tarfile.LNKTYPE,
    "a character device": tarfile.CHRTYPE,
    "a block device": tarfile.BLKTYPE,
    "a pipe": tarfile.FIFOTYPE,
    "a directory": tarfile.DIRTYPE,
    "a contiguous file": tarfile.CONTTYPE,
    "a file as it was before POSIX": tarfile.AREGTYPE,
    "a sparse file": tarfile.GNUTYPE_SPARSE,
    "a volume's name": b"V",
    "the rest of a file of another volume": b"M",
}.items():
    attack(kind, in_header(156, letter))
attack("a link's target", in_header(157, b"/etc/passwd"))
attack("a prefix of the name", in_header(345, b"../../etc"))
attack("the format of POSIX", in_header(257, b"ustar\00000"))
attack("bytes behind the header's fields", in_header(500, b"hidden"))
HEADS: dict[str, dict[str, Any]] = {
    "a time": {"mtime": 1},
    "an owner": {"uid": 1000},
    "an owner's name": {"uname": "root"},
    "the right to be run as root": {"mode": 0o4755},
}
for what, head in HEADS.items():
    attack(what, fourth(**head))
for size in (1 << 33, 1 << 53, (1 << 63) - 1, 1 << 63, 1 << 64, (1 << 88) - 1):
    attack(f"a size of {size}", in_header(124, b"\x80" + size.to_bytes(11, "big")))
for size in (-1, -512, -(1 << 63)):
    twos = (size & ((1 << 88) - 1)).to_bytes(11, "big")
    attack(f"a size of {size}", in_header(124, b"\xff" + twos))
attack("a size without an end", in_header(124, b"777777777777"))
attack("a size with spaces", in_header(124, b"       443 \0"))
attack("a size that is no number", in_header(124, b"4x3        \0"))
attack("a size of nothing", in_header(124, bytes(12)))
small = b"\x80" + (291).to_bytes(11, "big")
attack("a small size, as large ones are written", in_header(124, small))


def in_members(change: Callable[[list[tuple[str, bytes]]], object]) -> Edit:
    return sets(edit_members=change)


def in_place(change: Callable[[str, bytes], list[tuple[str, bytes]]]) -> Edit:
    """What stands where the fourth document was."""

    def do(members: list[tuple[str, bytes]]) -> None:
        at = next(n for n, (_, data) in enumerate(members) if data == OTHERS[3])
        members[at : at + 1] = change(*members[at])

    return in_members(do)


def renamed(change: Callable[[str], str]) -> Edit:
    return in_place(lambda name, data: [(change(name), data)])


attack("a twin", in_place(lambda name, data: [(name, data), (name, data)]))
attack("a twin with other bytes", in_place(lambda name, data: [(name, data), (name, b"other")]))
attack("a twin before it", in_place(lambda name, data: [(name, b"other"), (name, data)]))
attack("a twin of the index", in_members(lambda all_: all_.insert(2, all_[1])))
attack("a second beginning", in_members(lambda all_: all_.extend(all_[:2])))
attack("out of order", in_members(lambda all_: all_.insert(-2, all_.pop())))
attack("a name in capitals", renamed(lambda name: BLOBS + name[len(BLOBS) :].upper()), GONE)
attack("a name upwards", renamed(lambda name: "../" + name))
attack("a name from the root", renamed(lambda name: "/" + name))
attack("a name with a dot", renamed(lambda name: "./" + name))
attack("a name with two slashes", renamed(lambda name: name.replace("/", "//")))
attack("a longer name", renamed(lambda name: name + "0"))
attack("a name of many bytes", renamed(lambda name: name + "0" * 200))
attack("a name of another script", renamed(lambda name: name[:-1] + "\u0430"))
attack("a name with an end inside", renamed(lambda name: name[:-4] + "\0" + name[-3:]), GONE)
attack("a document is left out", in_place(lambda *_: []), "ST-PACK-140")
stray = BLOBS + "f" * 64, b"x"
attack("a document of nobody", in_members(lambda all_: all_.append(stray)), "ST-PACK-141")
other_bytes = in_place(lambda name, data: [(name, b"?" * len(data))])
attack("other bytes of the same size", other_bytes, "ST-PACK-130")
attack("no bytes at all", in_place(lambda name, _: [(name, b"")]), "ST-PACK-140")


def extended(letter: bytes, body: bytes, at: int = 4) -> Edit:
    """A member that says something about the next one, as PAX and GNU have it."""

    def write(name: str, data: bytes) -> bytes:
        made = member(name, data)
        if name == "././@ext":
            return summed(made[:156] + letter + made[157:512]) + made[512:]
        return made

    def do(raw: Raw) -> None:
        raw.write = write
        raw.edit_members = lambda members: members.insert(at, ("././@ext", body))

    return do


attack("a path of PAX", extended(b"x", b"21 path=/etc/crontab\n"))
attack("a size of PAX", extended(b"x", b"28 size=9223372036854775807\n"))
attack("a sparse map of PAX", extended(b"x", b"22 GNU.sparse.major=1\n"))
attack("a word of PAX on all members", extended(b"g", b"21 path=/etc/crontab\n", at=2))
attack("a long name of GNU", extended(b"L", b"/etc/crontab\0"))
attack("a long target of GNU", extended(b"K", b"/etc/crontab\0"))


def in_file(change: Callable[[bytes], bytes]) -> Edit:
    return sets(edit_file=change)


def zipped(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.stpack", data)
    return out.getvalue()


def hidden(data: bytes) -> bytes:
    """In what fills the last block of the layout, which is 30 bytes long."""
    at = 512 + len(container.LAYOUT)
    return data[: at + 9] + b"hidden" + data[at + 15 :]


attack("no end", in_file(lambda data: data[: -len(container.END)]))
attack("half an end", in_file(lambda data: data[:-512]))
attack("an end in the middle", in_file(lambda data: data[:4096] + container.END + data[4096:]))
attack("one byte more", in_file(lambda data: data + b"\0"))
attack("a block more", in_file(lambda data: data + bytes(512)))
attack("a tape's padding", in_file(lambda data: data + bytes(-len(data) % 10240)))
attack("another pack behind it", in_file(lambda data: data * 2))
attack("a ZIP behind it", in_file(lambda data: data + zipped(b"x")))
attack("bytes before it", in_file(lambda data: bytes(512) + data))
attack("bytes behind a document", in_file(hidden))
attack("nothing", in_file(lambda _: b""))
attack("its first block", in_file(lambda data: data[:512]))
attack("its end alone", in_file(lambda _: container.END))
attack("compressed by gzip", in_file(gzip.compress))
attack("compressed by bzip2", in_file(bz2.compress))
attack("compressed by xz", in_file(lzma.compress))
attack("in a ZIP", in_file(zipped))
attack("a bomb", in_file(lambda _: gzip.compress(gzip.compress(bytes(1 << 20), 9), 9)))


# --- JSON that says other things to other parsers ---


def deep(number: int) -> bytes:
    return b"[" * number + b"]" * number


SPELLINGS: dict[str, Callable[[bytes], bytes]] = {
    "a mark of the byte order": lambda data: b"\xef\xbb\xbf" + data,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "no UTF-8": lambda data: data.replace(b"vnd.", b"vnd\xff", 1),
    "too long UTF-8": lambda data: data.replace(b"vnd.", b"vnd\xc0\xae", 1),
    "half a surrogate pair": lambda data: data.replace(b"vnd.", rb"vnd\ud800", 1),
    "a key twice": lambda data: data[:-1] + b',"schemaVersion":2}',
    "a key twice, once escaped": lambda data: data[:-1] + rb',"\u0073chemaVersion":2}',
    "an unknown key": lambda data: data[:-1] + b',"zzz":null}',
    "no number": lambda data: data.replace(b":2", b":NaN", 1),
    "infinity": lambda data: data.replace(b":2", b":Infinity", 1),
    "too large a number": lambda data: data.replace(b":2", b":2e999", 1),
    "a number of 5,000 digits": lambda data: data.replace(b":2", b":" + b"2" * 5000, 1),
    "a number of 2^63": lambda data: data.replace(b":2", b":9223372036854775808", 1),
    "a number as a text": lambda data: data.replace(b":2", b':"2"', 1),
    "a number with a point": lambda data: data.replace(b":2", b":2.0", 1),
    "a truth": lambda data: data.replace(b":2", b":true", 1),
    "nothing": lambda data: data.replace(b":2", b":null", 1),
    "lists in lists": lambda data: data.replace(b":2", b":" + deep(1000), 1),
    "spaces": lambda data: data.replace(b":", b": "),
    "a line behind it": lambda data: data + b"\n",
    "an escaped letter": lambda data: data.replace(b"vnd.", rb"vnd\u002e", 1),
    "a comment": lambda data: data + b"/**/",
    "two values": lambda data: data + data,
    "no value": lambda _: b"",
    "a list": lambda data: b"[" + data + b"]",
}
for spelling, spell in SPELLINGS.items():
    attack(f"manifest: {spelling}", sets(manifested=spell))
    attack(f"index: {spelling}", sets(indexed=spell))
attack("manifest: lists in lists without end", sets(manifested=lambda _: deep(100_000)))
attack("index: longer than any", sets(indexed=lambda data: data + b" " * 5000))


def in_manifest(change: Callable[[Any], object]) -> Edit:
    return sets(edit_manifest=change)


def layer(number: int, **fields: Any) -> Edit:
    return in_manifest(lambda said: said["layers"][number].update(fields))


MANIFESTS: dict[str, dict[str, Any]] = {
    "of another version": {"schemaVersion": 3},
    "of another type": {"mediaType": "application/vnd.oci.image.index.v1+json"},
    "of an image": {"artifactType": "application/vnd.oci.image.config.v1+json"},
    "another config": {"config": described("application/json", container.EMPTY)},
    "without documents": {"layers": []},
}
for what, said in MANIFESTS.items():
    attack(f"manifest: {what}", in_manifest(partial(lambda said, plain: plain.update(said), said)))
attack("manifest: a document twice", in_manifest(lambda m: m["layers"].append(m["layers"][-1])))
attack("manifest: its subject twice", in_manifest(lambda m: m["layers"].append(m["layers"][0])))
attack("manifest: out of order", in_manifest(lambda m: m["layers"].insert(1, m["layers"].pop())))
by_size = in_manifest(lambda m: m["layers"].sort(key=lambda one: one["size"]))
attack("manifest: another subject", by_size)
absent = described("a/b", b"?") | {"digest": "sha256:" + "f" * 64}
missing = in_manifest(lambda m: m["layers"].append(absent))
attack("manifest: a document that is not there", missing, GONE)
attack("manifest: a document is not named", in_manifest(lambda m: m["layers"].pop()), "ST-PACK-141")
attack("manifest: an artifact's type", layer(2, artifactType="a/b"))
attack("manifest: a longer document", layer(2, size=1 << 40), "ST-PACK-140")
attack("manifest: a shorter document", layer(2, size=1), "ST-PACK-140")
for size in (-1, 1 << 53, 1 << 63):
    attack(f"manifest: a document of {size} bytes", layer(2, size=size))
attack("manifest: a size that is no integer", layer(2, size=1.5))
attack("manifest: another kind of digest", layer(2, digest="sha512:" + "a" * 128))
attack("manifest: a digest in capitals", layer(2, digest="sha256:" + "A" * 64))
attack("manifest: a digest with a line", layer(2, digest="sha256:" + "a" * 64 + "\n"))
attack("manifest: a type of many letters", layer(2, mediaType="a" * 129))
attack("manifest: addresses to load it from", layer(2, urls=["http://example.com/x"]))


def in_index(change: Callable[[list[Any]], object]) -> Edit:
    return sets(edit_index=lambda index: change(index["manifests"]))


def names(**fields: Any) -> Edit:
    """The index names a manifest of these words."""
    return in_index(lambda named: named[0].update(fields))


attack("index: two manifests", in_index(lambda named: named.append(named[0])))
attack("index: none", in_index(list.clear))
attack("index: another manifest", names(digest="sha256:" + "a" * 64), "ST-PACK-140")
other = described(container.MANIFEST_TYPE, OTHERS[2])
attack("index: a document as the manifest", names(**other))
attack("index: a larger manifest", names(size=1 << 40), "ST-PACK-140")

# --- the list of contents ---


def listed(change: Callable[[list[Any]], object]) -> Edit:
    """The list of statements is another."""

    def do(raw: Raw) -> None:
        change(raw.contents["statements"])

    return do


def spelled(spell: Callable[[bytes], bytes]) -> Edit:
    return lambda raw: setattr(raw, "listed", spell(dumps(raw.contents)))


attack("contents: none", sets(listed=b"none"))
second = dumps({"statements": [{"statement": "0" * 64}]})
attack("contents: two lists", sets(more=[(packing.CONTENTS_TYPE, second)]))
attack("contents: of nothing", listed(lambda said: said.clear()))
about = {"statement": digest_of(OTHERS[2])}
attack("contents: about another statement", listed(lambda said: said.insert(0, about)))


def lists(value: object, said: list[Any]) -> None:
    said.append({"statement": value})


for what, value in {
    "a digest in capitals": "A" * 64,
    "a digest with a line": "a" * 64 + "\n",
    "a number": 1 << 63,
    "nothing": None,
    "a path": "../" * 21 + "x",
}.items():
    attack(f"contents: {what} as a statement", listed(partial(lists, value)))
attack("contents: an unknown key", listed(lambda said: said[0].update(also=1)))
for spelling in (
    "spaces",
    "a mark of the byte order",
    "UTF-16",
    "two values",
    "no value",
    "a list",
):
    attack(f"contents: {spelling}", spelled(SPELLINGS[spelling]))
attack("contents: lists in lists", sets(listed=deep(100_000)))
attack("contents: a key twice", spelled(lambda data: data[:-1] + b',"statements":[]}'))
too_many = [{"statement": "0"}] * (1 << 17)
attack("contents: more than a pack has", listed(lambda said: said.extend(too_many)))


@pytest.fixture(scope="module")
def checks() -> Iterator[Switches]:
    with refusing_checks() as made:
        yield made


@pytest.mark.forgery
@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_nearly_a_pack_is_refused(checks: Switches, name: str, tmp_path: Path) -> None:
    code, edit = ATTACKS[name]
    raw = Raw()
    edit(raw)
    path = tmp_path / "x.stpack"
    path.write_bytes(raw.made())
    vocabulary.refused(SecureTrainError, code, read_all, path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["x.stpack"]
    hold(checks, "container", name, lambda: reason_of(path))


def reason_of(path: Path) -> str:
    try:
        read_all(path)
    except SecureTrainError as error:
        return error.what
    return ""


@pytest.fixture
def honest(tmp_path: Path) -> Path:
    path = tmp_path / "x.stpack"
    path.write_bytes(Raw().made())
    return path


def test_the_honest_one_is_taken(honest: Path, tmp_path: Path) -> None:
    read_all(honest)
    documents = [Document.of(kind, data) for kind, data in Raw().documents()]
    container.write_pack(tmp_path / "y.stpack", documents[0], documents[1:])
    assert (tmp_path / "y.stpack").read_bytes() == honest.read_bytes()


# --- what is asked of the container besides ---


def test_a_pack_is_told_by_its_beginning(honest: Path, tmp_path: Path) -> None:
    """A pipe is none, and nobody waits for its other end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "other").write_bytes(b"x" * 4096)
    for path, told in {honest: True, tmp_path / "other": False, tmp_path: False}.items():
        assert (kinds.guess(path).kind is kinds.TargetKind.PACK) is told
    with pytest.raises(SecureTrainError):
        Pack.open(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("offset", "length", "code"),
    [(0, 98, MALFORMED), (98, 0, MALFORMED), (-1, 3, MALFORMED), (3, -1, MALFORMED), (90, 7, "")],
)
def test_a_stretch_is_one_of_the_document(honest, offset, length, code):
    """What lies before or behind it in the file is another's."""
    with Pack.open(honest) as opened:
        digest = digest_of(OTHERS[1])
        if not code:
            assert b"".join(opened.chunks(digest, offset, length)) == OTHERS[1][90:97]
            return
        vocabulary.refused(SecureTrainError, code, list, opened.chunks(digest, offset, length))


def test_what_the_manifest_does_not_name_has_no_bytes(honest: Path) -> None:
    with Pack.open(honest) as opened:
        for digest in ("0" * 64, digest_of(container.EMPTY)):
            vocabulary.refused(SecureTrainError, "ST-PACK-140", list, opened.chunks(digest))


def test_a_manifest_has_a_limit(honest: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Neither is one read that is larger, nor written."""
    documents = [Document.of(kind, data) for kind, data in Raw().documents()]
    monkeypatch.setattr(container, "MAX_MANIFEST", 900)
    assert vocabulary.refused(SecureTrainError, GONE, read_all, honest).what == "the manifest"
    with pytest.raises(UsageError, match="more than a pack holds"):
        container.write_pack(tmp_path / "y.stpack", documents[0], documents[1:])
    assert not (tmp_path / "y.stpack").exists()


def test_holes_of_a_tebibyte_are_not_read(tmp_path: Path) -> None:
    """A file of a few blocks on disk, whose document is as large as a header can say."""
    path, size = tmp_path / "x.stpack", 1 << 40
    digest = "f" * 64
    raw = Raw(
        edit_manifest=lambda m: m["layers"].append(
            {"mediaType": packing.PIECE_TYPE, "digest": f"sha256:{digest}", "size": size}
        )
    )
    head = member(BLOBS + digest, b"", size)[:512]
    made = raw.made()[: -len(container.END)] + head
    path.write_bytes(made)
    os.truncate(path, len(made) + size + len(container.END))
    with Pack.open(path) as opened:
        assert packed.contents(opened).statements
        vocabulary.refused(SecureTrainError, MALFORMED, opened.read, digest, 1 << 20)
