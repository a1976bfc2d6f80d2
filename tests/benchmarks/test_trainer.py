# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from benchmarks.ab import Side
from benchmarks.trainer import Steps


@pytest.mark.dist
@pytest.mark.parametrize(("wrapper", "guard"), [("ddp", True), ("fsdp2", False)])
def test_a_block_of_each_side(wrapper, guard):
    assert len(Steps(wrapper, guard=guard, steps=1).run([Side.PLAIN, Side.OURS])) == 2
