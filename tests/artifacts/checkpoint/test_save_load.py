# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import pickle
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.stateful import Stateful

from securetrain.artifacts import SaveContext, load, save, verify_path
from securetrain.artifacts.checkpoint import reader
from securetrain.artifacts.checkpoint.containers import RankWriter
from securetrain.artifacts.checkpoint.reports import unwrap
from securetrain.artifacts.checkpoint.writer import leaf_size
from securetrain.artifacts.lineage.quarantine import Quarantine, set_aside
from securetrain.artifacts.statement.statements import (
    GradientRecord,
    GradientVerdict,
    open_statement,
)
from securetrain.artifacts.tree.layout import INDEX, STATEMENT, Kind
from securetrain.artifacts.tree.storage import LocalStaging
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.core.hashtree import HashAlgorithm, TreeParams
from securetrain.identity.trust import TrustRoot
from securetrain.policy.load import load_policy
from tests import vocabulary
from tests.artifacts.checkpoint.worlds import SMALL, assert_same
from tests.tables import each, items


@pytest.fixture
def saved(keys, now, lineage, tmp_path):
    def run(state, name="ckpt", *, params=None, key=None, **said):
        fields = {"run_id": "run-1", "step": 5, "created": now, **lineage}
        context = SaveContext(**{**fields, "nodes": tuple(lineage["nodes"]), **said})
        how = {"key": key or keys.checkpoint, "context": context, "params": params}
        return save(state, tmp_path / name, **how)

    return run


@pytest.fixture
def load_it(trust, now):
    return lambda state, path, **more: load(
        state, path, **{"trust": trust, "policy": None, "now": now, **more}
    )


def rich_state():
    torch.manual_seed(3)
    return {
        "model": {
            "weight": torch.randn(300, 77),
            "scalar": torch.tensor(3.5),
            "half": torch.randn(33).half(),
            "bf16": torch.randn(5, 5).bfloat16(),
            "fp8": torch.randn(130).to(torch.float8_e4m3fn),
            "complex": torch.randn(7, dtype=torch.complex64),
            "conj": torch.randn(7, dtype=torch.complex64).conj(),
            "flags": torch.tensor([True, False, True]),
            "long": torch.arange(10),
            "u16": torch.arange(9).to(torch.uint16),
            "empty": torch.empty(0, 4),
            "transposed": torch.randn(20, 30).t(),
            "strided": torch.randn(40, 4)[::2, 1],
            "large": torch.randn(200_000),
        },
        "optimizer": {"groups": [{"lr": 1e-3, "betas": (0.9, 0.95), "names": ["a", "b"]}]},
        "step": 7,
        "done": False,
        "nothing": None,
        "raw": b"\x00\xff",
        "infinity": float("inf"),
    }


