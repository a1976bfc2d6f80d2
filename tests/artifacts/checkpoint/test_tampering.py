# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The numbered list of tampering with checkpoints: each case refused, with its code.

A case changes a good checkpoint; loading and verifying must both refuse it, nothing unverified may
be left in the targets, and nothing may have been unpickled or started. Where torch's own loader
takes the same change, a test beside shows that it does. Numbers whose attack needs other scenery
are led to the test that has it.
"""

import base64
import hashlib
import multiprocessing
import os
import random
import shutil
import sys
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader

from securetrain.artifacts import load, save, verify_path
from securetrain.artifacts.statement.statements import (
    CHECKPOINT_TYPE,
    DIGEST_NAME,
    CheckpointPredicate,
    digest_of,
)
from securetrain.artifacts.tree.layout import INDEX, STATEMENT
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError
from securetrain.identity import dsse, statement
from tests import vocabulary
from tests.artifacts.checkpoint.worlds import DATA, SMALL, context_of, stock_load, stock_save
from tests.trees import tree_of

ROOT: Final = Path(__file__).resolve().parents[3]
TABLE: Final = f"{DATA}.leaves"
LEAF: Final = SMALL.leaf_size

# What happened while the hook listened: unpickling and programs, of which there must be none.
_heard: list[str] = []
_listening: list[bool] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _listening and event in {
        "pickle.find_class",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "subprocess.Popen",
        "socket.connect",
        "ctypes.dlopen",
        "marshal.loads",
    }:
        _heard.append(f"{event} {str(args)[:80]}")


sys.addaudithook(_hook)


def state(step: int = 7) -> dict[str, Any]:
    torch.manual_seed(step)
    return {"a": torch.randn(1000), "b": torch.randn(1000), "c": torch.randn(40, 30), "step": step}


def blank() -> dict[str, Any]:
    return {"a": torch.ones(1000), "b": torch.ones(1000), "c": torch.ones(40, 30), "step": None}


def assert_unread(target: dict[str, Any]) -> None:
    """Each is as it was, or zero: nothing that was not verified."""
    assert target["step"] is None
    for name in ("a", "b", "c"):
        assert bool((target[name] == 0).all()) or bool((target[name] == 1).all())


@pytest.fixture(scope="module")
def good(keys, now, tmp_path_factory):
    """Checkpoints of steps 6 and 7 of one run; copied before anything is changed."""
    root = tmp_path_factory.mktemp("good")
    for step in (6, 7):
        context = context_of(now, step, seq=step)
        save(state(step), root / f"s{step}", key=keys.checkpoint, context=context, params=SMALL)
    return root


@pytest.fixture
def ckpt(good, tmp_path):
    shutil.copytree(good / "s7", tmp_path / "ckpt")
    return tmp_path / "ckpt"


@pytest.fixture
def refused(trust, now):
    """The code with which both loading and verifying refuse."""

    def run(path: Path) -> str:
        target = blank()
        _heard.clear()
        _listening.append(True)
        try:
            with pytest.raises(IntegrityError) as caught:
                load(target, path, trust=trust, policy=None, now=now)
            result = verify_path(path, trust=trust, policy=None, now=now)
        finally:
            _listening.clear()
        assert _heard == []
        assert not result.ok
        assert caught.value.code in {problem.code for problem in result.problems}
        assert_unread(target)
        return caught.value.code

    return run


def rewrite(path: Path, change: Callable[[bytearray], Any]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def in_data(change: Callable[[bytearray], Any], name: str = DATA) -> Callable[[Path], None]:
    return lambda root: rewrite(root / name, change)


def flip(name: str, offset: int) -> Callable[[Path], None]:
    return in_data(lambda data: data.__setitem__(offset, data[offset] ^ 4), name)


def zeros(data: bytearray, at: int = 0) -> None:
    data[at : at + 64] = bytes(64)


def swap(data: bytearray, one: int, other: int, length: int) -> None:
    here, there = slice(one, one + length), slice(other, other + length)
    data[here], data[there] = data[there], data[here]


def hole(root: Path) -> None:
    with (root / DATA).open("r+b") as file:
        size = file.seek(0, 2)
        file.truncate(LEAF)
        file.truncate(size)


def two_leaves(data: bytearray) -> None:
    swap(data, 0, LEAF, LEAF)


def leaves_and_hashes(root: Path) -> None:
    rewrite(root / DATA, two_leaves)
    rewrite(root / TABLE, lambda data: swap(data, 0, 32, 32))


def tables_with_data(root: Path) -> None:
    flip(DATA, 5)(root)
    (root / TABLE).write_bytes(tree_of(SMALL, (root / DATA).read_bytes()).leaves)


def other_step(*names: str) -> Callable[[Path], None]:
    """Files of step 6, good by themselves, in the checkpoint of step 7."""

    def change(root: Path) -> None:
        for name in names:
            shutil.copyfile(OLD[0] / name, root / name)

    return change


OLD: list[Path] = []


def to_link(root: Path) -> None:
    shutil.move(root / DATA, root.parent / "away")
    (root / DATA).symlink_to(root.parent / "away")


def to_fifo(root: Path) -> None:
    (root / DATA).unlink()
    os.mkfifo(root / DATA)


def device(root: Path) -> None:
    (root / DATA).unlink()
    (root / DATA).symlink_to("/dev/zero")


def folder(name: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / name).unlink(missing_ok=True)
        (root / name).mkdir(parents=True)
        (root / name / "payload").write_bytes(b"x")

    return change


def add(name: str, data: bytes = b"x") -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(data)

    return change


CASES: Final[dict[str, tuple[Callable[[Path], Any], str]]] = {
    "T1 a bit of a tensor": (flip(DATA, 2000), "ST-CKPT-130"),
    "T1 the first byte": (flip(DATA, 0), "ST-CKPT-130"),
    "T1 the last byte": (flip(DATA, -1), "ST-CKPT-130"),
    "T1 padding between tensors": (flip(DATA, 4001), "ST-CKPT-130"),
    "T2 truncated": (in_data(bytearray.pop), "ST-CKPT-131"),
    "T2 appended": (in_data(lambda data: data.append(0)), "ST-CKPT-131"),
    "T2 emptied": (lambda r: (r / DATA).write_bytes(b""), "ST-CKPT-131"),
    "T2 filled with zeros": (in_data(zeros), "ST-CKPT-130"),
    "T2 a hole": (hole, "ST-CKPT-130"),
    "T3 two leaves": (in_data(two_leaves), "ST-CKPT-130"),
    "T3 two leaves and their hashes": (leaves_and_hashes, "ST-CKPT-132"),
    "T3 two tensors of one size": (in_data(lambda d: swap(d, 0, 4032, 4000)), "ST-CKPT-130"),
    "T4 the table with the data": (tables_with_data, "ST-CKPT-132"),
    "T4 the table alone": (flip(TABLE, 40), "ST-CKPT-132"),
    "T5 the data of step N-1": (other_step(DATA), "ST-CKPT-130"),
    "T5 data and table of step N-1": (other_step(DATA, TABLE), "ST-CKPT-132"),
    "T5 the index of step N-1": (other_step(INDEX), "ST-CKPT-132"),
    "T5 the statement of step N-1": (other_step(STATEMENT), "ST-CKPT-132"),
    "T7 a symbolic link": (to_link, "ST-CKPT-142"),
    "T7 a hard link": (lambda r: os.link(r / DATA, r.parent / "second"), "ST-CKPT-142"),
    "T7 a FIFO": (to_fifo, "ST-CKPT-142"),
    "T7 a device": (device, "ST-CKPT-142"),
    "T8 zzz.safetensors": (add("zzz.safetensors"), "ST-CKPT-141"),
    "T8 __9_0.distcp": (add("__9_0.distcp"), "ST-CKPT-141"),
    "T8 __0.metadata": (add("__0.metadata"), "ST-CKPT-141"),
    "T8 an empty file": (add("empty", b""), "ST-CKPT-141"),
    "T8 a file in .git": (add(".git/config"), "ST-CKPT-141"),
    "T8 a folder called as the statement": (folder(STATEMENT), "ST-CKPT-142"),
    "T9 no data": (lambda r: (r / DATA).unlink(), "ST-CKPT-140"),
    "T9 no table": (lambda r: (r / TABLE).unlink(), "ST-CKPT-140"),
    "T9 no index": (lambda r: (r / INDEX).unlink(), "ST-CKPT-140"),
    "T10 a twin by case": (add("RANK-00000.bin"), "ST-CKPT-142"),
    "T10 a name that is not NFC": (add("e\u0301"), "ST-CKPT-142"),
    "T10 a backslash": (add("a\\b"), "ST-CKPT-142"),
    "T10 a colon": (add("a:b"), "ST-CKPT-142"),
    "T11 .metadata beside it": (add(".metadata", b"cos\nsystem\n(S'id'\ntR."), "ST-CKPT-141"),
    "T31 no statement": (lambda r: (r / STATEMENT).unlink(), "ST-CKPT-100"),
    "T31 an empty statement": (lambda r: (r / STATEMENT).write_bytes(b""), "ST-CKPT-101"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_case_of_the_list(name, ckpt, good, refused):
    change, code = CASES[name]
    OLD[:] = [good / "s6"]
    change(ckpt)
    assert refused(ckpt) == code


def test_control_the_checkpoint_that_is_tampered_with_is_good(ckpt, trust, now):
    target = blank()
    load(target, ckpt, trust=trust, policy=None, now=now)
    assert all(torch.equal(target[name], state()[name]) for name in ("a", "b", "c"))
    assert target["step"] == 7
    assert verify_path(ckpt, trust=trust, policy=None, now=now).ok


# -- what a trusted key may sign and still not get through -------------------------------------


def resign(root: Path, keys: Any, change: Callable[[dict[str, Any]], Any]) -> None:
    """Sign another predicate with the right key, without any check of ours."""
    frame = frame_of(root)
    change(frame)
    signed = dsse.sign(canonical.dumps(frame), dsse.IN_TOTO, [keys.checkpoint])
    (root / STATEMENT).write_bytes(signed)


def frame_of(root: Path) -> dict[str, Any]:
    envelope = canonical.decode((root / STATEMENT).read_bytes(), dsse.Envelope)
    frame: dict[str, Any] = canonical.loads(base64.b64decode(envelope.payload))
    return frame


def said(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda frame: frame["predicate"].update(fields)


def in_file(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda frame: frame["predicate"]["files"][0].update(fields)


def in_tree(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda frame: frame["predicate"]["tree"].update(fields)


SIGNED: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "T10 ../": in_file(name="../secret"),
    "T10 absolute": in_file(name="/etc/shadow"),
    "T10 NUL": in_file(name="rank\x00.bin"),
    "T10 a colon": in_file(name="rank:0"),
    "T17 the largest size that can be written": in_file(size=(1 << 53) - 1),
    "T17 a negative size": in_file(size=-1),
    "T22 two files of one name": lambda f: f["predicate"]["files"].append(
        dict(f["predicate"]["files"][0], rank=0)
    ),
    "T23 a digest that is not that of the files": lambda f: f["subject"][0]["digest"].update(
        securetrainTree1="0" * 64
    ),
    "T23 no subject": lambda f: f["subject"].clear(),
    "T24 no files": said(files=[]),
    "T25 md5": in_tree(algorithm="md5"),
    "T25 none": in_tree(algorithm=""),
    "T25 leaves of 0 bytes": in_tree(leafSize=0),
    "T25 leaves of 2^40 bytes": in_tree(leafSize=2**40),
    "T25 another algorithm than was hashed with": in_tree(algorithm="sha256"),
    "T30 a root of null": in_file(root=None),
    "T30 an empty root": in_file(root=""),
    "T30 no root": lambda f: f["predicate"]["files"][0].pop("root"),
    "T30 an index without a digest": lambda f: f["predicate"]["index"].update(sha256=None),
    "T35 a parent that is no digest": said(parents=[{"digest": "", "role": "previous"}]),
    "T42 a file called otherwise": in_file(name="rank-00001.bin"),
}


@pytest.mark.parametrize("name", SIGNED)
def test_a_case_that_a_trusted_key_has_signed(name, ckpt, refused, keys):
    resign(ckpt, keys, SIGNED[name])
    assert refused(ckpt) == "ST-CKPT-101"


def test_control_a_statement_that_is_signed_again_unchanged_loads(ckpt, keys, trust, now):
    resign(ckpt, keys, lambda _: None)
    assert verify_path(ckpt, trust=trust, policy=None, now=now).ok


def test_t24_a_dropped_file_with_a_fitting_digest(ckpt, keys, refused):
    """The coordinator drops the only file and signs consistently: the index speaks of it."""
    predicate = msgspec.convert(frame_of(ckpt)["predicate"], CheckpointPredicate)
    shorter = msgspec.structs.replace(predicate, files=[])
    subject = statement.Subject("ckpt", {DIGEST_NAME: digest_of(shorter)})
    signed = statement.sign([subject], CHECKPOINT_TYPE, shorter, keys.checkpoint)
    (ckpt / STATEMENT).write_bytes(signed)
    (ckpt / DATA).unlink()
    (ckpt / TABLE).unlink()
    assert refused(ckpt) == "ST-CKPT-191"


# -- the same done to torch's own format --------------------------------------------------------


def stock(root: Path, step: int = 7) -> Path:
    return stock_save(state(step), root)


def stock_loads(path: Path) -> dict[str, Any]:
    return stock_load(blank(), path.parent)


def place(data: bytearray, name: str) -> int:
    return data.index(state()[name].numpy().tobytes())


def flip_in_a(data: bytearray) -> None:
    data[place(data, "a") + 2000] ^= 4


STOCK: Final[dict[str, Callable[[bytearray], Any]]] = {
    "T1 a bit of a tensor": flip_in_a,
    "T2 filled with zeros": lambda d: zeros(d, place(d, "a")),
    "T3 two tensors of one size": lambda d: swap(d, place(d, "a"), place(d, "b"), 4000),
}


@pytest.mark.parametrize("name", STOCK)
def test_torch_takes_the_same_change_without_a_word(name, tmp_path):
    assert name in CASES
    path = stock(tmp_path / "stock")
    rewrite(path, STOCK[name])
    assert not torch.equal(stock_loads(path)["a"], state()["a"])


def test_torch_takes_a_shard_of_another_step_and_files_that_were_added(tmp_path):
    """T5, T8."""
    new, old = stock(tmp_path / "new"), stock(tmp_path / "old", 6)
    shutil.copyfile(old, new)
    (new.parent / "__9_0.distcp").write_bytes(b"x")
    assert torch.equal(stock_loads(new)["a"], state(6)["a"])


def test_torch_asks_no_checksum(tmp_path):
    """T4: the CRC of its own archives is not looked at, and whoever writes can write it too."""
    path = stock(tmp_path / "stock")
    data = path.read_bytes()
    item = state()["a"].numpy().tobytes()
    crc = zlib.crc32(item).to_bytes(4, "little")
    changed = bytes(4000)
    for fitting in (crc, zlib.crc32(changed).to_bytes(4, "little")):
        path.write_bytes(data.replace(item, changed).replace(crc, fitting))
        assert torch.equal(stock_loads(path)["a"], torch.zeros(1000))


def test_what_was_checked_before_torch_loads_it_is_not_what_it_loads(tmp_path, monkeypatch):
    """T6: a digest of the whole file is right, then somebody writes, then torch reads."""
    path = stock(tmp_path / "stock")
    digest = hashlib.sha256(path.read_bytes()).digest()
    real = FileSystemReader.read_data

    def read_data(self, plan, planner):
        assert hashlib.sha256(path.read_bytes()).digest() == digest
        rewrite(path, STOCK["T1 a bit of a tensor"])
        return real(self, plan, planner)

    monkeypatch.setattr(FileSystemReader, "read_data", read_data)
    assert not torch.equal(stock_loads(path)["a"], state()["a"])


def test_torch_follows_links(tmp_path):
    """T7: who owns the other name can write to it while it is loaded."""
    path = stock(tmp_path / "stock")
    os.link(path, tmp_path / "second")
    assert torch.equal(stock_loads(path)["a"], state()["a"])
    path.rename(tmp_path / "away")
    path.symlink_to(tmp_path / "away")
    assert torch.equal(stock_loads(path)["a"], state()["a"])


def _fifo(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    os.mkfifo(path)

    def feed() -> None:
        # Torch hangs up without reading.
        with suppress(OSError), path.open("wb") as file:
            file.write(data)

    threading.Thread(target=feed, daemon=True).start()


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("change", [_fifo, _device, Path.unlink])
def test_torch_fails_on_what_is_no_file(tmp_path, change):
    """T7, T9."""
    path = stock(tmp_path / "stock")
    change(path)
    vocabulary.refused(BaseException, "CheckpointException", stock_loads, path)


def test_torch_loads_whatever_checkpoint_lies_there(tmp_path):
    """T32: an older one in the newest one's place."""
    new, old = stock(tmp_path / "new"), stock(tmp_path / "old", 6)
    shutil.rmtree(new.parent)
    old.parent.rename(new.parent)
    target = stock_loads(new)
    assert target["step"] == 6
    assert torch.equal(target["a"], state(6)["a"])


