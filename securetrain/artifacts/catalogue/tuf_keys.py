# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Our keys in the terms of TUF: whatever is a `Signer` signs a catalogue, a token too."""

from dataclasses import dataclass
from typing import Any

from securesystemslib.signer import Key, Signature, SSlibKey
from securesystemslib.signer import Signer as TufSigner

from securetrain.identity.keys import PublicKey, Signer


def tuf_key(key: PublicKey) -> SSlibKey:
    """A key under its own id, so that one key cannot have two."""
    return SSlibKey.from_crypto(key.native, keyid=key.key_id)


@dataclass(slots=True)
class KeySigner(TufSigner):
    """A signer of ours."""

    signer: Signer

    @property
    def public_key(self) -> Key:
        """The key that verifies."""
        return tuf_key(self.signer.public)

    def sign(self, payload: bytes) -> Signature:
        """Sign the canonical bytes."""
        return Signature(self.signer.key_id, self.signer.sign(payload).hex())

    @classmethod
    def from_priv_key_uri(
        cls, priv_key_uri: str, public_key: Key, secrets_handler: Any = None
    ) -> "KeySigner":
        """Never used: signers are opened by `identity.open_signer`."""
        del priv_key_uri, public_key, secrets_handler
        raise NotImplementedError
