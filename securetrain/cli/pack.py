# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain pack CKPT --out FILE``: one file that proves a checkpoint."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.options import (
    TRUST_VARIABLE,
    StepRange,
    file_argument,
    file_option,
    json_option,
)
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.artifacts import Expectation
    from securetrain.chain import Pack, PackResult
    from securetrain.policy.load import LoadedPolicy

EPILOG: Final = """\
\b
Examples:
  securetrain pack runs/r1/checkpoints/step-00000400 --trust runs/r1/trust.json --out model.stpack
  securetrain pack runs/r1/checkpoints/step-00000016 --trust runs/r1/trust.json \\
    --weights-since 8 --rows 9-16 --walk-in data --out replay.stpack
  securetrain verify model.stpack --trust trust.json --policy release.yaml
  securetrain verify model.stpack --trust trust.json --at witness --expect-run r1

\b
The pack holds the signed statements of the checkpoint, of its ancestors and of their datasets, the
proofs that they were logged, the runs' ledgers, and the evidence that they bind: memberships,
attestation results and what those were judged on, policy, job, code, environment. Weights and rows
are in it only where they are asked for, each with its proof. It is an OCI image layout in a tar;
the same documents give the same bytes.
Whoever verifies it needs this one file and a trust root that came another way.

\b
Exit codes: 0 packed; 3 packed, and something was not at hand: it is named, and the verifier will
find it missing; 10 to 12 the checkpoint's statement does not verify; 20 a file cannot be written.
"""


@click.command(name="pack", epilog=EPILOG)
@file_argument("path")
@file_option(
    "--trust",
    "trust_file",
    required=True,
    envvar=TRUST_VARIABLE,
    show_envvar=True,
    help="The trust root of the run: its trust.json.",
)
@file_option("--out", required=True, help="The pack's file, which must not exist.")
@file_option(
    "--walk-in",
    "places",
    multiple=True,
    help="Where else its parents and datasets are, besides the run directory around PATH.",
)
@file_option(
    "--evidence",
    "evidence",
    multiple=True,
    help="Further run directories with evidence of its nodes: a coordinator's, above all.",
)
@file_option(
    "--trust-data",
    help="The trust root of whoever made its dataset, where --trust does not name them.",
)
@click.option("--weights", is_flag=True, help="Put the checkpoint's own bytes into it.")
@click.option(
    "--weights-since",
    type=click.IntRange(min=0),
    metavar="STEP",
    help="Put those of its run's checkpoints into it, too, that it goes on from, from STEP on.",
)
@click.option(
    "--rows",
    type=StepRange(),
    help="Put the rows of its dataset into it that these steps have read, such as 9-16.",
)
@click.option("--dataset", "whole", is_flag=True, help="Put its whole dataset into it.")
@click.option(
    "--tables",
    is_flag=True,
    help="Put what the ranks said of their gradients in every step into it.",
)
@json_option
def command(
    *,
    path: Path,
    trust_file: Path,
    out: Path,
    places: tuple[Path, ...],
    evidence: tuple[Path, ...],
    trust_data: Path | None,
    weights: bool,
    weights_since: int | None,
    rows: tuple[int, int] | None,
    whole: bool,
    tables: bool,
    output: str,
) -> int:
    """Put what proves the checkpoint at PATH into one file."""
    from securetrain.chain import Wanted, pack
    from securetrain.core.errors import UsageError
    from securetrain.identity import load_trust
    from securetrain.report import packs

    if whole and rows is not None:
        raise UsageError(
            "ST-USAG-001", "--rows and --dataset", "the command line", "give one of them"
        )
    now = datetime.now(UTC)
    made = pack(
        path,
        out,
        trust=load_trust(trust_file, now),
        data=None if trust_data is None else load_trust(trust_data, now),
        places=places,
        evidence=evidence,
        wanted=Wanted(
            weights=weights, since=weights_since, dataset=whole, rows=rows, tables=tables
        ),
    )
    return emit(packs.made(made), output)


def verify_file(
    path: Path,
    *,
    trust_file: Path,
    trust_data: Path | None,
    policy_name: str | None,
    expect: "Expectation | None",
    again: bool,
    at: str,
    replayed: Sequence[Path] = (),
    trust_replay: Path | None = None,
) -> "tuple[PackResult, LoadedPolicy | None]":
    """The findings of ``securetrain verify`` about a pack, and the policy that it asked by."""
    from securetrain.chain import Pack
    from securetrain.policy.load import load_policy

    policy = None if policy_name is None else load_policy(policy_name)
    with Pack.open(path) as opened:
        result = judged(
            opened,
            trust_file=trust_file,
            trust_data=trust_data,
            policy=policy,
            expect=expect,
            again=again,
            at=at,
            replayed=replayed,
            trust_replay=trust_replay,
        )
    return result, policy


def judged(
    pack: "Pack",
    *,
    trust_file: Path,
    trust_data: Path | None,
    policy: "LoadedPolicy | None",
    expect: "Expectation | None" = None,
    again: bool = False,
    at: str,
    replayed: Sequence[Path] = (),
    trust_replay: Path | None = None,
) -> "PackResult":
    """A pack's verification, now or at its witnesses' time."""
    from securetrain.chain import read_replay, verify_pack
    from securetrain.identity import load_trust

    now = datetime.now(UTC)
    auditors = load_trust(trust_replay or trust_file, now) if replayed else None
    replays = [read_replay(one, auditors) for one in replayed] if auditors is not None else []
    if at == "witness":
        now = _seen(pack, trust_file, now)
    return verify_pack(
        pack,
        trust=load_trust(trust_file, now),
        data=None if trust_data is None else load_trust(trust_data, now),
        policy=None if policy is None else policy.policy,
        expect=expect,
        again=again,
        replays=replays,
        now=now,
    )


def _seen(opened: "Pack", trust_file: Path, now: datetime) -> datetime:
    """The time at which the witnesses had seen it, by the trust root of that time."""
    from securetrain.chain import claimed_time, witnessed
    from securetrain.core.errors import IntegrityError
    from securetrain.identity import load_trust

    claimed = claimed_time(opened)
    if claimed is None or claimed > now:
        claimed = now
    seen = witnessed(opened, load_trust(trust_file, claimed), now)
    if seen is not None and seen <= now:
        # What counted when they saw it decides; the claim only said where to look first.
        seen = witnessed(opened, load_trust(trust_file, seen), seen)
    if seen is None or seen > now:
        raise IntegrityError(
            "ST-CHAN-021",
            "no witness says when it was signed, so it cannot be judged at that time",
            str(opened.path),
            "verify it without --at witness, or have checkpoints logged with witnesses",
        )
    return seen
