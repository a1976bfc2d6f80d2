# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The number of a checkpoint whose saver names none."""

from datetime import timedelta

import pytest
import torch

from securetrain.artifacts import SaveContext, load, save
from securetrain.artifacts.lineage import head
from securetrain.artifacts.lineage.judging import Floors, Freshness
from securetrain.artifacts.lineage.machine import HEAD, Head
from securetrain.artifacts.tree.storage import LocalStorage, storage_of
from tests import s3_store


@pytest.fixture
def fresh(monkeypatch):
    """A process that has saved and read nothing yet."""

    def run():
        monkeypatch.setattr(head, "_saved", {})
        monkeypatch.setattr(head, "_read", {})

    run()
    return run


@pytest.fixture
def number(keys, tmp_path):
    return lambda name="next", run_id="run-1": head.next_number(
        LocalStorage(tmp_path / name), run_id, keys.checkpoint
    )


@pytest.mark.usefixtures("fresh")
def test_a_folder_that_is_not_there_begins_at_zero(number):
    assert number("folder/next") == 0


def test_the_second_save_is_not_refused_by_a_node_with_floors(keys, trust, now, tmp_path, fresh):
    """It had the number of the first one, and each node that remembered that refused it."""
    freshness = Freshness(floors=Floors(tmp_path / "floors.json"))
    for step in (1, 2, 3):
        fresh()  # another process each time
        context = SaveContext(run_id="run-1", step=step, created=now)
        path = tmp_path / f"step-{step}"
        save({"w": torch.ones(3)}, path, key=keys.checkpoint, context=context)
        target = {"w": torch.zeros(3)}
        said = load(target, path, trust=trust, policy=None, now=now, freshness=freshness)
        assert said.seq == step - 1


@pytest.mark.usefixtures("fresh")
def test_it_follows_the_newest_that_the_same_key_has_signed(forge, keys, number, tmp_path):
    forge(tmp_path / "a", seq=4)
    assert number() == 5
    forge(tmp_path / "b", seq=9, run_id="another")
    assert number() == 5
    # What somebody else signed, or nobody, moves nothing.
    forge(tmp_path / "c", seq=1 << 50, key=keys.stranger)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "statement.json").write_bytes(b"{")
    (tmp_path / "e").symlink_to(tmp_path / "a")
    assert number() == 5
    forge(tmp_path / "f.quarantined-01", seq=7)
    assert number() == 8


def test_it_is_above_the_head_and_what_this_process_has_saved(keys, now, number, tmp_path, fresh):
    head_ = Head(
        run_id="run-1",
        seq=11,
        step=1,
        digest="ab" * 32,
        created=now,
        expires=now + timedelta(days=1),
    )
    (tmp_path / HEAD).write_bytes(head.sign_head(head_, keys.stranger))
    assert number() == 0
    (tmp_path / HEAD).write_bytes(head.sign_head(head_, keys.checkpoint))
    assert number() == 12
    head.note("run-1", 30)
    assert number() == 31
    assert number(run_id="third") == 0
    fresh()
    assert number() == 12


@pytest.mark.usefixtures("fresh")
def test_an_object_store_is_read_as_well(keys, trust, now):
    with s3_store.lent():
        for step in (1, 2):
            url = f"gs://bucket/run/step-{step}"
            context = SaveContext(run_id="run-1", step=step, created=now)
            save({"w": torch.ones(3)}, url, key=keys.checkpoint, context=context)
            head._saved.clear()
        beside = storage_of("gs://bucket/run/x")
        assert head.next_number(beside, "run-1", keys.checkpoint) == 2


@pytest.mark.usefixtures("fresh")
def test_a_number_that_is_given_stays(keys, trust, now, tmp_path):
    context = SaveContext(run_id="run-1", step=1, seq=7, created=now)
    save({"w": torch.ones(3)}, tmp_path / "a", key=keys.checkpoint, context=context)
    said = load({"w": torch.zeros(3)}, tmp_path / "a", trust=trust, policy=None, now=now)
    assert said.seq == 7
