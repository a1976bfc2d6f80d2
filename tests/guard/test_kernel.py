# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Where the compiled kernel comes from: its own source, its own folder, and no other place."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securetrain.guard import kernel
from tests.vocabulary import refused
from tools.kernel import COMPILERS, FLAGS, LIBRARY, SOURCE, NoKernelError, compile_kernel

ROOT = Path(__file__).resolve().parents[2]

compiler = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="no C compiler: nothing to compile with"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A library, made once."""
    library = tmp_path_factory.mktemp("built") / "libsketch.so"
    compile_kernel(ROOT / SOURCE, library)
    return library


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder like the package's, with the source in it and no library yet."""
    shutil.copy(ROOT / SOURCE, tmp_path)
    monkeypatch.setattr(kernel, "LIBRARY", tmp_path / Path(LIBRARY).name)
    monkeypatch.setattr(kernel, "SOURCE", tmp_path / Path(SOURCE).name)
    kernel.load.cache_clear()
    yield tmp_path
    kernel.load.cache_clear()


@compiler
def test_a_library_of_this_source_is_used_and_named(installed, built):
    shutil.copy(built, kernel.LIBRARY)
    assert kernel.sketch_backend() in {f"native ({path})" for path in kernel.PATHS}
    assert sorted(p.name for p in installed.iterdir()) == ["libsketch.so", "sketch_kernel.c"]


def test_without_a_library_torch_is_named_with_the_reason(installed):
    assert kernel.load().kernel is None
    assert kernel.sketch_backend() == "torch (securetrain was installed without a compiler)"


@compiler
def test_a_library_of_another_source_is_not_used(installed, built):
    shutil.copy(built, kernel.LIBRARY)
    with kernel.SOURCE.open("a") as file:
        file.write("/* newer */\n")
    assert "another source" in kernel.sketch_backend()


@compiler
def test_a_link_and_what_is_no_library_are_not_loaded(installed, built):
    kernel.LIBRARY.symlink_to(built)
    assert kernel.load().kernel is None
    kernel.LIBRARY.unlink()
    kernel.LIBRARY.write_bytes(b"\x7fELF no library")
    kernel.load.cache_clear()
    assert "cannot be loaded" in kernel.sketch_backend()


PLANTED = """
#include <stdio.h>
__attribute__((constructor)) static void run(void) { fclose(fopen(PROOF, "w")); }
const char *securetrain_sketch_source(void) { return "planted"; }
"""

SKETCH = """
import torch
from securetrain.guard.sketch import SketchShape, derive, sketch
p = derive(b"s" * 32, "c", numel=9000, parts=1, shape=SketchShape())
print(float(sketch(torch.ones(9000), p).norm()) > 0)
"""


@compiler
def test_a_planted_library_is_never_loaded(tmp_path):
    """In the working directory, on the loader's path, in caches and by variables."""
    proof = tmp_path / "loaded"
    (tmp_path / "evil.c").write_text(PLANTED)
    cc = next(filter(None, map(shutil.which, COMPILERS)))
    home = tmp_path / "home"
    places = [
        tmp_path / "libsketch.so",
        tmp_path / "securetrain" / "guard" / "libsketch.so",
        *(home / ".cache" / name / "libsketch.so" for name in ("securetrain", "torch_extensions")),
    ]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        command = [cc, "-shared", "-fPIC", f'-DPROOF="{proof}"', "-o", place, tmp_path / "evil.c"]
        subprocess.run(command, check=True)
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "SECURETRAIN_KERNEL": str(places[0]),
        "OMP_NUM_THREADS": "1",
    }

    def python(code):
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, check=True)
        return done.stdout.decode().strip()

    assert python(SKETCH) == "True"
    assert not proof.exists()
    # The trap works: who loads by name gets what was planted.
    python("import ctypes; ctypes.CDLL('libsketch.so')")
    assert proof.exists()


def test_the_library_in_place_is_of_the_source_in_place():
    """Whoever changes the C source runs tools/kernel.py, or has torch's sketches."""
    kernel.load.cache_clear()
    assert "another source" not in kernel.sketch_backend(), "run: python tools/kernel.py"


# -- how it is made --------------------------------------------------------------------------------


@compiler
def test_the_source_has_no_warning(tmp_path):
    strict = ["-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", '-DSECURETRAIN_SOURCE="x"']
    cc = next(filter(None, map(shutil.which, COMPILERS)))
    command = [cc, *FLAGS, *strict, "-O1", "-o", str(tmp_path / "strict.so"), str(ROOT / SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@compiler
def test_two_builds_are_equal(built, tmp_path):
    shutil.copy(ROOT / SOURCE, tmp_path)
    compile_kernel(tmp_path / "sketch_kernel.c", tmp_path / "libsketch.so")
    assert built.read_bytes() == (tmp_path / "libsketch.so").read_bytes()


@compiler
def test_bad_arguments_reach_no_memory():
    found = kernel.load().kernel
    if found is None:
        pytest.skip(kernel.load().reason)
    add = found.library.securetrain_sketch
    for path, keys in ((0, 0), (0, 5), (-1, 1), (len(kernel.PATHS), 1)):
        assert add(path, None, 1, None, keys, None) == -1
    runs, out = np.zeros((1, 5), dtype=np.int64), np.zeros((1, 5, 256))
    refused(AssertionError, "5 keys", found.add, runs, np.zeros((5, 3), dtype=np.int64), out)


@pytest.mark.parametrize(
    ("cc", "why"),
    [("/nonexistent/cc", "did not run"), ("false", "failed"), ("true", "cannot be loaded")],
)
def test_a_compiler_that_is_none_leaves_no_library(tmp_path, monkeypatch, cc, why):
    monkeypatch.setenv("CC", cc)
    refused(NoKernelError, why, compile_kernel, ROOT / SOURCE, tmp_path / "libsketch.so")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoKernelError, match="none of cc, gcc, clang"):
        compile_kernel(ROOT / SOURCE, tmp_path / "libsketch.so")


@pytest.mark.parametrize("required", [False, True])
def test_a_build_that_requires_the_kernel_ends_without_one(monkeypatch, required):
    interface: Any = types.ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = object
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    hook = vars(_module(ROOT / "hatch_build.py"))["KernelHook"]()
    said: list[str] = []
    hook.root, hook.app = str(ROOT), types.SimpleNamespace(display_warning=said.append)
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("SECURETRAIN_KERNEL", "required" if required else "")
    data: dict[str, Any] = {"force_include": {}}
    if required:
        refused(Exception, "false failed", hook.initialize, "standard", data)
    else:
        hook.initialize("standard", data)
        assert "was not compiled" in said[0]
    hook._folder.cleanup()
    assert data == {"force_include": {}}, "and no wheel says that it has one"


def _module(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_distribution_has_what_it_is_built_from():
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    targets = hatch["build"]["targets"]
    assert "custom" in targets["wheel"]["hooks"]
    assert {"hatch_build.py", "tools/kernel.py"} <= set(targets["sdist"]["include"])
    assert LIBRARY in (ROOT / ".gitignore").read_text().split(), "never committed"
    assert kernel.LIBRARY == ROOT / LIBRARY
    assert kernel.SOURCE == ROOT / SOURCE


def test_the_kernel_is_the_packages_and_asks_for_nothing_but_c():
    if kernel.load().kernel is None:
        pytest.skip(kernel.load().reason)
    library = ctypes.CDLL(str(kernel.LIBRARY))
    for name in ("sketch", "add_word", "portable", "avx2"):
        assert not hasattr(library, name), "one function is public, and two that describe it"
