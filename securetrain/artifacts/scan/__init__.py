# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The effects of the pickles in files, found without running them and without torch."""

from typing import TYPE_CHECKING

import lazy_loader

if not TYPE_CHECKING:  # a checker of types finds the modules by itself
    __getattr__, *_ = lazy_loader.attach(__name__, ["findings"])
