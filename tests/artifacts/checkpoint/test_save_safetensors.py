# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""safetensors directories: saved by us, signed where they are, loaded verified."""

import json
import shutil

import pytest
import torch

from securetrain.artifacts import SaveContext, load, sign_safetensors, verify_path
from securetrain.artifacts.checkpoint.save import save_safetensors
from securetrain.artifacts.tree import safetensors_header as headers
from securetrain.artifacts.tree.layout import INDEX, STATEMENT
from securetrain.core.errors import IntegrityError, UsageError
from tests.artifacts.checkpoint.worlds import SMALL, context_of
from tests.tables import items
from tests.vocabulary import refused

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool}


def state():
    torch.manual_seed(2)
    return {
        "layer": {"w": torch.randn(33, 17), "b": torch.randn(17).bfloat16()},
        "ids": torch.arange(5),
        "odd": torch.tensor([True, False, True]),
        "empty": torch.zeros(0, 3),
        "step": 7,
    }


def blank():
    return {
        "layer": {"w": torch.ones(33, 17), "b": torch.ones(17).bfloat16()},
        "ids": torch.ones(5, dtype=torch.int64),
        "odd": torch.zeros(3, dtype=torch.bool),
        "empty": torch.zeros(0, 3),
        "step": 0,
    }


@pytest.fixture
def saved(keys, now, tmp_path):
    how = {"key": keys.checkpoint, "context": context_of(now, 7), "params": SMALL}
    return save_safetensors(state(), tmp_path / "ckpt", **how).path


@pytest.fixture
def refusal(trust, now):
    def run(path):
        target = blank()
        with pytest.raises(IntegrityError) as caught:
            load(target, path, trust=trust, policy=None, now=now)
        result = verify_path(path, trust=trust, policy=None, now=now)
        assert not result.ok
        return caught.value.code

    return run


