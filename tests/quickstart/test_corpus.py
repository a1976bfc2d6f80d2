# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import sysconfig
from pathlib import Path

import pytest

from securetrain.core.errors import UsageError
from securetrain.quickstart import corpus
from securetrain.quickstart.corpus import Document, Split

LONG = "A sentence about number {n} that is long enough to be counted as prose by the corpus."


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small standard library with everything that the rules are about."""
    root = tmp_path / "lib"
    for number in range(60):
        package = root / f"pkg{number % 7}"
        package.mkdir(parents=True, exist_ok=True)
        (package / f"mod{number}.py").write_text(
            f'"""{LONG.format(n=number)}"""\n'
            f"def f():\n    '''{LONG.format(n=number + 1000)}'''\n"
            "def g():\n    '''too short'''\n"
        )
    for folder in ("test", "pkg0/tests", "site-packages/other", "lib2to3", "idlelib/idle_test"):
        (root / folder).mkdir(parents=True)
        (root / folder / "hidden.py").write_text(f'"""SECRET {LONG}"""\n')
    (root / "pydoc_data").mkdir()
    (root / "pydoc_data" / "topics.py").write_text(
        f"topics = {{'assert': 'TOPIC {LONG}', 'short': 'x'}}\n"
    )
    return root


def collect(root: Path, text_limit: int = corpus.TEXT_LIMIT) -> corpus.Corpus:
    return corpus.collect(root, min_text=1000, text_limit=text_limit)


def test_it_is_the_same_every_time_and_ordered_by_name(library: Path):
    first, second = collect(library), collect(library)
    assert first == second
    names = [document.name for document in first.documents]
    assert names == sorted(names)
    assert "topics/assert" in names


def test_tests_and_other_peoples_packages_are_left_out(library: Path):
    text = "".join(document.text for document in collect(library).documents)
    assert "SECRET" not in text
    assert "too short" not in text
    assert LONG.format(n=1003) in text


def test_the_split_is_by_document_and_a_function_of_the_name(library: Path):
    found = collect(library).documents
    assert {document.split for document in found} == set(Split)
    for document in found:
        assert Document(name=document.name, text="other").split is document.split
    many = [Document(name=f"stdlib/m{n}.py", text="").split for n in range(4000)]
    share = many.count(Split.VALIDATION) / len(many)
    assert 0.03 < share < 0.07


def test_a_text_that_appears_twice_is_taken_once(library: Path):
    before = collect(library)
    (library / "zcopy.py").write_text(f'"""{LONG.format(n=1)}"""\n')
    after = collect(library)
    assert after.documents == before.documents


def test_nothing_is_executed(library: Path, tmp_path: Path):
    witness = tmp_path / "executed"
    (library / "evil.py").write_text(f'"""{LONG} evil"""\nopen({str(witness)!r}, "w").close()\n')
    text = "".join(document.text for document in collect(library).documents)
    assert "evil" in text
    assert not witness.exists()


def test_damaged_sources_are_skipped_and_counted(library: Path):
    (library / "broken.py").write_text("def (:\n")
    (library / "zero.py").write_bytes(b'"""x"""\0')
    (library / "latin.py").write_bytes(b'"""\xff\xfe not utf-8"""\n')
    (library / "link.py").symlink_to(library / "broken.py")
    (library / "deep.py").write_text("(" * 5000 + ")" * 5000)
    (library / "large.py").write_bytes(b"#" * (corpus.SOURCE_LIMIT + 1))
    found = collect(library)
    assert set(found.skipped) == {
        "broken.py", "deep.py", "large.py", "latin.py", "link.py", "zero.py",
    }  # fmt: skip


def test_text_that_no_encoding_can_write_is_left_out(library: Path):
    (library / "surrogate.py").write_text(f'"""{LONG} \\udc80"""\n')
    for document in collect(library).documents:
        document.text.encode()


def test_the_size_is_bounded(library: Path):
    found = collect(library, text_limit=4000)
    assert 3000 < found.num_bytes <= 4000


@pytest.mark.parametrize("damage", ["empty", "missing", "small"])
def test_too_little_text_is_an_error_that_says_so(library: Path, tmp_path: Path, damage: str):
    root, code = library, "ST-USAG-011"
    if damage == "empty":
        root = tmp_path / "nothing"
        root.mkdir()
    elif damage == "missing":
        root, code = tmp_path / "missing", "ST-USAG-002"
    with pytest.raises(UsageError) as caught:
        corpus.collect(root)
    assert caught.value.code == code
    assert str(root) in caught.value.where
    assert caught.value.fix


@pytest.mark.slow
def test_this_interpreters_own_prose_is_about_two_megabytes():
    found = corpus.collect(Path(sysconfig.get_path("stdlib")))
    assert 1_000_000 < found.num_bytes < 4_000_000
    validation = sum(len(d.text) for d in found.documents if d.split is Split.VALIDATION)
    assert 0.01 < validation / found.num_bytes < 0.15
