# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.network.environment import Reason, pins, transport, worker_environment
from securetrain.network.profile import TUNNELLED
from securetrain.network.profile import VERBS as PROFILES_WITH_VERBS
from securetrain.policy import load_policy
from tests.tables import each
from tests.vocabulary import refused

RUN = Path("/runs/one")
DEV = load_policy("dev").policy


def compute(base, *, policy=DEV, **more):
    safe = {"judge": lambda _: "", "judge_cache": lambda _: "", **more}
    return worker_environment(base, policy, NetworkProfile.LOOPBACK, RUN, **safe)


def with_policy(**sections):
    return replace(
        DEV,
        **{name: replace(getattr(DEV, name), **fields) for name, fields in sections.items()},
    )


def reasons(result):
    return {entry.name: entry.reason for entry in result.removed}


def test_pins_of_loopback():
    env = compute({}).env
    assert env["GLOO_SOCKET_IFNAME"] == env["TP_SOCKET_IFNAME"] == "lo"
    assert env["NCCL_SOCKET_IFNAME"] == "=lo"
    assert env["NCCL_RAS_ENABLE"] == "0"
    assert env["NCCL_NET_PLUGIN"] == "none"
    assert env["NCCL_CONF_FILE"] == "/runs/one/nccl.conf"
    assert env["TORCHINDUCTOR_CACHE_DIR"] == "/runs/one/cache/inductor"
    assert env["SECURETRAIN_RUN_DIR"] == "/runs/one"
    assert env["SECURETRAIN_PROFILE"] == "loopback"


@each("profile", *sorted(TUNNELLED - PROFILES_WITH_VERBS))
def test_pins_of_an_overlay(profile):
    pinned = pins(DEV, profile, RUN)
    assert pinned["GLOO_SOCKET_IFNAME"] == pinned["TP_SOCKET_IFNAME"] == "st0"
    assert pinned["NCCL_SOCKET_IFNAME"] == "=st0"
    assert pinned["NCCL_SOCKET_FAMILY"] == "AF_INET"
    assert pinned["NCCL_NET"] == "Socket"
    assert pinned["SECURETRAIN_PROFILE"] == profile
    # Nothing else differs, and torch's agent gives the address of the store.
    names = pins(DEV, NetworkProfile.LOOPBACK, RUN).keys()
    assert pinned.keys() == names
    assert "MASTER_ADDR" not in names


VERBS = {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "=mlx5_0:1"}


def test_no_pins_for_a_profile_that_cannot_be_given():
    refused(NetworkError, "ST-NETW-001", pins, DEV, NetworkProfile.STORE_TLS, RUN)


@each("profile", NetworkProfile.IPSEC_OFFLOAD, NetworkProfile.RDMA_TRUSTED)
def test_rdma_is_for_profiles_that_name_it(profile):
    pinned = pins(DEV, profile, RUN, VERBS)
    assert {name: pinned[name] for name in VERBS} == VERBS
    assert pinned["NCCL_SOCKET_IFNAME"] == "=st0"
    assert pinned["NCCL_NET_PLUGIN"] == "none"
    for wrong in ((profile, None), (NetworkProfile.OVERLAY, VERBS)):
        refused(NetworkError, "ST-NETW-032", transport, *wrong)


def test_the_pin_wins_and_says_so():
    result = compute({"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_FAMILY": "AF_INET"})
    assert result.env["GLOO_SOCKET_IFNAME"] == "lo"
    assert reasons(result) == {"GLOO_SOCKET_IFNAME": Reason.PINNED}
    assert "pinned to 'lo'" in result.warnings[0]


def test_a_pin_cannot_be_passed():
    name = "NCCL_SOCKET_IFNAME"
    refused(NetworkError, "ST-NETW-003", compute, {name: "eth"}, pass_env=[name])


