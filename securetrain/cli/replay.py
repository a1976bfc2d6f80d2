# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain replay PACK``: do recorded steps again, and compare."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.options import TRUST_VARIABLE, file_argument, file_option, json_option
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.train.replaying import Draw

EPILOG: Final = """\
\b
Examples:
  securetrain replay model.stpack --trust runs/r1/trust.json --in runs/r1 --in data --from 8 --to 16
  securetrain replay model.stpack --trust trust.json --trust-data data-trust.json --in runs/r1 \\
      --in data --nproc-per-node 1 --key auditor.pem --out model.replay.json
  securetrain replay model.stpack --trust trust.json --in runs/r1 --in data --sample 0.99 \\
      --forged 0.1 --log-checkpoint log/checkpoint
  securetrain verify model.stpack --trust trust.json --replayed model.replay.json

\b
Each segment, the steps from one checkpoint to the next, is done again from the checkpoint that it
begins with, by the recorded job and the code at hand, in a run of its own; no key of the run is
needed. On the run's mesh and environment every record and every bit must be the same; else the
first step and the first tensor that differ are named. Elsewhere the weights must be within a bound
that was measured for the precision. Every segment, drawn or not, is also held against how far
AdamW can carry a weight at the recorded learning rates.

\b
--sample draws segments by a checkpoint of the transparency log that witnesses cosigned after the
run: whoever forged cannot have known which. Of 1,000 segments, 43 are done again when a tenth is
forged, 368 for a hundredth, and 990 for one.

\b
Exit codes: 0 all steps gave what was signed; 3 some cannot be done again; 17 they did not, or the
code, the job, the rows or (with --compare exact) the environment is another one; 2 a directory is
not there; 10 to 12 the pack's statement does not verify.
"""


@click.command(name="replay", epilog=EPILOG)
@file_argument("path")
@file_option(
    "--trust",
    "trust_file",
    required=True,
    envvar=TRUST_VARIABLE,
    show_envvar=True,
    help="The trust root of the run: its trust.json.",
)
@file_option(
    "--trust-data",
    help="The trust root of whoever made its dataset, where --trust does not name them.",
)
@file_option(
    "--in",
    "places",
    multiple=True,
    help="Directories below which its checkpoints and its dataset are.",
)
@click.option("--from", "first", type=click.IntRange(0), help="Begin with this step's checkpoint.")
@click.option("--to", "last", type=click.IntRange(1), help="End with this step's checkpoint.")
@click.option(
    "--nproc-per-node",
    "processes",
    type=click.IntRange(1, 1024),
    help="Ranks, on this machine. Default: as many as the run had.",
)
@click.option(
    "--compare",
    type=click.Choice(["auto", "exact", "bound"]),
    default="auto",
    show_default=True,
    help="Bit by bit, within the bound, or bit by bit where mesh and environment allow it.",
)
@click.option(
    "--sample",
    "confidence",
    type=click.FloatRange(0, 1),
    help="Draw so many segments that a forged one is among them with this confidence.",
)
@click.option(
    "--forged",
    type=click.FloatRange(0, 1, min_open=True),
    help="With --sample: the part of the segments that is forged, at least.",
)
@file_option(
    "--log-checkpoint",
    help="With --sample: the log's signed checkpoint, cosigned after the run, that draws them.",
)
@file_option("--out", help="Write the result, signed, to this file, which must not exist.")
@click.option("--key", "key_name", help="With --out: the key that signs (role ci).")
@json_option
def command(
    *,
    path: Path,
    trust_file: Path,
    trust_data: Path | None,
    places: tuple[Path, ...],
    first: int | None,
    last: int | None,
    processes: int | None,
    compare: str,
    confidence: float | None,
    forged: float | None,
    log_checkpoint: Path | None,
    out: Path | None,
    key_name: str | None,
    output: str,
) -> int:
    """Do steps of the pack at PATH again, and compare what comes of them."""
    from securetrain.chain import Comparison, Pack, sign_replay
    from securetrain.cli.passphrase import asker
    from securetrain.core.files import write_atomic
    from securetrain.identity import load_trust, open_signer
    from securetrain.report import signatures
    from securetrain.train.replaying import plan, replay, result_of

    if (out is None) is not (key_name is None):
        raise click.UsageError("--out and --key belong together: a result counts by its signature")
    if out is not None and out.exists():
        raise click.UsageError(f"{out} is there already")
    key = None if key_name is None else open_signer(key_name, asker(None))
    draw_by = _draw(confidence, forged, log_checkpoint)
    now = datetime.now(UTC)
    with Pack.open(path) as opened:
        asked = plan(
            opened,
            trust=load_trust(trust_file, now),
            data=load_trust(trust_data or trust_file, now),
            first=first,
            last=last,
            draw_by=draw_by,
            now=now,
        )
    if draw_by is not None and output == "text":
        count, total = len(asked.again), len(asked.segments)
        emit(
            signatures.planned(asked.run, total, count, draw_by.confidence, draw_by.forged), output
        )
    found = replay(
        asked,
        places=places,
        trust=trust_file,
        trust_data=trust_data or trust_file,
        processes=processes,
        wanted=None if compare == "auto" else Comparison(compare),
    )
    said = result_of(asked, found, now)
    if out is not None and key is not None:
        write_atomic(out, sign_replay(said, key), replace=False)
    return emit(signatures.replayed(said, out), output)


def _draw(
    confidence: float | None, forged: float | None, log_checkpoint: Path | None
) -> "Draw | None":
    from securetrain.train.replaying import Draw

    given = (confidence, forged, log_checkpoint)
    if all(one is None for one in given):
        return None
    if confidence is None or forged is None or log_checkpoint is None:
        raise click.UsageError("--sample, --forged and --log-checkpoint belong together")
    return Draw(confidence=confidence, forged=forged, log_checkpoint=log_checkpoint)
