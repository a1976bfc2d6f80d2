# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a worker declares is its word: malformed, endless or about other files, it harms nobody."""

import base64
import hashlib
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.chain import Keeper
from securetrain.chain.documents import Environment, Job, Witness, decode
from securetrain.chain.records import MAX_PAGES, Recorder, StepRecords, recorded
from securetrain.chain.rows import RowOrder
from securetrain.chain.store import InMemory
from securetrain.core.errors import RuntimeRefusal
from securetrain.core.files import read_file
from securetrain.identity.signing import Bind, Declaration, ImportedFile, Topic
from securetrain.launch.signing import binding
from securetrain.launch.signing.binding import Binder, Surroundings, code_files
from tests.vocabulary import refused


@pytest.fixture
def binder() -> Binder:
    nothing: Any = dict.fromkeys(("setup", "trust", "ledger"))
    around = Surroundings(job=Job(program=None, module="m"), environment=Environment())
    return Binder(**nothing, keeper=Keeper(store=InMemory()), around=around)


def envelope(payload: object) -> str:
    data = base64.b64encode(json.dumps(payload).encode()).decode()
    made = {
        "payload": data,
        "payloadType": "application/vnd.in-toto+json",
        "signatures": [{"keyid": "a" * 64, "sig": "c2ln"}],
    }
    whole = json.dumps(made, sort_keys=True, separators=(",", ":"))
    return base64.b64encode(whole.encode()).decode()


SHAPES: list[object] = [
    None,
    5,
    "",
    [],
    {},
    [None],
    {"subject": None},
    {"subject": []},
    {"subject": {}},
    {"subject": [5]},
    {"subject": [{}]},
    {"subject": [{"digest": None}]},
    {"subject": [{"digest": []}]},
    {"subject": [{"digest": {"securetrainTree1": 7}}]},
]


@pytest.mark.forgery
@pytest.mark.parametrize("topic", Topic)
def test_nothing_that_a_worker_declares_ends_the_launchers_service(binder, topic):
    said: list[object] = [*SHAPES, *map(envelope, SHAPES), "!!!", {"a": {1: 2}}, [["a", "b"]] * 3]
    said += [[{"module": "m", "file": name, "sha256": "0" * 64, "size": 0}] for name in (".", "/")]
    draw = random.Random(3)
    said += [envelope(SHAPES)[: draw.randrange(400)] for _ in range(40)]
    codes = []
    for one in said:
        try:
            binder.declare(Declaration(topic=topic, said=one))
        except RuntimeRefusal as error:
            codes.append(error.code)
    assert len(codes) > 10
    assert set(codes) == {"ST-RUNT-032"}


def imported(path, data: bytes, size: int | None = None) -> ImportedFile:
    return ImportedFile(
        module="m",
        file=str(path),
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data) if size is None else size,
    )


def test_the_launcher_reads_no_more_than_it_says(tmp_path, monkeypatch):
    path = tmp_path / "m.py"
    path.write_bytes(b"x" * 9000)
    assert [one.by for one in code_files([imported(path, b"x" * 9000)])] == [Witness.LAUNCHER]
    # Who says that a file is small has no more of it read than that.
    read: list[int] = []

    def reading(of: Path, limit: int) -> bytes:
        read.append(limit)
        return read_file(of, limit)

    monkeypatch.setattr(binding, "read_file", reading)
    assert code_files([imported(path, b"x" * 9000, 3)])[0].by is Witness.WORKER
    assert read == [3]
    monkeypatch.setattr(binding, "READ_LIMIT", 20_000)
    by = [one.by for one in code_files([imported(path, b"x" * 9000)] * 4)]
    assert by == [Witness.LAUNCHER] * 2 + [Witness.WORKER] * 2


ORDER = RowOrder(kind="random", seed=7, split="train", starts=968, seq_len=32, batch_rows=4)


def taken(count: int = 5, run: str = "job-1") -> Any:
    records = Recorder(run=run, order=ORDER)
    for step in range(1, count + 1):
        records.add(step=step, loss=1.0, norm=1.0, lr=0.1, verdict="clean", watched=True)
    return records.taken()


def declare(binder: Binder, name: str, data: bytes) -> None:
    said = {name: base64.b64encode(data).decode()}
    binder.declare(Declaration(topic=Topic.RECORDS, said=said))


@pytest.mark.forgery
def test_a_launcher_binds_the_records_that_it_has_read(binder, monkeypatch):
    binder.setup = SimpleNamespace(job="job-1")
    made, about = taken(), Bind(step=5, records=taken().digest)
    for wrong in (about, Bind(step=5, records="ab" * 32)):
        refused(RuntimeRefusal, "ST-RUNT-031", binder._records_of, wrong)
    lines = made.pages[0].split(b"\n")[:-1]
    edited = json.loads(made.document) | {"root": "ab" * 32}
    for name, data in (
        ("document", made.document),  # its page is not there yet
        ("page", made.pages[0][:-1]),
        ("page", made.document),
        ("other", made.pages[0]),
    ):
        refused(RuntimeRefusal, "ST-RUNT-032", declare, binder, name, data)
    declare(binder, "page", made.pages[0])
    for data in (
        taken(run="job-2").document,
        json.dumps(edited, sort_keys=True, separators=(",", ":")).encode(),
        recorded("job-1", 1, lines, ORDER).document,
        made.pages[0],
    ):
        refused(RuntimeRefusal, "ST-RUNT-032", declare, binder, "document", data)
    declare(binder, "document", made.document)
    assert binder._records_of(about) == made.digest
    assert binder._records_of(Bind(step=5)) is None
    refused(RuntimeRefusal, "ST-RUNT-031", binder._records_of, Bind(step=6, records=made.digest))
    assert {made.digest, hashlib.sha256(made.pages[0]).hexdigest()} <= set(
        binder.keeper.store.names()
    )
    assert decode(made.document, StepRecords).last == 5
    # A worker cannot fill the disk between two statements.
    monkeypatch.setattr(binding, "MAX_PAGES", 2)
    declare(binder, "page", made.pages[0])
    declare(binder, "page", made.pages[0])
    refused(RuntimeRefusal, "ST-RUNT-032", declare, binder, "page", made.pages[0])
    assert MAX_PAGES > 2
