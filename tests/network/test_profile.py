# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.network.profile import achieve, label, obstacle
from securetrain.policy import load_policy
from securetrain.policy.schema import Network

P = NetworkProfile


def test_one_node_gets_loopback():
    assert achieve(load_policy("dev").policy.network, 1) is P.LOOPBACK
    assert achieve(load_policy("baseline").policy.network, 1) is P.LOOPBACK
    assert achieve(Network(require=(P.OVERLAY, P.LOOPBACK)), 1) is P.LOOPBACK


@pytest.mark.parametrize(
    ("network", "nodes", "require", "says"),
    [
        (Network(require=(P.LOOPBACK,)), 2, (), "ends at one machine"),
        (Network(require=(P.OVERLAY,)), 1, (), "WireGuard"),
        (Network(require=(P.LOOPBACK, P.OVERLAY)), 2, (), "WireGuard"),
        (Network(require=(P.LOOPBACK, P.OVERLAY)), 1, (P.OVERLAY,), "WireGuard"),
        (Network(require=(P.LOOPBACK,)), 1, (P.OVERLAY,), "accepts only loopback"),
    ],
)
def test_refused_with_the_reason(network, nodes, require, says):
    with pytest.raises(NetworkError) as caught:
        achieve(network, nodes, require=require)
    assert caught.value.code == "ST-NETW-001"
    assert says in caught.value.what
    assert caught.value.fix


def test_hardened_never_falls_back_to_loopback():
    with pytest.raises(NetworkError) as caught:
        achieve(load_policy("hardened").policy.network, 1)
    assert caught.value.code == "ST-NETW-001"


@pytest.mark.parametrize("profile", list(P))
def test_every_profile_is_judged_and_labelled(profile):
    assert (obstacle(profile, 1) == "") is (profile is P.LOOPBACK)
    assert ("DEGRADED" in label(profile)) is profile.degraded
