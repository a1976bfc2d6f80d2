# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a pickle would do is read off its opcodes, whatever it does to hide it."""

import collections
import io
import os
import pickle
import random
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from securetrain.artifacts.scan import pickles
from securetrain.artifacts.scan.formats import Window
from securetrain.artifacts.scan.pickles import Analysis, analyse


def analysed(data: bytes, tmp_path: Path, offset: int = 0) -> Analysis:
    """Write the bytes to a file and analyse them there."""
    path = tmp_path / "data"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        return analyse(Window.whole(fd), offset)
    finally:
        os.close(fd)


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("true",)


@pytest.mark.parametrize("protocol", range(6))
def test_values_name_nothing_unsafe(protocol: int, tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, b"bytes", "text" * 100], "t": (1,) * 300}
    value["again"] = value["a"]
    found = analysed(pickle.dumps(value, protocol), tmp_path)
    assert found.problem == ""
    # Bytes are spelled as text by the protocols that have no opcode for them.
    assert set(found.unsafe) == set()
    assert found.unfollowed == []


@pytest.mark.parametrize("protocol", range(6))
def test_a_call_is_named_in_every_protocol(protocol: int, tmp_path: Path) -> None:
    found = analysed(pickle.dumps(Evil(), protocol), tmp_path)
    assert list(found.unsafe) == ["posix.system"]
    assert found.calls == 1


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("memo", b"\x80\x04\x8c\x02os\x94\x8c\x06system\x9400h\x00h\x01\x93\x8c\x04true\x85R."),
        ("put and get", b"\x80\x04\x8c\x02osq\x070\x8c\x06systemq\x090h\x07h\x09\x93)R."),
        ("duplicate", b"\x80\x04\x8c\x02os\x8c\x06system20\x93)R."),
        ("unicode line", b"\x80\x04Vos\nVsystem\n\x93)R."),
        ("eight byte length", b"\x80\x04\x8d\x02" + bytes(7) + b"os\x8c\x06system\x93)R."),
        ("inst", b"(ios\nsystem\n."),
        ("obj", b"(cos\nsystem\no."),
        ("newobj", b"\x80\x02cos\nsystem\n)\x81."),
        ("popped mark", b"\x80\x04(0cos\nsystem\n)R."),
        ("after a tuple", b"\x80\x04(K\x01K\x02t0cos\nsystem\n)R."),
    ],
)
@pytest.mark.forgery
def test_the_name_is_found_on_every_way(what: str, data: bytes, tmp_path: Path) -> None:
    assert "os.system" in analysed(data, tmp_path).unsafe, what


def test_names_of_python_2_are_todays(tmp_path: Path) -> None:
    found = analysed(b"c__builtin__\neval\n(S'1'\ntR.", tmp_path)
    assert list(found.unsafe) == ["builtins.eval"]
    assert analysed(b"ccopy_reg\n_reconstructor\n.", tmp_path).unsafe == {}


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("built by a call", b"\x80\x04\x8c\x02os\x8c\x01a\x8c\x01b\x86cbuiltins\nstr\n)R\x93)R."),
        ("an extension code", b"\x80\x04\x82\x01)R."),
        ("a two byte extension", b"\x80\x04\x83\x01\x01)R."),
        ("nothing below it", b"\x80\x04\x8c\x02os\x93."),
        ("a memo that nobody wrote", b"\x80\x04\x8c\x02osh\x05\x93."),
        ("bytes for text", b"\x80\x04\x8c\x02osC\x06system\x93."),
    ],
)
@pytest.mark.forgery
def test_a_name_that_cannot_be_followed_is_unsafe(what: str, data: bytes, tmp_path: Path) -> None:
    assert analysed(data, tmp_path).unfollowed, what


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80\x04", b"\x80\x04K", b"\xff", b"\x80\x04R.", b"0.", b"\x80\x04tR."],
)
@pytest.mark.forgery
def test_what_breaks_off_says_so(data: bytes, tmp_path: Path) -> None:
    found = analysed(data, tmp_path)
    assert found.problem


@pytest.mark.forgery
def test_what_ran_before_the_break_is_named(tmp_path: Path) -> None:
    found = analysed(pickle.dumps(Evil())[:-1] + b"\xff", tmp_path)
    assert "posix.system" in found.unsafe
    assert found.problem


def test_too_much_is_said_to_be_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MAX_STACK", 10)
    found = analysed(b"\x80\x04(" + b"K\x01" * 20 + b"t.", tmp_path)
    assert found.too_large
    monkeypatch.setattr(pickles, "MAX_MEMO", 3)
    assert analysed(pickle.dumps([f"text {n}" for n in range(9)]), tmp_path).too_large
    monkeypatch.setattr(pickles, "MAX_NAMED", 1)
    assert analysed(b"ca\nb\n0cc\nd\n.", tmp_path).too_large


def test_long_bytes_are_stepped_over(tmp_path: Path) -> None:
    found = analysed(pickle.dumps([bytes(20 << 20), Evil()]), tmp_path)
    assert list(found.unsafe) == ["posix.system"]
    assert found.problem == ""


def test_the_end_and_the_first_numbers_are_told(tmp_path: Path) -> None:
    data = pickle.dumps(7)
    found = analysed(b"xx" + data + b"rest", tmp_path, 2)
    assert found.end == 2 + len(data)
    assert 7 in found.integers


def test_every_global_that_python_would_ask_for_is_named(tmp_path: Path) -> None:
    """Differential: on mutated pickles the real unpickler asks for nothing that is not named."""
    seeds = [
        pickle.dumps([Evil(), collections.OrderedDict(a=1), {"k": (1, 2)}], protocol)
        for protocol in range(6)
    ]
    rng = random.Random(7)
    asked_in_all = 0
    for _ in range(3000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        asked = _globals_asked_for(bytes(data))
        found = analysed(bytes(data), tmp_path)
        asked_in_all += len(asked)
        if found.unfollowed or found.problem:
            continue
        assert asked <= set(found.globals), bytes(data)
    assert asked_in_all > 2000


def _globals_asked_for(data: bytes) -> set[str]:
    """What Python's own unpickler asks for; every answer is inert."""
    asked: set[str] = set()

    # The one written in Python: the other allocates as much as a memo's index asks for.
    class Asking(pickle._Unpickler):
        def find_class(self, module_name: str, global_name: str, /) -> object:
            asked.add(f"{module_name}.{global_name}")
            return dict

        def persistent_load(self, pid: object, /) -> object:
            return pid

    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Asking(io.BytesIO(data)).load()
    return asked
