# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The loaders themselves, as a judge of what a file makes them run.

``python -m tools.scan_corpus.oracle MARKER`` reads paths from standard input, a line each, and
answers each with the loaders that made the folder `MARKER`, as JSON; to ``absent`` it answers with
the loaders that are not installed, and were not asked. Every file is loaded in a child of its own,
in an empty folder, without a network, with bounds on its time, its memory and what it writes. The
files are our own crafted ones: they make the marker, and do nothing else. ``export PATH`` writes a
graph by torch.export itself.
"""

import ctypes
import importlib
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
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np
import torch
import yaml

SECONDS: Final = 10
MEMORY: Final = 8 << 30
WRITTEN: Final = 64 << 20
IMPORTED: Final = "ranhere"
"""A module that makes the marker when it is imported, and has a class ``Thing``."""
NO_SANDBOX: Final = 9
ALONE: Final = 0x1000_0000 | 0x4000_0000
"""A user namespace and a network namespace of its own (sched.h)."""


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


def _keras(path: Path) -> None:
    keras: Any = importlib.import_module("keras")
    if path.suffix == ".json":
        keras.config.enable_unsafe_deserialization()
        keras.models.model_from_json(path.read_text())
    else:
        keras.models.load_model(path, safe_mode=False)


def _hydra(path: Path) -> None:
    omegaconf: Any = importlib.import_module("omegaconf")
    found = omegaconf.OmegaConf.load(path)
    omegaconf.OmegaConf.to_container(found, resolve=True)
    utils: Any = importlib.import_module("hydra.utils")
    for one in [found, *(found.values() if hasattr(found, "values") else ())]:
        with suppress(Exception):
            utils.instantiate(one)


def _spacy(path: Path) -> None:
    util: Any = importlib.import_module("spacy.util")
    util.load_model_from_config(util.load_config(path), auto_fill=True)


def _sentences(path: Path) -> None:
    shutil.copy(path, path.name)
    _named("sentence_transformers").SentenceTransformer(str(Path.cwd()), device="cpu")


def _named(module: str) -> Any:
    return importlib.import_module(module)


def _folder(module: str, name: str) -> Callable[[Path], Any]:
    """What loads a folder that has a file of this name in it."""

    def load(path: Path) -> Any:
        found: Any = importlib.import_module(module)
        shutil.copy(path, path.name)
        return getattr(found, name).from_pretrained(".")

    return load


LOADERS: Final[dict[str, tuple[str, str, Callable[[Path], Any]]]] = {
    "pickle.load": ("pickle", "", lambda path: pickle.loads(path.read_bytes())),  # noqa: S301
    "torch.load": ("torch", "", lambda path: torch.load(path, weights_only=False)),
    "torch.export.load": ("torch", "", _export),
    "torch.jit.load": ("torch", "", _script),
    "numpy.load": (
        "numpy",
        "",
        lambda path: [
            found[name] if isinstance(found, np.lib.npyio.NpzFile) else found
            for found in [np.load(path, allow_pickle=True)]
            for name in getattr(found, "files", [""])
        ],
    ),
    "zipfile": ("zipfile", "", _unzip),
    "tarfile": ("tarfile", "", _untar),
    "yaml.unsafe_load": ("yaml", "", _yaml),
    "jinja2": ("jinja2", "", _render),
    "safetensors": ("safetensors", "", lambda path: _named("safetensors.numpy").load_file(path)),
    "onnx": ("onnx", "", lambda path: _named("onnx").load(path)),
    "joblib": ("joblib", "", lambda path: _named("joblib").load(path)),
    "keras": ("keras", ".json .keras .h5", _keras),
    "hydra": ("hydra", ".yaml .yml .json", _hydra),
    "peft": ("peft", ".json", _folder("peft", "AutoPeftModel")),
    "spacy": ("spacy", ".cfg", _spacy),
    "transformers": ("transformers", ".json", _folder("transformers", "AutoTokenizer")),
    "transformers.AutoConfig": ("transformers", ".json", _folder("transformers", "AutoConfig")),
    "diffusers": ("diffusers", ".json", _folder("diffusers", "DiffusionPipeline")),
    "sentence-transformers": ("sentence_transformers", ".json", _sentences),
}
"""The loaders, each with its package and the suffixes that it is asked of; none is every one."""


def loaded_by(path: Path, marker: Path) -> list[str]:
    """The loaders that make the marker of a file."""
    ran = []
    for name in LOADERS.keys() - absent():
        if LOADERS[name][1] and path.suffix not in LOADERS[name][1].split():
            continue
        with tempfile.TemporaryDirectory(dir=marker.parent) as folder:
            _in_a_child(name, path, Path(folder))
        if marker.exists() or marker.is_symlink():
            ran.append(name)
            shutil.rmtree(marker) if marker.is_dir() else marker.unlink()
    return ran


def absent() -> list[str]:
    """The loaders that are not installed."""
    return [name for name, (package, _, _) in LOADERS.items() if find_spec(package) is None]


def _in_a_child(name: str, path: Path, folder: Path) -> None:
    """Load a file.

    Raises:
        RuntimeError: nothing keeps the network from it.
    """
    child = os.fork()
    if child:
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == NO_SANDBOX:
            raise RuntimeError("no namespace without a network can be made: nothing was loaded")
        return
    try:
        os.chdir(folder)
        if ctypes.CDLL(None).unshare(ALONE):
            os._exit(NO_SANDBOX)
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (WRITTEN, WRITTEN))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        warnings.simplefilter("ignore")
        with suppress(BaseException):
            LOADERS[name][2](path)
    finally:
        os._exit(0)


def main() -> None:
    """Answer until there is nothing more to load."""
    marker = Path(sys.argv[1])
    os.environ |= {"KERAS_BACKEND": "torch", "HF_HUB_OFFLINE": "1"}
    torch.set_num_threads(1)
    made = f"import os\nos.mkdir({str(marker)!r})\nclass Thing: pass\n"
    (marker.parent / f"{IMPORTED}.py").write_text(made)
    sys.path.insert(0, str(marker.parent))
    warnings.simplefilter("ignore")
    for name in LOADERS.keys() - absent():
        importlib.import_module(LOADERS[name][0])
    for line in sys.stdin:
        path = Path(line.rstrip("\n").removeprefix("export "))
        if line.startswith("export "):
            graph = torch.export.export(
                torch.nn.Linear(2, 2),
                (torch.ones(3, 2),),
                dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=64)},),
            )
            torch.export.save(graph, path)
            answer: list[str] = []
        else:
            answer = absent() if line == "absent\n" else loaded_by(path, marker)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
