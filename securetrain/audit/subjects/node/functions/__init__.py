# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The functions that checks of machines call."""

from securetrain.audit.subjects.node.functions import access as access
from securetrain.audit.subjects.node.functions import advisories as advisories
from securetrain.audit.subjects.node.functions import fabric as fabric
from securetrain.audit.subjects.node.functions import firewall as firewall
from securetrain.audit.subjects.node.functions import keys as keys
from securetrain.audit.subjects.node.functions import listeners as listeners
from securetrain.audit.subjects.node.functions import network as network
from securetrain.audit.subjects.node.functions import node as node
from securetrain.audit.subjects.node.functions import paths as paths
