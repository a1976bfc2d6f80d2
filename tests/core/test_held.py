# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A directory that is held: no name above it or below it leads a write elsewhere."""

import os
import pickle
import random
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.core import held
from securetrain.core.errors import UsageError
from securetrain.core.files import locked, open_own, open_regular, read_file, write_atomic
from securetrain.core.held import HeldPath, hold, moved, open_held, release
from tests.vocabulary import refused
from tools.campaigns import paths

SECRET = b"only root may read this"
SEED = 6


class Place:
    """A run directory below a folder that others may rename, and a folder that is not theirs."""

    def __init__(self, root: Path) -> None:
        self.root, self.runs, self.victim = root, root / "runs", root / "victim"
        (self.runs / "r1" / "workers").mkdir(parents=True)
        (self.victim / "r1" / "workers").mkdir(parents=True)
        for folder in (self.victim / "r1", self.victim / "r1" / "workers"):
            (folder / "secret").write_bytes(SECRET)
        self.before = self.of_victim()
        self.real = self.runs / "r1"
        self.run = hold(self.real)

    def of_victim(self) -> dict[str, bytes | None]:
        found = sorted(self.victim.rglob("*"))
        return {str(one): one.read_bytes() if one.is_file() else None for one in found}

    def exchange_parent(self) -> None:
        self.runs.rename(self.root / "moved")
        self.runs.symlink_to(self.victim)
        self.real = self.root / "moved" / "r1"

    def exchange(self, how: str) -> None:
        """Put something else in the place of the folder that workers may change."""
        folder = self.real / "workers"
        shutil.rmtree(folder) if folder.is_dir() and not folder.is_symlink() else folder.unlink()
        match how:
            case "a link to a folder":
                folder.symlink_to(self.victim / "r1" / "workers")
            case "a relative link":
                folder.symlink_to("../../victim/r1/workers")
            case "a file":
                folder.write_bytes(b"")
            case "a pipe":
                os.mkfifo(folder)


