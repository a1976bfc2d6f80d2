# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import argparse
from pathlib import Path

import pytest

from securetrain.core.errors import RuntimeRefusal, UsageError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch import options
from securetrain.launch.options import parse, scan
from tests.tables import each
from tests.vocabulary import refused


@pytest.fixture(scope="module")
def torch_actions() -> list[argparse.Action]:
    from torch.distributed.run import get_args_parser

    return [a for a in get_args_parser()._actions if a.option_strings and a.dest != "help"]


def test_the_scan_knows_every_option_of_torch(torch_actions):
    valued = {o for a in torch_actions if a.nargs != 0 for o in a.option_strings if "_" not in o}
    flags = {o for a in torch_actions if a.nargs == 0 for o in a.option_strings if "_" not in o}
    assert valued == options.TORCH_VALUED
    assert flags == options.TORCH_FLAGS


def test_every_option_of_torch_passes_in_every_spelling(torch_actions):
    values = {
        "rdzv_backend": "securetrain",
        "monitor_interval": "0.5",
        "start_method": "fork",
        "numa_binding": "node",
        "nnodes": "1:1",
    }
    numbers = {"max_restarts", "node_rank", "master_port", "shutdown_timeout"}
    for action in torch_actions:
        for option in action.option_strings:
            value = values.get(action.dest, "3" if action.dest in numbers else "word")
            given = [option] if action.nargs == 0 else [option, value]
            argv = [*given, "--run-dir", "r", "script.py", "--policy", "ppo"]
            parsed = parse(argv, scan(argv))
            found = getattr(parsed.torch, action.dest)
            expected = True if action.nargs == 0 else value
            assert str(found) == str(expected) or found == [value] or float(found) == float(value)
            assert parsed.script == "script.py"
            assert parsed.torch.training_script_args == ["--policy", "ppo"]
            assert parsed.scan.run_dir == Path("r")
            if action.nargs != 0 and option.startswith("--"):
                joined = [f"{option}={value}", "script.py"]
                assert parse(joined, scan(joined)).script == "script.py"


def test_what_the_script_is_given_is_the_scripts():
    argv = ["--standalone", "train.py", "--policy", "ppo", "--json", "--help", "--run-dir", "x"]
    scanned = scan(argv)
    assert scanned.policy == "dev"
    assert scanned.run_dir is None
    assert not scanned.json
    assert not scanned.help
    assert parse(argv, scanned).torch.training_script_args == argv[2:]


@each(
    "argv, policy, source",
    (["s.py"], "baseline", "default for jobs without --standalone"),
    (["--standalone", "s.py"], "dev", "default for --standalone"),
    (["--stand", "s.py"], "dev", "default for --standalone"),
    (["--policy=hardened", "--standalone", "s.py"], "hardened", "given"),
    (["--standalone", "--policy", "p.yaml", "s.py"], "p.yaml", "given"),
    (["-r3", "-t", "1", "-m", "--policy", "p.yaml", "mod"], "p.yaml", "given"),
)
def test_the_policy(argv, policy, source):
    scanned = scan(argv)
    assert (scanned.policy, scanned.policy_source) == (policy, source)
    assert parse(argv, scanned).scan is scanned


def test_what_decides_whether_the_launcher_goes_inside():
    assert scan(["s.py", "--require", "loopback"]).require == ()
    argv = ["--require=overlay", "--require", "overlay-rootless", "--rdzv_endpoint=h:1"]
    argv += ["--nnodes", "1:4", "--rdzv-conf", "identity=x, bind = 192.0.2.1", "s.py"]
    scanned = scan(argv)
    assert scanned.require == ("overlay", "overlay-rootless")
    assert (scanned.nnodes, scanned.endpoint, scanned.bind) == ("1:4", "h:1", "192.0.2.1")
    parsed = parse(argv, scanned)
    assert (parsed.torch.nnodes, parsed.coordinator, parsed.bind) == ("1:4", "h:1", "192.0.2.1")
    assert scan(["--standalone", *argv]).endpoint == ""


