# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collector and checks together, over a cluster's configuration as files."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from securetrain.audit.documents import BODIES, facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.findings import Finding, worst_states
from securetrain.audit.facts import decode_body
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
from securetrain.audit.subjects.kubernetes.facts.cluster import ClusterFacts
from securetrain.audit.subjects.slurm.collect.cluster import collect_clusters
from securetrain.core.errors import AuditError
from securetrain.core.vocabulary import State
from securetrain.policy.load import load_policy
from tests.audit.conftest import NOW
from tests.audit.slurm.cluster import Tree, hardened
from tests.audit.slurm.faults import BAD, CONF, GOOD
from tests.audit.test_collected import NOBODY, as_nobody

# Those that compare clusters have tests of their own.
CHECKS = [check for check in load_checks() if check.kind == "slurm" and check.across is None]
BASELINE = load_policy("baseline").policy


def findings_of(tree: Tree) -> tuple[Finding, ...]:
    facts = tree.facts()
    assert decode_body(facts.to_json(), BODIES, "x") == facts
    return audit(facts_of([facts]), CHECKS, BASELINE, NOW).findings


def states_of(tree: Tree) -> dict[str, State]:
    return worst_states(findings_of(tree))


def test_a_hardened_cluster_passes_everything(tmp_path):
    found = findings_of(hardened(tmp_path))
    assert [(f.check, f.state, f.reason) for f in found if f.state is not State.PASS] == []
    assert len(found) == len(CHECKS) >= 22


def test_two_clusters_of_one_name_are_told_apart_or_refused(tmp_path):
    facts = hardened(tmp_path).facts()
    with pytest.raises(AuditError, match="ST-AUDT-002") as refused:
        list(facts_of([facts, facts]))
    assert "ClusterName" in refused.value.what
    assert "--node" not in refused.value.fix


def test_there_is_a_cluster_that_fails_each_check():
    assert {bad.check for bad in BAD.values()} == {check.id for check in CHECKS}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_found_at_its_line(name, tmp_path):
    bad, tree = BAD[name], hardened(tmp_path)
    bad.make(tree)
    found = findings_of(tree)
    failed = [f for f in found if f.state is State.FAIL]
    assert bad.check in {f.check for f in failed}
    assert {f.check for f in failed} - {bad.check} <= bad.also
    if bad.line:
        places = {(f.location.path, f.location.line) for f in failed if f.location}
        assert (bad.evidence, bad.line) in places


def test_faults_are_found_by_one_check_more_or_less():
    """98 % flip the check that they are for, the test above says all; others on average 0.1."""
    others = [len(bad.also) for bad in BAD.values()]
    assert len(BAD) >= 60
    assert sum(others) / len(others) <= 0.1


@pytest.mark.parametrize("name", GOOD)
def test_what_only_looks_wrong_is_not(name, tmp_path):
    check, make = GOOD[name]
    tree = hardened(tmp_path)
    make(tree)
    assert states_of(tree)[check] is not State.FAIL
    if name != "auth/slurm":  # whose key is elsewhere
        assert states_of(tree)[check] is State.PASS


# --- the sweep: evidence that is unreadable, masked, emptied or missing ---------------------------


def closed(tree: Tree, path: Path) -> None:
    """Without rights for anybody; root reads it nevertheless."""
    path.chmod(0)


def unreadable(tree: Tree, path: Path) -> None:
    path.unlink() if path.is_file() else shutil.rmtree(path)
    path.symlink_to(path.name)  # a circle, which root cannot read either


def masked(tree: Tree, path: Path) -> None:
    path.unlink() if path.is_file() else shutil.rmtree(path)
    os.mkfifo(path)


def folder_masked(tree: Tree, path: Path) -> None:
    folder = path.parent
    shutil.rmtree(folder)
    folder.mkdir()
    inside = "/" + str(folder.relative_to(tree.root))
    table = tree.root / "proc/self/mountinfo"
    table.write_text(table.read_text() + f"9 1 0:9 / {inside} rw shared:1 - tmpfs none rw\n")


def emptied(tree: Tree, path: Path) -> None:
    if path.is_file():
        path.write_text("")


def missing(tree: Tree, path: Path) -> None:
    path.unlink() if path.is_file() else shutil.rmtree(path)


