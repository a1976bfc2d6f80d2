# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The judge of each format that is no pickle and no archive."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from securetrain.artifacts.scan import called, documents, gguf, hdf5, onnx, signed, templates
from securetrain.artifacts.scan.findings import PROGRAM
from securetrain.artifacts.scan.formats import Format
from securetrain.artifacts.scan.remarks import Remark, UnjudgedError, whole
from securetrain.artifacts.scan.window import Window
from securetrain.artifacts.tree.layout import STATEMENT

Judge: TypeAlias = Callable[[Window, str], Iterator[Remark]]
_SCRIPTS: Final = ("application/javascript", "text/javascript")


def _config(window: Window, name: str) -> Iterator[Remark]:
    """A configuration in JSON or YAML.

    Raises:
        UnjudgedError: it is neither, and names something that a loader calls.
    """
    is_json = PurePosixPath(name.lower()).suffix == ".json"
    data = whole(window, documents.JSON_LIMIT if is_json else documents.YAML_LIMIT)
    try:
        tree = documents.of_json(data) if is_json else documents.of_yaml(data)
    except ValueError as error:
        if called.has_markers(data):
            raise UnjudgedError("a configuration that cannot be parsed") from error
        return
    yield from called.judge(tree, data, name)
    if PurePosixPath(name).name == STATEMENT:
        yield from signed.judge(tree, data)


def _template(window: Window, _name: str) -> Iterator[Remark]:
    data = whole(window, templates.LIMIT)
    text = data.decode("utf-8", "replace")
    for one in templates.judge(text):
        yield one._replace(offset=len(text[: one.offset].encode()))


def _notebook(window: Window, _name: str) -> Iterator[Remark]:
    """A Jupyter notebook.

    Raises:
        UnjudgedError: it has code, or is none.
    """
    data = whole(window, documents.JSON_LIMIT)
    try:
        tree = documents.of_json(data)
    except ValueError as error:
        raise UnjudgedError("a notebook that cannot be parsed") from error
    cells = list(_items(tree, "cells"))
    for shown in (
        shown
        for cell in cells
        for output in _items(cell, "outputs")
        for shown in _of(output, "data")
    ):
        for kind, what in shown if isinstance(shown, documents.Pairs) else ():
            if kind in _SCRIPTS or (kind == "text/html" and "<script" in _text(what)):
                yield Remark(PROGRAM, "a notebook that runs a script when it is shown")
    if any(
        "code" in _of(cell, "cell_type") and any(map(_text, _of(cell, "source"))) for cell in cells
    ):
        raise UnjudgedError("a notebook with code")


def _items(tree: object, key: str) -> Iterator[object]:
    for value in _of(tree, key):
        if isinstance(value, list):
            yield from value


def _of(tree: object, key: str) -> list[object]:
    return list(tree.of(key)) if isinstance(tree, documents.Pairs) else []


def _text(value: object) -> str:
    pieces = value if isinstance(value, list) else [value]
    return "".join(piece for piece in pieces if isinstance(piece, str)).lower()


JUDGES: Final[Mapping[Format, Judge]] = {
    Format.GGUF: lambda window, _name: gguf.judge(window),
    Format.ONNX: lambda window, _name: onnx.judge(window),
    Format.HDF5: lambda window, _name: hdf5.judge(window),
    Format.CONFIG: _config,
    Format.TEMPLATE: _template,
    Format.NOTEBOOK: _notebook,
}
