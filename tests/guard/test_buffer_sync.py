# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of buffers among ranks in one process: what each keeps, says and remembers."""

import math
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from securetrain.core.errors import GuardError
from securetrain.guard import buffer_sync
from securetrain.guard.buffer_sync import BufferSync, buffers_of, release_buffers
from securetrain.guard.buffers import same_up_to
from securetrain.guard.sketch import derive
from securetrain.policy.schema import GradientData, Gradients, GuardResponse
from tests.guard.meeting import Meeting, MemoryChannel
from tests.vocabulary import refused

RANKS, SIZE = 4, 6


class Holder:
    """As much of DDP as a sync needs."""

    process_group = None

    def __init__(self) -> None:
        self.module = nn.Module()
        self.module.register_buffer("mean", torch.zeros(SIZE))
        self.module.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def _distributed_broadcast_coalesced(self, *_args: Any) -> None:
        raise AssertionError("torch's own")


class Job:
    """Ranks with a sync each; `lie` changes what the source sends, `garble` what a rank gets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.random = torch.Generator().manual_seed(4)
        self.meeting = Meeting(RANKS)
        monkeypatch.setattr(buffer_sync, "GroupChannel", lambda _group: None)
        monkeypatch.setattr(buffer_sync, "_broadcast_coalesced", self._broadcast)
        self.models = [Holder() for _ in range(RANKS)]
        self.syncs = [BufferSync(model, **options) for model in self.models]  # type: ignore[arg-type]
        for rank, sync in enumerate(self.syncs):
            sync.channel = MemoryChannel(self.meeting, rank)
        self.state = torch.randn(SIZE, generator=self.random)
        self.garbled: set[int] = set()
        self.sent: list[torch.Tensor] = []
        self.here = threading.local()
        self.calls: list[tuple[int, int]] = []

    def _broadcast(self, _group: Any, tensors: list[torch.Tensor], size: int, source: int) -> None:
        self.calls.append((size, source))
        for tensor, sent in zip(tensors, self.sent, strict=True):
            tensor.copy_(sent)
        if self.here.rank in self.garbled:
            tensors[0][0] += 1e-3

    def buffers(self, rank: int) -> list[torch.Tensor]:
        return list(self.models[rank].module.buffers())

    def update(self, *, noise: float = 0.1) -> None:
        """What the ranks compute from data of their own."""
        for rank in range(RANKS):
            mean, count = self.buffers(rank)
            mean.copy_(self.state + noise * torch.randn(SIZE, generator=self.random))
            count += 1

    def sync(self, *, source: int = 0) -> list[list[torch.Tensor]]:
        """Broadcast on all ranks; returns what each had of its own."""
        own = [[t.clone() for t in self.buffers(rank)] for rank in range(RANKS)]
        self.sent = own[source]
        failed: list[BaseException] = []

        def run(rank: int) -> None:
            self.here.rank = rank
            try:
                self.syncs[rank].broadcast(self.buffers(rank), 1 << 20, source)
            except BaseException as error:  # noqa: BLE001 - told below
                failed.append(error)
                self.meeting.barrier.abort()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        return own

    def learn(self, steps: int = 20) -> None:
        for _ in range(steps):
            self.update()
            self.sync()
            assert not any(sync.take() for sync in self.syncs)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def test_honest_buffers_are_the_sources(job):
    job.learn(3)
    job.update()
    own = job.sync(source=2)
    assert job.calls == [(1 << 20, 0)] * 12 + [(1 << 20, 2)] * 4
    for rank in range(RANKS):
        for mine, sent in zip(job.buffers(rank), own[2], strict=True):
            assert torch.equal(mine, sent)
        assert job.syncs[rank].take() == []


def test_a_refused_buffer_is_not_taken_and_the_others_are(job):
    job.learn()
    job.update()
    job.buffers(0)[0][1] = 1e4
    own = job.sync()
    for rank in range(RANKS):
        assert torch.equal(job.buffers(rank)[0], own[rank][0]), "its own"
        assert torch.equal(job.buffers(rank)[1], own[0][1])
        (found,) = job.syncs[rank].take()
        assert found.refused == {0}
        assert found.is_named
        assert "mean" in found.text
        assert job.syncs[rank].take() == [], "once"


def test_where_nothing_is_corrected_it_is_said_and_taken(monkeypatch):
    job = Job(monkeypatch, corrects=False)
    job.learn()
    job.update()
    job.buffers(0)[0][1] = math.nan
    job.sync()
    for rank in range(RANKS):
        assert math.isnan(job.buffers(rank)[0][1])
        assert job.syncs[rank].take()[0].not_finite


def test_a_buffer_of_ones_own_that_is_not_finite_is_what_it_was(job):
    """The source ruins its own; it goes on with what all had after the sync before."""
    job.learn()
    before = job.buffers(0)[0].clone()
    job.update()
    job.buffers(0)[0][1] = math.nan
    own = job.sync()
    assert torch.equal(job.buffers(0)[0], before)
    assert all(torch.equal(job.buffers(r)[0], own[r][0]) for r in range(1, RANKS))


def test_before_the_first_sync_there_is_nothing_to_go_back_to(job):
    job.update()
    job.buffers(0)[0][1] = math.nan
    job.sync()
    assert math.isnan(job.buffers(0)[0][1])
    assert not any(math.isnan(job.buffers(rank)[0][1]) for rank in range(1, RANKS))


def test_who_got_something_else_keeps_all_of_its_own(job):
    job.learn()
    job.update()
    job.garbled = {3}
    own = job.sync()
    assert torch.equal(job.buffers(3)[0], own[3][0])
    for rank in (1, 2):
        assert torch.equal(job.buffers(rank)[0], own[0][0])
    for sync in job.syncs:
        (found,) = sync.take()
        assert found.apart == (3,)
        assert not found.is_named


def test_so_it_does_before_anything_is_known(job):
    """Its sketches have other signs than the others', which first syncs forgive."""
    job.update()
    job.garbled = {3}
    own = job.sync()
    assert torch.equal(job.buffers(3)[0], own[3][0])
    assert torch.equal(job.buffers(1)[0], own[0][0])


