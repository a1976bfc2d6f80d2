# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""SPDX 3.0.1 (ISO/IEC 5962 in its third edition): JSON-LD with the profiles core, software, AI.

The checkpoint is an ``ai_AIPackage`` that contains its files. What has no field of its own is an
annotation. The profiles ``ai`` and ``dataset`` are used and not claimed: they ask for a supplier
and a place of download, of which a pack says nothing.
"""

from collections.abc import Iterator
from typing import Any

from securetrain import __version__
from securetrain.chain.documents import Witness
from securetrain.chain.exports.facts import Facts, timestamp

CONTEXT = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"
_CREATION = "_:creation"


class _Graph:
    """The elements of one document."""

    def __init__(self, facts: Facts) -> None:
        self._base = f"urn:sha256:{facts.statement}#"
        self.elements: list[dict[str, Any]] = []

    def add(self, kind: str, local: str, /, **fields: Any) -> str:
        """Add an element; its id."""
        made = self._base + local
        self.elements.append({"type": kind, "spdxId": made, "creationInfo": _CREATION, **fields})
        return made

    def relate(self, whence: str, kind: str, to: list[str]) -> None:
        """Add a relationship, if it leads anywhere."""
        if to:
            self.add(
                "Relationship",
                f"relationship-{len(self.elements)}",
                **{"from": whence},
                relationshipType=kind,
                to=to,
            )

    def note(self, subject: str, text: str) -> None:
        """Add an annotation."""
        self.add(
            "Annotation",
            f"annotation-{len(self.elements)}",
            annotationType="other",
            subject=subject,
            statement=text,
        )


def write(facts: Facts) -> dict[str, Any]:
    """The document as plain values; the same facts give the same one."""
    graph = _Graph(facts)
    when = timestamp(facts.created)
    agent = graph.add("SoftwareAgent", "securetrain", name=f"securetrain {__version__}")
    model = graph.add("ai_AIPackage", "model", **_model(facts, when))
    graph.relate(
        model,
        "contains",
        [
            graph.add("software_File", f"file-{number}", name=one.name, **_hashed(one.sha256))
            for number, one in enumerate(facts.files)
        ],
    )
    _licensed(graph, model, [facts.license] if facts.license else [], "model")
    for name, value in facts.properties():
        graph.note(model, f"securetrain:{name}={value}")
    if facts.settings:
        graph.note(model, "securetrain:settings-standing=declared")
    for parent in facts.parents:
        of = graph.add(
            "ai_AIPackage",
            f"parent-{parent.digest}",
            name=parent.name or parent.digest,
            software_primaryPurpose="model",
            **({} if parent.step is None else {"software_packageVersion": str(parent.step)}),
        )
        graph.relate(model, "descendantOf", [of])
        graph.note(of, f"securetrain:standing={parent.standing}")
        graph.note(of, f"securetrain:role={parent.role}")
        graph.note(of, f"securetrain:tree-digest={parent.digest}")
    _dataset(graph, model, facts)
    _code(graph, model, facts)
    graph.add(
        "SpdxDocument",
        "document",
        name=facts.name,
        profileConformance=["core", "software", "simpleLicensing"],
        rootElement=[model],
        element=[one["spdxId"] for one in graph.elements],
    )
    creation = {
        "type": "CreationInfo",
        "@id": _CREATION,
        "specVersion": "3.0.1",
        "created": when,
        "createdBy": [agent],
    }
    return {"@context": CONTEXT, "@graph": [creation, *graph.elements]}


def _model(facts: Facts, when: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": facts.name,
        "software_primaryPurpose": "model",
        "software_packageVersion": str(facts.step),
        "builtTime": when,
    }
    if facts.metrics is not None:
        made["ai_metric"] = [
            {"type": "DictionaryEntry", "key": name, "value": value}
            for name, value in facts.metrics.named()
        ]
    if facts.settings:
        made["ai_hyperparameter"] = [
            {"type": "DictionaryEntry", "key": name, "value": value}
            for name, value in facts.settings.items()
        ]
    return made


def _hashed(sha256: str | None) -> dict[str, Any]:
    if sha256 is None:
        return {}
    return {"verifiedUsing": [{"type": "Hash", "algorithm": "sha256", "hashValue": sha256}]}


def _licensed(graph: _Graph, of: str, expressions: list[str], name: str) -> None:
    for number, one in enumerate(expressions):
        license_ = graph.add(
            "simplelicensing_LicenseExpression",
            f"license-{name}-{number}",
            simplelicensing_licenseExpression=one,
        )
        graph.relate(of, "hasDeclaredLicense", [license_])


def _dataset(graph: _Graph, model: str, facts: Facts) -> None:
    of = facts.dataset
    if of is None:
        return
    version = {} if of.version is None else {"software_packageVersion": str(of.version)}
    sources = {"software_sourceInfo": ", ".join(of.sources)} if of.sources else {}
    made = graph.add(
        "dataset_DatasetPackage",
        "dataset",
        name=of.name or of.digest,
        dataset_datasetType=["noAssertion"],
        software_primaryPurpose="data",
        **version,
        **sources,
    )
    graph.relate(model, "trainedOn", [made])
    graph.note(made, f"securetrain:standing={of.standing}")
    graph.note(made, f"securetrain:tree-digest={of.digest}")
    _licensed(graph, made, list(of.licenses), "dataset")


def _code(graph: _Graph, model: str, facts: Facts) -> None:
    if facts.code is None:
        return
    graph.relate(model, "dependsOn", list(_distributions(graph, facts)))
    for number, one in enumerate(facts.code.files):
        made = graph.add("software_File", f"code-{number}", name=one.path, **_hashed(one.sha256))
        graph.relate(model, "dependsOn", [made])
        if one.by is not Witness.LAUNCHER:
            graph.note(made, "securetrain:standing=declared")


def _distributions(graph: _Graph, facts: Facts) -> Iterator[str]:
    assert facts.code is not None
    known = {(one.name.lower(), one.version): one for one in facts.code.distributions}
    for number, (_, one) in enumerate(sorted(known.items())):
        yield graph.add(
            "software_Package",
            f"distribution-{number}",
            name=one.name,
            software_packageVersion=one.version,
        )