def plain_reader(path):
    """What a reader that knows nothing of us sees."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    said = json.loads(data[8 : 8 + size])
    said.pop("__metadata__")
    body = bytearray(data[8 + size :])
    return {
        name: torch.frombuffer(body[slice(*e["data_offsets"])], dtype=DTYPES[e["dtype"]]).reshape(
            e["shape"]
        )
        for name, e in said.items()
        if e["data_offsets"][0] < e["data_offsets"][1]
    }


def test_our_loader_and_a_plain_reader_see_the_same(saved, trust, now):
    assert verify_path(saved, trust=trust, policy=None, now=now).ok
    target, good = blank(), state()
    load(target, saved, trust=trust, policy=None, now=now)
    assert torch.equal(target["layer"]["w"], good["layer"]["w"])
    assert torch.equal(target["layer"]["b"], good["layer"]["b"])
    assert torch.equal(target["odd"], good["odd"])
    assert target["step"] == 7
    seen = plain_reader(saved / "model.safetensors")
    assert torch.equal(seen["layer.w"], good["layer"]["w"])
    assert torch.equal(seen["ids"], good["ids"])
    assert set(seen) == {"layer.w", "layer.b", "ids", "odd"}


def test_a_dtype_that_safetensors_lacks_is_refused(keys, now, tmp_path):
    context = SaveContext(run_id="r", step=1, created=now)
    with pytest.raises(UsageError, match="complex128"):
        save_safetensors(
            {"c": torch.zeros(2, dtype=torch.complex128)},
            tmp_path / "c",
            key=keys.checkpoint,
            context=context,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def model(tmp_path):
    """A directory as one downloads it: two files, an index of its own, documents."""
    root = tmp_path / "model"
    root.mkdir()
    where = {}
    for number, tensors in enumerate(
        ({"a": torch.arange(300.0)}, {"b": torch.arange(7).bfloat16(), "c": torch.ones(2, 2)})
    ):
        name = f"model-0000{number + 1}-of-00002.safetensors"
        header = headers.encode_header(
            {k: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for k, t in tensors.items()}
        )
        body = b"".join(bytes(t.view(torch.uint8).flatten().tolist()) for t in tensors.values())
        (root / name).write_bytes(header + body)
        where.update(dict.fromkeys(tensors, name))
    (root / headers.INDEX_JSON).write_text(json.dumps({"weight_map": where}))
    (root / "config.json").write_text("{}")
    return root


@pytest.fixture
def sign(keys, now):
    def run(path):
        context = SaveContext(run_id="hub", step=0, created=now, save_id="ab" * 16)
        return sign_safetensors(path, key=keys.checkpoint, context=context, params=SMALL)

    return run


def test_a_directory_is_signed_where_it_is(model, sign, trust, now):
    before = {p.name: p.read_bytes() for p in model.iterdir()}
    sign(model)
    assert before.items() <= {p.name: p.read_bytes() for p in model.iterdir()}.items()
    result = verify_path(model, trust=trust, policy=None, now=now)
    assert result.ok
    assert result.num_files == 5  # two of tensors, the index, two documents
    target = {"a": torch.zeros(300), "b": torch.zeros(7).bfloat16(), "c": torch.zeros(2, 2)}
    load(target, model, trust=trust, policy=None, now=now)
    assert torch.equal(target["a"], torch.arange(300.0))
    assert torch.equal(target["b"], torch.arange(7).bfloat16())


def test_damage_is_refused(model, sign, trust, now):
    sign(model)
    for number, (name, code) in enumerate(
        (
            ("model-00001-of-00002.safetensors", "ST-CKPT-130"),
            ("config.json", "ST-CKPT-132"),
            (headers.INDEX_JSON, "ST-CKPT-132"),
            (INDEX, "ST-CKPT-132"),
        )
    ):
        copy = model.with_name(f"copy-{number}")
        shutil.copytree(model, copy)
        data = bytearray((copy / name).read_bytes())
        data[-1] ^= 1
        (copy / name).write_bytes(data)
        result = verify_path(copy, trust=trust, policy=None, now=now)
        assert {p.code for p in result.problems} == {code}


def test_an_added_file_is_refused(model, sign, refusal):
    """T8: stock readers take every *.safetensors that lies there, in any order."""
    sign(model)
    shutil.copy(model / "model-00001-of-00002.safetensors", model / "zzz.safetensors")
    assert refusal(model) == "ST-CKPT-141"


@items(
    "name, data, code",
    ("pytorch_model.bin", b"x", "ST-CKPT-190"),
    ("optimizer.pt", b"x", "ST-CKPT-190"),
    (".metadata", b"x", "ST-CKPT-190"),
    ("sub/file.json", b"{}", "ST-CKPT-142"),
    ("empty.txt", b"", "ST-CKPT-141"),
    ("bad.safetensors", b"\0" * 20, "ST-CKPT-191"),
    ("twin.safetensors", None, "ST-CKPT-191"),
)
def test_what_cannot_be_signed(model, sign, name, data, code):
    path = model / name
    path.parent.mkdir(exist_ok=True)
    if data is None:
        data = (model / "model-00001-of-00002.safetensors").read_bytes()
    path.write_bytes(data)
    refused(IntegrityError, code, sign, model)
    assert not (model / STATEMENT).exists()


def test_nothing_is_signed_twice_and_nothing_is_not_signed(model, sign, tmp_path):
    sign(model)
    refused(IntegrityError, "ST-CKPT-201", sign, model)
    (tmp_path / "none").mkdir()
    refused(IntegrityError, "ST-CKPT-100", sign, tmp_path / "none")


def test_a_header_of_which_the_index_knows_nothing(model, sign, trust, now, monkeypatch):
    """A trusted key signs files whose headers tell other readers of exchanged tensors."""
    name = "model-00002-of-00002.safetensors"
    data = (model / name).read_bytes()
    swapped = data.replace(b'"b":', b'"x":')
    real = headers.tensors_of

    def honest(files):
        files[name] = data[: len(files[name][0])], files[name][1]
        return real(files)

    (model / name).write_bytes(swapped)
    monkeypatch.setattr("securetrain.artifacts.tree.safetensors_header.tensors_of", honest)
    sign(model)
    monkeypatch.undo()
    result = verify_path(model, trust=trust, policy=None, now=now)
    assert {(p.code, p.tensor) for p in result.problems} == {
        ("ST-CKPT-191", "b"),
        ("ST-CKPT-191", "x"),
    }


def test_tensors_at_odd_places_go_into_targets_of_another_dtype(keys, trust, now, tmp_path):
    """They lie without gaps, so that leaves begin in the middle of elements."""
    saved = {"a": torch.tensor([1, 2, 3], dtype=torch.uint8), "w": torch.randn(50, 60)}
    context = SaveContext(run_id="r", step=7, created=now)
    path = tmp_path / "c"
    save_safetensors(saved, path, key=keys.checkpoint, context=context, params=SMALL)
    target = {"w": torch.zeros(50, 60, dtype=torch.float64)}
    load(target, path, trust=trust, policy=None, now=now)
    assert torch.equal(target["w"], saved["w"].double())
