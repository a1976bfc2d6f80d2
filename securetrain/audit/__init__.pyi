# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .catalogue import load_checks as load_checks
from .check import Check as Check
from .check import CheckId as CheckId
from .check import Refs as Refs
from .collect.node import collect_node as collect_node
from .collect.node import root_files_variable as root_files_variable
from .document import read_document as read_document
from .engine import audit as audit
from .engine import worst_states as worst_states
from .facts import Facts as Facts
from .facts import Interface as Interface
from .facts import read_facts as read_facts
from .findings import AuditResult as AuditResult
from .findings import Finding as Finding
from .waivers import read_waivers as read_waivers
