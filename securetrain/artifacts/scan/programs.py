# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Programs and graphs that come with tensors: TorchScript, torch.export and ONNX.

Nothing is evaluated. TorchScript computes with tensors and reaches nothing else but by its
operators; it is cut into tokens as Python's own tokenizer does. Rules, in order:

1. ``torch.save`` and ``torch.from_file`` write and read files: they are what a program must not do;
2. ``torch`` and ``ops`` are only followed by a name, so that nothing hides behind another name;
3. operators and classes of other libraries are code that lies elsewhere, and cannot be judged.

torch.export reads its graph as JSON, and gives many of the texts in it to Python: expressions to
``sympify`` and guards to ``exec``, which run them, names to a program that it writes, types of its
trees to ``import``. So each text is held to the grammar of its key (`_GRAMMAR`), which is closed:

4. an expression or guard is arithmetic (`is_arithmetic`): known nodes, known functions, and small
   powers; anything else would be run;
5. a name is an identifier; an operator is one of rule 3;
6. a tree names no type but Python's containers, and its keys are known;
7. what is pickled (``use_pickle``), and a text under an unknown key, cannot be judged.

Of ONNX the wire format is walked with bounds, without protobuf:

8. data of tensors in other files lies beside the model: a relative name, no ``..``, a place in it
   and a checksum; other keys, which ``onnx`` sets as attributes, cannot be judged;
9. an operator that calls back into Python is a program; one of a domain that neither ONNX nor ONNX
   Runtime defines is code that lies elsewhere, and cannot be judged, unless the model itself
   defines it as a function.

