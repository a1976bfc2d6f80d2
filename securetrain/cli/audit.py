# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain audit``: collect facts about this node, judge them against a policy, show both.

Never imports torch, starts no process and needs no root; what it may not read is unknown.
"""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.options import file_option, format_options
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.audit import Facts

EPILOG: Final = """\
\b
Examples:
  securetrain audit --node
  securetrain audit --node --policy dev
  securetrain audit --node --save-facts node-a.json
  securetrain audit --facts node-a.json --policy hardened --waivers waivers.yaml --json
  securetrain audit --facts nodes/
  securetrain audit --list

\b
States: pass, fail, unknown (evidence missing: never a pass), not-applicable, waived.

\b
Exit codes: 0 clean; 1 a finding at or above host.fail_on of the policy; 2 bad policy, waiver file
or command line; 3 more checks of one node unknown than host.max_unknown; 4 facts not to rely on
(malformed, from the future, older than a day). The first that holds of 4, 2, 1, 3 counts.
"""


@click.command(name="audit", epilog=EPILOG)
@click.option("--node", is_flag=True, help="Collect facts about this node and judge them.")
@click.option(
    "--facts",
    "facts_path",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="Judge facts that were saved before, here or elsewhere: a file, or a folder's *.json.",
)
@file_option(
    "--save-facts",
    help="Also write the collected facts (names, owners and modes; no secret's value).",
)
@click.option(
    "--policy",
    "policy_name",
    default="baseline",
    show_default=True,
    help="A policy by name or file.",
)
@file_option("--waivers", "waivers_file", help="File of the failures that are accepted.")
@click.option("--list", "list_only", is_flag=True, help="Show the checks and end.")
@format_options()
def command(
    *,
    node: bool,
    facts_path: Path | None,
    save_facts: Path | None,
    policy_name: str,
    waivers_file: Path | None,
    list_only: bool,
    output: str,
) -> int:
    """Check this host against a policy before a job runs on it."""
    from securetrain.audit import audit, load_checks, read_waivers
    from securetrain.policy import load_policy
    from securetrain.report import findings

    checks = load_checks()
    if list_only:
        return emit(findings.catalogue(checks), output)
    if node == (facts_path is not None):
        raise click.UsageError("give either --node or --facts PATH")
    if save_facts is not None and not node:
        raise click.UsageError("--save-facts needs --node")
    policy = load_policy(policy_name).policy
    waivers = read_waivers(waivers_file) if waivers_file else None
    now = datetime.now(UTC)
    facts = _facts(facts_path, save_facts, now)
    result = audit(facts, checks, policy, now, waivers=waivers)
    unknown_skips = set(policy.host.skip_checks) - {check.id for check in checks}
    return emit(findings.findings(result, unknown_skips), output)


def _facts(given: Path | None, save: Path | None, now: datetime) -> "Facts":
    from securetrain.audit import collect_node, facts_of, read_facts
    from securetrain.core.files import PRIVATE_FILE, write_atomic

    if given is not None:
        return read_facts(given)
    facts = collect_node(os.environ, now=now, search_path=_job_search_path())
    if save is not None:
        write_atomic(save, facts.to_json(), mode=PRIVATE_FILE)
    return facts_of([facts])


def _job_search_path() -> list[str]:
    """Return this process's search path without the directory of this program, as a job sees it."""
    return [entry for entry in sys.path if entry and Path(entry) != Path(sys.argv[0]).parent]
