# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain sign DIR``: sign what was made elsewhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.progress import progress_bar

if TYPE_CHECKING:
    from securetrain.artifacts.oms.model import ModelSigner

KEY_LIMIT: Final = 1 << 20

EPILOG: Final = """\
\b
Examples:
  openssl ecparam -name prime256v1 -genkey -noout -out maker.key && chmod 600 maker.key
  securetrain sign ./model --oms --key maker.key
  securetrain sign ./model --oms --key leaf.key --certificate leaf.pem --chain ca.pem
  model_signing verify key ./model --signature ./model/model.sig --public_key maker.pem

\b
--oms writes an OpenSSF Model Signing bundle: SHA-256 of every file, verified by 'securetrain
verify --bundle' and by other people's model_signing. Checkpoints of a run are signed while they are
saved, and need no signing afterwards.
"""


@click.command(name="sign", epilog=EPILOG)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--oms", is_flag=True, help="Write an OpenSSF Model Signing bundle.")
@click.option("--key", "key_file", type=click.Path(path_type=Path), help="Private key (PEM).")
@click.option(
    "--certificate",
    type=click.Path(path_type=Path),
    help="The key's certificate (PEM), which then travels in the bundle.",
)
@click.option(
    "--chain",
    multiple=True,
    type=click.Path(path_type=Path),
    help="What leads from the certificate to the root (PEM).",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    help="Where the bundle is written. Default: model.sig in the model.",
)
def command(
    *,
    path: Path,
    oms: bool,
    key_file: Path | None,
    certificate: Path | None,
    chain: tuple[Path, ...],
    bundle: Path | None,
) -> int:
    """Sign the directory PATH."""
    from securetrain.artifacts.oms.model import DEFAULT_NAME, sign_model
    from securetrain.core.errors import UsageError

    if not oms or key_file is None:
        raise UsageError(
            "ST-USAG-001",
            "what to write is not said",
            str(path),
            "give --oms and --key FILE for an OpenSSF Model Signing bundle",
        )
    signer = _signer(key_file, certificate, chain)
    target = bundle or path / DEFAULT_NAME
    with progress_bar("signing") as progress:
        predicate = sign_model(path, target, signer, progress=progress)
    click.echo(f"signed {len(predicate.resources)} files of {path}")
    click.echo(f"bundle {target}")
    return 0


def _signer(key_file: Path, certificate: Path | None, chain: tuple[Path, ...]) -> "ModelSigner":
    from cryptography import x509

    from securetrain.artifacts.oms import keys
    from securetrain.artifacts.oms.model import CertificateSigner, KeySigner
    from securetrain.core.errors import IntegrityError
    from securetrain.core.files import read_file
    from securetrain.identity.keys import read_private

    key = keys.load_private(read_private(key_file), None, str(key_file))
    if certificate is None:
        return KeySigner(key=key)
    found: list[x509.Certificate] = []
    for file in (certificate, *chain):
        try:
            found += x509.load_pem_x509_certificates(read_file(file, KEY_LIMIT))
        except (ValueError, x509.InvalidVersion) as error:
            raise IntegrityError(
                "ST-OMSB-120", f"not a certificate: {error}", str(file), "give PEM certificates"
            ) from error
    return CertificateSigner(key=key, chain=tuple(found))
