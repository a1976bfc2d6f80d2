# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .enrollment import REPORT_LIMIT as REPORT_LIMIT
from .membership import Evicted as Evicted
from .membership import Membership as Membership
from .ranks import node_ranks as node_ranks
from .tunnel import Tunnel as Tunnel
