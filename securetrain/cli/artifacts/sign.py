# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain sign DIR``: sign what was not saved by a run of ours."""

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
        Option("--safetensors", "Sign safetensors.", value="safetensors"),
        Option("--oms", "Write a Model Signing bundle.", value="oms"),
    ],
    key: KeyOrIdentity,
    dataset: DatasetOptions,
    form: FormOptions,
    scope: ScopeOptions,
) -> Document:
    r"""Sign the directory PATH; with --oms, it may be one file.

    Examples:
      securetrain sign data/corpus --dataset --key dataset.key --license CC-BY-4.0 --samples
      securetrain sign data/corpus --dataset --key dataset.key --append --trust trust.json
      securetrain sign ./llama --safetensors --key checkpoint.key
      securetrain sign ./llama --safetensors --keyless
      securetrain sign ./model --oms --key maker.key
      securetrain sign ./model --oms --key leaf.key --certificate leaf.pem --chain ca.pem
      securetrain sign model.gguf --oms \
          --key 'pkcs11:token=release;object=model?module-path=/opt/p.so'
      securetrain sign ./snapshot --oms --key maker.key --allow-symlinks --ignore-paths logs

    Kinds:
      --dataset      raw bytes, token files, jsonl, parquet, WebDataset or MDS,
                     signed where they lie;
      --safetensors  a directory of safetensors, as a checkpoint, signed where
                     it lies;
      --oms          an OpenSSF Model Signing bundle, which other people's
                     model_signing verifies too.

    Checkpoints of a run are signed while they are saved and need nothing afterwards; torch's own
    checkpoints: securetrain convert.
    """
    from securetrain.core.errors import UsageError

    key.check()
    if kind != "oms" and (form.given or scope.given):
        raise UsageError(
            "ST-USAG-001",
            "an option that goes with --oms was given without it",
            str(path),
            "add --oms, or leave out the options that say --oms in --help",
        )
    match kind:
        case "dataset":
            return _dataset(path, key.signer(), dataset)
        case "safetensors":
            return _safetensors(path, key.signer(), dataset.name)
        case "oms":
            return _model(path, key, form, scope)
        case _:
            raise UsageError(
                "ST-USAG-001",
                "nothing says what it is",
                str(path),
                "give --dataset, --safetensors or --oms",
            )


def _dataset(path: Path, key: "Signer", given: DatasetOptions) -> Document:
    from securetrain.artifacts.dataset import sign_in_place
    from securetrain.report import signatures

    previous = given.previous(path)
    about = given.about(path, previous)
    with progress_bar("signing") as progress:
        signed = sign_in_place(
            path, about, key=key, now=now(), previous=previous, progress=progress
        )
    return signatures.dataset(signed.predicate, signed.digest, path)


def _safetensors(path: Path, key: "Signer", name: str) -> Document:
    from securetrain.artifacts import SaveContext, sign_safetensors
    from securetrain.artifacts.statement import digest_of
    from securetrain.report import signatures

    context = SaveContext(
        run_id=name,
        name=name or path.resolve().name,
        step=0,
        created=now(),
        save_id=secrets.token_hex(16),
    )
    return signatures.safetensors(path, digest_of(sign_safetensors(path, key=key, context=context)))


def _model(path: Path, key: KeyOrIdentity, form: FormOptions, scope: ScopeOptions) -> Document:
    from securetrain.artifacts.model import default_bundle, read_signer, sign_model
    from securetrain.report import signatures

    target = form.bundle or default_bundle(path)
    signer = read_signer(key.name, form.certificate, form.chain, key.ask)
    notes: list[str] = []
    with progress_bar("signing") as progress:
        predicate = sign_model(
            path,
            target,
            signer,
            scope=scope.scope(),
            form=form.form(),
            notes=notes,
            progress=progress,
        )
    return signatures.model(path, target, len(predicate.resources), notes)
