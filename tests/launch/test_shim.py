# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pickle
import socket
import types
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from securetrain.core.errors import NetworkError, RuntimeRefusal, UsageError
from securetrain.core.vocabulary import EnforcementMode, NetworkProfile
from securetrain.drills.pickles import Call
from securetrain.launch.process import loopback_peers
from securetrain.launch.process.workerlog import WorkerReport, read_reports, report_path
from securetrain.launch.setup import agent_ledger, prepare_run
from securetrain.launch.worker.shim import Shim
from securetrain.network import nccl
from securetrain.policy.schema import UnpickleMode
from tests.tables import items
from tests.vocabulary import changed, refused


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    return prepare_run(tmp_path_factory.mktemp("run"), "dev", datetime.now(UTC))


@pytest.fixture
def make(setup):
    def make(*, is_child=False, allow_servers=False, **checkpoint):
        policy = setup.policy.policy
        policy = changed(policy, checkpoint=checkpoint, debug={"allow_servers": allow_servers})
        return Shim(
            run=setup.run,
            policy=policy,
            profile=NetworkProfile.LOOPBACK,
            rank=5,
            attempt=2,
            is_child=is_child,
        )

    setup.run.ledger.unlink()
    agent_ledger(setup, lambda: datetime.now(UTC))
    report_path(setup.run, 5, 2).unlink(missing_ok=True)
    return make


def events(setup):
    lines = setup.run.ledger.read_text().splitlines()[1:]
    return [json.loads(line)["body"]["event"] for line in lines]


def fake_c10d():
    module = types.ModuleType("torch.distributed.distributed_c10d")
    module._unpickler = pickle.Unpickler  # type: ignore[attr-defined]
    for name in ("init_process_group", "new_group", "rendezvous"):
        setattr(module, name, lambda *a, name=name, **k: (name, a, k))
    return module


def close(shim, name, module):
    shim._recorded(name, shim._patches()[name])(module)


def test_sockets_are_checked_whenever_a_group_is_made(make, setup):
    shim, module = make(), fake_c10d()
    close(shim, module.__name__, module)
    assert module.new_group("x", timeout=1) == ("new_group", ("x",), {"timeout": 1})
    assert shim.num_checks == 1
    with socket.create_server(("0.0.0.0", 0)), pytest.raises(NetworkError) as caught:
        module.init_process_group()
    assert caught.value.code == "ST-NETW-002"
    assert [(e["event"], e["code"], e["subject"]) for e in events(setup)] == [
        ("socket-outside-network", "ST-NETW-002", "rank 5")
    ]
    ((_, report),) = read_reports(setup.run)
    assert isinstance(report, WorkerReport)
    assert (report.rank, report.attempt, report.num_checks) == (5, 2, 2)
    assert report.protected == (module.__name__,)
    assert report.sockets is not None
    assert not report.sockets.ok


def test_a_refused_pickle_is_recorded_once(make, setup, tmp_path):
    shim, module = make(), fake_c10d()
    close(shim, module.__name__, module)
    data = pickle.dumps(Call(os.makedirs, str(tmp_path / "hit")))
    for _ in range(2):
        with pytest.raises(RuntimeRefusal):
            module._unpickler(io_of(data)).load()
    (event,) = events(setup)
    assert (event["event"], event["code"], event["subject"]) == (
        "pickle-refused",
        "ST-RUNT-001",
        "os.makedirs",
    )


def test_warn_lets_through_says_so_and_records_it(make, setup, tmp_path, capsys):
    shim, module = make(unpickle=UnpickleMode.WARN), fake_c10d()
    close(shim, module.__name__, module)
    module._unpickler(io_of(pickle.dumps(Call(os.makedirs, str(tmp_path / "hit"))))).load()
    assert (tmp_path / "hit").exists()
    assert (
        "rank 5: warning: a pickle from another rank names os.makedirs" in capsys.readouterr().err
    )
    assert [(e["event"], e["decision"]) for e in events(setup)] == [
        ("pickle-let-through", "observe")
    ]


