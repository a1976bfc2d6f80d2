# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import re
from ipaddress import IPv4Address, IPv4Network

from securetrain.core.errors import NetworkError
from securetrain.network.addresses import MAX_MEMBERS, SHARED_SPACE, Names, address, subnet
from tests.tables import each
from tests.vocabulary import refused


def test_a_subnet_is_a_20_of_the_shared_space_and_does_not_change():
    # The addresses of running jobs depend on it.
    assert subnet("job-1") == IPv4Network("100.106.176.0/20")
    found = {subnet(f"job-{number}") for number in range(3000)}
    assert all(net.prefixlen == 20 and net.subnet_of(SHARED_SPACE) for net in found)
    assert 900 < len(found) <= 1024  # all 1024 are used about equally
    assert min(found).network_address < IPv4Address("100.65.0.0")
    assert max(found).network_address > IPv4Address("100.126.0.0")


def test_addresses_by_slot():
    net = subnet("job-1")
    assert address("job-1", 0) == net.network_address + 1
    assert address("job-1", 5) == net.network_address + 6
    assert address("job-1", MAX_MEMBERS - 1) == net.broadcast_address - 1
    assert MAX_MEMBERS == 4094


@each("slot", -1, MAX_MEMBERS, 1 << 40)
def test_a_slot_outside_the_subnet_is_refused(slot):
    refused(NetworkError, "ST-NETW-018", address, "job-1", slot, says=str(slot))


@each(
    "job, starts",
    ("job-1", "st-job-1-"),
    ("Train LLaMA 7B / try 2", "st-train-llama-"),
    ("../../etc", "st-etc-"),
    ("...", "st-job-"),
    ("\u00fc\u00df", "st-job-"),
    ("x" * 64, "st-xxxxxxxxxxxx-"),
)
def test_names_are_safe_and_speak_of_the_job(job, starts):
    names = Names.of(job, "node-0")
    assert names.namespace.startswith(starts)
    assert re.fullmatch(r"st-[a-z0-9-]+-[0-9a-f]{8}", names.namespace)
    assert re.fullmatch(r"st[0-9a-f]{12}", names.device)
    assert len(names.device) <= 15  # IFNAMSIZ less its zero
    assert re.fullmatch(r"securetrain_[0-9a-f]{12}", names.table)


def test_names_differ_by_job_and_node_and_where_one_ends():
    pairs = [("a", "bc"), ("ab", "c"), ("a", "b"), ("1:a", "b"), ("", "abc")]
    assert len({Names.of(*pair).device for pair in pairs}) == len(pairs)
    assert Names.of("a", "b") == Names.of("a", "b")
