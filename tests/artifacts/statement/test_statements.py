# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import base64
import re
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from securetrain.artifacts.statement.statements import (
    CHECKPOINT_TYPE,
    DIGEST_NAME,
    CheckpointPredicate,
    DataFile,
    DatasetPredicate,
    RankFile,
    Split,
    TreeInfo,
    claimed_kind,
    digest_of,
    open_statement,
    sign,
)
from securetrain.artifacts.tree import layout
from securetrain.artifacts.tree.layout import STATEMENT, Kind, bad_name
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.hashtree import TreeParams
from securetrain.identity import dsse, statement
from tests.tables import each, items
from tests.vocabulary import refused

ROOT = "ab" * 32


def dataset(now, **said) -> DatasetPredicate:
    fields = {
        "name": "d",
        "seq": 0,
        "created": now,
        "tree": TreeInfo.of(TreeParams()),
        "files": [DataFile(name="a", size=1, root=ROOT), DataFile(name="b", size=2, root=ROOT)],
        "splits": [Split(name="train", files=["a", "b"])],
        **said,
    }
    return DatasetPredicate(**fields)


def test_what_is_signed_is_what_is_opened(keys, trust, now):
    predicate = dataset(now)
    data = sign(predicate, "d", keys.dataset)
    opened = open_statement(data, Kind.DATASET, trust)
    assert opened.predicate == predicate
    assert opened.digest == digest_of(predicate)
    assert opened.key_ids == {keys.dataset.key_id}
    assert claimed_kind(data) is Kind.DATASET


def test_the_digest_covers_every_file(now):
    digests = {
        digest_of(dataset(now)),
        digest_of(dataset(now, files=[DataFile(name="a", size=1, root=ROOT)])),
        digest_of(
            dataset(
                now,
                files=[
                    DataFile(name="a", size=2, root=ROOT),
                    DataFile(name="b", size=1, root=ROOT),
                ],
            )
        ),
        digest_of(dataset(now, tree=TreeInfo.of(TreeParams(leaf_size=1024)))),
    }
    assert len(digests) == 4
    # What is said about the files is signed, but is not what identifies them.
    assert digest_of(dataset(now, name="other")) == digest_of(dataset(now))


def test_a_statement_of_the_other_kind_is_refused(keys, trust, now):
    # Signed by the checkpoint key, claiming to be a dataset: the dataset role is asked, and is not
    # the one that signed.
    data = sign(dataset(now), "d", keys.checkpoint)
    refused(IntegrityError, "ST-DATA-120", open_statement, data, Kind.DATASET, trust)
    # The right key for a checkpoint, but the content is a dataset's.
    refused(IntegrityError, "ST-CKPT-101", open_statement, data, Kind.CHECKPOINT, trust)


def test_a_stranger_and_a_broken_signature(keys, trust, now):
    data = sign(dataset(now), "d", keys.stranger)
    refused(IntegrityError, "ST-DATA-120", open_statement, data, Kind.DATASET, trust)
    envelope = canonical.decode(sign(dataset(now), "d", keys.dataset), dsse.Envelope)
    forged = replace(
        envelope,
        payload=base64.b64encode(
            base64.b64decode(envelope.payload).replace(b'"seq":0', b'"seq":9')
        ).decode(),
    )
    with pytest.raises(IntegrityError) as caught:
        open_statement(canonical.encode(forged), Kind.DATASET, trust)
    assert caught.value.code == "ST-DATA-110"


def test_the_subject_must_be_the_files(keys, trust, now):
    predicate = dataset(now)
    subject = statement.Subject("d", {DIGEST_NAME: "00" * 32})
    data = statement.sign(
        [subject], "https://securetrain.dev/attestation/dataset/v1", predicate, keys.dataset
    )
    error = refused(IntegrityError, "ST-DATA-101", open_statement, data, Kind.DATASET, trust)
    assert "subject" in error.what


