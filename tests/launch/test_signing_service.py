# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signing socket against real processes: workers, their children, strangers, and floods."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from securetrain.artifacts.statement import checkpoint_predicate
from securetrain.artifacts.statement.statements import RankFile
from securetrain.core import canonical
from securetrain.core.errors import RuntimeRefusal
from securetrain.core.rundir import RunDir
from securetrain.drills.worker_signs import TAKE_KEYS
from securetrain.identity import signing
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.identity.signing import Ask, Hello, SigningSocket
from securetrain.identity.trust import TrustRoot
from securetrain.launch.setup import make_identity, prepare_run
from securetrain.launch.signing import service as signing_service
from securetrain.launch.signing.peers import Quota, Share
from securetrain.launch.signing.rules import Circumstances, Judge
from securetrain.launch.signing.service import Keys, SigningService
from securetrain.ledger import Ledger, WriterRole, events, key_file, read_ledger
from securetrain.ledger.events import encode_event
from tests.launch.worlds import dispute_message, file_message
from tests.tables import items
from tests.vocabulary import refused

OTHER = RankFile(name="rank-00001.bin", size=8, root="cd" * 32, rank=1)
HELLO = signing.frame(Ask.HELLO, canonical.encode(Hello(signing.VERSION)))

# Does what it is told, one line of JSON a command, and answers with one line each.
PUPPET = r"""
import base64, json, os, socket, sys
connections, children = [], {}
def read(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
def act(said):
    match said:
        case ["connect", path]:
            fd = os.open(os.path.dirname(path), os.O_PATH)
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(30)
            made.connect(f"/proc/self/fd/{fd}/{os.path.basename(path)}")
            os.close(fd)
            connections.append(made)
        case ["become", user]:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        case ["watch", pid]:
            connections.append(os.pidfd_open(pid))
        case ["send", number, data]:
            connections[number].sendall(base64.b64decode(data))
        case ["reply", number]:
            head = read(connections[number], 5)
            body = read(connections[number], int.from_bytes(head[1:], "big"))
            return head[:1].decode(), json.loads(body)
        case ["close", number]:
            connections[number].close()
for line in sys.stdin:
    said = json.loads(line)
    if said == ["fork"]:  # from here on a child answers
        if os.fork():
            os.wait()
            os._exit(0)
        result = None
    elif said == ["orphan"]:  # from here on a child answers whose parent has ended
        if os.fork():
            os._exit(0)
        result = None
    else:
        try:
            result = act(said)
        except Exception as error:
            result = type(error).__name__
    print(json.dumps(result), flush=True)
"""


