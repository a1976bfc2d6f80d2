# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from securetrain.core.errors import UsageError
from securetrain.train.baseline import baselines
from securetrain.train.data import ByteSplit, Rows, share
from tests.train.jobs import documents, memory_source, prose


def split(name: str = "train") -> ByteSplit:
    return ByteSplit(memory_source(), name, "job.yaml: data.train_split")


def test_a_split_is_its_documents_one_after_the_other():
    whole = b"".join(documents()["train"])
    data = split()
    assert len(data) == len(whole)
    for start, length in [(0, 10), (len(whole) - 7, 7), (0, len(whole)), (5, 0)]:
        assert data.read(start, length) == whole[start : start + length]
    first = len(documents()["train"][0])
    assert data.read(first - 3, 6) == whole[first - 3 : first + 3]


@pytest.mark.parametrize(("start", "length"), [(-1, 4), (0, 10**9), (10**9, 0)])
def test_a_read_outside_is_refused(start, length):
    with pytest.raises(ValueError, match="outside"):
        split().read(start, length)


def test_an_unknown_split_is_refused_with_the_known_ones():
    with pytest.raises(UsageError) as caught:
        split("test")
    assert caught.value.code == "ST-USAG-007"
    assert caught.value.fix == "one of: train, validation"


def test_a_split_must_hold_a_row():
    with pytest.raises(UsageError) as caught:
        Rows(split(), 10**6, seed=0)
    assert caught.value.code == "ST-USAG-007"


def test_a_row_is_a_pure_function_of_seed_step_and_row():
    rows = Rows(split(), 32, seed=7)
    whole = b"".join(documents()["train"])
    torch.manual_seed(1)
    inputs, targets = rows.batch(3, [0, 1, 2, 3])
    torch.manual_seed(2)
    again = Rows(split(), 32, seed=7)
    # in another order, on another object, alone: the same bytes
    for row in (3, 0, 2, 1):
        x, y = again.batch(3, [row])
        assert torch.equal(x[0], inputs[row])
        assert torch.equal(y[0], targets[row])
    start = rows.start(3, 2)
    assert bytes(inputs[2].tolist()) == whole[start : start + 32]
    assert bytes(targets[2].tolist()) == whole[start + 1 : start + 33]


def test_seed_step_row_and_split_all_matter():
    rows = Rows(split(), 32, seed=7)
    starts = {
        rows.start(1, 0),
        rows.start(2, 0),
        rows.start(1, 1),
        Rows(split(), 32, seed=8).start(1, 0),
    }
    assert len(starts) == 4
    assert rows.start(1, 0) == 5379  # pinned: an old run must stay reproducible
    many = [rows.start(step, row) for step in range(200) for row in range(4)]
    assert min(many) >= 0
    assert max(many) + 33 <= len(rows.split)
    assert len(set(many)) > 700


def test_every_rank_count_sees_the_same_rows_of_a_step():
    rows = Rows(split(), 32, seed=0)
    whole, _ = rows.batch(5, range(8))
    for ranks in (1, 2, 4, 8):
        parts = [rows.batch(5, share(8, rank, ranks))[0] for rank in range(ranks)]
        assert torch.equal(torch.cat(parts), whole)


def test_validation_rows_are_spread_and_fixed():
    rows = Rows(split("validation"), 32, seed=0)
    first, _ = rows.spaced(4, range(4))
    assert torch.equal(first, Rows(split("validation"), 32, seed=9).spaced(4, range(4))[0])
    whole = documents()["validation"][0]
    assert bytes(first[0].tolist()) == whole[:32]
    assert bytes(first[3].tolist()) == whole[-33:-1]
    assert rows.spaced(1, [0])[0].shape == (1, 32)


def test_counting_baselines_order_as_they_must():
    found = baselines(split(), split("validation"))
    assert 0 < found.bigram < found.unigram < 8
    noise = memory_source()
    noise.data["validation-0"] = bytes(range(256)) * 8
    hard = baselines(
        ByteSplit(noise, "train", "job.yaml"), ByteSplit(noise, "validation", "job.yaml")
    )
    assert hard.unigram > 8, "text tables must do worse than uniform on uniform bytes"
    assert hard.bigram > 8
    assert prose(3) != prose(3, 1)
