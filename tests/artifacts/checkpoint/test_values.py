# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Values of numpy and torch in a checkpoint, bit by bit and by exact type."""

import random
import sys
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.artifacts import async_save, load, save, verify_path
from securetrain.artifacts.checkpoint import values
from securetrain.artifacts.checkpoint.async_save import SaveMode
from securetrain.artifacts.tree import codec
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.foreign import Array, Parts
from securetrain.core.errors import IntegrityError, UsageError
from tests.artifacts.checkpoint.worlds import assert_same, context_of
from tests.tables import items
from tests.vocabulary import refused

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
HOW = ["save", *SaveMode]


@pytest.fixture
def written(keys, now, tmp_path):
    def run(state, how="save"):
        given = {"key": keys.checkpoint, "context": context_of(now)}
        if how == "save":
            save(state, tmp_path / "ckpt", **given)
        else:
            async_save(state, tmp_path / "ckpt", **given, mode=how).result(timeout=60)
        return tmp_path / "ckpt"

    return run


@pytest.fixture
def read(trust, now):
    def run(path, target):
        load(target, path, trust=trust, policy=None, now=now)
        return target

    return run


def sparse():
    where = torch.tensor([[0, 1, 1, 0], [2, 0, 2, 2]])
    return {
        "entries": torch.sparse_coo_tensor(where, torch.arange(4.0), (2, 3), check_invariants=True),
        "coalesced": torch.eye(3).to_sparse_coo().coalesce(),
        "hybrid": torch.sparse_coo_tensor(
            torch.tensor([[1]]), torch.ones(1, 5).half(), (4, 5), check_invariants=True
        ),
        "csr": torch.eye(4).to_sparse_csr(),
        "csc": torch.eye(4).to_sparse_csc(),
        "none": torch.zeros(3, 3).to_sparse_coo(),
    }


NUMBERS = ("|b1", "|i1", "|u1", "<i4", ">u8", "<f2", ">f8", "<c16", "<M8[25s]", "<M8[D]", "<m8[ns]")


@st.composite
def arrays(draw):
    """Arrays with any bytes, as views and other programs make them; some of many dimensions."""
    dtype = np.dtype(draw(st.sampled_from(NUMBERS)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3)) + [1] * draw(
        st.sampled_from([0, 0, 29, 32])
    )
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    return np.frombuffer(draw(st.binary(min_size=count, max_size=count)), dtype).reshape(shape)


tensors = st.one_of(
    st.lists(st.integers(0, 255), max_size=4).map(
        lambda some: torch.tensor(some, dtype=torch.uint8)
    ),
    st.lists(st.floats(width=32), max_size=3).map(torch.tensor),
    st.integers(0, 40).map(lambda dims: torch.zeros([1] * dims)),
)
foreign = st.one_of(
    arrays(),
    arrays().filter(lambda one: one.size).map(lambda one: one.reshape(-1)[0]),
    tensors,
    tensors.filter(lambda one: one.dtype is torch.uint8).map(lambda one: one.view(torch.bool)),
    st.lists(st.integers(-1, 2**60), max_size=40).map(torch.Size),
    st.sampled_from([torch.float16, torch.bool, torch.quint8, np.datetime64("NaT"), np.str_("x")]),
)


def coded_or_refused(value):
    try:
        return codec.encode(value, "x", values.describe)
    except UsageError as error:
        return error


@given(
    st.lists(foreign, max_size=3) | st.dictionaries(tensors | st.integers(), foreign, max_size=3)
)
def test_what_is_written_comes_back_or_is_refused_at_writing(value):
    """With numpy and torch, and without them, where only a description comes back."""
    coded = coded_or_refused(value)
    if isinstance(coded, UsageError):
        assert (coded.code, coded.where) == ("ST-USAG-013", "x")
        return
    raw = msgspec.json.encode(coded, order="sorted")
    codec.decode(msgspec.json.decode(raw), "x")
    back = codec.decode(msgspec.json.decode(raw), "x", values.make)
    assert codec.encode(back, "x", values.describe) == coded
    if isinstance(value, dict):  # tensors are keys by identity
        back, value = [*back.keys(), *back.values()], [*value.keys(), *value.values()]
    for a, b in zip(back, value, strict=True):
        if not isinstance(a, torch.Tensor):
            assert_same(a, b)


def unchecked(layout, *parts, size):
    make = getattr(torch, f"sparse_{layout}_tensor")
    return make(*map(torch.tensor, parts), size, check_invariants=False)


@items(
    "id, value",
    ("outside", lambda: unchecked("coo", [[0, 7]], [1.0, 1.0], size=(3,))),
    ("negative", lambda: unchecked("coo", [[-1]], [1.0], size=(3,))),
    ("rows", lambda: unchecked("csr", [0, 2, 9], [0, 1], [1.0, 1.0], size=(2, 2))),
    ("no boolean", lambda: np.full(values.LARGE, 2, "u1").view(bool)),
)
def test_what_no_reader_would_take_is_refused_at_saving(written, value):
    """Signed, it was refused when it was loaded, as a lie of a trusted key."""
    refused(UsageError, "ST-USAG-013", written, {"x": value(), "y": torch.zeros(1)}, names="x")


