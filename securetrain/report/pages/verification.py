# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answers of ``verify`` and ``scan``."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from securetrain.artifacts import (
    NOTHING,
    CheckedWords,
    Examined,
    Finding,
    Problem,
    SavedResult,
    ScanResult,
    VerifyResult,
)
from securetrain.artifacts.lineage import Link
from securetrain.artifacts.statement import CheckpointPredicate, DatasetPredicate
from securetrain.chain import Judged, JudgedArtifact
from securetrain.core import ExitCode
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier, State
from securetrain.policy.load import LoadedPolicy
from securetrain.report.document import (
    Document,
    Findings,
    Located,
    Place,
    Row,
    Section,
    facts,
    notes,
    pairs,
    picked,
    plural,
    said,
    some,
    stated,
)

if TYPE_CHECKING:
    from securetrain.artifacts.model import ModelResult

MAX_SHOWN: Final = 50
SHOWN_DEPTH: Final = 64
"""Levels of a chain that are shown as a tree."""
NOBODY: Final = "nobody that this trust root names"


def verified(found: Examined, trust_file: Path) -> Document:
    """The outcome of ``verify`` for a checkpoint or dataset."""
    result, said = found.result, found.result.statement
    names = ["statement.json", *(file.name for file in (said.files if said is not None else ()))]
    if isinstance(said, CheckpointPredicate):
        names.append(said.index.name)
    answer = _answer(found)
    data = picked(
        result,
        "kind path digest num_files num_bytes truncated",
        key_ids=sorted(result.key_ids),
        log_index=None if result.logged is None else result.logged.index,
        policy=policy_data(found.policy),
        statement=msgspec.to_builtins(said),
        expected=[_given(one) for one in found.asked],
        not_asked=found.not_asked,
        answer=answer,
        **({"links": links(found.judged[0])} if isinstance(found, JudgedArtifact) else {}),
    )
    tree: tuple[Row, ...] = ()
    if (chain := found.chain) is not None:
        data["chain"], tree = chain.to_dict(), tuple(_tree(chain))
    head = facts([("answer", answer), *_facts(found, trust_file)])
    found_there = problems(result.problems, truncated=result.truncated)
    sections = [head, found_there, Section(rows=tree)]
    return _judged(result, str(result.kind), names, sections, data, found.scanned)


def _answer(found: Examined) -> str:
    """A checkpoint that held, in a sentence; empty for anything else."""
    if not isinstance(found, JudgedArtifact) or found.result.opened is None or not found.result.ok:
        return ""
    return found.judged[0].answer(found.result.opened.checkpoint)


def saved(result: SavedResult, trust_file: Path) -> Document:
    """The outcome of ``verify`` for what a script saved in another format."""
    keys = sorted({key[:16] for one in result.statements for key in one.key_ids})
    rows = [("signed by", signer(keys, trust_file))]
    for one in result.statements:
        said = one.said
        step = f"step {said.step}" if said.step is not None else "no step named"
        what = said.place if len(said.files) > 1 else f"{said.place}/{said.files[0].name}"
        text = f"{what}: {said.way}, rank {said.rank}, save {said.number}, {step}"
        rows.append(("saved", f"{text}, run {said.run_id}, {said.created.isoformat()}"))
    unshown = "that training made these bytes: a script has them signed"
    tail = facts([("checked", _checked(result)), ("not shown", unshown)])
    names = [file.name for one in result.statements for file in one.said.files]
    sections = [facts(rows, most=MAX_SHOWN), tail, problems(result.problems)]
    return _judged(result, "saved files", names, sections, result.to_dict())


