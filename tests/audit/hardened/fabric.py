# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""NCCL, Gloo and what configures them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.audit.hardened.faults import Bad, all_of, text
from tests.audit.hardened.machine import MOUNTS, Machine, gloo, mount, route

CONF = "/etc/nccl.conf"
PORT = "/sys/class/infiniband/mlx5_0/ports/1"
ROUTES = "/proc/self/net/route"


def port(layer: str, key: str = "0x7fff") -> Callable[[Machine], Any]:
    """An adapter of RDMA with a port that is up."""
    files = {"state": "4: ACTIVE", "link_layer": layer, "pkeys/0": key, "pkeys/1": "0x8001"}
    files["gid_attrs/ndevs/0"] = "rdma0"
    return all_of(*(partial(put, name=f"{PORT}/{name}", text=text) for name, text in files.items()))


def put(machine: Machine, *, name: str, text: str) -> None:
    machine.write(name, f"{text}\n")


def _unpinned(machine: Machine) -> None:
    del machine.environ["NCCL_SOCKET_IFNAME"]


BAD: Mapping[str, Bad] = {
    "plugin-in-etc": text(
        "ST-FAB-006", CONF, "NCCL_NET_PLUGIN=ofi\n", subject=True, also=["ST-FAB-021"]
    ),
    "plugin-in-home": text(
        "ST-FAB-006",
        "/home/me/.nccl.conf",
        "NCCL_TUNER_PLUGIN=x\n",
        subject=True,
        also=["ST-FAB-021"],
    ),
    "plugin-writable": Bad(
        "ST-FAB-006",
        all_of(
            lambda m: m.write(CONF, "NCCL_NET_PLUGIN=/opt/libnccl-net.so\n"),
            lambda m: m.write("/opt/libnccl-net.so", "", 0o666),
        ),
        CONF,
        is_subject=True,
    ),
    "interface-prefix-in-file": Bad(
        "ST-FAB-001",
        all_of(
            _unpinned,
            lambda m: m.write("/home/me/.nccl.conf", "NCCL_SOCKET_IFNAME=wg\n"),
            lambda m: m.write(CONF, "NCCL_SOCKET_IFNAME==wg0\n"),
        ),
        "/home/me/.nccl.conf",
        is_subject=True,
        also=frozenset({"ST-FAB-002"}),
    ),
    "interface-with-blanks-is-unset": Bad(
        "ST-FAB-001",
        all_of(_unpinned, lambda m: m.write(CONF, "NCCL_SOCKET_IFNAME = =wg0\n")),
        CONF,
        also=frozenset({"ST-FAB-021"}),
    ),
    "gloo-unset": Bad("ST-FAB-002", lambda m: m.environ.pop("GLOO_SOCKET_IFNAME")),
    "gloo-without-tls": Bad(
        "ST-FAB-017",
        partial(gloo, tls=False),
        "/../site-packages/torch/lib/libtorch_cpu.so",
        also=frozenset({"ST-FAB-021"}),
    ),
    "comm-id-in-file": text(
        "ST-FAB-004", CONF, "NCCL_COMM_ID=a:1\n", subject=True, also=["ST-FAB-021"]
    ),
    "nccl-conf-writable": Bad("ST-FAB-008", lambda m: m.write(CONF, "", 0o666)),
    "plugin-searched": Bad(
        "ST-FAB-007",
        all_of(
            lambda m: m.folder("/opt/lib", 0o777),
            lambda m: m.environ.update(LD_LIBRARY_PATH="/opt/lib"),
        ),
        also=frozenset({"ST-SUP-012"}),
    ),
    "plugin-there-and-writable": Bad(
        "ST-FAB-007",
        all_of(
            lambda m: m.write("/opt/lib/libnccl-tuner.so", "", 0o666),
            lambda m: m.environ.update(LD_LIBRARY_PATH="/opt/lib"),
        ),
    ),
    "fabric-in-clear": Bad(
        "ST-FAB-003",
        lambda m: m.environ.update(NCCL_SOCKET_IFNAME="=eth0", GLOO_SOCKET_IFNAME="eth0"),
    ),
    "rdma-for-all": Bad(
        "ST-FAB-010",
        all_of(
            lambda m: m.write("/dev/infiniband/uverbs0", "", 0o666),
            lambda m: m.write("/dev/infiniband/rdma_cm", "", 0o666),
        ),
    ),
    "full-member": Bad("ST-FAB-011", port("InfiniBand", "0xffff"), f"{PORT}/pkeys/0"),
    "roce-and-users": Bad(
        "ST-FAB-013",
        all_of(port("Ethernet"), lambda m: m.append(ROUTES, route("0.0.0.0/0", "rdma0", 3))),
        f"{PORT}/gid_attrs/ndevs/0",
    ),
    "roce-and-storage": Bad(
        "ST-FAB-013",
        all_of(
            port("Ethernet"),
            lambda m: m.append(ROUTES, route("10.5.0.0/16", "rdma0")),
            lambda m: m.write(
                "/proc/self/mountinfo",
                MOUNTS + mount("/data", "nfs4", "rw,nosuid,nodev,sec=krb5p,addr=10.5.0.2"),
            ),
        ),
        ROUTES,
        also=frozenset({"ST-CKP-015"}),
    ),
    "variable-in-file": text("ST-FAB-021", CONF, "NCCL_TOPO_FILE=/x\n", subject=True),
}

GOOD: Mapping[str, tuple[str, Callable[[Machine], Any]]] = {
    "gloo-with-tls": ("ST-FAB-017", partial(gloo, tls=True)),
    "interface-pinned-in-file": (
        "ST-FAB-001",
        all_of(_unpinned, lambda m: m.write(CONF, "NCCL_SOCKET_IFNAME==wg0\n")),
    ),
    "environment-before-file": (
        "ST-FAB-001",
        lambda m: m.write("/home/me/.nccl.conf", "NCCL_SOCKET_IFNAME=wg\n"),
    ),
    "no-plugin-in-file": ("ST-FAB-006", lambda m: m.write(CONF, "NCCL_NET_PLUGIN=none\n")),
    "no-plugin-is-searched": (
        "ST-FAB-007",
        all_of(
            lambda m: m.folder("/opt/lib", 0o777),
            lambda m: m.environ.update(
                LD_LIBRARY_PATH="/opt/lib",
                NCCL_TUNER_PLUGIN="none",
                NCCL_PROFILER_PLUGIN="none",
                NCCL_ENV_PLUGIN="none",
            ),
            lambda m: m.write(CONF, "NCCL_NET_PLUGIN=none\n"),
        ),
    ),
    "limited-member": ("ST-FAB-011", port("InfiniBand")),
    "ethernet-has-no-partitions": ("ST-FAB-011", port("Ethernet", "0xffff")),
    "roce-apart": ("ST-FAB-013", port("Ethernet")),
    "rdma-for-a-group": ("ST-FAB-010", lambda m: m.write("/dev/infiniband/uverbs0", "", 0o660)),
}
