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
    yield Case("extension code in data", "notes.dat", b"\x82\x01)R.", code="ST-SCAN-191")
    grown = p.hdf5([], name=b"other_name__") + b"more"
    moved = p.hdf5([], name=b"other_name__")
    moved = moved[:24] + b"\x08" + moved[25:]
    yield Case("hdf5 that begins elsewhere", "m.h5", moved, UNKNOWN)
    yield Case("hdf5 that goes on", "m.h5", grown, UNKNOWN)
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
        ("trust remote code by a number", "config.json", '{"trust_remote_code": 1}'),
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
    for latest, before in ((False, b" "), (True, b"")):
        trained = p.hdf5([before + p.keras(layer)], name=b"training_config", latest=latest)
        yield Case(f"keras lambda in {len(trained)} bytes", "m.h5", trained, code="ST-SCAN-194")
    yield Case("keras config hidden", "m.h5", p.hdf5([b"packed"]), UNKNOWN)
    yield from _misplaced()
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
    "{{ messages._hidden }}",
    "{{ messages['gi_frame'] }}",
)


def _misplaced() -> Iterator[Case]:
    """HDF5 in which the text of a configuration is not where an attribute has it, by one change."""
    whole = p.hdf5([b"{}"])
    attribute, heap = whole.index(b"\1\0\x0d\0"), whole.index(b"GCOL")
    size = struct.pack("<Q", heap - 4)
    newer = bytes((4, 8, 8, 0)) + struct.pack("<QQQ", 0, 0, len(whole))
    for name, at, data in (
        ("of a newer version", 8, newer), ("of other sizes", 13, b"\4"),
        ("in an attribute of version 2", attribute, b"\2"),
        ("of another name", attribute + 2, b"\x0e"), ("inline", attribute + 24, b"\x13"),
        ("not there", heap - 4, b"\x09"), ("not in a heap", heap, b"X"),
        ("as free space of no bytes", heap + 16, bytes(16)),
        ("that ends behind its heap", heap + 24, b"\x42"),
    ):  # fmt: skip
        changed = whole[:at] + data + whole[at + len(data) :]
        yield Case(f"keras config {name}", "m.h5", changed, UNKNOWN)
    cut = whole[:40] + size + whole[48 : heap - 4]
    yield Case("keras config without a place", "m.h5", cut, UNKNOWN)
    filtered = p.hdf5([b"FRHP\0\0\0\1\0"], name=b"other_name__")
    yield Case("hdf5 with filters", "m.h5", filtered, UNKNOWN)


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
    other = p.gguf({"general.name": "x"}).replace(struct.pack("<I", 8), struct.pack("<I", 13))
    yield Case("gguf of an unknown kind", "m.gguf", other, code="ST-SCAN-192")
    yield Case("gguf of version 4", "m.gguf", b"GGUF\x04" + p.gguf({})[5:], UNKNOWN)
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
    for key, value in (("__class__", "x"), ("offset", "-1"), ("length", "0x8"), ("basepath", "/")):
        data = p.onnx(tensors=[p.onnx_tensor("w.data") + p.onnx_entry(key, value)])
        yield Case(f"onnx data with {key}", "m.onnx", data, UNKNOWN)
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


W = '"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
HEADERS = (
    ("duplicate key", "{" + W + "," + W + "}", 4),
    ("overlap", "{" + W + "," + W.replace("w", "v").replace("0,4", "2,6") + "}", 6),
    ("hole", "{" + W + "," + W.replace("w", "v").replace("0,4", "6,10") + "}", 10),
    ("trailing bytes", "{" + W + "}", 9),
    ("wrong shape", "{" + W.replace("[4]", "[5]") + "}", 4),
    ("negative shape", "{" + W.replace("[4]", "[-2,-2]") + "}", 4),
    ("length of 2^63", "{" + W.replace("[4]", "[9223372036854775808]") + "}", 4),
    ("unknown type", "{" + W.replace("U8", "X8") + "}", 4),
    ("no object", "[]" + " " * 8, 0),
)