def model(result: "ModelResult", scanned: ScanResult | None) -> Document:
    """The outcome of ``verify --bundle`` for a model."""
    told = "path bundle signer num_files num_bytes left_out unsigned notes"
    data = picked(result, told, kind="model")
    size = f"{result.num_files} files, {result.num_bytes:,} bytes"
    unread = {
        "nobody signed them, and unsigned files are ignored": result.unsigned,
        "the format, the bundle or you leave them out": result.left_out,
    }
    rows = [
        (f"NOT VERIFIED ({len(names)})", f"{some(names, MAX_SHOWN)}: {why}")
        for why, names in unread.items()
        if names
    ]
    sections = [
        facts([("signed by", result.signer or "no named signer"), ("checked", size)]),
        stated(rows),
        notes(result.notes, most=MAX_SHOWN),
        problems(result.problems),
    ]
    names = [result.bundle.name, *(resource.name for resource in result.resources)]
    return _judged(result, "model", names, sections, data, scanned)


def scan(result: ScanResult, *, opcodes: bool) -> Document:
    """The findings of ``scan``; with `opcodes`, also all that every pickle does."""
    pickles = [one for one in result.judged if one.format == "pickle"]
    judged = f"{len(result.judged)} files and members, {len(pickles)} of them pickles"
    number = len({name for one in pickles for name in one.globals})
    passed = f"{len(result.passed_over)} files without weights or objects"
    head = [
        ("scanned", f"{judged}, {result.num_bytes:,} bytes"),
        ("globals", f"{number} different ones"),
        ("passed by", passed if result.passed_over else ""),
    ]
    inside = [
        said(*sorted(one.globals), f"opcodes: {pairs(one.opcodes.most_common())}", title=one.name)
        for one in (pickles if opcodes else ())
    ]
    return Document(
        verb="scan",
        word="CLEAN" if result.ok else "NOT CLEAN",
        about=str(result.path),
        sections=[facts(head), *inside, problems(result.findings, truncated=result.truncated)],
        findings=_scanned(result),
        data=result.to_dict(),
        code=result.exit_code,
    )


def words(checked: CheckedWords) -> Document:
    """The words of a disputed reduction, whose they are, and what they say about the ranks."""
    ruling, transcript = checked.ruling, checked.transcript
    code = ExitCode.OK if checked.is_signed else ExitCode.BAD_SIGNATURE
    named, uncertified = (
        {str(rank): why for rank, why in of.items()} for of in (ruling.named, checked.uncertified)
    )
    told = {"kind": "dispute", "named": named, "uncertified": uncertified, "exit": int(code)}
    told |= picked(ruling, "disputes unsigned", attempts=len(transcript.attempts))
    data = picked(transcript, "run_id turn ranks", digest=checked.digest, **told)
    missing = "its signature is missing or does not verify"
    said = [
        ("dispute", f"rank {one} and rank {other} contradict each other; neither is named")
        for one, other in ruling.disputes
    ]
    said += [("named", f"rank {rank} {why}") for rank, why in sorted(ruling.named.items())]
    rows = [Row(name=name, text=text) for name, text in said]
    rows += [
        Row(state="not signed", text=f"rank {rank}: {checked.uncertified.get(rank, missing)}")
        for rank in ruling.unsigned
    ]
    if not (ruling.disputes or ruling.named):
        rows.append(Row(text="no two words contradict each other"))
    if checked.is_signed:
        rows.append(Row(name="signed by all", text=", ".join(map(str, transcript.ranks))))
    about = f"words of {len(transcript.ranks)} ranks of {transcript.run_id}, turn {transcript.turn}"
    word = "VERIFIED" if checked.is_signed else "REFUSED"
    return Document(word=word, about=about, sections=[Section(rows=rows)], data=data, code=code)


def links(judged: Judged) -> dict[str, dict[str, Any]]:
    """The verdicts on the links of a checkpoint, for programs."""
    told = "state what expected found where"
    return {str(link): picked(verdict, told) for link, verdict in judged.verdicts.items()}


def located(problem: Problem) -> Located:
    """A problem of an artifact at its place."""
    at = Place(subject=problem.tensor, **picked(problem, "file offset length"))
    return Located(at=at, **picked(problem, "code what fix"))


def policy_data(policy: LoadedPolicy | None) -> dict[str, str] | None:
    """The policy that was asked, for programs."""
    return None if policy is None else {"id": policy.policy.metadata.id, "digest": policy.digest}


