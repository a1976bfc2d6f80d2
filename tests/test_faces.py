# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The faces of the rooms load, and load no more than they may.

import-linter holds that other rooms import from nowhere else, and ``tools/gates`` that the names
are those of ``faces.json`` and that each has a reader in another room.
"""

import doctest
import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PINNED = json.loads((ROOT / "tests" / "faces.json").read_text("utf-8"))
FACES = PINNED["faces"]


@pytest.mark.parametrize("name", FACES)
def test_the_names_of_a_face_are_pinned_and_load(name):
    module = importlib.import_module(name)
    assert sorted(module.__all__) == FACES[name]
    for public in module.__all__:
        assert getattr(module, public) is not None
    with pytest.raises(AttributeError):
        module.nothing  # noqa: B018


def test_the_examples_of_the_faces_run(subtests, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ran = 0
    for face in FACES:
        text = importlib.import_module(face).__doc__ or ""
        example = doctest.DocTestParser().get_doctest(text, {}, face, None, 0)
        said: list[str] = []
        with subtests.test(face):
            result = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
            assert result.failed == 0, "".join(said)
            ran += result.attempted > 0
    assert ran > len(FACES) / 2


def _loaded(statement):
    out = subprocess.run(
        [sys.executable, "-c", f"import sys; {statement}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(out.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import securetrain.rendezvous.member",
        "from securetrain.rendezvous.member import Carrier, get_creator, load_identity",
        "from securetrain.rendezvous.member.client import Member",
    ],
)
def test_a_member_loads_no_verifier(statement):
    loaded = _loaded(statement)
    assert not {name for name in loaded if name.startswith("securetrain.rendezvous.coordinator.")}
    assert not {name for name in loaded if name.startswith("securetrain.attest.fleet.")}
    verifiers = ("verifier", "appraisers", "state")
    assert not {f"securetrain.attest.session.{name}" for name in verifiers} & loaded
    assert "securetrain.evidence.node_appraiser" not in loaded


def test_a_face_loads_only_what_is_taken_from_it():
    loaded = _loaded("from securetrain.artifacts import verify_path")
    assert "securetrain.artifacts.verify" in loaded
    assert not {"torch", "numpy", "securetrain.artifacts.checkpoint.save"} & loaded
