# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the tests of frameworks share: keys, started jobs, and a place for what passed."""

import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from securetrain.artifacts import Dataset
from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.statement.statements import Opened, open_statement
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.core.hashtree import TreeParams
from securetrain.core.nodestate import STATE_VARIABLE
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from tests.vocabulary import outcome, trust_document
from tools.compatibility import section_of

ROOT = Path(__file__).resolve().parents[2]
STORIES = Path(__file__).with_name("frameworks")
RESULTS = Path(__file__).with_name("compatibility.json")
PAGE = ROOT / "docs" / "how-to" / "use-in-your-framework.md"
PATIENCE = 900.0
"""Seconds for one job: DeepSpeed compiles its operators first."""


@dataclass(frozen=True)
class Story:
    """A finished job."""

    code: int
    err: str
    told: list[list[dict[str, Any]]]
    """What each rank told of each phase."""
    folder: Path

    @property
    def trust(self) -> TrustRoot:
        return TrustRoot.load(self.folder / "trust" / "root.json", datetime.now(UTC))


@pytest.fixture(scope="session")
def made_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with keys and a trust root, made by the commands of the page."""
    place = tmp_path_factory.mktemp("made")
    (place / "keys").mkdir()
    commands = re.findall(r"^securetrain (?:key|trust) .*$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        line = [sys.executable, "-m", *shlex.split(command)]
        subprocess.run(line, cwd=place, check=True, capture_output=True)
    return place


@pytest.fixture
def keys(made_keys: Path, tmp_path: Path) -> Path:
    """The same in the folder of one test."""
    return Path(shutil.copytree(made_keys, tmp_path, dirs_exist_ok=True))


@pytest.fixture(scope="session")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where DeepSpeed compiles: a lock of a killed build elsewhere would be waited for."""
    return tmp_path_factory.mktemp("extensions")


@pytest.fixture
def tell(keys: Path, extensions: Path) -> Callable[..., Story]:
    """Starts a framework's script in the folder of the keys."""

    def start(
        framework: str,
        phases: list[dict[str, Any]],
        *,
        ranks: int = 2,
        launcher: tuple[str, ...] = ("torch.distributed.run", "--standalone"),
    ) -> Story:
        kept = {"PATH", "HOME", "LANG", STATE_VARIABLE}
        env = {name: value for name, value in os.environ.items() if name in kept}
        env |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        env |= {"TORCH_EXTENSIONS_DIR": str(extensions), "TMPDIR": str(keys / "tmp")}
        (keys / "tmp").mkdir(exist_ok=True)
        script = [str(STORIES / f"{framework}_story.py"), str(PAGE), json.dumps(phases)]
        line = [sys.executable, "-m", *launcher, "--nproc-per-node", str(ranks), *script, "told"]
        done = outcome(line, cwd=keys, env=env, timeout=PATIENCE)
        told = [json.loads(path.read_text()) for path in sorted(keys.glob("told/rank-*.json"))]
        return Story(done.returncode, done.stdout + done.stderr, told, keys)

    return start


@pytest.fixture(scope="session")
def passed(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Takes down what passed with a framework; with ``--keep-compatibility`` it is kept."""
    found: dict[str, dict[str, str]] = {}

    def take(distribution: str, **checks: str) -> None:
        found.setdefault(distribution, {}).update(checks)

    yield take
    if request.config.getoption("--keep-compatibility") and found:
        before = json.loads(RESULTS.read_text("utf-8"))
        for distribution, checks in found.items():
            kept = before.setdefault(section_of(distribution), {})
            one = kept.setdefault(distribution, {"checks": {}})
            one["version"] = importlib.metadata.version(distribution)
            one["torch"] = importlib.metadata.version("torch").partition("+")[0]
            one["python"] = platform.python_version()
            one["checks"] |= checks
        RESULTS.write_text(json.dumps(before, indent=2, sort_keys=True) + "\n", "utf-8")


# Signed datasets.

SIGNED_AT = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
SMALL = TreeParams(leaf_size=1024)


@pytest.fixture(scope="session")
def key() -> PrivateKey:
    return PrivateKey.generate()


@pytest.fixture(scope="session")
def trust(key) -> TrustRoot:
    root = PrivateKey.generate()
    roles = {TrustRole.ROOT: [root.public], TrustRole.DATASET: [key.public]}
    document = trust_document(roles, SIGNED_AT - timedelta(days=1), SIGNED_AT + timedelta(days=100))
    return TrustRoot.parse(sign_document(document, [root]), SIGNED_AT)


@pytest.fixture
def signing(key, trust) -> Callable[..., None]:
    def run(root: Path, previous: Opened | None = None, **about: Any) -> None:
        later = SIGNED_AT if previous is None else SIGNED_AT + timedelta(minutes=1)
        given = About(name="corpus", **about)
        sign_in_place(root, given, key=key, now=later, previous=previous, params=SMALL)

    return run


@pytest.fixture
def signed_before(trust) -> Callable[[Path], Opened]:
    def run(root: Path) -> Opened:
        return open_statement((root / STATEMENT).read_bytes(), Kind.DATASET, trust)

    return run


@pytest.fixture
def opening(trust) -> Callable[[Path], Dataset]:
    def run(root: Path) -> Dataset:
        return Dataset.open(root, trust=trust, policy=None, now=SIGNED_AT + timedelta(minutes=5))

    return run
