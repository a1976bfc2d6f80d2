# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The formats of the crafted files, written by hand: no library that would refuse to."""

import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any


def text(value: str) -> bytes:
    """A text as a pickle of protocol 4 spells it."""
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


def call(name: str, argument: str = "true") -> bytes:
    """A pickle that calls a global with a text."""
    module, _, attribute = name.rpartition(".")
    return b"\x80\x04" + text(module) + text(attribute) + b"\x93" + text(argument) + b"\x85R."


def pickled(pairs: Mapping[str, str]) -> bytes:
    """A dictionary of texts as a pickle."""
    return b"\x80\x04}(" + b"".join(text(key) + text(value) for key, value in pairs.items()) + b"u."


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def tarred(members: Mapping[str, bytes]) -> bytes:
    """A tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def unzipped(data: bytes) -> dict[str, bytes]:
    """The members of a zip archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def tar_polyglot(pickle: bytes) -> bytes:
    """A sound tar archive that is a pickle as well: its first member is called like one."""
    data = tarred({"a": b"x"})
    head = pickle + data[len(pickle) : 148] + b" " * 8 + data[156:512]
    return head[:148] + b"%06o\0 " % sum(head) + head[156:] + data[512:]


def torch_zip(pickle: bytes) -> bytes:
    """What torch.save writes, around a pickle."""
    members = {"m/data.pkl": pickle, "m/byteorder": b"little", "m/data/0": bytes(8)}
    return zipped(members | {"m/version": b"3\n"})


def tensor(elements: int, shape: str = "K\x02\x85", strides: str = "K\x01\x85") -> bytes:
    """The pickle of a tensor over storage 0 of so many floats; shape and strides as opcodes."""
    data = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n"
    data += b"X\x01\0\0\x000X\x03\0\0\0cpu\x8a\x08" + struct.pack("<q", elements) + b"tQK\0"
    return data + (shape + strides).encode("latin-1") + b"\x89ccollections\nOrderedDict\n)RtR."


def safetensors(header: str, body: bytes = b"") -> bytes:
    """A file of safetensors with a header as it is written here."""
    return struct.pack("<Q", len(header)) + header.encode() + body


def polyglot(pickle: bytes) -> bytes:
    """A sound safetensors file that is a pickle as well.

    Its length begins with the opcode of a text that ends with its line, where the tensors begin.
    """
    body = b"\n0" + pickle
    entry = f'{{"w":{{"dtype":"U8","shape":[{len(body)}],"data_offsets":[0,{len(body)}]}}}}'
    return safetensors(entry.ljust(ord("V") + 256), body)


def exported(expression: str = "", /, **changed: Any) -> bytes:
    """What torch.export.save writes, with a graph of one operator."""
    node: dict[str, Any] = {
        "target": "torch.ops.aten.relu.default",
        "inputs": [],
        "outputs": [],
        "metadata": {},
    }
    size = {"as_expr": {"expr_str": expression or "Symbol('s0', positive=True, integer=True)"}}
    graph = {"nodes": [node | changed], "tensor_values": {"x": {"sizes": [size]}}}
    config = {"config": {"w": {"path_name": "weight_0", "use_pickle": False}}}
    members: dict[str, Any] = {"models/model.json": {"graph_module": {"graph": graph}}}
    members |= {"data/weights/model_weights_config.json": config}
    data = {f"m/{name}": json.dumps(said).encode() for name, said in members.items()}
    data |= {"m/data/weights/weight_0": bytes(8), "m/archive_format": b"pt2"}
    return zipped(data | {"m/archive_version": b"0", "m/.data/version": b"6\n"})


def torchscript(source: str) -> bytes:
    """A TorchScript archive around a program."""
    data = b"\x80\x02c__torch__\nM\nq\x00)\x81}b."
    members = {"m/data.pkl": data, "m/code/__torch__.py": source.encode()}
    return zipped(members | {"m/constants.pkl": b"\x80\x02).", "m/version": b"3\n"})


def script(body: str) -> bytes:
    """A TorchScript module whose forward has a body."""
    return torchscript(
        "class M(Module):\n  __parameters__ = []\n  __buffers__ = []\n"
        f"  def forward(self: __torch__.M,\n    x: Tensor) -> Tensor:\n    {body}\n    return x\n"
    )


