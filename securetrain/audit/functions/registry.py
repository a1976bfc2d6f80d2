# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The closed registry of named functions that a check may ``call``."""

from collections.abc import Iterable, Mapping
from typing import Final

from securetrain.audit.functions import (
    access,
    advisories,
    fabric,
    firewall,
    keys,
    listeners,
    network,
    node,
    paths,
    run,
    slurm,
    slurm_files,
)
from securetrain.audit.functions.base import Function, NoArgs, fields

_PATHS: Final = fields("node", "paths", "*", of=("role", "path", "origin", "chain"))
_LINKS: Final = fields(
    "node", "paths", "*", "chain", "*", of=("path", "kind", "uid", "mode", "group_uids")
)
_ENV: Final = fields("node", "env", "*", of=("name", "value"))
_CONF: Final = (
    ("node", "nccl_conf", "*", "path"),
    ("node", "nccl_conf", "*", "options"),
    *fields("node", "nccl_conf", "*", "options", "*", of=("name", "value", "line")),
)
_LISTENING: Final = fields(
    "node", "listeners", "*", of=("protocol", "address", "port", "scope", "uid", "kernel")
)
_PROCESS: Final = ("node", "listeners", "*", "process")
_FILTERS: Final = (
    ("node", "firewall", "legacy"),
    ("node", "firewall", "filters"),
    *fields(
        *("node", "firewall", "filters", "*"),
        of=(
            "table",
            "chain",
            "family",
            "hook",
            "ending",
            "opens",
            "allows",
            "denies",
            "conditional",
        ),
    ),
    *fields("node", "interfaces", "*", of=("name", "kind", "loopback", "ipv6")),
)
_ROUTES: Final = fields("node", "routes", "*", of=("network", "interface"))
_ID: Final = ("node", "identities", "*")
_IDENTITY: Final = fields(*_ID, of=("path", "role"))
_KEY: Final = fields(*_ID, "key", of=("uid", "mode"))
_CERTIFICATE: Final = fields(*_ID, "certificate", of=("begins", "ends", "key", "digest"))
_ANCHOR: Final = fields(*_ID, "anchor", of=("begins", "ends", "key", "digest"))
_WAYS_IN: Final = ("name", "up", "loopback")


def _registry(functions: Iterable[Function]) -> dict[str, Function]:
    table = {function.name: function for function in functions}
    return dict(sorted(table.items()))


