# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from . import folder as folder
from . import head as head
from . import machine as machine
from . import quarantine as quarantine
from . import waivers as waivers
from . import walk as walk
from .folder import LogProof as LogProof
from .folder import log_policy as log_policy
from .folder import proof_name as proof_name
from .judging import Asked as Asked
from .judging import judge as judge
from .recovery import Recovery as Recovery
from .walk import Link as Link
from .walk import chain_of as chain_of
