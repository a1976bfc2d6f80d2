# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every parser of bytes that others wrote."""

from pathlib import Path

from tools.fuzz.engine import Parser
from tools.fuzz.parsers import (
    artifacts,
    boot,
    bundles,
    collateral,
    devices,
    documents,
    fleet,
    identity,
    ima,
    network,
    node,
    packages,
    packs,
    rendezvous,
    runs,
    signing,
    tee,
    tokens,
    tpm,
    tpm_client,
)


def parsers(folder: Path) -> list[Parser]:
    """All parsers.

    Args:
        folder: An empty directory for the few that read files.
    """
    return [
        *documents.documents(folder / "documents"),
        *identity.identity(folder / "identity"),
        *runs.runs(folder / "run"),
        *rendezvous.rendezvous(folder / "rendezvous"),
        *signing.questions(folder / "signing"),
        *devices.devices(),
        *boot.boot(),
        *ima.ima(),
        *tokens.tokens(),
        *tpm.tpm(),
        *tpm_client.parsers(),
        *tee.tee(),
        *collateral.collateral(folder),
        *node.node(),
        *bundles.bundles(folder / "bundles"),
        *fleet.fleet(folder / "fleet"),
        *packages.packages(folder / "packages"),
        *network.network(folder / "network"),
        *artifacts.artifacts(folder / "artifacts"),
        *packs.packs(folder / "packs"),
    ]
