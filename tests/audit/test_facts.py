# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import copy
import json

import pytest

from securetrain.audit.facts import FACTS_LIMIT
from securetrain.audit.sources.stored import StoredFacts
from securetrain.audit.subjects.node.facts.node import decode_facts
from securetrain.core.errors import AuditError


def test_facts_survive_a_round_trip(case):
    facts = case("reference").document.body
    assert decode_facts(facts.to_json(), "x") == facts
    assert decode_facts(facts.to_json(), "x").to_json() == facts.to_json()


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.update(extra=1),
        lambda d: d.update(schema="securetrain.facts/v9"),
        lambda d: d["node"].pop("env"),
        lambda d: d["node"]["env"].update(outcome="denied"),
        lambda d: d["node"]["env"].update(value=None),
        lambda d: d["node"]["env"].update(outcome="fine"),
        lambda d: d["node"]["sysctls"]["value"].update({"kernel.made_up": {"outcome": "ok"}}),
        lambda d: d["node"]["shm"]["value"][0].update(mode="rw-r--r--"),
        lambda d: d["collected"].update(at="2026-11-20T12:00:00"),
        lambda d: d["job"].update(uid="1000"),
    ],
)
def test_anything_else_than_the_schema_is_an_integrity_error(fixtures, edit):
    document = copy.deepcopy(fixtures.reference)
    edit(document)
    with pytest.raises(AuditError) as refused:
        decode_facts(json.dumps(document).encode(), "facts.json")
    assert refused.value.code == "ST-AUDT-002"
    assert int(refused.value.exit_code) == 4


def test_a_huge_document_is_not_parsed():
    with pytest.raises(AuditError, match="the limit is"):
        decode_facts(b" " * (FACTS_LIMIT + 1), "facts.json")


def test_duplicate_keys_are_refused(fixtures, tmp_path):
    text = json.dumps(fixtures.reference).replace('"job"', '"job": null, "job"', 1)
    path = tmp_path / "facts.json"
    path.write_text(text)
    with pytest.raises(AuditError, match="duplicate"):
        list(StoredFacts(path, unsigned=True))


def test_a_folder_of_documents_is_one_set_of_facts(fixtures, tmp_path):
    for name in ("b", "a"):
        document = copy.deepcopy(fixtures.reference)
        document["collected"]["hostname"] = name
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    (tmp_path / "notes.txt").write_text("not facts")
    facts = StoredFacts(tmp_path, unsigned=True)
    assert [document.asset for document in facts.documents] == ["node:a", "node:b"]
    (tmp_path / "c.json").write_text((tmp_path / "a.json").read_text())
    with pytest.raises(AuditError, match="about one asset"):
        list(StoredFacts(tmp_path, unsigned=True))


def test_a_folder_without_documents_is_an_error_and_no_clean_audit(tmp_path):
    with pytest.raises(AuditError, match="0 facts documents"):
        list(StoredFacts(tmp_path, unsigned=True))
