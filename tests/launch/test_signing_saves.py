# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lies of a worker about what its script has saved; which bytes it names cannot be judged."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.statement import saved_files
from securetrain.artifacts.statement.saved_files import SavedFile, sign_saved
from securetrain.artifacts.statement.statements import PolicyRef
from securetrain.core.errors import RuntimeRefusal
from securetrain.launch.signing.rules import Judge
from tests.launch.test_signing_rules import NOW, Bench, worker
from tests.vocabulary import refused


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("saves") / "run")


def judged(bench, *, as_rank=0, signs=True, **changes):
    said = saved_files.SavedFiles(
        run_id=bench.job,
        name=bench.job,
        policy=PolicyRef(id="dev", digest=bench.policy),
        rank=0,
        world_size=2,
        number=1,
        step=None,
        created=NOW,
        way="torch.save",
        form=saved_files.Form.FILE,
        place="out",
        files=[SavedFile(name="model.pt", size=1, sha256="ab" * 32)],
    )
    sign_saved(msgspec.structs.replace(said, **changes), bench.key)
    judge = Judge(here=replace(bench.here, signs_saves=signs))
    return judge.saved(worker(as_rank), bench.key.messages[-1])


def test_every_rank_may_have_its_own_saves_signed(bench):
    assert judged(bench).rank == 0
    assert judged(bench, as_rank=1, rank=1).rank == 1
    assert judged(bench, name=bench.here.name).name == bench.here.name


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "other-rank": ({"rank": 1}, "ST-RUNT-031"),
    "other-run": ({"run_id": "job-2"}, "ST-RUNT-033"),
    "other-world": ({"world_size": 3}, "ST-RUNT-031"),
    "other-policy": ({"policy": PolicyRef(digest="ef" * 32)}, "ST-RUNT-031"),
    "no-policy": ({"policy": PolicyRef()}, "ST-RUNT-031"),
    "other-name": ({"name": "gpt"}, "ST-RUNT-031"),
    "yesterday": ({"created": NOW - timedelta(days=1)}, "ST-RUNT-033"),
    "tomorrow": ({"created": NOW + timedelta(days=1)}, "ST-RUNT-033"),
    "not-asked-for": ({"signs": False}, "ST-RUNT-031"),
}


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_is_refused(bench, lie):
    changes, code = LIES[lie]
    refused(RuntimeRefusal, code, judged, bench, **changes)


def test_it_is_no_checkpoint_and_a_checkpoint_is_no_save(bench):
    judged(bench)
    message = bench.key.messages[-1]
    judge = Judge(here=replace(bench.here, signs_saves=True), epoch=3)
    with pytest.raises(RuntimeRefusal) as caught:
        judge.statement(worker(), message)
    assert caught.value.code == "ST-RUNT-032"
    refused(RuntimeRefusal, "ST-RUNT-032", judge.saved, worker(), message + b"x")
