# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Random faults between a run and its object store: S3, Google Cloud Storage and Azure Blob.

Each is a service on loopback, behind a proxy. A case has one good checkpoint in each of them, and
does one thing more there while requests are slow, refused, lost, carried out twice, cut, or
answered by a store that lies: save, save in the background, load, read a dataset, verify; or the
saver is killed. Rules: every end is a success, bit by bit what was saved,
or a refusal by a code; what was good before is good after; what has a statement loads; a name whose
save failed or was killed can be saved to again.
"""

import atexit
import multiprocessing
import os
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch

from securetrain.artifacts import SaveContext, async_save, load, save, verify_path
from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.dataset.verified import Dataset
from securetrain.artifacts.tree import egress, objects
from securetrain.core.errors import SecureTrainError
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from tests import s3_store
from tests.s3_store import BUCKET, KINDS, LIES, TRANSPORT, Asked, Fault, S3Store
from tools.campaigns import Campaign, Missed

_KEY: Final = PrivateKey.generate()
_NOW: Final = datetime.now(UTC)
_SMALL: Final = TreeParams(leaf_size=1024)
_QUICKER: Final = (
    (objects, "FIRST_PAUSE", 0.001),
    (objects, "LONGEST_PAUSE", 0.01),
    (egress, "GRACE", 20.0),
    (objects, "PART", 1 << 20),
)
_LARGE: Final = 1_500_000
"""Elements of a state that goes in parts."""


def _trust() -> TrustRoot:
    roles = {TrustRole.CHECKPOINT: [_KEY.public], TrustRole.DATASET: [_KEY.public]}
    return TrustRoot.parse(sign_root(roles, _KEY, _NOW, _NOW + timedelta(days=400)), _NOW)


@lru_cache(maxsize=3)
def _store(kind: str) -> S3Store:
    """One store of a kind for all cases; each begins with it empty."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(s3_store.running(kind))


