# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain schema KIND``: the JSON Schema of the files that people write, for their editor."""

from pathlib import Path
from typing import Final

import click

from securetrain.cli.options import file_option

EPILOG: Final = """\
\b
Examples:
  securetrain schema policy
  securetrain schema policy --out policy.schema.json
  securetrain schema job --out job.schema.json

\b
Editors that know JSON Schema for YAML take the first line of a file:
  # yaml-language-server: $schema=policy.schema.json

\b
A file that the schema accepts may still be refused: securetrain policy lint FILE and securetrain
plan FILE say all of it.
"""


@click.command(name="schema", epilog=EPILOG)
@click.argument("kind", type=click.Choice(["policy", "job"]))
@file_option("--out", help="Where it is written; an older one is replaced. Default: printed.")
def command(*, kind: str, out: Path | None) -> int:
    """Print the JSON Schema (2020-12) of policy files or job files."""
    if kind == "policy":
        from securetrain.policy import policy_schema as schema_of
    else:
        from securetrain.train import job_schema as schema_of
    from securetrain.core import schema_text

    text = schema_text(schema_of())
    if out is None:
        click.echo(text, nl=False)
    else:
        from securetrain.core.files import write_atomic

        write_atomic(out, text.encode())
    return 0