# --- what they share -----------------------------------------------------------------------------


def _judged(  # noqa: PLR0917 - all that a judgement of files has
    result: "VerifyResult | SavedResult | ModelResult",
    kind: str,
    names: Sequence[str],
    sections: Sequence[Section],
    data: dict[str, Any],
    scanned: ScanResult | None = None,
) -> Document:
    """A judgement of files, with that of a scan of the same directory.

    That nothing in it could be scanned is no problem here: the native format holds no objects, and
    every byte has been verified.
    """
    located_, code = list(map(located, result.problems)), int(result.exit_code)
    data["problems"] = [problem.to_dict() for problem in result.problems]
    if scanned is not None:
        found = [one for one in _scanned(scanned).problems if one.code != NOTHING]
        located_ += found
        code = code or (int(scanned.exit_code) if found else 0)
        data["scan"] = scanned.to_dict()
        sections = [*sections, *_scan_briefly(scanned)]
    return Document(
        verb="verify",
        word="VERIFIED" if result.ok else "REFUSED",
        about=f"{kind} {result.path}",
        sections=sections,
        findings=Findings(root=str(result.path), problems=tuple(located_), checked=tuple(names)),
        data=data | {"ok": code == 0, "exit": code},
        code=code,
    )


def _scanned(result: ScanResult) -> Findings:
    """The findings of a scan, each at its place on disk, with the member as its subject."""
    problems = []
    for one in result.findings:
        file, _, member = one.file.partition("!")
        offset, kind = (one.at, "member") if member else (one.offset, "variable")
        subject = ", ".join(filter(None, (member, one.item)))
        at = Place(file=file, offset=offset, subject=subject, subject_kind=kind)
        problems.append(Located(at=at, **picked(one, "code what fix")))
    names = tuple(one.name.partition("!")[0] for one in result.judged)
    return Findings(root=str(result.path), problems=tuple(problems), checked=names)


def _scan_briefly(scanned: ScanResult) -> Iterator[Section]:
    """The words that a scan adds to a verdict."""
    found = [one for one in scanned.findings if one.code != NOTHING]
    size = f"{len(scanned.judged)} files and members hold objects or weights"
    nothing = "" if found else "nothing that a loader would run"
    yield facts([("scan", size), ("scan", nothing)])
    yield problems(found)


def problems(
    found: Sequence[Problem | Finding], *, truncated: bool = False, most: int = MAX_SHOWN
) -> Section:
    """Codes, places and what was found; the fix of every code once."""
    rows = [
        Row(state=State.FAIL, name=one.code, text=one.what, source=one.place, fix=one.fix)
        for one in found
    ]
    title = plural(len(found), "problem") if found else ""
    lead = f"There are more; the first {len(found)} are listed." if found and truncated else ""
    return Section(title=title, lead=lead, rows=rows, most=most)


def policy_named(policy: LoadedPolicy | None) -> str:
    """The policy that was asked, for people; empty for none."""
    return "" if policy is None else f"{policy.policy.metadata.id} ({policy.digest[:16]})"


def signer(keys: Iterable[str], trust_file: Path) -> str:
    """The keys that signed something, and the trust root that names them."""
    shown = ", ".join(key[:16] for key in sorted(keys))
    return f"key {shown}, trusted by {trust_file}" if shown else NOBODY


def _checked(result: VerifyResult | SavedResult) -> str:
    every = ", every one of them" if result.ok else ""
    return f"{result.num_files} files, {result.num_bytes:,} bytes{every}"


