# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rulesets drawn from a grammar of nft(8), and a kernel that is asked what they let in.

Rulesets are loaded, and packets sent, in network namespaces of a process of their own:
``python -m tests.audit.firewall.worlds`` takes a line of JSON for each ruleset, and prints one of
facts and of what the kernel let in. Packets are whole frames: each field is what the caller says.
"""

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from random import Random
from typing import Any

import msgspec

from securetrain.audit.engine.functions.packets import INCOMING, Box, follow
from securetrain.audit.subjects.node.collect import firewall, rtnetlink
from securetrain.audit.subjects.node.facts.network import Ruleset, interface, merged
from tests.vocabulary import ran

NEW_NETWORK = 0x40000000
DEVICES = ("eth0", "eth1")
ADDRESSES = {4: "192.0.2.1", 6: "2001:db8::1"}
TCP, UDP = 6, 17
SYN = 2
WATCH = """
table inet zz-watch {
  set seen4 {
    type inet_proto . ipv4_addr . inet_service . inet_service; flags dynamic; size 4096;
  }
  set seen6 {
    type inet_proto . ipv6_addr . inet_service . inet_service; flags dynamic; size 4096;
  }
  chain input {
    type filter hook input priority 2147483647;
    add @seen4 { meta l4proto . ip saddr . th sport . th dport }
    add @seen6 { meta l4proto . ip6 saddr . th sport . th dport }
  }
}
"""


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet that begins a connection with the machine."""

    device: str
    protocol: int
    saddr: str
    sport: int
    dport: int
    flags: int = SYN
    ttl: int = 64
    tos: int = 0

    @property
    def version(self) -> int:
        return ip_address(self.saddr).version

    @property
    def name(self) -> tuple[int, str, int, int]:
        """What the watching chain notes of it."""
        return self.protocol, self.saddr, self.sport, self.dport

    def segment(self) -> bytes:
        if self.protocol == UDP:
            return struct.pack(">HHHH", self.sport, self.dport, 8, 0)
        return struct.pack(">HHIIBBHHH", self.sport, self.dport, 1, 0, 0x50, self.flags, 1024, 0, 0)

    def frame(self, hardware: bytes) -> bytes:
        source, target = (ip_address(a).packed for a in (self.saddr, ADDRESSES[self.version]))
        body = self.segment()
        pseudo = source + target + struct.pack(">II", len(body), self.protocol) + body
        at = 6 if self.protocol == UDP else 16
        body = body[:at] + struct.pack(">H", checksum(pseudo) or 0xFFFF) + body[at + 2 :]
        if self.version == 4:
            head = struct.pack(">BBHHHBBH", 0x45, self.tos, 20 + len(body), 1, 0, self.ttl,
                               self.protocol, 0) + source + target  # fmt: skip
            head = head[:10] + struct.pack(">H", checksum(head)) + head[12:]
        else:
            first = 6 << 28 | self.tos << 20
            head = struct.pack(">IHBB", first, len(body), self.protocol, self.ttl) + source + target
        kind = 0x800 if self.version == 4 else 0x86DD
        return hardware + bytes(6) + struct.pack(">H", kind) + head + body


def checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{-(-len(data) // 2)}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ask(cases: list[tuple[str, list[Packet]]]) -> list[tuple[Ruleset, set[tuple[Any, ...]]]]:
    """The facts of each ruleset, and the packets that it let in."""
    lines = [json.dumps([text, [asdict(one) for one in packets]]) for text, packets in cases]
    command = [sys.executable, "-m", "tests.audit.firewall.worlds"]
    done = ran(command, input="\n".join(lines), timeout=900)
    found = []
    for line in done.stdout.splitlines():
        said = json.loads(line)
        assert isinstance(said, list), said
        rules, names = said
        found.append((msgspec.convert(rules, Ruleset), {tuple(name) for name in names}))
    assert len(found) == len(cases)
    return found


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
    wires = {}
    for name in DEVICES:
        run("ip", "link", "add", f"a3-{name}", "type", "veth", "peer", "name", name)
        run("ip", "link", "set", f"a3-{name}", "up")
        wires[name] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        wires[name].bind((f"a3-{name}", 0))
    outside = os.open("/proc/self/ns/net", os.O_RDONLY)
    assert libc.unshare(NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
    for name in DEVICES:
        into = ("ip", "link", "set", name, "netns", str(os.getpid()))
        run("nsenter", f"--net=/proc/{os.getpid()}/fd/{outside}", *into)
        run("ip", "link", "set", name, "up")
        run("ip", "address", "add", f"{ADDRESSES[4]}/24", "dev", name)
        run("ip", "address", "add", f"{ADDRESSES[6]}/64", "dev", name, "nodad")
    run("ip", "link", "set", "lo", "up")
    run("ip", "route", "add", "default", "dev", "eth0")
    run("ip", "-6", "route", "add", "default", "dev", "eth0")
    hardware = {name: address_of(name) for name in DEVICES}
    for line in sys.stdin:
        text, packets = json.loads(line)
        if error := load(f"flush ruleset\n{text}"):
            print(json.dumps(error), flush=True)  # noqa: T201
            continue
        names = {
            one.number: one.facts.name for one in rtnetlink.parse_links(rtnetlink.dump_links())
        }
        rules = firewall.ruleset(firewall.dump, names)
        seen = send([Packet(**one) for one in packets], wires, hardware) if packets else []
        print(json.dumps([msgspec.to_builtins(rules), seen]), flush=True)  # noqa: T201


def send(
    packets: list[Packet], wires: dict[str, socket.socket], hardware: dict[str, bytes]
) -> list[Any]:
    """The names of the packets that come to the end of the hook."""
    run("nft", "-f", "-", text=WATCH)
    forget()
    for one in packets:
        wires[one.device].send(one.frame(hardware[one.device]))
    time.sleep(0.01)
    found = []
    for name in ("seen4", "seen6"):
        said = json.loads(run("nft", "-j", "list", "set", "inet", "zz-watch", name))
        for element in said["nftables"][1]["set"].get("elem", ()):
            protocol, *rest = element["concat"]
            found.append([{"tcp": TCP, "udp": UDP}.get(protocol, protocol), *rest])
    return found


def forget() -> None:
    """Forget every connection (IPCTNL_MSG_CT_DELETE)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as netlink:
        netlink.send(struct.pack("=IHHII", 20, 1 << 8 | 2, 5, 1, 0) + bytes(4))
        assert struct.unpack_from("=i", netlink.recv(4096), 16) == (0,)


def address_of(device: str) -> bytes:
    said = json.loads(run("ip", "-j", "link", "show", device))
    return bytes.fromhex(said[0]["address"].replace(":", ""))


def load(text: str) -> str:
    """Load a ruleset; returns what nft says against it."""
    done = subprocess.run(
        ("nft", "-f", "-"), input=text, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stderr


def run(*command: str, text: str = "") -> str:
    done = ran(command, input=text)
    return done.stdout


PORTS = (22, 23, 53, 80, 443, 1023, 1024, 29500, 40000, 65535)
FOUR = ("10.1.2.3", "10.2.0.1", "172.16.5.5", "198.51.100.7", "8.8.8.8", "203.0.113.9")
SIX = ("2001:db8::7", "2001:db8:1::9", "fd00::5", "2a00::1")
NETWORKS = ("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "172.16.0.0/12", "0.0.0.0/1",
            "8.8.8.8-9.0.0.0", "198.51.100.0/29", "10.1.2.0/23")  # fmt: skip
NETWORKS6 = ("2001:db8::/32", "fd00::/8", "2a00::1", "2000::/3", "2001:db8::7-2001:db8:1::")
STATES = ("new", "established,related", "invalid", "untracked", "new,untracked", "established")
OPAQUE = ("ct mark 1", "quota over 1 mbytes", "meta cpu 7", "tcp option maxseg size 1-500")
NAMED = """
  set four { type ipv4_addr; flags interval; elements = { %s } }
  set ports { type inet_service; elements = { 22, 80, 29500 } }
  set spans {
    type inet_service; flags interval; elements = { 20-30, 1024-29499, 60000-65535 }
  }
  set pairs {
    type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/8 . 22-80, 8.8.8.8 . 443 }
  }
  set names { type ifname; elements = { "eth1", "lo" } }
  map verdicts {
    type inet_service : verdict; elements = { 22 : accept, 23 : drop, 53 : jump own0 }
  }
"""


@dataclass
class Grammar:
    """Draws rulesets."""

    random: Random
    opaque: float = 0.01

    def ruleset(self) -> str:
        return "".join(self.table(number) for number in range(self.random.choice((1, 1, 2, 3))))

    def table(self, number: int) -> str:
        random = self.random
        if random.random() < 0.08:
            rules = self.rules(2, "netdev", ())
            return (
                f"table netdev n{number} {{ chain in {{ type filter hook ingress device "
                f"{random.choice(DEVICES)} priority 0; policy accept;\n{rules}}}\n}}\n"
            )
        family = random.choices(("inet", "ip", "ip6"), (6, 2, 1))[0]
        dormant = "flags dormant;\n" if random.random() < 0.1 else ""
        own = [f"own{n}" for n in range(random.randint(1, 3))]
        named = NAMED % random.choice((NETWORKS[1], "10.1.2.3, 8.0.0.0/7", "0.0.0.0/0"))
        chains = [
            f"chain {name} {{\n{self.rules(random.randint(0, 4), family, own[n + 1 :])}}}\n"
            for n, name in reversed(list(enumerate(own)))
        ]
        for n in range(random.choice((1, 1, 2))):
            hook = random.choices(("input", "prerouting"), (5, 1))[0]
            priority = random.choice((-300, -150, 0, 0, 10))
            policy = random.choice(("accept", "drop") if hook == "input" else ("accept",))
            chains.append(
                f"chain base{n} {{ type filter hook {hook} priority {priority}; policy {policy};\n"
                f"{self.rules(random.randint(0, 7), family, own, raw=priority == -300)}}}\n"
            )
        return f"table {family} t{number} {{\n{dormant}{named}{''.join(chains)}}}\n"

    def rules(
        self, count: int, family: str, own: tuple[str, ...] | list[str], *, raw: bool = False
    ) -> str:
        return "".join(f"{self.rule(family, list(own), raw=raw)}\n" for _ in range(count))

    def rule(self, family: str, own: list[str], *, raw: bool) -> str:
        random = self.random
        transport = random.choice(("tcp", "tcp", "udp", "th"))
        six = family == "ip6" or (family != "ip" and random.random() < 0.3)
        choices = self.conditions(family, transport, six=six)
        words = random.sample(choices, random.choice((0, 1, 1, 1, 2, 2, 3)))
        if random.random() < self.opaque:
            fitting = OPAQUE[family == "netdev" : 3 + (transport == "tcp")]
            words.append(random.choice(fitting))
        if raw and random.random() < 0.3:
            words.append("notrack")
        if random.random() < 0.1:
            words.append(random.choice(("counter", 'log prefix "x"', "meta nftrace set 0")))
        if own and family != "netdev" and random.random() < 0.08:
            maps = [f"{transport} dport vmap @verdicts"] if "own0" in own else []
            maps.append("ct state vmap { invalid : drop, new : continue, untracked : accept }")
            ports = f"22 : accept, 1024-30000 : drop, 443 : goto {own[0]}"
            maps.append(f"{transport} dport vmap {{ {ports} }}")
            if transport == "th":
                maps.append(f"meta l4proto vmap {{ tcp : jump {own[-1]}, udp : drop }}")
            return " ".join([*words, random.choice(maps)])
        ends = ["accept", "accept", "drop", "drop", "return"]
        if own and family != "netdev":
            ends += [f"jump {random.choice(own)}", f"goto {random.choice(own)}"]
        if family != "netdev" and not raw:
            ends.append("reject")
        return " ".join([*words, random.choice(ends) if random.random() < 0.93 else "continue"])

    def conditions(self, family: str, transport: str, *, six: bool) -> list[str]:
        """Conditions that may stand beside each other."""
        random = self.random
        port, other = sorted(random.sample(PORTS, 2))
        word = random.choice(("", "!= "))
        side = random.choice(("dport", "dport", "dport", "sport"))
        network = random.choice(NETWORKS6 if six else NETWORKS)
        name, lives = ("ip6", "hoplimit") if six else ("ip", "ttl")
        choices = [
            f"{transport} {side} {word}{port}",
            f"{transport} {side} {word}{port}-{other}",
            f"{transport} {side} {word}{{ {port}, {other} }}",
            f"{transport} dport {random.choice(('<', '>', '<=', '>='))} {port}",
            f"{name} saddr {word}{network}",
            f"{name} saddr {word}{network}",
            f"{name} saddr {word}{{ {network} }}",
            f'iifname {word}"{random.choice((*DEVICES, "eth*", "lo", "wg0"))}"',
            f"iif {word}{random.choice((*DEVICES, 'lo'))}",
            f"meta mark {word}0",
            f"meta pkttype {word}host",
            f"{name} {lives} {random.choice(('< 10', '64', '> 64', '1-63'))}",
            "ip6 dscp 4" if six else "ip dscp cs1",
        ]
        if transport == "tcp":
            choices += ["tcp flags & (syn | ack) == syn", "tcp flags ack"]
        if transport == "th":
            choices.append(
                f"meta l4proto {word}{random.choice(('tcp', 'udp', '{ tcp, udp }', 'icmp'))}"
            )
        if family != "netdev":
            choices += [f"ct state {word}{random.choice(STATES)}"] * 2
            choices += [
                f"{transport} dport {word}@ports",
                f"{transport} dport {word}@spans",
                f"iifname {word}@names",
                "ct direction original",
                "ct status dnat",
                "fib daddr type local",
                "limit rate 1000/second burst 1000 packets",
            ]
        if family == "inet":
            choices.append(f"meta nfproto {'ipv6' if six else 'ipv4'}")
        if family != "netdev" and not six:
            choices += [
                f"ip saddr {word}@four",
                f"ip saddr . {transport} dport @pairs",
                f"ip saddr . {transport} dport {{ 10.1.2.3 . {port}, 10.2.0.1 . {other} }}",
                f"ip saddr {random.choice(FOUR)} ip daddr {ADDRESSES[4]}",
                f"{transport} sport {port} {transport} dport {other}",
                "ip saddr & 255.255.0.0 == 10.1.0.0",
                "fib saddr . iif oif missing",
            ]
        return choices

    def packets(self, count: int) -> list[Packet]:
        found: dict[tuple[object, ...], Packet] = {}
        random = self.random
        while len(found) < count:
            one = Packet(
                device=random.choice(DEVICES),
                protocol=random.choice((TCP, UDP)),
                saddr=random.choice((*FOUR, *SIX)),
                sport=random.choice((*PORTS, random.randint(2, 65534))),
                dport=random.choice((*PORTS, random.randint(2, 65534))),
                flags=random.choice((SYN, SYN | 0xC0)),
                ttl=random.choice((5, 64, 128)),
                tos=random.choice((0, 0x20, 0x10)),
            )
            found.setdefault(one.name, one)
        return list(found.values())


def box_of(packet: Packet) -> Box:
    """The packet as a box of one."""
    four = packet.version == 4
    six = "" if four else "6"
    one = {
        "nfproto": 2 if four else 10,
        "protocol": 0x800 if four else 0x86DD,
        "l4proto": packet.protocol,
        f"saddr{six}": int(ip_address(packet.saddr)),
        f"daddr{six}": int(ip_address(ADDRESSES[packet.version])),
        "sport": packet.sport,
        "dport": packet.dport,
        "ct-state": 8,
        "ct-direction": 0,
        "mark": 0,
        "pkttype": 0,
        "secpath": 0,
        "fib-saddr": 1,
        "fib-daddr": 2,
        "fib-route": int(packet.device == DEVICES[0]),
    }
    header = {"ip@8+1": packet.ttl, "ip@1+1": packet.tos}
    if not four:
        header = {"ip6@7+1": packet.ttl, "ip6@0+2": 0x6000 | packet.tos << 4}
    if packet.protocol == TCP:
        one["tcp-flags"] = packet.flags
    box: dict[str, tuple[tuple[int, int], ...]] = {
        name: ((value, value),) for name, value in (one | header).items()
    }
    box["iifname"] = interface(packet.device)
    box["ct-status"] = ((0, 0), (0x80, 0x80), (0x100, 0x100), (0x180, 0x180))
    return box


def answer(ruleset: Ruleset, packet: Packet) -> bool | None:
    """Whether a packet is let in; None for unknown."""
    families = {"inet", "netdev", "ip" if packet.version == 4 else "ip6"}
    box = box_of(packet)
    found = follow(ruleset, box, INCOMING, frozenset(families))
    every = merged(one for part in found.sure for one in part.box["ct-status"])
    return True if every == box["ct-status"] else None if found.possible else False


if __name__ == "__main__":
    main()
