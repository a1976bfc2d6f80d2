# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What docs/how-to/object-stores.md says, done as it says it."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from securetrain.artifacts.tree import egress, lease, objects
from securetrain.cli.artifacts.sign import command as sign
from securetrain.cli.artifacts.verify import command as verify
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "object-stores.md"
TEXT = PAGE.read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
CODE = [text for kind, text in BLOCKS if kind == "python"]
COMMANDS = [text for kind, text in BLOCKS if not kind]


@pytest.fixture
def here(s3, keys, tmp_path, monkeypatch):
    """A folder with the keys and the trust root that the page names."""
    monkeypatch.chdir(tmp_path)
    for name, key in (("checkpoint", keys.checkpoint), ("dataset", keys.dataset)):
        key.save(Path(f"{name}.pem"))
    now = datetime.now(UTC)
    roles = {
        TrustRole.CHECKPOINT: [keys.checkpoint.public],
        TrustRole.DATASET: [keys.dataset.public],
    }
    data = sign_root(roles, keys.root, now, now + timedelta(days=9))
    Path("trust.json").write_bytes(data)
    return TrustRoot.parse(data, now)


def test_save_and_load(here):
    names: dict[str, Any] = {"torch": torch, "weights": torch.arange(9.0)}
    exec(CODE[0], names)
    assert torch.equal(names["state"]["w"], names["weights"])
    assert names["state"]["step"] == 100


def test_a_dataset(here, s3):
    signing, copying, verifying = COMMANDS[1].strip().splitlines()
    Path("data").mkdir()
    Path("data/a.bin").write_bytes(b"text " * 50)
    done = CliRunner().invoke(sign, signing.split()[2:], standalone_mode=False)
    assert done.exception is None, done.output
    assert copying.startswith("aws s3 cp --recursive data s3://bucket/data")  # not installed here
    for path in Path("data").rglob("*"):
        if path.is_file():
            s3.direct("PUT", str(path), path.read_bytes())
    done = CliRunner().invoke(verify, verifying.split()[2:], standalone_mode=False)
    assert done.return_value == 0
    names = {"root": here}
    exec(CODE[1], names)
    assert names["first"] == (b"text " * 50)[:100]


def test_the_figures_are_those_of_the_code():
    assert f"{egress.CONNECT:.0f} seconds to connect, {egress.READ:.0f} without" in TEXT
    assert f"{egress.SLOWEST >> 10} KiB a second" in TEXT
    assert f"{egress.ANSWER >> 20} MiB for a listing" in TEXT
    assert objects.TRIES == 6
    assert "up to six\ntries" in TEXT
    assert lease.OLD == 6 * 3600
    assert "for six hours by the store's clock" in TEXT
