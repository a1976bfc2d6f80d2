# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a pack proves, for other tools: stated by its link, declared, or left out. No torch.

The standards' own libraries judge the documents in a Python of theirs (`test_standards_read_them`):

    python3 -m venv outside
    outside/bin/pip install 'cyclonedx-python-lib[json-validation]' spdx-python-model pyshacl \
        in-toto-attestation
    SECURETRAIN_OUTSIDE=outside/bin/python SECURETRAIN_SPDX_MODEL=FOLDER make test-slow

FOLDER holds spdx-model.ttl and spdx-context.jsonld of version 3.0.1
(https://github.com/spdx/spdx-spec, branch gh-pages). Neither is here.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.statement.checkpoint_predicate import IndexFile, RankFile
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    GradientRecord,
    GradientVerdict,
    Parent,
    ParentRole,
)
from securetrain.artifacts.tree.layout import INDEX, TreeInfo
from securetrain.chain import documents
from securetrain.chain.container import Pack
from securetrain.chain.exports import facts as facts_module
from securetrain.chain.exports.facts import Fact, Facts, Kind, Standing, facts_of
from securetrain.chain.exports.writing import ExportFormat, export
from securetrain.chain.links import LinkVerdict
from securetrain.chain.packing import pack
from securetrain.cli import clock
from securetrain.cli.main import main
from securetrain.core.errors import IntegrityError
from securetrain.core.hashtree import TreeParams, TreeWriter
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import RoleKeys, TrustRole, key_table, sign_document
from tests.chain.test_other_keys import POLICY, data_trust, signed_dataset
from tests.chain.worlds import LATER, NOW, Job, Run, Segment
from tests.vocabulary import ran, refused

PYTHON = os.environ.get("SECURETRAIN_OUTSIDE", "")
MODEL = os.environ.get("SECURETRAIN_SPDX_MODEL", "")
WEIGHTS = bytes(range(256)) * 20
KEPT = b"the index"

Change = Callable[[CheckpointPredicate], CheckpointPredicate]


class Made:
    """A run with a base model, a dataset, a job, code and an environment; its weights are files."""

    def __init__(self, folder: Path, change: Change | None = None) -> None:
        self.run = Run(folder / "run")
        self.key = PrivateKey.generate()
        self.data = data_trust(self.run, self.key)
        ref, statement = signed_dataset(self.run, self.key)
        self.run.save()
        keep = self.run.job.pieces.keep
        settings = {"optimizer": {"lr": 0.001, "betas": [0.9, 0.95]}, "steps": 400}
        declared = keep(documents.Declared(program="train", settings=settings))
        program = documents.Input(name="train.py", sha256="ab" * 32)
        word = documents.Argument(text="--job")
        job = documents.Job(program=program, arguments=(word,), declared=declared, workers="2")
        file = documents.CodeFile(module="m", path="model/m.py", sha256="cd" * 32, size=3)
        code = documents.Code(
            files=(
                file,
                msgspec.structs.replace(file, path="worker.py", by=documents.Witness.WORKER),
            ),
            distributions=(
                documents.Distribution(name="torch", version="2.13.0", record="ef" * 32),
                documents.Distribution(name="msgspec", version="0.20.0"),
            ),
            python="3.11.2",
            commit="12" * 20,
        )
        environment = documents.Environment(torch="2.13.0+cpu", python="3.11.2")
        tree = TreeWriter(TreeParams(leaf_size=1024))
        tree.update(WEIGHTS)
        honest = self.run.said(
            tree=TreeInfo.of(TreeParams(leaf_size=1024)),
            files=[
                RankFile(
                    name="rank-00000.bin",
                    size=len(WEIGHTS),
                    root=tree.finish().root.hex(),
                    rank=0,
                )
            ],
            index=IndexFile(name=INDEX, size=len(KEPT), sha256=hashlib.sha256(KEPT).hexdigest()),
            dataset=ref,
            name="prose-model",
        )
        said = msgspec.structs.replace(
            honest,
            bound=msgspec.structs.replace(
                honest.bound,
                dataset=statement,
                job=keep(job),
                code=keep(code),
                environment=keep(environment),
            ),
        )
        self.folder = self.run.save(said if change is None else change(said))
        (self.folder / "rank-00000.bin").write_bytes(WEIGHTS)
        (self.folder / INDEX).write_bytes(KEPT)
        self.run.keep()
        self.path = self.run.root / "a.stpack"
        pack(self.folder, self.path, trust=self.run.trust(), data=self.data)

    def facts(self, weights: Path | None = None, **more: Any) -> Facts:
        with Pack.open(self.path) as opened:
            result = self.run.verify(self.path, data=self.data)
            return facts_of(opened, result, weights=weights, **more)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def one_of(facts: Facts, kind: Kind) -> Fact:
    (found,) = facts.of(kind)
    return found


