# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from . import channel as channel
from . import protocol as protocol
from . import tls as tls
from .enrollment import REPORT_LIMIT as REPORT_LIMIT
from .membership import Evicted as Evicted
from .membership import Membership as Membership
from .membership import read_membership as read_membership
from .ranks import node_of as node_of
from .ranks import node_ranks as node_ranks
from .tunnel import Tunnel as Tunnel
