# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest images``: accept unified kernel images by their signature."""

from pathlib import Path
from typing import Annotated, Final

from securetrain.cli.attest.signing import KeySigning
from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.options import GROUP
from securetrain.report import Document

_LIMIT: Final = 64 << 10


@verb()
def images(
    *,
    file: Path,
    signing: KeySigning,
    policy_keys: Annotated[
        tuple[str, ...],
        Option("--policy-key", "A public key (PEM) that signs images; repeatable.", metavar="FILE"),
    ],
    retire: Annotated[
        tuple[str, ...],
        Option("--retire", "A prediction that is over; repeatable.", metavar="DIGEST"),
    ],
    group: Annotated[str, GROUP.told("The image group.", metavar="NAME")] = "",
) -> Document:
    r"""Accept unified kernel images by their signature.

    Writes into FILE whose images are accepted, and which no longer are.

    Examples:
      securetrain attest images fleet.json --key operator.pem --policy-key pcr.pem \
          --group gpu-2026.11
      securetrain attest images fleet.json --key operator.pem --retire 5b1c...e0 --group gpu-2026.11

    'systemd-measure sign' and 'ukify' sign a prediction of PCR 11 with the other half of the key. A
    node that boots such an image is let in without a new edition. An image is retired by its policy
    digest, `pol` in its signature file, as its signature stays good.

    Exit codes: 0 written; 1 the file is not signed by these keys, went back, or the key is none; 2
    bad command line; 3 written, and it ends within 14 days.
    """
    from securetrain.attest.fleet import accept_images
    from securetrain.core.files import read_file
    from securetrain.report import values

    keys = [read_file(Path(name), _LIMIT).decode("ascii", "replace") for name in policy_keys]
    made = signing.change(
        file, lambda old: accept_images(old, keys=keys, retired=retire, group=group)
    )
    return values.values_page(made, file, now())
