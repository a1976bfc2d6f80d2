# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A model that claims what is not there fails; each rule has a model that breaks it alone."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

import msgspec
import pytest

import securetrain
from securetrain.audit.sources.catalogue import load_checks
from securetrain.core.codes import CODES
from securetrain.core.errors import AuditError
from securetrain.core.vocabulary import Boundary
from securetrain.drills.registry import DRILLS
from securetrain.policy.load import parse_yaml
from securetrain.threats.resolve import verify
from securetrain.threats.source import SourceTree
from securetrain.threats.threat_model import ThreatModel, load_model, locate, shipped_models
from tests.tables import items

PACKAGE = Path(securetrain.__file__).parent
TODAY = date(2026, 11, 20)
CHECKS = load_checks()
SOURCE = SourceTree.of(PACKAGE)  # parses each file once

MODEL = """\
schema: securetrain.threatmodel/v1
id: tm-small
title: One flow
version: 1.0.0
zones:
- {id: z-a, title: Inside, sp800_223: computing}
- {id: z-b, title: Outside, sp800_223: outside}
boundaries:
- {id: rendezvous, between: [z-a, z-b]}
personas:
- {id: p-x, title: Somebody, skill: user, access: outside, malicious: true}
assets:
- {id: a-x, title: Something, cia: [low, high, low]}
components:
- {id: c-a, title: Ours, zone: z-a, code: securetrain.rendezvous}
- {id: c-b, title: Theirs, zone: z-b}
flows:
- id: f-x
  from: c-b
  to: c-a
  protocol: tcp
  data: [bytes]
  encrypted: false
  authenticated: none
  crosses: rendezvous
  stride:
    S: [T-RDZ-001]
    T: Not in this small model, on purpose.
    R: Not in this small model, on purpose.
    I: Not in this small model, on purpose.
    D: Not in this small model, on purpose.
    E: Not in this small model, on purpose.
threats:
- id: T-RDZ-001
  title: A stranger joins
  flow: f-x
  stride: [S]
  persona: p-x
  assets: [a-x]
  refs: {nist: [IA-9]}
  likelihood: likely
  impact: severe
  controls:
  - id: C-ONE
    title: A control with every kind of reference
    status: active
    checks: [ST-RDZ-002]
    enforced_by: [securetrain.ledger.log:Ledger.append]
    codes: [ST-ADMN-002]
    drills: [D-RDZ-PICKLE]
    tests: [tests/threats/test_resolve.py::test_the_small_model_holds]
  residual: {level: low, reason: what is left is little, owner: nobody, review_by: 2026-11-20}
"""

PROOF = """\
    drills: [D-RDZ-PICKLE]
    tests: [tests/threats/test_resolve.py::test_the_small_model_holds]
"""


@dataclass(frozen=True)
class Drill:
    boundary: Boundary
    expected_code: str


def model_of(text):
    return msgspec.convert(parse_yaml(text, "small.yaml"), ThreatModel)


def problems(text, *, drills=DRILLS, today=TODAY, source=None):
    report = verify(
        [model_of(text)],
        CHECKS,
        drills,
        source or SOURCE,
        today,
        complete=False,
    )
    return [f"{p.where}: {p.what}" for p in report.problems]


def test_the_small_model_holds():
    assert problems(MODEL) == []