@pytest.fixture(params=[False, True], ids=["openat2", "by component"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    if request.param:
        monkeypatch.setattr(held, "_OPENAT2", 0xFFFF)  # a call that no kernel has
    made = Place(tmp_path)
    yield made
    release(made.run)


def test_by_name_every_write_is_led_elsewhere(tmp_path: Path) -> None:
    """The control: the same writes, without the handle."""
    place = Place(tmp_path)
    plain = Path(str(place.run))
    place.exchange_parent()
    write_atomic(plain / "run.json", b"led")
    assert (place.victim / "r1" / "run.json").read_bytes() == b"led"
    assert read_file(plain / "workers" / "secret", 99) == SECRET
    release(place.run)


def test_a_folder_above_is_exchanged(place: Place) -> None:
    assert not moved(place.run)
    place.exchange_parent()
    write_atomic(place.run / "run.json", b"ours")
    write_atomic(place.run / "workers" / "one", b"ours")
    (place.run / "plain").write_bytes(b"ours")
    (place.run / "folder").mkdir()
    with locked(place.run / "lock"):
        pass
    names = {"run.json", "workers", "plain", "folder", "lock"}
    assert {one.name for one in place.real.iterdir()} == names
    assert {one.name for one in place.run.iterdir()} == names
    assert read_file(place.run / "workers" / "one", 99) == b"ours"
    assert place.of_victim() == place.before
    assert moved(place.run)
    assert str(place.run / "run.json") == str(place.runs / "r1" / "run.json"), "people see the name"
    assert type(pickle.loads(pickle.dumps(place.run))) is type(Path()), "so do other processes"


@pytest.mark.parametrize("how", ["a link to a folder", "a relative link", "a file", "a pipe", ""])
def test_a_folder_below_is_exchanged(place: Place, how: str) -> None:
    place.exchange(how)
    below = place.run / "workers"
    for act in (
        lambda: os.close(open_held(below / "secret", os.O_RDONLY)),
        lambda: os.close(open_held(below / "new", os.O_WRONLY | os.O_CREAT)),
        lambda: os.close(open_regular(below / "secret")),
        lambda: read_file(below / "secret", 99),
        lambda: write_atomic(below / "new", b"led"),
        lambda: locked(below / "new").__enter__(),
        (below / "secret").read_bytes,
        lambda: (below / "new").write_bytes(b"led"),
        (below / "folder").mkdir,
        (below / "secret").unlink,
        lambda: (below / "secret").rename(below / "new"),
        lambda: (below / "secret").chmod(0o600),
        (below / "secret").stat,
        lambda: list((below / "folder").iterdir()),
    ):
        with pytest.raises((OSError, UsageError)):
            act()
    assert place.of_victim() == place.before


def test_what_leads_out_is_refused(place: Place) -> None:
    (place.run / "out").symlink_to(place.victim / "r1" / "secret")
    for name in ("out", "../../victim/r1/secret", "workers/../../r1/out", "/proc/self/exe"):
        with pytest.raises(OSError):  # noqa: PT011 - links are ELOOP, ways out EXDEV
            os.close(open_held(HeldPath(f"{place.run}/{name}"), os.O_RDONLY))


def test_a_name_that_is_gone_or_another_directorys_has_moved(place: Place) -> None:
    place.runs.rename(place.root / "moved")
    assert moved(place.run)
    (place.runs / "r1").mkdir(parents=True)
    assert moved(place.run)
    assert not moved(place.root), "nobody holds it"
    again = hold(place.runs / "r1")
    assert not moved(again)
    assert again == place.run


def test_a_script_that_moves_things_before_a_system_call_and_kills(tmp_path: Path) -> None:
    """Twenty cases of the campaign: a miss is raised, and plain paths are the control."""
    said = []
    for number in range(SEED, SEED + 20):
        (tmp_path / str(number)).mkdir()
        said.append(paths.case(random.Random(number), tmp_path / str(number)))
    assert sum("by plain paths led elsewhere" in one for one in said) >= 2
    assert sum("killed" in one for one in said) >= 2


@pytest.mark.parametrize("how", ["a hard link", "a FIFO", "a socket", "a folder", "a device"])
def test_nothing_else_is_taken_for_the_file_of_a_writer(place: Place, how: str) -> None:
    file = place.real / "own"
    match how:
        case "a hard link":
            os.link(place.victim / "r1" / "secret", file)
        case "a FIFO":
            os.mkfifo(file)
        case "a folder":
            file.mkdir()
        case "a socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(f"/proc/self/fd/{os.open(place.real, os.O_RDONLY)}/own")
        case _:
            if os.geteuid() != 0:
                pytest.skip("only root makes devices")
            os.mknod(file, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    with pytest.raises((UsageError, OSError)):
        open_own(place.run / "own", os.O_RDWR | os.O_APPEND)
    with suppress(UsageError):
        write_atomic(place.run / "own", b"ours")
    assert place.of_victim() == place.before


@pytest.mark.parametrize("what", ["another user's", "everybody may write to it"])
def test_a_file_that_is_not_the_writers_alone(place: Place, what: str) -> None:
    (place.real / "own").write_bytes(b"")
    if what == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(place.real / "own", 12345, -1)
    else:
        (place.real / "own").chmod(0o666)
    refused(UsageError, "ST-USAG-018", open_own, place.run / "own", os.O_RDWR)


ACTS = ("exchange parent", "a link to a folder", "a relative link", "a file", "")


@given(
    st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 3)), max_size=8),
    st.sampled_from([437, 0xFFFF]),
)
@settings(deadline=None, max_examples=30)
def test_whatever_is_exchanged_between_two_calls(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int]], call: int
) -> None:
    """Never a byte elsewhere, and never a byte from elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held, "_OPENAT2", call)
        place = Place(tmp_path_factory.mktemp("held"))
        for act, what in acts:
            with suppress(OSError):
                place.exchange_parent() if act == "exchange parent" else place.exchange(act)
            where = place.run / ("workers" if what % 2 else "") / ("secret" if what > 1 else "new")
            with suppress(OSError, UsageError):
                assert read_file(where, 99) != SECRET
            with suppress(OSError, UsageError):
                write_atomic(where, b"ours")
            assert place.of_victim() == place.before
        release(place.run)
