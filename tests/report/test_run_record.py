# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.lineage.quarantine import Quarantine, set_aside
from securetrain.artifacts.statement.statements import open_statement
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.core.codes import ExitCode
from securetrain.core.errors import UsageError
from securetrain.core.vocabulary import Boundary, Decision
from securetrain.ledger import LedgerEvent, events
from securetrain.report import runs, written
from securetrain.report.run import boundaries, limits
from securetrain.report.run.model import (
    BoundaryState,
    FindingView,
    Proof,
    ProofState,
    RunRecord,
    VerificationView,
)
from securetrain.report.run.record import exit_code_of, read_run
from securetrain.testing.runs import SmallRun, make_run
from tests.tables import each

JSON = ["report", "run", "--json"]


def read(run: SmallRun, hours: int = 1) -> RunRecord:
    return read_run(run.run_dir.root, run.clock() + timedelta(hours=hours))


def states(record: RunRecord) -> dict[Boundary, BoundaryState]:
    return {view.boundary: view.state for view in record.boundaries}


def test_everything_of_a_full_run_is_read_and_verified(full):
    record = read(full)
    assert record.problems == ()
    assert record.trust.proof.state is ProofState.VERIFIED
    assert record.ledger.proof.state is ProofState.VERIFIED
    assert record.ledger.closed
    assert record.ledger.num_entries == sum(record.ledger.counts.values()) == 9
    assert [c.step for c in record.checkpoints] == [100, 200, 300]
    assert all(c.proof.state is ProofState.VERIFIED for c in record.checkpoints)
    assert record.checkpoints[2].parents == (record.checkpoints[1].digest,)
    assert record.dataset is not None
    assert record.checkpoints[0].dataset == record.dataset.digest
    assert len(record.metrics) == 90
    assert record.metrics[-1].bigram_bits == 3.77
    assert record.guard is not None
    assert {point.rank for point in record.guard.points} == {0, 1, 2}
    assert record.audit is not None
    assert record.drills[0].hardened.code == "ST-ADMN-002"
    assert record.policy is not None
    assert record.policy.digest == full.policy.digest
    assert exit_code_of(record) == ExitCode.OK


def test_the_states_of_the_boundaries_are_computed_from_evidence(full):
    found = states(read(full))
    assert found == {
        Boundary.IDENTITY: BoundaryState.CHECKED,
        Boundary.HOST: BoundaryState.UNKNOWN,
        Boundary.NODE: BoundaryState.PARTIAL,
        Boundary.SUPPLY_CHAIN: BoundaryState.CHECKED,
        Boundary.SCHEDULER: BoundaryState.NOT_CROSSED,
        Boundary.NETWORK: BoundaryState.CHECKED,
        Boundary.RENDEZVOUS: BoundaryState.CHECKED,
        Boundary.FABRIC: BoundaryState.UNKNOWN,
        Boundary.DATASET: BoundaryState.CHECKED,
        Boundary.GRADIENTS: BoundaryState.CHECKED,
        Boundary.CHECKPOINT: BoundaryState.CHECKED,
        Boundary.DEBUG: BoundaryState.CHECKED,
    }


def test_a_ledger_that_verifies_is_no_reason_to_doubt(full, refuse):
    refuse(full)
    for boundary in read(full).boundaries:
        assert not any("does not verify" in reason for reason in boundary.reasons), boundary


def test_an_unattested_node_is_never_green_and_says_so(full):
    node = next(v for v in read(full).boundaries if v.boundary is Boundary.NODE)
    assert node.state is BoundaryState.PARTIAL
    assert node.label == "UNATTESTED"
    assert any("UNATTESTED" in limit for limit in read(full).limits)


def test_a_refusal_makes_its_boundary_red(full, refuse):
    refuse(full)
    record = read(full)
    assert states(record)[Boundary.RENDEZVOUS] is BoundaryState.REFUSED
    assert record.ledger.refusals[0].code == "ST-ADMN-004"
    assert not record.ledger.closed
    assert any("no closing entry" in limit for limit in record.limits)


