# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every field of the policy that a run enforces, tried with a script that knows nothing of it.

The table has a row for each field of the schema, which asks for something that ``dev`` does not:

`Left`       an unmodified script may leave it unenforced: that is said, recorded and shown, or
             refused under ``enforcement: require``
`Refused`    the run ends with this code, whatever the script is
`Seen`       it changes what the script finds, or what is recorded
`Elsewhere`  it needs hardware, several nodes or a peer that misbehaves: the test that has them
"""

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from securetrain.core.vocabulary import (
    DATA_NOT_KNOWN,
    LOADS_NOT_HELD,
    NOT_SIGNED,
    NOT_WATCHED,
    OPEN_EGRESS,
    PROGRAMS_NOT_PROTECTED,
)
from securetrain.launch.process.workerlog import (
    GradientReport,
    OutsideReport,
    SaveReport,
    WorkerReport,
)
from securetrain.launch.summary import checkpoint_summary, gradient_summary, outside_summary
from securetrain.policy import load_policy, unsigned_demands
from securetrain.policy.enforcement import NEEDS, Needs
from securetrain.policy.explanation import documented_fields
from securetrain.report import read_run
from tests.launch.worlds import write_policy

ROOT = Path(__file__).parents[3]
SCRIPTS = Path(__file__).with_name("scripts")
KEY = "MCowBQYDK2VwAyEA" + "A" * 43 + "="
HEX = "a0" * 32
PATIENCE = 900.0
ARRIVAL = "tests/test_group_arrival.py"


@dataclass(frozen=True)
class Left:
    """A demand, in YAML."""

    asks: Any


@dataclass(frozen=True)
class Refused:
    """A demand that no run on this machine meets."""

    asks: Any
    code: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """A demand whose effect is looked at."""

    asks: Any
    check: Callable[[Any, dict[str, str]], bool]


@dataclass(frozen=True)
class Elsewhere:
    """A demand, and the test of it."""

    asks: Any
    test: str


def certificate(done: Any) -> x509.Certificate:
    return x509.load_pem_x509_certificate((done.run.root / "keys" / "node.crt").read_bytes())


def lives_minutes(done: Any, most: int) -> bool:
    found = certificate(done)
    return found.not_valid_after_utc - found.not_valid_before_utc <= timedelta(minutes=most + 5)


def names(done: Any, domain: str) -> bool:
    found = certificate(done).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    uris = found.value.get_values_for_type(x509.UniformResourceIdentifier)
    return all(uri.startswith(f"spiffe://{domain}/") for uri in uris)


def renewed(done: Any) -> bool:
    """A lease of one minute is over, unless it is renewed, before the second does its work."""
    policy = load_policy(str(done.run.root / "policy.yaml")).policy
    return bool(policy.node.lease_minutes == 1 and done.events("node-admitted"))


ATTESTED = "tests/evidence/test_tpm_appraiser.py"
TEES = "tests/evidence/test_tee_appraiser.py"
GPUS = "tests/evidence/test_gpu_appraiser.py"
CLEAR = "tests/policy/test_load.py::test_a_fabric_in_clear_needs_its_name_a_reason_and_the_guard"
VERBS = "tests/network/test_verbs.py"
PREFLIGHT = "tests/launch/test_preflight.py"
VALUES = {"file": "values.json", "signed_by": [KEY]}
EXCEPTION = {"max_nodes": 1, "reason": "a test"}
ISOLATION = {"statement": "our own switches", "evidence": "statement"}
IN_CLEAR = {"require": ["rdma-trusted"], "fabric": "trusted-plaintext", "isolation": ISOLATION}
LOG = {"keys": [KEY], "origin": "log.example/x"}

Row = Left | Refused | Seen | Elsewhere
ROWS: dict[str, Row] = {
    "enforcement": Left("require"),
    "identity.trust_domain": Seen("lab.example", lambda done, _env: names(done, "lab.example")),
    "identity.certificate_lifetime_minutes": Seen(5, lambda done, _env: lives_minutes(done, 5)),
    "node.min_tier": Elsewhere(
        "tpm", "tests/attest/session/test_verifier.py::test_every_tier_against_the_policy"
    ),
    "node.allow_self_asserted": Elsewhere(
        EXCEPTION,
        "tests/attest/session/test_verifier.py"
        "::test_an_exception_lets_unattested_nodes_in_below_the_minimum",
    ),
    "node.allow_self_asserted.max_nodes": Elsewhere(
        {**EXCEPTION, "max_nodes": 2},
        "tests/attest/session/test_verifier.py::test_no_more_unattested_nodes_than_allowed",
    ),
    "node.allow_self_asserted.reason": Seen(
        EXCEPTION, lambda done, _env: "a test" in (done.run.root / "policy.json").read_text()
    ),
    "node.allow_self_asserted.until": Refused({**EXCEPTION, "until": "2020-01-01"}, "ST-ATTS-005"),
    "node.lease_minutes": Elsewhere(
        1, "tests/attest/session/test_verifier.py::test_a_lease_that_is_over_begins_anew"
    ),
    "node.doubt_lost": Elsewhere(
        False,
        "tests/rendezvous/coordinator/test_evictions.py"
        "::test_who_goes_is_doubted_only_if_the_policy_says_so",
    ),
    "node.reference_values": Refused(VALUES, "ST-ATTS-009"),
    "node.reference_values.file": Refused(VALUES, "ST-ATTS-009"),
    "node.reference_values.signed_by": Refused(VALUES, "ST-ATTS-009"),
    "node.reference_values.cache": Refused({**VALUES, "cache": "nowhere"}, "ST-ATTS-009"),
    "node.tpm": Elsewhere({"ima": "enforce"}, f"{ATTESTED}::test_join_and_renew"),
    "node.tpm.inventory": Elsewhere({"inventory": False}, f"{ATTESTED}::test_without_an_inventory"),
    "node.tpm.event_log": Elsewhere(
        {"event_log": False, "secure_boot": False},
        f"{ATTESTED}::test_whole_registers_without_a_log",
    ),
    "node.tpm.secure_boot": Elsewhere(
        {"secure_boot": False}, f"{ATTESTED}::test_secure_boot_was_off"
    ),
    "node.tpm.ima": Elsewhere(
        {"ima": "enforce"}, f"{ATTESTED}::test_every_file_is_in_the_runtime_policy"
    ),
    "node.tpm.allow_ima_violations": Elsewhere(
        {"allow_ima_violations": True}, f"{ATTESTED}::test_violations_are_what_the_policy_says"
    ),
    "node.tee": Elsewhere({"tcb_statuses": []}, f"{TEES}::test_a_genuine_report"),
    "node.tee.tcb_statuses": Elsewhere({"tcb_statuses": []}, f"{TEES}::test_a_genuine_report"),
    "node.gpu": Elsewhere({"confidential": True}, f"{GPUS}::test_a_nodes_devices"),
    "node.gpu.confidential": Elsewhere({"confidential": True}, f"{GPUS}::test_a_nodes_devices"),
    "node.gpu.fabric": Elsewhere({"fabric": True}, f"{GPUS}::test_devices_that_are_refused"),
    "node.gpu.revocation": Elsewhere(
        {"revocation": False}, f"{GPUS}::test_devices_that_are_refused"
    ),
    "node.gpu.allow_expired_rims": Elsewhere(
        {"allow_expired_rims": True},
        "tests/evidence/gpu/test_rim.py::test_expired_is_a_reason_of_its_own",
    ),
    "node.secrets": Left({"token": {"min_tier": "self-asserted"}}),
    "host.preflight": Elsewhere("off", f"{PREFLIGHT}::test_off_checks_nothing_and_says_so"),
    "host.fail_on": Elsewhere("low", f"{PREFLIGHT}::test_enforce_refuses"),
    "host.max_unknown": Elsewhere(0, f"{PREFLIGHT}::test_enforce_refuses_too_little_evidence"),
    "host.sandbox": Left("required"),
    "host.max_memory_mib": Left(1 << 20),
    "host.max_tasks": Left(4096),
    "host.rank_isolation": Left("domains"),
    "supply_chain.torch_min": Refused("99.0.0", "ST-USAG-009"),
    "supply_chain.allow_entry_points": Elsewhere(
        ["x"],
        "tests/launch/test_supply_chain.py::test_another_packages_entry_point_is_refused",
    ),
    "scheduler.pass_environment": Seen([], lambda _done, env: "SLURM_X" not in env),
    "network.require": Refused(["ipsec-offload"], "ST-NETW-001"),
    "network.fabric": Elsewhere("encrypted", CLEAR),
    "network.isolation": Elsewhere(None, CLEAR),
    "network.isolation.statement": Elsewhere(
        None, f"{VERBS}::test_a_fabric_in_clear_needs_the_policys_word"
    ),
    "network.isolation.evidence": Elsewhere(None, f"{VERBS}::test_a_partition_is_evidence"),
    "network.egress": Left(["example.org:443"]),
    "rendezvous.join_timeout_seconds": Elsewhere(
        5, "tests/rendezvous/test_rule_breakers.py::test_a_member_that_follows_no_rule_harms_nobody"
    ),
    "rendezvous.arrival_seconds": Elsewhere(5, f"{ARRIVAL}::test_whom_the_others_wait_for"),
    "rendezvous.handshake_timeout_seconds": Elsewhere(
        1, "tests/rendezvous/test_attacks.py::test_a_connection_that_says_nothing_times_out"
    ),
    "rendezvous.max_unauthenticated": Elsewhere(
        4, "tests/rendezvous/test_attacks.py::test_idle_connections_cannot_keep_a_member_out"
    ),
    "rendezvous.close_quorum": Elsewhere(
        "majority",
        "tests/rendezvous/test_rule_breakers.py::test_a_member_that_follows_no_rule_harms_nobody",
    ),
    "rendezvous.key_exchange": Seen(
        "hybrid",
        lambda done, _env: (
            done.events("node-admitted")[0].details["key_exchange"] == "X25519MLKEM768"
        ),
    ),
    "fabric.pin_environment": Seen(False, lambda _done, env: env.get("NCCL_ALGO") == "Ring"),
    "fabric.allow_environment": Seen([], lambda _done, env: "NCCL_DEBUG" not in env),
    "dataset.max_age_days": Left(9),
    "gradients.mode": Left("detect"),
    "gradients.response": Left("halt"),
    "gradients.data": Left("per-rank"),
    "gradients.false_alarms_per_million_rank_steps": Left(50),
    "gradients.warmup_steps": Left(3),
    "gradients.threshold": Left(9.0),
    "gradients.require_watched": Left(True),
    "gradients.max_refused_steps": Left(2),
    "gradients.sketch_keys": Left(2),
    "gradients.deadline_seconds": Left(30.0),
    "gradients.confirm_tables": Left(True),
    "gradients.bind_buffers": Left(False),
    "checkpoint.algorithm": Left("sha256"),
    "checkpoint.require_clean_verdict": Left(True),
    "checkpoint.require_rank_signatures": Left(True),
    "checkpoint.require_head": Left(True),
    "checkpoint.log": Left({}),
    "checkpoint.log.origin": Left(LOG),
    "checkpoint.log.keys": Left(LOG),
    "checkpoint.log.witnesses": Left({"witnesses": [KEY]}),
    "checkpoint.log.quorum": Left({"quorum": 1}),
    "checkpoint.encrypt_to": Left([HEX]),
    "checkpoint.unpickle": Left("warn"),
    "checkpoint.allow_globals": Left(["some.Thing"]),
    "checkpoint.allow_pickles_in": Left(["/some/folder"]),
    "checkpoint.sign_saves": Left(True),
    "checkpoint.verify_loads": Left(True),
    "checkpoint.load_trust": Left(["/some/trust.json"]),
    "checkpoint.expect": Left({"run": "another"}),
    "checkpoint.expect.run": Left({"run": "another"}),
    "checkpoint.expect.name": Left({"name": "another"}),
    "checkpoint.expect.digest": Left({"digest": HEX}),
    "checkpoint.expect.signer": Left({"signer": "another"}),
    "checkpoint.expect.step": Left({"step": 7}),
    "checkpoint.expect.dataset": Left({"dataset": "another"}),
    "checkpoint.expect.policy": Left({"policy": "hardened"}),
    "checkpoint.expect.min_step": Left({"min_step": 7}),
    "checkpoint.expect.min_version": Left({"min_version": 7}),
    "checkpoint.max_age_days": Left(9),
    "debug.allow_servers": Left(False),
}


def written(folder, *fields, **more):
    """A policy with these rows' demands."""
    document: dict[str, Any] = {}
    for field in fields:
        section, *rest = field.split(".")
        if not rest:
            document[section] = ROWS[field].asks
        else:
            part = document.setdefault(section, {})
            asked = ROWS[field].asks
            nested = isinstance(asked, dict) and isinstance(part.get(rest[0]), dict)
            part[rest[0]] = {**part[rest[0]], **asked} if nested else asked
    for section, values in more.items():
        if isinstance(values, dict):
            document.setdefault(section, {}).update(values)
        else:
            document[section] = values
    path = folder / "policy.yaml"
    write_policy(path, **document)
    return path


