# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Configurations in JSON, YAML or INI, and what in them makes a loader import, call or run code.

Rules, in order:

1. a text is clean only under the grammar that a known loader has for its file and key (`schemas`),
   or as a word or a number; the others are named with their key, as what a loader calls or reads,
   or as unknown;
2. so are keys, but for those of what nothing is given to, and YAML's tags: those for Python objects
   are calls, and others than YAML's own unknown;
3. Keras: a Lambda layer or a wrapped torch module is a program; a class or function of another
   module is imported; a vocabulary is read from where it says;
4. skops: only nodes and types that build values;
5. ``model_index.json``: a class of another library is code that comes with the model;
6. chat templates are judged by `templates`.

A file that a statement of ours names holds numbers and hashes, in no format that others know.
Nothing is verified here: whoever lists a file as data gains nothing by it, only "bytes of no known
format" is forgiven, and what is a pickle, a program or an archive is judged as one.
"""

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from securetrain.artifacts.scan import documents, templates
from securetrain.artifacts.scan.documents import Pairs, Tagged
from securetrain.artifacts.scan.findings import (
    CALLED,
    DATA,
    OUTSIDE,
    PROGRAM,
    UNJUDGED,
    Remark,
    UnjudgedError,
)
from securetrain.artifacts.scan.safe_globals import MODELS, STORED
from securetrain.artifacts.scan.schemas import (
    DATA_PLACE,
    KERAS,
    TEMPLATE,
    WORD,
    Grammar,
    grammar,
    is_library,
)
from securetrain.artifacts.scan.window import Window, whole
from securetrain.artifacts.statement.statements import claimed_kind
from securetrain.artifacts.tree.layout import STATEMENT, bad_name

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
_KEY: Final = re.compile(r"[\w@$<>*/. +:-]{0,255}")
_YAML: Final = re.compile(
    r"(?:tag:yaml\.org,2002:|!!)(?:str|int|float|bool|null|map|seq|timestamp|binary|set|omap|merge)|!"
)
MAX_FILES: Final = 1 << 20
MAX_TOLD: Final = 20
"""Texts of one kind that are told of one file."""
_SCRIPTS: Final = ("application/javascript", "text/javascript")


def config_remarks(window: Window, name: str) -> Iterator[Remark]:
    """The remarks about a configuration in a file.

    Raises:
        UnjudgedError: it cannot be parsed.
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
    """The remarks about a configuration: of each code, `MAX_TOLD` of those about texts.

    Args:
        tree: What `documents` made of it.
        data: Its bytes, for offsets.
        name: What the file is called.
    """
    base, told = PurePosixPath(name.rpartition("!")[2]).name.lower(), Counter[str]()
    if base.endswith(".json") and {"class_name", "config"} <= {key for key, _ in _pairs(tree)}:
        base = base if base == "config.json" else KERAS
    for key, value, rule in _values(tree, base):
        if isinstance(value, Pairs):
            yield from _keras(value, data)
            yield from _skops(value, data)
            if base == "model_index.json":
                yield from _pipeline(value, data)
            continue
        for one in _text(key, value, rule):
            told[one.code] += one.code != DATA
            if told[one.code] <= MAX_TOLD:
                said = value if isinstance(value, str) and value else key
                yield one._replace(offset=_at(data, "chat_template" if rule is TEMPLATE else said))
    yield from _statement(tree, data) if base == STATEMENT else ()


def _values(tree: object, file: str) -> Iterator[tuple[str, object, Grammar]]:
    """Every object and every value that is none, with its key and the grammar there."""
    waiting: list[tuple[str, object, Grammar]] = [("", tree, grammar(file, ""))]
    seen = set[tuple[int, Grammar]]()
    while waiting:
        key, value, rule = waiting.pop()
        if isinstance(value, list):
            if (id(value), rule) in seen:
                continue  # YAML's aliases lead to it again
            seen.add((id(value), rule))
        if isinstance(value, Pairs):
            yield key, value, rule
            for name, inner in value:
                text = name if isinstance(name, str) else ""
                if name is not text or not (rule.deep or _KEY.fullmatch(text)):
                    waiting.append((key, name, rule))
                found = grammar(file, text)
                kept = rule.deep and (found.code == UNJUDGED or rule.code != UNJUDGED)
                waiting.append((text, inner, rule if kept else found))
        elif isinstance(value, list):
            waiting += [(key, inner, rule) for inner in value]
        else:
            yield key, value, rule


