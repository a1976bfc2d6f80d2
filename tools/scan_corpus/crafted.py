# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Crafted files: each makes some loader run, call or read what nobody asked for.

A case says how a scan must end at least: 19 where what would run can be named, 3 where it cannot
be known. None is harmful to scan, and all are harmless to load by anything but their own loader.
"""

import bz2
import gzip
import json
import lzma
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from tools.scan_corpus import pieces as p

UNSAFE = 19
UNKNOWN = 3
EVIL = p.call("os.system")


class Case(NamedTuple):
    """One file."""

    name: str
    file: str
    data: bytes
    exit: int = UNSAFE
    code: str = ""
    """A finding that must be there."""


CALLS = (
    "os.system", "posix.system", "nt.system", "subprocess.Popen", "builtins.eval", "builtins.exec",
    "builtins.__import__", "builtins.getattr", "builtins.open", "importlib.import_module",
    "runpy.run_path", "webbrowser.open", "shutil.rmtree", "socket.create_connection",
    "pickle.loads", "marshal.loads", "types.CodeType", "operator.attrgetter", "functools.partial",
    "torch.hub.load", "torch.load", "numpy.testing._private.utils.runstring", "ctypes.CDLL",
    "pip.main", "bdb.Bdb.run", "pydoc.pipepager", "timeit.timeit", "cProfile.run", "code.interact",
    "asyncio.create_subprocess_shell", "logging.config.fileConfig", "torch.jit.load",
    "numpy.f2py.crackfortran.myeval", "sklearn.utils._testing.check_skip_network",
)  # fmt: skip


def calls() -> Iterator[Case]:
    """Globals that run something; every one in a torch archive or a plain pickle."""
    for number, name in enumerate(CALLS):
        data = p.call(name)
        file = ("model.pkl", "pytorch_model.bin", "model.pt")[number % 3]
        yield Case(name, file, p.torch_zip(data) if number % 3 else data, code="ST-SCAN-190")


def pickles() -> Iterator[Case]:
    """Ways to hide a pickle, or what it names."""
    hidden = "ST-SCAN-190"
    yield Case("protocol 0", "model.txt", b"cos\nsystem\n(S'true'\ntR.", code=hidden)
    yield Case("inst", "model.pkl", b"(S'true'\nios\nsystem\n.", code=hidden)
    yield Case("obj", "model.pkl", b"(cos\nsystem\nS'true'\no.", code=hidden)
    memo = b"\x80\x04" + p.text("os") + b"\x94" + p.text("system") + b"\x9400h\x00h\x01\x93)R."
    yield Case("memo", "model.pkl", memo, code=hidden)
    yield Case("extension code", "model.pkl", b"\x80\x04\x82\x01)R.", code="ST-SCAN-191")
    yield Case("second pickle", "model.pkl", pickle.dumps(1) + EVIL, code=hidden)
    yield Case("broken off", "model.pkl", EVIL[:-1] + b"\xff", code=hidden)
    yield Case("as json", "config.json", EVIL, code=hidden)
    yield Case("as a picture", "cat.png", EVIL, code=hidden)
    yield Case("deflated", "model.pt", p.zipped({"m/data.pkl": EVIL}, zipfile.ZIP_DEFLATED))
    other = p.zipped({"m/data.pkl": b"\x80\x04N.", "m/extra/notes.txt": EVIL})
    yield Case("other member", "model.pt", other, code=hidden)
    yield Case("bad checksum", "model.pt", _bad_checksum(p.zipped({"m/data.pkl": EVIL})))
    yield Case("encrypted", "model.pt", _flag(p.zipped({"m/data.pkl": EVIL})), UNKNOWN)
    renamed = p.zipped({"a.pkl": EVIL}).replace(b"a.pkl", b"b.txt", 1)
    yield Case("two names", "model.zip", renamed, code="ST-SCAN-193")
    polyglot = b"\x89PNG\r\n\x1a\n" + bytes(64) + p.zipped({"m/data.pkl": EVIL})
    yield Case("picture and archive", "model.png", polyglot, code="ST-SCAN-193")
    header = json.dumps({"w": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    tensors = struct.pack("<Q", len(header)) + header + p.zipped({"m/data.pkl": EVIL})
    yield Case("safetensors and archive", "model.safetensors", tensors, code="ST-SCAN-193")
    yield Case("gzip", "model.pkl.gz", gzip.compress(EVIL), code=hidden)
    yield Case("bzip2", "model.pkl.bz2", bz2.compress(EVIL), code=hidden)
    yield Case("xz", "model.pkl.xz", lzma.compress(EVIL), code=hidden)
    yield Case("zlib", "model.joblib", zlib.compress(EVIL), code=hidden)
    yield Case("7z", "model.7z", b"7z\xbc\xaf\x27\x1c" + bytes(99), UNKNOWN)
    yield Case("tar", "model.tar", p.tarred({"w/model.bin": EVIL}), code=hidden)
    yield Case("nemo", "model.nemo", gzip.compress(p.tarred({"model_weights.ckpt": EVIL})))
    yield Case("numpy objects", "a.npy", p.numpy_objects(EVIL), code=hidden)
    yield Case("npz", "a.npz", p.zipped({"a.npy": p.numpy_objects(EVIL)}), code=hidden)
    yield Case("in an array", "model.joblib", _in_an_array(), UNKNOWN)
    array = b"\x80\x04(" + p.wrapped_array("O8", [1])
    yield Case("array of objects", "model.joblib", array + EVIL + b"l.", code=hidden)
    yield Case("memo of another reader", "model.joblib", _two_memos(), UNKNOWN)
    yield Case("unknown bytes", "weights.dat", bytes(range(1, 255)) * 9, UNKNOWN)


def _in_an_array() -> bytes:
    """Opcodes in what joblib takes for numbers and plain pickle does not."""
    inner = b"cos\nsystem\n(S'true'\ntR."
    return b"\x80\x04" + p.wrapped_array("u1", [len(inner)], aligned=False) + inner + b"."


def _two_memos() -> bytes:
    """An array of objects whose memo begins anew, or goes on, by who reads it."""
    inner = b"\x80\x04" + p.text("collections") + b"\x94" + p.text("OrderedDict") + b"\x94"
    inner += b"h\x00h\x01\x93)R."
    outer = b"\x80\x04(" + p.text("os") + b"\x94" + p.text("system") + b"\x94"
    return outer + p.wrapped_array("O8", [1]) + inner + b"l."


def _bad_checksum(data: bytes) -> bytes:
    at = data.index(b"PK\x01\x02") + 16
    return data[:at] + b"\1\2\3\4" + data[at + 4 :]


def _flag(data: bytes) -> bytes:
    at = data.index(b"PK\x01\x02") + 8
    return data[:at] + bytes([data[at] | 1]) + data[at + 1 :]


def values() -> Iterator[Case]:
    """Values that a loader calls."""
    called = "ST-SCAN-195"
    key = p.pickled({"_instantiator": "os.system"})
    yield Case("lightning instantiator", "epoch.ckpt", p.torch_zip(key), code=called)
    key = p.pickled({"a": "b", "_target_": "os.system"})
    yield Case("hydra target in a pickle", "hparams.pkl", key, code=called)
    spelled = b"\x80\x04}c_codecs\nencode\n" + p.text("_vafgnagvngbe") + p.text("rot13")
    yield Case("a key in rot13", "epoch.ckpt", spelled + b"\x86R" + p.text("os.system") + b"s.")
    spelled = b"\x80\x04}cbuiltins\nstr\ncbuiltins\nbytes\n](K_Kie\x85R" + p.text("ascii")
    yield Case("a key of bytes", "epoch.ckpt", spelled + b"\x86R" + p.text("os.system") + b"s.")
    for name, file, data in (
        ("hydra target", "config.yaml", "model:\n  _target_: subprocess.run\n  args: [id]\n"),
        ("hydra in json", "config.json", '{"a": [{"_target_": "os.system"}]}'),
        ("escaped key", "config.json", '{"_t\\u0061rget_": "os.system"}'),
        ("equal keys", "config.json", '{"auto_map": {"AutoModel": "m.M"}, "auto_map": {}}'),
        ("class path", "config.yaml", "class_path: os.system\ninit_args: {command: id}\n"),
        ("yaml tag", "config.yaml", "a: !!python/object/apply:os.system [id]\n"),
        ("jsonpickle", "state.json", '{"py/reduce": [{"py/function": "os.system"}]}'),
        ("auto_map", "config.json", '{"auto_map": {"AutoModel": "modeling_x.Model"}}'),
        ("custom pipelines", "config.json", '{"custom_pipelines": {"t": {"impl": "x.P"}}}'),
        ("trust remote code", "config.json", '{"trust_remote_code": true}'),
        ("modules.json", "modules.json", '[{"idx": 0, "path": "", "type": "evil.Module"}]'),
        ("model_index.json", "model_index.json", '{"unet": ["my_code", "Unet"]}'),
        ("mlflow", "MLmodel", "flavors:\n  python_function:\n    loader_module: evil\n"),
    ):
        yield Case(name, file, data.encode(), code=called)
    target = p.tarred({"model_config.yaml": b"_target_: builtins.exec\n"})
    yield Case("nemo target", "model.nemo", target, code=called)
    manifest = {"model": {"handler": "handler.py", "serializedFile": "m.pt"}}
    mar = {"MAR-INF/MANIFEST.json": json.dumps(manifest).encode(), "handler.py": b"print()\n"}
    yield Case("torchserve handler", "model.mar", p.zipped(mar), code="ST-SCAN-194")
    for loader, module, name in (
        ("OperatorFuncNode", "operator", "methodcaller"),
        ("ObjectNode", "subprocess", "Popen"),
        ("MethodNode", "os", "system"),
    ):
        node = {"__class__": name, "__module__": module, "__loader__": loader, "content": {}}
        schema = json.dumps(node | {"protocol": 2}).encode()
        yield Case(f"skops {loader}", "m.skops", p.zipped({"schema.json": schema}), code=called)


def keras() -> Iterator[Case]:
    """Keras, in its three containers."""
    function = {"class_name": "__lambda__", "config": {"code": "4wAA"}}
    layer = {"module": "keras.layers", "class_name": "Lambda", "config": {"function": function}}
    yield Case("keras lambda", "m.keras", p.zipped({"config.json": p.keras(layer)}))
    yield Case("keras lambda json", "model.json", p.keras(layer), code="ST-SCAN-194")
    yield Case("keras lambda h5", "m.h5", p.hdf5([p.keras(layer)]), code="ST-SCAN-194")
    spelled = p.keras(layer).replace(b"Lambda", b"L\\u0061mbda")
    yield Case("keras lambda spelled", "m.h5", p.hdf5([spelled]), code="ST-SCAN-194")
    yield Case("keras config hidden", "m.h5", p.hdf5([b"packed"]), UNKNOWN)
    cut = p.hdf5([p.keras(layer)])[:-40]
    yield Case("hdf5 cut short", "m.hdf5", cut, UNKNOWN)
    layer = {"module": "os", "class_name": "system", "config": {}}
    yield Case("keras module", "m.keras", p.zipped({"config.json": p.keras(layer)}))
    function = {"module": "keras.utils", "class_name": "function", "config": "get_file"}
    layer = {"module": "keras.layers", "class_name": "Dense", "config": {"activation": function}}
    yield Case("keras function", "m.keras", p.zipped({"config.json": p.keras(layer)}))
    layer = {"module": "keras.layers", "class_name": "TorchModuleWrapper", "config": {"m": "x"}}
    yield Case("keras torch", "m.keras", p.zipped({"config.json": p.keras(layer)}))
    config = {"vocabulary": "/etc/passwd"}
    layer = {"module": "keras.layers", "class_name": "StringLookup", "config": config}
    yield Case("keras vocabulary", "config.json", p.keras(layer), code="ST-SCAN-197")


TEMPLATES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ messages['__class__'] }}",
    "{{ messages|attr('__class__') }}",
    "{{ messages|attr('cla' ~ 'ss') }}",
    "{{ messages['\\x5f\\x5fclass\\x5f\\x5f'] }}",
    "{{ messages['_' ~ '_class_' ~ '_'] }}",
    "{% set k = '_' ~ '_class_' ~ '_' %}{{ messages[k] }}",
    "{%- for m in messages -%}{{- m.__init__ -}}{%- endfor -%}",
    "{{ {'a': {}}.items().__class__ }}",
    "{{ dict(__class__=1)|list }}",
    "{{ (messages|select).gi_frame.f_globals }}",
    "{{ '%c%cclass%c%c'|format(95, 95, 95, 95) }}",
    "{% include '/etc/passwd' %}",
)


def templates() -> Iterator[Case]:
    """Chat templates that leave their sandbox, or may."""
    for number, text in enumerate(TEMPLATES):
        sure = 3 if number in (6, 7, 13) else UNSAFE
        name, data = "chat_template.jinja", text.encode()
        if number % 3 == 1:
            name, data = "tokenizer_config.json", json.dumps({"chat_template": text}).encode()
        elif number % 3 == 2:
            name, data = "m.gguf", p.gguf({"tokenizer.chat_template": text})
        yield Case(f"template {number}", name, data, sure, "ST-SCAN-196" if sure == UNSAFE else "")
    named = [{"name": "default", "template": "x"}, {"name": "b", "template": TEMPLATES[0]}]
    data = json.dumps({"chat_template": named}).encode()
    yield Case("a list of templates", "tokenizer_config.json", data, code="ST-SCAN-196")
    lies = p.gguf({"general.name": "x"}, [("w", 1 << 40)])
    yield Case("gguf out of its file", "m.gguf", lies, code="ST-SCAN-192")


def graphs() -> Iterator[Case]:
    """ONNX and TorchScript."""
    for place in ("/etc/passwd", "../../secret", "a/../../b", "c:\\data"):
        data = p.onnx(tensors=[p.onnx_tensor(place)])
        yield Case(f"onnx data {place}", "m.onnx", data, code="ST-SCAN-197")
    yield Case("onnx python", "m.onnx", p.onnx(nodes=[p.onnx_node("PyOp", "ai.onnx.contrib")]))
    yield Case("onnx custom", "m.onnx", p.onnx(nodes=[p.onnx_node("Evil", "my.domain")]), UNKNOWN)
    inner = p.field(1, p.onnx_node("PythonOp", "com.microsoft"))
    yield Case("onnx in a branch", "m.onnx", p.onnx(nodes=[p.onnx_node("If", inside=inner)]))
    cut = p.onnx(tensors=[p.onnx_tensor("/etc/passwd")])[:40]
    yield Case("onnx cut short", "m.onnx", cut)
    renamed = p.onnx(tensors=[p.onnx_tensor("/etc/passwd")])
    yield Case("onnx by another name", "model.bin", renamed, code="ST-SCAN-197")
    for name, body in (
        ("saves", "torch.save(x, '/root/.bashrc')"),
        ("maps a file", "x = torch . from_file('/etc/passwd', True, 9)"),
        ("renames", "t = torch\n    t.save(x, '/root/.bashrc')"),
        ("calls aten", "x = ops.aten.from_file('/etc/passwd', True, 9)"),
    ):
        yield Case(f"torchscript {name}", "m.pt", p.script(body), code="ST-SCAN-194")
    yield Case("torchscript custom", "m.pt", p.script("x = ops.mine.go(x)"), UNKNOWN)


def programs() -> Iterator[Case]:
    """Programs and notebooks."""
    yield Case("elf", "libop.so", b"\x7fELF" + bytes(99))
    yield Case("windows", "op.dll", b"MZ\x90\0" + bytes(99))
    yield Case("source", "modeling_x.py", b"import os\nos.system('true')\n", UNKNOWN)
    yield Case("script", "run", b"#!/bin/sh\ntrue\n", UNKNOWN)
    cell = {"cell_type": "code", "source": ["!true"], "outputs": []}
    yield Case("notebook", "a.ipynb", json.dumps({"cells": [cell]}).encode(), UNKNOWN)
    shown = {"data": {"text/html": ["<script>", "1</script>"]}}
    other = {"cell_type": "code", "source": [], "outputs": [shown]}
    yield Case("notebook script", "a.ipynb", json.dumps({"cells": [other]}).encode())


def cases() -> list[Case]:
    """All of them."""
    return [
        *calls(),
        *pickles(),
        *values(),
        *keras(),
        *templates(),
        *graphs(),
        *programs(),
    ]
