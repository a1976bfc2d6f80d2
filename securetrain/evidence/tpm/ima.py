# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Appraises what the kernel measured (IMA) against the quoted PCR 10 and a runtime policy.

Rules:

1. the list is replayed into a register that starts at zeros, or where the last appraisal ended. It
   must reach the quoted value of PCR 10 in the SHA-256 bank; entries after the one that reaches it
   were not quoted and are not read (the kernel went on measuring while evidence was collected);
2. a list from the beginning starts with ``boot_aggregate``, and that is the SHA-256 of the quoted
   PCRs 0 to 9: it ties the list to this boot. An aggregate of SHA-1 is refused. A PCR 10 that still
   has its initial value is refused: that kernel measures nothing;
3. each entry's SHA-1 in the list must be that of its data, and its PCR must be 10. What is extended
   is the SHA-256 of the data (kernels before 5.8 extend padded SHA-1 and never reach the quote);
4. a violation (the file changed while it was measured: all-zero digest) extends 0xFF bytes. It is
   refused unless a rule for its path, or the policy, allows it; its path is then only what the list
   says. The list does not tell a file that was opened for writing while it was in use (ToMToU)
   from one that was read while it was open for writing (open_writers): the rules are for both;
5. with a runtime policy every file and buffer must be listed with its digest, signed by a key of
   the reference values, or excluded; without one the list is only replayed (the policy's mode
   `log`). A keyring whose keys are listed takes no others;
6. what an entry is worth depends on its bytes and the policy alone, so verdicts are shared by the
   fleet: most nodes of a fleet measure the same files, and between two renewals often all of them.

kexec is not supported: it restarts the list. Source: Linux ``security/integrity/ima``; TCG PC
Client Platform Firmware Profile for the boot registers.
"""

from collections.abc import Mapping
from hashlib import sha256
from threading import Lock
from typing import Final, TypeAlias

import msgspec

from securetrain.core.errors import AttestationError
from securetrain.evidence.node_evidence import ImaList
from securetrain.evidence.tpm.ima_list import (
    Entry,
    Refusal,
    parse_ascii,
    parse_binary,
    split_ascii,
    split_binary,
)
from securetrain.evidence.tpm.ima_runs import (
    HEAD,
    LONGEST_TAIL,
    VIOLATION,
    Collector,
    Judged,
    Run,
    Runs,
    starts_run,
    whole,
)
from securetrain.evidence.tpm.ima_violations import Violations
from securetrain.evidence.tpm.runtime_policy import (
    RuntimePolicy,
    Verdict,
    ViolationMode,
)

PCR: Final = 10
LIST_LIMIT: Final = 4 << 20
MAX_ENTRIES: Final = 2_000_000
CACHE_LIMIT: Final = 32 << 20
AGGREGATE: Final = b"boot_aggregate"
MAX_NAMED: Final = 32
"""How many violations a result names; it counts all."""
_INITIAL: Final = bytes(32)
_ENTRY_OVERHEAD: Final = 300
"""Bytes of memory that a cached entry takes beside its own: three objects and a place."""

_EXCLUDED: Final = 1
_SIGNED: Final = 1 << 32
"""Marks of entries: sums of marks count both kinds at once."""
_SIGNABLE: Final = frozenset({b"ima-sig", b"ima-sigv2"})


class Progress(msgspec.Struct, frozen=True):
    """The point up to which a node's list has been attested."""

    entries: int
    pcr: bytes
    """PCR 10 after that many entries."""


