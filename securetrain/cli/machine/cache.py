# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Look after the compiled code that runs of this user share.

There is one cache for each set of versions, policy and user of the workers. Nothing in it is
needed: what is missing is compiled again.

Examples:
  securetrain cache list
  securetrain cache clear
  securetrain cache clear 3f2a

Exit codes: 0 done; 1 a cache is in use and stays; 2 there is no such cache; 20 the folder may not
be read.
"""

import os
from typing import Annotated

from securetrain.cli.command import Argument, VerbGroup, verb
from securetrain.report import Document

command = VerbGroup(__name__, __doc__, {"": ("list", "clear")})


@verb()
def list_() -> Document:
    """Show every cache, the one that was used last first."""
    from securetrain.launch import list_caches, this_node
    from securetrain.report import machine

    return machine.caches(list_caches(this_node(os.environ)))


@verb()
def clear(*, names: Annotated[tuple[str, ...], Argument(metavar="[NAME]...")]) -> Document:
    """Remove the caches whose names begin with NAME; all when none is given."""
    from securetrain.launch import clear_caches, this_node
    from securetrain.report import machine

    return machine.cleared(clear_caches(this_node(os.environ), names))
