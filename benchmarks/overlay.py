# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Figures of the job network that are no pairs: how fast a node is in, and how fast one is out.

``python benchmarks/overlay.py [--times N]`` measures both.
"""

import argparse
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import ab, nodes
from benchmarks.ab import Figure
from securetrain.core.errors import AdmissionError
from securetrain.network.namespace import Namespace
from securetrain.network.overlay import Overlay, Plan
from securetrain.network.wireguard import WireGuardKey
from securetrain.testing.cluster import UNDERLAY, Host, NamespaceCluster

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from securetrain.identity.spiffe import SpiffeId
    from securetrain.rendezvous.member.client import Member

NUM_PEERS: Final = 63
TIMES: Final = 10
MOST_MILLISECONDS: Final = 100.0
MOST_SECONDS: Final = 1.0
_FLOOD_SECONDS: Final = 0.3
_SILENCE: Final = 1.5
_PATIENCE: Final = 60.0

# argv: own address, seconds of silence. Says that a packet came, then when the last one did.
_RECEIVE: Final = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 7000)); s.settimeout(60)
print("ready", flush=True)
s.recv(2000); last = time.monotonic(); print("first", flush=True)
s.settimeout(float(sys.argv[2]))
try:
    while True:
        s.recv(2000); last = time.monotonic()
except TimeoutError:
    print(last, flush=True)
"""
# argv: addresses. Sends to all of them without end.
_FLOOD: Final = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    for address in sys.argv[1:]:
        try: s.sendto(bytes(1000), (address, 7000))
        except OSError: pass
"""


def bring_up(times: int = TIMES, peers: int = NUM_PEERS) -> Figure | None:
    """How long a node takes from nothing to a tunnel with all its peers."""
    if _cannot("BRINGING UP A JOB NETWORK"):
        return None
    # In memory, as /run is.
    with tempfile.TemporaryDirectory(prefix="overlay-", dir="/dev/shm") as folder:
        found = [_bring_up(Path(folder), peers) for _ in range(times)]
    ups, epochs = ([sample[part] * 1000 for sample in found] for part in range(2))
    both = [up + epoch for up, epoch in zip(ups, epochs, strict=True)]
    middle = statistics.median(both)
    return Figure(
        name="overlay-up",
        title=f"namespace, engine, filters and an epoch with {peers} peers, on one node",
        values={
            "p50 ms": middle,
            "least ms": min(both),
            "without members, p50 ms": statistics.median(ups),
            "epoch, p50 ms": statistics.median(epochs),
        },
        goal=f"p50 <= {MOST_MILLISECONDS:g} ms",
        goal_met=middle <= MOST_MILLISECONDS,
    )


def _bring_up(state: Path, peers: int) -> tuple[float, float]:
    """Seconds of `up` and of `apply`."""
    hosts = [Host(Namespace(f"node-{n}"), UNDERLAY[n + 1]) for n in range(peers + 1)]
    keys, secret = [WireGuardKey.generate() for _ in hosts], secrets.token_bytes(32)
    epoch = nodes.members(hosts, keys, 0, secret)
    job = f"bench-{secrets.token_hex(4)}"
    started = time.perf_counter()
    with Overlay.up(Plan(job=job, node="node-0", key=keys[0]), state=state) as overlay:
        is_up = time.perf_counter()
        overlay.apply(1, epoch)
        return is_up - started, time.perf_counter() - is_up


def eviction(times: int = TIMES) -> Figure | None:
    """How long after an eviction the others still accept the evicted node's packets."""
    if _cannot("EVICTION"):
        return None
    with NamespaceCluster.up(3, switched=True) as cluster:
        found = [seconds for _ in range(times) for seconds in evict(cluster.hosts)]
    return Figure(
        name="overlay-evict",
        title="a member floods the two others by UDP and is evicted: to the last packet accepted",
        values={
            "p50 ms": statistics.median(found) * 1000,
            "most ms": max(found) * 1000,
            "samples": len(found),
        },
        goal=f"each <= {MOST_SECONDS:g} s",
        goal_met=max(found) <= MOST_SECONDS,
    )


