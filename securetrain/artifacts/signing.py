# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Sign what lies there, in the way of its kind (`kinds`): for programs, as ``sign`` does."""

import secrets
from pathlib import Path

from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.given import (
    KEY_FORMS,
    Folder,
    Key,
    Moment,
    ask_nobody,
    checked,
    moment,
    naming,
    open_key,
)
from securetrain.artifacts.kinds import Way, guess
from securetrain.artifacts.model.oms import sign_model
from securetrain.artifacts.model.safetensors_folder import sign_safetensors
from securetrain.artifacts.model.signers import (
    HeldKey,
    IdentitySigner,
    KeySigner,
    ModelSigner,
    read_signer,
)
from securetrain.artifacts.saved.folder import sign_folder
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.saved_files import Form, sidecar
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.identity.keys import EnvelopeSigner


@checked
def sign(
    path: Folder,
    *,
    key: Key,
    kind: Way | None = None,
    name: str = "",
    now: Moment | None = None,
) -> Path:
    """Sign a dataset, a model, or what a framework has saved; checkpoints are signed by `save`.

    Args:
        path: The directory or file. Every file of it is read.
        key: Signs: a signer, or its name as ``--key`` takes it. A model's is ECDSA, or keyless.
        kind: Its kind, as the flag of ``sign`` says it; None goes by its files.
        name: The name that is signed; that of the directory when empty. A model's has none.
        now: The time that is signed, with its zone; by default that of this machine's clock.

    Returns:
        The place of the statement, or of the Model Signing bundle.

    Raises:
        UsageError: ST-USAG-001 for an argument that is not what it may be, or files that do not
            tell the kind; ST-USAG-005 when it is signed; ST-USAG-025 when it is not whole.
        IntegrityError: ST-CKPT, ST-DATA or ST-OMSB: its files cannot be signed.

    >>> sign("books", key="data.pem", kind="dataset")
    PosixPath('books/statement.json')
    """
    target, at = Path(path), moment(now)
    found, named = guess(target), name or target.resolve().name
    way = kind or found.one()
    if way == "oms":
        sign_model(target, found.place, _model_signer(key))
        return found.place
    signer = open_key(key)
    if way == "saved":
        sign_folder(target, key=signer, run=named, way="sign", now=at)
        return sidecar(target, Form.DIRECTORY)
    if way == "dataset":
        sign_in_place(target, About(name=named), key=signer, now=at)
        return target / STATEMENT
    save_id = secrets.token_hex(16)
    about = SaveContext(run_id=name, name=named, step=0, created=at, save_id=save_id)
    sign_safetensors(target, key=signer, context=about)
    return target / STATEMENT


def _model_signer(key: Key) -> ModelSigner:
    if isinstance(key, Path | str):
        with naming("key", KEY_FORMS):
            return read_signer(str(key), None, (), ask_nobody)
    if isinstance(key, EnvelopeSigner):
        return IdentitySigner(signer=key)
    return KeySigner(key=HeldKey.of(key, "sign(key=)"))
