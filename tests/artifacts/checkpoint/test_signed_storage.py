# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`SignedWriter`, `SignedReader` and `Session`: torch's own calls, and a script that makes them."""

import gc
import os
import pickle
import runpy
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from securetrain.artifacts import Expectation, SaveContext, verify_path
from securetrain.artifacts.checkpoint.async_save import SaveMode
from securetrain.artifacts.checkpoint.containers import RankWriter
from securetrain.artifacts.checkpoint.session import Session
from securetrain.artifacts.checkpoint.signed_storage import SignedReader, SignedWriter
from securetrain.artifacts.lineage.judging import Floors, Freshness
from securetrain.artifacts.statement.statements import CheckpointPredicate
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.policy.load import load_policy
from tests.scenarios import run_scenarios
from tests.tables import items
from tests.vocabulary import refused

dcp: Any = checkpoint
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)")

WORKER = Path(__file__).with_name("signed_storage_worker.py")

FOREIGN = """
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
weights, moments = get_state_dict(model, optimizer)
state = {"model": weights, "optim": moments, "step": 1, "rng": torch.get_rng_state()}
dcp.save(state, storage_writer=make_writer())
saved = model.weight.detach().clone()
with torch.no_grad():
    model.weight.zero_()
weights, moments = get_state_dict(model, optimizer)
state = {"model": weights, "optim": moments, "step": 0, "rng": torch.get_rng_state()}
dcp.load(state, storage_reader=make_reader())
set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
same = torch.equal(model.weight, saved) and state["step"] == 1
"""


class Planted:
    def __reduce__(self):
        return os.mkdir, (os.environ["PLANTED"],)


@pytest.fixture
def files(keys, tmp_path):
    keys.checkpoint.save(tmp_path / "checkpoint.pem")
    (tmp_path / "trust.json").write_bytes(keys.trust_file())
    return tmp_path


@pytest.fixture
def writer(keys, now, tmp_path):
    def make(name="ckpt", *, key=keys.checkpoint, run="run-1", **more):
        context = SaveContext(run_id=run, step=5, created=now)
        return SignedWriter(tmp_path / name, key=key, context=context, **more)

    return make


@pytest.fixture
def reader(trust, now, tmp_path):
    return lambda name="ckpt", **more: SignedReader(
        tmp_path / name, **{"trust": trust, "now": now, **more}
    )


@pytest.fixture
def session(files, now):
    return Session(
        key=files / "checkpoint.pem", trust=files / "trust.json", run="run-1", clock=lambda: now
    )


def state():
    return {"w": torch.arange(600.0).reshape(20, 30), "inner": {"ids": [1, 2]}, "step": 5}


def blank():
    return {"w": torch.zeros(20, 30), "inner": {"ids": [0, 0]}, "step": 0}


def refusal(function, *args, **kwargs):
    with pytest.raises(CheckpointException) as caught:
        function(*args, **kwargs)
    return caught.value.failures[0][0]


def left(folder):
    gc.collect()
    return [path.name for path in folder.iterdir() if ".tmp-" in path.name]


def test_a_script_that_knows_torch_alone(writer, reader, trust, now, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FOREIGN)
    names = {"make_writer": writer, "make_reader": reader}
    assert runpy.run_path(str(script), names)["same"]
    assert verify_path(tmp_path / "ckpt", trust=trust, policy=None, now=now).ok


def test_the_context_is_what_was_given_and_the_result_names_the_digest(
    writer, trust, now, tmp_path
):
    metadata = dcp.save(state(), storage_writer=writer())
    result = verify_path(tmp_path / "ckpt", trust=trust, policy=None, now=now)
    assert metadata.storage_data[0] == result.digest
    assert isinstance(result.statement, CheckpointPredicate)
    assert (result.statement.run_id, result.statement.step) == ("run-1", 5)


def test_a_background_save_keeps_what_was_staged(writer, reader):
    live = state()
    future = dcp.async_save(live, storage_writer=writer())
    live["w"].zero_()
    future.result()
    target = blank()
    dcp.load(target, storage_reader=reader())
    assert torch.equal(target["w"], state()["w"])
    assert target["inner"] == {"ids": [1, 2]}


