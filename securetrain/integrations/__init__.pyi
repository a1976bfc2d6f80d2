# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .versions import TESTED as TESTED
from .versions import framework as framework
