# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Runs that were judged before: the same verdict as entry by entry, whatever a list does."""

import dataclasses
import hashlib
import random
from collections.abc import Sequence
from typing import Any

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.node_evidence import ImaList
from securetrain.evidence.tpm import ima
from securetrain.evidence.tpm.ima import ImaState, Progress, TemplateCache
from securetrain.evidence.tpm.ima_keys import ImaKey, read_signers
from securetrain.evidence.tpm.ima_list import split_binary
from securetrain.evidence.tpm.ima_runs import (
    HEAD,
    LONGEST,
    VIOLATION,
    Collector,
    Run,
    Runs,
    starts_run,
)
from securetrain.evidence.tpm.ima_violations import Violations
from securetrain.evidence.tpm.runtime_policy import RuntimePolicy, ViolationMode, ViolationRule
from securetrain.testing.measurement_lists import (
    Measurement,
    aggregate,
    ima_list,
    measured_file,
    replayed,
)
from securetrain.testing.signed_files import Maker
from tests.evidence.tpm.test_ima import BOOT, appraise, policy_for
from tests.rsa_keys import rsa_key
from tests.tables import forgeries

FILES = [measured_file(f"/usr/lib/lib{n}.so", b"%d" % n) for n in range(300)]
KNOWN = policy_for(FILES[:10] + FILES[20:], excludes=["/usr/lib/lib1[0-9]\\.so"])
BEGINNING = aggregate(BOOT)
MAKER, STRANGER = Maker(rsa_key(2048), "maker"), Maker(rsa_key(2048, 1), "stranger")


def changed(path: str) -> Measurement:
    """A file that changed while it was measured."""
    return dataclasses.replace(measured_file(path), violation=True)


def verdict(
    measurements: Sequence[Measurement],
    cache: TemplateCache,
    *,
    quoted: int | None = None,
    cut: int = 0,
    binary: bool = True,
    **options: Any,
) -> Any:
    """What comes out: the state, or all of the refusal.

    Args:
        measurements: the list.
        cache: what is remembered.
        quoted: how many entries the quote covers; None for all.
        cut: how many were attested before.
        binary: the format.
        options: as `appraise` takes them.
    """
    start = Progress(cut, replayed(measurements[:cut])) if cut else None
    try:
        return appraise(
            ima_list(measurements[cut:], binary=binary, first=cut),
            replayed(measurements[:quoted]),
            start=start,
            cache=cache,
            **{"policy": KNOWN, **options},
        )
    except AttestationError as error:
        return error.code, error.where, error.what


@pytest.fixture
def warm():
    """A cache that knows the usual list."""
    cache = TemplateCache()
    verdict([BEGINNING, *FILES], cache)
    assert cache.runs.table(ima.verdict_key(KNOWN, binary=True))
    return cache


def test_a_list_that_is_known_is_not_taken_apart(warm, monkeypatch):
    first = verdict([BEGINNING, *FILES], TemplateCache())
    taken = 0
    honest = starts_run

    def counting(entry):
        nonlocal taken
        taken += 1
        return honest(entry)

    monkeypatch.setattr("securetrain.evidence.tpm.ima.starts_run", counting)
    assert verdict([BEGINNING, *FILES], warm) == first
    assert first.excluded == 10
    assert taken < len(FILES) / 4


SIGNED = [MAKER.file(f"/opt/tool{n}", b"%d" % n, verity=n % 5 == 0) for n in range(40)]
FOREIGN = [
    measured_file("/opt/foreign"),
    measured_file("/usr/lib/lib33.so", b"another one"),
    STRANGER.file("/opt/theirs", b"theirs"),
    STRANGER.loaded(),
    MAKER.loaded(".other"),
]
USUAL = [
    BEGINNING,
    MAKER.loaded(),
    *(one for n in range(40) for one in (*FILES[n * 7 : n * 7 + 7], SIGNED[n])),
]
KEY = ImaKey(key=MAKER.pem)


