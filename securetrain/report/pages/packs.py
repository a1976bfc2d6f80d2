# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answers of ``pack``, ``export`` and ``unpack``, and of ``verify`` about a pack."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from securetrain.artifacts import CheckedWords, Examined, SavedResult
from securetrain.artifacts.statement import Opened
from securetrain.chain import Facts, Judged, Packed, PackResult
from securetrain.core.vocabulary import ChainLink, LinkState
from securetrain.policy.load import LoadedPolicy
from securetrain.report.document import (
    Case,
    Document,
    Findings,
    Row,
    Section,
    done,
    facts,
    picked,
    plural,
    said,
)
from securetrain.report.graph import graphs
from securetrain.report.pages import verification
from securetrain.report.pages.verification import (
    NOBODY,
    links,
    located,
    policy_data,
    policy_named,
    problems,
    signer,
)

MAX_SHOWN: Final = 20
NOTHING: Final = "The checkpoint's own statement does not verify: nothing it says counts."


def made(pack: Packed) -> Document:
    """A pack that was written."""
    told = "path manifest num_statements num_documents missing"
    data = picked(pack, told, bytes=pack.size)
    statements = plural(pack.num_statements, "statement")
    counts = f"{statements} in {plural(pack.num_documents, 'document')}, {pack.size:,} bytes"
    head = [("packed", f"{pack.path}: {counts}"), ("manifest", f"sha256:{pack.manifest}")]
    gone = facts((("missing", one) for one in pack.missing), most=MAX_SHOWN)
    return Document(sections=[facts(head), gone], data=data, code=3 if pack.missing else 0)


def answer(
    found: Examined | SavedResult | CheckedWords | PackResult,
    policy: LoadedPolicy | None,
    trust_file: Path,
) -> Document:
    """The outcome of ``verify``, whatever it was about."""
    match found:
        case Examined():
            return verification.verified(found, trust_file)
        case SavedResult():
            return verification.saved(found, trust_file)
        case CheckedWords():
            return verification.words(found)
        case _:
            return verified(found, policy, trust_file)


def verified(result: PackResult, policy: LoadedPolicy | None, trust_file: Path) -> Document:
    """The outcome of ``verify`` for a pack, and the page of ``report``."""
    word = "VERIFIED" if result.ok else "REFUSED" if result.problems else "INCOMPLETE"
    return Document(
        verb="verify",
        word=word,
        about=f"pack {result.path}",
        sections=[
            facts(_facts(result, policy, trust_file)),
            problems(result.problems, most=MAX_SHOWN),
            *_checkpoints(result),
            said("" if result.judged else NOTHING),
        ],
        findings=Findings(
            root=str(result.path),
            problems=tuple(map(located, result.problems)),
            checked=(result.path.name,),
            tests=tuple(_cases(result)),
        ),
        data=_to_dict(result, policy),
        code=result.exit_code,
    )


def _checkpoints(result: PackResult) -> Iterator[Section]:
    """The links of each checkpoint as a graph, and the evidence of each."""
    known = {one.digest: one for one in (result.subject, *result.ancestors) if one is not None}
    for number, judged in enumerate(result.judged[: graphs.MAX_CHECKPOINTS]):
        yield Section(
            title=f"step {judged.step}, {judged.digest[:12]}",
            lead="" if number else _left_out(result),
            rows=[
                _link(judged, link, known.get(judged.digest), result, number)
                for link in judged.verdicts
            ],
            figure=None if number else partial(graphs.links, result),
            page_only=bool(number),
        )


def _left_out(result: PackResult) -> str:
    hidden = len(result.judged) - graphs.MAX_CHECKPOINTS
    unjudged = result.num_ancestors + 1 - len(result.judged)
    said = ["* is required by the policy."]
    if unjudged == 1:
        said.append("One further checkpoint was followed, and none of its links was asked.")
    elif unjudged > 1:
        said.append(f"{unjudged} further checkpoints were followed; none of their links was asked.")
    if hidden > 0:
        said.append(f"{hidden} ancestors more: verify --format json has all of them.")
    return " ".join(said)


