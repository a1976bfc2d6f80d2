# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import dataclasses
from datetime import timedelta

import msgspec
import pytest

from securetrain.artifacts.lineage.quarantine import (
    LIMIT,
    QUARANTINE_TYPE,
    Quarantine,
    check,
    set_aside,
)
from securetrain.artifacts.statement.statements import DIGEST_NAME, open_statement
from securetrain.artifacts.tree.layout import QUARANTINE, STATEMENT, Kind, bad_name
from securetrain.artifacts.verify import verify_path
from securetrain.core.codes import ExitCode
from securetrain.core.errors import UsageError
from securetrain.identity import statement


@pytest.fixture
def why(now):
    return Quarantine(
        node="node-b",
        code="ST-ATTS-007",
        last_good=now - timedelta(hours=2),
        epoch=3,
        created=now,
    )


@pytest.fixture
def opened(forge, trust, tmp_path):
    def make(name="step-00000100", **said):
        forge(tmp_path / name, **said)
        data = (tmp_path / name / STATEMENT).read_bytes()
        return tmp_path / name, open_statement(data, Kind.CHECKPOINT, trust)

    return make


def test_a_checkpoint_that_was_set_aside_is_intact_and_refused(opened, why, keys, trust, now):
    path, found = opened()
    assert verify_path(path, trust=trust, policy=None, now=now).ok  # the control
    moved = set_aside(path, found, why, keys.checkpoint)
    assert not path.exists()
    assert moved.name == "step-00000100.quarantined-000000000000"
    result = verify_path(moved, trust=trust, policy=None, now=now)
    assert [problem.code for problem in result.problems] == ["ST-CKPT-160"]
    assert result.exit_code is ExitCode.REVOKED
    assert "node node-b was evicted (ST-ATTS-007)" in result.problems[0].what
    assert result.num_files == 2  # it was checked all the same


def test_only_a_checkpoint_is_set_aside(opened, trust):
    """Whatever else has a file of that name in it."""
    path, found = opened()
    (path / QUARANTINE).write_bytes(b"")
    assert [problem.code for problem in check(path, found, trust)] == ["ST-CKPT-160"]
    other = dataclasses.replace(found, kind=Kind.DATASET)
    assert check(path, other, trust) == []


def test_another_name_does_not_help(opened, why, keys, trust, now):
    path, found = opened()
    set_aside(path, found, why, keys.checkpoint).rename(path)
    assert not verify_path(path, trust=trust, policy=None, now=now).ok


def test_damage_is_more_telling(opened, why, keys, trust, now):
    path, found = opened()
    moved = set_aside(path, found, why, keys.checkpoint)
    (moved / "rank-00000.bin").write_bytes(b"x" * 2500)
    result = verify_path(moved, trust=trust, policy=None, now=now)
    assert result.exit_code is ExitCode.CONTENT


@pytest.mark.parametrize("how", ["empty", "stranger", "another", "type", "code", "huge", "link"])
def test_a_record_that_cannot_be_believed_is_no_reason_to_believe_the_checkpoint(
    opened, why, keys, trust, how
):
    path, found = opened()
    subject = statement.Subject(path.name, {DIGEST_NAME: found.digest})

    def signed(key=keys.checkpoint, subject=subject, kind=QUARANTINE_TYPE, why=why):
        return statement.sign([subject], kind, why, key)

    contents = {
        "empty": b"",
        "stranger": signed(key=keys.stranger),
        "another": signed(subject=statement.Subject(path.name, {DIGEST_NAME: "0" * 64})),
        "type": signed(kind="https://example.org/praise"),
        "code": signed(why=msgspec.structs.replace(why, code="no code")),
        "huge": b" " * (LIMIT + 1),
    }
    if how == "link":
        (path.parent / "elsewhere").write_bytes(signed())
        (path / QUARANTINE).symlink_to(path.parent / "elsewhere")
    else:
        (path / QUARANTINE).write_bytes(contents[how])
    (problem,) = check(path, found, trust)
    assert problem.code == "ST-CKPT-160"
    assert ("about another" if how == "another" else "cannot be believed") in problem.what
    assert not verify_path(path, trust=trust, policy=None, now=why.created).ok


def test_never_onto_another_checkpoint(opened, why, keys):
    first, second = opened("step-00000001"), opened("step-00000002")
    taken = set_aside(first[0], first[1], why, keys.checkpoint)
    second[0].rename(first[0])
    with pytest.raises(UsageError):
        set_aside(first[0], second[1], why, keys.checkpoint)
    assert taken.is_dir()
    assert (first[0] / QUARANTINE).exists()  # refused under its old name too


def test_a_signed_file_cannot_have_the_records_name():
    assert bad_name(Kind.CHECKPOINT, "Quarantine.json")
    assert not bad_name(Kind.DATASET, QUARANTINE)