def documents_of(facts: Facts) -> dict[str, Any]:
    return {str(kind): json.loads(export(facts, kind)) for kind in ExportFormat}


def test_what_is_verified_is_stated_and_the_rest_is_declared(made: Made) -> None:
    facts = made.facts(made.folder, license_="Apache-2.0")
    verified = {link for link, state in facts.links.items() if state is LinkState.VERIFIED}
    assert verified >= {
        *(ChainLink.NODES, ChainLink.MEMBERSHIP, ChainLink.POLICY, ChainLink.JOB, ChainLink.CODE),
        *(ChainLink.ENVIRONMENT, ChainLink.DATASET, ChainLink.PARENTS),
    }
    assert set(facts.tiers.values()) == {NodeTier.TPM}
    assert facts.settings["optimizer.lr"] == "0.001"
    assert facts.settings["optimizer.betas"] == "0.9, 0.95"
    assert one_of(facts, Kind.DATASET).standing is Standing.VERIFIED
    assert one_of(facts, Kind.PARENT).standing is Standing.VERIFIED
    assert "(declared)" in dict(facts.properties)["gradients:verdict"]  # there are no records
    assert [one.sha256 for one in facts.files] == [
        hashlib.sha256(WEIGHTS).hexdigest(),
        hashlib.sha256(KEPT).hexdigest(),
    ]
    found = documents_of(facts)
    assert set(found) == set(ExportFormat)
    for text in map(json.dumps, found.values()):
        assert hashlib.sha256(WEIGHTS).hexdigest() in text
        assert "tpm" in text
        assert "0.001" in text
        assert str(made.run.root) not in text
    bom = found["cyclonedx-1.7"]
    model = bom["metadata"]["component"]
    assert model["licenses"] == [{"expression": "Apache-2.0", "acknowledgement": "declared"}]
    assert model["pedigree"]["ancestors"][0]["name"] == "job-1-step-10"
    names = ["prose", "msgspec", "torch", "model/m.py", "worker.py"]
    assert [one["name"] for one in bom["components"]] == names
    assert bom["components"][-1]["properties"][0]["value"] == "declared"


