# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The hooks at the seams of their frameworks, with stand-ins for these: no framework is loaded.

The same with the frameworks themselves: test_frameworks.py.
"""

import functools
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.saved.folder import verify_folder
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.identity.signing import Welcome
from securetrain.identity.trust import TrustRoot
from securetrain.integrations import (
    accelerate_hooks,
    deepspeed_hooks,
    lightning_plugins,
    secure_accelerator,
    secure_engine,
    secure_titan,
    secure_trainer,
    titan_hooks,
    transformers_hooks,
)
from securetrain.integrations.lightning_plugins import check_environment
from securetrain.policy import load_policy
from securetrain.policy.schema import Gradients, GuardMode
from tests.tables import items
from tests.vocabulary import refused

STEP = 4


@pytest.fixture(autouse=True)
def here(keys, monkeypatch):
    """The page's folder, and frameworks that are whatever a test puts there."""
    monkeypatch.chdir(keys)
    for hooks in (accelerate_hooks, deepspeed_hooks, lightning_plugins, titan_hooks):
        monkeypatch.setattr(hooks, "framework", lambda _name: None)
    monkeypatch.setattr(transformers_hooks, "framework", lambda _name: None)
    return keys


@pytest.fixture
def given(here):
    """What a script gives outside of a run; its guard is off, so that no torch is loaded."""
    policy = load_policy("dev").policy
    off = Gradients(mode=GuardMode.OFF)
    policy = msgspec.structs.replace(policy, gradients=off)
    places = {"key": here / "keys" / "run.pem", "trust": here / "trust" / "root.json"}
    return {**places, "run": "my-run", "policy": policy}


class Reader:
    """A framework's load: takes down what it read, and from where."""

    def __init__(self):
        self.read: list[tuple[Path, bytes]] = []

    def __call__(self, place):
        file = Path(place)
        file = file / "weights" if file.is_dir() else file
        self.read.append((file, file.read_bytes()))
        return self.read[-1][1]


