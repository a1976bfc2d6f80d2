# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The index of MDS shards is judged before Streaming, which is not needed here, sees it."""

import json

import pytest

from securetrain.artifacts.statement.dataset_predicate import DataFormat
from securetrain.core.errors import SecureTrainError
from securetrain.integrations.mds_index import read_mds_index
from tests.tables import items
from tests.vocabulary import refused


def entry(**other):
    return {
        "column_encodings": ["int", "str"],
        "column_names": ["id", "text"],
        "column_sizes": [8, None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "raw_data": {"basename": "shard.00000.mds", "bytes": 1000, "hashes": {}},
        "samples": 3,
        "size_limit": 1 << 26,
        "version": 2,
        "zip_data": None,
        **other,
    }


@pytest.fixture
def reading(tmp_path, signing, opening):
    def run(text: str):
        folder = tmp_path / "corpus/train"
        folder.mkdir(parents=True)
        (folder / "shard.00000.mds").write_bytes(bytes(1000))
        (folder / "index.json").write_text(text)
        signing(tmp_path / "corpus", format=DataFormat.RAW)
        with opening(tmp_path / "corpus") as data:
            return read_mds_index(data, "train")

    return run


def test_a_good_index_is_given_as_it_is(reading):
    good = [entry(), entry(column_encodings=["ndarray:int32:4", "list[png]"])]
    assert reading(json.dumps({"version": 2, "shards": good})) == good


@pytest.mark.parametrize("encoding", ["pkl", "pkl:", "pkl:x"])
def test_a_pickled_column_is_refused(encoding, reading):
    shards = [entry(), entry(column_encodings=["int", encoding])]
    with pytest.raises(SecureTrainError) as refused:
        reading(json.dumps({"version": 2, "shards": shards}))
    assert refused.value.code == "ST-DATA-190"
    assert "'text'" in refused.value.what


RAW = entry()["raw_data"]
FALSE = {
    "an encoding of tomorrow": entry(column_encodings=["int", "dill"]),
    "a path out": entry(raw_data={**RAW, "basename": "../train/shard.00000.mds"}),
    "an absolute path": entry(raw_data={**RAW, "basename": "/etc/passwd"}),
    "a file that is not there": entry(raw_data={**RAW, "basename": "shard.00001.mds"}),
    "another size": entry(raw_data={**RAW, "bytes": 999}),
    "a compressed shard": entry(compression="zstd", zip_data=RAW),
    "another format": entry(format="jsonl"),
    "a column without a name": entry(column_names=["id"]),
    "fewer than no samples": entry(samples=-1),
    "no shard": {},
}


@pytest.mark.parametrize("what", FALSE)
def test_what_is_no_plain_shard_is_refused(what, reading):
    with pytest.raises(SecureTrainError) as refused:
        reading(json.dumps({"version": 2, "shards": [FALSE[what]]}))
    assert refused.value.code == "ST-USAG-015"


@items(
    "text",
    '{"version": 3, "shards": []}',
    "[]",
    "{",
    '{"version": 2, "version": 2, "shards": []}',
)
def test_what_is_no_index_is_refused(text, reading):
    refused(SecureTrainError, "ST-USAG-015", reading, text)


def test_a_split_without_an_index_is_refused(tmp_path, signing, opening):
    (tmp_path / "a.jsonl").write_text("{}\n")
    signing(tmp_path)
    with opening(tmp_path) as data, pytest.raises(SecureTrainError) as refused:
        read_mds_index(data, "")
    assert refused.value.code == "ST-USAG-015"
