# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Measurement lists against the quoted PCR 10 and a runtime policy."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import AttestationError
from securetrain.evidence.node_evidence import ImaList
from securetrain.evidence.tpm import ima
from securetrain.evidence.tpm.ima import ImaState, Progress, TemplateCache, appraise_ima
from securetrain.evidence.tpm.ima_violations import Violations
from securetrain.evidence.tpm.runtime_policy import (
    RuntimePolicy,
    ViolationMode,
    ViolationRule,
    parse_runtime_policy,
)
from securetrain.testing.measurement_lists import (
    Measurement,
    aggregate,
    ima_list,
    measured_buffer,
    measured_file,
    replayed,
)
from tests import vocabulary
from tests.tables import each, forgeries

BOOT = hashlib.sha256(b"PCR 0 to 9").digest()
FILES = [measured_file(f"/usr/bin/tool{number}") for number in range(6)]
HONEST = [aggregate(BOOT), *FILES]
SHA1_FILE = Measurement(
    name=b"/usr/bin/old", digest=b"sha1:\0" + hashlib.sha1(b"x").digest(), template=b"ima"
)


def document(**changes: Any) -> dict[str, Any]:
    """A policy as Keylime writes it, which lists nothing."""
    return {
        "meta": {"version": 1},
        "digests": {},
        "excludes": [],
        "keyrings": {},
        "ima": {"ignored_keyrings": []},
        "ima-buf": {},
        "verification-keys": "",
        **changes,
    }


def policy_for(measurements: Sequence[Measurement], **changes: Any) -> RuntimePolicy:
    """A policy that lists exactly these."""
    digests: dict[str, list[str]] = {}
    keyrings: dict[str, list[str]] = {}
    for one in measurements:
        table = keyrings if one.template == b"ima-buf" else digests
        table.setdefault(one.name.decode(), []).append(one.digest.split(b":\0", 1)[1].hex())
    listed = document(digests=digests, keyrings=keyrings, **changes)
    return parse_runtime_policy(json.dumps(listed).encode())


POLICY = policy_for(FILES)


def appraise(evidence: ImaList, pcr10: bytes, **changes: Any) -> ImaState:
    arguments: dict[str, Any] = {
        "boot_aggregate": BOOT,
        "policy": POLICY,
        "start": None,
        "violations": Violations(allow=False),
        "cache": TemplateCache(),
        **changes,
    }
    return appraise_ima(evidence, pcr10=pcr10, **arguments)


def accepted(measurements: Sequence[Measurement], *, binary=True, **changes: Any) -> ImaState:
    """Judge a list up to its end."""
    return appraise(ima_list(measurements, binary=binary), replayed(measurements), **changes)


def refused(evidence: ImaList, pcr10: bytes, code: str, **changes: Any) -> AttestationError:
    return vocabulary.refused(AttestationError, code, appraise, evidence, pcr10, **changes)


def refused_list(code: str, measurements: Sequence[Measurement], *, binary=True, **changes: Any):
    """Have a list refused that leads to what was quoted."""
    return vocabulary.refused(
        AttestationError, code, accepted, measurements, binary=binary, **changes
    )


BOTH = each("id, binary", ("binary", True), ("ascii", False))


@BOTH
def test_an_honest_list(binary):
    state = accepted(HONEST, binary=binary)
    assert state == ImaState(
        progress=Progress(7, replayed(HONEST)),
        num_entries=7,
        excluded=0,
        violations=0,
        violated=(),
        boot_aggregate=BOOT.hex(),
        aggregate_compared=True,
        policy=POLICY.digest,
    )


@BOTH
@each("template", "ima-ng", "ima-sig", "ima-ngv2", "ima-sigv2")
def test_every_template(template, binary):
    files = [measured_file(f"/usr/bin/tool{number}", template=template) for number in (1, 2)]
    assert accepted([aggregate(BOOT, template), *files], binary=binary).num_entries == 3


@BOTH
def test_a_key_and_a_legacy_entry(binary):
    key = measured_buffer(".ima", b"certificate")
    measurements = [aggregate(BOOT), key, SHA1_FILE]
    policy = dataclasses.replace(
        policy_for([key]), files={b"/usr/bin/old": (b"sha1:\0" + hashlib.sha1(b"x").digest(),)}
    )
    assert accepted(measurements, binary=binary, policy=policy).num_entries == 3


TWO = [measured_file("/usr/bin/x", content) for content in (b"old", b"new")]