class Puppet:
    """A process that does what it is told."""

    def __init__(self, path):
        self.path = path
        self.process: Any = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PUPPET],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self):
        return self.process.pid

    def do(self, *command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline() or "null")

    def connect(self):
        assert self.do("connect", str(self.path)) is None

    def send(self, data, number=0):
        return self.do("send", number, base64.b64encode(data).decode())

    def ask(self, kind, body, number=0):
        """The reply: "+" and what was granted, or a code."""
        self.send(signing.frame(kind, body), number)
        return self.reply(number)

    def reply(self, number=0):
        found = self.do("reply", number)
        if isinstance(found, str):
            return found
        letter, said = found
        return said if letter == "+" else said["code"]

    def end(self):
        self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Launcher:
    """One launcher's service, with puppets for workers."""

    def __init__(self, folder, *, quota=None):
        now = datetime.now(UTC)
        self.setup = prepare_run(folder, "dev", now)
        self.run = self.setup.run
        ca = JobCA.create(self.setup.policy.policy.identity.trust_domain, self.setup.job, now)
        roles = (WriterRole.RANK, WriterRole.WORKER)
        self.trust = TrustRoot.load(self.run.trust, now)
        clock = lambda: datetime.now(UTC)  # noqa: E731
        self.service = SigningService(
            run=self.run,
            keys=Keys(
                checkpoint=PrivateKey.load(self.run.key("checkpoint")),
                rank=make_identity(self.setup, ca, now),
                ledgers={role: PrivateKey.load(key_file(self.run, role)) for role in roles},
            ),
            judge=Judge(
                here=Circumstances(
                    run_id=self.setup.job,
                    name=self.setup.job,
                    policy=self.setup.policy.digest,
                    response=self.setup.policy.policy.gradients.response,
                    trust=self.trust,
                    clock=clock,
                    admitted=lambda: None,
                )
            ),
            ledger=Ledger(self.run.ledger, PrivateKey.load(self.run.key("agent")), "agent", clock),
            quota=quota or Quota(),
        )
        self.service.start()
        self.puppets = []

    def puppet(self, *, connected=False):
        made = Puppet(self.service.path)
        self.puppets.append(made)
        if connected:
            made.connect()
        return made

    def workers(self, num=2):
        """New workers, which have connected; those before them are over."""
        self.service.starting()
        made = [self.puppet() for _ in range(num)]
        environments = {n: {"RANK": str(n), "WORLD_SIZE": str(num)} for n in range(num)}
        self.service.started({n: p.pid for n, p in enumerate(made)}, environments)
        for one in made:
            one.connect()
        return made

    def file(self, rank=0, **changes):
        return file_message(self.setup.job, rank, **changes)

    def word(self, rank, number=1):
        return dispute_message(self.setup.job, rank, number=number)

    def end(self):
        for one in self.puppets:
            one.end()
        self.service.stop()

    def ledger(self):
        """What counts, by the writer's name."""
        if not self.run.ledger.exists():
            return []
        reading = read_ledger(self.run.ledger.read_bytes(), self.trust)
        assert not reading.ignored
        return [(line.entry.body.writer, line.event) for line in reading.recorded]

    def refusals(self):
        said = [event for _, event in self.ledger()]
        return [(e.code, e.subject) for e in said if isinstance(e, events.SigningRefused)]


@pytest.fixture
def launcher(tmp_path):
    made = Launcher(tmp_path / "run")
    yield made
    made.end()


def body_of(event):
    return canonical.encode(encode_event(event))


STEP = events.InputsRefused(code="ST-IDEN-008", subject="trust.json")


# The attack, on a plain directory of keys: whoever can read them can say anything.


def test_with_the_key_files_a_worker_says_anything(tmp_path):
    now = datetime.now(UTC)
    run = prepare_run(tmp_path, "dev", now).run
    program = f"import sys\nfrom pathlib import Path\n{TAKE_KEYS}\ntake_keys(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", program, str(run.root)], check=True, timeout=60)
    reading = read_ledger(run.ledger.read_bytes(), TrustRoot.load(run.trust, now))
    assert [type(event) for event in reading.events] == [events.RunEnded]


# Who is who.


def test_each_worker_is_known_by_its_process(launcher):
    for rank, one in enumerate(launcher.workers()):
        one.send(HELLO)
        said = one.reply()
        assert (said["rank"], said["world_size"], said["run_id"]) == (rank, 2, launcher.setup.job)
        assert bool(said["checkpoint_key"]) is (rank == 0)
        # The node signs when both have spoken.
        assert bool(one.ask(Ask.RANK, launcher.file(rank))["sig"]) is (rank == 1)
        assert one.ask(Ask.RANK, launcher.file(1 - rank)) == "ST-RUNT-031"
        assert one.ask(Ask.WORD, launcher.word(rank))["keyid"]
        assert one.ask(Ask.EVENT, body_of(STEP)) == {"kept": True}
    writers = [writer for writer, event in launcher.ledger() if event == STEP]
    assert writers == ["rank-0", "rank-1"], "as the launcher knows them"
    assert launcher.refusals() == [("ST-RUNT-031", "rank-0"), ("ST-RUNT-031", "rank-1")]


