# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet join``: the keys of this machine, the exchange, and what is kept of it.

The node key and the attestation key are made when there are none, and stay when the exchange
fails: the next try, with the same token, comes from the same keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.attest.fleet import FleetMembership, FleetToken, write_membership
from securetrain.attest.node import make_attester, settings_for
from securetrain.core.files import make_private_dir
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.rendezvous.member.fleet_entry import TIMEOUT, prove_to_fleet

KEY_FILE: Final = "node-key.pem"
TPM_FOLDER: Final = "tpm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The outcome, for people."""

    membership: FleetMembership
    record: Path
    attester: Path
    worth: str
    learned: tuple[str, ...]
    notes: tuple[str, ...]
    """What a verifier will refuse, and what is missing on this machine."""


def join_fleet(
    token: FleetToken,
    *,
    state: Path,
    attester: str,
    environ: Mapping[str, str],
    clock: Callable[[], datetime],
    timeout: float = TIMEOUT,
) -> Joined:
    """Prove this machine, and keep what it needs to attest afterwards.

    Args:
        token: it.
        state: private folder of the keys; made when it is not there.
        attester: what may speak: a settings file, or ``auto``.
        environ: the environment that the self-report looks at.
        clock: the time, timezone-aware.
        timeout: seconds for each step of the desk.

    Raises:
        AdmissionError: as `prove_to_fleet`.
        AttestationError: as `prove_to_fleet`.
        UsageError: files that cannot be used.
    """
    make_private_dir(state)
    path = state / KEY_FILE
    is_new = not path.exists()
    key = PrivateKey.create(path, KeyKind.P256) if is_new else PrivateKey.load(path)
    settings = settings_for(attester, state / TPM_FOLDER)
    speaker = make_attester(settings, key, environ=environ)
    bundle, kept = prove_to_fleet(token, speaker, key, clock=clock, timeout=timeout)
    membership = FleetMembership(
        node=token.node,
        group=token.group,
        ek=bundle.ek_name.hex(),
        evidence=kept.digest,
        joined=clock(),
        desk=f"{token.host}:{token.port}",
        pin=token.pin,
        signed_by=kept.signed_by,
        coordinator=kept.coordinator,
    )
    record, written = write_membership(state, membership, settings)
    return Joined(
        membership=membership,
        record=record,
        attester=written,
        worth=kept.worth,
        learned=kept.learned,
        notes=(*kept.notes, *speaker.notes),
    )
