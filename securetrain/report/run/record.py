# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read a run directory into the one model of a report.

Rules, in order:

1. the run directory is opened once, and only its own files are read, by that handle, each with a
   size limit;
2. signed things (trust root, ledger, statements) are verified here and now, against the run's trust
   root; one that does not verify is shown as refused and nothing that it says is used;
3. unsigned things (metrics, sketches, audit, drills, recorded verifications) are shown as recorded;
   the report's limits say that they are not signed;
4. what is missing is *not recorded* (``None``); what is malformed or cannot be read is a problem
   that the report names, and never treated as missing.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from securetrain.artifacts import STATEMENT, Kind
from securetrain.artifacts.lineage import quarantine
from securetrain.artifacts.statement.statements import CheckpointPredicate, open_statement
from securetrain.core import ExitCode, RunDir, canonical, holding
from securetrain.core.errors import IdentityError, IntegrityError, SecureTrainError, UsageError
from securetrain.core.files import read_file
from securetrain.core.vocabulary import Decision, NetworkProfile, degraded_label
from securetrain.identity.trust import LIMIT as TRUST_LIMIT
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import Entry, Reading, events, read_ledger
from securetrain.policy.load import LoadedPolicy, load_resolved
from securetrain.report.document import picked
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
    SaveView,
    StepPoint,
    TrustView,
    VerificationView,
)

DRILLS_FILE: Final = "drills.json"
VERIFY_FILE: Final = "verify.json"
STATEMENT_LIMIT: Final = 64 << 20
JSON_LIMIT: Final = 16 << 20
LINES_LIMIT: Final = 256 << 20
LINE_LIMIT: Final = 1 << 20
MAX_LINES: Final = 60
"""Entries of the ledger that a report shows; all are counted."""
MAX_CHECKPOINTS: Final = 200

T = TypeVar("T")


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


@dataclass(slots=True)
class _Reader:
    """A reader of files below one folder, with limits, which remembers what was wrong with them."""

    root: Path
    problems: list[str] = field(default_factory=list)

    def data(self, path: Path, limit: int) -> bytes | None:
        """The bytes of a file, or None when it is missing or a problem."""
        if path.exists() or path.is_symlink():
            with self.noting(path):
                return read_file(path, limit)
        return None

    def json(self, path: Path, kind: type[T]) -> T | None:
        """A JSON document of `kind`; fields that `kind` does not name are left alone."""
        if (data := self.data(path, JSON_LIMIT)) is not None:
            with self.noting(path):
                return canonical.decode(data, kind, limit=JSON_LIMIT, where=str(path))
        return None

    def lines(self, path: Path, kind: type[T]) -> tuple[T, ...]:
        """The lines of a JSONL file; the bad ones are counted as one problem."""
        found, bad = [], []
        for number, line in enumerate((self.data(path, LINES_LIMIT) or b"").splitlines(), start=1):
            try:
                value = canonical.loads(line, limit=LINE_LIMIT)
                found.append(msgspec.convert(value, kind, strict=False))
            except (SecureTrainError, msgspec.ValidationError):
                bad.append(number)
        if bad:
            self.problem(path, f"{len(bad)} unreadable lines, the first is line {bad[0]}")
        return tuple(found)

    @contextmanager
    def noting(self, path: Path) -> Iterator[None]:
        """Remember what a file is refused for."""
        try:
            yield
        except SecureTrainError as error:
            self.problem(path, error.what)

    def problem(self, path: Path, what: str) -> None:
        """Remember that a file is not what it should be."""
        name = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        self.problems.append(f"{name}: {what}")


def read_run(root: Path, now: datetime) -> RunRecord:
    """Read and judge a run directory at time `now`.

    Raises:
        UsageError: ST-USAG-002 when it is not a run directory.
    """
    with holding(root) if root.is_dir() else nullcontext(root) as held:
        return _read_run(held, now)


