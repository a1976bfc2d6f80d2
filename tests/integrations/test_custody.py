# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A framework reads only a private copy, of which every byte was verified."""

import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.artifacts.saved import folder, signer
from securetrain.artifacts.saved.folder import verify_folder
from securetrain.artifacts.statement import saved_files
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot
from securetrain.integrations import ranks
from securetrain.integrations.custody import custody
from tests import vocabulary
from tests.tables import items


@pytest.fixture
def held(keys):
    places = {"key": keys / "keys" / "run.pem", "trust": keys / "trust" / "root.json"}
    return custody("test", run="my-run", **places)


@pytest.fixture
def saved(held, tmp_path):
    folder = tmp_path / "checkpoint-3"
    (folder / "deeper").mkdir(parents=True)
    (folder / "weights").write_bytes(b"weights")
    (folder / "deeper" / "state").write_bytes(b"state")
    held.sign(folder, 3)
    return folder


def refused(held, place):
    with pytest.raises(IntegrityError) as error, held.verified(place):
        pytest.fail("it was given out")
    return error.value


def test_a_copy_is_whole_private_and_gone_afterwards(held, saved):
    with held.verified(saved) as copy:
        assert copy.name == saved.name
        assert (copy / "weights").read_bytes() == b"weights"
        assert (copy / "deeper" / "state").read_bytes() == b"state"
        assert copy.parent.parent.stat().st_mode & 0o077 == 0
        # What changes the original now changes nothing of what is read.
        (saved / "weights").write_bytes(b"altered")
        assert (copy / "weights").read_bytes() == b"weights"
    assert not copy.parent.parent.exists()


def test_an_altered_byte_is_refused_and_a_plain_reader_takes_it(held, saved):
    (saved / "weights").write_bytes(b"weighty")
    assert (saved / "weights").read_bytes() == b"weighty", "the plain reader has it"
    error = refused(held, saved)
    assert error.code == "ST-CKPT-130"
    assert error.where == str(saved / "weights"), "the original is named, not the copy"


@items(
    "what, code",
    ("size", "ST-CKPT-131"),
    ("missing", "ST-CKPT-140"),
    ("added", "ST-CKPT-141"),
    ("link", "ST-CKPT-142"),
    ("name", "ST-CKPT-143"),
    ("unsigned", "ST-CKPT-141"),
    ("begun", "ST-CKPT-100"),
)
def test_whatever_else_somebody_does_to_a_folder_is_refused(held, saved, what, code):
    match what:
        case "size":
            (saved / "weights").write_bytes(b"more weights")
        case "missing":
            (saved / "weights").unlink()
        case "added":
            (saved / "extra.pkl").write_bytes(b"extra")
        case "link":
            (saved / "link").symlink_to(saved / "weights")
        case "name":
            saved = saved.rename(saved.with_name("checkpoint-4"))
        case "unsigned":
            saved_files.sidecar(saved, saved_files.Form.DIRECTORY).unlink()
        case "begun":
            saved_files.sidecar(saved, saved_files.Form.DIRECTORY).write_bytes(b"")
    assert refused(held, saved).code == code


def test_another_run_and_another_key_are_refused(held, saved, keys, tmp_path):
    other = custody("test", run="other-run", key=held.key, trust=held.trust)
    assert refused(other, saved).code == "ST-CKPT-125"
    stranger = PrivateKey.generate()
    custody("test", run="my-run", key=stranger, trust=held.trust).sign(saved, 3)
    assert refused(held, saved).code == "ST-CKPT-120"


def test_a_file_has_its_own_statement_which_goes_with_it(held, tmp_path):
    file = tmp_path / "model.ckpt"
    file.write_bytes(b"weights")
    held.sign_here(file, 7)
    with held.verified(file) as copy:
        assert copy.read_bytes() == b"weights"
    file.write_bytes(b"weighty")
    error = refused(held, file)
    assert (error.code, error.where) == ("ST-CKPT-130", str(file))
    held.forget(file)
    beside = saved_files.sidecar(file, saved_files.Form.FILE)
    assert beside.exists(), "it is there as long as its file"
    file.unlink()
    held.forget(file)
    assert not beside.exists()


def test_a_file_in_a_signed_folder_is_covered_by_it(held, saved):
    with held.verified(saved / "weights") as copy:
        assert copy.read_bytes() == b"weights"
    (saved / "weights").write_bytes(b"weighty")
    assert refused(held, saved / "weights").code == "ST-CKPT-130"


@pytest.mark.parametrize("missing", ["key", "run", "trust"])
def test_outside_of_a_run_nothing_may_be_missing(missing, tmp_path):
    given = {"key": tmp_path / "key", "run": "my-run", "trust": tmp_path / "root.json"}
    given[missing] = "" if missing == "run" else None
    vocabulary.refused(UsageError, "ST-USAG-001", custody, "test", **given, says=missing)


def test_in_a_run_what_the_script_gives_is_left_aside(monkeypatch):
    monkeypatch.setattr(signer, "worker_signer", object)
    monkeypatch.setattr(folder, "signs_folders", lambda: True)
    held = custody("test", key="of the script", trust="of the script", run="of the script")
    assert held.in_run
    assert (held.key, held.trust) == (None, None)


def test_a_run_that_signs_no_saves_is_refused_at_the_start(monkeypatch):
    monkeypatch.setattr(signer, "worker_signer", object)
    monkeypatch.setattr(folder, "signs_folders", lambda: False)
    with pytest.raises(UsageError) as error:
        custody("test", key=None, trust=None, run="")
    assert error.value.code == "ST-USAG-001"
    assert "--sign-checkpoints" in error.value.fix


@pytest.fixture
def group(monkeypatch):
    """A group of which this process is one rank; the other's number comes by `broadcast`."""
    calls = []

    def broadcast(number, source):
        assert source == 0
        calls.append("broadcast")
        if made.rank:
            number.value = made.said

    class Number:
        def __init__(self, value):
            self.value = value

        def __int__(self):
            return int(self.value)

    made: Any = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: made.rank,
        barrier=lambda: calls.append("barrier"),
        broadcast=broadcast,
        rank=0,
        said=0,
        calls=calls,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", made)
    monkeypatch.setattr(ranks, "_number", Number)
    return made


def test_rank_zero_signs_when_all_have_come_and_the_others_wait(group):
    done = []
    ranks.on_rank_zero(lambda: done.append(list(group.calls)), "a folder")
    assert done == [["barrier"]]
    group.rank = 1
    ranks.on_rank_zero(lambda: pytest.fail("only rank 0 does it"), "a folder")


def test_all_ranks_learn_that_rank_zero_could_not(group):
    def fail():
        raise UsageError("ST-USAG-002", "no space")

    vocabulary.refused(SecureTrainError, "no space", ranks.on_rank_zero, fail, "a folder")
    assert group.calls[-1] == "broadcast", "the others do not wait for ever"
    group.rank, group.said = 1, 1
    vocabulary.refused(UsageError, "rank 0 could not", ranks.on_rank_zero, lambda: None, "a folder")


def test_a_signed_folder_says_which_framework_saved_it(held, saved):
    trust = TrustRoot.load(held.trust, datetime.now(UTC))
    (said,) = verify_folder(saved, trust=trust).saves
    assert (said.said.way, said.said.step) == ("test", 3)
