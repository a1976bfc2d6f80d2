# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.network.profile import VERBS, achieve, label, obstacle
from securetrain.policy import load_policy
from securetrain.policy.schema import Network
from tests.tables import each
from tests.vocabulary import refused

P = NetworkProfile


def test_one_node_gets_loopback():
    assert achieve(load_policy("dev").policy.network, 1) is P.LOOPBACK
    assert achieve(load_policy("baseline").policy.network, 1) is P.LOOPBACK
    assert achieve(Network(require=(P.OVERLAY, P.LOOPBACK)), 1) is P.LOOPBACK


@each(
    "network, nodes, require, says",
    (Network(require=(P.LOOPBACK,)), 2, (), "ends at one machine"),
    (Network(require=(P.OVERLAY,)), 1, (), "WireGuard"),
    (Network(require=(P.LOOPBACK, P.OVERLAY)), 2, (), "WireGuard"),
    (Network(require=(P.LOOPBACK, P.OVERLAY)), 1, (P.OVERLAY,), "WireGuard"),
    (Network(require=(P.LOOPBACK,)), 1, (P.OVERLAY,), "accepts only loopback"),
)
def test_refused_with_the_reason(network, nodes, require, says):
    error = refused(NetworkError, "ST-NETW-001", achieve, network, nodes, require=require)
    assert says in error.what
    assert error.fix


def test_hardened_never_falls_back_to_loopback():
    refused(NetworkError, "ST-NETW-001", achieve, load_policy("hardened").policy.network, 1)


@each("profile", *list(P))
def test_every_profile_is_judged_and_labelled(profile):
    assert (obstacle(profile, 1) == "") is (profile is P.LOOPBACK)
    assert ("DEGRADED" in label(profile)) is profile.degraded


@pytest.mark.parametrize("profile", [P.OVERLAY, P.OVERLAY_ROOTLESS])
@pytest.mark.parametrize("nodes", [1, 2, 64])
def test_an_overlay_is_given_to_whoever_can_build_it(profile, nodes):
    network = Network(require=(profile,))
    assert achieve(network, nodes, probe=lambda _: "") is profile
    assert obstacle(profile, nodes, lambda _: "") == ""
    refused(NetworkError, "WireGuard", achieve, network, nodes)


def test_the_probe_is_asked_for_the_profile_and_its_reason_is_told():
    asked = []

    def probe(profile):
        asked.append(profile)
        return "nft is missing"

    with pytest.raises(NetworkError) as caught:
        achieve(Network(require=(P.OVERLAY, P.OVERLAY_ROOTLESS)), 2, probe=probe)
    assert caught.value.code == "ST-NETW-001"
    assert caught.value.what == "overlay: nft is missing; overlay-rootless: nft is missing"
    assert asked == [P.OVERLAY, P.OVERLAY_ROOTLESS]


@pytest.mark.parametrize("profile", [P.NCCL_TLS, *sorted(VERBS)])
def test_what_nccl_lacks_is_not_mended_by_loopback(profile):
    with pytest.raises(NetworkError) as caught:
        achieve(Network(require=(profile,)), 2, probe=lambda _: "no TLS")
    assert caught.value.what == f"{profile}: no TLS"
    assert "overlay" in caught.value.fix
    assert achieve(Network(require=(profile,)), 2, probe=lambda _: "") is profile


@each(
    "profile, nodes, fix",
    (P.OVERLAY, 2, "install what is missing"),
    (P.LOOPBACK, 2, "run on one node (--nnodes 1) under a policy"),
    (P.OVERLAY, 1, "use a policy that accepts loopback"),
)
def test_what_would_help_depends_on_what_was_wanted(profile, nodes, fix):
    with pytest.raises(NetworkError) as caught:
        achieve(Network(require=(profile,)), nodes)
    assert caught.value.fix.startswith(fix)


def test_a_store_over_tls_is_for_several_nodes_and_whoever_carries_it():
    network = Network(require=(P.STORE_TLS,))
    assert achieve(network, 2, probe=lambda _: "") is P.STORE_TLS
    refused(NetworkError, "one node", achieve, network, 1, probe=lambda _: "")
    refused(NetworkError, "no coordinator", achieve, network, 2, probe=lambda _: "no coordinator")


def test_rootless_says_what_it_costs():
    assert "slow" in label(P.OVERLAY_ROOTLESS)
    assert "encrypted between machines" in label(P.OVERLAY)


def test_the_first_profile_that_works_is_taken():
    network = Network(require=(P.OVERLAY, P.LOOPBACK))
    assert achieve(network, 1, probe=lambda _: "no root") is P.LOOPBACK
    assert achieve(network, 1, probe=lambda _: "") is P.OVERLAY
