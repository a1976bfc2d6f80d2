# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""T40: what a witness never signs, and that two histories do not both find a quorum."""

import shutil
from dataclasses import replace

import pytest

from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.log import note
from securetrain.identity.log.checkpoint import open_checkpoint, sign
from securetrain.identity.log.store import CHECKPOINT_FILE, Log
from securetrain.identity.log.witness import (
    REQUEST_LIMIT,
    Request,
    Witness,
    parse_request,
    request_for,
)
from tests import vocabulary
from tests.identity.log.conftest import NOW, ORIGIN
from tests.tables import each


def refused(code, function, *arguments, exit_code=18):
    error = vocabulary.refused(IdentityError, code, function, *arguments)
    assert error.exit_code == exit_code
    return error


def checkpoint(log: Log) -> bytes:
    return (log.folder / CHECKPOINT_FILE).read_bytes()


def fork(world, *texts) -> Log:
    """A second history of the same log, from where it is now: its owner can always make one."""
    folder = world.folder / f"fork-{len(list(world.folder.iterdir()))}"
    shutil.copytree(world.log.folder, folder)
    other = Log(folder, world.policy)
    for text in texts:
        other.append(world.envelope(text), world.verifiers, world.key)
    return other


def test_a_log_that_grows(world):
    witness = world.witnesses[0]
    assert witness.seen(ORIGIN) == 0
    for text in "abc":
        world.append(text)
        line = witness.cosign(request_for(world.log, witness.seen(ORIGIN)), NOW)
        signed = world.log.state()[1]
        key = world.witness_keys[0].public
        assert note.cosigned_by(signed.with_lines((line,)), key) == NOW.timestamp()
    assert witness.seen(ORIGIN) == 3
    witness.cosign(request_for(world.log, 3), NOW)  # again, with the time of now


def test_a_log_that_was_empty(world):
    world.cosign(0)
    assert world.witnesses[0].seen(ORIGIN) == 0
    world.append("a")
    assert world.cosign(0) == 1
    assert world.witnesses[0].seen(ORIGIN) == 1


def test_it_remembers_across_processes(world):
    world.append("a")
    world.cosign(0)
    assert world.witness(0).seen(ORIGIN) == 1


@pytest.mark.parametrize("step", ["make_private_dir", "locked", "write_atomic"])
def test_what_cannot_be_remembered_is_not_cosigned(world, monkeypatch, step):
    """It would sign another history of that size the next time."""

    def full(path, *_, **__):
        raise UsageError("ST-USAG-006", "no space left on the device", str(path))

    world.append("a")
    request = request_for(world.log, 0)
    with monkeypatch.context() as patched:
        patched.setattr(f"securetrain.identity.log.witness.{step}", full)
        refused("ST-IDEN-046", world.witnesses[0].cosign, request, NOW, exit_code=20)
    assert world.witnesses[0].seen(ORIGIN) == 0
    world.witnesses[0].cosign(request, NOW)


@pytest.mark.forgery
def test_two_histories_of_one_size(world):
    """The split view: the log's key signs both, and the second finds no witness."""
    world.append("a")
    other = fork(world, "planted")
    world.append("b")
    assert world.cosign(0, 1) == 2
    for number in (0, 1):
        # From what the witness has seen, and from the start, as if it had seen nothing.
        for old in (2, 1, 0):
            refused("ST-IDEN-043", world.witnesses[number].cosign, request_for(other, old), NOW)
    evidence = list((world.folder / "witness-0").glob("*.contradiction"))
    assert len(evidence) == 1
    seen = note.parse(evidence[0].read_bytes())
    assert note.signed_by(seen, world.key.public, ORIGIN)  # it cannot be denied
    # A few are proof enough: the log's owner cannot fill the witness's disk.
    for text in "0123456789abcdefghij":
        more = fork(world)
        shutil.rmtree(more.folder)
        more = Log.create(more.folder, ORIGIN, world.key)
        for name in (text, "x"):
            more.append(world.envelope(name), world.verifiers, world.key)
        refused("ST-IDEN-043", world.witnesses[0].cosign, request_for(more, 0), NOW)
    assert len(list((world.folder / "witness-0").glob("*.contradiction"))) == 16
    # Below a quorum, nobody believes it: the control is that one witness would be enough.
    line = world.witnesses[2].cosign(request_for(other, 0), NOW)
    assert other.add_cosignatures(other.state()[1].text, [line]) == 1
    open_checkpoint(checkpoint(other), replace(world.policy, quorum=1), NOW)
    refused("ST-IDEN-044", open_checkpoint, checkpoint(other), world.policy, NOW)


