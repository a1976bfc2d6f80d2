# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answers of ``verify`` and ``scan``."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.artifacts import Problem, findings, rules
from securetrain.artifacts.lineage import walk
from securetrain.artifacts.statement.statements import CheckpointPredicate, Opened
from securetrain.chain import Form, Judged, LineState, Verdict
from securetrain.core.vocabulary import ChainLink, LinkState, State
from securetrain.policy.load import LoadedPolicy
from securetrain.report.document import (
    Case,
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
from securetrain.report.graph import graphs

MAX_SHOWN: Final = 50
SHOWN_DEPTH: Final = 64
"""Levels of a chain that are shown as a tree."""


def scan(result: findings.ScanResult, *, opcodes: bool) -> Document:
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
        findings=scanned_at(result),
        data=result.to_dict(),
        code=result.exit_code,
    )


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


def scanned_at(result: findings.ScanResult) -> Findings:
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


def problems(
    found: Sequence[Problem | findings.Finding], *, truncated: bool = False, most: int = MAX_SHOWN
) -> Section:
    """Codes, places and what was found; the fix of every code once."""
    rows = [
        Row(state=State.FAIL, name=one.code, text=one.what, source=one.place, fix=one.fix)
        for one in found
    ]
    title = plural(len(found), "problem") if found else ""
    lead = f"There are more; the first {len(found)} are listed." if found and truncated else ""
    return Section(title=title, lead=lead, rows=rows, most=most)


def tree(chain: walk.Link) -> Iterator[Row]:
    """The chain of a checkpoint: a tree as deep as a screen shows one, then a list."""
    for depth, link, _ in chain.levels():
        level = depth if depth <= SHOWN_DEPTH else 1  # a run saves thousands in a row
        head = f"{link.role} {link.digest[:16]} {link.path or ''}".rstrip()
        state = "BROKEN" if link.problem else ""
        yield Row(state=state, text=f"{head}  {link.problem}".rstrip(), depth=level)
        word = f" ({LineState.WORD})"
        yield from (Row(text=fact + word, depth=level + 1) for fact in link.facts)


# --- verify --------------------------------------------------------------------------------------

_KINDS: Final[Mapping[Form, str]] = {
    Form.PACK: "pack",
    Form.SAVED: "saved files",
    Form.BUNDLE: "model",
}
NOTHING: Final = "The checkpoint's own statement does not verify: nothing it says counts."


def verified(found: Verdict) -> Document:
    """The outcome of ``verify``, whatever it was about, and the page of ``report`` for a pack."""
    if found.words is not None:
        return _words(found, found.words)
    sections = [
        facts(_facts(found), most=MAX_SHOWN),
        *_bundled(found),
        problems(found.problems, truncated=found.truncated),
        *_checkpoints(found),
        said("" if found.opened or found.form is not Form.PACK else NOTHING),
        Section(rows=tuple(tree(found.chain)) if found.chain is not None else ()),
        *_scanned(found),
    ]
    located_ = list(map(located, found.problems))
    if found.scanned is not None and found.findings:
        scanned = scanned_at(found.scanned).problems
        located_ += [one for one in scanned if one.code != findings.NOTHING]
    return Document(
        verb="verify",
        word="VERIFIED" if found.ok else "REFUSED",
        about=f"{_KINDS.get(found.form, found.kind)} {found.path}",
        sections=sections,
        findings=Findings(
            root=str(found.path),
            problems=tuple(located_),
            checked=tuple(_names(found)),
            tests=tuple(_cases(found)) if found.form is Form.PACK else None,
        ),
        data=_to_dict(found),
        code=found.exit_code,
    )


def _names(found: Verdict) -> Iterator[str]:
    """The files that were looked at."""
    if found.form is Form.PACK:
        yield Path(found.path).name
    elif found.form is Form.BUNDLE:
        yield from (found.bundled.bundle.name, *found.bundled.names)
    elif found.saves:
        yield from (file.name for one in found.saves for file in one.said.files)
    else:
        yield "statement.json"
        said = found.statement
        yield from (file.name for file in (said.files if said is not None else ()))
        if isinstance(said, CheckpointPredicate):
            yield said.index.name


def _bundled(found: Verdict) -> Iterator[Section]:
    """The files beside a bundle that nobody vouches for."""
    said_ = found.bundled
    unread = {
        "nobody signed them, and unsigned files are ignored": said_.unsigned,
        "the format, the bundle or you leave them out": said_.left_out,
    }
    rows = [
        (f"NOT VERIFIED ({len(names)})", f"{some(names, MAX_SHOWN)}: {why}")
        for why, names in unread.items()
        if names
    ]
    yield stated(rows)
    yield notes(said_.notes, most=MAX_SHOWN)


