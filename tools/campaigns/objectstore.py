# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Random faults between a run and its object store: S3 over HTTP (moto), behind a proxy.

A case has one good checkpoint, and does one thing more while requests are slow, refused, lost,
carried out twice, cut, or answered by a store that lies: save, save in the background, load, read a
dataset, verify; or the saver is killed. Rules: every end is a success, bit by bit what was saved,
or a refusal by a code; what was good before is good after; what has a statement loads; a name whose
save failed or was killed can be saved to again.
"""

import atexit
import os
import random
import signal
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch

from securetrain.artifacts import SaveContext, async_save, load, save, verify_path
from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.dataset.verified import Dataset
from securetrain.artifacts.tree import s3_client, s3_upload
from securetrain.artifacts.tree.s3 import S3Storage
from securetrain.core.errors import SecureTrainError
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from tests import s3_store
from tests.s3_store import BUCKET, LIES, TRANSPORT, Asked, Fault, S3Store
from tools.campaigns import Campaign, Missed

_KEY: Final = PrivateKey.generate()
_NOW: Final = datetime.now(UTC)
_SMALL: Final = TreeParams(leaf_size=1024)
_FOLDER: Final = f"s3://{BUCKET}/run"
_PART: Final = 5 << 20
_QUICKER: Final = (
    (s3_client, "FIRST_PAUSE", 0.001),
    (s3_client, "LONGEST_PAUSE", 0.01),
    (s3_client, "GRACE", 20.0),
    (s3_upload, "PART", _PART),
)
_LARGE: Final = 1_500_000
"""Elements of a state that goes in parts."""


def _trust() -> TrustRoot:
    roles = {TrustRole.CHECKPOINT: [_KEY.public], TrustRole.DATASET: [_KEY.public]}
    return TrustRoot.parse(sign_root(roles, _KEY, _NOW, _NOW + timedelta(days=400)), _NOW)


@lru_cache(maxsize=1)
def _store() -> S3Store:
    """One store for all cases; each begins with it empty."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(s3_store.running())


