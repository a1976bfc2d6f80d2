# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Frameworks that are absent or untested are refused before anything of them is imported."""

import importlib.metadata
import sys

import pytest

from securetrain.core.errors import UsageError
from securetrain.integrations import TESTED, framework
from tests.vocabulary import refused


def _installed(monkeypatch, found):
    """Make every distribution look like version `found`, or absent for None."""

    def version(name):
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize("name", TESTED)
def test_an_absent_framework_is_refused_with_what_to_install(name, monkeypatch):
    _installed(monkeypatch, None)
    error = refused(UsageError, "ST-USAG-004", framework, name)
    assert f"{name}=={TESTED[name]}" in error.fix


@pytest.mark.parametrize("found", ["0.0.1", "999.0.0", "not a version"])
def test_an_untested_version_is_refused_before_it_is_imported(found, monkeypatch):
    _installed(monkeypatch, found)
    monkeypatch.setitem(sys.modules, "accelerate", None)  # importing it would be an ImportError
    error = refused(UsageError, "ST-USAG-019", framework, "accelerate")
    assert found in str(error)


def test_another_patch_release_of_the_tested_series_is_taken(monkeypatch):
    _installed(monkeypatch, "1.15.7")
    stand_in = type(sys)("accelerate")
    monkeypatch.setitem(sys.modules, "accelerate", stand_in)
    assert framework("accelerate") is stand_in


def test_the_tested_versions_are_those_of_the_constraints():
    from pathlib import Path

    lines = Path(__file__).parents[2].joinpath("constraints.txt").read_text("utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert {name: pinned.get(name, version) for name, version in TESTED.items()} == TESTED
