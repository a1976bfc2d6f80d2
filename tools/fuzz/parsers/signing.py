# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the questions to a launcher's signing socket, and the replies that a worker reads."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from securetrain.artifacts.lineage import head as heads
from securetrain.artifacts.lineage.machine import Head
from securetrain.artifacts.statement import statements
from securetrain.artifacts.statement.members import rank_message
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    IndexFile,
    RankFile,
    TreeInfo,
)
from securetrain.artifacts.tree.layout import INDEX
from securetrain.core import canonical
from securetrain.core.hashtree import TreeParams
from securetrain.identity import dsse, signing
from securetrain.identity.signing import Ask, Hello
from securetrain.identity.trust import TrustRole
from securetrain.launch.signing.peers import Worker
from securetrain.launch.signing.rules import Circumstances, Judge
from securetrain.ledger import events
from securetrain.policy.schema import GuardResponse
from securetrain.testing.runs import make_run
from tools.fuzz.engine import Parser

_RUN = "job-1"
_SAVE = "ab" * 16
_WORKER = Worker(pid=2, rank=0, local_rank=0, world_size=1, round=1, handle=-1)


def questions(folder: Path) -> list[Parser]:
    """The parsers.

    Args:
        folder: Where a run directory is made.
    """
    run = make_run(folder)
    here = Circumstances(
        run_id=_RUN,
        name=_RUN,
        policy="",
        response=GuardResponse.SKIP_STEP,
        trust=run.trust,
        clock=run.clock,
        admitted=lambda: None,
    )
    file = RankFile(name="rank-00000.bin", size=8, root="cd" * 32, rank=0)
    tree, now = TreeInfo.of(TreeParams()), run.clock()
    said = CheckpointPredicate(
        run_id=_RUN,
        step=1,
        seq=1,
        save_id=_SAVE,
        created=now,
        world_size=1,
        tree=tree,
        files=[file],
        index=IndexFile(name=INDEX, size=1, sha256="ef" * 32),
    )
    statement = statements.sign(said, "step", run.keys["checkpoint"])
    payload = dsse.verify(statement, dsse.IN_TOTO, run.trust.keys_for(TrustRole.CHECKPOINT)).data
    newest = Head(
        run_id=_RUN,
        seq=1,
        step=1,
        digest=statements.digest_of(said),
        created=now,
        expires=now + heads.LIFETIME,
    )
    rank = rank_message(
        run_id=_RUN, step=1, save_id=_SAVE, world_size=1, rank=0, tree=tree, file=file
    )
    event = events.encode_event(events.InputsRefused(code="ST-IDEN-008", subject="trust.json"))
    seeds: dict[Ask, bytes] = {
        Ask.HELLO: canonical.encode(Hello(signing.VERSION)),
        Ask.RANK: rank,
        Ask.CHECKPOINT: dsse.pae(dsse.IN_TOTO, payload),
        Ask.HEAD: dsse.pae(heads.PAYLOAD_TYPE, canonical.encode(newest)),
        Ask.EVENT: canonical.encode(event),
    }

    def asked(ask: Ask) -> Callable[[bytes], object]:
        """Judge a question as the first of a launch in which `said` was signed."""

        def judge(data: bytes) -> None:
            new = Judge(here=here)
            match ask:
                case Ask.HELLO:
                    new.hello(data)
                case Ask.RANK:
                    new.rank_file(_WORKER, data)
                case Ask.CHECKPOINT:
                    new.statement(_WORKER, data)
                case Ask.HEAD:
                    new.statement(_WORKER, seeds[Ask.CHECKPOINT])
                    new.head(_WORKER, data)
                case Ask.EVENT:
                    new.event(_WORKER, data)
                case _:
                    raise ValueError(f"unknown question {ask!r}")

        return judge

    header = signing.frame(Ask.HEAD, b"")
    return [
        Parser("signer-header", lambda: [header], lambda data: _header(data, header)),
        *(
            Parser(f"signer-{ask.name.lower()}", partial(_only, seed), asked(ask), share=0.2)
            for ask, seed in seeds.items()
        ),
    ]


def _only(seed: bytes) -> list[bytes]:
    return [seed]


def _header(data: bytes, whole: bytes) -> object:
    """A header is always so many bytes: the service reads no fewer and no more."""
    return signing.parse_header((data + whole)[: signing.HEADER.size])
