# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain sign DIR``: sign what was not saved by a run of ours."""

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.passphrase import asker, secret_option
from securetrain.cli.progress import progress_bar
from securetrain.cli.sign_dataset import DatasetOptions, dataset_options, sign_dataset

if TYPE_CHECKING:
    from securetrain.artifacts.model.oms.model import ModelSigner

KEY_LIMIT: Final = 1 << 20

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
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--dataset", "kind", flag_value="dataset", help="Sign a dataset.")
@click.option("--safetensors", "kind", flag_value="safetensors", help="Sign safetensors.")
@click.option("--oms", "kind", flag_value="oms", help="Write a Model Signing bundle.")
@click.option(
    "--key", "key_name", required=True, help="Private key: a file, or (not --oms) a pkcs11: URI."
)
@secret_option
@dataset_options
@click.option(
    "--certificate",
    type=click.Path(path_type=Path),
    help="--oms: the key's certificate (PEM), which then travels in the bundle.",
)
@click.option(
    "--chain",
    multiple=True,
    type=click.Path(path_type=Path),
    help="--oms: what leads from the certificate to the root (PEM).",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    help="--oms: where the bundle is written. Default: model.sig in the model.",
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
    from securetrain.identity.signers import open_signer

    ask = asker(passphrase_file)
    match kind:
        case "dataset":
            return sign_dataset(path, open_signer(key_name, ask), dataset)
        case "safetensors":
            from securetrain.artifacts.model.safetensors_folder import sign_safetensors
            from securetrain.artifacts.statement.context import SaveContext
            from securetrain.artifacts.statement.statements import digest_of

            context = SaveContext(
                run_id=dataset.name,
                step=0,
                created=datetime.now(UTC),
                save_id=secrets.token_hex(16),
            )
            said = sign_safetensors(path, key=open_signer(key_name, ask), context=context)
            click.echo(f"signed {path}\ndigest {digest_of(said)}")
            return 0
        case "oms":
            return _sign_oms(path, _model_signer(Path(key_name), certificate, chain), bundle)
        case _:
            raise UsageError(
                "ST-USAG-001",
                "nothing says what it is",
                str(path),
                "give --dataset, --safetensors or --oms",
            )


def _sign_oms(path: Path, signer: "ModelSigner", bundle: Path | None) -> int:
    from securetrain.artifacts.model.oms.model import DEFAULT_NAME, sign_model

    target = bundle or path / DEFAULT_NAME
    with progress_bar("signing") as progress:
        predicate = sign_model(path, target, signer, progress=progress)
    click.echo(f"signed {len(predicate.resources)} files of {path}")
    click.echo(f"bundle {target}")
    return 0


def _model_signer(
    key_file: Path, certificate: Path | None, chain: tuple[Path, ...]
) -> "ModelSigner":
    from securetrain.artifacts.model.oms import keys
    from securetrain.artifacts.model.oms.model import CertificateSigner, KeySigner
    from securetrain.core.files import read_file
    from securetrain.identity.keys import read_private

    key = keys.load_private(read_private(key_file), None, str(key_file))
    if certificate is None:
        return KeySigner(key=key)
    found = [
        one
        for file in (certificate, *chain)
        for one in keys.load_certificates(read_file(file, KEY_LIMIT), str(file))
    ]
    return CertificateSigner(key=key, chain=tuple(found))
