# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Bonds of a run's statements: decided and kept by the launcher, only declared by workers.

Rules:

1. the nodes are those of the membership that is in force, with the tiers and results that the
   coordinator signed. No ledger line and no worker has a say in them;
2. what is bound is kept before it is said. A statement must say exactly what was last said for its
   step, and the launcher signs no other;
3. the statement of a parent or dataset is one that was signed here, or that this run's directory
   holds under the trust root's keys; else one that a worker has shown, which never takes the place
   of the former. The worker's word gives it no weight: a verifier asks its signature;
4. records of steps are read here as a verifier reads them: of this run, whole, and up to the step
   of the statement. What they say stays the ranks' word, which each signs with its file;
5. files of code are read again here, where the launcher may; else they stay the worker's word.
"""

import base64
import binascii
import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from securetrain.artifacts import Kind, read_statement
from securetrain.artifacts.lineage import folder as run_folder
from securetrain.artifacts.statement.statements import (
    Bound,
    CheckpointPredicate,
    NodeRef,
    PolicyRef,
    claimed_kind,
    open_statement,
)
from securetrain.chain import Keeper
from securetrain.chain.documents import (
    MAX_FILES,
    Code,
    CodeFile,
    Declared,
    Distribution,
    Environment,
    Input,
    Job,
    Witness,
)
from securetrain.chain.records import MAX_PAGES, read_document, read_page, read_records
from securetrain.core import canonical
from securetrain.core.errors import RuntimeRefusal, SecureTrainError, reason
from securetrain.core.files import read_file
from securetrain.core.vocabulary import tier_label
from securetrain.identity import Role, SpiffeId, dsse, envelope_unverified
from securetrain.identity.signing import Bind, Bonds, Declaration, ImportedFile, Topic
from securetrain.identity.trust import TrustRoot
from securetrain.launch.setup import RunSetup
from securetrain.ledger import Ledger
from securetrain.rendezvous.wire import Membership, node_ranks

NOT_OWN: Final = "ST-RUNT-031"
MALFORMED: Final = "ST-RUNT-032"
FILE_LIMIT: Final = 64 << 20
PAGE: Final = 4096
READ_LIMIT: Final = 256 << 20
"""Bytes of code that are read again for one declaration; the others stay the worker's word."""
MAX_STATEMENTS: Final = 4096
MAX_SAID: Final = 64
"""Answers that still wait for their statement."""
TREE: Final = "securetrainTree1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The part of the evidence that is known before any worker runs."""

    job: Job
    environment: Environment
    distributions: tuple[Distribution, ...] = ()
    python: str = ""
    commit: str = ""
    dirty: bool | None = None
    lock_file: Input | None = None


