# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain policy``: lint, explain, sign and verify policies."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from securetrain.cli.options import file_argument, file_option, json_option, secret_option
from securetrain.cli.passphrase import asker
from securetrain.cli.signer_options import signer_options
from securetrain.report import emit

EPILOG = """\
\b
Examples:
  securetrain policy explain baseline
  securetrain policy explain my-policy.yaml --section checkpoint
  securetrain policy lint my-policy.yaml
  securetrain policy sign my-policy.yaml --key ops.pem
  securetrain policy verify my-policy.yaml --trust trust/root.json
"""


@click.group(name="policy", epilog=EPILOG)
def command() -> None:
    """Lint, explain, sign and verify policies."""


@command.command(name="lint")
@click.argument("file")
@json_option
def lint(file: str, output: str) -> int:
    """Report errors in a policy (exit code 2) and what is worth a second look (exit code 0).

    FILE is a policy file or the name of a shipped one.
    """
    from securetrain.audit import load_checks
    from securetrain.policy import lint_policy
    from securetrain.report import checks

    known = {check.id for check in load_checks()}
    remarks = lint_policy(file, today=datetime.now(UTC).date(), known_checks=known)
    return emit(checks.remarks(file, remarks), output)


@command.command(name="explain")
@click.argument("name_or_file")
@click.option("--section", help="One section, such as checkpoint or supply-chain.")
@json_option
def explain(name_or_file: str, section: str | None, output: str) -> int:
    """Show every field of a policy: its value, source, enforcer and meaning."""
    from securetrain.policy import explain as rows_of
    from securetrain.policy import load_policy
    from securetrain.report import checks

    loaded = load_policy(name_or_file)
    return emit(checks.fields(loaded, rows_of(loaded, section)), output)


@command.command(name="sign")
@file_argument("file")
@signer_options
@file_option("--out", help="Where the signature is written. Default: FILE.sig; it is replaced.")
@secret_option
@json_option
def sign(
    *, file: Path, key_name: str, out: Path | None, passphrase_file: Path | None, output: str
) -> int:
    """Sign the policy FILE, with all that it extends, for the role operator."""
    from securetrain.core.files import write_atomic
    from securetrain.identity import open_signer
    from securetrain.policy import beside, load_policy, sign_policy
    from securetrain.report import checks

    loaded = load_policy(str(file))
    key = open_signer(key_name, asker(passphrase_file))
    target = out or beside(file)
    write_atomic(target, sign_policy(file, loaded, key, datetime.now(UTC)))
    return emit(checks.signed(file, target, loaded.digest, key.key_id[:16]), output)


@command.command(name="verify")
@file_argument("file")
@file_option("--trust", "trust_path", required=True, help="The trust root: a file, or a folder.")
@file_option("--signature", help="Its signature. Default: FILE.sig.")
@click.option(
    "--max-age-days", type=click.IntRange(1), help="Refuse what was signed longer ago than this."
)
@json_option
def verify(
    *,
    file: Path,
    trust_path: Path,
    signature: Path | None,
    max_age_days: int | None,
    output: str,
) -> int:
    """Check that an operator has signed the policy FILE, with all that it extends."""
    from securetrain.identity import load_trust
    from securetrain.policy import beside, load_policy, verify_policy
    from securetrain.report import checks

    now = datetime.now(UTC)
    source = signature or beside(file)
    age = None if max_age_days is None else timedelta(days=max_age_days)
    trust = load_trust(trust_path, now)
    said, by = verify_policy(file, load_policy(str(file)), source, trust, now, max_age=age)
    names = ", ".join(sorted(one[:16] for one in by))
    return emit(checks.signed(file, source, said.digest, names), output)
