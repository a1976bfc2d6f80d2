# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""TorchScript: which operators a program calls.

A TorchScript program computes with tensors and reaches nothing else but by its operators. It is cut
into tokens as Python's own tokenizer does. Rules, in order:

1. ``torch.save`` and ``torch.from_file`` write and read files: they are what a program must not do;
2. ``torch`` and ``ops`` are only followed by a name, so that nothing hides behind another name;
3. operators and classes of other libraries are code that lies elsewhere, and cannot be judged.

Sources: torch/csrc/jit/serialization/python_print.cpp, torch/csrc/jit/frontend/lexer.h.
"""

import io
import token
import tokenize
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from securetrain.artifacts.scan.findings import PROGRAM
from securetrain.artifacts.scan.remarks import Remark, UnjudgedError, whole
from securetrain.artifacts.scan.window import Window

LIMIT: Final = 16 << 20
FILES: Final = frozenset({"save", "from_file", "_save", "_from_file", "load", "_load"})
SPACES: Final = frozenset(
    {"aten", "prim", "prims", "quantized", "_quantized", "quantized_decomposed", "sparse",
     "mkldnn", "mkldnn_prepacked", "prepacked", "xnnpack", "torchvision", "torchaudio", "profiler",
     "onednn", "static_runtime", "cuda", "inductor", "higher_order"}
)  # fmt: skip
CLASSES: Final = frozenset({"quantized", "sparse", "xnnpack", "rnn", "mkldnn"})
_NAMES: Final = frozenset({"torch", "ops"})


def judge(window: Window) -> Iterator[Remark]:
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
    if path[-1] in FILES or path[1] in FILES or name == "ops.torchvision.read_file":
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
