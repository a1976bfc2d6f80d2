# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain schema``."""

import json

import pytest

from securetrain.cli.main import main
from securetrain.policy import policy_schema
from securetrain.train import job_schema


@pytest.mark.parametrize(("kind", "schema_of"), [("policy", policy_schema), ("job", job_schema)])
def test_it_is_printed_or_written(kind, schema_of, tmp_path, capsys):
    assert main(["schema", kind]) == 0
    assert json.loads(capsys.readouterr().out) == schema_of()
    place = tmp_path / "one.json"
    place.write_text("older")
    assert main(["schema", kind, "--out", str(place)]) == 0
    assert json.loads(place.read_text()) == schema_of()
    assert capsys.readouterr().out == ""


def test_another_kind_is_a_bad_command_line(capsys):
    assert main(["schema", "checkpoint"]) == 2
    assert "policy" in capsys.readouterr().err