def test_a_node_signs_once_for_all_its_ranks(launcher):
    first, second = launcher.workers()
    words_of = [launcher.file(rank) for rank in (0, 1)]
    assert first.ask(Ask.RANK, words_of[0])["sig"] == ""
    other = launcher.file(1, step=6)
    assert second.ask(Ask.RANK, other) == "ST-RUNT-033", "the ranks do not agree on the step"
    said = second.ask(Ask.RANK, words_of[1])
    assert said["ranks"] == [0, 1]
    assert said["leaves"] == [checkpoint_predicate.leaf_of(one) for one in words_of]
    message = checkpoint_predicate.node_message(
        launcher.setup.job, "ab" * 16, said["ranks"], said["leaves"]
    )
    first.send(HELLO)
    key = PublicKey.from_spki(base64.b64decode(first.reply()["rank_key"]))
    key.verify(base64.b64decode(said["sig"]), message)
    # Neither says anything else of this save any more, and each may ask again.
    assert second.ask(Ask.RANK, launcher.file(1, file=OTHER)) == "ST-RUNT-033"
    assert first.ask(Ask.RANK, words_of[0])["leaves"] == said["leaves"]
    # A signature for the one alone is not to be had: rank 1 is there, and has not spoken.
    assert first.ask(Ask.RANK, launcher.file(0, save_id="1" * 32))["sig"] == ""


def test_a_worker_that_ended_at_once_is_waited_for(launcher):
    """A save is never whole without a rank that was started here."""
    launcher.service.starting()
    here, gone = launcher.puppet(), launcher.puppet()
    gone.process.kill()
    gone.process.wait()
    environments = {n: {"RANK": str(n), "WORLD_SIZE": "2"} for n in (0, 1)}
    launcher.service.started({0: here.pid, 1: gone.pid}, environments)
    here.connect()
    assert here.ask(Ask.RANK, launcher.file(0))["sig"] == ""


def test_a_word_is_signed_with_the_key_of_the_ranks_and_once(launcher):
    first, _ = launcher.workers()
    first.send(HELLO)
    key = PublicKey.from_spki(base64.b64decode(first.reply()["rank_key"]))
    said = first.ask(Ask.WORD, launcher.word(0))
    key.verify(base64.b64decode(said["sig"]), launcher.word(0))
    assert first.ask(Ask.WORD, launcher.word(0)) == "ST-RUNT-033"
    assert first.ask(Ask.WORD, launcher.word(1, 2)) == "ST-RUNT-031"
    assert first.ask(Ask.WORD, launcher.file(0)) == "ST-RUNT-032"
    assert first.ask(Ask.WORD, launcher.word(0, 2))["keyid"] == said["keyid"]


def test_a_child_of_a_worker_counts_as_its_rank(launcher):
    _, second = launcher.workers()
    second.do("fork")
    second.connect()
    second.send(HELLO, 1)
    assert second.reply(1)["rank"] == 1


def test_a_stranger_is_refused(launcher):
    launcher.workers()
    stranger = launcher.puppet(connected=True)
    stranger.send(HELLO)
    assert stranger.reply() == "ST-RUNT-030"
    assert launcher.refusals() == [("ST-RUNT-030", "a stranger")]


def test_this_process_itself_is_no_worker(launcher):
    launcher.workers()
    client = SigningSocket(path=launcher.service.path)
    with pytest.raises(RuntimeRefusal) as caught:
        client.welcome()
    client.close()
    assert caught.value.code == "ST-RUNT-030"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_is_refused(launcher, tmp_path):
    launcher.workers()
    for folder in (tmp_path, launcher.run.root, launcher.run.signer):
        folder.chmod(0o711)
    for folder in tmp_path.parents:
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    stranger = launcher.puppet()
    stranger.do("become", 65534)
    stranger.connect()
    stranger.send(HELLO)
    assert stranger.reply() == "ST-RUNT-030"