def invited() -> Iterator[Case]:
    """Files that two loaders read, or that say more than is there."""
    broken = "ST-SCAN-192"
    both = p.polyglot(b"cos\nsystem\n(S'true'\ntR.")
    for suffix in (".pt", ".bin", ".pkl", ".ckpt", ".joblib", ".pth"):
        yield Case(f"safetensors as {suffix}", f"model{suffix}", both, code="ST-SCAN-190")
    for name, header, size in HEADERS:
        yield Case(f"safetensors with {name}", "m.safetensors", p.safetensors(header, bytes(size)))
    long = struct.pack("<Q", 1 << 63) + b"{}"
    yield Case("safetensors of 2^63 bytes", "m.safetensors", long, code=broken)
    yield Case("storage too short", "m.pt", p.torch_zip(p.tensor(1_000_000)), code=broken)
    yield Case("storage of 2^62", "m.pt", p.torch_zip(p.tensor(1 << 62)), code=broken)
    past = p.tensor(2, shape="K\x02K\x7f\x86", strides="K\x01K\x01\x86")
    yield Case("tensor past its storage", "m.pt", p.torch_zip(past), code=broken)
    below = p.tensor(2, strides="J\xff\xff\xff\xff\x85")
    yield Case("tensor before its storage", "m.pt", p.torch_zip(below), code=broken)
    yield Case("storage of the old format", "m.pt", p.tensor(1_000_000), code=broken)
    for place in ("../../x", "/x", "a/../../x", "..\\x", "c:x"):
        yield Case(f"tar member {place}", "m.tar", p.tarred({place: b"x"}), code="ST-SCAN-197")
        yield Case(f"zip member {place}", "m.zip", p.zipped({place: b"x"}), code="ST-SCAN-197")
    gguf = p.gguf({"general.name": "x"}) + TEMPLATES[1].encode()
    yield Case("gguf as a template", "chat.jinja", gguf, code="ST-SCAN-196")
    target = gguf[:4] + b": 1\n_target_: os.system\n"
    yield Case("gguf as a configuration", "a.yaml", target, code="ST-SCAN-195")
    whole = p.zipped({"notes": bytes(10)})
    at = whole.index(b"PK\x01\x02") + 20
    long = whole[:at] + b"\xff\xff\xff\x7f" * 2 + whole[at + 8 :]
    yield Case("member longer than its archive", "m.zip", long, code=broken)
    twins = p.zipped({"a.npy": b"", "b.npy": b""}).replace(b"b.npy", b"a.npy")
    yield Case("two members of one name", "m.zip", twins, code=broken)
    yield Case("empty zip", "m.zip", p.zipped({}), UNKNOWN)
    yield Case("empty zip as pt", "m.pt", p.zipped({}), UNKNOWN)
    spelled = p.numpy_objects(EVIL).replace(b"'|O', ", b"'\\x4f', ").replace(b"} ", b"}", 1)
    spelled = spelled.replace(b"}  ", b"} ", 1)
    yield Case("numpy objects spelled", "a.npy", spelled, code="ST-SCAN-190")
    long = p.numpy_objects(b"").replace(b"'|O'", b"'u1'").replace(b"(1,)", b"(9,)")
    yield Case("numpy array too long", "a.npy", long, code=broken)
    old = {"pickle": b"\x80\x02N.", "storages": b"\x80\x02K\0.", "tensors": b"\x80\x02K\0."}
    yield Case("tar of the first torch", "m.tar", p.tarred(old), UNKNOWN, "ST-SCAN-031")
    tarred = p.tar_polyglot(b"cos\nsystem\n(S'true'\ntR.")
    yield Case("tar and pickle", "m.pt", tarred, code="ST-SCAN-190")
    other = {"m/data.pkl": b"\x80\x04N.", "m/readme": b"hello"}
    yield Case("a member that nobody writes", "m.pt", p.zipped(other), UNKNOWN, "ST-SCAN-032")
    members = {"m/data.pkl": b"\x80\x04N.", "m/data/0": bytes(77_777)}
    deflated = p.zipped(members, zipfile.ZIP_DEFLATED)
    deflated = deflated.replace(struct.pack("<L", 77_777), struct.pack("<L", (1 << 32) - 16))
    yield Case("a storage that is a bomb", "m.pt", deflated, UNKNOWN)


