# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Configurations in JSON, YAML or INI, and what in them makes a loader import, call or run code.

Rules 1 to 8; each names the key that makes a loader do it:

1. Hydra's ``_target_``, Lightning's ``_instantiator`` and ``class_path``: what they name is called;
   layers, optimizers and schedulers of torch, and modules of NeMo and Lightning, build values;
2. ``auto_map``, ``trust_remote_code``, ``custom_pipelines``, the types of ``modules.json`` and the
   classes of ``model_index.json``: code that comes with the model is run;
3. Keras: a Lambda layer or a wrapped torch module is a program; a class or function of another
   module is imported; a vocabulary is read from where it says;
4. skops: only nodes and types that build values;
5. jsonpickle's and YAML's tags for Python objects;
6. chat templates are judged by `templates`;
7. PEFT imports ``parent_library`` and ``megatron_core``; MDS unpickles columns of ``pkl``, and
   reads the shards that its index names; spaCy calls what is registered under ``@`` names;
8. no other text is code: one that Python parses as an import or as a call of a built-in or of a
   dotted name, and one that names something in Python's own library, cannot be judged.

A file that a statement of ours names holds numbers and hashes, in no format that others know.
Nothing is verified here: whoever lists a file as data gains nothing by it, only "bytes of no known
format" is forgiven, and what is a pickle, a program or an archive is judged as one.
"""

import ast
import base64
import binascii
import builtins
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Final, TypeGuard

from securetrain.artifacts.scan import documents, templates
from securetrain.artifacts.scan.documents import Pairs, Tagged
from securetrain.artifacts.scan.findings import (
    CALLED,
    DATA,
    OUTSIDE,
    PROGRAM,
    Remark,
    UnjudgedError,
    leaves,
)
from securetrain.artifacts.scan.safe_globals import STORED
from securetrain.artifacts.scan.safe_models import MODELS
from securetrain.artifacts.scan.window import Window, whole
from securetrain.artifacts.statement.statements import claimed_kind
from securetrain.artifacts.tree.layout import STATEMENT, bad_name

_SAFE_TARGET: Final = re.compile(
    r"(?:torch\.(?:nn|optim|optim\.lr_scheduler)"
    r"|(?:lightning\.pytorch|pytorch_lightning)\.(?:callbacks|loggers|strategies)(?:\.[a-z_]+)*"
    r"|nemo\.(?:collections|lightning)(?:\.[a-z0-9_]+)*)\.[A-Z][A-Za-z0-9]*"
)
_LAMBDA: Final = re.compile("Lambda")
TARGETS: Final = ("_target_", "_instantiator", "class_path", "_class_path")
_REMOTE: Final = ("auto_map", "custom_pipelines", "trust_remote_code")
_KERAS_PROGRAMS: Final = frozenset({"Lambda", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"})
_KERAS_READERS: Final = frozenset(
    {"StringLookup", "IntegerLookup", "TextVectorization", "IndexLookup", "TFSMLayer", "Hashing"}
)
_KERAS_PLACES: Final = ("vocabulary", "filepath", "idf_weights")
_KERAS_MODULE: Final = re.compile(
    r"(?:(?:keras|tf_keras)(?:\.src)?|tensorflow\.keras)"
    r"(?:\.(?:layers|models|engine|initializers|regularizers|constraints|optimizers|losses|metrics"
    r"|activations|dtype_policies|mixed_precision|random|schedules|core|functional|sequential"
    r"|backend\.[a-z]+\.optimizers)(?:\.[a-z0-9_]+)*)?|builtins"
)
_KERAS_CLASS: Final = re.compile(r"[A-Z][A-Za-z0-9_]*|function|__(?:lambda|tensor|numpy|tuple)__")
_KERAS_FUNCTION: Final = re.compile(
    r"(?:keras(?:\.src)?\.(?:activations|losses|metrics|initializers)(?:\.[a-z_]+)?|builtins)"
)
_SKOPS_NODES: Final = frozenset(
    {
        "DictNode", "DefaultDictNode", "ListNode", "SetNode", "TupleNode", "TypeNode", "SliceNode",
        "ObjectNode", "JsonNode", "NdArrayNode", "MaskedArrayNode", "RandomStateNode",
        "RandomGeneratorNode", "DTypeNode", "SparseMatrixNode", "TreeNode", "CyLossNode",
        "BunchNode", "CachedNode", "LossNode", "DatetimeTimezoneNode", "SGDNode", "BytesNode",
        "BytearrayNode", "NamedTupleNode", "QuantileForestNode", "FunctionNode",
    }
)  # fmt: skip
_SKOPS_PLAIN: Final = frozenset(
    {"builtins.str", "builtins.int", "builtins.float", "builtins.bool", "builtins.bytes",
     "builtins.bytearray", "builtins.NoneType", "builtins.type", "builtins.dict", "builtins.list"}
)  # fmt: skip
_SKOPS_FUNCTION: Final = re.compile(r"(?:numpy|scipy\.special(?:\._ufuncs)?)\.[a-z0-9_]+")
_LIBRARIES: Final = re.compile(
    r"(?:diffusers|transformers|onnxruntime|optimum|sentence_transformers|stable_diffusion|"
    r"k_diffusion|flax|null)(?:\.[a-zA-Z0-9_]+)*"
)
_NOTHING: Final = re.compile(r"(?!)")
_HANDLERS: Final = frozenset(
    {"image_classifier", "image_segmenter", "object_detector", "text_classifier", "base_handler"}
)
_COLUMNS: Final = re.compile(
    r"(?:bytes|str|u?int\d*|float\d+|str_(?:int|float|decimal)|pil|jpeg|jpeg_array|jpegs|png|json"
    r"|list\[\w+\]|ndarray(?::\w+(?::[\d,]+)?)?)"
)
_REGISTERED: Final = re.compile(r"(?:spacy[a-z-]*\.)?\w+\.v\d+")
_RESOLVER: Final = re.compile(r"\$\{(?!oc\.(?:env|select|decode|create|dict)\b)\w[\w.]*:")
_DOTTED: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_LIKE_CODE: Final = re.compile(r"\w\s*\(|\bimport\b|\blambda\b")
_FILE: Final = re.compile(
    r"\.(?:json|txt|csv|tsv|md|bin|model|pt|pth|parquet|safetensors|ya?ml|org|com)\Z"
)
MAX_FILES: Final = 1 << 20
MAX_CODE: Final = 64 << 10
_SCRIPTS: Final = ("application/javascript", "text/javascript")


def is_safe_target(name: str) -> bool:
    """Tell whether what a configuration names only builds a value."""
    return bool(_SAFE_TARGET.fullmatch(name)) and not _LAMBDA.search(name)


def config_remarks(window: Window, name: str) -> Iterator[Remark]:
    """The remarks about a configuration in a file.

    Raises:
        UnjudgedError: it cannot be parsed, or be judged.
    """
    suffix = PurePosixPath(name.lower()).suffix
    parse = {".json": documents.of_json, ".cfg": documents.of_ini}.get(suffix, documents.of_yaml)
    data = whole(window, documents.JSON_LIMIT if suffix == ".json" else documents.YAML_LIMIT)
    try:
        tree = parse(data)
    except ValueError as error:
        raise UnjudgedError("a configuration that cannot be parsed") from error
    yield from judge(tree, data, name)


def judge(tree: object, data: bytes, name: str) -> Iterator[Remark]:
    """The remarks about a configuration.

    Args:
        tree: What `documents` made of it.
        data: Its bytes, for offsets.
        name: What the file is called.

    Raises:
        UnjudgedError: a template or a text cannot be judged.
    """
    base = PurePosixPath(name).name.lower()
    doubts: list[str] = []
    for one in (Pairs([("", tree)]), *_objects(tree)):
        if isinstance(one, Tagged):
            yield Remark(CALLED, f"a tag that YAML loaders call: {one[:80]}", _at(data, one[:12]))
            continue
        for key, value in one:
            if isinstance(key, str):
                yield from _pair(key, value, data, base)
                if "template" in key:
                    yield from _templates(value, data, doubts)
                elif key not in _JUDGED:
                    doubts += _codes(key, value)
        yield from _keras(one, data)
        yield from _skops(one, data)
    for rule in _BY_NAME.get(base, ()):
        yield from rule(tree, data)
    if base.endswith(".index.json"):
        yield from _shards(tree, data)
    if doubts:
        raise UnjudgedError(doubts[0])


def _codes(key: str, value: object) -> Iterator[str]:
    """Rule 8, for the texts of one value."""
    for text in _flat(value, objects=False):
        if isinstance(text, str) and _is_code(text):
            yield f"{key or 'a text'} is code, or names some: {text[:120]!r}"


def _is_code(text: str) -> bool:
    if _DOTTED.fullmatch(text):
        return text.partition(".")[0] in sys.stdlib_module_names and not _FILE.search(text)
    if _RESOLVER.search(text):
        return True
    if not _LIKE_CODE.search(text):
        return False
    try:
        nodes = list(ast.walk(ast.parse(text.strip()))) if len(text) <= MAX_CODE else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return len(text) > MAX_CODE or any(map(_runs, nodes))


def _runs(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    builtin = isinstance(called, ast.Name) and hasattr(builtins, called.id)
    known = (ast.Import, ast.ImportFrom, ast.Lambda)
    return builtin or isinstance(called, (ast.Attribute, ast.Call)) or isinstance(node, known)


def _objects(tree: object) -> Iterator[Pairs | Tagged]:
    """Every object of a tree, and every tag."""
    waiting, seen = [tree], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, list) and id(one) in seen:
            continue  # YAML's aliases lead to it again
        seen.add(id(one))
        if isinstance(one, Pairs):
            yield one
            waiting.extend(key for key, _ in one if isinstance(key, (list, Tagged)))
            waiting.extend(value for _, value in one)
        elif isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, Tagged) and "python" in one.partition(" ")[0]:
            yield one


def _pair(key: str, value: object, data: bytes, base: str) -> Iterator[Remark]:
    """Rules 1, 2, 5 and 7."""
    text = value if isinstance(value, str) else ""
    for file, keys, safe, who in _CALLERS:
        if key in keys and file in ("", base) and text and not safe(text):
            code = PROGRAM if key == "handler" else CALLED
            yield Remark(code, f"{key} names {text[:200]!r}, which {who}", _at(data, key))
    if what := _named(key, value, text):
        yield Remark(CALLED, what, _at(data, key))


def _named(key: str, value: object, text: str) -> str:
    """Say what else a loader runs for the value of a key; empty when it does not."""
    if key == "trust_remote_code" and (value == 1 or text.lower() in ("true", "yes", "on", "1")):
        return "trust_remote_code is on: code that comes with it is run"
    named = sorted({one for one in _flat(value) if isinstance(one, str)}) if key in _REMOTE else []
    if named and key != "trust_remote_code":
        return f"{key} names {', '.join(named)[:200]}: code that comes with the model is run"
    if key.startswith("@") and text and not _REGISTERED.fullmatch(text):
        return f"{key} names {text[:200]!r}, which spaCy calls"
    return f"{key}: jsonpickle makes objects of it" if key.startswith("py/") else ""


def _is_target(text: str) -> bool:
    return not _DOTTED.fullmatch(text) or is_safe_target(text)


_CALLERS: Final[tuple[tuple[str, tuple[str, ...], Callable[[str], object], str], ...]] = (
    ("", TARGETS, is_safe_target, "a loader calls"),
    ("", ("target",), _is_target, "NeMo imports"),
    ("", ("parent_library",), _LIBRARIES.fullmatch, "PEFT imports"),
    ("", ("megatron_core",), re.compile(r"megatron\.core").fullmatch, "PEFT imports"),
    ("modules.json", ("type",), re.compile(r"sentence_transformers\..*").fullmatch,
     "sentence-transformers imports"),
    ("mlmodel", ("loader_module",), re.compile(r"mlflow\..*").fullmatch, "MLflow imports"),
    ("manifest.json", ("handler",), _HANDLERS.__contains__, "TorchServe runs"),
    ("manifest.json", ("requirementsFile",), _NOTHING.fullmatch, "TorchServe installs"),
)  # fmt: skip
"""A file or all of them, keys, which of their texts build values, and who takes the others."""


def _templates(value: object, data: bytes, doubts: list[str]) -> Iterator[Remark]:
    """Rule 6: a template, or a list or object of named ones."""
    for text in _flat(value):
        if isinstance(text, str):
            try:
                for one in templates.judge(text):
                    yield one._replace(offset=_at(data, "chat_template"))
            except UnjudgedError as error:
                doubts.append(str(error))


def _keras(one: Pairs, data: bytes) -> Iterator[Remark]:
    """Rule 3."""
    names = [name for name in one.of("class_name") if isinstance(name, str)]
    if not names or not any(key == "config" for key, _ in one):
        return
    modules = [text for text in one.of("module") if isinstance(text, str)]
    for name in names:
        yield from _keras_class(name, one, modules, _at(data, name))
    for module in modules:
        known = _KERAS_MODULE.fullmatch(module) and all(map(_KERAS_CLASS.fullmatch, names))
        if not known:
            what = f"Keras imports {module[:80]!r} to find {names[0][:80]!r}"
            yield Remark(CALLED, what, _at(data, module))
    for registered in one.of("registered_name"):
        if isinstance(registered, str) and ">" in registered and not modules:
            what = f"Keras looks for {registered[:80]!r} among registered classes"
            yield Remark(CALLED, what, _at(data, registered))


def _keras_class(name: str, one: Pairs, modules: list[str], at: int | None) -> Iterator[Remark]:
    if name in _KERAS_PROGRAMS or name == "__lambda__":
        yield Remark(PROGRAM, f"a Keras layer {name!r}, which holds or loads a program", at)
    elif name == "function":
        for config in one.of("config"):
            function = config if isinstance(config, str) else "?"
            if not all(map(_KERAS_FUNCTION.fullmatch, modules)) or not function.isidentifier():
                what = f"Keras imports the function {function[:80]!r} of {modules}"
                yield Remark(CALLED, what, at)
    elif name in _KERAS_READERS:
        for config in filter(_is_pairs, one.of("config")):
            for key in _KERAS_PLACES:
                if place := config.text(key):
                    yield Remark(OUTSIDE, f"a Keras layer reads {place[:200]!r}", at)


def _is_pairs(value: object) -> TypeGuard[Pairs]:
    return isinstance(value, Pairs)


def _skops(one: Pairs, data: bytes) -> Iterator[Remark]:
    """Rule 4."""
    loaders = [text for text in one.of("__loader__") if isinstance(text, str)]
    if not loaders:
        return
    module, name = one.text("__module__"), one.text("__class__")
    full = f"{module}.{name}"
    at = _at(data, name or loaders[0])
    for loader in loaders:
        if loader not in _SKOPS_NODES:
            yield Remark(CALLED, f"skops calls {full[:200]!r} by a {loader[:40]}", at)
    known = full in STORED or full in MODELS or full in _SKOPS_PLAIN
    if not known and not _SKOPS_FUNCTION.fullmatch(full):
        yield Remark(CALLED, f"skops imports {full[:200]!r}", at)


def _pipeline(tree: object, data: bytes) -> Iterator[Remark]:
    """model_index.json of diffusers: pairs of a library and a class."""
    for one in _objects(tree):
        for key, value in one if isinstance(one, Pairs) else ():
            library = value[0] if isinstance(value, list) and value else None
            pair = isinstance(value, list) and (len(value) == 2 or key == "_class_name")
            if pair and isinstance(library, str) and not _LIBRARIES.fullmatch(library):
                what = f"{key} comes from {library[:200]!r}: code that comes with the model"
                yield Remark(CALLED, what, _at(data, library))


def _columns(tree: object, data: bytes) -> Iterator[Remark]:
    """index.json of MDS.

    Raises:
        UnjudgedError: an encoding is not known.
    """
    for one in _objects(tree):
        if not isinstance(one, Pairs):
            continue
        for encoding in filter(_is_text, _items(one, "column_encodings")):
            if encoding == "pkl":
                what = "a column of MDS that is unpickled"
                yield Remark(CALLED, what, _at(data, encoding))
            elif not _COLUMNS.fullmatch(encoding):
                raise UnjudgedError(f"a column of MDS that is {encoding[:80]!r}")
        yield from _place(one.text("basename"), data)


def _shards(tree: object, data: bytes) -> Iterator[Remark]:
    """The index of weights in several files."""
    for name in sorted({str(one) for found in _of(tree, "weight_map") for one in _flat(found)}):
        yield from _place(name, data, is_data=False)


def _place(name: str, data: bytes, *, is_data: bool = True) -> Iterator[Remark]:
    if name and (reason := leaves(name)):
        yield Remark(OUTSIDE, f"an index reads {name[:200]!r}: {reason}", _at(data, name))
    elif name and is_data:
        yield Remark(DATA, name)


def _statement(tree: object, data: bytes) -> Iterator[Remark]:
    """The data files and hash tables that a statement of ours names."""
    kind = claimed_kind(data)
    if kind is None or not isinstance(tree, Pairs):
        return
    try:
        payload = documents.of_json(base64.b64decode(tree.text("payload"), validate=True))
    except (ValueError, binascii.Error):
        return
    for predicate in _of(payload, "predicate"):
        for one in list(_items(predicate, "files"))[:MAX_FILES]:
            name = one.text("name") if isinstance(one, Pairs) else ""
            if name and not bad_name(kind, name):
                yield Remark(DATA, name)
                yield Remark(DATA, kind.table_of(name))


def notebook_remarks(window: Window, _name: str) -> Iterator[Remark]:
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
        for kind, what in shown if isinstance(shown, Pairs) else ():
            if kind in _SCRIPTS or (kind == "text/html" and "<script" in _joined(what)):
                yield Remark(PROGRAM, "a notebook that runs a script when it is shown")
    if any(
        "code" in _of(cell, "cell_type") and any(map(_joined, _of(cell, "source")))
        for cell in cells
    ):
        raise UnjudgedError("a notebook with code")


def _items(tree: object, key: str) -> Iterator[object]:
    for value in _of(tree, key):
        if isinstance(value, list):
            yield from value


def _of(tree: object, key: str) -> list[object]:
    return list(tree.of(key)) if isinstance(tree, Pairs) else []


def _joined(value: object) -> str:
    pieces = value if isinstance(value, list) else [value]
    return "".join(piece for piece in pieces if isinstance(piece, str)).lower()


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


_JUDGED: Final = frozenset(
    {"payload", *_REMOTE, *(key for _, keys, *_ in _CALLERS for key in keys)}
)
"""The keys that a rule of their own judges."""
_BY_NAME: Final[dict[str, tuple[Callable[[object, bytes], Iterator[Remark]], ...]]] = {
    "model_index.json": (_pipeline,),
    "index.json": (_columns,),
    STATEMENT: (_statement,),
}


def _flat(value: object, *, objects: bool = True) -> Iterator[object]:
    """The leaves of a value, those in objects as well, or of its lists alone."""
    waiting, seen = [value], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, list) and id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Pairs):
            waiting.extend(inner for _, inner in one if objects)
        elif isinstance(one, list):
            waiting.extend(one)
        else:
            yield one


def _at(data: bytes, text: str) -> int | None:
    """The place of a text in the bytes, as it is or as JSON writes it."""
    for spelled in (text.encode("utf-8", "replace"), json.dumps(text)[1:-1].encode()):
        if (at := data.find(spelled)) >= 0:
            return at
    return None
