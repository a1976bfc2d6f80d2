# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The limits of a run: what it did not prove, in sentences that a person can act on."""

from collections.abc import Sequence
from typing import Final

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
from securetrain.report.run.boundaries import count
from securetrain.report.run.model import BoundaryState, ProofState, RunRecord

_DEGRADED: Final = {degraded_label(p) for p in NetworkProfile if p.degraded}
UNSIGNED: Final = (
    "Curves, sketch distances, audit findings, drills and recorded verifications come from files"
    " that are not signed. The ledger, the trust root and the statements are."
)


def of(
    record: RunRecord, *, keys_in_run: bool, said: Sequence[LedgerEvent] = ()
) -> tuple[str, ...]:
    """The limits of a record.

    Args:
        record: everything else that the report says.
        keys_in_run: whether the private key of the trust root lies in the run directory.
        said: the events of the verified ledger.
    """
    found = [
        *_identity(record, keys_in_run=keys_in_run),
        *_node(record),
        *_evidence(record),
        *_unsigned(said),
        *_outside(said),
        *_unread(record, said),
        *_artifacts(record, said),
        *_guard(record, said),
        UNSIGNED,
    ]
    return tuple(found)


def _identity(record: RunRecord, *, keys_in_run: bool) -> list[str]:
    found = []
    match record.trust.proof.state:
        case ProofState.VERIFIED if keys_in_run:
            found.append(
                "The run made its own trust root, and its signing keys lie in the run directory:"
                " whoever can write there can sign anything. The signatures show that nothing"
                " changed since, not who made it."
            )
        case ProofState.VERIFIED:
            found.append(
                "The trust root was taken from the run directory. Compare its digest"
                f" ({record.trust.digest[:16]}...) with the one that the job's owner published."
            )
        case _:
            found.append("There is no valid trust root, so no signature of this run counts.")
    if record.ledger.ignored:
        number = len(record.ledger.ignored)
        counts = "entry of the ledger counts" if number == 1 else "entries of the ledger count"
        found.append(
            f"{number} {counts} for nothing: a key wrote what its role may not write, or the event"
            " is not known here."
        )
    if record.ledger.proof.state is ProofState.VERIFIED and not record.ledger.names_writers:
        found.append(
            "The trust root does not name the roles of the ledger's writers: every key of the"
            " ledger may have written every entry."
        )
    if record.ledger.proof.state is ProofState.VERIFIED and not record.ledger.closed:
        found.append(
            "The ledger has no closing entry: entries at its end may be missing, as after a crash."
        )
    return found


def _node(record: RunRecord) -> list[str]:
    labels = {label for view in record.boundaries for label in view.labels}
    found = []
    if TEST_ONLY in labels:
        found.append(
            f"The node is {TEST_ONLY}: a program answered in place of hardware. The exchange was"
            " real; what it says about the machine is worth nothing."
        )
    if UNATTESTED in labels:
        found.append(
            f"The node is {UNATTESTED}: its evidence is only what it says about itself. No TPM,"
            " virtual TPM or trusted execution environment stands behind it."
        )
    found += [
        "The workers ran without the shim: their pickles and sockets were not checked."
        for fact in record.facts
        if fact.name == "worker shim"
    ]
    if UNCONFINED in labels:
        found.append(
            "The workers' sandbox was DEGRADED: they could do more on this machine than training"
            " needs. The ledger says what was missing (sandbox-degraded)."
        )
    if OPEN_EGRESS in labels:
        found.append(
            "The way out was open: the policy names the places that workers may reach, and nothing"
            " kept them from others. A profile with a network of the job's own (overlay) does."
        )
    profiles = [fact.value for fact in record.facts if fact.name == "network"]
    if NetworkProfile.LOOPBACK in profiles:
        found.append(
            "All traffic stayed on this machine's loopback: encryption between machines was not"
            " needed, and not tried."
        )
    if _DEGRADED & set(profiles):
        found.append(
            "The network was DEGRADED: some of the job's bytes travelled in the clear between"
            " machines. Others on the way could read them, and the guard's sketches alone tell"
            " whether gradients were changed."
        )
    return found


def _evidence(record: RunRecord) -> list[str]:
    found = []
    if record.audit is None:
        found.append("No preflight audit is recorded.")
    else:
        # Checks, as everywhere: one that fails for two subjects is one.
        unknown = record.audit.counts.get(State.UNKNOWN, 0)
        failed = record.audit.counts.get(State.FAIL, 0)
        if unknown:
            found.append(
                f"The audit has {count(unknown, 'check')} without evidence: unknown is no pass."
            )
        if failed:
            found.append(
                f"The audit has {count(failed, 'failed check')}; the policy let the run go on."
            )
    missing = [
        view.boundary.value for view in record.boundaries if view.state is BoundaryState.NOT_CROSSED
    ]
    if missing:
        found.append(f"Nothing is recorded about these boundaries: {', '.join(missing)}.")
    return found