def _signed_by(policy: RuntimePolicy, *keys: ImaKey) -> RuntimePolicy:
    return dataclasses.replace(policy, signers=read_signers(keys))


OTHERS = policy_for([*FILES[:150], MAKER.loaded()], excludes=["/opt/.*"])
EDITIONS = [
    None,
    KNOWN,
    OTHERS,
    _signed_by(KNOWN, KEY),
    _signed_by(KNOWN, ImaKey(key=MAKER.pem, paths=("/opt/tool[0-9]",))),
    _signed_by(KNOWN, ImaKey(key=MAKER.pem, keyring=".other")),
    _signed_by(KNOWN, ImaKey(key=STRANGER.pem)),
    _signed_by(KNOWN, KEY, ImaKey(key=STRANGER.pem)),
    KNOWN.beside(OTHERS),
    OTHERS.beside(KNOWN),
    _signed_by(KNOWN, KEY).beside(OTHERS),
    _signed_by(OTHERS, KEY).beside(KNOWN),
]
ANSWERS = [
    Violations(allow=False),
    Violations(allow=True),
    Violations([ViolationRule(paths="/var/log/.*", mode=ViolationMode.WARN)], allow=False),
    Violations([ViolationRule(paths="/usr/lib/lib.*", mode=ViolationMode.REFUSE)], allow=True),
]
VIOLATED = [changed("/var/log/journal"), changed("/usr/lib/lib40.so"), changed("/tmp/x")]


def _moved(files: list[Measurement], drawn: random.Random) -> list[Measurement]:
    """The same files as on another boot: one more, one less, or in another order."""
    place = drawn.randrange(len(files))
    match drawn.randrange(4):
        case 0:
            return [*files[:place], drawn.choice(FILES), *files[place:]]
        case 1:
            return files[:place] + files[place + 1 :]
        case 2:
            return [files[place], *files[1:place], files[0], *files[place + 1 :]]
        case _:
            return files[place:] + files[:place]


def _worse(files: list[Measurement], drawn: random.Random) -> list[Measurement]:
    """With something that is nobody else's, or not allowed by all."""
    place = drawn.randrange(len(files))
    before, one, after = files[:place], files[place], files[place + 1 :]
    match drawn.randrange(5):
        case 0:
            return [*before, drawn.choice(FOREIGN), one, *after]
        case 1:
            return [*before, dataclasses.replace(one, pcr=11), *after]
        case 2:
            return [*before, dataclasses.replace(one, violation=True), *after]
        case 3:
            return [*before, drawn.choice(VIOLATED), one, *after]
        case _:
            return [some for file in files for some in (file, *drawn.sample(VIOLATED, 1))]


def other(drawn: random.Random) -> list[Measurement]:
    """A list that differs from the usual one in some ways, or in none."""
    files = USUAL[1:]
    for alter in drawn.choices([_moved, _worse], [2, 1], k=drawn.randrange(4)):
        files = alter(files, drawn)
    return [BEGINNING, *files]


