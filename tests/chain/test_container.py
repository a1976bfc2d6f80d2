# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A pack's container: the same bytes from the same documents, and no other bytes are one."""

import contextlib
import hashlib
import io
import json
import random
import struct
import tarfile
from pathlib import Path

import pytest

from securetrain.chain import container
from securetrain.chain.container import Document, Pack, write_pack
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from tests import vocabulary
from tests.tables import each

SUBJECT = Document.of("application/vnd.in-toto+json", b'{"the":"subject"}')
OTHERS = [Document.of("text/plain", bytes([n]) * (n * 97)) for n in range(9)]
ALL = [SUBJECT, *OTHERS]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    path = tmp_path / "a.stpack"
    write_pack(path, SUBJECT, OTHERS)
    return path


def read_all(path: Path) -> dict[str, bytes]:
    with Pack.open(path) as opened:
        return {one: opened.read(one, 1 << 20) for one in opened.layers}


def code_of(path: Path) -> str:
    with pytest.raises(SecureTrainError) as refused:
        read_all(path)
    return refused.value.code


def test_the_same_documents_are_the_same_bytes_in_any_order(pack: Path, tmp_path: Path) -> None:
    twice = [*OTHERS, *OTHERS, SUBJECT]
    random.Random(1).shuffle(twice)
    write_pack(tmp_path / "b.stpack", SUBJECT, twice)
    assert pack.read_bytes() == (tmp_path / "b.stpack").read_bytes()
    with Pack.open(pack) as opened:
        assert opened.subject.hex == SUBJECT.digest
        assert read_all(pack) == {one.digest: one.source for one in ALL}
        assert SUBJECT.digest in opened
        assert "0" * 64 not in opened


@each("size", 0, 1, 511, 8**11 - 1, 8**11, 1 << 40, (1 << 63) - 1)
def test_headers_are_those_of_tarfile(size):
    for name in ("oci-layout", "blobs/sha256/" + SUBJECT.digest, "n" * 100):
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o644
        assert container._header(name, size) == info.tobuf(tarfile.GNU_FORMAT)


