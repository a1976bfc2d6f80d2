# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain threats verify``: check that what the threat models claim is there."""

from datetime import UTC, datetime
from pathlib import Path

import click

from securetrain.cli.options import json_option
from securetrain.report import emit

EPILOG = """\
\b
Examples:
  securetrain threats verify
  securetrain threats verify training-cluster --json
  securetrain threats verify our-site.yaml

\b
Exit codes: 0 everything that the models refer to exists; 1 something dangles; 2 a model is
malformed; 3 nothing dangles, but the tests are not installed here and were not looked at.
"""


@click.group(name="threats", epilog=EPILOG)
def command() -> None:
    """Check that threat models are backed by checks, code, drills and tests."""


@command.command(name="verify")
@click.argument("models", nargs=-1)
@json_option
def verify(models: tuple[str, ...], output: str) -> int:
    """Follow every threat to its controls, checks, codes, enforcing code, drills and tests.

    MODELS are files or names of shipped models. Without any, all shipped models are verified, and
    refusal codes, checks and drills that none of them cites are problems too.
    """
    import securetrain
    from securetrain.audit import load_checks
    from securetrain.drills import DRILLS
    from securetrain.threats import SourceTree, load_model, locate, page, shipped_models
    from securetrain.threats import verify as verify_models

    paths = [locate(name) for name in models] or list(shipped_models())
    report = verify_models(
        [load_model(path) for path in paths],
        load_checks(),
        DRILLS,
        SourceTree.of(Path(securetrain.__file__).parent),
        datetime.now(UTC).date(),
        complete=not models,
    )
    return emit(page(report), output)
