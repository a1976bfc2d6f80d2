# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Have the steps of a verified pack done again, in a run of its own. No torch in this process.

Rules:

1. no key of the run is needed. What is done again is the recorded job, by the code at hand, under
   the gradients' section of the recorded policy, in a new run directory that is removed afterwards;
2. nothing of the pack is run: its settings are data, and its checkpoints and dataset are verified
   as they are read;
3. bit-equality is claimed on the run's own mesh, code and environment alone; anything else is
   compared within bounds, and says so. Where the exact comparison was asked for, another
   environment is refused;
4. the run's variables that decide about arithmetic are set for the steps, whatever this process was
   started with (`chain.replay.variables_of`); what could not be set (the hardware, a version, a
   variable that is not of those) is said;
5. steps in which ranks were left out cannot be done again without them: such a segment stays open,
   and never counts as shown.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.artifacts import tensor_sizes
from securetrain.artifacts.statement.statements import Opened
from securetrain.chain import Given, Options, Pack, PackPieces, Verdict, documents, records, verify
from securetrain.chain.records import StepVerdict
from securetrain.chain.replay import line
from securetrain.chain.replay import outcome as results
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy
from securetrain.train.config import AUTO, JobConfig, parse_job
from securetrain.train.replay_run import answer_of, made_with, run_steps