@pytest.mark.forgery
@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.many)])
def test_random_lists_get_the_same_verdict_warm_cold_and_without_a_cache(count, monkeypatch):
    """One cache for all policies, editions, rules and formats, and one that is always too small."""
    drawn = random.Random(count)
    found: list[Run] = []
    honest = Run.extend

    def counting(run: Run, pcr: bytes, target: bytes) -> tuple[bytes, int, int]:
        found.append(run)
        return honest(run, pcr, target)

    monkeypatch.setattr(Run, "extend", counting)
    warm, small = TemplateCache(), TemplateCache(100_000)
    seen: set[str] = set()
    for _ in range(count):
        measurements = other(drawn) if drawn.random() < 0.7 else USUAL
        size = len(measurements)
        quoted = size if drawn.random() < 0.7 else drawn.randrange(1, size)
        options: dict[str, Any] = {
            "quoted": quoted,
            "cut": drawn.choice([0, 0, drawn.randrange(quoted)]),
            "policy": drawn.choice([*EDITIONS, *[_signed_by(KNOWN, KEY)] * 8]),
            "violations": drawn.choice(ANSWERS),
            "binary": drawn.random() < 0.9,
        }
        expected = verdict(measurements, TemplateCache(0), **options)
        assert verdict(measurements, warm, **options) == expected
        assert verdict(measurements, small, **options) == expected
        assert verdict(measurements, TemplateCache(), **options) == expected
        if isinstance(expected, ImaState):
            seen |= {
                name
                for name in ("excluded", "signed", "violations", "warnings")
                if getattr(expected, name)
            }
        else:
            seen.add(expected[0])
    assert seen >= {"excluded", "signed", "violations"}
    if count >= 1000:
        codes = {"ST-ATTS-304", "ST-ATTS-307", "ST-ATTS-309", "ST-ATTS-312", "ST-ATTS-313"}
        assert seen >= {"warnings", *codes}
    assert len(found) > count, "runs were found again"
    assert any(run.marks for run in found)


@forgeries("place", *range(2, 120, 9))
def test_a_violation_inside_a_run_is_counted_and_named(place):
    """Where a run was remembered, and where one with the violation was read before."""
    cache, policy = TemplateCache(), _signed_by(KNOWN, KEY)
    options: dict[str, Any] = {"policy": policy, "violations": Violations(allow=True)}
    verdict(USUAL, cache, **options)
    measurements = [*USUAL[:place], changed("/var/x"), *USUAL[place:]]
    for _ in range(3):
        state = verdict(measurements, cache, **options)
        assert state.violations == 1
        assert state.violated == (f"entry {place + 1}: /var/x",)
    assert verdict(measurements, cache, policy=policy)[0] == "ST-ATTS-307"


@pytest.mark.forgery
def test_a_run_is_forgotten_when_anything_that_it_depended_on_changes():
    cache = TemplateCache()
    for policy in EDITIONS:
        verdict(USUAL, cache, policy=policy)
    tables = [cache.runs.table(ima.verdict_key(policy, binary=True)) for policy in EDITIONS]
    assert len({id(table) for table in tables if table}) == sum(map(bool, tables))
    assert [bool(table) for table in tables] == [
        isinstance(verdict(USUAL, TemplateCache(0), policy=policy), ImaState) for policy in EDITIONS
    ]


def test_marks_are_those_of_the_entries_that_the_quote_covers():
    run = Run(0, b"", (b"a" * 32, b"b" * 32, b"c" * 32), ((0, 1), (2, 1 << 32)))
    registers = [replayed([])]
    for extend in run.extends:
        registers.append(hashlib.sha256(registers[-1] + extend).digest())
    assert run.extend(registers[0], registers[1]) == (registers[1], 1, 1)
    assert run.extend(registers[0], registers[2]) == (registers[2], 2, 1)
    assert run.extend(registers[0], registers[3]) == (registers[3], 3, 1 + (1 << 32))
    assert run.extend(registers[0], b"never") == (registers[3], 3, 1 + (1 << 32))


@pytest.mark.forgery
def test_a_byte_that_was_altered_in_a_run_is_seen(warm):
    """Behind the bytes that a run is looked up by."""
    drawn = random.Random(7)
    data = ima_list([BEGINNING, *FILES]).entries
    quoted = replayed([BEGINNING, *FILES])
    for _ in range(60):
        place = drawn.randrange(len(BEGINNING.binary()), len(data))
        altered = data[:place] + bytes([data[place] ^ 1 << drawn.randrange(8)]) + data[place + 1 :]
        codes = []
        for cache in (warm, TemplateCache()):
            with pytest.raises(AttestationError) as refused:
                appraise(
                    ImaList(binary=True, first=0, entries=altered),
                    quoted,
                    cache=cache,
                    policy=KNOWN,
                )
            codes.append((refused.value.code, refused.value.where))
        assert codes[0] == codes[1]


