# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What runs is found in every container, and a scan that judged nothing is never clean."""

import bz2
import errno
import gzip
import io
import lzma
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from securetrain.artifacts.scan import archives, scanner
from securetrain.artifacts.scan.findings import ScanResult
from securetrain.artifacts.scan.scanner import scan_path
from securetrain.core.codes import ExitCode
from securetrain.core.errors import UsageError
from tests.tables import items
from tests.vocabulary import refused
from tools.scan_corpus import pieces

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled:UserWarning", "ignore:.*TypedStorage:UserWarning"
)


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A directory that exists once code has run."""
    return tmp_path / "ran"


@pytest.fixture
def evil(marker: Path) -> bytes:
    return pickle.dumps(Evil(marker))


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """Where the files to scan are."""
    folder = tmp_path / "room"
    folder.mkdir()
    return folder


def codes(result: ScanResult) -> set[str]:
    return {finding.code for finding in result.findings}


def tar_of(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def zip_of(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


# What is harmless.


def test_what_torch_saves_is_clean(room: Path) -> None:
    state = {
        "w": torch.ones(3, 4, dtype=torch.bfloat16),
        "h": torch.zeros(2).half(),
        "step": 3,
        "rng": torch.get_rng_state(),
        "p": torch.nn.Parameter(torch.ones(2)),
    }
    torch.save(state, room / "new.pt")
    torch.save(state, room / "old.pt", _use_new_zipfile_serialization=False)
    np.savez(room / "a.npz", a=np.ones(3))
    np.save(room / "b.npy", np.ones(3))
    (room / "README.md").write_text("config\nc\nabout\n")
    result = scan_path(room)
    assert result.findings == []
    assert result.exit_code is ExitCode.OK
    assert result.passed_over == ["README.md"]
    assert {one.name for one in result.judged} >= {"new.pt!new/data.pkl", "old.pt", "b.npy"}


def test_a_distributed_checkpoint_is_clean_and_every_item_was_judged(room: Path) -> None:
    dcp_save({"w": torch.ones(3), "step": 3, "n": {"lr": 0.1}}, checkpoint_id=room, no_dist=True)
    result = scan_path(room)
    assert result.findings == []
    assert sum(one.format == "pickle" for one in result.judged) == 4


# What runs, in every container. The control: the loader that it is meant for runs it.


def containers(evil: bytes, marker: Path, room: Path) -> dict[str, bytes]:
    torch.save(Evil(marker), room / "x.pt")
    torch.save({"a": [Evil(marker)]}, room / "y.pt", _use_new_zipfile_serialization=False)
    objects = io.BytesIO()
    np.save(objects, np.array([Evil(marker)], dtype=object), allow_pickle=True)
    files = {
        "plain.pkl": evil,
        "plain.txt": pickle.dumps(Evil(marker), 0),
        "second.pkl": pickle.dumps(1) + evil,
        "torch.pt": (room / "x.pt").read_bytes(),
        "legacy.bin": (room / "y.pt").read_bytes(),
        "objects.npy": objects.getvalue(),
        "objects.npz": zip_of({"a.npy": objects.getvalue()}),
        "deflated.npz": zip_of({"a.npy": objects.getvalue()}, zipfile.ZIP_DEFLATED),
        "web.tar": tar_of("0001.pyd", evil),
        "a.pkl.gz": gzip.compress(evil),
        "a.pkl.bz2": bz2.compress(evil),
        "a.pkl.xz": lzma.compress(evil),
        "deep.tar": tar_of("a.zip", zip_of({"b.pkl.gz": gzip.compress(evil)})),
        "broken.pkl": evil[:-1] + b"\xff",
    }
    (room / "x.pt").unlink()
    (room / "y.pt").unlink()
    return files


NAMES = (
    "plain.pkl", "plain.txt", "second.pkl", "torch.pt", "legacy.bin", "objects.npy", "objects.npz",
    "deflated.npz", "web.tar", "a.pkl.gz", "a.pkl.bz2", "a.pkl.xz", "deep.tar", "broken.pkl",
)  # fmt: skip


@pytest.mark.forgery
@pytest.mark.parametrize("name", NAMES)
def test_what_runs_is_named(name: str, room: Path, evil: bytes, marker: Path) -> None:
    (room / name).write_bytes(containers(evil, marker, room)[name])
    result = scan_path(room)
    assert "ST-SCAN-190" in codes(result)
    assert any("posix.mkdir" in finding.what for finding in result.findings)
    assert result.exit_code is ExitCode.UNSAFE_CONTENT
    assert not marker.exists()


def test_control_the_loaders_run_it(room: Path, evil: bytes, marker: Path) -> None:
    files = containers(evil, marker, room)
    for name in ("torch.pt", "legacy.bin"):
        (room / name).write_bytes(files[name])
        torch.load(room / name, weights_only=False)
        assert marker.exists()
        marker.rmdir()
    (room / "objects.npy").write_bytes(files["objects.npy"])
    np.load(room / "objects.npy", allow_pickle=True)
    assert marker.exists()


# The four attacks on torch.distributed.checkpoint that other scanners do not see.


def saved(room: Path) -> Path:
    dcp_save({"w": torch.ones(64), "step": 3}, checkpoint_id=room, no_dist=True)
    return room


@pytest.mark.forgery
def test_metadata_that_runs(room: Path, marker: Path) -> None:
    folder = saved(room)
    (folder / ".metadata").write_bytes(pickle.dumps(Evil(marker)))
    result = scan_path(folder)
    assert {"ST-SCAN-190", "ST-SCAN-031"} <= codes(result)
    assert not marker.exists()
    # dcp.load meets it in a process group of one; what it then does with the result is its affair.
    with pytest.raises(BaseException):  # noqa: B017, PT011 - torch wraps it in a BaseException
        dcp_load({"w": torch.ones(64)}, checkpoint_id=folder, no_dist=True)
    assert marker.exists()


@pytest.mark.forgery
def test_the_fallback_metadata_that_runs(room: Path, evil: bytes, marker: Path) -> None:
    folder = saved(room)
    (folder / "__0.metadata").write_bytes(evil)
    result = scan_path(folder)
    assert [f.file for f in result.findings if f.code == "ST-SCAN-190"] == ["__0.metadata"]
    assert not marker.exists()


@pytest.mark.forgery
def test_an_item_replaced_in_place_without_a_change_to_the_index(room, evil, marker):
    folder = saved(room)
    shard = folder / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[: len(evil)] = evil  # "step" is the first item, 1,261 bytes long
    shard.write_bytes(data)
    result = scan_path(folder)
    found = [f for f in result.findings if f.code == "ST-SCAN-190"]
    assert [(f.file, f.item) for f in found] == [("__0_0.distcp", "step")]
    assert not marker.exists()
    with pytest.raises(BaseException):  # noqa: B017, PT011
        dcp_load({"w": torch.ones(64), "step": 0}, checkpoint_id=folder, no_dist=True)
    assert marker.exists()


@pytest.mark.forgery
def test_an_item_is_a_pickle_whatever_its_file_is_called(room: Path) -> None:
    folder = saved(room)
    index = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(index.replace(b"__0_0.distcp", b"__0_0.sounds"))
    shard = (folder / "__0_0.distcp").rename(folder / "__0_0.sounds")
    assert scan_path(folder).findings == []
    data = pieces.polyglot(b"cos\nsystem\n.")  # it names something, and calls nothing
    shard.write_bytes(data + shard.read_bytes()[len(data) :])
    found = [f.item for f in scan_path(folder).findings if f.code == "ST-SCAN-190"]
    assert found == ["step"]
    shard.write_bytes(b"a" * shard.stat().st_size)
    assert {f.item for f in scan_path(folder).findings if f.code == "ST-SCAN-192"} == {"step", "w"}


@pytest.mark.forgery
def test_a_shard_that_the_index_does_not_name(room: Path, evil: bytes) -> None:
    folder = saved(room)
    (folder / "__9_0.distcp").write_bytes(evil)
    assert "ST-SCAN-190" in codes(scan_path(folder))


@pytest.mark.forgery
def test_an_index_that_leads_out_of_the_directory(room: Path) -> None:
    folder = saved(room)
    data = (folder / ".metadata").read_bytes()
    changed = data.replace(b"__0_0.distcp", b"../../.x.dcp")
    assert changed != data
    (folder / ".metadata").write_bytes(changed)
    result = scan_path(folder)
    assert any("../../.x.dcp" in f.what for f in result.findings if f.code == "ST-SCAN-031")


@pytest.mark.forgery
def test_an_index_that_leads_past_the_end(room: Path) -> None:
    folder = saved(room)
    shard = folder / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-100])
    assert "ST-SCAN-192" in codes(scan_path(folder))


# What cannot be judged is no pass.


@items(
    "name, data, code",
    ("m.h5", b"\x89HDF\r\n\x1a\n" + bytes(100), "ST-SCAN-031"),
    ("m.7z", b"7z\xbc\xaf\x27\x1c" + bytes(100), "ST-SCAN-031"),
    ("m.joblib", b"\x78\x9c" + bytes(100), "ST-SCAN-192"),
    ("m.so", b"\x7fELF" + bytes(100), "ST-SCAN-194"),
    ("m.zip", b"PK\x03\x04" + bytes(100), "ST-SCAN-192"),
    ("m.gz", b"\x1f\x8b" + bytes(100), "ST-SCAN-192"),
    ("m.npy", b"\x93NUMPY\x01\x00\xff\xff", "ST-SCAN-031"),
    ("m.npy", pieces.numpy_objects(b"").replace(b"(1,)", b"[1] "), "ST-SCAN-031"),
    ("m.pt", b"", "ST-SCAN-192"),
    ("m.pkl", b"\x00\x01", "ST-SCAN-192"),
    ("m.pkl", b"\x80\x04\x8c\x02osC\x06system\x93.", "ST-SCAN-191"),
    ("notes.txt", b"hello", "ST-SCAN-030"),
)
def test_what_cannot_be_judged(name: str, data: bytes, code: str, room: Path) -> None:
    (room / name).write_bytes(data)
    result = scan_path(room)
    assert codes(result) == {code}
    assert result.exit_code != ExitCode.OK


def test_what_cannot_be_read(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (room / "m.pkl").write_bytes(pickle.dumps([1]))
    assert scan_path(room).ok  # the control
    broken = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(scanner, "open_regular", Mock(side_effect=broken))
    result = scan_path(room)
    assert "ST-SCAN-200" in codes(result)
    assert result.exit_code is ExitCode.IO


def test_nothing_scanned_is_not_clean(room: Path) -> None:
    result = scan_path(room)
    assert codes(result) == {"ST-SCAN-030"}
    assert result.exit_code is ExitCode.INCOMPLETE
    assert not ScanResult(path=room).ok


@pytest.mark.parametrize("name", ["model.pt", "state.pkl", ".metadata", "__0_0.distcp", "a.ckpt"])
def test_an_empty_file_that_a_loader_takes_for_a_pickle_is_none(room: Path, name: str) -> None:
    (room / name).touch()
    found = scan_path(room)
    assert "ST-SCAN-192" in codes(found)
    assert found.exit_code != ExitCode.OK


def test_an_empty_file_of_another_name_is_nothing_to_scan(room: Path) -> None:
    (room / "README").touch()
    (room / "py.typed").touch()
    found = scan_path(room)
    assert codes(found) == {"ST-SCAN-030"}
    assert found.exit_code == ExitCode.INCOMPLETE
    torch.save({"w": torch.ones(3)}, room / "model.pt")
    found = scan_path(room)
    assert found.ok
    assert found.passed_over == ["README", "py.typed"]


def test_random_bytes_that_begin_with_a_version_that_does_not_exist(room, evil):
    """Found in a table of hashes. Control: loaders refuse it; and what runs is found even so."""
    data = b"\x80\x06" + bytes(range(30, 200))
    refused(ValueError, "unsupported pickle protocol", pickle.loads, data)
    (room / "a.tree").write_bytes(data)
    assert codes(scan_path(room)) == {"ST-SCAN-032"}
    (room / "a.tree").write_bytes(b"\x80\x06" + evil[2:])
    assert "ST-SCAN-190" in codes(scan_path(room))


def test_an_empty_member_of_an_archive(room: Path) -> None:
    (room / "a.zip").write_bytes(zip_of({"notes": b""}))
    assert scan_path(room).ok
    (room / "a.zip").write_bytes(zip_of({"data.pkl": b""}))
    assert codes(scan_path(room)) == {"ST-SCAN-192"}


def test_a_torchscript_program_is_one(room: Path) -> None:
    (room / "m.pt").write_bytes(
        zip_of({"m/data.pkl": pickle.dumps(1, 2), "m/code/__torch__.py": b"torch.save(x, y)"})
    )
    assert codes(scan_path(room)) == {"ST-SCAN-194"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_program_that_only_computes_is_clean(room: Path) -> None:
    torch.jit.script(torch.nn.LSTM(3, 4)).save(str(room / "m.pt"))
    result = scan_path(room)
    assert result.findings == []
    assert "m.pt!m/code/__torch__/torch/nn/modules/rnn.py" in {one.name for one in result.judged}
    # Its classes are its own only inside it.
    (room / "m.pt").write_bytes(pickle.dumps(1)[:2] + b"c__torch__\nM\n)R.")
    assert codes(scan_path(room)) == {"ST-SCAN-190"}


@pytest.mark.forgery
def test_a_link_is_not_followed(room: Path, evil: bytes, tmp_path: Path) -> None:
    (tmp_path / "evil.pkl").write_bytes(evil)
    (room / "a.pkl").symlink_to(tmp_path / "evil.pkl")
    assert codes(scan_path(room)) == {"ST-SCAN-142"}
    assert codes(scan_path(room / "a.pkl")) == {"ST-SCAN-142"}


@pytest.mark.forgery
def _prefixed(evil: bytes) -> bytes:
    return pickle.dumps(1) + zip_of({"a.pkl": evil})


def _renamed(evil: bytes) -> bytes:
    return zip_of({"a.pkl": evil}).replace(b"a.pkl", b"b.txt", 1)


def _encrypted(evil: bytes) -> bytes:
    return _flag(zip_of({"a.pkl": evil}), 1)


def _miscounted(evil: bytes) -> bytes:
    return _bad_crc(zip_of({"a.pkl": evil}))


@items(
    "make, code",
    (_prefixed, "ST-SCAN-193"),
    (_renamed, "ST-SCAN-193"),
    (_encrypted, "ST-SCAN-031"),
    (_miscounted, "ST-SCAN-190"),
)
def test_archives_that_two_readers_read_differently(make, code, room, evil):
    (room / "x.pt").write_bytes(make(evil))
    assert code in codes(scan_path(room))


def _flag(data: bytes, flag: int) -> bytes:
    at = data.index(b"PK\x01\x02") + 8
    return data[:at] + bytes([data[at] | flag]) + data[at + 1 :]


def _bad_crc(data: bytes) -> bytes:
    at = data.index(b"PK\x01\x02") + 16
    return data[:at] + b"\0\0\0\0" + data[at + 4 :]


def test_a_bomb_is_not_unpacked(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "UNPACK_LIMIT", 1 << 20)
    (room / "a.pkl.gz").write_bytes(gzip.compress(bytes(8 << 20)))
    assert codes(scan_path(room)) == {"ST-SCAN-031"}


@pytest.mark.forgery
def test_a_stream_behind_another_is_unpacked_too(
    room: Path, evil: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = gzip.compress(pickle.dumps(1))
    (room / "a.pkl.gz").write_bytes(first + gzip.compress(evil))
    for size in (1 << 20, len(first)):  # the second one begins inside what was read, or after it
        monkeypatch.setattr(archives, "CHUNK", size)
        assert "ST-SCAN-190" in codes(scan_path(room))
    (room / "a.pkl.gz").write_bytes(first + bytes(9))
    assert scan_path(room).ok
    (room / "a.pkl.gz").write_bytes(first[:-9])
    assert codes(scan_path(room)) == {"ST-SCAN-192"}


def test_archives_in_archives_end_somewhere(room: Path, evil: bytes) -> None:
    data = evil
    for _ in range(8):
        data = gzip.compress(data)
    (room / "a.pkl").write_bytes(data)
    assert codes(scan_path(room)) == {"ST-SCAN-031"}


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    refused(UsageError, "ST-USAG-002", scan_path, tmp_path / "none")
