# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import stat

import pytest

from securetrain.core import files
from securetrain.core.errors import UsageError, os_error
from tests.tables import items
from tests.vocabulary import refused


def test_reads_are_bounded_and_follow_no_link(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert files.read_file(path, 5) == b"12345"
    refused(UsageError, "limit of 4", files.read_file, path, 4)
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "nothing", "."):
        refused(UsageError, "ST-USAG-002", files.read_file, tmp_path / name, 5)


def test_writes_are_whole_or_absent(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write_atomic(path, b"old")
    files.write_atomic(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(UsageError, "ST-USAG-006", files.write_atomic, path, b"newer")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208 - names only


def test_a_file_whose_folder_is_closed_is_written_in_place(tmp_path, monkeypatch):
    """As Landlock closes it, of which access(2) does not know."""
    path = tmp_path / "file"
    path.write_bytes(b"longer")
    plain = os.open

    def closed(name, flags, *mode, **how):
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return plain(name, flags, *mode, **how)

    monkeypatch.setattr(os, "open", closed)
    files.write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(UsageError):
        files.write_whole(tmp_path / "other", b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_must_not_replace(tmp_path):
    path = tmp_path / "file"
    files.write_atomic(path, b"first", mode=0o600, replace=False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(UsageError) as caught:
            files.write_atomic(tmp_path / name, b"second", replace=False)
        assert caught.value.code == "ST-USAG-005"
    assert path.read_bytes() == b"first"
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]  # noqa: PTH208 - names only


def test_a_staged_directory_appears_at_once(tmp_path):
    final = tmp_path / "deep" / "final"
    with files.staged_dir(final) as staging:
        assert not final.exists()
        (staging / "sub").mkdir()
        (staging / "sub" / "a").write_bytes(b"1")
    assert (final / "sub" / "a").read_bytes() == b"1"
    with pytest.raises(UsageError) as caught, files.staged_dir(final):
        pytest.fail("an existing directory is never built over")
    assert caught.value.code == "ST-USAG-005"


def test_a_staged_directory_that_fails_leaves_nothing(tmp_path):
    def fails():
        with files.staged_dir(tmp_path / "x") as staging:
            (staging / "a").write_bytes(b"1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert list(tmp_path.iterdir()) == []


def test_a_name_taken_meanwhile_is_not_overwritten(tmp_path):
    final = tmp_path / "x"

    def races():
        with files.staged_dir(final) as staging:
            (staging / "a").write_bytes(b"1")
            final.mkdir()

    refused(UsageError, "ST-USAG-005", races)
    assert list(final.iterdir()) == []


def test_a_link_inside_is_not_committed(tmp_path):
    with pytest.raises(UsageError, match="symbolic link"), files.staged_dir(tmp_path / "x") as s:
        (s / "a").symlink_to("/etc/passwd")
    assert list(tmp_path.iterdir()) == []


def test_the_survey_sorts_files_from_what_is_refused(tmp_path):
    (tmp_path / "b").write_bytes(b"12")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"1")
    good, unsafe = files.survey(tmp_path)
    assert [(e.name, e.size) for e in good] == [("b", 2), ("sub/a", 1)]
    assert unsafe == []
    (tmp_path / "link").symlink_to(tmp_path / "sub")
    (tmp_path / "B").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (tmp_path / "e\u0301").write_bytes(b"")
    (tmp_path / "x:y").write_bytes(b"")
    (tmp_path / "new\nline").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "one").write_bytes(b"")
    os.link(tmp_path / "one", tmp_path / "two")
    good, unsafe = files.survey(tmp_path)
    reasons = {e.name: e.reason for e in unsafe}
    assert {n for n in reasons if n not in {"B", "b"}} == {
        "link",
        "empty",
        "e\u0301",
        "x:y",
        "new\nline",
        "pipe",
        "one",
        "two",
    }
    assert len({"B", "b"} & set(reasons)) == 1
    assert "sub/a" in {e.name for e in good}
    with pytest.raises(UsageError):
        files.walk(tmp_path)


@items("name", "", ".", "..", "a/b", "a\\b", "a:b", "a\x00b", "e\u0301", "x" * 256, "\udc80")
def test_unsafe_names(name):
    assert files.unsafe_name(name)


@pytest.mark.parametrize("name", ["a", "rank-00000.bin", ".metadata", "\u00e9", "a b", "x" * 255])
def test_safe_names(name):
    assert files.unsafe_name(name) == ""


def test_private_directories(tmp_path):
    path = files.make_private_dir(tmp_path / "keys")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    path.chmod(0o755)
    assert stat.S_IMODE(files.make_private_dir(path).stat().st_mode) == 0o755, "it was there"


def test_errors_of_the_machine_become_one_message():
    assert os_error(OSError(28, "x"), "p").code == "ST-USAG-006"
    assert os_error(OSError(98, "x"), "p").code == "ST-USAG-003"
    assert os_error(OSError(13, "Permission denied"), "p").what == "Permission denied"


@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, (1 << 17) + 3])
@pytest.mark.parametrize("told", ["its size", "nothing", "less"])
def test_a_file_is_read_whole_whatever_it_says_of_its_size(tmp_path, monkeypatch, size, told):
    """The kernel's files say that they are empty, and a log grows while it is read."""
    path, data = tmp_path / "file", bytes(number % 251 for number in range(size))
    path.write_bytes(data)
    real = os.fstat

    def fstat(fd):
        found = list(real(fd))
        found[stat.ST_SIZE] = {"its size": size, "nothing": 0, "less": size // 2}[told]
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", fstat)
    assert files.read_file(path, size) == data
    assert files.read_file(path, 1 << 40) == data, "the limit takes no memory"
    if size:
        with pytest.raises(UsageError):
            files.read_file(path, size - 1)
