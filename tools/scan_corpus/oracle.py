# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The loaders themselves, as a judge of what a file makes them run.

``python -m tools.scan_corpus.oracle MARKER`` reads paths from standard input, a line each, and
answers each with the loaders that made the folder `MARKER`, as JSON. Every file is loaded in a
child of its own, in an empty folder, with bounds on its time, its memory and what it writes. The
files are our own crafted ones: they make the marker, and do nothing else. ``export PATH`` writes a
graph by torch.export itself.
"""

import io
import json
import os
import pickle
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np
import torch
import yaml

SECONDS: Final = 10
MEMORY: Final = 8 << 30
WRITTEN: Final = 64 << 20


def _export(path: Path) -> None:
    load: Any = torch.export.load
    load(io.BytesIO(path.read_bytes())).module()


def _script(path: Path) -> None:
    load: Any = torch.jit.load
    load(str(path))


def _unzip(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        archive.extractall()  # noqa: S202 - what it writes where is what is looked at


def _untar(path: Path) -> None:
    with tarfile.open(path) as archive:
        archive.extractall(filter="fully_trusted")  # noqa: S202


def _render(path: Path) -> None:
    """Render a template, or the one of a tokenizer's configuration."""
    text = path.read_text()
    if path.suffix != ".jinja":
        text = json.loads(text)["chat_template"]
    jinja2.Environment().from_string(text).render(messages=[{"role": "user"}])  # noqa: S701


def _yaml(path: Path) -> None:
    if path.suffix in (".yaml", ".yml", ".json", ""):
        yaml.unsafe_load(path.read_text())


LOADERS: Final[dict[str, Callable[[Path], Any]]] = {
    "pickle.load": lambda path: pickle.loads(path.read_bytes()),  # noqa: S301
    "torch.load": lambda path: torch.load(path, weights_only=False),
    "torch.export.load": _export,
    "torch.jit.load": _script,
    "numpy.load": lambda path: [
        found[name] if isinstance(found, np.lib.npyio.NpzFile) else found
        for found in [np.load(path, allow_pickle=True)]
        for name in getattr(found, "files", [""])
    ],
    "zipfile": _unzip,
    "tarfile": _untar,
    "yaml.unsafe_load": _yaml,
    "jinja2": _render,
}


def loaded_by(path: Path, marker: Path) -> list[str]:
    """The loaders that make the marker of a file."""
    ran = []
    for name in LOADERS:
        with tempfile.TemporaryDirectory(dir=marker.parent) as folder:
            _in_a_child(name, path, Path(folder))
        if marker.exists() or marker.is_symlink():
            ran.append(name)
            shutil.rmtree(marker) if marker.is_dir() else marker.unlink()
    return ran


def _in_a_child(name: str, path: Path, folder: Path) -> None:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.chdir(folder)
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (WRITTEN, WRITTEN))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        warnings.simplefilter("ignore")
        with suppress(BaseException):
            LOADERS[name](path)
    finally:
        os._exit(0)


def main() -> None:
    """Answer until there is nothing more to load."""
    marker = Path(sys.argv[1])
    torch.set_num_threads(1)
    for line in sys.stdin:
        path = Path(line.rstrip("\n").removeprefix("export "))
        if line.startswith("export "):
            graph = torch.export.export(
                torch.nn.Linear(2, 2),
                (torch.ones(3, 2),),
                dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=64)},),
            )
            torch.export.save(graph, path)
        print(json.dumps([] if line.startswith("export ") else loaded_by(path, marker)), flush=True)


if __name__ == "__main__":
    main()
