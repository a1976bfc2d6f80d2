# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import gc
import importlib
import sys

import pytest

from securetrain.launch.seams import import_hooks
from securetrain.launch.seams.import_hooks import PostImportFinder
from tests.vocabulary import refused


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "hooked_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("from hooked_package.inner import value\n")
    (folder / "inner.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "hooked_package"
    for name in [n for n in sys.modules if n.startswith("hooked_package")]:
        del sys.modules[name]


def test_a_patch_runs_right_after_the_module_and_before_its_importer_sees_it(package):
    calls = []

    def patch(module):
        calls.append(module.__name__)
        module.value = 2

    PostImportFinder({"hooked_package.inner": patch}).install()
    assert not calls
    assert importlib.import_module(package).value == 2
    assert calls == ["hooked_package.inner"]
    spec = sys.modules["hooked_package.inner"].__spec__
    assert spec is not None
    assert str(spec.origin).endswith("inner.py")


def test_a_module_that_is_loaded_already_is_patched_at_once(package):
    module = importlib.import_module("hooked_package.inner")
    PostImportFinder({"hooked_package.inner": lambda m: setattr(m, "value", 3)}).install()
    assert module.value == 3


def test_a_failing_patch_fails_the_import(package):
    def patch(module):
        raise RuntimeError("no seam")

    PostImportFinder({"hooked_package.inner": patch}).install()
    for _ in range(2):  # it does not slip through the second time either
        refused(RuntimeError, "no seam", importlib.import_module, package)
        assert "hooked_package.inner" not in sys.modules


def test_other_modules_are_left_alone(package):
    finder = PostImportFinder({"not_there": lambda _: None})
    finder.install()
    assert finder.find_spec("hooked_package", None) is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_there")
    assert importlib.import_module(package).value == 1


@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_while_a_large_module_is_imported(package, monkeypatch, collects):
    monkeypatch.setattr(import_hooks, "_LARGE", frozenset({package}))
    seen = []
    PostImportFinder({"hooked_package.inner": lambda _: seen.append(gc.isenabled())}).install()
    (gc.enable if collects else gc.disable)()
    try:
        importlib.import_module(package)
        assert (seen, gc.isenabled()) == ([False], collects)
    finally:
        gc.enable()
