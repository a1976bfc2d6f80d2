# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one table of codes: everything that is decided about a refusal, in one row for each.

A code is stable for ever: it stands in ledgers, SARIF files and other people's CI. Refusals have
families of four letters (``ST-CKPT-130``); audit checks have groups of three (``ST-RDZ-001``), so
that the two can never be confused. In the artifact families the first two digits are the exit code.

Nothing else in the package may hold a dictionary, set or list of codes: what depends on a code is a
column (`columns`), and a place reads it from the row. Ranks say which of several problems of one
checkpoint, dataset, model or scan is the most telling: who made it, then what it is, then what is
missing, then what a policy says of it. A directory that nobody signed needs no further explanation;
in a scan, unsafe content outranks content that could not be judged, which outranks what could not
be read.
"""

from typing import Final

from securetrain.core.codes import (
    chained,
    devices,
    evidence,
    inputs,
    joining,
    running,
    signatures,
    stored,
)
from securetrain.core.codes.columns import ALONE, Code, Node, Retry
from securetrain.core.exits import ExitCode

__all__ = ["ALONE", "CODES", "RETIRED", "Code", "ExitCode", "Node", "Retry"]

RETIRED: Final = frozenset({"ST-ATTS-120", "ST-DATA-121"})
"""Codes of earlier versions. They are never used again."""


def _table(*rows: Code) -> dict[str, Code]:
    table = {code.id: code for code in rows}
    assert len(table) == len(rows), "a code is defined twice"
    assert not table.keys() & RETIRED, "a retired code is used again"
    return table


CODES: Final[dict[str, Code]] = _table(
    *inputs.ROWS,
    *signatures.ROWS,
    *evidence.ROWS,
    *devices.ROWS,
    *joining.ROWS,
    *running.ROWS,
    *stored.ROWS,
    *chained.ROWS,
)