FUNCTIONS: Final[Mapping[str, Function]] = _registry(
    (
        Function(
            name="paths.safe_from_others",
            body=paths.paths_safe,
            args=paths.PathArgs,
            reads=(*_PATHS, *_LINKS),
        ),
        Function(
            name="fabric.interface_pinned",
            body=fabric.interface_pinned,
            args=fabric.InterfaceArgs,
            reads=(*_ENV, *_CONF, ("node", "interfaces", "*", "name")),
        ),
        Function(
            name="fabric.variable_unset",
            body=fabric.variable_unset,
            args=fabric.UnsetArgs,
            reads=(*_ENV, *_CONF),
        ),
        Function(
            name="fabric.variables_allowed",
            body=fabric.variables_allowed,
            args=fabric.AllowedArgs,
            reads=(*_ENV, ("node", "env", "*", "kind"), *_CONF),
        ),
        Function(
            name="fabric.plugins_fixed",
            body=fabric.plugins_fixed,
            args=fabric.PluginArgs,
            reads=(*_ENV, *_CONF, *_PATHS, *_LINKS),
        ),
        Function(
            name="fabric.nothing_in_clear",
            body=fabric.nothing_in_clear,
            args=NoArgs,
            reads=(("node", "hardware", "infiniband"),),
        ),
        Function(
            name="network.reverse_path_filter",
            body=network.reverse_path_filter,
            args=network.RpFilterArgs,
            reads=(
                ("node", "sysctls", "net.ipv4.conf.all.rp_filter"),
                *fields("node", "interfaces", "*", of=(*_WAYS_IN, "rp_filter")),
            ),
        ),
        Function(
            name="network.redirects_refused",
            body=network.redirects_refused,
            args=NoArgs,
            reads=(
                ("node", "sysctls", "net.ipv4.conf.all.accept_redirects"),
                *fields(
                    "node", "interfaces", "*", of=(*_WAYS_IN, "accept_redirects", "forwarding")
                ),
            ),
        ),
        Function(
            name="network.router_advertisements_refused",
            body=network.router_advertisements,
            args=NoArgs,
            reads=fields(
                "node", "interfaces", "*", of=(*_WAYS_IN, "ipv6", "accept_ra", "forwarding6")
            ),
        ),
        Function(
            name="identity.sshd_closed",
            body=access.sshd_closed,
            args=NoArgs,
            reads=(
                ("node", "sshd", "options"),
                *fields(
                    "node", "sshd", "options", "*", of=("name", "value", "match", "path", "line")
                ),
            ),
        ),
        Function(
            name="listeners.programs_kept_in",
            body=listeners.programs_kept_in,
            args=listeners.ProgramArgs,
            reads=(
                *_LISTENING,
                *fields("node", "listeners", "*", "process", of=("pid", "program", "guarded")),
                *_ENV,
            ),
        ),
        Function(
            name="listeners.tensorpipe_kept_in",
            body=listeners.tensorpipe_kept_in,
            args=NoArgs,
            reads=(
                *_LISTENING,
                *fields(
                    "node", "listeners", "*", "process", of=("pid", "loads_torch", "tensorpipe")
                ),
            ),
        ),
        *(
            Function(name=f"network.{name}", body=body, args=NoArgs, reads=(*_FILTERS, *more))
            for name, body, more in (
                ("inbound_denied", firewall.inbound_denied, ()),
                ("outbound_denied", firewall.outbound_denied, _ROUTES),
                (
                    "listeners_filtered",
                    firewall.listeners_filtered,
                    (*_LISTENING, *fields(*_PROCESS, of=("pid", "loads_torch"))),
                ),
            )
        ),
        Function(
            name="network.ports_filtered",
            body=firewall.ports_filtered,
            args=firewall.PortArgs,
            reads=(*_FILTERS, *_LISTENING),
        ),
        Function(
            name="network.metadata_out_of_reach",
            body=firewall.metadata_out_of_reach,
            args=firewall.NetworkArgs,
            reads=(*_FILTERS, *_ROUTES, ("node", "hardware", "cloud")),
        ),
        Function(
            name="network.management_apart",
            body=firewall.management_apart,
            args=firewall.ManagementArgs,
            reads=(*_FILTERS, *_ROUTES, ("node", "hardware", "bmc")),
        ),
        Function(
            name="fabric.encrypted",
            body=firewall.fabric_encrypted,
            args=firewall.TunnelArgs,
            reads=(
                *_ENV,
                *_CONF,
                *fields("node", "interfaces", "*", of=("name", "kind", "loopback")),
            ),
        ),
        Function(
            name="fabric.rdma_apart",
            body=firewall.rdma_apart,
            args=NoArgs,
            reads=(
                *_ROUTES,
                ("node", "rdma", "ports"),
                ("node", "rdma", "storage"),
                *fields("node", "rdma", "ports", "*", of=("name", "layer", "interfaces")),
            ),
        ),
        Function(
            name="identity.sudo_asks",
            body=access.sudo_asks,
            args=access.SudoArgs,
            reads=fields("node", "sudo", "*", of=("who", "applies", "reach", "path", "line")),
        ),
        Function(
            name="identity.keys_kept",
            body=keys.keys_kept,
            args=NoArgs,
            reads=(*_IDENTITY, *_KEY, *_CERTIFICATE),
        ),
        Function(
            name="identity.sessions_short",
            body=keys.sessions_short,
            args=NoArgs,
            reads=(*_IDENTITY, *_KEY, *_CERTIFICATE),
        ),
        Function(
            name="identity.authorities_apart",
            body=keys.authorities_apart,
            args=keys.WeakArgs,
            reads=(*_IDENTITY, *_CERTIFICATE, *_ANCHOR, (*_ID, "fits")),
        ),
        Function(
            name="attestation.possible",
            body=node.attestation_possible,
            args=NoArgs,
            reads=fields("node", "hardware", of=("tpm", "tee")),
        ),
        *run.FUNCTIONS,
        *slurm.FUNCTIONS,
        *slurm_files.FUNCTIONS,
        Function(
            name="advisories.none_match",
            body=advisories.no_advisory,
            args=advisories.MatchArgs,
            reads=(("node", "packages", "*", "version"),),
        ),
        Function(
            name="advisories.in_date",
            body=advisories.advisories_in_date,
            args=advisories.AgeArgs,
            reads=(("node", "packages"),),
        ),
    )
)
