# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in S3, over HTTP: saved, loaded, refused; and what is left when a save fails."""

import random

import msgspec
import pytest
import torch

from securetrain.artifacts import async_save, verify_path
from securetrain.artifacts.lineage.head import advance, read_head
from securetrain.artifacts.lineage.judging import Freshness
from securetrain.artifacts.statement.statements import open_statement
from securetrain.artifacts.tree import egress, lease, objects
from securetrain.artifacts.tree.bucket import CLAIM, BucketStorage, Claim
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.tree.storage import storage_of
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.core.files import FileEntry
from tests import vocabulary
from tests.s3_store import KINDS, LIES, TRANSPORT, Fault, forget_clients
from tests.tables import items

DATA = "rank-00000.bin"
EACH = pytest.mark.parametrize("s3", KINDS, indirect=True)


def storage(run, number=1):
    found = storage_of(run.place(number))
    assert isinstance(found, BucketStorage)
    return found


def names(run, number=1):
    return sorted(name for name, _ in storage(run, number).requests.listed(f"run/step-{number}/"))


@EACH
def test_saved_verified_and_loaded(run):
    made = run.save(1)
    assert made.path == f"{run.store.scheme}://bucket/run/step-1"
    assert verify_path(made.path, trust=run.trust, policy=None, now=run.now).ok
    assert run.holds(1)
    run.save(2, how=async_save).result(timeout=120)
    assert run.holds(2)
    assert [place.base for place in storage(run).siblings()] == ["step-2"]
    vocabulary.refused(IntegrityError, "ST-CKPT-201", run.save, 1)
    assert run.holds(1)
    run.store.asked.clear()
    assert run.load(3)[0] == "ST-CKPT-100"


@EACH
def test_a_large_file_goes_in_parts(s3, monkeypatch):
    """Each an object with a name: what a dead saver leaves is seen, and removed by a delete."""
    monkeypatch.setattr(objects, "PART", 1 << 20)
    place = storage_of(f"{s3.scheme}://bucket/parts")
    assert isinstance(place, BucketStorage)
    data = random.Random(1).randbytes((3 << 20) + 500)
    with place.staging("0" * 32).create("x.bin") as sink:
        for start in range(0, len(data), 700_000):
            sink.write(memoryview(data)[start : start + 700_000])
    assert [name for name, _ in place.requests.listed("parts/")] == [
        *("x.bin", "x.bin.part-000001", "x.bin.part-000002", "x.bin.part-000003"),
    ]
    assert place.survey() == ([FileEntry("x.bin", len(data))], [])
    source, found = place.open("x.bin"), bytearray(len(data))
    source.read_into(memoryview(found), 0)
    assert source.size == len(data)
    assert found == data
    source.read_into(memoryview(found)[:9], (2 << 20) - 4)
    assert found[:9] == data[(2 << 20) - 4 : (2 << 20) + 5]

    def half_way():
        with place.staging("1" * 32).create("y.bin") as sink:
            sink.write(memoryview(data))
            raise RuntimeError("half way")

    vocabulary.refused(RuntimeError, "half way", half_way)
    assert list(place.requests.listed("parts/y.bin")) == []
    # Somebody else's file is not written over, whether in parts or in one.
    for length in (len(data), 100):
        with pytest.raises(FileExistsError), place.staging("2" * 32).create("x.bin") as sink:
            sink.write(memoryview(data)[:length])
    source.read_into(memoryview(found), 0)
    assert found == data
    # One is gone: the file ends there, whatever the first one says of its size.
    place.requests.delete("parts/x.bin.part-000002")
    with pytest.raises(FileNotFoundError):
        source.read_into(memoryview(found), 0)
    assert {file.name for file in place.survey()[0]} == {"x.bin", "x.bin.part-000003"}


def dead_from(run, number):
    """Nothing is carried out from a request on, as if the writer had been killed there."""
    run.store.fault = lambda asked: Fault.REFUSED if asked.number >= number else None


