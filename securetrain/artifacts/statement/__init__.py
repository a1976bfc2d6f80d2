# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Statements about artifacts: what is signed, by whom, and what a policy asks of it."""

from typing import TYPE_CHECKING

import lazy_loader

if not TYPE_CHECKING:  # a checker of types finds the modules by itself
    __getattr__, *_ = lazy_loader.attach(
        __name__,
        ["checkpoint_predicate", "context", "dataset_predicate", "members", "rules", "saved_files"],
    )