def _scanned(found: Verdict) -> Iterator[Section]:
    """The words that a scan adds to a verdict."""
    if found.scanned is not None:
        size = f"{len(found.scanned.judged)} files and members hold objects or weights"
        nothing = "" if found.findings else "nothing that a loader would run"
        yield facts([("scan", size), ("scan", nothing)])
        yield problems(found.findings)


def _words(found: Verdict, checked: rules.CheckedWords) -> Document:
    """The words of a disputed reduction, whose they are, and what they say about the ranks."""
    ruling, transcript, code = checked.ruling, checked.transcript, found.exit_code
    named, uncertified = (
        {str(rank): why for rank, why in of.items()} for of in (ruling.named, checked.uncertified)
    )
    told = {"kind": "dispute", "named": named, "uncertified": uncertified, "exit": int(code)}
    told |= picked(ruling, "disputes unsigned", attempts=len(transcript.attempts))
    data = picked(transcript, "run_id turn ranks", digest=checked.digest, **told)
    said_ = [
        ("dispute", f"rank {one} and rank {other} contradict each other; neither is named")
        for one, other in ruling.disputes
    ]
    said_ += [("named", f"rank {rank} {why}") for rank, why in sorted(ruling.named.items())]
    rows = [Row(name=name, text=text) for name, text in said_]
    rows += [Row(state="not signed", text=one.what) for one in found.problems]
    if not said_:
        rows.append(Row(text="no two words contradict each other"))
    if checked.is_signed:
        ranks = ", ".join(map(str, transcript.ranks))
        rows.append(Row(name="signed by all", text=f"{ranks}, each with the key of its node"))
    about = f"words of {len(transcript.ranks)} ranks of {transcript.run_id}, turn {transcript.turn}"
    word = "VERIFIED" if found.ok else "REFUSED"
    return Document(word=word, about=about, sections=[Section(rows=rows)], data=data, code=code)


def _checkpoints(result: Verdict) -> Iterator[Section]:
    """The links of each checkpoint as a graph, and the evidence of each."""
    known = {one.digest: one for one in (result.opened, *result.pack.ancestors) if one is not None}
    alone = result.form is not Form.PACK
    for number, judged in enumerate(result.judged[: graphs.MAX_CHECKPOINTS]):
        yield Section(
            title=f"step {judged.step}, {judged.digest[:12]} ({LineState.WORD})",
            lead="" if number else _left_out(result),
            rows=[
                _link(judged, link, known.get(judged.digest), result, number)
                for link in judged.verdicts
            ],
            figure=None if number else partial(graphs.links, result),
            page_only=bool(number) or alone,
        )


def _left_out(result: Verdict) -> str:
    hidden = len(result.judged) - graphs.MAX_CHECKPOINTS
    unjudged = max(0, len(result.pack.ancestors) + 1 - len(result.judged))
    said = ["* is required by the policy."]
    if unjudged == 1:
        said.append("One further checkpoint was followed, and none of its links was asked.")
    elif unjudged > 1:
        said.append(f"{unjudged} further checkpoints were followed; none of their links was asked.")
    if hidden > 0:
        said.append(f"{hidden} ancestors more: verify --format json has all of them.")
    return " ".join(said)


def _link(
    judged: Judged, link: ChainLink, opened: Opened | None, result: Verdict, number: int
) -> Row:
    verdict, required = judged.verdicts[link], link in result.required
    apart = f" (expected {verdict.expected}, found {verdict.found})"
    tiers = [f"{node} {tier}" for node, tier in sorted(verdict.tiers.items())]
    about = [verdict.where, *(f"bound {one}" for one in _bound(opened, link)), *tiers]
    return Row(
        state=str(verdict.state),
        name=f"{'*' if required else ' '} {link}",
        text=verdict.what + (apart if verdict.expected or verdict.found else ""),
        about="; ".join(filter(None, about)),
        anchor=f"c{number}-{link}",
    )


def _cases(result: Verdict) -> Iterator[Case]:
    """A test for each link of each checkpoint that was asked, and one for everything else."""
    left = list(result.problems)
    links: list[Case] = []
    for judged in result.judged:
        about = f"run {judged.run}, step {judged.step} ({judged.digest[:16]}): "
        told = [one for one in left if one.what.startswith(about)]
        used = []
        for link, verdict in judged.verdicts.items():
            missing = verdict.problem()
            if verdict.state is LinkState.NOT_ASKED:
                continue
            mine = [one for one in told if one.what.startswith(f"{about}{link} ")]
            used += mine
            found = tuple(map(located, mine))
            links.append(
                Case(
                    name=str(link),
                    group=f"step-{judged.step:08d}.{judged.digest[:16]}",
                    problems=found,
                    not_applicable=missing is not None and not found,
                )
            )
        left = [one for one in left if one not in used] if used else left
    yield Case(name=Path(result.path).name, problems=tuple(map(located, left)))
    yield from links


