# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet join``: a machine proves itself with a one-time token."""

import os
from pathlib import Path
from typing import Annotated

from securetrain.cli.clock import now
from securetrain.cli.command import Argument, verb
from securetrain.cli.options import ATTESTER, STATE
from securetrain.cli.passphrase import read_token
from securetrain.report import Document


@verb()
def join(
    *,
    text: Annotated[str, Argument(metavar="TOKEN")],
    attester: Annotated[str, ATTESTER] = "auto",
    state: Annotated[Path | None, STATE],
) -> Document:
    """Prove this machine to a fleet with TOKEN ('-' reads it from standard input).

    Examples:
      securetrain fleet join sf1_eyJ...
      securetrain fleet join - --attester attester.json < token

    The TPM and its logs are root's. Everything is in the token: where the desk is, and the key that
    must answer there. A try that fails does not spend the token.

    Exit codes: 0 proven, and kept by the desk; 1 refused, or the TPM does not do what is needed; 2
    bad command line, or a token that was not copied whole; 20 a file cannot be read or written.
    """
    from securetrain.attest.fleet import parse_fleet_token
    from securetrain.core import default_state
    from securetrain.rendezvous.member import join_fleet
    from securetrain.report import fleet

    joined = join_fleet(
        parse_fleet_token(read_token(text)),
        state=state or default_state(Path.home(), os.geteuid()),
        attester=attester,
        environ=os.environ,
        clock=now,
    )
    return fleet.joined_page(joined)
