# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""SLSA provenance 1 in an in-toto statement 1: which build made these files, and from what.

Subjects are files by the SHA-256 of their bytes. A tree's root is not one: it is an annotation.
Facts that are only declared lie under ``declared``.
"""

from collections.abc import Iterator
from typing import Any

from securetrain.chain import documents
from securetrain.chain.exports.facts import Facts, Standing, timestamp

BUILD_TYPE = "https://securetrain.dev/build/train/v1"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"


def write(facts: Facts) -> dict[str, Any]:
    """The statement as plain values."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {
                "name": one.name,
                "digest": {"sha256": one.sha256},
                **({} if one.root is None else {"annotations": {"treeRoot": one.root}}),
            }
            for one in facts.files
            if one.sha256 is not None
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _external(facts),
                "internalParameters": {
                    "links": {str(link): str(state) for link, state in facts.links.items()},
                    "properties": [f"{name}={value}" for name, value in facts.properties()],
                    "unhashed": [one.name for one in facts.files if one.sha256 is None],
                },
                "resolvedDependencies": list(_dependencies(facts)),
            },
            "runDetails": {
                # The identity behind the build is the key that signed the checkpoint.
                "builder": {"id": f"urn:sha256:{facts.keys[0] if facts.keys else facts.statement}"},
                "metadata": {
                    "invocationId": facts.run,
                    "finishedOn": timestamp(facts.created),
                },
                "byproducts": [
                    {"name": "statement of the checkpoint", "digest": {"sha256": facts.statement}}
                ],
            },
        },
    }


def _external(facts: Facts) -> dict[str, Any]:
    made: dict[str, Any] = {"declared": {"settings": dict(facts.settings)}}
    if facts.license:
        made["declared"]["license"] = facts.license
    if facts.job is not None:
        job = facts.job
        made["job"] = {
            "program": job.module or (job.program.name if job.program else ""),
            "arguments": [
                one.text or (one.input.name if one.input else "") for one in job.arguments
            ],
            "nodes": list(job.nodes),
            "workers": job.workers,
        }
    return made


def _dependencies(facts: Facts) -> Iterator[dict[str, Any]]:
    """The things that the build read; each with its standing."""
    if facts.job is not None:
        inputs = [facts.job.program, *(one.input for one in facts.job.arguments)]
        for one in inputs:
            if one is not None:
                yield _dependency(one.name, {"sha256": one.sha256}, Standing.VERIFIED, one.kind)
    if facts.code is not None:
        yield from _of_code(facts.code)
    if facts.policy is not None:
        name, sha256 = facts.policy
        yield _dependency(name, {"sha256": sha256}, Standing.VERIFIED, "policy")
    # A tree's digest is no SHA-256 of a file: in-toto allows names of one's own.
    of = facts.dataset
    if of is not None:
        tree = {"securetrainTree": of.digest}
        yield _dependency(of.name or "dataset", tree, of.standing, "dataset")
    for parent in facts.parents:
        tree = {"securetrainTree": parent.digest}
        yield _dependency(parent.name or "parent", tree, parent.standing, str(parent.role))


def _of_code(code: documents.Code) -> Iterator[dict[str, Any]]:
    for file in code.files:
        by_launcher = file.by is documents.Witness.LAUNCHER
        standing = Standing.VERIFIED if by_launcher else Standing.DECLARED
        yield _dependency(file.path, {"sha256": file.sha256}, standing, "code")
    if code.commit:
        yield _dependency("commit", {"gitCommit": code.commit}, Standing.VERIFIED, "commit")
    if code.image:
        sha256 = code.image.removeprefix("sha256:")
        yield _dependency("image", {"sha256": sha256}, Standing.DECLARED, "image")
    for one in code.distributions:
        if one.record is not None:
            name = f"{one.name} {one.version} RECORD"
            yield _dependency(name, {"sha256": one.record}, Standing.VERIFIED, "distribution")


def _dependency(name: str, digest: dict[str, str], standing: Standing, kind: str) -> dict[str, Any]:
    return {
        "name": name,
        "digest": digest,
        "annotations": {"standing": str(standing), "kind": kind},
    }