def requests_of_a_save(run):
    run.store.asked.clear()
    run.save(9)
    return len(run.store.asked)


def remove(run, number):
    for name in names(run, number):
        storage(run, number).requests.delete(f"run/step-{number}/{name}")


def dies_at(run, number):
    run.store.honest()
    dead_from(run, number)
    with pytest.raises(SecureTrainError):
        run.save(2)
    run.store.honest()
    assert run.load(2)[0] == "ST-CKPT-100"
    # The last one stays, and the next save of the same name takes the place.
    assert run.holds(1)
    run.save(2)
    assert run.holds(2)
    assert names(run, 2) == names(run, 1)
    remove(run, 2)


@EACH
def test_a_writer_that_dies_loses_nothing(run, monkeypatch):
    """Before its claim, after it, within its files, and before the commit."""
    monkeypatch.setattr(objects, "TRIES", 1)
    run.save(1)
    count = requests_of_a_save(run)
    for number in (3, count - 1):
        dies_at(run, number)


@pytest.mark.many
def test_a_writer_that_dies_at_any_request_loses_nothing(run, monkeypatch):
    monkeypatch.setattr(objects, "TRIES", 1)
    run.save(1)
    for number in range(requests_of_a_save(run)):
        dies_at(run, number)


@EACH
def test_a_commit_whose_answer_was_lost_is_known_again(run):
    """Also when it was carried out twice: the second one finds its condition gone."""
    count = requests_of_a_save(run)
    assert run.store.asked[-1].name == STATEMENT
    for fault in (Fault.LOST, Fault.TWICE):
        run.store.honest()
        run.store.fault = lambda asked, fault=fault: fault if asked.number == count - 1 else None
        run.save(2)
        run.store.honest()
        assert run.holds(2)
        remove(run, 2)


@pytest.mark.many
@pytest.mark.parametrize("fault", TRANSPORT)
def test_one_fault_at_any_request_of_a_save_is_nothing(run, fault):
    for number in range(requests_of_a_save(run)):
        run.store.honest()
        run.store.fault = lambda asked, at=number: fault if asked.number == at else None
        run.save(2)
        run.store.honest()
        assert run.holds(2)
        remove(run, 2)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f, marks=pytest.mark.many)
        if f not in {Fault.FLIPPED, Fault.SHIFTED, Fault.SWAPPED}
        else f
        for f in LIES
    ],
)
def test_a_store_that_lies_gives_no_other_state(run, fault):
    """Every end is the state that was saved, or a refusal by a code."""
    run.save(1)
    run.save(2)
    for name in (STATEMENT, "index.json", DATA, f"{DATA}.leaves"):
        run.store.honest()
        run.store.fault = lambda asked, name=name: (
            fault if (asked.name, asked.method) == (name, "GET") else None
        )
        code, found = run.load(2)
        assert code.startswith("ST-CKPT-") or (not code and found["n"]["step"] == 2)
        if code:
            assert found["n"]["step"] == -1


def test_swapped_stale_and_foreign_objects(run, keys, tmp_path):
    """The plain stack takes each of them; see the control."""
    for number in (1, 2):
        run.save(number)
        torch.save(run_state(number), tmp_path / f"{number}.pt")
        run.store.direct("PUT", f"plain/{number}.pt", (tmp_path / f"{number}.pt").read_bytes())
    client = storage(run).requests.client

    def plain():
        (tmp_path / "got.pt").write_bytes(bytes(client.get("plain/2.pt").bytes()))
        return torch.load(tmp_path / "got.pt", weights_only=True)["step"]

    assert plain() == 2
    run.store.direct("PUT", "plain/2.pt", run.store.direct("GET", "plain/1.pt"))
    assert plain() == 1  # without a word
    good = {name: run.store.direct("GET", f"run/step-2/{name}") for name in names(run, 2)}
    for name, code in (
        (DATA, "ST-CKPT-130"),
        (f"{DATA}.leaves", "ST-CKPT-132"),
        (STATEMENT, "ST-CKPT-130"),
    ):
        run.store.direct("PUT", f"run/step-2/{name}", run.store.direct("GET", f"run/step-1/{name}"))
        assert run.load(2)[0] in {code, "ST-CKPT-132"}
        run.store.direct("PUT", f"run/step-2/{name}", good[name])
    run.store.direct("PUT", f"run/step-2/{DATA}", good[DATA][:-1])
    assert run.load(2)[0] == "ST-CKPT-131"
    run.store.direct("PUT", f"run/step-2/{DATA}", good[DATA])
    run.store.direct("PUT", "run/step-2/zzz.safetensors", b"x")
    assert run.load(2)[0] == "ST-CKPT-141"
    run.store.direct("DELETE", "run/step-2/zzz.safetensors")
    assert run.holds(2)