@pytest.mark.forgery
def test_two_histories_of_different_sizes(world):
    world.append("a", "b")
    other = fork(world)
    shutil.rmtree(other.folder)
    other = Log.create(other.folder, ORIGIN, world.key)
    for text in ("planted", "b", "c"):
        other.append(world.envelope(text), world.verifiers, world.key)
    world.cosign(0)
    refused("ST-IDEN-043", world.witnesses[0].cosign, request_for(other, 2), NOW)
    assert world.witnesses[0].seen(ORIGIN) == 2


@pytest.mark.forgery
def test_a_log_that_shrinks(world):
    world.append("a", "b")
    small = fork(world)
    world.append("c")
    world.cosign(0)
    for old in (0, 1, 2):
        refused("ST-IDEN-042", world.witnesses[0].cosign, request_for(small, old), NOW)
    assert world.witnesses[0].seen(ORIGIN) == 3


@pytest.mark.forgery
def test_a_request_from_another_size_than_was_seen(world):
    world.append("a", "b")
    world.cosign(0)
    world.append("c")
    for old in (0, 1, 3):
        error = refused("ST-IDEN-041", world.witnesses[0].cosign, request_for(world.log, old), NOW)
        assert f"from size {old}; size 2 was seen" in error.what
    world.cosign(0)


def test_a_witness_that_has_seen_nothing_asks_for_no_proof(world):
    world.append("a", "b")
    padded = Request(0, (b"\x00" * 32,), parse_request(request_for(world.log, 0)).checkpoint)
    refused("ST-IDEN-041", world.witnesses[0].cosign, padded.encode(), NOW)


@pytest.mark.forgery
def test_a_log_that_is_not_watched_or_not_signed(world):
    world.append("a")
    stranger = PrivateKey.generate()
    found, _ = world.log.state()
    forged = Request(0, (), sign(found, stranger).encode())
    refused("ST-IDEN-040", world.witnesses[0].cosign, forged.encode(), NOW)
    elsewhere = Request(0, (), sign(replace(found, origin="other.example"), world.key).encode())
    refused("ST-IDEN-040", world.witnesses[0].cosign, elsewhere.encode(), NOW)
    refused("ST-IDEN-040", world.witnesses[0].seen, "other.example")


@pytest.mark.forgery
def test_what_it_saw_cannot_be_read(world):
    """A damaged file is no first time."""
    world.append("a")
    world.cosign(0)
    (path,) = (world.folder / "witness-0").glob("*.checkpoint")
    good = path.read_bytes()
    for data in (b"", good[:20], b"other" + good):
        path.write_bytes(data)
        request = request_for(world.log, 1)
        refused("ST-IDEN-046", world.witnesses[0].cosign, request, NOW, exit_code=20)
        refused("ST-IDEN-046", world.witnesses[0].seen, ORIGIN, exit_code=20)
    path.unlink()
    path.symlink_to(world.folder / "elsewhere")
    refused("ST-IDEN-046", world.witnesses[0].seen, ORIGIN, exit_code=20)


def test_nothing_is_signed_that_could_not_be_remembered(world, monkeypatch):
    world.append("a")
    folder = world.folder / "witness-0"
    folder.write_text("a file where the folder must be")
    refused("ST-IDEN-046", world.witnesses[0].cosign, request_for(world.log, 0), NOW, exit_code=20)


def test_the_logs_key_may_change(world):
    world.append("a")
    world.cosign(0)
    new = PrivateKey.generate()
    keys = {new.key_id: new.public}
    policy = replace(world.policy, keys=keys, witnesses={}, quorum=0)
    witness = Witness("w", world.witness_keys[0], world.folder / "witness-0", {ORIGIN: policy})
    found, _ = world.log.state()
    (world.log.folder / CHECKPOINT_FILE).write_bytes(sign(found, new).encode())
    log = Log(world.log.folder, replace(world.policy, keys=keys))
    log.append(world.envelope("b"), world.verifiers, new)
    witness.cosign(request_for(log, witness.seen(ORIGIN)), NOW)


@each(
    "data",
    b"",
    b"old 1\n",
    b"new 1\n\nx",
    b"old -1\n\nx",
    b"old 01\n\nx",
    b"old " + b"9" * 16 + b"\n\nx",
    b"old 1\nAAAA\n\nx",
    b"old 1\n????\n\nx",
    b"old \xff\n\nx",
    b"old 1" + (b"\n" + b"A" * 43 + b"=") * 64 + b"\n\nx",
    b"old 1",
    Request(1, (), b"x" * REQUEST_LIMIT).encode(),
)
def test_malformed_requests(data):
    refused("ST-IDEN-041", parse_request, data)


def test_a_request_round_trips(world):
    world.append("a", "b", "c")
    data = request_for(world.log, 2)
    assert parse_request(data).encode() == data
