# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Statements of both versions."""

import msgspec
import pytest

from securetrain.artifacts.checkpoint.load import load
from securetrain.artifacts.statement.checkpoint_predicate import CheckpointPredicateV1
from securetrain.artifacts.statement.statements import (
    CHECKPOINT_TYPE,
    CHECKPOINT_TYPE_V1,
    DIGEST_NAME,
    Bound,
    CheckpointPredicate,
    ParentRole,
    digest_of,
    sign,
)
from securetrain.artifacts.statement.statements import Parent as ParentRef
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.artifacts.verify import verify_path
from securetrain.core.errors import IntegrityError
from securetrain.identity import statement
from tests.tables import items
from tests.vocabulary import refused


def signed_as(root, said, predicate_type, key, predicate):
    subject = statement.Subject(root.name, {DIGEST_NAME: digest_of(said)})
    (root / STATEMENT).write_bytes(statement.sign([subject], predicate_type, predicate, key))


def old(said):
    """The same words, as version 1 wrote them."""
    return CheckpointPredicateV1(
        **{field: getattr(said, field) for field in CheckpointPredicateV1.__struct_fields__}
    )


def test_version_1_is_still_read_and_has_no_name(tmp_path, keys, trust, now, forge):
    root = tmp_path / "ckpt"
    said = forge(root, name="")
    signed_as(root, said, CHECKPOINT_TYPE_V1, keys.checkpoint, old(said))
    result = verify_path(root, trust=trust, policy=None, now=now)
    assert result.ok
    assert result.statement == said
    load({}, root, trust=trust, policy=None, now=now, strict=False)


@pytest.fixture
def at(trust, now):
    return {"trust": trust, "policy": None, "now": now}


@items("changes", {"name": "prod-model"}, {"bound": Bound(job="a" * 64)}, {"name": "", "x": 1})
def test_version_1_may_not_claim_what_it_never_had(tmp_path, keys, at, forge, changes):
    root = tmp_path / "ckpt"
    said = forge(root)
    fields = {**msgspec.to_builtins(old(said)), **msgspec.to_builtins(changes)}
    claims = msgspec.defstruct("Claims", [(name, object) for name in fields])
    signed_as(root, said, CHECKPOINT_TYPE_V1, keys.checkpoint, claims(**fields))
    result = verify_path(root, **at)
    assert [problem.code for problem in result.problems] == ["ST-CKPT-101"]


def test_version_2_binds_what_is_given_and_nothing_unknown(tmp_path, keys, trust, now, forge):
    root = tmp_path / "ckpt"
    bound = Bound(dataset="a" * 64, ledger_head="b" * 64)
    said = forge(root, name="prod-model", bound=bound)
    result = verify_path(root, trust=trust, policy=None, now=now)
    assert isinstance(result.statement, CheckpointPredicate)
    assert (result.statement.name, result.statement.bound) == ("prod-model", bound)
    fields = msgspec.to_builtins(said)
    fields["bound"]["weather"] = "c" * 64
    claims = msgspec.defstruct("Claims", [(name, object) for name in fields])
    signed_as(root, said, CHECKPOINT_TYPE, keys.checkpoint, claims(**fields))
    result = verify_path(root, trust=trust, policy=None, now=now)
    assert [problem.code for problem in result.problems] == ["ST-CKPT-101"]


def test_the_statements_of_all_parents_or_of_none(tmp_path, keys, forge):
    said = forge(tmp_path / "ckpt")
    parents = [ParentRef(digest="a" * 64), ParentRef(digest="b" * 64, role=ParentRole.BASE)]
    lacking = msgspec.structs.replace(said, parents=parents, bound=Bound(parents=["c" * 64]))
    refused(IntegrityError, "ST-CKPT-101", sign, lacking, "ckpt", keys.checkpoint)
