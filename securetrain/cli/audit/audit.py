# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain audit``: collect facts about this node, judge them against a policy, show both.

Never imports torch and needs no root; what it may not read is unknown. The only processes that it
starts are helm and kustomize, behind walls, and none with ``--no-render``.
"""

from dataclasses import dataclass
from typing import Annotated

import click

from securetrain.cli.audit.options import SPREAD, Accepted, Display, Own, SourceOptions, explained
from securetrain.cli.clock import now
from securetrain.cli.command import Argument, Option, Output, verb
from securetrain.cli.kinds import SpreadingCommand
from securetrain.cli.options import POLICY
from securetrain.cli.progress import progress_bar
from securetrain.report import Document


class _Command(SpreadingCommand):
    SPREAD = SPREAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The checks themselves, as they are shown."""

    list: Annotated[bool, Option("--list")]
    """Show the checks and end."""
    explain: Annotated[str | None, Option("--explain", metavar="ID")]
    """Show one check: why, and what makes it pass."""


@verb("audit", formats=("sarif", "junit", "html", "markdown"), cls=_Command)
def command(
    *,
    words: Annotated[tuple[str, ...], Argument(metavar="[new ID | nonce | pins]")],
    sources: SourceOptions,
    policy: Annotated[str, POLICY] = "baseline",
    judging: Accepted,
    shown: Display,
    own: Own,
    catalogue: Catalogue,
    output: Output,
) -> Document:
    r"""Check hosts, manifests, scripts, Slurm and storage against a policy before a job runs.

    Examples:
      securetrain audit --node
      securetrain audit --node --policy dev
      securetrain audit --node --job job.yaml --checkpoint runs/r1/checkpoints --trust trust.json
      securetrain audit -f jobs/*.yaml charts/trainer /etc/exports --slurm /etc/slurm
      securetrain audit -f charts/trainer --values charts/trainer/values-prod.yaml
      securetrain audit --run runs/r1 --trust trust.json --inventory inventory.yaml
      securetrain audit --node --save-facts node-a.json
      securetrain audit --node --save-facts node-a.json --sign-key node-a.key --nonce 4f1a...
      securetrain audit --facts node-a.json --unsigned --policy hardened --waivers waivers.yaml \
          --json
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
      securetrain audit --node --policy site.yaml --checks checks/ --pins audit.pins \
          --pins-key me.pub

    States: pass, fail, unknown (evidence missing: never a pass), not-applicable, waived.

    Exit codes: 0 clean; 1 a finding at or above host.fail_on of the policy; 2 bad policy, waiver
    file or command line; 3 a check unknown, or a file not understood, that weighs host.fail_on;
    more checks of one asset unknown than host.max_unknown; nothing judged; 4 facts not to rely on
    (malformed, unsigned, by another host's key, from the future, older than a day). The first that
    holds of 4, 2, 1, 3 counts.
    """
    from securetrain.audit import (
        Advisories,
        Baseline,
        NonceStore,
        audit,
        load_checks,
        read_waivers,
    )
    from securetrain.policy import load_policy
    from securetrain.report import checks as answers
    from securetrain.report import findings

    sources.check()
    if words == ("nonce",):
        if sources.stored.nonce_store is None:
            raise click.UsageError("securetrain audit nonce --nonce-store DIR")
        return answers.issued(*NonceStore(sources.stored.nonce_store, now()).issue())
    if bool(own.pins) != bool(own.pins_key):
        raise click.UsageError("--pins FILE and --pins-key KEY go together")
    if words and words != ("pins",):
        return own.scaffold(words)
    checks = load_checks(beside=own.checks)
    if catalogue.list:
        return findings.catalogue(checks)
    if catalogue.explain is not None:
        return explained(catalogue.explain, checks)
    if judging.new_only and judging.baseline is None:
        raise click.UsageError("--new-only needs --baseline FILE")
    shown.check()
    loaded = load_policy(policy)
    advisories = Advisories.read(own.advisories) if own.advisories else None
    used = (loaded.policy, checks, advisories)
    if words:
        return own.pin(*used)
    waivers = read_waivers(judging.waivers) if judging.waivers else None
    baseline = Baseline.read(judging.baseline) if judging.baseline else None
    at = now()
    with progress_bar("reading files", counts=True, quiet=output.quiet) as progress:
        facts = sources.facts(loaded, checks, at, progress)
    with progress_bar("judging", counts=True, quiet=output.quiet) as progress:
        result = audit(
            facts,
            checks,
            loaded.policy,
            at,
            waivers=waivers,
            advisories=advisories,
            unpinned=own.unpinned(*used),
            progress=progress,
        )
    if baseline is not None:
        result = baseline.compare(result, loaded.policy, new_only=judging.new_only)
    return shown.write(result, checks, loaded.policy)