def counted() -> Iterator[Case]:
    """Pickles that make more than they hold, and a size that nobody can tell."""
    many = b"\x80\x04cbuiltins\nlist\ncbuiltins\nrange\n\x8a\x05\0\0\0\x80\0\x85R\x85R."
    yield Case("a list of 2^31", "m.pkl", many, UNKNOWN)
    many = b"\x80\x04]cbuiltins\nrange\nJ\0\0\0\x01\x85Racbuiltins\nrange\nK\x01\x85R."
    yield Case("a range of 2^24 and more", "m.pkl", many, UNKNOWN)
    for called in (b"builtins\nrange\nVa\nR", b"numpy._core.multiarray\n_reconstruct\nN\x85R"):
        name = f"a size not told to {called.split()[1].decode()}"
        yield Case(name, "m.pkl", b"\x80\x04c" + called + b".", UNKNOWN)
    held = b"\x80\x04\x8a\x05\0\0\0\x80\0\x940cbuiltins\nbytearray\nh\0\x85R."
    yield Case("bytes of a number that is remembered", "m.pkl", held, UNKNOWN)
    made = b"\x80\x04(cnumpy\nndarray\n(J\xff\xff\xff\x7ftX\x02\0\0\0u1o."
    yield Case("an array by another opcode", "m.pkl", made, UNKNOWN)
    yield Case(
        "a storage by its length",
        "m.pkl",
        b"\x80\x02ctorch\nFloatStorage\nJ\xff\xff\xff\x7f\x85R.",
        UNKNOWN,
    )


EXPRESSIONS = (
    "__import__('os').system('true')", "os.system('true')", "eval('1')", "(lambda: 1)()",
    "[x for x in y]", "s0.__class__", "Symbol('__import__')", "9**9**9**9", "Pow(9, Pow(9, 99999))",
    "Add('os.system', 1)", "Integer(1, *s0)", "Symbol('a', **s0)", "s0 if s1 else s2", "f'{s0}'",
    "Pow(Pow(Pow(s0, 64), 64), 64)",
    "Max(s0)(1)", "s0[0]", "(s0 := 1)", "1" + "+1" * 9000, "(" * 3000, "1j", "Float(b'1')",
)  # fmt: skip


def exports() -> Iterator[Case]:
    """Graphs of torch.export whose texts Python would run."""
    called = "ST-SCAN-195"
    for number, text in enumerate(EXPRESSIONS):
        yield Case(f"expression {number}", "m.pt2", p.exported(text), code=called)
    for key, value in (
        ("target", "torch.hub.load"),
        ("target", "os.system"),
        ("target", "torch.ops.aten.from_file.default"),
        ("name", "x=__import__('os').system('true')"),
        ("guards_code", ["__import__('os').system('true')"]),
        ("guards_code", ["L['x'].storage().tofile('x')"]),
        ("guards_code", ["L['x\"); import os #'].size()[0] == 1"]),
    ):
        data = p.exported(**{key: value})
        yield Case(f"export {key} {value}"[:60], "m.pt2", data, code=called)
    for name, tree in (
        ("imports", '[1, {"type": "builtins.dict", "context": "[{\\"__enum__\\": 1}]"}]'),
        ("factory", '[1, {"default_factory_module": "os"}]'),
        ("type", '[1, {"type": "os.system", "context": null, "children_spec": []}]'),
    ):
        yield Case(f"export of a tree: {name}", "m.pt2", p.exported(in_spec=tree), UNKNOWN)
    members = p.unzipped(p.exported("os.system('true')"))
    upper = p.zipped({name.upper(): data for name, data in members.items()})
    yield Case("export in capitals", "m.pt2", upper, code=called)
    twice = p.zipped(members | {"m/MODELS/model.json": b"{}"})
    yield Case("export with two graphs of one name", "m.pt2", twice, code="ST-SCAN-192")
    mobile = p.unzipped(p.script("x = x")) | {"m/bytecode.pkl": b"\x80\x02N."}
    yield Case("mobile bytecode", "m.ptl", p.zipped(mobile), UNKNOWN, "ST-SCAN-032")
    yield Case("export of another library", "m.pt2", p.exported(target="torch.ops.my.go"), UNKNOWN)
    for number, said in enumerate((True, 1, 1.0, "yes", None)):
        data = p.exported(use_pickle=said)
        yield Case(f"export with a pickle {number}", "m.pt2", data, UNKNOWN)
    yield Case("export with an unknown text", "m.pt2", p.exported(code="import os"), UNKNOWN)


