# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collecting evidence on this machine, outside of a job: settings, keys and what is missing.

Rules:

1. the keys stay in one private folder: an answer to a verifier's question must come from the keys
   that the question was made for;
2. a node key is made when there is none; no key is ever overwritten;
3. what the evidence lacks is told (`Collected.notes`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.attest.fleet.bundle import Bundle, Question, collect_bundle, own_question
from securetrain.attest.fleet.description import parse_bundle, speakers
from securetrain.attest.node.attester import AUTO
from securetrain.attest.node.settings import make_attester, settings_for
from securetrain.attest.node.tpm.transport import DEFAULT_DEVICE
from securetrain.core.errors import UsageError
from securetrain.core.files import make_private_dir
from securetrain.evidence import SELF_ASSERTED_TYPE
from securetrain.identity import SEGMENT
from securetrain.identity.keys import KeyKind, PrivateKey

KEY_FILE: Final = "node-key.pem"
TPM_FOLDER: Final = "tpm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """A bundle, and what a person should know about how it came about."""

    bundle: Bundle
    key_file: Path
    key_is_new: bool
    notes: tuple[str, ...]
    """What is missing, and why."""

    @property
    def speakers(self) -> str:
        """The environments that speak for the node."""
        return speakers(parse_bundle(self.bundle))

    @property
    def unattested(self) -> bool:
        """Tell whether nothing but the node itself speaks."""
        return self.bundle.media_type == SELF_ASSERTED_TYPE


def collect_here(
    node: str,
    *,
    state: Path,
    now: datetime,
    attester: str = AUTO,
    key_file: Path | None = None,
    question: Question | None = None,
    environ: Mapping[str, str],
) -> Collected:
    """Collect a bundle on this machine.

    Args:
        node: the node's name.
        state: private folder of the keys; made when it is not there.
        now: the time, timezone-aware.
        attester: what may speak: a settings file, ``auto``, or empty for the node's own word.
        key_file: the node's key; by default one in `state`, made when it is not there.
        question: of a verifier; None to ask itself.
        environ: the environment that the self-report looks at.

    Raises:
        UsageError: ST-USAG-001 when the name is none, or the question is for another node; files
            that cannot be used.
        IdentityError: ST-IDEN-001 or 010 about the key.
        AttestationError: ST-ATTS-15x to 19x and 9xx: what could not be collected, and why.
    """
    if not SEGMENT.fullmatch(node):
        raise UsageError(
            "ST-USAG-001",
            f"{node!r} is no node's name",
            "--node",
            "use the name that the node's certificate will have: letters, digits, '.', '_', '-'",
        )
    if question is not None and question.node != node:
        raise UsageError(
            "ST-USAG-001",
            f"the question is for node {question.node}, not {node}",
            "--question",
            "answer it on the node that it was made for",
        )
    make_private_dir(state)
    path = key_file or state / KEY_FILE
    is_new = key_file is None and not path.exists()
    key = PrivateKey.create(path, KeyKind.P256) if is_new else PrivateKey.load(path)
    settings = settings_for(attester, state / TPM_FOLDER)
    collector = make_attester(settings, key, environ=environ)
    bundle = collect_bundle(
        collector,
        key.public,
        now,
        question or own_question(node),
        asked_itself=question is None,
    )
    notes = collector.notes
    if settings.tpm is None and attester == AUTO:
        notes = (f"TPM: this machine shows none at {DEFAULT_DEVICE}", *notes)
    return Collected(bundle=bundle, key_file=path, key_is_new=is_new, notes=notes)
