# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files that a script loads by itself: read under the allow-list, wherever they come from."""

import gzip
import io
import os
import pickle
import types
import zipfile
from typing import Any

import numpy as np
import pytest
import torch

from securetrain.core.errors import RuntimeRefusal
from securetrain.launch.seams.file_loads import FileLoads
from securetrain.launch.seams.unpickler import Rules
from securetrain.policy.schema import UnpickleMode
from tests.launch.worlds import bomb
from tests.vocabulary import refused


class Mine:
    value = 1


@pytest.fixture
def loads(monkeypatch):
    """The two functions as a worker has them, and what was told of them."""

    stock = [
        (torch.serialization, "load", torch.serialization.load),
        (torch.serialization, "pickle", pickle),
        (pickle, "load", pickle.load),
    ]
    for module, name, value in stock:
        monkeypatch.setattr(module, name, value)

    def make(mode=UnpickleMode.ENFORCE, *, allowed=(), trusted=()):
        for module, name, value in stock:
            setattr(module, name, value)
        told = []
        rules = Rules(mode, frozenset(allowed), lambda *one: told.append((one[1], one[2].code)))
        patches = FileLoads(rules, trusted).patches()
        patches["torch.serialization"](torch.serialization)
        patches["pickle"](pickle)
        return types.SimpleNamespace(torch=torch.serialization.load, pickle=pickle.load, told=told)

    return make


def pack(kind, path, value):
    """One file of this kind; what opens it."""
    match kind:
        case "torch" | "torch-open" | "torch-memory" | "torch-module" | "torch-place":
            torch.save(value, path)
        case "torch-old":
            torch.save(value, path, _use_new_zipfile_serialization=False)
        case "pickle":
            path.write_bytes(pickle.dumps(value))
        case "numpy":
            with path.open("wb") as file:
                np.save(file, np.array(value, dtype=object))
        case "gzip":
            path.write_bytes(gzip.compress(pickle.dumps(value)))
        case "zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("a", pickle.dumps(value))


def read(kind, path, by_torch, by_pickle):
    match kind:
        case "torch" | "torch-old":
            return by_torch(path, weights_only=False)
        case "torch-open":
            with path.open("rb") as file:
                return by_torch(f=file, weights_only=False)
        case "torch-memory":
            return by_torch(io.BytesIO(path.read_bytes()), weights_only=False)
        case "torch-module":
            return by_torch(str(path), pickle_module=pickle, weights_only=False)
        case "torch-place":
            return by_torch(str(path), None, pickle)
        case "pickle":
            with path.open("rb") as file:
                return by_pickle(file)
        case "numpy":
            return np.load(path, allow_pickle=True).item()  # it calls pickle.load
        case "gzip":
            with gzip.open(path) as file:
                return by_pickle(file, encoding="latin1")
        case "zip":
            with zipfile.ZipFile(path) as archive, archive.open("a") as file:
                return by_pickle(file)


def refused_file(call, *args, **named):
    return refused(RuntimeRefusal, "ST-RUNT-037", call, *args, **named)


KINDS = ["torch", "torch-old", "torch-open", "torch-memory", "torch-module", "torch-place"]
KINDS += ["pickle", "numpy", "gzip", "zip"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_poisoned_file_runs_in_the_plain_stack_and_is_refused(loads, tmp_path, kind):
    path, hit = tmp_path / "file", tmp_path / "hit"
    pack(kind, path, {"state": [1, bomb(hit)]})
    read(kind, path, torch.serialization.load, pickle.load)
    assert hit.is_dir(), "the control: whoever wrote the file runs code in the job"
    hit.rmdir()
    ours = loads()
    error = refused_file(read, kind, path, ours.torch, ours.pickle)
    assert not hit.exists()
    assert ours.told == [("os.makedirs", "ST-RUNT-037")]
    assert "the pickle in this file names os.makedirs" in str(error)
    named = {"torch-memory": "bytes in memory", "zip": "a"}.get(kind, str(path))
    assert error.where == named
    assert "os.makedirs" in error.fix


@pytest.mark.parametrize("kind", KINDS)
def test_what_honest_scripts_keep_is_read_as_ever(loads, tmp_path, kind):
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(2)).sum().backward()
    optimizer.step()
    kept = {
        "model": layer.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": np.random.default_rng(1).bytes(3),
        "numbers": np.arange(3.0),
        "scale": np.float32(0.5),
        "type": torch.bfloat16,
        "size": torch.Size([2]),
    }
    path = tmp_path / "file"
    pack(kind, path, kept)
    ours = loads()
    again = read(kind, path, ours.torch, ours.pickle)
    assert ours.told == []
    assert list(again) == list(kept)
    assert torch.equal(again["model"]["weight"], layer.weight)
    assert again["optimizer"]["state"][0]["step"] == 1
    assert (again["numbers"] == kept["numbers"]).all()


def test_weights_only_stays_torchs_own(loads, tmp_path):
    torch.save({"a": torch.ones(2), "b": Mine()}, tmp_path / "file")
    ours = loads()
    refused(pickle.UnpicklingError, "Weights only load failed", ours.torch, tmp_path / "file")
    torch.save({"a": torch.ones(2)}, tmp_path / "file")
    assert torch.equal(ours.torch(tmp_path / "file", mmap=True)["a"], torch.ones(2))
    assert ours.told == []