def texts() -> Iterator[Case]:
    """Texts of configurations that name code, or are it."""
    for name, file, data, code in (
        ("nemo class", "a.yaml", "model:\n  target: os.system\n", "ST-SCAN-195"),
        (
            "peft library",
            "adapter_config.json",
            '{"auto_mapping": {"parent_library": "evil"}}',
            "ST-SCAN-195",
        ),
        ("peft core", "adapter_config.json", '{"megatron_core": "evil"}', "ST-SCAN-195"),
        ("mds pickles", "index.json", '{"shards": [{"column_encodings": ["pkl"]}]}', "ST-SCAN-195"),
        ("mds encoding", "index.json", '{"shards": [{"column_encodings": ["mine"]}]}', ""),
        (
            "mds place",
            "index.json",
            '{"shards": [{"raw_data": {"basename": "../x"}}]}',
            "ST-SCAN-197",
        ),
        (
            "weights elsewhere",
            "model.safetensors.index.json",
            '{"weight_map": {"w": "/etc/x"}}',
            "ST-SCAN-197",
        ),
        ("spacy", "config.cfg", '[nlp]\ntokenizer = {"@tokenizers": "os.system"}\n', "ST-SCAN-195"),
        ("spacy section", "config.cfg", "[nlp.tokenizer]\n@tokenizers = evil\n", "ST-SCAN-195"),
        ("ini twice", "config.cfg", "[a]\nb = 1\nb = 2\n", ""),
        ("no json", "config.json", '{"a": ', ""),
        ("a call", "config.json", "{\"activation\": \"__import__('os').system('true')\"}", ""),
        ("a dotted call", "config.json", '{"activation": "nn.SiLU()"}', ""),
        ("a program", "config.yaml", 'a: "import os; os.system(1)"\n', ""),
        ("a lambda", "config.yaml", 'a: "lambda: 1"\n', ""),
        ("a name of Python's", "config.json", '{"layers": ["x", "os.system"]}', ""),
        ("yaml alias", "a.yaml", "a: &x evil.Module\nb:\n  _target_: *x\n", "ST-SCAN-195"),
        ("yaml alias of an object", "a.yaml", "x: &x {A: m.M}\nauto_map: *x\n", "ST-SCAN-195"),
        ("another template", "a.json", '{"prompt_template": "{{ m.__class__ }}"}', "ST-SCAN-196"),
        ("gin", "config.gin", "import os\n", ""),
        ("a resolver", "config.yaml", 'a: "${eval:1}"\n', ""),
        ("a class under a key of nobody's", "config.json", '{"layer_cls": "evil.Module"}', ""),
        ("a class in a list", "config.json", '{"layers": ["evil.Module"]}', ""),
        (
            "a class of a dense layer",
            "config.json",
            '{"activation_function": "evil.M"}',
            "ST-SCAN-195",
        ),
        ("a kernel of the hub", "config.json", '{"attn_implementation": "a/b"}', ""),
        ("a file of nobody's", "settings.json", '{"id2label": {"0": "a b"}}', ""),
        ("a place under a key of nobody's", "config.json", '{"extra": "/etc/passwd"}', ""),
        ("a key that is code", "config.json", """{"__import__('os')": 1}""", ""),
        ("a tag of nobody's", "config.yaml", "a: !include x\n", ""),
        ("a tag on a list", "config.yaml", "a: !run [x]\n", ""),
        (
            "an alias of what is free elsewhere",
            "model_config.yaml",
            "labels: &x [evil.Module]\nclasses: *x\n",
            "",
        ),
        (
            "a target in what is free",
            "config.json",
            '{"prompts": {"_target_": "evil.M"}}',
            "ST-SCAN-195",
        ),
        ("mlflow code", "MLmodel", "flavors:\n  python_function:\n    code: code\n", "ST-SCAN-195"),
        (
            "a dependency from elsewhere",
            "conda.yaml",
            "dependencies: [pip: [git+https://x/y]]\n",
            "",
        ),
        (
            "keras by another name",
            "net.json",
            '{"class_name": "Functional", "config": {"module": "evil.x"}}',
            "",
        ),
    ):
        yield Case(name, file, data.encode(), UNSAFE if code else UNKNOWN, code)


COSTS = (
    "{% for a in range(99999) %}" * 3 + "x" + "{% endfor %}" * 3,
    "{% set r = range(100000) %}{% for a in r %}{% for b in r %}x{% endfor %}{% endfor %}",
    "{% for a in m %}" * 5 + "x" + "{% endfor %}" * 5,
    "{{ range(10**15)|list }}",
    "{{ 'x' * 1000000000 }}",
    "{{ 'x' * 10000 * 10000 }}",
    "{{ '%999999d' % 1 }}",
    "{{ lipsum(n=9) }}",
    "{% for m in messages %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
)


def costs() -> Iterator[Case]:
    """Templates that cost more than what they are given does."""
    for number, text in enumerate(COSTS):
        yield Case(f"cost {number}", "chat_template.jinja", text.encode(), UNKNOWN)


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
        *invited(),
        *counted(),
        *exports(),
        *texts(),
        *costs(),
    ]
