# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Packages, repositories, scripts, data and models that commands take from the network.

``Qwen/Qwen3-8B`` is an id of a hub where no folder of that name stands beside the script; that is
not seen from here, so a name is taken for a folder where its first part is one that programs write
to.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from securetrain.audit.facts import Location, Reading
from securetrain.audit.parser.values import absent, ok
from securetrain.audit.shell.evaluator import Call
from securetrain.audit.shell.programs import SHELLS
from securetrain.audit.shell.values import HOLE, Arg
from securetrain.audit.subjects.launches.collect.options import (
    Option,
    options_of,
    templated,
    value_of,
)
from securetrain.audit.subjects.launches.facts import Fetch, Kind, Revision

_INTERPRETERS: Final = frozenset({*SHELLS, "python", "perl", "ruby", "node", "source", "."})
_DOWNLOADERS: Final = frozenset({"curl", "wget", "aria2c", "aws", "s5cmd"})
_UNVERIFIED: Final = frozenset(
    {"insecure", "no-check-certificate", "no-verify-ssl", "no-sign-request"}
)
_URL: Final = re.compile(r"(https?|ftp|git\+https?|git|s3)://", re.IGNORECASE)
_DATA_OPTIONS: Final = re.compile(
    r"(?:^|-)(?:data|dataset|datasets|shards)(?:-(?:path|paths|dir|url|urls|file|files|root))?\Z"
    r"|(?:train|valid|validation|eval|test)-(?:data|file|files|path|url|urls)\Z"
)
_SYSTEM: Final = {
    "apt": {"install"},
    "apt-get": {"install"},
    "yum": {"install"},
    "dnf": {"install"},
    "apk": {"add"},
    "conda": {"install", "create", "update"},
    "mamba": {"install", "create", "update"},
    "micromamba": {"install", "create", "update"},
    "npm": {"install", "i", "ci"},
    "gem": {"install"},
    "cargo": {"install"},
    "go": {"install", "get"},
}
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SENDS: Final = (
    *("data", "d", "data-raw", "data-binary", "data-urlencode", "form", "F", "upload-file", "T"),
    *("post-data", "post-file", "json"),
)
_METHOD: Final = re.compile(r"(?:-X|--request=)?(?:POST|PUT|PATCH|DELETE)")
_METADATA: Final = re.compile(
    r"https?://(?:169\.254\.(?:169\.25[34]|170\.2)|metadata(?:\.google\.internal)?|168\.63\.129\.16"
    r"|100\.100\.100\.200|\[fd00:ec2::254\])(?=[:/?]|\Z)",
    re.IGNORECASE,
)
"""Metadata services of clouds, which have no TLS."""
_LOCAL: Final = re.compile(r"(?:\.{0,2}/|\.\Z|\.\[|[^:]*\.whl\Z|file:)")


def fetches_of(calls: Sequence[Call]) -> list[Fetch]:
    """Everything that these calls fetch."""
    found: list[Fetch] = []
    fed = _interpreted(calls)
    for call in calls:
        options = options_of(call)
        if call.program in _DOWNLOADERS:
            found.extend(_downloads(call, options, runs=call.pipeline in fed))
        elif one := _package(call, options):
            found.append(one)
        elif call.program == "git":
            _repository(call, found)
        if not call.opened and call.program not in {"echo", "printf", *_DOWNLOADERS}:
            found.extend(_data(call, options))
    return found


def _interpreted(calls: Sequence[Call]) -> set[int]:
    """Pipelines whose output an interpreter runs."""
    runs = {call.pipeline for call in calls if call.program in _INTERPRETERS}
    return runs | {call.fed_by for call in calls if call.fed_by and call.program in _INTERPRETERS}


def _downloads(call: Call, options: list[Option], *, runs: bool) -> Iterator[Fetch]:
    if value_of(options, *_SENDS) or any(_METHOD.fullmatch(arg.text) for arg in call.args):
        return
    unchecked = next((one.at for one in options if one.name in _UNVERIFIED), None)
    if unchecked is None and call.program == "curl":
        short = (arg.at for arg in call.args if re.fullmatch(r"-[A-Za-z]*k[A-Za-z]*", arg.text))
        unchecked = next(short, None)
    for arg in call.args:
        is_url = _URL.match(arg.text) or (arg.opens and "://" in arg.text)
        if is_url and not _METADATA.match(arg.text):  # that is the network's business
            script = runs or bool(re.search(r"\.(?:sh|py)\Z", arg.text))
            verified = _by_tls(arg) if unchecked is None else ok(False, unchecked)
            pinned = ok(False, arg.at) if script else absent(arg.at)
            what = Kind.SCRIPT if script else Kind.DATA
            yield _fetched(call, what, arg.at, pinned, verified)


