# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""CycloneDX 1.6 and 1.7: a machine-learning BOM (ECMA-424).

The checkpoint is the BOM's component, its files are components inside it, with their SHA-256.
Parents are its pedigree, datasets components of type ``data``, distributions of the code libraries
that it depends on. The standing of a fact is a property, ``securetrain:standing``; licences use the
standard's own word, ``acknowledgement: declared``.
"""

from collections.abc import Iterable
from typing import Any

from securetrain import __version__
from securetrain.chain.exports.facts import Fact, Facts, Kind, timestamp

_PREFIX = "securetrain:"
_TYPES = {
    Kind.FILE: "file",
    Kind.CODE: "file",
    Kind.PARENT: "machine-learning-model",
    Kind.DATASET: "data",
    Kind.LIBRARY: "library",
}


def write(facts: Facts, version: str) -> dict[str, Any]:
    """The BOM as plain values, without its serial number.

    Args:
        facts: Everything that may be stated.
        version: Of the specification: ``1.6`` or ``1.7``.
    """
    subject = f"checkpoint-{facts.opened.digest}"
    datasets = [_component(one) for one in facts.of(Kind.DATASET)]
    libraries = sorted(map(_component, facts.libraries), key=lambda one: str(one["bom-ref"]))
    sources = [_component(one, str(at)) for at, one in enumerate(facts.of(Kind.CODE))]
    needed = [one["bom-ref"] for one in (*datasets, *libraries)]
    model: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": subject,
        "name": facts.name,
        "version": str(facts.said.step),
        "components": [_component(one, one.name) for one in facts.files],
        "modelCard": _card(facts, [one["bom-ref"] for one in datasets]),
        "properties": _properties(facts.properties),
    }
    tool = {"type": "application", "name": "securetrain", "version": __version__}
    if facts.license:
        model["licenses"] = _declared(facts.license)
    if parents := facts.of(Kind.PARENT):
        model["pedigree"] = {"ancestors": [_component(one) for one in parents]}
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{version}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": version,
        "version": 1,
        "metadata": {
            "timestamp": timestamp(facts.said.created),
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [tool]},
            "component": model,
        },
        "components": [*datasets, *libraries, *sources],
        "dependencies": [{"ref": subject, "dependsOn": needed}, *({"ref": one} for one in needed)],
    }


def _properties(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": _PREFIX + name, "value": value} for name, value in pairs]


def _declared(expression: str) -> list[dict[str, Any]]:
    return [{"expression": expression, "acknowledgement": "declared"}]


def _component(one: Fact, ref: str = "") -> dict[str, Any]:
    """One row of the table."""
    pairs = [("standing", str(one.standing))]
    made: dict[str, Any] = {"type": _TYPES[one.kind], "name": one.known_as}
    if one.version:
        made["version"] = one.version
    if one.licenses:
        made["licenses"] = _declared(" AND ".join(map(_whole, one.licenses)))
    match one.kind:
        case Kind.LIBRARY:
            ref = f"{one.name.lower()}@{one.version}"
            made["purl"] = f"pkg:pypi/{_purl(one.name)}@{one.version}"
            pairs += [] if one.sha256 is None else [("record-sha256", one.sha256)]
        case Kind.FILE | Kind.CODE:
            if one.sha256 is not None:
                made["hashes"] = [{"alg": "SHA-256", "content": one.sha256}]
        case _:
            ref = one.digest["securetrainTree"]
            pairs += [("role", one.role)] if one.role else []
            pairs.append(("tree-digest", ref))
    if one.kind is Kind.DATASET:
        made["data"] = [{"type": "dataset", "name": one.known_as}]
    properties = _properties([*pairs, *one.said])
    return made | {"bom-ref": f"{one.kind}-{ref}", "properties": properties}


def _card(facts: Facts, datasets: list[str]) -> dict[str, Any]:
    card: dict[str, Any] = {
        "modelParameters": {"datasets": [{"ref": one} for one in datasets]} if datasets else {}
    }
    if facts.metrics:
        at = f"training, step {facts.metrics['step']}"
        shown = [{"type": name, "value": value, "slice": at} for name, value in facts.measured]
        card["quantitativeAnalysis"] = {"performanceMetrics": shown}
    settings = [(f"setting:{name}", value) for name, value in facts.settings.items()]
    if settings:
        card["properties"] = _properties([("settings-standing", "declared"), *settings])
    return card


def _whole(expression: str) -> str:
    return f"({expression})" if " OR " in expression else expression


def _purl(name: str) -> str:
    """A name of PyPI as package URLs have it (purl specification, type ``pypi``)."""
    return name.lower().replace("_", "-")
