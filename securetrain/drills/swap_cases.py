# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Thirty artifacts that a trusted key has signed, each in the place of the one that is meant.

A case is a question that is asked twice: without saying which artifact is meant, which must be
answered (the positive control: the swap works), and saying it, which must be refused by its code.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from securetrain import artifacts
from securetrain.artifacts import (
    Dataset,
    Expectation,
    add_name,
    verify_path,
)
from securetrain.artifacts.catalogue import Catalogue, Editor
from securetrain.artifacts.catalogue import editor as catalogue_editor
from securetrain.artifacts.dataset import write
from securetrain.artifacts.model import oms, open_model, signers
from securetrain.chain import Options, Signing, verify
from securetrain.core.errors import SecureTrainError
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root

SIZE = 64
_WANTED: Final[dict[str, Any]] = {"run_id": "prod", "name": "prod-model", "step": 400, "seq": 4}


class Case(NamedTuple):
    """A swap."""

    name: str
    code: str
    """The refusal when it is said what is meant, without "ST-"."""
    taken: Callable[[], object]
    """Without an expectation; must not raise."""
    refused: Callable[[], object]
    """With one; must raise."""


@dataclass(slots=True)
class Shop:
    """The keys of one organisation, and what they sign."""

    folder: Path
    key: PrivateKey = field(default_factory=PrivateKey.generate)
    other: PrivateKey = field(default_factory=PrivateKey.generate)
    """Trusted as well."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    trust: TrustRoot = field(init=False)

    def __post_init__(self) -> None:
        both = [self.key.public, self.other.public]
        roles = {TrustRole.CHECKPOINT: both, TrustRole.DATASET: both}
        begins, ends = self.now - timedelta(minutes=1), self.now + timedelta(days=1)
        root = PrivateKey.generate()
        self.trust = TrustRoot.parse(sign_root(roles, root, begins, ends), self.now)

    def asked(self) -> dict[str, Any]:
        """The arguments that every reader takes."""
        return {"trust": self.trust, "policy": None, "now": self.now}

    def checkpoint(
        self, folder: str, value: float, /, key: PrivateKey | None = None, **said: Any
    ) -> Path:
        """A signed checkpoint."""
        path = self.folder / folder
        context = artifacts.SaveContext(created=self.now, **(_WANTED | said))
        state = {"weight": torch.full((SIZE,), value)}
        artifacts.save(state, path, key=key or self.key, context=context)
        return path

    def dataset(self, name: str, key: PrivateKey | None = None, said: str = "corpus") -> Path:
        """A signed dataset."""
        path = self.folder / name
        documents = [("train", "a", name.encode() * 100)]
        write.sign_documents(documents, path, name=said, key=key or self.key, now=self.now)
        return path


def cases(folder: Path) -> Iterator[Case]:
    """All of them; `folder` exists and is empty."""
    shop = Shop(folder)
    yield from _checkpoints(shop)
    yield from _datasets(shop)
    yield from _models(shop)
    yield from _catalogues(shop)


def code_of(attempt: Callable[[], object]) -> str:
    """The code with which an attempt is refused; empty when it is not."""
    try:
        attempt()
    except SecureTrainError as error:
        return error.code
    return ""


def _asked(
    name: str, code: str, expect: Expectation, ask: Callable[..., object], *what: Path
) -> Case:
    """The case of one reader, which is last told what to expect: nothing, or what is meant."""
    return Case(name, code, partial(ask, *what, None), partial(ask, *what, expect))


def _digest(shop: Shop, path: Path) -> str:
    return verify_path(path, **shop.asked()).digest


def _checkpoints(shop: Shop) -> Iterator[Case]:
    """Thirteen."""
    digest = _digest(shop, shop.checkpoint("meant", 1.0))
    toy: dict[str, Any] = {"run_id": "toy", "name": "toy-model", "step": 8, "seq": 1}
    made = {
        "another run's": shop.checkpoint("toy", 2.0, **toy),
        "an older step": shop.checkpoint("older", 3.0, step=200, seq=2),
        "another model's": shop.checkpoint("experiment", 4.0, name="experiment"),
        "a fork": shop.checkpoint("fork", 5.0),
        "another team's": shop.checkpoint("team", 6.0, key=shop.other),
    }
    asks: dict[str, tuple[Expectation, str]] = {
        "run": (Expectation(run="prod"), "CKPT-125"),
        "name": (Expectation(name="prod-model"), "CKPT-126"),
        "digest": (Expectation(digest=digest), "CKPT-127"),
        "signer": (Expectation(signer=shop.key.key_id), "CKPT-128"),
        "step": (Expectation(min_step=400), "CKPT-154"),
        "version": (Expectation(min_version=4), "CKPT-154"),
    }
    swaps = {
        "another run's": ("run", "name", "digest", "step", "version"),
        "an older step": ("digest", "step", "version"),
        "another model's": ("name", "digest"),
        "a fork": ("digest",),
        "another team's": ("signer", "digest"),
    }

    def load(path: Path, expect: Expectation | None) -> None:
        state = {"weight": torch.zeros(SIZE)}
        artifacts.load(state, path, expect=expect, **shop.asked())

    for swap, questions in swaps.items():
        for question in questions:
            expect, code = asks[question]
            yield _asked(f"{swap} checkpoint, asked by {question}", code, expect, load, made[swap])


def _datasets(shop: Shop) -> Iterator[Case]:
    """Five."""
    meant = shop.dataset("corpus")
    other, signed = shop.dataset("other", said="other"), shop.dataset("team-data", key=shop.other)
    digest = _digest(shop, meant)

    def read(path: Path, expect: Expectation | None) -> None:
        Dataset.open(path, expect=expect, **shop.asked())

    team = Expectation(signer=shop.key.key_id)
    for name, path, expect, code in (
        ("another dataset, asked by name", other, Expectation(name="corpus"), "DATA-126"),
        ("another dataset, asked by digest", other, Expectation(digest=digest), "DATA-127"),
        ("other rows of the name, by digest", signed, Expectation(digest=digest), "DATA-127"),
        ("another team's dataset, by signer", signed, team, "DATA-128"),
        ("an older dataset, by version", meant, Expectation(min_version=1), "DATA-154"),
    ):
        yield _asked(name, code, expect, read, path)


def _models(shop: Shop) -> Iterator[Case]:
    """Six."""
    path = shop.folder / "weights"
    path.mkdir()
    tensors = {"weight": ("float32", (SIZE,))}
    (path / "model.safetensors").write_bytes(artifacts.encode_header(tensors) + bytes(4 * SIZE))
    context = artifacts.SaveContext(
        run_id="lab", name="mistral", step=0, created=shop.now, save_id="0" * 32
    )
    artifacts.sign_safetensors(path, key=shop.key, context=context)

    def model(expect: Expectation | None) -> None:
        open_model(path, expect=expect, **shop.asked())

    for expect, code in (
        (Expectation(name="llama"), "CKPT-126"),
        (Expectation(digest="0" * 64), "CKPT-127"),
        (Expectation(run="release"), "CKPT-125"),
        (Expectation(signer=shop.other.key_id), "CKPT-128"),
    ):
        yield _asked(f"another model, {code}", code, expect, model)
    bundled = shop.folder / "qwen"
    bundled.mkdir()
    (bundled / "config.json").write_bytes(b"{}")
    key, public = shop.folder / "maker.key", shop.folder / "maker.pem"
    public.write_bytes(PrivateKey.create(key, KeyKind.P256).public.pem)
    file, signer = bundled / "model.sig", signers.read_signer(str(key), None, (), lambda _: b"")
    oms.sign_model(bundled, file, signer)
    options = Options(signing=Signing(bundle=file, roots=signers.ModelRoots(public_key=public)))

    def bundle(expect: Expectation | None) -> None:
        for problem in verify(bundled, expect, now=shop.now, options=options).problems:
            raise problem.error()

    for wanted, code in (
        (Expectation(name="llama"), "OMSB-126"),
        (Expectation(digest="0" * 64), "OMSB-127"),
    ):
        yield _asked(f"another maker's model, {code}", code, wanted, bundle)


@dataclass(slots=True)
class _Store:
    """A catalogue of one signer."""

    shop: Shop
    signer: PrivateKey = field(default_factory=PrivateKey.generate)

    def __post_init__(self) -> None:
        self.path.mkdir()
        public = [self.signer.public]
        root = catalogue_editor.create(
            self.path,
            roots=[self.signer],
            signers=public,
            threshold=1,
            publishers=public,
            now=self.shop.now,
        )
        (self.shop.folder / "root.json").write_bytes(root)

    @property
    def path(self) -> Path:
        return self.shop.folder / "store"

    def client(self, state: str) -> Catalogue:
        folder = self.shop.folder
        return Catalogue(place=self.path, root=folder / "root.json", state=folder / state)

    def publish(self, **names: Path) -> None:
        editor = Editor(self.path, self.client("editor"))
        for name, path in names.items():
            add_name(editor, name, path, self.shop.trust, self.shop.now)
        editor.sign([self.signer], catalogue_editor.Term(now=self.shop.now))

    def check(self, name: str, state: str = "reader") -> None:
        """Verify what a name means."""
        found = self.client(state).resolve(name)
        _verify(self.shop, found.path, found.expect)


def _verify(shop: Shop, path: Path | str, expect: Expectation | None = None) -> None:
    for problem in verify_path(path, expect=expect, **shop.asked()).problems:
        raise problem.error()


def _catalogues(shop: Shop) -> Iterator[Case]:
    """Six. The control is the artifact itself, or a machine that has seen nothing."""
    store = _Store(shop)
    old = shop.checkpoint("store/old", 1.0, step=200, seq=2)
    store.publish(model=old)
    shutil.copytree(store.path / "catalogue", shop.folder / "kept")
    new, data = shop.checkpoint("store/new", 2.0), shop.dataset("store/data")
    store.publish(model=new, data=data)
    for name in ("model", "data"):
        store.check(name)
    toy, words = shop.dataset("d2", said="toy"), shop.checkpoint("words", 2.0, run_id="toy")
    for swap, name, place, instead, code in (
        ("an older checkpoint at an entry's place", "model", new, old, "CKPT-127"),
        ("another dataset at an entry's place", "data", data, toy, "DATA-127"),
        ("other words about an entry's content", "model", new, words, "CKPT-127"),
        ("an entry's place leads elsewhere", "model", new, None, "CTLG-142"),
    ):
        with _in_place_of(place, instead):
            found = place.resolve()
            yield Case(swap, code, partial(_verify, shop, found), partial(store.check, name))
    shutil.rmtree(store.path / "catalogue")
    shutil.copytree(shop.folder / "kept", store.path / "catalogue")
    for what, ask in (
        ("an older catalogue", partial(store.check, "model")),
        ("the names of an older catalogue", lambda state: store.client(state).entries()),
    ):
        yield Case(what, "CTLG-151", partial(ask, "stranger"), partial(ask, "reader"))


@contextmanager
def _in_place_of(place: Path, instead: Path | None) -> Iterator[None]:
    """Put a copy of `instead` at a place, or a link that leads out."""
    kept = place.rename(place.parents[1] / "aside")
    if instead is None:
        place.symlink_to(kept)
    else:
        shutil.copytree(instead, place)
    try:
        yield
    finally:
        if place.is_symlink():
            place.unlink()
        else:
            shutil.rmtree(place)
        kept.rename(place)
