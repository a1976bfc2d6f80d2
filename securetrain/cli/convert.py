# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain convert OLD NEW``: a checkpoint of torch's own format, made into a signed one."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from securetrain.cli.passphrase import asker, secret_option
from securetrain.cli.progress import progress_bar

EPILOG: Final = """\
\b
Examples:
  securetrain convert old/step-100 checkpoints/step-100 --key checkpoint.pem --run r1 --step 100
  securetrain convert dcp-folder new-folder --key 'pkcs11:token=t;object=ckpt' --json

\b
OLD is read with everything that is known against it: the scanner looks at every pickle first, its
index is read by an allow-list of 13 globals, values by torch's weights-only unpickler. Nothing in
OLD runs. What cannot be seen is whether OLD is what was once saved: it was never signed. Who
converts it vouches for it.

\b
Exit codes: 0 converted and signed; 2 a value or tensor that the format cannot hold; 14 a link or a
special file; 19 unsafe content, or not such a checkpoint; 20 unreadable, or NEW exists.
"""


@click.command(name="convert", epilog=EPILOG)
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--key", "key_name", required=True, help="Checkpoint key: a file or a pkcs11: URI.")
@secret_option
@click.option("--run", "run_id", default="", help="The run that the statement names.")
@click.option("--step", type=click.IntRange(min=0), default=0, help="The step that it names.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    *,
    old: Path,
    new: Path,
    key_name: str,
    passphrase_file: Path | None,
    run_id: str,
    step: int,
    as_json: bool,
) -> int:
    """Convert the torch.distributed.checkpoint OLD into the signed checkpoint NEW."""
    from securetrain.artifacts.context import SaveContext
    from securetrain.core.errors import UsageError
    from securetrain.core.text import printable
    from securetrain.identity.signers import open_signer

    try:
        from securetrain.artifacts.checkpoint.legacy import convert
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "ST-USAG-004", "torch is not installed", "torch", "pip install 'securetrain[train]'"
        ) from error

    key = open_signer(key_name, asker(passphrase_file))
    context = SaveContext(
        run_id=run_id,
        step=step,
        created=datetime.now(UTC),
        code={"converted": "torch.distributed.checkpoint"},
    )
    with progress_bar("scanning") as progress:
        saved = convert(old, new, key=key, context=context, progress=progress)
    facts = {"path": str(new), "digest": saved.digest, "key_id": key.key_id}
    if as_json:
        click.echo(json.dumps(facts, indent=2, sort_keys=True))
        return 0
    click.echo(f"converted {printable(str(old))} into {printable(str(new))}")
    click.echo(f"digest {saved.digest}")
    return 0
