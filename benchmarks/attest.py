# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a node with a TPM costs its verifier: to join, to renew its lease, to be told so.

Each operation is `Verifier.challenge` and `Verifier.appraise` of one node, on one core, as the
coordinator calls them; TLS and what the node does are not in it. A fleet of 10,000 nodes that renew
once a minute is 167 renewals a second.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks.ab import Benchmark, Goal
from benchmarks.cpu import Bound, Cpu, Sample
from benchmarks.fleet import COORDINATOR, exchange, make_fleet, measured
from securetrain.policy.schema import ImaMode

NODES: Final = 40
FEW_NODES: Final = 6
"""Where each brings a long list."""
NEW_ENTRIES: Final = 20
ENTRIES: Final = 5000

RSA: Final = "L-1"
P256: Final = "H-2"
P384: Final = "H-3"


def _files(count: int, folder: str) -> list[str]:
    return [f"/usr/lib/x86_64-linux-gnu/{folder}/lib{n}.so.{n}" for n in range(count)]


@contextmanager
def renewals(count: int, *, shared: bool, nodes: int = NODES) -> Iterator[Sample]:
    """Nodes renew; between any two renewals each has run some more files.

    Args:
        count: how many samples there will be.
        shared: whether the files are the same on all nodes.
        nodes: size of the fleet.
    """
    lists = [
        [_files(NEW_ENTRIES, f"{number}" if shared else f"{number}-{n}") for n in range(nodes)]
        for number in range(count)
    ]
    every = (path for one in lists for files in one for path in files)
    fleet = make_fleet(nodes, P256, ima=ImaMode.ENFORCE, files=every)
    rounds = iter(lists)
    with fleet.verifier() as verifier:
        exchange(verifier, fleet.nodes)

        def sample() -> float:
            for node, files in zip(fleet.nodes, next(rounds), strict=True):
                node.measure(measured(files))
            return exchange(verifier, fleet.nodes)[0]

        yield sample


@contextmanager
def joins(
    count: int, *, template: str = RSA, entries: int = 0, nodes: int = NODES
) -> Iterator[Sample]:
    """Nodes join a verifier that has not seen them, but for one that came before.

    Args:
        count: how many samples there will be.
        template: of the endorsement keys.
        entries: how long the measurement lists are; 0 asks for none.
        nodes: size of the fleet.
    """
    del count
    files = _files(entries, "common")
    ima = ImaMode.ENFORCE if entries else ImaMode.OFF
    fleet = make_fleet(nodes, template, ima=ima, files=files)
    first, *others = fleet.nodes
    for node in fleet.nodes:
        node.measure(measured(files))

    def sample() -> float:
        with fleet.verifier() as verifier:
            exchange(verifier, [first])
            return exchange(verifier, others)[0]

    yield sample


@contextmanager
def passports(count: int, *, nodes: int = NODES) -> Iterator[Sample]:
    """Results are signed, and certificates issued beside them."""
    import time

    from securetrain.attest.session.passport import issue_passport
    from securetrain.identity.job_ca import JobCA

    del count
    fleet = make_fleet(nodes, P256)
    with fleet.verifier() as verifier:
        _, results = exchange(verifier, fleet.nodes)
    ca = JobCA.create("securetrain.local", "job-1", results[0].issued)

    def sample() -> float:
        started = time.process_time()
        for node, result in zip(fleet.nodes, results, strict=True):
            issue_passport(result, key=COORDINATOR, ca=ca, node_key=node.identity)
        return (time.process_time() - started) / nodes

    yield sample


BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    Cpu(
        name="attest-renew",
        title=f"a renewal: quote and {NEW_ENTRIES} new IMA entries that other nodes have too",
        goal=Goal(seconds=1 / 3000),
        bound=Bound(p256=2),
        prepare=partial(renewals, shared=True),
    ),
    Cpu(
        name="attest-renew-new",
        title=f"a renewal with {NEW_ENTRIES} IMA entries that no other node has",
        goal=Goal(seconds=1 / 2000),
        bound=Bound(p256=2),
        prepare=partial(renewals, shared=False),
    ),
    Cpu(
        name="attest-join",
        title="a join without IMA, RSA-2048 endorsement key",
        goal=Goal(seconds=1 / 500),
        bound=Bound(p256=4, oaep=1),
        prepare=joins,
    ),
    Cpu(
        name="attest-join-p384",
        title="a join without IMA, P-384 endorsement key",
        goal=Goal(seconds=1 / 350),
        bound=Bound(p256=4, ecdh384=1),
        prepare=partial(joins, template=P384),
    ),
    Cpu(
        name="attest-join-ima",
        title=f"a join with {ENTRIES} IMA entries that other nodes have too",
        goal=Goal(seconds=1 / 80),
        bound=Bound(p256=4, oaep=1),
        prepare=partial(joins, entries=ENTRIES, nodes=FEW_NODES),
    ),
    Cpu(
        name="attest-passport",
        title="the signed result (EAR) and the certificate (SVID) of an admitted node",
        goal=Goal(seconds=1 / 2000),
        bound=Bound(signatures=2),
        prepare=passports,
    ),
)