@pytest.mark.forgery
def test_a_quote_of_the_middle_of_a_run_ends_there(warm):
    whole = [BEGINNING, *FILES]
    for quoted in (1, 2, 50, 51, 52, 53, 299, 300):
        state = verdict(whole, warm, quoted=quoted)
        assert state.progress == Progress(quoted, replayed(whole[:quoted]))
        assert state == verdict(whole, TemplateCache(), quoted=quoted)


@pytest.mark.forgery
def test_a_run_of_one_policy_is_none_of_another(warm):
    strict = policy_for(FILES[:100])
    assert verdict([BEGINNING, *FILES], warm, policy=strict)[0] == "ST-ATTS-309"


@pytest.mark.forgery
def test_a_run_with_a_violation_is_not_kept():
    cache = TemplateCache()
    files = [one for file in FILES for one in (file, changed("/var/x"))]
    state = verdict([BEGINNING, *files], cache, violations=Violations(allow=True))
    assert state.violations == 300
    assert cache.runs.table(ima.verdict_key(KNOWN, binary=True)) == {}


def test_a_list_that_is_refused_leaves_no_run():
    cache = TemplateCache()
    verdict([BEGINNING, *FILES, measured_file("/unknown", b"?")], cache)
    assert cache.runs.table(ima.verdict_key(KNOWN, binary=True)) == {}


def test_runs_are_as_long_as_they_may_be_and_begin_where_entries_say():
    data = b"".join([one.binary() for one in FILES])
    collector, position = Collector(data), 0
    for entry in split_binary(data):
        if starts_run(entry):
            collector.begin(position)
        collector.take((entry[:HEAD], 0))
        position += len(entry)
        assert not collector.full
    collector.end(position)
    assert len(collector.found) > 3
    for head, run in collector.found.items():
        start = data.index(head)
        assert run.stands_at(data, start)
        assert not run.stands_at(data, start + 1)
    collector.begin(0)
    for _ in range(LONGEST):
        collector.take((b"", 0))
    assert collector.full
    collector.take((VIOLATION, 0))
    assert not collector.full


def test_runs_are_bounded():
    run = Run(100, bytes(32), (bytes(32),) * 10, ())
    runs = Runs(limit=3000)
    runs.add("policy", {b"one": run})
    held = runs.table("policy")
    assert set(held) == {b"one"}
    runs.add("policy", {b"two": run})
    assert set(runs.table("policy")) == {b"two"}
    assert set(held) == {b"one"}, "an appraisal under way keeps what it holds"
    runs.add("other", {b"three": run, b"four": run})
    assert set(runs.table("policy")) == {b"two"}
    none = Runs(limit=0)
    none.add("policy", {b"one": run})
    assert none.table("policy") == {}


BEFORE = [BEGINNING, *FILES[:40]]
TAIL = FILES[40:60]


def renewal(tail: Sequence[Measurement], cache: TemplateCache, **options: Any) -> Any:
    """The verdict over a renewal that brings `tail` behind what was attested before."""
    return verdict([*BEFORE, *tail], cache, cut=len(BEFORE), **options)


@pytest.fixture
def renewed():
    """A cache that knows the tail, from another node."""
    cache = TemplateCache()
    assert renewal(TAIL, cache).num_entries == len(TAIL)
    assert len(cache.tails.table(ima.verdict_key(KNOWN, binary=True))) == 1
    return cache


def test_a_renewal_that_others_have_made_is_not_taken_apart(renewed, monkeypatch):
    expected = renewal(TAIL, TemplateCache(0))
    monkeypatch.setattr("securetrain.evidence.tpm.ima.Replay.run", None)
    assert renewal(TAIL, renewed) == expected


