# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain convert OLD NEW``: a checkpoint of torch's own format, made into a signed one; or a
signed one, made into what other tools read.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from securetrain.cli.options import (
    KEY_FORMS,
    TRUST_VARIABLE,
    expect_options,
    file_argument,
    file_option,
    json_option,
    secret_option,
)
from securetrain.cli.passphrase import asker
from securetrain.cli.progress import progress_bar
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.artifacts import Expectation
    from securetrain.identity.keys import Signer

EPILOG: Final = """\
\b
Examples:
  securetrain convert old/step-100 checkpoints/step-100 --key checkpoint.pem --run r1 --step 100
  securetrain convert dcp-folder new-folder --key 'pkcs11:token=t;object=ckpt' --json
  securetrain convert runs/r1/checkpoints/step-00000400 my-model --to hf --job job.yaml \\
      --trust runs/r1/trust.json --key checkpoint.pem --dtype bfloat16

\b
Without --to, OLD is read with every precaution: the scanner looks at every pickle first, its index
is read by an allow-list of 13 globals, values by torch's weights-only unpickler. Nothing in OLD
runs. Nothing shows that OLD is what was once saved: it was never signed. By converting it you vouch
for it.

\b
With --to hf, OLD is a checkpoint of the built-in trainer, verified like any other; NEW gets its
weights as safetensors under the names of Hugging Face's Llama, config.json, and the tokenizer of
the model that --job fine-tunes, if it does. --job gives the model's sizes.

\b
Exit codes: 0 converted and signed; 2 a value or tensor that the format cannot hold; 14 a link or a
special file; 19 unsafe content, or not such a checkpoint; 20 unreadable, or NEW exists.
"""


@click.command(name="convert", epilog=EPILOG)
@file_argument("old")
@file_argument("new")
@click.option("--key", "key_name", required=True, help=f"Checkpoint key: {KEY_FORMS}.")
@secret_option
@click.option("--run", "run_id", default="", help="The run that the statement names.")
@click.option("--name", default="", help="The name that NEW bears. Default: OLD's, or the run's.")
@click.option("--step", type=click.IntRange(min=0), default=0, help="The step that it names.")
@click.option("--to", "target", type=click.Choice(["securetrain", "hf"]), default="securetrain")
@file_option("--job", help="--to hf: the job that made OLD.")
@file_option(
    "--trust",
    "trust_file",
    envvar=TRUST_VARIABLE,
    help="--to hf: the trust root that verifies OLD.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    help="--to hf: the type in which tensors are stored.",
)
@expect_options
@json_option
def command(
    *,
    old: Path,
    new: Path,
    key_name: str,
    passphrase_file: Path | None,
    run_id: str,
    name: str,
    step: int,
    target: str,
    job: Path | None,
    trust_file: Path | None,
    dtype: str,
    expect: "Expectation | None",
    output: str,
) -> int:
    """Convert the torch.distributed.checkpoint OLD into the signed checkpoint NEW; or the signed
    checkpoint OLD into a directory that other tools read.
    """
    from securetrain.artifacts.statement import SaveContext
    from securetrain.core.errors import UsageError
    from securetrain.identity import open_signer
    from securetrain.report import signatures

    try:
        from securetrain.artifacts import convert
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from securetrain.core import install_hint

        raise UsageError(
            "ST-USAG-004", "torch is not installed", "torch", install_hint("train")
        ) from error

    key = open_signer(key_name, asker(passphrase_file))
    if target == "hf":
        asked = {"dtype": dtype, "name": name, "expect": expect}
        digest = _to_hf(old, new, key, job=job, trust_file=trust_file, **asked)
        return emit(signatures.converted(old, new, digest, key.key_id), output)
    if expect is not None:
        raise UsageError(
            "ST-USAG-001",
            "OLD was never signed, so it can meet no --expect-...",
            str(old),
            "leave it out, or convert a signed checkpoint with --to hf",
        )
    context = SaveContext(
        run_id=run_id,
        name=name,
        step=step,
        created=datetime.now(UTC),
        code={"converted": "torch.distributed.checkpoint"},
    )
    with progress_bar("scanning") as progress:
        saved = convert(old, new, key=key, context=context, progress=progress)
    return emit(signatures.converted(old, new, saved.digest, key.key_id), output)


def _to_hf(
    old: Path,
    new: Path,
    key: "Signer",
    *,
    job: Path | None,
    trust_file: Path | None,
    **asked: Any,
) -> str:
    from securetrain.core.errors import UsageError
    from securetrain.identity import load_trust
    from securetrain.train import export, load_job, open_weights, shape_of, trust_of_inputs

    if job is None or trust_file is None:
        raise UsageError(
            "ST-USAG-001",
            "a model's sizes stand in its job, and the signers of checkpoints in a trust root",
            "--to hf",
            "give --job job.yaml and --trust trust.json",
        )
    now = datetime.now(UTC)
    trust = load_trust(trust_file, now)
    described = load_job(job)
    inputs = trust_of_inputs(described, trust, now)
    sized, base = open_weights(described, str(job), trust=inputs, policy=None, now=now)
    made = export(old, new, shape_of(sized), trust=trust, key=key, now=now, base=base, **asked)
    return made.digest
