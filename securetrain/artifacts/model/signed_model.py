# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A signed directory of safetensors that came from somewhere else: weights to start from. No torch.

Two signatures count, both by a key that the trust root names for checkpoints. Rules:

1. our own statement (``securetrain sign DIR``): as for every checkpoint;
2. an OpenSSF Model Signing bundle made with a key (`BUNDLE`, beside the files): its signature is
   verified first; then every file is read once, while its SHA-256 is compared with the bundle's and
   its hash tree is built. From there on it is read leaf by leaf as everything else is, by a
   statement that exists in this process alone: `Overlay` shows the directory with that statement
   added and without what the bundle leaves out and git keeps, and touches nothing in it. Bundles of
   certificates, or keyless ones, name people whom a trust root does not know: who trusts them
   verifies them (``securetrain verify --bundle``) and signs for them;
3. a directory that has both is judged by our statement, which must name the bundle as a document;
4. of the policy, what can be asked of other people's weights is asked: the age of the signature.
   They were not trained here, so there is no verdict on gradients, no lineage and no rank's
   signature to ask for. A bundle does not say when it was made: a policy that asks refuses it.

What is handed out (documents, tensors' names) was verified; tensors are read by `checkpoint.load`.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.artifacts.kinds import BUNDLE, LEFT_OUT
from securetrain.artifacts.model import bundle as bundle_file
from securetrain.artifacts.model import manifest, signers
from securetrain.artifacts.model.manifest import check_bundle
from securetrain.artifacts.model.safetensors_folder import describe
from securetrain.artifacts.model.signers import TrustedKey
from securetrain.artifacts.statement import expectation, rules
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.reading import check_listing, read_digested, read_statement
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    IndexFile,
    open_statement,
    sign,
)
from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.index import Index
from securetrain.artifacts.tree.layout import STATEMENT, Kind, Problem, most_telling
from securetrain.artifacts.tree.storage import LocalStorage, Source, Staging, Storage
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import FileEntry, UnsafeEntry
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from securetrain.policy.schema import GuardMode, Policy


@dataclass(slots=True)
class MemorySource:
    """A file in memory."""

    data: bytes
    size: int
    linked: bool = False
    whole: bool = False

    def read_into(self, view: memoryview, offset: int) -> None:
        """See `Source`."""
        piece = self.data[offset : offset + len(view)]
        if len(piece) != len(view):
            raise EOFError
        view[:] = piece

    def close(self) -> None:
        """See `Source`."""


@dataclass(slots=True)
class WatchedSource:
    """A file that is read from front to back; `state` has seen every byte that was handed out."""

    inner: Source
    state: Any
    size: int
    linked: bool
    whole: bool
    _at: int = 0

    def read_into(self, view: memoryview, offset: int) -> None:
        """See `Source`."""
        assert offset == self._at, "watched files are read in order"
        self.inner.read_into(view, offset)
        self.state.update(view)
        self._at += len(view)

    def close(self) -> None:
        """See `Source`."""
        self.inner.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """A `Storage` for reading."""

    folder: LocalStorage
    memory: dict[str, bytes] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    """Names that are not there for a reader, with all below them."""
    watched: dict[str, Any] | None = None
    """Given, it gets the SHA-256 state of every file that is read."""

    @property
    def name(self) -> str:
        """See `Storage`."""
        return self.folder.name

    @property
    def base(self) -> str:
        """See `Storage`."""
        return self.folder.base

    def unsafe(self) -> str:
        """See `Storage`."""
        return self.folder.unsafe()

    def exists(self) -> bool:
        """See `Storage`."""
        return self.folder.exists()

    def has(self, name: str) -> bool:
        """See `Storage`."""
        return name in self.memory or (not self._is_hidden(name) and self.folder.has(name))

    def survey(self) -> tuple[list[FileEntry], list[UnsafeEntry]]:
        """See `Storage`."""
        files, unsafe = self.folder.survey()
        files = [
            file
            for file in files
            if file.name not in self.memory and not self._is_hidden(file.name)
        ]
        unsafe = [entry for entry in unsafe if not self._is_hidden(entry.name)]
        files += [FileEntry(name, len(data)) for name, data in self.memory.items()]
        return files, unsafe

    def open(self, name: str) -> Source:
        """See `Storage`."""
        if name in self.memory:
            return MemorySource(self.memory[name], len(self.memory[name]))
        if self._is_hidden(name):
            raise FileNotFoundError(name)
        inner = self.folder.open(name)
        if self.watched is None:
            return inner
        state = self.watched[name] = hashlib.sha256()
        return WatchedSource(inner, state, inner.size, inner.linked, inner.whole)

    def read(self, name: str, limit: int) -> bytes:
        """See `Storage`."""
        if name in self.memory:
            return self.memory[name]
        data = self.folder.read(name, limit)
        if self.watched is not None:
            self.watched[name] = hashlib.sha256(data)
        return data

    def _is_hidden(self, name: str) -> bool:
        while name and name not in self.hidden:
            name = name.rpartition("/")[0]
        return bool(name)

    def staging(self, save_id: str) -> Staging:
        """Nothing is written here."""
        raise NotImplementedError(save_id)

    def exchange(self, name: str, data: bytes, before: bytes | None) -> None:
        """Nothing is written here."""
        raise NotImplementedError(name)

    def names(self, folder: str) -> Sequence[str]:
        """See `Storage`."""
        return self.folder.names(folder)

    def siblings(self) -> list[Storage]:
        """See `Storage`."""
        return self.folder.siblings()

    def above(self) -> Storage:
        """See `Storage`."""
        return self.folder.above()


