# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A round as one member sees it, and the errors with which the wait for one ends."""

from collections.abc import Callable
from dataclasses import dataclass

from securetrain.core.errors import AdmissionError
from securetrain.rendezvous.wire.membership import Membership
from securetrain.rendezvous.wire.protocol import Status, Store

OpenStore = Callable[[Membership], int]
"""Called on rank 0 to start the workers' store at this node's address; returns the port."""


class SpareNodeError(AdmissionError):
    """The job closed while this node was spare: its wait ended well."""


class EpochOverError(AdmissionError):
    """A member of the epoch is gone: its others meet for the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A complete round, as one member sees it."""

    membership: Membership
    rank: int
    host: str
    """Address of the workers' store, on rank 0's node."""
    port: int

    @property
    def world_size(self) -> int:
        """Nodes in the round."""
        return len(self.membership.members)


def closed(status: Status) -> AdmissionError:
    """The end of a wait in a job that is closed."""
    if status.spare:
        return SpareNodeError(
            "ST-ADMN-008", "the job is closed and this node was spare", "coordinator"
        )
    return AdmissionError("ST-ADMN-008", "the job is closed", "coordinator")


def misplaced(store: Store, wanted: str) -> AdmissionError:
    """The refusal of a store that is not on rank 0's node."""
    return AdmissionError(
        "ST-ADMN-009",
        f"the store of epoch {store.epoch} is at {store.host}, rank 0 is at {wanted}",
        "Store.host",
        "stop the job: somebody redirects the workers",
    )


def late(
    current: Membership | None, status: Status, min_nodes: int, gone: tuple[str, ...] = ()
) -> AdmissionError:
    """The end of a wait that took too long.

    Args:
        current: The membership whose store never came, if that was it.
        status: What the coordinator said last.
        min_nodes: So many nodes are needed.
        gone: Members of the epoch before that have gone.
    """
    if current is not None:
        what = f"rank 0 ({current.members[0].node}) has not started the store in time"
    elif status.waiting:
        what = "the members of the current round have not come for the next one in time"
    else:
        what = f"fewer than {min_nodes} nodes have joined in time"
        if gone:
            what += f"; {', '.join(gone)} {'have' if len(gone) > 1 else 'has'} gone"
    return AdmissionError(
        "ST-ADMN-005",
        what,
        "rendezvous.join_timeout_seconds",
        "look at the missing nodes, or start with fewer",
    )
