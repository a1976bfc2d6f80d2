# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files and directories in other people's formats: signed as they are saved, verified as they are.

It starts without torch, and is the same for every framework.
"""

from typing import TYPE_CHECKING

import lazy_loader

if not TYPE_CHECKING:  # a checker of types finds the modules by itself
    __getattr__, *_ = lazy_loader.attach(__name__, ["folder", "judging", "signer"])
