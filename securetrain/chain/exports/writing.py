# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Write what a pack proves in a format that others read; the same pack gives the same bytes.

A serial number is drawn from the document itself, and every time is the statement's: nothing is of
the moment or the machine of the export.

CycloneDX and SPDX have modules of their own. SLSA provenance 1 in an in-toto statement 1 is here:
which build made these files, and from what. Subjects are files by the SHA-256 of their bytes. A
tree's root is not one: it is an annotation. Facts that are only declared lie under ``declared``.

SPDX 3.0.1 (ISO/IEC 5962 in its third edition): JSON-LD with the profiles core, software, AI.

The checkpoint is an ``ai_AIPackage`` that contains its files. What has no field of its own is an
annotation. The profiles ``ai`` and ``dataset`` are used and not claimed: they ask for a supplier
and a place of download, of which a pack says nothing.

CycloneDX 1.6 and 1.7: a machine-learning BOM (ECMA-424).

The checkpoint is the BOM's component, its files are components inside it, with their SHA-256.
Parents are its pedigree, datasets components of type ``data``, distributions of the code libraries
that it depends on. The standing of a fact is a property, ``securetrain:standing``; licences use the
standard's own word, ``acknowledgement: declared``.
"""

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from securetrain import __version__
from securetrain.chain.exports.facts import Fact, Facts, Kind, timestamp
from securetrain.core import canonical

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


def as_spdx(facts: Facts) -> dict[str, Any]:
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


_PREFIX = "securetrain:"
_TYPES = {
    Kind.FILE: "file",
    Kind.CODE: "file",
    Kind.PARENT: "machine-learning-model",
    Kind.DATASET: "data",
    Kind.LIBRARY: "library",
}


def as_cyclonedx(facts: Facts, version: str) -> dict[str, Any]:
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


BUILD_TYPE = "https://securetrain.dev/build/train/v1"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
_NEEDED = (Kind.INPUT, Kind.CODE, Kind.SOURCE, Kind.LIBRARY, Kind.POLICY, Kind.DATASET, Kind.PARENT)


class ExportFormat(StrEnum):
    """A format of exports, by its name and version."""

    CYCLONEDX_1_6 = "cyclonedx-1.6"
    CYCLONEDX_1_7 = "cyclonedx-1.7"
    SPDX_3_0_1 = "spdx-3.0.1"
    SLSA_PROVENANCE_1 = "slsa-provenance-1"


def export(facts: Facts, kind: ExportFormat) -> bytes:
    """The document in a format: canonical JSON (RFC 8785) and a line's end.

    Raises:
        ValueError: There is no such format.
    """
    match kind:
        case ExportFormat.CYCLONEDX_1_6 | ExportFormat.CYCLONEDX_1_7:
            made = _numbered(as_cyclonedx(facts, kind.removeprefix("cyclonedx-")))
        case ExportFormat.SPDX_3_0_1:
            made = as_spdx(facts)
        case ExportFormat.SLSA_PROVENANCE_1:
            made = _provenance(facts)
        case _:
            raise ValueError(f"unknown format {kind!r}")
    return canonical.dumps(made) + b"\n"


def _numbered(bom: dict[str, Any]) -> dict[str, Any]:
    """Add the serial number that the content has (RFC 9562, version 8: of our own making)."""
    digest = hashlib.sha256(canonical.dumps(bom)).digest()
    data = bytearray(digest[:16])
    data[6] = data[6] & 0x0F | 0x80
    data[8] = data[8] & 0x3F | 0x80
    return bom | {"serialNumber": f"urn:uuid:{uuid.UUID(bytes=bytes(data))}"}


def _provenance(facts: Facts) -> dict[str, Any]:
    """SLSA's statement as plain values."""
    files, declared = facts.files, {"settings": dict(facts.settings)}
    license_ = {"license": facts.license} if facts.license else {}
    needed, said = facts.of(*_NEEDED), facts.said
    statement = {"sha256": facts.opened.statement}
    signer = min(facts.opened.key_ids, default=facts.opened.statement)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [_subject(one) for one in files if one.digest],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "declared": declared | license_,
                    **({} if facts.job is None else {"job": facts.job}),
                },
                "internalParameters": {
                    "links": {str(link): str(state) for link, state in facts.links.items()},
                    "properties": [f"{name}={value}" for name, value in facts.properties],
                    "unhashed": [one.name for one in files if not one.digest],
                },
                "resolvedDependencies": [_dependency(one) for one in needed if one.digest],
            },
            "runDetails": {
                # The identity behind the build is the key that signed the checkpoint.
                "builder": {"id": f"urn:sha256:{signer}"},
                "metadata": {"invocationId": said.run_id, "finishedOn": timestamp(said.created)},
                "byproducts": [{"name": "statement of the checkpoint", "digest": statement}],
            },
        },
    }


def _subject(file: Fact) -> dict[str, Any]:
    notes = {"standing": str(file.standing)}
    notes |= {"treeRoot": root} if (root := dict(file.said).get("tree-root")) else {}
    return {"name": file.name, "digest": file.digest, "annotations": notes}


def _dependency(one: Fact) -> dict[str, Any]:
    record = f"{one.name} {one.version} RECORD"
    return {
        "name": record if one.kind is Kind.LIBRARY else one.name or str(one.kind),
        "digest": one.digest,
        "annotations": {"standing": str(one.standing), "kind": one.role or str(one.kind)},
    }
