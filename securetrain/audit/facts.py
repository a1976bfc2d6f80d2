# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts: what was seen of one asset, as data. Nothing here judges.

Rules:

1. a document has one schema name and forbids unknown fields;
2. each section says how its collection ended (`Outcome`) and why; only an ``ok`` section has a
   value;
3. inside a section, a record that reads one thing has an outcome of its own: ``absent`` is a
   definite observation (the file does not exist), ``denied``, ``error`` and ``timeout`` are not;
4. None means "not known"; it never means "no";
5. a collection is empty only where its type says so (`MAY_BE_EMPTY`): elsewhere its collector
   always finds something, and nothing is missing evidence;
6. secrets appear as names, owners and modes, never as values;
7. a value that a template leaves open is ``templated``, and the reason names what decides it;
8. the ledger says for each unit of a reader's input whether it was read, not understood or not
   ours. A record or collection that does not say itself how it was read counts as read only where
   an entry of the ledger says so; facts of a version without a ledger are refused.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AuditError, UsageError

T = TypeVar("T")
B = TypeVar("B", bound="Body")

SCHEMA: Final = "securetrain.facts/v3"
_WITHOUT_LEDGER: Final = ("securetrain.facts/v1", "securetrain.facts/v2")
FACTS_LIMIT: Final = 4 << 20
"""The largest facts document that is read, in bytes; one node makes about 50 KB."""

MAY_BE_EMPTY: Final = Meta(extra={"may_be_empty": True})
"""On the type of a collection: nothing in it is an answer (rule 5)."""
ONLY_FAULTS: Final = Meta(extra={"may_be_empty": True, "only_faults": True})
"""On the type of a collection of what is bad by being there, as secrets in a text: none of it is a
good answer about the text, where none of anything else leaves nothing to judge."""

Mode: TypeAlias = Annotated[str, Meta(pattern=r"^[0-7]{4}\Z")]
"""Permission bits with set-id and sticky, four octal digits."""


class Outcome(StrEnum):
    """The outcome of reading something."""

    OK = "ok"
    DENIED = "denied"
    ABSENT = "absent"
    ERROR = "error"
    TIMEOUT = "timeout"
    TEMPLATED = "templated"
    """A template leaves it open."""


class SecretKind(StrEnum):
    """A reason to take a literal for a secret."""

    NAME = "name"
    """Its variable's or option's name, as in ``DB_PASSWORD`` or ``--api-key``."""
    PATTERN = "pattern"
    """Its form, as of a provider's tokens."""
    URL = "url"
    """A password inside a URL."""
    PRIVATE_KEY = "private-key"


class Runtime(StrEnum):
    """The program that starts the containers of a workload."""

    KUBERNETES = "kubernetes"
    DOCKER = "docker"
    """docker, podman, nerdctl or compose."""
    APPTAINER = "apptainer"
    """apptainer, singularity, enroot or srun: a process of its user, with that user's rights."""
    HOST = "host"
    """No container: a task on a machine."""


