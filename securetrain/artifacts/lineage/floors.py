# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""This node's memory of every run, so that nobody can show it less later.

A file of this node alone (0600), outside of any store that others write. Rules:

1. for each run and each signing key the highest sequence number that was loaded or saved, with its
   digest; it never goes down;
2. only keys that the trust root still names count: the number that a leaked key drove up to a
   billion dies with the key (fast-forward);
3. checkpoints that were set aside are remembered, so that deleting the record beside them does not
   bring them back;
4. a file that cannot be read is a refusal and never an empty one;
5. when the newest one was set aside by the run itself, because a node was evicted, the number
   stays, and exactly the checkpoint that the run went back to is excused, until something newer was
   seen;
6. beside a number, the signed head that shows it is kept: other nodes believe nothing else.
"""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.artifacts.lineage.machine import Floor
from securetrain.artifacts.statement.statements import Count, Hex32, Text
from securetrain.artifacts.tree.problems import Problem
from securetrain.core import canonical
from securetrain.core.errors import UsageError
from securetrain.core.files import (
    PRIVATE_FILE,
    locked,
    make_missing_dir,
    read_file,
    write_atomic,
)

LIMIT: Final = 16 << 20
HEAD_LIMIT: Final = 8 << 10
"""Bytes of a head that is kept; one with more signatures is not shown to others."""
VERSION: Final = 1


class _Shown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    seq: Count
    head: Annotated[bytes, Meta(max_length=HEAD_LIMIT)]
    """A head's envelope."""


class _Excuse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    digest: Hex32
    instead_of: Hex32
    """The floor's checkpoint; of any other floor it excuses nothing."""


class _Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    floors: dict[Hex32, Floor] = {}
    """By key id."""
    heads: dict[Hex32, _Shown] = {}
    """By key id."""
    excuse: _Excuse | None = None
    set_aside: Annotated[list[Hex32], Meta(max_length=65536)] = []


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int
    runs: dict[Text, _Run]


@dataclass(frozen=True, slots=True)
class Floors:
    """The file; several processes of a node may share it."""

    path: Path

    def floor(self, run_id: str, keys: Collection[str]) -> Floor | None:
        """The highest floor of a run among keys that still count; None when there is none.

        Raises:
            IntegrityError: ST-CKPT-151 when the file cannot be believed.
        """
        return _highest(self._read().runs.get(run_id, _Run()), keys)

    def head(self, run_id: str, keys: Collection[str]) -> bytes | None:
        """The signed head that shows the newest checkpoint, for other nodes; None without one.

        Raises:
            IntegrityError: ST-CKPT-151.
        """
        run = self._read().runs.get(run_id, _Run())
        found = [shown for key, shown in run.heads.items() if key in keys]
        newest = max(found, key=lambda shown: shown.seq, default=None)
        return None if newest is None else newest.head

    def excused(self, run_id: str, keys: Collection[str]) -> frozenset[str]:
        """The digest that rule 5 excuses now, if any.

        Raises:
            IntegrityError: ST-CKPT-151.
        """
        run = self._read().runs.get(run_id, _Run())
        floor = _highest(run, keys)
        if run.excuse is None or floor is None or run.excuse.instead_of != floor.digest:
            return frozenset()
        return frozenset({run.excuse.digest})

    def excuse(
        self, run_id: str, digest: str, gone: Collection[str], keys: Collection[str]
    ) -> bool:
        """The run went back to a checkpoint: rule 5.

        Args:
            run_id: The run.
            digest: What it went back to.
            gone: The checkpoints that it set aside, by its own signed word.
            keys: Those that count.

        Returns:
            Whether it is excused now.

        Raises:
            IntegrityError: ST-CKPT-151.
            UsageError: ST-USAG-002 when it cannot be written.
        """

        def excusing(run: _Run) -> _Run:
            floor = _highest(run, keys)
            if floor is None or floor.digest == digest or floor.digest not in gone:
                return run
            excuse = _Excuse(digest=digest, instead_of=floor.digest)
            return msgspec.structs.replace(run, excuse=excuse)

        self._change(run_id, excusing)
        return digest in self.excused(run_id, keys)

    def is_set_aside(self, run_id: str, digest: str) -> bool:
        """Tell whether this node has seen that a checkpoint was set aside.

        Raises:
            IntegrityError: ST-CKPT-151.
        """
        return digest in self._read().runs.get(run_id, _Run()).set_aside

    def raise_to(self, run_id: str, floor: Floor, keys: Collection[str], head: bytes = b"") -> None:
        """Remember a checkpoint that was loaded or saved; lower numbers change nothing.

        Args:
            run_id: The run.
            floor: The checkpoint.
            keys: The keys that signed it.
            head: The signed head that shows it, when there is one.

        Raises:
            IntegrityError: ST-CKPT-151.
            UsageError: ST-USAG-002 when it cannot be written.
        """

        def raised(run: _Run) -> _Run:
            floors, heads = dict(run.floors), dict(run.heads)
            for key in keys:
                if key not in floors or floors[key].seq < floor.seq:
                    floors[key] = floor
                if 0 < len(head) <= HEAD_LIMIT and (key not in heads or heads[key].seq < floor.seq):
                    heads[key] = _Shown(seq=floor.seq, head=head)
            return msgspec.structs.replace(run, floors=floors, heads=heads)

        self._change(run_id, raised)

    def remember_set_aside(self, run_id: str, digest: str) -> None:
        """Remember that a checkpoint was set aside.

        Raises:
            IntegrityError: ST-CKPT-151.
            UsageError: ST-USAG-002 when it cannot be written.
        """

        def with_it(run: _Run) -> _Run:
            kept = dict.fromkeys([*run.set_aside, digest])
            return msgspec.structs.replace(run, set_aside=list(kept))

        self._change(run_id, with_it)

    def adopt(self) -> None:
        """Make the folder, and take over the file of an earlier version, which lay beside it."""
        make_missing_dir(self.path.parent)
        before = self.path.parent.with_suffix(".json")
        if not os.path.lexists(self.path) and os.path.lexists(before):
            before.replace(self.path)

    def _read(self) -> _File:
        path = self.path
        if not os.path.lexists(path):
            path = path.parent.with_suffix(".json")  # of an earlier version, not yet adopted
        if not os.path.lexists(path):
            return _File(version=VERSION, runs={})
        try:
            data = read_file(path, LIMIT)
            file = canonical.decode(data, _File, limit=LIMIT, canonical=True)
        except UsageError as error:
            raise self._refused(error.what) from error
        if file.version != VERSION:
            raise self._refused(f"version {file.version}, this reader knows {VERSION}")
        return file

    def _change(self, run_id: str, change: Callable[[_Run], _Run]) -> None:
        make_missing_dir(self.path.parent)
        with locked(self.path.with_name(f".{self.path.name}.lock")):
            file = self._read()
            before = file.runs.get(run_id, _Run())
            run = change(before)
            if run != before:
                changed = msgspec.structs.replace(file, runs={**file.runs, run_id: run})
                write_atomic(self.path, canonical.encode(changed), mode=PRIVATE_FILE)

    def _refused(self, what: str) -> Exception:
        return Problem("ST-CKPT-151", f"what this node has seen cannot be read: {what}").error(
            str(self.path)
        )


def _highest(run: _Run, keys: Collection[str]) -> Floor | None:
    found = [floor for key, floor in run.floors.items() if key in keys]
    return max(found, key=lambda floor: floor.seq, default=None)