def _state(number: int, elements: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(number)
    return {"w": torch.randn(elements, generator=made), "n": number}


def _save(number: int, elements: int, how: Callable[..., Any] = save) -> Any:
    context = SaveContext(run_id="r", step=number, seq=number, created=_NOW)
    place = f"{_FOLDER}/step-{number}"
    return how(_state(number, elements), place, key=_KEY, context=context, params=_SMALL)


def _load(number: int, elements: int) -> str:
    """The code of its refusal; empty when it is what was saved.

    Raises:
        Missed: it loaded, and is something else.
    """
    target: dict[str, Any] = {"w": torch.zeros(elements), "n": -1}
    try:
        load(target, f"{_FOLDER}/step-{number}", trust=_trust(), policy=None, now=_NOW)
    except SecureTrainError as error:
        return error.code
    if not torch.equal(target["w"], _state(number, elements)["w"]) or target["n"] != number:
        raise Missed(f"step {number} loaded, and is another state")
    return ""


def _drawn(rng: random.Random, *, lies: bool) -> Callable[[Asked], Fault | None]:
    """Some requests fail, each in its own way; or one kind of fault lasts for a while."""
    kinds = [*TRANSPORT, *LIES] if lies else list(TRANSPORT)
    rate, fixed = rng.choice([0.02, 0.1, 0.3, 1.0]), rng.choice([None, rng.choice(kinds)])
    first = rng.randrange(6)  # always fails: no case is without a fault
    last = first + rng.choice([1, 3, 1000])
    seed = rng.random()

    def fault(asked: Asked) -> Fault | None:
        one = random.Random(f"{seed}:{asked.number}")  # noqa: S311 - the cases of a test
        if not first <= asked.number < last:
            return None
        if asked.number > first and one.random() >= rate:
            return None
        return fixed or one.choice(kinds)

    return fault


def case(rng: random.Random, folder: Path) -> str:
    """One thing that is done while requests fail."""
    store = _store()
    store.empty()
    os.environ.update(s3_store.environment(store))
    s3_store.forget_clients()
    for module, name, value in _QUICKER:
        setattr(module, name, value)
    elements = rng.choice([50, 5000, 5000, _LARGE])
    _save(1, elements)
    doing = rng.choice([_saving, _saving, _killed, _loading, _reading, _verifying])
    word = doing(rng, folder, elements)
    store.honest()
    if code := _load(1, elements):
        raise Missed(f"{word}: what was good before is {code}")
    return word


def _saving(rng: random.Random, folder: Path, elements: int) -> str:
    del folder
    hows: list[Callable[..., Any]] = [save, async_save]
    how = rng.choice(hows)
    store, code = _store(), ""
    store.honest()
    store.fault = _drawn(rng, lies=rng.random() < 0.3)
    try:
        made = _save(2, elements, how)
        if how is async_save:
            made.result(timeout=300)
    except SecureTrainError as error:
        code = error.code
    store.honest()
    return _after(2, elements, code)


def _after(number: int, elements: int, code: str) -> str:
    """What is left of a save that ended, and that its name is free when nothing is."""
    found = _load(number, elements)
    if not code:
        if found:
            raise Missed(f"a save that returned does not load: {found}")
        return "saved"
    if not found:
        return "saved, and said to have failed"
    if found != "ST-CKPT-100":
        raise Missed(f"a save that failed ({code}) left what has a statement: {found}")
    _save(number, elements)
    if found := _load(number, elements):
        raise Missed(f"the save after a failed one does not load: {found}")
    left = S3Storage(BUCKET, "run").requests.uploads("")
    if left:
        raise Missed(f"parts are left: {left}")
    return f"refused {code}, saved again"


def _killed(rng: random.Random, folder: Path, elements: int) -> str:
    """A saver in a process of its own, killed when one of its requests arrives or was done."""
    del folder
    store = _store()
    store.honest()
    at, late = rng.randrange(22), rng.random() < 0.5
    begun, release = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads serve the store
        pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os.read(begun, 1)
            _save(2, elements)
        os._exit(0)

    def fault(asked: Asked) -> Fault | None:
        if asked.number < at:
            return None
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return Fault.LOST if late and asked.number == at else Fault.REFUSED

    store.fault = fault
    os.write(release, b"x")
    _, status = os.waitpid(pid, 0)
    os.close(begun)
    os.close(release)
    store.honest()
    if not os.WIFSIGNALED(status):
        return _after(2, elements, "")
    return f"killed: {_after(2, elements, 'killed')}"


def _loading(rng: random.Random, folder: Path, elements: int) -> str:
    del folder
    store = _store()
    store.honest()
    store.fault = _drawn(rng, lies=True)
    code = _load(1, elements)
    return f"load refused {code}" if code else "loaded"


def _verifying(rng: random.Random, folder: Path, elements: int) -> str:
    del folder, elements
    store = _store()
    store.honest()
    store.fault = _drawn(rng, lies=True)
    try:
        result = verify_path(f"{_FOLDER}/step-1", trust=_trust(), policy=None, now=_NOW)
    except SecureTrainError as error:
        return f"verify refused {error.code}"
    return "verified" if result.ok else f"verify refused {result.problems[0].code}"


def _reading(rng: random.Random, folder: Path, elements: int) -> str:
    """Ranges of a dataset: right, or refused."""
    del elements
    store, local = _store(), folder / "data"
    local.mkdir()
    data = rng.randbytes(rng.randrange(1000, 40_000))
    (local / "a.bin").write_bytes(data)
    sign_in_place(local, About(name="d"), key=_KEY, now=_NOW, params=_SMALL)
    for path in sorted(path for path in local.rglob("*") if path.is_file()):
        store.direct("PUT", f"data/{path.relative_to(local)}", path.read_bytes())
    store.honest()
    store.fault = _drawn(rng, lies=True)
    words = set()
    try:
        with Dataset.open(f"s3://{BUCKET}/data", trust=_trust(), policy=None, now=_NOW) as opened:
            for start in range(0, len(data), max(700, len(data) // 8)):
                length = min(700, len(data) - start)
                try:
                    found = opened.read("a.bin", start, length)
                except SecureTrainError as error:
                    words.add(error.code)
                    continue
                if found != data[start : start + length]:
                    raise Missed(f"bytes {start} of a dataset are wrong and were handed out")
    except SecureTrainError as error:
        words.add(error.code)
    return f"read refused {', '.join(sorted(words))}" if words else "read"


CAMPAIGN: Final = Campaign(title="random faults of an object store", count=100, case=case)