@each(
    "id, measurements, how, expected",
    ("no policy", [*HONEST, measured_file("/tmp/a")], {"policy": None}, (8, "")),
    ("only the aggregate", HONEST[:1], {}, (1, POLICY.digest)),
    *(
        ("several digests of a file", [aggregate(BOOT), *TWO], {"policy": one}, (3, one.digest))
        for one in [policy_for(TWO)]
    ),
)
def test_lists_that_are_accepted(measurements, how, expected):
    state = accepted(measurements, **how)
    assert (state.num_entries, state.policy) == expected
    assert state.progress == Progress(len(measurements), replayed(measurements))


def test_without_the_boot_registers_the_aggregate_is_only_reported():
    state = accepted(HONEST, boot_aggregate=None)
    assert (state.boot_aggregate, state.aggregate_compared) == (BOOT.hex(), False)


@BOTH
def test_what_was_measured_after_the_quote_is_not_read(binary):
    """The kernel went on, and the file was cut while it was written: none of it is attested."""
    quoted = replayed(HONEST)
    evidence = ima_list([*HONEST, measured_file("/tmp/evil")], binary=binary)
    longer = ImaList(binary=binary, first=0, entries=evidence.entries + b"10 gar\0bage\n")
    assert appraise(longer, quoted).progress == Progress(7, quoted)


def test_renewals_send_what_came_after():
    start = appraise(ima_list(HONEST[:4]), replayed(HONEST[:4])).progress
    state = appraise(ima_list(HONEST[4:], first=4), replayed(HONEST), start=start)
    assert state.progress == Progress(7, replayed(HONEST))
    assert state.num_entries == 3
    assert state.boot_aggregate == ""
    assert not state.aggregate_compared


def test_a_renewal_after_which_nothing_was_measured():
    start = Progress(7, replayed(HONEST))
    state = appraise(ima_list([], first=7), replayed(HONEST), start=start)
    assert state.progress == start
    assert state.num_entries == 0
    late = ima_list([measured_file("/tmp/evil")], first=7)
    assert appraise(late, replayed(HONEST), start=start).num_entries == 0


def test_a_renewal_may_send_the_whole_list():
    start = Progress(4, replayed(HONEST[:4]))
    state = accepted(HONEST, start=start)
    assert state.progress == Progress(7, replayed(HONEST))
    assert state.num_entries == 7
    assert state.aggregate_compared


VIOLATION = dataclasses.replace(measured_file("/var/log/journal"), violation=True)


@BOTH
def test_violations_where_they_are_allowed(binary):
    measurements = [*HONEST[:3], VIOLATION, *HONEST[3:]]
    state = accepted(measurements, binary=binary, violations=Violations(allow=True))
    assert state.violations == 1
    assert state.violated == ("entry 4: /var/log/journal",)


RULES = [
    ViolationRule(paths="/var/log/.*", mode=ViolationMode.WARN),
    ViolationRule(paths="/var/.*", mode=ViolationMode.LOG),
    ViolationRule(paths="/usr/.*", mode=ViolationMode.REFUSE),
]


@BOTH
@each("allow", False, True)
@each(
    "path, mode",
    ("/var/log/journal", ViolationMode.WARN),
    ("/var/lib/db", ViolationMode.LOG),
    ("/usr/bin/python3", ViolationMode.REFUSE),
    ("/opt/var/log/x", None),
)
def test_violations_by_path(path, mode, allow, binary):
    changed = dataclasses.replace(measured_file(path), violation=True)
    measurements = [*HONEST, changed]
    evidence, quoted = ima_list(measurements, binary=binary), replayed(measurements)
    answers = Violations(RULES, allow=allow)
    if mode is ViolationMode.REFUSE or (mode is None and not allow):
        error = refused(evidence, quoted, "ST-ATTS-307", violations=answers)
        assert path in error.where
        return
    state = appraise(evidence, quoted, violations=answers)
    assert state.violated == (f"entry 8: {path}",)
    assert state.warnings == (mode is ViolationMode.WARN)


@pytest.mark.forgery
def test_a_rule_for_every_path_is_refused():
    rules = [ViolationRule(paths=".*", mode=ViolationMode.LOG)]
    vocabulary.refused(AttestationError, "ST-ATTS-323", Violations, rules, allow=False)


def test_many_violations_are_counted_and_few_are_named():
    state = accepted([aggregate(BOOT), *[VIOLATION] * 40], violations=Violations(allow=True))
    assert state.violations == 40
    assert len(state.violated) == ima.MAX_NAMED