def run_state(number):
    return {"w": torch.full((9,), float(number)), "step": number}


@EACH
def test_heads_are_exchanged_and_a_stale_one_is_refused(run, keys):
    folder = storage(run).above()
    for number in (1, 2):
        run.save(number)
        data = storage(run, number).read(STATEMENT, 1 << 20)
        predicate = open_statement(data, Kind.CHECKPOINT, run.trust).checkpoint
        advance(folder, predicate, keys.checkpoint, run.trust, run.now)
        if number == 1:
            first, one = run.store.direct("GET", "run/head.json"), predicate
    head = read_head(folder, run.trust)
    assert head is not None
    assert head.seq == 2
    assert run.load(2, freshness=Freshness())[0] == ""
    assert run.load(1, freshness=Freshness())[0] == "ST-CKPT-151"
    with pytest.raises(IntegrityError, match="ST-CKPT-171"):
        advance(folder, one, keys.checkpoint, run.trust, run.now)
    # Two advance it at once: each found the other's head under its own, and looked again.
    with pytest.raises(FileExistsError):
        folder.exchange("head.json", b"x", first)
    with pytest.raises(FileExistsError):
        folder.exchange("head.json", b"x", None)
    # A store that shows the first head again: this one is not the newest by that.
    run.store.direct("PUT", "run/head.json", first)
    assert run.load(2, freshness=Freshness())[0] == "ST-CKPT-170"


def claim_of(run, **maker):
    made = lease.this_process()
    made = msgspec.structs.replace(made, **maker)
    claim = Claim(save_id="f" * 32, writer="w", maker=made)
    staging = storage(run).staging("f" * 32)
    requests = storage(run).requests
    requests.put(storage(run).key(STATEMENT), msgspec.json.encode(claim), "w", kind=CLAIM)
    requests.put(storage(run).key(DATA), b"half", "w")
    return staging


@EACH
def test_a_claim_of_a_dead_process_is_taken_over_and_of_a_live_one_is_not(run, monkeypatch):
    claim_of(run, pid=2**22 + 1)
    run.save(1)
    assert run.holds(1)
    remove(run, 1)
    claim_of(run, boot="another machine")
    vocabulary.refused(IntegrityError, "ST-CKPT-201", run.save, 1)
    monkeypatch.setattr(lease, "OLD", 0.0)
    run.save(1)
    assert run.holds(1)


@EACH
def test_whoever_was_taken_for_dead_cannot_commit(run, monkeypatch):
    """The second save takes the place while the first one writes; one of them is there, whole."""
    slow = storage(run).staging("a" * 32)
    slow.begin()
    with slow.create("rank-00007.bin") as sink:
        sink.write(memoryview(b"x" * 100))
    vocabulary.refused(IntegrityError, "ST-CKPT-201", run.save, 1)
    from securetrain.artifacts.tree import bucket

    bucket._making.clear()  # as if its process had ended
    run.save(1)
    assert run.holds(1)
    with pytest.raises(FileExistsError):
        slow.put(STATEMENT, b"{}")
    slow.discard()
    assert run.holds(1)


