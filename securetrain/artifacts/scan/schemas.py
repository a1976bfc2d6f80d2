# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The texts that loaders read in configurations: which file, which key, which grammar. Data only.

A text is held to the first row whose file and key are its own, and to `WORD` when there is none: a
word is a name in some registry and reaches nothing else, a number is one. Rows that say what a
loader imports, calls or reads come first and hold for texts inside those of a later row, too.

Sources: transformers/configuration_utils.py, tokenization_utils_base.py, dynamic_module_utils.py;
peft/config.py, peft/mapping.py; sentence_transformers/SentenceTransformer.py, util.py;
diffusers/pipelines/pipeline_loading_utils.py; keras/src/saving/serialization_lib.py;
spacy/util.py, confection; nemo/core/classes/common.py, hydra/_internal/instantiate; streaming/base/
format/mds/encodings.py; mlflow/pyfunc; skops/io; ts/model_loader.py.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from securetrain.artifacts.scan.findings import CALLED, OUTSIDE, PROGRAM, UNJUDGED, leaves
from securetrain.artifacts.tree.layout import STATEMENT


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
    # Keras names functions and classes: rule 3 judges the objects that these keys make.
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
