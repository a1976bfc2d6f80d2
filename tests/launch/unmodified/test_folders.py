# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Scripts that save directories, by framework: poisoned, signed, verified, resumed, attacked."""

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from securetrain.cli.artifacts.verify import command
from securetrain.core.vocabulary import NOT_SIGNED, NOT_WATCHED
from tests.launch.worlds import clean_environment, write_policy
from tests.vocabulary import ran

pytestmark = [pytest.mark.dist, pytest.mark.slow, pytest.mark.many, pytest.mark.timeout(1800)]
SCRIPT = Path(__file__).with_name("scripts") / "folders.py"
FLAGS = ("--sign-checkpoints", "--verify-checkpoints")
PATIENCE = 900.0
RANKS, STEPS = 4, 30
"""Of two ranks that contradict each other the guard names neither."""
FRAMEWORKS = {
    "transformers": ("transformers", "checkpoint-15", "trainer_state.json"),
    "accelerate": ("accelerate", "step_15", "optimizer.bin"),
    "lightning": ("lightning", "checkpoints/epoch=0-step=15.ckpt", ""),
    "deepspeed": ("deepspeed", "", "latest"),
    "dcp": ("torch", "step-30", ".metadata"),
    "transformers_fsdp": ("transformers", "checkpoint-15", "optimizer.bin"),
    "accelerate_fsdp1": ("accelerate", "step_15", "pytorch_model_fsdp_0/__1_0.distcp"),
    "accelerate_fsdp": ("accelerate", "step_15", "optimizer_0/.metadata"),
    "lightning_fsdp1": ("lightning", "checkpoints/epoch=0-step=15.ckpt", "__1_0.distcp"),
    "lightning_fsdp": ("lightning", "checkpoints/epoch=0-step=15.ckpt", "meta.pt"),
}
"""The package, what is resumed from, and a file in it that is exchanged.

What shards does so by `fully_shard` (FSDP2), but for `fsdp1`. Accelerate, transformers and
Lightning's FSDP1 ask for a GPU first; the script tells them that there are some.
"""
WATCHED = [name for name in FRAMEWORKS if name != "deepspeed"]


@pytest.fixture
def start(launch, tmp_path):
    def start(name, *flags, run="run", out="out", resume="fresh", **more):
        package = FRAMEWORKS[name][0]
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install securetrain[frameworks]")
        steps, culprit = more.pop("steps", STEPS), more.pop("culprit", -1)
        ranks = more.pop("ranks", RANKS)
        trust = [str(more["trust"])] if "trust" in more else []
        policy = write_policy(
            tmp_path / f"{run}.yaml",
            enforcement=more.get("enforcement", "report"),
            host={"sandbox": "off"},
            gradients={"mode": more.get("mode", "detect")},
            checkpoint={"require_clean_verdict": False, "load_trust": trust},
        )
        return launch(
            *(tmp_path / run, "--standalone", "--policy", policy, *flags),
            *("--nproc-per-node", str(ranks), str(SCRIPT), name, str(tmp_path / out)),
            *map(str, (steps, culprit, resume)),
            patience=PATIENCE,
        )

    return start


def verified(capsys, path, trust):
    code = command([str(path), "--trust", str(trust), "--json"], standalone_mode=False) or 0
    return code, json.loads(capsys.readouterr().out)


