# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain scan PATH``: find out what loaders of the files in there would do.

Never imports torch and never loads what it looks at.
"""

from pathlib import Path
from typing import Annotated

from securetrain.cli.command import Argument, Option, verb
from securetrain.cli.progress import progress_bar
from securetrain.report import Document


@verb("scan", formats=("sarif", "junit"), text="What to print on standard output.")
def command(
    *,
    paths: Annotated[tuple[Path, ...], Argument(metavar="PATH...", required=True)],
    opcodes: Annotated[bool, Option("--opcodes", "Also list every global and count every opcode.")],
) -> Document:
    """Look for what loaders would run, call or read in the files or directories PATH.

    Examples:
      securetrain scan model.pt
      securetrain scan checkpoints/step-100 --opcodes
      securetrain scan ./downloaded-model --format sarif > scan.sarif

    Every loader that a file's name, bytes or configuration invites is asked for, and the worst
    answer counts. Known are: pickles (torch.save old and new, torch.distributed.checkpoint's
    .metadata and every item at the place that it names, joblib, numpy), safetensors, TorchScript
    and torch.export, and all of that in zip, tar, gzip, bzip2, xz and zlib files; values in JSON,
    YAML, INI and checkpoints that a loader would call (_target_, _instantiator, auto_map, skops);
    Keras layers, in HDF5 too; Jinja templates, in GGUF too; operators and outside data of ONNX;
    notebooks. A global passes when it is on the allow-list of names that only build values. It is
    no verdict on the origin of a file: 'securetrain verify' is.

    Exit codes: 0 something was scanned and nothing found; 3 nothing could be scanned, or something
    is of a kind that is not known here or could not be judged; 14 a link or special file; 19 unsafe
    content; 20 unreadable.
    """
    from securetrain import scan
    from securetrain.report import verification

    with progress_bar("scanning") as progress:
        result = scan(paths, progress=progress)
    return verification.scan(result, opcodes=opcodes)