def test_off_leaves_the_unpickler_and_still_checks_sockets(make):
    shim, module = make(unpickle=UnpickleMode.OFF), fake_c10d()
    assert "torch.distributed.rpc.internal" not in shim._patches()
    close(shim, module.__name__, module)
    assert module._unpickler is pickle.Unpickler
    module.new_group()
    assert shim.num_checks == 1


def test_a_debug_server_needs_the_policys_word(make, setup):
    name = "torch.distributed.debug"
    assert name not in make(allow_servers=True)._patches()
    module = types.ModuleType(name)
    module.start_debug_server = lambda: "listening"  # type: ignore[attr-defined]
    close(make(), name, module)
    refused(RuntimeRefusal, "ST-RUNT-006", module.start_debug_server, port=1)
    assert (events(setup)[0]["event"], events(setup)[0]["code"]) == (
        "debug-server-refused",
        "ST-RUNT-006",
    )


def test_a_stranger_on_a_connection_is_refused_and_recorded(make, setup, monkeypatch):
    monkeypatch.setattr(
        "securetrain.launch.process.loopback_peers.find_foreign_peers",
        lambda _before: (loopback_peers.ForeignPeer(uid=1, port=2),),
    )
    monkeypatch.setattr(
        "securetrain.launch.process.loopback_peers.refusal",
        lambda _found: NetworkError("ST-NETW-025", "a stranger"),
    )
    with pytest.raises(NetworkError):
        make().check_loopback_peers(())
    assert [(e["event"], e["code"], e["subject"]) for e in events(setup)] == [
        ("stranger-connected", "ST-NETW-025", "rank 5")
    ]


def test_a_child_leaves_the_report_to_its_parent(make, setup):
    shim = make(is_child=True)
    shim.check_sockets()
    assert list(read_reports(setup.run)) == []


def test_a_refusal_stands_when_the_ledger_cannot_be_written(make, setup, capsys):
    shim, module = make(), fake_c10d()
    close(shim, module.__name__, module)
    begun = setup.run.ledger.rename(setup.run.root / "begun")
    setup.run.ledger.mkdir()
    try:
        with socket.create_server(("0.0.0.0", 0)), pytest.raises(NetworkError):
            module.init_process_group()
    finally:
        setup.run.ledger.rmdir()
        begun.rename(setup.run.ledger)
    assert "the ledger could not be written" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["SECURETRAIN_RUN_DIR", "SECURETRAIN_PROFILE", "RANK"])
