# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Weights and rows in a pack: only what was signed is taken, and all of it comes out. No torch."""

import hashlib
import json
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from securetrain.artifacts import Dataset
from securetrain.artifacts.statement.checkpoint_predicate import IndexFile, RankFile
from securetrain.artifacts.statement.statements import CheckpointPredicate, Parent, digest_of
from securetrain.artifacts.tree.layout import INDEX, STATEMENT, Kind, TreeInfo
from securetrain.chain import documents, held, packed, packing, unpacking
from securetrain.chain.container import Document, Pack, write_pack
from securetrain.chain.packing import Wanted
from securetrain.chain.records import recorded
from securetrain.chain.rows import RowBytes, RowOrder
from securetrain.chain.verdict import Verdict
from securetrain.chain.verifying import verify
from securetrain.cli import clock
from securetrain.cli.main import main
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.core.hashtree import TreeParams, TreeWriter
from tests import vocabulary
from tests.chain.switches import Switches, hold
from tests.chain.worlds import (
    LATER,
    LEAF,
    PARAMS,
    WHOLE_ORDER,
    Whole,
    codes,
    opened,
    why,
)

ALL = Wanted(weights=True, since=10, rows=(11, 20))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    made = Whole(tmp_path_factory.mktemp("held") / "run")
    for _ in range(3):
        made.save_whole()
    return made


@pytest.fixture(scope="module")
def whole(run: Whole) -> Path:
    return run.pack(wanted=ALL)


@pytest.fixture(scope="module")
def found(run: Whole, whole: Path) -> Verdict:
    return run.verify(whole)


def tree(folder: Path) -> dict[str, bytes]:
    files = (one for one in folder.rglob("*") if one.is_file())
    return {str(one.relative_to(folder)): one.read_bytes() for one in files}


def test_what_is_held_comes_out_as_it_was(run: Whole, whole: Path, tmp_path: Path) -> None:
    result = run.verify(whole)
    assert result.problems == []
    steps = {one.opened.kind.value: one.steps for one in result.pack.held}
    assert steps == {"checkpoint": None, "dataset": (11, 20)}
    with Pack.open(whole) as file:
        for one in result.pack.held:
            if one.opened.kind is Kind.CHECKPOINT:
                step = one.opened.checkpoint.step
                out = unpacking.unpack(file, one, tmp_path / f"{step}")
                assert tree(out) == tree(run.root / "checkpoints" / f"step-{step:08d}")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["10", "20", "30"]


def test_rows_are_read_by_a_reader_of_datasets_and_nothing_else_is(run, whole, tmp_path):
    result = run.verify(whole)
    (rows,) = [one for one in result.pack.held if one.steps is not None]
    with Pack.open(whole) as file:
        unpacking.unpack(file, rows, tmp_path / "data")
    there = run.root / "data"
    sizes = [
        {name: len(data) for name, data in tree(one).items()} for one in (there, tmp_path / "data")
    ]
    assert sizes[0] == sizes[1]
    bytes_of = RowBytes.of(run.dataset.predicate, WHOLE_ORDER, 1)
    ask: dict[str, Any] = {"trust": run.trust(), "policy": None, "now": LATER}
    with (
        Dataset.open(tmp_path / "data", **ask) as part,
        Dataset.open(there, **ask) as all_of_it,
    ):
        for step in range(11, 21):
            for place in bytes_of.of_step(step):
                assert part.read(*place) == all_of_it.read(*place)
        leaves = bytes_of.leaves(range(11, 21), LEAF)
        absent = next(n for n in range(40) if n not in leaves["a.bin"])
        for name, offset in (("a.bin", absent * LEAF), ("held_out.bin", 0)):
            assert all_of_it.read(name, offset, 9)
            vocabulary.refused(IntegrityError, "^ST-DATA-(130|132):", part.read, name, offset, 9)