_KIND: Final = Kind.CHECKPOINT
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LIFETIME: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedModel:
    """An opened model: pass `storage`, `trust` and `policy` to `load`."""

    storage: Storage
    trust: TrustRoot
    policy: Policy | None
    digest: str
    """What identifies it (hex)."""
    signer: str
    """Whose signature counted."""
    predicate: CheckpointPredicate
    index: Index
    opened_at: datetime

    def document(self, name: str) -> bytes:
        """A small file of the model, verified.

        Raises:
            UsageError: ST-USAG-002 when there is none of that name.
            IntegrityError: ST-CKPT-130 to 200.
        """
        entry = _named(self.predicate.documents, name)
        if entry is None:
            names = ", ".join(one.name for one in self.predicate.documents) or "none"
            raise UsageError(
                "ST-USAG-002",
                f"the signed model has no {name}; its documents are {names}",
                self.storage.name,
                "sign the whole directory, with its configuration and tokenizer",
            )
        return read_digested(self.storage, entry, _KIND)


def open_model(
    path: Path,
    *,
    trust: TrustRoot,
    policy: Policy | None,
    now: datetime,
    expect: Expectation | None = None,
) -> SignedModel:
    """Verify who signed a model, and read what it holds.

    Args:
        path: The directory.
        trust: The keys that may sign checkpoints.
        policy: What is asked of it (rule 4).
        now: The time of the check.
        expect: Which model is wanted; None takes any that the trust root's keys have signed. Of a
            bundle, the name and the digest that it signs count; it has nothing else.

    Raises:
        IntegrityError: ST-CKPT-100 to 200 for our statements, ST-OMSB-100 to 200 for bundles.
    """
    storage: Storage = LocalStorage(path)
    signer = ""
    asked = None if policy is None else _of_foreign(policy)
    if not storage.has(STATEMENT) and storage.has(BUNDLE):
        if policy is not None and policy.checkpoint.max_age_days is not None:
            raise IntegrityError(
                "ST-OMSB-150",
                "a bundle made with a key has no date, and the policy limits its age",
                str(path),
                "verify it (securetrain verify --bundle) and sign the model yourself",
            )
        storage, trust, signer = _unbundle(LocalStorage(path), trust, now, expect)
        asked = expect = None
    opened = open_statement(read_statement(storage, _KIND), _KIND, trust, storage.name)
    predicate = opened.predicate
    assert isinstance(predicate, CheckpointPredicate)
    problems = [*expectation.check(opened, expect), *check_listing(storage, predicate)]
    if asked is not None:
        problems += rules.check(opened, asked, now, nodes=False)
    if problems:
        raise most_telling(problems).error(storage.name)
    data = read_digested(storage, predicate.index, _KIND)
    return SignedModel(
        storage=storage,
        trust=trust,
        policy=asked,
        digest=opened.digest,
        signer=signer or f"key {min(opened.key_ids)[:16]}",
        predicate=predicate,
        opened_at=now,
        index=index_file.parse(data, {file.name: file.data_size for file in predicate.files}),
    )


def _of_foreign(policy: Policy) -> Policy:
    """Rule 4."""
    checkpoint = msgspec.structs.replace(
        policy.checkpoint,
        expect=None,  # the run's own checkpoints are meant
        require_clean_verdict=False,
        require_lineage=False,
        require_head=False,
        require_rank_signatures=False,
        encrypt_to=[],
    )
    gradients = msgspec.structs.replace(policy.gradients, mode=GuardMode.OFF)
    return msgspec.structs.replace(policy, checkpoint=checkpoint, gradients=gradients)


