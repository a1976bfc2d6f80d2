# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What ``securetrain verify`` knows besides the artifact: waivers, and what was seen before."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from securetrain.artifacts.lineage.freshness import Freshness
    from securetrain.artifacts.verify import VerifyResult
    from securetrain.identity.trust import TrustRoot


def known(waivers: Sequence[Path], floors_file: Path | None) -> "Freshness | None":
    """What this machine knows besides the artifact; None when nothing was given."""
    from securetrain.artifacts.lineage.floors import Floors
    from securetrain.artifacts.lineage.freshness import Freshness
    from securetrain.artifacts.lineage.waivers import LIMIT
    from securetrain.core.files import read_file

    if not waivers and floors_file is None:
        return None
    return Freshness(
        floors=None if floors_file is None else Floors(floors_file),
        waivers=tuple(read_file(path, LIMIT) for path in waivers),
    )


def remember(result: "VerifyResult", floors_file: Path, trust: "TrustRoot") -> "VerifyResult":
    """From now on nothing older counts on this machine; the result, refused if this is older."""
    from dataclasses import replace

    from securetrain.artifacts.dataset.verified import check_floor
    from securetrain.artifacts.lineage import freshness
    from securetrain.artifacts.lineage.floors import Floors
    from securetrain.artifacts.statement.statements import CheckpointPredicate, DatasetPredicate
    from securetrain.artifacts.tree.problems import Problem
    from securetrain.core.errors import IntegrityError

    floors, opened = Floors(floors_file), result.opened
    if opened is None:
        return result
    match opened.predicate:
        case CheckpointPredicate():
            freshness.remember(opened, floors)
        case DatasetPredicate() as predicate:
            try:
                check_floor(floors, predicate, opened.digest, trust, str(result.path))
            except IntegrityError as error:
                return replace(result, problems=(Problem(code=error.code, what=error.what),))
    return result