def test_excluded_paths_are_counted():
    policy = policy_for(FILES[1:], excludes=["/usr/bin/tool0", "/tmp/.*"])
    cache = TemplateCache()
    measurements = [*HONEST, measured_file("/tmp/scratch")]
    for _ in range(2):  # the second time from the cache
        assert accepted(measurements, policy=policy, cache=cache).excluded == 2


# Forged lists: what the TPM has quoted is the register of the honest list.


def dropped(index: int) -> list[Measurement]:
    return HONEST[:index] + HONEST[index + 1 :]


def instead(index: int, other: Measurement) -> list[Measurement]:
    return [*HONEST[:index], other, *HONEST[index + 1 :]]


FORGED: dict[str, list[Measurement]] = {
    "an entry removed": dropped(3),
    "the last entry removed": HONEST[:-1],
    "an entry replaced by a listed one": instead(3, FILES[0]),
    "an entry twice": [*HONEST[:4], HONEST[3], *HONEST[4:]],
    "two entries swapped": [*HONEST[:3], HONEST[4], HONEST[3], *HONEST[5:]],
    "an entry inserted": [*HONEST[:3], FILES[5], *HONEST[3:]],
    "an entry moved to the front": [HONEST[0], HONEST[6], *HONEST[1:6]],
    "only the aggregate": HONEST[:1],
    "a signature edited": instead(3, dataclasses.replace(HONEST[3], extra=b"\x03")),
    "another template, same content": instead(
        3, dataclasses.replace(HONEST[3], template=b"ima-ng")
    ),
}


@BOTH
@forgeries("id, measurements", FORGED)
def test_lists_that_do_not_lead_to_the_quote(measurements, binary):
    error = refused(ima_list(measurements, binary=binary), replayed(HONEST), "ST-ATTS-306")
    assert replayed(HONEST).hex() in error.what
    assert error.where == "IMA list"


def raw(old: bytes, new: bytes) -> ImaList:
    entries = ima_list(HONEST).entries.replace(old, new)
    return ImaList(binary=True, first=0, entries=entries)


TRUE, NEW = replayed(HONEST), measured_file("/usr/bin/evil")
WITH_NEW = replayed([*HONEST, NEW])
CUT = ImaList(binary=True, first=0, entries=ima_list(HONEST).entries[:20])
RENAMED = raw(b"/usr/bin/tool3", b"/usr/bin/tool0")
WRONG = raw(HONEST[2].listed, bytes(19) + b"\x01")
START = Progress(4, replayed(HONEST[:4]))
WHOLE = Progress(7, TRUE)
ELSEWHERE = Progress(4, replayed([aggregate(bytes(32)), *FILES[:3]]))


@forgeries(
    "id, evidence, quoted, code, how",
    ("empty", ima_list([]), TRUE, 306, {"says": "empty"}),
    ("empty, in ASCII", ima_list([], binary=False), TRUE, 306, {"says": "empty"}),
    ("cut inside its first entry", CUT, TRUE, 301, {"names": "IMA entry 1"}),
    ("renamed", RENAMED, TRUE, 303, {"names": "IMA entry 5: /usr/bin/tool0"}),
    ("a template digest that is wrong", WRONG, TRUE, 303, {}),
    ("a short register", ima_list(HONEST), TRUE[:20], 306, {}),
    ("a short aggregate", ima_list(HONEST), TRUE, 308, {"boot_aggregate": BOOT[:20]}),
    ("a kernel that measures nothing", ima_list(HONEST), bytes(32), 306, {"says": "never ext"}),
    ("nothing of nothing", ima_list([]), bytes(32), 306, {"says": "never extended"}),
    ("a renewal without an entry", ima_list(HONEST[5:], first=4), TRUE, 306, {"start": START}),
    ("of another node", ima_list(HONEST[4:], first=4), TRUE, 306, {"start": ELSEWHERE}),
    # Between two quotes something was measured, and the node shows its earlier list.
    ("a register that went back", ima_list([], first=7), WITH_NEW, 306, {"start": WHOLE}),
    (
        *("the policy holds for renewals", ima_list([*HONEST[4:], NEW], first=4), WITH_NEW, 309),
        {"start": START, "names": "IMA entry 8: /usr/bin/evil"},
    ),
)
def test_lists_that_prove_nothing(evidence, quoted, code, how):
    error = refused(evidence, quoted, f"ST-ATTS-{code}", **how)
    assert evidence is not WRONG or error.where.startswith("IMA entry 3")