@dataclass(slots=True)
class _Worker:
    """The words of the workers."""

    code: tuple[CodeFile, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    job: str | None = None


@dataclass(slots=True, kw_only=True)
class Binder:
    """Says, for each statement of one launch, what it has to bind."""

    setup: RunSetup
    keeper: Keeper
    trust: TrustRoot
    around: Surroundings
    ledger: Ledger
    membership: Membership | None = None
    _word: _Worker = field(default_factory=_Worker)
    _statements: dict[str, str] = field(default_factory=dict)
    """By tree digest: SHA-256 of the statement."""
    _verified: set[str] = field(default_factory=set)
    """Those of which the statement was signed or verified here."""
    _said: dict[int, Bonds] = field(default_factory=dict)
    """The last answer for each step."""
    _records: tuple[str, int] | None = None
    """The records that were declared last: their document, and their last step."""
    _num_pages: int = 0
    """Pages that were declared since."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, membership: Membership, signed: str) -> None:
        """An epoch begins; its membership is kept as it was signed."""
        self.keeper.membership(signed, membership)
        with self._lock:
            self.membership = membership
            self._said.clear()

    def declare(self, said: Declaration) -> None:
        """Take a worker's word.

        Raises:
            RuntimeRefusal: ST-RUNT-032 when it is malformed.
        """
        try:
            self._declare(said)
        except (ValueError, TypeError, LookupError, binascii.Error) as error:
            what = f"{said.topic}: {type(error).__name__}: {error}"
            raise RuntimeRefusal(MALFORMED, what[:500]) from error
        except SecureTrainError as error:
            raise RuntimeRefusal(MALFORMED, f"{said.topic}: {reason(error)}"[:500]) from error

    def _declare(self, said: Declaration) -> None:
        match said.topic:
            case Topic.CODE:
                files = msgspec.convert(said.said, list[ImportedFile], strict=True)
                if len(files) > MAX_FILES:
                    raise ValueError(f"{len(files)} files, the limit is {MAX_FILES}")
                self._word.code = code_files(files)
            case Topic.ENVIRONMENT:
                self._word.environment = msgspec.convert(said.said, dict[str, str], strict=True)
            case Topic.JOB:
                program = self.around.job.module or "program"
                made = Declared(program=program, settings=dict(said.said))
                self._word.job = self.keeper.store.keep(made)
            case Topic.RECORDS:
                self._record(msgspec.convert(said.said, dict[str, str], strict=True))
            case Topic.STATEMENT:
                self._show(base64.b64decode(str(said.said), validate=True))

    def _record(self, said: Mapping[str, str]) -> None:
        """Keep a page of records, or the document over pages that are kept (rule 4)."""
        ((name, text),) = said.items()
        data = base64.b64decode(text, validate=True)
        if name == "page":
            if self._num_pages >= MAX_PAGES:
                raise ValueError(f"more than {MAX_PAGES} pages without a statement")
            read_page(data)  # every record is looked at
            self._num_pages += 1
            self.keeper.store.put(data)
        elif name == "document":
            made = read_document(data)
            if made.run != self.setup.job:
                raise ValueError(f"records of run {made.run[:64]}")
            if read_records(self.keeper.store, made) is None:
                raise ValueError("a page of it was not declared")
            self._records = self.keeper.store.keep(made), made.last
            self._num_pages = 0
        else:
            raise ValueError(f"{name[:32]!r} is neither page nor document")

    def _records_of(self, about: Bind) -> str | None:
        if not about.records:
            return None
        if self._records != (about.records, about.step):
            raise RuntimeRefusal(NOT_OWN, f"the records of step {about.step} were not declared")
        return about.records

    def _show(self, data: bytes) -> None:
        """Keep a signed statement, and note which bytes it is about."""
        payload = base64.b64decode(envelope_unverified(data).payload, validate=True)
        parsed = canonical.loads(payload, limit=dsse.ENVELOPE_LIMIT, where="statement")
        digest = parsed["subject"][0]["digest"][TREE]
        if not isinstance(digest, str) or len(digest) != 64:
            raise ValueError("it is about no signed directory")
        if len(self._statements) >= MAX_STATEMENTS:
            raise ValueError(f"more than {MAX_STATEMENTS} statements")
        if digest not in self._verified and not self._verify(data, digest):
            self.keeper.store.put(data)
            self._statements[digest] = hashlib.sha256(payload).hexdigest()

    def _verify(self, data: bytes, digest: str) -> bool:
        """Take a statement that the run's own trust root vouches for; tell whether it does."""
        try:
            opened = open_statement(data, claimed_kind(data) or Kind.CHECKPOINT, self.trust)
        except SecureTrainError:
            return False  # of another maker, perhaps: whoever verifies it asks for that one's key
        if opened.digest != digest:
            return False
        self.keeper.store.put(data)
        self._statements[digest] = opened.statement
        self._verified.add(digest)
        return True

    def signed(self, digest: str, message: bytes) -> None:
        """A checkpoint was signed here: later ones may name it."""
        payload = dsse.payload_of(message, dsse.IN_TOTO)
        self._statements[digest] = hashlib.sha256(payload).hexdigest()
        self._verified.add(digest)

    def bind(self, about: Bind) -> Bonds:
        """Everything that the statement of a step has to bind; kept, and then said (rule 2).

        Raises:
            RuntimeRefusal: ST-RUNT-031 for a parent that nobody has shown.
            IntegrityError: ST-CHAN-002 when it cannot be kept; ST-LEDG-001 to 005 when the ledger
                is no longer the one that was written.
        """
        epoch = None if self.membership is None else self.membership.epoch
        store, policy = self.keeper.store, self.setup.policy
        last = self.ledger.last()
        bound = Bound(
            parents=self._parents(about.parents),
            dataset=self._dataset(about.dataset),
            ledger_head=last.digest,
            ledger_entries=last.entries,
            step_records=self._records_of(about),
            membership=self.keeper.bound(epoch),
            policy=store.put(canonical.encode(policy.policy)),
            job=store.keep(msgspec.structs.replace(self.around.job, declared=self._word.job)),
            code=store.keep(self._manifest()),
            environment=store.keep(self._environment()),
        )
        said = Bonds(
            keeps=True,
            bound=msgspec.to_builtins(bound),
            nodes=tuple(msgspec.to_builtins(node) for node in self.nodes()),
            policy=msgspec.to_builtins(
                PolicyRef(id=policy.policy.metadata.id, digest=policy.digest)
            ),
            epoch=epoch,
        )
        self._said.pop(about.step, None)
        self._said[about.step] = said
        while len(self._said) > MAX_SAID:
            del self._said[next(iter(self._said))]
        return said

    def check(self, said: CheckpointPredicate) -> None:
        """Refuse a statement that says anything else than what it was told to (rule 2).

        Raises:
            RuntimeRefusal: ST-RUNT-031.
        """
        told = self._said.get(said.step)
        if told is None:
            raise RuntimeRefusal(
                NOT_OWN,
                f"step {said.step} binds nothing: its statement did not ask what to bind",
                fix="save with this version of securetrain on every node",
            )
        for name, wanted, found in (
            ("bound", told.bound, msgspec.to_builtins(said.bound)),
            ("nodes", list(told.nodes), [msgspec.to_builtins(node) for node in said.nodes]),
            ("epoch", told.epoch, said.epoch),
            ("policy", told.policy, msgspec.to_builtins(said.policy)),
        ):
            if wanted != found:
                raise RuntimeRefusal(NOT_OWN, f"its {name} is not what this launcher keeps")

    def nodes(self) -> tuple[NodeRef, ...]:
        """The members of the epoch, as the coordinator signed them (rule 1)."""
        found = self.membership
        if found is None:
            return ()
        domain = SpiffeId.parse(found.coordinator).trust_domain
        ranks = {one.node: list(one.ranks) for one in node_ranks(found)}
        return tuple(
            NodeRef(
                node=str(SpiffeId(domain, found.job, Role.NODE, member.node)),
                tier=member.tier,
                label=tier_label(member.tier),
                ranks=ranks[member.node],
                result=member.result,
            )
            for member in found.members
        )

    def _dataset(self, digest: str) -> str | None:
        """The statement of a dataset: of the run's own, which is read here, or as it was shown."""
        if digest and digest not in self._verified:
            try:
                data = read_statement(self.setup.run.dataset, Kind.DATASET)
            except (SecureTrainError, OSError):
                data = b""  # there is none: the data lie elsewhere
            if data:
                self._verify(data, digest)
        return self._statements.get(digest)

    def _parents(self, digests: tuple[str, ...]) -> list[str]:
        if any(digest not in self._verified for digest in digests):
            folder, job = self.setup.run.checkpoints, self.setup.job
            for one in run_folder.checkpoints_of(folder, job, self.trust):
                if one.digest in digests and one.digest not in self._verified:
                    payload = base64.b64decode(envelope_unverified(one.data).payload)
                    self._statements[one.digest] = hashlib.sha256(payload).hexdigest()
                    self._verified.add(one.digest)
        unknown = [digest for digest in digests if digest not in self._statements]
        # Where one is not known, none is bound: the link is missing, and says so.
        return [] if unknown else [self._statements[digest] for digest in digests]

    def _manifest(self) -> Code:
        around = self.around
        return Code(
            files=self._word.code,
            distributions=around.distributions,
            python=around.python,
            commit=around.commit,
            dirty=around.dirty,
            lock_file=around.lock_file,
        )

    def _environment(self) -> Environment:
        said = dict(self._word.environment)
        devices = tuple(one for one in said.pop("devices", "").split(", ") if one)
        torch = said.get("torch", self.around.environment.torch)
        return msgspec.structs.replace(
            self.around.environment, torch=torch, declared=said, devices=devices
        )


def code_files(said: Sequence[ImportedFile]) -> tuple[CodeFile, ...]:
    """The manifest's entries, as many of them read here as `READ_LIMIT` allows."""
    left, made = READ_LIMIT, []
    for one in said:
        made.append(code_file(one, min(FILE_LIMIT, left)))
        left = max(0, left - max(one.size, PAGE))
    return tuple(made)


def code_file(said: ImportedFile, limit: int = FILE_LIMIT) -> CodeFile:
    """One entry of the manifest: read here where that can be, else the worker's word (rule 5)."""
    parts = Path(said.file).parts or (said.file,)
    depth = said.module.count(".") + (2 if parts[-1].startswith("__init__.") else 1)
    path = "/".join(part for part in parts[-depth:] if part not in {"/", "..", "."})
    by = Witness.WORKER
    try:
        data = read_file(Path(said.file), said.size) if said.size <= limit else None
    except SecureTrainError:
        data = None
    if data is not None and hashlib.sha256(data).hexdigest() == said.sha256:
        by = Witness.LAUNCHER
    return CodeFile(
        module=said.module, path=path or "unnamed", sha256=said.sha256, size=said.size, by=by
    )
