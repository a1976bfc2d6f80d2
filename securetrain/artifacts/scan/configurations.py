# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Configurations in JSON, YAML or INI, and what in them makes a loader import, call or run code.

Rules, in order:

1. a configuration is read as a plain tree in which nothing is lost. Two readers may take different
   ones of two equal keys, so both are kept. YAML is read as events: nothing is constructed, an
   alias is what it leads to (the same object), and tags are noted;
2. a text is clean only under the grammar that a known loader has for its file and key: the first
   row of the table that has both, or `WORD` when there is none. A word is a name in some registry
   and reaches nothing else, a number is one. Rows that say what a loader imports, calls or reads
   come first and hold for texts inside those of a later row, too. The other texts are named with
   their key, as what a loader calls or reads, or as unknown;
3. so are keys, but for those of what nothing is given to, and YAML's tags: those for Python objects
   are calls, and others than YAML's own unknown;
4. Keras: a Lambda layer or a wrapped torch module is a program; a class or function of another
   module is imported; a vocabulary is read from where it says;
5. skops: only nodes and types that build values;
6. ``model_index.json``: a class of another library is code that comes with the model;
7. chat templates are judged by `templates`.

A file that a statement of ours names holds numbers and hashes, in no format that others know.
Nothing is verified here: whoever lists a file as data gains nothing by it, only "bytes of no known
format" is forgiven, and what is a pickle, a program or an archive is judged as one.

