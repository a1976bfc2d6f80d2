# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The artifact that somebody asked for, and the one place that judges whether this is it.

A trusted key signs many things: another run, an older step, a model of another name. Rules:

1. each field that is given must hold; a field that the artifact does not have does not hold;
2. a field that is empty is an error, not a field that was not given: a variable that was never set
   must not expect nothing;
3. what was not asked is said (`chain.Verdict.not_asked`).
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from securetrain.artifacts.given import check_fields
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetPredicate,
    Opened,
)
from securetrain.artifacts.tree.layout import STATEMENT, Problem
from securetrain.core.errors import UsageError
from securetrain.policy.load import bundled_dir, load_policy
from securetrain.policy.schema import Expect

_HEX: Final = re.compile(r"[0-9a-f]{64}\Z")
MAX_TEXT: Final = 1024


class Expectation(Expect, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The artifact that is wanted: what a policy may expect (`policy.schema`, where each field is
    told), of datasets and bundles, too. Every field is optional, and each that is given must hold.

    `digest` is what identifies the content, as ``verify`` prints it; `min_version` the lowest
    version of a dataset, or number of a checkpoint in its run; `signer` one of those who signed: an
    id of 64 hex digits, or the name that a keyless signer's certificate carries, in full, for which
    the trust root says which issuer must vouch; `dataset` a digest, or the name that its own signer
    gave it, which only the dataset's statement can show.

    Raises:
        UsageError: ST-USAG-001 when a field has a value that no artifact can have.

    >>> wanted = Expectation(run="toy").and_also(Expectation(step=12))
    >>> wanted.run, wanted.step
    ('toy', 12)
    """

    statement: str | None = None
    """SHA-256 of what was signed about it, whoever signed; a catalogue names it."""

    def __post_init__(self) -> None:
        check_fields(self)
        for field in ("digest", "run", "name", "signer", "statement", "dataset", "policy"):
            value = getattr(self, field)
            if value is not None and not 0 < len(value) <= MAX_TEXT:
                raise _unusable(field, "is empty" if not value else "is too long")
        for field in ("digest", "statement"):
            value = getattr(self, field)
            if value is not None and not _HEX.match(value):
                raise _unusable(field, f"is {value!r}, not 64 hex digits in lower case")
        for field in ("step", "min_step", "min_version"):
            value = getattr(self, field)
            if value is not None and value < 0:
                raise _unusable(field, f"is {value}, below 0")
        if self.step is not None and self.step < (self.min_step or 0):
            raise _unusable("step", f"is {self.step}, and at least {self.min_step} is expected")

    def names(self, policy: str) -> bool:
        """Tell whether a policy with this digest is expected."""
        return self.policy is not None and _policy_digest(self.policy) == policy

    def and_also(self, other: "Expectation") -> "Expectation":
        """Both: whatever either asks for.

        Raises:
            UsageError: ST-USAG-001 when no artifact can meet both.
        """
        both: dict[str, Any] = msgspec.structs.asdict(self)
        for field, wanted in msgspec.structs.asdict(other).items():
            mine = both[field]
            if field in {"min_step", "min_version"}:
                both[field] = max((n for n in (mine, wanted) if n is not None), default=None)
            elif mine is not None and wanted is not None and mine != wanted:
                raise _unusable(field, f"is {wanted}, and {mine} is expected already")
            else:
                both[field] = wanted if mine is None else mine
        return Expectation(**both)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """An artifact as its verified statement names it; None for what it does not have."""

    code: Callable[[int], str]
    """The refusal code of its family with a number."""
    digest: str
    statement: str
    signers: Collection[str]
    identities: Collection[str] = ()
    """Names of those of them who signed without a key."""
    run: str | None = None
    name: str | None = None
    step: int | None = None
    version: int | None = None
    dataset: tuple[str, str] | None = None
    """Digest and name of what a checkpoint was trained on."""
    policy: str | None = None
    """Digest of the policy that it was made under."""


def identified(opened: Opened) -> Identified:
    """A checkpoint or dataset as its statement names it."""
    match opened.predicate:
        case CheckpointPredicate() as said:
            return Identified(
                code=opened.kind.code,
                digest=opened.digest,
                statement=opened.statement,
                signers=opened.key_ids,
                identities=opened.identities,
                run=said.run_id,
                name=said.name,
                step=said.step,
                version=said.seq,
                dataset=(said.dataset.digest, said.dataset.name) if said.dataset.digest else None,
                policy=said.policy.digest or None,
            )
        case DatasetPredicate() as dataset:
            return Identified(
                code=opened.kind.code,
                digest=opened.digest,
                statement=opened.statement,
                signers=opened.key_ids,
                identities=opened.identities,
                name=dataset.name,
                version=dataset.seq,
            )
        case _:
            raise ValueError(f"unknown predicate {type(opened.predicate).__name__}")


def compare(expected: Expectation | None, found: Identified) -> list[Problem]:
    """Every field that was asked for and does not hold."""
    if expected is None:
        return []
    problems = []
    data = None if found.dataset is None else found.dataset[bool(expected.dataset_name)]
    policy = None if expected.policy is None else _policy_digest(expected.policy)
    for code, field, wanted, has in (
        (found.code(125), "run", expected.run, found.run),
        (found.code(126), "name", expected.name, found.name),
        (found.code(127), "digest", expected.digest, found.digest),
        (found.code(127), "statement", expected.statement, found.statement),
        (found.code(127), "step", expected.step, found.step),
        (found.code(127) if data is None else "ST-CKPT-173", "dataset", expected.dataset, data),
        (
            found.code(127) if found.policy is None else "ST-CKPT-174",
            "policy",
            policy,
            found.policy,
        ),
    ):
        if wanted is not None and wanted != has:
            shown = f"it names no {field}" if has in {None, ""} else f"its {field} is {has}"
            problems.append((code, f"{shown}, {wanted} was expected"))
    if expected.signer is not None and not _has_signed(expected.signer, found):
        who = ", ".join(sorted([*found.identities, *found.signers])) or "nobody"
        problems.append((found.code(128), f"signed by {who}; {expected.signer} was expected"))
    for field, least, number in (
        ("step", expected.min_step, found.step),
        ("version", expected.min_version, found.version),
    ):
        if least is not None and (number is None or number < least):
            shown = f"it has no {field}" if number is None else f"its {field} is {number}"
            problems.append((found.code(154), f"{shown}, at least {least} was expected"))
    return [Problem(code, what, STATEMENT) for code, what in problems]


def _policy_digest(wanted: str) -> str:
    """The digest of an expected policy, which is that or the name of one that is shipped.

    Raises:
        UsageError: ST-USAG-001 when no policy of that name is shipped.
    """
    if _HEX.match(wanted):
        return wanted
    if (
        not re.fullmatch(r"[a-z0-9-]+", wanted)
        or not (bundled_dir("policies") / f"{wanted}.yaml").is_file()
    ):
        raise _unusable("policy", f"is {wanted!r}, neither a digest nor a policy that is shipped")
    return load_policy(wanted).digest


def _has_signed(signer: str, found: Identified) -> bool:
    """Return whether somebody is among the signers; what reads as an id is never a name."""
    return signer in (found.signers if _HEX.match(signer) else found.identities)


def check(opened: Opened, *expected: Expectation | None) -> list[Problem]:
    """The problems of a verified statement with all that is expected of it."""
    asked = [one for one in expected if one is not None]
    if not asked:
        return []
    found = identified(opened)
    return [problem for one in asked for problem in compare(one, found)]


def _unusable(field: str, what: str) -> UsageError:
    return UsageError(
        "ST-USAG-001",
        f"the expected {field.replace('_', ' ')} {what}",
        "",
        "give its value, or leave it out",
    )