Sources: torch/csrc/jit/serialization/python_print.cpp, torch/csrc/jit/frontend/lexer.h;
torch/_export/serde/schema.py and serialize.py, torch/export/_unlift.py, torch/utils/_pytree.py;
onnx/onnx.proto (ModelProto, GraphProto, NodeProto, TensorProto); protobuf.dev/encoding.
"""

import ast
import io
import re
import token
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from securetrain.artifacts.scan import configurations
from securetrain.artifacts.scan.findings import (
    CALLED,
    DATA,
    OUTSIDE,
    PROGRAM,
    UNJUDGED,
    BrokenError,
    Remark,
    UnjudgedError,
    leaves,
)
from securetrain.artifacts.scan.formats import Cursor, Window, whole

LIMIT: Final = 16 << 20
FILES: Final = frozenset({"save", "from_file", "_save", "_from_file", "load", "_load"})
SPACES: Final = frozenset(
    {"aten", "prim", "prims", "quantized", "_quantized", "quantized_decomposed", "sparse",
     "mkldnn", "mkldnn_prepacked", "prepacked", "xnnpack", "torchvision", "torchaudio", "profiler",
     "onednn", "static_runtime", "cuda", "inductor", "higher_order"}
)  # fmt: skip
CLASSES: Final = frozenset({"quantized", "sparse", "xnnpack", "rnn", "mkldnn"})
_NAMES: Final = frozenset({"torch", "ops"})

MAX_TEXT: Final = 8192
MAX_POWER: Final = 64
_SYMPY: Final = frozenset(
    {
        "Abs", "Add", "And", "CeilDiv", "CeilToInt", "CleanDiv", "Equality", "Eq", "Float",
        "FloatTrueDiv", "FloorDiv", "FloorToInt", "Ge", "GreaterThan", "Gt", "Identity",
        "IntTrueDiv", "Integer", "IsNonOverlappingAndDenseIndicator", "Le", "LessThan", "Lt",
        "Max", "Min", "Mod", "ModularIndexing", "Mul", "Ne", "Not", "Or", "PythonMod", "Rational",
        "RoundDecimal", "RoundToInt", "StrictGreaterThan", "StrictLessThan", "Symbol", "ToFloat",
        "TruncToFloat", "TruncToInt", "Unequality", "Where", "ceiling", "floor",
    }
)  # fmt: skip
_POWERS: Final = frozenset({"FloatPow", "LShift", "Pow", "PowByNatural", "RShift"})
_ASSUMED: Final = frozenset({"integer", "positive", "nonnegative", "real", "precision", "evaluate"})
_ARITHMETIC: Final = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Load, ast.Add, ast.Sub,
    ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.USub, ast.UAdd, ast.Not, ast.And, ast.Or,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)  # fmt: skip
_OF_TENSORS: Final = frozenset({"size", "stride", "storage_offset", "shape", "dim", "ndim"})
_WORD: Final = re.compile(r"[A-Za-z_]\w{0,255}")
_PATH: Final = re.compile(r"(?:\w+(?:\.\w+)*)?")
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,40}(?:\.[0-9]{0,40})?(?:e[-+]?[0-9]{1,3})?")
_OPERATOR: Final = re.compile(
    r"_operator\.(?:add|sub|mul|truediv|floordiv|mod|neg|pos|pow|eq|ne|lt|le|gt|ge|and_|or_|getitem"
    r"|lshift|rshift|not_|abs|xor)"
    r"|math\.(?:ceil|floor|trunc|sqrt|exp|log|log2|pow|sin|cos|tan|fabs)|builtins\.(?:max|min|round)"
    r"|torch\.(?:sym_[a-z]+|_C\._functorch\.[a-z_]+)"
)
_TREE_TYPE: Final = re.compile(
    r"builtins\.(?:tuple|list|dict)|collections\.(?:OrderedDict|deque)|torch\.Size"
)


def script_remarks(window: Window) -> Iterator[Remark]:
    """The remarks about the source of a TorchScript module.

    Raises:
        UnjudgedError: it is too large, no source, or rule 3.
    """
    data = whole(window, LIMIT)
    starts = [0, *accumulate(len(line) for line in data.splitlines(keepends=True))]
    tokens = _tokens(data)
    doubts: list[str] = []
    for place, one in enumerate(tokens):
        if one.type == token.NAME and one.string in _NAMES:
            at = starts[min(one.start[0] - 1, len(starts) - 1)] + one.start[1]
            inner = bool(place) and tokens[place - 1].string == "."
            if what := _forbidden(_path(tokens, place), doubts, inner=inner):
                yield Remark(PROGRAM, f"a TorchScript program that {what}", at)
    if doubts:
        raise UnjudgedError(f"a TorchScript program with code of another library: {doubts[0]}")


def _tokens(data: bytes) -> list[tokenize.TokenInfo]:
    try:
        return [
            one
            for one in tokenize.tokenize(io.BytesIO(data).readline)
            if one.type not in {token.NEWLINE, tokenize.NL, tokenize.COMMENT, token.INDENT}
        ]
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError) as error:
        raise UnjudgedError(f"a TorchScript program that cannot be read: {error}") from error


def _forbidden(path: list[str], doubts: list[str], *, inner: bool) -> str:
    """The act of a program that is against rules 1 and 2; `doubts` gets what rule 3 is about."""
    root, name = path[0], ".".join(path)
    if inner:
        if path[:2] == ["torch", "classes"] and not CLASSES & set(path[2:3]):
            doubts.append(name)
        return ""
    if len(path) < (2 if root == "torch" else 3):
        return f"gives {root} another name"
    if FILES & set(path[1:]) or name == "ops.torchvision.read_file":
        return f"calls {name}"
    if root == "ops" and path[1] not in SPACES:
        doubts.append(name)
    return ""


def _path(tokens: list[tokenize.TokenInfo], place: int) -> list[str]:
    """The dotted name that begins at a token."""
    path = [tokens[place].string]
    while place + 2 < len(tokens) and tokens[place + 1].string == ".":
        place += 2
        if tokens[place].type != token.NAME:
            break
        path.append(tokens[place].string)
    return path


def is_arithmetic(text: str, *, guard: bool = False) -> bool:
    """Tell whether a text only computes with numbers and symbols (rule 4); it is only parsed.

    Args:
        text: An expression.
        guard: Whether it may also ask inputs, as ``L['x'][0]``, for their sizes.
    """
    if len(text) > MAX_TEXT or "__" in text:
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(tree))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    named = {id(one) for node in nodes if isinstance(node, ast.Call) for one in node.args[:1]}
    powers = [node for node in nodes if _is_power(node)]
    return len(powers) < 3 and all(_is_part(one, called, named, guard=guard) for one in nodes)


def _is_power(node: ast.AST) -> bool:
    called = getattr(getattr(node, "func", None), "id", "")
    return isinstance(node, ast.Pow) or called in _POWERS


def _is_part(node: ast.AST, called: set[int], named: set[int], *, guard: bool) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            # Of a symbol's or a key's name, or the digits of a float.
            return bool(_WORD.fullmatch(text) or _NUMBER.fullmatch(text)) and (
                id(node) in named or guard
            )
        case ast.Constant(value=value):
            return isinstance(value, (int, float)) and abs(value) < 1 << 64
        case ast.BinOp(op=ast.Pow(), right=right):
            return _is_small(right)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            known = all(
                one.arg in _ASSUMED and isinstance(one.value, ast.Constant) for one in keywords
            )
            power = name in _POWERS and len(arguments) == 2 and _is_small(arguments[1])
            return known and (name in _SYMPY or power)
        case ast.Call(func=ast.Attribute(), args=[] | [ast.Constant()], keywords=[]):
            return guard
        case ast.Attribute(attr=name):
            return guard and name in _OF_TENSORS
        case ast.Subscript(slice=ast.Constant()):
            return guard
        case ast.Name(id=name):
            return id(node) in called or name not in _SYMPY | _POWERS
        case ast.keyword():
            return True
        case _:
            return isinstance(node, _ARITHMETIC)


def _is_small(power: ast.expr) -> bool:
    """Tell whether a power is a small number, or a symbol that has none."""
    match power:
        case ast.Call(args=[inner]) | ast.UnaryOp(operand=inner):
            return _is_small(inner)
        case ast.Constant(value=int(value)):
            return value <= MAX_POWER
        case _:
            return isinstance(power, ast.Name) or isinstance(getattr(power, "value", None), str)


def graph_remarks(window: Window) -> Iterator[Remark]:
    """The remarks about a JSON file of torch.export.

    Raises:
        UnjudgedError: it is too large, no JSON, or rule 7.
    """
    data = whole(window, configurations.JSON_LIMIT)
    try:
        waiting = [("", configurations.of_json(data))]
    except ValueError as error:
        raise UnjudgedError("a graph of torch.export that cannot be parsed") from error
    doubts: list[str] = []
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, configurations.Pairs):
            waiting += [(str(name), inner) for name, inner in value]
            # What maps names has other keys than the schema; they are names, or symbols.
            waiting += [("", name) for name, _ in value]
        elif isinstance(value, list):
            waiting += [(key, inner) for inner in value]
        elif key == "use_pickle" and value is not False:
            doubts.append("use_pickle: torch unpickles what it names")
        elif isinstance(value, str) and not _GRAMMAR.get(key, _PATH.fullmatch)(value):
            what = f"{key or 'a text'} is {value[:120]!r}"
            if key in _RUN and not _is_elsewhere(value):
                yield Remark(CALLED, f"{what}, which torch.export gives to Python")
            else:
                doubts.append(what)
    if doubts:
        raise UnjudgedError(f"a graph of torch.export with what is not known here: {doubts[0]}")


def _is_operator(text: str) -> bool:
    path = text.split(".")
    doubts: list[str] = []
    if path[:2] != ["torch", "ops"] or not _PATH.fullmatch(text):
        return bool(_OPERATOR.fullmatch(text))
    return len(path) > 3 and not _forbidden(path[1:], doubts, inner=False) and not doubts


def _is_elsewhere(text: str) -> bool:
    """Tell whether a text is an operator of another library, which is code that lies elsewhere."""
    path = text.split(".") if _PATH.fullmatch(text) else []
    return path[:2] == ["torch", "ops"] and not FILES & set(path)


def _is_tree(text: str, depth: int = 0) -> bool:
    """Tell whether a text is a tree of containers, as torch.utils._pytree writes it (rule 6)."""
    try:
        waiting = [("", configurations.of_json(text.encode()))]
    except (ValueError, UnjudgedError):
        return False
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, configurations.Pairs):
            if not {name for name, _ in value} <= {"type", "context", "children_spec"}:
                return False
            waiting += [(str(name), inner) for name, inner in value]
        elif isinstance(value, list):
            waiting += [(key, inner) for inner in value]
        elif isinstance(value, str):
            inner = key == "context" and value[:1] in ("[", "{") and depth < 4
            fine = _TREE_TYPE.fullmatch(value) if key == "type" else _PATH.fullmatch(value)
            if not (_is_tree(value, depth + 1) if inner else fine):
                return False
    return True


_GRAMMAR: Final[dict[str, Callable[[str], object]]] = {
    "expr_str": is_arithmetic,
    "guards_code": lambda text: is_arithmetic(text, guard=True),
    "target": _is_operator,
    "as_operator": _is_operator,
    "in_spec": _is_tree,
    "out_spec": _is_tree,
    **dict.fromkeys(
        ("as_string", "as_strings", "torch_version", "stack_trace", "nn_module_stack", "torch_fn",
         "source_fn_stack", "from_node", "custom"), lambda _text: True
    ),
}  # fmt: skip
"""The grammar of the texts under each key; other texts are names."""
_RUN: Final = frozenset(
    {"as_name", "as_operator", "expr_str", "forward_arg_names", "guards_code", "name", "target"}
)  # fmt: skip
"""The keys whose texts torch gives to Python."""


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
_ENTRY: Final = re.compile(r"(?:offset|length) [0-9]{1,19}|checksum [0-9a-fA-F]{1,128}")
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


def onnx_remarks(window: Window) -> Iterator[Remark]:
    """The remarks about an ONNX model.

    Raises:
        BrokenError: it is malformed.
        UnjudgedError: rule 9, or it is too deep or too large.
    """
    custom: dict[tuple[str, str], int] = {}
    defined: set[tuple[str, str]] = set()
    graphs = 0
    for message in _messages(window):
        operator = (message.texts.get("domain", ""), message.texts.get("op", ""))
        graphs += message.kind == "graph"
        match message.kind:
            case "entry":
                yield from _elsewhere(message)
            case "node" if operator[1] in _CALLS_PYTHON:
                yield Remark(PROGRAM, f"the operator {operator[1]} calls Python", message.at)
            case "node" if operator[0] not in DOMAINS:
                custom.setdefault(operator, message.at)
            case "function":
                defined.add(operator)
    if not graphs:
        raise BrokenError("no graph")
    if missing := [one for one in custom if one not in defined]:
        domain, name = missing[0]
        raise UnjudgedError(f"the operator {domain}.{name} is code that lies elsewhere")


def _elsewhere(entry: _Message) -> Iterator[Remark]:
    """Judge what a tensor says of data in another file (rule 8)."""
    key, value = entry.texts.get("key"), entry.texts.get("value", "")
    if key != "location":
        if not _ENTRY.fullmatch(f"{key} {value}"):
            yield Remark(UNJUDGED, f"{key!r:.80} of a tensor's data elsewhere", entry.at)
    elif reason := leaves(value):
        yield Remark(OUTSIDE, f"data of a tensor lies in {value[:200]!r}: {reason}", entry.at)
    else:
        yield Remark(DATA, value.removeprefix("./"))


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
            _skip_field(cursor, wire, at)
        if cursor.at > message.end:
            raise BrokenError(f"a field at {at} reaches over its message's end")


def _skip_field(cursor: Cursor, wire: int, at: int) -> None:
    match wire:
        case 0:
            cursor.varint()
        case 1:
            cursor.skip(8)
        case 5:
            cursor.skip(4)
        case _:
            raise BrokenError(f"a field of wire type {wire} at {at}")
