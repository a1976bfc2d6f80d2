# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Converting torch's own checkpoints: good ones come out equal, bad ones run nothing (T11-T17)."""

import io
import os
import pickle
import shutil
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp_metadata

from securetrain.artifacts import load, verify_path
from securetrain.artifacts.checkpoint import legacy
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from tests.artifacts.checkpoint.worlds import context_of, stock_load, stock_save
from tests.vocabulary import refused

DATA = "__0_0.distcp"
_RAN: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def audit():
    """Notes what an attacker's code would do; the hook stays, the list does not grow by itself."""

    def hook(event, args):
        if event in {"os.system", "subprocess.Popen", "os.exec"} or (
            event == "open" and "pwned" in str(args[0])
        ):
            _RAN.append(event)

    sys.addaudithook(hook)
    yield
    _RAN.clear()


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (os.system, (f"touch {self.marker}",))


def state() -> dict[str, Any]:
    torch.manual_seed(1)
    return {
        "model": {"w": torch.randn(40, 30), "t": torch.randn(6, 4).t(), "s": torch.tensor(2.5)},
        "half": torch.randn(9).bfloat16(),
        "empty": torch.zeros(0, 3),
        "meta": {"step": 7, "lr": 0.1, "names": ["a", None, True], "order": OrderedDict(x=(1, 2))},
    }


@pytest.fixture
def old(tmp_path):
    return stock_save(state(), tmp_path / "old").parent


@pytest.fixture
def convert(keys, now, tmp_path):
    def run(path):
        how = {"key": keys.checkpoint, "context": context_of(now, 7)}
        return legacy.convert(path, tmp_path / "new", **how)

    return run


@pytest.fixture
def refusal(convert, tmp_path):
    def run(path):
        _RAN.clear()
        with pytest.raises(SecureTrainError) as caught:
            convert(path)
        assert _RAN == []
        assert not (tmp_path / "pwned").exists()
        assert not (tmp_path / "new").exists()
        return caught.value.code

    return run


def test_a_good_one_comes_out_equal(old, convert, trust, now, tmp_path):
    saved = convert(old)
    assert verify_path(saved.path, trust=trust, policy=None, now=now).ok
    good = state()
    target: dict[str, Any] = {
        "model": {"w": torch.zeros(40, 30), "t": torch.zeros(4, 6), "s": torch.tensor(0.0)},
        "half": torch.zeros(9).bfloat16(),
        "empty": torch.zeros(0, 3),
        "meta": {"step": 0, "lr": 0.0, "names": ["", "", ""], "order": {"x": 0}},
    }
    load(target, saved.path, trust=trust, policy=None, now=now)
    assert torch.equal(target["model"]["w"], good["model"]["w"])
    assert torch.equal(target["model"]["t"], good["model"]["t"])
    assert torch.equal(target["model"]["s"], good["model"]["s"])
    assert torch.equal(target["half"], good["half"])
    assert target["meta"]["names"] == ["a", None, True]
    assert target["meta"]["order"]["x"] == (1, 2)
    assert target["meta"]["lr"] == 0.1
    assert (tmp_path / "old" / ".metadata").exists()  # the old one is left alone


def test_metadata_that_runs_code(old, refusal, tmp_path):
    """T11: stock runs it."""
    data = pickle.dumps(Payload(tmp_path / "pwned"))
    (old / ".metadata").write_bytes(data)
    assert refusal(old) == "ST-CKPT-190"
    with pytest.raises(BaseException):  # noqa: B017, PT011 - CheckpointException is a BaseException
        stock_load(state(), old)
    assert (tmp_path / "pwned").exists()


def test_metadata_of_a_rank_in_place_of_the_global_one(old, refusal, tmp_path):
    """T12: stock falls back to it."""
    (old / ".metadata").unlink()
    (old / "__0.metadata").write_bytes(pickle.dumps(Payload(tmp_path / "pwned")))
    assert refusal(old) == "ST-CKPT-190"
    with pytest.raises(BaseException):  # noqa: B017, PT011
        stock_load(state(), old)
    assert (tmp_path / "pwned").exists()


