# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import codecs
import collections
import datetime as dt
import decimal
import enum
import io
import itertools
import pathlib
import pickle
import sys
import uuid
from typing import Any

import pytest

from securetrain.artifacts.scan import safe_globals
from securetrain.core.errors import IntegrityError, RuntimeRefusal
from securetrain.drills.pickles import Call
from securetrain.launch.seams import allowlist
from securetrain.launch.seams.unpickler import Rules, SafePickle, is_allowed, make_unpickler
from securetrain.policy.schema import UnpickleMode
from tests.launch.worlds import bomb
from tests.tables import each
from tests.vocabulary import refused


class Mine:
    value = 1


def reader(mode=UnpickleMode.ENFORCE, allowed=(), events=None, limit=1 << 20):
    sink = events if events is not None else []
    on_event = lambda mode, name, error: sink.append((mode, name, error.code))  # noqa: E731
    return SafePickle(make_unpickler(Rules(mode, frozenset(allowed), on_event, limit)))


def opcodes(*parts):
    return b"\x80\x04" + b"".join(parts) + b"."


def glob(module, name):
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


PLAIN: list[Any] = [
    None, True, 1, -(10**40), 1.5, 2j, "text", b"bytes\xff", bytearray(b"abc"),
    [1, [2]], (1, (2,)), {"a": {1: 2}}, {1, 2}, frozenset({3}), range(3), slice(1, 2),
    collections.OrderedDict(a=1), collections.Counter("aab"), collections.deque([1]),
    collections.defaultdict(list, {1: [2]}), dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.timedelta(1), dt.date(2026, 1, 1), decimal.Decimal("1.5"),
    pathlib.PurePosixPath("/a"), uuid.UUID(int=7),
]  # fmt: skip


@each("value, protocol", *itertools.product(PLAIN, range(pickle.HIGHEST_PROTOCOL + 1)))
def test_plain_data_passes(value, protocol):
    assert reader().loads(pickle.dumps(value, protocol)) == value


def test_the_attack_works_on_the_plain_unpickler(tmp_path):
    pickle.loads(pickle.dumps(bomb(tmp_path / "hit")))
    assert (tmp_path / "hit").is_dir()


def test_the_attack_is_refused(tmp_path):
    events: list[Any] = []
    error = refused(
        RuntimeRefusal,
        "ST-RUNT-001",
        reader(events=events).loads,
        pickle.dumps([1, bomb(tmp_path / "hit")]),
    )
    assert "os.makedirs" in error.what
    assert "checkpoint.allow_globals" in error.fix
    assert events == [(UnpickleMode.ENFORCE, "os.makedirs", "ST-RUNT-001")]
    assert not (tmp_path / "hit").exists()


def test_warn_lets_it_through_and_says_so(tmp_path):
    events: list[Any] = []
    reader(UnpickleMode.WARN, events=events).loads(pickle.dumps(bomb(tmp_path / "hit")))
    assert (tmp_path / "hit").is_dir()
    assert events == [(UnpickleMode.WARN, "os.makedirs", "ST-RUNT-001")]


def test_off_is_the_plain_unpickler():
    rules = Rules(UnpickleMode.OFF, frozenset(), lambda *_: None)
    assert make_unpickler(rules) is pickle.Unpickler


def test_the_policy_may_allow_a_global():
    data = pickle.dumps(Mine())
    with pytest.raises(RuntimeRefusal):
        reader().loads(data)
    assert isinstance(reader(allowed=[f"{Mine.__module__}.Mine"]).loads(data), Mine)


@each(
"module, name",
("os", "system"),
("posix", "system"),
("builtins", "eval"),
("builtins", "exec"),
("builtins", "__import__"),
("builtins", "open"),
("builtins", "compile"),
("builtins", "type"),
("builtins", "setattr"),
("builtins", "vars"),
("builtins", "map"),
("subprocess", "Popen"),
("pickle", "loads"),
("functools", "partial"),
("operator", "attrgetter"),
("importlib", "import_module"),
("runpy", "run_path"),
("torch", "load"),
("torch.serialization", "load"),
("torch.jit", "load"),
("torch.hub", "load"),
("torch.storage", "TypedStorage"),
("torch", "save"),
("torch", "ops.load_library"),
("torch", "nn.Module"),
("numpy", "load"),
("collections", "OrderedDict.fromkeys"),
("torch.nn.parameter", "Parameter.register_hook"),
("builtins", "SystemExit"),
("builtins", "KeyboardInterrupt"),
("builtins", "bytes"),
("securetrain.core.errors", "os_error"),
("securetrain.core.errors", "CODES"),
("traceback", "print_exc"),
("numpy.dtypes", "__import__"),
("numpy", "f2py"),
)  # fmt: skip
def test_not_allowed(module, name):
    import torch  # noqa: F401

    assert not is_allowed(module, name, frozenset())


