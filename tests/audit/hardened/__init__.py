# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A hardened machine, what makes each check fail there, and what only looks as if it did."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.audit.conftest import FIXTURES
from tests.audit.declared import added, machines
from tests.audit.hardened import (
    artifacts,
    debug,
    fabric,
    host,
    identity,
    network,
    packages,
    supply_chain,
)
from tests.audit.hardened.faults import Bad
from tests.audit.hardened.machine import Machine

_BOUNDARIES: Final = (artifacts, debug, fabric, host, identity, network, packages, supply_chain)

BAD: Final[Mapping[str, Bad]] = added(
    {name: bad for boundary in _BOUNDARIES for name, bad in boundary.BAD.items()},
    {
        name: Bad(check, made.make, made.evidence, made.is_subject, made.also)
        for name, (check, made) in machines(FIXTURES, "node").items()
    },
    "machines",
)
"""By name; between them they make every check fail that looks at the machine."""

GOOD: Final[Mapping[str, tuple[str, Callable[[Machine], Any]]]] = {
    name: good for boundary in _BOUNDARIES for name, good in boundary.GOOD.items()
}
"""What looks like a fault and is none."""
