# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What steps that were done again show, who may say so, and which are drawn; no torch.

Commands of docs/how-to/replay-steps.md are tried here.
"""

import dataclasses
import hashlib
import math
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import securetrain
from securetrain.artifacts.statement.statements import Opened, Parent
from securetrain.artifacts.tree.layout import Kind
from securetrain.chain import documents
from securetrain.chain.documents import Code, CodeFile, Distribution, Environment
from securetrain.chain.judging import judge
from securetrain.chain.links import Given, Subject
from securetrain.chain.records import (
    Comparison,
    Replay,
    ReplayedSegment,
    Sample,
    StepRecord,
    StepVerdict,
    Word,
    number,
    read_replay,
    sign_replay,
)
from securetrain.chain.replay import line as lines
from securetrain.chain.replay import outcome
from securetrain.core.errors import IdentityError, IntegrityError, SecureTrainError, UsageError
from securetrain.core.files import write_atomic
from securetrain.core.vocabulary import ChainLink, LinkState
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.log import merkle, note
from securetrain.identity.log.checkpoint import Checkpoint
from securetrain.identity.log.checkpoint import sign as sign_checkpoint
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from tests import vocabulary
from tests.chain.worlds import MINUTE, NOW, Job, Segment, opened, trust_bytes
from tests.tables import each, items
from tests.vocabulary import trust_document

LINK = ChainLink.REPLAY


# --- the cost, and the draw


@each("forged, drawn", (0.1, 43), (0.01, 368), (0.001, 990))
def test_the_cost_of_a_sample(forged, drawn):
    assert lines.needed(1000, forged, 0.99) == drawn


def test_the_cost_is_the_least_that_is_enough():
    rng = random.Random(3)
    for _ in range(300):
        segments, confidence = rng.randint(1, 60), rng.choice([0.0, 0.5, 0.9, 0.99, 1.0])
        bad = rng.randint(1, segments)
        drawn = lines.needed(segments, bad / segments, confidence)

        def missed(count: int, segments: int = segments, bad: int = bad) -> float:
            return math.comb(segments - bad, count) / math.comb(segments, count)

        assert missed(drawn) <= 1 - confidence + 1e-9
        assert drawn == 0 or missed(drawn - 1) > 1 - confidence


def test_numbers_that_no_sample_has():
    for forged, confidence in ((0, 0.9), (1.1, 0.9), (0.1, -1), (0.1, 1.5)):
        vocabulary.refused(UsageError, "ST-USAG-001", lines.needed, 10, forged, confidence)


def test_a_draw_follows_from_the_seed_alone_and_is_even():
    names = [f"{n:064x}" for n in range(50)]
    assert lines.draw(names, 5, b"a") == lines.draw(names, 5, b"a") != lines.draw(names, 5, b"b")
    often = [0] * 50
    for seed in range(400):
        for place in lines.draw(names, 5, str(seed).encode()):
            often[place] += 1
    assert min(often) > 15
    assert max(often) < 80


class Log:
    """A log with two witnesses, and a trust root that names them."""

    def __init__(self) -> None:
        self.root = PrivateKey.generate()
        self.key = PrivateKey.generate(KeyKind.ED25519)
        self.witnesses = [PrivateKey.generate(KeyKind.ED25519) for _ in range(2)]
        roles = {
            TrustRole.ROOT: [self.root.public],
            TrustRole.LOG: [self.key.public],
            TrustRole.WITNESS: [one.public for one in self.witnesses],
        }
        made = trust_document(roles, NOW - timedelta(days=9), NOW + timedelta(days=300))
        made = replace(made, log_origin="log.example/team")
        self.trust = TrustRoot.parse(sign_document(made, [self.root]), NOW)

    def checkpoint(self, path: Path, *times: Any, entry: bytes = b"x") -> Path:
        root = merkle.leaf_hash(entry)
        signed = sign_checkpoint(Checkpoint("log.example/team", 1, root), self.key)
        for at, (key, time) in enumerate(zip(self.witnesses, times, strict=False)):
            line = note.cosign(signed.text, f"w{at}.example", key, int(time.timestamp()))
            signed = signed.with_lines((line,))
        write_atomic(path, signed.encode())
        return path


def test_a_log_checkpoint_from_before_the_end_of_the_run_draws_nothing(tmp_path):
    log, later = Log(), NOW + MINUTE

    def seed(path: Path, **said: Any) -> bytes:
        asked: dict[str, Any] = {"after": NOW, "subject": "s", "now": NOW + 9 * MINUTE}
        return lines.seed_of(path, log.trust, **(asked | said))[0]

    good = log.checkpoint(tmp_path / "good", later, later)
    assert seed(good) == seed(good)
    assert seed(good) != seed(good, subject="another run's")
    other = log.checkpoint(tmp_path / "other", later, later + MINUTE)
    assert seed(other) != seed(good)  # the witnesses' signatures are part of it
    for name, times in (("both", (NOW - MINUTE, NOW - MINUTE)), ("one", (NOW - MINUTE, later))):
        early = log.checkpoint(tmp_path / name, *times)
        vocabulary.refused(IntegrityError, "ST-CHAN-024", seed, early)
        # The control: a verifier of logs takes it.
        assert seed(early, after=NOW - timedelta(days=1))
    vocabulary.refused(IdentityError, "ST-IDEN-044", seed, log.checkpoint(tmp_path / "few"))


@pytest.mark.parametrize("module", ["", "pkg.train"])
def test_another_program_s_steps_are_not_done_again(job, module):
    """Scripts of others, `fit` and what they optimize with: said, and never passed."""
    segment = Segment(job, after=0)
    before = documents.decode(segment.pieces.pieces[segment.bound_job], documents.Job)
    segment.bound_job = segment.pieces.keep(replace(before, module=module))
    for digest in (segment.kept(), None):
        said = segment.said(digest, parents=[])
        about = opened(said, "cc" * 32)
        given = Given(trust=job.roles.trust(), pieces=segment.pieces, now=NOW)
        with pytest.raises(IntegrityError) as refused:
            lines.segments_of(about, (), segment.dataset, given)
        assert refused.value.code == "ST-CHAN-022"
        assert (module or "a script") in refused.value.what


# --- the comparison


def record(step: int = 9, **said: Any) -> StepRecord:
    fields: dict[str, Any] = {
        "step": step,
        "loss": number(3.5 / step),
        "norm": number(1.25),
        "lr": number(1e-3),
        "verdict": StepVerdict.CLEAN,
        "rows": "ab" * 32,
    }
    return StepRecord(**(fields | said))


def tensor(name: str = "model.a", **said: Any) -> outcome.TensorFound:
    fields: dict[str, Any] = {"square": number(100.0), "moved": number(4.0)}
    floats = {key: number(one) if isinstance(one, float) else one for key, one in said.items()}
    return outcome.TensorFound(name=name, size=400, **(fields | floats))


SIZES = {"model.a": 400}
RECORDS = [record(step) for step in range(9, 17)]


def compared(
    made: list[StepRecord] | None = None,
    tensors: tuple[outcome.TensorFound, ...] = (tensor(),),
    comparison: Comparison = Comparison.EXACT,
    **said: Any,
) -> Any:
    found = outcome.SegmentFound(
        records=tuple(RECORDS if made is None else made),
        tensors=tensors,
        values_differ=said.pop("values_differ", False),
    )
    again = said.pop("again", True)
    ranks = said.pop("ranks", [found])
    return outcome.outcome_of(
        "aa" * 32, "bb" * 32, 8, RECORDS, ranks, comparison, "fp32", again=again,
        sizes=said.pop("sizes", SIZES),
    )  # fmt: skip


def changed(step: int, **said: Any) -> list[StepRecord]:
    return [replace(one, **said) if one.step >= step else one for one in RECORDS]


def test_equal_steps_are_equal():
    for comparison in Comparison:
        assert compared(comparison=comparison).ok


@pytest.mark.parametrize(
    "said",
    [
        {"rows": "cd" * 32},
        {"lr": number(1.001e-3)},
        {"loss": number(3.0)},
        {"norm": number(1.2501)},
        {"verdict": StepVerdict.REFUSED},
    ],
    ids=lambda said: next(iter(said)),
)
@pytest.mark.parametrize("comparison", list(Comparison))
@pytest.mark.parametrize("step", [9, 12, 16])
def test_the_first_step_that_differs_is_named(said, comparison, step):
    found = compared(changed(step, **said), comparison=comparison)
    assert found.step == step
    assert not found.ok


def test_what_ranks_said_of_their_gradients_counts_on_the_same_mesh_alone():
    tabled = [replace(one, table="ab" * 32, learned=3) for one in RECORDS]

    def found(recorded: list[StepRecord], made: list[StepRecord], how: Comparison) -> Any:
        rank = outcome.SegmentFound(records=tuple(made), tensors=(tensor(),))
        return outcome.outcome_of(
            "aa" * 32, "bb" * 32, 8, recorded, [rank], how, "fp32", again=True, sizes=SIZES
        )

    # What the ranks drew, and how much a guard had learned, is another process's.
    again = [
        replace(one, seeds=("cd" * 32,), anchors="ef" * 32, learned=9, anew=True) for one in tabled
    ]
    assert found(tabled, again, Comparison.EXACT).ok
    assert found(RECORDS, again, Comparison.EXACT).ok  # of version 1, which has none
    other = [*again[:3], replace(again[3], table="ba" * 32), *again[4:]]
    assert found(tabled, other, Comparison.EXACT).step == 12
    assert "its table" in found(tabled, other, Comparison.EXACT).problems[0]
    none = [replace(one, table=None) for one in again]
    assert found(tabled, none, Comparison.EXACT).step == 9
    assert found(tabled, other, Comparison.BOUND).ok


def test_the_last_bit_counts_on_the_same_mesh_alone():
    loss = float.fromhex(RECORDS[4].loss)
    made = changed(13, loss=number(math.nextafter(loss, 9)))
    assert compared(made).step == 13
    assert compared(made[:4] + made[5:5] + RECORDS[4:], comparison=Comparison.BOUND).ok
    assert compared(tensors=(tensor(differing=1, largest=1e-9, difference=1e-18),)).tensor
    assert compared(
        tensors=(tensor(differing=1, largest=1e-9, difference=1e-18),), comparison=Comparison.BOUND
    ).ok


def test_what_is_beyond_the_bound_is_broken(subtests):
    parts: tuple[dict[str, Any], ...] = (
        {"difference": 4.0 * 1e-6, "largest": 1e-5},  # a thousandth of the movement
        {"difference": 1e-8, "largest": 1e-4},  # one weight
        {"difference": math.nan, "largest": math.nan},
        {"difference": 0.0, "largest": math.nan},
        {"reach": 1.01},
        {"reach": math.inf},
        {"moments": 1.01},
        {"moments": math.nan},
    )
    for part in parts:
        with subtests.test(part=part):
            assert not compared(tensors=(tensor(**part),), comparison=Comparison.BOUND).ok


def test_a_segment_that_no_rank_answered_for_is_not_shown():
    assert not compared(tensors=()).ok
    assert not compared(ranks=[]).ok
    assert not compared(made=RECORDS[:-1]).ok
    assert not compared(made=[]).ok
    assert not compared(values_differ=True).ok
    assert not compared(again=False, tensors=()).ok
    assert compared(again=False, made=[]).ok


@each("again", True, False)
def test_a_tensor_that_ranks_left_out_was_not_shown(again):
    two = SIZES | {"model.b": 10}
    assert not compared(sizes=two, again=again).ok
    assert "model.b: no rank" in compared(sizes=two, again=again).problems[0]
    assert compared(tensors=(tensor(), tensor("model.b")), sizes=two, again=again).ok
    half = {"model.a": 800}
    assert "400 of 800" in compared(sizes=half, again=again).problems[0]
    both = [outcome.SegmentFound(records=tuple(RECORDS), tensors=(tensor(),))] * 2
    assert compared(ranks=both, sizes=half, again=again).ok
    assert not compared(sizes={}, again=again).ok


def test_a_part_of_one_rank_is_enough_to_break_it():
    honest = outcome.SegmentFound(records=tuple(RECORDS), tensors=(tensor(),))
    for bad in (tensor(differing=1), tensor(name="model.b", differing=3), tensor(reach=2.0)):
        other = outcome.SegmentFound(records=tuple(RECORDS), tensors=(bad,))
        assert not compared(ranks=[honest, other]).ok


# --- the code and the environment


def file(module: str, path: str, sha256: str = "ab" * 32) -> tuple[CodeFile]:
    return (CodeFile(module=module, path=path, sha256=sha256, size=1),)


def installed(version: str, record: str | None = "ab" * 32) -> tuple[Distribution]:
    return (Distribution(name="torch", version=version, record=record),)


def code(**said: Any) -> Code:
    fields: dict[str, Any] = {
        "files": file("securetrain", "securetrain/__init__.py", own()),
        "distributions": installed("2.13"),
        "python": "3.11.7",
    }
    return Code(**(fields | said))


def root() -> Path:
    return Path(securetrain.__file__).parent


def own() -> str:
    return hashlib.sha256((root() / "__init__.py").read_bytes()).hexdigest()


@items(
    "id, said",
    ("python", {"python": "3.12.0"}),
    ("version", {"distributions": installed("2.12")}),
    ("files-of-one", {"distributions": installed("2.13", "cd" * 32)}),
    ("more", {"distributions": (Distribution(name="evil", version="1"),)}),
    ("other-file", {"files": file("securetrain", "securetrain/__init__.py")}),
    ("no-such-file", {"files": file("securetrain.more", "securetrain/more.py")}),
    ("foreign-module", {"files": file("evil", "evil.py")}),
    ("main", {"files": file("__main__", "__main__.py")}),
)
def test_other_code_is_refused(said):
    lines.check_files(code(), code(), root())
    lines.check_own_files(code(), root())
    vocabulary.refused(
        IntegrityError, "ST-CHAN-013", lines.check_files, code(**said), code(), root()
    )


def test_another_environment_is_said():
    run = Environment(python="3.11.7", torch="2.13", variables={"OMP_NUM_THREADS": "1"})
    assert lines.environment_differs(run, run) == ""
    assert lines.environment_differs(None, run)
    for said in (
        {"torch": "2.12"},
        {"variables": {"OMP_NUM_THREADS": "2"}},
        {"devices": ("H100",)},
        {"declared": {"deterministic": "True"}},
    ):
        assert next(iter(said)) in lines.environment_differs(run, replace(run, **said))


def test_a_directory_that_is_nowhere_is_named(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "statement.json").write_bytes(b"{")
    with pytest.raises(UsageError) as refused:
        lines.find_directories([tmp_path], {"ab" * 32: "step 8"})
    assert refused.value.code == "ST-USAG-001"
    assert "step 8" in refused.value.what


# --- the word of an auditor


class Replays:
    """A checkpoint of step 16 after one of step 8, and an auditor."""

    def __init__(self, job: Job) -> None:
        self.job, self.auditor, self.root = job, PrivateKey.generate(), PrivateKey.generate()
        before = job.checkpoint(NOW, step=8)
        self.parent = opened(before)
        said = job.checkpoint(step=16, seq=2, parents=[Parent(digest="aa" * 32)])
        self.opened = Opened(
            kind=Kind.CHECKPOINT,
            predicate=said,
            digest="bb" * 32,
            key_ids=frozenset(),
            statement="cc" * 32,
        )
        self.trust = TrustRoot.parse(trust_bytes(self.root, {TrustRole.CI: [self.auditor]}), NOW)

    def segment(self, **said: Any) -> ReplayedSegment:
        return replace(outcome.segment_said("cc" * 32, compared()), **said)

    def said(self, *segments: ReplayedSegment, **said: Any) -> Replay:
        fields: dict[str, Any] = {
            "run": self.job.name,
            "at": NOW,
            "comparison": Comparison.EXACT,
            "mesh": "one rank",
            "world": 1,
            "environment": "ee" * 32,
            "segments": segments or (self.segment(),),
        }
        return Replay(**(fields | said))

    def judged(self, *replays: Replay) -> Any:
        subject = Subject(opened=self.opened, parents={"aa" * 32: self.parent})
        given = Given(trust=self.trust, now=NOW, replays=replays)
        return judge(LINK, subject, given)


@pytest.fixture
def replays(job) -> Replays:
    return Replays(job)


def test_a_replay_shows_the_checkpoint_that_it_is_about(replays):
    assert replays.judged(replays.said()).state is LinkState.VERIFIED
    assert replays.judged().state is LinkState.MISSING


@pytest.mark.parametrize(
    "said",
    [
        {"begin": "dd" * 32},
        {"begin": ""},
        {"end": "dd" * 32},
        {"statement": "dd" * 32},
        {"after": 9},
        {"last": 17},
        {"word": Word.PLAUSIBLE},
        {"word": Word.OPEN},
    ],
    ids=lambda said: "-".join(map(str, next(iter(said.items()))))[:16],
)
def test_a_replay_of_something_else_shows_nothing(replays, said):
    verdict = replays.judged(replays.said(replays.segment(**said)))
    assert verdict.state is LinkState.MISSING
    assert verdict.problem().code == "ST-CHAN-023"


def test_a_replay_of_another_run_shows_nothing(replays):
    assert replays.judged(replays.said(run="job-2")).state is LinkState.MISSING


def test_a_replay_shows_nothing_of_a_checkpoint_with_two_before_it(replays):
    """It began at one of them; what the other brought in was not done again."""
    said = replays.opened.predicate
    two = [*said.parents, Parent(digest="ab" * 32)]
    opened = dataclasses.replace(replays.opened, predicate=replace(said, parents=two))
    assert replays.judged(replays.said()).state is LinkState.VERIFIED, "the control"
    replays.opened = opened
    assert replays.judged(replays.said()).state is LinkState.MISSING


def test_one_that_found_it_false_outweighs_all_others(replays):
    false = replays.said(replays.segment(word=Word.BROKEN, problems=("step 12: its loss",)))
    verdict = replays.judged(replays.said(), false, replays.said())
    assert verdict.state is LinkState.BROKEN
    assert "step 12" in verdict.what
    assert verdict.problem().code == "ST-CHAN-023"


def test_drawn_segments_speak_for_the_others_when_all_of_them_were_done(replays):
    drawn = Sample(
        confidence=number(0.99),
        forged=number(0.1),
        drawn=1,
        of=2,
        log_checkpoint="ab" * 32,
        cosigned=NOW,
    )
    other = replays.segment(end="dd" * 32)
    mine = replays.segment(word=Word.PLAUSIBLE)
    assert replays.judged(replays.said(mine, other, sample=drawn)).state is LinkState.VERIFIED
    assert replays.judged(replays.said(mine, other)).state is LinkState.MISSING
    few = replace(drawn, drawn=2)
    assert replays.judged(replays.said(mine, other, sample=few)).state is LinkState.MISSING
    none = replace(drawn, drawn=0)
    assert replays.judged(replays.said(mine, other, sample=none)).state is LinkState.MISSING
    for word in (Word.OPEN, Word.BROKEN):
        bad = replace(other, word=word)
        state = replays.judged(replays.said(mine, bad, other, sample=drawn)).state
        assert state is LinkState.MISSING


def test_only_an_auditor_of_the_trust_root_signs_a_replay(replays, tmp_path):
    path = tmp_path / "replay.json"
    write_atomic(path, sign_replay(replays.said(), replays.auditor))
    assert read_replay(path, replays.trust) == replays.said()
    for key in (PrivateKey.generate(), replays.root):
        write_atomic(path, sign_replay(replays.said(), key))
        vocabulary.refused(SecureTrainError, "^ST-IDEN-", read_replay, path, replays.trust)
    whole = sign_replay(replays.said(), replays.auditor)
    write_atomic(path, whole[:-40])
    with pytest.raises(SecureTrainError):
        read_replay(path, replays.trust)