@EACH
def test_a_commit_that_arrives_late_finds_its_claim_ended(run):
    """The answer to it was lost, the save failed and was cleaned up: it may not appear after."""
    staging = storage(run).staging("a" * 32)
    staging.begin()
    claim = staging._claim
    staging.discard()
    assert not storage(run).exists()
    with pytest.raises(objects.ConditionError):
        storage(run).requests.put(storage(run).key(STATEMENT), b"{}", "late", over=claim)


@EACH
def test_a_store_that_keeps_no_conditions_is_refused(run):
    run.store.fault = lambda _: Fault.IGNORED
    vocabulary.refused(UsageError, "ST-USAG-024", run.save, 1)


@items(
    "endpoint, refused",
    ("http://10.0.0.1:9000", True),
    ("http://store.example", True),
    ("http://169.254.169.254", True),
    ("https://169.254.169.254", True),
    ("https://[fd00:ec2::254]", True),
    ("https://[::ffff:169.254.169.254]", True),
    ("http://127.0.0.1.example", True),
    ("ftp://127.0.0.1", True),
    ("https://store.example", False),
    ("http://127.0.0.1:9", False),
    ("http://[::1]:9", False),
    ("http://localhost:9", False),
)
def test_where_a_store_may_be(endpoint, refused):
    if not refused:
        egress.check_address(endpoint)
        return
    vocabulary.refused(UsageError, "ST-USAG-023", egress.check_address, endpoint)


def test_an_endpoint_without_tls_is_refused_before_it_is_asked(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://198.51.100.1:9000")
    forget_clients()
    vocabulary.refused(UsageError, "ST-USAG-023", storage_of, "s3://bucket/run/step-1")


def test_faults_are_counted_and_bounded(run, monkeypatch):
    run.save(1)
    requests = storage(run).requests
    pauses: list[float] = []
    requests.pause = pauses.append
    before = requests.repeated
    run.store.fault = lambda _: Fault.BUSY
    assert run.load(1)[0] == "ST-CKPT-200"
    assert len(pauses) == objects.TRIES - 1 == requests.repeated - before
    run.store.fault = lambda _: Fault.REDIRECT
    assert run.load(1)[0] == "ST-CKPT-200"
    assert all(not one.key.startswith("latest") for one in run.store.asked)


@pytest.mark.parametrize("name", [STATEMENT, "head.json", "quarantine.json"])
def test_a_store_that_does_not_say_whether_a_file_is_there(run, name):
    """Found by the campaign: verify ended with the library's own error."""
    run.save(1)
    run.store.fault = lambda asked: Fault.BUSY if asked.name == name else None
    code = run.load(1, freshness=Freshness())[0]
    assert code == ("ST-CKPT-152" if name == "head.json" else "ST-CKPT-200")
    if name == STATEMENT:
        result = verify_path(run.place(1), trust=run.trust, policy=None, now=run.now)
        assert [problem.code for problem in result.problems] == ["ST-CKPT-200"]


def test_an_answer_without_end_is_given_up(run, monkeypatch):
    monkeypatch.setattr(egress, "ANSWER", 1 << 10)
    monkeypatch.setattr(objects, "TRIES", 1)
    run.save(1)
    vocabulary.refused(OSError, "more than 1024 bytes", storage(run).survey)


@pytest.mark.parametrize("url", ["s3://", "s3://b/../x", "s3://u@b/x", "s3://b/x?y", "s3://b/%2e"])
def test_a_url_that_names_no_place(s3, url):
    vocabulary.refused(UsageError, "ST-USAG-001", storage_of, url)


def test_without_the_extra_the_way_to_install_it_is_said(s3, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "obstore", None)
    forget_clients()
    refused = vocabulary.refused(
        UsageError, r"pip install '\.\[stores\]'", storage_of, "s3://bucket/x"
    )
    assert refused.code == "ST-USAG-004"
