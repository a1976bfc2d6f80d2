# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Types of facts about what filters a node's packets, and where they go."""

from enum import StrEnum
from typing import Annotated, Literal

from securetrain.audit.documents.facts import MAY_BE_EMPTY, Fact, Reading


class Ending(StrEnum):
    """The fate of a packet that no rule of a filter is about."""

    ACCEPT = "accept"
    DROP = "drop"
    NOT_UNDERSTOOD = "not-understood"


class Filter(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A base chain of nftables that judges what comes in or goes out, reduced to its end."""

    table: str
    chain: str
    family: Literal["inet", "ip", "ip6"]
    hook: Literal["input", "output"]
    ending: Ending
    opens: Annotated[tuple[str, ...], MAY_BE_EMPTY] = ()
    """Interfaces, or addresses of the node, for which everything is accepted; ``*`` at the end for
    any that begins so."""
    allows: Annotated[tuple[str, ...], MAY_BE_EMPTY] = ()
    """Networks that everything may reach, or come from."""
    denies: Annotated[tuple[str, ...], MAY_BE_EMPTY] = ()
    """Networks that nothing may reach."""
    conditional: bool = False
    """Whether it drops under conditions that are not among these."""

    @property
    def label(self) -> str:
        """Family, table and chain."""
        return f"{self.family} {self.table} {self.chain}"


class Firewall(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that filters packets."""

    filters: Reading[Annotated[tuple[Filter, ...], MAY_BE_EMPTY]]
    legacy: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Tables of the older iptables, whose rules are not read."""


class Route(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A route to a network."""

    network: str
    interface: str
    """Empty when nothing goes there."""

    @property
    def label(self) -> str:
        """The network."""
        return self.network
