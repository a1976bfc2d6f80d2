# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The fabric of one node: whether its GPUs and switches belong together, and nothing else does.

A report proves that some genuine device exists. A node could show another node's device, or leave
out the one that listens on a link. Each GPU reports the PDIs of the switches behind its links and
each switch those of its GPUs; the sets must close.

Source: NVIDIA nvtrust, `ppcie-verifier` (`validate_topology.py`), which compares the sets of the
reports with each other, but no PDI with a certificate.

Rules:

1. as many GPUs and as many switches as the node has;
2. no device twice, by its PDI;
3. all answered one nonce;
4. all GPUs are in one mode;
5. when GPUs are in protected PCIe mode, when there is a switch or when a GPU names one: every GPU
   names exactly the attested switches, every switch exactly the attested GPUs, and there is at
   least one switch. PDIs are the ones in the certificates;
6. every switch's configuration is locked.

In multi-GPU passthrough the GPUs encrypt their traffic and name no switches. Nothing in their
reports then ties them to one another but the nonce: the inventory of PDIs must.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.opaque import Mode
from securetrain.evidence.gpu.report import DeviceState
from securetrain.evidence.node_evidence import DeviceKind

_WHERE = "fabric"


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricState:
    """The devices of one node, known to belong together as far as `closed` says."""

    mode: Mode | None
    """Of all GPUs; None without any."""
    gpus: tuple[str, ...]
    """PDIs, sorted."""
    switches: tuple[str, ...]
    """PDIs, sorted."""
    closed: bool
    """Whether the devices name each other and no others."""


def check_fabric(states: Sequence[DeviceState], *, gpus: int, switches: int) -> FabricState:
    """Judge the devices of one node together.

    Args:
        states: every device of the node, each verified.
        gpus: number of GPUs that the node has.
        switches: number of switches that belong to the node.

    Raises:
        AttestationError: ST-ATTS-631 to 637.
    """
    by_kind = {
        kind: [state for state in states if state.kind is kind]
        for kind in (DeviceKind.GPU, DeviceKind.SWITCH)
    }
    for kind, expected in ((DeviceKind.GPU, gpus), (DeviceKind.SWITCH, switches)):
        if len(by_kind[kind]) != expected:
            raise AttestationError(
                "ST-ATTS-632",
                f"{len(by_kind[kind])} of kind {kind}, the node has {expected}",
                _WHERE,
            )
    _check_distinct(states)
    if len({state.nonce for state in states}) > 1:
        raise AttestationError("ST-ATTS-635", "the devices answer more than one nonce", _WHERE)
    mode = _one_mode(by_kind[DeviceKind.GPU])
    closed = (
        mode is Mode.PPCIE
        or bool(by_kind[DeviceKind.SWITCH])
        or any(state.peers for state in by_kind[DeviceKind.GPU])
    )
    if closed:
        _check_closed(by_kind[DeviceKind.GPU], by_kind[DeviceKind.SWITCH])
    return FabricState(
        mode=mode,
        gpus=_pdis(by_kind[DeviceKind.GPU]),
        switches=_pdis(by_kind[DeviceKind.SWITCH]),
        closed=closed,
    )


def _check_distinct(states: Sequence[DeviceState]) -> None:
    for pdi, count in Counter(state.pdi for state in states).items():
        if count > 1:
            raise AttestationError("ST-ATTS-631", f"{pdi} appears {count} times", _WHERE)


def _one_mode(gpus: Sequence[DeviceState]) -> Mode | None:
    modes = {gpu.mode for gpu in gpus}
    if len(modes) > 1:
        found = ", ".join(sorted(str(mode) for mode in modes))
        raise AttestationError("ST-ATTS-636", f"GPUs are in modes {found}", _WHERE)
    return next(iter(modes), None)


def _check_closed(gpus: Sequence[DeviceState], switches: Sequence[DeviceState]) -> None:
    attested = {state.pdi for state in switches}
    for gpu in gpus:
        if not attested or gpu.peers != attested:
            raise AttestationError(
                "ST-ATTS-633", _difference(gpu.peers, attested), f"{_WHERE}: {gpu}"
            )
    attested = {state.pdi for state in gpus}
    for switch in switches:
        if switch.peers != attested:
            raise AttestationError(
                "ST-ATTS-634", _difference(switch.peers, attested), f"{_WHERE}: {switch}"
            )
        if not switch.claims.locked:
            raise AttestationError(
                "ST-ATTS-637", "its configuration can still be changed", f"{_WHERE}: {switch}"
            )


def _difference(named: Iterable[str], attested: Iterable[str]) -> str:
    strange, silent = sorted(set(named) - set(attested)), sorted(set(attested) - set(named))
    return (
        f"names {', '.join(strange) or 'nothing'} that is not attested,"
        f" does not name {', '.join(silent) or 'nothing'} that is"
    )


def _pdis(states: Iterable[DeviceState]) -> tuple[str, ...]:
    return tuple(sorted(state.pdi for state in states))
