# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain schema KIND``: the JSON Schema of the files that people write, for their editor."""

from pathlib import Path
from typing import Annotated, Literal

import click

from securetrain.cli.command import verb
from securetrain.cli.options import OUT


@verb("schema", json="")
def command(
    *,
    kind: Literal["policy", "job"],
    out: Annotated[
        Path | None,
        OUT.told("Where it is written; an older one is replaced. Default: printed."),
    ],
) -> int:
    """Print the JSON Schema (2020-12) of policy files or job files.

    Examples:
      securetrain schema policy
      securetrain schema policy --out policy.schema.json
      securetrain schema job --out job.schema.json

    Editors that know JSON Schema for YAML take the first line of a file:
      # yaml-language-server: $schema=policy.schema.json

    A file that the schema accepts may still be refused: 'securetrain policy lint' and 'securetrain
    plan' say all of it.
    """
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
