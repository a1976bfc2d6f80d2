# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from ipaddress import ip_address

import pytest

from securetrain.core.errors import AdmissionError, UsageError
from securetrain.launch.network.address import announced_address, local_address
from tests.vocabulary import refused


def test_own_address():
    assert local_address("127.0.0.1:29400") == ip_address("127.0.0.1")
    with pytest.raises(UsageError):
        local_address("nowhere")
    refused(AdmissionError, "ST-ADMN-007", local_address, "name.invalid:29400")


def test_what_the_user_gave_counts_first():
    assert announced_address("name.invalid:1", "192.0.2.7") == ip_address("192.0.2.7")
    assert announced_address("127.0.0.1:1") == ip_address("127.0.0.1")
    refused(UsageError, "ST-USAG-001", announced_address, "127.0.0.1:1", "here")