ENVIRONMENT: Final = "ST-CHAN-014"
DATASET: Final = "ST-CHAN-015"
POLICY: Final = "ST-CHAN-012"
DRAWN: Final = "ST-CHAN-024"
_EXCLUDING: Final = (StepVerdict.SETTLED,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The outcome of segments that were done again."""

    segments: tuple[results.SegmentOutcome, ...]
    comparison: records.Comparison
    why: str
    """Why they were not compared bit by bit; empty when they were."""
    mesh: str
    world: int
    environment: str
    """SHA-256 of the environment in which they were done again."""

    @property
    def ok(self) -> bool:
        """Tell whether nothing contradicts the checkpoints."""
        return all(one.ok for one in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A request to do again only segments that are drawn."""

    confidence: float
    """With which one of the forged ones is among them."""
    forged: float
    """The part that is forged at least."""
    log_checkpoint: Path
    """What draws them (`chain.replay.line`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Segments of a pack, and which of them are done again."""

    segments: tuple[line.Segment, ...]
    again: tuple[int, ...]
    sample: records.Sample | None
    policy: Policy
    dataset: Opened

    @property
    def run(self) -> str:
        """The run that made them."""
        return self.segments[0].end.checkpoint.run_id


def plan(
    pack: Pack,
    *,
    trust: TrustRoot,
    data: TrustRoot,
    first: int | None,
    last: int | None,
    draw_by: Draw | None,
    now: datetime,
) -> Plan:
    """Verify a pack, and say which of its segments are done again.

    Args:
        pack: The pack.
        trust: Names the keys of the run.
        data: Names those of its dataset.
        first: The step of the checkpoint to begin with; None for the beginning.
        last: That of the checkpoint to end with; None for the pack's own.
        draw_by: How some are drawn; None does all of them again.
        now: The time to judge by.

    Raises:
        IntegrityError: The pack's, a link's (ST-CHAN-010 to 022), or ST-CHAN-024.
        UsageError: ST-USAG-001, there is no checkpoint of such a step.
    """
    result = verify(pack, trust=trust, now=now, options=Options(trust_data=data))
    where = str(pack.path)
    for problem in result.problems[:1]:
        raise IntegrityError(problem.code, problem.what, problem.file or where)
    subject, dataset = result.opened, result.dataset
    given = Given(trust=trust, pieces=PackPieces(pack), now=now)
    if subject is not None:
        line.check_program(subject, given.pieces)
    if subject is None or dataset is None:
        raise IntegrityError(DATASET, "the pack has no statement of the dataset", where)
    everything = line.segments_of(subject, result.pack.ancestors, dataset, given)
    segments = _between(everything, first, last, where)
    policy = given.pieces.get(subject.checkpoint.policy.digest)
    if policy is None:
        raise IntegrityError(POLICY, "the pack has not the policy in force", where)
    sample, again = None, tuple(range(len(segments)))
    if draw_by is not None:
        seed, seen = line.seed_of(
            draw_by.log_checkpoint,
            trust,
            after=ended_by(result, where),
            subject=subject.statement,
            now=now,
        )
        count = line.needed(len(segments), draw_by.forged, draw_by.confidence)
        again = tuple(line.draw([one.end.statement for one in segments], count, seed))
        sample = line.sample_of(
            draw_by.log_checkpoint,
            (draw_by.confidence, draw_by.forged),
            (count, len(segments)),
            seen,
        )
    return Plan(
        segments=tuple(segments),
        again=again,
        sample=sample,
        policy=canonical.decode(policy, Policy, where="the policy", canonical=True),
        dataset=dataset,
    )


def ended_by(result: Verdict, where: str) -> datetime:
    """The time by which a run had ended, by the word of the log's witnesses.

    The run's own clock says nothing: who sets it back has seen the log's next checkpoints already,
    and can forge what they do not draw.

    Raises:
        IntegrityError: ST-CHAN-024, no witness has seen its last checkpoint.
    """
    if result.opened is None or result.seen is None:
        raise IntegrityError(
            DRAWN,
            "no witness has seen the run's last checkpoint: only its maker says when it had ended",
            where,
            "log the checkpoint and have it witnessed (checkpoint.log in the policy), and pack it"
            " with its proof; without, do all segments again",
        )
    return max(result.opened.checkpoint.created, result.seen)


def _between(
    segments: Sequence[line.Segment], first: int | None, last: int | None, where: str
) -> list[line.Segment]:
    begins, ends = [one.after for one in segments], [one.last for one in segments]
    for name, step, there in (("--from", first, begins), ("--to", last, ends)):
        if step is not None and step not in there:
            raise UsageError(
                "ST-USAG-001",
                f"{name} {step}: the pack has no segment there",
                where,
                f"one of {', '.join(map(str, there[:20])) or 'none'}",
            )
    found = [
        one
        for one in segments
        if (first is None or one.after >= first) and (last is None or one.last <= last)
    ]
    if not found:
        raise UsageError(
            "ST-USAG-001",
            "the pack has no segment whose steps could be done again",
            where,
            "pack the ancestors, too: securetrain pack --walk-in DIR",
        )
    return found


def replay(
    asked: Plan,
    *,
    places: Sequence[Path],
    trust: Path,
    trust_data: Path,
    processes: int | None = None,
    wanted: records.Comparison | None = None,
) -> Replayed:
    """Do the segments of a plan again, and hold all of them against what AdamW can do.

    Args:
        asked: The plan.
        places: Directories below which the checkpoints and the dataset are looked for.
        trust: The file of the trust root that names the run's keys.
        trust_data: The one that names the dataset's.
        processes: How many ranks, on this machine; None for as many as the run had.
        wanted: How to compare; None takes the exact comparison where it can be.

    Raises:
        UsageError: ST-USAG-001, a directory was not found.
        IntegrityError: ST-CHAN-013 for other code, ST-CHAN-014 for another environment where the
            exact comparison was asked for, ST-CHAN-025 when the steps could not be done.
    """
    segments = asked.segments
    names = {one.end.statement: f"step {one.last}" for one in segments}
    for one in segments:
        if one.begin is not None:
            names[one.begin.statement] = f"step {one.after}"
    names[asked.dataset.statement] = "the dataset"
    found = line.find_directories(places, names)
    first, root = segments[0], Path(__file__).resolve().parent.parent
    for segment in segments:
        line.check_own_files(segment.code, root)  # before anybody waits for the steps
    world = first.end.checkpoint.world_size
    processes = processes or world
    job = job_of(first, found[asked.dataset.statement], trust_data, same_mesh=processes == world)
    left = {number: why for number in asked.again if (why := _left_out(segments[number]))}
    parts = tuple(
        _asked(
            segment,
            found,
            again=number in asked.again and number not in left,
            same_mesh=processes == world,
        )
        for number, segment in enumerate(segments)
    )
    with tempfile.TemporaryDirectory(prefix="securetrain-replay-") as name:
        folder = Path(name)
        request = results.Request(trust=str(trust.absolute()), segments=parts)
        env = line.variables_of(first.environment, os.environ)
        run = run_steps(folder, job, request, asked.policy, processes=processes, env=env)
        answers = [answer_of(run, rank, processes, len(segments)) for rank in range(processes)]
        code, environment = made_with(run)
    for segment in segments:
        line.check_files(segment.code, code, root)
    differs = "" if processes == world else f"{processes} ranks, the run had {world}"
    for segment in segments:
        differs = differs or line.environment_differs(segment.environment, environment)
    comparison = wanted or (records.Comparison.BOUND if differs else records.Comparison.EXACT)
    if differs and comparison is records.Comparison.EXACT:
        raise IntegrityError(
            ENVIRONMENT,
            f"the steps cannot be compared bit by bit: {differs}",
            "environment",
            "replay on a machine like the run's with as many processes, or with --compare bound",
        )
    outcomes = []
    for number, segment in enumerate(segments):
        outcome = results.outcome_of(
            "" if segment.begin is None else segment.begin.digest,
            segment.end.digest,
            segment.after,
            segment.records,
            [answer.segments[number] for answer in answers],
            comparison,
            str(segment.settings.get("precision", "")),
            again=parts[number].again,
            sizes=tensor_sizes(found[segment.end.statement], segment.end.checkpoint),
        )
        outcomes.append(replace(outcome, open=left.get(number, "")))
    return Replayed(
        segments=tuple(outcomes),
        comparison=comparison,
        why=differs if comparison is records.Comparison.BOUND else "",
        mesh=answers[0].mesh,
        world=processes,
        environment=documents.digest_of(environment),
    )


def result_of(asked: Plan, found: Replayed, now: datetime) -> records.Replay:
    """The result, to be signed."""
    return records.Replay(
        run=asked.run,
        at=now,
        comparison=found.comparison,
        why=found.why[:4096],
        mesh=found.mesh,
        world=found.world,
        environment=found.environment,
        sample=asked.sample,
        segments=tuple(
            results.segment_said(segment.end.statement, one)
            for segment, one in zip(asked.segments, found.segments, strict=True)
        ),
    )


def job_of(segment: line.Segment, dataset: Path, trust: Path, *, same_mesh: bool) -> JobConfig:
    """The recorded job, for another run: its data where they lie here, and nothing that only a run
    of its own needs.

    Raises:
        UsageError: ST-USAG-007, this version cannot do such a job.
    """
    settings: dict[str, Any] = msgspec.to_builtins(segment.settings)
    where = "the recorded job"
    if settings.get("model", {}).get("weights") and segment.begin is None:
        raise UsageError(
            "ST-USAG-007",
            "it begins from weights of another model, and its first segment cannot be done again",
            where,
            "begin with a later checkpoint: --from STEP",
        )
    try:
        settings["model"]["weights"] = None
        settings["data"]["dataset"] = str(dataset.absolute())
        settings["trust"] = str(trust.absolute())
        settings["checkpoint"] = {"every": 0, "resume": AUTO}
        settings["metrics"] = {"console_every": 0, "tensorboard": False, "prometheus": False}
        settings["profile"] = {}
        settings["launch"] = {}
        if not same_mesh:
            settings["parallel"] = {}
    except (KeyError, TypeError) as error:
        raise UsageError("ST-USAG-007", f"no {error}", where) from error
    return parse_job(canonical.dumps(settings).decode(), where)


def _left_out(segment: line.Segment) -> str:
    """Rule 5."""
    for record in segment.records:
        if record.without or record.verdict in _EXCLUDING:
            ranks = ", ".join(map(str, record.without)) or "some"
            return f"step {record.step} was {record.verdict} without ranks ({ranks})"
    return ""


def _asked(
    segment: line.Segment, places: Mapping[str, Path], *, again: bool, same_mesh: bool
) -> results.AskedSegment:
    begin = segment.begin
    return results.AskedSegment(
        begin="" if begin is None else str(places[begin.statement]),
        begin_digest="" if begin is None else begin.digest,
        end=str(places[segment.end.statement]),
        end_digest=segment.end.digest,
        after=segment.after,
        last=segment.last,
        rates=tuple(one.lr for one in segment.records if one.verdict is not StepVerdict.REFUSED),
        refused=tuple(one.step for one in segment.records if one.verdict is StepVerdict.REFUSED),
        seeds=tuple(one.seeds for one in segment.records) if again and same_mesh else (),
        again=again,
    )
