# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Programs that listen beside the job."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from tests.audit.hardened.faults import Bad, all_of, env
from tests.audit.hardened.machine import ACCEPT, HEADER, Machine, row

ANY, LOOPBACK = "00000000", "0100007F"
SITE = "/opt/venv/lib/python3.12/site-packages"


def listening(port: int, *words: str, address: str = ANY, environ: str = "") -> Any:
    """A process of these words behind an open port."""

    def make(machine: Machine) -> None:
        machine.write("/proc/self/net/tcp", HEADER + row(address, port, uid=os.geteuid()))
        machine.write("/proc/12/comm", "python\n")
        machine.write("/proc/12/maps", "")
        machine.write("/proc/12/cmdline", "".join(f"{word}\0" for word in words))
        machine.write("/proc/12/environ", f"HOME=/home/me\0{environ}")
        machine.write("/proc/12/task/12/comm", "python\n")
        machine.folder("/proc/12/fd")
        (machine.root / "proc/12/fd/3").symlink_to("socket:[77]")

    return make


def program(check: str, port: int, *words: str, also: Any = ("ST-NET-011",), **more: str) -> Bad:
    return Bad(check, listening(port, *words, **more), "/proc/12/cmdline", also=frozenset(also))


RPC = all_of(
    listening(40001, "python", "train.py"),
    lambda m: m.write("/proc/12/maps", "7f-80 r-xp 0 0:0 1 /x/libtorch_cpu.so\n"),
    lambda m: m.write("/proc/12/task/13/comm", "TP_UV_loop\n"),
)
RPC_ALSO = frozenset({"ST-NET-011", "ST-RDZ-002"})

BAD: Mapping[str, Bad] = {
    "tensorboard": program(
        "ST-DBG-001", 6006, "python3.12", "/opt/venv/bin/tensorboard", "--bind_all"
    ),
    "tensorboard-module": program("ST-DBG-001", 7007, "python", "-B", "-m", "tensorboard.main"),
    "jupyter": program("ST-DBG-002", 8888, "python", "/opt/venv/bin/jupyter-lab", "--ip=0.0.0.0"),
    "jupyter-without-token": program(
        "ST-DBG-002",
        8888,
        "python",
        "-m",
        "notebook",
        "--ServerApp.token=''",
        address=LOOPBACK,
        also=[],
    ),
    "jupyter-without-token-in-file": Bad(
        "ST-DBG-002",
        all_of(
            listening(8888, "python", "/opt/venv/bin/jupyter-lab", address=LOOPBACK),
            lambda m: m.write(
                "/home/me/.jupyter/jupyter_server_config.py",
                "# c.ServerApp.token = 'x'\nc.IdentityProvider.token = \"\"\n",
            ),
        ),
        "/home/me/.jupyter/jupyter_server_config.py",
        is_subject=True,
    ),
    "jupyter-of-unknown-environment": Bad(
        "ST-DBG-002",
        listening(8888, "python", "-m", "jupyterlab", "--ServerApp.token=", address=LOOPBACK),
        "/proc/12/environ",
        is_subject=True,
    ),
    "ray-dashboard": program(
        "ST-DBG-003", 8265, "python", "-u", f"{SITE}/ray/dashboard/dashboard.py"
    ),
    "ray-gcs": program(
        "ST-DBG-003", 6379, f"{SITE}/ray/core/src/ray/gcs/gcs_server", "--log_dir=/x"
    ),
    "ray-worker": program("ST-DBG-003", 40007, "ray::train_epoch"),
    "debugpy": program(
        "ST-DBG-009", 5678, "python", "-m", "debugpy", "--listen", "x", address=LOOPBACK, also=[]
    ),
    "debug-adapter": program(
        "ST-DBG-009",
        5679,
        "python",
        f"{SITE}/debugpy/adapter",
        "--for-server",
        "1",
        address=LOOPBACK,
        also=[],
    ),
    "gdbserver": program("ST-DBG-009", 2345, "/usr/bin/gdbserver", ":2345"),
    "kineto": env("ST-DBG-009", KINETO_USE_DAEMON="1"),
    "mlflow": program(
        "ST-DBG-010", 5000, "python", "/opt/venv/bin/gunicorn", "-b", ":5000", "mlflow.server:app"
    ),
    "aim": program("ST-DBG-010", 43800, "python", "/opt/venv/bin/aim", "up", "--host", "0.0.0.0"),
    "flight-recorder": Bad(
        "ST-DBG-006",
        all_of(
            lambda m: m.folder("/tmp", 0o1777),
            lambda m: m.environ.update(TORCH_FR_DUMP_TEMP_FILE="/tmp/trace_"),
        ),
    ),
    "torch-without-a-filter": Bad(
        "ST-FAB-018",
        all_of(
            listening(40001, "python", "train.py"),
            lambda m: m.write("/proc/12/maps", "7f-80 r-xp 0 0:0 1 /x/libtorch_cpu.so\n"),
            lambda m: m.filters.chains.update(input=ACCEPT),
        ),
        "/proc/12/maps",
        is_subject=True,
        also=frozenset({"ST-NET-006", "ST-NET-011", "ST-RDZ-002"}),
    ),
    "rpc": Bad("ST-RDZ-013", RPC, "/proc/12/task/13/comm", is_subject=True, also=RPC_ALSO),
}

GOOD: Mapping[str, tuple[str, Callable[[Machine], Any]]] = {
    "tensorboard-on-loopback": (
        "ST-DBG-001",
        listening(6006, "python", "/opt/venv/bin/tensorboard", address=LOOPBACK),
    ),
    "a-script-called-after-it": (
        "ST-DBG-001",
        listening(6006, "python", "train.py", "tensorboard"),
    ),
    "jupyter-with-its-own-token": (
        "ST-DBG-002",
        listening(8888, "python", "-m", "jupyterlab", address=LOOPBACK),
    ),
    "jupyter-with-a-password": (
        "ST-DBG-002",
        all_of(
            listening(8888, "python", "-m", "jupyterlab", "--ServerApp.token=", address=LOOPBACK),
            lambda m: m.write(
                "/home/me/.jupyter/jupyter_server_config.json",
                '{"IdentityProvider": {"hashed_password": "argon2:x"}}',
            ),
        ),
    ),
    "ray-with-tokens": (
        "ST-DBG-003",
        listening(
            8265, "python", f"{SITE}/ray/dashboard/dashboard.py", environ="RAY_AUTH_MODE=token\0"
        ),
    ),
    "mlflow-with-passwords": (
        "ST-DBG-010",
        listening(5000, "gunicorn", "mlflow.server.auth:create_app()"),
    ),
    "kineto-off": ("ST-DBG-009", lambda m: m.environ.update(KINETO_USE_DAEMON="0")),
    "another-program": ("ST-DBG-009", listening(5678, "/usr/bin/nginx")),
}
