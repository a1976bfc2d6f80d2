# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``key``: keys without their secrets."""

from pathlib import Path
from typing import Final

from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.report.document import Document

IN_CLEAR: Final = "is not encrypted (--encrypt); only this user can read it"


def generated(key: PrivateKey, path: Path, public: Path, *, encrypted: bool) -> Document:
    """A new key."""
    data = {
        "path": str(path),
        "public": str(public),
        "key_id": key.key_id,
        "kind": _kind(key.public),
        "encrypted": encrypted,
    }
    text = [f"{data['kind']} key {key.key_id}", f"private: {path}, public: {public}"]
    return Document(data=data, text=text + ([] if encrypted else [f"it {IN_CLEAR}"]))


def public_half(public: PublicKey, vkey: str) -> Document:
    """A public key, and its verifier key when a name was given."""
    pem = public.file_pem.decode()
    data = {"key_id": public.key_id, "kind": _kind(public), "pem": pem}
    text = [f"{data['kind']} key {public.key_id}"]
    if vkey:
        data["vkey"] = vkey
        text.append(vkey)
    return Document(data=data, text=[*text, *pem.removesuffix("\n").split("\n")])


def _kind(public: PublicKey) -> str:
    other = public.companion
    return str(public.kind) if other is None else f"{public.kind}+{other.kind}"


def passphrase(key: PrivateKey, *, encrypted: bool) -> Document:
    """A key whose passphrase was changed."""
    state = "encrypted" if encrypted else "not encrypted"
    data = {"key_id": key.key_id, "encrypted": encrypted}
    return Document(data=data, text=[f"key {key.key_id}: {state}"])