def test_the_environment_of_torchruns_options_counts_in_the_scan(monkeypatch):
    environ = {"PET_NNODES": "3", "PET_RDZV_ENDPOINT": "h:1", "PET_RDZV_CONF": "bind=192.0.2.1"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    argv = ["--rdzv-endpoint", "other:2", "s.py"]
    scanned = scan(argv, environ=environ)
    assert (scanned.nnodes, scanned.endpoint, scanned.bind) == ("3", "other:2", "192.0.2.1")
    parsed = parse(argv, scanned)
    assert (parsed.torch.nnodes, parsed.coordinator, parsed.bind) == ("3", "other:2", "192.0.2.1")


def test_ours():
    argv = ["--require", "loopback", "--pass-env", "A", "--pass-env=B", "--json"]
    argv += ["--max-memory-mib", "64", "--max-tasks=9", "s.py"]
    parsed = parse(argv, scan(argv))
    assert (parsed.max_memory_mib, parsed.max_tasks) == (64, 9)
    assert parsed.require == (NetworkProfile.LOOPBACK,)
    assert parsed.pass_env == ("A", "B")
    assert parsed.scan.json
    assert not parsed.joins
    assert parsed.scan.nnodes == parsed.torch.nnodes, "torchrun's default"


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2", "mine"])
def test_another_backend_is_refused(backend):
    argv = ["--rdzv-backend", backend, "s.py"]
    refused(RuntimeRefusal, "ST-RUNT-002", parse, argv, scan(argv))


SEVERAL_NODES = [
    *(["--rdzv-backend", b, "--nnodes", n] for b in ("c10d", "static") for n in ("2", "1:4")),
    ["--rdzv-backend=c10d", "--rdzv-endpoint=head:29400", "--nnodes=2"],
    ["--nnodes=2", "--node-rank=1", "--master-addr=head", "--master-port=29500"],
    ["--nnodes=2", "--node-rank=1"],
    ["--nnodes=2", "--node-rank", "0"],
    ["--nnodes", "2", "--node_rank=0"],
    ["--nnodes=2", "--master-addr=127.0.0.1"],
    ["--nnodes=2", "--master_port", "29500"],
    ["--nnodes=2", "--master-addr=192.0.2.7"],
    ["--rdzv-backend=c10d", "--rdzv-endpoint=192.0.2.7:29400"],
    ["--rdzv-backend=static", "--master-addr=192.0.2.7"],
    ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:1", "--rdzv-conf=identity=x"],
]


@pytest.mark.parametrize("given", SEVERAL_NODES, ids=" ".join)
def test_torchruns_own_backends_are_refused_beyond_one_node(given):
    argv = [*given, "--nproc-per-node=8", "-m", "pack.train", "--lr", "1"]
    error = refused(RuntimeRefusal, "ST-RUNT-002", parse, argv, scan(argv))
    for text in ("securetrain coordinator", "enroll join TOKEN", "-m pack.train --lr 1"):
        assert text in error.fix
    assert "--nproc-per-node 8" in error.fix


@each(
    "given, port",
    (["--rdzv-backend=c10d"], 0),
    (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"], 0),
    (["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29411"], 29411),
    (["--rdzv-backend=static", "--master-port=29412"], 29412),
    (["--rdzv-backend=static", "--master-addr=localhost", "--node-rank=0"], 0),
    (["--rdzv-endpoint=localhost:29413"], 29413),
    (["--nnodes=1:1", "--rdzv-endpoint=[::1]:29414", "--rdzv-id=7"], 29414),
    (["--master-port=29415"], 29415),
)
def test_torchruns_own_backends_become_ours_on_one_node(given, port):
    argv = [*given, "s.py"]
    scanned = scan(argv)
    parsed = parse(argv, scanned)
    assert not parsed.joins
    assert parsed.torch.rdzv_backend == "securetrain"
    assert parsed.store_port == port
    assert scanned.endpoint == ""


def test_a_node_that_a_job_of_one_does_not_have():
    argv = ["--node-rank=1", "s.py"]
    assert not parse(argv, scan(argv)).joins, "torchrun ignores it, too"
    argv = ["--rdzv-backend=static", *argv]
    refused(UsageError, "ST-USAG-001", parse, argv, scan(argv))


def test_a_backend_from_the_environment_is_refused_too(monkeypatch):
    monkeypatch.setenv("PET_RDZV_BACKEND", "c10d")
    argv = ["--nnodes=2", "s.py"]
    refused(
        RuntimeRefusal, "ST-RUNT-002", parse, argv, scan(argv, environ={"PET_RDZV_BACKEND": "c10d"})
    )


def test_standalone_and_torchruns_defaults_become_ours():
    for argv in (["s.py"], ["--standalone", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "s.py"]):
        parsed = parse(argv, scan(argv))
        assert parsed.torch.rdzv_backend == "securetrain"
        assert not parsed.joins
    argv = ["--rdzv-backend=securetrain", "--rdzv-endpoint=host:29400", "s.py"]
    assert parse(argv, scan(argv)).joins


@each(
    "argv",
    [],
    ["--nproc-per-nod"],
    ["--no-such-flag", "s.py"],
    ["--require", "vpn", "s.py"],
    ["--max-tasks", "0", "s.py"],
    ["--max-tasks", "-1", "s.py"],
    ["--max-memory-mib", "64GiB", "s.py"],
)
def test_a_bad_command_line(argv):
    refused(UsageError, "ST-USAG-001", parse, argv, scan(argv))


def test_a_policy_that_the_scan_did_not_see_is_refused():
    # As if a newer torch had an option with a value that this version does not know.
    argv = ["--standalone", "--policy", "hardened", "s.py"]
    with pytest.raises(UsageError) as caught:
        parse(argv, scan(["--standalone", "s.py"]))
    assert "--policy" in caught.value.what


def test_help_shows_usage_then_ours_then_torchs():
    text = options.format_help()
    order = [
        text.index(part)
        for part in ("usage: securetrain run", "examples:", "--pass-env", "torchrun's own")
    ]
    assert order == sorted(order)
    assert text.index("torchrun's own") < text.index("--virtual-local-rank")
    assert scan(["--help"]).help
