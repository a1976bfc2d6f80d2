# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""ONNX: the operators that a model calls and the files that it has read, without protobuf.

The wire format is walked with bounds. Rules, in order:

1. data of tensors in other files lies beside the model: a relative name, no ``..``;
2. an operator that calls back into Python is a program; one of a domain that neither ONNX nor ONNX
   Runtime defines is code that lies elsewhere, and cannot be judged, unless the model itself
   defines it as a function.

Sources: onnx/onnx.proto (ModelProto, GraphProto, NodeProto, TensorProto); protobuf.dev/encoding.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from securetrain.artifacts.scan.findings import OUTSIDE, PROGRAM
from securetrain.artifacts.scan.remarks import DATA, BrokenError, Cursor, Remark, UnjudgedError
from securetrain.artifacts.scan.window import Window
from securetrain.core.files import unsafe_name

MAX_FIELDS: Final = 20_000_000
MAX_DEPTH: Final = 64
TEXT_LIMIT: Final = 64 << 10

DOMAINS: Final = frozenset(
    {
        "", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training",
        "ai.onnx.training", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc",
        "com.microsoft.experimental", "pkg.onnxscript.torch_lib", "pkg.onnxscript.torch_lib.common",
    }
)  # fmt: skip
_CALLS_PYTHON: Final = frozenset({"PyOp", "PyCustomOp", "PythonOp", "PythonOpGrad", "ATen"})

_MESSAGES: Final[dict[str, dict[int, str]]] = {
    "model": {7: "graph", 25: "function", 20: "training"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "training": {1: "graph", 2: "graph"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {},
}
"""The messages inside each message, by field."""
_TEXTS: Final[dict[str, dict[int, str]]] = {
    "node": {4: "op", 7: "domain"},
    "function": {1: "op", 10: "domain"},
    "entry": {1: "key", 2: "value"},
}


@dataclass(slots=True)
class _Message:
    kind: str
    end: int
    at: int
    texts: dict[str, str] = field(default_factory=dict)


def judge(window: Window) -> Iterator[Remark]:
    """The remarks about an ONNX model.

    Raises:
        BrokenError: it is malformed.
        UnjudgedError: rule 2, or it is too deep or too large.
    """
    custom: dict[tuple[str, str], int] = {}
    defined: set[tuple[str, str]] = set()
    graphs = 0
    for message in _messages(window):
        operator = (message.texts.get("domain", ""), message.texts.get("op", ""))
        graphs += message.kind == "graph"
        match message.kind:
            case "entry" if message.texts.get("key") == "location":
                name = message.texts.get("value", "")
                if reason := _leaves(name):
                    what = f"data of a tensor lies in {name[:200]!r}: {reason}"
                    yield Remark(OUTSIDE, what, message.at)
                else:
                    yield Remark(DATA, name.removeprefix("./"))
            case "node":
                if operator[1] in _CALLS_PYTHON:
                    what = f"the operator {operator[1]} calls Python"
                    yield Remark(PROGRAM, what, message.at)
                elif operator[0] not in DOMAINS:
                    custom.setdefault(operator, message.at)
            case "function":
                defined.add(operator)
    if not graphs:
        raise BrokenError("no graph")
    if missing := [one for one in custom if one not in defined]:
        domain, name = missing[0]
        raise UnjudgedError(f"the operator {domain}.{name} is code that lies elsewhere")


def _leaves(name: str) -> str:
    """Explain why a place is not beside the model; empty when it is."""
    if name.startswith("/"):
        return "an absolute path"
    return next(filter(None, map(unsafe_name, name.removeprefix("./").split("/"))), "")


def _messages(window: Window) -> Iterator[_Message]:
    """Every message that counts, as it ends."""
    cursor = Cursor(window)
    stack = [_Message("model", window.size, 0)]
    fields = 0
    while stack:
        message = stack[-1]
        if cursor.at == message.end:
            yield stack.pop()
            continue
        fields += 1
        if fields > MAX_FIELDS:
            raise UnjudgedError(f"more than {MAX_FIELDS} fields")
        at = cursor.at
        number, wire = divmod(cursor.varint(), 8)
        if wire == 2:
            length = cursor.varint()
            if cursor.at + length > message.end or number == 0:
                raise BrokenError(f"a field of {length} bytes at {at}")
            if inner := _MESSAGES[message.kind].get(number):
                if len(stack) > MAX_DEPTH:
                    raise UnjudgedError(f"graphs in graphs, more than {MAX_DEPTH} deep")
                stack.append(_Message(inner, cursor.at + length, at))
            elif name := _TEXTS.get(message.kind, {}).get(number):
                text = cursor.take(length, TEXT_LIMIT)
                message.texts[name] = text.decode("utf-8", "backslashreplace")
            else:
                cursor.skip(length)
        else:
            _skip(cursor, wire, at)
        if cursor.at > message.end:
            raise BrokenError(f"a field at {at} reaches over its message's end")


def _skip(cursor: Cursor, wire: int, at: int) -> None:
    match wire:
        case 0:
            cursor.varint()
        case 1:
            cursor.skip(8)
        case 5:
            cursor.skip(4)
        case _:
            raise BrokenError(f"a field of wire type {wire} at {at}")
