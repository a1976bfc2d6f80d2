# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about what filters packets: nftables, and what is beside it and not read.

Programs of eBPF and the tables of iptables-legacy are named and not read: what they could do stays
open (`functions.firewall`).
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
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
        TooMuchError: when there are more than are asked for.
    """
    number, count = 0, 0
    while (number := _next(number)) != 0:
        count += 1
        if count > _MAX_PROGRAMS:
            raise TooMuchError(f"more than {_MAX_PROGRAMS} programs of eBPF")
        if kind := _KINDS.get(_kind(number)):
            yield kind


def _next(number: int) -> int:
    """The number of the next program; 0 behind the last."""
    ask = ctypes.create_string_buffer(struct.pack("=III", number, 0, 0))
    try:
        _bpf(_NEXT, ask, 12)
    except FileNotFoundError:
        return 0
    following: int = struct.unpack_from("=I", ask, 4)[0]
    return following


def _kind(number: int) -> int:
    try:
        program = _bpf(_OPEN, ctypes.create_string_buffer(struct.pack("=III", number, 0, 0)), 12)
    except FileNotFoundError:
        return 0  # it has gone
    try:
        said = ctypes.create_string_buffer(8)
        ask = struct.pack("=IIQ", program, len(said) - 1, ctypes.addressof(said))
        _bpf(_DESCRIBE, ctypes.create_string_buffer(ask), 16)
    finally:
        os.close(program)
    kind: int = struct.unpack_from("=I", said)[0]
    return kind


def _bpf(command: int, ask: "ctypes.Array[ctypes.c_char]", size: int) -> int:
    number = _CALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "bpf(2) is not known on this machine")
    libc = ctypes.CDLL(None, use_errno=True)
    done = int(
        libc.syscall(ctypes.c_long(number), ctypes.c_long(command), ask, ctypes.c_ulong(size))
    )
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done
