# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What other tools read, judged by the standards' own schema and library, in a Python of theirs.

    python3 -m venv outside && outside/bin/pip install jsonschema in-toto-attestation
    SECURETRAIN_OUTSIDE=outside/bin/python SECURETRAIN_SARIF_SCHEMA=sarif-schema-2.1.0.json \
        make test-slow

The schema is that of https://github.com/oasis-tcs/sarif-spec (sarif-2.1/schema). Neither is here.
The library's summaries (0.9.3) have one text in `verifiedLevels`, where the specification has a
list (https://github.com/in-toto/attestation/issues/425), and no version of the verifier: it is
shown our levels one at a time, without that version.
"""

import base64
import copy
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from securetrain.artifacts.dataset.write import sign_dataset
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.audit import load_checks
from securetrain.chain.verdict import summarize
from securetrain.chain.verifying import verify
from securetrain.cli.artifacts.scan import command as scan
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from securetrain.policy.load import load_policy
from securetrain.report import written
from securetrain.report.pages.findings import findings
from tests.report.audits import mixed, result
from tests.report.test_machine_formats import DAMAGED, WHOLE, outcome
from tests.vocabulary import ran

pytestmark = [pytest.mark.many]

PYTHON = os.environ.get("SECURETRAIN_OUTSIDE", "")
SCHEMA = os.environ.get("SECURETRAIN_SARIF_SCHEMA", "")

JUDGE = """
import json, sys
asked = json.load(sys.stdin)
def sarif(value):
    import jsonschema
    with open(asked["schema"], encoding="utf-8") as file:
        schema = json.load(file)
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)
def statement(value):
    from google.protobuf import json_format
    from in_toto_attestation.v1 import statement, statement_pb2
    read = json_format.ParseDict(value, statement_pb2.Statement())
    statement.Statement.copy_from_pb(read).validate()
def vsa(value):
    from google.protobuf import json_format
    from in_toto_attestation.predicates.vsa.v1 import vsa_pb2
    statement(value)
    assert value["predicateType"] == "https://slsa.dev/verification_summary/v1"
    said = value["predicate"]
    levels, version = said["verifiedLevels"], said["verifier"].pop("version")
    assert type(levels) is list, "the specification's form"
    assert all(type(word) is str for pair in version.items() for word in pair)
    for level in levels or [""]:
        one = {**said, "verifiedLevels": level}
        json_format.ParseDict(one, vsa_pb2.VerificationSummary())
found = []
for kind, value in asked["documents"]:
    try:
        globals()[kind](value)
        found.append("")
    except ImportError:
        raise
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}"[:500])
json.dump(found, sys.stdout)
"""


def judged(*documents: tuple[str, Any]) -> list[str]:
    """What the standards' own code says of each; empty when nothing."""
    if not PYTHON:
        pytest.skip("NOTHING WAS JUDGED BY OTHERS: no Python of theirs (set SECURETRAIN_OUTSIDE)")
    if not SCHEMA and any(kind == "sarif" for kind, _ in documents):
        pytest.skip("NO SARIF WAS JUDGED BY ITS SCHEMA (set SECURETRAIN_SARIF_SCHEMA)")
    done = ran(
        [PYTHON, "-I", "-c", JUDGE], input=json.dumps({"schema": SCHEMA, "documents": documents})
    )
    said: list[str] = json.loads(done.stdout)
    return said


def bent(value: Any, change: Callable[[Any], object]) -> Any:
    value = copy.deepcopy(value)
    change(value)
    return value


def test_sarif_by_its_schema(tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    arguments = [str(tmp_path), "--format", "sarif"]
    scanned = CliRunner().invoke(scan, arguments, standalone_mode=False)
    logs = [
        json.loads(written(outcome(), "sarif")),
        json.loads(written(outcome(DAMAGED, WHOLE), "sarif")),
        json.loads(written(findings(mixed(), load_checks(), set()), "sarif")),
        json.loads(written(findings(result(), load_checks(), set()), "sarif")),
        json.loads(scanned.stdout),
    ]
    assert judged(*(("sarif", json.loads(json.dumps(one))) for one in logs)) == [""] * len(logs)

    good = logs[1]
    liars = [
        bent(good, lambda log: log.pop("version")),
        bent(good, lambda log: log["runs"][0]["results"][0].pop("message")),
        bent(good, lambda log: log["runs"][0]["results"][0].update(level="grave")),
        bent(good, lambda log: log["runs"][0]["tool"]["driver"].update(maker="x")),
    ]
    assert all(judged(*(("sarif", one) for one in liars)))


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, TrustRoot, datetime]:
    """A checkpoint and a dataset with pairs of signatures, and who trusts them."""
    import torch

    from securetrain.artifacts.checkpoint.save import save

    now, key = datetime.now(UTC), PrivateKey.generate_pair()
    roles = {TrustRole.CHECKPOINT: [key.public], TrustRole.DATASET: [key.public]}
    began = now - timedelta(days=1)
    root = sign_root(roles, key, began, now + timedelta(days=1), both=roles)
    context = SaveContext(run_id="r", step=1, seq=1, created=now)
    save({"w": torch.ones(4)}, tmp_path / "checkpoint", key=key, context=context)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").write_text("one\n")
    sign_dataset(tmp_path / "source", tmp_path / "dataset", name="d", key=key, now=now)
    return tmp_path, TrustRoot.parse(root, now), now


def test_statements_and_summaries_by_in_toto(world: tuple[Path, TrustRoot, datetime]) -> None:
    folder, trust, now = world
    documents: list[tuple[str, Any]] = []
    for name in ("checkpoint", "dataset"):
        envelope = json.loads((folder / name / STATEMENT).read_bytes())
        documents.append(("statement", json.loads(base64.b64decode(envelope["payload"]))))
        for used in (None, load_policy("baseline")):
            for passed in (True, False):
                verified = verify(folder / name, trust=trust, now=now)
                assert verified.ok
                verified.policy = used
                if not passed:
                    verified.refuse("ST-CKPT-130", "changed")
                made = json.loads(summarize(verified))
                assert made["predicate"]["verificationResult"] == ("PASSED" if passed else "FAILED")
                documents.append(("vsa", made))
    assert judged(*documents) == [""] * 10

    statement, summary = documents[0][1], documents[1][1]
    liars: list[tuple[str, Any]] = [
        ("statement", bent(statement, lambda one: one.update(subject=[]))),
        ("statement", bent(statement, lambda one: one["subject"][0].pop("digest"))),
        ("statement", bent(statement, lambda one: one.pop("predicateType"))),
        ("vsa", bent(summary, lambda one: one["predicate"].update(verdict="PASSED"))),
        ("vsa", bent(summary, lambda one: one["predicate"].update(timeVerified="yesterday"))),
        ("vsa", bent(summary, lambda one: one["predicate"].update(verifiedLevels="A"))),
        ("vsa", bent(summary, lambda one: one["predicate"].update(verifiedLevels=["A", 2]))),
    ]
    assert all(judged(*liars))