class Location(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The place that a fact was read from; lines and columns begin with 1, and 0 is not known."""

    path: str
    line: int = 0
    column: int = 0
    written: "Location | msgspec.UnsetType" = msgspec.UNSET
    """The place of the text that decides, where a variable brings it from: what a person edits."""


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of every record."""

    @property
    def label(self) -> str:
        """The name of this record in a finding's subject."""
        return ""

    @property
    def location(self) -> Location | None:
        """The place that it was read from; None when that is the kernel and no file."""
        return None


class Observed(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A record that reads one thing and says how that ended."""

    outcome: Outcome
    reason: str = ""


class _ByPath:
    """The label and place of a record that is about one file or folder."""

    __slots__ = ()
    path: str

    @property
    def label(self) -> str:
        """The path."""
        return self.path

    @property
    def location(self) -> Location | None:
        """The file or folder itself."""
        return Location(path=self.path)


class FileFact(_ByPath, Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of a record about one file or folder."""

    path: str


class SeenFile(_ByPath, Observed, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of a record of a file or folder that somebody tried to look at."""

    path: str


class Place(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of a record that stands at one place of a file."""

    at: Location
    """The place where it begins."""

    @property
    def location(self) -> Location:
        """The place where it begins."""
        return self.at


class Section(Observed, Generic[T], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of one collector; `value` is there exactly when the outcome is ``ok``."""

    value: T | None = None


class Reading(Observed, Generic[T], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One value that may be absent, out of reach or left open by a template."""

    value: T | None = None
    at: Location | None = None
    """Where it stands, or where it is missing; None when that is the kernel and no file."""

    @property
    def location(self) -> Location | None:
        """The place where it stands."""
        return self.at


class End(StrEnum):
    """The end of one unit of a reader's input."""

    READ = "read"
    NOT_UNDERSTOOD = "not-understood"
    NOT_OURS = "not-ours"
    """It can answer no check, and `Entry.why` says how that is known."""


class Entry(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One unit of a reader's input, and what became of it.

    Raises:
        ValueError: what was not understood names no evidence, or what was not read has no reason.
    """

    unit: str
    """``file``, ``document``, ``word``, ``rule``, ``listener``, ``process``, ``section``."""
    at: Location
    end: End
    why: str = ""
    """Why it was not understood, or is not ours."""
    help: str = ""
    """What would make it readable."""
    bears_on: tuple[str, ...] = ()
    """The evidence that it could answer: ``launch.rendezvous``, ``workload.pods``."""
    count: Annotated[int, Meta(ge=1)] = 1
    """Equal entries are counted for their folder, which `at` then names."""

    def __post_init__(self) -> None:
        """Refuse what would be open and bear on nothing."""
        if self.end is not End.READ and not self.why:
            raise ValueError(f"{self.at.path}: {self.end} without a reason")
        if self.end is End.NOT_UNDERSTOOD and not self.bears_on:
            raise ValueError(f"{self.at.path}: not understood, and bears on nothing")

    @property
    def label(self) -> str:
        """The unit and its place."""
        return f"{self.unit} {self.at.path}" + (f":{self.at.line}" if self.at.line else "")

    @property
    def location(self) -> Location:
        """The place where it begins."""
        return self.at


class Collected(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The time, place and tool of the collection of facts."""

    at: datetime
    hostname: str
    collector: str
    boot_id: str = ""
    nonce: str = ""
    """What an auditor asked to have signed with it."""


class Body(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """The base of a document's facts: a record for each root of its kind, and its collection.

    Each kind's own body names itself with ``tag="KIND"``, which is ``kind`` in a saved document.
    """

    schema: Literal["securetrain.facts/v3"] = SCHEMA
    collected: Collected
    ledger: tuple[Entry, ...] = ()
    """What became of each unit that its reader was given."""

    @property
    def asset(self) -> str:
        """The name of what it is about, with the kind of name before it, as in ``node:gpu-17``."""
        raise NotImplementedError(type(self).__name__)

    @property
    def title(self) -> str:
        """The name that people use for it, where that is another: ``PyTorchJob/pretrain``."""
        return ""

    def to_json(self) -> bytes:
        """Canonical JSON."""
        return canonical.encode(self)


def decode_body(data: bytes, kinds: Mapping[str, type[B]], where: str) -> B:
    """Parse a facts document of one of these kinds; without a kind it is about a node.

    Raises:
        AuditError: ST-AUDT-002 when it is malformed, or a section's value contradicts its outcome.
    """
    try:
        value = canonical.loads(data, limit=FACTS_LIMIT, where=where)
    except UsageError as error:
        raise malformed(error.what, where) from error
    return body_of(value, kinds, where)


def body_of(value: Any, kinds: Mapping[str, type[B]], where: str) -> B:
    """Check plain data against the schema of its kind; see `decode_body`."""
    kind = value.get("kind", "node") if isinstance(value, dict) else None
    if isinstance(value, dict) and value.get("schema") in _WITHOUT_LEDGER:
        what = f"facts of {value['schema']} do not say what was not understood: collect them again"
        raise malformed(what, where)
    schema = kinds.get(kind) if isinstance(kind, str) else None
    if schema is None:
        raise malformed(f"kind {str(kind)[:40]!r} is not one of {', '.join(kinds)}", where)
    try:
        body = msgspec.convert(value, schema, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise malformed(str(error), where) from error
    for root in schema.__struct_fields__:
        record = getattr(body, root)
        if isinstance(record, Fact):
            _consistent(record, root, where)
    if body.collected.at.tzinfo is None:
        raise malformed("a time without a zone", f"{where}: collected.at")
    return body


def _consistent(record: Fact, root: str, where: str) -> None:
    """A section of a root has a value exactly when its outcome is ``ok``."""
    for name in record.__struct_fields__:
        section = getattr(record, name)
        if isinstance(section, Section) and (
            (section.outcome is Outcome.OK) != (section.value is not None)
        ):
            what = f"outcome {section.outcome.value!r} does not fit its value"
            raise malformed(what, f"{where}: {root}.{name}")


def malformed(what: str, where: str) -> AuditError:
    """The one error for facts that cannot be read as facts."""
    return AuditError("ST-AUDT-002", what, where)
