# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sign a directory of safetensors files that is there already. No torch.

Rules: nothing in the directory is changed; hash tables, index and statement are added, the
statement last. Every file must be a safetensors file or a small document (configuration, tokenizer,
licence); a pickle, a link or anything large of another kind is refused, and so is a directory that
is signed already. Each file is read once: what is parsed is what is hashed.
"""

import hashlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.artifacts.kinds import check_same, check_whole
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.reading import PICKLES
from securetrain.artifacts.statement.statements import (
    MAX_DOCUMENT,
    CheckpointPredicate,
    IndexFile,
    RankFile,
    TreeInfo,
    sign,
)
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree import safetensors_header
from securetrain.artifacts.tree.layout import (
    INDEX,
    LEAVES_SUFFIX,
    STATEMENT,
    Kind,
    Problem,
    bad_name,
)
from securetrain.artifacts.tree.storage import LocalStorage, Source, Storage
from securetrain.core.errors import IntegrityError
from securetrain.core.files import write_atomic
from securetrain.core.hashtree import Tree, TreeParams, TreeWriter
from securetrain.identity.keys import Signer

STRETCH: Final = 8 << 20


def sign_safetensors(
    path: Path, *, key: Signer, context: SaveContext, params: TreeParams | None = None
) -> CheckpointPredicate:
    """Sign a directory of safetensors files in place.

    Args:
        path: the directory.
        key: a checkpoint key.
        context: what is said of it; `save_id` must be set.
        params: the hash tree (default: BLAKE3 over leaves of 1 MiB).

    Raises:
        IntegrityError: ST-CKPT-201 signed already; ST-CKPT-190 a pickle; ST-CKPT-141, 142 something
            else that cannot be signed; ST-CKPT-191 a header that lies; ST-CKPT-200.
        UsageError: ST-USAG-002 and 006 on I/O errors.
    """
    storage = LocalStorage(path)
    before, _ = check_whole(path)
    described = describe(storage, context=context, params=params or TreeParams())
    check_same(path, before)
    envelope = sign(described.predicate, path.name, key)
    for name, data in described.written.items():
        write_atomic(path / name, data, replace=False)
    write_atomic(path / STATEMENT, envelope, replace=False)
    return described.predicate


@dataclass(frozen=True, slots=True)
class Described:
    """The description of a directory, and the files that go with it."""

    predicate: CheckpointPredicate
    written: dict[str, bytes]
    """Hash tables and index, by name."""


def describe(storage: Storage, *, context: SaveContext, params: TreeParams) -> Described:
    """Read a directory of safetensors files once and work out what a statement says of it.

    Raises:
        IntegrityError: as `sign_safetensors`.
        UsageError: ST-USAG-002 on I/O errors.
    """
    if any(storage.has(name) for name in (STATEMENT, INDEX)):
        raise Problem("ST-CKPT-201", "it is signed already").error(storage.name)
    names = _names(storage)
    tensors = [name for name in sorted(names) if name.endswith(safetensors_header.SUFFIX)]
    if not tensors:
        raise Problem("ST-CKPT-100", "no safetensors file is in it").error(storage.name)
    files, headers, tables = [], {}, {}
    for rank, name in enumerate(tensors):
        tree, header = _read(storage, name, params)
        headers[name] = header, tree.size
        tables[name + LEAVES_SUFFIX] = tree.leaves
        files.append(RankFile(name=name, size=tree.size, root=tree.root.hex(), rank=rank))
    index = index_file.Index.of(safetensors_header.tensors_of(headers))
    data = index_file.encode(index)
    index_file.parse(data, {file.name: file.size for file in files})
    documents = [
        _small(name, storage.read(name, MAX_DOCUMENT)) for name in sorted(names.difference(tensors))
    ]
    predicate = CheckpointPredicate(
        run_id=context.run_id,
        name=context.signed_name,
        step=context.step,
        seq=context.seq or 0,
        save_id=context.save_id,
        created=context.created,
        expires=context.expires,
        world_size=len(files),
        tree=TreeInfo.of(params),
        files=files,
        index=_small(INDEX, data),
        documents=documents,
        parents=list(context.parents),
        dataset=context.dataset,
        policy=context.policy,
        code=context.code,
        env=context.env,
        nodes=list(context.nodes),
        gradients=context.gradients,
        epoch=context.epoch,
    )
    return Described(predicate, tables | {INDEX: data})


def _names(storage: Storage) -> set[str]:
    """The names to be signed, each thing of a kind that can be."""
    found, unsafe = storage.survey()
    for entry in unsafe:
        raise Problem("ST-CKPT-142", entry.reason, entry.name).error(storage.name)
    for file in found:
        problem = None
        if file.name.endswith((*PICKLES, ".bin", ".ckpt")):
            problem = Problem("ST-CKPT-190", "a pickle, probably", file.name)
        elif why := bad_name(Kind.CHECKPOINT, file.name):
            problem = Problem("ST-CKPT-142", why, file.name)
        elif not file.size or (
            file.size > MAX_DOCUMENT and not file.name.endswith(safetensors_header.SUFFIX)
        ):
            what = f"{file.size} bytes, and no safetensors file"
            problem = Problem("ST-CKPT-141", what, file.name)
        if problem is not None:
            raise problem.error(storage.name)
    return {file.name for file in found}


def _read(storage: Storage, name: str, params: TreeParams) -> tuple[Tree, bytes]:
    try:
        with closing(storage.open(name)) as source:
            return _hash(source, name, params)
    except EOFError as error:
        raise Problem("ST-CKPT-131", "it became shorter", name).error(storage.name) from error
    except OSError as error:
        raise Problem("ST-CKPT-200", str(error), name).error(storage.name) from error
    except IntegrityError as error:
        raise IntegrityError(error.code, error.what, f"{storage.name}/{name}", error.fix) from error


def _hash(source: Source, name: str, params: TreeParams) -> tuple[Tree, bytes]:
    """Hash a file and keep its header, in one pass."""
    tree = TreeWriter(params)
    header = bytearray()
    wanted = safetensors_header.PREFIX
    buffer = memoryview(bytearray(STRETCH))
    for start in range(0, source.size, STRETCH):
        piece = buffer[: min(STRETCH, source.size - start)]
        source.read_into(piece, start)
        tree.update(piece)
        while len(header) < wanted and start + len(piece) > len(header):
            at = len(header) - start
            header += piece[at : at + wanted - len(header)]
            if len(header) == wanted == safetensors_header.PREFIX:
                wanted = safetensors_header.header_size(bytes(header), source.size, name)
    return tree.finish(), bytes(header)


def _small(name: str, data: bytes) -> IndexFile:
    return IndexFile(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())
