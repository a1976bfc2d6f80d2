# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The closed registry of named functions that a check may ``call``."""

from collections.abc import Iterable, Mapping
from typing import Final

from securetrain.audit.functions import access, fabric, network, node, paths
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
            name="attestation.possible",
            body=node.attestation_possible,
            args=NoArgs,
            reads=fields("node", "hardware", of=("tpm", "tee")),
        ),
    )
)
