# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain verify PATH``: prove that a checkpoint or dataset is what was signed.

Never imports torch: verifying needs neither a GPU nor trust in what would load the artifact.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from securetrain.cli.artifacts.names import NameOptions
from securetrain.cli.artifacts.options import BundleOptions
from securetrain.cli.artifacts.question import (
    Asked,
    RunOptions,
    SummaryOptions,
    refuse_given,
    refuse_remote,
)
from securetrain.cli.clock import now
from securetrain.cli.command import Argument, Output, Printed, verb
from securetrain.cli.kinds import Place
from securetrain.cli.options import SubjectOptions
from securetrain.cli.progress import progress_bar

if TYPE_CHECKING:
    from securetrain.artifacts import Expectation
    from securetrain.report import Document


@verb("verify", formats=("sarif", "junit"), text="What to print on standard output.")
def command(
    *,
    path: Annotated[Path | str, Argument(type=Place())],
    asked: Asked,
    model: BundleOptions,
    expect: SubjectOptions,
    names: NameOptions,
    run: RunOptions,
    summary: SummaryOptions,
    output: Output,
) -> Printed:
    """Prove that the checkpoint or dataset at PATH, a directory or a URL, is what was signed.

    PATH may also be a pack (securetrain pack), or the transcript of a disputed reduction
    (RUN/disputes/SHA256.json).

    Examples:
      securetrain verify runs/r1/checkpoints/step-00000100 --trust runs/r1/trust.json
      securetrain verify runs/r1/dataset --trust runs/r1/trust.json --policy baseline
      securetrain verify ./ckpt --trust trust.json --expect-name prod-model --expect-min-step 4000
      securetrain verify prod-model@models --catalogue-root root.json --trust trust.json
      securetrain verify ./model --bundle ./model/model.sig --public-key maker.pem
      securetrain verify ./snapshot --bundle model.sig --public-key maker.pem --allow-symlinks
      securetrain verify ./ckpt --trust trust.json --policy release.yaml --vsa ckpt.vsa.json
      securetrain verify s3://bucket/r1/step-00000100 --trust trust.json
      securetrain verify runs/r1/checkpoints/step-00000100 --trust runs/r1/trust.json --walk
      SECURETRAIN_TRUST=runs/r1/trust.json securetrain verify runs/r1/dataset --json
      securetrain verify runs/r1/disputes/SHA256.json --trust runs/r1/trust.json

    What is checked:
      the signature, against the keys that the trust root names for this kind of
      artifact;
      every byte of every file, and that nothing is missing, extra or a link;
      with --expect-...: that it is the one that you mean; without, what was not
      asked is said;
      with --policy: age, lineage, the gradient verdict and the nodes that took
      part: their tiers by results that the coordinator signed (the run's
      evidence folder), never by the statement's word;
      the evidence of its run, where that is at hand: a link that it contradicts
      refuses; what only the statement says is marked as the signer's word;
      with a policy's chain.require: that those links are verified, of the
      checkpoint or of all its ancestors;
      of a dispute's transcript: every rank's signature, and who contradicts
      whom, or itself.

    Exit codes: 0 all of it held; 10 not signed; 11 bad signature; 12 not what the trust root or
    policy allows; 13 content changed; 14 files missing or extra; 15 too old; 16 revoked or set
    aside; 17 lineage broken; 18 not shown to be logged; 19 unsafe content; 20 unreadable. With
    several problems, the most telling one decides: the signature, then changed content, then
    missing files, then the policy. Nothing is fetched from a network except what a URL names.

    s3:// needs the extra [s3]; other URLs need fsspec and the package of their store, such as
    gcsfs.
    """
    path, expected = names.resolve(path, expect.expectation)
    local = {
        "--bundle": model.given,
        "--scan": asked.scan,
        "--walk": run.walk and not run.walk_in,
        "--offline": names.offline,
    }
    refuse_remote(path, local)
    if model.given:
        refuse_given(path, "a Model Signing bundle")
        return output.emit(_model(Path(path), model, expected, scan=asked.scan))
    from securetrain.chain import answer
    from securetrain.report import packs

    question = asked.question(path, run, expected)
    with progress_bar("verifying") as progress:
        found = answer(path, question, now(), progress)
    code = output.emit(packs.answer(found, question.policy, question.trust))
    summary.write(found, question, passed=code == 0)
    return code


def _model(
    path: Path, model: BundleOptions, expect: "Expectation | None", *, scan: bool
) -> "Document":
    from securetrain.artifacts import examine_model
    from securetrain.report import verification

    with progress_bar("verifying") as progress:
        result, scanned = examine_model(
            path,
            model.bundle,
            model.trusted(),
            now(),
            scope=model.scope.scope(ignore_unsigned=model.ignore_unsigned),
            scan=scan,
            expect=expect,
            progress=progress,
        )
    return verification.model(result, scanned)
