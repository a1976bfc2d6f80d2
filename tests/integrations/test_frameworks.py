# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The snippets of the page, each in its framework: honest, resumed, altered, plain, poisoned.

``make test-compat`` runs each in its own environment. What passed at which version stands in
compatibility.json, and from there on the page docs/reference/compatibility.md.
"""

import importlib.metadata
from datetime import UTC, datetime

import pytest

from securetrain.artifacts.saved.folder import verify_folder
from securetrain.identity.trust import TrustRoot
from securetrain.integrations import TESTED
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.dist,
    pytest.mark.slow,
    pytest.mark.many,
    pytest.mark.timeout(1800),
]
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
LAUNCHER = (
    *("securetrain", "run", "--standalone", "--run-dir", "runs/one"),
    *("--sign-checkpoints", "--verify-checkpoints", "--output", "."),
)
STRICT = """
apiVersion: securetrain.dev/policy/v1
kind: Policy
extends: dev
metadata: {id: strict, version: 1.0.0, title: The guard must watch}
gradients: {mode: detect, require_watched: true}
"""
POISONED = {"steps": 40, "every": 20, "poisoned": 1}


def lacks(framework):
    def asked():
        try:
            found = importlib.metadata.version(framework)
        except importlib.metadata.PackageNotFoundError:
            found = "none"
        wanted = TESTED[framework]
        return [] if found == wanted else [f"{framework} {wanted} (make test-compat makes it)"]

    return asked


def each(*frameworks):
    """A case for each framework, in the environment that has its name."""
    return pytest.mark.parametrize(
        "framework",
        [
            pytest.param(one, marks=[pytest.mark.compat(one), needs(lacks(one))])
            for one in frameworks
        ],
    )


WATCHED = sorted({*HONEST} - {"deepspeed"})


@each(*HONEST)
def test_saves_are_signed_resumes_verified_and_altered_files_refused(framework, tell, passed):
    story = tell(framework, HONEST[framework])
    assert story.code == 0, story.err
    assert story.told[0] == story.told[1], "the ranks agree"
    first, second, refused, plain = story.told[0]
    # Honest: every save is signed, and passes as a whole.
    for name in SAVED[framework]:
        said = verify_folder(story.folder / "out" / name, trust=story.trust)
        assert said.saves[0].said.run_id == "my-run"
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


@each(*WATCHED)
def test_a_poisoned_rank_is_named(framework, tell, passed):
    story = tell(framework, [POISONED], ranks=4)
    assert story.code == 0, story.err
    said = [line for line in story.err.splitlines() if "refused: ST-GRAD-002" in line]
    assert said, story.err
    assert all(line.endswith("(ranks: 1)") for line in said)
    assert "excluded: rank 1" in story.err
    passed(framework, guard="a poisoned rank of four is named and left out (ST-GRAD-002)")


@each("deepspeed")
def test_it_says_that_nobody_watches(framework, tell, passed):
    story = tell(framework, [{"steps": 2}])
    assert story.code == 0, story.err
    assert story.err.count("gradients: NOT WATCHED: DeepSpeed is not watched") == 2, "each rank"
    passed(framework, guard="NOT WATCHED, and says so")


@each("deepspeed")
def test_a_policy_that_requires_the_guard_refuses_its_first_step(framework, tell, keys, passed):
    (keys / "strict.yaml").write_text(STRICT)
    story = tell(framework, [{"steps": 2}], launcher=(*LAUNCHER, "--policy", "strict.yaml"))
    assert [one["code"] for rank in story.told for one in rank] == ["ST-GRAD-020"] * 2, story.err
    assert not list((story.folder / "out").glob("*")), "nothing was saved"
    passed(framework, guard="NOT WATCHED, and says so; refused where it is required (ST-GRAD-020)")


@each(*HONEST)
def test_under_securetrain_run_the_launcher_signs_and_no_key_is_used(framework, tell, passed):
    """The same snippets: the key and the trust root that they name are left aside."""
    story = tell(framework, HONEST[framework][:2], launcher=(*LAUNCHER, "--policy", "dev"))
    assert story.code == 0, story.err
    assert [one["step"] for one in story.told[0]] == [4, 6]
    trust = TrustRoot.load(story.folder / "runs" / "one" / "trust.json", datetime.now(UTC))
    for name in SAVED[framework]:
        said = verify_folder(story.folder / "out" / name, trust=trust)
        assert {one.said.run_id for one in said.saves} != {"my-run"}
    passed(framework, run="signed by the launcher of securetrain run")
