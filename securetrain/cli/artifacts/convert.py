# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain convert OLD NEW``: a checkpoint of torch's own format, made into a signed one; or a
signed one, made into what other tools read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.options import AT_LEAST_0, JOB, KEY, KEY_FORMS, TRUST, Key, SubjectOptions
from securetrain.cli.progress import progress_bar
from securetrain.report import Document

if TYPE_CHECKING:
    from securetrain.identity.keys import Signer


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKey(Key):
    """The key that signs checkpoints."""

    key: Annotated[str, KEY.told(f"Checkpoint key: {KEY_FORMS}.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The words of the statement of NEW."""

    run_id: Annotated[str, Option("--run")] = ""
    """The run that the statement names."""
    name: Annotated[str, Option("--name")] = ""
    """The name that NEW bears. Default: OLD's, or the run's."""
    step: Annotated[int, Option("--step", type=AT_LEAST_0)] = 0
    """The step that it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The form that other tools read."""

    to: Annotated[Literal["securetrain", "hf"], Option("--to")] = "securetrain"
    """What NEW becomes."""
    job: Annotated[Path | None, JOB]
    """--to hf: the job that made OLD."""
    trust: Annotated[Path | None, TRUST]
    """--to hf: the trust root that verifies OLD."""
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], Option("--dtype")] = "float32"
    """--to hf: the type in which tensors are stored."""


@verb("convert")
def command(
    *,
    old: Path,
    new: Path,
    key: CheckpointKey,
    saved: Saved,
    exported: Exported,
    expect: SubjectOptions,
) -> Document:
    r"""Convert the torch.distributed.checkpoint OLD into the signed checkpoint NEW; or the signed
    checkpoint OLD into a directory that other tools read.

    Examples:
      securetrain convert old/step-100 checkpoints/step-100 --key checkpoint.pem --run r1 --step 100
      securetrain convert dcp-folder new-folder --key 'pkcs11:token=t;object=ckpt' --json
      securetrain convert runs/r1/checkpoints/step-00000400 my-model --to hf --job job.yaml \
          --trust runs/r1/trust.json --key checkpoint.pem --dtype bfloat16

    Without --to, OLD is read with every precaution: the scanner looks at every pickle first, its
    index is read by an allow-list of 13 globals, values by torch's weights-only unpickler. Nothing
    in OLD runs. Nothing shows that OLD is what was once saved: it was never signed. By converting
    it you vouch for it.

    With --to hf, OLD is a checkpoint of the built-in trainer, verified like any other; NEW gets its
    weights as safetensors under the names of Hugging Face's Llama, config.json, and the tokenizer
    of the model that --job fine-tunes, if it does. --job gives the model's sizes.

    Exit codes: 0 converted and signed; 2 a value or tensor that the format cannot hold; 14 a link
    or a special file; 19 unsafe content, or not such a checkpoint; 20 unreadable, or NEW exists.
    """
    from securetrain.artifacts import SaveContext
    from securetrain.core.errors import UsageError
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

    signer, expected = key.signer(), expect.expectation
    if exported.to == "hf":
        digest = _to_hf(old, new, signer, exported, name=saved.name, expect=expected)
        return signatures.converted(old, new, digest, signer.key_id)
    if expected is not None:
        raise UsageError(
            "ST-USAG-001",
            "OLD was never signed, so it can meet no --expect-...",
            str(old),
            "leave it out, or convert a signed checkpoint with --to hf",
        )
    context = SaveContext(
        run_id=saved.run_id,
        name=saved.name,
        step=saved.step,
        created=now(),
        code={"converted": "torch.distributed.checkpoint"},
    )
    with progress_bar("scanning") as progress:
        made = convert(old, new, key=signer, context=context, progress=progress)
    return signatures.converted(old, new, made.digest, signer.key_id)


def _to_hf(old: Path, new: Path, key: "Signer", asked: Exported, **more: Any) -> str:
    from securetrain.core.errors import UsageError
    from securetrain.identity import load_trust
    from securetrain.train import export_trained

    if asked.job is None or asked.trust is None:
        raise UsageError(
            "ST-USAG-001",
            "a model's sizes stand in its job, and the signers of checkpoints in a trust root",
            "--to hf",
            "give --job job.yaml and --trust trust.json",
        )
    at = now()
    trust, more = load_trust(asked.trust, at), {**more, "dtype": asked.dtype}
    return export_trained(old, new, asked.job, trust=trust, key=key, now=at, **more).digest
