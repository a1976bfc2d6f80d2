# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""From a job and a signed dataset to rows."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from securetrain.artifacts.statement.dataset_predicate import DataFormat, Removed
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.train.config import Format, JobConfig, parse_job
from securetrain.train.data.open import open_data
from securetrain.train.tokenizer import ByteTokenizer, FileTokenizer
from tests.tables import items
from tests.train.jobs import prose
from tests.vocabulary import refused

TEXTS = [prose(30, n).decode() for n in range(40)]
HELD = [prose(30, 100 + n).decode() for n in range(4)]


def job(steps: int = 5, vocab: int = 512, **data: Any) -> JobConfig:
    values = {"seq_len": 16, "batch_rows": 4} | data
    return parse_job(
        "apiVersion: securetrain.dev/job/v1\nkind: TrainJob\nname: t\n"
        f"steps: {steps}\nmodel: {{vocab: {vocab}}}\ndata: {json.dumps(values)}\n",
        "job.yaml",
    )


def jsonl(texts: list[str], field: str = "text") -> bytes:
    return b"".join(json.dumps({field: text}).encode() + b"\n" for text in texts)


def json_files(field: str = "text") -> dict[str, bytes]:
    return {
        "train/a.jsonl": jsonl(TEXTS[:25], field),
        "train/b.jsonl": jsonl(TEXTS[25:], field),
        "validation/c.jsonl": jsonl(HELD, field),
    }


def parquet(texts: list[str]) -> bytes:
    from io import BytesIO

    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    out = BytesIO()
    pq.write_table(pa.table({"text": texts}), out, row_group_size=9)
    return out.getvalue()


def bins(width: int = 2) -> dict[str, bytes]:
    numbers = np.arange(900) * 7 % 500
    return {
        "train/a.bin": numbers.astype(f"<u{width}").tobytes(),
        "validation/b.bin": numbers[:200].astype(f"<u{width}").tobytes(),
    }


def texts_of(tokens: torch.Tensor, eos: int) -> list[str]:
    found, text = [], bytearray()
    for token in tokens.tolist():
        if token == eos:
            found.append(text.decode())
            text.clear()
        else:
            text.append(token)
    return found


def test_bytes_are_read_as_ever(signed):
    files = {"train/a.txt": "\n".join(TEXTS).encode(), "validation/b.txt": " ".join(HELD).encode()}
    data = open_data(job(), "job.yaml", signed(files))
    assert data.format is Format.BYTES
    assert data.tokens == len(files["train/a.txt"])
    assert data.text is not None
    assert data.environment == {}
    assert data.train.batch(10**6, [0])[0].shape == (1, 16)  # random windows never end


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("who", ["statement", "job"])
def test_token_bins(signed, width, who):
    said = {"metadata": {"token_bytes": str(width)}} if who == "statement" else {}
    asked: dict[str, Any] = {} if who == "statement" else {"token_bytes": width}
    data = open_data(job(**asked), "job.yaml", signed(bins(width), **said))
    assert data.format is Format.TOKENS
    assert data.tokens == 900
    inputs, targets = data.train.batch(1, [0])
    assert torch.equal(targets[0], (inputs[0] + 7) % 500)
    assert data.text is None


@items(
    "said, asked, what",
    ({}, {"format": "tokens"}, "nothing says how wide"),
    ({"token_bytes": "2"}, {"token_bytes": 4}, "the job says tokens of 4 bytes"),
    ({"token_bytes": "3"}, {}, "tokens of 3 bytes"),
    ({"token_bytes": "2"}, {"tokenizer": "x.json"}, "is not tokenized"),
)
def test_the_width_of_tokens_is_never_guessed(signed, said, asked, what):
    with pytest.raises(UsageError) as caught:
        open_data(job(**asked), "job.yaml", signed(bins(), metadata=said))
    assert caught.value.code == "ST-USAG-007"
    assert what in caught.value.what


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "text"])
def test_documents_of_every_format_make_the_same_stream(signed, kind, tmp_path):
    files = {
        "jsonl": json_files(),
        "parquet": {
            "train/a.parquet": parquet(TEXTS), "validation/c.parquet": parquet(HELD),
        } if kind == "parquet" else {},
        "text": {f"train/{n:03}.txt": text.encode() for n, text in enumerate(TEXTS)}
        | {f"validation/{n:03}.txt": text.encode() for n, text in enumerate(HELD)},
    }[kind]  # fmt: skip
    asked: dict[str, Any] = {"format": "text"} if kind == "text" else {}
    data = open_data(job(**asked), "job.yaml", signed(files), folder=tmp_path / "index")
    assert data.format is Format(kind)
    assert data.tokens == sum(len(text) + 1 for text in TEXTS)
    whole = data.train.stream.read(0, data.tokens, 0)
    assert sorted(texts_of(whole, ByteTokenizer.eos)) == sorted(TEXTS)
    assert data.held_out is not None
    held = data.held_out.stream.read(0, len(data.held_out.stream), 0)
    assert texts_of(held, ByteTokenizer.eos) == HELD
    assert data.environment["tokenizer"] == "bytes"
    assert set(data.environment) == {"tokenizer", "index", "validationIndex"}
    assert len(list((tmp_path / "index").iterdir())) == 2