def _facts(found: Examined, trust_file: Path) -> Iterator[tuple[str, str]]:
    result, policy = found.result, found.policy
    yield "signed by", signer(result.key_ids, trust_file)
    yield "digest", result.digest or ""
    if result.logged is not None:
        seen = "" if result.logged.seen is None else f", seen by {result.logged.seen.isoformat()}"
        origin = result.logged.signed.checkpoint.origin
        yield "logged", f"entry {result.logged.index} of {origin}{seen}"
    match result.statement:
        case CheckpointPredicate() as checkpoint:
            judged = found.judged[0] if isinstance(found, JudgedArtifact) else None
            yield from _checkpoint_facts(checkpoint, policy, judged)
        case DatasetPredicate() as dataset:
            yield from _dataset_facts(dataset)
        case None:
            yield "lineage", "unknown: there is no statement that verifies"
    yield "checked", _checked(result)
    none = "none given: integrity and signature only (--policy NAME asks for more)"
    yield "policy", policy_named(policy) or none
    for one in found.asked:
        yield "expected", pairs(_given(one).items())
    if found.not_asked:
        yield "not asked", f"{', '.join(found.not_asked)} (--expect-... asks)"


def _given(expected: object) -> dict[str, Any]:
    """The fields that were given."""
    fields = msgspec.to_builtins(expected).items()
    return {name: value for name, value in fields if value is not None}


def _checkpoint_facts(
    said: CheckpointPredicate, policy: LoadedPolicy | None, judged_: Judged | None
) -> Iterator[tuple[str, str]]:
    def whose(link: ChainLink) -> str:
        """The source: evidence, or only the key that signed the statement."""
        state = LinkState.MISSING if judged_ is None else judged_.verdicts[link].state
        seen = state in {LinkState.VERIFIED, LinkState.BROKEN}
        return f" ({state})" if seen else " (the signer's word)"

    yield "name", said.name or "none was signed"
    yield "run", f"{said.run_id or 'not named'}, step {said.step}, checkpoint {said.seq} of the run"
    yield "saved", f"{said.created.isoformat()} by {said.world_size} ranks"
    data = said.dataset
    cursor = pairs(sorted(data.cursor.items()))
    named = f"{data.name} ({data.digest[:16]}){', ' if cursor else ''}{cursor}"
    yield "dataset", f"{named}{whose(ChainLink.DATASET)}" if data.digest else "not named"
    under = f"{said.policy.id} ({said.policy.digest[:16]})" if said.policy.digest else "not named"
    if policy is not None and said.policy.digest:
        same = policy.digest == said.policy.digest
        under += ", the one given here" if same else ", another than the one given here"
    yield "made under", under + (whose(ChainLink.POLICY) if said.policy.digest else "")
    judged = said.gradients
    counts = f"{judged.judged} steps judged, {judged.refused} refused"
    yield "gradients", f"{judged.verdict}: {counts}{whose(ChainLink.GRADIENTS)}"
    for node in said.nodes:
        label = f" - {node.label}" if node.label else ""
        source = whose(ChainLink.NODES) if node.tier is not NodeTier.SELF_ASSERTED else ""
        yield "node", f"{node.node}: {node.tier}{label}{source}"
    for parent in said.parents:
        yield "parent", f"{parent.role} {parent.digest[:16]}{whose(ChainLink.PARENTS)}"


def _dataset_facts(said: DatasetPredicate) -> Iterator[tuple[str, str]]:
    yield "dataset", f"{said.name}, version {said.seq}, {len(said.files)} files"
    yield "signed", said.created.isoformat()
    yield "splits", ", ".join(f"{s.name} ({len(s.files)} files)" for s in said.splits)
    yield "licence", ", ".join(said.licenses)
    removed = sum(one.length for one in said.removed)
    yield "removed", f"{removed:,} bytes are not to be read" if said.removed else ""
    yield from sorted(said.metadata.items())


def _tree(chain: Link) -> Iterator[Row]:
    """The chain of a checkpoint: a tree as deep as a screen shows one, then a list."""
    for depth, link, _ in chain.levels():
        level = depth if depth <= SHOWN_DEPTH else 1  # a run saves thousands in a row
        head = f"{link.role} {link.digest[:16]} {link.path or ''}".rstrip()
        state = "BROKEN" if link.problem else ""
        yield Row(state=state, text=f"{head}  {link.problem}".rstrip(), depth=level)
        yield from (Row(text=fact, depth=level + 1) for fact in link.facts)
