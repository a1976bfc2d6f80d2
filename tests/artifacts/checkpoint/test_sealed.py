# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Encrypted checkpoints: verified without a key, loaded with one, never in the clear on disk."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from securetrain import artifacts
from securetrain.artifacts.checkpoint.async_save import SaveMode, async_save
from securetrain.artifacts.statement.statements import CheckpointPredicate, open_statement, sign
from securetrain.artifacts.tree.encryption import TAG, DecryptionKey, FileCipher, open_key
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.verify import verify_path
from securetrain.core.errors import IntegrityError
from securetrain.core.hashtree import pages_of, root_of
from securetrain.policy.load import load_policy
from tests.artifacts.checkpoint.worlds import SMALL, context_of
from tests.trees import tree_of
from tests.vocabulary import refused

OWNER = DecryptionKey.generate()


def state(fill: float = 1.0) -> dict[str, Any]:
    return {
        "w": torch.full((100, 30), fill),
        "b": torch.full((7,), fill, dtype=torch.bfloat16),
        "e": torch.zeros(0),
        "step": 3,
    }


@pytest.fixture
def sealed(tmp_path: Path, keys: Any, now: Any) -> Path:
    path = tmp_path / "step-1"
    artifacts.save(state(), path, **sealing(keys, now), params=SMALL)
    return path


def sealing(keys: Any, now: Any, step: int = 1) -> dict[str, Any]:
    context = context_of(now, step)
    return {"key": keys.checkpoint, "context": context, "recipients": [OWNER.recipient]}


def load(path: Path, trust: Any, now: Any, *keys: DecryptionKey) -> dict[str, Any]:
    target = state(0.0)
    artifacts.load(target, path, trust=trust, policy=None, now=now, keys=keys)
    return target


def test_it_verifies_without_a_key_and_loads_with_one(sealed: Path, trust: Any, now: Any) -> None:
    assert verify_path(sealed, trust=trust, policy=None, now=now).ok
    data = (sealed / "rank-00000.bin").read_bytes()
    assert torch.ones(8).numpy().tobytes() not in data
    loaded = load(sealed, trust, now, OWNER)
    assert torch.equal(loaded["w"], state()["w"])
    assert torch.equal(loaded["b"], state()["b"])


def test_into_targets_of_another_dtype(tmp_path: Path, keys: Any, trust: Any, now: Any) -> None:
    saved = {"w": torch.randn(300, 77)}
    artifacts.save(saved, tmp_path / "c", **sealing(keys, now))
    target = {"w": torch.zeros(300, 77, dtype=torch.float64)}
    artifacts.load(target, tmp_path / "c", trust=trust, policy=None, now=now, keys=[OWNER])
    assert torch.equal(target["w"], saved["w"].double())


@pytest.mark.parametrize("given", [(), (DecryptionKey.generate(),)])
def test_without_the_key_nothing_is_loaded(given, sealed, trust, now):
    refused(IntegrityError, "ST-CKPT-124", load, sealed, trust, now, *given)


@pytest.mark.parametrize("mode", list(SaveMode))
def test_it_is_saved_in_the_background_too(mode, tmp_path, keys, trust, now):
    path = tmp_path / "step-2"
    async_save(state(), path, **sealing(keys, now, 2), mode=mode).result(timeout=60)
    assert torch.equal(load(path, trust, now, OWNER)["w"], state()["w"])


def test_a_policy_can_ask_for_it(sealed, tmp_path, keys, trust, now):
    plain = tmp_path / "plain"
    artifacts.save(state(), plain, key=keys.checkpoint, context=context_of(now))
    policy = load_policy("dev").policy
    checkpoint = msgspec.structs.replace(
        policy.checkpoint, encrypt_to=(OWNER.recipient.public.hex(),)
    )
    asked = msgspec.structs.replace(policy, checkpoint=checkpoint)

    def said(path: Path) -> list[str]:
        result = verify_path(path, trust=trust, policy=asked, now=now)
        return [problem.what for problem in result.problems if "encrypted" in problem.what]

    assert said(sealed) == []
    assert len(said(plain)) == 1


# T51: whoever can write the directory.


