# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The limits of a run: what it did not prove, in sentences that a person can act on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

from securetrain.core.vocabulary import (
    LOADS_NOT_HELD,
    NOT_SIGNED,
    NOT_WATCHED,
    OPEN_EGRESS,
    PROGRAMS_NOT_PROTECTED,
    TEST_ONLY,
    UNATTESTED,
    UNCONFINED,
    NetworkProfile,
    State,
    degraded_label,
)
from securetrain.ledger import LedgerEvent, events
from securetrain.report.document import plural
from securetrain.report.run.model import BoundaryState, ProofState, RunRecord

_DEGRADED: Final = {degraded_label(p): "degraded" for p in NetworkProfile if p.degraded}
_SHIM: Final = "worker shim"
_STANDING: Final[Mapping[str, str]] = {
    "own keys": "The run made its own trust root, and its signing keys lie in the run directory:"
    " whoever can write there can sign anything. The signatures show that nothing changed since,"
    " not who made it.",
    "own trust root": "The trust root was taken from the run directory. Compare its digest"
    " ({digest}...) with the one that the job's owner published.",
    "no trust root": "There is no valid trust root, so no signature of this run counts.",
    "ignored": "{ignored} for nothing: a key wrote what its role may not write, or the event is not"
    " known here.",
    "no writers": "The trust root does not name the roles of the ledger's writers: every key of the"
    " ledger may have written every entry.",
    "not closed": "The ledger has no closing entry: entries at its end may be missing, as after a"
    " crash.",
    TEST_ONLY: f"The node is {TEST_ONLY}: a program answered in place of hardware. The exchange was"
    " real; what it says about the machine is worth nothing.",
    UNATTESTED: f"The node is {UNATTESTED}: its evidence is only what it says about itself. No TPM,"
    " virtual TPM or trusted execution environment stands behind it.",
    _SHIM: "The workers ran without the shim: their pickles and sockets were not checked.",
    UNCONFINED: "The workers' sandbox was DEGRADED: they could do more on this machine than"
    " training needs. The ledger says what was missing (sandbox-degraded).",
    OPEN_EGRESS: "The way out was open: the policy names the places that workers may reach, and"
    " nothing kept them from others. A profile with a network of the job's own (overlay) does.",
    NetworkProfile.LOOPBACK: "All traffic stayed on this machine's loopback: encryption between"
    " machines was not needed, and not tried.",
    "degraded": "The network was DEGRADED: some of the job's bytes travelled in the clear between"
    " machines. Others on the way could read them, and the guard's sketches alone tell whether"
    " gradients were changed.",
    "no audit": "No preflight audit is recorded.",
}
"""The sentences that follow from one fact or label, in their order."""
UNSIGNED: Final = (
    "Curves, sketch distances, audit findings, drills and recorded verifications come from files"
    " that are not signed. The ledger, the trust root and the statements are."
)
_E = TypeVar("_E", bound=LedgerEvent)


def of(
    record: RunRecord, *, keys_in_run: bool, said: Sequence[LedgerEvent] = ()
) -> tuple[str, ...]:
    """The limits of a record.

    Args:
        record: everything else that the report says.
        keys_in_run: whether the private key of the trust root lies in the run directory.
        said: the events of the verified ledger.
    """
    holds, number = _holding(record, keys_in_run=keys_in_run), len(record.ledger.ignored)
    counts = "entry of the ledger counts" if number == 1 else "entries of the ledger count"
    words = {"digest": record.trust.digest[:16], "ignored": f"{number} {counts}"}
    return (
        *(text.format(**words) for what, text in _STANDING.items() if what in holds),
        *_evidence(record),
        *_outside(record, said),
        *_artifacts(record, said),
        *_guard(record, said, holds),
        UNSIGNED,
    )


def _holding(record: RunRecord, *, keys_in_run: bool) -> set[str]:
    """The labels and facts that have a sentence."""
    ledger = record.ledger
    verified = ledger.proof.state in {ProofState.VERIFIED, ProofState.OPEN}
    trust = "own keys" if keys_in_run else "own trust root"
    networks = [fact.value for fact in record.facts if fact.name == "network"]
    also = {
        "ignored": ledger.ignored,
        "no writers": verified and not ledger.names_writers,
        "not closed": verified and not ledger.closed,
        "no audit": record.audit is None,
    }
    return {
        trust if record.trust.proof.state is ProofState.VERIFIED else "no trust root",
        *(label for view in record.boundaries for label in view.labels),
        *(fact.name for fact in record.facts if fact.name == _SHIM),
        *(_DEGRADED.get(name, name) for name in networks),
        *(what for what, does in also.items() if does),
    }