def test_what_goes_on_unnamed_is_said_once_and_again_when_it_comes_back(job):
    job.learn()

    def lie():
        job.update()
        job.buffers(0)[0][1] += 8.0
        job.sync()
        return job.syncs[1].take()

    first = lie()
    assert first
    assert not first[0].is_named
    assert lie() == lie() == []
    job.update()
    job.sync()
    assert job.syncs[1].take() == [], "nothing is wrong"
    assert lie() != []


def test_what_is_named_is_said_each_time_and_eight_are_kept(job):
    job.learn()
    for _ in range(12):
        job.update()
        job.buffers(0)[0][1] = math.nan
        job.sync()
    assert len(job.syncs[2].take()) == 8


def test_a_refused_drift_begins_again_and_one_that_is_not_finite_is_forgotten(job):
    """Else one lie would be held against honest buffers for a hundred syncs."""
    job.learn()
    job.update()
    job.buffers(0)[0][1] = 1e4
    job.sync()
    assert not job.syncs[1]._drift[0].any()
    assert job.syncs[1]._drift[1].numel() == 1
    job.update()
    job.buffers(1)[0][0] = math.inf  # this rank's own
    job.sync()
    assert all(torch.isfinite(t).all() for sync in job.syncs for t in sync._drift)
    for sync in job.syncs:
        sync.take()
    job.learn(5)


def test_deviations_add_up_with_a_weight_and_the_source_has_none(monkeypatch):
    job = Job(monkeypatch)
    job.update()
    job.sync()
    first = job.syncs[1]._drift[0].clone()
    assert first.any()
    job.update()
    own = job.sync()
    expected = first * (1 - 1 / 128) + (own[0][0] - own[1][0])
    assert torch.allclose(job.syncs[1]._drift[0], expected)
    assert not job.syncs[0]._drift[0].any()
    apart = Job(monkeypatch, shuffled=False)
    for _ in range(2):
        apart.update()
        own = apart.sync()
    assert torch.equal(apart.syncs[1]._drift[0], own[0][0] - own[1][0])


def test_other_buffers_are_learned_anew(job):
    job.learn()
    records = [sync._record for sync in job.syncs]
    assert all(record._syncs == 20 for record in records)
    for model in job.models:
        model.module.register_buffer("mean", torch.zeros(SIZE, dtype=torch.float64))
    job.update()
    job.buffers(0)[0][1] = math.nan
    job.sync()
    assert all(record._syncs == 1 for record in records)
    assert math.isnan(job.buffers(0)[0][1]), "what it was before is of another kind"
    assert job.syncs[1]._drift[0].dtype == torch.float64


