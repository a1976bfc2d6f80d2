# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""Judge exports by the standards' own libraries. Runs in a Python that has them, and not ours.

Reads ``[[format, document, good], ...]`` and prints a list: empty text for one that is valid, else
why not. One that is not good is damaged first: the control.
"""

import json
import sys
from pathlib import Path


def cyclonedx(text, version):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    found = JsonStrictValidator(SchemaVersion[version]).validate_str(text)
    return "" if found is None else str(found)[:2000]


def spdx(text, model):
    import io

    import pyshacl
    import rdflib
    from spdx_python_model import v3_0_1

    objects = v3_0_1.SHACLObjectSet()
    try:
        v3_0_1.JSONLDDeserializer().read(io.BytesIO(text.encode()), objects)
    except Exception as error:  # noqa: BLE001 - theirs: whatever it is, it is their word
        return f"{type(error).__name__}: {error}"[:2000]
    if objects.missing_ids:
        return f"missing {sorted(map(str, objects.missing_ids))[:3]}"
    document = json.loads(text)
    document["@context"] = json.loads(Path(model, "spdx-context.jsonld").read_text())["@context"]
    graph = rdflib.Graph().parse(data=json.dumps(document), format="json-ld")
    shapes = rdflib.Graph().parse(Path(model, "spdx-model.ttl"), format="turtle")
    held, _, said = pyshacl.validate(graph, shacl_graph=shapes, ont_graph=shapes)
    return "" if held else said[:2000]


def slsa(text):
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement, statement_pb2

    try:
        value = json.loads(text)
        read = json_format.ParseDict(value, statement_pb2.Statement())
        statement.Statement.copy_from_pb(read).validate()
        assert value["predicateType"] == "https://slsa.dev/provenance/v1"
        json_format.ParseDict(value["predicate"], provenance_pb2.Provenance())
    except Exception as error:  # noqa: BLE001 - theirs: whatever it is, it is their word
        return f"{type(error).__name__}: {error}"[:2000]
    return ""


def damaged(kind, text):
    value = json.loads(text)
    if kind.startswith("cyclonedx"):
        value["metadata"]["component"]["type"] = "checkpoint"
    elif kind.startswith("spdx"):
        for one in value["@graph"]:
            if one["type"] == "Annotation":
                del one["annotationType"]
    else:
        value["subject"][0]["digest"] = {}
    return json.dumps(value)


def main():
    said = []
    for kind, honest, good in json.load(sys.stdin):
        text = honest if good else damaged(kind, honest)
        if kind.startswith("cyclonedx"):
            said.append(cyclonedx(text, "V" + kind.removeprefix("cyclonedx-").replace(".", "_")))
        elif kind.startswith("spdx"):
            said.append(spdx(text, sys.argv[1]))
        else:
            said.append(slsa(text))
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