def _read_run(root: Path, now: datetime) -> RunRecord:
    run = RunDir(root)
    if not root.is_dir() or not (run.trust.exists() or run.ledger.exists()):
        raise UsageError(
            "ST-USAG-002",
            "not a run directory: it has neither trust.json nor ledger.jsonl",
            str(root),
            "name the directory that 'securetrain run' or 'quickstart' printed",
        )
    reader = _Reader(root)
    trust, trust_view = _trust(reader, run, now)
    policy = _policy(reader, run)
    said, ledger = _ledger(reader, run, trust, policy)
    audit = _audit(reader, run)
    dataset = _artifact(reader, run.dataset, Kind.DATASET, trust)
    checkpoints = _checkpoints(reader, run, trust)
    verifications = reader.json(root / VERIFY_FILE, _Verifications)
    drills = reader.json(root / DRILLS_FILE, _Drills)
    summary = reader.json(run.summary, _Summary) or _Summary()
    counted, settings = said.events if said else (), policy.policy.gradients if policy else None
    seen = guard.view(reader.lines(run.sketches, guard.Step), counted, settings)
    outcome, outcome_ok = _outcome(summary)
    record = RunRecord(
        run_dir=str(root),
        run_id=summary.run_id or root.resolve().name,
        made=now,
        outcome=outcome,
        outcome_ok=outcome_ok,
        facts=_facts(summary),
        policy=_policy_view(policy),
        trust=trust_view,
        ledger=ledger,
        metrics=reader.lines(run.metrics, StepPoint),
        guard=seen,
        dataset=dataset,
        checkpoints=checkpoints,
        verifications=tuple(verifications.results) if verifications else (),
        audit=audit,
        drills=tuple(drills.drills) if drills else (),
        problems=tuple(reader.problems),
    )
    record = msgspec.structs.replace(record, boundaries=boundaries.judge(record, said))
    bounds = limits.of(record, keys_in_run=run.key("root").exists(), said=counted)
    return msgspec.structs.replace(record, limits=bounds)


def _trust(reader: _Reader, run: RunDir, now: datetime) -> tuple[TrustRoot | None, TrustView]:
    data = reader.data(run.trust, TRUST_LIMIT)
    missing = Proof(what="no trust root in the run directory")
    trust, proof = _proven(data, missing, lambda raw: TrustRoot.parse(raw, now, run.trust.name))
    digest = hashlib.sha256(data).hexdigest() if data is not None else ""
    if trust is None:
        return None, TrustView(proof=proof, digest=digest)
    roles = {role.value: tuple(trust.keys_for(role)) for role in TrustRole}
    proof = _verified(trust.keys_for(TrustRole.ROOT))
    return trust, TrustView(proof=proof, digest=digest, expires=trust.document.expires, roles=roles)


def _proven(
    data: bytes | None, missing: Proof, parse: Callable[[bytes], T]
) -> tuple[T | None, Proof]:
    """The content of signed bytes, where they verify, and the proof."""
    if data is None:
        return None, missing
    try:
        return parse(data), Proof(state=ProofState.VERIFIED)
    except SecureTrainError as error:
        return None, _refused(error)


def _verified(key_ids: Iterable[str]) -> Proof:
    return Proof(state=ProofState.VERIFIED, key_ids=tuple(sorted(set(key_ids))))


def _refused(error: SecureTrainError) -> Proof:
    return Proof(state=ProofState.REFUSED, code=error.code, what=error.what)


def _needed(trust: TrustRoot | None) -> TrustRoot:
    if trust is None:
        raise IdentityError("ST-IDEN-007", "no valid trust root to check it by")
    return trust


def _ledger(
    reader: _Reader, run: RunDir, trust: TrustRoot | None, policy: LoadedPolicy | None
) -> tuple[Reading | None, LedgerView]:
    said, proof = _proven(
        reader.data(run.ledger, LINES_LIMIT),
        Proof(what="no ledger in the run directory"),
        lambda data: read_ledger(data, _needed(trust), where=run.ledger.name),
    )
    if said is None:
        return None, LedgerView(proof=proof)
    if not said.begun:
        what = "its first line is not this run's beginning: an earlier version's, or begun again"
        return None, LedgerView(proof=_refused(IntegrityError("ST-LEDG-005", what)))
    if policy is not None and said.policy not in {"", policy.digest}:
        what = f"it was begun under the policy {said.policy[:16]}, not the one beside it"
        return None, LedgerView(proof=_refused(IntegrityError("ST-LEDG-005", what)))
    entries = said.verified.entries
    lines = [_line(recorded.entry) for recorded in said.recorded]
    ignored = tuple(map(str, said.ignored[:MAX_LINES]))
    for line in ignored:
        reader.problem(run.ledger, line)
    proof = _verified(entry.keyid for entry in entries)
    if not said.closed:
        proof = msgspec.structs.replace(proof, state=ProofState.OPEN)
    return said, LedgerView(
        proof=proof,
        closed=said.closed,
        head=said.verified.head,
        num_entries=len(said.recorded) + len(said.ignored),
        counts={d: sum(line.decision is d for line in lines) for d in Decision},
        refusals=tuple(line for line in lines if line.decision is Decision.REFUSE)[:MAX_LINES],
        last=tuple(lines[-MAX_LINES:]),
        saves=tuple(_saves(said)),
        ignored=ignored,
        names_writers=said.names_writers,
    )