def test_a_worker_of_another_launch_is_refused(launcher, tmp_path):
    launcher.workers()
    other = Launcher(tmp_path / "other")
    try:
        worker, _ = other.workers()
        worker.path = launcher.service.path
        worker.connect()
        worker.send(HELLO, 1)
        assert worker.reply(1) == "ST-RUNT-030"
    finally:
        other.end()


def test_a_process_that_stands_for_a_worker_in_a_sandbox(launcher, monkeypatch):
    monkeypatch.setattr(signing_service, "PATIENCE_SECONDS", 120.0)
    launcher.service.stands_in = True
    launcher.service.starting()
    outside, inside, stranger = (launcher.puppet() for _ in range(3))
    launcher.service.started({0: outside.pid}, {0: {"RANK": "5", "WORLD_SIZE": "6"}})
    inside.connect()
    inside.send(HELLO)
    time.sleep(0.1)
    outside.do("watch", inside.pid)
    assert inside.reply()["rank"] == 5
    monkeypatch.setattr(signing_service, "PATIENCE_SECONDS", 0.5)  # for whom nobody stands
    stranger.connect()
    stranger.send(HELLO)
    assert stranger.reply() == "ST-RUNT-030"
    outside.process.kill()
    outside.process.wait()
    assert inside.ask(Ask.RANK, launcher.file(5)) == "ST-RUNT-033"


def test_without_a_sandbox_no_process_stands_for_another(launcher):
    first, _ = launcher.workers()
    stranger = launcher.puppet(connected=True)
    first.do("watch", stranger.pid)
    stranger.send(HELLO)
    assert stranger.reply() == "ST-RUNT-030"


# The end of a round.


def test_nobody_speaks_for_a_round_that_is_over(launcher):
    first, second = launcher.workers()
    first.send(HELLO)
    assert first.reply()["rank"] == 0, "it was let in before the round ended"
    second.do("fork")
    launcher.workers()
    assert first.ask(Ask.RANK, launcher.file()) == "ST-RUNT-033"
    second.connect()
    second.send(HELLO, 1)
    assert second.reply(1) == "ST-RUNT-030"


def test_what_a_dead_worker_left_behind_says_nothing(launcher):
    first, _ = launcher.workers()
    assert first.do("orphan") is None
    first.process.wait(30)
    assert first.ask(Ask.RANK, launcher.file()) == "ST-RUNT-033"
    first.connect()
    first.send(HELLO, 1)
    assert first.reply(1) == "ST-RUNT-030"


def test_who_connects_while_workers_start_waits_for_its_rank(launcher):
    launcher.service.starting()
    early = launcher.puppet(connected=True)
    early.send(HELLO)
    time.sleep(0.1)
    launcher.service.started({0: early.pid}, {0: {"RANK": "7", "WORLD_SIZE": "9"}})
    assert early.reply()["rank"] == 7


# Frames.


@items(
    "data",
    b"X\0\0\0\1x",
    b"\xff\0\0\0\1x",
    b"H\0\1\0\0",
    b"C\xff\xff\xff\xff",
    b"R\0\1\0\0",
    HELLO + HELLO,
    HELLO + b"x",
)
def test_a_frame_that_breaks_the_rules(launcher, data):
    first, second = launcher.workers()
    first.send(data)
    assert first.reply() == "ST-RUNT-032"
    assert first.reply() == "EOFError", "it cannot be followed, so it is closed"
    second.send(HELLO)
    assert second.reply()["rank"] == 1


def test_a_statement_of_another_rank_is_refused_by_its_first_letter(launcher):
    _, second = launcher.workers()
    second.send(b"C\2\0\0\0")
    assert second.reply() == "ST-RUNT-031"


def test_a_worker_that_dies_in_the_middle_of_a_frame(launcher):
    first, second = launcher.workers()
    first.send(HELLO[:7])
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait()
    second.send(HELLO)
    assert second.reply()["rank"] == 1
    assert launcher.refusals() in ([], [("ST-RUNT-033", "rank-0")]), "as it was read in time or not"


