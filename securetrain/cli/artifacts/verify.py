# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain verify PATH``: prove that a checkpoint or dataset is what was signed.

Never imports torch: verifying needs neither a GPU nor trust in what would load the artifact.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
from click.core import ParameterSource

from securetrain.cli.artifacts.names import NameOptions
from securetrain.cli.artifacts.options import BundleOptions
from securetrain.cli.clock import now
from securetrain.cli.command import Argument, Option, Output, Printed, verb
from securetrain.cli.kinds import Place
from securetrain.cli.options import (
    AT,
    EVIDENCE,
    KEY_FORMS,
    POLICY,
    TRUST,
    TRUST_DATA,
    WALK_IN,
    SubjectOptions,
)
from securetrain.cli.passphrase import asker
from securetrain.cli.progress import progress_bar

if TYPE_CHECKING:
    from securetrain.chain import Options, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything that is asked besides, each called as the library calls it."""

    log_proof: Annotated[Path | None, Option("--log-proof")]
    """Proof that the statement was logged (securetrain log prove). It must hold; keys that were
    revoked later then still count. Default, when the policy asks for a log: the proof beside
    PATH.
    """
    walk: Annotated[bool, Option("--walk")]
    """Follow the chain to parents, datasets, nodes and policy, and print it as a tree."""
    walk_in: Annotated[tuple[Path, ...], WALK_IN]
    """Where its parents and datasets are. Default: the two folders above PATH."""
    evidence: Annotated[tuple[Path, ...], EVIDENCE]
    """RunOptions run directories with evidence of its nodes: a coordinator's, above all. The run
    directory around PATH is always asked.
    """
    waiver: Annotated[tuple[Path, ...], Option("--waiver")]
    """Operators' waiver for this checkpoint (securetrain waive). It must count."""
    floors: Annotated[Path | None, Option("--floors")]
    """File that remembers the newest checkpoint of every run: older ones are refused."""
    scan: Annotated[bool, Option("--scan")]
    """Also scan every file for pickles (securetrain scan)."""
    trust_data: Annotated[Path | None, TRUST_DATA]
    appraise: Annotated[bool, Option("--appraise")]
    """Also judge the attestation evidence behind the tiers again (the link nodes is required)."""
    at: Annotated[Literal["now", "witness"], AT] = "now"
    """Of a pack: judge at the time at which the log's witnesses had seen it, for one that is older
    than certificates live.
    """
    replayed: Annotated[tuple[Path, ...], Option("--replayed")]
    """A signed result of steps that were done again (securetrain replay --out)."""
    trust_replay: Annotated[Path | None, Option("--trust-replay")]
    """The trust root of whoever did them again (role ci), where --trust does not name them."""

    def options(self, **more: object) -> "Options":
        """As the library calls it."""
        from securetrain.chain import Known, Options

        mine = {one.name: getattr(self, one.name) for one in fields(self)}
        known = Known(**{name: mine.pop(name) for name in ("log_proof", "waiver", "floors")})
        return Options(**mine, known=known, **more)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The signatures and the policy that an artifact is judged by, and the summary of that."""

    trust: Annotated[Path | None, TRUST.told(f"{TRUST.help} There is no default.")]
    policy: Annotated[str | None, POLICY]
    """A policy by name or file. Default: none."""
    vsa: Annotated[Path | None, Option("--vsa")]
    """Also write a verification summary (SLSA VSA) to this file, which must not exist."""
    vsa_key: Annotated[
        str | None,
        Option("--vsa-key", f"Key that signs the summary: {KEY_FORMS}. Default: not signed."),
    ]

    def write(self, found: "Verdict") -> None:
        """Write the summary, where it was asked for and there is a digest to say it of."""
        if self.vsa is None:
            return
        from securetrain.chain import write_summary
        from securetrain.identity import open_signer

        if not found.digest:
            click.echo("no summary: no statement verifies, so there is no digest for it", err=True)
            return
        key = open_signer(self.vsa_key, asker(None)) if self.vsa_key is not None else None
        write_summary(self.vsa, found, key)
        click.echo(f"summary {self.vsa}", err=True)


def given() -> set[str]:
    """The names of the options that stand on the command line."""
    context = click.get_current_context()
    source, typed = context.get_parameter_source, ParameterSource.COMMANDLINE
    return {one.name for one in context.command.params if one.name and source(one.name) is typed}


@verb("verify", formats=("sarif", "junit"), text="What to print on standard output.")
def command(
    *,
    path: Annotated[Path | str, Argument(type=Place())],
    asked: Asked,
    model: BundleOptions,
    expect: SubjectOptions,
    names: NameOptions,
    further: RunOptions,
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

    s3://, gs:// and az:// need the extra [stores].
    """
    from securetrain.artifacts import kinds
    from securetrain.chain import form_of, refuse, verify
    from securetrain.core.errors import IdentityError
    from securetrain.report import verification

    path, expected = names.resolve(path, expect.expectation)
    options = further.options(signing=model.signing(), vsa=asked.vsa is not None)
    refuse(form_of(path, options), given(), path)
    if asked.trust is None and not model.given:
        kinds.guess(path).check_signed()
        what = "no trust root was given, so nothing says whose signature counts"
        raise IdentityError("ST-IDEN-007", what, str(path))
    with progress_bar("verifying") as progress:
        found = verify(
            path,
            expected,
            trust=asked.trust,
            policy=asked.policy,
            now=now(),
            options=options,
            progress=progress,
        )
    code = output.emit(verification.verified(found))
    asked.write(found)
    return code