def blank(value):
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value.resolve_conj())
    if isinstance(value, dict):
        return {k: blank(v) for k, v in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [blank(v) for v in value]
    return "to be replaced"


@items("params", None, SMALL, TreeParams(algorithm=HashAlgorithm.SHA256, leaf_size=4096))
def test_everything_comes_back_bit_by_bit(saved, load_it, trust, now, params):
    state = rich_state()
    result = saved(state, params=params)
    target = blank(rich_state())
    predicate = load_it(target, result.path)
    assert_same(target, state)
    assert predicate.step == 5
    assert predicate.run_id == "run-1"
    assert predicate.env["torch"] == str(torch.__version__)
    assert predicate.save_id == result.save_id
    checked = verify_path(result.path, trust=trust, policy=None, now=now)
    assert checked.ok
    assert checked.digest == result.digest


def test_the_directory_holds_no_pickle(saved):
    result = saved(rich_state())
    assert sorted(p.name for p in result.path.iterdir()) == [
        INDEX,
        "rank-00000.bin",
        "rank-00000.bin.leaves",
        STATEMENT,
    ]
    assert [p.name for p in result.path.parent.iterdir()] == [result.path.name]


def test_no_unpickler_runs_in_either_direction(saved, load_it, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("unpickled")

    for module in (pickle, torch.distributed.distributed_c10d):
        monkeypatch.setattr(module, "Unpickler" if module is pickle else "_unpickler", never)
    for name in ("load", "loads"):
        monkeypatch.setattr(pickle, name, never)
    monkeypatch.setattr(torch, "load", never)
    monkeypatch.setattr(torch, "save", never)
    state = {"w": torch.ones(3), "v": [1, 2]}
    target = {"w": torch.zeros(3), "v": None}
    load_it(target, saved(state).path)
    assert_same(target, state)


def test_targets_are_filled_in_place(saved, load_it):
    state = {"a": torch.randn(5000), "b": torch.randn(30, 40)}
    path = saved(state).path
    a = torch.zeros(5000)
    b = torch.zeros(40, 30).t()
    load_it({"a": a, "b": b}, path)
    assert torch.equal(a, state["a"])
    assert torch.equal(b, state["b"])


@pytest.mark.parametrize("leaf", [1024, 1 << 20])
def test_another_dtype_is_converted_after_it_was_verified(saved, load_it, monkeypatch, leaf):
    monkeypatch.setattr(reader, "STRETCH", 8 * leaf)
    monkeypatch.setattr(reader, "BLOCK", 2 * leaf)
    # The second begins and ends inside leaves, the third is smaller than one.
    shapes = {"a": (100, 30), "b": (91, 97), "c": (7,), "d": ()}
    state = {name: torch.randn(shape) for name, shape in shapes.items()}
    target = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    load_it(target, saved(state, params=TreeParams(leaf_size=leaf)).path)
    for name, tensor in state.items():
        assert torch.equal(target[name], tensor.double())


@pytest.mark.parametrize("byte", [0, 1500, 20_000, -1])
def test_what_would_be_converted_is_verified_first(saved, load_it, byte):
    path = saved({"a": torch.randn(91, 97)}, params=SMALL).path
    data = bytearray((path / "rank-00000.bin").read_bytes())
    data[byte] ^= 1
    (path / "rank-00000.bin").write_bytes(data)
    target = {"a": torch.ones(91, 97, dtype=torch.float64)}
    vocabulary.refused(IntegrityError, "ST-CKPT-130", load_it, target, path)
    assert not target["a"].any()


@each("elements, leaf", (1000, 64), (4_000_000, 128), (12_000_000, 256), (60_000_000, 1024))
def test_leaves_are_a_hundredth_of_a_tensors_part(elements, leaf):
    part = ChunkStorageMetadata(torch.Size([0]), torch.Size([elements]))
    kept = TensorWriteData(part, TensorProperties(dtype=torch.float32), torch.Size([elements]))
    item = WriteItem(MetadataIndex("w"), WriteItemType.TENSOR, tensor_data=kept)
    value = WriteItem(MetadataIndex("v"), WriteItemType.BYTE_IO)
    assert leaf_size([SavePlan([item, value]), SavePlan([item])]) == leaf << 10
    assert leaf_size([SavePlan([value])]) == 64 << 10


def test_the_trees_leaves_are_signed(saved, trust):
    path = saved({"a": torch.zeros(4_000_000)}).path
    opened = open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust)
    assert opened.predicate.tree.leaf_size == 128 << 10


def test_large_rows_go_through_a_bounded_buffer(saved, load_it, monkeypatch):
    monkeypatch.setattr(reader, "SCRATCH", 10_000)
    state = {"a": torch.randn(64, 900)}
    target = {"a": torch.zeros(900, 64).t()}
    load_it(target, saved(state, params=SMALL).path)
    assert torch.equal(target["a"], state["a"])


class Counter(Stateful):
    def __init__(self, n):
        self.n = n
        self.t = torch.full((3,), float(n))

    def state_dict(self):
        return {"n": self.n, "t": self.t}

    def load_state_dict(self, state_dict):
        self.n = state_dict["n"]
        self.t = state_dict["t"]


def test_stateful_objects_and_real_modules(saved, load_it):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    state = {"counter": Counter(9), "model": model.state_dict()}
    path = saved(state).path
    fresh = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    counter = Counter(0)
    load_it({"counter": counter, "model": fresh.state_dict()}, path)
    assert counter.n == 9
    assert_same(dict(fresh.state_dict()), dict(model.state_dict()))


def test_only_a_part(saved, load_it):
    path = saved({"a": torch.ones(3), "b": torch.ones(4)}).path
    target = {"b": torch.zeros(4)}
    load_it(target, path)
    assert target["b"].sum() == 4
    extra = {"b": torch.zeros(4), "c": torch.zeros(1)}
    vocabulary.refused(UsageError, "ST-USAG-012", load_it, dict(extra), path)
    load_it(extra, path, strict=False)
    assert extra["b"].sum() == 4


@items(
    "target",
    {"a": torch.zeros(4)},
    {"a": 5},
    {"v": torch.zeros(1)},
    {"z": torch.zeros(1)},
)
def test_a_state_dict_that_does_not_fit(saved, load_it, target):
    path = saved({"a": torch.ones(3), "v": 1}).path
    error = vocabulary.refused(UsageError, "ST-USAG-012", load_it, target, path)
    assert error.fix


class Sub(torch.Tensor):
    pass


class Evil:
    def __reduce__(self):
        return (os.abort, ())


@items(
    "state",
    {"x": Evil()},
    {"x": range(2)},
    {"x": (torch.randn(3, 3).to_sparse(),)},
    {"x": torch.randn(3).as_subclass(Sub)},
    {"x": torch.empty(3, device="meta")},
    {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}},
    {},
    {"x": {}},
    {"securetrain:file": 1, "y": 2},
)
def test_what_the_format_cannot_hold_is_refused_before_anything_is_left(saved, state, tmp_path):
    vocabulary.refused(UsageError, "ST-USAG-013", saved, state)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(saved, tmp_path):
    first = saved({"a": torch.ones(3)})
    before = (first.path / STATEMENT).read_bytes()
    vocabulary.refused(IntegrityError, "ST-CKPT-201", saved, {"a": torch.zeros(3)})
    assert (first.path / STATEMENT).read_bytes() == before
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(IntegrityError):
        saved({"a": torch.zeros(3)}, "link")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_name_that_is_taken_is_refused_before_anything_is_written(saved, monkeypatch):
    saved({"a": torch.ones(3)})

    def never(*args):
        raise AssertionError("written")

    monkeypatch.setattr(RankWriter, "create", never)
    vocabulary.refused(IntegrityError, "ST-CKPT-201", saved, {"a": torch.zeros(3)})