@items(
    "old, new, wanted",

        ("between: [z-a, z-b]", "between: [z-a, z-c]", "boundary rendezvous: there is no zone z-c"),
        ("zone: z-b}", "zone: z-c}", "c-b: there is no zone z-c"),
        ("code: securetrain.rendezvous", "code: securetrain.randevu",
         "c-a: there is no module securetrain.randevu"),
        ("code: securetrain.rendezvous", "code: os.path", "c-a: there is no module os.path"),
        ("from: c-b", "from: c-z", "f-x: there is no component c-z"),
        ("crosses: rendezvous", "crosses: fabric", "f-x: the model has no boundary fabric"),
        ("    D: Not in this small model, on purpose.\n", "", "f-x: no decision for D (denial)"),
        ("S: [T-RDZ-001]", "S: [T-RDZ-009]", "f-x: S: there is no threat T-RDZ-009"),
        ("    T: Not in this small model, on purpose.", "    T: [T-RDZ-001]",
         "f-x: T: T-RDZ-001 is not about this flow and letter"),
        ("S: [T-RDZ-001]", "S: Nothing to see here, really.",
         "T-RDZ-001: f-x does not list it under S"),
        ("flow: f-x", "flow: f-y", "T-RDZ-001: there is no flow f-y"),
        ("persona: p-x", "persona: p-y", "T-RDZ-001: there is no persona p-y"),
        ("assets: [a-x]", "assets: [a-y]", "T-RDZ-001: there is no asset a-y"),
        ("status: active", "status: planned", "T-RDZ-001: no active control"),
        ("checks: [ST-RDZ-002]", "checks: [ST-RDZ-999]",
         "T-RDZ-001/C-ONE: there is no check ST-RDZ-999"),
        ("checks: [ST-RDZ-002]", "checks: [ST-DBG-004]",
         "T-RDZ-001/C-ONE: ST-DBG-004 does not cite this threat"),
        ("codes: [ST-ADMN-002]", "codes: [ST-ADMN-002, ST-ADMN-999]",
         "T-RDZ-001/C-ONE: there is no code ST-ADMN-999"),
        ("codes: [ST-ADMN-002]", "codes: [ST-ADMN-001]",
         "T-RDZ-001/C-ONE: D-RDZ-PICKLE expects ST-ADMN-002, which the control does not name"),
        ("ledger.log:Ledger.append", "ledger.log:Ledger.add",
         "T-RDZ-001/C-ONE: securetrain.ledger.log does not define Ledger.add"),
        ("ledger.log:Ledger.append", "ledgers.log:Ledger",
         "T-RDZ-001/C-ONE: there is no module securetrain.ledgers.log"),
        ("ledger.log:Ledger.append", "ledger.log:canonical",  # imported there, defined elsewhere
         "T-RDZ-001/C-ONE: securetrain.ledger.log does not define canonical"),
        ("D-RDZ-PICKLE", "D-RDZ-NOTHING", "T-RDZ-001/C-ONE: there is no drill D-RDZ-NOTHING"),
        ("::test_the_small_model_holds", "::test_gone",
         "T-RDZ-001/C-ONE: tests/threats/test_resolve.py does not define test_gone"),
        ("tests/threats/test_resolve.py", "tests/threats/test_gone.py",
         "T-RDZ-001/C-ONE: there is no tests/threats/test_gone.py"),
        ("2026-11-20}", "2026-11-19}", "T-RDZ-001: its residual was to be reviewed by 2026-11-19"),
        ("    enforced_by: [securetrain.ledger.log:Ledger.append]\n", "",
         "T-RDZ-001/C-ONE: names codes, but not the code that raises them"),
        (PROOF, "", "T-RDZ-001/C-ONE: proven by neither a drill nor a test"),
        ("- {id: z-b,", "- {id: z-a, title: Again, sp800_223: outside}\n- {id: z-b,",
         "zone z-a: stands twice"),

)  # fmt: skip
def test_each_claim_that_is_not_so_is_named(old, new, wanted):
    assert old in MODEL
    assert wanted in problems(MODEL.replace(old, new, 1))


def test_a_control_without_anything_proves_nothing():
    lines = MODEL.splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if "checks:" in line)
    text = "".join(lines[:first] + lines[first + 5 :])
    assert "T-RDZ-001/C-ONE: neither enforced by code nor looked for by a check" in problems(text)


def test_a_drill_that_attacks_elsewhere():
    drills = {"D-RDZ-PICKLE": Drill(Boundary.DEBUG, "ST-ADMN-002")}
    assert problems(MODEL, drills=drills) == [
        "T-RDZ-001/C-ONE: D-RDZ-PICKLE attacks the boundary debug, not rendezvous"
    ]


def test_a_boundary_that_nothing_crosses():
    text = MODEL.replace("boundaries:\n", "boundaries:\n- {id: debug, between: [z-a, z-b]}\n")
    assert problems(text) == ["boundary debug: no flow crosses it"]


def test_tests_that_are_not_installed_are_unchecked_and_not_passed():
    source = SourceTree(PACKAGE, None)
    report = verify([model_of(MODEL)], CHECKS, DRILLS, source, TODAY, complete=False)
    assert not report.problems
    assert len(report.unchecked) == 1
    assert int(report.exit_code) == 3


# --- the shipped models --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped():
    return [load_model(path) for path in shipped_models()]


