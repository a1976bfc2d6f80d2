# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One check, for a person: what it looks at, why, what makes it pass, and what it maps to."""

import textwrap
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from securetrain.audit import Check, NotJudged, Pins
from securetrain.report.document import Document

_QUANTIFIERS: Final[Mapping[str, str]] = {
    "none": "no element of {} has",
    "every": "every element of {} has",
    "some": "some element of {} has",
}
_COMPARISONS: Final[Mapping[str, str]] = {
    "equal_across": "all assets have the same {}",
    "majority_across": "no asset has another {} than more than half of them",
    "unique_across": "no two assets share a {}",
}
_OPERATORS: Final[Mapping[str, str]] = {
    "eq": "is",
    "ne": "is not",
    "in": "is one of",
    "in_any_case": "is, in any case of its letters, one of",
    "not_in": "is none of",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "starts": "starts with",
    "ends": "ends with",
    "glob": "matches",
    "glob_any": "matches one of",
    "some_glob": "has an element that matches one of",
    "mode_max": "allows nobody more than",
    "version_lt": "is older than",
    "version_ge": "is at least",
    "superset": "has all of",
    "disjoint": "has none of",
    "subset": "has nothing but",
    "exists": "is there",
    "missing": "is not there",
}
_WIDTH: Final = 96


def explanation(check: Check) -> Document:
    """The page of one check."""
    spec = check.spec
    data = msgspec.to_builtins(spec) | {"kind": check.kind, "source": check.source}
    return Document(data=data, text=partial(_show, check))


def scaffolded(files: tuple[Path, Path]) -> Document:
    """The page of a check that was begun."""
    check, fixtures = files

    def text() -> None:
        click.echo(f"wrote {check}")
        click.echo(f"wrote {fixtures}")
        click.echo("next: change both, then")
        click.echo(f"  securetrain audit --checks {check.parent} --explain {check.stem.upper()}")
        click.echo(f"  securetrain audit --checks {check.parent} --node")

    return Document(data={"check": str(check), "fixtures": str(fixtures)}, text=text)


def pinned(pins: Pins, file: Path) -> Document:
    """The page of pins that were signed."""
    data = msgspec.to_builtins(pins)

    def text() -> None:
        for name in ("policy", "checks", "advisories"):
            click.echo(f"{name:<11}{data[name]}")
        click.echo(f"wrote {file}")

    return Document(data=data, text=text)


def unanswered(name: str, one: NotJudged) -> Document:
    """The page of a question that no check answers."""
    data = {"id": name, "title": one.title, "boundary": one.boundary, "not_judged": one.because}

    def text() -> None:
        click.echo(f"{name}  {one.title}")
        click.echo(f"boundary {one.boundary}; no check answers this")
        click.echo()
        click.echo("\n".join(_wrapped(f"Why: {one.because}.")))

    return Document(data=data, text=text)


def issued(nonce: str, expires: datetime) -> Document:
    """The page of a nonce: alone on standard output, so that a script can take it."""

    def text() -> None:
        click.echo(nonce)
        when = f"{expires:%Y-%m-%dT%H:%M:%SZ}"
        click.echo(f"good for one audit, until {when}: give it to every host (--nonce)", err=True)

    return Document(data={"nonce": nonce, "expires": expires.isoformat()}, text=text)


def _show(check: Check) -> None:
    click.echo("\n".join(lines(check)))


def lines(check: Check) -> Iterator[str]:
    """The page, line by line."""
    spec = check.spec
    yield f"{check.id}  {check.title}"
    yield f"{check.severity} severity, boundary {check.boundary}, about each {check.kind}"
    yield ""
    yield from _wrapped(spec.rationale)
    yield ""
    yield f"Looks at: {', '.join(spec.evidence) or 'the policy alone'}"
    yield f"Finding for: {spec.subject}"
    if spec.applies is not None:
        yield "Applies where"
        yield from _said(spec.applies, 1)
    yield "Passes where"
    if spec.call is not None:
        said = ", ".join(f"{name}: {value}" for name, value in spec.call.args.items())
        yield f"  the function {spec.call.fn} finds nothing" + (f" ({said})" if said else "")
    else:
        yield from _said(spec.asserts or {}, 1)
    yield "Missing evidence is unknown, never a pass."
    for name, param in spec.params.items():
        bounds = "no policy sets it" if param.bounds is None else _bounds(param.bounds)
        yield f"Param {name} ({param.type}): {_literal(param.default)}; {bounds}"
    for one in spec.in_context:
        yield f"{one.severity} where"
        yield from _said(one.when, 1)
        yield from _wrapped(f"because: {one.because}", "  ")
    yield ""
    yield f"To fix it ({spec.fixed_by}):"
    yield from _wrapped(spec.remediation, "  ")
    yield ""
    yield f"Threats: {', '.join(spec.threats)}"
    refs = msgspec.to_builtins(spec.refs)
    for name, values in refs.items():
        if values:
            yield f"{name.upper()}: {', '.join(map(str, values))}"
    yield f"Defined in {check.source}"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def _bounds(bounds: Any) -> str:
    said = [f"{key} {value}" for key, value in msgspec.to_builtins(bounds).items() if value]
    return f"a policy sets it by audit.params ({', '.join(said)})"


def _said(node: Mapping[str, Any], depth: int) -> Iterator[str]:
    """A predicate in words, one condition to a line."""
    indent = "  " * depth
    for key, words in (("all", "all of"), ("any", "one of")):
        if key in node:
            yield f"{indent}{words}"
            for part in node[key]:
                yield from _said(part, depth + 1)
            return
    if "not" in node:
        yield f"{indent}not"
        yield from _said(node["not"], depth + 1)
        return
    for key, words in _QUANTIFIERS.items():
        if key in node:
            yield indent + words.format(".".join(node[key]))
            yield from _said(node["where"], depth + 1)
            return
    for key, words in _COMPARISONS.items():
        if key in node:
            paths = node[key] if isinstance(node[key][0], list) else [node[key]]
            for path in paths:
                yield indent + words.format(".".join(path))
            return
    yield indent + _comparison(node)


def _comparison(node: Mapping[str, Any]) -> str:
    name = ".".join(node["field"])
    op = _OPERATORS.get(node["op"], node["op"])
    if "value" in node:
        return f"{name} {op} {_literal(node['value'])}"
    if "ref" in node:
        return f"{name} {op} {'.'.join(node['ref'])}"
    return f"{name} {op} the param {node['param']}" if "param" in node else f"{name} {op}"


def _literal(value: Any) -> str:
    """A value as a person would write it."""
    if isinstance(value, list):
        return ", ".join(map(_literal, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