def _replace_item(old, name, make):
    """Write other bytes for a value: in its place when they fit, else at the end of the file."""
    metadata = pickle.loads((old / ".metadata").read_bytes())
    (index,) = [i for i in metadata.storage_data if i.fqn == name]
    info = metadata.storage_data[index]
    data = make()
    path = old / DATA
    if len(data) <= info.length:
        with path.open("r+b") as file:
            file.seek(info.offset)
            file.write(data + b"\0" * (info.length - len(data)))
    else:
        info.offset, info.length = path.stat().st_size, len(data)
        with path.open("ab") as file:
            file.write(data)
        (old / ".metadata").write_bytes(pickle.dumps(metadata))


def _torch_save(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_value_that_runs_code(old, refusal, tmp_path, zipped):
    """T13: in place, of the same length; in torch's old format, too."""
    marker = tmp_path / "pwned"
    _replace_item(
        old,
        "meta.step",
        lambda: _torch_save(Payload(marker), _use_new_zipfile_serialization=zipped),
    )
    assert refusal(old) == "ST-CKPT-190"
    stock_load({"meta": {"step": 0}}, old)
    assert marker.exists()


def edit(old, change):
    metadata = pickle.loads((old / ".metadata").read_bytes())
    change(metadata)
    (old / ".metadata").write_bytes(pickle.dumps(metadata))


def info_of(metadata, name):
    return next(info for index, info in metadata.storage_data.items() if index.fqn == name)


def test_a_path_out_of_the_directory(old, refusal, tmp_path):
    """T15: stock reads it."""
    shutil.copy(old / DATA, tmp_path / "secret")
    edit(old, lambda m: setattr(info_of(m, "half"), "relative_path", str(tmp_path / "secret")))
    assert refusal(old) == "ST-CKPT-190"
    target = stock_load({"half": torch.zeros(9).bfloat16()}, old)
    assert torch.equal(target["half"], state()["half"])


def test_exchanged_places(old, refusal, tmp_path):
    """T16: of different shapes it is seen; of the same shape, nothing in such a file can tell."""

    def swap(metadata):
        one, other = info_of(metadata, "half"), info_of(metadata, "model.w")
        one.offset, other.offset = other.offset, one.offset
        one.length, other.length = other.length, one.length

    edit(old, swap)
    assert refusal(old) == "ST-CKPT-191"


def test_torch_takes_exchanged_places(tmp_path):
    """T16: tensors of one shape get each other's values."""
    good = {"a": torch.randn(9), "b": torch.randn(9)}
    path = stock_save(good, tmp_path / "two").parent

    def swap(metadata):
        one, other = info_of(metadata, "a"), info_of(metadata, "b")
        one.offset, other.offset = other.offset, one.offset
        one.length, other.length = other.length, one.length

    edit(path, swap)
    target = stock_load({"a": torch.zeros(9), "b": torch.zeros(9)}, path)
    assert torch.equal(target["a"], good["b"])
    assert torch.equal(target["b"], good["a"])


@pytest.mark.parametrize("name", ["../secret", "{folder}/absolute", "a\\b", "a:b", "e\u0301"])
def test_torch_reads_whatever_name_the_index_gives(old, tmp_path, name):
    """T10; and T15."""
    place = name.format(folder=tmp_path)
    shutil.copy(old / DATA, old / place)
    (old / DATA).write_bytes(b"not where the index points")
    edit(old, lambda m: setattr(info_of(m, "half"), "relative_path", place))
    target = stock_load({"half": torch.zeros(9).bfloat16()}, old)
    assert torch.equal(target["half"], state()["half"])


def _shape(size, *, properties=None):
    def change(metadata):
        entry = metadata.state_dict_metadata["model.w"]
        entry.size = torch.Size(size)
        entry.chunks[0].sizes = torch.Size(size)
        if properties is not None:
            entry.properties.dtype = properties

    return change


def _length(metadata):
    info_of(metadata, "half").length = 2**63


def _overlap(metadata):
    info_of(metadata, "half").offset = info_of(metadata, "model.w").offset + 1


def _untiled(metadata):
    metadata.state_dict_metadata["model.w"].chunks[0].offsets = torch.Size([1, 0])


def _no_chunks(metadata):
    metadata.state_dict_metadata["model.w"].chunks = []


def _not_an_index(metadata):
    metadata.storage_data = 5


def _wrong_type(metadata):
    metadata.state_dict_metadata["half"] = dcp_metadata.MetadataIndex("x")


@pytest.mark.parametrize(
    "change",
    [
        _shape([30, 40]),
        _shape([2**40, 2**22]),
        _shape([40, 30], properties=torch.int32),
        _shape([40, 30], properties=torch.float64),
        _length,
        _overlap,
        _untiled,
        _no_chunks,
        _not_an_index,
        _wrong_type,
    ],
)
def test_an_index_that_lies(old, refusal, change):
    """T17."""
    edit(old, change)
    assert refusal(old) in {"ST-CKPT-190", "ST-CKPT-191"}


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (_shape([20, 30]), torch.zeros(20, 30)),  # half of what was saved, without a word
        (_shape([40, 30], properties=torch.int32), torch.zeros(40, 30, dtype=torch.int32)),
        (_no_chunks, torch.zeros(40, 30)),  # nothing is read at all: the weights stay as they were
    ],
)
def test_torch_takes_an_index_that_lies(old, change, wanted):
    """T17: it goes by the index, and the values are not those that were saved."""
    edit(old, change)
    target = stock_load({"model": {"w": wanted.clone()}}, old)
    assert not torch.equal(target["model"]["w"], state()["model"]["w"])


