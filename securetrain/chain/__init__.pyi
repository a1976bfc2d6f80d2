# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .coordinators import endorse as endorse
from .keeper import Keeper as Keeper
from .verifying import Evidence as Evidence
from .verifying import near as near
