# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .machine import Machine as Machine
from .machine import reference_values as reference_values
from .machine import write_policy as write_policy
