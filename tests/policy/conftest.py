# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from pathlib import Path

import pytest

HEAD = """\
apiVersion: securetrain.dev/policy/v1
kind: Policy
metadata: {id: mine, version: 1.0.0}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write a policy file that extends baseline, unless told otherwise; returns its path."""

    def make(body: str = "", *, name: str = "mine.yaml", extends: str = "baseline") -> str:
        path = tmp_path / name
        head = f"extends: {extends}\n" if extends else ""
        path.write_text(head + HEAD + body)
        return str(path)

    return make