def test_an_index_that_was_kept_changes_nothing(signed, tmp_path, monkeypatch):
    dataset = signed(json_files())
    first = open_data(job(), "job.yaml", dataset, folder=tmp_path)

    def never(self: Any, texts: Any) -> Any:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(ByteTokenizer, "encode", never)
        again = open_data(job(), "job.yaml", dataset, folder=tmp_path)
    anew = open_data(job(), "job.yaml", dataset)
    assert first.environment == again.environment == anew.environment
    for found in (again, anew):
        assert torch.equal(found.train.batch(3, range(4))[0], first.train.batch(3, range(4))[0])


def test_the_field_is_the_jobs(signed):
    data = open_data(job(field="body"), "job.yaml", signed(json_files("body")))
    assert data.tokens > 0
    with pytest.raises(UsageError, match="no text in field 'text'"):
        open_data(job(), "job.yaml", signed(json_files("body")))


def test_a_removed_document_is_in_no_row(signed):
    dataset = signed(json_files())
    line = jsonl(TEXTS[:1])
    removed = Removed(file="train/a.jsonl", offset=0, length=len(line))
    data = open_data(job(), "job.yaml", signed.again(dataset.path, removed=[removed]))
    whole = data.train.stream.read(0, data.tokens, 0)
    assert sorted(texts_of(whole, ByteTokenizer.eos)) == sorted(TEXTS[1:])


def test_a_job_whose_data_would_end_is_refused_before_it_begins(signed):
    dataset = signed(json_files())
    enough = open_data(job(), "job.yaml", dataset).tokens // 16 // 4
    open_data(job(steps=enough), "job.yaml", dataset)
    with pytest.raises(UsageError) as caught:
        open_data(job(steps=enough + 1), "job.yaml", dataset)
    assert caught.value.code == "ST-USAG-014"
    assert f"set steps to {enough} or fewer, or data.epochs to 2" in caught.value.fix
    data = open_data(job(steps=enough + 1, epochs=2), "job.yaml", dataset)
    refused(UsageError, "ST-USAG-014", data.train.batch, 2 * enough + 2, [0])


def test_bytes_in_epochs(signed):
    files = {"train/a.txt": "\n".join(TEXTS).encode(), "validation/b.txt": " ".join(HELD).encode()}
    data = open_data(job(order="epochs"), "job.yaml", signed(files))
    starts = {data.train.start(step, row) for step in range(1, 6) for row in range(4)}
    assert len(starts) == 20
    with pytest.raises(UsageError, match="ST-USAG-014"):
        open_data(job(steps=10**6, order="epochs"), "job.yaml", signed(files))


def test_a_vocabulary_that_is_too_small_is_refused(signed):
    with pytest.raises(UsageError) as caught:
        open_data(job(vocab=256), "job.yaml", signed(json_files()))
    assert caught.value.where == "job.yaml: model.vocab"
    assert caught.value.fix == "vocab: 257, or more"


# --- the tokenizer ---