@pytest.mark.forgery
def test_a_violation_in_place_of_an_evil_file():
    """A violation extends 0xFF: it cannot stand for the file that was really measured."""
    evil = measured_file("/usr/bin/evil")
    quoted = replayed([*HONEST, evil])
    forged = ima_list([*HONEST, dataclasses.replace(evil, violation=True)])
    refused(forged, quoted, "ST-ATTS-306", violations=Violations(allow=True))


@pytest.mark.forgery
@BOTH
def test_violations_where_they_are_not_allowed(binary):
    measurements = [*HONEST[:3], VIOLATION, *HONEST[3:]]
    refused_list("ST-ATTS-307", measurements, binary=binary, names="IMA entry 4: /var/log/journal")


@pytest.mark.forgery
@BOTH
def test_an_entry_that_was_cut_off(binary):
    evidence = ima_list(HONEST, binary=binary)
    cut = ImaList(binary=binary, first=0, entries=evidence.entries[:-30])
    assert refused(cut, replayed(HONEST), "ST-ATTS-301").where.startswith("IMA entry 7")


@pytest.mark.forgery
@BOTH
def test_the_first_entrys_digest_is_checked_too(binary):
    wrong, honest = dataclasses.replace(aggregate(BOOT), extra=b"\x03"), HONEST[0].listed
    data = wrong.binary() if binary else wrong.ascii()
    was, now = (one if binary else one.hex().encode() for one in (wrong.listed, honest))
    forged = ImaList(binary=binary, first=0, entries=data.replace(was, now))
    refused(forged, replayed([wrong]), "ST-ATTS-303")


@BOTH
@forgeries("index, violation", (0, False), (3, False), (3, True))
def test_entries_of_another_register(index, violation, binary):
    """Such an entry was never extended into PCR 10, so it must not be counted as if it were."""
    other = instead(index, dataclasses.replace(HONEST[index], pcr=11, violation=violation))
    how = {"binary": binary, "violations": Violations(allow=True), "says": "PCR 11"}
    error = refused_list("ST-ATTS-304", other, **how)
    assert error.where.startswith(f"IMA entry {index + 1}")


@pytest.mark.forgery
@BOTH
def test_an_unknown_template(binary):
    data = ima_list(HONEST, binary=binary).entries
    half = len(data) // 2
    forged = data[:half] + data[half:].replace(b"ima-sig", b"ima-xxx")
    evidence = ImaList(binary=binary, first=0, entries=forged)
    refused(evidence, replayed(HONEST), "ST-ATTS-305", says="ima-xxx")


def begun(digest: bytes, template: bytes = b"ima-ng") -> list[Measurement]:
    return [Measurement(name=b"boot_aggregate", digest=digest, template=template), *FILES]


AGGREGATES = {
    "of another boot": [aggregate(hashlib.sha256(b"another boot").digest()), *FILES],
    "missing": FILES,
    "not the first": [FILES[0], aggregate(BOOT), *FILES[1:]],
    "of SHA-1": begun(b"sha1:\0" + bytes(20)),
    "of the legacy template": begun(b"sha1:\0" + bytes(20), b"ima"),
    "of another algorithm with as many bytes": begun(b"sm3:\0" + BOOT),
    "of fs-verity": begun(b"verity:sha256:\0" + BOOT, b"ima-ngv2"),
    "of a file with a similar name": instead(
        0, dataclasses.replace(aggregate(BOOT), name=b"/boot_aggregate")
    ),
}


@forgeries("id, measurements", AGGREGATES)
def test_aggregates_that_do_not_tie_the_list_to_this_boot(measurements):
    assert refused_list("ST-ATTS-308", measurements).where.startswith("IMA entry 1")


@pytest.mark.forgery
def test_a_list_from_the_beginning_is_tied_to_the_boot_although_its_entries_are_known():
    """Entries in the cache must not let a list begin without its aggregate."""
    cache = TemplateCache()
    accepted(HONEST, cache=cache)
    refused_list("ST-ATTS-308", FILES, cache=cache)
    other = [HONEST[0], aggregate(bytes(32)), *FILES]
    accepted(other, policy=None, cache=cache)
    refused(ima_list(other[1:]), replayed(other[1:]), "ST-ATTS-308", policy=None, cache=cache)


