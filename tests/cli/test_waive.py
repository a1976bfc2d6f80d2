# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain waive`` and what ``verify`` makes of waivers and floors.

Commands of docs/how-to/signed-checkpoints.md are tried here.
"""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from securetrain.artifacts.lineage.quarantine import Quarantine, set_aside
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    IndexFile,
    TreeInfo,
    open_statement,
    sign,
)
from securetrain.artifacts.tree.layout import INDEX, STATEMENT, Kind
from securetrain.cli.artifacts.verify import command as verify
from securetrain.cli.artifacts.waive import command as waive
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from tests.vocabulary import refused, trust_document


def run(verb: object, *arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(verb, [str(one) for one in arguments], standalone_mode=False)  # type: ignore[arg-type]
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """trust.json (two of three operators), op-N.key, run/step-1 and run/step-2."""
    now = datetime.now(UTC)
    root, signer = PrivateKey.generate(), PrivateKey.generate()
    operators = [PrivateKey.create(tmp_path / f"op-{n}.key") for n in range(3)]
    roles = {
        TrustRole.ROOT: [root.public],
        TrustRole.CHECKPOINT: [signer.public],
        TrustRole.OPERATOR: [key.public for key in operators],
    }
    document = trust_document(roles, now - timedelta(days=1), now + timedelta(days=1))
    data = sign_document(document, [root])
    (tmp_path / "trust.json").write_bytes(data)
    for seq in (1, 2):
        folder = tmp_path / "run" / f"step-{seq}"
        folder.mkdir(parents=True)
        index = b'{"tensors":[],"values":[{"fqn":"step","value":%d}],"version":1}' % seq
        (folder / INDEX).write_bytes(index)
        predicate = CheckpointPredicate(
            run_id="r1",
            step=seq,
            seq=seq,
            save_id=f"{seq:032x}",
            created=now - timedelta(minutes=10 - seq),
            world_size=1,
            tree=TreeInfo.of(TreeParams()),
            files=[],
            index=IndexFile(name=INDEX, size=len(index), sha256=hashlib.sha256(index).hexdigest()),
        )
        (folder / STATEMENT).write_bytes(sign(predicate, folder.name, signer))
    opened = open_statement(
        (tmp_path / "run" / "step-2" / STATEMENT).read_bytes(),
        Kind.CHECKPOINT,
        TrustRoot.parse(data, now),
    )
    why = Quarantine(node="node-1", code="ST-ADMN-013", last_good=now, epoch=1, created=now)
    set_aside(tmp_path / "run" / "step-2", opened, why, signer).rename(tmp_path / "doubted")
    return tmp_path


def sign_with(place: Path, *operators: int, out: str, **more: str) -> tuple[int, str]:
    keys = [part for n in operators for part in ("--key", place / f"op-{n}.key")]
    options = [part for name, value in more.items() for part in (f"--{name}", value)]
    trust = ("--trust", place / "trust.json")
    return run(waive, place / "doubted", *trust, *keys, *options, "--out", place / out)


def test_two_operators_one_after_the_other_excuse_a_checkpoint(place: Path) -> None:
    trust = ("--trust", place / "trust.json")
    assert run(verify, place / "doubted", *trust)[0] == 16
    code, text = sign_with(place, 0, out="first.json", reason="we know why")
    assert code == 0
    assert "we know why" in text
    code, text = run(verify, place / "doubted", *trust, "--waiver", place / "first.json")
    assert code == 16
    assert "ST-CKPT-123" in text
    assert sign_with(place, 1, out="both.json", add=str(place / "first.json"))[0] == 0
    assert run(verify, place / "doubted", *trust, "--waiver", place / "both.json")[0] == 0


@pytest.mark.forgery
def test_a_waiver_of_strangers_or_for_another_checkpoint(place: Path) -> None:
    PrivateKey.create(place / "op-8.key")
    PrivateKey.create(place / "op-9.key")
    sign_with(place, 8, 9, out="strangers.json", reason="please")
    trust = ("--trust", place / "trust.json")
    code, text = run(verify, place / "doubted", *trust, "--waiver", place / "strangers.json")
    assert code == 16
    assert "ST-CKPT-123" in text
    sign_with(place, 0, 1, out="right.json", reason="we know why")
    with pytest.raises(UsageError, match="is about"):
        run(
            waive, place / "run" / "step-1", *trust, "--key", place / "op-2.key",
            "--add", place / "right.json", "--out", place / "x.json",
        )  # fmt: skip
    (place / "bad.json").write_text("{}")
    with pytest.raises(IntegrityError) as error:
        sign_with(place, 2, out="y.json", add=str(place / "bad.json"))
    assert error.value.code == "ST-CKPT-123"
    refused(UsageError, "needs a reason", sign_with, place, 0, out="z.json")


@pytest.mark.forgery
def test_a_machine_that_remembers_refuses_an_older_checkpoint(place: Path) -> None:
    trust = ("--trust", place / "trust.json")
    floors = ("--floors", place / "state" / "floors.json")
    sign_with(place, 0, 1, out="both.json", reason="we know why")
    old = place / "run" / "step-1"
    assert run(verify, old, *trust)[0] == 0
    newer = (verify, place / "doubted", *trust, *floors, "--waiver", place / "both.json")
    assert run(*newer)[0] == 0
    code, text = run(verify, old, *trust, *floors)
    assert code == 15
    assert "ST-CKPT-151" in text