# -- numbers whose scenery is elsewhere ---------------------------------------------------------

_TAMPER = "tests/artifacts/checkpoint/test_tamper.py"
_LEGACY = "tests/artifacts/checkpoint/test_legacy.py"
_FRESH = "tests/artifacts/lineage/test_freshness.py"
_MEMBERS = "tests/artifacts/statement/test_members.py"
ELSEWHERE: Final = {
    "T6": ("tests/artifacts/checkpoint/test_tampering.py", "test_races_with_a_writer"),
    "T11": (_LEGACY, "test_metadata_that_runs_code"),
    "T12": (_LEGACY, "test_metadata_of_a_rank_in_place_of_the_global_one"),
    "T13": (_LEGACY, "test_a_value_that_runs_code"),
    "T14": (_TAMPER, "test_a_false_index_signed_by_a_trusted_key"),
    "T15": (_LEGACY, "test_a_path_out_of_the_directory"),
    "T16": (_LEGACY, "test_exchanged_places"),
    "T17": (_LEGACY, "test_an_index_that_lies"),
    "T32": (_FRESH, "test_a_store_that_shows_an_old_head_with_an_old_checkpoint"),
    "T33": (_FRESH, "test_a_head_that_has_expired"),
    "T34": (_FRESH, "test_two_checkpoints_of_one_number"),
    "T35": (_FRESH, "test_a_checkpoint_that_the_head_does_not_know_yet"),
    "T36": ("tests/train/test_run.py", "test_a_checkpoint_of_another_dataset_is_not_continued"),
    "T37": (_FRESH, "test_a_leaked_keys_number_dies_with_the_key"),
    "T38": (_FRESH, "test_a_waiver_that_does_not_count_is_a_refusal"),
    "T41": (_MEMBERS, "test_a_file_of_another_step_with_its_own_signature"),
    "T42": (_MEMBERS, "test_a_coordinator_drops_renames_and_exchanges_files"),
    "T43": (_FRESH, "test_a_quarantine_is_remembered_and_can_be_waived"),
}
# Envelopes, trust roots and the log (T18 to T22, T26 to T29, T39, T40) are for tests/identity.
NUMBERS: Final = {*range(1, 18), 23, 24, 25, 30, 31, *range(32, 39), 41, 42, 43}


