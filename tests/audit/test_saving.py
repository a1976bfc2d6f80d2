# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts of every kind that are saved and judged again: the same findings, or no file at all."""

import errno
import json
import os
import stat
from pathlib import Path

import msgspec
import pytest

from securetrain.audit.documents import BODIES, facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.sources.inventory import read_inventory
from securetrain.audit.sources.several import joined
from securetrain.audit.sources.stored import StoredFacts, save_facts
from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
from securetrain.audit.subjects.node.collect.node import collect_from
from securetrain.audit.subjects.slurm.collect.cluster import collect_slurm
from securetrain.audit.subjects.storage.collect.files import collect_storage
from securetrain.core.errors import AuditError, UsageError
from securetrain.identity.keys import PrivateKey
from tests.audit.conftest import NOW
from tests.audit.hardened.machine import hardened
from tests.audit.killed import kills
from tests.vocabulary import refused

CHECKS = load_checks()
CORPUS = Path(__file__).parent / "corpus" / "files"
SLURM = {
    "slurm.conf": "ClusterName=prod\nAuthType=auth/none\nInclude gone.conf\n",
    "cgroup.conf": "ConstrainDevices=no\n",
}


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Facts of each kind that a collector makes, with nothing that is all well."""
    tmp_path = tmp_path_factory.mktemp("collected")
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in SLURM.items():
        (folder / name).write_text(text)
    files = [CORPUS / name for name in ("native", "kubeflow", "exports", "broken", "embedded")]
    found = collect_manifests(files, now=NOW)
    parts = [
        facts_of([*found, *collect_storage(files, now=NOW)]),
        facts_of([collect_slurm(folder, now=NOW)]),
        facts_of([collect_from(hardened(tmp_path).host(), now=NOW)]),
    ]
    return joined(parts)


def judged(facts, fixtures):
    return audit(facts, CHECKS, fixtures.policy, NOW)


def test_a_saved_set_of_every_kind_gives_the_same_findings(everything, tmp_path, fixtures):
    assert {document.kind for document in everything.documents} == {*BODIES} - {"run"}
    first = judged(everything, fixtures)
    save_facts(everything, tmp_path / "saved")
    again = judged(StoredFacts(tmp_path / "saved", unsigned=True), fixtures)
    assert len(first.findings) > 500
    assert msgspec.structs.replace(again, notes=()).to_json() == first.to_json()
    modes = {stat.S_IMODE(one.stat().st_mode) for one in (tmp_path / "saved").iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "saved").stat().st_mode) == 0o700


def test_and_a_signed_one_by_a_key_that_speaks_for_files(everything, tmp_path, fixtures):
    key = PrivateKey.generate()
    save_facts(everything, tmp_path / "saved", keys=[key], nonce="9f2c7d51aa0e4b6c")
    (tmp_path / "k.pub").write_bytes(key.public.pem)
    node = next(one.asset for one in everything.documents if one.kind == "node")
    globs = [f"{kind}:*" for kind in ("manifest", "launch", "storage", "slurm", "cluster")]

    def read(speaks_for):
        entry = {"asset": node, "key_files": ["k.pub"], "speaks_for": speaks_for}
        head = {"apiVersion": "securetrain.dev/policy/v1", "kind": "Inventory", "assets": [entry]}
        (tmp_path / "i.yaml").write_text(json.dumps(head))
        inventory = read_inventory(tmp_path / "i.yaml")
        facts = StoredFacts(tmp_path / "saved", inventory, nonce="9f2c7d51aa0e4b6c")
        return judged(facts, fixtures)

    first = judged(everything, fixtures)
    assert read(globs).findings == first.findings
    assert read(globs[1:]).exit_code == 4
    refused(AuditError, "regex", read, ["node:*"])


def test_one_document_is_a_file_and_replaces_an_older_one(everything, tmp_path):
    (one, *_) = everything.documents
    place = tmp_path / "one.json"
    for _ in range(2):
        save_facts(facts_of([one.body]), place)
        (read,) = StoredFacts(place, unsigned=True).documents
        assert (read.asset, read.digest) == (one.asset, one.digest)


@pytest.mark.parametrize("name", ["saved", "empty", "set.json"])
def test_a_set_is_never_mixed_with_another_one(everything, tmp_path, name):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "old.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError) as error:
        save_facts(everything, tmp_path / name)
    assert error.value.code in {"ST-USAG-005", "ST-USAG-002"}
    assert error.value.fix
    assert [one.name for one in (tmp_path / "saved").iterdir()] == ["old.json"]


def test_what_could_not_be_read_again_is_not_written(everything, tmp_path, monkeypatch):
    monkeypatch.setattr("securetrain.audit.sources.stored.FACTS_LIMIT", 2000)
    refused(AuditError, "the limit is 2000", save_facts, everything, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def few(everything):
    return facts_of(one.body for one in everything.documents[:3])


def test_a_save_that_is_killed_leaves_all_of_it_or_nothing(everything, tmp_path):
    some = few(everything)
    whole = 0
    for limit in kills(lambda n: save_facts(some, tmp_path / f"set-{n}")):
        place = tmp_path / f"set-{limit}"
        if place.exists():
            whole += 1
            assert len(StoredFacts(place, unsigned=True).documents) == 3
    assert whole > 0  # it was killed after the rename too


@pytest.mark.parametrize("wrong", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_one_error_and_nothing_is_left(everything, tmp_path, monkeypatch, wrong):
    calls = 0

    def fail(*_args, **_kwargs):
        nonlocal calls
        calls += 1
        raise OSError(wrong, os.strerror(wrong))

    monkeypatch.setattr(os, "fsync", fail)
    some = few(everything)
    for name, facts in (("set", some), ("a.json", facts_of([some.documents[0].body]))):
        with pytest.raises(UsageError) as error:
            save_facts(facts, tmp_path / name)
        assert error.value.where
        assert error.value.fix
    assert calls == 2
    assert list(tmp_path.iterdir()) == []
