# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain audit``: collect facts about this node, judge them against a policy, show both.

Never imports torch and needs no root; what it may not read is unknown. The only processes that it
starts are helm and kustomize, behind walls, and none with ``--no-render``.
"""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from securetrain.cli.audit_sources import (
    SPREAD,
    Sources,
    facts_of_sources,
    issue_nonce,
    source_options,
)
from securetrain.cli.options import SpreadingCommand, file_option, format_options
from securetrain.report import emit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from securetrain.audit import Advisories, Check
    from securetrain.policy import Policy
    from securetrain.report import Document

EPILOG: Final = """\
\b
Examples:
  securetrain audit --node
  securetrain audit --node --policy dev
  securetrain audit --node --job job.yaml --checkpoint runs/r1/checkpoints --trust trust.json
  securetrain audit -f jobs/*.yaml charts/trainer /etc/exports --slurm /etc/slurm
  securetrain audit -f charts/trainer --values charts/trainer/values-prod.yaml
  securetrain audit --run runs/r1 --trust trust.json --inventory inventory.yaml
  securetrain audit --node --save-facts node-a.json
  securetrain audit --node --save-facts node-a.json --sign-key node-a.key --nonce 4f1a...
  securetrain audit --facts node-a.json --unsigned --policy hardened --waivers waivers.yaml --json
  securetrain audit --node --save-facts node-a.json --sign-identity identity/ --nonce 4f1a...
  securetrain audit -f jobs/ --slurm /etc/slurm --save-facts collected/
  securetrain audit nonce --nonce-store nonces/
  securetrain audit --facts nodes/ --inventory inventory.yaml --nonce-store nonces/
  securetrain audit --facts nodes/ --inventory inventory.yaml --nonce 4f1a...
  securetrain audit --facts nodes/ --inventory inventory.yaml --out audit.html --out audit.sarif
  securetrain audit --facts nodes/ --unsigned --baseline last-week.json --new-only
  securetrain audit --list
  securetrain audit --explain ST-NET-011
  securetrain audit new ST-ABC-001 --checks checks/
  securetrain audit --node --checks checks/
  securetrain audit pins --policy site.yaml --checks checks/ --pins audit.pins --pins-key me.pem
  securetrain audit --node --policy site.yaml --checks checks/ --pins audit.pins --pins-key me.pub

\b
States: pass, fail, unknown (evidence missing: never a pass), not-applicable, waived.

\b
Exit codes: 0 clean; 1 a finding at or above host.fail_on of the policy; 2 bad policy, waiver file
or command line; 3 more checks of one node unknown than host.max_unknown; 4 facts not to rely on
(malformed, unsigned, by another host's key, from the future, older than a day). The first that
holds of 4, 2, 1, 3 counts.
"""


_Used: TypeAlias = "tuple[Policy, Sequence[Check], Advisories | None]"
"""What an audit judges by."""


class _Command(SpreadingCommand):
    SPREAD = SPREAD


@click.command(name="audit", cls=_Command, epilog=EPILOG)
@source_options
@click.option(
    "--policy",
    "policy_name",
    default="baseline",
    show_default=True,
    help="A policy by name or file.",
)
@file_option("--waivers", "waivers_file", help="File of the failures that are accepted.")
@file_option(
    "--baseline",
    "baseline_file",
    help="JSON of an earlier audit: findings that it had are marked as known.",
)
@click.option(
    "--new-only", is_flag=True, help="Show only what the baseline has not, and judge by it."
)
@click.option(
    "--all", "everything", is_flag=True, help="Also show every check that passed and every place."
)
@file_option(
    "--out",
    "outputs",
    multiple=True,
    help="Also write the result to this file: .json .sarif .xml (JUnit) .html .md (Markdown).",
)
@file_option("--checks", "checks_dir", metavar="DIR", help="A folder of checks of your own.")
@file_option("--advisories", "advisories_file", help="A list of known faults of your own.")
@file_option(
    "--pins", "pins_file", help="Signed digests of policy, checks and advisories to be used."
)
@click.option(
    "--pins-key",
    metavar="KEY",
    help="The public key that signed them; with 'audit pins' the private one, which signs.",
)
@click.option("--list", "list_only", is_flag=True, help="Show the checks and end.")
@click.option("--explain", metavar="ID", help="Show one check: why, and what makes it pass.")
@click.argument("words", nargs=-1, metavar="[new ID | nonce | pins]")
@format_options("sarif", "junit", "html", "markdown")
def command(
    *,
    sources: Sources | None,
    policy_name: str,
    waivers_file: Path | None,
    baseline_file: Path | None,
    new_only: bool,
    everything: bool,
    outputs: tuple[Path, ...],
    checks_dir: Path | None,
    advisories_file: Path | None,
    pins_file: Path | None,
    pins_key: str | None,
    list_only: bool,
    explain: str | None,
    words: tuple[str, ...],
    output: str,
) -> int:
    """Check hosts, manifests, scripts, Slurm and storage against a policy before a job runs."""
    from securetrain.audit import (
        audit,
        compare,
        load_checks,
        read_advisories,
        read_baseline,
        read_waivers,
    )
    from securetrain.core.files import write_atomic
    from securetrain.policy import load_policy
    from securetrain.report import ENDINGS, findings, written

    if words == ("nonce",):
        return emit(_nonce(sources), output)
    if bool(pins_file) != bool(pins_key):
        raise click.UsageError("--pins FILE and --pins-key KEY go together")
    if words and words != ("pins",):
        return emit(_new(words, checks_dir), output)
    checks = load_checks(beside=checks_dir)
    if list_only:
        return emit(findings.catalogue(checks), output)
    if explain is not None:
        return emit(_explained(explain, checks), output)
    if new_only and baseline_file is None:
        raise click.UsageError("--new-only needs --baseline FILE")
    _refuse_endings(outputs)
    loaded = load_policy(policy_name)
    policy = loaded.policy
    advisories = read_advisories(advisories_file) if advisories_file else None
    used = (policy, checks, advisories)
    if words:
        return emit(_pin(pins_file, pins_key, used), output)
    waivers = read_waivers(waivers_file) if waivers_file else None
    baseline = read_baseline(baseline_file) if baseline_file else None
    now = datetime.now(UTC)
    facts = facts_of_sources(sources, loaded, now)
    unpinned = _unpinned(pins_file, pins_key, used) if pins_file and pins_key else ()
    result = audit(
        facts, checks, policy, now, waivers=waivers, advisories=advisories, unpinned=unpinned
    )
    if baseline is not None:
        result = compare(result, baseline, policy, new_only=new_only)
    unknown_skips = set(policy.host.skip_checks) - {check.id for check in checks}
    page = findings.findings(result, checks, unknown_skips)
    for file in outputs:
        write_atomic(file, written(page, ENDINGS[file.suffix]).encode())
    return emit(page, output, verbose=everything)


def _nonce(sources: Sources | None) -> "Document":
    """``audit nonce``: the question of one audit."""
    from securetrain.report import checks

    nonce, expires = issue_nonce(sources, datetime.now(UTC))
    return checks.issued(nonce, expires)


def _pin(file: Path | None, key: str | None, used: "_Used") -> "Document":
    """``audit pins``: sign for what is used now."""
    from securetrain.audit import pins_of, sign_pins
    from securetrain.cli.passphrase import asker
    from securetrain.core.files import write_atomic
    from securetrain.identity import open_signer
    from securetrain.report import checks

    if file is None or key is None:
        raise click.UsageError("securetrain audit pins --pins FILE --pins-key KEY")
    pins = pins_of(*used)
    write_atomic(file, sign_pins(pins, open_signer(key, asker(None))))
    return checks.pinned(pins, file)


def _unpinned(file: Path, key: str, used: "_Used") -> "list[tuple[str, str]]":
    from securetrain.audit import mismatches, pins_of
    from securetrain.cli.passphrase import asker
    from securetrain.core.files import read_file
    from securetrain.identity import read_public

    public = read_public(key, asker(None))
    return list(mismatches(read_file(file, 64 << 10), public, pins_of(*used), str(file)))


def _new(words: tuple[str, ...], folder: Path | None) -> "Document":
    """``audit new ID``: a check of one's own, with its fixtures, to be changed."""
    from securetrain.audit import scaffold
    from securetrain.report import checks

    match words:
        case ("new", check_id) if re.fullmatch(r"ST-[A-Z0-9]{3}-[0-9]{3}", check_id):
            return checks.scaffolded(scaffold(check_id, folder or Path("checks")))
        case ("new", *_):
            raise click.UsageError("securetrain audit new ID, with an ID as in ST-ABC-001")
        case ("nonce", *_):
            raise click.UsageError("securetrain audit nonce --nonce-store DIR, and no more words")
        case _:
            raise click.UsageError(f"unexpected words: {' '.join(words)}")


def _explained(check_id: str, checks: "Sequence[Check]") -> "Document":
    from securetrain.audit import NOT_JUDGED
    from securetrain.report import checks as answers

    for check in checks:
        if check.id == check_id.upper():
            return answers.explanation(check)
    if (one := NOT_JUDGED.get(check_id.upper())) is not None:
        return answers.unanswered(check_id.upper(), one)
    raise click.UsageError(f"there is no check {check_id}; securetrain audit --list shows them all")


def _refuse_endings(outputs: tuple[Path, ...]) -> None:
    """Before anything is collected: the ending of a file's name says its format."""
    from securetrain.report import ENDINGS

    for file in outputs:
        if file.suffix not in ENDINGS:
            raise click.UsageError(f"--out {file}: its name must end in {' '.join(ENDINGS)}")
