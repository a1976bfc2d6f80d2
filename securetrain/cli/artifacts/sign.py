# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain sign PATH``: sign what was not saved by a run of ours."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from securetrain.cli.artifacts.options import DatasetOptions, FormOptions, ScopeOptions
from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.options import KeyOrIdentity
from securetrain.cli.progress import progress_bar
from securetrain.report import Document

if TYPE_CHECKING:
    from securetrain.identity.keys import Signer


@verb("sign", json="")
def command(
    *,
    path: Path,
    kind: Annotated[
        str | None,
        Option("--dataset", "Sign a dataset.", value="dataset"),
        Option("--safetensors", "Sign safetensors as a checkpoint.", value="safetensors"),
        Option("--oms", "Write a Model Signing bundle.", value="oms"),
        Option("--saved", "Sign what a framework has saved.", value="saved"),
    ],
    key: KeyOrIdentity,
    dataset: DatasetOptions,
    form: FormOptions,
    scope: ScopeOptions,
) -> Document:
    r"""Sign the directory or file PATH, in the way of its kind.

    Examples:
      securetrain sign ./llama --key maker.key
      securetrain sign model.gguf --key maker.key
      securetrain sign data/corpus --key dataset.key --license CC-BY-4.0 --samples
      securetrain sign data/corpus --key dataset.key --append --trust trust.json
      securetrain sign out/step-100 --key checkpoint.key --name my-run
      securetrain sign ./llama --safetensors --key checkpoint.key
      securetrain sign ./llama --keyless
      securetrain sign ./model --oms --key leaf.key --certificate leaf.pem --chain ca.pem
      securetrain sign model.gguf --oms \
          --key 'pkcs11:token=release;object=model?module-path=/opt/p.so'
      securetrain sign ./snapshot --oms --key maker.key --allow-symlinks --ignore-paths logs

    Kinds, told by the files, and said in the first line; an option is never overruled:
      weights     a Hugging Face folder, an adapter, shards with their index, GGUF,
                  or one file of any kind: --oms, an OpenSSF Model Signing bundle,
                  which other people's model_signing verifies too. It takes an ECDSA
                  key (key generate --kind ecdsa-p256) or an identity. What git and
                  the cache of Hugging Face keep is left out, and named;
      data        raw bytes, token files, jsonl, parquet, WebDataset, MDS, npy:
                  --dataset, signed where it lies;
      torch       a checkpoint of torch.distributed: --saved, a statement of its
                  files, as 'run --sign-checkpoints' makes them. To make it one that
                  is loaded without pickles: securetrain convert.

    --safetensors signs a flat directory of safetensors as a checkpoint, with any key. Two kinds in
    one directory are refused until an option says which is meant; so are pointers of Git LFS, and
    shards that an index names and that are not there. Checkpoints of a run are signed while they
    are saved and need nothing afterwards.
    """
    from securetrain.artifacts import kinds
    from securetrain.core.errors import UsageError
    from securetrain.report import signatures

    key.check()
    found, way = kinds.guess(path), kind
    if way is None:
        way = "oms" if form.given or scope.given else found.one()
    elif kind != "oms" and (form.given or scope.given):
        raise UsageError(
            "ST-USAG-001",
            "an option that goes with --oms was given without it",
            str(path),
            "add --oms, or leave out the options that say --oms in --help",
        )
    match way:
        case "dataset":
            document = _dataset(path, key.signer(), dataset)
        case "safetensors":
            document = _safetensors(path, key.signer(), dataset.name)
        case "saved":
            document = _saved(path, key.signer(), dataset.name)
        case _:
            document = _model(path, form.bundle or found.place, key, form, scope)
    return document if kind else signatures.guessed(document, str(found), way)


def _dataset(path: Path, key: "Signer", given: DatasetOptions) -> Document:
    from securetrain.artifacts.dataset import sign
    from securetrain.report import signatures

    previous = given.previous(path)
    about = given.about(path, previous)
    with progress_bar("signing") as progress:
        signed = sign.sign_in_place(
            path, about, key=key, now=now(), previous=previous, progress=progress
        )
    return signatures.dataset(signed.predicate, signed.digest, path)


def _safetensors(path: Path, key: "Signer", name: str) -> Document:
    from securetrain.artifacts import SaveContext, sign_safetensors
    from securetrain.artifacts.statement.statements import digest_of
    from securetrain.report import signatures

    named, save_id = name or path.resolve().name, secrets.token_hex(16)
    about = SaveContext(run_id=name, name=named, step=0, created=now(), save_id=save_id)
    return signatures.signed_as(path, digest_of(sign_safetensors(path, key=key, context=about)))


def _saved(path: Path, key: "Signer", name: str) -> Document:
    from securetrain.artifacts import folder
    from securetrain.report import signatures

    said = folder.sign_folder(path, key=key, run=name or path.resolve().name, way="sign", now=now())
    return signatures.signed_as(path, f"{len(said.files)} files")


def _model(
    path: Path, target: Path, key: KeyOrIdentity, form: FormOptions, scope: ScopeOptions
) -> Document:
    from securetrain.artifacts.model import oms, signers
    from securetrain.report import signatures

    signer = signers.read_signer(key.name, form.certificate, form.chain, key.ask)
    notes: list[str] = []
    with progress_bar("signing") as progress:
        predicate = oms.sign_model(
            path, target, signer, scope=scope.scope(), form=form.form(), notes=notes,
            progress=progress,
        )  # fmt: skip
    return signatures.model(path, target, len(predicate.resources), notes)