@pytest.mark.forgery
def test_a_known_tail_stands_for_nothing_else_than_its_own_bytes(renewed):
    """Behind another register, with a byte altered, cut off, longer, or under another quote."""
    drawn = random.Random(11)
    data, start = ima_list(TAIL).entries, Progress(len(BEFORE), replayed(BEFORE))
    quoted = replayed([*BEFORE, *TAIL])

    def refused(entries: bytes, start: Progress, quoted: bytes) -> set[str]:
        """The codes with what is remembered, and without."""
        codes = set()
        for cache in (renewed, TemplateCache(0)):
            ima_given = ImaList(binary=True, first=start.entries, entries=entries)
            with pytest.raises(AttestationError) as error:
                appraise(ima_given, quoted, start=start, cache=cache, policy=KNOWN)
            codes.add(error.value.code)
        return codes

    other = Progress(len(BEFORE), replayed(BEFORE[:-1]))
    assert refused(data, other, quoted) == {"ST-ATTS-306"}
    assert refused(data, start, replayed(BEFORE[:-1])) == {"ST-ATTS-306"}
    for _ in range(40):
        place = drawn.randrange(len(data))
        altered = data[:place] + bytes([data[place] ^ 1 << drawn.randrange(8)]) + data[place + 1 :]
        assert len(refused(altered, start, quoted)) == 1
        assert len(refused(data[:place], start, quoted)) == 1
    assert renewal([*TAIL, measured_file("/unknown", b"?")], renewed)[0] == "ST-ATTS-309"
    assert len(renewed.tails.table(ima.verdict_key(KNOWN, binary=True))) == 1


@pytest.mark.forgery
def test_a_tail_of_one_edition_is_none_of_another(renewed):
    """A policy that retires a file, one that was allowed until its day, other keys."""
    strict = policy_for(FILES[:50])
    assert renewal(TAIL, renewed, policy=strict)[0] == "ST-ATTS-309"
    both = strict.beside(KNOWN)
    assert renewal(TAIL, renewed, policy=both) == renewal(TAIL, TemplateCache(0), policy=both)
    assert renewal(TAIL, renewed, policy=strict)[0] == "ST-ATTS-309", "the former one has ended"
    signed = [*TAIL, SIGNED[0]]
    assert renewal(signed, renewed, policy=_signed_by(KNOWN, KEY)).signed == 1
    assert renewal(signed, renewed)[0] == "ST-ATTS-309"
    assert renewal(signed, renewed, policy=_signed_by(KNOWN, KEY)).signed == 1


@pytest.mark.forgery
def test_a_tail_with_a_violation_is_judged_each_time(renewed):
    held = dict(renewed.tails.table(ima.verdict_key(KNOWN, binary=True)))
    tail = [*TAIL[:5], changed("/var/x"), *TAIL[5:]]
    for _ in range(2):
        state = renewal(tail, renewed, violations=Violations(allow=True))
        assert state.violated == (f"entry {len(BEFORE) + 6}: /var/x",)
    assert renewal(tail, renewed)[0] == "ST-ATTS-307"
    assert renewed.tails.table(ima.verdict_key(KNOWN, binary=True)) == held


@pytest.mark.forgery
def test_a_tail_that_the_quote_cuts_off_is_no_verdict_on_the_rest():
    cache, bad = TemplateCache(), [*TAIL, measured_file("/unknown", b"?")]
    first = renewal(bad, cache, quoted=len(BEFORE) + 3)
    assert first.num_entries == 3
    assert cache.tails.table(ima.verdict_key(KNOWN, binary=True)) == {}
    assert renewal(bad, cache)[0] == "ST-ATTS-309"
    assert renewal(TAIL, cache).num_entries == len(TAIL)
    assert renewal(TAIL, cache, quoted=len(BEFORE) + 3) == first, "of a tail that is known"
    assert renewal(TAIL, cache, quoted=len(BEFORE)).num_entries == 0
