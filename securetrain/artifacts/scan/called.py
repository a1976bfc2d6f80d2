# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Values of a configuration that make a loader import, call or run something.

Rules; each names the key that makes a loader do it:

1. Hydra's ``_target_``, Lightning's ``_instantiator`` and ``class_path``: what they name is called;
   layers, optimizers and schedulers of torch, and modules of NeMo and Lightning, build values;
2. ``auto_map``, ``trust_remote_code``, ``custom_pipelines``, the types of ``modules.json`` and the
   classes of ``model_index.json``: code that comes with the model is run;
3. Keras: a Lambda layer or a wrapped torch module is a program; a class or function of another
   module is imported; a vocabulary is read from where it says;
4. skops: only nodes and types that build values;
5. jsonpickle's and YAML's tags for Python objects;
6. chat templates are judged by `templates`.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Final, TypeGuard

from securetrain.artifacts.scan import templates
from securetrain.artifacts.scan.documents import Pairs, Tagged
from securetrain.artifacts.scan.findings import CALLED, OUTSIDE, PROGRAM
from securetrain.artifacts.scan.remarks import Remark, UnjudgedError
from securetrain.artifacts.scan.safe_globals import STORED
from securetrain.artifacts.scan.safe_models import MODELS

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
_HANDLERS: Final = frozenset(
    {"image_classifier", "image_segmenter", "object_detector", "text_classifier", "base_handler"}
)
_MARKERS: Final = re.compile(
    rb"_target_|_instantiator|class_path|auto_map|custom_pipelines|trust_remote_code|class_name|"
    rb"chat_template|py/|!!python|__class__|\\u00"
)


def is_safe_target(name: str) -> bool:
    """Tell whether what a configuration names only builds a value."""
    return bool(_SAFE_TARGET.fullmatch(name)) and not _LAMBDA.search(name)


def has_markers(data: bytes) -> bool:
    """Tell whether bytes that cannot be parsed might still make a loader call something."""
    return bool(_MARKERS.search(data))


def judge(tree: object, data: bytes, name: str) -> Iterator[Remark]:
    """The remarks about a configuration.

    Args:
        tree: What `documents` made of it.
        data: Its bytes, for offsets.
        name: What the file is called.

    Raises:
        UnjudgedError: a template cannot be judged.
    """
    base = PurePosixPath(name).name.lower()
    doubts: list[str] = []
    for one in _objects(tree):
        if isinstance(one, Tagged):
            yield Remark(CALLED, f"a tag that YAML loaders call: {one[:80]}", _at(data, one[:12]))
            continue
        for key, value in one:
            if isinstance(key, str):
                yield from _pair(key, value, data)
                if "chat_template" in key:
                    yield from _templates(value, data, doubts)
        yield from _keras(one, data)
        yield from _skops(one, data)
    for rule in _BY_NAME.get(base, ()):
        yield from rule(tree, data)
    if doubts:
        raise UnjudgedError(doubts[0])


def _objects(tree: object) -> Iterator[Pairs | Tagged]:
    """Every object of a tree, and every tag."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Pairs):
            yield one
            waiting.extend(key for key, _ in one if isinstance(key, (list, Tagged)))
            waiting.extend(value for _, value in one)
        elif isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, Tagged) and "python" in one.partition(" ")[0]:
            yield one


def _pair(key: str, value: object, data: bytes) -> Iterator[Remark]:
    """Rules 1, 2 and 5."""
    at = _at(data, key)
    if key in TARGETS:
        for target in _texts(value):
            if not is_safe_target(target):
                yield Remark(CALLED, f"{key} names {target[:200]!r}, which a loader calls", at)
    elif key == "trust_remote_code":
        if value is True or (
            isinstance(value, str) and value.lower() in ("true", "yes", "on", "1")
        ):
            yield Remark(CALLED, "trust_remote_code is on: code that comes with it is run", at)
    elif key in _REMOTE:
        named = sorted({text for one in _flat(value) for text in _texts(one)})
        if named:
            what = f"{key} names {', '.join(named)[:200]}: code that comes with the model is run"
            yield Remark(CALLED, what, at)
    elif key.startswith("py/"):
        yield Remark(CALLED, f"{key}: jsonpickle makes objects of it", at)


def _templates(value: object, data: bytes, doubts: list[str]) -> Iterator[Remark]:
    """Rule 6: a template, or a list or object of named ones."""
    at = _at(data, "chat_template")
    for text in _texts(value) if isinstance(value, str) else _flat(value):
        if isinstance(text, str):
            try:
                for one in templates.judge(text):
                    yield one._replace(offset=at)
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


def _modules(tree: object, data: bytes) -> Iterator[Remark]:
    """modules.json of sentence-transformers."""
    for one in _objects(tree):
        for kind in one.of("type") if isinstance(one, Pairs) else ():
            if isinstance(kind, str) and not kind.startswith("sentence_transformers."):
                yield Remark(
                    CALLED, f"a module of type {kind[:200]!r} is imported", _at(data, kind)
                )


def _pipeline(tree: object, data: bytes) -> Iterator[Remark]:
    """model_index.json of diffusers: pairs of a library and a class."""
    for one in _objects(tree):
        for key, value in one if isinstance(one, Pairs) else ():
            library = value[0] if isinstance(value, list) and value else None
            pair = isinstance(value, list) and (len(value) == 2 or key == "_class_name")
            if pair and isinstance(library, str) and not _LIBRARIES.fullmatch(library):
                what = f"{key} comes from {library[:200]!r}: code that comes with the model"
                yield Remark(CALLED, what, _at(data, library))


def _served(tree: object, data: bytes) -> Iterator[Remark]:
    """MANIFEST.json of TorchServe."""
    for one in _objects(tree):
        handler = one.text("handler") if isinstance(one, Pairs) else ""
        if handler and handler not in _HANDLERS:
            what = f"TorchServe runs the handler {handler[:200]!r}"
            yield Remark(PROGRAM, what, _at(data, handler))
        needs = one.text("requirementsFile") if isinstance(one, Pairs) else ""
        if needs:
            what = f"TorchServe installs what {needs[:200]!r} names"
            yield Remark(CALLED, what, _at(data, needs))


def _flavours(tree: object, data: bytes) -> Iterator[Remark]:
    """MLmodel of MLflow."""
    for one in _objects(tree):
        for name in one.of("loader_module") if isinstance(one, Pairs) else ():
            if isinstance(name, str) and not name.startswith("mlflow."):
                yield Remark(CALLED, f"loader_module is {name[:200]!r}", _at(data, name))


_BY_NAME: Final[dict[str, tuple[Callable[[object, bytes], Iterator[Remark]], ...]]] = {
    "modules.json": (_modules,),
    "model_index.json": (_pipeline,),
    "mlmodel": (_flavours,),
    "manifest.json": (_served,),
}


def _texts(value: object) -> list[str]:
    """The texts that a value is, or holds."""
    return [value] if isinstance(value, str) else []


def _flat(value: object) -> Iterator[object]:
    """The leaves of a value."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Pairs):
            waiting.extend(inner for _, inner in one)
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
