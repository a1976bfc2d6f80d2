# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Addresses and keys that can be no member's."""

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from securetrain.core.errors import AdmissionError
from securetrain.network.wireguard import WireGuardKey
from securetrain.rendezvous.wire.meaning import LOW_ORDER, check_address, check_key
from tests.tables import each
from tests.vocabulary import refused

PRIME = 2**255 - 19
HERE, AWAY = "127.0.0.1:4000", "192.0.2.7:4000"


def spellings(value):
    """Every text of 32 bytes that X25519 reads as one point."""
    for multiple in (value, value + PRIME):
        if multiple < 1 << 255:
            yield multiple.to_bytes(32, "little")
            yield (multiple | 1 << 255).to_bytes(32, "little")


ALL = [key for value in sorted(LOW_ORDER) for key in spellings(value)]


def test_all_encodings_of_low_order_points_are_known():
    """Five values, with p added where that fits, and with the top bit that X25519 ignores."""
    assert len(ALL) == 14


@each("key", *ALL)
def test_a_point_of_low_order_is_no_key(key):
    with pytest.raises(ValueError, match="computing"):
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    assert "low order" in str(refused(AdmissionError, "ST-ADMN-032", check_key, key))


def test_a_key_has_one_spelling():
    """Else a member's key with another top bit would be a second member's."""
    key = WireGuardKey.generate().public
    check_key(key)
    refused(AdmissionError, "one spelling", check_key, key[:31] + bytes([key[31] | 128]))
    for key in spellings(9):
        if key == (9).to_bytes(32, "little"):
            check_key(key)
        else:
            refused(AdmissionError, "one spelling", check_key, key)


@each(
    "address",
    *("0.0.0.0", "0.1.2.3", "255.255.255.255", "240.0.0.1", "224.0.0.1", "239.255.0.1"),
    *("169.254.169.254", "::", "ff02::1", "fe80::1", "::ffff:255.255.255.255"),
    *("::ffff:224.0.0.1", "::ffff:0.0.0.0", "::ffff:169.254.169.254", "fd00:ec2::254"),
)
@pytest.mark.parametrize("alone", [True, False])
def test_an_address_that_is_nobodys(address, alone):
    refused(AdmissionError, "ST-ADMN-032", check_address, address, AWAY, alone=alone)


@each("address", "192.0.2.7", "10.0.0.1", "2001:db8::1", "169.254.1.1", "fd00::1")
def test_an_address_of_a_machine(address):
    check_address(address, AWAY, alone=False)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_for_those_who_are_here(address):
    for remote in (HERE, "::1:4000", "::ffff:127.0.0.1:4000"):
        check_address(address, remote, alone=False)
    check_address(address, AWAY, alone=True)
    error = refused(AdmissionError, "ST-ADMN-032", check_address, address, AWAY, alone=False)
    assert "another machine" in str(error)


def test_what_is_no_address():
    for address in ("localhost", "", "1.2.3", "1.2.3.4/8"):
        refused(AdmissionError, "ST-ADMN-001", check_address, address, HERE, alone=True)
