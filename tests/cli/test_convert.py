# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Commands of docs/how-to/signed-checkpoints.md, docs/how-to/train-a-job.md are tried here."""

import json
import sys
import warnings
from datetime import timedelta

import pytest
import torch
from click.testing import CliRunner
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

import securetrain.artifacts
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.cli.artifacts.convert import command
from securetrain.core.errors import UsageError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, sign_root
from tests.train.models.test_hf import KEY, NOW, ROOT
from tests.train.test_exporter import trained


def test_a_checkpoint_of_torch_becomes_a_signed_one(tmp_path):
    key = PrivateKey.create(tmp_path / "key.pem")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_save({"w": torch.ones(3), "step": 1}, checkpoint_id=tmp_path / "old", no_dist=True)
    arguments = [
        str(tmp_path / "old"),
        str(tmp_path / "new"),
        "--key",
        str(tmp_path / "key.pem"),
        "--run",
        "r1",
        "--step",
        "5",
    ]
    done = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert said["key_id"] == key.key_id
    assert (tmp_path / "new" / STATEMENT).exists()
    arguments[1] = str(tmp_path / "again")
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert said["digest"] in done.stdout


def test_without_torch_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "securetrain.artifacts.checkpoint.legacy", raising=False)
    monkeypatch.delitem(vars(securetrain.artifacts), "convert", raising=False)
    with pytest.raises(UsageError, match=r"pip install '\.\[train\]'") as caught:
        CliRunner().invoke(
            command, ["old", "new", "--key", str(tmp_path / "k")], catch_exceptions=False
        )
    assert caught.value.code == "ST-USAG-004"


def test_a_checkpoint_of_training_becomes_what_others_read(tmp_path):
    trained(tmp_path / "c")
    (tmp_path / "trust.json").write_bytes(
        sign_root({TrustRole.CHECKPOINT: [KEY.public]}, ROOT, NOW, NOW + timedelta(days=4000))
    )
    PrivateKey.create(tmp_path / "key.pem")
    (tmp_path / "job.yaml").write_text(
        "apiVersion: securetrain.dev/job/v1\nkind: TrainJob\nname: t\nsteps: 1\n"
        "model: {dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 48, vocab: 300}\n"
    )
    arguments = [str(tmp_path / "c"), str(tmp_path / "out"), "--to", "hf"]
    arguments += ["--key", str(tmp_path / "key.pem"), "--trust", str(tmp_path / "trust.json")]
    with pytest.raises(UsageError, match="give --job"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    arguments += ["--job", str(tmp_path / "job.yaml"), "--json"]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["path"] == str(tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").is_file()
