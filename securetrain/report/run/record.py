# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read a run directory into the one model of a report.

Rules, in order:

1. only files of the run directory are read, each with a size limit;
2. signed things (trust root, ledger, statements) are verified here and now, against the run's trust
   root; one that does not verify is shown as refused and nothing that it says is used;
3. unsigned things (metrics, sketches, audit, drills, recorded verifications) are shown as recorded;
   the report's limits say that they are not signed;
4. what is missing is *not recorded*; what is malformed is a problem that the report names.
"""

import hashlib
import re
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.artifacts import STATEMENT, Kind
from securetrain.artifacts.lineage import quarantine
from securetrain.artifacts.statement import CheckpointPredicate, Opened, open_statement
from securetrain.core import ExitCode, RunDir
from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.core.vocabulary import Decision, NetworkProfile, degraded_label
from securetrain.identity.trust import LIMIT as TRUST_LIMIT
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import Entry, Reading, read_ledger
from securetrain.policy.load import LoadedPolicy, load_resolved
from securetrain.report.run import boundaries, guard, limits
from securetrain.report.run.model import (
    ArtifactView,
    AuditView,
    DrillView,
    Fact,
    FindingView,
    LedgerLine,
    LedgerView,
    PolicyView,
    Proof,
    ProofState,
    RunRecord,
    StepPoint,
    TrustView,
    VerificationView,
)
from securetrain.report.run.reading import LINES_LIMIT, Reader

DRILLS_FILE: Final = "drills.json"
VERIFY_FILE: Final = "verify.json"
STATEMENT_LIMIT: Final = 64 << 20
MAX_LINES: Final = 60
"""Entries of the ledger that a report shows; all are counted."""
MAX_CHECKPOINTS: Final = 200


class _AuditFile(msgspec.Struct, frozen=True):
    findings: list[dict[str, Any]]
    counts: dict[str, int] = {}
    exit_code: int | None = None


class _Drills(msgspec.Struct, frozen=True):
    drills: list[DrillView]


class _Verifications(msgspec.Struct, frozen=True):
    results: list[VerificationView]


class _Node(msgspec.Struct, frozen=True):
    node: str
    tier: str = ""
    label: str = ""


class _Enforced(msgspec.Struct, frozen=True):
    """One part of the policy that depends on the script."""

    label: str = ""


class _Outside(msgspec.Struct, frozen=True):
    labels: tuple[str, ...] = ()


class _Summary(msgspec.Struct, frozen=True):
    """The content of run.json; every field may be missing."""

    run_id: str = ""
    outcome: str = ""
    exit_code: int | None = None
    code: str = ""
    what: str = ""
    started: str = ""
    ended: str | None = None
    network: str | None = None
    command: tuple[str, ...] = ()
    world_size: int = 0
    torch: str = ""
    nodes: tuple[_Node, ...] = ()
    protected: bool = True
    sandbox: str = ""
    gradients: _Enforced | None = None
    checkpoints: _Enforced | None = None
    outside: _Outside | None = None
    egress: str = ""


def read_run(root: Path, now: datetime) -> RunRecord:
    """Read and judge a run directory at time `now`.

    Raises:
        UsageError: ST-USAG-002 when it is not a run directory.
    """
    run = RunDir(root)
    if not root.is_dir() or not (run.trust.exists() or run.ledger.exists()):
        raise UsageError(
            "ST-USAG-002",
            "not a run directory: it has neither trust.json nor ledger.jsonl",
            str(root),
            "name the directory that 'securetrain run' or 'quickstart' printed",
        )
    reader = Reader(root)
    trust, trust_view = _trust(reader, run, now)
    said, ledger = _ledger(reader, run, trust)
    policy = _policy(reader, run)
    audit = _audit(reader, run)
    dataset = _artifact(reader, run.dataset, Kind.DATASET, trust)
    checkpoints = _checkpoints(reader, run, trust)
    verifications = reader.json(root / VERIFY_FILE, _Verifications)
    drills = reader.json(root / DRILLS_FILE, _Drills)
    summary = reader.json(run.summary, _Summary) or _Summary()
    seen = guard.view(
        reader.lines(run.sketches, guard.Step),
        said.events if said else (),
        policy.policy.gradients if policy else None,
    )
    views = boundaries.judge(
        ledger=ledger.proof,
        events=said.events if said else (),
        ignored=said.ignored if said else (),
        audit=audit,
        trust=trust_view.proof,
        dataset=dataset,
        checkpoints=checkpoints,
    )
    outcome, outcome_ok = _outcome(summary)
    partial = RunRecord(
        run_dir=str(root),
        run_id=summary.run_id or root.resolve().name,
        made=now,
        outcome=outcome,
        outcome_ok=outcome_ok,
        facts=_facts(summary),
        policy=_policy_view(policy),
        trust=trust_view,
        ledger=ledger,
        boundaries=views,
        metrics=reader.lines(run.metrics, StepPoint),
        guard=seen,
        dataset=dataset,
        checkpoints=checkpoints,
        verifications=tuple(verifications.results) if verifications else (),
        audit=audit,
        drills=tuple(drills.drills) if drills else (),
        limits=(),
        problems=(),
    )
    return msgspec.structs.replace(
        partial,
        limits=limits.of(
            partial, keys_in_run=run.key("root").exists(), said=said.events if said else ()
        ),
        problems=tuple(reader.problems),
    )


def _trust(reader: Reader, run: RunDir, now: datetime) -> tuple[TrustRoot | None, TrustView]:
    data = reader.data(run.trust, TRUST_LIMIT)
    if data is None:
        return None, TrustView(proof=Proof(what="no trust root in the run directory"))
    digest = hashlib.sha256(data).hexdigest()
    try:
        trust = TrustRoot.parse(data, now, run.trust.name)
    except SecureTrainError as error:
        return None, TrustView(proof=_refused(error), digest=digest)
    roles = {role.value: tuple(trust.keys_for(role)) for role in TrustRole}
    return trust, TrustView(
        proof=Proof(
            state=ProofState.VERIFIED, key_ids=tuple(sorted(trust.keys_for(TrustRole.ROOT)))
        ),
        digest=digest,
        expires=trust.document.expires,
        roles=roles,
    )


def _ledger(
    reader: Reader, run: RunDir, trust: TrustRoot | None
) -> tuple[Reading | None, LedgerView]:
    data = reader.data(run.ledger, LINES_LIMIT)
    if data is None:
        missing = Proof(what="no ledger in the run directory")
        return None, LedgerView(proof=missing)
    if trust is None:
        proof = Proof(
            state=ProofState.REFUSED, code="ST-IDEN-007", what="no valid trust root to check it by"
        )
        return None, LedgerView(proof=proof)
    try:
        said = read_ledger(data, trust, where=run.ledger.name)
    except SecureTrainError as error:
        return None, LedgerView(proof=_refused(error))
    entries = said.verified.entries
    signers = tuple(sorted({entry.keyid for entry in entries}))
    lines = [_line(recorded.entry) for recorded in said.recorded]
    ignored = tuple(map(str, said.ignored))
    for line in ignored[:MAX_LINES]:
        reader.problem(run.ledger, line)
    return said, LedgerView(
        proof=Proof(state=ProofState.VERIFIED, key_ids=signers),
        closed=said.closed,
        head=said.verified.head,
        num_entries=len(entries),
        counts={d: sum(line.decision is d for line in lines) for d in Decision},
        refusals=tuple(line for line in lines if line.decision is Decision.REFUSE)[:MAX_LINES],
        last=tuple(lines[-MAX_LINES:]),
        ignored=ignored[:MAX_LINES],
        names_writers=said.names_writers,
    )


def _line(entry: Entry) -> LedgerLine:
    event = entry.body.event
    return LedgerLine(
        seq=entry.body.seq,
        time=entry.body.time,
        writer=entry.body.writer,
        boundary=event.boundary,
        decision=event.decision,
        event=event.event,
        subject=event.subject,
        code=event.code,
        details=", ".join(
            f"{name} {value}" for name, value in event.details.items() if value != ""
        ),
    )


def _policy(reader: Reader, run: RunDir) -> LoadedPolicy | None:
    if not run.resolved_policy.exists():
        return None
    try:
        return load_resolved(run.resolved_policy)
    except SecureTrainError as error:
        reader.problem(run.resolved_policy, error.what)
        return None


def _policy_view(loaded: LoadedPolicy | None) -> PolicyView | None:
    if loaded is None:
        return None
    metadata = loaded.policy.metadata
    return PolicyView(
        id=metadata.id, version=metadata.version, title=metadata.title, digest=loaded.digest
    )


def _audit(reader: Reader, run: RunDir) -> AuditView | None:
    found = reader.json(run.audit, _AuditFile)
    if found is None:
        return None
    findings = []
    for raw in found.findings:
        try:
            texts = {name: _text(raw.get(name)) for name in ("subject", "evidence", "remediation")}
            severity = raw.get("severity_in_context", raw.get("severity"))
            findings.append(msgspec.convert({**raw, **texts, "severity": severity}, FindingView))
        except msgspec.ValidationError as error:
            reader.problem(run.audit, f"a finding is malformed: {error}")
    return AuditView(findings=tuple(findings), counts=found.counts, exit_code=found.exit_code)


def _text(value: object) -> str:
    """Evidence may be text, a list or a mapping; a report shows one line."""
    match value:
        case None:
            return ""
        case str():
            return value
        case dict():
            return ", ".join(f"{name}: {_text(inner)}" for name, inner in value.items())
        case list() | tuple():
            return "; ".join(_text(inner) for inner in value)
        case _:
            return str(value)


def _artifact(
    reader: Reader, folder: Path, kind: Kind, trust: TrustRoot | None
) -> ArtifactView | None:
    """One signed directory, judged by the signature of its statement (not by its content)."""
    if not folder.is_dir():
        return None
    name = folder.name
    data = reader.data(folder / STATEMENT, STATEMENT_LIMIT)
    if data is None:
        proof = Proof(state=ProofState.REFUSED, code=kind.code(100), what="it has no statement")
        return ArtifactView(name=name, proof=proof)
    if trust is None:
        proof = Proof(
            state=ProofState.REFUSED, code="ST-IDEN-007", what="no valid trust root to check it by"
        )
        return ArtifactView(name=name, proof=proof)
    try:
        opened = open_statement(data, kind, trust, f"{name}/{STATEMENT}")
    except SecureTrainError as error:
        return ArtifactView(name=name, proof=_refused(error))
    view = _artifact_view(name, opened)
    for problem in quarantine.check(folder, opened, trust):
        view = msgspec.structs.replace(view, proof=_refused(problem.error(name)))
    return view


def _artifact_view(name: str, opened: Opened) -> ArtifactView:
    proof = Proof(state=ProofState.VERIFIED, key_ids=tuple(sorted(opened.key_ids)))
    said = opened.predicate
    created = said.created.strftime("%Y-%m-%d %H:%M:%S UTC")
    num_bytes = sum(file.size for file in said.files)
    if not isinstance(said, CheckpointPredicate):
        return ArtifactView(
            name=said.name or name,
            proof=proof,
            digest=opened.digest,
            created=created,
            num_bytes=num_bytes,
            metadata=dict(said.metadata),
        )
    record = said.gradients
    return ArtifactView(
        name=name,
        proof=proof,
        digest=opened.digest,
        step=said.step,
        created=created,
        verdict=record.verdict.value,
        num_judged=record.judged,
        num_refused=record.refused,
        dataset=said.dataset.digest,
        policy=said.policy.digest,
        parents=tuple(parent.digest for parent in said.parents),
        num_bytes=num_bytes,
    )


def _checkpoints(reader: Reader, run: RunDir, trust: TrustRoot | None) -> tuple[ArtifactView, ...]:
    if not run.checkpoints.is_dir():
        return ()
    folders = sorted(
        folder
        for folder in run.checkpoints.iterdir()
        if folder.is_dir() and not folder.is_symlink() and ".tmp-" not in folder.name
    )
    if len(folders) > MAX_CHECKPOINTS:
        reader.problem(run.checkpoints, f"only the last {MAX_CHECKPOINTS} are shown")
    views = [
        _artifact(reader, folder, Kind.CHECKPOINT, trust) for folder in folders[-MAX_CHECKPOINTS:]
    ]
    return tuple(view for view in views if view is not None)


def _outcome(summary: _Summary) -> tuple[str, bool | None]:
    """The words of the outcome, and whether it is a good one (None: not known)."""
    if not summary.outcome:
        return "not recorded", None
    if summary.outcome == "running":
        return "never ended, or still running", None
    text = f"{summary.outcome} {summary.code}".strip()
    return text, summary.exit_code == 0


def _facts(summary: _Summary) -> tuple[Fact, ...]:
    nodes = [f"{n.node} {n.tier} {n.label}".strip() for n in summary.nodes]
    command = f"securetrain run {' '.join(summary.command)}" if summary.command else ""
    pairs = [
        ("what happened", summary.what),
        ("last started", _time(summary.started)),
        ("last ended", _time(summary.ended or "")),
        ("nodes", "; ".join(nodes)),
        ("network", _network(summary.network)),
        ("workers", str(summary.world_size or "")),
        ("worker shim", "" if summary.protected else "OFF: workers were not protected"),
        ("sandbox", summary.sandbox),
        ("gradients", summary.gradients.label if summary.gradients else ""),
        ("checkpoints", summary.checkpoints.label if summary.checkpoints else ""),
        *(("not enforced", line) for line in (summary.outside.labels if summary.outside else ())),
        ("egress", summary.egress),
        ("torch", summary.torch),
        ("command", command),
    ]
    return tuple(Fact(name=name, value=value) for name, value in pairs if value)


def _network(name: str | None) -> str:
    """The profile, with its label when some of the job's bytes were in the clear."""
    try:
        return degraded_label(NetworkProfile(name)) if name else ""
    except ValueError:
        return str(name)


def exit_code_of(record: RunRecord) -> ExitCode:
    """4 when something signed does not verify or a file is malformed, 1 when the run or a drill
    failed, else 0. A checkpoint that the run itself has set aside is no failure of the run.
    """
    proofs = [
        record.trust.proof,
        record.ledger.proof,
        *(checkpoint.proof for checkpoint in record.checkpoints),
        *([record.dataset.proof] if record.dataset else []),
    ]
    refused = [
        proof
        for proof in proofs
        if proof.state is ProofState.REFUSED and proof.code != "ST-CKPT-160"  # set aside by itself
    ]
    if record.problems or refused:
        return ExitCode.INTEGRITY
    if record.outcome_ok is False or not all(drill.ok for drill in record.drills):
        return ExitCode.FAILURE
    return ExitCode.OK


def _time(text: str) -> str:
    """RFC 3339 without the fraction of a second, for people."""
    return re.sub(r"T(\d\d:\d\d:\d\d)(\.\d+)?Z$", r" \1 UTC", text)


def _refused(error: SecureTrainError) -> Proof:
    return Proof(state=ProofState.REFUSED, code=error.code, what=error.what)
