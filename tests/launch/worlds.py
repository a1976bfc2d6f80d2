# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the tests of a launch are made of: payloads, policies, runs with a dataset, memberships."""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from securetrain.artifacts.dataset.write import sign_documents
from securetrain.artifacts.statement.members import rank_message
from securetrain.artifacts.statement.statements import TreeInfo
from securetrain.core.hashtree import TreeParams
from securetrain.core.nodestate import STATE_VARIABLE
from securetrain.core.vocabulary import EnforcementMode
from securetrain.drills.pickles import Call
from securetrain.identity import words
from securetrain.identity.keys import PrivateKey
from securetrain.launch.setup import prepare_run
from securetrain.policy import load_policy
from tests.train.jobs import documents
from tests.vocabulary import ran

TREE = TreeInfo.of(TreeParams())
SAVE = "ab" * 16


def clean_environment(**extra: str) -> dict[str, str]:
    """An environment without what this test run was started with."""
    keep = {"PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "MKL_CBWR", STATE_VARIABLE}
    base = {name: value for name, value in os.environ.items() if name in keep}
    return {**base, "OMP_NUM_THREADS": "1", **extra}


def run_command(run_dir: Path, *arguments: str) -> list[str]:
    """The command line; the scripts of these tests write beside the run directory."""
    ours = ["--run-dir", str(run_dir), "--output", str(run_dir.parent)]
    return [sys.executable, "-m", "securetrain", "run", *ours, *arguments]


def bomb(path):
    """An object that makes a directory where it is unpickled."""
    return Call(os.makedirs, str(path), 0o777, True)


def run_plain(env, *words):
    """The control: torchrun as it is runs a script of one machine to its end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *map(str, words)]
    ran(command, env=env)


def write_policy(path, **sections):
    """Write a policy that extends `dev`, unless a section says otherwise; its path, as text."""
    said = {
        "apiVersion": "securetrain.dev/policy/v1",
        "kind": "Policy",
        "extends": "dev",
        "metadata": {"id": "test", "version": "1.0.0", "title": "test"},
    }
    path.write_text(json.dumps(said | sections))
    return str(path)


def policy_of(mode=EnforcementMode.REPORT, **sections):
    """The policy `dev` with other fields in its sections."""
    policy = load_policy("dev").policy
    changed = {
        name: msgspec.structs.replace(getattr(policy, name), **fields)
        for name, fields in sections.items()
    }
    return msgspec.structs.replace(policy, enforcement=EnforcementMode(mode), **changed)


def run_with_documents(folder, policy="dev"):
    """A run directory with the keys of a run and a signed dataset."""
    made, now = prepare_run(folder, policy, datetime.now(UTC)), datetime.now(UTC)
    rows = [
        (split, f"{split}-{n}", text)
        for split, texts in documents().items()
        for n, text in enumerate(texts)
    ]
    key = PrivateKey.load(made.run.key("dataset"))
    sign_documents(rows, made.run.dataset, name="prose", key=key, now=now)
    return made


def file_message(run_id, rank=0, **changes):
    """The word of one of two ranks about its file of a save."""
    said = {
        "run_id": run_id,
        "step": 5,
        "save_id": SAVE,
        "world_size": 2,
        "rank": rank,
        "tree": TREE,
        "file": None,
    }
    return rank_message(**{**said, **changes})


def dispute_message(run_id, rank=0, **changes):
    """The word of one of two ranks in a dispute."""
    said = {
        "run_id": run_id,
        "world_size": 2,
        "rank": rank,
        "group": words.group_digest([0, 1]),
        "guard": 0,
        "turn": 4,
        "number": 1,
        **dict.fromkeys(("piece", "table", "whole", "sent", "heard"), "ab" * 32),
    }
    return words.message_of(words.Word(**{**said, **changes}))
