# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.log import merkle, note, tiles
from securetrain.identity.log.checkpoint import Checkpoint, sign
from securetrain.identity.log.entry import entry_of
from securetrain.identity.log.store import Log
from tests import vocabulary
from tests.identity.log.conftest import NOW, ORIGIN
from tests.tables import each, items


def refused(code, function, *arguments):
    vocabulary.refused(IdentityError, code, function, *arguments)


def plain(count, start=0):
    return [b"entry %d" % n for n in range(start, start + count)]


def reference_root(entries):
    def hashes(level, index):
        row = b"".join(merkle.leaf_hash(e) for e in entries[index << level : (index + 1) << level])
        return tiles.row_root(row)

    return merkle.root_hash(len(entries), hashes)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {
        ".lock"
    }


def test_an_empty_log(world):
    found, signed = world.log.state()
    assert found == Checkpoint(ORIGIN, 0, merkle.EMPTY_ROOT)
    assert note.signed_by(signed, world.key.public, ORIGIN)
    assert files(world.log.folder) == {"checkpoint"}
    refused("ST-IDEN-041", world.log.prove, 0)
    assert world.log.append_entries([], world.key) == 0


def test_a_log_is_never_begun_again(world):
    world.append("a")
    vocabulary.refused(UsageError, "ST-USAG-005", Log.create, world.log.folder, ORIGIN, world.key)
    assert world.log.state()[0].size == 1


@pytest.mark.parametrize("step", [1, 7, 100, 255, 256, 257, 700])
def test_however_it_grows_it_is_the_same_log(step, tmp_path):
    """Sizes that cross tiles; the root is that of the definition."""
    key = PrivateKey.generate()
    log = Log.create(tmp_path / "log", ORIGIN, key)
    entries = plain(700 if step > 1 else 40)
    for start in range(0, len(entries), step):
        assert log.append_entries(entries[start : start + step], key) == start
    assert log.state()[0].root == reference_root(entries)
    assert log.verify_all().size == len(entries)
    for index in (0, 1, 39, 255, 256, 511, 699):
        if index < len(entries):
            assert log.entry(index) == entries[index]
            assert log.find(entries[index]) == index
    assert log.find(b"never logged") is None


def test_the_files_are_those_of_the_specification(tmp_path):
    """The example of https://c2sp.org/tlog-tiles#partial-tiles: a tree of 70,000."""
    key = PrivateKey.generate()
    log = Log.create(tmp_path / "log", ORIGIN, key)
    log.append_entries(plain(70_000), key)
    found = files(log.folder)
    by_level = [{name for name in found if name.startswith(f"tile/{n}/")} for n in range(3)]
    assert [len(names) for names in by_level] == [274, 2, 1]
    assert "tile/0/273.p/112" in found
    assert by_level[1] == {"tile/1/000", "tile/1/001.p/17"}
    assert by_level[2] == {"tile/2/000.p/1"}
    assert "tile/entries/273.p/112" in found
    assert log.prove(69_999).count(b"\n") < 40


@each("index, path", (0, "tile/0/000"), (999, "tile/0/999"), (1000, "tile/0/x001/000"))
def test_paths_of_tiles(index, path):
    assert str(tiles.tile_path(0, index, 256)) == path
    assert str(tiles.tile_path(0, index, 5)) == f"{path}.p/5"


def test_the_example_of_a_path():
    assert str(tiles.tile_path(None, 1234067, 256)) == "tile/entries/x001/x234/067"


def test_an_envelope_is_logged_only_when_its_signatures_verify(world):
    stranger = PrivateKey.generate()
    refused(
        "ST-IDEN-003",
        world.log.append,
        world.envelope(),
        {stranger.key_id: stranger.public},
        world.key,
    )
    broken = world.envelope().replace(b'"eA=="', b'"eQ=="')
    refused("ST-IDEN-002", world.log.append, broken, world.verifiers, world.key)
    assert world.log.state()[0].size == 0