def test_metrics_are_what_the_ranks_recorded_and_signed(made: Made, job: Job) -> None:
    def metrics(segment: Segment, said: CheckpointPredicate) -> dict[str, str]:
        links = (ChainLink.GRADIENTS, ChainLink.REPLAY)
        states = (segment.judge(said, links[0])[0], LinkState.NOT_ASKED)
        made = map(lambda one, state: LinkVerdict(link=one, state=state), links, states)
        verdicts = dict(zip(links, made, strict=True))
        found = dict(facts_module._Known(segment.pieces, verdicts).metrics(said))
        broken = verdicts | {links[1]: LinkVerdict(link=links[1], state=LinkState.BROKEN)}
        assert not dict(facts_module._Known(segment.pieces, broken).metrics(said))
        return found

    segment = Segment(job)
    found = metrics(segment, segment.said(segment.kept()))
    assert [*found.values()] == ["16", "8", repr(5.5 / 16), "1.25", "0.1"]
    # A step whose gradients were dropped has no part in it.
    segment.edit(7, verdict="refused", norm="nan")
    counts = GradientRecord(verdict=GradientVerdict.CLEAN, judged=16, refused=1, clean_steps=0)
    dropped = metrics(segment, segment.said(segment.kept(), gradients=counts))
    assert (dropped["step"], dropped["training-loss"]) == ("15", repr(5.5 / 15))
    # Records that contradict the statement, or that nobody has, are not exported.
    assert not metrics(segment, segment.said(segment.kept()))
    assert not metrics(segment, segment.said(None))
    assert not made.facts().metrics
    # A number that is none is left out.
    segment.edit(7, verdict="clean", norm="inf")
    counts = GradientRecord(verdict=GradientVerdict.CLEAN, judged=16, refused=0, clean_steps=16)
    odd = metrics(segment, segment.said(segment.kept(), gradients=counts))
    assert odd.keys() == found.keys() - {"gradient-norm"}

    words = tuple((f"metrics:{name}", f"{one} (verified)") for name, one in found.items())
    texts = documents_of(replace(made.facts(), metrics=found, properties=words))
    card = texts["cyclonedx-1.7"]["metadata"]["component"]["modelCard"]
    shown = card["quantitativeAnalysis"]["performanceMetrics"]
    assert {"type": "training-loss", "value": "0.34375", "slice": "training, step 16"} in shown
    model = next(one for one in texts["spdx-3.0.1"]["@graph"] if one["type"] == "ai_AIPackage")
    norm = {"type": "DictionaryEntry", "key": "gradient-norm", "value": "1.25"}
    assert norm in model["ai_metric"]
    assert "metrics:training-loss=0.34375 (verified)" in json.dumps(texts["slsa-provenance-1"])


def test_no_claim_is_without_its_state(made: Made) -> None:
    """In each format: a row has it beside it, a property with its value or at its group's head."""
    facts = made.facts(made.folder)
    found, headed = documents_of(facts), {"link", "pedigree"}
    for name, value in facts.properties:
        group, _, rest = name.partition(":")
        headed |= {group} if rest == "standing" else set()
        assert group in headed or value.endswith(")"), name
    bom, build = found["cyclonedx-1.7"], found["slsa-provenance-1"]
    model, said = bom["metadata"]["component"], build["predicate"]["buildDefinition"]
    rows = [*bom["components"], *model["components"], *model["pedigree"]["ancestors"]]
    stands = [row["properties"][0]["name"] for row in rows]
    assert stands == ["securetrain:standing"] * 8
    for row in (*build["subject"], *said["resolvedDependencies"]):
        assert row["annotations"]["standing"] in set(Standing)
    assert said["externalParameters"]["job"]["standing"] == "verified"
    graph = found["spdx-3.0.1"]["@graph"]
    notes = {one["subject"] for one in graph if "standing=" in one.get("statement", "")}
    kinds = {"software_File", "software_Package", "ai_AIPackage", "dataset_DatasetPackage"}
    assert {one["spdxId"] for one in graph if one["type"] in kinds} == notes


def test_subjects_are_files_by_their_bytes_and_no_tree_is_one(made: Made) -> None:
    """A pack has no weights, so nobody has their SHA-256; the index has one in its statement."""
    alone, whole = made.facts(), made.facts(made.folder)
    root = dict(alone.files[0].said)["tree-root"]
    for facts, expected in ((alone, [INDEX]), (whole, ["rank-00000.bin", INDEX])):
        found = documents_of(facts)
        subjects = found["slsa-provenance-1"]["subject"]
        assert [one["name"] for one in subjects] == expected
        assert all(one["digest"].keys() == {"sha256"} for one in subjects)
        assert root not in {one["digest"]["sha256"] for one in subjects}
        files = found["cyclonedx-1.6"]["metadata"]["component"]["components"]
        assert [one["name"] for one in files if "hashes" in one] == expected
        graph = found["spdx-3.0.1"]["@graph"]
        hashed = [one for one in graph if "verifiedUsing" in one and "#file-" in one["spdxId"]]
        assert [one["name"] for one in hashed] == expected


