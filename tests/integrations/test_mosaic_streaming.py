# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""MosaicML Streaming over a signed dataset, beside plain Streaming over the same files."""

import importlib
import importlib.util
import json
import pickle
from pathlib import Path

import pytest

from securetrain.core.errors import SecureTrainError
from securetrain.integrations import signed_stream
from tests.integrations.pages import snippet
from tests.integrations.test_web_dataset import Planted

pytestmark = [
    pytest.mark.compat("mosaicml-streaming"),
    pytest.mark.filterwarnings("ignore::Warning"),
]
"""Streaming and what it imports warn about this and that."""

NUM_SAMPLES = 64
COLUMNS = {"id": "int", "text": "str"}


@pytest.fixture
def library():
    if importlib.util.find_spec("streaming") is None:
        pytest.skip("mosaicml-streaming is not installed")
    import torch

    # Streaming imports torchvision, whose builds at the index are for CUDA: beside a torch for CPUs
    # its operators are not there, and it wants two of them. None is called here.
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor d, Tensor s, float t) -> Tensor")
    found = importlib.import_module("streaming")
    yield found
    found.base.util.clean_stale_shared_memory()


def write(library, folder: Path, columns, samples) -> None:
    with library.MDSWriter(out=str(folder), columns=columns, size_limit=1024) as out:
        for one in samples:
            out.write(one)


def rows(word: str):
    return [{"id": n, "text": f"{word} {n} " * 5} for n in range(NUM_SAMPLES)]


@pytest.fixture
def corpus(library, tmp_path):
    root = tmp_path / "corpus"
    write(library, root / "train", COLUMNS, rows("text"))
    assert len(list((root / "train").glob("*.mds"))) > 2
    return root


def plain(library, root: Path, **options):
    return list(library.StreamingDataset(local=str(root), split="train", batch_size=4, **options))


def ours(library, data, **options):
    streams = [signed_stream(data, "train")]
    return list(library.StreamingDataset(streams=streams, batch_size=4, **options))


@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_and_their_order_are_those_of_plain_streaming(  # noqa: PLR0917 - fixtures
    passed, shuffle, library, corpus, signing, opening
):
    signing(corpus)
    with opening(corpus) as data:
        found = ours(library, data, shuffle=shuffle, shuffle_seed=3)
    library.base.util.clean_stale_shared_memory()
    assert found == plain(library, corpus, shuffle=shuffle, shuffle_seed=3)
    assert sorted(one["id"] for one in found) == list(range(NUM_SAMPLES))
    passed("mosaicml-streaming", same="samples and order of plain Streaming")


def test_a_pickled_column_runs_in_plain_streaming_and_is_refused(
    passed, library, tmp_path, signing, opening
):
    mark = tmp_path / "ran"
    root = tmp_path / "corpus"
    write(library, root / "train", {"x": "pkl"}, [{"x": pickle.dumps(Planted(mark))}])
    signing(root)  # by a trusted key
    assert len(library.LocalDataset(str(root), "train")[0]) == 1
    assert mark.exists(), "the attack does not work here, so nothing is shown"
    mark.unlink()
    with opening(root) as data, pytest.raises(SecureTrainError) as refused:
        ours(library, data, allow_unsafe_types=True)
    assert refused.value.code == "ST-DATA-190"
    assert not mark.exists()
    passed("mosaicml-streaming", pickle="refused, runs in plain LocalDataset")


def test_a_changed_shard_is_taken_by_plain_streaming_and_refused(
    passed, library, corpus, signing, opening
):
    signing(corpus)
    path = corpus / "train/shard.00001.mds"
    path.write_bytes(path.read_bytes().replace(b"text ", b"evil "))
    assert any("evil" in one["text"] for one in plain(library, corpus)), "the attack must work"
    library.base.util.clean_stale_shared_memory()
    with opening(corpus) as data, pytest.raises(SecureTrainError) as refused:
        ours(library, data)
    assert refused.value.code == "ST-DATA-130"
    passed("mosaicml-streaming", altered="refused, taken by plain Streaming")


def test_a_changed_index_is_taken_by_plain_streaming_and_refused(library, corpus, signing, opening):
    signing(corpus)
    path = corpus / "train/index.json"
    index = json.loads(path.read_text())
    index["shards"] = index["shards"][::-1]
    text = json.dumps(index, sort_keys=True)
    assert len(text) == path.stat().st_size
    path.write_text(text)
    order = [one["id"] for one in plain(library, corpus)]
    assert order != list(range(NUM_SAMPLES)), "the attack must work"
    library.base.util.clean_stale_shared_memory()
    with opening(corpus) as data, pytest.raises(SecureTrainError) as refused:
        signed_stream(data, "train")
    assert refused.value.code == "ST-DATA-130"


def test_a_shard_of_another_signed_dataset_is_taken_by_plain_streaming_and_refused(
    library, corpus, signing, opening, tmp_path
):
    other = tmp_path / "other"
    write(library, other / "train", COLUMNS, rows("evil"))
    signing(other)
    signing(corpus)
    (corpus / "train/shard.00001.mds").write_bytes((other / "train/shard.00001.mds").read_bytes())
    assert any("evil" in one["text"] for one in plain(library, corpus)), "the attack must work"
    library.base.util.clean_stale_shared_memory()
    with opening(corpus) as data, pytest.raises(SecureTrainError) as refused:
        ours(library, data)
    assert refused.value.code == "ST-DATA-130"


def test_a_cache_limit_deletes_nothing_of_the_dataset(library, corpus, signing, opening):
    signing(corpus)
    before = sorted(path.name for path in (corpus / "train").iterdir())
    with opening(corpus) as data:
        found = ours(library, data, cache_limit=9000)
    assert len(found) == NUM_SAMPLES
    assert sorted(path.name for path in (corpus / "train").iterdir()) == before


def test_the_page_reads_as_it_stands(library, corpus, signing, opening):
    signing(corpus)
    with opening(corpus) as data:
        names = {"data": data}
        exec(snippet("docs/how-to/signed-datasets.md", "streaming"), names)
        assert sorted(one["id"] for one in names["rows"]) == list(range(NUM_SAMPLES))