def test_nothing_is_invented_for_a_bare_run(bare):
    record = read(bare)
    assert record.metrics == ()
    assert record.guard is None
    assert record.dataset is None
    assert record.checkpoints == ()
    assert record.audit is None
    assert record.drills == ()
    assert record.verifications == ()
    assert record.outcome == "not recorded"
    assert record.outcome_ok is None
    found = states(record)
    assert found.pop(Boundary.IDENTITY) is BoundaryState.CHECKED
    assert set(found.values()) == {BoundaryState.NOT_CROSSED}
    for words in ("no checkpoint", "No gradient", "No preflight audit"):
        assert any(words in limit for limit in record.limits), words


def test_the_saves_that_were_signed_are_told_by_the_word_of_the_ledger(bare, capsys):
    saves: dict[str, dict[str, Any]] = {
        "out/model.pt": {"way": "torch.save", "file": "model.pt", "files": 1, "step": 7},
        "step-8": {"way": "dcp.save", "place": "step-8", "files": 3},
        "out/model.safetensors": {"way": "save_file", "file": "model.safetensors", "files": 1},
    }
    without = read(bare)
    for number, one in enumerate(saves.values()):
        said = {"subject": "rank-1", "place": "out", "number": number, **one}
        bare.ledger().write(events.SavedFilesSigned(**said))
    record = read(bare)
    assert [one.name for one in record.ledger.saves] == list(saves)
    assert [one.number for one in record.ledger.saves] == [0, 1, 2]
    assert [(one.step, one.files) for one in record.ledger.saves] == [(7, 1), (None, 3), (None, 1)]
    page = runs.page(record)
    told = json.loads(written(page, "json"))["checkpoints"]
    steps = [(name, one.get("step")) for name, one in saves.items()]
    assert [(one["name"], one["step"]) for one in told] == steps
    assert [one["metadata"]["way"] for one in told] == [one["way"] for one in saves.values()]
    assert {one["proof"]["state"] for one in told} == {"not recorded"}, "nothing was verified here"
    text, shown = written(page, "text"), written(page, "html")
    for name, one in saves.items():
        assert one["way"] in text
        assert name in text
        assert name in shown
    assert text.index("model.safetensors") < text.index("step-8"), "the newest first"
    assert "Nothing is in the run directory" not in text
    assert "Nothing is in the run directory" in written(runs.page(without), "text")
    assert [tile.value for tile in page.tiles if tile.name == "Signed saves"] == ["3"]
    assert exit_code_of(record) == ExitCode.OK
    drawn = [shown.index(f"<title>{name}: signed, ") for name in saves]
    assert drawn == sorted(drawn), "the picture has them in order"
    assert "What was saved" not in written(runs.page(without), "html")


def test_the_picture_says_of_each_checkpoint_what_its_statement_is(full):
    shown = written(runs.page(read(full)), "html")
    names = [one.name for one in read(full).checkpoints]
    assert names
    assert all(f"<title>{name}: statement verified</title>" in shown for name in names)
    forged = full.run_dir.checkpoints / names[-1] / "statement.json"
    forged.write_bytes(forged.read_bytes().replace(b'"sig":"', b'"sig":"AA'))
    shown = written(runs.page(read(full)), "html")
    assert f"<title>{names[-1]}: statement refused</title>" in shown
    assert f"<title>{names[0]}: statement verified</title>" in shown


def test_a_name_in_the_picture_is_text(bare):
    evil = "<script>alert(1)</script>"
    said: dict[str, Any] = {"subject": "rank-1", "place": "out", "number": 0, "files": 1}
    bare.ledger().write(events.SavedFilesSigned(file=evil, way="torch.save", **said))
    shown = written(runs.page(read(bare)), "html")
    assert evil not in shown
    assert "out/&lt;script&gt;" in shown