def _to_dict(found: Verdict) -> dict[str, Any]:
    told = "path digest num_files num_bytes truncated ok at seen answer"
    data = picked(
        found,
        told,
        kind=_KINDS.get(found.form, str(found.kind)).replace("saved files", "saved-files"),
        exit=int(found.exit_code),
        key_ids=sorted(found.key_ids),
        log_index=None if found.logged is None else found.logged.index,
        policy=policy_data(found.policy),
        lines=[picked(one, "name text state source") for one in found.lines()],
        not_asked=list(found.not_asked),
        why_not=found.not_asked,
        expected=[_given(one) for one in found.asked],
        required=sorted(found.required),
        checkpoints=[_links(one) for one in found.judged],
        num_ancestors=len(found.pack.ancestors),
        num_documents=found.pack.num_documents,
        held=[held_data(one, kind=one.opened.kind) for one in found.pack.held],
        problems=[problem.to_dict() for problem in found.problems],
    )
    if found.statement is not None:
        data["statement"] = _claim(found.statement)
    if found.saves:
        data["statements"] = [
            picked(one, "statement", key_ids=sorted(one.key_ids)) | _claim(one.said)
            for one in found.saves
        ]
    if found.form is Form.BUNDLE:
        data |= picked(found.bundled, "bundle signer left_out unsigned notes")
    if found.judged:
        data["links"] = links(found.judged[0])
    if found.chain is not None:
        data["chain"] = found.chain.to_dict()
    if found.scanned is not None:
        data["scan"] = found.scanned.to_dict()
    return data


def _claim(said_: object) -> dict[str, Any]:
    """A statement as it is: nothing in it is shown by its being there."""
    return {"state": str(LineState.WORD), **msgspec.to_builtins(said_)}


def _given(expected: object) -> dict[str, Any]:
    """The fields that were given."""
    fields = msgspec.to_builtins(expected).items()
    return {name: value for name, value in fields if value is not None}


def _links(judged: Judged) -> dict[str, Any]:
    state = str(LineState.WORD)
    return picked(judged, "run step digest", state=state, links=links(judged))


def held_data(one: Any, **more: object) -> dict[str, Any]:
    """Weights or rows that a pack holds, for programs."""
    return picked(one, "steps", digest=one.opened.digest, bytes=one.num_bytes, **more)


def _bound(opened: Opened | None, link: ChainLink) -> list[str]:
    """The digests by which a statement binds the evidence of a link."""
    if opened is None:
        return []
    found = getattr(opened.checkpoint.bound, _BOUND.get(link, link.value), None)
    if isinstance(found, list):
        return found
    return [] if found is None else [found]


_BOUND: Final[Mapping[ChainLink, str]] = {
    ChainLink.NODES: "membership",
    **dict.fromkeys((ChainLink.ROWS, ChainLink.GRADIENTS, ChainLink.TABLES), "step_records"),
    ChainLink.LEDGER: "ledger_head",
}
"""The field that binds a link, where it is not called as the link is."""


def _facts(found: Verdict) -> Iterator[tuple[str, str]]:
    """The answer, every line with its state, and what was asked."""
    yield "answer", found.answer
    for line in found.lines():
        yield line.name, f"{line.text} ({line.state})" if line.text else ""
    if found.form is Form.PACK:
        chain = plural(len(found.pack.ancestors), "ancestor")
        yield "chain", f"{chain}, {found.pack.num_documents} documents"
        asked = plural(len(found.judged), "checkpoint")
        yield "asked", f"the links of {asked}; * is required by the policy"
    if found.saves:
        yield "not shown", "that training made these bytes: a script has them signed"
    none = "none given: integrity and signature only (--policy NAME asks for more)"
    yield "policy", policy_named(found.policy) or none
    for one in found.asked:
        yield "expected", pairs(_given(one).items())
    for why in dict.fromkeys(found.not_asked.values()):
        names = [name for name, reason in found.not_asked.items() if reason == why]
        yield "not asked", f"{', '.join(names)} ({why})"
    yield "judged at", found.at.isoformat()


def policy_named(policy: LoadedPolicy | None) -> str:
    """The policy that was asked, for people; empty for none."""
    return "" if policy is None else f"{policy.policy.metadata.id} ({policy.digest[:16]})"