def test_only_the_logs_key_appends(world):
    refused("ST-IDEN-040", world.log.append, world.envelope(), world.verifiers, world.signer)
    other = PrivateKey.generate(KeyKind.P256)
    refused("ST-IDEN-040", Log.create, world.folder / "p256", ORIGIN, other)


def test_a_log_of_another_key_or_origin_is_not_read(world):
    world.append("a")
    stranger = PrivateKey.generate()
    path = world.log.folder / "checkpoint"
    found, _ = world.log.state()
    path.write_bytes(sign(found, stranger).encode())
    refused("ST-IDEN-040", world.log.state)
    path.unlink()
    refused("ST-IDEN-040", world.log.state)


@items("name", "tile/0/000.p/5", "tile/entries/000.p/5", "tile/0/000", "tile/1/000.p/1")
@pytest.mark.parametrize("how", ["flip", "cut", "grow", "hash", "remove", "link"])
def test_damage_is_found_and_nothing_is_built_upon_it(name, how, world):
    big = name in {"tile/0/000", "tile/1/000.p/1"}
    world.log.append_entries(plain(256 + 5 if big else 5), world.key)
    path = world.log.folder / name
    data = path.read_bytes()
    match how:
        case "flip":
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        case "cut":
            path.write_bytes(data[:-1])
        case "grow":
            path.write_bytes(data + b"\x00")
        case "hash":
            path.write_bytes(data + bytes(32))
        case "remove":
            path.unlink()
        case "link":
            path.rename(world.folder / "elsewhere")
            path.symlink_to(world.folder / "elsewhere")
    # A full tile's hashes are read only for proofs below it, so ask for everything.
    refused("ST-IDEN-045", world.log.verify_all)
    if name in {"tile/0/000.p/5", "tile/1/000.p/1"}:
        refused("ST-IDEN-045", world.log.append, world.envelope(), world.verifiers, world.key)
    if name.startswith("tile/entries"):
        refused("ST-IDEN-045", world.log.entry, 0)


def test_a_folder_that_went_back_in_part_is_not_built_upon(world):
    world.append("a", "b")
    shutil.copytree(world.log.folder, world.folder / "old")
    world.append("c")
    shutil.rmtree(world.log.folder / "tile")
    shutil.copytree(world.folder / "old" / "tile", world.log.folder / "tile")
    refused("ST-IDEN-045", world.log.append, world.envelope(), world.verifiers, world.key)


