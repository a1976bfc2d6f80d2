# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pickle
import socket
import types
from datetime import UTC, datetime

import msgspec
import pytest

from securetrain.core.errors import NetworkError, RuntimeRefusal, UsageError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch.setup import prepare_run
from securetrain.launch.shim import Shim
from securetrain.launch.workerlog import WorkerReport, read_reports, report_path
from securetrain.policy.schema import UnpickleMode


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    return prepare_run(tmp_path_factory.mktemp("run"), "dev", datetime.now(UTC))


@pytest.fixture
def make(setup):
    def make(*, is_child=False, allow_servers=False, **checkpoint):
        policy = setup.policy.policy
        policy = msgspec.structs.replace(
            policy,
            checkpoint=msgspec.structs.replace(policy.checkpoint, **checkpoint),
            debug=msgspec.structs.replace(policy.debug, allow_servers=allow_servers),
        )
        return Shim(
            run=setup.run,
            policy=policy,
            profile=NetworkProfile.LOOPBACK,
            rank=5,
            attempt=2,
            is_child=is_child,
        )

    setup.run.ledger.unlink(missing_ok=True)
    report_path(setup.run, 5, 2).unlink(missing_ok=True)
    return make


def events(setup):
    if not setup.run.ledger.exists():
        return []
    lines = setup.run.ledger.read_text().splitlines()
    return [json.loads(line)["body"]["event"] for line in lines]


def fake_c10d():
    module = types.ModuleType("torch.distributed.distributed_c10d")
    module._unpickler = pickle.Unpickler  # type: ignore[attr-defined]
    for name in ("init_process_group", "new_group"):
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
    with pytest.raises(RuntimeRefusal) as caught:
        module.start_debug_server(port=1)
    assert caught.value.code == "ST-RUNT-006"
    assert events(setup)[0]["code"] == "ST-RUNT-006"


def test_a_child_leaves_the_report_to_its_parent(make, setup):
    shim = make(is_child=True)
    shim.check_sockets()
    assert list(read_reports(setup.run)) == []


def test_a_refusal_stands_when_the_ledger_cannot_be_written(make, setup, capsys):
    shim, module = make(), fake_c10d()
    close(shim, module.__name__, module)
    setup.run.ledger.mkdir()
    try:
        with socket.create_server(("0.0.0.0", 0)), pytest.raises(NetworkError):
            module.init_process_group()
    finally:
        setup.run.ledger.rmdir()
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
    with pytest.raises(UsageError) as caught:
        Shim.from_environment(env)
    assert caught.value.code == "ST-USAG-001"


def test_an_unreadable_report_is_not_a_pass(make, setup):
    make().report()
    path = report_path(setup.run, 5, 2)
    assert path.exists()
    path.write_text('{"rank": 5, "attempt": 2, "sockets": "fine"}')
    ((name, found),) = read_reports(setup.run)
    assert name == path.name
    assert isinstance(found, UsageError)


class Call:
    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


def io_of(data):
    import io

    return io.BytesIO(data)