def _unsigned(said: Sequence[LedgerEvent]) -> list[str]:
    """Saves of the script beside the signed checkpoints."""
    found = [event for event in said if isinstance(event, events.CheckpointsNotSigned)]
    if not found:
        return []
    total = sum(event.saves for event in found)
    times = count(total, "time") if total else "at least once"
    ways = ", ".join(dict.fromkeys(way for one in found for way in one.ways.split(", ")))
    fields = ", ".join(dict.fromkeys(one.fields for one in found if one.fields))
    text = (
        f"{NOT_SIGNED}. The script saved {times} by {ways}, first {found[0].place}. 'securetrain"
        " verify' refuses what it saved, and nothing here says what is in it"
    )
    return [f"{text}; not enforced: {fields}." if fields else f"{text}."]


def _outside(said: Sequence[LedgerEvent]) -> list[str]:
    """Programs and loads that the policy does not reach."""
    found = []
    those = [event for event in said if isinstance(event, events.ProgramsNotProtected)]
    found += [
        f"{PROGRAMS_NOT_PROTECTED}. The workers ran without the shim; not enforced: {one.fields}."
        for one in those
        if one.fields
    ]
    programs = [event for event in those if not event.fields]
    if programs:
        found.append(
            f"{PROGRAMS_NOT_PROTECTED}. The script started programs without the shim, first"
            f" {programs[0].subject}; what they trained, saved and loaded is not known."
        )
    loads = [event for event in said if isinstance(event, events.LoadsNotHeld)]
    if loads:
        found.append(
            f"{LOADS_NOT_HELD}. The script loaded {loads[0].subject} by {loads[0].ways}; not"
            f" enforced: {loads[0].fields}."
        )
    return found


def _unread(record: RunRecord, said: Sequence[LedgerEvent]) -> list[str]:
    """Data that the script took from elsewhere."""
    started = any(isinstance(event, events.RunStarted) for event in said)
    opened = any(isinstance(event, events.DatasetOpened) for event in said)
    if not started or opened or record.dataset is not None:
        return []
    asked = [event.fields for event in said if isinstance(event, events.DataNotKnown)]
    text = "No signed dataset was opened: what the script read is not known"
    return [f"{text}; not enforced: {asked[0]}." if asked else f"{text}."]


def _none(record: RunRecord) -> str:
    if any(fact.name == "worker shim" for fact in record.facts):
        return (
            "The run directory has no checkpoint. What the workers saved elsewhere is not known:"
            " they ran without the shim."
        )
    return (
        "The run directory has no checkpoint. A save elsewhere is known only where the script used"
        " a function that is watched."
    )


def _saved_files(said: Sequence[LedgerEvent]) -> list[str]:
    """Saves of the script in other formats that were signed."""
    found = [event for event in said if isinstance(event, events.SavedFilesSigned)]
    if not found:
        return []
    times = count(len(found), "save")
    text = (
        f"{times} of the script in other formats were signed as they were written; 'securetrain"
        " verify' reads every byte. That they hold what training made is the script's word."
    )
    return [text]


def _artifacts(record: RunRecord, said: Sequence[LedgerEvent]) -> list[str]:
    proven = {
        result.digest
        for result in record.verifications
        if result.ok and result.kind == "checkpoint"
    }
    open_ones = [
        checkpoint.name for checkpoint in record.checkpoints if checkpoint.digest not in proven
    ]
    if not record.checkpoints:
        return _saved_files(said) or ([] if _unsigned(said) else [_none(record)])
    if open_ones:
        text = (
            f"For {len(open_ones)} of {len(record.checkpoints)} checkpoints only the statement's"
            " signature was checked; 'securetrain verify' reads every byte."
        )
        return [text]
    return []


def _guard(record: RunRecord, said: Sequence[LedgerEvent]) -> list[str]:
    labels = {label for view in record.boundaries for label in view.labels}
    if NOT_WATCHED in labels:
        text = (
            f"{NOT_WATCHED}. Of what steps were made, some or all were on gradients that nobody"
            " judged; the ledger says why (gradients-not-watched)."
        )
        return [text]
    if record.guard is None:
        judged = sum(e.judged for e in said if isinstance(e, events.GradientsJudged))
        if judged:
            return [f"{count(judged, 'step')} were judged; their curves are not here."]
        return ["No gradient was judged, as far as is recorded."]
    ranks = {point.rank for point in record.guard.points}
    if len(ranks) == 1:
        return ["With one rank there is nobody to compare its gradients with."]
    if len(ranks) == 2:
        text = (
            "With two ranks the guard can see that they differ, not which one is wrong: telling"
            " needs at least three."
        )
        return [text]
    return []