@pytest.mark.forgery
def test_a_second_aggregate_is_a_file_like_any_other():
    measurements = [*HONEST, aggregate(BOOT)]
    refused_list("ST-ATTS-309", measurements, names="IMA entry 8: boot_aggregate")


def edited(**fields: Any) -> Measurement:
    return dataclasses.replace(FILES[1], **fields)


TOOL = "/usr/bin/tool1"
EVIL = "/usr/bin/evil"
BUFFER = measured_buffer(TOOL, b"x")
VERITY = {"digest": b"verity:" + FILES[1].digest, "template": b"ima-ngv2"}
SM3 = FILES[1].digest.replace(b"sha256", b"sm3")
TEXT = "/usr/bin/\\x1b[2J\\\\xff"
POLICIES: dict[str, tuple[Measurement, str, str]] = {
    "a file that is not listed": (measured_file(EVIL), "ST-ATTS-309", EVIL),
    "the digest of another file": (edited(digest=FILES[2].digest), "ST-ATTS-310", TOOL),
    "a listed digest under another name": (edited(name=EVIL.encode()), "ST-ATTS-309", EVIL),
    "the digest with another algorithm": (edited(digest=SM3), "ST-ATTS-310", TOOL),
    "the digest as that of fs-verity": (edited(**VERITY), "ST-ATTS-310", TOOL),
    "a SHA-1 digest": (SHA1_FILE, "ST-ATTS-309", "/usr/bin/old"),
    "a prefix of an exclude": (measured_file("/tmp-evil/x"), "ST-ATTS-309", "/tmp-evil/x"),
    "a key that is not listed": (measured_buffer(".ima", b"evil"), "ST-ATTS-309", ".ima"),
    "a buffer with a file's name": (
        dataclasses.replace(BUFFER, digest=FILES[1].digest, extra=b"x"),
        "ST-ATTS-303",
        TOOL,
    ),
    "a name that is not text": (edited(name=b"/usr/bin/\x1b[2J\xff"), "ST-ATTS-309", TEXT),
}


@BOTH
@forgeries("id, evil, code, name", POLICIES)
def test_measurements_that_the_policy_does_not_accept(evil, code, name, binary):
    policy = dataclasses.replace(POLICY, excludes=policy_for([], excludes=["/tmp"]).excludes)
    measurements = [*HONEST[:3], evil, *HONEST[3:]]
    evidence = ima_list(measurements, binary=binary)
    refused(evidence, replayed(measurements), code, policy=policy, names=f"IMA entry 4: {name}")


def test_the_error_says_which_digest_was_found():
    evil = dataclasses.replace(FILES[1], digest=FILES[2].digest)
    measurements = [*HONEST, evil]
    error = refused_list("ST-ATTS-310", measurements, says=f"sha256:{FILES[2].digest[8:].hex()}")
    assert "not among" in error.what


@forgeries(
    "id, first, start",
    ("fewer", 3, START),
    ("more", 5, START),
    ("at a join", 4, None),
    ("without its aggregate", 1, None),
    ("after nothing", 4, Progress(0, bytes(32))),
)
def test_lists_that_start_elsewhere(first, start):
    evidence = ima_list(HONEST[first:], first=first)
    refused(evidence, replayed(HONEST), "ST-ATTS-311", start=start, says=f"leaves out {first}")


@pytest.mark.forgery
def test_lists_that_are_too_large(monkeypatch):
    evidence = ima_list(HONEST)
    monkeypatch.setattr(ima, "LIST_LIMIT", len(evidence.entries))
    appraise(evidence, replayed(HONEST))
    monkeypatch.setattr(ima, "LIST_LIMIT", len(evidence.entries) - 1)
    assert "the limit is" in refused(evidence, replayed(HONEST), "ST-ATTS-302").what


@pytest.mark.forgery
def test_lists_that_have_become_too_long():
    count = ima.MAX_ENTRIES
    start = Progress(count, replayed(HONEST[:4]))
    evidence = ima_list(HONEST[4:], first=count)
    assert appraise(evidence, replayed(HONEST), start=start).progress.entries == count + 3
    start = Progress(count + 1, replayed(HONEST[:4]))
    evidence = ima_list(HONEST[4:], first=count + 1)
    refused(evidence, replayed(HONEST), "ST-ATTS-302", start=start)


# The cache.


