# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The reports of two readers by themselves, as `securetrain.chain.verify` has them filled."""

from pathlib import Path
from typing import Any

from securetrain.artifacts.model.oms import Scope, check_model
from securetrain.artifacts.report import Report
from securetrain.artifacts.saved.judging import check_saved


def verify_model(path: Path, *of: Any, scope: Scope | None = None, **more: Any) -> Report:
    found = Report.of(path)
    check_model(found, path, *of, scope=scope or Scope(), **more)
    return found


def verify_saved(path: Path, **more: Any) -> Report:
    found = Report.of(path)
    check_saved(found, path, **more)
    return found
