# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The drills end to end: each attack succeeds against stock torch and is refused by securetrain.

Both halves in one test run: a refusal counts only beside its positive control.
"""

import pytest

from securetrain.drills import DRILLS, run_drill
from tests.launch.sandbox.machine import lacking
from tests.vocabulary import needs

pytestmark = [pytest.mark.dist, pytest.mark.slow]


SAMPLE = {"D-MBR-CLOSE", "D-MBR-ACCUSE", "D-GRAD-NAN"}
"""Of those whose attacks other tests make too; the rest is `many`."""


@pytest.mark.parametrize(
    "drill_id",
    [
        pytest.param(
            name,
            marks=[
                *([] if drill.in_quickstart or name in SAMPLE else [pytest.mark.many]),
                *([needs(lacking)] if drill.module.endswith(("_host", "_signs")) else []),
            ],
        )
        for name, drill in DRILLS.items()
    ],
)
def test_the_attack_succeeds_plain_and_is_refused_hardened(drill_id, tmp_path):
    result = run_drill(drill_id, tmp_path / "drill")
    assert result.plain.succeeded, result.plain.evidence
    assert result.hardened.refused, result.hardened.evidence
    assert not result.hardened.succeeded, result.hardened.evidence
    assert result.hardened.code == DRILLS[drill_id].expected_code, result.hardened.evidence
    assert result.ok
    assert result.error() is None
    for outcome in (result.plain, result.hardened):
        assert str(tmp_path) not in outcome.evidence
