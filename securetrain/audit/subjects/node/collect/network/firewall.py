# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about what filters packets: nftables, and what is beside it and not read.

Programs of eBPF and the tables of iptables-legacy are named and not read: what they could do stays
open (`functions.firewall`).
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from securetrain.audit.subjects.node.collect import nftables
from securetrain.audit.subjects.node.collect.host import Host, TooMuchError, reading
from securetrain.audit.subjects.node.collect.rtnetlink import parse_numbers
from securetrain.audit.subjects.node.facts.network import Firewall, Ruleset

_LEGACY: Final = ("ip_tables_names", "ip6_tables_names")
_CALL: Final = {"x86_64": 321, "aarch64": 280}
"""The number of bpf(2)."""
_NEXT, _OPEN, _DESCRIBE = 11, 13, 15
"""BPF_PROG_GET_NEXT_ID, BPF_PROG_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD of linux/bpf.h."""
_KINDS: Final = {3: "tc", 4: "tc", 6: "xdp", 32: "netfilter"}
_MAX_PROGRAMS: Final = 4096


def firewall(host: Host) -> Firewall:
    """The filters of this network namespace."""
    return Firewall(
        ruleset=reading(lambda: _ruleset(host)),
        legacy=reading(lambda: _legacy(host)),
        bpf=reading(lambda: tuple(sorted(set((host.kernel.programs or loaded_programs)())))),
    )


def _ruleset(host: Host) -> Ruleset:
    return nftables.ruleset(host.kernel.nft, parse_numbers(host.kernel.links()))


def _legacy(host: Host) -> tuple[str, ...]:
    """Names of tables that iptables-legacy filled; a kernel without it has no list of them."""
    found: set[str] = set()
    for name in _LEGACY:
        try:
            found |= set(host.text(f"/proc/self/net/{name}", 4096).split())
        except FileNotFoundError:
            continue
    return tuple(sorted(found))


def loaded_programs() -> Iterator[str]:
    """The kinds of eBPF programs that see packets, one for each of the machine.

    Raises:
        OSError: when only root may ask.
        LookupError: where bpf(2) is not known.
        TooMuchError: when there are more than are asked for.
    """
    number = 0
    for _ in range(_MAX_PROGRAMS):
        try:
            _, said = _bpf(_NEXT, struct.pack("=III", number, 0, 0))
        except FileNotFoundError:
            return  # behind the last
        (number,) = struct.unpack_from("=I", said, 4)
        with suppress(FileNotFoundError):  # it has gone
            if kind := _KINDS.get(_kind(number)):
                yield kind
    raise TooMuchError(f"more than {_MAX_PROGRAMS} programs of eBPF")


def _kind(number: int) -> int:
    program, _ = _bpf(_OPEN, struct.pack("=III", number, 0, 0))
    said = ctypes.create_string_buffer(4)
    try:
        _bpf(_DESCRIBE, struct.pack("=IIQ", program, len(said), ctypes.addressof(said)))
    finally:
        os.close(program)
    return int.from_bytes(said.raw, sys.byteorder)


def _bpf(command: int, ask: bytes) -> tuple[int, bytes]:
    """The result of bpf(2), and what it was asked as it left it."""
    words = ctypes.create_string_buffer(ask, len(ask))
    number = ctypes.c_long(_CALL[platform.machine()])
    libc = ctypes.CDLL(None, use_errno=True)
    done = int(libc.syscall(number, ctypes.c_long(command), words, ctypes.c_ulong(len(ask))))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done, words.raw
