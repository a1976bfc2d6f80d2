# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain replay PACK``: do recorded steps again, and compare."""

from pathlib import Path
from typing import Annotated

from securetrain.cli.artifacts.options import RankOptions, Segments, Signed
from securetrain.cli.clock import now
from securetrain.cli.command import Option, Output, Printed, verb
from securetrain.cli.options import RUN_TRUST, TrustData


@verb("replay")
def command(
    *,
    path: Path,
    trust: Annotated[Path, RUN_TRUST],
    trust_data: TrustData,
    places: Annotated[
        tuple[Path, ...],
        Option("--in", "Directories below which its checkpoints and its dataset are."),
    ],
    segments: Segments,
    ranks: RankOptions,
    signed: Signed,
    output: Output,
) -> Printed:
    r"""Do steps of the pack at PATH again, and compare what comes of them.

    Examples:
      securetrain replay model.stpack --trust runs/r1/trust.json --in runs/r1 --in data \
          --from 8 --to 16
      securetrain replay model.stpack --trust trust.json --trust-data data-trust.json --in runs/r1 \
          --in data --nproc-per-node 1 --key auditor.pem --out model.replay.json
      securetrain replay model.stpack --trust trust.json --in runs/r1 --in data --sample 0.99 \
          --forged 0.1 --log-checkpoint log/checkpoint
      securetrain verify model.stpack --trust trust.json --replayed model.replay.json

    Each segment, the steps from one checkpoint to the next, is done again from the checkpoint that
    it begins with, by the recorded job and the code at hand, in a run of its own; no key of the run
    is needed. On the run's mesh and environment every record and every bit must be the same; else
    the first step and the first tensor that differ are named. Elsewhere the weights must be within
    a bound that was measured for the precision. Every segment, drawn or not, is also held against
    how far AdamW can carry a weight at the recorded learning rates.

    --sample draws segments by a checkpoint of the transparency log that witnesses cosigned after
    the run: whoever forged cannot have known which. Of 1,000 segments, 43 are done again when a
    tenth is forged, 368 for a hundredth, and 990 for one.

    Exit codes: 0 all steps gave what was signed; 3 some cannot be done again; 17 they did not, or
    the code, the job, the rows or (with --compare exact) the environment is another one; 2 a
    directory is not there; 10 to 12 the pack's statement does not verify.
    """
    from securetrain.chain import Pack, records
    from securetrain.identity import load_trust
    from securetrain.report import signatures
    from securetrain.train.replaying import plan, replay, result_of

    key, draw, at = signed.signer(), segments.draw(), now()
    data = trust_data or trust
    with Pack.open(path) as opened:
        asked = plan(
            opened,
            trust=load_trust(trust, at),
            data=load_trust(data, at),
            first=segments.first,
            last=segments.last,
            draw_by=draw,
            now=at,
        )
    if draw is not None and output.format == "text":
        counts = len(asked.segments), len(asked.again)
        output.emit(signatures.planned(asked.run, *counts, draw.confidence, draw.forged))
    found = replay(
        asked,
        places=places,
        trust=trust,
        trust_data=data,
        processes=ranks.processes,
        wanted=None if ranks.compare == "auto" else records.Comparison(ranks.compare),
    )
    said = result_of(asked, found, at)
    signed.write(said, key)
    return output.emit(signatures.replayed(said, signed.out))