def test_every_field_that_a_run_enforces_has_a_row_and_no_other():
    fields = {".".join(doc.path) for doc in documented_fields() if "run" in doc.enforced_by}
    assert sorted(fields - set(ROWS)) == [], "try it with an unmodified script, and say what is so"
    assert sorted(set(ROWS) - fields) == []
    left = {name for name, row in ROWS.items() if isinstance(row, Left)}
    assert left == {name for name in ROWS if NEEDS[name] is not Needs.NOTHING} | {"enforcement"}


@pytest.mark.parametrize("field", [name for name, row in ROWS.items() if row.asks is not None])
def test_every_demand_is_a_policy(field, tmp_path):
    section, *rest = field.split(".")
    more = {"network": IN_CLEAR} if field == "network.fabric" else {}
    policy = load_policy(str(written(tmp_path, field, **more))).policy
    assert field in load_policy(str(tmp_path / "policy.yaml")).sources or "." in field
    found = functools.reduce(getattr, [section, *rest[:1]], policy)
    assert found is not None


@pytest.mark.parametrize(
    "test", sorted({row.test for row in ROWS.values() if isinstance(row, Elsewhere)})
)
def test_what_is_tested_elsewhere_is(test):
    path, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), test


LABELS = {
    Needs.SHIM: PROGRAMS_NOT_PROTECTED,
    Needs.WATCHED_MODEL: NOT_WATCHED,
    Needs.OUR_SAVES: NOT_SIGNED,
    Needs.OUR_LOADS: LOADS_NOT_HELD,
    Needs.OUR_READERS: DATA_NOT_KNOWN,
}
UNSEEN = WorkerReport(
    rank=0,
    attempt=0,
    gradients=GradientReport(unwatched_steps=3, reasons=("by hand",)),
    saves=SaveReport(unsigned={"torch.save": 1}, places=("a.pt",)),
    outside=OutsideReport(loads={"torch.load": 1}, places=("b.pt",)),
)
"""What a worker says whose script does all of it by itself."""