@each("fabric", {"allow_environment": ("NCCL_*",)}, {"pin_environment": False})
def test_a_policy_may_allow_fabric_variables_but_never_the_interface(fabric):
    wanted = {"NCCL_ALGO": "Ring", "NCCL_NET": "IB", "NCCL_IB_DISABLE": "0"}
    wanted |= {"NCCL_SOCKET_IFNAME": "eth", "NCCL_NET_PLUGIN": "ofi"}
    env = compute(wanted, policy=with_policy(fabric=fabric)).env
    assert env["NCCL_ALGO"] == "Ring"
    assert env["NCCL_SOCKET_IFNAME"] == "=lo"
    assert (env["NCCL_NET"], env["NCCL_IB_DISABLE"]) == ("Socket", "1")
    assert env["NCCL_NET_PLUGIN"] == "none"


@each(
    "name, reason",
    ("NCCL_COMM_ID", Reason.FABRIC),
    ("NCCL_TUNER_PLUGIN", Reason.FABRIC),
    ("UCX_TLS", Reason.FABRIC),
    ("RANK", Reason.LAUNCHER),
    ("MASTER_ADDR", Reason.LAUNCHER),
    ("PET_RDZV_BACKEND", Reason.LAUNCHER),
    ("TORCHELASTIC_USE_AGENT_STORE", Reason.LAUNCHER),
    ("PMIX_RANK", Reason.SCHEDULER),
    ("TORCH_WORKER_SERVER_SOCKET", Reason.DEBUG),
    ("TORCH_FR_DUMP_TEMP_FILE", Reason.DEBUG),
    ("LD_PRELOAD", Reason.LOADER),
    ("PYTHONSTARTUP", Reason.LOADER),
    ("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", Reason.LOADER),
    ("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", Reason.LOADER),
    ("HF_TOKEN", Reason.SECRET),
    ("AWS_SECRET_ACCESS_KEY", Reason.SECRET),
    ("AWS_ACCESS_KEY_ID", Reason.SECRET),
    ("WANDB_API_KEY", Reason.SECRET),
    ("GOOGLE_APPLICATION_CREDENTIALS", Reason.SECRET),
    ("SSH_AUTH_SOCK", Reason.SECRET),
    ("PGPASSWORD", Reason.SECRET),
    ("OTEL_EXPORTER_OTLP_HEADERS", Reason.SECRET),
    ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", Reason.SECRET),
    ("MLFLOW_TRACKING_TOKEN", Reason.SECRET),
)
def test_removed_unless_passed(name, reason):
    result = compute({name: "value"})
    assert name not in result.env
    assert reasons(result) == {name: reason}
    passed = compute({name: "value"}, pass_env=[name])
    assert passed.env[name] == "value"
    assert not passed.removed


@each(
"name",
"HOME",
"PWD",
"OLDPWD",
"LANG",
"TOKENIZERS_PARALLELISM",
"OMP_NUM_THREADS",
"SLURM_JOB_ID",
"NCCL_DEBUG",
"CUDA_VISIBLE_DEVICES",
"KEYBOARD",
"TORCH_DISTRIBUTED_DEBUG",
"MONKEY",
)  # fmt: skip
def test_passed(name):
    result = compute({name: "value"})
    assert result.env[name] == "value"
    assert not result.removed


def test_a_password_in_a_url_is_a_secret():
    result = compute({"INDEX": "https://me:hunter2@example.org/", "PLAIN": "https://example.org/"})
    assert reasons(result) == {"INDEX": Reason.SECRET}
    assert "hunter2" not in repr(result)
    assert result.env["PLAIN"]


def test_the_policy_switches_the_families():
    base = {"NCCL_ALGO": "Ring", "SLURM_JOB_ID": "1", "TORCH_WORKER_SERVER_SOCKET": "/s"}
    policy = with_policy(
        fabric={"pin_environment": False},
        scheduler={"pass_environment": ()},
        debug={"allow_servers": True},
    )
    result = compute(base, policy=policy)
    assert set(base) & set(result.env) == {"NCCL_ALGO", "TORCH_WORKER_SERVER_SOCKET"}
    assert "NCCL_RAS_ENABLE" not in result.env
    assert result.env["NCCL_SOCKET_IFNAME"] == "=lo"


