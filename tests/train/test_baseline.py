# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from securetrain.train.baseline import baselines
from securetrain.train.data import ByteSplit
from tests.train.jobs import memory_source, prose


def split(name: str = "train") -> ByteSplit:
    return ByteSplit(memory_source(), name, "job.yaml: data.train_split")


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
