# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's identity as `securetrain ca issue` makes it, and others that are worse."""

from datetime import timedelta
from functools import cache

from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.identity import JobCA, Role
from securetrain.identity.keys import KeyKind, PrivateKey
from tests.audit.conftest import NOW

FOLDER = "/etc/securetrain/run-7"
DAY = timedelta(hours=24)


@cache
def authority(days_ago: int, name: str) -> JobCA:
    return JobCA.create("cluster.example", name, NOW - timedelta(days=days_ago))


@cache
def leaf(hours_ago: int = 1) -> str:
    public = PrivateKey.generate(KeyKind.P256).public
    issued = NOW - timedelta(hours=hours_ago)
    made = authority(1, "run-7").issue(Role.NODE, public, issued, node="n", lifetime=DAY)
    return made.public_bytes(Encoding.PEM).decode()


@cache
def anchor(days_ago: int = 1, name: str = "run-7") -> str:
    return authority(days_ago, name).certificate.public_bytes(Encoding.PEM).decode()
