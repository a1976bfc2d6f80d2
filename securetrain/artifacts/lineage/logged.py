# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A statement that is proven to stand in the transparency log.

The proof lies beside the directory, not in it (`identity.log.proof`): it is made after the
directory was signed. What it proves is an index, and by when enough witnesses had seen it there,
which is later than the signature. Rules, in order; whatever is lacking is 180, with the log's own
reason:

1. a proof that is given must hold, and so must the one beside a checkpoint when the policy asks for
   one (``checkpoint.log``): none is a refusal;
2. the log, its keys, its witnesses and their quorum are those of the trust root;
3. and of the policy, where it names them: only keys that both name count, and the higher quorum.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from securetrain.artifacts.lineage.folder import CheckpointFiles
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.tree.problems import Problem
from securetrain.core.errors import IdentityError, IntegrityError, UsageError
from securetrain.identity.keys import PublicKey
from securetrain.identity.log import LIMIT, SUFFIX, Logged, LogPolicy, verify_logged
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy, TransparencyLog


@dataclass(frozen=True, slots=True)
class LogProof:
    """A proof that nobody has judged yet."""

    data: bytes

    @classmethod
    def beside(cls, storage: CheckpointFiles) -> "LogProof":
        """The proof beside a checkpoint's directory.

        Raises:
            IntegrityError: 180 when there is none.
        """
        name, folder = proof_name(storage.base), storage.above()
        try:
            if not folder.has(name):
                raise _unproven(Kind.CHECKPOINT, f"there is no {name} beside it")
            return cls(folder.read(name, LIMIT))
        except UsageError as error:
            raise _unproven(Kind.CHECKPOINT, f"{name}: {error.what}") from error

    def judge(
        self,
        statement: bytes,
        kind: Kind,
        trust: TrustRoot,
        now: datetime,
        asked: TransparencyLog | None = None,
    ) -> Logged:
        """Verify that a statement was logged, in the log that the trust root names.

        Args:
            statement: The statement's bytes.
            kind: What it is about.
            trust: Names the log, its keys and its witnesses.
            now: The time.
            asked: What a policy asks of the log besides.

        Raises:
            IntegrityError: 180.
        """
        try:
            policy = log_policy(trust, asked)
            return verify_logged(statement, self.data, trust.keys, policy, now)
        except IdentityError as error:
            raise _unproven(kind, f"{error.code}: {error.what}") from error


def proof_name(base: str) -> str:
    """The name of the proof of a directory of this name, beside it."""
    return f"{base}{SUFFIX}"


def log_policy(trust: TrustRoot, asked: TransparencyLog | None) -> LogPolicy:
    """The log that counts, and who must have seen what it says: rules 2 and 3.

    Raises:
        IdentityError: ST-IDEN-040 or ST-IDEN-044 when nothing could count.
    """
    policy = LogPolicy.from_trust_root(trust)
    if asked is None:
        return policy
    if asked.origin not in {"", policy.origin}:
        raise IdentityError(
            "ST-IDEN-040",
            f"the policy asks for the log {asked.origin}, the trust root names {policy.origin}",
            "checkpoint.log.origin",
            "use the trust root that names that log",
        )
    quorum = max(policy.quorum, asked.quorum)
    return replace(
        policy,
        keys=_named(policy.keys, asked.keys),
        witnesses=_named(policy.witnesses, asked.witnesses),
        quorum=quorum,
    )


def prove(  # noqa: PLR0917 - what is proven, by what, and when
    storage: CheckpointFiles,
    statement: bytes,
    kind: Kind,
    trust: TrustRoot,
    policy: Policy | None,
    now: datetime,
    given: LogProof | None = None,
) -> Logged | None:
    """The place of a directory's statement in the log; None when nobody asks.

    Args:
        storage: The directory.
        statement: Its statement's bytes.
        kind: What that is about.
        trust: Names the log, its keys and its witnesses.
        policy: May ask for a proof.
        now: The time.
        given: The proof to take instead of the one beside the directory.

    Raises:
        IntegrityError: 180.
    """
    is_checkpoint = kind is Kind.CHECKPOINT
    asked = policy.checkpoint.log if policy is not None and is_checkpoint else None
    if given is None and asked is not None:
        given = LogProof.beside(storage)
    return None if given is None else given.judge(statement, kind, trust, now, asked)


def _named(keys: Mapping[str, PublicKey], spki: tuple[str, ...]) -> Mapping[str, PublicKey]:
    """Those of some keys that a policy names too; all of them when it names none."""
    if not spki:
        return keys
    named = set(spki)
    return {i: key for i, key in keys.items() if base64.b64encode(key.spki).decode() in named}


def _unproven(kind: Kind, what: str) -> IntegrityError:
    return Problem(kind.code(180), what, STATEMENT).error()
