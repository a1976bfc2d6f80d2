# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The run in which steps are done again: one machine's launcher, in a process of its own."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Final

import msgspec

from securetrain.artifacts import Kind, read_statement
from securetrain.artifacts.lineage import folder as run_folder
from securetrain.artifacts.statement.statements import open_statement
from securetrain.chain import documents
from securetrain.chain.replay import outcome
from securetrain.chain.store import EvidenceStore, document
from securetrain.core import RunDir, canonical
from securetrain.core.errors import IntegrityError, RuntimeRefusal
from securetrain.core.files import read_file, write_atomic
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy
from securetrain.train.config import JobConfig

MODULE: Final = "securetrain.train.again"
NOT_DONE: Final = "ST-CHAN-025"
_FABRIC: Final = frozenset({"NCCL_ALGO", "NCCL_PROTO"})
"""Variables of the fabric that decide in which order sums are added up."""
_PR_SET_PDEATHSIG: Final = 1
TAIL: Final = 4000
"""Characters of the steps' own words that a refusal repeats."""


def policy_of(policy: Policy) -> bytes:
    """The policy of the steps that are done again: one machine's, with the recorded rules about
    gradients, which decide what a step does.
    """
    said = {
        "extends": "dev",
        "apiVersion": policy.apiVersion,
        "kind": policy.kind,
        "metadata": {"id": "replay", "version": "1.0.0", "title": "Steps that are done again"},
        "host": {"preflight": "off"},
        "gradients": msgspec.to_builtins(policy.gradients),
    }
    return canonical.dumps(said)


def run_steps(
    folder: Path,
    job: JobConfig,
    request: outcome.Request,
    policy: Policy,
    *,
    processes: int,
    env: Mapping[str, str],
) -> RunDir:
    """Start the steps as a run of their own below `folder`, and wait for its end.

    Args:
        folder: An empty folder.
        job: The recorded job, with the data of this machine.
        request: The segments.
        policy: The policy under which the run was made.
        processes: How many ranks.
        env: The environment that they are started with.

    Raises:
        IntegrityError: ST-CHAN-025, with the run's last words.
    """
    job_file, request_file = folder / "job.yaml", folder / "request.json"
    policy_file, run = folder / "policy.yaml", folder / "run"
    write_atomic(job_file, canonical.encode(job))
    write_atomic(request_file, documents.encode(request))
    write_atomic(policy_file, policy_of(policy))
    inputs = {str(job.data.dataset), str(job.trust), request.trust}
    inputs |= {path for one in request.segments for path in (one.begin, one.end) if path}
    command = [
        *(sys.executable, "-m", "securetrain", "run", "--standalone"),
        *(f"--nproc-per-node={processes}", "--nnodes=1", "--run-dir", str(run)),
        *("--policy", str(policy_file)),
        # Whoever does them again may keep the checkpoints where workers see nothing: /tmp, a home.
        *(word for path in sorted(inputs) for word in ("--input", path)),
        # The launcher takes those of the fabric out, unless it is told of them.
        *(word for name in sorted(_FABRIC & env.keys()) for word in ("--pass-env", name)),
        *("-m", MODULE, str(job_file), str(request_file)),
    ]
    with (folder / "words").open("w+b") as words:
        code = _wait(command, words, env)
        if code:
            words.seek(0, os.SEEK_END)
            words.seek(max(0, words.tell() - TAIL))
            said = words.read().decode("utf-8", "replace").strip()
            raise IntegrityError(
                NOT_DONE,
                f"the steps could not be done again (exit code {code}): {said}",
                MODULE,
                "what stands above names the reason; a checkpoint or dataset that is not what was"
                " signed is one",
            )
    return RunDir(run)


def _wait(command: Sequence[str], words: Any, env: Mapping[str, str]) -> int:
    with (
        _stopped_by_signals(),
        subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - no other thread runs here
        ) as child,
        _ended(child),
    ):
        return child.wait()


@contextmanager
def _ended(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a child that is left behind when this process is told to stop."""
    try:
        yield
    except BaseException:
        child.terminate()
        raise


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Leave the block in an orderly way when this process is told to end, so that nothing stays."""
    if current_thread() is not main_thread():  # Python delivers signals to that one alone
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _die_with_parent() -> None:
    """The launcher ends its workers and itself when whoever started it is gone, killed or not."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def answer_of(run: RunDir, rank: int, world: int, count: int) -> outcome.RankFound:
    """The findings of one rank of the steps.

    Raises:
        RuntimeRefusal: ST-RUNT-032, it answers as another rank or about other segments.
    """
    path = run.checkpoints / f"replay-{rank:05d}.json"
    data = read_file(path, outcome.ANSWER_LIMIT)
    found = canonical.decode(
        data, outcome.RankFound, limit=outcome.ANSWER_LIMIT, where=str(path), canonical=True
    )
    if (found.rank, found.world, len(found.segments)) != (rank, world, count):
        raise RuntimeRefusal(
            "ST-RUNT-032", f"rank {rank} answered as rank {found.rank} of {found.world}", str(path)
        )
    return found


def made_with(run: RunDir) -> tuple[documents.Code, documents.Environment]:
    """The code and the environment of the steps, as their own launcher kept them.

    Raises:
        IntegrityError: ST-CHAN-025, it kept none.
    """
    trust = TrustRoot.load(run.trust, datetime.now(UTC))
    step = run_folder.highest_step(run.checkpoints)
    if step is not None:
        data = read_statement(run.checkpoint(step), Kind.CHECKPOINT)
        bound = open_statement(data, Kind.CHECKPOINT, trust).checkpoint.bound
        pieces = EvidenceStore(run.root / "evidence")
        code = document(pieces, bound.code or "0" * 64, documents.Code)
        environment = document(pieces, bound.environment or "0" * 64, documents.Environment)
        if code is not None and environment is not None:
            return code, environment
    raise IntegrityError(
        NOT_DONE, "the launcher of the steps kept neither their code nor their environment", MODULE
    )
