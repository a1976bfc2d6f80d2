# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Nothing crafted is clean, and every finding that can be named is."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from securetrain.artifacts.dataset.write import sign_dataset
from securetrain.artifacts.scan.scanner import scan_path
from securetrain.report import verification, written
from tests.tables import items
from tools.scan_corpus import pieces
from tools.scan_corpus.crafted import UNKNOWN, UNSAFE, Case, cases

CASES = cases()


def test_there_are_at_least_a_hundred() -> None:
    assert len(CASES) >= 100
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.forgery
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_nothing_crafted_is_clean(case: Case, tmp_path: Path) -> None:
    (tmp_path / case.file).write_bytes(case.data)
    result = scan_path(tmp_path)
    found = {finding.code for finding in result.findings}
    allowed = {UNSAFE, UNKNOWN} if case.exit == UNKNOWN else {case.exit}
    assert result.exit_code in allowed, found
    if case.code:
        assert case.code in found


# Beside each attack, what a loader of the same kind reads every day.


@items(
    "file, bad, good, code",

        ("a.yaml", "_target_: os.system", "_target_: torch.optim.AdamW", "ST-SCAN-195"),
        ("a.yaml", "a: !!python/name:os.system ''", "a: !!str x", "ST-SCAN-195"),
        ("config.json", '{"auto_map": {"A": "m.M"}}', '{"auto_map": {}}', "ST-SCAN-195"),
        ("config.json", '{"trust_remote_code": true}', '{"trust_remote_code": false}',
         "ST-SCAN-195"),
        ("model_index.json", '{"a": ["mine", "M"]}', '{"a": ["diffusers", "M"]}', "ST-SCAN-195"),
        ("modules.json", '[{"type": "m.M"}]', '[{"type": "sentence_transformers.models.M"}]',
         "ST-SCAN-195"),
        ("a.jinja", "{{ m.__class__ }}", "{{ m.role }} __class__ {# m.__class__ #}", "ST-SCAN-196"),
        ("a.jinja", "{{ m['\\x5f_class__'] }}", "{{ m['role'] ~ '_' }}", "ST-SCAN-196"),
        ("a.jinja", "{{ m[a ~ b] }}", "{{ m[a + 1] }}{{ a ~ b }}{{ m[1:] }}", "ST-SCAN-031"),

)  # fmt: skip
def test_an_attack_and_its_harmless_twin(file, bad, good, code, tmp_path):
    (tmp_path / file).write_text(bad)
    assert {one.code for one in scan_path(tmp_path).findings} == {code}
    (tmp_path / file).write_text(good)
    result = scan_path(tmp_path)
    assert result.findings == []
    assert result.judged


def test_data_of_a_graph_beside_it_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(bytes(range(256)))
    assert {one.code for one in scan_path(tmp_path).findings} == {"ST-SCAN-032"}
    (tmp_path / "m.onnx").write_bytes(pieces.onnx(tensors=[pieces.onnx_tensor("w.data")]))
    assert scan_path(tmp_path).findings == []
    (tmp_path / "m.onnx").write_bytes(pieces.onnx(tensors=[pieces.onnx_tensor("../w.data")]))
    found = {one.code for one in scan_path(tmp_path).findings}
    assert found == {"ST-SCAN-032", "ST-SCAN-197"}


def test_what_a_statement_of_ours_names_is_data_and_what_it_does_not_name_is_unknown(
    tmp_path: Path, keys: Any, now: Any
) -> None:
    (tmp_path / "raw").mkdir()
    numbers = bytes(range(256)) * 8
    (tmp_path / "raw" / "train.bin").write_bytes(numbers)
    assert {one.code for one in scan_path(tmp_path / "raw").findings} == {"ST-SCAN-032"}
    signed = tmp_path / "signed"
    sign_dataset(tmp_path / "raw", signed, name="c", key=keys.dataset, now=now)
    assert scan_path(signed).findings == []
    (signed / "more.bin").write_bytes(numbers)
    assert {one.file for one in scan_path(signed).findings} == {"more.bin"}
    (signed / "train.bin").write_bytes(pieces.call("os.system"))
    assert "ST-SCAN-190" in {one.code for one in scan_path(signed).findings}


def test_arrays_of_joblib_are_stepped_over_and_what_follows_is_not(tmp_path: Path) -> None:
    start = b"\x80\x04(" + pieces.wrapped_array("f8", [3]) + b"\x04" + b"\xff" * 4
    file = tmp_path / "m.joblib"
    file.write_bytes(start + b"cos\nsystem\n(" + bytes(12) + b"l.")
    result = scan_path(file)
    assert result.findings == []
    assert "os.system" not in result.judged[-1].globals
    file.write_bytes(start + bytes(24) + b"cos\nsystem\n)R" + b"l.")
    assert "ST-SCAN-190" in {one.code for one in scan_path(file).findings}


def test_a_finding_in_an_archive_is_at_its_byte_of_the_file(tmp_path: Path) -> None:
    data = pieces.torch_zip(pieces.call("os.system"))
    (tmp_path / "m.pt").write_bytes(data)
    log = json.loads(written(verification.scan(scan_path(tmp_path), opcodes=False), "sarif"))
    (found,) = log["runs"][0]["results"]
    place = found["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "m.pt"
    assert place["physicalLocation"]["region"] == {"byteOffset": data.index(b"system\x93") + 6}
    assert place["logicalLocations"] == [{"fullyQualifiedName": "m/data.pkl", "kind": "member"}]
    (tmp_path / "m.pt").write_bytes(gzip.compress(data))
    (found,) = json.loads(written(verification.scan(scan_path(tmp_path), opcodes=False), "sarif"))[
        "runs"
    ][0]["results"]
    assert "region" not in found["locations"][0]["physicalLocation"]
