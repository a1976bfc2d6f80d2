# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of training, made into a directory that other people's tools read.

Rules, in order:

1. the checkpoint is verified as it is read, like for resuming; optimizer state, cursor and guard
   are left behind;
2. the directory appears whole, with config.json, and with the documents of the model that was
   fine-tuned (its tokenizer, say), which are verified, too;
3. it is signed by our statement, which names the checkpoint as its base. Other tools ignore that.

One process does it, a file at a time: the whole model never has to be in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from securetrain.artifacts import (
    Expectation,
    SaveContext,
    encode_header,
    kinds,
    load,
    memory,
    sign_safetensors,
)
from securetrain.artifacts.model import SignedModel
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    Parent,
    ParentRole,
    digest_of,
)
from securetrain.core.errors import IntegrityError, UsageError, os_error
from securetrain.core.files import staged_dir
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRoot
from securetrain.train.config import load_job, shape_of
from securetrain.train.models import hf
from securetrain.train.models.shape import ModelShape
from securetrain.train.weights import open_weights, trust_of_inputs

INDEX_JSON: Final = "model.safetensors.index.json"
"""Hugging Face's name for the table of files with tensors."""
MODEL: Final = "model."
FILE_BYTES: Final = 4 << 30
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The result of an export."""

    path: Path
    digest: str
    num_files: int


def export(
    checkpoint: Path,
    out: Path,
    shape: ModelShape,
    *,
    trust: TrustRoot,
    key: Signer,
    now: datetime,
    dtype: str = "float32",
    base: SignedModel | None = None,
    file_bytes: int = FILE_BYTES,
    name: str = "",
    expect: Expectation | None = None,
) -> Exported:
    """Write the weights of a checkpoint under the names of Hugging Face, and sign them.

    Args:
        checkpoint: A checkpoint of a run.
        out: The directory to make.
        shape: Of the model that was trained.
        trust: Names the keys that may sign checkpoints.
        key: Signs the directory.
        now: The time of it.
        dtype: The type that tensors are stored as.
        base: The model that was fine-tuned, whose documents go along.
        file_bytes: Tensors of one file, at most, unless one alone is larger.
        name: The name that is signed; the checkpoint's when empty.
        expect: Which checkpoint is wanted.

    Raises:
        IntegrityError: ST-CKPT-100 to 200.
        UsageError: ST-USAG-005 when `out` exists, ST-USAG-012 when the checkpoint is of another
            model, ST-USAG-016 when the format has no such model.
    """
    if shape.experts:
        raise UsageError(
            "ST-USAG-016", "a model with experts has no place in this format", str(checkpoint)
        )
    groups = _groups(shape, DTYPES[dtype].itemsize, file_bytes)
    source, total = None, 0
    with staged_dir(out) as staging:
        where: dict[str, str] = {}
        for number, names in enumerate(groups, 1):
            file = "model.safetensors"
            if len(groups) > 1:
                file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
            tensors, predicate = _read(checkpoint, names, shape, dtype, trust, now, expect)
            if source is not None and digest_of(source) != digest_of(predicate):
                raise IntegrityError(
                    "ST-CKPT-130", "it was exchanged while it was read", str(checkpoint)
                )
            source = predicate
            total += _write(staging / file, tensors)
            where |= dict.fromkeys(tensors, file)
        for document, data in _documents(shape, base):
            _put(staging / document, [memoryview(data)])
        if len(groups) > 1:
            said = {"metadata": {"total_size": total}, "weight_map": where}
            data = msgspec.json.format(msgspec.json.encode(said, order="sorted"), indent=2)
            _put(staging / INDEX_JSON, [memoryview(data)])
    assert source is not None
    signed = sign_safetensors(out, key=key, context=_context(source, now, name))
    return Exported(path=out, digest=digest_of(signed), num_files=len(groups))


def export_trained(
    checkpoint: Path, out: Path, job: Path, *, trust: TrustRoot, now: datetime, **more: Any
) -> Exported:
    """Write the weights of a checkpoint whose sizes its job tells; `more` as for `export`."""
    described = load_job(job)
    inputs = trust_of_inputs(described, trust, now)
    sized, base = open_weights(described, str(job), trust=inputs, policy=None, now=now)
    return export(checkpoint, out, shape_of(sized), trust=trust, now=now, base=base, **more)


def _groups(shape: ModelShape, itemsize: int, file_bytes: int) -> list[list[str]]:
    """Our names, by the file that they go into."""
    groups: list[list[str]] = [[]]
    room = file_bytes
    for name, size in hf.sizes(shape).items():
        length = torch.Size(size).numel() * itemsize
        if length > room and groups[-1]:
            groups.append([])
            room = file_bytes
        groups[-1].append(name)
        room -= length
    return groups


def _read(  # noqa: PLR0917 - one call
    checkpoint: Path,
    names: list[str],
    shape: ModelShape,
    dtype: str,
    trust: TrustRoot,
    now: datetime,
    expect: Expectation | None,
) -> tuple[dict[str, torch.Tensor], CheckpointPredicate]:
    """Some tensors under their new names."""
    sizes = hf.sizes(shape)
    state: dict[str, Any] = {
        MODEL + name: torch.empty(sizes[name], dtype=DTYPES[dtype]) for name in names
    }
    predicate = load(state, checkpoint, trust=trust, policy=None, now=now, expect=expect)
    return {hf.hf_name(name.removeprefix(MODEL)): one for name, one in state.items()}, predicate


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> int:
    """A safetensors file; how many bytes its tensors have."""
    named = {
        name: (str(one.dtype).removeprefix("torch."), tuple(one.shape))
        for name, one in tensors.items()
    }
    data = [memory(one) for one in tensors.values()]
    _put(path, [memoryview(encode_header(named)), *data])
    return sum(len(one) for one in data)


def _put(path: Path, pieces: list[memoryview]) -> None:
    try:
        with path.open("xb") as file:
            for piece in pieces:
                file.write(piece)
    except OSError as error:
        raise os_error(error, str(path)) from error


def _documents(shape: ModelShape, base: SignedModel | None) -> Iterator[tuple[str, bytes]]:
    """Configuration and tokenizer: the base's, where there is one."""
    if base is None:
        yield hf.CONFIG, hf.config_of(shape)
        return
    for document in base.predicate.documents:
        if document.name not in {INDEX_JSON, kinds.BUNDLE}:
            yield document.name, base.document(document.name)


def _context(source: CheckpointPredicate, now: datetime, name: str) -> SaveContext:
    return SaveContext(
        run_id=source.run_id,
        name=name or source.name,
        step=source.step,
        seq=source.seq,
        created=now,
        save_id=source.save_id,
        dataset=source.dataset,
        policy=source.policy,
        gradients=source.gradients,
        parents=(Parent(digest=digest_of(source), role=ParentRole.BASE),),
        nodes=tuple(source.nodes),
        code=source.code,
    )