def _line(entry: Entry) -> LedgerLine:
    event = entry.body.event
    details = ", ".join(f"{name} {value}" for name, value in event.details.items() if value != "")
    told = picked(entry.body, "seq time writer", details=details)
    return LedgerLine(**told, **picked(event, "boundary decision event subject code"))


def _saves(said: Reading) -> Iterator[SaveView]:
    for line in said.recorded:
        if isinstance(one := line.event, events.SavedFilesSigned):
            told = picked(one, "way files number step", rank=one.subject, time=line.time)
            name = f"{one.place}/{one.file}" if one.file else one.place
            yield SaveView(seq=line.entry.body.seq, name=name, **told)


def _policy(reader: _Reader, run: RunDir) -> LoadedPolicy | None:
    if run.resolved_policy.exists():
        with reader.noting(run.resolved_policy):
            return load_resolved(run.resolved_policy)
    return None


def _policy_view(loaded: LoadedPolicy | None) -> PolicyView | None:
    if loaded is None:
        return None
    told = picked(loaded.policy.metadata, "id version title")
    return PolicyView(digest=loaded.digest, **told)


def _audit(reader: _Reader, run: RunDir) -> AuditView | None:
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
    reader: _Reader, folder: Path, kind: Kind, trust: TrustRoot | None
) -> ArtifactView | None:
    """One signed directory, judged by the signature of its statement (not by its content)."""
    if not folder.is_dir():
        return None
    name = folder.name
    opened, proof = _proven(
        reader.data(folder / STATEMENT, STATEMENT_LIMIT),
        Proof(state=ProofState.REFUSED, code=kind.code(100), what="it has no statement"),
        lambda data: open_statement(data, kind, _needed(trust), f"{name}/{STATEMENT}"),
    )
    if opened is None:
        return ArtifactView(name=name, proof=proof)
    proof, said = _verified(opened.key_ids), opened.predicate
    for problem in quarantine.check(folder, opened, _needed(trust)):
        proof = _refused(problem.error(name))
    view = ArtifactView(
        name=name,
        proof=proof,
        digest=opened.digest,
        created=said.created.strftime("%Y-%m-%d %H:%M:%S UTC"),
        num_bytes=sum(file.size for file in said.files),
    )
    if not isinstance(said, CheckpointPredicate):
        own = dict(said.metadata)
        return msgspec.structs.replace(view, name=said.name or name, metadata=own)
    return msgspec.structs.replace(
        view,
        step=said.step,
        verdict=said.gradients.verdict.value,
        num_judged=said.gradients.judged,
        num_refused=said.gradients.refused,
        dataset=said.dataset.digest,
        policy=said.policy.digest,
        parents=tuple(parent.digest for parent in said.parents),
    )


def _checkpoints(reader: _Reader, run: RunDir, trust: TrustRoot | None) -> tuple[ArtifactView, ...]:
    folders = sorted(
        folder
        for folder in (run.checkpoints.iterdir() if run.checkpoints.is_dir() else ())
        if folder.is_dir() and not folder.is_symlink() and ".tmp-" not in folder.name
    )
    if len(folders) > MAX_CHECKPOINTS:
        reader.problem(run.checkpoints, f"only the last {MAX_CHECKPOINTS} are shown")
    shown = folders[-MAX_CHECKPOINTS:]
    views = (_artifact(reader, folder, Kind.CHECKPOINT, trust) for folder in shown)
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
    signed = [record.trust, record.ledger, record.dataset, *record.checkpoints]
    proofs = [one.proof for one in signed if one is not None]
    set_aside = "ST-CKPT-160"
    if record.problems or any(
        proof.state is ProofState.REFUSED and proof.code != set_aside for proof in proofs
    ):
        return ExitCode.INTEGRITY
    failed = record.outcome_ok is False or not all(drill.ok for drill in record.drills)
    return ExitCode.FAILURE if failed else ExitCode.OK


def _time(text: str) -> str:
    """RFC 3339 without the fraction of a second, for people."""
    return re.sub(r"T(\d\d:\d\d:\d\d)(\.\d+)?Z$", r" \1 UTC", text)