def test_the_same_bytes_wherever_it_is_packed(run: Whole, whole: Path) -> None:
    again = run.pack("again.stpack", ALL)
    assert again.read_bytes() == whole.read_bytes()
    plain = run.pack("plain.stpack", Wanted())
    assert run.verify(plain).pack.held == ()
    assert plain.stat().st_size < whole.stat().st_size
    data = run.pack("data.stpack", Wanted(dataset=True))
    (held_data,) = run.verify(data).pack.held
    assert held_data.steps is None
    assert held_data.num_bytes == 75_064


def test_what_cannot_be_packed_is_said(run: Whole, tmp_path: Path) -> None:
    for rows, code in (((31, 31), "ST-CHAN-016"), ((0, 3), "ST-CHAN-016")):
        vocabulary.refused(SecureTrainError, code, run.pack, "none.stpack", Wanted(rows=rows))
    line, data_, pieces = with_order(run, replace(WHOLE_ORDER, batch_rows=1 << 20))
    vocabulary.refused(UsageError, "ST-USAG-001", held.rows_wanted, line, data_, pieces, (1, 2))
    newest = max((run.root / "checkpoints").iterdir())
    for name in ("rank-00001.bin", INDEX, "../../data/a.bin"):
        path = newest / name
        good = path.read_bytes()
        for bad in (good[:-1] + bytes([good[-1] ^ 1]), good[:-1]):
            path.write_bytes(bad)
            with pytest.raises(IntegrityError) as altered:
                run.pack("none.stpack", Wanted(weights=True, dataset=True))
            assert altered.value.code[-4:] in {"-130", "-131"}
        path.write_bytes(good)
    assert not (run.root / "none.stpack").exists()


def with_order(run: Whole, order: RowOrder) -> Any:
    """The line of a checkpoint that has recorded two steps in another order."""
    records = [
        {"step": n, "loss": "nan", "norm": "nan", "lr": "nan", "verdict": "clean", "rows": "0" * 64}
        for n in (1, 2)
    ]
    made = recorded("job-1", 0, [canonical.dumps(one) for one in records], order)
    for data in (made.document, *made.pages):
        run.job.pieces.put(data)
    said = replace(run.made[0], bound=replace(run.made[0].bound, step_records=made.digest))
    return [opened(said)], run.dataset, run.job.pieces


# --- attacks: each is taken where nobody checks what is held --------------------------------------


@dataclass
class Forger:
    """A pack that is written anew with other documents, whole as a container."""

    subject: Document
    documents: dict[str, Document]
    contents: dict[str, Any]
    by: dict[str, dict[str, Any]]
    """What is held, by the kind of artifact and its step."""

    @classmethod
    def of(cls, path: Path, result: Verdict) -> "Forger":
        with Pack.open(path) as file:
            found = {
                digest: Document.of(one.media_type, file.read(digest, 1 << 26))
                for digest, one in file.layers.items()
            }
            subject = file.subject.hex
        (listed,) = [n for n, one in found.items() if one.media_type == packing.CONTENTS_TYPE]
        contents = canonical.loads(bytes(found.pop(listed).source))  # type: ignore[arg-type]
        by = {}
        for one in result.pack.held:
            entry = next(e for e in contents["statements"] if e["statement"] == one.envelope)
            held_doc = found.pop(entry.pop("holds"))
            name = "rows" if one.steps else f"step {one.opened.checkpoint.step}"
            by[name] = canonical.loads(bytes(held_doc.source))  # type: ignore[arg-type]
            by[name]["entry"] = entry
        return cls(found[subject], found, contents, by)

    def put(self, data: bytes) -> str:
        made = Document.of(held.BYTES_TYPE, data)
        self.documents[made.digest] = made
        return made.digest

    def bytes_of(self, digest: str) -> bytes:
        data = self.documents[digest].source
        assert isinstance(data, bytes)
        return data

    def write(self, out: Path) -> Path:
        for listed in self.by.values():
            entry = listed.pop("entry")
            data = canonical.dumps(listed).replace(b"[0,9]", b"[0,%d]" % (1 << 63))
            made = Document.of(held.HELD_TYPE, data)
            self.documents[made.digest] = made
            entry["holds"] = made.digest
        contents = Document.of(packing.CONTENTS_TYPE, canonical.dumps(self.contents))
        write_pack(out, self.subject, [contents, *self.documents.values()])
        return out


