# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest images``: accept unified kernel images by their signature."""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from securetrain.cli.fleet_memory import fleet_memory
from securetrain.cli.options import file_argument, json_option
from securetrain.cli.passphrase import asker
from securetrain.report import emit

EPILOG: Final = """\
\b
Examples:
  securetrain attest images fleet.json --key operator.pem --policy-key pcr.pem --group gpu-2026.11
  securetrain attest images fleet.json --key operator.pem --retire 5b1c...e0 --group gpu-2026.11

'systemd-measure sign' and 'ukify' sign a prediction of PCR 11 with the other half of the key. A
node that boots such an image is let in without a new edition. An image is retired by its policy
digest, `pol` in its signature file, as its signature stays good.

Exit codes: 0 written; 1 the file is not signed by these keys, went back, or the key is none; 2 bad
command line; 3 written, and it ends within 14 days.
"""
_LIMIT: Final = 64 << 10


@click.command(epilog=EPILOG, short_help="Accept unified kernel images by their signature.")
@file_argument("file")
@click.option(
    "--key",
    "key_name",
    required=True,
    help="The operator's key: a file, a pkcs11: URI, or one of awskms:, gcpkms: and azurekms:.",
)
@click.option(
    "--policy-key",
    "policy_keys",
    multiple=True,
    metavar="FILE",
    help="A public key (PEM) that signs images; repeatable.",
)
@click.option(
    "--retire", multiple=True, metavar="DIGEST", help="A prediction that is over; repeatable."
)
@click.option("--group", default="", metavar="NAME", help="The image group.")
@click.option(
    "--signed-by",
    multiple=True,
    metavar="KEY",
    help="A key that may have signed what is there; repeatable. Default: --key.",
)
@json_option
def images(  # noqa: PLR0917 - click passes every option
    file: Path,
    key_name: str,
    policy_keys: tuple[str, ...],
    retire: tuple[str, ...],
    group: str,
    signed_by: tuple[str, ...],
    output: str,
) -> int:
    """Write into FILE whose images are accepted, and which no longer are."""
    from securetrain.attest.fleet import accept_images, change_values, key_text
    from securetrain.core.files import read_file
    from securetrain.identity import open_signer
    from securetrain.report import values

    now, key = datetime.now(UTC), open_signer(key_name, asker(None))
    keys = [read_file(Path(name), _LIMIT).decode("ascii", "replace") for name in policy_keys]
    with closing(fleet_memory()) as state:
        made = change_values(
            file,
            lambda old: accept_images(old, keys=keys, retired=retire, group=group),
            key=key,
            signed_by=signed_by or (key_text(key.public),),
            now=now,
            lifetime=None,
            state=state,
        )
    return emit(values.values_page(made, file, now), output)
