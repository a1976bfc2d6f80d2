# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The restricted fields of a pod or container, by the words of its facts."""

from typing import Any

from securetrain.audit.engine.functions.standards import _bearing
from securetrain.audit.facts import Outcome, Reading
from securetrain.audit.subjects.kubernetes.facts.workload import Container, Pod
from securetrain.audit.subjects.kubernetes.standards import rows


def said(record: Pod | Container, field: str) -> Any:
    """What stands in a field of that end, or leaves it open; absent where nothing does."""
    paths = [*rows("pod"), *rows("container")]
    path = next(one for one in paths if one == field or one.endswith(f".{field}"))
    nothing: Reading[str] = Reading(outcome=Outcome.ABSENT, reason="not set", at=record.at)
    return next((one.text for one in _bearing(record.settings, path)), nothing)
