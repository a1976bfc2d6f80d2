# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch.network.fabric import Fabric
from securetrain.network import nccl
from securetrain.network.verbs import Verbs
from securetrain.policy.schema import Network

P = NetworkProfile


def fabric(coordinator="127.0.0.1:29400", **more):
    return Fabric(network=Network(require=(P.IPSEC_OFFLOAD,)), coordinator=coordinator, **more)


def test_nccls_libraries_are_looked_at(monkeypatch):
    monkeypatch.setattr(nccl, "loaded", tuple)
    assert "has no NCCL" in fabric().obstacle(P.NCCL_TLS)
    monkeypatch.setattr(nccl, "obstacle", lambda libraries: "")
    assert fabric().obstacle(P.NCCL_TLS) == ""

    def unreadable():
        raise NetworkError("ST-NETW-030", "cannot tell")

    monkeypatch.setattr(nccl, "loaded", unreadable)
    assert fabric().obstacle(P.NCCL_TLS) == "cannot tell"


@pytest.mark.parametrize("profile", [P.OVERLAY, P.NCCL_TLS, P.LOOPBACK])
def test_most_profiles_have_no_port(profile):
    assert fabric().verbs(profile) is None


def test_rdma_needs_another_node():
    assert "one node" in fabric(coordinator="").obstacle(P.RDMA_TRUSTED)


def test_the_port_is_that_of_the_announced_address(monkeypatch):
    asked = []

    def find(*what):
        asked.append([str(thing) for thing in what[:2]])
        raise NetworkError("ST-NETW-032", "no port")

    monkeypatch.setattr(Verbs, "find", find)
    assert fabric(bind="192.0.2.7").obstacle(P.IPSEC_OFFLOAD) == "no port"
    assert fabric().obstacle(P.RDMA_TRUSTED) == "no port"
    assert asked == [["ipsec-offload", "192.0.2.7"], ["rdma-trusted", "127.0.0.1"]]
    assert "name.invalid" not in fabric(bind="nowhere").obstacle(P.IPSEC_OFFLOAD)


def test_what_this_machine_has_is_asked_for():
    """No RDMA here, or at least none on loopback: refused, with a reason."""
    assert fabric().obstacle(P.IPSEC_OFFLOAD)
