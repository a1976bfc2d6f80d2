# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The closed set of named functions that a check may ``call``.

Each is registered where it stands, with the fields that it reads (`base.function`).
"""

from collections.abc import Mapping
from typing import Final

from securetrain.audit.functions import access as access
from securetrain.audit.functions import advisories as advisories
from securetrain.audit.functions import fabric as fabric
from securetrain.audit.functions import firewall as firewall
from securetrain.audit.functions import keys as keys
from securetrain.audit.functions import listeners as listeners
from securetrain.audit.functions import network as network
from securetrain.audit.functions import node as node
from securetrain.audit.functions import paths as paths
from securetrain.audit.functions import run as run
from securetrain.audit.functions import slurm as slurm
from securetrain.audit.functions import slurm_files as slurm_files
from securetrain.audit.functions.base import REGISTERED, Function

FUNCTIONS: Final[Mapping[str, Function]] = dict(sorted(REGISTERED.items()))