@pytest.mark.parametrize("field", [name for name in ROWS if NEEDS[name] in LABELS])
def test_what_a_script_leaves_out_is_said(field, tmp_path):
    """The sentences of one demand alone; `test_all_of_it_at_once` has the jobs."""
    needs = NEEDS[field]
    off = {"checkpoint": {"require_clean_verdict": False}, "debug": {"allow_servers": True}}
    lenient = {key: value for key, value in off.items() if f"{key}." not in field}
    policy = load_policy(str(written(tmp_path, field, **lenient))).policy
    protected = needs is not Needs.SHIM
    reports = [UNSEEN] if protected else []
    given: Any = {"protected": protected, "num_workers": 1}
    sentences = [
        gradient_summary.at_end(policy.gradients, reports, **given).label,
        checkpoint_summary.at_end(policy, reports, **given).label,
    ]
    outside = outside_summary.at_end(policy, reports, protected=protected)
    sentences += outside.labels if outside is not None else ()
    said = [line for line in sentences if line.startswith(LABELS[needs])]
    assert said, sentences
    top = ".".join(field.split(".")[:2])
    named = {
        Needs.SHIM: outside.unshielded if outside is not None else (),
        Needs.OUR_SAVES: unsigned_demands(policy),
        Needs.OUR_LOADS: outside.fields if outside is not None else (),
        Needs.OUR_READERS: outside.unread if outside is not None else (),
    }.get(needs, ())
    if top in HOW or needs is Needs.WATCHED_MODEL:
        return
    assert top in named
    assert top in said[0]