SCRIPT = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
dist.init_process_group("gloo")
weights = {"weight": torch.ones(4)}
torch.save(weights, sys.argv[1] + "/model.pt")
dcp.save(weights, checkpoint_id=sys.argv[1] + "/step-1")
dist.destroy_process_group()
"""


@pytest.mark.dist
def test_the_report_lists_what_an_unmodified_script_has_saved(tmp_path):
    (tmp_path / "job.py").write_text(SCRIPT)
    (tmp_path / "out").mkdir()
    told = ("--run-dir", "run", "--output", "out", "--sign-checkpoints", "--nproc-per-node", "1")
    for verb in (
        ["run", "--standalone", "--policy", "dev", *told, "job.py", "out"],
        JSON,
        JSON[:2],
    ):
        command = [sys.executable, "-m", "securetrain", *verb]
        given = {"cwd": tmp_path, "capture_output": True, "text": True}
        done = subprocess.run(command, check=True, timeout=300, **given)
        if verb is JSON:
            saves = json.loads(done.stdout)["ledger"]["saves"]
    names = {"out/model.pt", "step-1"}
    assert {one["name"] for one in saves} == names
    assert {one["rank"] for one in saves} == {"rank-0"}
    assert all(name in done.stdout for name in names)
    assert "Nothing is in the run directory" not in done.stdout
    policy = tmp_path / "run" / "policy.json"
    policy.write_text(policy.read_text().replace('"report"', '"require"', 1))
    assert read_run(tmp_path / "run", datetime.now(UTC)).ledger.proof.code == "ST-LEDG-005"


@pytest.mark.parametrize("damage", ["edited", "cut", "foreign"])
def test_a_ledger_that_does_not_verify_counts_for_nothing(full, damage):
    path = full.run_dir.ledger
    data = path.read_bytes()
    match damage:
        case "edited":
            path.write_bytes(data.replace(b"node-admitted", b"node-xdmitted"))
            code = "ST-LEDG-003"
        case "cut":
            path.write_bytes(b"".join(data.splitlines(keepends=True)[1:]))
            code = "ST-LEDG-002"
        case "foreign":
            other = make_run(full.run_dir.root.parent / "other")
            path.write_bytes(other.run_dir.ledger.read_bytes())
            code = "ST-LEDG-003"
    record = read(full)
    assert record.ledger.proof.state is ProofState.REFUSED
    assert record.ledger.proof.code == code
    assert record.ledger.num_entries == 0
    assert record.ledger.last == ()
    assert record.ledger.counts == {}
    assert record.ledger.saves == ()
    assert all(f"the ledger does not verify: {code}" in one.reasons for one in record.boundaries)
    assert BoundaryState.CHECKED not in {
        state for name, state in states(record).items()
        if name not in {Boundary.IDENTITY, Boundary.DATASET, Boundary.CHECKPOINT}
    }  # fmt: skip
    assert exit_code_of(record) == ExitCode.INTEGRITY


def test_an_unverified_ledger_makes_no_boundary_green_even_with_good_signatures(full):
    full.run_dir.ledger.write_bytes(b"{}\n")
    assert BoundaryState.CHECKED not in set(states(read(full)).values())


def test_a_foreign_trust_root_refuses_everything(full, tmp_path):
    other = make_run(tmp_path / "other")
    shutil.copy(other.run_dir.trust, full.run_dir.trust)
    record = read(full)
    assert record.ledger.proof.state is ProofState.REFUSED
    assert all(c.proof.code == "ST-CKPT-120" for c in record.checkpoints)
    assert record.dataset is not None
    assert record.dataset.proof.code == "ST-DATA-120"
    assert states(record)[Boundary.CHECKPOINT] is BoundaryState.REFUSED


@pytest.mark.parametrize("damage", ["missing", "garbage", "expired"])
def test_without_a_valid_trust_root_no_signature_counts(full, damage):
    hours = 1
    match damage:
        case "missing":
            full.run_dir.trust.unlink()
        case "garbage":
            full.run_dir.trust.write_bytes(b"{}")
        case "expired":
            hours = 24 * 400
    record = read(full, hours)
    assert record.trust.proof.state is not ProofState.VERIFIED
    assert record.ledger.proof.state is ProofState.REFUSED
    assert all(c.proof.state is ProofState.REFUSED for c in record.checkpoints)
    assert any("no signature of this run counts" in limit for limit in record.limits)
    assert exit_code_of(record) == ExitCode.INTEGRITY


def test_a_statement_with_one_flipped_byte_is_refused(full):
    path = full.run_dir.checkpoint(200) / "statement.json"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    record = read(full)
    assert [c.proof.state is ProofState.VERIFIED for c in record.checkpoints] == [True, False, True]
    assert record.checkpoints[1].digest == ""
    assert states(record)[Boundary.CHECKPOINT] is BoundaryState.REFUSED


def test_a_checkpoint_without_a_statement_is_refused_and_a_staged_one_is_not_shown(full):
    (full.run_dir.checkpoint(200) / "statement.json").unlink()
    full.run_dir.checkpoints.joinpath("step-00000400.tmp-abc").mkdir()
    record = read(full)
    assert len(record.checkpoints) == 3
    assert record.checkpoints[1].proof.code == "ST-CKPT-100"


def test_an_unwatched_run_is_not_green_at_the_gradients(bare, fill):
    fill(bare)
    record = read(bare)
    last = msgspec.structs.replace(record.checkpoints[-1], verdict="unwatched", num_judged=0)
    changed = (*record.checkpoints[:-1], last)
    views = boundaries.judge(msgspec.structs.replace(record, audit=None, checkpoints=changed), None)
    view = next(v for v in views if v.boundary is Boundary.GRADIENTS)
    assert view.state is not BoundaryState.CHECKED
    assert "UNWATCHED" in view.labels


def said_of(record: RunRecord, *told: LedgerEvent, **changes: Any) -> str:
    changed = msgspec.structs.replace(record, **changes)
    return "\n".join(limits.of(changed, keys_in_run=False, said=told))


def verified(record: RunRecord, **changes: Any) -> tuple[VerificationView, ...]:
    one = {"kind": "checkpoint", "path": "x", "ok": True, "num_files": 1, "num_bytes": 1, **changes}
    return (VerificationView(digest=record.checkpoints[0].digest, **one),)


def test_a_limit_is_said_where_it_holds_and_nowhere_else(full):
    record = read(full)
    nameless = msgspec.structs.replace(record.ledger, names_writers=False)
    refused = msgspec.structs.replace(nameless, proof=Proof(state=ProofState.REFUSED))
    judged = events.GradientsJudged(subject="node-0", judged=3, refused=0, settled=0)
    unsigned = events.CheckpointsNotSigned(subject="", ways="torch.save")
    begun, opened = (kind(subject="x") for kind in (events.RunStarted, events.DatasetOpened))
    writers, curves = "does not name the roles", "3 steps were judged; their curves are not here"
    none, some = "has no checkpoint", "For {} of 3 checkpoints only the statement's"
    unknown = "No signed dataset was opened"
    for words, holds, told, changes in (
        (writers, False, (), {}),
        (writers, True, (), {"ledger": nameless}),
        (writers, False, (), {"ledger": refused}),
        (curves, True, (judged,), {"guard": None}),
        (curves, False, (), {"guard": None}),
        (curves, False, (judged,), {}),
        (some.format(3), True, (), {"verifications": ()}),
        (some.format(2), True, (), {"verifications": verified(record)}),
        (some.format(3), True, (), {"verifications": verified(record, ok=False)}),
        (some.format(3), True, (), {"verifications": verified(record, kind="dataset")}),
        (none, False, (), {}),
        (none, True, (), {"checkpoints": ()}),
        (none, False, (unsigned,), {"checkpoints": ()}),
        (unknown, True, (begun,), {"dataset": None}),
        (unknown, False, (begun, opened), {"dataset": None}),
        (unknown, False, (begun,), {}),
    ):
        found = said_of(record, *told, **changes)
        assert (words in found) is holds, (words, holds, changes)


@each("state, label", ("fail", "1 finding open"), ("unknown", "1 not decided"), ("waived", ""))
def test_an_open_finding_beside_one_that_passed_is_partial(full, state, label):
    record = read(full)
    assert record.audit is not None
    what = {"title": "t", "severity": "high", "boundary": "scheduler"}
    pair = [{"check": f"ST-{n}", "state": n, **what} for n in ("pass", state)]
    found = msgspec.convert(pair, tuple[FindingView, ...])
    audit = msgspec.structs.replace(record.audit, findings=found)
    views = boundaries.judge(msgspec.structs.replace(record, audit=audit), None)
    view = next(v for v in views if v.boundary is Boundary.SCHEDULER)
    assert view.state is BoundaryState.PARTIAL
    assert label in view.label


def test_steps_that_were_judged_and_not_clean_are_no_signature_for_gradients(full):
    record = read(full)
    last = msgspec.structs.replace(record.checkpoints[-1], verdict="excluded", num_judged=9)
    for shown, number in ((record.checkpoints[-1], 1), (last, 0)):
        changed = msgspec.structs.replace(record, checkpoints=(shown,), audit=None)
        views = boundaries.judge(changed, None)
        view = next(v for v in views if v.boundary is Boundary.GRADIENTS)
        assert any("signature verified for" in reason for reason in view.reasons) is bool(number)


@pytest.mark.parametrize("name", ["audit.json", "drills.json", "run.json", "policy.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"a":1,"a":2}', b"\xff", b"[" * 100_000])
def test_malformed_files_are_named_and_not_fatal(full, name, content):
    (full.run_dir.root / name).write_bytes(content)
    record = read(full)
    assert any(problem.startswith(name) for problem in record.problems)
    assert exit_code_of(record) == ExitCode.INTEGRITY


def test_bad_lines_of_the_metrics_are_counted(full):
    with full.run_dir.metrics.open("a") as file:
        file.write('{"step": "no"}\nnonsense\n{"step": NaN}\n')
    record = read(full)
    assert len(record.metrics) == 90
    assert any("metrics.jsonl: 3 unreadable lines" in problem for problem in record.problems)


def test_links_are_not_followed(full, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(json.dumps({"findings": [], "counts": {"stolen": 1}}))
    full.run_dir.audit.unlink()
    full.run_dir.audit.symlink_to(secret)
    record = read(full)
    assert record.audit is None
    assert any(problem.startswith("audit.json") for problem in record.problems)


def test_a_fifo_does_not_hang_the_report(full):
    full.run_dir.metrics.unlink()
    os.mkfifo(full.run_dir.metrics)
    assert any(problem.startswith("metrics.jsonl") for problem in read(full).problems)


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_what_is_not_a_run_directory_is_an_error(tmp_path, kind, bare):
    path = tmp_path / "x"
    if kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.write_text("")
    with pytest.raises(UsageError) as caught:
        read_run(path, bare.clock())
    assert caught.value.code == "ST-USAG-002"
    assert str(path) in caught.value.where


def test_a_failed_run_or_drill_is_a_failure(full):
    record = read(full)
    assert exit_code_of(msgspec.structs.replace(record, outcome_ok=False)) == ExitCode.FAILURE
    drill = msgspec.structs.replace(record.drills[0], ok=False)
    assert exit_code_of(msgspec.structs.replace(record, drills=(drill,))) == ExitCode.FAILURE


def test_the_record_is_json(full):
    value = json.loads(msgspec.json.encode(read(full)))
    assert value["ledger"]["counts"] == {
        str(d): n for d, n in (("allow", 5), ("refuse", 0), ("observe", 4))
    }
    assert {b["boundary"] for b in value["boundaries"]} == {b.value for b in Boundary}
    assert value["ledger"]["last"][-1]["decision"] == Decision.OBSERVE


def test_a_checkpoint_that_was_set_aside_is_shown_as_refused(full):
    """The run has dealt with it: the report says so and does not fail."""
    path, now = full.run_dir.checkpoint(300), full.clock()
    opened = open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, full.trust)
    why = Quarantine(node="node-b", code="ST-ATTS-007", last_good=now, epoch=0, created=now)
    moved = set_aside(path, opened, why, full.keys["checkpoint"])
    record = read(full)
    (shown,) = [item for item in record.checkpoints if item.name == moved.name]
    assert (shown.proof.state, shown.proof.code) == (ProofState.REFUSED, "ST-CKPT-160")
    assert "node-b" in shown.proof.what
    assert shown.digest == opened.digest
    assert exit_code_of(record) == ExitCode.OK