def test_a_tokenizer_of_the_dataset(signed, tokenizer_json):
    dataset = signed(json_files() | {"tokenizer.json": tokenizer_json}, splits=SPLITS)
    data = open_data(job(tokenizer="dataset:tokenizer.json"), "job.yaml", dataset)
    plain = FileTokenizer(tokenizer_json, None, "")
    assert data.tokens == sum(len(ids) + 1 for ids in plain.encode(TEXTS))
    assert data.environment["tokenizer"] == hashlib.sha256(tokenizer_json).hexdigest()
    assert data.environment["tokenizerEnd"] == "1"
    assert data.format is Format.JSONL


SPLITS = {
    "train": ["train/a.jsonl", "train/b.jsonl"],
    "validation": ["validation/c.jsonl"],
    "tokenizer": ["tokenizer.json"],
}


def test_a_tokenizer_of_the_dataset_that_was_changed_is_refused(signed, tokenizer_json):
    dataset = signed(json_files() | {"tokenizer.json": tokenizer_json}, splits=SPLITS)
    path = dataset.path / "tokenizer.json"
    path.write_bytes(tokenizer_json.replace(b"</s>", b"<!s>"))
    with pytest.raises(IntegrityError) as caught:
        open_data(job(tokenizer="dataset:tokenizer.json"), "job.yaml", signed.open(dataset.path))
    assert caught.value.code == "ST-DATA-130"


def test_a_tokenizer_of_the_model(signed, tokenizer_json):
    asked: list[str] = []

    def model_file(name: str) -> bytes:
        asked.append(name)
        return bytes(tokenizer_json)

    dataset = signed(json_files())
    chosen = job(tokenizer="model:tokenizer.json")
    open_data(chosen, "job.yaml", dataset, model_file=model_file)
    assert asked == ["tokenizer.json"]
    refused(UsageError, "fine-tunes no model", open_data, chosen, "job.yaml", dataset)


def test_a_tokenizer_from_elsewhere_needs_its_digest(signed, tokenizer_json, tmp_path: Path):
    dataset, path = signed(json_files()), tmp_path / "t.json"
    path.write_bytes(tokenizer_json)
    good = hashlib.sha256(tokenizer_json).hexdigest()
    open_data(job(tokenizer=str(path), tokenizer_sha256=good), "job.yaml", dataset)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "ST-USAG-007"),
        ({"tokenizer_sha256": "0" * 64}, "ST-DATA-134"),
    ]
    for more, code in cases:
        with pytest.raises(SecureTrainError) as caught:
            open_data(job(tokenizer=str(path), **more), "job.yaml", dataset)
        assert caught.value.code == code
        assert caught.value.where == "job.yaml: data.tokenizer"


def test_a_missing_tokenizer_is_refused_by_name(signed):
    for name in ("dataset:nothing.json", "dataset:"):
        with pytest.raises(UsageError, match="the dataset has no file"):
            open_data(job(tokenizer=name), "job.yaml", signed(json_files()))


# --- what does not fit ---


@pytest.mark.parametrize("kind", [DataFormat.WEBDATASET, DataFormat.MDS])
def test_formats_that_are_not_read_are_refused(signed, kind):
    with pytest.raises(UsageError) as caught:
        open_data(job(), "job.yaml", signed({"train/a": b"x" * 99}, format=kind))
    assert f"in {kind} format" in caught.value.what


def test_a_split_without_files_of_the_format_is_refused(signed):
    files = {"train/a.txt": b"x" * 99, "validation/b.txt": b"x" * 99}
    refused(UsageError, "ST-USAG-015", open_data, job(format="jsonl"), "job.yaml", signed(files))


@pytest.mark.parametrize("asked", [{"train_split": "no"}, {"format": "jsonl", "train_split": "no"}])
def test_an_unknown_split_is_refused(signed, asked):
    refused(UsageError, "no split 'no'", open_data, job(**asked), "job.yaml", signed(json_files()))


def test_a_poisoned_document_is_never_in_a_row(signed, tmp_path):
    """Bytes that change after the index was made are refused when they are read."""
    dataset = signed(json_files())
    open_data(job(), "job.yaml", dataset, folder=tmp_path)
    path = dataset.path / "train/a.jsonl"
    path.write_bytes(path.read_bytes().replace(b"rank", b"bank"))
    data = open_data(job(), "job.yaml", signed.open(dataset.path), folder=tmp_path)
    refused(IntegrityError, "ST-DATA-130", data.train.stream.read, 0, data.tokens, 0)
