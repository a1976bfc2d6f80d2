# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import os
import pickle
import random
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from securetrain.artifacts import content, report, verify
from securetrain.artifacts.dataset.verified import sign_documents
from securetrain.artifacts.model.safetensors_folder import sign_safetensors
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.reading import check_listing, open_data
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    GradientRecord,
    digest_of,
)
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.layout import INDEX, STATEMENT, Kind, most_telling
from securetrain.artifacts.tree.safetensors_header import encode_header
from securetrain.core.codes import CODES, ExitCode
from securetrain.core.errors import UsageError
from securetrain.core.hashtree import TreeParams
from securetrain.policy.load import load_policy
from tests.tables import items
from tests.trees import tree_of

DATA = "rank-00000.bin"
TABLE = "rank-00000.bin.leaves"


@pytest.fixture
def check(trust, now):
    def run(path, **more):
        arguments = {"trust": trust, "policy": None, "now": now, **more}
        return verify.verify_path(path, **arguments)

    return run


@pytest.fixture
def checkpoint(forge, tmp_path):
    forge(tmp_path / "step-100")
    return tmp_path / "step-100"


@pytest.fixture
def dataset(tmp_path, keys, now):
    made = sign_documents(
        [("train", "a", b"a" * 1500), ("train", "b", b"b" * 700), ("validation", "c", b"c" * 90)],
        tmp_path / "data",
        name="corpus",
        key=keys.dataset,
        now=now,
        params=TreeParams(leaf_size=1024),
    )
    return made.path


def codes(result):
    assert not result.ok
    assert result.exit_code == CODES[most_telling(result.problems).code].exit
    return [problem.code for problem in result.problems]


def flip(path: Path, offset: int, bit: int = 3) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (value,) = file.read(1)
        file.seek(offset)
        file.write(bytes([value ^ (1 << bit)]))


def test_a_good_checkpoint(checkpoint, check, keys):
    result = check(checkpoint)
    assert result.ok
    assert result.exit_code is ExitCode.OK
    assert result.kind == "checkpoint"
    assert result.num_files == 2
    assert result.num_bytes == 2500 + (checkpoint / INDEX).stat().st_size
    assert isinstance(result.statement, CheckpointPredicate)
    assert result.statement.step == 100
    assert result.digest == digest_of(result.statement)
    assert result.key_ids == {keys.checkpoint.key_id}


def test_a_good_dataset(dataset, check, keys):
    result = check(dataset)
    assert result.ok
    assert result.kind is Kind.DATASET
    assert result.num_files == 4
    assert result.key_ids == {keys.dataset.key_id}


def test_a_policy_is_asked_when_it_is_given(forge, check, tmp_path, now):
    forge(tmp_path / "c", gradients=GradientRecord())
    assert check(tmp_path / "c").ok
    result = check(tmp_path / "c", policy=load_policy("baseline").policy)
    assert codes(result) == ["ST-CKPT-121", "ST-CHAN-010"]
    assert result.exit_code is ExitCode.POLICY
    # All bytes were checked all the same.
    assert result.num_files == 2
    late = check(
        tmp_path / "c", policy=load_policy("hardened").policy, now=now + timedelta(days=100)
    )
    # Nobody but the coordinator has signed, it is old, refused, and no head knows it.
    expected = ["ST-CKPT-122", "ST-CKPT-150", "ST-CKPT-121", "ST-CHAN-010", "ST-CKPT-152"]
    assert codes(late) == expected
    assert late.exit_code is ExitCode.POLICY


STATEMENT_CODES = {"100", "101", "110", "120"}


def expected_codes(name: str) -> set[str]:
    if name == STATEMENT:
        return STATEMENT_CODES
    if name == INDEX or name.endswith((".leaves", ".tree")):
        return {"132"}
    return {"130"}


