# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain pack CKPT --out FILE``: one file that proves a checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.kinds import StepRange
from securetrain.cli.options import AT_LEAST_0, EVIDENCE, OUT, RUN_TRUST, WALK_IN, TrustData
from securetrain.report import Document

if TYPE_CHECKING:
    from securetrain.chain import Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a pack besides its proofs."""

    weights: Annotated[bool, Option("--weights")]
    """Put the checkpoint's own bytes into it."""
    weights_since: Annotated[int | None, Option("--weights-since", type=AT_LEAST_0, metavar="STEP")]
    """Put those of its run's checkpoints into it, too, that it goes on from, from STEP on."""
    rows: Annotated[tuple[int, int] | None, Option("--rows", type=StepRange())]
    """Put the rows of its dataset into it that these steps have read, such as 9-16."""
    dataset: Annotated[bool, Option("--dataset")]
    """Put its whole dataset into it."""
    tables: Annotated[bool, Option("--tables")]
    """Put what the ranks said of their gradients in every step into it."""

    def wanted(self) -> "Wanted":
        """As the library calls it."""
        from securetrain.chain import Wanted
        from securetrain.core.errors import UsageError

        if self.dataset and self.rows is not None:
            raise UsageError(
                "ST-USAG-001", "--rows and --dataset", "the command line", "give one of them"
            )
        return Wanted(
            weights=self.weights,
            since=self.weights_since,
            dataset=self.dataset,
            rows=self.rows,
            tables=self.tables,
        )


@verb("pack")
def command(
    *,
    path: Path,
    trust: Annotated[Path, RUN_TRUST],
    out: Annotated[Path, OUT.told("The pack's file, which must not exist.")],
    places: Annotated[tuple[Path, ...], WALK_IN],
    evidence: Annotated[tuple[Path, ...], EVIDENCE],
    trust_data: TrustData,
    contents: Contents,
) -> Document:
    r"""Put what proves the checkpoint at PATH into one file.

    Examples:
      securetrain pack runs/r1/checkpoints/step-00000400 --trust runs/r1/trust.json \
          --out model.stpack
      securetrain pack runs/r1/checkpoints/step-00000016 --trust runs/r1/trust.json \
        --weights-since 8 --rows 9-16 --walk-in data --out replay.stpack
      securetrain verify model.stpack --trust trust.json --policy release.yaml
      securetrain verify model.stpack --trust trust.json --at witness --expect-run r1

    The pack holds the signed statements of the checkpoint, of its ancestors and of their datasets,
    the proofs that they were logged, the runs' ledgers, and the evidence that they bind:
    memberships, attestation results and what those were judged on, policy, job, code, environment.
    Weights and rows are in it only where they are asked for, each with its proof. It is an OCI
    image layout in a tar; the same documents give the same bytes. Whoever verifies it needs this
    one file and a trust root that came another way.

    Exit codes: 0 packed; 3 packed, and something was not at hand: it is named, and the verifier
    will find it missing; 10 to 12 the checkpoint's statement does not verify; 20 a file cannot be
    written.
    """
    from securetrain.chain import pack
    from securetrain.identity import load_trust
    from securetrain.report import packs

    at = now()
    made = pack(
        path,
        out,
        trust=load_trust(trust, at),
        data=None if trust_data is None else load_trust(trust_data, at),
        places=places,
        evidence=evidence,
        wanted=contents.wanted(),
    )
    return packs.made(made)