def write(folder, content=b"weights"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").write_bytes(content)
    return folder


def check(save, load, plain, folder, reader):
    """Sign by the hook; then altered: refused unread by the hook, taken by the plain framework."""
    save()
    verify_folder(folder, trust=trust_root())
    assert load() == b"weights"
    place, _ = reader.read[-1]
    assert not place.is_relative_to(folder), "a private copy is read"
    write(folder, b"weighty")
    before = len(reader.read)
    refused(IntegrityError, "ST-CKPT-130", load)
    assert len(reader.read) == before, "nothing was read"
    assert plain() == b"weighty"


def trust_root():
    return TrustRoot.load(Path("trust/root.json"), datetime.now(UTC))


@pytest.fixture
def trainer(monkeypatch):
    """What `secure_trainer` takes hold of in a Trainer."""
    stand_in: Any = type(sys)("transformers")
    stand_in.TrainerCallback = object
    tools: Any = type(sys)("transformers.trainer_utils")
    tools.get_last_checkpoint = lambda folder: str(max(Path(folder).glob("checkpoint-*")))
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    monkeypatch.setitem(sys.modules, "transformers.trainer_utils", tools)
    reader = Reader()
    callbacks: list[Any] = []
    state = SimpleNamespace(global_step=STEP, best_model_checkpoint=f"out/checkpoint-{STEP}")
    made = SimpleNamespace(
        reader=reader,
        callbacks=callbacks,
        add_callback=callbacks.append,
        args=SimpleNamespace(output_dir="out"),
        state=state,
        train=lambda resume=None, **_: reader(resume) if resume else None,
        _load_best_model=lambda: reader(state.best_model_checkpoint),
        _get_output_dir=lambda trial: "out",
    )
    made.plain = made.train
    return made


@pytest.mark.parametrize("resume", [True, f"out/checkpoint-{STEP}"])
def test_trainer_resumes_from_a_verified_copy(trainer, given, resume):
    assert secure_trainer(trainer, **given) is trainer
    folder = write(Path("out", f"checkpoint-{STEP}")).absolute()
    (callback,) = trainer.callbacks
    check(
        lambda: callback.on_save(None, trainer.state, None),
        lambda: trainer.train(resume_from_checkpoint=resume),
        lambda: trainer.plain(folder),
        folder,
        trainer.reader,
    )
    assert trainer.train() is None, "without a resume nothing is verified"


def test_trainer_verifies_the_best_model_too(trainer, given):
    secure_trainer(trainer, **given)
    folder = write(Path("out", f"checkpoint-{STEP}"))
    trainer.callbacks[0].on_save(None, trainer.state, None)
    assert trainer._load_best_model() == b"weights"
    assert trainer.state.best_model_checkpoint == str(folder), "the state names the original"
    write(folder, b"weighty")
    refused(IntegrityError, "ST-CKPT-130", trainer._load_best_model)


def accelerator(reader, **settings):
    project = {"automatic_checkpoint_naming": False, **settings}
    return SimpleNamespace(
        _models=[],
        project_dir="out",
        project_configuration=SimpleNamespace(**project),
        save_state=lambda output_dir: str(write(Path(output_dir))),
        load_state=lambda input_dir=None, **_: reader(input_dir),
    )


def test_accelerate_loads_a_verified_copy(given):
    reader = Reader()
    made = accelerator(reader)
    plain = made.load_state
    secure_accelerator(made, **given)
    folder = Path("out/state").absolute()
    check(
        lambda: made.save_state("out/state"),
        lambda: made.load_state("out/state"),
        lambda: plain("out/state"),
        folder,
        reader,
    )


def test_accelerate_takes_the_state_with_the_highest_number(given):
    reader = Reader()
    made = accelerator(reader, automatic_checkpoint_naming=True)
    secure_accelerator(made, **given)
    for number in (9, 10):
        made.save_state(f"out/checkpoints/checkpoint_{number}")
    made.load_state()
    assert reader.read[-1][0].parent.name == "checkpoint_10"


def test_an_accelerator_that_has_prepared_comes_too_late(given):
    made = accelerator(Reader())
    made._models.append(object())
    refused(UsageError, "ST-USAG-001", secure_accelerator, made, **given)


def engine(reader):
    def save(save_dir, tag, *_args, **_kwargs):
        write(Path(save_dir, tag))
        Path(save_dir, "latest").write_text(tag)

    def load(load_dir, tag=None, **_):
        chosen = tag or Path(load_dir, "latest").read_text()
        return reader(Path(load_dir, chosen))

    return SimpleNamespace(
        global_steps=STEP,
        save_checkpoint=save,
        load_checkpoint=load,
        load_universal_checkpoint=lambda: False,
    )


@pytest.mark.parametrize("tag", [None, f"global_step{STEP}"])
def test_deepspeed_loads_a_verified_copy(given, tag):
    reader = Reader()
    made = engine(reader)
    plain = made.load_checkpoint
    secure_engine(made, **given)
    folder = Path("out", f"global_step{STEP}").absolute()
    check(
        lambda: made.save_checkpoint("out"),
        lambda: made.load_checkpoint("out", tag),
        lambda: plain("out", tag),
        folder,
        reader,
    )


@pytest.mark.parametrize("tag", ["../other", "/etc", "..", "a/b", ""])
def test_the_file_latest_names_no_other_folder(given, tag):
    made = engine(Reader())
    secure_engine(made, **given)
    made.save_checkpoint("out")
    Path("out/latest").write_text(tag)
    refused(UsageError, "ST-USAG-001", made.load_checkpoint, "out")


class Manager:
    """torchtitan's checkpoint manager, as far as the hook takes hold of it."""

    enable = True

    def __init__(self, reader):
        self.reader, self.save_future = reader, None

    def save(self, curr_step, *, last_step=False):
        write(Path(self._create_checkpoint_id(curr_step)))
        self.save_future = None if last_step else "in the background"
        return True

    def dcp_load(self, _states, checkpoint_id, from_hf, from_quantized):
        return self.reader(checkpoint_id)

    def maybe_wait_for_saving(self):
        if self.save_future is not None:
            self._wait_for_saving()

    def _wait_for_saving(self):
        self.save_future = None

    def _create_checkpoint_id(self, step):
        return f"out/step-{step}"

    def close(self):
        pass


def test_torchtitan_loads_a_verified_copy(given):
    reader = Reader()
    made = SimpleNamespace(checkpointer=Manager(reader))
    secure_titan(made, **given)
    folder = Path("out/step-1").absolute()
    seen = []
    load = functools.partial(made.checkpointer.dcp_load, {}, from_hf=False, from_quantized=False)

    def loaded():
        load("out/step-1")
        seen.append(reader.read[-1][1])
        return seen[-1]

    check(
        lambda: made.checkpointer.save(1, last_step=True),
        loaded,
        lambda: reader("out/step-1"),
        folder,
        reader,
    )


def test_torchtitan_signs_what_was_saved_in_the_background_when_it_is_waited_for(given):
    made = SimpleNamespace(checkpointer=Manager(Reader()))
    secure_titan(made, **given)
    made.checkpointer.save(1)
    with pytest.raises(IntegrityError) as refused:
        made.checkpointer.dcp_load({}, "out/step-1", False, False)
    assert refused.value.code == "ST-CKPT-141"
    made.checkpointer.close()
    made.checkpointer.dcp_load({}, "out/step-1", False, False)


def test_a_store_elsewhere_is_refused_not_loaded_unverified(given):
    made = SimpleNamespace(checkpointer=Manager(Reader()))
    secure_titan(made, **given)
    with pytest.raises(UsageError) as refused:
        made.checkpointer.dcp_load({}, "s3://bucket/step-1", False, False)
    assert refused.value.code == "ST-USAG-001"
    assert not made.checkpointer.reader.read


FITTING = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


@items("change", {"RANK": "0"}, {"WORLD_SIZE": "8"}, {"RANK": ""}, {"MASTER_ADDR": ""})
def test_an_environment_that_contradicts_the_launcher_is_refused(change):
    said = Welcome(run_id="r", rank=1, world_size=4)
    check_environment(said, FITTING)
    with pytest.raises(UsageError) as refused:
        check_environment(said, {**FITTING, **change})
    assert refused.value.code == "ST-USAG-001"
    assert next(iter(change)) in refused.value.what


def test_no_environment_without_a_launcher(monkeypatch):
    monkeypatch.delenv("SECURETRAIN_SIGNER", raising=False)
    refused(UsageError, "ST-USAG-001", lightning_plugins.lightning_environment)
