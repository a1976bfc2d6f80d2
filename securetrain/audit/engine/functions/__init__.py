# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The functions that checks call, by subject."""

from securetrain.audit.engine.functions import access as access
from securetrain.audit.engine.functions import advisories as advisories
from securetrain.audit.engine.functions import fabric as fabric
from securetrain.audit.engine.functions import firewall as firewall
from securetrain.audit.engine.functions import network as network
from securetrain.audit.engine.functions import paths as paths
from securetrain.audit.engine.functions import run as run
from securetrain.audit.engine.functions import slurm as slurm
from securetrain.audit.engine.functions import standards as standards