def test_nothing_on_the_list_is_a_known_gadget():
    for name in allowlist.ALLOWED:
        top = name.split(".")[0]
        assert top in {
            "builtins", "collections", "copyreg", "datetime", "decimal", "fractions", "numpy",
            "pathlib", "torch", "traceback", "types", "uuid",
        }  # fmt: skip
        last = name.rpartition(".")[2]
        assert last not in {"eval", "exec", "load", "loads", "system", "getattr", "partial"}


def test_a_dotted_name_below_an_allowed_one_is_refused():
    # Protocol 4 walks attributes: OrderedDict.fromkeys.__globals__ and the like.
    data = opcodes(b"\x8c\x0bcollections", b"\x8c\x14OrderedDict.fromkeys", b"\x93")
    with pytest.raises(RuntimeRefusal):
        reader().loads(data)


def test_build_cannot_change_a_class():
    # BUILD with a state of two dicts calls setattr for every entry of the second.
    from torch.distributed.checkpoint import planner

    WriteItem: Any = planner.WriteItem  # noqa: N806 - a class
    data = opcodes(
        glob("torch.distributed.checkpoint.planner", "WriteItem"),
        b"N}X\x08\x00\x00\x00tampered\x88s\x86b",
    )
    assert pickle.loads(data).tampered  # the attack, against the plain unpickler
    del WriteItem.tampered
    with pytest.raises(RuntimeRefusal) as caught:
        reader().loads(data)
    assert "changed the class" in caught.value.what
    assert not hasattr(WriteItem, "tampered")


def test_build_cannot_change_a_function():
    import torch._utils

    target = torch._utils._rebuild_tensor_v2
    before = target.__defaults__
    data = opcodes(
        glob("torch._utils", "_rebuild_tensor_v2"),
        b"N}X\x0c\x00\x00\x00__defaults__)s\x86b",
    )
    try:
        pickle.loads(data)
        assert target.__defaults__ == ()  # the attack, against the plain unpickler
        target.__defaults__ = before
        refused(TypeError, "partial state", reader().loads, data)
        assert target.__defaults__ == before
    finally:
        target.__defaults__ = before


def test_build_cannot_change_a_stand_in():
    # partial.__setstate__ takes a new function: the next pickle must not meet it.
    data = opcodes(glob("_codecs", "encode"), b"(", glob("collections", "OrderedDict"), b")}Ntb")
    safe = reader()
    safe.loads(data)
    assert safe.loads(pickle.dumps(Call(codecs.encode, "x", "latin1"))) == b"x"


def test_a_large_pickle_is_refused_before_it_is_read():
    refused(RuntimeRefusal, "ST-RUNT-008", reader(limit=100).loads, pickle.dumps(b"x" * 200))
    assert reader(limit=300).loads(pickle.dumps(b"x" * 200))


def test_a_sized_bytearray_and_other_encodings_are_refused():
    for call in (Call(bytearray, 1 << 40), Call(codecs.encode, "x", "zlib")):
        with pytest.raises(RuntimeRefusal):
            reader().loads(pickle.dumps(call))


def test_getattr_finds_enum_members_only():
    class Color(enum.Enum):
        RED = 1

    this: Any = sys.modules[__name__]
    this.Color = Color
    Color.__qualname__, Color.__module__ = "Color", __name__
    name = f"{__name__}.Color"
    try:
        assert reader(allowed=[name]).loads(pickle.dumps(Call(getattr, Color, "RED"))) is Color.RED
        for attribute in ("__class__", "__subclasses__", "mro"):
            with pytest.raises(RuntimeRefusal):
                reader(allowed=[name]).loads(pickle.dumps(Call(getattr, Color, attribute)))
        with pytest.raises(RuntimeRefusal):
            reader().loads(pickle.dumps(Call(getattr, "text", "upper")))
    finally:
        del this.Color


def test_errors_pass():
    values = [ValueError("x"), OSError(2, "no"), IntegrityError("ST-CKPT-130", "a", "b", "c")]
    for value in values:
        found = reader().loads(pickle.dumps(value))
        assert type(found) is type(value)
        assert str(found) == str(value)


