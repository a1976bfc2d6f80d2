# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Directories signed as one save: what belongs to it, what is refused, and what a kill leaves."""

import json
import os
import shutil
import time
import types
from datetime import UTC, datetime

import pytest

from securetrain.artifacts.saved.folder import sign_folder, signs_folders, verify_folder
from securetrain.artifacts.saved.judging import covering
from securetrain.artifacts.saved.signer import Author, SaveSigner
from securetrain.artifacts.saved.signer import now as now_of_files
from securetrain.artifacts.statement.checkpoint_predicate import PolicyRef
from securetrain.artifacts.statement.saved_files import Form, sidecar
from securetrain.core.errors import IntegrityError, UsageError
from tests import vocabulary
from tests.artifacts.worlds import verify_saved

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def checkpoint(tmp_path):
    """A directory as Hugging Face's Trainer writes it."""
    return write(tmp_path / "out" / "checkpoint-7")


def write(folder, step=7):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (folder / "model.safetensors").write_bytes(b"\x08" + bytes([step]) * 400)
    (folder / "optimizer.pt").write_bytes(b"\x80" + bytes([step]) * 300)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.json").write_text("{}")
    return folder


def sign(folder, keys, **more):
    return sign_folder(folder, key=keys.checkpoint, run="job-1", now=NOW, **more)


def refused(folder, trust, now):
    with pytest.raises(IntegrityError) as caught:
        verify_folder(folder, trust=trust, now=now)
    return caught.value.code


def test_all_of_a_directory_is_one_save(checkpoint, keys, trust, now):
    assert refused(checkpoint, trust, now) == "ST-CKPT-141", "the control: signed by nobody"
    said = sign(checkpoint, keys, step=7, way="Trainer")
    assert (said.form, said.step, said.run_id) == (Form.DIRECTORY, 7, "job-1")
    assert len(said.files) == 5
    found = verify_folder(checkpoint, trust=trust, now=now)
    assert (found.ok, found.num_files) == (True, 5)
    assert sign(checkpoint, keys, step=8).step == 8, "as it is now, again"
    assert verify_folder(checkpoint, trust=[trust], now=now).ok


def _exchange(folder):
    other = write(folder.parent / "other", step=5)
    shutil.copyfile(other / "optimizer.pt", folder / "optimizer.pt")


def _state(folder):
    (folder / "trainer_state.json").write_text('{"global_step": 9}')


def _auto_map(folder):
    (folder / "config.json").write_text('{"auto_map": {"AutoModel": "evil.Model"}}')


