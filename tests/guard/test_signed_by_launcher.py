# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Transcripts of disputes in the run directory: whole or not at all, and the ledger says which."""

import base64
import errno
import hashlib
import os
from typing import Any

import pytest

from securetrain.core import RunDir, canonical
from securetrain.core.errors import RuntimeRefusal, UsageError
from securetrain.guard import signed_by_launcher
from securetrain.guard.signed_by_launcher import LauncherWords, launcher_words
from securetrain.identity import words
from securetrain.identity.signing import LauncherKey
from securetrain.ledger import events

DIGEST = "ab" * 32


def transcript() -> words.Transcript:
    """Rank 1 says that it sent rank 0 something else than rank 0 heard."""
    said = [
        words.Said(whole=DIGEST, sent=[DIGEST], heard=[DIGEST, "cd" * 32]),
        words.Said(whole=DIGEST, sent=[DIGEST], heard=[]),
    ]
    one = words.Attempt(number=1, piece=DIGEST, table=DIGEST, owners=[0], said=said)
    return words.Transcript(
        run_id="job-1",
        world_size=2,
        ranks=[0, 1],
        guard=0,
        turn=3,
        attempts=[one],
        certificates=["", ""],
    )


@pytest.fixture
def keeper(tmp_path):
    def make(*, keeps: bool = True) -> LauncherWords:
        return LauncherWords(
            run=RunDir(tmp_path / "run"),
            run_id="job-1",
            world_size=2,
            certificate="",
            key=None,
            keeps=keeps,
            record=said.append,
        )

    said: list[events.ReductionDisputed] = []
    return make, said


def test_a_transcript_is_kept_under_its_digest_and_said(keeper):
    make, said = keeper
    words_of = make()
    words_of.keep(transcript(), 7)
    (path,) = words_of.run.disputes.iterdir()
    data = path.read_bytes()
    assert path.name == f"{hashlib.sha256(data).hexdigest()}.json"
    assert words.read_transcript(data) == transcript()
    (event,) = said
    assert event == events.ReductionDisputed(
        subject="step 7", digest=path.stem, pairs="0-1", named="", unsigned="0 1"
    )
    assert event.lost == ""


def test_the_other_ranks_of_a_node_keep_nothing(keeper):
    make, said = keeper
    make(keeps=False).keep(transcript(), 7)
    assert not said
    assert not make().run.disputes.exists()


@pytest.mark.parametrize("call", ["fsync", "open", "mkdir"])
def test_on_a_full_disk_the_ledger_says_what_it_would_have_shown(keeper, monkeypatch, call):
    make, said = keeper
    words_of = make()

    def full(*_args: Any, **_options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    if call == "open":
        words_of.run.disputes.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        words_of.keep(transcript(), 7)
    (event,) = said
    assert event.digest == hashlib.sha256(canonical.encode(transcript())).hexdigest()
    assert event.pairs == "0-1"
    assert event.lost.startswith("ST-USAG-006: ")
    left = words_of.run.disputes
    assert not left.exists() or not list(left.iterdir()), "nothing half-written"
    words_of.keep(transcript(), 8)
    assert len(list(left.iterdir())) == 1, "the next one is kept"
    assert said[-1].lost == ""


def test_a_ledger_that_cannot_be_written_stops_no_step(keeper):
    make, _ = keeper
    words_of = make()

    def refuse(_entry: events.ReductionDisputed) -> None:
        raise UsageError("ST-USAG-006", where="ledger")

    words_of.record = refuse
    words_of.keep(transcript(), 7)
    assert len(list(words_of.run.disputes.iterdir())) == 1


def test_the_first_pairs_are_said(keeper):
    many = [(a, b) for a in range(12) for b in range(a + 1, 12)]
    ruling = words.Ruling(
        disputes=tuple(many), named=dict.fromkeys(range(70), "why"), unsigned=tuple(range(70))
    )
    said = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "rule", lambda *_: ruling)
        said = signed_by_launcher.event_of(transcript(), 1, DIGEST)
    assert said.pairs == " ".join(f"{a}-{b}" for a, b in many[:64])
    assert said.named == said.unsigned == " ".join(map(str, range(64)))


def test_without_a_launcher_that_answers_nothing_is_signed(keeper, monkeypatch, tmp_path):
    make, _ = keeper
    assert launcher_words(tmp_path / "no", make().run, keeps=True, record=print) is None
    key = base64.b64encode(b"key").decode()

    class Shared:
        key = ""

        def welcome(self) -> Any:
            return type("Welcome", (), {
                "run_id": "job-1", "world_size": 2, "rank_key": self.key,
                "rank_certificate": "certificate",
            })()  # fmt: skip

    monkeypatch.setattr(signed_by_launcher, "shared_socket", lambda _path: Shared())
    monkeypatch.setattr(LauncherKey, "of", lambda *_: "a key")
    for known, certificate in ((key, "certificate"), ("", "")):
        Shared.key = known
        found = launcher_words(tmp_path, make().run, keeps=True, record=print)
        assert found is not None
        assert found.certificate == certificate
        assert (found.key is None) is (not known)


def test_a_key_that_refuses_says_why(keeper):
    make, _ = keeper

    class Refusing:
        def sign(self, _message: bytes) -> bytes:
            raise RuntimeRefusal("ST-RUNT-035", "twice")

    words_of = make()
    words_of.key = Refusing()
    with pytest.raises(RuntimeRefusal):
        words_of.sign(b"word")