def test_no_number_of_the_list_is_without_a_test():
    here = {int(name.split()[0][1:]) for name in (*CASES, *SIGNED)}
    there = {int(number[1:]) for number in ELSEWHERE}
    assert here | there >= NUMBERS
    for file, name in ELSEWHERE.values():
        text = (ROOT / file).read_text()
        assert f"def {name}(" in text, name


# -- many of them -------------------------------------------------------------------------------


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Some other bytes."""
    out = bytearray(data)
    at = chance.randrange(len(out))
    match chance.randrange(6):
        case 0:
            out[at] ^= 1 << chance.randrange(8)
        case 1:
            del out[at : at + chance.randrange(1, 40)]
        case 2:
            out[at:at] = chance.randbytes(chance.randrange(1, 40))
        case 3:
            out[at : at + 16] = chance.randbytes(len(out[at : at + 16]))
        case 4:
            other = chance.randrange(len(out))
            length = chance.randrange(1, 64)
            piece = out[other : other + length]
            out[at : at + len(piece)] = piece
        case _:
            out = out[:at]
    return bytes(out)


def campaign(root: Path, count: int, trust: Any, now: Any) -> int:
    """Mutate, load, restore; returns how many were really changed."""
    chance = random.Random(7)
    files = {path.name: path.read_bytes() for path in root.iterdir()}
    changed = 0
    for _ in range(count):
        name = chance.choice(sorted(files))
        data = mutate(files[name], chance)
        if data == files[name]:
            continue
        changed += 1
        (root / name).write_bytes(data)
        target = blank()
        try:
            with pytest.raises(IntegrityError):
                load(target, root, trust=trust, policy=None, now=now)
        finally:
            (root / name).write_bytes(files[name])
        assert_unread(target)
    return changed


@pytest.mark.parametrize(
    "count", [250, pytest.param(10_000, marks=[pytest.mark.many, pytest.mark.timeout(900)])]
)
def test_random_mutations(ckpt, trust, now, count):
    _heard.clear()
    _listening.append(True)
    try:
        changed = campaign(ckpt, count, trust, now)
    finally:
        _listening.clear()
    assert changed > count * 0.9
    assert _heard == []


def _write_for_ever(path: str, good: bytes) -> None:
    chance = random.Random(11)
    with Path(path).open("r+b", buffering=0) as file:
        while True:
            at = chance.randrange(len(good) - 64)
            file.seek(at)
            file.write(chance.randbytes(64))
            file.seek(at)
            file.write(good[at : at + 64])


@pytest.mark.dist
@pytest.mark.parametrize(
    "count", [60, pytest.param(1_000, marks=[pytest.mark.many, pytest.mark.timeout(900)])]
)
def test_races_with_a_writer(ckpt, trust, now, count):
    """T6: somebody writes to the file all the time. Every load is refused or right."""
    good = (ckpt / DATA).read_bytes()
    writer = multiprocessing.get_context("fork").Process(
        target=_write_for_ever, args=(str(ckpt / DATA), good), daemon=True
    )
    writer.start()
    wrong = refused_loads = 0
    try:
        for _ in range(count):
            target = blank()
            try:
                load(target, ckpt, trust=trust, policy=None, now=now)
            except IntegrityError as error:
                refused_loads += error.code == "ST-CKPT-130"
                continue
            wrong += not all(torch.equal(target[n], state()[n]) for n in ("a", "b", "c"))
    finally:
        writer.kill()
        writer.join()
    assert wrong == 0
    assert refused_loads > 0  # the race was one