def counted(monkeypatch) -> list[bytes]:
    """The names of entries that are read and not found in the cache."""
    read: list[bytes] = []
    measured = ima._measured

    def counting(entry):
        read.append(entry.name)
        return measured(entry)

    monkeypatch.setattr(ima, "_measured", counting)
    return read


@BOTH
def test_what_one_node_measured_is_not_judged_again(monkeypatch, binary):
    read = counted(monkeypatch)
    cache = TemplateCache()
    other = [aggregate(bytes(31) + b"\x01"), *reversed(FILES)]
    accepted(HONEST, binary=binary, cache=cache)
    assert len(read) == 7
    evidence = ima_list(other, binary=binary)
    state = appraise(evidence, replayed(other), boot_aggregate=bytes(31) + b"\x01", cache=cache)
    assert state.progress == Progress(7, replayed(other))
    assert read[7:] == [b"boot_aggregate"]


@pytest.mark.forgery
def test_a_verdict_is_of_one_policy():
    cache = TemplateCache()
    evil = measured_file("/usr/bin/evil")
    measurements = [*HONEST, evil]
    accepted(measurements, policy=None, cache=cache)
    accepted(measurements, policy=policy_for([*FILES, evil]), cache=cache)
    refused_list("ST-ATTS-309", measurements, cache=cache)


@pytest.mark.forgery
def test_a_verdict_is_of_one_setting_for_sha1():
    listed = document(digests={"/usr/bin/old": [hashlib.sha1(b"x").hexdigest()]})
    data = json.dumps(listed).encode()
    measurements, cache = [aggregate(BOOT), SHA1_FILE], TemplateCache()
    accepted(measurements, policy=parse_runtime_policy(data, allow_sha1=True), cache=cache)
    refused_list("ST-ATTS-310", measurements, policy=parse_runtime_policy(data), cache=cache)


def test_violations_are_never_remembered():
    cache = TemplateCache()
    measurements = [*HONEST, VIOLATION]
    accepted(measurements, violations=Violations(allow=True), cache=cache)
    refused_list("ST-ATTS-307", measurements, cache=cache)


def test_lists_that_are_refused_leave_nothing_in_the_cache():
    cache = TemplateCache()
    refused(ima_list(HONEST), replayed(HONEST[:0]) + b"\x01", "ST-ATTS-306", cache=cache)
    assert cache.size == 0


def test_the_cache_is_bounded():
    size = sum(len(one.binary()) + 300 for one in FILES)
    cache = TemplateCache(limit=size)
    accepted(HONEST, cache=cache)
    assert cache.size == size
    held = cache.table(POLICY, binary=True)
    assert len(held) == 6
    others = [measured_file(f"/usr/bin/other{number}") for number in range(3)]
    accepted([aggregate(BOOT), *others], policy=None, cache=cache)
    assert cache.table(POLICY, binary=True) == {}
    assert set(cache.table(None, binary=True)) == {one.binary() for one in others}
    assert cache.size == sum(len(one.binary()) + 300 for one in others)
    assert len(held) == 6, "an appraisal under way keeps what it holds"


def test_more_than_the_cache_can_hold_is_not_kept():
    size = sum(len(one.binary()) + 300 for one in FILES)
    cache = TemplateCache(limit=size - 1)
    accepted(HONEST, cache=cache)
    assert cache.size == 0


def test_the_two_formats_do_not_share_a_table():
    cache = TemplateCache()
    accepted(HONEST, cache=cache)
    assert cache.table(POLICY, binary=False) == {}


@given(st.data())
def test_any_list_is_attested_up_to_where_the_quote_was_taken(data):
    measurements = data.draw(st.lists(st.sampled_from([*FILES, VIOLATION]), max_size=8))
    measurements = [aggregate(BOOT), *measurements]
    quoted = data.draw(st.integers(1, len(measurements)))
    cut = data.draw(st.integers(1, quoted))
    pcr10 = replayed(measurements[:quoted])
    binary = data.draw(st.booleans())
    cache = TemplateCache()
    whole = appraise(
        ima_list(measurements, binary=binary), pcr10, violations=Violations(allow=True), cache=cache
    )
    assert whole.progress == Progress(quoted, pcr10)
    start = Progress(cut, replayed(measurements[:cut]))
    rest = appraise(
        ima_list(measurements[cut:], first=cut, binary=binary),
        pcr10,
        violations=Violations(allow=True),
        start=start,
        cache=cache,
    )
    assert rest.progress == whole.progress
    assert rest.num_entries == quoted - cut