Sources: transformers/configuration_utils.py, tokenization_utils_base.py, dynamic_module_utils.py;
peft/config.py, peft/mapping.py; sentence_transformers/SentenceTransformer.py, util.py;
diffusers/pipelines/pipeline_loading_utils.py; keras/src/saving/serialization_lib.py;
spacy/util.py, confection; nemo/core/classes/common.py, hydra/_internal/instantiate; streaming/base/
format/mds/encodings.py; mlflow/pyfunc; skops/io; ts/model_loader.py.
"""

import base64
import binascii
import configparser
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Final, NamedTuple, NoReturn

import yaml

from securetrain.artifacts.scan import templates
from securetrain.artifacts.scan.findings import (
    CALLED,
    DATA,
    OUTSIDE,
    PROGRAM,
    UNJUDGED,
    Remark,
    UnjudgedError,
    leaves,
)
from securetrain.artifacts.scan.formats import Window, whole
from securetrain.artifacts.scan.safe_globals import MODELS, STORED
from securetrain.artifacts.statement.statements import claimed_kind
from securetrain.artifacts.tree.layout import STATEMENT, bad_name

JSON_LIMIT: Final = 64 << 20
YAML_LIMIT: Final = 8 << 20
MAX_OBJECTS: Final = 4_000_000
MAX_DEPTH: Final = 200

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Pairs(list[tuple[object, object]]):
    """The pairs of an object, in their order."""

    def of(self, key: str) -> Iterator[object]:
        """Every value of a key."""
        return (value for name, value in self if name == key)

    def texts(self, key: str) -> list[str]:
        """The values of a key that are texts."""
        return [one for one in self.of(key) if isinstance(one, str)]

    def text(self, key: str) -> str:
        """The last text under a key; empty when there is none."""
        return next(reversed(self.texts(key)), "")


class Tagged(str):
    """A YAML value with a tag of its own, as ``tag value``."""

    __slots__ = ()


def of_json(data: bytes) -> object:
    """The tree of a JSON document.

    Raises:
        UnjudgedError: it is too large or too deep.
        ValueError: it is none.
    """
    if len(data) > JSON_LIMIT or data.count(b"[") + data.count(b"{") > MAX_OBJECTS:
        raise UnjudgedError(f"JSON of {len(data)} bytes: too large, or of too many objects")
    try:
        return json.loads(data, object_pairs_hook=Pairs, parse_int=_number, parse_float=_number)
    except RecursionError:
        _too_deep()


def of_ini(data: bytes) -> object:
    """The tree of an INI file whose values are JSON, or else texts.

    Raises:
        UnjudgedError: it is too deep.
        ValueError: it is none, or says something twice.
    """
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(data.decode())
    except configparser.Error as error:
        raise ValueError(f"not INI: {type(error).__name__}") from error
    return Pairs((name, Pairs(map(_valued, parser.items(name)))) for name in parser.sections())


def _valued(pair: tuple[str, str]) -> tuple[str, object]:
    try:
        return pair[0], of_json(pair[1].encode())
    except ValueError:
        return pair


def of_yaml(data: bytes) -> object:
    """The tree of a YAML stream: a list of its documents.

    Raises:
        UnjudgedError: it is too large or too deep.
        ValueError: it is none.
    """
    if len(data) > YAML_LIMIT:
        raise UnjudgedError(f"YAML of {len(data)} bytes, the limit is {YAML_LIMIT}")
    documents: list[object] = []
    stack: list[list[object]] = [documents]
    kinds: list[str] = []
    names: list[str | None] = []
    anchors: dict[str | None, object] = {}
    try:
        for event in yaml.parse(data, Loader=_Loader):
            match event:
                case yaml.ScalarEvent():
                    tag = event.tag if event.tag and not event.implicit[0] else ""
                    value = event.value
                    stack[-1].append(Tagged(f"{tag} {value}") if tag else value)
                    anchors[event.anchor] = stack[-1][-1]
                case yaml.AliasEvent():
                    stack[-1].append(anchors.get(event.anchor))
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    if len(stack) > MAX_DEPTH:
                        _too_deep()
                    if event.tag and not event.implicit:
                        stack[-1].append(Tagged(f"{event.tag} "))
                        kinds.append("tagged")
                    kinds.append("map" if isinstance(event, yaml.MappingStartEvent) else "list")
                    stack.append([])
                    names.append(event.anchor)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    _end(stack, kinds)
                    anchors[names.pop()] = stack[-1][-1]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"not YAML: {type(error).__name__}") from error
    return documents


def _end(stack: list[list[object]], kinds: list[str]) -> None:
    values = stack.pop()
    value: object = values
    if kinds.pop() == "map":
        value = Pairs(zip(values[::2], values[1::2], strict=False))
    if kinds and kinds[-1] == "tagged":
        kinds.pop()
        value = [stack[-1].pop(), value]
    stack[-1].append(value)


def _number(text: str) -> int:
    """Tell zero from others, as 0 and 1: more is not asked, and a million digits are slow."""
    return int(bool(text.strip("-0.eE+")))


def _too_deep() -> NoReturn:
    raise UnjudgedError(f"values in values, more than {MAX_DEPTH} deep or so")


class Grammar(NamedTuple):
    """The texts that are good under a key."""

    good: Callable[[str], object]
    who: str = "no loader known here reads such a text there"
    """What is done with the others."""
    code: str = UNJUDGED
    deep: bool = False
    """Whether it holds for all that is below the key."""


def _like(pattern: str) -> Callable[[str], object]:
    return re.compile(pattern).fullmatch


_TARGET: Final = re.compile(
    r"(?:torch\.(?:nn|optim|optim\.lr_scheduler)"
    r"|(?:lightning\.pytorch|pytorch_lightning)\.(?:callbacks|loggers|strategies)(?:\.[a-z_]+)*"
    r"|nemo\.(?:collections|lightning)(?:\.[a-z0-9_]+)*)\.(?!\w*Lambda)[A-Z][A-Za-z0-9]*"
)
_LIBRARIES: Final = (
    r"(?:diffusers|transformers|onnxruntime|optimum|sentence_transformers|stable_diffusion|"
    r"k_diffusion|flax|null)(?:\.[a-zA-Z0-9_]+)*"
)
is_library: Final = _like(_LIBRARIES)
_NOTHING: Final = _like(r"(?!)")
_REPOSITORY: Final = _like(r"(?!.*\.\.)/?[\w.@+ -]+(?:/[\w.@+ -]+)*|")


def is_safe_target(name: str) -> bool:
    """Tell whether what a configuration names only builds a value."""
    return bool(_TARGET.fullmatch(name))


WORD: Final = Grammar(
    _like(r"[\w+-]{0,255}|[-+]?\.?\d[\w.:+@-]{0,63}|[-+]?\.(?:inf|nan)|~|\?\?\?|\$\{[\w.@]{1,99}\}")
)
ANY: Final = Grammar(lambda _text: True)
"""Shown, compared, or numbers for tokens: given to nothing."""
ALL: Final = ANY._replace(deep=True)
NAMES: Final = Grammar(_like(r"(?!.*\)[*+{])[\w\\.*+?|()\[\]^$:{},-]{0,999}"))
"""Compared with the names of parts, as they are or as a pattern that has no loops in loops."""
TEMPLATE: Final = ALL._replace(who="a template")
PLACE: Final = Grammar(lambda text: not leaves(text), "which an index reads", OUTSIDE, deep=True)
DATA_PLACE: Final = PLACE._replace(deep=False)
REPOSITORY: Final = Grammar(_REPOSITORY)
REMOTE: Final = Grammar(_like(r"|False|(?i:false|no|off|0|null|none|~)"), "", CALLED, deep=True)

_HUGGING: Final = r"(?:[\w-]+_)?config(?:_\w+)?\.json|(?:special_tokens_map|model_index)\.json"
KERAS: Final = "model.json"
_KERAS: Final = r"(?:config|model|metadata)\.json"
_ROWS: Final[tuple[tuple[str, str, Grammar], ...]] = (
    ("", r"_target_|_instantiator|_?class_path",
     Grammar(is_safe_target, "which a loader calls", CALLED)),
    ("", r"target", Grammar(
        lambda text: WORD.good(text) or is_safe_target(text), "which NeMo imports", CALLED)),
    ("", r"parent_library", Grammar(is_library, "which PEFT imports", CALLED)),
    ("", r"megatron_core", Grammar(_like(r"megatron\.core"), "which PEFT imports", CALLED)),
    ("", r"auto_map|custom_pipelines", REMOTE._replace(
        who="code that comes with the model is run")),
    ("", r"trust_remote_code", REMOTE._replace(who="code that comes with it is run")),
    ("", r"@\w+", Grammar(_like(r"(?:spacy[a-z-]*\.)?\w+\.v\d+"), "which spaCy calls", CALLED)),
    ("", r"py/\w+", Grammar(_NOTHING, "jsonpickle makes objects of it", CALLED, deep=True)),
    (r"modules\.json", r"type", Grammar(
        _like(r"sentence_transformers\..*"), "which sentence-transformers imports", CALLED)),
    (r"mlmodel", r"loader_module", Grammar(_like(r"mlflow\..*"), "which MLflow imports", CALLED)),
    (r"mlmodel", r"code", Grammar(_like(r"null|~|"), "where MLflow imports from", CALLED)),
    (r"manifest\.json", r"handler", Grammar(
        _like(r"image_(?:classifier|segmenter)|object_detector|text_classifier|base_handler"),
        "which TorchServe runs", PROGRAM)),
    (r"manifest\.json", r"requirementsFile", Grammar(
        _NOTHING, "which TorchServe installs", CALLED)),
    (r"index\.json", r"column_encodings", Grammar(
        _like(r"bytes|str|u?int\d*|float\d+|str_(?:int|float|decimal)|pil|jpeg|jpeg_array|jpegs|png"
              r"|json|list\[\w+\]|ndarray(?::\w+(?::[\d,]+)?)?"),
        "which MDS unpickles, or is not known", CALLED)),
    (r"index\.json", r"basename|file", DATA_PLACE),
    (r".*\.index\.json", r"weight_map", PLACE),
    ("", r".*template.*", TEMPLATE),
    # What no loader gives to anything.
    ((r"tokenizer\.json|(?:[\w-]+[_-])?vocab(?:ulary)?(?:[_-]\w+)?\.json|added_tokens\.json"
     rf"|normalizer\.json|head\.json|quarantine\.json|{re.escape(STATEMENT)}"), r".*", ALL),
    (r"index\.json", r"fqn|values", ALL),  # a checkpoint's own
    (_HUGGING, r"id2label|label2id|\w+_to_id|prompts|task_specific_params|license", ALL),
    (_HUGGING, r"added_tokens_decoder", ALL),
    (_HUGGING, r"_?name_or_path|content|\w*_tokens?|prefix|suffix|description|url|paper\w*", ANY),
    (r"config\.cfg", r"neg_prefix|punct_chars", ANY),
    (r"config\.cfg", r"\w+_corpus", NAMES),
    (_HUGGING, (r"target_modules|modules_to_\w+|llm_int8_skip_modules|layers_pattern|ignore"
     r"|exclude_modules|target_parameters|trainable_token_indices|architecture|first_conv"
     r"|classifier|feature_layer\w*"), NAMES),
    (_HUGGING, r"(?:\w+_)?dtype", Grammar(_like(r"(?:torch\.)?\w*"))),
    (_HUGGING, r"activation_f\w+|sbert_ce_default_activation_function", Grammar(
        _like(r"torch\.nn\.modules\.(?:activation|linear)\.\w+|\w*"),
        "which sentence-transformers imports", CALLED)),
    (rf"{_HUGGING}|trainer_state\.json", (r"base_model_name_or_path|\w+_(?:file|dir)|best_\w+"
     r"|path|resume_from_checkpoint"), REPOSITORY),
    (r"mlmodel", r"artifact_path|model_path|data|env|conda|virtualenv", REPOSITORY),
    (r"mlmodel", r"signature|\w*inputs|outputs|params|utc_time_created", ANY),
    (r"(?:conda|python_env)\.ya?ml", r"pip|dependencies|build_dependencies", Grammar(
        _like(r"[\w.-]+(?:\[[\w,]+\])?(?:[<>=!~, ]+[\w.*]+)*"))),
    (r"index\.json", r"column_names|compression", ANY),
    (r"meta\.json", (r"author|email|url|license|description|\w+_version|labels|sources|requirements"
     r"|notes"), ALL),
    (r"config\.cfg", r"train|dev|test|vectors|init_tok2vec|path|raw\w*|source", REPOSITORY),
    (r"model_config\.ya?ml", r"labels|vocabulary|phonemes|punct\w*", ALL),
    (r"model_config\.ya?ml", r"\w*(?:file|path|dir)\w*", Grammar(
        _like(r"(?:nemo:)?/?[\w.@+ -]*(?:/[\w.@+ -]+)*"))),
    (r"schema\.json", r"file|__module__|module_path|\w*_version", NAMES),
    (r"schema\.json", r"content", Grammar(_like(r'[\w.+-]*|"[\w .,+-]*"'))),
    (r"manifest\.json", r"\w*File|createdOn|description|author|extraFiles", REPOSITORY),
    (r"dataset_infos?\.json", r"description|citation|homepage|license|filename", ALL),
    # Keras names functions and classes: rule 4 judges the objects that these keys make.
    (_KERAS, r"module|config", Grammar(_like(
        r"(?:(?:tf_)?keras|tensorflow\.keras)(?:\.\w+)*|builtins|\w*"))),
    (_KERAS, r"class_name|registered_name", Grammar(_like(r"[\w>]*"))),
    (_KERAS, r"name|path", Grammar(_like(r"[\w-]*(?:[/ ][\w-]+)*"))),
)  # fmt: skip
"""Files (any, when there is none) and keys as patterns, and the grammar there."""
_COMPILED: Final = [(_like(file or ".*"), _like(keys), grammar) for file, keys, grammar in _ROWS]


@lru_cache(maxsize=4096)
def grammar(file: str, key: str) -> Grammar:
    """The grammar of texts under a key of a file, whose name is in lower case."""
    found = (found for of_file, of_key, found in _COMPILED if of_key(key) and of_file(file))
    return next(found, WORD)


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
    parse = {".json": of_json, ".cfg": of_ini}.get(suffix, of_yaml)
    data = whole(window, JSON_LIMIT if suffix == ".json" else YAML_LIMIT)
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
    """Rules 2, 3 and 7, for one value."""
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
    """Rule 4."""
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
    """Rule 5."""
    full = f"{one.text('__module__')}.{one.text('__class__')}"
    known = full in STORED | MODELS | _SKOPS_PLAIN or _SKOPS_FUNCTION.fullmatch(full)
    for loader in one.texts("__loader__"):
        if loader not in _SKOPS_NODES or not known:
            what = f"skops imports {full[:200]!r} by a {loader[:40]}"
            yield Remark(CALLED, what, _at(data, one.text("__class__") or loader))


def _pipeline(one: Pairs, data: bytes) -> Iterator[Remark]:
    """Rule 6: pairs of a library and a class."""
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
        payload = of_json(base64.b64decode(tree.text("payload"), validate=True))
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
    data = whole(window, JSON_LIMIT)
    try:
        tree = of_json(data)
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
