# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about a run: its ledger and the fleet's reference values, each verified before it is read.

Rules:

1. the trust root is the auditor's (``--trust``): the one that lies in the run directory is as good
   as the directory, and proves nothing to somebody else;
2. the ledger is read when its whole chain and every signature hold, and events count by the key of
   the role that may write them. With a line that counts for nothing nothing is known;
3. the newest epoch counts, by what a launcher wrote of the membership that the coordinator signed;
   a node's proofs are the coordinator's events about it;
4. nodes that there should be are those of the auditor's inventory, and of the reference values that
   the policy names. With both, a node has to be in both.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from securetrain import __version__
from securetrain.audit.facts import Collected, Outcome, Section
from securetrain.audit.ledger import entry_of
from securetrain.audit.subjects.run.facts import RankRange, Run, RunFacts, RunNode
from securetrain.core import RunDir
from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.core.files import read_file
from securetrain.identity import SpiffeId
from securetrain.identity.trust import TrustRoot
from securetrain.ledger import Recorded, events, read_ledger
from securetrain.policy.load import LoadedPolicy

if TYPE_CHECKING:
    from securetrain.core.vocabulary import NodeTier

T = TypeVar("T")

LEDGER_LIMIT: Final = 64 << 20
_PIN: Final = "name the trust root that you know: --trust FILE"


def collect_run(
    directory: Path,
    *,
    now: datetime,
    trust: Path | None,
    policy: LoadedPolicy,
    inventory: Sequence[str] | None = None,
    fleet_state: Path | None = None,
) -> RunFacts:
    """Collect what a run directory proves.

    Args:
        directory: of the run, which may go on meanwhile.
        now: the time of collection, with its zone.
        trust: the auditor's trust root.
        policy: whose reference values say which nodes there are.
        inventory: the auditor's own list of nodes.
        fleet_state: the auditor's memory of fleets, if there is one: older values are not believed.

    Raises:
        UsageError: ST-USAG-002 when it is no run directory.
    """
    run = RunDir(directory)
    if not run.ledger.is_file():
        raise UsageError(
            "ST-USAG-002", "no run directory: there is no ledger.jsonl in it", str(directory)
        )
    lines = _section(lambda: _lines(run, trust, now))
    fleet = _section(lambda: _fleet(policy, now, fleet_state))
    nodes = _then(lines, lambda found: _nodes(found, fleet, run))
    return RunFacts(
        collected=Collected(
            at=now, hostname="", collector=f"securetrain {__version__}", boot_id=""
        ),
        ledger=(entry_of("run", str(directory), nodes, "run.nodes"),),
        path=str(directory),
        run=Run(
            nodes=nodes,
            ranks=_then(lines, lambda found: _ranks(found, run)),
            inventory=_inventory(fleet, inventory),
            strangers=_then(lines, _strangers),
        ),
    )


def _section(read: Callable[[], T]) -> Section[T]:
    try:
        return Section(outcome=Outcome.OK, value=read())
    except FileNotFoundError as error:
        return Section(outcome=Outcome.ABSENT, reason=str(error))
    except SecureTrainError as error:
        return Section(outcome=Outcome.ERROR, reason=f"{error.code}: {error.what}")
    except (OSError, ValueError) as error:
        return Section(outcome=Outcome.ERROR, reason=str(error))


def _then(before: Section[Any], read: Callable[[Any], T]) -> Section[T]:
    if before.value is None:
        return Section(outcome=Outcome.ERROR, reason=before.reason)
    return _section(lambda: read(before.value))


def _lines(run: RunDir, trust: Path | None, now: datetime) -> tuple[Recorded, ...]:
    if trust is None:
        raise ValueError(f"nothing but the run directory vouches for its ledger: {_PIN}")
    file = trust / "root.json" if trust.is_dir() else trust
    root = TrustRoot.load(file, now)
    reading = read_ledger(read_file(run.ledger, LEDGER_LIMIT), root, where=str(run.ledger))
    if not reading.names_writers:
        raise ValueError("the trust root does not say which key may write what")
    if reading.ignored:
        raise ValueError(f"{len(reading.ignored)} lines count for nothing: {reading.ignored[0]}")
    return reading.recorded


def _fleet(policy: LoadedPolicy, now: datetime, memory: Path | None) -> Any:
    wanted = policy.policy.node.reference_values
    if wanted is None:
        raise FileNotFoundError("the policy names no reference values")
    from securetrain.attest.session import (  # noqa: PLC0415 - few have them
        MemoryState,
        load_reference_values,
        open_fleet_state,
    )

    source = policy.sources.get("node.reference_values.file")
    folder = Path(source).parent if source else Path()
    path = folder / wanted.file
    if memory is None or not memory.exists():
        return load_reference_values(path, wanted.signed_by, now, MemoryState())
    with closing(open_fleet_state(memory)) as state:
        return load_reference_values(path, wanted.signed_by, now, state)