def test_the_variable_that_unpickles_everything_does_not(loads, tmp_path, monkeypatch):
    torch.save(bomb(tmp_path / "hit"), tmp_path / "file")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.warns(UserWarning, match="forcing weights_only=False"):
        refused_file(loads().torch, tmp_path / "file")
    assert not (tmp_path / "hit").exists()


def test_names_that_the_policy_or_the_script_declares(loads, tmp_path):
    path, name = tmp_path / "file", f"{Mine.__module__}.{Mine.__qualname__}"
    torch.save(Mine(), path)
    refused_file(loads().torch, path, weights_only=False)
    assert loads(allowed=[name]).torch(path, weights_only=False).value == 1
    with torch.serialization.safe_globals([Mine]):
        assert loads().torch(path, weights_only=False).value == 1


def test_folders_that_the_policy_trusts(loads, tmp_path):
    trusted, hit = tmp_path / "trusted", tmp_path / "hit"
    trusted.mkdir()
    (tmp_path / "way").symlink_to(trusted)
    ours = loads(trusted=[str(tmp_path / "way")])
    for kind in ("torch", "torch-old", "torch-open", "torch-module", "pickle", "gzip"):
        pack(kind, trusted / "file", bomb(hit))
        read(kind, trusted / "file", ours.torch, ours.pickle)
        hit.rmdir()
    # Only where it is counts: not what it is called, nor a way out of the folder.
    pack("torch", tmp_path / "trusted-not", bomb(hit))
    (trusted / "out").symlink_to(tmp_path / "trusted-not")
    for path in (tmp_path / "trusted-not", trusted / "out", trusted / ".." / "trusted-not"):
        for kind in ("torch", "torch-open"):
            refused_file(read, kind, path, ours.torch, ours.pickle)
    assert not hit.exists()
    assert {code for _, code in ours.told} == {"ST-RUNT-037"}


def test_another_pickle_module_is_refused_but_in_a_trusted_folder(loads, tmp_path):
    other = types.ModuleType("pickles_anything")
    vars(other).update({name: getattr(pickle, name) for name in pickle.__all__})
    torch.save({"a": 1}, tmp_path / "file")
    ours = loads()
    error = refused_file(ours.torch, tmp_path / "file", pickle_module=other, weights_only=False)
    assert "pickles_anything" in str(error)
    ours = loads(trusted=[str(tmp_path)])
    assert ours.torch(tmp_path / "file", pickle_module=other, weights_only=False) == {"a": 1}


def test_memory_pipes_and_compile_caches_are_left_alone(loads, tmp_path):
    ours = loads()
    data = pickle.dumps(Mine())
    assert ours.pickle(io.BytesIO(data)).value == 1
    assert pickle.loads(data).value == 1
    inlet, outlet = os.pipe()
    os.write(outlet, data)
    os.close(outlet)
    with os.fdopen(inlet, "rb") as file:
        assert ours.pickle(file).value == 1
    (tmp_path / "cached").write_bytes(data)
    source = (
        "def read(load, path):\n    with open(path, 'rb') as file:\n        return load(file)\n"
    )
    for package, is_left in (("torch._inductor.codecache", True), ("torch._inductor_not", False)):
        scope: dict[str, Any] = {"__name__": package}
        exec(compile(source, package, "exec"), scope)  # a caller of that name
        if is_left:
            assert scope["read"](ours.pickle, tmp_path / "cached").value == 1
        else:
            refused_file(scope["read"], ours.pickle, tmp_path / "cached")


def test_warn_lets_it_through_and_tells(loads, tmp_path):
    torch.save(bomb(tmp_path / "hit"), tmp_path / "file")
    ours = loads(UnpickleMode.WARN)
    ours.torch(tmp_path / "file", weights_only=False)
    assert (tmp_path / "hit").is_dir()
    assert ours.told == [("os.makedirs", "ST-RUNT-037")]


SCRIPT = """
import sys
import torch
print(torch.load(sys.argv[1])["loss"].item())
torch.load(sys.argv[2], weights_only=False)
print("nobody noticed")
"""


@pytest.mark.dist
def test_a_plain_script_under_run_is_stopped_at_the_file(launch, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    torch.save({"loss": torch.tensor(0.5)}, tmp_path / "weights.pt")
    torch.save({"state": bomb(tmp_path / "hit")}, tmp_path / "old.pt")
    done = launch(
        tmp_path / "run",
        *("--standalone", "--input", str(tmp_path), str(tmp_path / "train.py")),
        *(str(tmp_path / "weights.pt"), str(tmp_path / "old.pt")),
    )
    assert done.code == 1, done.err
    assert "ST-RUNT-037" in done.err
    assert "nobody noticed" not in done.out + done.err
    assert not (tmp_path / "hit").exists()
    (event,) = done.events("pickle-refused")
    assert (event.code, event.subject) == ("ST-RUNT-037", "os.makedirs")
