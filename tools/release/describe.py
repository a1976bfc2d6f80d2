# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The documents of a release: SBOMs of what it brings along, and SLSA provenance.

Neither contains a time of the moment, a path or a random number: the same commit gives the same
bytes. Sources: CycloneDX 1.6 (written by cyclonedx-bom), SLSA provenance 1, in-toto statement 1.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tools.release.build import Commit, sha256
from tools.release.environment import CONSTRAINTS, ROOT, run

BUILD_TYPE: Final = "https://securetrain.dev/build/release/v1"
LOCAL_BUILDER: Final = "https://securetrain.dev/builder/checkout/v1"
"""A person's checkout: SLSA level 1, since nobody but the signer vouches for it."""


def sbom(tools: Path, environment: Path, commit: Commit, target: Path) -> None:
    """Write the CycloneDX SBOM of everything in an environment.

    Args:
        tools: An interpreter that has cyclonedx-bom.
        environment: The interpreter of the environment that is described.
        commit: Its time is the document's.
        target: The document's file.
    """
    run(
        *(tools, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON"),
        *("--sv", "1.6", "--pyproject", ROOT / "pyproject.toml", "--mc-type", "library"),
        *("-o", target, environment),
        environment={"SOURCE_DATE_EPOCH": str(commit.epoch)},
    )


def provenance(
    commit: Commit, subjects: Sequence[Path], tools: Sequence[str], installs: list[dict[str, str]]
) -> dict[str, Any]:
    """The in-toto statement of how `subjects` came to be.

    Args:
        commit: What they were built from.
        subjects: Files; named without their folders, by SHA-256.
        tools: ``name==version`` of what built and described them.
        installs: What was tried with them, and what could not be.
    """
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": file.name, "digest": {"sha256": sha256(file)}} for file in sorted(subjects)
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"commit": commit.sha, "sourceDateEpoch": commit.epoch},
                "internalParameters": {"builds": 2, "installs": installs},
                "resolvedDependencies": [
                    {"name": "commit", "digest": {"gitCommit": commit.sha}},
                    *(
                        {
                            "name": str(file.relative_to(ROOT)),
                            "digest": {"sha256": sha256(file)},
                        }
                        for file in CONSTRAINTS
                    ),
                    *({"name": one.replace("==", " ")} for one in sorted(tools)),
                ],
            },
            "runDetails": {"builder": {"id": _builder()}},
        },
    }


def write(document: dict[str, Any], target: Path) -> None:
    """Write a document as JSON with sorted keys."""
    target.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def _builder() -> str:
    """Name the workflow that builds, or say that a person does."""
    workflow = os.environ.get("GITHUB_WORKFLOW_REF")
    server = os.environ.get("GITHUB_SERVER_URL")
    return f"{server}/{workflow}" if workflow and server else LOCAL_BUILDER