@lru_cache(maxsize=1)
def _makers() -> Any:
    """A process that has asked no store, of which savers are forked, to be killed."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tools.campaigns.objectstore"])
    return made


def _state(number: int, elements: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(number)
    return {"w": torch.randn(elements, generator=made), "n": number}


def _quick() -> None:
    for module, name, value in _QUICKER:
        setattr(module, name, value)


def _saver(key: str, place: str, elements: int, said: dict[str, str], begun: Any) -> None:
    """Save in a process of its own, when it is told to."""
    os.environ.update(said)
    _quick()
    begun.recv_bytes()
    context = SaveContext(run_id="r", step=2, seq=2, created=_NOW)
    with suppress(SecureTrainError):
        save(_state(2, elements), place, key=key, context=context, params=_SMALL)


@dataclass(frozen=True, slots=True)
class _Case:
    """One store, and what is done there while requests fail."""

    rng: random.Random
    folder: Path
    store: S3Store
    elements: int
    lies: bool
    """Whether the store lies to a saver; to a reader it does."""

    def place(self, number: int) -> str:
        return f"{self.store.scheme}://{BUCKET}/run/step-{number}"

    def save(self, number: int, how: Callable[..., Any] = save) -> Any:
        context = SaveContext(run_id="r", step=number, seq=number, created=_NOW)
        content = _state(number, self.elements)
        return how(content, self.place(number), key=_KEY, context=context, params=_SMALL)

    def load(self, number: int) -> str:
        """The code of its refusal; empty when it is what was saved.

        Raises:
            Missed: it loaded, and is something else.
        """
        target: dict[str, Any] = {"w": torch.zeros(self.elements), "n": -1}
        try:
            load(target, self.place(number), trust=_trust(), policy=None, now=_NOW)
        except SecureTrainError as error:
            return error.code
        wanted = _state(number, self.elements)
        if not torch.equal(target["w"], wanted["w"]) or target["n"] != number:
            raise Missed(f"step {number} loaded, and is another state")
        return ""

    def fails(self, *, lies: bool) -> None:
        """Some requests fail, each in its own way; or one kind of fault lasts for a while."""
        rng, kinds = self.rng, [*TRANSPORT, *LIES] if lies else list(TRANSPORT)
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

        self.store.honest()
        self.store.fault = fault

    def after(self, code: str) -> str:
        """What is left of a save that ended, and that its name is free when nothing is."""
        self.store.honest()
        found = self.load(2)
        if not code:
            if found:
                raise Missed(f"a save that returned does not load: {found}")
            return "saved"
        if not found:
            return "saved, and said to have failed"
        if found != "ST-CKPT-100":
            raise Missed(f"a save that failed ({code}) left what has a statement: {found}")
        try:
            self.save(2)
        except SecureTrainError as error:
            if self.lies and error.code == "ST-CKPT-201":
                return f"refused {code}; the store hid files, which a person must look at"
            raise
        if found := self.load(2):
            raise Missed(f"the save after a failed one does not load: {found}")
        return f"refused {code}, saved again"

    def saving(self) -> str:
        how, code = self.rng.choice([save, async_save, None]), ""
        if how is None:
            return self.two_saving()
        self.fails(lies=self.lies)
        try:
            made = self.save(2, how)
            if how is async_save:
                made.result(timeout=300)
        except SecureTrainError as error:
            code = error.code
        return self.after(code)

    def two_saving(self) -> str:
        """Two savers at one name, at the same moment: at most one wins, and what it saved loads."""
        ends: list[str] = []

        def one() -> None:
            try:
                self.save(2)
            except SecureTrainError as error:
                ends.append(error.code)
                return
            ends.append("")

        self.fails(lies=self.lies)
        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        if ends.count("") > 1 or len(ends) < 2:
            raise Missed(f"two savers of one name ended with {ends}")
        return f"of two: {self.after(max(ends) if all(ends) else '')}"

    def killed(self) -> str:
        """A saver in a process of its own, killed when one of its requests arrives or was done."""
        at, late = self.rng.randrange(22), self.rng.random() < 0.5
        key = self.folder / f"{self.store.scheme}.pem"
        _KEY.save(key)
        begun, told = _makers().Pipe(duplex=False)
        said = s3_store.environment(self.store)
        words = (str(key), self.place(2), self.elements, said, begun)
        saver = _makers().Process(target=_saver, args=words)
        saver.start()

        def fault(asked: Asked) -> Fault | None:
            if asked.number < at:
                return None
            saver.kill()
            return Fault.LOST if late and asked.number == at else Fault.REFUSED

        self.store.honest()
        self.store.fault = fault
        told.send_bytes(b"x")
        saver.join(300)
        whole = saver.exitcode == 0
        return self.after("") if whole else f"killed: {self.after('killed')}"

    def loading(self) -> str:
        self.fails(lies=True)
        code = self.load(1)
        return f"load refused {code}" if code else "loaded"

    def verifying(self) -> str:
        self.fails(lies=True)
        try:
            result = verify_path(self.place(1), trust=_trust(), policy=None, now=_NOW)
        except SecureTrainError as error:
            return f"verify refused {error.code}"
        return "verified" if result.ok else f"verify refused {result.problems[0].code}"

    def reading(self) -> str:
        """Ranges of a dataset: right, or refused."""
        local, words = self.folder / f"data-{self.store.scheme}", set()
        local.mkdir()
        data = self.rng.randbytes(self.rng.randrange(1000, 40_000))
        (local / "a.bin").write_bytes(data)
        sign_in_place(local, About(name="d"), key=_KEY, now=_NOW, params=_SMALL)
        for path in sorted(path for path in local.rglob("*") if path.is_file()):
            self.store.direct("PUT", f"data/{path.relative_to(local)}", path.read_bytes())
        self.fails(lies=True)
        place = f"{self.store.scheme}://{BUCKET}/data"
        try:
            with Dataset.open(place, trust=_trust(), policy=None, now=_NOW) as opened:
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

    def run(self) -> str:
        """The case's word."""
        self.save(1)
        word = self.rng.choice(
            [self.saving, self.saving, self.killed, self.loading, self.reading, self.verifying]
        )()
        self.store.honest()
        if code := self.load(1):
            raise Missed(f"{word}: what was good before is {code}")
        return word


def case(rng: random.Random, folder: Path) -> str:
    """One thing that is done in each store while requests fail."""
    words = []
    _quick()
    for kind in KINDS:
        store = _store(kind)
        store.empty()
        os.environ.update(s3_store.environment(store))
        s3_store.forget_clients()
        elements = rng.choice([50, 5000, 5000, _LARGE])
        words.append(_Case(rng, folder, store, elements, lies=rng.random() < 0.3).run())
    return "; ".join(sorted(words))


CAMPAIGN: Final = Campaign(title="random faults of three object stores", count=100, case=case)
