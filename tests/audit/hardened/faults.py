# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The form of a fault: what is done to a hardened machine, and which check must find it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from securetrain.audit.subjects.node.facts.node import SysctlName
from tests.audit.hardened.machine import DONE, ETH0, LO, WG0, Machine, sysctl


@dataclass(frozen=True)
class Bad:
    """Something on the machine that one check must find."""

    check: str
    make: Callable[[Machine], Any]
    evidence: str = ""
    """The file that shows it: hide it, and the check may not pass."""
    is_subject: bool = False
    """Whether the file is itself what is wrong, so that nothing is wrong without it."""
    also: frozenset[str] = frozenset()
    """Other checks that rightly see it too."""


def text(check: str, path: str, content: str, *, subject: bool = False, also: Any = ()) -> Bad:
    return Bad(check, lambda m: m.write(path, content), path, subject, frozenset(also))


def env(check: str, also: Any = (), **values: str) -> Bad:
    return Bad(check, lambda m: m.environ.update(values), also=frozenset(also))


def setting(check: str, name: SysctlName, value: int) -> Bad:
    return text(check, sysctl(name), f"{value}\n")


def interface(check: str, message: bytes) -> Bad:
    return Bad(check, lambda m: setattr(m, "links", LO + ETH0 + WG0 + message + DONE))


def all_of(*steps: Callable[[Machine], Any]) -> Callable[[Machine], Any]:
    return lambda machine: [step(machine) for step in steps]
