# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Directories that frameworks write and read, over packages like theirs that are not installed."""

import json
import types
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from securetrain.artifacts.saved.folder import verify_folder
from securetrain.artifacts.saved.signer import Author, SaveSigner
from securetrain.artifacts.statement.statements import PolicyRef
from securetrain.core.errors import IntegrityError, RuntimeRefusal
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from securetrain.launch.seams.folder_loads import FolderLoads
from securetrain.launch.seams.saves import SaveWatch
from securetrain.launch.seams.verified_loads import VerifiedLoads
from tests.vocabulary import refused

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


class FakeTrainer:
    """As that of transformers: it writes JSON by itself, and tensors through torch."""

    def __init__(self, out, torch):
        self.args = types.SimpleNamespace(should_save=True, output_dir=str(out))
        self.state = types.SimpleNamespace(global_step=7)
        self.torch = torch
        self.out, self.seen = out, None

    def _get_output_dir(self, trial=None):
        assert trial is None
        return str(self.out)

    def _save_checkpoint(self, model, trial=None):
        assert trial is None
        folder = self.out / f"checkpoint-{self.state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        self.torch.save(model, folder / "optimizer.pt")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": 7}))
        if self.state.global_step < 0:
            raise OSError("the disk is full")
        return "saved"

    def train(self, resume_from_checkpoint=None):
        with open(Path(resume_from_checkpoint, "trainer_state.json")) as file:  # noqa: PTH123
            self.seen = json.load(file)
        return self.seen


class Bench:
    """One worker's seams, and the framework behind them."""

    def __init__(self, root, *, required=False, signs=True):
        key, owner = PrivateKey.generate(), PrivateKey.generate()
        self.place = root / "trust.json"
        roles = {TrustRole.CHECKPOINT: [key.public]}
        start, end = NOW - timedelta(days=1), NOW + timedelta(days=1)
        self.place.write_bytes(sign_root(roles, owner, start, end))
        self.trust = TrustRoot.load(self.place, NOW)
        self.said: list[str] = []
        self.events: list[Any] = []
        self.refused: list[tuple[str, str]] = []
        self.signer = SaveSigner(
            author=lambda: Author(key=key, run_id="job-1"),
            policy=PolicyRef(),
            trust=(self.place,),
            clock=lambda: NOW,
        )
        self.watch = SaveWatch(
            is_required=required,
            is_first=True,
            say=self.said.append,
            record=self.events.append,
            changed=lambda: None,
            signing=self.signer if signs else None,
        )
        patches = self.watch.patches()
        torch: Any = types.ModuleType("torch.serialization")
        module: Any = types.ModuleType("transformers.trainer")
        torch.save = lambda obj, f: Path(f).write_bytes(repr(obj).encode())
        module.Trainer = type("Trainer", (FakeTrainer,), dict(vars(FakeTrainer)))
        self.torch, self.module = torch, module
        patches["torch.serialization"](self.torch)
        self.plain = FakeTrainer(root / "out", self.torch)
        patches["transformers.trainer"](self.module)
        loads = VerifiedLoads(
            trust=(self.place,),
            clock=lambda: NOW,
            refused=lambda error, place: self.refused.append((error.code, place)),
        )
        self.loads = FolderLoads(loads)
        self.loads.patches()["transformers.trainer"](self.module)
        self.trainer = self.module.Trainer(root / "out", self.torch)
        self.folder = root / "out" / "checkpoint-7"

    def verified(self):
        return verify_folder(self.folder, trust=self.trust, now=NOW)


@pytest.fixture(autouse=True)
def _open(monkeypatch):
    """Put back what a judged directory does to `open`."""
    import builtins
    import io

    for module in (builtins, io):
        monkeypatch.setattr(module, "open", module.open)


