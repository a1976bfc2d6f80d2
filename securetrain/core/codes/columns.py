# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The columns of the table of codes. None has a default: a new code decides all of them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from securetrain.core.exits import ExitCode
from securetrain.core.vocabulary import Severity


class Retry(StrEnum):
    """The help that another attempt is."""

    NEVER = "never"
    """It is refused again until something is changed."""
    LATER = "later"
    """The same attempt can succeed later, with nothing changed."""
    WAIVED = "waived"
    """It is refused again until operators have signed a waiver."""


class Node(StrEnum):
    """The verdict on a node whose connection ends with this code, or that is refused with it."""

    BARRED = "barred"
    """Its hardware contradicted, during a lease, what it had proven, or what its maker says: it is
    barred until an operator restores it, and evicted."""
    TWO = "barred as two"
    """Its TPM has shown, at whatever time, that two machines hold it: both are barred."""
    OUT = "out"
    """It is evicted: believed up to its last good evidence, and no longer."""
    UNPROVEN = "unproven"
    """The code says nothing about it: it counts as one that went without proving itself again."""
    FREE = "free"
    """It found the job closed: nothing is said about it."""
    NO_NODE = "-"
    """The code speaks of no node; one whose connection ended with it would be out."""


@dataclass(frozen=True, slots=True)
class Code:
    """One refusal code and everything that is decided about it."""

    id: str
    exit: ExitCode
    """The exit code of a command that ends with it."""
    title: str
    """Its meaning in a sentence; the text of an error that has nothing to add."""
    fix: str
    """The standing advice: what to do where the raising site knows nothing better."""
    severity: Severity
    """How much it matters; the level in SARIF."""
    rank: int
    """Its place among several problems of one thing, the most telling first; `ALONE` where there is
    never more than one."""
    node: Node
    """Whether it bars the node."""
    retry: Retry
    """Whether a retry can help."""
    threat: str
    """The threat of `threat_models/` that it answers, or ``none:`` and the reason."""

    @property
    def family(self) -> str:
        """The four letters between the dashes."""
        return self.id[3:7]

    @property
    def bars_node(self) -> bool:
        """Tell whether a node that earns it during its lease is barred until a person decides."""
        return self.bars_at_once or self.node is Node.BARRED

    @property
    def bars_at_once(self) -> bool:
        """Tell whether it bars a node that holds no lease, too."""
        return self.node is Node.TWO

    @property
    def answers_an_attack(self) -> bool:
        """The duty of a threat model to cite it."""
        return not self.threat.startswith(NO_THREAT)


ALONE: Final = 1000
"""The rank of a code that ends what it is raised in, so that there are no several."""
NO_THREAT: Final = "none: "

# What the rows are written with.
X = ExitCode
LOW: Final = Severity.LOW
MEDIUM: Final = Severity.MEDIUM
HIGH: Final = Severity.HIGH
CRITICAL: Final = Severity.CRITICAL
NEVER: Final = Retry.NEVER
LATER: Final = Retry.LATER
WAIVED: Final = Retry.WAIVED
BARRED: Final = Node.BARRED
TWO: Final = Node.TWO
OUT: Final = Node.OUT
UNPROVEN: Final = Node.UNPROVEN
FREE: Final = Node.FREE
NO_NODE: Final = Node.NO_NODE
INPUT: Final = f"{NO_THREAT}a person's own input"
MACHINE: Final = f"{NO_THREAT}what this machine has, holds or can write"
PROVING: Final = f"{NO_THREAT}a drill that proves nothing is no attack"
BUG: Final = f"{NO_THREAT}a fault of this program"


def install_hint(extra: str) -> str:
    """Say how an extra is installed; the package is on no index, where a bare name given to pip
    would install whatever somebody put there.
    """
    return f"run pip install '.[{extra}]' in a checkout of securetrain"
