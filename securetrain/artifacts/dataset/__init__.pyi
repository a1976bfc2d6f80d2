# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from . import sign as sign
from . import write as write
from .files import VerifiedFile as VerifiedFile
from .samples import TABLE_PREFIX as TABLE_PREFIX
from .versions import Removals as Removals