@pytest.mark.parametrize("which", ["checkpoint", "dataset"])
def test_any_one_changed_byte_is_found_and_its_file_is_named(which, request, check):
    root = request.getfixturevalue(which)
    rng = random.Random(7)
    files = sorted(p for p in root.rglob("*") if p.is_file())
    assert len(files) >= 4
    for path in files:
        name = path.relative_to(root).as_posix()
        size = path.stat().st_size
        # Every byte of the tables and indexes, and a sample of what is longer.
        places = range(size) if size <= 600 else sorted(rng.sample(range(size), 150))
        for offset in places:
            bit = rng.randrange(8)
            flip(path, offset, bit)
            result = check(root)
            flip(path, offset, bit)
            assert {code[-3:] for code in codes(result)} <= expected_codes(name), (name, offset)
            for problem in result.problems:
                assert problem.file == name
                if problem.offset is not None:
                    assert problem.offset <= offset < problem.offset + problem.length
    assert check(root).ok


def test_damage_is_led_to_its_tensors(checkpoint, check):
    # Leaf 0 holds all of "first" and 24 bytes of padding; leaves 1 and 2 hold "second".
    for offset, names in [(0, "first"), (1010, "first"), (1024, "second"), (2499, "second")]:
        flip(checkpoint / DATA, offset)
        (problem,) = check(checkpoint).problems
        assert (problem.code, problem.file, problem.tensor) == ("ST-CKPT-130", DATA, names)
        assert problem.offset == offset // 1024 * 1024
        flip(checkpoint / DATA, offset)


def test_with_a_damaged_index_no_tensor_is_guessed(checkpoint, check):
    flip(checkpoint / DATA, 0)
    flip(checkpoint / INDEX, 5)
    result = check(checkpoint)
    assert codes(result) == ["ST-CKPT-132", "ST-CKPT-130"]
    assert "cannot be led to tensors" in result.problems[0].what
    assert result.problems[1].tensor == ""
    assert result.problems[1].offset == 0
    assert result.num_files == 0


def test_with_a_damaged_table_the_data_is_still_judged(checkpoint, check):
    flip(checkpoint / TABLE, 0)
    result = check(checkpoint)
    assert codes(result) == ["ST-CKPT-132"]
    assert result.num_files == 2
    flip(checkpoint / DATA, 0)
    result = check(checkpoint)
    assert codes(result) == ["ST-CKPT-132", "ST-CKPT-130"]
    assert result.problems[1].length == 2500


def test_tables_edited_together_with_the_data(checkpoint, check):
    flip(checkpoint / DATA, 0)
    tree = tree_of(TreeParams(leaf_size=1024), (checkpoint / DATA).read_bytes())
    (checkpoint / TABLE).write_bytes(tree.leaves)
    assert codes(check(checkpoint)) == ["ST-CKPT-132", "ST-CKPT-130"]


