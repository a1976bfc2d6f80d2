# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Models that a command names by an id of a hub: which revision of them it takes.

``Qwen/Qwen3-8B`` is an id where no folder of that name stands beside the script; that is not seen
from here, so a name is taken for a folder where its first part is one that programs write to.
"""

import re
from collections.abc import Iterator
from typing import Final

from securetrain.audit.parser.values import ok
from securetrain.audit.shell.evaluator import Call
from securetrain.audit.subjects.launches.collect.options import Option
from securetrain.audit.subjects.launches.facts import Revision

REVISIONS: Final = frozenset(
    {
        *("revision", "model-revision", "dataset-revision", "code-revision"),
        *("tokenizer-revision", "base-model-revision", "draft-model-revision"),
    }
)
_NAMED: Final = re.compile(
    r"(?:hf-|base-|teacher-|student-|draft-|reward-|pretrained-|speculative-)?model"
    r"(?:-name|-id|-path|-name-or-path|-tag)?\Z"
    r"|(?:hf-)?(?:tokenizer(?:-name|-path|-model|-name-or-path)?|repo-id)\Z"
)
_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z", re.ASCII)
_FOLDERS: Final = frozenset(
    {
        *("checkpoints", "checkpoint", "ckpt", "ckpts", "models", "model", "weights", "data"),
        *("output", "outputs", "results", "runs", "logs", "tmp", "artifacts", "assets", "cache"),
        *("configs", "config", "conf", "examples", "scripts", "src", "recipes", "workspace"),
        *("tokenizer", "tokenizers", "s3:", "gs:", "mnt", "home", "saved_models", "pretrained"),
    }
)
_FILE: Final = re.compile(
    r"\.(?:py|sh|ya?ml|json|toml|txt|pt|pth|bin|ckpt|model|safetensors|gguf|nemo|onnx|tar|gz)\Z"
)
_SERVERS: Final = frozenset({"serve", "bench"})


def unpinned_models(call: Call, options: list[Option]) -> Iterator[Revision]:
    """Yield what a call names by an id of a hub, where it names no revision."""
    if any(one.name in REVISIONS for one in options):
        return
    named = [(one.name, one.value) for one in options if _NAMED.match(one.name)]
    if call.program == "vllm" and len(call.args) > 1 and call.args[0].text in _SERVERS:
        named.append((call.args[0].text, call.args[1]))
    for name, value in named:
        if value is not None and not value.opens and _is_id(value.text):
            yield Revision(at=value.at, program=call.program, name=name, commit=ok(False, value.at))


def _is_id(text: str) -> bool:
    return (
        bool(_ID.match(text))
        and text.partition("/")[0].lower() not in _FOLDERS
        and not _FILE.search(text)
    )
