# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The protection of NCCL's RDMA traffic on this node: encryption by the card, or isolation.

Rules:

1. under ``ipsec-offload`` the port is RoCE, and the kernel's IPsec state must show that the card
   encrypts everything to every other member of the epoch (`ipsec`, ST-NETW-033);
2. under ``rdma-trusted`` bytes are in the clear. The policy says why nobody else is on the fabric;
   when it asks for evidence, the port must be in a partition (InfiniBand) or VLAN (Ethernet) that
   is not everybody's (ST-NETW-034);
3. RDMA devices must be open to every namespace of the machine, or the workers would have none; it
   is said, because others on this machine may open them too (ST-NETW-032);
4. it is looked at when the profile is chosen, for every epoch, and every second while workers run;
   when it is gone, the job stops.
"""

import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Self

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.network import ipsec, xfrm
from securetrain.network.rdma import Place, find_place, is_exclusive
from securetrain.policy.schema import Isolation, IsolationEvidence

_EVERYBODY: Final = 0x7FFF
"""The default partition's number, without the bit for full members; 0 is none (IBTA 1.4, 10.9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """The sources of facts; the defaults are this machine."""

    place: Callable[[IPv4Address | IPv6Address], Place] = find_place
    is_exclusive: Callable[[], bool] = is_exclusive
    dump: xfrm.Dump = xfrm.dump
    index: Callable[[str], int] = socket.if_nametoindex


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbs:
    """This node's RDMA port under a profile that uses it. Made by `find`; of one epoch."""

    profile: NetworkProfile
    place: Place
    isolation: Isolation | None = None
    readers: Readers = Readers()
    members: tuple[IPv4Address | IPv6Address, ...] = ()
    """The addresses of the other members of the epoch."""

    @classmethod
    def find(
        cls,
        profile: NetworkProfile,
        address: IPv4Address | IPv6Address,
        isolation: Isolation | None,
        readers: Readers | None = None,
    ) -> Self:
        """The port behind an address, if the profile can be given with it.

        Raises:
            NetworkError: ST-NETW-032, ST-NETW-033, ST-NETW-034.
        """
        facts = readers or Readers()
        if facts.is_exclusive():
            raise NetworkError(
                "ST-NETW-032",
                "RDMA devices are exclusive to one network namespace, and a job has its own",
                "rdma system",
                "rdma system set netns shared, before anything else uses RDMA",
            )
        found = cls(profile=profile, place=facts.place(address), isolation=isolation, readers=facts)
        found.require()
        return found

    def with_members(self, members: Collection[IPv4Address | IPv6Address]) -> Self:
        """The same port, with the other members of an epoch.

        Raises:
            NetworkError: ST-NETW-032, ST-NETW-033, ST-NETW-034.
        """
        found = replace(self, members=tuple(members))
        found.require()
        return found

    def require(self) -> None:
        """Refuse unless everything is as the profile promises, now.

        Raises:
            NetworkError: ST-NETW-032, ST-NETW-033, ST-NETW-034.
        """
        found = self.readers.place(self.place.address)
        if found != self.place:
            raise NetworkError(
                "ST-NETW-032", f"it was {self.place} and is {found}", "RDMA", "start the job again"
            )
        match self.profile:
            case NetworkProfile.IPSEC_OFFLOAD:
                self._require_encrypted()
            case NetworkProfile.RDMA_TRUSTED:
                self._require_isolated()
            case _:
                raise ValueError(f"{self.profile!r} does not use RDMA")

    # A `watcher.Watchable`: it dies when what stands behind it is gone.

    def process(self) -> int | None:
        """It is no process."""
        return None

    def failure_reason(self) -> str:
        """Explain why the profile's promise does not hold any more; empty while it does."""
        try:
            self.require()
        except NetworkError as error:
            return error.what
        return ""

    def failure(self, how: str) -> NetworkError:
        """The error that ends the job when this has died."""
        is_encrypted = self.profile is NetworkProfile.IPSEC_OFFLOAD
        return NetworkError(
            "ST-NETW-033" if is_encrypted else "ST-NETW-034",
            f"no longer what {self.profile} promises: {how}",
            str(self.place),
            "the job was stopped; see what changed, and start it again",
        )

    def _require_encrypted(self) -> None:
        if not self.place.is_ethernet:
            raise _not_encrypted(f"{self.place} is InfiniBand, which IPsec does not cover")
        states = xfrm.states(self.readers.dump)
        policies = xfrm.policies(self.readers.dump)
        try:
            index = self.readers.index(self.place.interface)
        except OSError as error:
            raise _not_encrypted(f"{self.place.interface} is gone: {error.strerror}") from error
        offloads = [state.offload for state in states if state.offload is not None]
        if not any(found.is_full and found.interface == index for found in offloads):
            raise _not_encrypted(f"nothing is fully offloaded to {self.place.interface}")
        if what := ipsec.problem(self.place.address, self.members, index, states, policies):
            raise _not_encrypted(what)

    def _require_isolated(self) -> None:
        if self.isolation is None:
            raise _not_isolated("the policy does not say why nobody else is on the fabric")
        place = self.place
        match self.isolation.evidence:
            case IsolationEvidence.STATEMENT:
                return
            case IsolationEvidence.PARTITION if place.is_ethernet:
                if place.vlan is None:
                    raise _not_isolated(f"{place.interface} is not a VLAN")
            case IsolationEvidence.PARTITION:
                if (place.partition_key or 0) & _EVERYBODY in {0, _EVERYBODY}:
                    raise _not_isolated(
                        f"{place.interface} is in the default partition, or in none"
                    )
            case _:
                raise ValueError(self.isolation.evidence)


def _not_encrypted(what: str) -> NetworkError:
    return NetworkError("ST-NETW-033", what, "ipsec-offload")


def _not_isolated(what: str) -> NetworkError:
    return NetworkError("ST-NETW-034", what, "policy: network.isolation.evidence")