def test_a_name_that_is_taken_meanwhile_is_not_overwritten(saved, monkeypatch, tmp_path):
    real = LocalStaging.put

    def put(self, name, data):
        (tmp_path / "ckpt").mkdir(exist_ok=True)
        real(self, name, data)

    monkeypatch.setattr(LocalStaging, "put", put)
    vocabulary.refused(IntegrityError, "ST-CKPT-201", saved, {"a": torch.zeros(3)})
    assert list((tmp_path / "ckpt").iterdir()) == []
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt"]


def test_the_coordinator_needs_a_key(now, tmp_path):
    context = SaveContext(run_id="r", step=1, created=now)
    with pytest.raises(UsageError, match="no key"):
        save({"a": torch.ones(1)}, tmp_path / "c", key=None, context=context)


def test_a_context_that_cannot_be_signed_leaves_nothing(saved, tmp_path, now):
    with pytest.raises(UsageError):
        saved({"a": torch.ones(1)}, created=now.replace(tzinfo=None))
    assert list(tmp_path.iterdir()) == []


def test_what_the_policy_asks(saved, load_it, now):
    path = saved({"a": torch.ones(3)}).path
    hardened = load_policy("hardened").policy
    target = {"a": torch.zeros(3)}
    with pytest.raises(IntegrityError) as caught:
        load_it(target, path, policy=hardened)
    assert caught.value.code == "ST-CKPT-122"  # no rank has signed
    alone = replace(hardened.checkpoint, require_rank_signatures=False, require_head=False)
    hardened = replace(hardened, checkpoint=alone)
    assert load_it(target, path, policy=hardened).step == 5
    late = now + timedelta(days=91)
    with pytest.raises(IntegrityError) as caught:
        load_it(target, path, policy=hardened, now=late)
    assert caught.value.code == "ST-CKPT-150"
    fips = replace(
        hardened,
        checkpoint=replace(hardened.checkpoint, algorithm=HashAlgorithm.SHA256),
    )
    vocabulary.refused(IntegrityError, "ST-CKPT-121", load_it, target, path, policy=fips)
    refused = GradientRecord(verdict=GradientVerdict.REFUSED, judged=3, refused=3)
    bad = saved({"a": torch.ones(3)}, "bad", gradients=refused).path
    vocabulary.refused(IntegrityError, "ST-CKPT-121", load_it, target, bad, policy=hardened)
    nameless = saved({"a": torch.ones(3)}, "nameless", run_id="").path
    vocabulary.refused(IntegrityError, "ST-CKPT-170", load_it, target, nameless, policy=hardened)


def test_errors_travel_between_processes():
    error = IntegrityError("ST-CKPT-130", "what", "where", "fix")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), back.to_dict()) == (IntegrityError, error.to_dict())
    failure = CheckpointException("read", {2: (ValueError("x"), []), 1: (error, [])})  # type: ignore[dict-item]
    assert unwrap(failure) is error
    other = unwrap(CheckpointException("read", {0: (ValueError("x"), [])}))  # type: ignore[dict-item]
    assert isinstance(other, SecureTrainError)
    assert other.code == "ST-USAG-010"
    stop = KeyboardInterrupt()
    assert unwrap(CheckpointException("read", {0: (stop, [])})) is stop  # type: ignore[dict-item]


def test_the_path_may_be_a_string_and_have_no_parent_yet(keys, now, tmp_path):
    context = SaveContext(run_id="r", step=1, created=now)
    result = save(
        {"a": torch.ones(1)},
        str(tmp_path / "x" / "y"),
        key=keys.checkpoint,
        context=context,
    )
    assert Path(result.path, STATEMENT).exists()


def test_a_checkpoint_that_was_set_aside_is_not_loaded(saved, load_it, keys, now, tmp_path):
    trust = TrustRoot.parse(keys.trust_file(), now)
    saved({"weight": torch.ones(3)})
    path = tmp_path / "ckpt"
    load_it({"weight": torch.zeros(3)}, path)  # the control
    opened = open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust)
    why = Quarantine(node="node-b", code="ST-ADMN-013", last_good=now, epoch=0, created=now)
    set_aside(path, opened, why, keys.checkpoint).rename(path)
    state = {"weight": torch.zeros(3)}
    vocabulary.refused(IntegrityError, "ST-CKPT-160", load_it, state, path)
    assert not state["weight"].any()