def test_what_a_crash_left_behind_is_written_over(world):
    """As if killed before the checkpoint: everything is there but the commit."""
    world.log.append_entries(plain(250), world.key)
    before = (world.log.folder / "checkpoint").read_bytes()
    shutil.copytree(world.log.folder, world.folder / "copy")
    copy = Log(world.folder / "copy", world.policy)
    copy.append_entries([b"lost %d" % n for n in range(20)], world.key)
    for name in files(copy.folder) - {"checkpoint"}:
        (world.log.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(copy.folder / name, world.log.folder / name)
    assert (world.log.folder / "checkpoint").read_bytes() == before
    assert world.log.verify_all().size == 250
    world.log.append_entries(plain(20, 250), world.key)
    assert world.log.verify_all().root == reference_root(plain(270))


_VICTIM = """
import sys
from pathlib import Path
from securetrain.identity.keys import PrivateKey
from securetrain.identity.log.checkpoint import LogPolicy
from securetrain.identity.log.store import Log
key = PrivateKey.load(Path(sys.argv[2]))
log = Log(Path(sys.argv[1]), LogPolicy(origin=sys.argv[3], keys={key.key_id: key.public}))
print("ready", flush=True)
while True:
    size = log.state()[0].size
    log.append_entries([b"entry %d" % n for n in range(size, size + 30)], key)
"""


def test_killed_at_any_moment_it_is_what_its_last_checkpoint_says(world):
    world.key.save(world.folder / "log.pem")
    command = [sys.executable, "-c", _VICTIM, str(world.log.folder), str(world.folder / "log.pem")]
    size = 0
    for _ in range(4):
        process = subprocess.Popen([*command, ORIGIN], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == "ready\n"
            while world.log.state()[0].size < size + 60:  # it is at work
                assert process.poll() is None
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        found = world.log.verify_all()
        assert found.size >= size + 60
        assert found.root == reference_root(plain(found.size))
        size = found.size


def test_two_writers_take_turns(world):
    world.key.save(world.folder / "log.pem")
    code = _VICTIM.replace("while True:", "for _ in range(10):").replace(
        '"entry %d" % n', '"%d" % n'
    )
    command = [sys.executable, "-c", code, str(world.log.folder), str(world.folder / "log.pem")]
    processes = [subprocess.Popen([*command, ORIGIN]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert world.log.verify_all().size == 2 * 10 * 30


def test_consistency_between_all_sizes(world):
    roots = [reference_root(plain(n)) for n in range(12)]
    for n in range(1, 12):
        world.log.append_entries(plain(1, n - 1), world.key)
        for old in range(1, n + 1):
            proof, _ = world.log.prove_consistency(old)
            merkle.check_consistency(old, n, roots[old], roots[n], proof)
    assert world.log.prove_consistency(0)[0] == []
    refused("ST-IDEN-042", world.log.prove_consistency, 12)


def test_a_reader_of_an_earlier_size(world):
    """As one that read the checkpoint just before the tile was full."""
    world.log.append_entries(plain(5), world.key)
    root = world.log.state()[0].root
    world.log.append_entries(plain(295, 5), world.key)
    assert not (world.log.folder / "tile" / "0" / "000.p").exists()
    reader = tiles.TileReader(world.log.folder, 5)
    assert merkle.root_hash(5, reader.hash) == root
    assert reader.entries(0) == plain(5)
    for level, index in ((0, 5), (2, 1), (0, 256), (8, 0)):  # beyond that size
        refused("ST-IDEN-045", reader.hash, level, index)
    refused("ST-IDEN-045", reader.tile, 5, 0)


def test_cosignatures_of_strangers_and_for_another_checkpoint(world):
    world.append("a")
    text = world.log.state()[1].text
    line = note.cosign(text, "somebody.example", PrivateKey.generate(), int(NOW.timestamp()))
    assert world.log.add_cosignatures(text, [line]) == 0
    assert world.cosign(0, 1) == 2
    assert len(world.log.state()[1].lines) == 3
    # One witness under many names, again and again, fills nothing up.
    for number in range(100):
        time = int(NOW.timestamp()) + number % 7
        more = note.cosign(text, f"n{number}.example", world.witness_keys[0], time)
        world.log.add_cosignatures(text, [more])
    _, signed = world.log.state()
    assert len(signed.lines) == 3
    assert note.cosigned_by(signed, world.witness_keys[0].public) == int(NOW.timestamp()) + 6
    world.append("b")
    vocabulary.refused(UsageError, "ST-USAG-001", world.log.add_cosignatures, text, [line])


def test_a_folder_that_cannot_be_written(world):
    shutil.rmtree(world.log.folder)
    world.log.folder.write_text("a file")
    refused("ST-IDEN-046", world.log.append, world.envelope(), world.verifiers, world.key)


@each("data", b"\x00", b"\x00\x05abc", b"\x00\x00" * 257)
def test_bundles_that_are_no_bundles(data):
    refused("ST-IDEN-045", tiles.unpack_bundle, data)


def test_an_entry_is_logged_once_whoever_tries(world):
    world.append("a")
    entries = [entry_of(world.envelope(text), world.verifiers) for text in ("b", "c")]
    found = [world.log.append_once(entry, world.key) for entry in (*entries, *entries)]
    assert found == [1, 2, 1, 2]
    assert world.log.state()[0].size == 3
    with pytest.raises(IdentityError, match="ST-IDEN-040"):
        world.log.append_once(entries[0], world.signer)
