# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .legacy import convert as convert
from .save import SavedCheckpoint as SavedCheckpoint
from .tensors import memory as memory