@pytest.mark.parametrize(
    "change",
    [_shape([30, 40]), _length, _overlap, _untiled, _not_an_index, _wrong_type],
)
def test_torch_fails_on_other_lies(old, change):
    """T17: these end in an error of Python's there, too."""
    edit(old, change)
    target = {"model": {"w": torch.zeros(40, 30)}, "half": torch.zeros(9).bfloat16()}
    refused(BaseException, "CheckpointException", stock_load, target, old)


def test_a_zip_bomb(old, refusal):
    """T17: a value whose archive unpacks to more than it is. Stock unpacks it."""

    def bomb():
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(5, 2) + b"\0" * (64 << 20))
            archive.writestr("archive/version", "3\n")
        assert len(buffer.getvalue()) < 100_000
        return buffer.getvalue()

    _replace_item(old, "meta.step", bomb)
    assert refusal(old) == "ST-CKPT-190"
    assert stock_load({"meta": {"step": 0}}, old)["meta"]["step"] == 5


def test_other_files_and_links(old, refusal, tmp_path):
    (old / "zzz.safetensors").write_bytes(b"x")
    assert refusal(old) == "ST-CKPT-190"
    (old / "zzz.safetensors").unlink()
    (old / DATA).rename(tmp_path / "away")
    (old / DATA).symlink_to(tmp_path / "away")
    assert refusal(old) == "ST-CKPT-142"


def test_what_is_no_such_checkpoint(convert, tmp_path):
    (tmp_path / "none").mkdir()
    refused(IntegrityError, "ST-CKPT-190", convert, tmp_path / "none")
    refused(UsageError, "no such directory", convert, tmp_path / "absent")


def test_a_value_without_a_place_in_the_format(tmp_path, convert):
    stock_save({"w": torch.ones(2), "s": {"inner": torch.device("cpu")}}, tmp_path / "odd")
    refused(UsageError, "ST-USAG-013", convert, tmp_path / "odd")


def test_an_old_torch_is_refused(old, convert, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    refused(UsageError, "ST-USAG-009", convert, old)


def test_our_loader_never_reads_one(old, trust, now):
    refused(IntegrityError, "ST-CKPT-100", load, state(), old, trust=trust, policy=None, now=now)
