# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .coordinator import Admission as Admission
from .coordinator import Coordinator as Coordinator
from .coordinator import CoordinatorSettings as CoordinatorSettings
from .enrollment_server import MAX_CONNECTIONS as MAX_CONNECTIONS
from .enrollment_server import EnrollmentServer as EnrollmentServer
from .enrollment_server import make_token as make_token
from .fleet_desk import Seen as Seen
from .fleet_service import FleetService as FleetService
from .journal import Journal as Journal
from .keep import Shown as Shown
from .standalone import Plan as Plan
from .standalone import Standalone as Standalone
from .vault import Vault as Vault
from .watchers import Watchers as Watchers
