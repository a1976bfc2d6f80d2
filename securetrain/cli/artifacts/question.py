# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options of ``verify``, and which of them apply to which kind of artifact."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import click
from click.core import ParameterSource

from securetrain.cli.clock import now
from securetrain.cli.command import Option
from securetrain.cli.options import AT, EVIDENCE, KEY_FORMS, POLICY, TRUST, TRUST_DATA, WALK_IN
from securetrain.cli.passphrase import asker

if TYPE_CHECKING:
    from securetrain.artifacts import Expectation, Wanted
    from securetrain.chain import Found, Question


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Files of a run's directory, and beside it."""

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
    """Further run directories with evidence of its nodes: a coordinator's, above all. The run
    directory around PATH is always asked.
    """
    waiver: Annotated[tuple[Path, ...], Option("--waiver")]
    """Operators' waiver for this checkpoint (securetrain waive). It must count."""
    floors: Annotated[Path | None, Option("--floors")]
    """File that remembers the newest checkpoint of every run: older ones are refused."""

    def wanted(self, *, scan: bool) -> "Wanted":
        """As the library calls it."""
        from securetrain.artifacts import Wanted

        return Wanted(
            log_proof=self.log_proof,
            waivers=self.waiver,
            floors=self.floors,
            scan=scan,
            walk=self.walk,
            places=self.walk_in,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The signatures and the policy that an artifact is judged by."""

    trust: Annotated[Path | None, TRUST.told(f"{TRUST.help} There is no default.")]
    policy: Annotated[str | None, POLICY]
    """A policy by name or file. Default: none."""
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
    """Of a pack: a signed result of steps that were done again (securetrain replay --out)."""
    trust_replay: Annotated[Path | None, Option("--trust-replay")]
    """The trust root of whoever did them again (role ci), where --trust does not name them."""

    def question(
        self, path: Path | str, run: RunOptions, expect: "Expectation | None"
    ) -> "Question":
        """As the library calls it, once what does not apply to what is at `path` was refused."""
        from securetrain.artifacts import TargetKind, guess
        from securetrain.chain import Question
        from securetrain.core.errors import IdentityError, UsageError
        from securetrain.policy import load_policy

        found = guess(path)
        if self.trust is None:
            found.check_signed()
            raise IdentityError(
                "ST-IDEN-007",
                "no trust root was given, so nothing says whose signature counts",
                str(path),
            )
        match found.kind:
            case TargetKind.PACK:
                refuse_given(path, "a pack")
                if self.at != "now":
                    refuse_given(path, "a pack at its witnesses' time")
            case TargetKind.SAVED:
                refuse_given(path, "what a script saved")
            case kind:
                if self.at != "now" or self.replayed or self.trust_replay:
                    raise click.UsageError(
                        "--at witness, --replayed and --trust-replay are for packs (securetrain"
                        " pack)"
                    )
                if self.appraise and self.policy is None:
                    raise click.UsageError(
                        "--appraise asks what a policy asks of nodes: give --policy"
                    )
                if kind is TargetKind.TRANSCRIPT and expect is not None:
                    raise UsageError(
                        "ST-USAG-001",
                        "--expect-... does not apply to a dispute's transcript",
                        str(path),
                        "leave it out; the transcript's file is named after its digest",
                    )
        return Question(
            trust=self.trust,
            data=self.trust_data,
            auditors=self.trust_replay,
            policy=None if self.policy is None else load_policy(self.policy),
            expect=expect,
            again=self.appraise,
            at_witness=self.at == "witness",
            replayed=self.replayed,
            evidence=run.evidence,
            wanted=run.wanted(scan=self.scan),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryOptions:
    """The file and the signer of the summary."""

    vsa: Annotated[Path | None, Option("--vsa")]
    """Also write a verification summary (SLSA VSA) to this file, which must not exist."""
    vsa_key: Annotated[
        str | None,
        Option("--vsa-key", f"Key that signs the summary: {KEY_FORMS}. Default: not signed."),
    ]

    def write(self, found: "Found", asked: "Question", *, passed: bool) -> None:
        """Write it, where it was asked for and there is a digest to say it of."""
        from securetrain.artifacts import CheckedWords, SavedResult

        if self.vsa is None or isinstance(found, SavedResult | CheckedWords):
            return
        from securetrain.artifacts import write_summary
        from securetrain.chain import summary_of
        from securetrain.identity import open_signer

        data = summary_of(found, asked.policy, now(), passed=passed)
        if data is None:
            click.echo("no summary: no statement verifies, so there is no digest for it", err=True)
            return
        key = open_signer(self.vsa_key, asker(None)) if self.vsa_key is not None else None
        write_summary(self.vsa, data, key=key)
        click.echo(f"summary {self.vsa}", err=True)


_OF_RUNS: Final = tuple(field.name for field in fields(RunOptions))
_OF_SUMMARIES: Final = tuple(field.name for field in fields(SummaryOptions))
NOT_FOR: Final[Mapping[str, tuple[str, ...]]] = {
    "a Model Signing bundle": ("trust", "policy", *_OF_SUMMARIES, "trust_data", *_OF_RUNS),
    "a pack": ("scan", *_OF_RUNS),
    "a pack at its witnesses' time": _OF_SUMMARIES,
    "what a script saved": (*_OF_SUMMARIES, "scan", "at", *_OF_RUNS),
}
"""Options that do not apply to a kind of artifact."""


def refuse_given(path: Path | str, what: str) -> None:
    """Refuse options that were given and do not apply."""
    from securetrain.core.errors import UsageError

    context = click.get_current_context()
    flags = [
        one.opts[0]
        for one in context.command.params
        if one.name in NOT_FOR[what]
        and context.get_parameter_source(one.name) is ParameterSource.COMMANDLINE
    ]
    if flags:
        raise UsageError(
            "ST-USAG-001",
            f"{', '.join(flags)} does not apply to {what}",
            str(path),
            f"leave it out; see 'securetrain verify --help' for what applies to {what}",
        )


def refuse_remote(path: Path | str, asked: Mapping[str, Any]) -> None:
    """Refuse options that work only with directories of this machine."""
    from securetrain.core.errors import UsageError

    if isinstance(path, str) and (flags := [flag for flag, given in asked.items() if given]):
        raise UsageError(
            "ST-USAG-001",
            f"{', '.join(flags)} is for directories of this machine only",
            path,
            "copy it here first, or leave it out; --walk-in DIR follows the chain from a store",
        )
