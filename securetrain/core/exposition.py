# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format, for node-exporter's textfile collector: no port, no server.

Format: prometheus.io/docs/instrumenting/exposition_formats.
"""

import math
from collections.abc import Iterable, Mapping


def metric(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """The lines of one metric: its help, its type and its samples (labels, value)."""
    return [
        f"# HELP {name} {text}",
        f"# TYPE {name} {kind}",
        *(f"{name}{labels} {number(value)}" for labels, value in samples),
    ]


def labels(given: Mapping[str, str]) -> str:
    """Labels in braces."""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in given.items()) + "}"


def number(value: float) -> str:
    """A value as the format spells it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value.is_integer() and abs(value) < 1 << 53 else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