def test_a_slow_frame_ends_at_its_deadline(launcher, monkeypatch):
    monkeypatch.setattr(signing_service, "QUESTION_SECONDS", 0.3)
    first, second = launcher.workers()
    for byte in HELLO[:4]:
        first.send(bytes([byte]))
        time.sleep(0.15)  # each byte within the time, all of them not
    assert first.reply() in {"ST-RUNT-032", "ConnectionResetError"}
    second.send(HELLO)
    assert second.reply()["rank"] == 1
    assert launcher.refusals() == [("ST-RUNT-032", "rank-0")]


# Floods.


def _open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_thousand_connections(launcher):
    first, second = launcher.workers()
    stranger = launcher.puppet()
    before = _open_files()
    for _ in range(500):
        stranger.do("connect", str(launcher.service.path))
        first.do("connect", str(launcher.service.path))
    first.send(HELLO, 400)
    assert first.reply(400) == "ST-RUNT-034"
    stranger.send(HELLO, 400)
    assert stranger.reply(400) == "ST-RUNT-030"
    second.send(HELLO)
    assert second.reply()["rank"] == 1
    assert _open_files() - before < 100
    launcher.end()
    told = launcher.refusals()
    assert len(told) == 2 * signing_service.LISTED
    counts = [e for _, e in launcher.ledger() if isinstance(e, events.SigningRefusalsNotListed)]
    assert {e.subject for e in counts} == {"rank-0", "a stranger"}
    assert sum(e.count for e in counts) >= 600, "those that came before the two that were asked"


def test_a_flood_of_questions_costs_its_own_rank(tmp_path):
    made = Launcher(tmp_path / "run", quota=Quota(questions=20, questions_a_second=0.001))
    try:
        first, second = made.workers()
        for _ in range(20):
            first.send(HELLO)
            assert first.reply()["rank"] == 0
        first.send(HELLO)
        assert first.reply() == "ST-RUNT-034"
        second.send(HELLO)
        assert second.reply()["rank"] == 1
    finally:
        made.end()


def test_a_ledger_above_its_share_is_said_in_one_event(tmp_path):
    made = Launcher(tmp_path / "run", quota=Quota(ledger_bytes=1000))
    try:
        first, second = made.workers()
        said = [first.ask(Ask.EVENT, body_of(STEP)) for _ in range(30)]
        assert said[0] == {"kept": True}
        assert said[-1] == {"kept": False}
        assert second.ask(Ask.EVENT, body_of(STEP)) == {"kept": True}
    finally:
        made.end()
    (left,) = [e for _, e in made.ledger() if isinstance(e, events.WorkerEventsLeftOut)]
    written = [e for writer, e in made.ledger() if writer == "rank-0"]
    assert (left.subject, left.count) == ("rank-0", 30 - len(written))
    assert left.bytes == left.count * len(body_of(STEP))


def test_two_statements_at_once(launcher):
    first, _ = launcher.workers()
    first.connect()
    first.send(b"C\0\1\0\0" + b"x")
    time.sleep(0.1)
    first.send(b"C\0\1\0\0", 1)
    assert first.reply(1) == "ST-RUNT-034"


def test_a_share_comes_back_with_time():
    share = Share(Quota(questions=2, questions_a_second=1, bytes=100, bytes_a_second=10), 0.0)
    share.question(40, 0.0)
    share.question(40, 0.0)
    refused(RuntimeRefusal, "2 questions", share.question, 0, 0.0)
    share.question(20, 1.0)
    refused(RuntimeRefusal, "MiB of questions", share.question, 200, 100.0)


# The client.


def test_a_socket_below_a_long_path(tmp_path):
    made = Launcher(tmp_path / ("a" * 100) / ("b" * 100))
    try:
        first, _ = made.workers()
        first.send(HELLO)
        assert first.reply()["rank"] == 0
    finally:
        made.end()
    assert list(RunDir(made.run.root).signer.iterdir()) == [], "nothing is left"
