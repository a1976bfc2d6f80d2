# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Runs that were judged before: the same verdict as entry by entry, whatever a list does."""

import random

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.node_evidence import ImaList
from securetrain.evidence.tpm import ima
from securetrain.evidence.tpm.ima import Progress, TemplateCache
from securetrain.evidence.tpm.ima_list import split_binary
from securetrain.evidence.tpm.ima_runs import HEAD, LONGEST, Collector, Run, Runs, starts_run
from securetrain.testing.measurement_lists import aggregate, ima_list, measured_file, replayed
from tests.evidence.tpm.test_ima import BOOT, VIOLATION, appraise, policy_for

FILES = [measured_file(f"/usr/lib/lib{n}.so", b"%d" % n) for n in range(300)]
KNOWN = policy_for(FILES[:10] + FILES[20:], excludes=["/usr/lib/lib1[0-9]\\.so"])
BEGINNING = aggregate(BOOT)


def verdict(measurements, cache, *, quoted=None, policy=KNOWN, allow_violations=False):
    """What comes out: the state, or the code and place of the refusal."""
    pcr10 = replayed(measurements[:quoted] if quoted is not None else measurements)
    try:
        return appraise(
            ima_list(measurements),
            pcr10,
            cache=cache,
            policy=policy,
            allow_violations=allow_violations,
        )
    except AttestationError as error:
        return error.code, error.where, error.what


@pytest.fixture
def warm():
    """A cache that knows the usual list."""
    cache = TemplateCache()
    verdict([BEGINNING, *FILES], cache)
    assert cache.runs.table(ima._key(KNOWN, binary=True))
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


def other(drawn):
    """A list that differs from the usual one, somehow."""
    files = list(FILES)
    match drawn.randrange(7):
        case 0:
            files.insert(drawn.randrange(300), measured_file(f"/new{drawn.random()}", b"new"))
        case 1:
            del files[drawn.randrange(300)]
        case 2:
            one, two = drawn.sample(range(300), 2)
            files[one], files[two] = files[two], files[one]
        case 3:
            files.insert(drawn.randrange(300), VIOLATION)
        case 4:
            files = files[drawn.randrange(300) :] + files[: drawn.randrange(300)]
        case 5:
            place = drawn.randrange(300)
            files[place] = measured_file(f"/usr/lib/lib{place}.so", b"something else")
        case 6:
            drawn.shuffle(files)
    return [BEGINNING, *files]


@pytest.mark.forgery
@pytest.mark.parametrize("seed", range(6))
def test_random_lists_get_the_same_verdict_as_without_a_cache(warm, seed):
    drawn = random.Random(20261123 + seed)
    for _ in range(25):
        measurements = other(drawn)
        options = {
            "quoted": drawn.choice([None, drawn.randrange(1, len(measurements))]),
            "policy": drawn.choice([KNOWN, None]),
            "allow_violations": drawn.random() < 0.5,
        }
        assert verdict(measurements, warm, **options) == verdict(
            measurements, TemplateCache(), **options
        )


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
    files = [one for file in FILES for one in (file, VIOLATION)]
    verdict([BEGINNING, *files], cache, allow_violations=True)
    assert cache.runs.table(ima._key(KNOWN, binary=True)) == {}


def test_a_list_that_is_refused_leaves_no_run():
    cache = TemplateCache()
    verdict([BEGINNING, *FILES, measured_file("/unknown", b"?")], cache)
    assert cache.runs.table(ima._key(KNOWN, binary=True)) == {}


def test_runs_are_as_long_as_they_may_be_and_begin_where_entries_say():
    entries = [one.binary() for one in FILES]
    data = b"".join(entries)
    collector, position = Collector(data), 0
    for entry in split_binary(data):
        if starts_run(entry):
            collector.begin(position)
        collector.take((entry[:HEAD], False))
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
        collector.take((b"", False))
    assert collector.full


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
