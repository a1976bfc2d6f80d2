# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every loader that a file invites is asked for; what it would read every day stays clean."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from securetrain.artifacts.scan.findings import ScanResult
from securetrain.artifacts.scan.programs import is_arithmetic
from securetrain.artifacts.scan.scanner import scan_path
from securetrain.artifacts.tree import safetensors_header
from securetrain.core.codes import ExitCode
from securetrain.core.errors import IntegrityError
from tests.tables import each, items
from tests.vocabulary import refused
from tools.campaigns import readers
from tools.scan_corpus import pieces
from tools.scan_corpus.crafted import HEADERS
from tools.scan_corpus.ordinary import CHATML, TOOLS, tokenizers_zoo, torch_zoo


def codes(result: ScanResult) -> set[str]:
    return {finding.code for finding in result.findings}


def scanned(folder: Path, name: str, data: bytes) -> ScanResult:
    path = folder / name
    path.write_bytes(data)
    return scan_path(path)


# A file of one loader that is a file of another one. The control: that one runs it.


@pytest.mark.forgery
def test_safetensors_that_are_a_pickle(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    data = pieces.polyglot(f"cos\nmkdir\n(S'{marker}'\ntR.".encode())
    size = safetensors_header.header_size(data[:8], len(data), "m")
    assert list(safetensors_header.parse(data[:size], len(data), "m")) == ["w"]
    for suffix in (".pt", ".bin", ".pkl", ".ckpt"):
        assert {"ST-SCAN-190", "ST-SCAN-193"} <= codes(scanned(tmp_path, "m" + suffix, data))
    assert not marker.exists()
    with suppress(Exception):  # what torch then does with the result is its affair
        torch.load(tmp_path / "m.pt", weights_only=False)
    assert marker.exists()


@pytest.fixture(scope="module")
def exported() -> bytes:
    """What torch.export writes of a model with sizes that it does not know."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.cat([x, x])[: x.shape[0] + 1], y.reshape(-1)

    rows, other = torch.export.Dim("rows", min=2, max=64), torch.export.Dim("other")
    sizes = ({0: rows}, {0: other, 1: torch.export.Dim("third")})
    out = io.BytesIO()
    program = torch.export.export(
        Model(), (torch.ones(4, 4), torch.ones(2, 3)), dynamic_shapes=sizes
    )
    torch.export.save(program, out)
    return out.getvalue()


@pytest.mark.forgery
def test_an_expression_that_is_a_program(exported: bytes, tmp_path: Path) -> None:
    assert scanned(tmp_path, "m.pt2", exported).findings == []
    members = pieces.unzipped(exported)
    (name,) = (name for name in members if "/models/" in name)
    tree = json.loads(members[name])
    marker = tmp_path / "ran"
    (first, *_) = tree["graph_module"]["graph"]["sym_int_values"].values()
    first["as_expr"]["expr_str"] = f"__import__('os').mkdir('{marker}')"
    data = pieces.zipped(members | {name: json.dumps(tree).encode()})
    result = scanned(tmp_path, "m.pt2", data)
    assert codes(result) == {"ST-SCAN-195"}
    assert "expr_str" in result.findings[0].what
    assert not marker.exists()
    load: Any = torch.export.load
    with pytest.raises(Exception, match=r"."):
        load(tmp_path / "m.pt2")
    assert marker.exists()


@pytest.mark.forgery
def test_no_text_of_a_graph_may_be_a_program(tmp_path: Path) -> None:
    """Each text in turn; those that torch only shows, and gives to nothing, are free."""
    free = {"stack_trace", "torch_version", "nn_module_stack", "torch_fn"}
    members = pieces.unzipped(pieces.exported(name="a", guards_code=["s0 >= 2"], as_name="b"))
    clean = set()
    for name in (name for name in members if name.endswith(".json")):
        tree = json.loads(members[name])
        for holder, key in list(readers.leaves(tree)):
            said = holder[key]
            for value in readers.values("/x"):
                if "(" in value or not value.replace(".", "").isidentifier():
                    holder[key] = value
                    data = pieces.zipped(members | {name: json.dumps(tree).encode()})
                    if scanned(tmp_path, "m.pt2", data).ok:
                        clean.add(key)
            holder[key] = said
    assert clean <= free


FREE = {
    "adapter_config.json": {"base_model_name_or_path", "an item"},
    "index.json": {"basename"},
    "model.json": {"name"},
    "model_config.yaml": {"an item"},
    "tokenizer_config.json": {"content", "chat_template"},
}
"""The keys whose texts name a repository, parts or a file beside, or are only text to their reader.

A template is judged by rules of its own, and runs nothing outside its tags.
"""


def _code(rng: random.Random) -> str:
    """A text that some loader could import, call, run or read."""
    one, two = (rng.choice(("os", "evil", "a", "sys", "Module", "x_1")) for _ in range(2))
    forms = (
        "{0}.{1}",
        "{0}({1})",
        "{0}.{1}()",
        "import {0}",
        "{0}:{1}",
        "../{0}",
        "/{0}/{1}",
        "lambda: {0}",
        "${{{0}:{1}}}",
        "{0} {1}",
        "{0}[{1}]",
        "{{{{ {0}.__{1}__ }}}}",
        "{0};",
    )
    return rng.choice(forms).format(one, two)


@pytest.mark.forgery
def test_no_text_of_a_configuration_may_be_code(tmp_path: Path) -> None:
    rng = random.Random(31)
    for name, said in readers.CONFIGURATIONS.items():
        tree = json.loads(json.dumps(said))
        assert scanned(tmp_path, name, readers.written(name, tree)).ok, name
        clean = set()
        for holder, key in list(readers.leaves(tree)):
            before = holder[key]
            for _ in range(12):
                holder[key] = _code(rng)
                if scanned(tmp_path, name, readers.written(name, tree)).ok:
                    clean.add(key if isinstance(key, str) else "an item")
            holder[key] = before
        assert clean <= FREE.get(name, set()), name


@each(
    "text",
    "s0",
    "Add(Symbol('s77', positive=True, integer=True), Integer(1))",
    "Mul(Integer(2), Symbol('s77', integer=True))",
    "Eq(Mod(s0, 8), 0)",
    "FloorDiv(s0 + 1, 2)",
    "Max(1, u0) <= 2**31",
    "Pow(Symbol('s0'), Integer(2))",
    "Float('1.5', precision=53)",
    "-s0 + 10",
)
def test_arithmetic_is_what_it_is(text: str) -> None:
    assert is_arithmetic(text)


@each("text", "L['x'].size()[0] == 3", "2 <= L['args'][0].stride()[1]", "L['x'].shape[0] > 1")
def test_guards_ask_for_sizes_and_expressions_do_not(text: str) -> None:
    assert is_arithmetic(text, guard=True)
    assert not is_arithmetic(text)


# safetensors: one reader.


@pytest.mark.forgery
def test_a_scan_refuses_of_safetensors_what_signing_refuses(tmp_path: Path) -> None:
    for name, header, size in HEADERS:
        data = pieces.safetensors(header, bytes(size))
        result = scanned(tmp_path, "m.safetensors", data)
        assert codes(result) == {"ST-SCAN-192"}, name
        whole = data[: 8 + len(header)]
        error = refused(
            IntegrityError, "ST-CKPT-191", safetensors_header.parse, whole, len(data), "m"
        )
        assert error.what in result.findings[0].what
    head = safetensors_header.encode_header({"w": ("float32", (2, 3)), "v": ("bool", (5,))})
    assert scanned(tmp_path, "m.safetensors", head + bytes(29)).ok
    assert not scanned(tmp_path, "m.safetensors", b"").ok


# Torch's storages and tensors.


def _tensors() -> Iterator[Any]:
    whole = torch.arange(24, dtype=torch.float32)
    yield [whole.reshape(4, 6).t(), whole[3:9], whole.reshape(2, 3, 4)[:, 1:, ::2]]
    yield [torch.ones(()), torch.ones(0, 3), torch.ones(3).expand(4, 3), torch.nn.Parameter(whole)]
    yield {str(one): torch.ones(3).to(one) for one in (torch.half, torch.bfloat16, torch.int8)}
    yield [torch.ones(3, dtype=torch.complex64), torch.ones(2, dtype=torch.bool)]
    yield [torch.zeros(4, dtype=torch.uint16), torch.zeros(4).to(torch.float8_e4m3fn)]
    yield [torch.eye(3).to_sparse(), torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)]
    yield torch.ones(1 << 12).untyped_storage()
    yield [np.ones((3, 4)), np.float64(2), range(10), bytearray(b"abc"), 1 << 70]
    yield torch.optim.Adam([torch.nn.Parameter(whole)]).state_dict()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("format_", ["zip", "old"])
def test_what_torch_saves_lies_in_its_storages(format_: str, tmp_path: Path) -> None:
    zipped = format_ == "zip"
    for number, value in enumerate(_tensors()):
        if not zipped and number in (4, 6):
            continue  # the old format has no types of one byte, and no storages without one
        torch.save(value, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
        assert scan_path(tmp_path / "m.pt").findings == [], number


@pytest.mark.forgery
def test_a_storage_is_as_long_as_its_member(tmp_path: Path) -> None:
    assert scanned(tmp_path, "m.pt", pieces.torch_zip(pieces.tensor(2))).ok
    for elements in (1, 3, 1_000_000, 1 << 61, -1):
        result = scanned(tmp_path, "m.pt", pieces.torch_zip(pieces.tensor(elements)))
        assert codes(result) == {"ST-SCAN-192"}, elements
    old = pieces.tensor(4)
    assert scanned(tmp_path, "m.pt", old + bytes(16)).ok
    assert codes(scanned(tmp_path, "m.pt", old + bytes(15))) == {"ST-SCAN-192"}


# Templates.

RECURSIVE = (
    "{% macro show(spec) %}{% for part in spec.parts %}{{ show(part) }}{% endfor %}"
    "{{ show(spec.items) }}{% endmacro %}{{ show(tools) }}"
)
FOUR = (
    "{% for m in messages %}{% for c in m.content %}{% for t in c.tools %}{% for a in t.args %}"
    "{{ '-' * 40 }}{% set s = s ~ a %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}"
)


@each("text", CHATML, TOOLS, RECURSIVE, FOUR, "{% for i in range(10) %}{{ i }}{% endfor %}")
def test_what_a_chat_template_does_every_day(tmp_path: Path, text: str) -> None:
    assert scanned(tmp_path, "chat_template.jinja", text.encode()).findings == []


def test_aliases_of_yaml_are_followed_once(tmp_path: Path) -> None:
    laughs = "a0: &a0 [x, y]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40)
    )
    text = laughs + "base: &base {lr: 1}\nrun:\n  <<: *base\n  _target_: torch.optim.AdamW\n"
    assert scanned(tmp_path, "a.yaml", text.encode()).findings == []
    assert scanned(tmp_path, "a.yaml", b"a: &a [*a, *b]\n").findings == []


# Bad input: a code, a place and a remedy.


def _xz() -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30, "preset": 0}]
    packed = bytearray(lzma.compress(b"x" * 99, filters=filters))
    return bytes(packed)


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "JSON that is deep": ("a.json", lambda: b"[" * 100_000),
    "JSON of objects": ("a.json", lambda: b"[" + b"[]," * 4_100_000 + b"1]"),
    "YAML that is deep": ("a.yaml", lambda: b"[" * 2_000),
    "INI that is deep": ("a.cfg", lambda: b"[a]\nb = " + b"[" * 100_000),
    "a text that is long": ("a.json", lambda: json.dumps("f(" * 50_000).encode()),
    "numpy that is deep": (
        "a.npy", lambda: b"\x93NUMPY\x01\0" + struct.pack("<H", 60_000) + b"(" * 60_000,
    ),
    "numpy of 2^63": (
        "a.npy",
        lambda: pieces.numpy_objects(b"").replace(b"'|O'", b"'u1'").replace(
            b"(1,), }" + b" " * 20, b"(9223372036854775808,)}   "),
    ),
    "GGUF of 2^63": ("a.gguf", lambda: b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 1 << 63)),
    "safetensors of 2^63": ("a.safetensors", lambda: struct.pack("<Q", 1 << 63) + b"{}"),
    "xz with a dictionary of 1 GiB": ("a.pkl.xz", _xz),
    "a template that is deep": ("a.jinja", lambda: b"{% for a in b %}" * 5_000),
    "an expression that is deep": ("a.pt2", lambda: pieces.exported("-" * 8_000 + "1")),
    "a pickle of 2^63": ("a.pkl", lambda: b"\x80\x04\x8e" + struct.pack("<Q", 1 << 63) + b"x."),
    "a pickle that is deep": ("a.pkl", lambda: b"\x80\x04" + b"(" * 1_100_000 + b"."),
}  # fmt: skip


@pytest.mark.forgery
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_named_with_its_place_and_a_remedy(name: str, tmp_path: Path) -> None:
    file, make = BOMBS[name]
    begun = time.process_time()
    result = scanned(tmp_path, file, make())
    assert time.process_time() - begun < 30
    assert result.exit_code in (ExitCode.INCOMPLETE, ExitCode.UNSAFE_CONTENT)
    for one in result.findings:
        assert one.code.startswith("ST-SCAN-")
        assert one.place.startswith(file)
        assert one.fix


def _zips(count: int) -> bytes:
    data = b"\x80\x04N."
    for _ in range(count // 50):
        data = pieces.zipped({"a.zip": data})
    return data


def _laughs(count: int) -> bytes:
    lines = (f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, count))
    return "\n".join(["a0: &a0 [x, y]", *lines]).encode()


GROWING: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "zip members": ("a.zip", lambda n: pieces.zipped({f"{k}/data.pkl": b"\x80\x04N."
                                                      for k in range(n)})),
    "zips in zips": ("a.zip", _zips),
    "tar members": ("a.tar", lambda n: pieces.tarred({f"{k}.npy": b"" for k in range(n)})),
    "gzip": ("a.pkl.gz", lambda n: gzip.compress(bytes(n << 12))),
    "xz": ("a.pkl.xz", lambda n: lzma.compress(bytes(n << 12))),
    "bzip2": ("a.pkl.bz2", lambda n: bz2.compress(bytes(n << 12))),
    "gzip streams": ("a.pkl.gz", lambda n: gzip.compress(b"\x80\x04N.") * n),
    "JSON depth": ("config.json", lambda n: b'{"a": ' * (n // 8) + b"1" + b"}" * (n // 8)),
    "JSON keys": ("config.json", lambda n: json.dumps({f"k{k}": "v" for k in range(n)}).encode()),
    "JSON equal keys": ("config.json", lambda n: b"{" + b'"module": "X",' * n + b'"config": {}}'),
    "YAML aliases": ("a.yaml", lambda n: _laughs(n // 4)),
    "INI": ("a.cfg", lambda n: b"[a]\n" + b"".join(b"k%d = 1\n" % k for k in range(n))),
    "template tags": ("a.jinja", lambda n: b"{% set a = b %}{{ a }}" * n),
    "template loops": ("a.jinja", lambda n: b"{% for a in b %}" * n + b"{% endfor %}" * n),
    "template keys": ("a.jinja", lambda n: b"{{ a" + b"[b" * n + b"]" * n + b" }}"),
    "template macros": ("a.jinja", lambda n: b"{% macro a(b) %}{{ b }}" * n),
    "template names": ("a.jinja", lambda n: b"{% set " + b"a." * n + b"b = " + b"a." * n + b"c %}"),
    "pickle memo": ("a.pkl", lambda n: b"\x80\x04" + b"".join(
        b"\x8c\x01ar" + struct.pack("<I", k << 8) + b"0" for k in range(n)) + b"N."),
    "pickle ranges": ("a.pkl", lambda n: b"\x80\x04" + b"cbuiltins\nrange\nJ\0\0\0\x10\x85R0" * n
                      + b"N."),
    "pickle tuples": ("a.pkl", lambda n: b"\x80\x04" + b"(" * n + b"t" * n + b"."),
    "pickles": ("a.pkl", lambda n: b"\x80\x04N." * n),
    "GGUF entries": ("a.gguf", lambda n: pieces.gguf({f"k{k}": "v" for k in range(n)})),
    "ONNX nodes": ("a.onnx", lambda n: pieces.onnx(nodes=[pieces.onnx_node("Relu")] * n)),
    "HDF5 heaps": ("a.h5", lambda n: pieces.hdf5([b'{"a": 1}'] * n)),
    "expressions": ("a.pt2", lambda n: pieces.exported("Add(" * (n // 20) + "1" + ")" * (n // 20))),
}  # fmt: skip
"""What grows with a number, by the reader that it is meant for."""


def _cost(path: Path) -> tuple[int, int]:
    """The calls that a scan makes, and its largest memory in bytes."""
    calls = 0

    def count(*_event: object) -> None:
        nonlocal calls
        calls += 1

    tracemalloc.start()
    sys.setprofile(count)
    try:
        scan_path(path)
    finally:
        sys.setprofile(None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return calls, peak


@pytest.mark.forgery
@pytest.mark.parametrize("name", GROWING)
def test_the_cost_of_a_scan_grows_no_faster_than_what_is_scanned(name: str, tmp_path: Path) -> None:
    file, make = GROWING[name]
    few = random.Random(name).randrange(150, 250)
    costs = []
    for count in (few, few * 8):
        (tmp_path / file).write_bytes(make(count))
        costs.append(_cost(tmp_path / file))
    assert costs[1][0] < 12 * costs[0][0] + 2_000, costs
    assert costs[1][1] < 12 * costs[0][1] + (4 << 20), costs


MANY: Final = struct.pack("<IIQ", 9, 8, 4) + bytes(32)


@items(
    "limit, file, data",
    (("weights.MAX_ELEMENTS", 4), "m.gguf",
     b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + MANY),
    (("weights.MAX_HEAPS", 0), "m.h5", pieces.hdf5([b"{}"])),
    (("weights.MAX_MARKERS", 0), "m.h5", pieces.hdf5([b"{}"], latest=True)),
    (("weights.CONFIG_LIMIT", 1), "m.h5", pieces.hdf5([b"{}"])),
    (("archives.MAX_MEMBERS", 2), "m.zip", pieces.zipped({f"{k}.txt": b"a" for k in range(3)})),
    (("scanner.UNPACK_LIMIT", 9_000), "m.pt",
     pieces.zipped({"m/data.pkl": b"\x80\x04N.", "m/data/0": bytes(9_999)}, 8)),
)  # fmt: skip
def test_what_is_counted_has_a_limit(tmp_path, monkeypatch, limit, file, data):
    assert scanned(tmp_path, file, data).ok
    monkeypatch.setattr(f"securetrain.artifacts.scan.{limit[0]}", limit[1])
    assert codes(scanned(tmp_path, file, data)) in ({"ST-SCAN-031"}, {"ST-SCAN-192"})


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pkl")
    (tmp_path / "b.pt").symlink_to("/dev/zero")
    result = scan_path(tmp_path)
    assert {one.file for one in result.findings if one.code == "ST-SCAN-142"} == {"a.pkl", "b.pt"}
    assert codes(scan_path(tmp_path / "a.pkl")) == {"ST-SCAN-200"}
    assert all(one.fix for one in result.findings)


# Ordinary files.


def _ordinary(rng: random.Random, number: int) -> tuple[str, bytes]:
    out = io.BytesIO()
    shape = [rng.randint(1, 9) for _ in range(rng.randint(0, 3))]
    kind = number % 8
    if kind < 3:
        types = (torch.float32, torch.half, torch.bfloat16, torch.int64, torch.uint8)
        state = {f"layers.{n}.weight": torch.rand(shape).to(rng.choice(types)) for n in range(9)}
        torch.save(state | {"step": number}, out)
        return f"model{rng.choice(('.pt', '.bin', '.ckpt', '.pth'))}", out.getvalue()
    if kind == 3:
        np.save(out, np.random.default_rng(number).random(shape))
        return "a.npy", out.getvalue()
    if kind == 4:
        tensors = {f"w{n}": ("float32", tuple(shape)) for n in range(number % 9)}
        head = safetensors_header.encode_header(tensors)
        return "model.safetensors", head + rng.randbytes(4 * len(tensors) * int(np.prod(shape)))
    if kind == 5:
        name = rng.choice([name for name in readers.CONFIGURATIONS if name != "config.cfg"])
        said = json.dumps(readers.CONFIGURATIONS[name], indent=number % 3).encode()
        return name, said
    if kind == 6:
        return "m.gguf", pieces.gguf(
            {"general.name": str(number), "tokenizer.chat_template": TOOLS}
        )
    files = {f"{n:05}.npy": _ordinary(rng, 3)[1] for n in range(3)} | {"a.json": b'{"a": 1}'}
    return "data.tar", pieces.tarred(files)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_two_hundred_ordinary_files_raise_two_alarms_at_most(tmp_path: Path) -> None:
    rng = random.Random(0)
    alarms = []
    for number in range(200):
        name, data = _ordinary(rng, number)
        result = scanned(tmp_path, name, data)
        if not result.ok:
            alarms.append((name, result.findings[:2]))
    libraries = [*torch_zoo(), *(tokenizers_zoo() if find_spec("tokenizers") else ())]
    for number, (name, write) in enumerate(libraries):
        place = tmp_path / str(number) / name
        place.parent.mkdir(parents=True)
        write(place)
        result = scan_path(place)
        if not result.ok:
            alarms.append((name, result.findings[:2]))
    assert len(libraries) > 140
    assert len(alarms) <= 2, alarms
