# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The settings of a node's attester: what may speak for it, from a file or from what is there.

The file is JSON::

    {"tpm": {"address": "/dev/tpmrm0", "state": "/var/lib/securetrain/tpm"},
     "tee": "required", "gpus": "if-present", "tokens": ["/run/token.jwt"]}

Without a file everything that this machine has is taken (`detect`).
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.attest.node.attester import AUTO
from securetrain.attest.node.composite import MAX_TOKENS, NodeAttester, Part
from securetrain.attest.node.tpm.agent import Sessions, TpmAgent
from securetrain.attest.node.tpm.measurements import Sources
from securetrain.attest.node.tpm.transport import DEFAULT_DEVICE
from securetrain.core import canonical
from securetrain.core.files import read_file
from securetrain.identity.keys import PrivateKey

FILE_LIMIT: Final = 64 << 10
_SOURCES: Final = Sources()

PathText = Annotated[str, Meta(min_length=1, max_length=4096)]


class TpmSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The node's TPM."""

    address: PathText = DEFAULT_DEVICE
    """A device, ``tcp:HOST:PORT`` or ``unix:PATH``."""
    state: PathText
    """Private folder where the attestation key is kept, wrapped by the TPM."""
    sessions: Sessions | None = None
    """How credentials are opened; by default protected on a device, and on a socket, which leads
    to a software TPM, where the extra ``tpm`` is installed."""
    event_log: PathText = str(_SOURCES.event_log)
    ima_binary: PathText = str(_SOURCES.ima_binary)
    ima_ascii: PathText = str(_SOURCES.ima_ascii)
    userspace_log: PathText = str(_SOURCES.userspace_log)
    pcr_signatures: PathText = str(_SOURCES.pcr_signatures)


class AttesterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The environments that may speak for a node. Without any it only speaks for itself."""

    tpm: TpmSettings | None = None
    tee: Part = Part.OFF
    gpus: Part = Part.OFF
    tokens: Annotated[tuple[PathText, ...], Meta(max_length=MAX_TOKENS)] = ()
    """Files that hold attestation tokens of other issuers."""


def load_settings(path: Path) -> AttesterSettings:
    """Read a settings file.

    Raises:
        UsageError: ST-USAG-002 or 008.
    """
    return canonical.decode(
        read_file(path, FILE_LIMIT), AttesterSettings, limit=FILE_LIMIT, where=str(path)
    )


def detect(state: Path, device: Path = Path(DEFAULT_DEVICE)) -> AttesterSettings:
    """Everything that this machine has.

    Args:
        state: where the attestation key is kept.
        device: the TPM's resource manager.
    """
    return AttesterSettings(
        tpm=TpmSettings(address=str(device), state=str(state)) if device.exists() else None,
        tee=Part.IF_PRESENT,
        gpus=Part.IF_PRESENT,
    )


def settings_for(choice: str, state: Path) -> AttesterSettings:
    """Settings from what a person wrote: a file, ``auto``, or nothing (the node's own word)."""
    if not choice:
        return AttesterSettings()
    return detect(state) if choice == AUTO else load_settings(Path(choice))


def make_attester(
    settings: AttesterSettings,
    key: PrivateKey,
    *,
    environ: Mapping[str, str],
    executable: Path | None = None,
) -> NodeAttester:
    """The node's attester.

    Args:
        settings: what may speak.
        key: the node's identity key.
        environ: the environment that the self-report looks at.
        executable: the interpreter; by default this one.
    """
    tpm = None
    if settings.tpm is not None:
        tpm = TpmAgent(
            Path(settings.tpm.state),
            address=settings.tpm.address,
            sessions=settings.tpm.sessions,
            sources=Sources(
                event_log=Path(settings.tpm.event_log),
                ima_binary=Path(settings.tpm.ima_binary),
                ima_ascii=Path(settings.tpm.ima_ascii),
                userspace_log=Path(settings.tpm.userspace_log),
                pcr_signatures=Path(settings.tpm.pcr_signatures),
            ),
        )
    return NodeAttester(
        key=key,
        executable=executable or Path(sys.executable),
        environ=environ,
        tpm=tpm,
        tee=settings.tee,
        gpus=settings.gpus,
        tokens=tuple(map(Path, settings.tokens)),
    )
