# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""NCCL beside the tunnel in this launch: TLS of its own, or RDMA.

Rules:

1. ``nccl-tls`` needs every NCCL that torch brings to have TLS. The launcher has imported torch by
   now, so that its own process shows which one the workers will load; they look again themselves;
2. the RDMA profiles need several nodes and the address of an RDMA port, which is the one that this
   node announces;
3. what cannot be found out is an obstacle, never a yes.
"""

from dataclasses import dataclass, field

from securetrain.core.errors import NetworkError, SecureTrainError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch.network.address import announced_address
from securetrain.network import VERBS, Readers, Verbs, nccl
from securetrain.policy.schema import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The facts about this launch's fabric before there is a job network."""

    network: Network
    """The policy's section."""
    coordinator: str
    """Host and port; empty for a job of one node that starts its own."""
    bind: str = ""
    """This node's address as the user gave it."""
    readers: Readers = field(default_factory=Readers)

    def obstacle(self, profile: NetworkProfile) -> str:
        """Explain why NCCL cannot do what a profile promises; empty when it can."""
        try:
            if profile is NetworkProfile.NCCL_TLS:
                return nccl.obstacle(nccl.loaded())
            self.verbs(profile)
        except SecureTrainError as error:
            return error.what
        return ""

    def verbs(self, profile: NetworkProfile) -> Verbs | None:
        """This node's RDMA port, when a profile uses one.

        Raises:
            NetworkError: ST-NETW-032, ST-NETW-033, ST-NETW-034.
            SecureTrainError: as `announced_address`.
        """
        if profile not in VERBS:
            return None
        if not self.coordinator:
            raise NetworkError(
                "ST-NETW-032",
                "a job of one node has nobody to reach by RDMA",
                "--rdzv-endpoint",
                "use loopback or overlay for one node",
            )
        address = announced_address(self.coordinator, self.bind)
        return Verbs.find(profile, address, self.network.isolation, self.readers)