@pytest.mark.forgery
@pytest.mark.parametrize("change", ["flip", "swap", "truncate", "append"])
def test_changed_ciphertext_is_not_what_was_signed(change, sealed, trust, now):
    path = sealed / "rank-00000.bin"
    data = bytearray(path.read_bytes())
    match change:
        case "flip":
            data[2000] ^= 1
        case "swap":
            data[:1024], data[1024:2048] = data[1024:2048], data[:1024]
        case "truncate":
            del data[-1024:]
        case _:
            data += data[-1024:]
    path.write_bytes(data)
    with pytest.raises(IntegrityError) as error:
        load(sealed, trust, now, OWNER)
    assert error.value.code in ("ST-CKPT-130", "ST-CKPT-131")


# T51: whoever may sign, and does not have the file's key. Signed is not the same as decryptable.


def resign(path: Path, trust: Any, keys: Any, data: bytes, **changes: Any) -> None:
    """Sign another content of the rank's file."""
    opened = open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust)
    predicate = opened.predicate
    assert isinstance(predicate, CheckpointPredicate)
    tree = tree_of(SMALL, data)
    assert tree.root == root_of(SMALL, len(data), tree.leaves)
    assert pages_of(SMALL, tree.leaves)
    (path / "rank-00000.bin").write_bytes(data)
    (path / "rank-00000.bin.leaves").write_bytes(tree.leaves)
    replace = msgspec.structs.replace
    file = replace(predicate.files[0], size=len(data), root=tree.root.hex())
    if "wrapped" in changes:
        assert file.sealed is not None
        file = replace(file, sealed=replace(file.sealed, keys=changes.pop("wrapped")))
    predicate = replace(predicate, files=[file], **changes)
    (path / STATEMENT).write_bytes(sign(predicate, "step-1", keys.checkpoint))


@pytest.mark.forgery
@pytest.mark.parametrize("change", ["reorder", "drop", "cut", "run", "save", "splice"])
def test_signed_ciphertext_that_was_put_together_is_refused(  # noqa: PLR0917 - fixtures
    change: str, sealed: Path, tmp_path: Path, trust: Any, keys: Any, now: Any
) -> None:
    data = bytearray((sealed / "rank-00000.bin").read_bytes())
    more: dict[str, Any] = {}
    match change:
        case "reorder":
            data[:1024], data[1024:2048] = data[1024:2048], data[:1024]
        case "drop":
            del data[1024:2048]
        case "cut":
            del data[-(len(data) % 1024 or 1024) :]
        case "run":
            more["run_id"] = "another"
        case "save":
            more["save_id"] = "0" * 32
        case _:
            other = tmp_path / "other"
            context = artifacts.SaveContext(run_id="r", step=1, created=now)
            artifacts.save(
                state(9.0), other, key=keys.checkpoint, context=context, params=SMALL,
                recipients=[OWNER.recipient],
            )  # fmt: skip
            data[:1024] = (other / "rank-00000.bin").read_bytes()[:1024]
    resign(sealed, trust, keys, bytes(data), **more)
    refused(IntegrityError, "ST-CKPT-133", load, sealed, trust, now, OWNER)


@pytest.mark.forgery
def test_a_key_of_another_file_does_not_decrypt_this_one(sealed, tmp_path, trust, keys, now):
    other = tmp_path / "other"
    context = artifacts.SaveContext(run_id="r", step=1, created=now)
    artifacts.save(
        state(), other, key=keys.checkpoint, context=context, params=SMALL,
        recipients=[OWNER.recipient],
    )  # fmt: skip
    opened = open_statement((other / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust).predicate
    assert isinstance(opened, CheckpointPredicate)
    foreign = opened.files[0].sealed
    assert foreign is not None
    assert open_key(foreign, [OWNER], "f", "w")
    resign(sealed, trust, keys, (sealed / "rank-00000.bin").read_bytes(), wrapped=foreign.keys)
    refused(IntegrityError, "ST-CKPT-133", load, sealed, trust, now, OWNER)


def test_the_cipher_of_a_file_is_bound_to_its_save(sealed: Path, trust: Any) -> None:
    opened = open_statement((sealed / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust).predicate
    assert isinstance(opened, CheckpointPredicate)
    file = opened.files[0]
    assert file.sealed is not None
    key = open_key(file.sealed, [OWNER], file.name, "w")
    right = FileCipher.of(
        key, run_id="r", save_id=opened.save_id, file=file.name, chunk=SMALL.leaf_size
    )
    assert file.size == file.sealed.size + TAG * right.num_chunks(file.sealed.size)
