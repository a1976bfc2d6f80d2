# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Who may hand compiled code to whom: a folder for each script, user, versions and policy."""

import json
import os
import time
from importlib.metadata import PackageNotFoundError

import msgspec
import pytest

from securetrain.cli.main import main
from securetrain.core.errors import UsageError
from securetrain.core.nodestate import NodeState
from securetrain.launch.node.compile_cache import (
    clear_caches,
    key_of,
    list_caches,
    open_cache,
    read_key,
    script_of,
)
from tests.vocabulary import refused


@pytest.fixture
def state(tmp_path):
    return NodeState(tmp_path / "state")


def only_torch(name):
    if name != "torch":
        raise PackageNotFoundError(name)
    return "2.13"


@pytest.fixture
def key():
    return key_of("sha256:one", os.environ, user=0, script="module a", installed=only_torch)


def opened(state, key, tmp_path):
    cache = open_cache(state, key, tmp_path / "own")
    assert cache.problem == ""
    return cache


def test_a_second_run_gets_what_the_first_compiled(state, key, tmp_path):
    first = opened(state, key, tmp_path)
    place = first.pins["TORCH_EXTENSIONS_DIR"]
    (first.folder / "extensions" / "op.so").write_bytes(b"code")
    first.release()
    second = opened(state, key, tmp_path)
    assert second.pins["TORCH_EXTENSIONS_DIR"] == place
    assert (second.folder / "extensions" / "op.so").exists()
    assert not (tmp_path / "own").exists()
    second.release()


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "sha256:two"},
        {"user": 4242},
        {"script": "sha256:1 of user 0"},
        {"python": "3.12"},
        {"packages": {"torch": "2.14"}},
        {"compilers": {}},
        {"processor": "aarch64 0"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_poison_of_another_reaches_nobody(state, key, tmp_path, change):
    """A job that plants code in its cache plants it for jobs of the same key only."""
    mine = opened(state, key, tmp_path)
    theirs = opened(state, msgspec.structs.replace(key, **change), tmp_path)
    assert mine.folder != theirs.folder
    assert not set(mine.pins.values()) & set(theirs.pins.values())


def test_the_key_is_of_this_machine(tmp_path):
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin" / "c++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    environ = {"PATH": str(tmp_path / "bin")}
    before = key_of("p", environ, user=1, script="")
    assert before.packages["torch"]
    assert set(before.compilers) == {"CXX"}
    compiler.write_text("#!/bin/sh\nexit 1\n")
    assert key_of("p", environ, user=1, script="").name != before.name
    (tmp_path / "cpuinfo").write_text("flags : avx512f\n")
    before = key_of("p", {}, user=1, script="")
    assert key_of("p", {}, user=1, script="", proc=tmp_path).name != before.name


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_script_is_its_content_and_owner(tmp_path):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("1")
    other.write_text("2")
    said = {script_of(str(one), module=False), script_of(str(other), module=False)}
    other.write_text("1")
    assert script_of(str(other), module=False) in said
    os.chown(other, 4242, -1)
    said |= {script_of(str(other), module=False)}
    said |= {script_of("one", module=True), script_of("1", module=False)}
    assert len(said) == 5


@pytest.mark.parametrize("open_folder", ["caches", "key"])
def test_a_folder_that_others_may_write_to_is_not_used(state, key, tmp_path, open_folder):
    cache = opened(state, key, tmp_path)
    cache.release()
    (state.caches if open_folder == "caches" else cache.folder).chmod(0o777)
    own = open_cache(state, key, tmp_path / "own")
    assert own.folder == tmp_path / "own"
    assert "everybody" in own.problem
    assert (own.folder / "triton").is_dir()


def test_a_state_folder_under_an_open_one_is_not_used(key, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert (
        "everybody" in open_cache(NodeState(tmp_path / "open" / "s"), key, tmp_path / "o").problem
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("below", ["", "extensions"])
def test_a_folder_of_another_user_is_not_used(state, key, tmp_path, below):
    cache = opened(state, key, tmp_path)
    cache.release()
    os.chown(cache.folder / below, 4242, 4242)
    assert "4242" in open_cache(state, key, tmp_path / "own").problem


def test_a_folder_with_another_key_is_not_used(state, key, tmp_path):
    cache = opened(state, key, tmp_path)
    cache.release()
    (cache.folder / "key.json").write_text("{}")
    assert read_key(cache.folder) is None
    assert opened(state, key, tmp_path).folder == cache.folder, "it is written again"
    assert read_key(cache.folder) == key


def test_locks_of_killed_compilers_go_and_live_ones_stay(state, key, tmp_path):
    first = opened(state, key, tmp_path)
    left = first.folder / "extensions" / "py311_cpu" / "op" / "lock"
    left.parent.mkdir(parents=True)
    left.touch()
    second = opened(state, key, tmp_path)
    assert left.exists(), "the first run may be compiling"
    second.release()
    first.release()
    opened(state, key, tmp_path).release()
    assert not left.exists()


def test_what_is_in_use_stays(state, key, tmp_path):
    other = opened(state, replace_policy(key), tmp_path)
    other.release()
    time.sleep(0.01)
    used = opened(state, key, tmp_path)
    (used.folder / "inductor" / "code").write_bytes(b"x" * 1000)
    listed = list_caches(state)
    assert [one.name for one in listed] == [used.folder.name, other.folder.name]
    assert [one.in_use for one in listed] == [True, False]
    assert listed[0].size >= 1000
    assert listed[0].key == key
    done = clear_caches(state)
    assert (done.removed, done.in_use) == ((other.folder.name,), (used.folder.name,))
    used.release()
    assert clear_caches(state, (used.folder.name[:6],)).removed == (used.folder.name,)
    refused(UsageError, "ST-USAG-001", clear_caches, state, ("nothing",))


def test_clearing_follows_no_link(state, key, tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").touch()
    cache = opened(state, key, tmp_path)
    (cache.folder / "inductor" / "link").symlink_to(tmp_path / "victim")
    (state.caches / "planted").symlink_to(tmp_path / "victim")
    cache.release()
    with pytest.raises(UsageError):
        clear_caches(state, ("planted",))
    clear_caches(state, (cache.folder.name,))
    assert (tmp_path / "victim" / "file").exists()


def replace_policy(key):
    return msgspec.structs.replace(key, policy="sha256:two")


def test_the_command(state, key, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SECURETRAIN_STATE", str(state.root))
    assert main(["cache", "list"]) == 0
    assert "no caches" in capsys.readouterr().out
    cache = opened(state, key, tmp_path)
    assert main(["cache", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["caches"]
    assert [one["name"] for one in found] == [cache.folder.name]
    assert main(["cache", "list"]) == 0
    assert "in use  torch 2.13" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 1
    assert "in use" in capsys.readouterr().out
    cache.release()
    assert main(["cache", "clear", cache.folder.name[:4], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == [cache.folder.name]
    assert main(["cache", "clear", "zzz"]) == 2
