# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The demands of policies and checks: ``policy``, and what ``audit`` tells of its checks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.audit import NOT_JUDGED, Check, Pins
from securetrain.core import ExitCode
from securetrain.policy import Level, Remark
from securetrain.policy import Row as Field
from securetrain.policy.load import LoadedPolicy
from securetrain.report.document import (
    Document,
    Row,
    Section,
    done,
    flat,
    moment,
    picked,
    said,
    titled,
    told,
    verbatim,
)

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

# --- policy --------------------------------------------------------------------------------------


def signed(file: Path, signature: Path, digest: str, by: str) -> Document:
    """A policy that is signed: by whom, and its digest."""
    data = {"policy": str(file), "signature": str(signature), "digest": digest, "signer": by}
    return told(f"{file}: signed by {by}", f"digest {digest}, in {signature}", data=data)


def remarks(file: str, found: Sequence[Remark]) -> Document:
    """The errors in a policy, and what is worth a second look."""
    errors = sum(remark.level is Level.ERROR for remark in found)
    rows = []
    for one in found:
        text = f"{one.code}: {one.what}" if one.code else one.what
        rows.append(Row(state=str(one.level), name=one.field, text=text, fix=one.fix))
    return Document(
        verb="policy lint",
        word="REFUSED" if errors else "VALID",
        about=file,
        sentence=f"{errors} errors, {len(found) - errors} warnings in {file}",
        sections=[Section(rows=rows)],
        data={"policy": file, "remarks": [asdict(remark) for remark in found]},
        code=ExitCode.USAGE if errors else ExitCode.OK,
    )


def fields(loaded: LoadedPolicy, rows: Sequence[Field]) -> Document:
    """Every field: its value, who set it, who enforces it, what it means."""
    meta = loaded.policy.metadata
    told = {"policy": meta.id, "digest": loaded.digest, "fields": [asdict(row) for row in rows]}
    data = picked(meta, "version", **told)
    head = said(f"{meta.id} {meta.version}: {meta.title}", f"digest {loaded.digest}")
    boundaries = {row.section: str(row.boundary or row.section) for row in rows}
    found = titled((boundaries[row.section], _field(row)) for row in rows)
    return Document(sections=[head, *found], data=data)


def _field(row: Field) -> Row:
    return Row(
        name=row.field or row.section,
        label=row.source if row.source == "default" else Path(row.source).name,
        text=shown(row.value),
        source=f"enforced by {', '.join(row.enforced_by)}" if row.enforced_by else "",
        detail=(row.description,),
    )


def shown(value: Any) -> str:
    """A value as it would stand in the file."""
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return "[" + ", ".join(map(str, value)) + "]"
        case dict():
            return "(below)"
        case _:
            return str(value)


# --- checks --------------------------------------------------------------------------------------


def explanation(check: Check) -> Document:
    """One check: what it looks at, why, what makes it pass, and what it maps to."""
    spec = check.spec
    data = msgspec.to_builtins(spec) | {"kind": check.kind, "source": check.source}
    return Document(data=data, sections=list(_explained(check)))


def scaffolded(files: tuple[Path, Path]) -> Document:
    """A check that was begun."""
    check, fixtures = files
    lines = (
        f"  securetrain audit --checks {check.parent} --explain {check.stem.upper()}",
        f"  securetrain audit --checks {check.parent} --node",
    )
    words = said(f"wrote {check}", f"wrote {fixtures}", "next: change both, then")
    data = {"check": str(check), "fixtures": str(fixtures)}
    return Document(sections=[words, verbatim(*lines)], data=data)


def pinned(pins: Pins, file: Path) -> Document:
    """Pins that were signed."""
    data = msgspec.to_builtins(pins)
    names = ("policy", "checks", "advisories")
    return done([(name, str(data[name])) for name in names], data, f"wrote {file}")


def unanswered(name: str) -> Document:
    """A question that no check answers."""
    one = NOT_JUDGED[name]
    data = {"id": name, "title": one.title, "boundary": one.boundary, "not_judged": one.because}
    boundary = f"boundary {one.boundary}; no check answers this"
    return told(f"{name}  {one.title}", boundary, f"Why: {one.because}.", data=data)


def issued(nonce: str, expires: datetime) -> Document:
    """A nonce: alone on standard output, so that a script can take it."""
    words = f"good for one audit, until {moment(expires)}: give it to every host (--nonce)"
    data = {"nonce": nonce, "expires": expires.isoformat()}
    return Document(answer=nonce, sections=[said(words)], data=data)


def _explained(check: Check) -> Iterator[Section]:
    spec = check.spec
    about = f"{check.severity} severity, boundary {spec.boundary}, about each {check.kind}"
    yield said(flat(spec.rationale), title=f"{check.id}  {spec.title}", lead=about)
    yield said(
        f"Looks at: {', '.join(spec.evidence) or 'the policy alone'}",
        f"Finding for: {', '.join((spec.subject, *(one.subject for one in spec.also)))}",
    )
    if spec.applies is not None:
        yield Section(rows=[Row(text="Applies where"), *_said(spec.applies)])
    yield Section(rows=[Row(text="Passes where"), *_passes(check)])
    yield said("Missing evidence is unknown, never a pass.")
    for name, param in spec.params.items():
        bounds = "no policy sets it" if param.bounds is None else _bounds(param.bounds)
        yield said(f"Param {name} ({param.type}): {_literal(param.default)}; {bounds}")
    for one in spec.in_context:
        because = Row(text=f"because: {flat(one.because)}", depth=1)
        yield Section(rows=[Row(text=f"{one.severity} where"), *_said(one.when), because])
    fix = Row(text=flat(spec.remediation), depth=1)
    yield Section(rows=[Row(text=f"To fix it ({spec.fixed_by}):"), fix])
    refs = msgspec.to_builtins(spec.refs)
    yield said(
        f"Threats: {', '.join(spec.threats)}",
        *(f"{n.upper()}: {', '.join(map(str, found))}" for n, found in refs.items() if found),
        f"Defined in {check.source}",
    )


def _passes(check: Check) -> Iterator[Row]:
    call, asked = check.spec.call, check.expression
    if asked is not None:
        text = f"of every object of {', '.join(asked.kinds)} in CEL: {asked.cel}"
    elif call is not None:
        args = ", ".join(f"{name}: {value}" for name, value in call.args.items())
        text = f"the function {call.fn} finds nothing" + (f" ({args})" if args else "")
    else:
        yield from _said(check.spec.asserts or {})
        return
    yield Row(text=text, depth=1)


def _bounds(bounds: Any) -> str:
    said = [f"{key} {value}" for key, value in msgspec.to_builtins(bounds).items() if value]
    return f"a policy sets it by audit.params ({', '.join(said)})"


def _said(node: Mapping[str, Any], depth: int = 1) -> Iterator[Row]:
    """A predicate in words, one condition to a line."""
    for key, words in (("all", "all of"), ("any", "one of"), ("not", "not")):
        if key in node:
            yield Row(text=words, depth=depth)
            for part in node[key] if isinstance(node[key], list) else [node[key]]:
                yield from _said(part, depth + 1)
            return
    for key, words in _QUANTIFIERS.items():
        if key in node:
            yield Row(text=words.format(".".join(node[key])), depth=depth)
            yield from _said(node["where"], depth + 1)
            return
    for key, words in _COMPARISONS.items():
        if key in node:
            paths = node[key] if isinstance(node[key][0], list) else [node[key]]
            for path in paths:
                yield Row(text=words.format(".".join(path)), depth=depth)
            return
    yield Row(text=_comparison(node), depth=depth)


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