def test_it_needs_what_the_launcher_says(setup, missing):
    env = {
        "SECURETRAIN_RUN_DIR": str(setup.run.root),
        "SECURETRAIN_PROFILE": "loopback",
        "RANK": "5",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    shim = Shim.from_environment(env)
    assert (shim.rank, shim.attempt, shim.policy) == (5, 2, setup.policy.policy)
    del env[missing]
    refused(UsageError, "ST-USAG-001", Shim.from_environment, env)


def test_an_unreadable_report_is_not_a_pass(make, setup):
    make().report()
    path = report_path(setup.run, 5, 2)
    assert path.exists()
    path.write_text('{"rank": 5, "attempt": 2, "sockets": "fine"}')
    ((name, found),) = read_reports(setup.run)
    assert name == path.name
    assert isinstance(found, UsageError)


def io_of(data):
    import io

    return io.BytesIO(data)


class FakeNccl:
    """Instead of the libraries of this process."""

    def __init__(self, monkeypatch, *libraries) -> None:
        self.libraries = list(libraries)
        self.keyed: list[tuple[Path, str]] = []
        self.fails: NetworkError | None = None
        monkeypatch.setattr(nccl, "loaded", lambda: tuple(self.libraries))
        monkeypatch.setattr(nccl, "set_encryption_key", self.give)

    def give(self, library, key):
        if self.fails:
            raise self.fails
        self.keyed.append((library, key))


LIB = Path("/lib/libnccl.so.2")


class WithoutCheck(Shim):
    """Sockets are another test's business: this process is in no job network."""

    def check_sockets(self) -> None:
        self.num_checks += 1


def as_keyed(shim, key="the-key"):
    fields = ("run", "policy", "rank", "attempt", "is_child")
    values = {name: getattr(shim, name) for name in fields}
    return WithoutCheck(**values, profile=NetworkProfile.NCCL_TLS, nccl_key=key)


def test_nccl_gets_the_key_when_torch_is_there_and_before_every_group(make, setup, monkeypatch):
    fake = FakeNccl(monkeypatch, LIB)
    shim, module = as_keyed(make()), fake_c10d()
    close(shim, "torch", types.ModuleType("torch"))
    assert fake.keyed == [(LIB, "the-key")]
    close(shim, module.__name__, module)
    module.init_process_group()
    assert fake.keyed == [(LIB, "the-key")], "once"
    other = Path("/lib/libnccl-other.so")
    fake.libraries.append(other)
    module.new_group()
    assert fake.keyed[1:] == [(other, "the-key")]
    shim.report()
    ((_, report),) = read_reports(setup.run)
    assert isinstance(report, WorkerReport)
    assert report.nccl_tls == (str(other), str(LIB))
    assert "the-key" not in repr(shim)


def test_an_nccl_without_tls_ends_the_import(make, setup, monkeypatch):
    fake = FakeNccl(monkeypatch, LIB)
    fake.fails = NetworkError("ST-NETW-030", "no TLS")
    with pytest.raises(NetworkError):
        close(as_keyed(make()), "torch", types.ModuleType("torch"))
    assert [(e["event"], e["code"]) for e in events(setup)] == [
        ("nccl-not-encrypted", "ST-NETW-030")
    ]


@items(
    "id, libraries, key, code",
    ("no NCCL at all", [], "the-key", "ST-NETW-030"),
    ("no key", [LIB], "", "ST-NETW-031"),
)
def test_no_group_without_nccl_and_its_key(make, setup, monkeypatch, *, libraries, key, code):
    FakeNccl(monkeypatch, *libraries)
    shim, module = as_keyed(make(), key), fake_c10d()
    close(shim, module.__name__, module)
    refused(NetworkError, code, module.init_process_group)
    assert shim.num_checks == 0, "no group was made"
    assert events(setup)[-1]["code"] == code


def test_torch_without_nccl_may_be_imported(make, monkeypatch):
    fake = FakeNccl(monkeypatch)
    close(as_keyed(make()), "torch", types.ModuleType("torch"))
    assert fake.keyed == []


def test_other_profiles_leave_nccl_alone(make, monkeypatch):
    fake, shim, module = FakeNccl(monkeypatch, LIB), make(), fake_c10d()
    assert "torch" not in shim._patches()
    close(shim, module.__name__, module)
    module.new_group()
    assert fake.keyed == []


def test_the_key_is_inherited_not_read_from_the_environment(setup):
    env = {
        "SECURETRAIN_RUN_DIR": str(setup.run.root),
        "SECURETRAIN_PROFILE": "nccl-tls",
        "RANK": "0",
    }
    key = nccl.group_key(bytes(range(1, 33)))
    descriptor = os.memfd_create("test")
    os.write(descriptor, key.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    env[nccl.KEY_VARIABLE] = str(descriptor)
    assert Shim.from_environment(env).nccl_key == key
    for wrong in ("", key, "987654"):
        refused(
            NetworkError, "ST-NETW-031", Shim.from_environment, {**env, nccl.KEY_VARIABLE: wrong}
        )
    child = Shim.from_environment(env, is_child=True)
    assert child.nccl_key == ""


@pytest.mark.parametrize("mode", EnforcementMode)
def test_where_all_is_required_a_step_must_be_watched_and_a_save_signed(make, mode):
    shim = make()
    policy = msgspec.structs.replace(shim.policy, enforcement=mode)
    assert not policy.gradients.require_watched
    again = Shim(run=shim.run, policy=policy, profile=NetworkProfile.LOOPBACK, rank=5, attempt=2)
    assert again.gradients is not None
    required = mode is EnforcementMode.REQUIRE
    assert again.gradients.settings.require_watched is required
    assert again.saves.is_required is required