def test_others_read_it_as_tar_and_as_an_oci_layout(pack: Path) -> None:
    with tarfile.open(pack) as tar:
        files = {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
    assert json.loads(files.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    (named,) = json.loads(files.pop("index.json"))["manifests"]
    assert all(hashlib.sha256(data).hexdigest() == name[13:] for name, data in files.items())
    manifest = json.loads(files["blobs/sha256/" + named["digest"].removeprefix("sha256:")])
    assert manifest["layers"][0]["digest"] == "sha256:" + SUBJECT.digest
    assert len(manifest["layers"]) == len(ALL)


def test_it_is_written_whole_or_not_at_all_and_over_nothing(pack: Path, tmp_path: Path) -> None:
    before = pack.read_bytes()
    vocabulary.refused(UsageError, "never overwritten", write_pack, pack, SUBJECT, [])
    assert pack.read_bytes() == before
    source = tmp_path / "weights"
    source.write_bytes(b"w" * 4096)
    weights = Document.of("application/octet-stream", b"w" * 4096)
    there = Document(media_type=weights.media_type, digest=weights.digest, size=4096, source=source)
    write_pack(tmp_path / "b.stpack", SUBJECT, [there])
    assert read_all(tmp_path / "b.stpack")[weights.digest] == b"w" * 4096
    for damaged, code in ((b"w" * 4095 + b"v", "ST-PACK-130"), (b"w" * 4097, "ST-PACK-130")):
        source.write_bytes(damaged)
        with pytest.raises(IntegrityError) as refused:
            write_pack(tmp_path / "c.stpack", SUBJECT, [there])
        assert refused.value.code == code
    source.unlink()
    with pytest.raises(IntegrityError) as refused:
        write_pack(tmp_path / "c.stpack", SUBJECT, [there])
    assert refused.value.code == "ST-PACK-140"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.stpack", "b.stpack"]


def test_no_changed_byte_goes_unnoticed(pack: Path, tmp_path: Path) -> None:
    whole = pack.read_bytes()
    draw = random.Random(20261123)
    other = tmp_path / "other"
    for _ in range(400):
        at = draw.randrange(len(whole))
        changed = bytearray(whole)
        changed[at] ^= 1 << draw.randrange(8)
        other.write_bytes(changed)
        assert code_of(other).startswith("ST-PACK-"), at


@pytest.mark.parametrize("left", [0, 1, 511, 512, 1024, -1, -512, -1024])
def test_a_piece_of_one_is_none(pack: Path, left: int) -> None:
    pack.write_bytes(pack.read_bytes()[:left])
    assert code_of(pack) == "ST-PACK-101"


def members(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as tar:
        return [(one, tar.extractfile(one).read()) for one in tar]  # type: ignore[union-attr]


def rewrite(path: Path, entries: list[tuple[tarfile.TarInfo, bytes]], end: bytes = b"") -> None:
    """What a tar program makes of them, which any other reader takes."""
    out = io.BytesIO()
    for info, data in entries:
        out.write(info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512))
    path.write_bytes(out.getvalue() + container.END + end)
    with contextlib.suppress(tarfile.ReadError), tarfile.open(path) as tar:
        tar.getnames()


def test_a_member_may_be_nothing_else(pack: Path) -> None:
    """Each of these is a good tar, and other readers differ about what is in it."""
    good = members(pack)

    def with_(**changes: object) -> list[tuple[tarfile.TarInfo, bytes]]:
        info = tarfile.TarInfo(good[4][0].name)
        info.size, info.mode = good[4][0].size, 0o644
        for name, value in changes.items():
            setattr(info, name, value)
        return [*good[:4], (info, good[4][1]), *good[5:]]

    rewrite(pack, good)
    assert len(read_all(pack)) == len(ALL)
    extra = tarfile.TarInfo("blobs/sha256/" + "f" * 64)
    extra.mode = 0o644
    cases = {
        "twin": [*good[:5], good[4], *good[5:]],
        "order": [*good[:4], good[5], good[4], *good[6:]],
        "twin index": [good[0], good[1], good[1], *good[2:]],
        "link": with_(type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        "hard link": with_(type=tarfile.LNKTYPE, linkname=good[5][0].name),
        "device": with_(type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        "sparse": with_(type=tarfile.GNUTYPE_SPARSE),
        "long name": with_(name="blobs/sha256/" + "a" * 200),
        "outside": with_(name="../../etc/cron.d/x"),
        "time": with_(mtime=1),
        "owner": with_(uid=1000, uname="root"),
        "mode": with_(mode=0o4755),
        "capital": with_(name=good[4][0].name.upper()),
    }
    for name, entries in cases.items():
        rewrite(pack, entries)
        assert code_of(pack) == "ST-PACK-101", name
    rewrite(pack, [*good, (extra, b"")])
    assert code_of(pack) == "ST-PACK-141"
    rewrite(pack, [*good[:4], *good[5:]])
    assert code_of(pack) == "ST-PACK-140"
    for end in (b"\0", bytes(512), bytes(10240), b"PK\3\4"):
        rewrite(pack, good, end)
        assert code_of(pack) == "ST-PACK-101"


@pytest.mark.parametrize("size", [1 << 33, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 88) - 1])
def test_sizes_are_those_of_the_file(pack: Path, size: int) -> None:
    data = bytearray(pack.read_bytes())
    at = data.index(b"blobs/sha256/")
    data[at + 124 : at + 136] = b"\x80" + size.to_bytes(11, "big")
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(struct.unpack("512B", data[at : at + 512]))
    pack.write_bytes(data)
    assert code_of(pack) == "ST-PACK-101"


def test_a_document_is_read_within_a_limit(pack: Path) -> None:
    with Pack.open(pack) as opened:
        largest = OTHERS[-1]
        with pytest.raises(IntegrityError) as refused:
            opened.read(largest.digest, largest.size - 1)
        assert refused.value.code == "ST-PACK-101"
        vocabulary.refused(IntegrityError, "ST-PACK-140", opened.read, "0" * 64, 10)
        pack.write_bytes(pack.read_bytes()[:2048])
        vocabulary.refused(IntegrityError, "ST-PACK-101", opened.read, largest.digest, largest.size)


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    for there in (tmp_path / "gone", tmp_path):
        vocabulary.refused(UsageError, "ST-USAG-002", Pack.open, there)
