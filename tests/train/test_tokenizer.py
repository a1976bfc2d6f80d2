# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
import sys
from random import Random
from typing import Any

import pytest

from securetrain.core.errors import IntegrityError, UsageError
from securetrain.train.tokenizer import ByteTokenizer, FileTokenizer, check_named, unsigned
from tests.train.data.tokenizers import bpe
from tests.vocabulary import refused


@pytest.fixture(scope="module")
def data() -> bytes:
    return bpe()


def ids(tokenizer: FileTokenizer, text: str) -> list[int]:
    return tokenizer.encode([text])[0]


def test_bytes_need_no_file():
    one = ByteTokenizer()
    assert one.encode(["a\u00e9", ""]) == [[97, 0xC3, 0xA9], []]
    assert one.eos == 256 < one.vocab


def test_a_file_cuts_as_the_library_does(data):
    from tokenizers import Tokenizer

    one, plain = FileTokenizer(data, None, "job"), Tokenizer.from_buffer(data)
    text = "the run seals every byte, und wei\u00df warum"
    assert ids(one, text) == plain.encode(text).ids
    assert one.vocab == plain.get_vocab_size()
    assert one.eos == plain.token_to_id("</s>")


def test_text_cannot_spell_a_control_token(data):
    """The library alone ends the document where the text says so."""
    from tokenizers import Tokenizer

    one, text = FileTokenizer(data, None, "job"), "the run </s> signs"
    assert one.eos in Tokenizer.from_buffer(data).encode(text).ids
    assert one.eos not in ids(one, text)


def test_what_the_file_puts_around_a_text_stays_but_no_second_end():
    one = FileTokenizer(bpe(begins=True), None, "job")
    assert ids(one, "the run")[0] == 0
    said = json.loads(bpe(begins=True))
    said["post_processor"]["single"].append({"SpecialToken": {"id": "</s>", "type_id": 0}})
    said["post_processor"]["special_tokens"]["</s>"] = {
        "id": "</s>", "ids": [1], "tokens": ["</s>"],
    }  # fmt: skip
    ends = FileTokenizer(json.dumps(said).encode(), None, "job")
    assert ids(ends, "the run") == ids(one, "the run")


def test_truncation_and_padding_of_the_file_are_off(data):
    said = json.loads(data)
    said["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    short = FileTokenizer(json.dumps(said).encode(), None, "job")
    assert len(ids(short, "the run signs what it saw")) > 2


def test_the_end_token_must_be_known():
    other = bpe(specials=("<begin>", "<end>"))
    error = refused(UsageError, "ST-USAG-007", FileTokenizer, other, None, "job")
    assert "data.eos" in error.fix
    assert FileTokenizer(other, "<end>", "job").eos == 1
    refused(UsageError, "no token", FileTokenizer, other, "</s>", "job")
    two = bpe(specials=("</s>", "<|endoftext|>"))
    refused(UsageError, "one of", FileTokenizer, two, None, "job")


@pytest.mark.parametrize("bad", [b"", b"{}", b"[]", b"\xff", b"{" * 10000])
def test_what_is_no_tokenizer_is_refused(bad):
    refused(UsageError, "ST-USAG-007", FileTokenizer, bad, None, "job")


def contradicting(change) -> FileTokenizer:
    said = json.loads(bpe(begins=True))
    change(said)
    return FileTokenizer(json.dumps(said).encode(), "</s>", "job")


@pytest.mark.parametrize(
    "change",
    [
        # A token beyond the vocabulary, which an embedding has no row for.
        lambda said: said["post_processor"]["special_tokens"]["<s>"].update(ids=[400]),
        # The library panics, which no handler of Exceptions sees.
        lambda said: said["post_processor"]["special_tokens"].clear(),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(change):
    with pytest.raises(UsageError) as caught:
        contradicting(change).encode(["the run"])
    assert caught.value.code == "ST-USAG-007"
    assert "contradicts itself" in caught.value.what


def test_mutated_files_are_tokenizers_or_refused():
    good, random = json.loads(bpe(begins=True)), Random(1)
    values: list[Any] = [None, -1, 0, 300, 10**30, "", "x", [], {}, True, [1]]
    parts = [good["post_processor"], good["pre_tokenizer"], good["model"], good["added_tokens"][0]]
    for _ in range(300):
        part = random.choice(parts)
        key = random.choice(list(part))
        kept, part[key] = part[key], random.choice(values)
        try:
            one = FileTokenizer(json.dumps(good).encode(), "</s>", "job")
            assert all(n < one.vocab for n in ids(one, "the run signs </s>"))
        except UsageError:
            pass
        finally:
            part[key] = kept


def test_the_digest_says_how_text_is_cut(data):
    other = bpe(specials=("<begin>", "</s>"))
    made = {
        FileTokenizer(data, None, "job").digest,
        FileTokenizer(other, None, "job").digest,
        FileTokenizer(data, "<s>", "job").digest,
        ByteTokenizer.digest,
    }
    assert len(made) == 4
    assert FileTokenizer(data, "</s>", "x").digest in made


def test_a_file_that_changed_is_refused(data):
    check_named(data, hashlib.sha256(data).hexdigest(), "job")
    with pytest.raises(IntegrityError) as caught:
        check_named(data + b" ", hashlib.sha256(data).hexdigest(), "job")
    assert caught.value.code == "ST-DATA-134"


def test_the_refusal_of_an_unsigned_file_says_what_to_do():
    error = unsigned("/t.json", "job.yaml: data.tokenizer")
    assert error.code == "ST-USAG-007"
    assert "tokenizer_sha256" in error.fix


def test_without_the_library_the_extra_is_named(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    error = refused(UsageError, "ST-USAG-004", FileTokenizer, data, None, "job")
    assert "pip install '.[train]'" in error.fix