def flipped(forger: Forger, name: str, file: int, field: str = "data", at: int = 77) -> None:
    entry = forger.by[name]["files"][file]
    data = bytearray(forger.bytes_of(entry[field]))
    data[at % len(data)] ^= 4
    entry[field] = forger.put(bytes(data))


def gone(forger: Forger, name: str, field: str) -> None:
    digest = forger.by[name]["files"][0][field]
    del forger.documents[digest]


def edit(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Forger], None]:
    def do(forger: Forger) -> None:
        change(forger.by[name])

    return do


def weights(change: Callable[[dict[str, Any]], object]) -> Callable[[Forger], None]:
    return edit("step 30", change)


def steps(first: int, last: int) -> Callable[[Forger], None]:
    return edit("rows", lambda rows: rows.update(steps=[first, last]))


def leaves(*runs: list[int]) -> Callable[[Forger], None]:
    return edit("rows", lambda rows: rows["files"][0].update(leaves=list(runs)))


def swap(forger: Forger, first: str, second: str) -> None:
    one, other = forger.by[first], forger.by[second]
    one["entry"], other["entry"] = other["entry"], one["entry"]


def cut_data(forger: Forger, left: int) -> None:
    entry = forger.by["step 30"]["files"][2]
    entry["data"] = forger.put(forger.bytes_of(entry["data"])[:left])


def other_leaf(forger: Forger) -> None:
    """Two leaves of a file change places; each of them was signed."""
    entry = forger.by["rows"]["files"][0]
    data = forger.bytes_of(entry["data"])
    entry["data"] = forger.put(data[LEAF : 2 * LEAF] + data[:LEAF] + data[2 * LEAF :])


def own_tree(forger: Forger) -> None:
    """Other bytes with a way up of their own."""
    entry = forger.by["rows"]["files"][0]
    data = bytearray(forger.bytes_of(entry["data"]))
    data[5] ^= 1
    leaf = entry["leaves"][0][0]
    table = bytearray(forger.bytes_of(entry["table"]))
    table[32 + 32 * leaf : 64 + 32 * leaf] = PARAMS.leaf(leaf, bytes(data[:LEAF]))
    table[:32] = PARAMS.page(0, bytes(table[32:]))
    entry["data"], entry["table"] = forger.put(bytes(data)), forger.put(bytes(table))


def drop_leaf(listed: dict[str, Any]) -> None:
    first, count = listed["files"][0]["leaves"][-1]
    if count > 1:
        listed["files"][0]["leaves"][-1] = [first, count - 1]
    else:
        listed["files"][0]["leaves"].pop()


