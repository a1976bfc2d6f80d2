# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from securetrain.cli.main import main
from securetrain.policy.explanation import documented_fields


@pytest.fixture
def policy(tmp_path):
    def write(body):
        path = tmp_path / "p.yaml"
        path.write_text(
            "extends: baseline\napiVersion: securetrain.dev/policy/v1\nkind: Policy\n"
            "metadata: {id: p, version: 1.0.0}\n" + body
        )
        return str(path)

    return write


def test_lint_warnings_are_not_a_failure(policy, capsys):
    assert main(["policy", "lint", policy("host: {preflight: warn}\n")]) == 0
    text = capsys.readouterr().out
    assert "warning  host.preflight" in text
    assert "0 errors, 1 warnings" in text


@pytest.mark.parametrize("body", ["colour: red\n", "supply_chain: {torch_min: newest}\n"])
def test_lint_errors_are(policy, capsys, body):
    assert main(["policy", "lint", policy(body), "--json"]) == 2
    remarks = json.loads(capsys.readouterr().out)["remarks"]
    assert [r["level"] for r in remarks] == ["error"]


def test_lint_knows_the_checks(policy, capsys):
    assert main(["policy", "lint", policy("host: {skip_checks: [ST-NET-999]}\n")]) == 0
    assert "there is no check ST-NET-999" in capsys.readouterr().out


def test_explain(capsys):
    assert main(["policy", "explain", "baseline", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    fields = {(f["section"], f["field"]): f for f in document["fields"]}
    named = {(f.path[0], ".".join(f.path[1:])) for f in documented_fields()}
    assert set(fields) <= named
    assert fields["host", "fail_on"]["value"] == "high"
    assert fields["host", "fail_on"]["enforced_by"] == ["run", "audit"]
    assert len(document["digest"]) == 64


def test_explain_for_people(capsys):
    assert main(["policy", "explain", "dev", "--section", "node"]) == 0
    text = capsys.readouterr().out
    assert "min_tier" in text
    assert "dev.yaml" in text
    assert "torch_min" not in text
    assert main(["policy", "explain", "dev", "--section", "weather"]) == 2