def test_the_shipped_models_hold(shipped):
    report = verify(shipped, CHECKS, DRILLS, SOURCE, TODAY, complete=True)
    assert [f"{p.model}: {p.where}: {p.what}" for p in report.problems] == []
    assert int(report.exit_code) == 0


def test_two_models_with_six_threats_and_more_and_all_boundaries(shipped):
    assert {m.id for m in shipped} == {"tm-training-cluster", "tm-training-artifacts"}
    assert all(len(model.threats) >= 6 for model in shipped)
    assert {c.id for m in shipped for c in m.boundaries} == set(Boundary)
    assert any(t.residual.level == "high" for m in shipped for t in m.threats)


def complete(models, *, checks=CHECKS, drills=DRILLS):
    report = verify(models, checks, drills, SOURCE, TODAY, complete=True)
    return {f"{p.where}: {p.what}" for p in report.problems if p.model == "all models"}


def test_what_no_model_cites_is_a_problem(shipped):
    alone = complete([m for m in shipped if m.id == "tm-training-cluster"])
    assert "D-GRAD-POISON: no threat cites this drill" in alone
    assert f"ST-CKPT-130: no threat cites this refusal: {CODES['ST-CKPT-130'].title}" in alone
    assert "ST-SUP-001: cites T-SUP-001, which no model has" in alone
    assert "ST-SUP-001: no control names this check" in alone
    assert "checkpoint: no model has this boundary" in alone
    drills = {**DRILLS, "D-NEW": Drill(Boundary.DEBUG, "ST-RUNT-006")}
    assert complete(shipped, drills=drills) == {"D-NEW: no threat cites this drill"}


def test_a_threat_may_stand_in_one_model_only(shipped):
    report = verify([shipped[0], shipped[0]], CHECKS, DRILLS, SOURCE, TODAY, complete=False)
    assert any(p.what == "stands twice" for p in report.problems)


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.many)])
def test_removing_any_one_thing_that_a_model_cites_is_noticed(shipped, every):
    """Mutation of the world: each check and each drill, taken away alone, breaks the chain."""
    cited = {c for m in shipped for t in m.threats for k in t.controls for c in k.checks}
    for gone in sorted(cited)[::every]:
        rest = [check for check in CHECKS if check.id != gone]
        report = verify(shipped, rest, DRILLS, SOURCE, TODAY, complete=True)
        assert report.problems, gone
    for gone in list(DRILLS)[::every]:
        rest_drills = {k: v for k, v in DRILLS.items() if k != gone}
        report = verify(shipped, CHECKS, rest_drills, SOURCE, TODAY, complete=True)
        assert report.problems, gone


# --- loading -------------------------------------------------------------------------------------


@items(
    "old, new, message",
    ("title: One flow", "title: One flow\ncolour: red", "unknown field"),
    ("id: tm-small", "id: small", "matching regex"),
    ("crosses: rendezvous", "crosses: wire", "Invalid enum value"),
    ("    S: [T-RDZ-001]", "    X: [T-RDZ-001]", "Invalid enum value"),
    ("    S: [T-RDZ-001]", "    S: none", "length"),
    ("    S: [T-RDZ-001]", "    S: []", "length"),
    ("ledger.log:Ledger.append", "ledger", "matching regex"),
    ("tests/threats", "../tests", "matching regex"),
    ("review_by: 2026-11-20", "review_by: later", "date"),
    ("likelihood: likely", "likelihood: certain", "Invalid enum value"),
    ("  residual:", "  residuals:", "unknown field"),
    ("schema: securetrain.threatmodel/v1", "schema: v2", "Invalid enum value"),
    ("title: One flow", "title: &a One flow", "anchors"),
    ("title: One flow", "title: One flow\ntitle: Two", "duplicate"),
)
def test_a_malformed_model_is_an_error_with_its_place(tmp_path, old, new, message):
    path = tmp_path / "m.yaml"
    path.write_text(MODEL.replace(old, new, 1))
    with pytest.raises(AuditError) as refused:
        load_model(path)
    assert refused.value.code == "ST-THRT-001"
    assert message in refused.value.what
    assert "m.yaml" in refused.value.where


def test_models_are_found_by_name_and_by_path(tmp_path):
    assert locate("training-cluster") in shipped_models()
    assert locate(str(tmp_path / "x.yaml")) == tmp_path / "x.yaml"