@pytest.mark.forgery
def test_an_altered_weight_is_no_subject(made: Made) -> None:
    path = made.folder / "rank-00000.bin"
    assert made.facts(made.folder).files[0].sha256, "the control"
    for data in (b"\1" + WEIGHTS[1:], WEIGHTS[:-1], WEIGHTS + b"\0"):
        path.write_bytes(data)
        refused(IntegrityError, "ST-CKPT-130", made.facts, made.folder)
    path.unlink()
    refused(IntegrityError, "ST-CKPT-140", made.facts, made.folder)
    path.write_bytes(WEIGHTS)
    (made.folder / INDEX).write_bytes(KEPT[::-1])
    refused(IntegrityError, "ST-CKPT-130", made.facts, made.folder)


def test_the_same_pack_gives_the_same_bytes(made: Made) -> None:
    for kind in ExportFormat:
        first = export(made.facts(made.folder), kind)
        assert first == export(made.facts(made.folder), kind)
        assert NOW.strftime("%Y-%m-%d").encode() in first
    boms = [documents_of(made.facts(one))["cyclonedx-1.7"] for one in (None, made.folder)]
    assert boms[0]["serialNumber"] != boms[1]["serialNumber"]


# --- lies: what evidence contradicts is left out ----------------------------------------------


def lied_tier(said: CheckpointPredicate) -> CheckpointPredicate:
    first, *others = said.nodes
    lie = msgspec.structs.replace(first, tier=NodeTier.TEE_GPU)
    return msgspec.structs.replace(said, nodes=[lie, *others])


def bound_to(**changes: Any) -> Change:
    def change(said: CheckpointPredicate) -> CheckpointPredicate:
        return msgspec.structs.replace(said, bound=msgspec.structs.replace(said.bound, **changes))

    return change


@pytest.mark.forgery
def test_an_altered_tier_is_left_out(tmp_path: Path) -> None:
    made = Made(tmp_path, lied_tier)
    facts = made.facts()
    assert facts.links[ChainLink.NODES] is LinkState.BROKEN
    assert facts.tiers == {}
    for text in map(json.dumps, documents_of(facts).values()):
        assert "tee+gpu" not in text
    honest = Made(tmp_path / "honest").facts()
    assert len(honest.tiers) == 2, "the control"


@pytest.mark.forgery
@pytest.mark.parametrize("link", ["job", "code", "environment", "policy", "dataset", "membership"])
def test_what_no_evidence_shows_is_never_stated_as_verified(tmp_path: Path, link: str) -> None:
    facts = Made(tmp_path, bound_to(**{link: "0" * 64})).facts()
    assert facts.links[ChainLink(link)] is not LinkState.VERIFIED
    groups = {name.partition(":")[0] for name, _ in facts.properties}
    assert {"tier", "policy", "environment"} & groups <= {"tier", "policy", "environment"} - {link}
    code = [Kind.CODE, Kind.LIBRARY, Kind.SOURCE]
    assert not facts.of(*{"job": [Kind.INPUT], "code": code, "policy": [Kind.POLICY]}.get(link, ()))
    if link == "job":
        assert (facts.job, facts.settings) == (None, {})
    if link == "dataset":
        assert all(one.standing is Standing.DECLARED for one in facts.of(Kind.DATASET))
    if link == "membership":
        assert facts.tiers == {}


