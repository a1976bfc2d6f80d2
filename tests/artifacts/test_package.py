# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The package's lazy names load in any order."""

import sys

import pytest

from tests.vocabulary import ran


@pytest.mark.parametrize("name", ["SaveContext", "Dataset", "verify_path"])
def test_a_name_loads_after_every_submodule(name):
    """A submodule called like a builtin once shadowed it inside the package."""
    program = (
        "import pkgutil, importlib, securetrain.artifacts as package\n"
        "for module in pkgutil.iter_modules(package.__path__):\n"
        "    importlib.import_module(f'securetrain.artifacts.{module.name}')\n"
        f"print(package.{name})\n"
    )
    ran([sys.executable, "-c", program])
