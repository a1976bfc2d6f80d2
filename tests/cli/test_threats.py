# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json

from securetrain.cli.main import main
from securetrain.threats.threat_model import models_dir


def test_the_shipped_models(capsys):
    code = main(["threats", "verify", "--json"])
    document = json.loads(capsys.readouterr().out)
    # a residual that is due for review is right to fail, and says nothing about this command
    assert [p for p in document["problems"] if "to be reviewed" not in p["what"]] == []
    assert code == document["exit"] == (1 if document["problems"] else 0)
    assert {m["id"] for m in document["models"]} == {
        "tm-training-cluster",
        "tm-training-artifacts",
    }


def test_one_model_for_people(capsys):
    assert main(["threats", "verify", "training-artifacts"]) in (0, 1)
    text = capsys.readouterr().out
    assert "T-CKP-001" in text
    assert "D-CKPT-METADATA" in text
    assert "1 models" in text


def test_something_dangles(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    text = (models_dir() / "training-artifacts.yaml").read_text()
    path.write_text(text.replace("D-CKPT-METADATA", "D-CKPT-GONE"))
    assert main(["threats", "verify", str(path)]) == 1
    out = capsys.readouterr().out
    assert "ST-THRT-002" in out
    assert "there is no drill D-CKPT-GONE" in " ".join(out.split())


def test_a_malformed_model(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("schema: x\n")
    assert main(["threats", "verify", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ST-THRT-001"