FAULTS: tuple[Callable[[Tree, Path], None], ...] = (
    unreadable, masked, folder_masked, emptied, missing,
)  # fmt: skip
# What is itself wrong is not wrong when it is gone, or has nothing in it.
SUBJECT = {
    "ST-SLM-004": {emptied, missing},
    "ST-SLM-005": {emptied, missing},
    "ST-SLM-010": {emptied, missing},
    "ST-SLM-011": {emptied, missing},
    "ST-SLM-017": {missing},
}


def sweep(name: str, base: Path) -> None:
    bad = BAD[name]
    by_mode = bad.check in {"ST-SLM-003", "ST-SLM-010", "ST-SLM-011", "ST-SLM-016", "ST-SLM-023"}
    for fault in FAULTS if os.geteuid() == 0 or by_mode else (closed, *FAULTS):
        if fault in SUBJECT.get(bad.check, ()):
            continue
        folder = base / f"{name}-{fault.__name__}"
        folder.mkdir()
        tree = hardened(folder)
        bad.make(tree)
        path = tree.root / bad.evidence.lstrip("/")
        was_folder = path.is_dir()
        fault(tree, path)
        if was_folder and fault is emptied:
            continue
        states = states_of(tree)
        assert states[bad.check] not in {State.PASS, State.NOT_APPLICABLE}, (
            name,
            fault.__name__,
            states[bad.check],
        )


SAMPLE = ["auth-none-last", "munge-key-open", "conf-for-all", "devices-no", "shm-shared"]


@pytest.mark.parametrize("name", SAMPLE)
def test_evidence_that_is_hidden_never_passes(name, tmp_path):
    sweep(name, tmp_path)


@pytest.mark.parametrize("name", ["auth-none-last", "devices-no"])
def test_nor_does_it_for_an_unprivileged_user(name):
    if os.geteuid() != 0:
        pytest.skip("this is an unprivileged user already: the sweep above is the test")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        before = Path(folder) / "before"
        before.mkdir()
        states_of(hardened(before))  # without rights not everything can be imported
        os.chown(folder, NOBODY, NOBODY)
        as_nobody(lambda: sweep(name, Path(folder)))


@pytest.mark.many
def test_nor_does_any(tmp_path):
    for name in BAD:
        sweep(name, tmp_path)


def test_nothing_passes_without_slurm_conf(tmp_path):
    tree = hardened(tmp_path)
    (tree.root / CONF[1:]).unlink()
    states = states_of(tree)
    # What needs none of it: the version, the daemon of REST, and what containers see.
    alone = {"ST-SLM-020"}
    assert {check for check, state in states.items() if state is State.PASS} <= alone


def test_a_configuration_among_files_is_a_cluster(tmp_path):
    for folder, name in (("a", "slurm.conf"), ("b/templates", "slurm.conf.j2"), ("c", "x.conf")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text("ClusterName=one\nAuthType=auth/none\n")
    files = (path for path in tmp_path.rglob("*") if path.is_file())
    found = collect_clusters(files, now=NOW, salt=b"")
    names = {f"slurm:one ({tmp_path / folder})" for folder in ("a", "b/templates")}
    assert {one.asset for one in found} == names
    assert (
        worst_states(audit(facts_of(found), CHECKS, BASELINE, NOW).findings)["ST-SLM-001"]
        is State.FAIL
    )


def test_variables_of_ansible_hold_no_keys_and_passwords(tmp_path):
    written = """
munge_key: "c2VjcmV0c2VjcmV0"
slurm_munge_key_path: /etc/munge/munge.key
slurmdbd: {storage_pass: slurmpass, purge: 1month}
mysql_root_password: hunter22
slurm_db_password: "{{ vault_db }}"
db_password: !vault |
  $ANSIBLE_VAULT;1.1;AES256
users: [{name: a, password: topsecret1}]
"""
    for name, text in (("defaults/main.yml", written), ("x.yaml", written), ("vars/y.yml", "a: [")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    *_, cluster = collect_manifests([tmp_path], now=NOW)
    assert isinstance(cluster, ClusterFacts)
    found = {(one.key, one.at.line) for one in cluster.cluster.secrets}
    assert found == {
        *(("munge_key", 2), ("storage_pass", 4)),
        *(("mysql_root_password", 5), ("password", 9)),
    }