def evict(hosts: Sequence[Host]) -> list[float]:
    """Seconds from the decision to the last packet that each remaining member accepted."""
    with ExitStack() as stack:
        revoked, recheck, members = stack.enter_context(_job(hosts))
        flooder, *others = members
        receivers = []
        for overlay in others:
            command = [sys.executable, "-I", "-c", _RECEIVE, str(overlay.address), str(_SILENCE)]
            receivers.append(
                stack.enter_context(
                    subprocess.Popen(overlay.command(command), stdout=subprocess.PIPE, text=True)
                )
            )
        for receiver in receivers:
            _expect(receiver, "ready")
        targets = [str(overlay.address) for overlay in others]
        flood = stack.enter_context(
            subprocess.Popen(flooder.command([sys.executable, "-I", "-c", _FLOOD, *targets]))
        )
        stack.callback(flood.kill)
        for receiver in receivers:
            _expect(receiver, "first")
        time.sleep(_FLOOD_SECONDS)  # so that the tunnels are full
        decided = time.monotonic()
        revoked.add(flooder.plan.node)
        recheck()
        return [max(float(_line(receiver)) - decided, 0.0) for receiver in receivers]


@contextmanager
def _job(
    hosts: Sequence[Host],
) -> Iterator[tuple[set[str], Callable[[], None], list[Overlay]]]:
    """A job on all hosts whose round is complete: who is revoked, how to look again, the nodes."""
    from benchmarks.join import lenient
    from securetrain.identity.job_ca import JobCA
    from securetrain.rendezvous.coordinator.coordinator import Coordinator, CoordinatorSettings

    def clock() -> datetime:
        return datetime.now(UTC)

    revoked: set[str] = set()

    def judge(peer: "SpiffeId", _certificate: "Certificate") -> None:
        if peer.node in revoked:
            raise AdmissionError("ST-ADMN-013", "a benchmark", str(peer))

    job, policy = f"bench-{secrets.token_hex(4)}", lenient(len(hosts))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evict-")))
        ca = JobCA.create(policy.policy.identity.trust_domain, job, clock())
        coordinator = Coordinator(
            job,
            ca,
            policy,
            None,
            min_nodes=len(hosts),
            max_nodes=len(hosts),
            clock=clock,
            settings=CoordinatorSettings(revoked=judge),
        )
        stack.callback(coordinator.stop)
        meeting = coordinator.start()
        overlays, threads = [], []
        for number, host in enumerate(hosts):
            plan = Plan(
                job=job,
                node=f"node-{number}",
                key=WireGuardKey.generate(),
                endpoint=host.address,
                host=host.name,
            )
            overlay = stack.enter_context(Overlay.up(plan, state=folder / f"state-{number}"))
            overlays.append(overlay)
            member = _member(folder / plan.node, ca, overlay, clock)
            stack.callback(member.leave)
            member.connect(*meeting)
            thread = threading.Thread(target=member.next_round, args=(lambda _: 1, _PATIENCE))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
        yield revoked, coordinator.recheck, overlays


def _member(folder: Path, ca: object, overlay: Overlay, clock: Callable[[], datetime]) -> "Member":
    from securetrain.attest.node.attester import SoftwareAttester
    from securetrain.identity.job_ca import JobCA
    from securetrain.rendezvous.member.client import Member
    from securetrain.rendezvous.member.identity_dir import write_identity
    from securetrain.rendezvous.wire.tunnel import Tunnel

    assert isinstance(ca, JobCA)
    identity = write_identity(folder, ca, overlay.plan.node, clock())
    endpoint = overlay.plan.endpoint
    assert endpoint is not None
    return Member(
        identity,
        SoftwareAttester(key=identity.key, executable=Path(sys.executable)),
        clock=clock,
        address=str(endpoint),
        tunnel=Tunnel(overlay=overlay, endpoint=endpoint),
    )


def _expect(process: "subprocess.Popen[str]", word: str) -> None:
    if (said := _line(process)) != word:
        raise RuntimeError(f"{said!r} where {word!r} was expected")


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _cannot(what: str) -> bool:
    why = nodes.lacking()
    if why:
        print(f"{what} IS NOT MEASURED: {'; '.join(why)}", file=sys.stderr)
    return bool(why)


FIGURES: Final[dict[str, Callable[[], Figure | None]]] = {
    "overlay-up": bring_up,
    "overlay-evict": eviction,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--times", type=int, default=TIMES)
    options = parser.parse_args(argv)
    ab.clean_up_when_terminated()
    for figure in (bring_up(options.times), eviction(options.times)):
        if figure is not None:
            print(figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
