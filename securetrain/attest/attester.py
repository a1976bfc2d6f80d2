# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The node's side of attestation: collect evidence for one binding and sign it.

An attester never says how good its evidence is: the verifier computes the tier from the roots that
verified.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from securetrain.attest.binding import Binding
from securetrain.attest.evidence import Evidence, signed_message
from securetrain.attest.selfreport import SELF_ASSERTED_TYPE, collect_software
from securetrain.core import canonical
from securetrain.identity.keys import PrivateKey


class Attester(Protocol):
    """Makes evidence for one connection."""

    def collect(self, binding: Binding) -> Evidence:
        """Evidence that carries `binding.value(body)` and is signed by the node's identity key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareAttester:
    """Says what software can say: see `selfreport`."""

    key: PrivateKey
    """The node's identity key, the one of its TLS certificate."""
    executable: Path
    """The Python interpreter, usually `sys.executable`."""
    environ: Mapping[str, str] = field(default_factory=dict)
    root: Path = Path("/")

    def collect(self, binding: Binding) -> Evidence:
        """Collect anew, bind and sign."""
        body = canonical.encode(
            collect_software(
                job=binding.job,
                executable=self.executable,
                environ=self.environ,
                root=self.root,
            )
        )
        return sign_evidence(SELF_ASSERTED_TYPE, body, binding, self.key)


def sign_evidence(media_type: str, body: bytes, binding: Binding, key: PrivateKey) -> Evidence:
    """Bind a body to a connection and sign both."""
    value = binding.value(body)
    signature = key.sign(signed_message(media_type, body, value))
    return Evidence(media_type=media_type, body=body, binding=value, signature=signature)
