# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What is asked of a checkpoint, and when; the questions themselves have tests of their own."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.lineage import judging, machine, quarantine
from securetrain.artifacts.lineage.judging import Asked, Freshness, judge
from securetrain.artifacts.lineage.machine import Floor
from securetrain.artifacts.statement import members, rules
from securetrain.artifacts.statement.statements import Opened
from securetrain.artifacts.tree.layout import Kind, Problem
from securetrain.core.errors import IntegrityError
from securetrain.policy import load_policy

ASIDE = Problem(code="ST-CKPT-160", what="it was set aside", file="quarantine.json")
SEEN = Floor(seq=99, digest="e" * 64)
UNSIGNED = Problem(code="ST-CKPT-122", what="nobody signed", file="x")
DIGEST = "d" * 64


class Questions:
    """Answers every question as it was told to, and remembers how it was asked."""

    def __init__(self, monkeypatch, forge, trust, *, now, folder):
        self.trust, self.now = trust, now
        self.aside: list[Problem] = []
        self.excused: frozenset[str] = frozenset()
        self.fails: IntegrityError | None = None
        self.asked: dict[str, Any] = {}
        run = SimpleNamespace(names=lambda _: ())
        self.above = SimpleNamespace(above=lambda: run)
        self.opened = Opened(
            kind=Kind.CHECKPOINT, predicate=forge(folder), digest=DIGEST, key_ids=frozenset()
        )
        self.storage: Any = SimpleNamespace(above=lambda: self.above)
        monkeypatch.setattr(rules, "check", lambda *_, **__: [])
        monkeypatch.setattr(machine, "expired", lambda *_: [])
        monkeypatch.setattr(quarantine, "check", lambda *_: self.aside)
        monkeypatch.setattr(members, "check", self.members)
        monkeypatch.setattr(judging, "look", self.look)

    def members(self, _predicate, _trust, *, required):
        self.asked["signatures"] = required
        return [UNSIGNED] if required else []

    def look(self, _claim, folder, _trust, fresh, known):
        assert folder is self.above
        if self.fails is not None:
            raise self.fails
        self.asked["known"], self.asked["head"] = fresh, known.head_required
        return replace(known, head_required=False, floor=SEEN, excused=self.excused)

    def __call__(self, known=None, **checkpoint):
        """The codes that are found, under a policy with these words about checkpoints."""
        policy = None
        if checkpoint:
            wanted = {"require_rank_signatures": False, "require_head": False} | checkpoint
            dev = load_policy("dev").policy
            changed = msgspec.structs.replace(dev.checkpoint, **wanted)
            policy = msgspec.structs.replace(dev, checkpoint=changed)
        asked = Asked(trust=self.trust, policy=policy, now=self.now, known=known)
        return [problem.code for problem in judge(self.opened, self.storage, asked).problems]


@pytest.fixture
def ask(monkeypatch, forge, trust, now, tmp_path):
    return Questions(monkeypatch, forge, trust, now=now, folder=tmp_path / "c")


def test_the_ranks_signatures_are_demanded_by_policies_only(ask):
    assert ask() == []
    assert ask.asked == {"signatures": False}
    assert ask(require_rank_signatures=False) == []
    assert ask.asked == {"signatures": False}
    assert ask(require_rank_signatures=True) == ["ST-CKPT-122"]


def test_whether_it_is_the_newest_is_asked_by_who_knows_or_by_policy(ask):
    known = Freshness()
    assert ask(known) == ["ST-CKPT-151"]
    assert ask.asked["known"] is known
    assert ask.asked["head"] is False
    assert ask(known, require_head=False) == ["ST-CKPT-151"]
    assert ask.asked["head"] is False
    assert ask(require_head=True) == ["ST-CKPT-151"]
    assert ask.asked["known"] == Freshness()
    assert ask.asked["head"] is True


def test_what_was_set_aside_is_a_refusal_unless_it_is_excused(ask):
    ask.aside = [ASIDE]
    assert ask() == ["ST-CKPT-160"]
    assert ask(Freshness()) == ["ST-CKPT-160", "ST-CKPT-151"]
    ask.excused = frozenset({"another"})
    assert ask(Freshness()) == ["ST-CKPT-160", "ST-CKPT-151"]
    ask.excused = frozenset({DIGEST})
    assert ask(Freshness()) == [], "nor is it a rollback then"
    ask.fails = IntegrityError("ST-CKPT-152", "a head that is none")
    assert ask(Freshness()) == ["ST-CKPT-160", "ST-CKPT-152"], "nothing was found that excuses it"


def test_that_it_was_set_aside_is_remembered_by_who_remembers(ask):
    remembered: list[Any] = []
    floors: Any = SimpleNamespace(remember_set_aside=lambda *what: remembered.append(what))
    ask(Freshness(floors=floors))
    assert remembered == [], "it was not"
    ask.aside = [ASIDE]
    ask()
    ask(Freshness())
    assert remembered == []
    ask(Freshness(floors=floors))
    assert remembered == [("run-1", DIGEST)]
