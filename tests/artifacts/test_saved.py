# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Statements on files in other formats: what each of them covers, and what it does not."""

import hashlib
import random
import shutil
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from securetrain.artifacts import kinds
from securetrain.artifacts.saved.judging import covering
from securetrain.artifacts.statement.checkpoint_predicate import PolicyRef
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.saved_files import (
    Form,
    SavedFile,
    SavedFiles,
    open_saved,
    sidecar,
    sign_saved,
)
from securetrain.core.errors import IdentityError, IntegrityError
from securetrain.core.vocabulary import EnforcementMode
from securetrain.identity import statement
from securetrain.identity.trust import TrustRoot
from securetrain.policy import load_policy
from tests import vocabulary
from tests.artifacts.worlds import verify_saved
from tests.tables import items

DATA = b"\x80\x02weights" * 200


def say(path, form, now, *names, **changes):
    """What a worker says of a file, or of files in a directory."""
    folder = path if form is Form.DIRECTORY else path.parent
    files = [
        SavedFile(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name in sorted(names or (path.name,))
        for data in [(folder / name).read_bytes()]
    ]
    said = SavedFiles(
        run_id="job-1",
        name="job-1",
        policy=PolicyRef(id="dev", digest="cd" * 32),
        rank=0,
        world_size=2,
        number=1,
        step=3,
        created=now,
        way="torch.save",
        form=form,
        place=folder.name,
        files=files,
    )
    return replace(said, **changes)


@pytest.fixture
def saved(tmp_path, keys, now):
    """A folder with a file, and a directory in it, both signed."""
    root = tmp_path / "out"
    step = root / "step-3"
    (step / "deep").mkdir(parents=True)
    (root / "model.pt").write_bytes(DATA)
    for name in (".metadata", "__0_0.distcp", "deep/__1_0.distcp"):
        (step / name).write_bytes(DATA + name.encode())
    put(root / "model.pt", Form.FILE, keys, now)
    put(step, Form.DIRECTORY, keys, now, ".metadata", "__0_0.distcp", "deep/__1_0.distcp")
    return root


def put(path, form, keys, now, *names, **changes):
    said = say(path, form, now, *names, **changes)
    sidecar(path, form).write_bytes(sign_saved(said, keys.checkpoint))


def codes(path, trust, now, **more):
    found = verify_saved(path, trust=trust, policy=None, now=now, **more)
    assert found.ok is (not found.problems)
    assert bool(found.exit_code) is not found.ok
    return {problem.code for problem in found.problems}


def test_what_was_saved_verifies_as_a_whole_and_in_parts(saved, trust, now):
    for path in (saved, saved / "step-3", saved / "model.pt", saved / "step-3/deep/__1_0.distcp"):
        assert kinds.guess(path).kind is kinds.TargetKind.SAVED
        assert codes(path, trust, now) == set(), path
    assert verify_saved(saved, trust=trust, policy=None, now=now).num_files == 4
    (saved / "latest").symlink_to("step-3")
    assert codes(saved / "latest", trust, now) == set(), "a link is what it points to"
    assert codes(saved, trust, now) == {"ST-CKPT-142"}, "and nothing in a signed directory"


def test_any_byte_of_any_file_counts(saved, trust, now):
    dice = random.Random(20)
    files = [path for path in saved.rglob("*") if path.is_file()]
    for _ in range(40):
        path = dice.choice(files)
        data = bytearray(path.read_bytes())
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        before = path.read_bytes()
        path.write_bytes(data)
        assert codes(saved, trust, now), path
        path.write_bytes(before)
    assert codes(saved, trust, now) == set()


def _remove(root):
    (root / "model.pt").unlink()


def _grow(root):
    (root / "model.pt").write_bytes(DATA + b"x")


def _add(root):
    (root / "step-3" / "evil.pt").write_bytes(b"x")


def _unsign(root):
    (root / "model.pt.securetrain.json").unlink()


def _begin(root):
    (root / "model.pt.securetrain.json").write_bytes(b"")


def _move(root):
    for end in ("", ".securetrain.json"):
        (root / f"model.pt{end}").rename(root / f"other.pt{end}")


def _rename(root):
    (root / "step-3").rename(root / "step-9")


def _other_folder(root):
    (root / "elsewhere").mkdir()
    for end in ("", ".securetrain.json"):
        shutil.move(root / f"model.pt{end}", root / "elsewhere" / f"model.pt{end}")


def _other_form(root):
    shutil.copyfile(root / "model.pt.securetrain.json", root / "step-3" / ".securetrain.json")


def _garbage(root):
    (root / "model.pt.securetrain.json").write_bytes(b"{}")


ATTACKS = {
    _remove: "ST-CKPT-140",
    _grow: "ST-CKPT-131",
    _add: "ST-CKPT-141",
    _unsign: "ST-CKPT-141",
    _begin: "ST-CKPT-100",
    _move: "ST-CKPT-143",
    _rename: "ST-CKPT-143",
    _other_folder: "ST-CKPT-143",
    _other_form: "ST-CKPT-143",
    _garbage: "ST-CKPT-101",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_each_attack_is_refused_for_its_reason(saved, trust, now, attack):
    attack(saved)
    assert ATTACKS[attack] in codes(saved, trust, now)


def test_other_keys_other_runs_and_other_times(saved, keys, trust, now):
    stranger = TrustRoot.parse(keys.trust_file(keys.stranger.public), now)
    vocabulary.refused(IntegrityError, "ST-CKPT-120", covering, saved / "model.pt", [stranger])
    assert covering(saved / "model.pt", [stranger, trust]).file.name == "model.pt"
    wanted: dict[str, Any] = {"run": "job-2", "min_step": 4, "name": "x"}
    found = {
        codes(saved, trust, now, expect=Expectation(**{k: v})).pop() for k, v in wanted.items()
    }
    assert found == {"ST-CKPT-125", "ST-CKPT-154", "ST-CKPT-126"}
    assert codes(saved, trust, now - timedelta(days=1)) == {"ST-CKPT-150"}
    revoked = TrustRoot.parse(keys.trust_file(revoked=[keys.checkpoint.key_id]), now)
    assert "ST-CKPT-161" in codes(saved / "model.pt", revoked, now)


def test_a_policy_gets_what_such_a_statement_does_not_say(saved, trust, now):
    policy = load_policy("hardened").policy
    assert policy.enforcement is EnforcementMode.REQUIRE
    found = verify_saved(saved, trust=trust, policy=policy, now=now)
    asked = {"ST-CKPT-121", "ST-CKPT-122", "ST-CKPT-152", "ST-CKPT-170"}
    assert asked <= {problem.code for problem in found.problems}


@items(
    "id, change",
    ("rank", {"rank": 2}),
    ("none", {"files": []}),
    ("up", {"place": ".."}),
    ("dots", {"place": "a/../b"}),
    ("form", {"form": Form.FILE}),
    ("out", {"files": [SavedFile(name="../x", size=1, sha256="ab" * 32)]}),
    ("sidecar", {"files": [SavedFile(name="x.securetrain.json", size=1, sha256="ab" * 32)]}),
    ("order", {"files": [SavedFile(name=name, size=1, sha256="ab" * 32) for name in ("b", "a")]}),
)
def test_a_statement_that_does_not_agree_with_itself_is_none(saved, keys, trust, now, change):
    said = say(saved / "step-3", Form.DIRECTORY, now, ".metadata", "__0_0.distcp")
    with pytest.raises((IdentityError, IntegrityError)):
        open_saved(sign_saved(replace(said, **change), keys.checkpoint), trust, "x")


def test_a_signature_of_a_checkpoint_is_none_on_files(saved, keys, trust, now):
    said = say(saved / "model.pt", Form.FILE, now)
    other = statement.sign(
        [statement.Subject("model.pt", {"sha256": said.files[0].sha256})],
        "https://securetrain.dev/attestation/checkpoint/v2",
        said,
        keys.checkpoint,
    )
    sidecar(saved / "model.pt", Form.FILE).write_bytes(other)
    assert "ST-CKPT-101" in codes(saved, trust, now)
