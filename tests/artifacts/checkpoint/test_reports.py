# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reports of ranks to the coordinator of a save, one of which lies: nothing is committed."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from securetrain.artifacts.checkpoint.reports import Report, problems_of, signatures_in
from securetrain.artifacts.statement import members
from securetrain.artifacts.statement.statements import CheckpointPredicate
from securetrain.core.errors import SecureTrainError
from tests.artifacts.statement import worlds as signing
from tests.vocabulary import refused

WORLD = 4
OF = ([0, 1], [2, 3])


def change(report: Report, **changes: Any) -> Report:
    return dataclasses.replace(report, **changes)


class Save:
    """Four ranks on two nodes, of which each second one brings its node's signature."""

    def __init__(self, made, keys, now):
        term = (now - timedelta(hours=1), now + timedelta(hours=1))
        self.signers = [members.issue("run-1", f"node-{n}", term, keys.admitter) for n in (0, 1)]
        (only,) = made.files
        files = [replace(only, name=f"rank-{n:05d}.bin", rank=n) for n in range(WORLD)]
        self.plain = replace(made, world_size=WORLD, files=files, nodes=[])
        self.messages = members.messages_of(self.plain)
        self.reports: dict[int, Report] = {}
        for ranks, signer in zip(OF, self.signers, strict=True):
            node = signing.node_signature_of(self.plain, ranks, signer, self.messages)
            for rank in ranks:
                file = files[rank]
                given = (file.name, file.size, file.root, node.key)
                last = (node.sig, signer.certificate, "", tuple(ranks), tuple(node.leaves))
                waits = ("", signer.certificate, "")
                self.reports[rank] = Report(*given, *(last if rank == ranks[-1] else waits))

    def predicate(self, **changed: Report) -> CheckpointPredicate:
        """The statement as the coordinator puts it together; `changed` has reports as ``r1``."""
        reports = self.reports | {int(name[1:]): report for name, report in changed.items()}
        found: CheckpointPredicate = replace(self.plain, **signatures_in(reports, WORLD))
        return found


@pytest.fixture(scope="module")
def save(keys, now, forge, tmp_path_factory):
    return Save(forge(tmp_path_factory.mktemp("forged") / "made"), keys, now)


def test_honest_reports_make_a_statement_that_verifies(save, trust):
    said = save.predicate()
    assert list(problems_of(said)) == []
    assert [node.ranks for node in said.by_nodes] == list(OF)
    assert members.check(said, trust, required=True) == []


def test_ranks_with_keys_of_their_own_report_as_before(save, trust):
    alone = {
        f"r{rank}": change(
            save.reports[rank],
            sig=save.signers[0].sign(save.messages[rank]),
            ranks=(),
            leaves=(),
        )
        for rank in OF[0]
    }
    said = save.predicate(**alone)
    assert [one.rank for one in said.signatures] == OF[0]
    assert list(problems_of(said)) == []
    assert members.check(said, trust, required=True) == []


def _withheld(save):
    return {"r1": change(save.reports[1], sig="", ranks=(), leaves=())}


LIES: dict[str, tuple[str, Any, str]] = {
    "withholds the signature": ("ST-CKPT-122", _withheld, "ranks 0, 1 did not sign"),
    "another node's signature": (
        "ST-CKPT-111",
        lambda s: {"r1": change(s.reports[1], sig=s.reports[3].sig)},
        "the node of ranks 0, 1",
    ),
    "another leaf for its neighbour": (
        "ST-CKPT-111",
        lambda s: {"r1": change(s.reports[1], leaves=("0" * 64, s.reports[1].leaves[1]))},
        "rank 0 signed something else",
    ),
    "one rank less": (
        "ST-CKPT-122",
        lambda s: {"r1": change(s.reports[1], ranks=(1,), leaves=s.reports[1].leaves[1:])},
        "rank 0 did not sign",
    ),
    "a key that is in no certificate": (
        "ST-CKPT-122",
        lambda s: {"r1": change(s.reports[1], key="ab" * 32)},
        "nobody certified",
    ),
    "no certificate at all": (
        "ST-USAG-008",
        lambda s: {"r1": change(s.reports[1], certificate="{}")},
        "",
    ),
    "a rank of the other node": (
        "ST-USAG-010",
        lambda s: {
            "r1": change(
                s.reports[1], ranks=(0, 1, 2), leaves=(*s.reports[1].leaves, s.reports[3].leaves[0])
            )
        },
        "not of distinct ranks",
    ),
    "a rank beyond the world": (
        "ST-USAG-010",
        lambda s: {"r1": change(s.reports[1], ranks=(0, 99))},
        "not of distinct ranks",
    ),
    "a leaf too few": (
        "ST-USAG-010",
        lambda s: {"r1": change(s.reports[1], leaves=s.reports[1].leaves[:1])},
        "one leaf for each",
    ),
    "no numbers": (
        "ST-USAG-010",
        lambda s: {"r1": change(s.reports[1], ranks=("0", "1"))},
        "malformed",
    ),
    "no digests": (
        "ST-USAG-010",
        lambda s: {"r1": change(s.reports[1], leaves=("../x", 7))},
        "malformed",
    ),
    "no key": ("ST-USAG-001", lambda s: {"r1": change(s.reports[1], key="")}, "rank 1 has no key"),
}


def _write(save, lies):
    """Refuse it as the writer does."""
    for problem in problems_of(save.predicate(**lies)):
        raise problem.error("x")


@pytest.mark.forgery
@pytest.mark.parametrize("lie", LIES)
def test_lies_of_one_rank(save, lie):
    code, lies, what = LIES[lie]
    error = refused(SecureTrainError, code, _write, save, lies(save))
    assert what in error.what, error.what


def test_without_the_check_the_coordinator_signs_what_a_verifier_refuses(save, trust):
    """The control: it puts the lie together, and would have committed a directory of no use."""
    said = save.predicate(r1=change(save.reports[1], sig=save.reports[3].sig))
    assert [node.ranks for node in said.by_nodes] == list(OF)
    assert [one.code for one in members.check(said, trust, required=True)] == ["ST-CKPT-111"]


def test_nobody_signs(save):
    reports = {
        rank: change(one, key="", sig="", certificate="", ranks=(), leaves=())
        for rank, one in save.reports.items()
    }
    said = replace(save.plain, **signatures_in(reports, WORLD))
    assert said.signed_ranks == []
    assert said.node_signatures is UNSET, "nothing is said where nothing was signed"
    assert list(problems_of(said)) == []