def _fetched(
    call: Call, what: Kind, at: Location, pinned: Reading[bool], verified: Reading[bool]
) -> Fetch:
    return Fetch(at=at, program=call.program, what=what, pinned=pinned, verified=verified)


def _by_tls(arg: Arg) -> Reading[bool]:
    if found := re.match(r"(?:http|ftp)://([^/]*)", arg.text, re.IGNORECASE):
        if HOLE in found[1]:
            return templated(arg.opens, arg.at)
        return ok(_loopback(arg.text), arg.at)
    if arg.opens and not _URL.match(arg.text):
        return templated(arg.opens, arg.at)
    return ok(True, arg.at)


def _loopback(url: str) -> bool:
    return bool(re.match(r"[a-z]+://(?:localhost|127\.|\[::1\])", url, re.IGNORECASE))


def _package(call: Call, options: list[Option]) -> Fetch | None:
    words = [arg.text for arg in call.args]
    if call.program in {"pip", "pip3", "uv", "python", "pipx"} and _pip_install(call, words):
        return _pip(call, options)
    verbs = _SYSTEM.get(call.program)
    if verbs and next((w for w in words if not w.startswith("-")), "") in verbs:
        offline = value_of(options, "offline", "no-network")
        return _fetch(call, Kind.PACKAGE, pinned=offline is not None)
    return None


def _pip_install(call: Call, words: list[str]) -> bool:
    match call.program:
        case "python":
            return words[:3] == ["-m", "pip", "install"]
        case "uv":
            return words[:2] in (["pip", "install"], ["add"], ["sync"]) or words[:1] == ["sync"]
        case _:
            return next((w for w in words if not w.startswith("-")), "") == "install"


def _pip(call: Call, options: list[Option]) -> Fetch | None:
    if value_of(options, "no-index", "require-hashes", "offline"):
        return _fetch(call, Kind.PACKAGE, pinned=True)
    words = [arg.text for arg in call.args if not arg.text.startswith("-")]
    behind = words[words.index("install") + 1 :] if "install" in words else words
    if value_of(options, "requirement", "r"):
        return _fetch(call, Kind.PACKAGE, pinned=False)
    if value_of(options, "no-deps") and all(map(_LOCAL.match, behind)):
        return None  # nothing but what is there
    commits = all(re.search(r"@[0-9a-f]{40}(?:#|\Z)", word) for word in behind)
    return _fetch(call, Kind.PACKAGE, pinned=bool(behind) and commits)


def _repository(call: Call, found: list[Fetch]) -> None:
    """Note a clone, or the commit that the one before is brought to; submodules follow that."""
    words = [arg.text for arg in call.args if not arg.text.startswith("-")]
    words = words[1:] if call.args and call.args[0].text == "-C" else words
    clones = [n for n, one in enumerate(found) if one.what is Kind.REPOSITORY]
    number = clones[-1] if clones else -1
    if words[:1] in (["checkout"], ["reset"], ["switch"]) and number >= 0:
        commit = next((arg for arg in call.args if _COMMIT.fullmatch(arg.text)), None)
        opened = next((arg for arg in call.args if arg.opens), None)
        if commit is not None:
            found[number] = replace(found[number], pinned=ok(True, commit.at))
        elif opened is not None:
            found[number] = replace(found[number], pinned=templated(opened.opens, opened.at))
    elif words[:2] == ["submodule", "update"]:
        one = _fetch(call, Kind.REPOSITORY, pinned=False)
        pinned = found[number].pinned if number >= 0 else one.pinned
        found.append(replace(one, pinned=pinned))
    elif words[:1] in (["clone"], ["pull"], ["fetch"]):
        found.append(_fetch(call, Kind.REPOSITORY, pinned=False))


def _fetch(call: Call, what: Kind, *, pinned: bool) -> Fetch:
    clear = r"(?:git\+)?(?:http|git)://|--trusted-host\Z"
    insecure = next((arg.at for arg in call.args if re.match(clear, arg.text)), None)
    verified = ok(insecure is None, insecure or call.at)
    return _fetched(call, what, call.at, ok(pinned, call.at), verified)


def _data(call: Call, options: list[Option]) -> Iterator[Fetch]:
    """Yield datasets that a program's options name by URL."""
    for one in options:
        is_url = re.match(r"(?:https?|ftp)://", one.text)
        if one.value is not None and is_url and _DATA_OPTIONS.search(one.name):
            at = one.place
            yield _fetched(call, Kind.DATA, at, absent(at), _by_tls(one.value))


# --- models of a hub -----------------------------------------------------------------------------

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