def numpy_objects(pickle: bytes) -> bytes:
    """An array of objects in numpy's format."""
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header += b" " * (118 - len(header) - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + pickle


def wrapped_array(code: str, shape: Sequence[int], *, aligned: bool = True) -> bytes:
    """The opcodes of joblib up to where an array's bytes are."""
    sizes = b"".join(b"K" + bytes([size]) for size in shape)
    state = text("shape") + b"(" + sizes + b"t" + text("order") + text("C")
    state += text("dtype") + text("numpy") + text("dtype") + b"\x93" + text(code) + b"\x89\x88\x87R"
    if aligned:
        state += text("numpy_array_alignment_bytes") + b"K\x10"
    wrapper = text("joblib.numpy_pickle") + text("NumpyArrayWrapper") + b"\x93)\x81"
    return wrapper + b"}(" + state + b"ub"


def gguf(entries: Mapping[str, str], tensors: Sequence[tuple[str, int]] = ()) -> bytes:
    """A GGUF file with texts as metadata, and tensors at places."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    for key, value in entries.items():
        for kind, piece in ((None, key), (8, value)):
            data = piece.encode()
            out += b"" if kind is None else struct.pack("<I", kind)
            out += struct.pack("<Q", len(data)) + data
    for name, offset in tensors:
        out += struct.pack("<Q", len(name)) + name.encode()
        out += struct.pack("<IQIQ", 1, 4, 0, offset)
    return out + bytes(64)


def field(number: int, data: bytes) -> bytes:
    """A field of Protocol Buffers that has a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """A number of Protocol Buffers."""
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def onnx_node(operator: str, domain: str = "", inside: bytes = b"") -> bytes:
    """A node; `inside` is a graph that it holds."""
    node = field(1, b"x") + field(2, b"y") + field(4, operator.encode())
    node += field(7, domain.encode()) if domain else b""
    return node + (field(5, field(1, b"body") + field(6, inside)) if inside else b"")


def onnx_tensor(location: str) -> bytes:
    """A tensor whose data lies elsewhere."""
    return field(8, b"w") + onnx_entry("location", location) + b"\x70\x01"


def onnx_entry(key: str, value: str) -> bytes:
    """What a tensor says of where its data lies."""
    return field(13, field(1, key.encode()) + field(2, value.encode()))


def onnx(*, nodes: Sequence[bytes] = (), tensors: Sequence[bytes] = ()) -> bytes:
    """A model of one graph."""
    graph = b"".join(field(1, node) for node in nodes) + field(2, b"g")
    graph += b"".join(field(5, tensor) for tensor in tensors)
    return b"\x08\x0a" + field(2, b"maker") + field(7, graph) + field(8, b"\x10\x15")


def hdf5(
    attributes: Sequence[bytes], *, name: bytes = b"model_config", latest: bool = False
) -> bytes:
    """The parts of an HDF5 file that hold attributes of one name, their texts in a global heap."""
    unit, version, charset = (1, 3, b"\0") if latest else (8, 1, b"")
    space = b"\2\0\0\0" if latest else b"\1" + bytes(7)
    text = bytes.fromhex("19010000100000001000000001000000 00000800")
    parts = (name + b"\0", text, space)
    head = bytes((version, 0)) + struct.pack("<HHH", *map(len, parts)) + charset
    head += b"".join(part + bytes(-len(part) % unit) for part in parts)
    at = 96 + len(attributes) * (len(head) + 16)
    body = heap = b""
    for number, data in enumerate(attributes, 1):
        body += head + struct.pack("<IQI", len(data), at, number)
        heap += struct.pack("<HHIQ", number, 1, 0, len(data)) + data + bytes(-len(data) % 8)
    body += b"GCOL\x01\0\0\0" + struct.pack("<Q", len(heap) + 16) + heap + bytes(16)
    size = 96 + len(body)
    head = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0, 4, 0, 16, 0]) + bytes(4)
    head += struct.pack("<QQQQ", 0, 2**64 - 1, size, 2**64 - 1)
    return head.ljust(96, b"\0") + body


def keras(layer: Mapping[str, Any]) -> bytes:
    """The configuration of a Keras model with one layer."""
    config = {"name": "m", "layers": [layer], "input_layers": [], "output_layers": []}
    model = {"module": "keras.src.models.functional", "class_name": "Functional", "config": config}
    return json.dumps(model | {"registered_name": "Functional"}).encode()
