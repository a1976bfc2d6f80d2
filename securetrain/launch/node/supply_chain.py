# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The code that would run inside the launcher when it imports torch, judged without importing it.

Rules:

1. torch is installed and at least as new as the policy and this package ask for (ST-USAG-009);
2. ``torchrun.handlers`` entry points of every installed package are imported by torch's rendezvous
   registry, and ``torch.backends`` ones by ``import torch`` itself; a ``torchrun.logs_specs`` one
   when it is asked for by name. Each that belongs neither to torch nor to this package must be
   named in ``supply_chain.allow_entry_points`` (ST-RUNT-005).

Only package metadata is read.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Final

from packaging.version import InvalidVersion, Version

from securetrain.core import install_hint
from securetrain.core.errors import RuntimeRefusal, UsageError
from securetrain.policy.schema import Policy

TORCH_MIN: Final = "2.10"
"""The oldest torch whose seams this package knows."""

ALWAYS_LOADED: Final = ("torchrun.handlers", "torch.backends")
LOADED_BY_NAME: Final = "torchrun.logs_specs"
_KNOWN: Final = frozenset({"torch", "securetrain"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ThirdPartyEntryPoint:
    """Another package's code that torch would import."""

    group: str
    name: str
    value: str
    package: str

    def __str__(self) -> str:
        return f"{self.group}: {self.name} = {self.value} (package {self.package or 'unknown'})"


def check_supply_chain(
    policy: Policy,
    *,
    logs_specs: str | None = None,
    list_entry_points: Callable[[str], Iterable[EntryPoint]] = lambda group: entry_points(
        group=group
    ),
    installed_version: Callable[[str], str] = version,
) -> tuple[ThirdPartyEntryPoint, ...]:
    """Check rules 1 and 2; returns the foreign entry points that the policy allows.

    Args:
        policy: The run's policy.
        logs_specs: The value of ``--logs-specs``.
        list_entry_points: Entry points of a group, from package metadata.
        installed_version: The version of an installed package.

    Raises:
        UsageError: ST-USAG-004 when torch is missing, ST-USAG-009 when it is too old.
        RuntimeRefusal: ST-RUNT-005 naming package and entry point.
    """
    check_torch(policy, installed_version)
    foreign = [
        entry
        for group in ALWAYS_LOADED
        for entry in map(_foreign, list_entry_points(group))
        if entry is not None
    ]
    if logs_specs is not None:
        foreign += [
            entry
            for entry in map(_foreign, list_entry_points(LOADED_BY_NAME))
            if entry is not None and entry.name == logs_specs
        ]
    allowed = policy.supply_chain.allow_entry_points
    for entry in foreign:
        if entry.name not in allowed and entry.value not in allowed:
            raise RuntimeRefusal(
                "ST-RUNT-005",
                f"torch would import {entry}",
                "policy: supply_chain.allow_entry_points",
                f"uninstall {entry.package or 'that package'}, or add {entry.name!r} to"
                " supply_chain.allow_entry_points",
            )
    return tuple(foreign)


def check_torch(policy: Policy, installed_version: Callable[[str], str] = version) -> Version:
    """Check rule 1; returns torch's version.

    Raises:
        UsageError: ST-USAG-004 or ST-USAG-009.
    """
    try:
        found = Version(installed_version("torch"))
    except (PackageNotFoundError, InvalidVersion) as error:
        raise UsageError(
            "ST-USAG-004", "torch is not installed", "torch", install_hint("train")
        ) from error
    for minimum, who in (
        (policy.supply_chain.torch_min, "the policy (supply_chain.torch_min)"),
        (TORCH_MIN, "this version of securetrain"),
    ):
        if found < Version(minimum):
            raise UsageError(
                "ST-USAG-009",
                f"torch {found} is older than {minimum}, which {who} asks for",
                "torch",
                f"pip install 'torch>={minimum}'",
            )
    return found


def _foreign(entry: EntryPoint) -> ThirdPartyEntryPoint | None:
    package = entry.dist.name if entry.dist is not None else ""
    if package in _KNOWN:
        return None
    return ThirdPartyEntryPoint(
        group=entry.group, name=entry.name, value=entry.value, package=package
    )
