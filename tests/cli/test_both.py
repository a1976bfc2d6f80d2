# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A trust root that asks for both signatures of a pair, by the commands of who keeps it."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from securetrain.artifacts import SaveContext, save
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.cli.artifacts.verify import command as verify
from securetrain.cli.identity.key import command as key
from securetrain.cli.identity.trust import command as trust
from securetrain.core import canonical
from securetrain.identity.keys import PrivateKey

pytestmark = pytest.mark.forgery


def run(verb: object, *arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(verb, [str(one) for one in arguments], standalone_mode=False)  # type: ignore[arg-type]
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.stdout


def test_one_signature_of_two_is_none(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.pem" for name in ("root", "saver", "lone")}
    for file in (files["root"], files["saver"]):
        assert run(key, "generate", file)[0] == 0
    PrivateKey.create(files["lone"])
    for name, asked in (("both", ["--signatures", "checkpoint=both"]), ("one", [])):
        code, _ = run(
            trust, "init", tmp_path / name, "--key", files["root"],
            "--add", f"checkpoint={files['saver']}.pub", *asked,
        )  # fmt: skip
        assert code == 0
    both, one = (["--trust", tmp_path / name / "root.json"] for name in ("both", "one"))

    now, place = datetime.now(UTC), tmp_path / "step-1"
    context = SaveContext(run_id="r", step=1, seq=1, created=now - timedelta(minutes=1))
    save({"w": torch.ones(4)}, place, key=PrivateKey.load(files["saver"]), context=context)
    assert run(verify, place, *both)[0] == 0

    envelope = json.loads((place / STATEMENT).read_bytes())
    classical, companion = envelope["signatures"]
    for kept, code in ((classical, 0), (companion, 12)):
        (place / STATEMENT).write_bytes(canonical.dumps({**envelope, "signatures": [kept]}))
        found, text = run(verify, place, *both, "--json")
        assert (found, "ST-CKPT-120" in text) == (12, True)
        assert ("its ML-DSA companion has not" in text) == (kept is classical)
        assert run(verify, place, *one)[0] == code, "what a root says that asks for one"