@pytest.mark.forgery
def test_a_parent_that_is_not_in_the_pack_is_declared(tmp_path: Path) -> None:
    base = Parent(digest="77" * 32, role=ParentRole.BASE)
    made = Made(
        tmp_path,
        lambda said: bound_to(parents=["88" * 32])(msgspec.structs.replace(said, parents=[base])),
    )
    parent = one_of(made.facts(), Kind.PARENT)
    assert (parent.standing, parent.role, parent.name) == (Standing.DECLARED, ParentRole.BASE, "")
    for text in map(json.dumps, documents_of(made.facts()).values()):
        assert "77" * 32 in text


@pytest.mark.forgery
def test_a_stranger_s_checkpoint_is_not_exported(tmp_path: Path) -> None:
    made, other = Made(tmp_path / "one"), Made(tmp_path / "other")
    with Pack.open(made.path) as opened:
        result = other.run.verify(made.path)
        assert result.opened is None
        refused(IntegrityError, "ST-CKPT-120", facts_of, opened, result)


def test_the_command_says_what_it_wrote_and_what_it_left_out(tmp_path, capsys, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return LATER.astimezone(tz)

    monkeypatch.setattr(clock, "datetime", Clock)
    # One root that names the dataset's key, too: what a run's own trust root is.
    made = Made(tmp_path)
    own = made.run.trust().document
    roles = {**own.roles, TrustRole.DATASET: RoleKeys([made.key.key_id])}
    keys = {**own.keys, **key_table([made.key.public])}
    changed = msgspec.structs.replace(own, roles=roles, keys=keys)
    trust = tmp_path / "trust.json"
    trust.write_bytes(sign_document(changed, [made.run.roles.root]))
    for number, path in enumerate((made.path, made.folder)):
        out = tmp_path / f"{number}.json"
        words = ["export", str(path), "--trust", str(trust), "--format", "spdx-3.0.1"]
        code = main([*words, "--out", str(out), "--json"])
        said = json.loads(capsys.readouterr().out)
        assert code == 3, "the run has no log, and no records of its steps"
        assert said["num_unhashed"] == 1 - number, "a directory has its weights, a pack has none"
        assert json.loads(out.read_bytes())["@graph"]
        assert main([*words, "--out", str(out)]) == 2, "nothing is replaced"
        # A policy that it does not meet: it is refused, and nothing is written.
        asked = tmp_path / "asked.yaml"
        asked.write_text(POLICY.format(links="time"))
        none = tmp_path / "none.json"
        assert main([*words, "--out", str(none), "--policy", str(asked)]) == 17
        assert "ST-CHAN-021" in capsys.readouterr().out
        assert not none.exists()


@pytest.mark.many
@pytest.mark.skipif(
    not (PYTHON and MODEL), reason="give SECURETRAIN_OUTSIDE and SECURETRAIN_SPDX_MODEL"
)
def test_standards_read_them(tmp_path: Path) -> None:
    """Each by its own library, and altered ones are refused: whole, alone, and with a lie."""
    measured = {"step": "20", "steps-recorded": "10", "training-loss": "2.5"}
    worlds = {
        "measured": replace(Made(tmp_path / "e").facts(), metrics=measured),
        "whole": Made(tmp_path / "a").facts(tmp_path / "a/run/checkpoints/step-00000020"),
        "licensed": Made(tmp_path / "b").facts(license_="MIT OR Apache-2.0"),
        "lie": Made(tmp_path / "c", lied_tier).facts(),
        "bare": Made(tmp_path / "d", bound_to(job=None, code=None, dataset=None)).facts(),
    }
    asked = [
        (str(kind), export(facts, kind).decode(), good)
        for facts in worlds.values()
        for kind in ExportFormat
        for good in (True, False)
    ]
    judge = Path(__file__).with_name("judge_exports.py")
    done = ran([PYTHON, str(judge), MODEL], input=json.dumps(asked))
    for (kind, _, good), said in zip(asked, json.loads(done.stdout), strict=True):
        assert (said == "") is good, f"{kind}, good {good}: {said}"
