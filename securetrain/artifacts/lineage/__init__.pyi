# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from . import folder as folder
from . import head as head
from . import judging as judging
from . import machine as machine
from . import quarantine as quarantine
from . import waivers as waivers
from . import walk as walk
from .folder import LogProof as LogProof
from .folder import proof_name as proof_name
from .recovery import Recovery as Recovery