ATTACKS = {
    "optimizer of another step": (_exchange, "ST-CKPT-130"),
    "trainer_state.json": (_state, "ST-CKPT-130"),
    "config.json with auto_map": (_auto_map, "ST-CKPT-131"),
    "a module beside it": (lambda f: (f / "evil.py").write_text("x"), "ST-CKPT-141"),
    "a file removed": (lambda f: (f / "optimizer.pt").unlink(), "ST-CKPT-140"),
    "another name": (lambda f: f.rename(f.with_name("checkpoint-9")), "ST-CKPT-143"),
    "a statement removed": (lambda f: sidecar(f, Form.DIRECTORY).unlink(), "ST-CKPT-141"),
    "the mark of a save": (lambda f: sidecar(f, Form.DIRECTORY).write_bytes(b""), "ST-CKPT-100"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_whatever_is_exchanged_is_refused(checkpoint, keys, trust, now, attack):
    sign(checkpoint, keys)
    change, code = ATTACKS[attack]
    change(checkpoint)
    folder = checkpoint if checkpoint.exists() else checkpoint.with_name("checkpoint-9")
    assert refused(folder, trust, now) == code


def test_a_file_with_a_statement_of_its_own_passes_only_where_both_say_the_same(
    checkpoint, keys, trust, now
):
    """A rank's file of an older save of the same name, with its own statement beside it."""
    signer = signer_of(keys, now)
    file = checkpoint / "optimizer.pt"
    signer.finish(signer.begin("torch.save", Form.FILE, str(file), {}))
    old, word = file.read_bytes(), sidecar(file, Form.FILE).read_bytes()
    assert covering(file, [trust]).file.name == "optimizer.pt"
    file.write_bytes(b"\x80" + b"new" * 100)
    signer.finish(signer.begin("torch.save", Form.FILE, str(file), {}))
    sign(checkpoint, keys)
    assert covering(file, [trust]).file.name == "optimizer.pt"
    file.write_bytes(old)
    sidecar(file, Form.FILE).write_bytes(word)
    vocabulary.refused(IntegrityError, "ST-CKPT-130", covering, file, [trust])
    sidecar(checkpoint, Form.DIRECTORY).write_bytes(b"")
    assert covering(file, [trust]).file.name == "optimizer.pt", "a mark says nothing of it"


def test_somebody_has_to_sign_and_there_must_be_something(tmp_path, keys, trust, now):
    assert not signs_folders()
    error = vocabulary.refused(UsageError, "ST-USAG-001", sign_folder, tmp_path)
    assert "no key is given" in str(error)
    vocabulary.refused(UsageError, "nothing says whose", verify_folder, tmp_path)
    vocabulary.refused(UsageError, "signs for a run", sign_folder, tmp_path, key=keys.checkpoint)
    for folder in (tmp_path, tmp_path / "none"):
        vocabulary.refused(UsageError, "ST-USAG-002", sign, folder, keys)
    assert refused(tmp_path, trust, now) == "ST-CKPT-100"


def signer_of(keys, now, **more):
    author = Author(key=keys.checkpoint, run_id="job-1", **more)
    return SaveSigner(author=lambda: author, policy=PolicyRef(), clock=lambda: now)


def codes(path, trust, now):
    found = verify_saved(path, trust=trust, policy=None, now=now)
    return {(problem.code, problem.file) for problem in found.problems}


def test_what_lay_there_before_the_save_is_not_signed(checkpoint, keys, trust, now):
    """Somebody put a module into the directory before the framework wrote into it."""
    signer = signer_of(keys, now)
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    (checkpoint / "evil.py").write_text("x")
    begun = signer.begin_folder("save_pretrained", checkpoint, None)
    assert sidecar(checkpoint, Form.DIRECTORY).read_bytes() == b""
    assert codes(checkpoint, trust, now) >= {("ST-CKPT-100", ".securetrain.json")}
    (checkpoint / "config.json").write_text("{}")
    said = signer.finish_folder(begun, with_all=False)
    assert [file.name for file in said.files] == ["config.json"]
    assert codes(checkpoint, trust, now) == {("ST-CKPT-141", "evil.py")}
    # Several processes write there: what changed since this one started may be another's. The
    # kernel's time of a change moves in ticks of some milliseconds.
    time.sleep(0.05)
    signer.started = now_of_files()
    begun = signer.begin_folder("save_state", checkpoint, None)
    (checkpoint / "random_states_0.pkl").write_text("x")
    said = signer.finish_folder(begun, with_all=False, is_shared=True)
    assert [file.name for file in said.files] == ["config.json", "random_states_0.pkl"]


def test_two_saves_into_one_directory_are_signed_together(checkpoint, keys, trust, now):
    """A model, then its tokenizer; a directory of another save below is left to itself."""
    signer = signer_of(keys, now)
    folder = checkpoint.parent
    signer.sign_folder("save_state", checkpoint, 7)
    for name in ("config.json", "tokenizer.json", "config.json"):
        begun = signer.begin_folder("save_pretrained", folder, None)
        (folder / name).write_text(name * 2)
        said = signer.finish_folder(begun, with_all=False)
        assert codes(folder, trust, now) == set()
    assert [file.name for file in said.files] == ["config.json", "tokenizer.json"]
    shutil.rmtree(checkpoint)
    assert codes(folder, trust, now) == set(), "rotation takes a save away, and its statement"


def test_other_ranks_files_stand_in_both_statements(checkpoint, keys, trust, now, tmp_path):
    root = tmp_path / "trust.json"
    root.write_bytes(keys.trust_file())
    shutil.rmtree(checkpoint)
    first, other = signer_of(keys, now, world_size=2), signer_of(keys, now, rank=1, world_size=2)
    first.trust = (root,)
    checkpoint.mkdir()
    file = checkpoint / "rng_state_1.pth"
    # The other rank is faster: it has saved before the first begins.
    begun_there = other.begin("torch.save", Form.FILE, str(file), {})
    file.write_bytes(b"random")
    begun = first.begin_folder("Trainer", checkpoint, 7)
    (checkpoint / "trainer_state.json").write_text("{}")
    other.finish(begun_there)
    said = first.finish_folder(begun, with_all=True, is_shared=True)
    assert [one.name for one in said.files] == ["rng_state_1.pth", "trainer_state.json"]
    assert codes(checkpoint, trust, now) == set()
    file.unlink()
    sidecar(file, Form.FILE).unlink()
    assert codes(checkpoint, trust, now) == {("ST-CKPT-140", "rng_state_1.pth")}


def test_a_file_saved_again_is_signed_again_in_its_directory(checkpoint, keys, trust, now):
    signer = signer_of(keys, now)
    signer.sign_folder("Trainer", checkpoint, 7)
    begun = signer.begin("torch.save", Form.FILE, str(checkpoint / "optimizer.pt"), {})
    (checkpoint / "optimizer.pt").write_bytes(b"new")
    assert codes(checkpoint, trust, now) >= {("ST-CKPT-100", "optimizer.pt.securetrain.json")}
    signer.finish(begun)
    assert codes(checkpoint, trust, now) == set()


def test_a_killed_save_is_refused_and_stops_no_rerun(checkpoint, keys, trust, now):
    signer = signer_of(keys, now)
    signer.sign_folder("Trainer", checkpoint, 7)
    # Killed while it wrote, and while the statement was being written.
    signer.begin_folder("Trainer", checkpoint, 7)
    (checkpoint / "optimizer.pt").write_bytes(b"hal")
    (checkpoint / "..securetrain.json.tmp-0123456789ab").write_bytes(b"{")
    assert refused(checkpoint, trust, now) == "ST-CKPT-100"
    again = signer_of(keys, now)
    again.started += 1 << 30  # the rerun began later, by more than a tick of the file system
    begun = again.begin_folder("Trainer", checkpoint, 7)
    for path in sorted(checkpoint.rglob("*.*")):
        if path.is_file() and not path.name.endswith((".securetrain.json", "ab")):
            path.write_bytes(path.read_bytes() + b" ")
    again.finish_folder(begun, with_all=True)
    assert codes(checkpoint, trust, now) == set()


def test_a_directory_that_is_moved_is_signed_under_its_new_name(checkpoint, keys, trust, now):
    signer = signer_of(keys, now)
    temporary = checkpoint.rename(checkpoint.with_name("tmp-checkpoint-7"))
    signer.sign_folder("Trainer", temporary, 7)

    class Moves:
        rename = staticmethod(os.rename)
        replace = staticmethod(os.replace)

    signer.follow_moves(Moves)
    Moves.rename(temporary, checkpoint)
    assert codes(checkpoint, trust, now) == set()


def test_what_the_script_writes_itself_into_its_save_is_signed_with_it(
    checkpoint, keys, trust, now, tmp_path
):
    """A config.json beside torch's own files, and one that is written again."""
    signer = signer_of(keys, now)
    module = types.SimpleNamespace(open=open)
    signer.watch_writes(module)
    begun = signer.begin("dcp.save", Form.DIRECTORY, str(checkpoint), {"step": 3})
    with module.open(checkpoint / "early.json", "w") as file:
        file.write("{}")
    signer.finish(begun, ["model.safetensors", "optimizer.pt"])
    assert ("ST-CKPT-141", "config.json") in codes(checkpoint, trust, now)
    assert ("ST-CKPT-141", "early.json") not in codes(checkpoint, trust, now)
    others = {"config.json", "trainer_state.json", "tokenizer/vocab.json"}
    for name in others:
        with module.open(checkpoint / name) as file:
            data = file.read()
        with module.open(checkpoint / name, "w") as file:
            file.write(data + " ")
    with module.open(tmp_path / "elsewhere.json", "w") as file:
        file.write("{}")
    signer.take_in()
    assert codes(checkpoint, trust, now) == set()
    with module.open(checkpoint / "config.json", "a") as file:
        file.write(" ")
        assert signer.take_in() is None
        file.write("more")
    assert codes(checkpoint, trust, now)
    signer.take_in()
    assert codes(checkpoint, trust, now) == set()
    assert verify_folder(checkpoint, trust=trust, now=now).saves[0].said.step == 3