ATTACKS: dict[str, tuple[str, Callable[[Forger], object]]] = {
    "a weight": ("ST-PACK-131", lambda f: flipped(f, "step 30", 2)),
    "an ancestor's weight": ("ST-PACK-131", lambda f: flipped(f, "step 10", 3)),
    "the index": ("ST-PACK-131", lambda f: flipped(f, "step 30", 1)),
    "a document": ("ST-PACK-131", lambda f: flipped(f, "step 30", 0)),
    "a weight of the ancestor": (
        "ST-PACK-131",
        lambda f: f.by["step 30"]["files"][2].update(f.by["step 20"]["files"][2]),
    ),
    "two ranks change places": (
        "ST-PACK-131",
        weights(lambda w: w["files"][2].update(data=w["files"][3]["data"])),
    ),
    "cut short": ("ST-PACK-131", lambda f: cut_data(f, 4999)),
    "nothing": ("ST-PACK-131", lambda f: cut_data(f, 0)),
    "a rank's file is left out": ("ST-PACK-142", weights(lambda w: w["files"].pop(2))),
    "all files are left out": ("ST-PACK-142", weights(lambda w: w["files"].clear())),
    "the bytes are left out": ("ST-PACK-140", lambda f: gone(f, "step 30", "data")),
    "a twin": ("ST-PACK-101", weights(lambda w: w["files"].insert(0, w["files"][0]))),
    "a file of nobody": (
        "ST-PACK-101",
        weights(lambda w: w["files"].append(dict(w["files"][0], name="z.pkl"))),
    ),
    "a file outside": (
        "ST-PACK-101",
        weights(lambda w: w["files"].insert(0, dict(w["files"][0], name="../x"))),
    ),
    "weights of the ancestor": ("ST-PACK-101", lambda f: swap(f, "step 30", "step 20")),
    "rows as weights": ("ST-PACK-101", lambda f: swap(f, "step 30", "rows")),
    "weights as rows": ("ST-PACK-101", weights(lambda w: w.update(steps=[1, 2]))),
    "rows as a whole dataset": ("ST-PACK-101", edit("rows", lambda w: w.pop("steps"))),
    "a row": ("ST-PACK-131", lambda f: flipped(f, "rows", 0)),
    "a row's way up": ("ST-PACK-131", lambda f: flipped(f, "rows", 0, "table")),
    "a row's page": ("ST-PACK-131", lambda f: flipped(f, "rows", 0, "table", 40)),
    "two rows change places": ("ST-PACK-131", other_leaf),
    "a row with its own tree": ("ST-PACK-131", own_tree),
    "rows are left out": ("ST-PACK-140", lambda f: gone(f, "rows", "data")),
    "the way up is left out": ("ST-PACK-140", lambda f: gone(f, "rows", "table")),
    "a leaf is left out": ("ST-PACK-142", edit("rows", drop_leaf)),
    "a file of rows is left out": ("ST-PACK-142", edit("rows", lambda w: w["files"].pop())),
    "leaves far away": ("ST-PACK-142", leaves([1 << 52, 1 << 52])),
    "more steps than there are rows of": ("ST-PACK-142", steps(1, 30)),
    "rows of other steps": ("ST-PACK-142", steps(21, 30)),
    "steps that nobody has done": ("ST-CHAN-016", steps(11, 1 << 50)),
    "steps backwards": ("ST-PACK-101", steps(20, 11)),
    "a row without its way up": ("ST-PACK-101", edit("rows", lambda w: w["files"][0].pop("table"))),
    "rows of no step": ("ST-PACK-101", steps(0, 20)),
    "a size of 2^63": ("ST-PACK-101", leaves([0, 9])),
    "an unknown field": ("ST-PACK-101", edit("rows", lambda w: w.update(also=1))),
}