def _link(
    judged: Judged, link: ChainLink, opened: Opened | None, result: PackResult, number: int
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


def exported(facts_: Facts, result: PackResult, kind: str, out: Path) -> Document:
    """A document that was exported."""
    those = {
        state: ", ".join(link for link, one in facts_.links.items() if one is state)
        for state in LinkState
    }
    hashed = sum(one.sha256 is not None for one in facts_.files)
    bare = len(facts_.files) - hashed
    numbers = {"num_subjects": hashed, "num_unhashed": bare}
    problems = [problem.to_dict() for problem in result.problems]
    told = {"path": out, "format": kind, "links": dict(facts_.links), "problems": problems}
    data = picked(facts_, "digest", **numbers, **told)
    unproven, broken = those[LinkState.MISSING], those[LinkState.BROKEN]
    rows = [
        ("exported", f"{out}: {kind} of {facts_.name}"),
        ("subjects", f"{plural(hashed, 'file')} by SHA-256"),
        ("verified", those[LinkState.VERIFIED] or "nothing"),
        ("unhashed", f"{plural(bare, 'file')}: give --files" if bare else ""),
        ("unproven", f"{unproven}: declared or left out" if unproven else ""),
        ("left out", f"{broken}: evidence contradicts it" if broken else ""),
    ]
    return Document(sections=[facts(rows)], data=data, code=result.exit_code)


def unpacked(result: PackResult, out: Path) -> Document:
    """Weights and rows that were written."""
    data = {"path": out, "held": [_held(one, path=out / one.name) for one in result.held]}
    rows = [("unpacked", f"{out / one.name}: {one.num_bytes:,} bytes") for one in result.held]
    return done(rows, data)


def _cases(result: PackResult) -> Iterator[Case]:
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
            if missing is not None and not mine and not result.required:
                # Nothing is required, and the answer is incomplete for this.
                found = (replace(located(missing), undecided=True),)
            links.append(
                Case(
                    name=str(link),
                    group=f"step-{judged.step:08d}.{judged.digest[:16]}",
                    problems=found,
                    not_applicable=missing is not None and not found,
                )
            )
        left = [one for one in left if one not in used] if used else left
    yield Case(name=result.path.name, problems=tuple(map(located, left)))
    yield from links


def _to_dict(result: PackResult, policy: LoadedPolicy | None) -> dict[str, Any]:
    return picked(
        result,
        "path ok at seen num_ancestors num_documents",
        kind="pack",
        exit=int(result.exit_code),
        digest=None if result.subject is None else result.subject.digest,
        policy=policy_data(policy),
        required=sorted(result.required),
        checkpoints=[_links(one) for one in result.judged],
        held=[_held(one, kind=one.opened.kind) for one in result.held],
        problems=[problem.to_dict() for problem in result.problems],
    )


def _links(judged: Judged) -> dict[str, Any]:
    return picked(judged, "run step digest", links=links(judged))


def _held(one: Any, **more: object) -> dict[str, Any]:
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


def _facts(
    result: PackResult, policy: LoadedPolicy | None, trust_file: Path
) -> Iterator[tuple[str, str]]:
    if result.subject is not None:
        said = result.subject.checkpoint
        held = bool(result.judged) and not result.problems
        yield "answer", result.judged[0].answer(said) if held else ""
        yield "signed by", signer(result.subject.key_ids, trust_file)
        yield "checkpoint", f"run {said.run_id}, step {said.step}, digest {result.subject.digest}"
    else:
        yield "signed by", NOBODY
    yield "chain", f"{plural(result.num_ancestors, 'ancestor')}, {result.num_documents} documents"
    for one in result.held:
        name = f"{one.opened.kind.value} {one.opened.digest[:16]}"
        rows = "" if one.steps is None else f", rows of the steps {one.steps[0]} to {one.steps[1]}"
        yield "holds", f"{name}{rows}: {one.num_bytes:,} bytes, as signed"
    asked = len(result.judged)
    yield "asked", f"the links of {plural(asked, 'checkpoint')}; * is required by the policy"
    none = "none given: nothing is required, and what is missing stays open"
    yield "policy", policy_named(policy) or none
    yield "judged at", f"{result.at.isoformat()}"
    if result.seen is not None:
        yield "witnessed", f"{result.seen.isoformat()}"
