# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A refusal of evidence in words: which rule, on which register and entry, and what to do.

Rules:

1. what is explained is what was recorded: a run's ledger (its signatures are verified), the JSON of
   ``attest verify`` or of a coordinator, or a code alone. JSON is nobody's word but its writer's,
   and the explanation says so;
2. everything about a code comes from its row in the table (`core.codes`); what to look at follows
   from the hundred that it is in, which is the kind of evidence;
3. the evidence that was refused may hold anything: texts are cut and printed as data.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.attest.fleet.status import node_name
from securetrain.core import CODES, Node, Retry, RunDir
from securetrain.core.errors import UsageError
from securetrain.core.files import read_file
from securetrain.identity.trust import TrustRoot
from securetrain.ledger import events, read_ledger

FILE_LIMIT: Final = 16 << 20
TEXT_LIMIT: Final = 2000
_SHOW: Final = "securetrain attest show BUNDLE"
_VALUES: Final = "securetrain attest values show FILE --signed-by KEY"
_LEARN: Final = (
    "securetrain attest enroll ANSWER --secret SECRET --reference-values FILE --key KEY"
    " --learn-boot --group GROUP"
)
_FETCH: Final = "securetrain attest cache fetch FOLDER BUNDLE --key KEY"
# By the hundred of the code: the kind of evidence, and the commands that show or change it.
_KINDS: Final = (
    ("the exchange with the verifier", ("securetrain fleet status --policy POLICY", _VALUES)),
    ("the TPM, its keys and its quote", (f"{_SHOW} --section tpm", _VALUES)),
    ("the log of the boot", (f"{_SHOW} --section boot", _VALUES, _LEARN)),
    (
        "the files that the kernel measured (IMA)",
        (
            f"{_SHOW} --section ima",
            "securetrain attest enroll --reference-values FILE --key KEY --ima-policy POLICY.json",
        ),
    ),
    ("the AMD SEV-SNP guest", (f"{_SHOW} --section tee", _VALUES, _FETCH)),
    ("the Intel TDX guest", (f"{_SHOW} --section tee", _VALUES, _FETCH)),
    ("the GPUs and switches", (f"{_SHOW} --section devices", _VALUES, _FETCH)),
    ("what makers publish", ("securetrain attest cache list FOLDER --signed-by KEY", _FETCH)),
    ("a token of a cloud or vendor", (f"{_SHOW} --section tokens", _VALUES)),
    ("what this machine can collect", ("securetrain doctor", "securetrain attest collect")),
)
_NODES: Final = {
    Node.BARRED: "during a lease it bars the node and its hardware until a person restores them",
    Node.TWO: "it bars the node and its TPM, at a join too, until a person restores them",
    Node.OUT: "the node is out, and may try again when the cause is gone",
    Node.UNPROVEN: "it says nothing about the node, which counts as not proven",
    Node.FREE: "nothing is said about the node",
    Node.NO_NODE: "it is about no node",
}
_RETRIES: Final = {
    Retry.NEVER: "trying again without a change is refused again",
    Retry.LATER: "the same attempt may succeed later",
    Retry.WAIVED: "it is refused until operators have signed a waiver",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One refusal in words."""

    code: str
    rule: str
    """The rule that was broken."""
    about: str
    """The kind of evidence."""
    node: str = ""
    at: str = ""
    """The time of the record; empty where that is not known."""
    where: str = ""
    """The register, the entry of a log, the field."""
    found: str = ""
    """The value that was found, and the one that it was compared with."""
    severity: str
    follows: str
    """The consequence for the node."""
    again: str
    """The use of another attempt."""
    steps: tuple[str, ...]
    """The advice, then commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Everything that was refused in one result."""

    source: str
    signed: bool
    """True when its signatures were verified."""
    refusals: tuple[Explanation, ...]
    open: tuple[str, ...] = ()
    """Points that a result without a refusal leaves open."""


class _Error(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    what: str = ""
    where: str = ""
    fix: str = ""


class _Result(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``--json`` of a command, as far as it matters here."""

    error: _Error | None
    node: str = ""
    open: tuple[str, ...] = ()


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``coordinator --json``."""

    event: str
    decision: str = ""
    subject: str = ""
    code: str = ""
    details: dict[str, Any] = {}


def explain(given: str) -> Explained:
    """Explain a code, the JSON of a result, or every refusal of evidence in a run's ledger.

    Args:
        given: a code, a file or a run's directory.

    Raises:
        UsageError: ST-USAG-001 when it is none of these, ST-USAG-002 when it cannot be read.
        IntegrityError: ST-LEDG-001 to 004 for a ledger that is not what was signed.
    """
    path = Path(given)
    if given.startswith("ST-") and not path.exists():
        one = explanation(_Error(code=given))
        return Explained(source="the table of codes", signed=True, refusals=(one,))
    if path.is_dir():
        return Explained(source=given, signed=True, refusals=_of_run(path))
    data = read_file(path, FILE_LIMIT)
    try:
        result = msgspec.json.decode(data, type=_Result)
    except msgspec.DecodeError:  # ValidationError is one
        return Explained(source=given, signed=False, refusals=_of_lines(data, given))
    found = (explanation(result.error, node=result.node),) if result.error is not None else ()
    return Explained(source=given, signed=False, refusals=found, open=result.open)


def explanation(error: _Error, *, node: str = "", at: str = "") -> Explanation:
    """Explain one refusal.

    Raises:
        UsageError: ST-USAG-001 for a code that this version does not know.
    """
    row = CODES.get(error.code)
    if row is None:
        raise UsageError(
            "ST-USAG-001",
            f"{error.code[:40]!r} is no code of this version",
            "RESULT",
            "name the JSON of 'attest verify', a run's directory, or a code (docs/reference/codes)",
        )
    about, commands = _kind(row.id, row.family)
    return Explanation(
        code=row.id,
        rule=row.title,
        about=about,
        node=node[:TEXT_LIMIT],
        at=at,
        where=error.where[:TEXT_LIMIT],
        found=error.what[:TEXT_LIMIT],
        severity=row.severity.value,
        follows=_NODES[row.node],
        again=_RETRIES[row.retry],
        steps=(
            error.fix[:TEXT_LIMIT] or row.fix,
            *commands,
            *(_restoring(node) if row.bars_node else ()),
        ),
    )


def _kind(code: str, family: str) -> tuple[str, tuple[str, ...]]:
    if family != "ATTS":
        return "no evidence of a node", ()
    return _KINDS[int(code[len("ST-ATTS-")])]


def _restoring(node: str) -> tuple[str, ...]:
    return (
        "securetrain attest revocations",
        f"securetrain attest restore node:DOMAIN/{node or 'NODE'}",
    )


def _of_run(folder: Path) -> tuple[Explanation, ...]:
    run = RunDir(folder)
    # A run of last year is explained, too: its trust root may have expired since.
    trust = TrustRoot.parse_of_any_time(read_file(run.trust, FILE_LIMIT), str(run.trust))
    reading = read_ledger(read_file(run.ledger, 1 << 30), trust, where=str(run.ledger))
    return tuple(
        explanation(
            _Error(code=said.code, what=said.what, where=getattr(said, "where", None) or ""),
            node=node_name(said.subject),
            at=line.time.isoformat(timespec="seconds"),
        )
        for line in reading.recorded
        if isinstance(said := line.event, events.Refused) and said.code.startswith("ST-ATTS-")
    )


def _of_lines(data: bytes, where: str) -> tuple[Explanation, ...]:
    """The refusals among the lines of a coordinator."""
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            said = msgspec.json.decode(line, type=_Said)
        except msgspec.DecodeError as error:
            raise UsageError(
                "ST-USAG-001",
                f"line {number} is no result: {error}",
                where,
                "name what 'attest verify --json' or 'coordinator --json' printed, or a run's"
                " directory",
            ) from error
        if said.code.startswith("ST-ATTS-"):
            what, place = (str(said.details.get(name, "")) for name in ("what", "where"))
            found.append(
                explanation(
                    _Error(code=said.code, what=what, where=place), node=node_name(said.subject)
                )
            )
    return tuple(found)