def _unbundle(
    folder: LocalStorage, trust: TrustRoot, now: datetime, expect: Expectation | None
) -> tuple["Overlay", TrustRoot, str]:
    """Rule 2."""
    where = f"{folder.name}/{BUNDLE}"
    payload, signer = _verified(folder, trust, now, where)
    for problem in check_bundle(expect, payload, where):
        raise problem.error(where)
    resources, hidden = _resources(payload, where)
    watched: dict[str, Any] = {}
    overlay = Overlay(folder=folder, hidden=hidden, watched=watched)
    context = SaveContext(
        run_id="",
        step=0,
        created=_EPOCH,
        save_id=hashlib.sha256(payload).hexdigest()[:32],
    )
    params = TreeParams()
    described = describe(overlay, context=context, params=params)
    found = {name: state.hexdigest() for name, state in watched.items()}
    _compare(resources, found, folder.name)
    # Nobody outside of this process sees this key, and it signs this once.
    key = PrivateKey.generate()
    envelope = sign(described.predicate, folder.base, key)
    root = sign_root({TrustRole.CHECKPOINT: [key.public]}, key, now, now + _LIFETIME)
    memory = described.written | {STATEMENT: envelope}
    return (
        Overlay(folder=folder, hidden=hidden, memory=memory),
        TrustRoot.parse(root, now),
        signer,
    )


def _resources(payload: bytes, where: str) -> tuple[dict[str, str], frozenset[str]]:
    """The files and their digests, and what is left out, which nobody can then read."""
    predicate = manifest.read(payload, where)
    how = predicate.serialization
    if how.method != "files" or how.hash_type != "sha256" or how.allow_symlinks:
        raise IntegrityError(
            "ST-OMSB-120",
            f"the bundle signs {how.method} by {how.hash_type}"
            f"{' behind links' if how.allow_symlinks else ''}, and weights to start from are read"
            " by whole files, SHA-256 and no links",
            where,
            "verify it (securetrain verify --bundle) and sign the model with a key of the trust"
            " root (securetrain sign)",
        )
    resources = {one.name: one.digest for one in predicate.resources}
    left_out = {manifest.plain_ignored(one) for one in how.ignore_paths}
    return resources, frozenset({BUNDLE, *LEFT_OUT, *left_out})


def _verified(
    folder: LocalStorage, trust: TrustRoot, now: datetime, where: str
) -> tuple[bytes, str]:
    """The payload of a bundle that a key for checkpoints has signed, and which."""
    try:
        data = folder.read(BUNDLE, bundle_file.LIMIT)
    except UsageError as error:
        raise IntegrityError("ST-OMSB-142", f"the bundle: {error.what}", where) from error
    bundle = bundle_file.parse(data, where)
    if bundle.hint is None:
        raise IntegrityError(
            "ST-OMSB-120",
            "the bundle names a certificate or an identity, and a trust root knows keys",
            where,
            "verify it (securetrain verify --bundle) and sign the model with a key of the trust"
            " root (securetrain sign)",
        )
    for key_id, known in trust.keys_for(TrustRole.CHECKPOINT).items():
        try:
            key = signers.load_public(known.pem, where)
        except IntegrityError:
            continue  # Ed25519, which Model Signing does not know
        if signers.hint_of(key) == bundle.hint:
            if TrustedKey(key=key).unwrap(bundle, now, where).is_old:
                raise IntegrityError("ST-OMSB-110", "a signature of release 0.2", where)
            return bundle.payload, f"key {key_id[:16]}"
    raise IntegrityError(
        "ST-OMSB-120",
        f"signed by key {bundle.hint[:16]}, which the trust root does not name for checkpoints",
        where,
        "check whose key it is; add it to the trust root's role checkpoint, or do not use the"
        " model",
    )


def _compare(signed: dict[str, str], found: dict[str, str], where: str) -> None:
    """Every file is signed, is there, and is what was signed."""
    problems = [
        *(Problem("ST-OMSB-140", "missing", n) for n in signed.keys() - found),
        *(Problem("ST-OMSB-141", "not signed", n) for n in found.keys() - signed),
        *(
            Problem("ST-OMSB-130", "the content is not what was signed", name)
            for name in signed.keys() & found
            if signed[name] != found[name]
        ),
    ]
    if problems:
        raise most_telling(problems).error(where)


def _named(entries: Iterable[IndexFile], name: str) -> IndexFile | None:
    return next((entry for entry in entries if entry.name == name), None)
