# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options of ``securetrain audit``: where facts come from, and what they are judged by."""

import os
import re
import sys
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import click

from securetrain.cli.command import Option
from securetrain.cli.kinds import LocalFile
from securetrain.cli.options import JOB, KEY, KEY_FORMS, OUT, TRUST, Secret
from securetrain.cli.passphrase import asker
from securetrain.report import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from securetrain.audit import Advisories, AuditResult, Check, Facts, Sources
    from securetrain.policy import LoadedPolicy, Policy


Paths: TypeAlias = tuple[Path, ...]
SPREAD: Final = frozenset({"-f", "--files"})
"""Options that take all words up to the next option."""
NOTHING: Final = "give --node, --files PATH..., --slurm DIR, --run DIR or --facts PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedOptions:
    """The artifacts that a job on this node reads and goes on from."""

    checkpoints: Annotated[Paths, Option("--checkpoint", metavar="DIR")]
    """With --node: a checkpoint that the job goes on from, or a folder of them."""
    datasets: Annotated[Paths, Option("--dataset", metavar="DIR")]
    """With --node: a dataset that the job reads."""
    trust: Annotated[Path | None, TRUST.told(metavar="FILE", env=None)]
    """With --node or --run: the trust root for artifacts, and for the ledger."""
    requirements: Annotated[Paths, Option("--requirements", metavar="FILE")]
    """With --node: a list of packages that the job installs."""
    job: Annotated[Path | None, JOB.told(metavar="FILE")]
    """With --node: a job file, whose data, weights and trust root are looked at."""

    def check(self, *, runs: bool) -> None:
        """Refuse them where no node is looked at; the trust root is for a run, too."""
        for flag, given in (
            ("--checkpoint", self.checkpoints),
            ("--dataset", self.datasets),
            ("--requirements", self.requirements),
            ("--trust", self.trust and not runs),
            ("--job", self.job),
        ):
            if given:
                raise click.UsageError(f"{flag} needs --node")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """Files that are judged."""

    files: Annotated[Paths, Option("-f --files", metavar="PATH...")]
    """Judge manifests, launch scripts and exports: files, and folders of them."""
    values: Annotated[Paths, Option("--values")]
    """With --files: values for the charts among them, besides their own."""
    no_render: Annotated[bool, Option("--no-render")]
    """Run neither helm nor kustomize: read charts and kustomizations as they stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsOptions:
    """Facts that were saved."""

    facts: Annotated[
        Path | None, Option("--facts", type=LocalFile(path_type=Path, exists=True), metavar="PATH")
    ]
    """Judge facts that were saved before, here or elsewhere: a file, or a folder's *.json."""
    nonce: Annotated[str | None, Option("--nonce")]
    """What the auditor asked to have signed; with --facts, what the answers must hold."""
    nonce_store: Annotated[Path | None, Option("--nonce-store", metavar="DIR")]
    """The auditor's nonces: 'audit nonce' issues one, --facts spends what is answered."""
    inventory: Annotated[Path | None, Option("--inventory")]
    """The assets that there are, and the keys or authorities that speak for each of them."""
    unsigned: Annotated[bool, Option("--unsigned")]
    """Also count facts that nobody signed; the result says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOptions:
    """The place and the signer of facts that are saved."""

    save_facts: Annotated[Path | None, Option("--save-facts")]
    """Also write what was collected (names, owners and modes; no secret's value): one document to a
    file, several to a new folder.
    """
    sign_key: Annotated[
        str | None,
        KEY.told(
            f"With --save-facts: sign them with this host's key: {KEY_FORMS}.",
            flags="--sign-key",
            metavar="KEY",
        ),
    ]
    sign_identity: Annotated[Path | None, Option("--sign-identity", metavar="DIR")]
    """With --save-facts: sign as an enrolled node: its node.pem, node.crt and ca.crt."""
    secret: Secret

    def save(self, facts: "Facts", nonce: str, at: datetime) -> None:
        """Save what was collected."""
        from securetrain.audit import save_facts

        if self.save_facts is None:
            return
        if self.sign_identity is not None:
            from securetrain.rendezvous.member import load_identity

            mine = load_identity(self.sign_identity, at)
            chain = (mine.certificate, mine.ca)
            save_facts(facts, self.save_facts, keys=[mine.key], certificates=chain, nonce=nonce)
        elif self.sign_key is not None:
            from securetrain.identity import open_signer

            signer = open_signer(self.sign_key, self.secret.ask)
            save_facts(facts, self.save_facts, keys=[signer], nonce=nonce)
        else:
            save_facts(facts, self.save_facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The sources of facts."""

    node: Annotated[bool, Option("--node")]
    """Collect facts about this node and judge them."""
    files: FileOptions
    slurm: Annotated[Paths, Option("--slurm", metavar="DIR")]
    """Judge Slurm's configuration: its folder, or a copy of it; one for each cluster."""
    runs: Annotated[Paths, Option("--run", metavar="DIR")]
    """Judge who takes part in a run, by its ledger, verified by --trust."""
    stored: FactsOptions
    saved: SaveOptions
    named: NamedOptions

    def check(self) -> None:
        """Refuse values of options by themselves."""
        nonce = self.stored.nonce
        if nonce is not None and not re.fullmatch(r"[A-Za-z0-9_-]{16,128}", nonce):
            what = "16 to 128 letters, digits, '-' and '_'"
            raise click.BadParameter(what, param_hint="'--nonce'")
        if not self.node:
            self.named.check(runs=bool(self.runs))

    def facts(
        self,
        policy: "LoadedPolicy",
        checks: "Sequence[Check]",
        at: datetime,
        progress: "Callable[[int, int], None] | None",
    ) -> "Facts":
        """Collect or read what the options name, and save what was collected."""
        self._refuse_contradictions()
        found = self._sources().facts(policy, at, os.environ, checks=checks, progress=progress)
        self.saved.save(found, self.stored.nonce or "", at)
        return found

    def _sources(self) -> "Sources":
        """As the library calls them."""
        from securetrain.audit import SavedFacts, Sources, named
        from securetrain.launch import this_node

        stored, given = self.stored, asdict(self.named)
        if self.runs and not self.node:
            given["trust"] = None  # it is for the run
        return Sources(
            files=self.files.files,
            values=self.files.values,
            render=not self.files.no_render,
            slurm=self.slurm,
            runs=self.runs,
            trust=self.named.trust,
            inventory=stored.inventory,
            fleet=this_node(os.environ).fleet,
            node=self.node,
            named=named(os.environ, **given),
            search_path=_job_search_path(),
            stored=None
            if stored.facts is None
            else SavedFacts(
                path=stored.facts,
                inventory=stored.inventory,
                nonce=stored.nonce or "",
                nonce_store=stored.nonce_store,
                unsigned=stored.unsigned,
            ),
        )

    def _refuse_contradictions(self) -> None:
        """Refuse options that make no sense together."""
        files, stored, saved = self.files, self.stored, self.saved
        collected = self.node or bool(files.files or self.slurm or self.runs)
        facts, inventory = stored.facts is not None, stored.inventory
        signs = saved.sign_key or saved.sign_identity
        spent = not facts or not inventory or stored.nonce
        for wrong, what in (
            (not collected and not facts, NOTHING),
            (self.node and facts, "give either --node or --facts PATH"),
            (saved.save_facts and not collected, "--save-facts needs something that is collected"),
            (saved.save_facts and facts, "--save-facts saves what is collected, not --facts"),
            (
                signs and not saved.save_facts,
                "--sign-key and --sign-identity need --save-facts PATH",
            ),
            (
                saved.sign_key and saved.sign_identity,
                "give either --sign-key or --sign-identity",
            ),
            (
                (files.values or files.no_render) and not files.files,
                "--values and --no-render need --files PATH...",
            ),
            (stored.unsigned and not facts, "--unsigned needs --facts PATH"),
            (
                inventory and not facts and not self.runs,
                "--inventory needs --facts PATH or --run DIR",
            ),
            (
                stored.nonce_store and spent,
                "--nonce-store needs --facts PATH with --inventory FILE, and no --nonce",
            ),
        ):
            if wrong:
                raise click.UsageError(what)


def _job_search_path() -> list[str]:
    """Return this process's search path without the directory of this program, as a job sees it."""
    return [entry for entry in sys.path if entry and Path(entry) != Path(sys.argv[0]).parent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Failures that are accepted, or known."""

    waivers: Annotated[Path | None, Option("--waivers")]
    """File of the failures that are accepted."""
    baseline: Annotated[Path | None, Option("--baseline")]
    """JSON of an earlier audit: findings that it had are marked as known."""
    new_only: Annotated[bool, Option("--new-only")]
    """Show only what the baseline has not, and judge by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """The parts of the result that are shown, and files of it."""

    every: Annotated[bool, Option("--all")]
    """Also show every check that passed and every place."""
    out: Annotated[tuple[Path, ...], OUT]
    """Also write the result to this file: .json .sarif .xml (JUnit) .html .md (Markdown)."""

    def check(self) -> None:
        """Before anything is collected: the ending of a file's name says its format."""
        from securetrain.report import ENDINGS

        for file in self.out:
            if file.suffix not in ENDINGS:
                raise click.UsageError(f"--out {file}: its name must end in {' '.join(ENDINGS)}")

    def write(self, result: "AuditResult", checks: "Sequence[Check]", policy: "Policy") -> Document:
        """The page, which is also written where it is asked for."""
        from securetrain.report import ENDINGS, findings, written

        unknown_skips = set(policy.host.skip_checks) - {check.id for check in checks}
        page = findings.findings(result, checks, unknown_skips)
        for file in self.out:
            written(page, ENDINGS[file.suffix], file)
        return replace(page, whole=self.every)


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Checks of one's own, and the digests that must be used."""

    checks: Annotated[Path | None, Option("--checks", metavar="DIR")]
    """A folder of checks of your own."""
    advisories: Annotated[Path | None, Option("--advisories")]
    """A list of known faults of your own."""
    pins: Annotated[Path | None, Option("--pins")]
    """Signed digests of policy, checks and advisories to be used."""
    pins_key: Annotated[str | None, Option("--pins-key", metavar="KEY")]
    """The public key that signed them; with 'audit pins' the private one, which signs."""

    def scaffold(self, words: tuple[str, ...]) -> Document:
        """``audit new ID``: a check of one's own, with its fixtures, to be changed."""
        from securetrain.audit import scaffold
        from securetrain.report import checks as answers

        match words:
            case ("new", check_id) if re.fullmatch(r"ST-[A-Z0-9]{3}-[0-9]{3}", check_id):
                return answers.scaffolded(scaffold(check_id, self.checks or Path("checks")))
            case ("new", *_):
                raise click.UsageError("securetrain audit new ID, with an ID as in ST-ABC-001")
            case ("nonce", *_):
                raise click.UsageError(
                    "securetrain audit nonce --nonce-store DIR, and no more words"
                )
            case _:
                raise click.UsageError(f"unexpected words: {' '.join(words)}")

    def pin(
        self, policy: "Policy", checks: "Sequence[Check]", advisories: "Advisories | None"
    ) -> Document:
        """``audit pins``: sign for what is used now."""
        from securetrain.audit import Pins
        from securetrain.core.files import write_atomic
        from securetrain.identity import open_signer
        from securetrain.report import checks as answers

        if self.pins is None or self.pins_key is None:
            raise click.UsageError("securetrain audit pins --pins FILE --pins-key KEY")
        pins = Pins.of(policy, checks, advisories)
        write_atomic(self.pins, pins.signed(open_signer(self.pins_key, asker(None))))
        return answers.pinned(pins, self.pins)

    def unpinned(
        self, policy: "Policy", checks: "Sequence[Check]", advisories: "Advisories | None"
    ) -> list[tuple[str, str]]:
        """All that is used and not pinned."""
        from securetrain.audit import Pins
        from securetrain.core.files import read_file
        from securetrain.identity import read_public

        if self.pins is None or self.pins_key is None:
            return []
        public = read_public(self.pins_key, asker(None))
        data = read_file(self.pins, 64 << 10)
        return Pins.of(policy, checks, advisories).mismatches(data, public, str(self.pins))


def explained(check_id: str, checks: "Sequence[Check]") -> Document:
    """One check: why, and what makes it pass."""
    from securetrain.audit import NOT_JUDGED
    from securetrain.report import checks as answers

    for check in checks:
        if check.id == check_id.upper():
            return answers.explanation(check)
    if check_id.upper() in NOT_JUDGED:
        return answers.unanswered(check_id.upper())
    raise click.UsageError(f"there is no check {check_id}; securetrain audit --list shows them all")
