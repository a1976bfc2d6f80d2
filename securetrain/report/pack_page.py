# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page of a pack: all its links as one graph, and the evidence of each behind it.

The rules of all pages hold (`html`): everything is escaped, no scripts, no other machine. A click
on a link of the graph leads to its evidence, by an anchor. States are told by words, too: green is
verified, red is broken or required and missing, grey is missing or not asked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain import __version__
from securetrain.artifacts.statement import Opened
from securetrain.chain import Judged, PackResult
from securetrain.core.files import write_atomic
from securetrain.core.vocabulary import ChainLink, LinkState
from securetrain.policy.load import LoadedPolicy
from securetrain.report.templating import rendered

TEMPLATE: Final = "pack.html.j2"
MAX_CHECKPOINTS: Final = 50
"""Checkpoints in the graph; what is beyond is counted."""
_LEFT: Final = 6
_RIGHT: Final = len(ChainLink) - _LEFT
_STEP: Final = 62
_TOP: Final = 30
_MIDDLE: Final = _TOP + _RIGHT * _STEP // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Badge:
    """A link of the graph."""

    x: int
    y: int
    link: str
    state: str
    kind: str
    anchor: str
    wire: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A checkpoint below the first one."""

    y: int
    title: str
    badges: tuple[_Badge, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """The evidence of a link."""

    anchor: str
    link: str
    state: str
    kind: str
    required: bool
    rows: tuple[tuple[str, str], ...]


def write_pack_page(
    result: PackResult, policy: LoadedPolicy | None, trust_file: Path, path: Path
) -> Path:
    """Write the page of a pack that was verified, and return its path.

    Raises:
        UsageError: ST-USAG-002 not writable, ST-USAG-004 the report extra is not installed.
    """
    write_atomic(path, render_pack(result, policy, trust_file).encode())
    return path


def render_pack(result: PackResult, policy: LoadedPolicy | None, trust_file: Path) -> str:
    """The page of a pack that was verified."""
    shown = result.judged[:MAX_CHECKPOINTS]
    known = {one.digest: one for one in (result.subject, *result.ancestors) if one is not None}
    height = _TOP + _RIGHT * _STEP + 20
    word, kind = ("verified", "good") if result.ok else ("refused", "bad")
    if not result.ok and not result.problems:
        word, kind = "incomplete", "warn"
    badges = tuple(_around(shown[0], result)) if shown else ()
    return rendered(
        TEMPLATE,
        heading=f"securetrain pack {result.path.name}",
        version=__version__,
        file_name=result.path.name,
        word=word,
        kind=kind,
        facts=list(_facts(result, policy, trust_file)),
        title=_title(shown[0]) if shown else "",
        badges=badges,
        middle=_MIDDLE,
        rows=[
            _row(one, result, number, height + 30 + number * 70)
            for number, one in enumerate(shown[1:])
        ],
        base=height,
        height=height + (40 + (len(shown) - 1) * 70 if len(shown) > 1 else 0),
        checkpoints=[
            (_title(one), list(_pieces(one, known.get(one.digest), result, number)))
            for number, one in enumerate(shown)
        ],
        hidden=len(result.judged) - len(shown),
        row_width=17 * len(ChainLink) + 26,
        unjudged=result.num_ancestors + 1 - len(result.judged) if shown else 0,
        problems=result.problems[:100],
    )


def _title(judged: Judged) -> str:
    return f"step {judged.step}, {judged.digest[:12]}"


def _kind(judged: Judged, link: ChainLink, result: PackResult) -> str:
    state = judged.verdicts[link].state
    if state is LinkState.VERIFIED:
        return "checked"
    required = state is LinkState.MISSING and link in result.required
    return "refused" if state is LinkState.BROKEN or required else "grey"


def _around(judged: Judged, result: PackResult) -> Iterator[_Badge]:
    """The links of the first checkpoint, on both sides of it."""
    lower = (_RIGHT - _LEFT) * _STEP // 2
    for number, (link, verdict) in enumerate(judged.verdicts.items()):
        left = number < _LEFT
        x = 30 if left else 790
        y = _TOP + (number * _STEP + lower if left else (number - _LEFT) * _STEP)
        end, begin = (x + 310, 450) if left else (x, 680)
        bend = (end + begin) // 2
        yield _Badge(
            x=x,
            y=y,
            link=str(link),
            state=str(verdict.state) + (", required" if link in result.required else ""),
            kind=_kind(judged, link, result),
            anchor=f"c0-{link}",
            wire=f"M{begin} {_MIDDLE} C{bend} {_MIDDLE} {bend} {y + 23} {end} {y + 23}",
        )


def _row(judged: Judged, result: PackResult, number: int, y: int) -> _Row:
    """An ancestor: its box, and a small square for each link."""
    return _Row(
        y=y,
        title=f"run {judged.run[:40]}, {_title(judged)}",
        badges=tuple(
            _Badge(
                x=450 + 17 * at,
                y=y + 24,
                link=str(link),
                state=str(verdict.state),
                kind=_kind(judged, link, result),
                anchor=f"c{number + 1}-{link}",
            )
            for at, (link, verdict) in enumerate(judged.verdicts.items())
        ),
    )


def _pieces(
    judged: Judged, opened: Opened | None, result: PackResult, number: int
) -> Iterator[_Piece]:
    for link, verdict in judged.verdicts.items():
        problem = verdict.problem()
        kind = _kind(judged, link, result)
        rows = [
            ("shown" if verdict.state is LinkState.VERIFIED else "why", verdict.what),
            ("expected", verdict.expected),
            ("found", verdict.found),
            ("where", verdict.where),
            ("code", problem.code if problem is not None and kind == "refused" else ""),
            *(("bound", one) for one in _bound(opened, link)),
            *((node, str(tier)) for node, tier in sorted(verdict.tiers.items())),
        ]
        yield _Piece(
            anchor=f"c{number}-{link}",
            link=str(link),
            state=str(verdict.state),
            kind={"checked": "good", "refused": "bad"}.get(kind, "none"),
            required=link in result.required,
            rows=tuple((name, value) for name, value in rows if value),
        )


def _bound(opened: Opened | None, link: ChainLink) -> list[str]:
    """The digests by which a statement binds the evidence of a link."""
    if opened is None:
        return []
    bound = opened.checkpoint.bound
    found = {
        ChainLink.NODES: bound.membership,
        ChainLink.MEMBERSHIP: bound.membership,
        ChainLink.POLICY: bound.policy,
        ChainLink.JOB: bound.job,
        ChainLink.CODE: bound.code,
        ChainLink.ENVIRONMENT: bound.environment,
        ChainLink.DATASET: bound.dataset,
        ChainLink.ROWS: bound.step_records,
        ChainLink.GRADIENTS: bound.step_records,
        ChainLink.TABLES: bound.step_records,
        ChainLink.LEDGER: bound.ledger_head,
    }
    if link is ChainLink.PARENTS:
        return list(bound.parents)
    digest = found.get(link)
    return [] if digest is None else [digest]


def _facts(
    result: PackResult, policy: LoadedPolicy | None, trust_file: Path
) -> Iterator[tuple[str, str]]:
    if result.subject is None:
        yield "signed by", "nobody that this trust root names"
    else:
        said = result.subject.checkpoint
        yield "checkpoint", f"run {said.run_id}, step {said.step}"
        yield "digest", result.subject.digest
        yield "signed by", f"key {', '.join(sorted(result.subject.key_ids))}"
    yield "trust root", trust_file.name
    yield "policy", "none: nothing is required" if policy is None else policy.policy.metadata.id
    yield "judged at", result.at.isoformat(timespec="seconds")
    if result.seen is not None:
        yield "witnessed", result.seen.isoformat(timespec="seconds")
