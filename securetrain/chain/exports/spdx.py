# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""SPDX 3.0.1 (ISO/IEC 5962 in its third edition): JSON-LD with the profiles core, software, AI.

The checkpoint is an ``ai_AIPackage`` that contains its files. What has no field of its own is an
annotation. The profiles ``ai`` and ``dataset`` are used and not claimed: they ask for a supplier
and a place of download, of which a pack says nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from securetrain import __version__
from securetrain.chain.exports.facts import Fact, Facts, Kind, timestamp

PROFILES = ["core", "software", "simpleLicensing"]
CONTEXT = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"
_CREATION = "_:creation"


class _Graph:
    """The elements of one document."""

    def __init__(self, facts: Facts) -> None:
        self._base = f"urn:sha256:{facts.opened.statement}#"
        self.elements: list[dict[str, Any]] = []

    def add(self, kind: str, local: str, /, **fields: Any) -> str:
        """Add an element; its id."""
        made = self._base + local
        self.elements.append({"type": kind, "spdxId": made, "creationInfo": _CREATION, **fields})
        return made

    def relate(self, whence: str, kind: str, to: list[str]) -> None:
        """Add a relationship, if it leads anywhere."""
        if to:
            said: dict[str, Any] = {"from": whence, "relationshipType": kind, "to": to}
            self.add("Relationship", f"relationship-{len(self.elements)}", **said)

    def note(self, subject: str, text: str) -> None:
        """Add an annotation."""
        said = {"annotationType": "other", "subject": subject, "statement": text}
        self.add("Annotation", f"annotation-{len(self.elements)}", **said)


def write(facts: Facts) -> dict[str, Any]:
    """The document as plain values; the same facts give the same one."""
    graph = _Graph(facts)
    when = timestamp(facts.said.created)
    agent = graph.add("SoftwareAgent", "securetrain", name=f"securetrain {__version__}")
    model = graph.add("ai_AIPackage", "model", **_model(facts, when))
    files = [_file(graph, one, f"file-{at}") for at, one in enumerate(facts.files)]
    graph.relate(model, "contains", files)
    _licensed(graph, model, [facts.license] if facts.license else [], "model")
    for name, value in facts.properties:
        graph.note(model, f"securetrain:{name}={value}")
    if facts.settings:
        graph.note(model, "securetrain:settings-standing=declared")
    for made, file in zip(files, facts.files, strict=True):
        _stands(graph, made, file)
    for parent in facts.of(Kind.PARENT):
        named = {"name": parent.known_as, "software_primaryPurpose": "model", **_version(parent)}
        of = graph.add("ai_AIPackage", f"parent-{parent.digest['securetrainTree']}", **named)
        graph.relate(model, "descendantOf", [of])
        _stands(graph, of, parent)
    for dataset in facts.of(Kind.DATASET):
        sources = ", ".join(value for _, value in dataset.said)
        named = {"name": dataset.known_as, "software_primaryPurpose": "data", **_version(dataset)}
        named |= {"software_sourceInfo": sources} if sources else {}
        of = graph.add(
            "dataset_DatasetPackage", "dataset", dataset_datasetType=["noAssertion"], **named
        )
        graph.relate(model, "trainedOn", [of])
        _stands(graph, of, dataset)
        _licensed(graph, of, dataset.licenses, "dataset")
    libraries = [
        graph.add("software_Package", f"distribution-{at}", name=one.name, **_version(one))
        for at, one in enumerate(facts.libraries)
    ]
    graph.relate(model, "dependsOn", libraries)
    for at, one in enumerate(facts.of(Kind.CODE)):
        made = _file(graph, one, f"code-{at}")
        graph.relate(model, "dependsOn", [made])
        _stands(graph, made, one)
    for made, one in zip(libraries, facts.libraries, strict=True):
        _stands(graph, made, one)
    whole: dict[str, Any] = {"name": facts.name, "profileConformance": PROFILES}
    everything = [one["spdxId"] for one in graph.elements]
    graph.add("SpdxDocument", "document", rootElement=[model], element=everything, **whole)
    creation: dict[str, Any] = {"type": "CreationInfo", "@id": _CREATION, "specVersion": "3.0.1"}
    creation |= {"created": when, "createdBy": [agent]}
    return {"@context": CONTEXT, "@graph": [creation, *graph.elements]}


def _model(facts: Facts, when: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": facts.name, "software_primaryPurpose": "model"}
    made |= {"software_packageVersion": str(facts.said.step), "builtTime": when}
    if facts.metrics:
        made["ai_metric"] = _entries(facts.measured)
    if facts.settings:
        made["ai_hyperparameter"] = _entries(facts.settings.items())
    return made


def _entries(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"type": "DictionaryEntry", "key": name, "value": value} for name, value in pairs]


def _file(graph: _Graph, one: Fact, local: str) -> str:
    hashed = {"type": "Hash", "algorithm": "sha256", "hashValue": one.sha256}
    return graph.add(
        "software_File", local, name=one.name, **({"verifiedUsing": [hashed]} if one.digest else {})
    )


def _version(one: Fact) -> Mapping[str, str]:
    return {"software_packageVersion": one.version} if one.version else {}


def _stands(graph: _Graph, of: str, one: Fact) -> None:
    """The standing of a row, and what else it is known by."""
    graph.note(of, f"securetrain:standing={one.standing}")
    if one.role and one.kind is Kind.PARENT:
        graph.note(of, f"securetrain:role={one.role}")
    if tree := one.digest.get("securetrainTree"):
        graph.note(of, f"securetrain:tree-digest={tree}")


def _licensed(graph: _Graph, of: str, expressions: Iterable[str], name: str) -> None:
    for number, one in enumerate(expressions):
        made, said = f"license-{name}-{number}", {"simplelicensing_licenseExpression": one}
        license_ = graph.add("simplelicensing_LicenseExpression", made, **said)
        graph.relate(of, "hasDeclaredLicense", [license_])
