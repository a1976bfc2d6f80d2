# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Random damage to signed directories: verifying refuses it, and reading gives no wrong byte.

A checkpoint of safetensors files, and a dataset. One change each: a byte, a run of bytes, two runs
that change places, a file that is cut, grows, vanishes, is replaced by another of the directory, by
a link to itself, or gets company. A change that changes nothing is not counted as refused.
"""

import os
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.dataset.verified import Dataset
from securetrain.artifacts.model.safetensors_folder import sign_safetensors
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.tree.safetensors_header import encode_header
from securetrain.artifacts.verify import verify_path
from securetrain.core.errors import SecureTrainError
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from tools.campaigns import Campaign, Missed

_SMALL: Final = TreeParams(leaf_size=1024)
_KEY: Final = PrivateKey.generate()
_NOW: Final = datetime.now(UTC)


def _trust() -> TrustRoot:
    roles = {TrustRole.CHECKPOINT: [_KEY.public], TrustRole.DATASET: [_KEY.public]}
    return TrustRoot.parse(sign_root(roles, _KEY, _NOW, _NOW + timedelta(days=400)), _NOW)


def _checkpoint(rng: random.Random, folder: Path) -> None:
    folder.mkdir()
    for number in range(3):
        shape = (rng.randrange(1, 40), 32)
        header = encode_header({f"w{number}": ("float32", shape)})
        data = header + rng.randbytes(4 * shape[0] * shape[1])
        (folder / f"model-{number}.safetensors").write_bytes(data)
    (folder / "config.json").write_bytes(b'{"x": 1}\n')
    context = SaveContext(run_id="r", step=1, seq=1, created=_NOW, save_id="0" * 32)
    sign_safetensors(folder, key=_KEY, context=context, params=_SMALL)


def _dataset(rng: random.Random, folder: Path) -> None:
    folder.mkdir()
    for name in ("a.bin", "b.bin"):
        (folder / name).write_bytes(rng.randbytes(rng.randrange(1, 9000)))
    sign_in_place(folder, About(name="d"), key=_KEY, now=_NOW, params=_SMALL)


def _bytes(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data))
    length = rng.choice([1, 1, 16, 600])
    match rng.randrange(3):
        case 0:
            data[start : start + length] = rng.randbytes(len(data[start : start + length]))
        case 1:
            data[start] ^= 1 << rng.randrange(8)
        case _:
            other = rng.randrange(len(data))
            length = min(length, len(data) - max(start, other))
            one, two = data[start : start + length], data[other : other + length]
            data[start : start + length], data[other : other + length] = two, one
    path.write_bytes(data)


def _size(rng: random.Random, path: Path) -> None:
    if rng.random() < 0.5:
        os.truncate(path, rng.randrange(path.stat().st_size))
    else:
        with path.open("ab") as file:
            file.write(rng.randbytes(rng.randrange(1, 2000)))


def _whole(rng: random.Random, path: Path, files: list[Path]) -> None:
    match rng.randrange(4):
        case 0:
            path.unlink()
        case 1:
            shutil.copy(rng.choice(files), path.with_name("copy-of-it"))
        case 2:
            aside = path.with_name("aside")
            path.rename(aside)
            path.symlink_to(aside.name)
        case _:
            other = rng.choice(files)
            if other != path:
                shutil.copy(other, path)


def _snapshot(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_dir()
    }


def case(rng: random.Random, folder: Path) -> str:
    """Damage one directory in one way."""
    target, trust = folder / "x", _trust()
    is_dataset = rng.random() < 0.4
    (_dataset if is_dataset else _checkpoint)(rng, target)
    if not verify_path(target, trust=trust, policy=None, now=_NOW).ok:
        raise Missed("what is good is refused: the case proves nothing")
    before = _snapshot(target)
    files = sorted(path for path in target.rglob("*") if path.is_file())
    path = rng.choice(files)
    match rng.randrange(4):
        case 0 | 1:
            _bytes(rng, path)
        case 2:
            _size(rng, path)
        case _:
            _whole(rng, path, files)
    same = _snapshot(target) == before
    result = verify_path(target, trust=trust, policy=None, now=_NOW)
    if same:
        if not result.ok:
            raise Missed(f"nothing was changed, and {result.problems[0].code} is said")
        return "unchanged"
    if result.ok:
        raise Missed(f"a change of {path.name} verifies")
    if is_dataset:
        _read(target, trust, before)
    return "refused"


def _read(target: Path, trust: TrustRoot, before: dict[str, bytes | str]) -> None:
    """Read what can still be read: it is what was signed, or nothing."""
    try:
        with Dataset.open(target, trust=trust, policy=None, now=_NOW) as data:
            for name, size in data.files.items():
                for start in range(0, size, 700):
                    length = min(700, size - start)
                    try:
                        found = data.read(name, start, length)
                    except SecureTrainError:
                        continue
                    good = before[name]
                    assert isinstance(good, bytes)
                    if found != good[start : start + length]:
                        raise Missed(f"{name}: bytes {start} are wrong and were handed out")
    except SecureTrainError:
        return


CAMPAIGN: Final = Campaign(title="random damage to checkpoints and datasets", count=2000, case=case)
