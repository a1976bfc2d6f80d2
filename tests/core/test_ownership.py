# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Which directories may become a run directory. Nothing that existed is changed by a refusal."""

import os
import stat
from pathlib import Path

import pytest

from securetrain.core import ownership
from securetrain.core.errors import UsageError
from securetrain.core.files import make_missing_dir, make_private_dir
from securetrain.core.ownership import claim_dir, judge_place


def empty(path):
    return "not empty" if any(path.iterdir()) else ""


def refused(path, code):
    """Claim a path, which must be refused and change nothing below its parent."""
    before = snapshot(path.absolute().parent)
    with pytest.raises(UsageError) as caught:
        claim_dir(path, empty)
    assert caught.value.code == code
    assert snapshot(path.absolute().parent) == before
    return caught.value


def snapshot(folder):
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        info = path.lstat()
        found[path] = info.st_mode, info.st_uid, info.st_gid, info.st_mtime_ns
    return found


def test_a_missing_directory_is_made_for_its_user_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = claim_dir(Path("runs/one"), empty)
    assert path == tmp_path / "runs" / "one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o022 == 0
    assert claim_dir(path, empty) == path


def test_an_open_umask_makes_no_open_parent(tmp_path):
    before = os.umask(0)
    try:
        path = claim_dir(tmp_path / "a" / "b" / "run", empty)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent)] == [0o700, 0o755]


def test_content_that_is_not_ours(tmp_path):
    (tmp_path / "work").mkdir(mode=0o700)
    (tmp_path / "work" / "thesis.tex").write_text("years")
    assert refused(tmp_path / "work", "ST-USAG-017").what == "not empty"
    refused(tmp_path / "work" / "thesis.tex", "ST-USAG-017")


def test_the_mode_of_what_exists_is_not_changed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o755)
    assert f"chmod 700 {tmp_path / 'mine'}" in refused(tmp_path / "mine", "ST-USAG-018").fix


@pytest.mark.parametrize("name", ["/", "/tmp", "/var/tmp", "/etc", "/home", "/tmp/../tmp", "//tmp"])
def test_places_of_the_machine(name):
    before = Path(name).stat()
    with pytest.raises(UsageError) as caught:
        claim_dir(Path(name), lambda _: "")
    assert caught.value.code == "ST-USAG-017"
    after = Path(name).stat()
    assert (after.st_mode, after.st_uid) == (before.st_mode, before.st_uid)


def test_a_home_is_no_run_directory(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    refused(tmp_path / "home", "ST-USAG-017")
    assert claim_dir(tmp_path / "home" / "run", empty).is_dir()
    monkeypatch.setattr(ownership, "_homes", lambda: (str(tmp_path / "account"),))
    (tmp_path / "account").mkdir(mode=0o700)
    refused(tmp_path / "account", "ST-USAG-017")


def test_a_link_is_not_followed(tmp_path, monkeypatch):
    """A checkout, or whoever may write to the working directory, plants `runs`."""
    (tmp_path / "victim").mkdir(mode=0o700)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "runs").symlink_to(tmp_path / "victim")
    monkeypatch.chdir(tmp_path / "here")
    error = refused(Path("runs/one"), "ST-USAG-018")
    assert str(tmp_path / "victim" / "one") in error.fix
    refused(tmp_path / "here" / "runs", "ST-USAG-018")
    assert list((tmp_path / "victim").iterdir()) == []
    (tmp_path / "here" / "loop").symlink_to("loop")
    with pytest.raises(UsageError):
        claim_dir(Path("loop/one"), empty)


def test_links_of_the_machine_are_followed(tmp_path):
    """Root's link in a directory of root's, such as a home on another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    if os.geteuid() == 0:
        assert claim_dir(tmp_path / "home" / "run", empty).is_dir()
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError) as caught:
        claim_dir(tmp_path / "home" / "other", empty)
    assert caught.value.code == "ST-USAG-018"


@pytest.mark.parametrize(("mode", "is_safe"), [(0o777, False), (0o1777, True), (0o755, True)])
def test_a_parent_that_others_may_write_to(tmp_path, mode, is_safe):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(mode)
    path = tmp_path / "shared" / "deep" / "run"
    if is_safe:
        assert claim_dir(path, empty).is_dir()
    else:
        assert "everybody" in refused(path.parent, "ST-USAG-018").what
        with pytest.raises(UsageError):
            judge_place(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_what_belongs_to_another_user(tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 4242, 4242)
    assert "4242" in refused(tmp_path / "theirs", "ST-USAG-018").what
    assert "4242" in refused(tmp_path / "theirs" / "below", "ST-USAG-018").what
    with pytest.raises(UsageError) as caught:
        make_private_dir(tmp_path / "theirs")
    assert caught.value.code == "ST-USAG-018"
    (tmp_path / "group").mkdir(mode=0o775)
    (tmp_path / "group").chmod(0o775)
    os.chown(tmp_path / "group", 0, 4242)
    assert "group 4242" in refused(tmp_path / "group" / "run", "ST-USAG-018").what


def test_a_group_of_one_is_its_user(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "project").chmod(0o775)
    assert claim_dir(tmp_path / "project" / "run", empty).is_dir()
    monkeypatch.setattr("securetrain.core.files._is_group_of_one", lambda _: False)
    refused(tmp_path / "project" / "other", "ST-USAG-018")


def test_a_private_directory_is_made_and_never_changed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o755)
    assert make_private_dir(tmp_path / "there").is_dir()
    assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o755
    (tmp_path / "there").chmod(0o777)
    with pytest.raises(UsageError) as caught:
        make_private_dir(tmp_path / "there")
    assert caught.value.code == "ST-USAG-018"
    assert make_missing_dir(tmp_path / "there").is_dir()
    assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o777
    assert stat.S_IMODE(make_missing_dir(tmp_path / "new").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("uid_map", "root"),
    [("0 0 4294967295", 0), ("0 4242 1", 65534), ("4242 4242 1", 65534), ("0 100000 65536", 65534)],
)
def test_the_root_of_the_machine_in_a_user_namespace(tmp_path, uid_map, root):
    """It has no number there, and its directories are as safe as before."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "uid_map").write_text(f"{uid_map}\n")
    (tmp_path / "sys" / "kernel").mkdir(parents=True)
    (tmp_path / "sys" / "kernel" / "overflowuid").write_text("65534\n")
    assert ownership.unmapped_root(tmp_path) == root


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_its_directories_may_stand_above(tmp_path, monkeypatch):
    (tmp_path / "machine").mkdir()
    os.chown(tmp_path / "machine", 65534, 65534)
    refused(tmp_path / "machine" / "run", "ST-USAG-018")
    monkeypatch.setattr(ownership, "unmapped_root", lambda: 65534)
    assert claim_dir(tmp_path / "machine" / "run", empty).is_dir()