def test_numpy_passes():
    import numpy as np

    values: list[Any] = [
        np.arange(6).reshape(2, 3),
        np.float32(1.5),
        np.array(["a"]),
        np.dtype("f8"),
    ]
    for value in values:
        for protocol in (2, 4, 5):
            found = reader().loads(pickle.dumps(value, protocol))
            assert np.array_equal(found, value)
            assert type(found) is type(value)


def test_torch_values_pass():
    import torch
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
    from torch.distributed.tensor import Replicate, Shard

    base = torch.arange(6.0)
    values: list[Any] = [
        base, base[1:3], base.view(2, 3).t(), torch.ones(2, dtype=torch.bfloat16),
        torch.nn.Parameter(torch.ones(2)), torch.zeros(0), torch.tensor(3, requires_grad=False),
        torch.zeros(2, device="meta"), torch.Size([1, 2]), torch.float16,
        torch.device("cpu"), torch.strided, Shard(0), Replicate(),
        {"w": [base, {"b": torch.ones(1)}]},
    ]  # fmt: skip
    for value in values:
        data = pickle.dumps(value)
        found = reader(limit=1 << 24).loads(data)
        assert type(found) is type(value)
        if isinstance(value, torch.Tensor) and not value.is_meta:
            assert torch.equal(found, value)
    plan = SavePlan(
        items=[WriteItem(index=MetadataIndex("w", torch.Size([0])), type=WriteItemType.TENSOR)]
    )
    chunk = ChunkStorageMetadata(offsets=torch.Size([0]), sizes=torch.Size([6]))
    storage = TensorStorageMetadata(TensorProperties(), torch.Size([6]), [chunk])
    for value in (plan, Metadata(state_dict_metadata={"w": storage})):
        assert reader().loads(pickle.dumps(value)) == value


def test_a_bomb_inside_a_tensors_storage_is_refused(tmp_path):
    # torch reads the storage of a pickled tensor with weights_only=False.
    import torch
    import torch.storage

    inner = io.BytesIO()
    torch.save(bomb(tmp_path / "hit"), inner)
    data = pickle.dumps(Call(torch.storage._load_from_bytes, inner.getvalue()))
    refused(pickle.UnpicklingError, r"makedirs|Weights only", reader().loads, data)
    assert not (tmp_path / "hit").exists()
    pickle.loads(data)
    assert (tmp_path / "hit").is_dir()


def test_what_the_script_declares_safe_passes():
    import torch

    data = pickle.dumps(Mine())
    with torch.serialization.safe_globals([Mine]):
        assert isinstance(reader().loads(data), Mine)
    with pytest.raises(RuntimeRefusal):
        reader().loads(data)


def test_torchs_own_list_is_covered():
    """Whatever torch's weights-only unpickler accepts by default, ours accepts."""
    from torch import _weights_only_unpickler as theirs

    missing = [
        name
        for name in theirs._get_allowed_globals()
        if not is_allowed(name.rpartition(".")[0], name.rpartition(".")[2], frozenset())
        and name not in {"builtins.bytearray", "_codecs.encode"}
        and "Storage" not in name
        # the tensor types of the years before dtypes
        and not (name.endswith("Tensor") and name != "torch.Tensor")
    ]
    assert missing == []


def test_every_allowed_torch_name_exists():
    """A name that is gone was renamed: the list must follow, or a feature breaks silently."""
    import importlib

    gone = []
    for name in {n for n in safe_globals.VALUES if n[:6] == "torch."} | allowlist.TORCH_DISTRIBUTED:
        module, _, attribute = name.rpartition(".")
        if not hasattr(importlib.import_module(module), attribute):
            gone.append(name)
    assert gone == []


def test_the_safe_pickle_has_what_torch_uses():
    safe = reader()
    assert safe.load(io.BytesIO(safe.dumps([1]))) == [1]
    assert issubclass(safe.Unpickler, pickle.Unpickler)
    assert all(hasattr(safe, name) for name in ("dump", "Pickler", "UnpicklingError"))


def test_what_our_own_checkpoints_send_is_covered():
    import torch  # noqa: F401 - dtypes are judged by what torch has

    from tests.artifacts.checkpoint.worlds import DCP_GLOBALS

    missing = [n for n in DCP_GLOBALS if not is_allowed(*n.rpartition(".")[::2], frozenset())]
    assert missing == []