UNSOUND: dict[str, dict[str, Any]] = {
    "no files": {"files": []},
    "no splits": {"splits": []},
    "unsorted": {
        "files": [DataFile(name="b", size=1, root=ROOT), DataFile(name="a", size=1, root=ROOT)]
    },
    "case twins": {
        "files": [DataFile(name="A", size=1, root=ROOT), DataFile(name="a", size=1, root=ROOT)]
    },
    "escape": {"files": [DataFile(name="../a", size=1, root=ROOT)]},
    "absolute": {"files": [DataFile(name="/a", size=1, root=ROOT)]},
    "the statement itself": {"files": [DataFile(name=STATEMENT, size=1, root=ROOT)]},
    "in our folder": {"files": [DataFile(name="_securetrain/x", size=1, root=ROOT)]},
    "leaf size": {"tree": TreeInfo(algorithm=TreeParams().algorithm, leaf_size=0)},
    "leaf size huge": {"tree": TreeInfo(algorithm=TreeParams().algorithm, leaf_size=1 << 40)},
    "split of nothing": {"splits": [Split(name="train", files=[])]},
    "split of strangers": {"splits": [Split(name="train", files=["z"])]},
    "split repeats": {"splits": [Split(name="train", files=["a", "a"])]},
    "two splits of a name": {
        "splits": [Split(name="train", files=["a"]), Split(name="train", files=["b"])]
    },
}


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_lists_are_neither_signed_nor_opened(name, keys, trust, now):
    predicate = dataset(now, **UNSOUND[name])
    refused(IntegrityError, "ST-DATA-101", sign, predicate, "d", keys.dataset)
    # A trusted key may have signed it all the same.
    subject = statement.Subject("d", {DIGEST_NAME: digest_of(predicate)})
    data = statement.sign(
        [subject], "https://securetrain.dev/attestation/dataset/v1", predicate, keys.dataset
    )
    refused(IntegrityError, "ST-DATA-101", open_statement, data, Kind.DATASET, trust)


def test_a_checkpoint_names_each_rank_once(keys, trust, forge, tmp_path):
    predicate = forge(tmp_path / "c")
    twice = replace(
        predicate,
        files=[
            RankFile(name="a.bin", size=1, root=ROOT, rank=0),
            RankFile(name="b.bin", size=1, root=ROOT, rank=0),
        ],
        world_size=2,
    )
    refused(IntegrityError, "distinct ranks", sign, twice, "c", keys.checkpoint)


@items(
    "field",
    {"step": -1},
    {"save_id": "x"},
    {"created": "today"},
    {"run_id": "x" * 5000},
    {"env": {"torch": 2}},
)
def test_fields_of_the_wrong_type_are_not_signed(field, keys, forge, tmp_path):
    predicate = forge(tmp_path / "c")
    refused(UsageError, "ST-USAG-001", sign, replace(predicate, **field), "c", keys.checkpoint)


def test_a_time_without_a_zone_is_not_signed(keys, now):
    with pytest.raises(UsageError):
        sign(dataset(now.replace(tzinfo=None)), "d", keys.dataset)


def test_unknown_fields_are_refused(keys, trust, forge, tmp_path):
    predicate = forge(tmp_path / "c")
    frame = msgspec.to_builtins(predicate) | {"extra": 1}
    payload = {
        "_type": statement.STATEMENT_TYPE,
        "subject": [{"name": "c", "digest": {DIGEST_NAME: digest_of(predicate)}}],
        "predicateType": CHECKPOINT_TYPE,
        "predicate": frame,
    }
    data = dsse.sign(canonical.dumps(payload), dsse.IN_TOTO, [keys.checkpoint])
    refused(IntegrityError, "ST-CKPT-101", open_statement, data, Kind.CHECKPOINT, trust)


@each("data", b"", b"{}", b"\x80\x04N.", b'{"payload":"@"}', b"[1]")
def test_what_is_not_an_envelope_claims_nothing(data):
    assert claimed_kind(data) is None


def test_names_that_data_files_may_not_have():
    assert bad_name(Kind.DATASET, "shards/a.bin") == ""
    assert bad_name(Kind.CHECKPOINT, "rank-00000.bin") == ""
    for name in ("a/b", "x.leaves", "", "a\\b", "a:b", "Statement.JSON", "index.json", ".."):
        assert bad_name(Kind.CHECKPOINT, name), name
    for name in ("a//b", "a/../b", "_SecureTrain/x", "e\u0301", "x" * 2000, "a/\x00"):
        assert bad_name(Kind.DATASET, name), name


def test_no_rule_says_anything_against_ordinary_names(monkeypatch):
    names = ("rank-00000.bin", "train.bin", "model-00001-of-00002.safetensors", "0" * 61 + ".bin")
    assert all(layout._ORDINARY.fullmatch(name) for name in names)
    for name in ("rank-0.bin.leaves", "a/b.bin", "index.json", "A.bin", "\u0661.bin", "a.bin\n"):
        assert not layout._ORDINARY.fullmatch(name), name
    monkeypatch.setattr(layout, "_ORDINARY", re.compile("(?!)"))
    for kind in Kind:
        assert [bad_name(kind, name) for name in names] == [""] * 4


def test_the_predicate_is_written_in_camel_case(forge, tmp_path, now):
    said = msgspec.to_builtins(forge(tmp_path / "c", created=now - timedelta(days=1)))
    assert {"runId", "saveId", "worldSize"} <= set(said)
    assert set(said["tree"]) == {"algorithm", "leafSize"}
    assert msgspec.convert(said, CheckpointPredicate).run_id == "run-1"