@pytest.mark.parametrize("how", HOW)
def test_the_random_states_of_a_trainer_come_back(written, read, how):
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002 - the state that most trainers save
    torch.manual_seed(3)
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002
        "generator": np.random.default_rng(4).bit_generator.state,
        "torch": torch.get_rng_state(),
        "both": (torch.get_rng_state(), [1, 2]),
    }
    path = written(state, how)
    drawn = random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
    target: dict[str, Any] = {
        "python": None,
        "numpy": None,
        "generator": np.random.default_rng(5).bit_generator.state,
        "torch": torch.empty_like(state["torch"]),
        "both": None,
    }
    read(path, target)
    assert_same(target, state)
    random.setstate(target["python"])
    np.random.set_state(target["numpy"])  # noqa: NPY002
    torch.set_rng_state(target["torch"])
    assert (random.random(), np.random.rand(), torch.rand(1)) == drawn  # noqa: NPY002


@pytest.mark.parametrize("how", HOW)
def test_other_values_of_trainers_come_back(written, read, trust, now, how):
    state: dict[str, Any] = {
        "arrays": {
            "small": np.arange(6, dtype=">i4").reshape(2, 3),
            "large": np.arange(20_000, dtype=np.float64).reshape(100, -1).T,
            "flags": np.ones(1 << 17, dtype=bool),
            "empty": np.zeros((0, 7), np.float16),
            "scalar": np.array(3j),
            "times": np.array(["2026-01-01"], dtype="M8[ns]"),
        },
        "best": np.float64(0.5),
        "yes": np.bool_(True),
        "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]),
        "sparse": sparse(),
        "mixed": (
            {torch.float32, np.int8(3), 3.5},
            Counter("aab"),
            OrderedDict(b=1, a=2),
            defaultdict(list, x=[np.ones(2)]),
            torch.zeros(0, 2).half(),
            torch.tensor(True),
        ),
        "list": [sparse()["entries"], {"a": np.ones(3)}],
        "file": Path("/data/x"),
    }
    path = written(state, how)
    assert verify_path(path, trust=trust, policy=None, now=now).ok
    target: dict[str, Any] = {
        "arrays": dict.fromkeys(state["arrays"]),
        "sparse": {name: torch.zeros_like(value) for name, value in sparse().items()},
        "list": [None, {"a": None}],
        **dict.fromkeys(["best", "yes", "dtype", "size", "mixed", "file"]),
    }
    target["list"][0] = torch.zeros_like(sparse()["entries"])
    read(path, target)
    assert_same(target, state)
    # What came back belongs to the caller.
    target["arrays"]["small"][0, 0] = 9
    target["arrays"]["large"][0, 0] = 9


def test_an_index_says_its_version(written, tmp_path):
    for state, version in (({"a": [1, "x"]}, 1), ({"a": [1, {2}]}, 2)):
        path = written({**state, "w": torch.ones(1)})
        index = msgspec.json.decode((path / "index.json").read_bytes())
        assert index["version"] == version
        index["version"] = 3 - version
        with pytest.raises(IntegrityError, match="ST-CKPT-191"):
            index_file.parse(
                msgspec.json.encode(index, order="sorted"), {"rank-00000.bin": 1 << 20}
            )
        path.rename(tmp_path / f"was-{version}")


class _Array(np.ndarray):
    pass


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.array(["text"]),
        np.array([b"bytes"]),
        np.zeros(2, dtype=[("a", "f4")]),
        np.zeros(2, dtype=np.longdouble),
        np.zeros(3).view(_Array),
        np.ma.masked_array([1, 2]),
        np.str_("text"),
        torch.quint8,
        (torch.eye(3).to_sparse_coo(),),
        (torch.nn.Parameter(torch.ones(2)).as_subclass(type("Sub", (torch.Tensor,), {})),),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_plain_number_is_refused_by_name(written, value, tmp_path):
    refused(UsageError, "ST-USAG-013", written, {"state": {"odd": value}}, names="state.odd")
    assert not list(tmp_path.iterdir())


def test_a_large_array_inside_of_a_value_is_refused(written, monkeypatch):
    monkeypatch.setattr(codec, "MAX_ARRAY", 100)
    error = refused(UsageError, "104 bytes", written, {"x": (np.zeros(13),)})
    assert "a name of its own" in error.fix


def test_a_name_that_a_part_needs_is_refused(written):
    with pytest.raises(UsageError, match="two values need this name"):
        written({"x": sparse()["entries"], "x.securetrain:values": torch.ones(1)})


