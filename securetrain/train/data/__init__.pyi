# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .rows import Rows as Rows
from .rows import RowSource as RowSource
from .rows import share as share
from .source import ByteSplit as ByteSplit
from .token_streams import ByteTokens as ByteTokens