HOW = {
    *("checkpoint.algorithm", "checkpoint.allow_globals", "checkpoint.allow_pickles_in"),
    "checkpoint.load_trust",
}
"""Fields that ask for nothing: they say how another one is met."""


# The jobs


NOOP = """\
import json, os, sys
with open(sys.argv[1], "w") as file:
    json.dump(dict(os.environ), file)
"""
SET = {"SLURM_X": "1", "NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"}
WITHOUT = {"host": {"sandbox": "off"}}
JOBS = [pytest.mark.dist, pytest.mark.slow, pytest.mark.many, pytest.mark.timeout(1800)]


def jobs(test):
    for mark in JOBS:
        test = mark(test)
    return test


@jobs
@pytest.mark.parametrize(
    "field", [name for name, row in ROWS.items() if isinstance(row, Refused | Seen)]
)
def test_a_script_that_does_nothing(launch, tmp_path, field):
    row = ROWS[field]
    assert isinstance(row, Refused | Seen)
    script, found = tmp_path / "noop.py", tmp_path / "environ.json"
    script.write_text(NOOP)
    start = functools.partial(launch, patience=PATIENCE, **SET)
    words = ("--standalone", str(script), str(found))
    control = start(tmp_path / "control", "--policy", str(written(tmp_path, **WITHOUT)), *words)
    assert control.code == 0, control.err
    before = json.loads(found.read_text())
    policy = written(tmp_path, field, **WITHOUT)
    done = start(tmp_path / "run", "--policy", str(policy), *words)
    if isinstance(row, Refused):
        assert done.code != 0
        assert f"error {row.code}:" in done.err  # there may be no run yet
        return
    assert done.code == 0, done.err
    assert row.check(done, json.loads(found.read_text()))
    plain = {"node.allow_self_asserted.reason", "rendezvous.key_exchange"}
    assert field in plain or not row.check(control, before), "the control"