def test_a_sparse_tensor_goes_to_a_sparse_one(written, read):
    path = written({"s": sparse()["entries"], "d": torch.ones(2, 3)})
    refused(UsageError, "ST-USAG-012", read, path, {"s": torch.zeros(2, 3)})
    refused(UsageError, "ST-USAG-012", read, path, {"s": sparse()["csr"]})
    refused(UsageError, "ST-USAG-012", read, path, {"d": sparse()["entries"]})


def parts(form, shape, *tensors, coalesced=False, dtype=""):
    made = Parts(form, shape, dtype, coalesced)
    return made, {
        f"x.securetrain:{name}": tensor for name, tensor in zip(made.names, tensors, strict=True)
    }


def test_parts_that_do_not_fit_are_refused():
    """A false sparse tensor reads outside of its memory when it is used."""
    for lie in (
        parts("sparse_coo", (2, 2), torch.tensor([[0], [9]]), torch.ones(1)),
        parts("sparse_coo", (2, 2), torch.tensor([[0], [-1]]), torch.ones(1)),
        parts("sparse_coo", (2, 2), torch.tensor([[0, 1], [0, 1]]), torch.ones(1)),
        parts("sparse_coo", (2, 2), torch.tensor([[1, 0], [0, 0]]), torch.ones(2), coalesced=True),
        parts("sparse_coo", (2, 2), torch.tensor([[0.5], [0.5]]), torch.ones(1)),
        parts("sparse_csr", (2, 2), torch.tensor([0, 1, 9]), torch.tensor([0]), torch.ones(1)),
        parts("sparse_csr", (2, 2), torch.tensor([0, 0, 1]), torch.tensor([7]), torch.ones(1)),
        parts("ndarray", (3,), torch.zeros(8, dtype=torch.uint8), dtype="<f8"),
        parts("ndarray", (1,), torch.zeros(1, dtype=torch.float64), dtype="<f8"),
        parts("ndarray", (1,), torch.tensor([2], dtype=torch.uint8), dtype="|b1"),
    ):
        refused(IntegrityError, "ST-CKPT-191", values.join, lie[0], lie[1], "x")


def test_a_part_that_is_missing_is_a_lie():
    entry = index_file.ValueEntry(fqn="x", value={"parts": ["sparse_coo", [2], "", False]})
    with pytest.raises(IntegrityError, match="a part of the value is missing"):
        index_file.check(index_file.Index.of((), [entry]), {})


numbers = st.sampled_from(["|b1", "|i1", ">u2", "<i8", "<f2", ">f8", "<c8", "<M8[s]", "<m8[2us]"])
shapes = st.lists(st.integers(0, 3), max_size=4)


@settings(max_examples=60)
@given(dtype=numbers, shape=shapes, content=st.binary(min_size=1))
def test_arrays_come_back_bit_by_bit(dtype, shape, content):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = (content * (size // len(content) + 1))[:size]
    if dtype == "|b1":
        raw = bytes(byte & 1 for byte in raw)
    array = np.frombuffer(raw, dtype=dtype).reshape(shape)
    given_ = [array, *array.reshape(-1)[:1]]
    coded = codec.encode(given_, "x", values.describe)
    back = codec.decode(coded, "x", values.make)
    for one, two in zip(given_, back, strict=True):
        assert_same(two, one)
    # A verifier checks the same without numpy.
    found = codec.decode(coded, "x")
    assert all(isinstance(one, Array) for one in found)


def test_a_verifier_needs_neither_numpy_nor_torch(written, python_without, keys, now):
    path = written({"a": np.ones(3), "b": {torch.float32}, "big": np.zeros(20_000)})
    (path.parent / "trust.json").write_bytes(keys.trust_file())
    program = f"""
from datetime import datetime
from pathlib import Path
from typing import Any
from securetrain.artifacts import verify_path
from securetrain.identity.trust import TrustRoot
now = datetime.fromisoformat({now.isoformat()!r})
trust = TrustRoot.load(Path({str(path.parent / "trust.json")!r}), now)
assert verify_path(Path({str(path)!r}), trust=trust, policy=None, now=now).ok
"""
    python_without(program)


@pytest.fixture
def python_without():
    import subprocess
    import sys

    def run(program):
        head = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        subprocess.run([sys.executable, "-c", head + program], check=True, timeout=60)

    return run


def test_a_sparse_tensor_of_a_class_of_its_own_is_not_split():
    """Its class may mean something else by the same parts."""

    class Own(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, *_):
            raise AssertionError(f"{function} was asked of it")

    own = torch.Tensor._make_wrapper_subclass(Own, (2, 2), layout=torch.sparse_coo)
    assert values.split(torch.eye(2).to_sparse(), "v") is not None
    assert values.split(own, "v") is None


def test_a_program_without_numpy_has_no_values_of_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert values.describe(object(), "v") is None
