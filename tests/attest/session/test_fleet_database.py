# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A fleet's state in a real PostgreSQL, and an administrator of it who is not to be trusted.

Commands of docs/how-to/share-a-fleet.md are tried here.
"""

import random
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from securetrain.attest.session import Revocation, open_fleet_state, use_database
from securetrain.attest.session.database import SCHEMA, Database, place_of, settings_of
from securetrain.attest.session.fleet_database import DatabaseState
from securetrain.attest.session.fleet_state import FleetState
from securetrain.attest.session.for_a_job import open_fleet
from securetrain.attest.session.state import Seen
from securetrain.core.errors import AttestationError, UsageError
from securetrain.evidence import Remembered
from securetrain.identity.keys import PrivateKey
from securetrain.policy import load_policy
from tests import vocabulary
from tests.attest import postgres
from tests.attest.worlds import Machine, World, refused
from tests.identity import worlds
from tests.identity.worlds import private_pem

pytestmark = [
    pytest.mark.skipif(postgres.programs() is None, reason="PostgreSQL's server is not installed")
]
psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: the extra [postgres]")

DOMAIN = "securetrain.local"
EK = "ek:000b" + "ab" * 32
TPM = Remembered(
    ek_name=EK,
    ak_name="000b" + "cd" * 32,
    node="node-0",
    clock=123456,
    reset_count=7,
    restart_count=2,
    firmware=0xFEDCBA9876543210,
    seen="2026-06-01T12:00:00+00:00",
)


def gone(subject: str) -> Revocation:
    return Revocation(subject=subject, reason="it lied", since="then")


@pytest.fixture(scope="module")
def server():
    with postgres.server() as made:
        yield made


@pytest.fixture
def new_url(server):
    """A database without anything in it."""
    return server.database()


TABLES = ("revoked", "floor", "head", "quotes")


def dumped(server: postgres.Server, url: str) -> Callable[[], None]:
    """A copy of all tables, and the way back to it."""
    name, kept = name_of(url), f"kept_{secrets.token_hex(8)}"
    copies = (f"CREATE TABLE {kept}.{t} AS TABLE {SCHEMA}.{t}" for t in TABLES)
    server.sql(name, f"CREATE SCHEMA {kept}", *copies)

    def restore() -> None:
        back = (f"INSERT INTO {SCHEMA}.{t} SELECT * FROM {kept}.{t}" for t in TABLES)
        server.sql(name, *(f"TRUNCATE {SCHEMA}.{t}" for t in TABLES), *back)

    return restore


@pytest.fixture(scope="module")
def prepared(server, tmp_path_factory):
    """Two machines that share a database, and the way back to how they were."""
    root, url = tmp_path_factory.mktemp("machines"), server.database()
    use_database(root / "a", url).close()
    use_database(root / "b", url, root / "a" / "database" / "key.pem").close()
    return root, url, dumped(server, url)


@pytest.fixture
def url(prepared):
    return prepared[1]


@pytest.fixture
def machines(prepared, tmp_path):
    root, _, restore = prepared
    restore()
    shutil.copytree(root, tmp_path / "machines")
    return tmp_path / "machines" / "a", tmp_path / "machines" / "b"


def name_of(url: str) -> str:
    return settings_of(url)["dbname"]


@pytest.fixture
def opened():
    """Opens states, and closes them."""
    with ExitStack() as stack:
        yield lambda folder, domain=DOMAIN: stack.enter_context(
            closing(open_fleet_state(folder, domain))
        )


# What the machines share.


def test_a_node_that_one_coordinator_barred_is_refused_by_the_other(machines, opened):
    machine = Machine()
    one, two = (opened(folder) for folder in machines)
    first, second = World(machine, state=one), World(machine, state=two, job="job-2")
    first.join()
    machine.extend(4, bytes(range(32)))
    first.refused("ST-ATTS-008")
    machine.boot()
    World(machine).join()  # the control: without a shared memory it is let in
    two._heard_until = -1.0
    second.refused("ST-ATTS-010")
    assert {entry.subject for entry in two.revocations()} == {
        f"node:{DOMAIN}/node-0",
        f"ek:{machine.ek_name}",
    }
    assert one.restore("node:node-0")
    assert one.restore(f"ek:{machine.ek_name}")
    two._heard_until = -1.0
    second.join()


def test_editions_clocks_and_names(machines, opened):
    one, two = (opened(folder) for folder in machines)
    seen = Seen(document="values", version=7, digest="ab")
    assert one.accept(seen) == seen
    assert two.accept(Seen(document="values", version=3, digest="cd")) == seen
    assert two.accept(Seen(document="values", version=7, digest="cd")) == seen
    one.remember(TPM)
    one.remember(replace(TPM, clock=5))
    assert two.past(EK) == [TPM]
    assert two.clocks() == [TPM]
    assert two.past("ek:00") == []
    assert not one.restore("ek:00")
    two.revoke(gone("node:node-1"))
    two.revoke(gone("node:node-1"))
    assert opened(machines[0], "b.example").revocation("node:node-1") is None
    assert one.revocation("node:node-1") == gone(f"node:{DOMAIN}/node-1")
    assert one.editions() == [seen]


def test_what_a_machine_knew_comes_with_it(new_url, tmp_path, opened):
    folder = tmp_path / "a"
    with closing(FleetState(folder, DOMAIN)) as old:
        old.revoke(gone("node:node-0"))
        old.accept(Seen(document="values", version=3, digest="ab"))
        old.remember(TPM)
        late = FleetState(folder, DOMAIN)
        with closing(late), closing(use_database(folder, new_url)) as made:
            assert made.revocations() == [gone(f"node:{DOMAIN}/node-0")]
            refused("ST-ATTS-017", lambda: late.revoke(gone("node:node-1")))
        refused("ST-ATTS-017", old.revocations)
    state = opened(folder)
    assert isinstance(state, DatabaseState)
    assert state.editions() == [Seen(document="values", version=3, digest="ab")]
    assert state.past(EK) == [TPM]
    vocabulary.refused(UsageError, "ST-USAG-005", use_database, folder, new_url)
    shutil.rmtree(folder / "database")
    error = refused("ST-ATTS-017", lambda: open_fleet_state(folder))
    assert "version" in error.what, "the file from before the move is not taken for it"


def test_a_machine_without_the_fleets_key_is_told_to_bring_it(machines, url, tmp_path):
    error = refused("ST-ATTS-017", lambda: use_database(tmp_path / "c", url))
    assert "--key" in error.fix
    PrivateKey.create(tmp_path / "other.pem")
    refused("ST-ATTS-017", lambda: use_database(tmp_path / "c", url, tmp_path / "other.pem"))
    assert not (tmp_path / "c" / "database").exists()
    FleetState(tmp_path / "c").close()  # it is as it was


def test_a_key_of_a_fleet_makes_no_new_one(server, machines, tmp_path):
    key = machines[0] / "database" / "key.pem"
    error = refused("ST-ATTS-017", lambda: use_database(tmp_path / "c", server.database(), key))
    assert "holds no fleet's state" in error.what


# An administrator of the database.

EDITS = {
    "struck-off": "DELETE FROM revoked",
    "renamed": "UPDATE revoked SET subject = 'node:securetrain.local/node-9'",
    "reason": "UPDATE revoked SET reason = ''",
    "added": "INSERT INTO revoked VALUES ('node:x/y', '', '')",
    "lowered": "UPDATE floor SET version = 1",
    "digest": "UPDATE floor SET digest = ''",
    "forgotten": "DELETE FROM floor",
    "version": "UPDATE head SET version = 99 WHERE version = (SELECT max(version) FROM head)",
    "unsealed": "DELETE FROM head",
    "one-seal-less": "DELETE FROM head WHERE version = (SELECT max(version) FROM head)",
    "seal": "UPDATE head SET seal = 'x'",
    "chain": "UPDATE head SET before = 'x' WHERE version = (SELECT max(version) FROM head)",
    "emptied": "TRUNCATE revoked, floor, head, quotes",
}


@pytest.mark.forgery
def test_an_edit_by_the_administrator_is_noticed(server, url, machines, opened):
    running = opened(machines[0])
    running.revoke(gone("node:node-0"))
    running.accept(Seen(document="values", version=3, digest="ab"))
    assert running.version == 3
    restore = dumped(server, url)
    old = Seen(document="values", version=1, digest="ab")
    for edit in EDITS.values():
        server.sql(name_of(url), f"SET search_path = {SCHEMA}", edit)
        error = refused("ST-ATTS-017", lambda: open_fleet_state(machines[1], DOMAIN))
        assert error.where == running.place
        assert f"{postgres.USER}@" not in error.where
        refused("ST-ATTS-017", running.revocations)
        refused("ST-ATTS-017", lambda: running.revoke(gone("node:other")))
        refused("ST-ATTS-017", lambda: running.accept(old))
        restore()
        opened(machines[1]).version  # noqa: B018 - the control


@pytest.mark.forgery
def test_the_seal_that_a_machine_has_seen_is_struck_out(server, url, machines, opened):
    """What follows it hangs together, and says of it only a digest."""
    ahead, behind = opened(machines[0]), opened(machines[1])
    ahead.revoke(gone("node:node-0"))
    seen = behind.version
    ahead.revoke(gone("node:node-1"))
    server.sql(name_of(url), f"DELETE FROM {SCHEMA}.head WHERE version = {seen}")
    assert refused("ST-ATTS-017", behind.revocations).what == "some of its seals are gone"


REBUILT = {
    "a-view": "ALTER TABLE revoked RENAME TO kept;"
    " CREATE VIEW revoked AS SELECT * FROM kept WHERE false",
    "one-gone": "DROP TABLE head",
    "dropped": f"DROP SCHEMA {SCHEMA} CASCADE",
}


@pytest.mark.forgery
def test_tables_that_are_gone_or_are_others_are_noticed(server, new_url, tmp_path, opened):
    use_database(tmp_path, new_url).close()
    running = opened(tmp_path)
    running.revoke(gone("node:node-0"))
    for edit in REBUILT.values():
        server.sql(name_of(new_url), f"SET search_path = {SCHEMA}", edit)
        refused("ST-ATTS-017", running.revocations)
        refused("ST-ATTS-017", lambda: running.revoke(gone("node:other")))
        refused("ST-ATTS-017", lambda: open_fleet_state(tmp_path, DOMAIN))


@pytest.mark.forgery
def test_an_edit_of_a_clock_is_noticed(server, url, machines, opened):
    state = opened(machines[0])
    for column in ("clock", "reset_count", "node", "firmware", "uptime", "entries", "boot"):
        state.restore(EK)
        state.remember(TPM)
        assert state.past(EK) == [TPM]
        server.sql(name_of(url), f"UPDATE {SCHEMA}.quotes SET {column} = '1'")
        refused("ST-ATTS-017", lambda: state.past(EK))
        refused("ST-ATTS-017", state.clocks)


@pytest.mark.forgery
def test_a_trigger_that_strikes_off_while_another_is_barred_is_not_sealed(
    server, url, machines, opened
):
    state = opened(machines[0])
    state.revoke(gone("node:node-0"))
    server.sql(
        name_of(url),
        f"SET search_path = {SCHEMA}",
        "CREATE OR REPLACE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN DELETE FROM revoked WHERE subject LIKE '%node-0'; RETURN NEW; END$$",
        "CREATE TRIGGER t AFTER INSERT ON revoked FOR EACH ROW EXECUTE FUNCTION forget()",
    )
    state.revoke(gone("node:node-1"))
    server.sql(name_of(url), f"DROP TRIGGER t ON {SCHEMA}.revoked")
    refused("ST-ATTS-017", state.revocations)


@pytest.mark.forgery
def test_a_backup_that_was_put_back_is_noticed(server, url, machines, opened):
    state = opened(machines[0])
    restore = dumped(server, url)
    state.revoke(gone("node:node-0"))
    restore()
    refused("ST-ATTS-017", state.revocations)
    error = refused("ST-ATTS-017", lambda: open_fleet_state(machines[0]))
    assert "version 1, and had version 2" in error.what
    policy = load_policy("dev")
    error = refused("ST-ATTS-017", lambda: open_fleet(machines[1], policy, seen=2))
    assert "this run's ledger" in error.what


@pytest.mark.forgery
def test_a_backup_that_others_have_gone_on_writing_to_is_noticed(server, url, machines, opened):
    """The other machine was off; it goes on from the backup, past what this one has seen."""
    state = opened(machines[0])
    restore = dumped(server, url)
    state.revoke(gone("node:node-0"))
    restore()
    with closing(open_fleet_state(machines[1], DOMAIN)) as other:
        for number in range(random.randrange(1, 4)):
            other.revoke(gone(f"node:other-{number}"))
    assert state.place
    refused("ST-ATTS-017", state.revocations)
    refused("ST-ATTS-017", lambda: open_fleet_state(machines[0], DOMAIN))


def test_a_part_of_the_machine_that_is_not_whole(machines):
    own = machines[0] / "database"
    for file, text in (("version", "9"), ("version", "x y"), ("version", ""), ("key.pem", "")):
        kept = (own / file).read_bytes()
        (own / file).write_text(text)
        refused("ST-ATTS-017", lambda: open_fleet_state(machines[0]))
        (own / file).write_bytes(kept)
    open_fleet_state(machines[0]).close()


def test_a_folder_without_its_url(machines):
    (machines[0] / "database" / "url").unlink()
    refused("ST-ATTS-015", lambda: open_fleet_state(machines[0]))
    (machines[0] / "database" / "url").write_bytes(b"\xff")
    refused("ST-ATTS-015", lambda: open_fleet_state(machines[0]))


# A server that fails.


def test_a_connection_that_is_lost_is_made_anew(server, url, machines, opened):
    state = opened(machines[0])

    def lose() -> None:
        server.sql(
            "postgres",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{name_of(url)}'",
        )

    for act in (
        state.revocations,
        state.clocks,
        lambda: state.revoke(gone("node:node-0")),
        lambda: state.remember(TPM),
    ):
        lose()
        act()
    assert state.version == 2


@pytest.mark.forgery
def test_a_connection_that_is_lost_in_the_middle_of_a_bar_loses_no_bar(server, url, machines):
    """The bar counts at once, and is written when the server is back; it is whole or absent."""
    chance = random.Random(0)
    statements = ("SELECT subject", "INSERT INTO revoked", "INSERT INTO head", "COMMIT")
    with closing(open_fleet_state(machines[0], DOMAIN)) as state:
        assert isinstance(state, DatabaseState)
        for word in chance.sample(statements, 4):
            machine = Machine()
            world = World(machine, state=state)
            world.join()
            machine.extend(4, chance.randbytes(32))
            once = state._database._once

            def lose(statement, values=(), once=once, word=word):
                if statement.startswith(word):
                    server.sql(
                        "postgres",
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        f" WHERE datname = '{name_of(url)}'",
                    )
                return once(statement, values)

            state._database._once = lose  # type: ignore[method-assign]
            world.refused("ST-ATTS-015")
            state._database._once = once  # type: ignore[method-assign]
            machine.boot()
            world.refused("ST-ATTS-010")
            refused("ST-ATTS-010", partial(world.verifier._refuse_revoked, f"ek:{machine.ek_name}"))
            subjects = {entry.subject for entry in state.revocations()}
            assert subjects == {f"node:{DOMAIN}/node-0", f"ek:{machine.ek_name}"}
            for subject in subjects:
                assert state.restore(subject)


def test_a_database_that_is_gone_lets_nobody_in(server, url, machines, opened):
    state = opened(machines[0])
    world = World(Machine(), state=state)
    name = name_of(url)
    server.sql("postgres", f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    server.sql(
        "postgres",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
    )
    world.refused("ST-ATTS-015")
    refused("ST-ATTS-015", lambda: open_fleet_state(machines[1]))
    server.sql("postgres", f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    world.join()


def test_a_database_that_takes_nothing_more_keeps_the_last_good_state(
    server, url, machines, opened
):
    """A full disk stops a server's writes; so does this, as far as a client can tell."""
    state = opened(machines[0])
    state.revoke(gone("node:node-0"))
    name = name_of(url)
    server.sql(
        name,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END$$",
        f"CREATE TRIGGER full_disk BEFORE INSERT ON {SCHEMA}.head"
        " FOR EACH ROW EXECUTE FUNCTION full_disk()",
    )
    refused("ST-ATTS-015", lambda: state.revoke(gone("node:node-1")), says="no space left")
    assert [entry.subject for entry in state.revocations()] == [f"node:{DOMAIN}/node-0"]
    server.sql(name, f"DROP TRIGGER full_disk ON {SCHEMA}.head")
    state.revoke(gone("node:node-1"))
    assert len(state.revocations()) == 2


