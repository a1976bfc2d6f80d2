# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lint, explain, sign and verify policies.

Examples:
  securetrain policy explain baseline
  securetrain policy explain my-policy.yaml --section checkpoint
  securetrain policy lint my-policy.yaml
  securetrain policy sign my-policy.yaml --key ops.pem
  securetrain policy verify my-policy.yaml --trust trust/root.json
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, VerbGroup, verb
from securetrain.cli.options import OUT, TRUST, KeyOrIdentity
from securetrain.report import Document

command = VerbGroup(__name__, __doc__, {"": ("lint", "explain", "sign", "verify")})


@verb()
def lint(*, file: str) -> Document:
    """Report errors in a policy (exit code 2) and what is worth a second look (exit code 0).

    FILE is a policy file or the name of a shipped one.
    """
    from securetrain.audit import load_checks
    from securetrain.policy import lint_policy
    from securetrain.report import checks

    known = {check.id for check in load_checks()}
    return checks.remarks(file, lint_policy(file, today=now().date(), known_checks=known))


@verb()
def explain(
    *,
    name_or_file: str,
    section: Annotated[
        str | None, Option("--section", "One section, such as checkpoint or supply-chain.")
    ],
) -> Document:
    """Show every field of a policy: its value, source, enforcer and meaning."""
    from securetrain.policy import explain as rows_of
    from securetrain.policy import load_policy
    from securetrain.report import checks

    loaded = load_policy(name_or_file)
    return checks.fields(loaded, rows_of(loaded, section))


@verb()
def sign(
    *,
    file: Path,
    key: KeyOrIdentity,
    out: Annotated[
        Path | None,
        OUT.told("Where the signature is written. Default: FILE.sig; it is replaced."),
    ],
) -> Document:
    """Sign the policy FILE, with all that it extends, for the role operator."""
    from securetrain.core.files import write_atomic
    from securetrain.policy import beside, load_policy, sign_policy
    from securetrain.report import checks

    key.check()
    loaded, signer = load_policy(str(file)), key.signer()
    target = out or beside(file)
    write_atomic(target, sign_policy(file, loaded, signer, now()))
    return checks.signed(file, target, loaded.digest, signer.key_id[:16])


@verb()
def verify(
    *,
    file: Path,
    trust: Annotated[Path, TRUST.told("The trust root: a file, or a folder.", env=None)],
    signature: Annotated[Path | None, Option("--signature", "Its signature. Default: FILE.sig.")],
    max_age_days: Annotated[
        int | None,
        Option("--max-age-days", "Refuse what was signed longer ago than this.", click.IntRange(1)),
    ],
) -> Document:
    """Check that an operator has signed the policy FILE, with all that it extends."""
    from securetrain.identity import load_trust
    from securetrain.policy import beside, load_policy, verify_policy
    from securetrain.report import checks

    at, source = now(), signature or beside(file)
    age = None if max_age_days is None else timedelta(days=max_age_days)
    root = load_trust(trust, at)
    said, by = verify_policy(file, load_policy(str(file)), source, root, at, max_age=age)
    names = ", ".join(sorted(one[:16] for one in by))
    return checks.signed(file, source, said.digest, names)
