# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The checkpoints in a folder: names tell the state, statements tell the rest."""

import pytest

from securetrain.artifacts.lineage import folder as disk
from securetrain.artifacts.lineage.folder import REMOVING, SET_ASIDE, checkpoints_of, remove
from securetrain.artifacts.lineage.machine import State
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.core.errors import SecureTrainError, UsageError
from tests.tables import each
from tests.vocabulary import refused


@each(
    "name, state, step",
    ("step-00000012", State.SAVED, 12),
    ("step-123456789", State.SAVED, 123456789),
    ("step-12", State.SAVED, None),
    ("mine", State.SAVED, None),
    ("xstep-00000012", State.SAVED, None),
    ("step-00000012.tmp-ab12", State.STAGED, None),
    (f"step-00000012{SET_ASIDE}abab", State.SET_ASIDE, None),
    (f"step-00000012{REMOVING}", State.REMOVING, None),
    (f"step-00000012{SET_ASIDE}abab{REMOVING}", State.REMOVING, None),
)
def test_a_name_tells_the_state(name, state, step):
    assert disk.state_in_name(name) is state
    assert disk.step_in_name(name) == step


def test_the_highest_step_is_that_of_a_finished_directory(tmp_path):
    assert disk.highest_step(tmp_path / "none") is None
    assert disk.highest_step(tmp_path) is None
    for name in ("step-00000003", "step-00000020", f"step-00000030{REMOVING}", "mine"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000040").write_bytes(b"a file")
    assert disk.highest_step(tmp_path) == 20


@pytest.fixture
def folder(tmp_path, forge, keys):
    made = tmp_path / "run"
    made.mkdir()
    for seq in range(3):
        forge(made / f"step-{seq:08d}", bytes([seq]) * 2500, seq=seq, step=seq)
    forge(made / "step-00000007", b"7" * 2500, seq=7, step=7, run_id="run-2")
    forge(made / "step-00000008", b"8" * 2500, seq=8, step=8, key=keys.stranger)
    (made / "step-00000009").mkdir()
    (made / "step-00000010" / STATEMENT).mkdir(parents=True)
    (made / "head.json").write_bytes(b"{}")
    (made / "step-00000005").symlink_to(made / "step-00000002")
    return made


def names(found):
    return [one.path.name for one in found]


def test_a_checkpoint_is_what_a_trusted_key_signed(folder, trust):
    everything = disk.checkpoints(folder, trust, lambda _: True)
    assert names(everything) == [f"step-0000000{n}" for n in (0, 1, 2, 7)]
    wanted = disk.checkpoints(folder, trust, lambda path: path.name.endswith("1"))
    (one,) = wanted
    assert (one.name, one.checkpoint.seq) == ("step-00000001", 1)
    assert one.data == (one.path / STATEMENT).read_bytes()
    assert list(disk.checkpoints(folder / "none", trust, lambda _: True)) == []


def test_an_error_of_the_disk_is_passed_over_only_where_that_is_asked(folder, trust, monkeypatch):
    def fail(*_):
        raise UsageError("ST-USAG-002", "input/output error")

    monkeypatch.setattr(disk, "read_statement", fail)
    with pytest.raises(UsageError):
        disk.read(folder / "step-00000001", trust)
    assert disk.read(folder / "step-00000001", trust, SecureTrainError) is None
    assert checkpoints_of(folder, "run-1", trust) == []


def test_only_finished_ones_of_the_run_are_candidates_and_links_are_not_followed(folder, trust):
    (folder / "step-00000000").rename(folder / "elsewhere")
    assert names(checkpoints_of(folder, "run-1", trust)) == ["step-00000001", "step-00000002"]


def test_a_removal_that_was_cut_short_is_finished(folder, trust):
    """The ledger is told before the files go, of what an earlier removal left, too."""
    (folder / "step-00000000").rename(folder / f"step-00000000{REMOVING}")
    going = [one for one in checkpoints_of(folder, "run-1", trust) if one.checkpoint.seq == 1]
    told = []

    def tell(one):
        assert one.path.is_dir()
        told.append(one.name)

    remove(folder, "run-1", trust, going, tell)
    assert told == ["step-00000000", "step-00000001"]
    assert names(checkpoints_of(folder, "run-1", trust)) == ["step-00000002"]
    assert not list(folder.glob(f"*{REMOVING}"))


def test_a_disk_that_fails_is_told_as_such(folder, trust, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "sync_dir", fail)
    refused(UsageError, "ST-USAG-006", remove, folder, "run-1", trust, [], print)