LEFT = [
    name
    for name, row in ROWS.items()
    if isinstance(row, Left)
    and NEEDS[name] not in {Needs.NOTHING, Needs.SANDBOX}
    and name not in {"checkpoint.log.keys", "checkpoint.log.origin", "gradients.require_watched"}
]
EVENTS = {
    Needs.WATCHED_MODEL: "gradients-not-watched",
    Needs.OUR_SAVES: "checkpoints-not-signed",
    Needs.OUR_LOADS: "loads-not-held",
    Needs.OUR_READERS: "data-not-known",
    Needs.JOB_NETWORK: "egress-unlimited",
    Needs.SHIM: "programs-not-protected",
}


@pytest.fixture
def everything(launch, tmp_path):
    """Starts a job whose policy has every demand that a script may leave out."""
    secret = tmp_path / "secret"
    secret.write_text("hush")
    secret.chmod(0o600)

    def start(*words, **more):
        quiet = {"sign_saves": False, "verify_loads": False}
        policy = written(tmp_path, *LEFT, **{**WITHOUT, "checkpoint": quiet, **more})
        place = ("--standalone", "--policy", str(policy), "--secret", f"token=file:{secret}")
        return launch(tmp_path / "run", *place, *words, patience=PATIENCE)

    return start


def shown(done):
    return "\n".join(read_run(done.run.root, datetime.now(UTC)).limits)


