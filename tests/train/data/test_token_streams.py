# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch

from securetrain.core.errors import UsageError
from securetrain.train.data.source import ByteRange, ByteSplit
from securetrain.train.data.token_streams import BinTokens, ByteTokens
from tests.train.jobs import MemorySource


def bins(numbers: list[int], width: int, vocab: int) -> BinTokens:
    data = np.array(numbers, dtype=f"<u{width}").tobytes()
    half = len(numbers) // 2 * width
    source = MemorySource({"a": data[:half], "b": data[half:]}, {"train": ("a", "b")})
    return BinTokens(ByteSplit(source, "train", "job.yaml", unit=width), width, vocab)


@pytest.mark.parametrize("width", [2, 4])
def test_numbers_are_read_across_files(width):
    numbers = [5, 0, 60000, 7, 1, 2, 3]
    stream = bins(numbers, width, 65536)
    assert len(stream) == 7
    assert torch.equal(stream.read(1, 5, 9), torch.tensor(numbers[1:6]))
    assert stream.read(0, 7, 0).dtype is torch.int64
    assert stream.byte_ranges(2, 2, 0) == [
        ByteRange("a", 2 * width, width),
        ByteRange("b", 0, width),
    ]


@pytest.mark.parametrize("bad", [8, 9, 65535])
def test_a_token_outside_of_the_vocabulary_is_refused_by_place(bad):
    stream = bins([1, 7, 0, bad, 2], 2, 8)
    assert stream.read(0, 3, 0).tolist() == [1, 7, 0]
    with pytest.raises(UsageError) as caught:
        stream.read(1, 4, 0)
    assert caught.value.code == "ST-USAG-015"
    assert f"token {bad} at byte 2" in caught.value.what
    assert caught.value.where == "job.yaml: b"


def test_bytes_are_tokens():
    source = MemorySource({"a": bytes([0, 255, 7])}, {"train": ("a",)})
    stream = ByteTokens(ByteSplit(source, "train", "job.yaml"))
    assert stream.read(0, 3, 0).tolist() == [0, 255, 7]
    assert stream.read(1, 0, 0).tolist() == []
    assert stream.byte_ranges(1, 2, 0) == [ByteRange("a", 1, 2)]
