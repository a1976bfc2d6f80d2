# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""webdataset over a signed dataset, beside the plain pipeline over the same files."""

import gc
import io
import pickle
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from securetrain.artifacts.dataset.samples import find
from securetrain.artifacts.statement.dataset_predicate import DataFormat, Removed
from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.integrations import signed_webdataset
from securetrain.integrations.web_dataset import KeptFile, pickled, shards_of
from tests.integrations.pages import snippet

NUM_SHARDS = 3
PER_SHARD = 20


def shard(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def members_of(number: int) -> dict[str, bytes]:
    found = {}
    for one in range(number * PER_SHARD, (number + 1) * PER_SHARD):
        found[f"{one:05d}.txt"] = f"text {one} ".encode() * 40
        found[f"{one:05d}.cls"] = str(one % 10).encode()
    return found


@pytest.fixture
def corpus(tmp_path):
    root = tmp_path / "corpus"
    (root / "train").mkdir(parents=True)
    for number in range(NUM_SHARDS):
        shard(root / f"train/{number:05d}.tar", members_of(number))
    return root


def plain(root: Path, **options) -> list[dict[str, Any]]:
    """The decoded samples of the plain pipeline, which leaves its files to be closed by nobody."""
    import webdataset

    urls = sorted(str(path) for path in (root / "train").glob("*.tar"))
    found = list(webdataset.WebDataset(urls, shardshuffle=False, **options).decode())
    gc.collect()
    return found


class Planted:
    """Runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return partial(Path.touch, self.mark), ()


# What needs no webdataset.


def test_what_is_removed_is_cut_out_of_a_shard(corpus, signing, signed_before, opening):
    signing(corpus)
    before = signed_before(corpus)
    name = "train/00001.tar"
    stretches = list(find(DataFormat.WEBDATASET, [name], lambda file: (corpus / file).open("rb")))
    gone = [Removed(file=name, offset=s.offset, length=s.length) for s in stretches[3:5]]
    signing(corpus, previous=before, removed=gone)
    with opening(corpus) as data, tarfile.open(fileobj=KeptFile(data, name), mode="r|") as archive:
        keys = {member.name.split(".")[0] for member in archive}
    assert keys == {f"{n:05d}" for n in range(PER_SHARD, 2 * PER_SHARD)} - {"00023", "00024"}


def test_a_removal_that_cuts_a_member_refuses_the_shard(corpus, signing, signed_before, opening):
    signing(corpus)
    gone = [Removed(file="train/00000.tar", offset=700, length=10)]
    signing(corpus, previous=signed_before(corpus), removed=gone)
    with opening(corpus) as data, pytest.raises(SecureTrainError) as refused:
        KeptFile(data, "train/00000.tar")
    assert refused.value.code == "ST-DATA-122"


@pytest.mark.parametrize("split", ["nothing", "validation"])
def test_a_split_without_shards_is_refused(split, corpus, signing, opening):
    (corpus / "validation").mkdir()
    (corpus / "validation/a.jsonl").write_text("{}\n")
    signing(corpus)
    with opening(corpus) as data, pytest.raises(UsageError) as refused:
        shards_of(data, split)
    assert refused.value.code == "ST-USAG-015"


def test_names_of_pickles_count_in_every_spelling():
    named = ["x.pyd", "PKL", "a.pickle.gz", "seg.pth", "txt", "json.gz", "pyda", "__key__"]
    assert pickled(dict.fromkeys(named)) == named[:4]


# With webdataset's own pipeline.


def webdataset(test):
    ignored = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
    return pytest.mark.compat("webdataset")(ignored(test))


@pytest.fixture
def library():
    return pytest.importorskip("webdataset")


@webdataset
def test_samples_are_those_of_the_plain_pipeline(passed, library, corpus, signing, opening):
    signing(corpus)
    with opening(corpus) as data:
        ours = signed_webdataset(data, "train").decode().to_tuple("txt", "cls")
        found = list(ours)
        assert found == [(one["txt"], one["cls"]) for one in plain(corpus)]
        assert len(found) == NUM_SHARDS * PER_SHARD
        mixed = list(signed_webdataset(data, "train", shardshuffle=3, seed=1).shuffle(100).decode())
        assert sorted(one["txt"] for one in mixed) == sorted(text for text, _ in found)
    passed("webdataset", same="samples of the plain pipeline")


@webdataset
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_of_a_loader_read_every_sample_once(library, corpus, signing, opening):
    signing(corpus)
    with opening(corpus) as data:
        pipeline = signed_webdataset(data, "train").decode().to_tuple("txt").batched(4)
        loader = library.WebLoader(pipeline, batch_size=None, num_workers=2)
        texts = [text for batch in loader for text in batch[0]]
    assert len(texts) == len(set(texts)) == NUM_SHARDS * PER_SHARD


@webdataset
def test_a_worker_without_a_shard_is_told(library, corpus, signing, opening):
    signing(corpus)

    def none_left(source):
        return iter(list(source)[:0])

    with opening(corpus) as data, pytest.raises(UsageError) as refused:
        list(signed_webdataset(data, "train", workersplitter=none_left))
    assert refused.value.code == "ST-USAG-001"


@webdataset
def test_a_pickled_member_runs_in_the_plain_pipeline_and_is_refused(  # noqa: PLR0917 - fixtures
    passed, library, corpus, signing, opening, tmp_path
):
    mark = tmp_path / "ran"
    shard(corpus / "train/00002.tar", {"1.txt": b"t", "1.PYD": pickle.dumps(Planted(mark))})
    signing(corpus)  # by a trusted key: a signature does not make a pickle safe
    plain(corpus)
    assert mark.exists(), "the attack does not work here, so nothing is shown"
    mark.unlink()
    with opening(corpus) as data:
        with pytest.raises(SecureTrainError) as refused:
            list(signed_webdataset(data, "train").decode(handler=library.warn_and_continue))
        assert refused.value.code == "ST-DATA-190"
        left = list(signed_webdataset(data, "train", pickles="leave-out").decode())
    assert left[-1]["txt"] == "t"
    assert set(left[-1]) == {"__key__", "__url__", "txt"}
    assert not mark.exists()
    passed("webdataset", pickle="refused, runs in the plain pipeline")


@webdataset
@pytest.mark.parametrize("when", ["before it is opened", "while it is read"])
def test_a_changed_shard_is_taken_by_the_plain_pipeline_and_refused(  # noqa: PLR0917 - fixtures
    passed, when, library, corpus, signing, opening
):
    signing(corpus)
    path = corpus / "train/00001.tar"
    changed = path.read_bytes().replace(b"text 25 ", b"poison! ")

    def change() -> None:
        path.write_bytes(changed)

    if when == "before it is opened":
        change()
    with opening(corpus) as data:
        ours = iter(signed_webdataset(data, "train").decode())
        next(ours)
        change()
        with pytest.raises(SecureTrainError) as refused:
            list(ours)
    assert refused.value.code == "ST-DATA-130"
    assert any("poison!" in one["txt"] for one in plain(corpus)), "the attack must work"
    passed("webdataset", altered="refused, taken by the plain pipeline")


@webdataset
def test_a_shard_of_another_signed_dataset_is_taken_by_the_plain_pipeline_and_refused(
    library, corpus, signing, opening, tmp_path
):
    other = tmp_path / "other"
    (other / "train").mkdir(parents=True)
    shard(
        other / "train/00000.tar",
        {n: d.replace(b"text", b"evil") for n, d in members_of(0).items()},
    )
    signing(other)
    signing(corpus)
    (corpus / "train/00000.tar").write_bytes((other / "train/00000.tar").read_bytes())
    assert "evil" in plain(corpus)[0]["txt"], "the attack must work"
    with opening(corpus) as data, pytest.raises(SecureTrainError) as refused:
        list(signed_webdataset(data, "train"))
    assert refused.value.code == "ST-DATA-130"


@webdataset
def test_no_handler_makes_a_refusal_a_gap(library, corpus, signing, opening):
    """webdataset's handlers go on behind a shard that fails; ours is refused all the same."""
    signing(corpus)
    path = corpus / "train/00001.tar"
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.warns(UserWarning, match="ReadError"):
        rest = plain(corpus, handler=library.warn_and_continue)
    assert len(rest) == (NUM_SHARDS - 1) * PER_SHARD, "the plain pipeline goes on"
    with opening(corpus) as data, pytest.raises(SecureTrainError) as refused:
        list(signed_webdataset(data, "train").decode(handler=library.ignore_and_continue))
    assert refused.value.code == "ST-DATA-130"


@webdataset
def test_the_page_reads_as_it_stands(library, corpus, signing, opening):
    signing(corpus)
    with opening(corpus) as data:
        names = {"data": data}
        exec(snippet("docs/how-to/signed-datasets.md", "webdataset"), names)
        texts = [text for batch, _ in names["pipeline"] for text in batch]
    assert len(set(texts)) == NUM_SHARDS * PER_SHARD
