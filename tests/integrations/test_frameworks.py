# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The snippets of the page, each in its framework: honest, resumed, altered, plain, poisoned.

What passed at which version stands in compatibility.json (``make test-compat``), and from there on
the page docs/reference/compatibility.md.
"""

import importlib.metadata
import subprocess
import sys
import venv
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.artifacts import verify_folder
from securetrain.identity.trust import TrustRoot
from securetrain.integrations import TESTED
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.dist,
    pytest.mark.slow,
    pytest.mark.many,
    pytest.mark.compat,
    pytest.mark.timeout(1800),
]
ENVIRONMENTS = Path(__file__).resolve().parents[2] / ".compat"
OWN = {"torchtitan": "an environment of its own"}
"""Frameworks that bring packages which the extra `dev` must not have."""
HONEST = {
    "transformers": [
        {"steps": 4},
        {"steps": 6, "resume": True},
        {"steps": 8, "resume": True, "alter": "out/checkpoint-6"},
        {"steps": 8, "resume": True, "plain": True},
    ],
    "lightning": [
        {"steps": 4},
        {"steps": 6, "resume": "out/step=4.ckpt"},
        {"steps": 8, "resume": "out/step=6.ckpt", "alter": "out/step=6.ckpt"},
        {"steps": 8, "resume": "out/step=6.ckpt", "plain": True},
    ],
    "accelerate": [
        {"steps": 4},
        {"steps": 2, "resume": "out/state", "output": "out/next"},
        {"steps": 2, "resume": "out/next", "output": "out/third", "alter": "out/next"},
        {"steps": 2, "resume": "out/next", "output": "out/third", "plain": True},
    ],
    "deepspeed": [
        {"steps": 4},
        {"steps": 2, "resume": True},
        {"steps": 2, "resume": True, "alter": "out"},
        {"steps": 2, "resume": True, "plain": True},
    ],
    "torchtitan": [
        {"steps": 4},
        {"steps": 6, "resume": True, "mode": "async"},
        {"steps": 8, "resume": True, "alter": "out/step-6"},
        {"steps": 8, "resume": True, "plain": True},
    ],
}
"""Train and save; go on; refuse what was altered; the plain framework takes that."""
PICKLED = {"accelerate", "deepspeed", "torchtitan"}
"""Here the altered file is a pickle, which leaves a mark when somebody reads it."""
SAVED = {
    "transformers": ["checkpoint-2", "checkpoint-4"],
    "lightning": ["step=2.ckpt", "step=4.ckpt"],
    "accelerate": ["state"],
    "deepspeed": ["global_step4"],
    "torchtitan": ["step-2", "step-4"],
}
POISONED = {"steps": 40, "every": 20, "poisoned": 1}


def lacks(framework):
    def asked():
        try:
            found = importlib.metadata.version(framework)
        except importlib.metadata.PackageNotFoundError:
            return [f"{framework} {TESTED[framework]} (make test-compat installs it)"]
        return [] if found == TESTED[framework] else [f"{framework} {TESTED[framework]}"]

    return asked


IN_DEV = [pytest.param(one, marks=needs(lacks(one))) for one in HONEST if one not in OWN]


@pytest.fixture(scope="session")
def titan(request):
    """A Python that has torchtitan beside this environment's packages."""
    place = ENVIRONMENTS / f"torchtitan-{TESTED['torchtitan']}"
    python, whole = place / "bin" / "python", place / "whole"
    if not whole.exists():  # an installation that was cut short is none
        if not request.config.getoption("--keep-compatibility"):
            pytest.skip("this needs: make test-compat, which makes the environment of torchtitan")
        venv.create(place, clear=True, with_pip=True)
        (site,) = place.glob("lib/python*/site-packages")
        (here,) = [one for one in sys.path if one.endswith("site-packages")][:1]
        (site / "dev.pth").write_text(f"import site; site.addsitedir({here!r})\n")
        torch = importlib.metadata.version("torch").partition("+")[0]
        wanted = [f"torch=={torch}", f"torchtitan=={TESTED['torchtitan']}"]
        subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True)
        whole.touch()
    return str(python)