def test_what_a_framework_writes_is_one_save_with_its_step(tmp_path):
    bench = Bench(tmp_path)
    assert bench.trainer._save_checkpoint({"weight": 1}) == "saved"
    found = bench.verified()
    [said] = [one.said for one in found.saves]
    assert (said.step, said.way, len(said.files)) == (7, "transformers.Trainer", 2)
    assert bench.watch.report().signed == {"transformers.Trainer": 1}
    assert bench.watch.report().unsigned == {}
    assert bench.trainer._save_checkpoint({"weight": 2}) == "saved", "again, over the old one"
    assert bench.verified().ok


def test_a_failed_save_leaves_what_nobody_signed_and_the_next_one_goes_on(tmp_path):
    bench = Bench(tmp_path)
    bench.trainer._save_checkpoint({"weight": 1})
    bench.trainer.state.global_step = -7
    bench.trainer.out.joinpath("checkpoint--7").mkdir()
    bench.trainer.out.joinpath("checkpoint--7", "old").write_text("x")
    refused(OSError, "full", bench.trainer._save_checkpoint, {"weight": 1})
    with pytest.raises(IntegrityError) as caught:
        verify_folder(tmp_path / "out" / "checkpoint--7", trust=bench.trust, now=NOW)
    assert caught.value.code == "ST-CKPT-100", "the mark"
    bench.trainer.state.global_step = 7
    assert bench.trainer._save_checkpoint({"weight": 3}) == "saved"
    assert bench.verified().ok


@pytest.mark.parametrize("signs", [False, True])
def test_where_it_is_not_signed_it_is_said_once_and_where_required_nothing_is_written(
    tmp_path, signs
):
    bench = Bench(tmp_path, signs=False)
    bench.trainer._save_checkpoint({})
    assert bench.watch.report().unsigned == {"transformers.Trainer": 1}, "torch.save is part of it"
    assert bench.watch.report().places == (str(bench.folder),)
    assert len(bench.said) == 1
    (tmp_path / "other").mkdir()
    bench = Bench(tmp_path / "other", required=True, signs=signs)
    bench.watch.lacking = ("checkpoint.require_head",)
    refused(RuntimeRefusal, "ST-RUNT-022", bench.trainer._save_checkpoint, {})
    assert not bench.folder.exists()


def test_an_exchanged_state_is_refused_before_it_is_parsed(tmp_path):
    bench = Bench(tmp_path)
    bench.trainer._save_checkpoint({})
    state = bench.folder / "trainer_state.json"
    state.write_text('{"global_step": 9}')
    assert bench.plain.train(bench.folder) == {"global_step": 9}, "the control: plainly, it is read"
    state.write_text('{"global_step": 7}')
    assert bench.trainer.train(str(bench.folder)) == {"global_step": 7}
    state.write_text('{"global_step": 9}')
    bench.trainer.seen = None
    refused(IntegrityError, "ST-CKPT-130", bench.trainer.train, str(bench.folder))
    assert bench.trainer.seen is None
    assert bench.refused == [("ST-CKPT-130", str(bench.folder))]
    with pytest.raises(FileNotFoundError):
        bench.trainer.train(str(tmp_path / "none"))


def test_what_is_exchanged_after_the_judgement_is_refused_when_it_is_opened(tmp_path):
    bench = Bench(tmp_path)
    bench.trainer._save_checkpoint({})
    bench.loads.judge(str(bench.folder))
    state = bench.folder / "trainer_state.json"
    assert json.loads(state.read_text()) == {"global_step": 7}
    with state.open("rb") as copy:
        signed = state.read_bytes()
        state.write_text('{"global_step": 9}')
        assert copy.read() == signed, "what was opened is the copy that was hashed"
    with pytest.raises(IntegrityError):
        state.read_text()
    free = bench.folder / "all_results.json"
    free.write_text("{}")
    assert free.read_text() == "{}", "what was not there is the script's own"


def test_other_ranks_leave_the_directory_to_the_leader(tmp_path):
    bench = Bench(tmp_path)
    bench.trainer.args.should_save = False
    bench.trainer._save_checkpoint({})
    assert not (bench.folder / ".securetrain.json").exists()
    assert (bench.folder / "optimizer.pt.securetrain.json").exists(), "its own file, by itself"
    assert bench.watch.report().signed == {"torch.save": 1}