def test_unsafe_entries_leave_a_search_path():
    result = compute(
        {"PYTHONPATH": "/safe:/open:/also", "LD_LIBRARY_PATH": "/open"},
        judge=lambda entry: "open to all" if entry == "/open" else "",
    )
    assert result.env["PYTHONPATH"] == "/safe:/also"
    assert "LD_LIBRARY_PATH" not in result.env
    assert [entry.reason for entry in result.removed] == [Reason.PATH, Reason.PATH]


def test_a_private_compiler_cache_may_be_passed():
    base = {"TRITON_CACHE_DIR": "/home/me/triton"}
    assert compute(base).env["TRITON_CACHE_DIR"] == "/runs/one/cache/triton"
    assert compute(base, pass_env=list(base)).env["TRITON_CACHE_DIR"] == "/home/me/triton"
    bad: dict[str, Any] = {"pass_env": list(base), "judge_cache": lambda _: "writable by others"}
    refused(NetworkError, "ST-NETW-003", compute, base, **bad)


def test_the_result_is_a_pure_function_of_its_arguments():
    base = {"B": "2", "HF_TOKEN": "x", "A": "1"}
    assert compute(base) == compute(dict(reversed(base.items())))


def test_warnings_are_one_line_for_each_reason():
    base = {f"PMIX_{n}": "1" for n in range(40)} | {"HF_TOKEN": "t", "A_TOKEN": "t", "RANK": "0"}
    scheduler, secret = compute(base).warnings
    assert "and 35 more" in scheduler
    assert "scheduler.pass_environment" in scheduler
    assert secret.endswith("--pass-env A_TOKEN --pass-env HF_TOKEN")
    every = compute(
        {"NCCL_ALGO": "x", "LD_PRELOAD": "/x", "TORCH_WORKER_SERVER_SOCKET": "/s", "PATH": "."},
        judge=lambda _: "relative",
    )
    assert len(every.warnings) == 4


def test_an_empty_loader_variable_is_harmless():
    assert not compute({"LD_PRELOAD": ""}).removed


def test_what_only_changes_how_the_agent_prints_and_stops_is_kept():
    result = compute({"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM", "TORCHELASTIC_RUN_ID": "x"})
    assert result.env["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM"
    assert reasons(result) == {"TORCHELASTIC_RUN_ID": Reason.LAUNCHER}


def test_an_empty_secret_is_none():
    assert not compute({"HF_TOKEN": ""}).removed
    assert reasons(compute({"HF_TOKEN": "hf_x"})) == {"HF_TOKEN": Reason.SECRET}


def test_the_machines_own_folder_reaches_the_workers():
    asked = {"SECURETRAIN_STATE": "/elsewhere", "SECURETRAIN_OTHER": "x"}
    found = compute(asked, state=Path("/var/lib/securetrain"))
    assert found.env["SECURETRAIN_STATE"] == "/var/lib/securetrain"
    assert "SECURETRAIN_OTHER" not in found.env
    assert "SECURETRAIN_STATE" not in compute(asked).env


def test_a_relative_pythonpath_means_the_launchers_directory():
    judged, here, profile = [], Path("/here"), NetworkProfile.LOOPBACK

    def judge(entry):
        judged.append(entry)
        return "open" if entry.endswith("/open") else ""

    base = {"PYTHONPATH": "src:/abs:.:open", "LD_LIBRARY_PATH": "lib"}
    result = compute(base, cwd=here, judge=judge)
    assert result.env["PYTHONPATH"] == "/here/src:/abs:/here"
    assert result.env["LD_LIBRARY_PATH"] == "lib"
    assert judged == ["lib", "/here/src", "/abs", "/here", "/here/open"]
    empty = worker_environment({"PYTHONPATH": ":/abs"}, DEV, profile, RUN, cwd=here).env
    assert empty.get("PYTHONPATH", "") in {"", "/abs"}