def test_the_checkpoint_id_takes_the_place_of_the_path(writer, reader, tmp_path):
    dcp.save(state(), storage_writer=writer("nowhere"), checkpoint_id=str(tmp_path / "there"))
    assert not (tmp_path / "nowhere").exists()
    target = blank()
    dcp.load(target, storage_reader=reader("nowhere"), checkpoint_id=tmp_path / "there")
    assert target["step"] == 5


def test_one_reader_reads_twice_and_judges_anew(writer, reader, tmp_path):
    for name in ("one", "two"):
        dcp.save(state(), storage_writer=writer(name))
    both = reader("one")
    dcp.load(blank(), storage_reader=both)
    (tmp_path / "one" / "statement.json").write_bytes(b"{}")
    assert refusal(dcp.load, blank(), storage_reader=both).code == "ST-CKPT-101"
    target = blank()
    dcp.load(target, storage_reader=both, checkpoint_id=tmp_path / "two")
    assert target["step"] == 5


def test_values_of_parts_come_back_under_the_planners_of_torch(session, reader, tmp_path):
    """`save` takes sparse tensors and large arrays apart."""
    sparse = torch.eye(40).to_sparse()
    numbers = np.arange(20_000.0)
    session.save({"s": sparse, "n": numbers, "step": 1}, tmp_path / "ckpt")
    target: dict[str, Any] = {"s": torch.zeros(40, 40).to_sparse(), "n": None}
    dcp.load(target, storage_reader=reader())
    assert torch.equal(target["s"].to_dense(), torch.eye(40))
    assert np.array_equal(target["n"], numbers)
    error = refusal(dcp.load, {"s": torch.zeros(40, 40)}, storage_reader=reader())
    assert error.code == "ST-USAG-012"
    rebuilt = _load_state_dict_from_keys(storage_reader=reader())
    assert rebuilt["step"] == 1


def test_a_planner_that_wants_flat_names(writer, reader):
    planner = DefaultSavePlanner(flatten_state_dict=False)
    dcp.save({"w": torch.ones(3), "v": 7}, storage_writer=writer(), planner=planner)
    target: dict[str, Any] = {"w": torch.zeros(3), "v": 0}
    loading = DefaultLoadPlanner(flatten_state_dict=False)
    dcp.load(target, storage_reader=reader(), planner=loading)
    assert target["v"] == 7
    assert torch.equal(target["w"], torch.ones(3))


def test_what_torch_changes_and_takes_back_is_the_planners(writer, reader):
    """`resolve_tensor` may hand out other memory; `commit_tensor` comes when it has verified."""
    seen = []

    class Copying(DefaultLoadPlanner):
        def resolve_tensor(self, read_item):
            return torch.full((20, 30), -1.0)

        def commit_tensor(self, read_item, tensor):
            seen.append(tensor.sum().item())
            self.lookup_tensor(read_item.dest_index).copy_(tensor)

    dcp.save(state(), storage_writer=writer())
    target = blank()
    dcp.load(target, storage_reader=reader(), planner=Copying())
    assert seen == [state()["w"].sum().item()]
    assert torch.equal(target["w"], state()["w"])


# Refused.


def test_a_changed_byte_is_refused_and_the_target_is_zero(writer, reader, tmp_path):
    dcp.save(state(), storage_writer=writer())
    path = tmp_path / "ckpt" / "rank-00000.bin"
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    target = {**blank(), "w": torch.ones(20, 30)}
    assert refusal(dcp.load, target, storage_reader=reader()).code == "ST-CKPT-130"
    assert not target["w"].any()
    assert target["step"] == 0