@pytest.mark.slow
def test_a_coordinator_that_was_stopped_in_a_change_holds_up_no_other(
    server, url, machines, opened
):
    one, two = (opened(folder) for folder in machines)
    assert isinstance(one, DatabaseState)
    done = threading.Event()

    def other() -> None:
        for _ in range(20):
            try:
                two.revoke(gone("node:node-1"))
            except AttestationError:  # its own wait has a limit, too
                continue
            done.set()
            return

    def stopped() -> None:
        with one._changing():
            waiting = threading.Thread(target=other)
            waiting.start()
            assert done.wait(100)
            waiting.join()
            one._run("SELECT 1")

    refused("ST-ATTS-015", stopped)
    assert two.version == 2


def test_a_server_that_would_forget_is_not_used(server, url, machines):
    server.stop()
    server.start("-c fsync=off")
    try:
        refused("ST-ATTS-015", lambda: open_fleet_state(machines[0]), says="power cut")
    finally:
        server.stop()
        server.start()


# The address.

BAD = {
    "password": "postgresql://u:hunter2@db/fleet",
    "password-setting": "postgresql://u@db/fleet?password=hunter2",
    "key-password": "postgresql://u@db/fleet?sslpassword=hunter2",
    "clear": "postgresql://u@db.example/fleet?sslmode=disable",
    "unverified": "postgresql://u@db.example/fleet?sslmode=require",
    "by-option": "postgresql://u@localhost/fleet?options=-csynchronous_commit=off",
    "elsewhere": "postgresql://u@localhost/fleet?hostaddr=10.0.0.1",
    "service": "postgresql:///fleet?service=other",
    "nobody": "postgresql:///fleet",
    "nothing": "postgresql://u@db/",
    "two": "postgresql://u@localhost,db.example/fleet",
    "two-by-host": "postgresql:///fleet?host=localhost,db.example",
    "http": "http://u@db/fleet",
    "port": "postgresql://u@db:x/fleet",
    "empty": "",
    "line": "postgresql://u@db/fleet\nx",
    "long": "postgresql://u@db/" + "x" * 3000,
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_an_address_that_is_refused_before_anything_is_written(bad, tmp_path):
    error = vocabulary.refused(UsageError, "ST-USAG-001", use_database, tmp_path / "a", bad)
    assert "hunter2" not in str(error)
    assert not (tmp_path / "a").exists()


def test_an_address_over_a_network_verifies_the_server():
    assert settings_of("postgresql://u@db.example/fleet")["sslmode"] == "verify-full"
    assert settings_of("postgresql://u@localhost/fleet")["sslmode"] == "prefer"
    assert settings_of("postgresql:///fleet?host=/run/postgresql")["host"] == "/run/postgresql"


@pytest.mark.forgery
def test_a_server_that_does_not_verify_is_not_used(server, url, tmp_path):
    """Its certificate is of another CA; the control is its own."""
    own, other = (certificate_for("localhost", tmp_path / name) for name in ("own", "other"))
    server.offer_tls(own.certificate, own.key)
    asked = url.replace("127.0.0.1", "localhost") + "?sslmode=verify-full&sslrootcert="

    def connect(root: Path) -> None:
        Database(f"{asked}{root}").close()

    for _ in range(100):  # the server takes its new settings in its own time
        try:
            connect(own.root)
            break
        except AttestationError:
            signal.sigtimedwait([], 0.2)
    connect(own.root)
    refused("ST-ATTS-015", lambda: connect(other.root), says="certificate verify failed")
    wrong_name = certificate_for("db.example", tmp_path / "wrong")
    server.offer_tls(wrong_name.certificate, wrong_name.key)
    refused("ST-ATTS-015", lambda: connect(own.root))


class Certified(NamedTuple):
    certificate: bytes
    key: bytes
    root: Path


def certificate_for(host: str, folder: Path) -> Certified:
    """A certificate that is its own CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    more = ((x509.SubjectAlternativeName([x509.DNSName(host)]), False), worlds.limits(ca=True))
    valid = (now, now + timedelta(days=1))
    made = worlds.certificate(host, host, key.public_key(), key, valid, *more)
    pem = made.public_bytes(serialization.Encoding.PEM)
    root = folder.with_suffix(".pem")
    root.write_bytes(pem)
    secret = private_pem(key)
    return Certified(pem, secret, root)


@given(st.text(max_size=60), st.sampled_from(["", "postgresql://", "postgresql://u@h/d?"]))
def test_any_address_is_read_or_refused(text, head):
    """No other error, nothing over a network without a verified server, never a password."""
    try:
        found = settings_of(head + text)
    except UsageError as error:
        assert error.code == "ST-USAG-001"  # noqa: PT017 - either may happen
        return
    assert "password" not in " ".join(found)
    assert (
        found["sslmode"] == "verify-full"
        or found["host"] in {"localhost", "127.0.0.1", "::1"}
        or (found["host"].startswith("/"))
    )
    assert place_of(found).startswith("postgresql://")


def test_the_environment_leads_nowhere_else(url, monkeypatch):
    monkeypatch.setenv("PGHOSTADDR", "10.0.0.1")
    vocabulary.refused(UsageError, "ST-USAG-001", Database, url, names="PGHOSTADDR")


# Kills.

WRITER = """
import sys
from pathlib import Path
from securetrain.attest.session import Revocation, open_fleet_state
state = open_fleet_state(Path(sys.argv[1]), "securetrain.local")
for number in range(int(sys.argv[3])):
    subject = f"node:{sys.argv[2]}-{number}"
    state.revoke(Revocation(subject=subject, reason="it lied", since="then"))
    print(subject, flush=True)
"""


def start(folder: Path, name: str, count: int = 10_000) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def lose_no_bar(machines: tuple[Path, Path], points: int, crash: Callable[[], None]) -> None:
    """Kill coordinators, and now and then the server, while they bar."""
    chance, told = random.Random(points), set[str]()
    for point in range(points):
        with start(machines[point % 2], f"p{point}") as writer:
            assert writer.stdout is not None
            for _ in range(chance.randrange(1, 4)):
                told.add(writer.stdout.readline().strip())
            signal.sigtimedwait([], chance.random() / 20)
            if chance.random() < 0.2:
                crash()
            writer.send_signal(signal.SIGKILL)
            told |= set(writer.stdout.read().split("\n")[:-1])
        for folder in machines:
            with closing(open_fleet_state(folder, DOMAIN)) as state:
                kept = {entry.subject for entry in state.revocations()}
                assert kept >= {f"node:{DOMAIN}/{one.removeprefix('node:')}" for one in told}
    assert len(told) >= points


def test_a_killed_coordinator_has_lost_no_bar(machines):
    lose_no_bar(machines, 2, lambda: None)


@pytest.mark.slow
@pytest.mark.many
def test_coordinators_and_a_server_killed_at_fifty_points_have_lost_no_bar(server, machines):
    def crash() -> None:
        server.stop("immediate")
        server.start()

    lose_no_bar(machines, 50, crash)


def test_two_coordinators_write_at_once(machines, opened):
    writers = [start(folder, name, 20) for folder, name in zip(machines, "ab", strict=True)]
    for writer in writers:
        with writer:
            writer.communicate(timeout=120)
        assert writer.returncode == 0
    state = opened(machines[0])
    assert len(state.revocations()) == 40
    assert state.version == 41