class ImaState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a list has proven."""

    progress: Progress
    num_entries: int
    """Entries that this appraisal has attested; `progress` also counts those before it."""
    excluded: int
    """Of these, how many the runtime policy excludes: their digests were not compared."""
    signed: int = 0
    """Of these, how many were accepted by their signature, keys in keyrings included."""
    violations: int
    """Of these, how many were violations that the policy allows."""
    violated: tuple[str, ...]
    """The first of them, as ``entry N: path``; the path is the list's word only."""
    warnings: int = 0
    """Of the violations, how many a rule wants to be warned of."""
    boot_aggregate: str
    """SHA-256 in hex, when the list was read from its beginning."""
    aggregate_compared: bool
    """Whether it was compared with the quoted PCRs 0 to 9."""
    policy: str
    """SHA-256 of the runtime policy; empty without one."""
    watched: bytes = b""
    """PCR 10 after the entry that was to be watched; empty where that was not read."""


_Table: TypeAlias = tuple[tuple[str, bool, str, str], bool]


class TemplateCache:
    """Findings about entries, shared by the appraisals of all nodes and bounded in memory."""

    def __init__(self, limit: int = CACHE_LIMIT) -> None:
        """Start empty.

        Args:
            limit: bytes of memory, roughly; runs of entries take a quarter of it more, and the
                lists of renewals an eighth.
        """
        self._limit = limit
        self.runs = Runs(limit // 4)
        """Whole runs of entries, by the `key` of what accepted them."""
        self.tails = Runs(limit // 8)
        """Whole lists of renewals, which many nodes send alike."""
        self._lock = Lock()
        self._size = 0
        self._tables: dict[_Table, dict[bytes, Judged]] = {}

    @property
    def size(self) -> int:
        """Bytes of memory that are in use, roughly."""
        return self._size

    def table(self, policy: RuntimePolicy | None, *, binary: bool) -> Mapping[bytes, Judged]:
        """The findings under a policy, by the entry's bytes."""
        return self._tables.get(verdict_key(policy, binary=binary), {})

    def add(
        self, policy: RuntimePolicy | None, judged: Mapping[bytes, Judged], *, binary: bool
    ) -> None:
        """Remember accepted entries; when there is no room, forget all earlier ones."""
        if not judged:
            return
        size = sum(map(len, judged)) + _ENTRY_OVERHEAD * len(judged)
        if size > self._limit:
            return
        with self._lock:
            if self._size + size > self._limit:
                # Appraisals under way keep the tables that they hold.
                self._tables = {}
                self._size = 0
            self._tables.setdefault(verdict_key(policy, binary=binary), {}).update(judged)
            self._size += size


def appraise_ima(
    ima: ImaList,
    *,
    pcr10: bytes,
    boot_aggregate: bytes | None,
    policy: RuntimePolicy | None,
    start: Progress | None,
    violations: Violations,
    cache: TemplateCache,
    watch: int = 0,
) -> ImaState:
    """Replay a list into the quoted PCR 10 and judge its entries.

    Args:
        ima: the list, or its end.
        pcr10: the quoted value in the SHA-256 bank.
        boot_aggregate: SHA-256 over the quoted PCRs 0 to 9; None when they were not quoted.
        policy: what may have been measured; None replays only.
        start: where the last appraisal of this boot ended; None at a join. The caller makes sure
            that the TPM was not reset since.
        violations: what is done about entries that the kernel marked.
        cache: shared by all nodes.
        watch: the entry after which PCR 10 is told, too.

    Raises:
        AttestationError: ST-ATTS-301 to 313; `where` names the entry, counted from 1, and its path.
    """
    if len(ima.entries) > LIST_LIMIT:
        raise _refused("ST-ATTS-302", f"{len(ima.entries)} bytes, the limit is {LIST_LIMIT}")
    before = begin(ima.first, pcr10, start)
    key = verdict_key(policy, binary=ima.binary)
    digest = b""
    if before.entries and ima.binary and len(ima.entries) <= LONGEST_TAIL:
        digest = sha256(ima.entries).digest()
        tail = cache.tails.table(key).get(digest)
        if tail is not None and before.pcr != pcr10 and watch <= before.entries:
            return _as_before(tail, before, pcr10, policy)
    replay = Replay(ima, policy, violations, cache.runs.table(key), watch)
    known = cache.table(policy, binary=ima.binary)
    reached = replay.run(before, pcr10, boot_aggregate, known)
    if digest:
        replay.keep_tail(digest, known)
    cache.add(policy, replay.fresh, binary=ima.binary)
    cache.runs.add(key, replay.collector.found)
    cache.tails.add(key, replay.tail)
    return state_of(replay, before, reached, policy, boot_aggregate)


def state_of(
    replay: "Replay",
    before: Progress,
    reached: Progress,
    policy: RuntimePolicy | None,
    boot_aggregate: bytes | None,
) -> ImaState:
    """The state that a list has proven once its replay has reached the quote."""
    return ImaState(
        progress=reached,
        num_entries=reached.entries - before.entries,
        excluded=replay.marks % _SIGNED,
        signed=replay.marks // _SIGNED,
        violations=replay.violations,
        violated=tuple(replay.violated),
        warnings=replay.warnings,
        boot_aggregate=replay.aggregate.hex(),
        aggregate_compared=bool(replay.aggregate) and boot_aggregate is not None,
        policy="" if policy is None else policy.digest,
        watched=replay.watched,
    )


def _as_before(
    tail: Run, before: Progress, target: bytes, policy: RuntimePolicy | None
) -> ImaState:
    """Replay a renewal's list that was accepted as a whole: it is not taken apart."""
    pcr, read, marks = tail.extend(before.pcr, target)
    number = before.entries + read
    if pcr != target:
        raise _unreached(number, pcr, target)
    return ImaState(
        progress=Progress(number, pcr),
        num_entries=read,
        excluded=marks % _SIGNED,
        signed=marks // _SIGNED,
        violations=0,
        violated=(),
        boot_aggregate="",
        aggregate_compared=False,
        policy="" if policy is None else policy.digest,
    )


def begin(first: int, pcr10: bytes, start: Progress | None) -> Progress:
    """Find where a list starts that leaves out its first entries.

    Raises:
        AttestationError: ST-ATTS-302, 306, 311.
    """
    if first > MAX_ENTRIES:
        raise _refused("ST-ATTS-302", f"more than {MAX_ENTRIES} entries")
    if pcr10 == _INITIAL:
        raise _refused("ST-ATTS-306", "the quoted PCR 10 was never extended: nothing is measured")
    if first == 0:
        return Progress(0, _INITIAL)
    if start is None or first != start.entries:
        attested = 0 if start is None else start.entries
        raise _refused(
            "ST-ATTS-311", f"it leaves out {first} entries, {attested} were attested before"
        )
    return start


class Replay:
    """One pass over one list."""

    def __init__(
        self,
        ima: ImaList,
        policy: RuntimePolicy | None,
        violations: Violations,
        runs: Mapping[bytes, Run],
        watch: int = 0,
    ) -> None:
        self._data = ima.entries
        self._binary = ima.binary
        self._runs = runs
        self.tail: dict[bytes, Run] = {}
        """The whole list of a renewal, by its SHA-256, that others may share."""
        self.collector = Collector(ima.entries)
        """Runs that others may share."""
        self._entries = split_binary(ima.entries) if ima.binary else split_ascii(ima.entries)
        self._parse = parse_binary if ima.binary else parse_ascii
        self._policy = policy
        self._answers = violations
        self._watch = watch
        self.watched = b""
        """PCR 10 after the entry of that number."""
        self.fresh: dict[bytes, Judged] = {}
        """Verdicts that others may share."""
        self.read = 0
        self.marks = 0
        self.violations = 0
        self.warnings = 0
        self.violated: list[str] = []
        self.aggregate = b""

    def run(
        self,
        before: Progress,
        target: bytes,
        boot_aggregate: bytes | None,
        known: Mapping[bytes, Judged],
        *,
        more: bool = False,
    ) -> Progress:
        """Replay until the register has the value `target`.

        Args:
            before: where the list begins.
            target: the quoted value.
            boot_aggregate: as in `appraise_ima`.
            known: verdicts of earlier appraisals.
            more: whether the list goes on behind these bytes; then they need not reach the target,
                and `read` says where the first entry begins that is not whole.
        """
        if more:
            self._entries = split_binary(self._data, more=True)
        number, pcr = before.entries, before.pcr
        marks = position = 0
        find, watch, at = known.get, self._watch, [b"", b""]
        collector = self.collector
        try:
            if number == 0:
                first = next(self._entries, b"")
                number, pcr, position = 1, self._first(first, boot_aggregate), len(first)
            # Before the first entry is read: nothing may have happened since the last appraisal.
            while pcr != target:
                entry = next(self._entries, None)
                if entry is None and more:
                    break
                if entry is None:
                    raise _unreached(number, pcr, target)
                if self._binary and (starts_run(entry) or collector.full):
                    run = self._runs.get(entry[:HEAD])
                    if run is not None and run.stands_at(self._data, position):
                        collector.end(position)
                        position += run.size
                        self._entries = split_binary(self._data, position, more=more)
                        self._watch_run(run, number, pcr)
                        pcr, read, mark = run.extend(pcr, target)
                        number += read
                        marks += mark
                        continue
                    collector.begin(position)
                number += 1
                judged = find(entry) or self._judge(entry, number)
                collector.take(judged)
                position += len(entry)
                marks += judged[1]
                pcr = sha256(pcr + judged[0]).digest()
                at[number == watch] = pcr  # no branch in the one loop that is hot
        except Refusal as refusal:
            # Only cutting the list raises it here, behind the entries that were read.
            raise _refused_entry(refusal, number + 1) from None
        # A run that the quote cuts off is as good as any; in a renewal's few entries none is whole.
        if before.entries == 0:
            collector.end(position)
        self.watched = at[True] or self.watched
        self.marks = marks
        self.read = position
        return Progress(number, pcr)

    def keep_tail(self, digest: bytes, known: Mapping[bytes, Judged]) -> None:
        """Keep a renewal's binary list, of this SHA-256, that was read to its end."""
        if self.read == len(self._data):
            entries = split_binary(self._data)
            self.tail = whole(digest, [known.get(e) or self.fresh.get(e) for e in entries])

    def forget(self) -> None:
        """Forget the bytes; the counts stay."""
        self._data = b""
        self._entries = iter(())
        self._runs = {}
        self.fresh, self.collector = {}, Collector(b"")

    def _first(self, first: bytes, boot_aggregate: bytes | None) -> bytes:
        """PCR 10 after the first entry of a boot."""
        if not first and (self._binary or not self._data):
            raise Refusal("ST-ATTS-306", "the list is empty, or its first entry is endless")
        entry = self._parse(first)
        extend = _measured(entry)
        if entry.name != AGGREGATE:
            raise Refusal("ST-ATTS-308", "a list begins with boot_aggregate", entry.name)
        algorithm, _, aggregate = entry.digest.removeprefix(b"ima:").partition(b":\0")
        if algorithm != b"sha256":
            raise Refusal("ST-ATTS-308", f"it is of {algorithm!r}, expected SHA-256", entry.name)
        if boot_aggregate is not None and aggregate != boot_aggregate:
            raise Refusal(
                "ST-ATTS-308",
                f"it is {aggregate.hex()}, the quoted PCRs 0 to 9 give {boot_aggregate.hex()}",
                entry.name,
            )
        self.aggregate = aggregate
        pcr = sha256(_INITIAL + extend).digest()
        self.watched = pcr if self._watch == 1 else b""
        return pcr

    def _watch_run(self, run: Run, number: int, pcr: bytes) -> None:
        """Note the register when the watched entry is in this run, behind entry `number`."""
        if number < self._watch:
            self.watched = run.after(pcr, self._watch - number) or self.watched

    def _judge(self, entry: bytes, number: int) -> Judged:
        """Judge an entry; the value that it extends when it is acceptable."""
        try:
            parsed = self._parse(entry)
            if parsed.is_violation:
                return self._violation(parsed, number)
            judged = _measured(parsed), self._mark(parsed)
        except Refusal as refusal:
            raise _refused_entry(refusal, number) from None
        self.fresh[entry] = judged
        return judged

    def _violation(self, entry: Entry, number: int) -> Judged:
        _check_pcr(entry)
        mode = self._answers.mode(entry.name)
        if mode is ViolationMode.REFUSE:
            raise Refusal("ST-ATTS-307", "the policy does not allow violations", entry.name)
        self.violations += 1
        self.warnings += mode is ViolationMode.WARN
        if len(self.violated) < MAX_NAMED:
            self.violated.append(f"entry {number}: {_shown(entry.name)}")
        return VIOLATION, 0

    def _mark(self, entry: Entry) -> int:
        """Mark an entry that the policy accepts; one that it does not accept is refused."""
        policy = self._policy
        if policy is None:
            return 0
        # The policy lists digests of files; one of fs-verity (verity:) never equals them.
        digest = entry.digest.removeprefix(b"ima:")
        verdict = policy.judge(entry.name, digest, is_buffer=entry.is_buffer)
        if verdict is Verdict.ACCEPTED:
            return 0
        if entry.is_buffer and policy.signers.guards(entry.name):
            if policy.signers.holds(entry.name, entry.extra):
                return _SIGNED
            raise Refusal("ST-ATTS-313", _loaded(entry), entry.name)
        if verdict is Verdict.EXCLUDED:
            return _EXCLUDED
        if verdict is Verdict.UNKNOWN and _may_be_signed(entry, policy):
            problem = policy.signers.problem(entry.name, digest, entry.extra)
            if not problem:
                return _SIGNED
            raise Refusal("ST-ATTS-312", problem, entry.name)
        code = "ST-ATTS-309" if verdict is Verdict.UNKNOWN else "ST-ATTS-310"
        algorithm, _, value = entry.digest.partition(b":\0")
        raise Refusal(code, f"{verdict.value} ({algorithm.decode()}:{value.hex()})", entry.name)


def _may_be_signed(entry: Entry, policy: RuntimePolicy) -> bool:
    return bool(entry.template in _SIGNABLE and entry.extra and policy.signers)


def _loaded(entry: Entry) -> str:
    return f"what was loaded has SHA-256 {sha256(entry.extra).hexdigest()}"


def _measured(entry: Entry) -> bytes:
    """The value with which the kernel extends PCR 10 (SHA-256 bank) for an entry."""
    _check_pcr(entry)
    entry.check_digests()
    return sha256(entry.data).digest()


def _check_pcr(entry: Entry) -> None:
    if entry.pcr != PCR:
        raise Refusal("ST-ATTS-304", f"it is for PCR {entry.pcr}", entry.name)


def verdict_key(policy: RuntimePolicy | None, *, binary: bool) -> _Table:
    """The key under which verdicts are shared: all that they depend on but the entry."""
    return ("", False, "", "") if policy is None else policy.identity, binary


def _shown(name: bytes) -> str:
    """A name for people: the list can hold any bytes."""
    return ascii(name[:200].decode("utf-8", "backslashreplace"))[1:-1]


def _refused_entry(refusal: Refusal, number: int) -> AttestationError:
    name = f": {_shown(refusal.name)}" if refusal.name else ""
    return _refused(refusal.code, refusal.what, f"IMA entry {number}{name}")


def _unreached(number: int, pcr: bytes, target: bytes) -> AttestationError:
    what = f"after {number} entries it has come to {pcr.hex()}, the quote says {target.hex()}"
    return _refused("ST-ATTS-306", what)


def _refused(code: str, what: str, where: str = "IMA list") -> AttestationError:
    return AttestationError(code, what, where)