@jobs
def test_all_of_it_at_once(everything, tmp_path):
    """One plain script trains by hand, saves and loads by torch, and reads what it likes."""
    place = tmp_path / "place"
    place.mkdir()
    done = everything("--nproc-per-node", "2", str(SCRIPTS / "outside.py"), str(place), "all")
    assert done.code == 0, done.err
    start, _, end = done.err.partition("workers      2 of")
    for words in ("gradients: not watched yet", "checkpoints: signed where", "loads: held to"):
        assert words in start
    assert "data: held to dataset.max_age_days" in start
    assert OPEN_EGRESS in start
    for needs in set(EVENTS) - {Needs.SHIM}:
        assert done.events(EVENTS[needs]), needs
    last = end.rpartition("securetrain: gradients:")[2]
    for label in (LOADS_NOT_HELD, NOT_SIGNED, DATA_NOT_KNOWN, OPEN_EGRESS):
        assert label in last, label
    assert last.startswith(NOT_WATCHED.partition(":")[2])
    for label in (NOT_WATCHED, LOADS_NOT_HELD, NOT_SIGNED):
        assert f"{label}." in shown(done)
    for field in ("checkpoint.require_head", "checkpoint.expect", "dataset.max_age_days"):
        assert field in shown(done)
    assert "The way out was open" in shown(done)
    summary = done.summary
    assert summary["gradients"]["watched"] is False
    assert summary["checkpoints"]["unsigned"] == 1
    assert summary["outside"]["unread"] == ["dataset.max_age_days"]


@jobs
def test_a_program_without_the_shim(everything):
    done = everything("--no-python", "true")
    assert done.code == 0, done.err
    start, _, end = done.err.partition("workers      1 of")
    for text in (start, end, shown(done)):
        assert PROGRAMS_NOT_PROTECTED in text
        for field in ("node.secrets", "checkpoint.unpickle", "checkpoint.expect"):
            assert field in text
        assert NOT_WATCHED in text
    (event,) = done.events("programs-not-protected")
    assert "debug.allow_servers" in event.details["fields"]
    assert done.events("gradients-not-watched")


REQUIRED: dict[str, tuple[str, dict[str, Any]]] = {
    "program": ("ST-RUNT-021", {}),
    "egress": ("ST-RUNT-021", {}),
    "read": ("ST-RUNT-021", {"network": {"egress": []}}),
    "save": ("ST-RUNT-022", {"network": {"egress": []}}),
}


@jobs
@pytest.mark.parametrize("how", REQUIRED)
def test_the_same_where_all_is_required(everything, tmp_path, how):
    """By hand, loads and programs of the script: `test_outside`; the sandbox: its own tests."""
    code, more = REQUIRED[how]
    place, script = tmp_path / "place", tmp_path / "noop.py"
    place.mkdir()
    script.write_text(NOOP)
    words = {
        "program": ("--no-python", "true"),
        "egress": (str(script), str(place / "environ.json")),
        "read": (str(script), str(place / "environ.json")),
        "save": (str(SCRIPTS / "outside.py"), str(place), "save"),
    }[how]
    done = everything(*words, enforcement="require", **more)
    assert done.code != 0
    assert done.summary["code"] == code, done.err
    ran = how in {"read", "save"}
    assert bool(done.events("epoch-started")) is ran
    assert how != "save" or not list(place.iterdir()), "nothing was written"


@jobs
@pytest.mark.parametrize("mode", ["report", "require"])
def test_limits_that_the_machine_does_not_give(launch, tmp_path, mode):
    script = tmp_path / "noop.py"
    script.write_text(NOOP)
    policy = written(tmp_path, "host.max_memory_mib", "host.max_tasks", enforcement=mode)
    words = ("--standalone", str(script), str(tmp_path / "environ.json"))
    done = launch(tmp_path / "run", "--policy", str(policy), *words, patience=PATIENCE)
    if "without limits of memory" not in done.err and done.code == 0:
        return  # this machine gives them
    if mode == "require":
        assert done.summary["code"] == "ST-RUNT-020"
    else:
        assert done.code == 0, done.err
        start, _, end = done.err.partition("workers      1 of")
        assert all("DEGRADED" in text for text in (start, end))
        assert done.events("sandbox-degraded")
        assert "DEGRADED" in shown(done)


def test_policies_are_plain_data(tmp_path):
    """What the rows ask for is the same when it is read back."""
    policy = load_policy(str(written(tmp_path, *LEFT))).policy
    assert msgspec.convert(msgspec.to_builtins(policy), type(policy)) == policy
