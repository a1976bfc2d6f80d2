# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ask the launcher what a statement has to bind, and tell it what only a worker knows.

Rules:

1. what is bound is the launcher's: its membership, policy, job, environment, ledger. The worker
   takes it over as it stands, and the launcher refuses a statement that says otherwise;
2. the worker declares the files of code that it has imported, and the settings of its arithmetic.
   That is its own word, and kept as such; it is said again only when it changed;
3. the records of the steps are handed over before it is asked: the launcher reads them as a
   verifier does, keeps them, and binds no others;
4. nothing is asked without a launcher's key: a save under a key of one's own binds nothing.
"""

import base64
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import torch

from securetrain.artifacts.statement.context import SaveContext, StepPieces
from securetrain.artifacts.statement.statements import (
    Bound,
    CheckpointPredicate,
    NodeRef,
    PolicyRef,
)
from securetrain.identity.keys import Signer
from securetrain.identity.signing import Bind, Bonds, ImportedFile, LauncherKey, Topic

MAX_FILES: Final = 20_000
FILE_LIMIT: Final = 64 << 20
"""Bytes of one file of code."""
_told: dict[Topic, tuple[int, str]] = {}
"""By which process what was declared last."""


def bonded(
    predicate: CheckpointPredicate, key: Signer, context: SaveContext
) -> CheckpointPredicate:
    """The predicate with everything that a launcher wants bound; as it is without a launcher.

    Raises:
        RuntimeRefusal: ST-RUNT-030 to 035.
    """
    if not isinstance(key, LauncherKey):
        return predicate
    _declare(key, Topic.CODE, msgspec.to_builtins(sorted_files()))
    _declare(key, Topic.ENVIRONMENT, arithmetic())
    if context.records is not None:
        _hand_over(key, context.records)
    said: Bonds = key.socket.bind(
        Bind(
            step=context.step,
            parents=tuple(parent.digest for parent in context.parents),
            dataset=context.dataset.digest,
            records="" if context.records is None else context.records.digest,
        )
    )
    if not said.keeps:
        return predicate
    policy = msgspec.convert(said.policy, PolicyRef, strict=True)
    return msgspec.structs.replace(
        predicate,
        bound=msgspec.convert(said.bound, Bound, strict=True),
        nodes=msgspec.convert(said.nodes, list[NodeRef], strict=True),
        policy=predicate.policy if predicate.policy.digest else policy,
        epoch=said.epoch,
    )


def sorted_files() -> list[ImportedFile]:
    """The files of code that are imported, from outside the installed distributions."""
    return sorted(_imported(), key=lambda one: (one.module, one.sha256))[:MAX_FILES]


def arithmetic() -> dict[str, str]:
    """The settings that decide whether a step can be made again bit for bit."""
    cuda = torch.cuda.is_available()
    said: dict[str, object] = {
        "threads": torch.get_num_threads(),
        "interopThreads": torch.get_num_interop_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmulPrecision": torch.get_float32_matmul_precision(),
        "cudnnBenchmark": torch.backends.cudnn.benchmark,
        "cudnnDeterministic": torch.backends.cudnn.deterministic,
        "mkldnn": torch.backends.mkldnn.is_available(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "torchGit": getattr(torch.version, "git_version", ""),
        "cuda": torch.version.cuda or "",
    }
    if cuda:
        said["devices"] = ", ".join(
            torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())
        )
    return {name: str(value)[:1000] for name, value in said.items()}


def _hand_over(key: LauncherKey, records: StepPieces) -> None:
    for name, data in (*(("page", page) for page in records.pages), ("document", records.document)):
        said = {name: base64.b64encode(data).decode()}
        key.socket.declare(Topic.RECORDS, said)


def _declare(key: LauncherKey, topic: Topic, said: object) -> None:
    mark = os.getpid(), hashlib.sha256(msgspec.json.encode(said)).hexdigest()
    if _told.get(topic) != mark:
        key.socket.declare(topic, said)
        _told[topic] = mark


def _imported() -> Iterator[ImportedFile]:
    installed = {
        os.path.realpath(folder)
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (folder := sysconfig.get_path(name))
    }
    for name, module in list(sys.modules.items()):
        found = getattr(module, "__file__", None)
        if not isinstance(found, str) or not name or len(name) > 255:
            continue
        place = os.path.realpath(found)
        if any(place.startswith(folder + os.sep) for folder in installed):
            continue
        try:
            with Path(place).open("rb") as file:
                data = file.read(FILE_LIMIT + 1)
        except OSError:
            data = b""  # it is gone: that is said by the digest of nothing
        if len(data) > FILE_LIMIT or len(place) > 4096:
            continue
        yield ImportedFile(
            module=name, file=place, sha256=hashlib.sha256(data).hexdigest(), size=len(data)
        )