def check_honest(framework, story, passed):
    assert story.code == 0, story.err
    assert story.told[0] == story.told[1], "the ranks agree"
    first, second, refused, plain = story.told[0]
    # Honest: every save is signed, and passes as a whole.
    for name in SAVED[framework]:
        said = verify_folder(story.folder / "out" / name, trust=story.trust)
        assert said.statements[0].said.run_id == "my-run"
    passed(framework, signed="every save verifies")
    # Resumed: it goes on where it was.
    assert first["step"] == 4
    assert second["step"] == 6
    assert second["weights"] != first["weights"]
    passed(framework, resumed="from a verified copy")
    # Altered: refused before anything is parsed, where the plain framework takes it.
    assert refused["code"] in {"ST-CKPT-130", "ST-CKPT-131"}
    assert not refused["planted"]
    if framework in PICKLED:
        assert plain["planted"], "the plain framework ran the pickle"
    else:
        assert abs(plain["weights"] - second["weights"]) > 100, "the plain framework took it"
    passed(framework, altered="refused before it is parsed, taken by the plain framework")
    assert not [*(story.folder / "tmp").glob("securetrain-load-*")], "the copies are gone"


@pytest.mark.parametrize("framework", IN_DEV)
def test_saves_are_signed_resumes_verified_and_altered_files_refused(framework, tell, passed):
    check_honest(framework, tell(framework, HONEST[framework]), passed)


def test_the_same_in_torchtitan(titan, tell, passed):
    check_honest("torchtitan", tell("torchtitan", HONEST["torchtitan"], python=titan), passed)


def check_poisoned(framework, story, passed):
    assert story.code == 0, story.err
    said = [line for line in story.err.splitlines() if "refused: ST-GRAD-002" in line]
    assert said, story.err
    assert all(line.endswith("(ranks: 1)") for line in said)
    assert "excluded: rank 1" in story.err
    passed(framework, guard="a poisoned rank of four is named and left out (ST-GRAD-002)")


@pytest.mark.parametrize("framework", [one for one in IN_DEV if one.values[0] != "deepspeed"])
def test_a_poisoned_rank_is_named(framework, tell, passed):
    check_poisoned(framework, tell(framework, [POISONED], ranks=4), passed)


def test_a_poisoned_rank_is_named_in_torchtitan(titan, tell, passed):
    check_poisoned("torchtitan", tell("torchtitan", [POISONED], ranks=4, python=titan), passed)


@needs(lacks("deepspeed"))
def test_deepspeed_says_that_nobody_watches(tell, passed):
    story = tell("deepspeed", [{"steps": 2}])
    assert story.code == 0, story.err
    assert story.err.count("gradients: NOT WATCHED: DeepSpeed is not watched") == 2, "each rank"
    passed("deepspeed", guard="NOT WATCHED, and says so")


@pytest.mark.parametrize("framework", IN_DEV)
def test_under_securetrain_run_the_launcher_signs_and_no_key_is_used(framework, tell, passed):
    """The same snippets: the key and the trust root that they name are left aside."""
    launcher = ("securetrain", "run", "--standalone", "--run-dir", "runs/one", "--policy", "dev")
    flags = ("--sign-checkpoints", "--verify-checkpoints", "--output", ".")
    story = tell(framework, HONEST[framework][:2], launcher=(*launcher, *flags))
    assert story.code == 0, story.err
    assert [one["step"] for one in story.told[0]] == [4, 6]
    trust = TrustRoot.load(story.folder / "runs" / "one" / "trust.json", datetime.now(UTC))
    for name in SAVED[framework]:
        said = verify_folder(story.folder / "out" / name, trust=trust)
        assert {one.said.run_id for one in said.statements} != {"my-run"}
    passed(framework, run="signed by the launcher of securetrain run")
