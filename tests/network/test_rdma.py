# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from ipaddress import ip_address

import pytest

from securetrain.core.errors import NetworkError
from securetrain.network.rdma import find_place, is_exclusive
from tests import vocabulary
from tests.network.fake_rdma import OWN, FakeRdma
from tests.tables import items

IB = ip_address("198.51.100.1")


@pytest.fixture
def machine(tmp_path):
    return FakeRdma(tmp_path)


def find(machine, address=OWN):
    return find_place(address, sys=machine.sys, run=machine.run)


def refused(machine, address=OWN):
    error = vocabulary.refused(NetworkError, "ST-NETW-032", find, machine, address)
    return error.what


def test_the_roce_port_behind_an_address(machine):
    place = find(machine)
    assert (place.device, place.port, place.interface, place.gid) == ("mlx5_0", 1, "eth0", 3)
    assert place.is_ethernet
    assert place.vlan is None
    assert place.variables == {
        "NCCL_NET": "IB",
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_HCA": "=mlx5_0:1",
        "NCCL_IB_GID_INDEX": "3",
    }
    assert str(place) == "mlx5_0 port 1 (eth0, 192.0.2.1)"


def test_the_infiniband_port_behind_an_address(machine):
    place = find(machine, IB)
    assert (place.device, place.interface, place.partition) == ("mlx5_1", "ib0", 1)
    assert place.partition_key == 0x8001
    assert not place.is_ethernet
    assert place.variables["NCCL_IB_PKEY"] == "1"
    assert "NCCL_IB_GID_INDEX" not in place.variables


def test_an_address_of_ipv6(machine):
    machine.gid(4, "2001:0db8:0000:0000:0000:0000:0000:0001", "RoCE v2")
    machine.link("eth0", "2001:db8::1")
    assert find(machine, ip_address("2001:db8::1")).gid == 4


def test_a_vlan_has_its_number(machine):
    info = {"linkinfo": {"info_kind": "vlan", "info_data": {"id": 42}}}
    machine.link("eth0.42", "192.0.2.9", **info)
    machine.gid(4, "0000:0000:0000:0000:0000:ffff:c000:0209", "RoCE v2", "eth0.42")
    assert find(machine, ip_address("192.0.2.9")).vlan == 42


def test_roce_v1_is_never_used(machine):
    """It is no IP: no IPsec policy sees it."""
    machine.gid(3, "0000:0000:0000:0000:0000:ffff:c000:0201", "IB/RoCE v1")
    assert "no RDMA port has" in refused(machine)


@items(
    "path, text, word",
    ("infiniband/mlx5_0/ports/1/state", "1: DOWN", "not active"),
    ("infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3", "eth9", "no RDMA port has"),
    ("infiniband/mlx5_0/ports/1/gids/3", "nonsense", "no RDMA port has"),
)
def test_a_port_that_is_not_the_addresss_is_not_used(machine, path, text, word):
    machine.write(path, text)
    assert word in refused(machine)


@items(
    "path, text, word",
    ("net/ib0/pkey", "0x8002", "no RDMA port has"),
    ("net/ib0/pkey", "yes", "does not hold a number"),
    ("net/ib0/dev_port", "1", "no RDMA port has"),
    ("infiniband/mlx5_1/ports/1/state", "", "not active"),
)
def test_the_same_on_infiniband(machine, path, text, word):
    machine.write(path, text)
    assert word in refused(machine, IB)


def test_another_card_behind_the_interface(machine):
    (machine.sys / "net/ib0/device").unlink()
    (machine.sys / "net/ib0/device").symlink_to(machine.sys / "pci9")
    assert "no RDMA port has" in refused(machine, IB)


def test_two_ports_are_one_too_many(machine):
    machine.gid(9, "0000:0000:0000:0000:0000:ffff:c000:0201", "RoCE v2")
    assert "2 RDMA ports have" in refused(machine)


def test_what_cannot_be_told(machine, tmp_path):
    assert "no interface" in refused(machine, ip_address("203.0.113.1"))
    empty = FakeRdma(tmp_path / "empty")
    empty.sys = tmp_path / "none"
    assert "no RDMA devices" in refused(empty)
    machine.links = [{"addr_info": [{"local": "192.0.2.1"}]}]
    assert "not understood" in refused(machine)
    machine.links = ["?"]
    assert "not understood" in refused(machine)
    machine.run = lambda *_args, **_more: b"{"
    assert "JSON" in refused(machine)


def test_a_folder_with_too_many_entries(machine, monkeypatch):
    monkeypatch.setattr("securetrain.network.rdma._MAX_ENTRIES", 3)
    assert "entries" in refused(machine)


@pytest.mark.parametrize(("mode", "wanted"), [("shared", False), ("exclusive", True)])
def test_who_may_open_the_devices(machine, mode, wanted):
    machine.mode = mode
    assert is_exclusive(machine.run) is wanted


@pytest.mark.parametrize("said", [b"", b"[]", b"{}", b'[{"netns": 1}]', b'[{"mode": "shared"}]'])
def test_what_is_not_understood_is_not_shared(said):
    vocabulary.refused(NetworkError, "ST-NETW-032", is_exclusive, lambda *_args, **_more: said)