def _inventory(fleet: Section[Any], given: Sequence[str] | None) -> Section[tuple[str, ...]]:
    if fleet.outcome not in {Outcome.OK, Outcome.ABSENT}:
        return Section(outcome=fleet.outcome, reason=fleet.reason)
    names = None if given is None else set(given)
    if fleet.value is not None:
        enrolled = set(fleet.value.values.nodes)
        names = enrolled if names is None else names & enrolled
    if not names:
        why = "no list of nodes: --inventory FILE, or node.reference_values of the policy"
        return Section(outcome=Outcome.ERROR, reason=why if names is None else "it lists no node")
    return Section(outcome=Outcome.OK, value=tuple(sorted(names)))


def _newest(lines: Sequence[Recorded]) -> list[Recorded]:
    """The launchers' accounts of the newest epoch."""
    told = [line for line in lines if isinstance(line.event, events.EpochStarted)]
    if not told:
        raise ValueError("no epoch has started, by this ledger")
    newest = max(line.event.epoch for line in told)  # type: ignore[attr-defined]
    return [line for line in told if line.event.epoch == newest]  # type: ignore[attr-defined]


def _said(line: Recorded) -> tuple[str, str]:
    event = line.event
    assert isinstance(event, events.EpochStarted)
    return event.nodes, event.ranks


def _strangers(lines: Sequence[Recorded]) -> tuple[str, ...]:
    first, *others = _newest(lines)
    return tuple(
        f"{line.entry.body.writer}: {' '.join(_said(line))[:200]}"
        for line in others
        if _said(line) != _said(first)
    )


def _ranks(lines: Sequence[Recorded], run: RunDir) -> tuple[RankRange, ...]:
    line = _newest(lines)[-1]
    nodes, ranges = (text.split() for text in _said(line))
    formed = [one.event for one in lines if isinstance(one.event, events.RoundFormed)]
    if not formed or formed[-1].nodes != len(nodes):
        raise ValueError("the coordinator's account of the epoch is not in this ledger, or is cut")
    if len(ranges) != len(nodes):
        raise ValueError("the ledger does not say which ranks each node has")
    pairs = (tuple(map(int, text.split("-"))) for text in ranges)
    return tuple(
        RankRange(node=node, first=pair[0], last=pair[-1], path=str(run.ledger), line=_number(line))
        for node, pair in zip(nodes, pairs, strict=True)
    )


def _number(line: Recorded) -> int:
    return line.entry.body.seq + 1


def _nodes(lines: Sequence[Recorded], fleet: Section[Any], run: RunDir) -> tuple[RunNode, ...]:
    if not any(isinstance(line.event, events.CoordinatorStarted) for line in lines):
        raise ValueError("no coordinator wrote to this ledger: audit the run directory of its node")
    names = dict.fromkeys(_said(_newest(lines)[-1])[0].split())
    return tuple(_node(name, lines, fleet, str(run.ledger)) for name in names)


def _node(name: str, lines: Sequence[Recorded], fleet: Section[Any], path: str) -> RunNode:
    """A node by the events about it, the newest of each sort."""
    tier: NodeTier | None = None
    proven: datetime | None = None
    until: datetime | None = None
    refused, reference, number = "", "", 0
    for line in lines:
        event = line.event
        about = _name(event.subject) == name
        if isinstance(event, events.NodeAdmitted | events.LeaseRenewed) and about:
            tier, proven, until, refused = event.tier, line.time, None, ""
            number = _number(line)
            if isinstance(event, events.NodeAdmitted):
                reference = event.reference_values
        elif isinstance(event, events.NodeResumed) and about:
            proven, until, refused, number = line.time, None, "", _number(line)
        elif isinstance(event, events.NodeEvicted | events.NodeRefused) and about:
            refused, until = event.code, until or line.time
        elif (isinstance(event, events.NodeLeft | events.NodeLost) and about) or isinstance(
            event, events.RunEnded | events.JobClosed | events.Closed
        ):
            until = until or line.time
    return RunNode(
        name=name,
        tier=tier,
        proven=proven and proven.astimezone(UTC),
        until=until and until.astimezone(UTC),
        refused=refused,
        compared=_compared(reference, fleet),
        line=number,
        path=path,
    )


def _compared(digest: str, fleet: Section[Any]) -> bool | None:
    if fleet.value is not None:
        return bool(digest == fleet.value.digest)
    return True if fleet.outcome is Outcome.ABSENT else None


def _name(subject: str) -> str:
    """The node in an event's subject: its SPIFFE id."""
    try:
        return SpiffeId.parse(subject).node
    except SecureTrainError:
        return ""