def test_files_of_another_step(forge, check, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    forge(old, os.urandom(2500))
    forge(new, os.urandom(2500))
    for name in (DATA, TABLE):
        shutil.copyfile(old / name, new / name)
    assert codes(check(new)) == ["ST-CKPT-132", "ST-CKPT-130"]
    assert check(old).ok


@items(
    "change, expected",
    (lambda p: (p / STATEMENT).unlink(), ["ST-CKPT-100"]),
    (lambda p: (p / STATEMENT).write_bytes(b"{}"), ["ST-CKPT-101"]),
    (lambda p: (p / DATA).unlink(), ["ST-CKPT-140"]),
    (lambda p: (p / TABLE).unlink(), ["ST-CKPT-140"]),
    (lambda p: (p / INDEX).unlink(), ["ST-CKPT-140"]),
    (lambda p: os.truncate(p / DATA, 2499), ["ST-CKPT-131"]),
    (lambda p: os.truncate(p / DATA, 2501), ["ST-CKPT-131"]),
    (lambda p: os.truncate(p / DATA, 0), ["ST-CKPT-131"]),
    (lambda p: os.truncate(p / TABLE, 1), ["ST-CKPT-131"]),
    (lambda p: (p / "zzz.safetensors").write_bytes(b"x"), ["ST-CKPT-141"]),
    (lambda p: (p / "__9_0.distcp").write_bytes(b"x"), ["ST-CKPT-141"]),
    (lambda p: (p / ".metadata").write_bytes(b"x"), ["ST-CKPT-141"]),
    (lambda p: (p / ".git").mkdir() or (p / ".git/x").write_bytes(b""), ["ST-CKPT-141"]),
    (lambda p: (p / "empty").mkdir(), ["ST-CKPT-142"]),
    (lambda p: os.mkfifo(p / "pipe"), ["ST-CKPT-142"]),
    (lambda p: (p / "RANK-00000.BIN").write_bytes(b"x"), ["ST-CKPT-142", "ST-CKPT-141"]),
    (lambda p: (p / "a:b").write_bytes(b""), ["ST-CKPT-142"]),
    (lambda p: (p / "link").symlink_to("/etc"), ["ST-CKPT-142"]),
)
def test_structural_tampering(checkpoint, check, change, expected):
    change(checkpoint)
    assert list(dict.fromkeys(codes(check(checkpoint)))) == expected


def test_links_in_place_of_files(checkpoint, check, tmp_path):
    for name in (DATA, TABLE, INDEX, STATEMENT):
        away = tmp_path / "away"
        (checkpoint / name).rename(away)
        (checkpoint / name).symlink_to(away)
        assert set(codes(check(checkpoint))) == {"ST-CKPT-142"}, name
        (checkpoint / name).unlink()
        away.rename(checkpoint / name)
    os.link(checkpoint / DATA, tmp_path / "second-name")
    assert set(codes(check(checkpoint))) == {"ST-CKPT-142"}
    (tmp_path / "second-name").unlink()
    latest = tmp_path / "latest"
    latest.symlink_to(checkpoint)
    assert codes(check(latest)) == ["ST-CKPT-142"]
    assert check(checkpoint).ok


def test_keys(forge, check, tmp_path, keys):
    for name, key in [("a", keys.stranger), ("b", keys.dataset)]:
        forge(tmp_path / name, key=key)
        result = check(tmp_path / name)
        assert codes(result) == ["ST-CKPT-120"]
        assert result.statement is None
        assert result.num_files == 0


def test_a_trusted_key_that_signs_a_false_index(forge, check, tmp_path):
    lie = index_file.Index(
        version=1,
        tensors=(
            index_file.TensorEntry(
                fqn="w",
                dtype="uint8",
                shape=(1 << 50,),
                chunks=(
                    index_file.Chunk(
                        offsets=(0,), sizes=(1 << 50,), file=DATA, offset=0, length=1 << 50
                    ),
                ),
            ),
        ),
        values=(),
    )
    forge(tmp_path / "a", index=lie)
    result = check(tmp_path / "a")
    assert codes(result) == ["ST-CKPT-191"]
    assert result.exit_code is ExitCode.UNSAFE_CONTENT
    assert result.problems[0].file == INDEX
    forge(tmp_path / "b", index=pickle.dumps(print))
    assert codes(check(tmp_path / "b")) == ["ST-CKPT-191"]


def test_a_legacy_checkpoint_is_unsigned_and_never_unpickled(tmp_path, check):
    marker = tmp_path / "ran"

    class Payload:
        def __reduce__(self):
            return (Path.touch, (marker,))

    root = tmp_path / "legacy"
    root.mkdir()
    (root / ".metadata").write_bytes(pickle.dumps(Payload()))
    (root / "__0_0.distcp").write_bytes(b"x")
    result = check(root)
    assert codes(result) == ["ST-CKPT-100", "ST-CKPT-190"]
    assert result.exit_code is ExitCode.UNSIGNED
    assert not marker.exists()
    # Control: the pickle is live.
    pickle.loads((root / ".metadata").read_bytes())
    assert marker.exists()


def test_nothing_to_verify_is_never_ok(tmp_path, check):
    (tmp_path / "empty").mkdir()
    assert codes(check(tmp_path / "empty")) == ["ST-CKPT-100"]
    with pytest.raises(UsageError):
        check(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"")
    assert codes(check(tmp_path / "file")) == ["ST-CKPT-100"]


def test_a_result_without_anything_checked_is_not_ok(checkpoint, check):
    result = dataclasses.replace(check(checkpoint), num_files=0)
    assert not result.ok
    assert result.exit_code is ExitCode.FAILURE


def test_an_unsigned_dataset_is_told_as_one(dataset, check):
    (dataset / STATEMENT).unlink()
    assert codes(check(dataset)) == ["ST-DATA-100"]


def test_the_list_of_problems_is_bounded(forge, check, tmp_path):
    root = tmp_path / "c"
    forge(root, bytes(1024 * 300))
    (root / DATA).write_bytes(b"\1" * (1024 * 300))
    result = check(root)
    assert len(result.problems) == report.MAX_PROBLEMS
    assert result.truncated


def test_progress_and_large_files(forge, check, tmp_path, monkeypatch):
    monkeypatch.setattr(content, "STRETCH", 4096)
    forge(tmp_path / "c", os.urandom(50_000))
    seen = []
    result = check(tmp_path / "c", progress=lambda done, total: seen.append((done, total)))
    assert result.ok
    assert seen[-1] == (50_000, 50_000)
    assert len(seen) == 13


def test_many_files_cost_as_much_each_as_few(tmp_path, keys, now, check):
    """A loop over all tensors for each file took 40 s for a model of 1,024 files."""

    def calls(files: int) -> int:
        folder = tmp_path / str(files)
        folder.mkdir()
        for number in range(files):
            tensors = {f"layer.{number}.{n}": ("float32", (2,)) for n in range(8)}
            data = encode_header(tensors) + bytes(64)
            (folder / f"model-{number:05d}.safetensors").write_bytes(data)
        context = SaveContext(run_id="r", step=0, seq=0, created=now, save_id="0" * 32)
        sign_safetensors(folder, key=keys.checkpoint, context=context)
        count = 0

        def counting(_frame, event, _argument):
            nonlocal count
            count += event.endswith("call")

        sys.setprofile(counting)
        try:
            result = check(folder)
        finally:
            sys.setprofile(None)
        assert result.ok, result.problems
        assert result.num_files == files + 1
        return count

    assert calls(96) < 1.3 * 8 * calls(12)


def test_a_header_is_judged_by_the_bytes_that_were_hashed(tmp_path, keys, now, check, monkeypatch):
    """Nothing is read twice: who changes a file between two reads finds no second read."""
    folder = tmp_path / "model"
    folder.mkdir()
    data = encode_header({"w": ("float32", (2,))}) + bytes(8)
    (folder / "model.safetensors").write_bytes(data)
    context = SaveContext(run_id="r", step=0, seq=0, created=now, save_id="0" * 32)
    sign_safetensors(folder, key=keys.checkpoint, context=context)
    opened = []

    def counted(root, name, size, kind):
        opened.append(name)
        return open_data(root, name, size, kind)

    monkeypatch.setattr(content, "open_data", counted)
    assert check(folder).ok
    assert opened == ["model.safetensors"]
    # The length of the header lies while the file is opened, and tells the truth when it is hashed.
    prefix = content._FileJob.expect_header

    def lying(job):
        prefix(job)
        job.header = bytearray(len(job.header) - 1)

    monkeypatch.setattr(content._FileJob, "expect_header", lying)
    assert codes(check(folder)) == ["ST-CKPT-191"]


def test_a_file_that_vanishes_under_the_check(checkpoint, check, monkeypatch):
    real = check_listing

    def listing(root, predicate):
        found = real(root, predicate)
        os.truncate(root.path / DATA, 100)
        return found

    monkeypatch.setattr(verify, "check_listing", listing)
    assert codes(check(checkpoint)) == ["ST-CKPT-131"]


def test_verifying_and_reading_need_no_torch():
    program = (
        "import sys\n"
        "import securetrain.artifacts as a\n"
        "a.verify_path, a.Dataset, a.SaveContext\n"
        "import securetrain.cli.artifacts.verify\n"
        "import securetrain.artifacts.model.safetensors_folder\n"
        "import securetrain.artifacts.checkpoint.helper\n"
        "import securetrain.artifacts.statement.members, securetrain.artifacts.lineage.judging\n"
        "assert {'SaveContext', 'load', 'save', 'verify_path'} <= set(a.__all__)\n"
        "bad = {'torch', 'numpy'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