@pytest.mark.forgery
@pytest.mark.parametrize("name", ATTACKS)
def test_bytes_that_were_not_signed_are_refused(  # noqa: PLR0917 - fixtures
    checks: Switches, run: Whole, found: Verdict, name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """Where nobody checks what is held, the same pack is taken."""
    code, attack = ATTACKS[name]
    forger = Forger.of(Path(found.path), found)
    attack(forger)
    path = forger.write(tmp_path / "forged.stpack")
    result = run.verify(path)
    assert code in codes(result), result.problems
    assert not result.ok
    hold(checks, "bytes", name, lambda: why(run.verify(path)))
    unread = SimpleNamespace(opened=found.opened, steps=(0, 0), num_bytes=0)
    monkeypatch.setattr(packed, "check", lambda *_: unread)
    assert run.verify(path).problems == [], "the control"


@pytest.mark.forgery
def test_what_is_changed_after_it_was_verified_is_never_written(run, whole, tmp_path):
    copy = tmp_path / "copy.stpack"
    copy.write_bytes(whole.read_bytes())
    with Pack.open(copy) as file:
        result = verify(file, trust=run.trust(), now=LATER)
        for number, one in enumerate(result.pack.held):
            files = one.held.files
            place, _ = file._places[files[-1].data]
            data = bytearray(whole.read_bytes())
            data[place + 9] ^= 1
            copy.write_bytes(data)
            with pytest.raises(IntegrityError) as refused:
                unpacking.unpack(file, one, tmp_path / f"out-{number}")
            assert refused.value.code == "ST-PACK-131"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["copy.stpack"]


def test_a_large_file_is_read_in_pieces(run: Whole, tmp_path: Path) -> None:
    """64 MiB go through with a few MiB of memory."""
    data = random.Random(1).randbytes(1 << 20) * 64
    path = tmp_path / "rank-00000.bin"
    path.write_bytes(data)
    said: CheckpointPredicate = replace(
        run.made[0],
        tree=TreeInfo.of(TreeParams()),
        files=[RankFile(name=path.name, size=len(data), root=_root(data), rank=0)],
        documents=[],
        index=IndexFile(name=INDEX, size=0, sha256=hashlib.sha256(b"").hexdigest()),
        parents=[Parent(digest="00" * 32)],
    )
    (tmp_path / INDEX).write_bytes(b"")
    (tmp_path / STATEMENT).write_bytes(b"{}")
    about = opened(said, digest_of(said))
    del data
    tracemalloc.start()
    made = held.hold_whole(tmp_path, about)
    listed = Document.of(held.HELD_TYPE, documents.encode(made.held))
    subject = Document.of(packing.STATEMENT_TYPE, b"{}")
    write_pack(tmp_path / "big.stpack", subject, [listed, *made.documents])
    with Pack.open(tmp_path / "big.stpack") as file:
        holding = unpacking.check(file, listed.digest, subject.digest, about, lambda _: {})
        assert holding.num_bytes == 64 << 20
        unpacking.unpack(file, holding, tmp_path / "out")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 << 20
    assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def _root(data: bytes) -> str:
    made = TreeWriter(TreeParams())
    made.update(data)
    return made.finish().root.hex()


def test_the_commands_pack_and_unpack(run, whole, tmp_path, capsys, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            del tz
            return LATER

    monkeypatch.setattr(clock, "datetime", Clock)
    root = tmp_path / "trust.json"
    root.write_bytes(run.trust_bytes())
    newest = max((run.root / "checkpoints").iterdir())
    made = tmp_path / "a.stpack"
    words = [str(newest), "--trust", str(root), "--out", str(made), "--json"]
    assert main(["pack", *words, "--weights-since", "10", "--rows", "11-20"]) == 0
    assert made.read_bytes() == whole.read_bytes()
    capsys.readouterr()
    ask = ["--trust", str(root), "--json"]
    assert main(["unpack", str(made), *ask, "--out", str(tmp_path / "out")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [Path(one["path"]).name for one in said["held"]] == [
        *("step-00000030", "step-00000020", "step-00000010", "dataset")
    ]
    assert tree(tmp_path / "out" / newest.name) == tree(newest)
    # What is refused is not unpacked, and neither is what is not there; over nothing.
    flat = run.pack(f"{tmp_path.name}.stpack", Wanted())
    for pack_, out, code in ((flat, "none", 2), (made, "out", 2)):
        assert main(["unpack", str(pack_), *ask, "--out", str(tmp_path / out)]) == code
    data = bytearray(made.read_bytes())
    data[data.index((newest / "rank-00000.bin").read_bytes()) + 5] ^= 1
    bad = tmp_path / "bad.stpack"
    bad.write_bytes(data)
    capsys.readouterr()
    assert main(["unpack", str(bad), *ask, "--out", str(tmp_path / "none")]) == 13
    assert "ST-PACK-131" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
    for rows in ("0-4", "9-8", "x", "1-", "1-9999999999999999999"):
        bad_words = [*words[:-2], str(tmp_path / "b.stpack"), "--rows", rows]
        assert (main(["pack", *bad_words]) != 0) is (rows != "1-")
