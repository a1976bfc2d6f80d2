# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Appraises a measurement list that comes in parts: the lists of machines that run for long.

Rules, beside those of `ima`:

1. the list was announced under the node's signature, with the SHA-256 of each part, and a part is
   asked for when all before it were accepted. One that is not what was announced - altered, from
   elsewhere in the list, the one before once more, longer or shorter - is refused before it is
   read;
2. one part is in memory at a time, and the bytes of an entry that the next part completes;
3. entries are judged as they come. The first that is not acceptable ends it, and so does the one
   that reaches the quote: what was announced behind it is not asked for.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from securetrain.core.errors import AttestationError
from securetrain.evidence.node_evidence import ImaList, ImaParts
from securetrain.evidence.tpm.ima import (
    MAX_NAMED,
    ImaState,
    Progress,
    Replay,
    TemplateCache,
    begin,
    state_of,
    verdict_key,
)
from securetrain.evidence.tpm.ima_violations import Violations
from securetrain.evidence.tpm.runtime_policy import RuntimePolicy


class Segment(NamedTuple):
    """The part of a list that is of interest."""

    start: Progress | None = None
    """Where the last appraisal ended."""
    watch: int = 0
    """The entry after which PCR 10 is told, too."""


def appraise_parts(
    announced: ImaParts,
    fetch: Callable[[int, bytes], bytes],
    *,
    pcr10: bytes,
    boot_aggregate: bytes | None,
    policy: RuntimePolicy | None,
    segment: Segment,
    violations: Violations,
    cache: TemplateCache,
) -> ImaState:
    """Replay a list into the quoted PCR 10 while it comes, and judge its entries.

    Args:
        announced: the list.
        fetch: gives a part by its number, from 0, and its SHA-256.
        pcr10: as in `appraise_ima`, as all below.
        boot_aggregate: of the quoted boot.
        policy: what may have been measured.
        segment: where it begins, and what is watched.
        violations: what is done about them.
        cache: shared by all nodes.

    Raises:
        AttestationError: ST-ATTS-301 to 314, and what `fetch` raises.
    """
    if len(announced.digests) != announced.count * sha256().digest_size:
        raise AttestationError(
            "ST-ATTS-301",
            f"{announced.size} bytes in {len(announced.digests)} bytes of digests",
            "IMA list",
        )
    before = reached = begin(announced.first, pcr10, segment.start)
    key = verdict_key(policy, binary=True)
    total: Replay | None = None
    rest = b""
    for index in range(announced.count):
        if reached.pcr == pcr10:
            break
        data = rest + _checked(announced, index, fetch(index, announced.digest(index)))
        more = index + 1 < announced.count
        replay = Replay(
            ImaList(binary=True, first=reached.entries, entries=data),
            policy,
            violations,
            cache.runs.table(key),
            segment.watch,
        )
        known = cache.table(policy, binary=True)
        reached = replay.run(reached, pcr10, boot_aggregate, known, more=more)
        rest = data[replay.read :]
        # Verdicts depend on the entries alone, so that they hold wherever the list leads to.
        cache.add(policy, replay.fresh, binary=True)
        cache.runs.add(key, replay.collector.found)
        total = _added(total, replay)
        # Before the next part is waited for: whoever waits holds no part.
        del data, replay
    if reached.pcr != pcr10:  # no part at all: the last one would have been refused
        raise AttestationError("ST-ATTS-306", "no part of the list was announced", "IMA list")
    if total is None:
        total = Replay(ImaList(binary=True, first=0, entries=b""), policy, violations, {})
    return state_of(total, before, reached, policy, boot_aggregate)


def _checked(announced: ImaParts, index: int, data: bytes) -> bytes:
    """Rule 1."""
    wanted = announced.length(index)
    if len(data) != wanted or sha256(data).digest() != announced.digest(index):
        raise AttestationError(
            "ST-ATTS-314",
            f"{len(data)} bytes with SHA-256 {sha256(data).hexdigest()[:16]},"
            f" announced were {wanted} with {announced.digest(index).hex()[:16]}",
            f"IMA list, part {index + 1} of {announced.count}",
        )
    return data


def _added(total: Replay | None, part: Replay) -> Replay:
    """The counts of all parts so far; nothing of their bytes."""
    part.forget()
    if total is None:
        return part
    total.marks += part.marks
    total.violations += part.violations
    total.warnings += part.warnings
    total.watched = total.watched or part.watched
    total.violated = (total.violated + part.violated)[:MAX_NAMED]
    return total
