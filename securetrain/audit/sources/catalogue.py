# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The checks that an audit loads, and signed pins of what it should use.

Rules:

1. every check of a folder is loaded: safe YAML, strict schema, no id twice;
2. whoever can write to a policy or a folder of checks can make every audit pass. Pins are digests
   of what counts when it is loaded: the resolved policy, every check with its definition, the table
   of a standard that checks ask, every advisory. Another file with the same content is the same;
3. the pins are an envelope (DSSE), and nothing of them is read before its signature has verified;
4. what differs is a finding (ST-AUD-004) and an integrity problem: the audit goes on, and ends with
   exit code 4.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from securetrain.audit.engine.advisories import Advisories, shipped_advisories
from securetrain.audit.engine.check import Check, compile_check
from securetrain.audit.engine.schema import CheckSet, each_kind
from securetrain.audit.parser.files import read_document
from securetrain.audit.subjects.kubernetes.standards import controls
from securetrain.core import canonical
from securetrain.core.errors import AuditError, SecureTrainError
from securetrain.policy.load import bundled_dir, digest_of
from securetrain.policy.schema import Policy

if TYPE_CHECKING:
    from securetrain.identity.keys import PublicKey, Signer

FILE_LIMIT: Final = 512 << 10
MAX_FILES: Final = 256
PAYLOAD_TYPE: Final = "application/vnd.securetrain.audit-pins+json"
PIN_LIMIT: Final = 64 << 10
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


def load_checks(directory: Path | None = None, beside: Path | None = None) -> tuple[Check, ...]:
    """Load and compile the checks of `directory` (the shipped ones by default), sorted by id.

    Args:
        directory: the folder.
        beside: a folder of a site's own checks, each with its fixtures (`site_checks`).

    Raises:
        AuditError: ST-AUDT-001 naming the file, the check and the place.
    """
    checks: dict[tuple[str, str], Check] = {}
    found = _shipped() if directory is None else _of_folder(directory)
    if beside is not None:
        from securetrain.audit.sources.site_checks import verify_fixtures  # noqa: PLC0415 - few have some

        verify_fixtures(own := _of_folder(beside), beside)
        found += own
    for check in found:
        _add(checks, check)
    return tuple(checks[key] for key in sorted(checks, key=lambda key: key[0]))


@cache
def _shipped() -> tuple[Check, ...]:
    """The installed ones, which do not change while a process runs."""
    return _of_folder(bundled_dir("policies") / "checks")


def _of_folder(folder: Path) -> tuple[Check, ...]:
    paths = sorted(folder.glob("*.yaml"))
    if not paths or len(paths) > MAX_FILES:
        raise AuditError(
            "ST-AUDT-001",
            f"{len(paths)} check files, expected 1 to {MAX_FILES}",
            str(folder),
            "name a folder of checks, or install the package again",
        )
    return tuple(check for path in paths for check in load_check_file(path))


def _add(checks: dict[tuple[str, str], Check], check: Check) -> None:
    there = next((one for one in checks.values() if one.id == check.id), check)
    also = [one.subject for one in there.spec.also]
    if (check.id, check.kind) in checks or (there is not check and check.spec.subject not in also):
        raise AuditError(
            "ST-AUDT-001",
            f"{check.id} is also defined in {there.source}",
            check.source,
            "give one of them another id",
        )
    checks[check.id, check.kind] = check


def load_check_file(path: Path) -> tuple[Check, ...]:
    """Load and compile one file.

    Raises:
        AuditError: ST-AUDT-001.
    """
    spec = read_document(
        path,
        CheckSet,
        limit=FILE_LIMIT,
        code="ST-AUDT-001",
        fix="compare with the other files beside it",
    )
    each = (one for check in spec.checks for one in each_kind(check))
    return tuple(compile_check(one, path.name) for one in each)


class Pins(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The digests."""

    schema: Literal["securetrain.audit-pins/v1"] = "securetrain.audit-pins/v1"
    policy: _Digest
    checks: _Digest
    advisories: _Digest

    @classmethod
    def of(cls, policy: Policy, checks: Sequence[Check], advisories: Advisories | None) -> "Pins":
        """The pins of what was loaded."""
        specs = [msgspec.to_builtins(check.spec) for check in sorted(checks, key=lambda c: c.id)]
        specs += [msgspec.to_builtins(one) for one in controls().values()]
        listed = (advisories or shipped_advisories()).listed()
        return cls(policy=digest_of(policy), checks=_sha256(specs), advisories=_sha256(listed))

    def signed(self, key: "Signer") -> bytes:
        """The envelope of these pins."""
        from securetrain.identity import dsse  # noqa: PLC0415 - few audits have pins

        return dsse.sign(canonical.encode(self), PAYLOAD_TYPE, [key])

    def mismatches(self, data: bytes, key: "PublicKey", where: str) -> list[tuple[str, str]]:
        """List what of these differs from signed ones: its name, and why."""
        from securetrain.identity import dsse  # noqa: PLC0415 - few audits have pins

        try:
            payload = dsse.verify(data, PAYLOAD_TYPE, {key.key_id: key}, where=where)
            pinned = canonical.decode(
                payload.data, Pins, limit=PIN_LIMIT, where=where, canonical=True
            )
        except SecureTrainError as error:
            return [("pins", f"{where} is not signed by the key that was given: {error.what}")]
        return [
            (name, f"the {name}: {found[:12]} is used, and {wanted[:12]} is pinned")
            for name in ("policy", "checks", "advisories")
            if (wanted := getattr(pinned, name)) != (found := getattr(self, name))
        ]


def _sha256(value: object) -> str:
    return hashlib.sha256(canonical.encode(value)).hexdigest()
