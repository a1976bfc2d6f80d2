# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain run``: start a training script under a policy.

Every argument goes to the launcher as it is: most of them are torchrun's or the script's own.
"""

import click


@click.command(
    "run",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Start a training script under a policy (every torchrun flag works)."""
    from securetrain.launch import main

    return main(list(arguments))
