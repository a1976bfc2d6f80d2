# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""CycloneDX 1.6 and 1.7: a machine-learning BOM (ECMA-424).

The checkpoint is the BOM's component, its files are components inside it, with their SHA-256.
Parents are its pedigree, datasets components of type ``data``, distributions of the code libraries
that it depends on. The standing of a fact is a property, ``securetrain:standing``; licences use the
standard's own word, ``acknowledgement: declared``.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from securetrain import __version__
from securetrain.chain.documents import Witness
from securetrain.chain.exports.facts import DatasetFact, Facts, FileFact, ParentFact, timestamp

_PREFIX = "securetrain:"


def write(facts: Facts, version: str) -> dict[str, Any]:
    """The BOM as plain values, without its serial number.

    Args:
        facts: Everything that may be stated.
        version: Of the specification: ``1.6`` or ``1.7``.
    """
    subject = f"checkpoint-{facts.digest}"
    datasets = [] if facts.dataset is None else [_dataset(facts.dataset)]
    libraries = list(_libraries(facts))
    needed = [one["bom-ref"] for one in (*datasets, *libraries)]
    model: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": subject,
        "name": facts.name,
        "version": str(facts.step),
        "components": [_file(one) for one in facts.files],
        "modelCard": _card(facts, [one["bom-ref"] for one in datasets]),
        "properties": _properties(facts.properties()),
    }
    if facts.license:
        model["licenses"] = _declared(facts.license)
    if facts.parents:
        model["pedigree"] = {"ancestors": [_parent(one) for one in facts.parents]}
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{version}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": version,
        "version": 1,
        "metadata": {
            "timestamp": timestamp(facts.created),
            "lifecycles": [{"phase": "build"}],
            "tools": {
                "components": [
                    {"type": "application", "name": "securetrain", "version": __version__}
                ]
            },
            "component": model,
        },
        "components": [*datasets, *libraries, *_sources(facts)],
        "dependencies": [
            {"ref": subject, "dependsOn": needed},
            *({"ref": one} for one in needed),
        ],
    }


def _properties(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": _PREFIX + name, "value": value} for name, value in pairs]


def _stands(standing: str) -> list[dict[str, str]]:
    return _properties([("standing", standing)])


def _declared(expression: str) -> list[dict[str, Any]]:
    return [{"expression": expression, "acknowledgement": "declared"}]


def _file(file: FileFact) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "file", "bom-ref": f"file-{file.name}", "name": file.name}
    if file.sha256 is not None:
        made["hashes"] = [{"alg": "SHA-256", "content": file.sha256}]
    pairs = [("size", str(file.size))]
    if file.root is not None:
        pairs.append(("tree-root", file.root))
    made["properties"] = _properties(pairs)
    return made


def _card(facts: Facts, datasets: list[str]) -> dict[str, Any]:
    card: dict[str, Any] = {
        "modelParameters": {"datasets": [{"ref": one} for one in datasets]} if datasets else {}
    }
    if facts.metrics is not None:
        card["quantitativeAnalysis"] = {
            "performanceMetrics": [
                {"type": name, "value": value, "slice": f"training, step {facts.metrics.step}"}
                for name, value in facts.metrics.named()
            ]
        }
    settings = [(f"setting:{name}", value) for name, value in facts.settings.items()]
    if settings:
        card["properties"] = _properties([("settings-standing", "declared"), *settings])
    return card


def _parent(parent: ParentFact) -> dict[str, Any]:
    pairs = [
        ("standing", str(parent.standing)),
        ("role", str(parent.role)),
        ("tree-digest", parent.digest),
    ]
    if parent.run:
        pairs.append(("run", parent.run))
    return {
        "type": "machine-learning-model",
        "bom-ref": f"parent-{parent.digest}",
        "name": parent.name or parent.digest,
        **({} if parent.step is None else {"version": str(parent.step)}),
        "properties": _properties(pairs),
    }


def _dataset(dataset: DatasetFact) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "data",
        "bom-ref": f"dataset-{dataset.digest}",
        "name": dataset.name or dataset.digest,
        "data": [{"type": "dataset", "name": dataset.name or dataset.digest}],
        "properties": _properties(
            [
                ("standing", str(dataset.standing)),
                ("tree-digest", dataset.digest),
                *(("source", one) for one in dataset.sources),
            ]
        ),
    }
    if dataset.version is not None:
        made["version"] = str(dataset.version)
    if dataset.licenses:
        made["licenses"] = _declared(" AND ".join(_whole(one) for one in dataset.licenses))
    return made


def _whole(expression: str) -> str:
    return f"({expression})" if " OR " in expression else expression


def _libraries(facts: Facts) -> Iterator[dict[str, Any]]:
    """The distributions of the code, each once."""
    if facts.code is None:
        return
    known = {f"{one.name.lower()}@{one.version}": one for one in facts.code.distributions}
    for name, one in sorted(known.items()):
        pairs = [("standing", "verified")]
        if one.record is not None:
            pairs.append(("record-sha256", one.record))
        yield {
            "type": "library",
            "bom-ref": f"library-{name}",
            "name": one.name,
            "version": one.version,
            "purl": f"pkg:pypi/{_purl(one.name)}@{one.version}",
            "properties": _properties(pairs),
        }


def _purl(name: str) -> str:
    """A name of PyPI as package URLs have it (purl specification, type ``pypi``)."""
    return name.lower().replace("_", "-")


def _sources(facts: Facts) -> Iterator[dict[str, Any]]:
    """The files of the code; those that only a worker has read are declared."""
    if facts.code is None:
        return
    for number, one in enumerate(facts.code.files):
        yield {
            "type": "file",
            "bom-ref": f"code-{number}",
            "name": one.path,
            "hashes": [{"alg": "SHA-256", "content": one.sha256}],
            "properties": _stands("verified" if one.by is Witness.LAUNCHER else "declared"),
        }
