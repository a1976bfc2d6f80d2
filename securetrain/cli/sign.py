# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain sign DIR``: sign what was not saved by a run of ours."""

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from securetrain.cli.options import file_argument, file_option, secret_option
from securetrain.cli.passphrase import asker
from securetrain.cli.progress import progress_bar
from securetrain.cli.sign_dataset import DatasetOptions, dataset_options, sign_dataset
from securetrain.report import emit

EPILOG: Final = """\
\b
Examples:
  securetrain sign data/corpus --dataset --key dataset.key --license CC-BY-4.0 --samples
  securetrain sign data/corpus --dataset --key dataset.key --append --trust trust.json
  securetrain sign ./llama --safetensors --key checkpoint.key
  securetrain sign ./model --oms --key maker.key
  securetrain sign ./model --oms --key leaf.key --certificate leaf.pem --chain ca.pem

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
@click.option(
    "--key", "key_name", required=True, help="Private key: a file, or (not --oms) a pkcs11: URI."
)
@secret_option
@dataset_options
@file_option(
    "--certificate", help="--oms: the key's certificate (PEM), which then travels in the bundle."
)
@file_option(
    "--chain", multiple=True, help="--oms: the certificates between that one and the root (PEM)."
)
@file_option(
    "--bundle", help="--oms: where the bundle is written. Default: model.sig in the model."
)
def command(
    *,
    path: Path,
    kind: str | None,
    key_name: str,
    passphrase_file: Path | None,
    dataset: DatasetOptions,
    certificate: Path | None,
    chain: tuple[Path, ...],
    bundle: Path | None,
) -> int:
    """Sign the directory PATH."""
    from securetrain.core.errors import UsageError
    from securetrain.identity import open_signer
    from securetrain.report import signatures

    ask = asker(passphrase_file)
    match kind:
        case "dataset":
            page = sign_dataset(path, open_signer(key_name, ask), dataset)
        case "safetensors":
            from securetrain.artifacts.model import sign_safetensors
            from securetrain.artifacts.statement import SaveContext, digest_of

            context = SaveContext(
                run_id=dataset.name,
                step=0,
                created=datetime.now(UTC),
                save_id=secrets.token_hex(16),
            )
            said = sign_safetensors(path, key=open_signer(key_name, ask), context=context)
            page = signatures.safetensors(path, digest_of(said))
        case "oms":
            from securetrain.artifacts.model import DEFAULT_NAME, read_signer, sign_model

            target = bundle or path / DEFAULT_NAME
            signer = read_signer(Path(key_name), certificate, chain)
            with progress_bar("signing") as progress:
                predicate = sign_model(path, target, signer, progress=progress)
            page = signatures.model(path, target, len(predicate.resources))
        case _:
            raise UsageError(
                "ST-USAG-001",
                "nothing says what it is",
                str(path),
                "give --dataset, --safetensors or --oms",
            )
    return emit(page, "text")
