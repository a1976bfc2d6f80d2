# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What is remembered is found again under its own question, and under no other. No torch."""

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from securetrain.chain import nodes
from securetrain.chain.judging import judge
from securetrain.chain.links import ROOM, Memory
from securetrain.chain.nodes import epoch_of
from securetrain.chain.store import InMemory
from securetrain.core.errors import IntegrityError
from securetrain.core.vocabulary import ChainLink, LinkState
from tests.chain.worlds import MINUTE, Job, Roles, rebound, subject
from tests.vocabulary import refused

NODES, MEMBERSHIP = ChainLink.NODES, ChainLink.MEMBERSHIP


def test_an_answer_is_made_once_for_its_key() -> None:
    memory = Memory()
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return len(made)

    assert [memory.of("a", 1, make) for _ in range(3)] == [1, 1, 1]
    assert memory.of("a", 2, make) == 2
    assert memory.of("b", 1, make) == 3


def test_the_answers_used_last_are_kept_and_refusals_are_not() -> None:
    memory = Memory()
    made: list[int] = []
    for key in [*range(ROOM), 0, ROOM, 0, 1]:
        memory.of("a", key, lambda key=key: made.append(key))  # type: ignore[misc]
    assert made == [*range(ROOM), ROOM, 1]

    def refuse() -> None:
        made.append(-1)
        raise IntegrityError("ST-CHAN-001", "damaged")

    for _ in range(2):
        with pytest.raises(IntegrityError):
            memory.of("b", 0, refuse)
    assert made[-2:] == [-1, -1]


def test_other_evidence_roots_and_questions_have_a_memory_of_their_own(job: Job) -> None:
    given, of = job.given(), subject(job.checkpoint())
    assert judge(NODES, of, given).state is LinkState.VERIFIED
    others = {
        "trust root": replace(given, trust=Roles().trust()),
        "evidence": replace(given, pieces=InMemory()),
    }
    for changed in others.values():
        assert judge(MEMBERSHIP, of, changed).state is not LinkState.VERIFIED
        assert judge(NODES, of, changed).state is not LinkState.VERIFIED
        # The control: by its digest alone, the answer of another root or evidence would do.
        object.__setattr__(changed, "memory", given.memory)
        assert judge(MEMBERSHIP, of, changed).state is LinkState.VERIFIED
    assert isinstance(epoch_of(of, given), nodes.Epoch)
    refused(ValueError, "init=False", replace, given, memory=Memory())


def test_one_verifier_judges_each_statement_of_an_epoch_for_itself(job: Job) -> None:
    """The membership is verified once; what a statement says of it is compared every time."""
    given, honest = job.given(), job.checkpoint()
    assert judge(MEMBERSHIP, subject(honest), given).state is LinkState.VERIFIED
    policy = msgspec.structs.replace(honest.policy, digest="ab" * 32)
    early = honest.created - 20 * MINUTE
    for lie in (
        msgspec.structs.replace(honest, epoch=7),
        msgspec.structs.replace(honest, run_id="job-2"),
        msgspec.structs.replace(honest, policy=policy),
        msgspec.structs.replace(honest, created=early),
    ):
        assert judge(MEMBERSHIP, subject(lie), given).state is LinkState.BROKEN
        assert judge(NODES, subject(lie), given).state is LinkState.BROKEN
    late = msgspec.structs.replace(honest, created=honest.created + timedelta(hours=3))
    assert judge(MEMBERSHIP, subject(late), given).state is LinkState.VERIFIED
    assert judge(NODES, subject(late), given).state is LinkState.BROKEN
    other = rebound(job, honest, {"appraised": ()})
    assert epoch_of(subject(other), given) is not epoch_of(subject(honest), given)