def _text(key: str, value: object, rule: Grammar) -> Iterator[Remark]:
    """Rules 1, 2 and 6, for one value."""
    text = value if isinstance(value, str) else ""
    if value == 1 and rule.deep and rule.code == CALLED:
        text = "True"
    if isinstance(value, Tagged):
        tag, _, text = value.partition(" ")
        if not _YAML.fullmatch(tag):
            code = CALLED if "python" in tag else UNJUDGED
            yield Remark(code, f"{key or 'a value'} has the tag {tag[:80]!r}, which loaders call")
    if rule is TEMPLATE:
        try:
            yield from templates.judge(text)
        except UnjudgedError as error:
            yield Remark(UNJUDGED, str(error))
    elif rule is DATA_PLACE and text and rule.good(text):
        yield Remark(DATA, text)
    elif text and not (rule.good(text) or (rule.code == UNJUDGED and WORD.good(text))):
        yield Remark(rule.code, f"{key or 'a text'} is {text[:120]!r}: {rule.who}")


def _pairs(value: object) -> Pairs:
    return value if isinstance(value, Pairs) else Pairs()


def _keras(one: Pairs, data: bytes) -> Iterator[Remark]:
    """Rule 3."""
    modules, configs = one.texts("module"), list(one.of("config"))
    for name in one.texts("class_name") if configs else ():
        at = _at(data, name)
        yield from (said._replace(offset=at) for said in _layer(name, modules, configs))
        for module in modules:
            if not (_KERAS_MODULE.fullmatch(module) and _KERAS_CLASS.fullmatch(name)):
                yield Remark(CALLED, f"Keras imports {module[:80]!r} to find {name[:80]!r}", at)
        for registered in one.texts("registered_name"):
            if ">" in registered and not modules:
                what = f"Keras looks for {registered[:80]!r} among registered classes"
                yield Remark(CALLED, what, at)


def _layer(name: str, modules: list[str], configs: list[object]) -> Iterator[Remark]:
    if name in _KERAS_PROGRAMS or name == "__lambda__":
        yield Remark(PROGRAM, f"a Keras layer {name!r}, which holds or loads a program")
    elif name == "function":
        if not all(map(_KERAS_FUNCTION.fullmatch, modules)) or not all(map(_is_word, configs)):
            yield Remark(CALLED, f"Keras imports the function {configs} of {modules}"[:200])
    elif name in _KERAS_READERS:
        for place in (_pairs(inner).text(key) for inner in configs for key in _KERAS_PLACES):
            if place:
                yield Remark(OUTSIDE, f"a Keras layer reads {place[:200]!r}")


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier()


def _skops(one: Pairs, data: bytes) -> Iterator[Remark]:
    """Rule 4."""
    full = f"{one.text('__module__')}.{one.text('__class__')}"
    known = full in STORED | MODELS | _SKOPS_PLAIN or _SKOPS_FUNCTION.fullmatch(full)
    for loader in one.texts("__loader__"):
        if loader not in _SKOPS_NODES or not known:
            what = f"skops imports {full[:200]!r} by a {loader[:40]}"
            yield Remark(CALLED, what, _at(data, one.text("__class__") or loader))


def _pipeline(one: Pairs, data: bytes) -> Iterator[Remark]:
    """Rule 5: pairs of a library and a class."""
    for key, value in one:
        library = value[0] if isinstance(value, list) and value else None
        if isinstance(library, str) and not is_library(library):
            what = f"{key} comes from {library[:200]!r}: code that comes with the model"
            yield Remark(CALLED, what, _at(data, library))


def _statement(tree: object, data: bytes) -> Iterator[Remark]:
    """The data files and hash tables that a statement of ours names."""
    kind = claimed_kind(data)
    if kind is None or not isinstance(tree, Pairs):
        return
    try:
        payload = documents.of_json(base64.b64decode(tree.text("payload"), validate=True))
    except (ValueError, binascii.Error):
        return
    listed = [one for said in _pairs(payload).of("predicate") for one in _pairs(said).of("files")]
    for one in [one for files in listed if isinstance(files, list) for one in files][:MAX_FILES]:
        name = _pairs(one).text("name")
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
    code = False
    for _, one, _ in _values(tree, ""):
        for kind, what in _pairs(one):
            if kind in _SCRIPTS or (kind == "text/html" and "<script" in _joined(what)):
                yield Remark(PROGRAM, "a notebook that runs a script when it is shown")
        if "code" in _pairs(one).of("cell_type"):
            code |= any(map(_joined, _pairs(one).of("source")))
    if code:
        raise UnjudgedError("a notebook with code")


def _joined(value: object) -> str:
    pieces = value if isinstance(value, list) else [value]
    return "".join(piece for piece in pieces if isinstance(piece, str)).lower()


def _at(data: bytes, text: str) -> int | None:
    """The place of a text in the bytes, as it is or as JSON writes it."""
    for spelled in (text.encode("utf-8", "replace"), json.dumps(text)[1:-1].encode()):
        if (at := data.find(spelled)) >= 0:
            return at
    return None
