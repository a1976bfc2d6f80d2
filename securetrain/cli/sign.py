# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain sign DIR``: sign what was not saved by a run of ours."""

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.model_options import (
    FormOptions,
    ScopeOptions,
    form_options,
    scope_options,
)
from securetrain.cli.options import file_argument, secret_option
from securetrain.cli.passphrase import asker
from securetrain.cli.progress import progress_bar
from securetrain.cli.sign_dataset import DatasetOptions, dataset_options, sign_dataset
from securetrain.cli.signer_options import signer_options
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.identity import Ask
    from securetrain.report import Document

EPILOG: Final = """\
\b
Examples:
  securetrain sign data/corpus --dataset --key dataset.key --license CC-BY-4.0 --samples
  securetrain sign data/corpus --dataset --key dataset.key --append --trust trust.json
  securetrain sign ./llama --safetensors --key checkpoint.key
  securetrain sign ./llama --safetensors --keyless
  securetrain sign ./model --oms --key maker.key
  securetrain sign ./model --oms --key leaf.key --certificate leaf.pem --chain ca.pem
  securetrain sign model.gguf --oms --key 'pkcs11:token=release;object=model?module-path=/opt/p.so'
  securetrain sign ./snapshot --oms --key maker.key --allow-symlinks --ignore-paths logs

\b
Kinds:
  --dataset      raw bytes, token files, jsonl, parquet, WebDataset or MDS, signed where they lie;
  --safetensors  a directory of safetensors, as a checkpoint, signed where it lies;
  --oms          an OpenSSF Model Signing bundle, which other people's model_signing verifies too.
Checkpoints of a run are signed while they are saved and need nothing afterwards; torch's own
checkpoints: securetrain convert.
"""


@click.command(name="sign", epilog=EPILOG)
@file_argument("path")
@click.option("--dataset", "kind", flag_value="dataset", help="Sign a dataset.")
@click.option("--safetensors", "kind", flag_value="safetensors", help="Sign safetensors.")
@click.option("--oms", "kind", flag_value="oms", help="Write a Model Signing bundle.")
@signer_options
@secret_option
@dataset_options
@form_options
@scope_options("--oms")
def command(
    *,
    path: Path,
    kind: str | None,
    key_name: str,
    passphrase_file: Path | None,
    dataset: DatasetOptions,
    form: FormOptions,
    scope: ScopeOptions,
) -> int:
    """Sign the directory PATH; with --oms, it may be one file."""
    from securetrain.core.errors import UsageError
    from securetrain.identity import open_signer
    from securetrain.report import signatures

    if kind != "oms" and (form.given or scope.given):
        raise UsageError(
            "ST-USAG-001",
            "an option that goes with --oms was given without it",
            str(path),
            "add --oms, or leave out the options that say --oms in --help",
        )
    ask = asker(passphrase_file)
    match kind:
        case "dataset":
            page = sign_dataset(path, open_signer(key_name, ask), dataset)
        case "safetensors":
            from securetrain.artifacts.model import sign_safetensors
            from securetrain.artifacts.statement import SaveContext, digest_of

            context = SaveContext(
                run_id=dataset.name,
                name=dataset.name or path.resolve().name,
                step=0,
                created=datetime.now(UTC),
                save_id=secrets.token_hex(16),
            )
            said = sign_safetensors(path, key=open_signer(key_name, ask), context=context)
            page = signatures.safetensors(path, digest_of(said))
        case "oms":
            page = _sign_model(path, key_name, form, scope, ask)
        case _:
            raise UsageError(
                "ST-USAG-001",
                "nothing says what it is",
                str(path),
                "give --dataset, --safetensors or --oms",
            )
    return emit(page, "text")


def _sign_model(
    path: Path, key_name: str, form: FormOptions, scope: ScopeOptions, ask: "Ask"
) -> "Document":
    from securetrain.artifacts.model import default_bundle, read_signer, sign_model
    from securetrain.report import signatures

    target = form.bundle or default_bundle(path)
    signer = read_signer(key_name, form.certificate, form.chain, ask)
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