def test_a_planted_pickle_runs_under_torch_and_never_here(writer, reader, tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED", str(tmp_path / "planted"))
    # The positive control: torch's reader runs what lies in its .metadata.
    dcp.save({"v": [1]}, checkpoint_id=str(tmp_path / "stock"))
    planted = pickle.dumps(Planted())
    (tmp_path / "stock" / ".metadata").write_bytes(planted)
    with pytest.raises(CheckpointException):
        dcp.load({"v": [0]}, checkpoint_id=str(tmp_path / "stock"))
    assert (tmp_path / "planted").is_dir()
    (tmp_path / "planted").rmdir()

    dcp.save(state(), storage_writer=writer())
    for name in ("index.json", "statement.json", ".metadata", "rank-00000.bin"):
        path = tmp_path / "ckpt" / name
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(planted)
        error = refusal(dcp.load, blank(), storage_reader=reader())
        assert error.code.startswith("ST-CKPT-"), name
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
    assert refusal(dcp.load, blank(), storage_reader=reader("stock")).code.startswith("ST-CKPT-")
    assert not (tmp_path / "planted").exists()


@items(
    "asked, code",
    ({"run": "prod"}, "ST-CKPT-125"),
    ({"name": "prod-model"}, "ST-CKPT-126"),
    ({"digest": "0" * 64}, "ST-CKPT-127"),
    ({"signer": "0" * 64}, "ST-CKPT-128"),
    ({"min_step": 6}, "ST-CKPT-154"),
)
def test_another_checkpoint_than_expected(writer, reader, asked, code):
    dcp.save(state(), storage_writer=writer())
    assert (
        refusal(dcp.load, blank(), storage_reader=reader(expect=Expectation(**asked))).code == code
    )


def test_a_stranger_and_an_old_checkpoint(writer, reader, keys, tmp_path):
    dcp.save(state(), storage_writer=writer("strange", key=keys.stranger))
    error = refusal(dcp.load, blank(), storage_reader=reader("strange"))
    assert error.code == "ST-CKPT-120"
    dcp.save(state(), storage_writer=writer("first"))
    dcp.save({**state(), "step": 6}, storage_writer=writer("second"))
    fresh = Freshness(floors=Floors(tmp_path / "floors"))
    dcp.load(blank(), storage_reader=reader("second", freshness=fresh))
    error = refusal(dcp.load, blank(), storage_reader=reader("first", freshness=fresh))
    assert error.code == "ST-CKPT-151"


def test_whoever_looks_into_refused_metadata_hears_the_refusal(reader, tmp_path):
    found = reader("missing").read_metadata()
    with pytest.raises(IntegrityError, match="ST-CKPT-100"):
        found.state_dict_metadata  # noqa: B018
    assert not hasattr(found, "other")
    error = refusal(_load_state_dict_from_keys, storage_reader=reader("missing"))
    assert error.code == "ST-CKPT-100"


def test_a_value_is_no_tensor(writer, reader):
    dcp.save(state(), storage_writer=writer())
    error = refusal(dcp.load, {"step": torch.ones(2)}, storage_reader=reader())
    assert error.code == "ST-USAG-012"


@items(
    "more, what",
    ({"planner": DefaultSavePlanner(enable_plan_caching=True)}, "keeps its plans"),
    ({"use_collectives": False}, "speak to each other"),
)
def test_ways_to_save_that_cannot_be_signed(writer, tmp_path, more, what):
    with pytest.raises((CheckpointException, UsageError), match=what):
        dcp.save(state(), storage_writer=writer(), **more)
    assert not (tmp_path / "ckpt").exists()
    assert left(tmp_path) == []
    SavePlanner._cached_save_plan.clear()
    SavePlanner._cached_all_plans.clear()
    SavePlanner._cached_global_plan.clear()
    SavePlanner._cached_metadata.clear()
    SavePlanner._cached_final_save_plan.clear()


def test_planners_of_pickles_are_refused(writer, reader):
    class Unpickling(DefaultLoadPlanner):
        def load_bytes(self, read_item, value):
            raise AssertionError("never called")

    dcp.save(state(), storage_writer=writer())
    error = refusal(dcp.load, blank(), storage_reader=reader(), planner=Unpickling())
    assert (error.code, "Unpickling" in str(error)) == ("ST-USAG-001", True)


@items(
    "content, code",
    ({"v": range(2)}, "ST-USAG-013"),
    ({"securetrain:file": torch.ones(1)}, "ST-USAG-013"),
    ({"s": torch.eye(3).to_sparse()}, "ST-USAG-013"),
)
def test_what_has_no_place_is_refused_and_leaves_nothing(writer, tmp_path, content, code):
    assert refusal(dcp.save, content, storage_writer=writer()).code == code
    assert list(tmp_path.iterdir()) == []


def test_a_second_save_needs_a_second_writer(writer, tmp_path):
    mine = writer()
    dcp.save(state(), storage_writer=mine)
    again = refusal(dcp.save, state(), storage_writer=mine, checkpoint_id=tmp_path / "other")
    assert (again.code, "step 5" in str(again)) == ("ST-USAG-001", True)
    assert refusal(dcp.save, state(), storage_writer=writer()).code == "ST-CKPT-201"


@items("step", "set_up_planner", "create_local_plan", "create_global_plan", "resolve_data")
def test_a_planner_that_fails_leaves_nothing(writer, tmp_path, step):
    class Failing(DefaultSavePlanner):
        pass

    def fail(*args, **kwargs):
        raise ValueError("broken")

    setattr(Failing, step, fail)
    refusal(dcp.save, state(), storage_writer=writer(), planner=Failing())
    assert left(tmp_path) == []
    assert not (tmp_path / "ckpt").exists()


def test_a_disk_that_fails_leaves_nothing_while_the_writer_lives(writer, tmp_path, monkeypatch):
    def fail(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RankWriter, "finish", fail)
    mine = writer()
    assert refusal(dcp.save, state(), storage_writer=mine).code == "ST-CKPT-202"
    assert left(tmp_path) == []


def test_what_another_rank_has_spoilt_goes_with_the_writer(writer, tmp_path):
    """torch tells this rank's writer nothing."""
    mine = writer()
    planner = DefaultSavePlanner()
    planner.set_up_planner(state(), None, is_coordinator=True)
    mine.set_up_storage_writer(True)
    plans, _ = planner.create_global_plan([mine.prepare_local_plan(planner.create_local_plan())])
    mine.write_data(mine.prepare_global_plan(plans)[0], planner)
    assert len(left(tmp_path)) == 2, "the directory and its lease"
    del mine
    assert left(tmp_path) == []


# Keys by path.


def test_a_writer_travels_without_a_key(writer, files):
    refused(UsageError, "open key", pickle.dumps, writer())
    sent = pickle.dumps(writer(key=files / "checkpoint.pem"))
    assert (files / "checkpoint.pem").read_bytes().split(b"\n")[1] not in sent
    dcp.save(state(), storage_writer=pickle.loads(sent))
    assert (files / "ckpt" / "statement.json").exists()


def test_a_key_that_is_locked_is_not_asked_for(writer, keys, tmp_path):
    keys.checkpoint.save(tmp_path / "locked.pem", b"secret")
    error = refusal(dcp.save, state(), storage_writer=writer(key=str(tmp_path / "locked.pem")))
    assert (error.code, "passphrase" in str(error)) == ("ST-USAG-001", True)


@pytest.mark.many
@pytest.mark.dist
def test_a_save_in_the_process_of_torch(writer, reader, files, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    dist.init_process_group("gloo", init_method=f"file://{files}/store", rank=0, world_size=1)
    try:
        in_process = {"async_checkpointer_type": AsyncCheckpointerType.PROCESS}
        mine = writer(key=files / "checkpoint.pem")
        dcp.async_save(state(), storage_writer=mine, **in_process).result()
        target = blank()
        dcp.load(target, storage_reader=reader())
        assert torch.equal(target["w"], state()["w"])
        with pytest.raises(UsageError, match="open key"):
            dcp.async_save(state(), storage_writer=writer("open"), **in_process).result()
    finally:
        dist.destroy_process_group()


# Sessions.


@pytest.mark.parametrize("mode", [None, *SaveMode])
def test_three_lines(session, tmp_path, mode):
    if mode is None:
        session.save(state(), tmp_path / "ckpt")
    else:
        session.async_save(state(), tmp_path / "ckpt", mode=mode).result()
    target = blank()
    said = session.load(target, str(tmp_path / "ckpt"))
    assert torch.equal(target["w"], state()["w"])
    assert (said.run_id, said.name, said.step) == ("run-1", "run-1", 5)


def test_a_session_makes_writers_and_readers(session, tmp_path):
    dcp.save(state(), storage_writer=session.writer(tmp_path / "ckpt", 8))
    target = blank()
    dcp.load(target, storage_reader=session.reader(tmp_path / "ckpt"))
    assert session.load(target, tmp_path / "ckpt").step == 8


def test_a_session_of_a_run_takes_no_other_run_and_a_session_of_a_name_no_other_name(
    files, session, now
):
    said = {"key": files / "checkpoint.pem", "trust": files / "trust.json", "clock": lambda: now}
    toy = Session(run="toy", name="toy-model", **said)
    toy.save(state(), files / "ckpt")
    refused(IntegrityError, "ST-CKPT-125", session.load, blank(), files / "ckpt")
    with pytest.raises(IntegrityError, match="ST-CKPT-126"):
        Session(name="prod-model", **said).load(blank(), files / "ckpt")
    assert (
        refusal(dcp.load, blank(), storage_reader=session.reader(files / "ckpt")).code
        == "ST-CKPT-125"
    )
    with pytest.raises(IntegrityError, match="ST-CKPT-154"):
        Session(expect=Expectation(min_step=6), **said).load(blank(), files / "ckpt")
    refused(UsageError, "run", session.load, blank(), files / "ckpt", expect=Expectation(run="toy"))
    assert Session(**said).load(blank(), files / "ckpt").name == "toy-model"


def test_a_session_names_its_policy_and_asks_what_it_asks(files, session, now):
    asking = Session(
        key=session.key, trust=session.trust, run="run-1", policy="hardened", clock=lambda: now
    )
    asking.save(state(), files / "ckpt")
    assert session.load(blank(), files / "ckpt").policy.digest == load_policy("hardened").digest
    refused(IntegrityError, "ST-CKPT-", asking.load, blank(), files / "ckpt")


def test_a_sessions_clock_counts(files, session, now):
    session.save(state(), files / "ckpt")
    late = Session(trust=session.trust, clock=lambda: now + timedelta(days=9000))
    refused(Exception, "ST-IDEN-008", late.load, blank(), files / "ckpt")


@items(
    "said, call, what",
    ({"run": "r"}, lambda session, to: session.load(blank(), to), "Session.trust"),
    ({}, lambda session, to: session.save(state(), to), "run"),
    ({"run": "r"}, lambda session, to: session.save({"w": torch.ones(1)}, to), "step"),
    ({"run": "r"}, lambda session, to: session.save({"step": True}, to), "step"),
    ({"run": "r"}, lambda session, to: session.save(state(), to), "no key"),
)
def test_what_a_session_lacks_is_said(tmp_path, said, call, what):
    refused(UsageError, what, call, Session(**said), tmp_path / "ckpt")
    assert list(tmp_path.iterdir()) == []


def test_a_session_shows_no_key(keys):
    assert "key" not in repr(Session(key=keys.checkpoint))


# Two ranks.


@pytest.mark.dist
def test_two_ranks_of_a_script_that_knows_torch_alone(tmp_path, keys, now, trust):
    keys.checkpoint.save(tmp_path / "checkpoint.pem")
    (tmp_path / "trust.json").write_bytes(keys.trust_file())
    (tmp_path / "now").write_text(now.isoformat())
    for rank, report in enumerate(run_scenarios(WORKER, 2, timeout=150, ROOT=str(tmp_path))):
        assert report["rows_to_columns"]
        assert report["values"] == [3, [1, "a"]]
        assert report["thread"]
        assert report["session"]
        assert report["tampered"] == ["ST-CKPT-130"], "the one rank that read it, told to all"
        assert report["zeroed"] is bool(rank)
        assert set(report["wrong_run"]) == {"ST-CKPT-125"}
        assert report["failing"] == ["ST-USAG-013"]
        assert report["left"] == []
    assert verify_path(tmp_path / "rows", trust=trust, policy=None, now=now).ok
