# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The node's side of attestation: collect evidence for one binding and sign it.

An attester never says how good its evidence is: the verifier computes the tier from the roots that
verified.
"""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from securetrain.attest.node.software import collect_software
from securetrain.core import canonical
from securetrain.evidence import (
    SELF_ASSERTED_TYPE,
    Ask,
    AttestationKeys,
    Binding,
    Evidence,
    signed_message,
)
from securetrain.identity.keys import PrivateKey

AUTO: Final = "auto"
"""In place of a file of settings: everything that this machine has."""


class Attester(Protocol):
    """Makes evidence for one connection."""

    def keys(self) -> AttestationKeys | None:
        """The node's TPM keys, for Hello; None without a TPM."""

    def collect(self, binding: Binding, ask: Ask) -> Evidence:
        """Evidence that carries `binding.value(manifest)`, signed by the node's identity key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareAttester:
    """Says what software can say: see `selfreport`."""

    key: PrivateKey
    """The node's identity key, the one of its TLS certificate."""
    executable: Path = Path(sys.executable)
    """The Python interpreter."""
    environ: Mapping[str, str] = field(default_factory=dict)
    root: Path = Path("/")

    def keys(self) -> None:
        """Software has none."""

    def collect(self, binding: Binding, ask: Ask) -> Evidence:  # noqa: ARG002 - an Attester
        """Collect anew, bind and sign."""
        body = canonical.encode(
            collect_software(
                job=binding.job,
                executable=self.executable,
                environ=self.environ,
                root=self.root,
            )
        )
        return sign_evidence(SELF_ASSERTED_TYPE, body, binding.value(body), self.key)


def sign_evidence(media_type: str, body: bytes, value: bytes, key: PrivateKey) -> Evidence:
    """Sign a body together with the binding value that it was made for."""
    digest = hashlib.sha256(body).digest()
    signature = key.sign(signed_message(media_type, digest, value))
    return Evidence(media_type=media_type, body=body, binding=value, signature=signature)
