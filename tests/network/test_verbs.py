# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from functools import partial
from ipaddress import ip_address

import pytest

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.network.rdma import find_place, is_exclusive
from securetrain.network.verbs import Readers, Verbs
from securetrain.policy.schema import Isolation, IsolationEvidence
from tests.network.fake_rdma import INDEX, OWN, PEER, FakeRdma, dump_of, offload, protected, state
from tests.tables import items
from tests.vocabulary import refused

IB = ip_address("198.51.100.1")
IPSEC, TRUSTED = NetworkProfile.IPSEC_OFFLOAD, NetworkProfile.RDMA_TRUSTED
BY_WORD = Isolation(statement="our own switches", evidence=IsolationEvidence.STATEMENT)
BY_PARTITION = Isolation(statement="partition 1 is ours")


@pytest.fixture
def machine(tmp_path):
    return FakeRdma(tmp_path)


@pytest.fixture
def readers(machine):
    return Readers(
        place=partial(find_place, sys=machine.sys, run=machine.run),
        is_exclusive=partial(is_exclusive, machine.run),
        dump=dump_of(*protected()),
        index={"eth0": INDEX, "ib0": 8}.__getitem__,
    )


def without(readers, **changes):
    fields = ("place", "is_exclusive", "dump", "index")
    return Readers(**{**{name: getattr(readers, name) for name in fields}, **changes})


def code(call, *arguments):
    with pytest.raises(NetworkError) as caught:
        call(*arguments)
    return caught.value.code


def test_the_card_encrypts_everything_between_members(readers):
    found = Verbs.find(IPSEC, OWN, None, readers).with_members([PEER])
    assert found.place.variables["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert found.failure_reason() == ""
    assert found.process() is None


def test_a_member_whose_traffic_nobody_encrypts(readers):
    found = Verbs.find(IPSEC, OWN, None, readers)
    assert code(found.with_members, [PEER, ip_address("192.0.2.3")]) == "ST-NETW-033"


def test_it_dies_with_the_state(readers):
    states, policies = protected()
    dump = dump_of(states, policies)
    found = Verbs.find(IPSEC, OWN, None, without(readers, dump=dump)).with_members([PEER])
    assert found.failure_reason() == ""
    states.pop()
    assert "192.0.2.2 to 192.0.2.1: no fully offloaded security" in found.failure_reason()
    error = found.failure(found.failure_reason())
    assert error.code == "ST-NETW-033"
    assert "ipsec-offload" in error.what


def test_it_dies_with_the_port(readers, machine):
    found = Verbs.find(IPSEC, OWN, None, readers)
    machine.write("infiniband/mlx5_0/ports/1/state", "1: DOWN")
    assert "not active" in found.failure_reason()


def test_it_dies_when_the_gid_moves(readers, machine):
    found = Verbs.find(IPSEC, OWN, None, readers)
    machine.gid(5, "0000:0000:0000:0000:0000:ffff:c000:0201", "RoCE v2")
    machine.gid(3, "fe80:0000:0000:0000:0000:0000:0000:0009", "RoCE v2")
    assert code(found.require) == "ST-NETW-032"


@items("id, policies", ("nothing at all", []), ("policies without states", protected()[1]))
def test_without_full_offload_there_is_no_profile(readers, policies):
    dump = dump_of([], policies)
    assert code(Verbs.find, IPSEC, OWN, None, without(readers, dump=dump)) == "ST-NETW-033"


def test_crypto_offload_is_not_evidence(readers):
    half = [state(OWN, PEER, offload(inbound=False, full=False))]
    dump = dump_of(half, protected()[1])
    assert code(Verbs.find, IPSEC, OWN, None, without(readers, dump=dump)) == "ST-NETW-033"


def test_offload_to_another_interface_is_not_evidence(readers):
    other = without(readers, index=lambda _: INDEX + 1)
    assert code(Verbs.find, IPSEC, OWN, None, other) == "ST-NETW-033"


def test_an_interface_that_went_away(readers):
    def gone(_name):
        raise OSError(19, "No such device")

    assert code(Verbs.find, IPSEC, OWN, None, without(readers, index=gone)) == "ST-NETW-033"


def test_ipsec_does_not_cover_infiniband(readers):
    error = refused(NetworkError, "ST-NETW-033", Verbs.find, IPSEC, IB, None, readers)
    assert "InfiniBand, which IPsec does not cover" in str(error)


def test_devices_that_a_job_would_not_see(readers, machine):
    machine.mode = "exclusive"
    assert code(Verbs.find, TRUSTED, IB, BY_WORD, readers) == "ST-NETW-032"


def test_a_partition_is_evidence(readers, machine):
    found = Verbs.find(TRUSTED, IB, BY_PARTITION, readers)
    assert found.with_members([ip_address("198.51.100.2")]).failure_reason() == ""
    for everybodys in ("0xffff", "0x7fff", "0x8000", "0x0000"):
        machine.write("net/ib0/pkey", everybodys)
        machine.write("infiniband/mlx5_1/ports/1/pkeys/0", everybodys)
        assert code(Verbs.find, TRUSTED, IB, BY_PARTITION, readers) == "ST-NETW-034"
    assert Verbs.find(TRUSTED, IB, BY_WORD, readers).place.partition == 0
    assert found.failure_reason()
    assert found.failure("x").code == "ST-NETW-034"


def test_a_vlan_is_evidence(readers, machine):
    assert code(Verbs.find, TRUSTED, OWN, BY_PARTITION, readers) == "ST-NETW-034"
    machine.links[0]["linkinfo"] = {"info_kind": "vlan", "info_data": {"id": 9}}
    assert Verbs.find(TRUSTED, OWN, BY_PARTITION, readers).place.vlan == 9


def test_a_fabric_in_clear_needs_the_policys_word(readers):
    assert code(Verbs.find, TRUSTED, OWN, None, readers) == "ST-NETW-034"
    assert Verbs.find(TRUSTED, OWN, BY_WORD, readers).isolation is BY_WORD


def test_by_itself_it_looks_at_this_machine():
    """Which has no such address, if it has RDMA at all."""
    assert code(Verbs.find, TRUSTED, OWN, BY_WORD) in {
        "ST-NETW-010",
        "ST-NETW-011",
        "ST-NETW-032",
    }


def test_other_profiles_use_no_rdma(readers):
    refused(ValueError, "does not use RDMA", Verbs.find, NetworkProfile.OVERLAY, OWN, None, readers)