def _evidence(record: RunRecord) -> Iterator[str]:
    # Checks, as everywhere: one that fails for two subjects is one.
    counts = record.audit.counts if record.audit is not None else {}
    if unknown := counts.get(State.UNKNOWN, 0):
        yield f"The audit has {plural(unknown, 'check')} without evidence: unknown is no pass."
    if failed := counts.get(State.FAIL, 0):
        yield f"The audit has {plural(failed, 'failed check')}; the policy let the run go on."
    missing = [one.boundary for one in record.boundaries if one.state is BoundaryState.NOT_CROSSED]
    if missing:
        yield f"Nothing is recorded about these boundaries: {', '.join(missing)}."


def _outside(record: RunRecord, said: Sequence[LedgerEvent]) -> Iterator[str]:
    """Saves, programs, loads and data that the policy does not reach."""
    if unsigned := _those(said, events.CheckpointsNotSigned):
        total = sum(event.saves for event in unsigned)
        times = plural(total, "time") if total else "at least once"
        ways = ", ".join(dict.fromkeys(way for one in unsigned for way in one.ways.split(", ")))
        fields = ", ".join(dict.fromkeys(one.fields for one in unsigned if one.fields))
        yield (
            f"{NOT_SIGNED}. The script saved {times} by {ways}, first {unsigned[0].place}."
            " 'securetrain verify' refuses what it saved, and nothing here says what is in"
            f" it{_enforced(fields)}."
        )
    unprotected = _those(said, events.ProgramsNotProtected)
    for one in unprotected:
        if one.fields:
            yield (
                f"{PROGRAMS_NOT_PROTECTED}. The workers ran without the shim"
                f"{_enforced(one.fields)}."
            )
    if programs := [event.subject for event in unprotected if not event.fields]:
        yield (
            f"{PROGRAMS_NOT_PROTECTED}. The script started programs without the shim, first"
            f" {programs[0]}; what they trained, saved and loaded is not known."
        )
    for load in _those(said, events.LoadsNotHeld)[:1]:
        yield (
            f"{LOADS_NOT_HELD}. The script loaded {load.subject} by {load.ways}; not enforced:"
            f" {load.fields}."
        )
    opened = record.dataset is not None or _those(said, events.DatasetOpened)
    if _those(said, events.RunStarted) and not opened:
        asked = [event.fields for event in _those(said, events.DataNotKnown)]
        yield (
            "No signed dataset was opened: what the script read is not known"
            f"{f'; not enforced: {asked[0]}' if asked else ''}."
        )


def _enforced(fields: str) -> str:
    return f"; not enforced: {fields}" if fields else ""


def _artifacts(record: RunRecord, said: Sequence[LedgerEvent]) -> Iterator[str]:
    whole = [one for one in record.verifications if one.ok and one.kind == "checkpoint"]
    proven = {one.digest for one in whole}
    statement_only = sum(one.digest not in proven for one in record.checkpoints)
    saved = _those(said, events.SavedFilesSigned)
    if statement_only:
        yield (
            f"For {statement_only} of {len(record.checkpoints)} checkpoints only the statement's"
            " signature was checked; 'securetrain verify' reads every byte."
        )
    elif saved and not record.checkpoints:
        yield (
            f"{plural(len(saved), 'save')} of the script in other formats were signed as they were"
            " written; 'securetrain verify' reads every byte. That they hold what training made is"
            " the script's word."
        )
    elif not (record.checkpoints or _those(said, events.CheckpointsNotSigned)):
        why = "A save elsewhere is known only where the script used a function that is watched."
        if any(fact.name == _SHIM for fact in record.facts):
            why = "What the workers saved elsewhere is not known: they ran without the shim."
        yield f"The run directory has no checkpoint. {why}"


def _guard(record: RunRecord, said: Sequence[LedgerEvent], holds: set[str]) -> Iterator[str]:
    ranks = {point.rank for point in record.guard.points} if record.guard is not None else ()
    judged = sum(event.judged for event in _those(said, events.GradientsJudged))
    if NOT_WATCHED in holds:
        yield (
            f"{NOT_WATCHED}. Of what steps were made, some or all were on gradients that nobody"
            " judged; the ledger says why (gradients-not-watched)."
        )
    elif record.guard is None and judged:
        yield f"{plural(judged, 'step')} were judged; their curves are not here."
    elif record.guard is None:
        yield "No gradient was judged, as far as is recorded."
    elif len(ranks) == 1:
        yield "With one rank there is nobody to compare its gradients with."
    elif len(ranks) == 2:
        yield (
            "With two ranks the guard can see that they differ, not which one is wrong: telling"
            " needs at least three."
        )


def _those(said: Sequence[LedgerEvent], kind: type[_E]) -> list[_E]:
    return [event for event in said if isinstance(event, kind)]