def step_of(text):
    line = next(line for line in text.splitlines() if line.startswith("said "))
    return json.loads(line.removeprefix("said "))["step"]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_poisoned_run_is_named_signed_verified_and_resumed(start, name, tmp_path, capsys):
    _, point, altered = FRAMEWORKS[name]
    first = start(name, *FLAGS, run="first", culprit=1 if name in WATCHED else -1)
    assert first.code == 0, first.err
    if name in WATCHED:
        assert list(first.summary["gradients"]["named"]) == ["1"]
        assert "ST-GRAD-002" in first.summary["gradients"]["named"]["1"]
    else:
        assert f"{NOT_WATCHED}: DeepSpeed is not watched" in first.err
    # Every directory passes, and the whole.
    out = tmp_path / "out"
    assert NOT_SIGNED not in first.err
    folders = sorted({out, *(path for path in out.iterdir() if path.is_dir())})
    for folder in folders:
        code, page = verified(capsys, folder, first.run.trust)
        assert (code, page["problems"]) == (0, []), (folder, page)
    # Another run resumes from it, under the first one's trust root.
    place = out / point if point else "resume"
    trust = first.run.trust
    shutil.copytree(out, tmp_path / "kept")
    again = start(name, *FLAGS, run="again", resume=place, trust=trust)
    assert again.code == 0, again.err
    assert step_of(again.out) >= STEPS
    assert not again.events("saved-file-refused")
    # What somebody exchanges is refused before it is parsed.
    shutil.rmtree(out)
    shutil.copytree(tmp_path / "kept", out)
    target = out / point / altered if altered else out / point
    data = target.read_bytes()
    target.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refused = start(name, *FLAGS, run="refused", resume=place, trust=trust)
    assert refused.code != 0
    assert {event.code for event in refused.events("saved-file-refused")} == {"ST-CKPT-130"}
    assert refused.summary["code"] == "ST-CKPT-130"


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_without_flags_it_is_said_and_where_required_it_is_refused(start, name, tmp_path):
    done = start(name, ranks=2, steps=2)
    assert done.code == 0, done.err
    begun, _, ended = done.err.partition("workers      2 of")
    assert "checkpoints: signed where the script uses securetrain.artifacts" in begun
    assert f"securetrain: {NOT_SIGNED}: " in ended
    assert done.summary["checkpoints"]["unsigned"] > 0
    assert done.events("checkpoints-not-signed")
    shutil.rmtree(tmp_path / "out")
    mode = "detect" if name in WATCHED else '"off"'
    required = start(name, run="required", ranks=2, steps=2, enforcement="require", mode=mode)
    assert required.code == 1
    assert "ST-RUNT-022" in required.codes
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert [path for path in written if path.stat().st_size] == []


def test_an_altered_resume_is_taken_by_the_plain_stack_and_refused_here(start, tmp_path):
    """Step and code: a state of another step, and an optimizer of another step."""
    first = start("transformers", *FLAGS, run="first", ranks=1, steps=4)
    assert first.code == 0, first.err
    out = tmp_path / "out"
    kept = shutil.copytree(out, tmp_path / "kept")

    def exchanged(change):
        shutil.rmtree(out)
        shutil.copytree(kept, out)
        change(out / "checkpoint-2")

    def state(folder):
        place = folder / "trainer_state.json"
        place.write_text(place.read_text().replace('"global_step": 2', '"global_step": 3'))

    def optimizer(folder):
        shutil.copyfile(out / "checkpoint-4" / "optimizer.pt", folder / "optimizer.pt")

    for number, change in enumerate((state, optimizer)):
        exchanged(change)
        ran(
            [
                *(sys.executable, str(SCRIPT), "transformers", str(out), "4", "-1"),
                str(out / "checkpoint-2"),
            ],
            env=clean_environment(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", **_loopback()),
            timeout=900,
        )
        exchanged(change)
        refused = start(
            "transformers",
            *FLAGS,
            run=f"refused-{number}",
            ranks=1,
            steps=4,
            resume=out / "checkpoint-2",
            trust=first.run.trust,
        )
        assert refused.code != 0, refused.err
        assert refused.summary["code"] in {"ST-CKPT-130", "ST-CKPT-131"}
        assert refused.events("saved-file-refused")


def _loopback():
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20_000 + os.getpid() % 20_000)}


@pytest.mark.parametrize("moment", ["begun", "half"])
def test_a_save_that_was_killed_is_refused_and_the_one_before_is_resumed(start, tmp_path, moment):
    """A directory as a SIGKILL leaves it: without a statement, or with the mark alone."""
    first = start("transformers", *FLAGS, run="first", ranks=1, steps=4)
    assert first.code == 0, first.err
    newest = tmp_path / "out" / "checkpoint-4"
    if moment == "begun":
        (newest / ".securetrain.json").write_bytes(b"")
    else:
        (newest / ".securetrain.json").unlink()
        (newest / "trainer_state.json").unlink()
    options = {"ranks": 1, "steps": 4, "trust": first.run.trust}
    refused = start("transformers", *FLAGS, run="two", resume=newest, **options)
    assert refused.code != 0
    assert refused.summary["code"] in {"ST-CKPT-100", "ST-CKPT-141"}
    before = newest.with_name("checkpoint-2")
    again = start("transformers", *FLAGS, run="three", resume=before, **options)
    assert again.code == 0, again.err