def test_each_sync_has_signs_of_its_own(job, monkeypatch):
    seeds: list[bytes] = []

    def noted(seed: bytes, *args: Any, **options: Any) -> Any:
        seeds.append(seed)
        return derive(seed, *args, **options)

    monkeypatch.setattr(buffer_sync, "derive", noted)
    for _ in range(2):  # the same buffers twice
        job.update(noise=0.0)
        for rank in range(RANKS):
            job.buffers(rank)[1].zero_()
        job.sync()
    assert len(set(seeds)) == 2


def test_a_buffer_that_the_model_does_not_know_has_a_number(job):
    sync = job.syncs[0]
    mean, _ = job.buffers(0)
    assert sync._names([torch.zeros(1), mean]) == ["buffer 0", "mean"]
    del job.models[0]
    assert sync._names([mean]) == ["buffer 0"]


def test_numbers_of_any_type_are_read():
    wide = buffer_sync._wide
    assert wide(torch.tensor([1 << 40])).tolist() == [float(1 << 40)]
    assert wide(torch.tensor([1 << 40])).dtype == torch.float64
    assert wide(torch.tensor([1 + 2j])).tolist() == [1.0, 2.0]
    assert wide(torch.ones(2, 2, dtype=torch.bfloat16)).dtype == torch.float32
    assert wide(torch.tensor(True)).tolist() == [1.0]
    roundoff = buffer_sync._roundoff
    assert roundoff(torch.zeros(1, dtype=torch.int64)) == same_up_to(0.0)
    assert roundoff(torch.zeros(1, dtype=torch.bfloat16)) == same_up_to(2.0**-7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it experimental
        half = torch.zeros(1, dtype=torch.complex32)
    assert roundoff(half) == same_up_to(2.0**-10)


def test_a_digest_is_of_all_bytes_in_order():
    one, other = torch.arange(4.0), torch.arange(4)
    digest = buffer_sync._digest
    assert digest([one, other]) != digest([other, one])
    assert digest([one.view(2, 2).T]) != digest([one.view(2, 2)])
    assert digest([torch.tensor([0.0])]) != digest([torch.tensor([-0.0])])


# -- where it is put -------------------------------------------------------------------------------


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> Holder:
    monkeypatch.setattr(buffer_sync, "GroupChannel", lambda _group: None)
    monkeypatch.setattr(buffer_sync, "DistributedDataParallel", Holder)
    return Holder()


def test_a_models_broadcasts_are_compared_until_they_are_released(wrapped, monkeypatch):
    found = buffers_of(wrapped, Gradients())
    assert found is not None
    assert buffers_of(wrapped, Gradients()) is found, "one for each model"
    calls: list[Any] = []
    monkeypatch.setattr(found, "broadcast", lambda *args: calls.append(args))
    wrapped._distributed_broadcast_coalesced(["t"], 5)
    wrapped._distributed_broadcast_coalesced(["t"], 5, 2)
    assert calls == [(["t"], 5, 0), (["t"], 5, 2)]
    release_buffers(wrapped)
    refused(AssertionError, "torch's own", wrapped._distributed_broadcast_coalesced, ["t"], 5)
    release_buffers(wrapped)
    release_buffers(nn.Linear(1, 1))
    assert buffers_of(wrapped, Gradients()) is not found


def test_the_policy_decides(wrapped):
    assert buffers_of(wrapped, Gradients(bind_buffers=False)) is None
    for response in GuardResponse:
        found = buffers_of(wrapped, Gradients(response=response))
        assert found is not None
        assert found._corrects is (response is not GuardResponse.OBSERVE)
        release_buffers(wrapped)
    for data in GradientData:
        found = buffers_of(wrapped, Gradients(data=data))
        assert found is not None
        assert (found._weight > 0) is (data is GradientData.SHUFFLED)
        release_buffers(wrapped)


def test_a_torch_that_broadcasts_otherwise_is_refused(monkeypatch):
    with pytest.raises(GuardError) as caught:
        buffers_of(nn.Linear(1, 1), Gradients())  # type: ignore[arg-type]
    assert caught.value.code == "ST-GRAD-006"
    assert "bind_buffers" in caught.value.fix
