# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes what a run writes and signs: its ledger, evidence, membership and artifacts."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from securetrain.artifacts.statement import statements
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DataFile,
    DatasetPredicate,
    IndexFile,
    RankFile,
    Split,
    TreeInfo,
)
from securetrain.artifacts.tree import codec, index
from securetrain.artifacts.tree.layout import Kind
from securetrain.core import canonical
from securetrain.core.hashtree import HashAlgorithm
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import result as results
from securetrain.evidence import selfreport
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.trust import TrustRole
from securetrain.ledger import events, verify_ledger
from securetrain.rendezvous.wire.membership import (
    Expected,
    Member,
    Membership,
    sign_membership,
    verify_membership,
)
from securetrain.testing.clock import START
from securetrain.testing.runs import SmallRun, make_run
from tools.fuzz.engine import Parser

_HEX: Final = "ab" * 32


def runs(folder: Path) -> list[Parser]:
    """The parsers.

    Args:
        folder: Where a run directory is made.
    """
    run = make_run(folder)
    return [_ledger(run), *_attestation(run), *_artifacts(run)]


def _ledger(run: SmallRun) -> Parser:
    ledger = run.ledger("rank-0")
    ledger.write(
        events.TrainingFinished(subject="step 7", tokens=7, refused=0, observed=0, loss=0.25)
    )
    ledger.close()
    keys = run.trust.keys_for(TrustRole.LEDGER)
    data = run.run_dir.ledger.read_bytes()
    return Parser("ledger", lambda: [data], lambda data: verify_ledger(data, keys))


def _attestation(run: SmallRun) -> list[Parser]:
    key = run.keys["agent"]
    own = Member(
        rank=0,
        node="node-1",
        certificate=_HEX,
        tier=NodeTier.TPM,
        result=_HEX,
        address="127.0.0.1",
        local_world=2,
    )
    membership = Membership(
        job="job-1",
        coordinator="spiffe://a.b/job/job-1/coordinator",
        epoch=1,
        round=0,
        policy=_HEX,
        issued=START,
        members=(own,),
    )
    expected = Expected(
        job="job-1",
        coordinator=membership.coordinator,
        key=key.public,
        policy=_HEX,
        epoch=0,
        node="node-1",
        certificate=_HEX,
        results={_HEX: NodeTier.TPM},
        address="127.0.0.1",
        local_world=2,
    )
    coordinator = PrivateKey.generate(KeyKind.P256)
    result = results.AttestationResult(
        job="job-1",
        node="node-1",
        key_id=_HEX,
        tier=NodeTier.TPM,
        label="tpm",
        media_type="a/b",
        evidence=_HEX,
        policy=_HEX,
        issued=START,
        expires=START + timedelta(minutes=10),
        submods={"tpm": results.Submodule(trust_vector=results.trust_vector("hardware"))},
    )

    def read_membership(data: bytes) -> object:
        return verify_membership(data.decode("utf-8", "replace"), expected)

    return [
        Parser("evidence", _evidence, selfreport.parse_software),
        Parser(
            "attestation-result",
            lambda: [result.sign(coordinator).encode()],
            lambda data: results.verify_result(data.decode("utf-8", "replace"), coordinator.public),
        ),
        Parser(
            "membership",
            lambda: [sign_membership(membership, key).encode()],
            read_membership,
        ),
        # Behind the signature, so that mutations reach the schema.
        Parser(
            "membership-document",
            lambda: [canonical.encode(membership)],
            lambda data: canonical.decode(data, Membership, canonical=True),
        ),
    ]


def _evidence() -> list[bytes]:
    software = selfreport.SoftwareEvidence(
        kernel=selfreport.Kernel(
            release="6.1",
            machine="x86_64",
            command_line="quiet",
            lockdown="none",
            tainted="0",
            module_signatures_enforced="Y",
        ),
        hardware=selfreport.Hardware(
            vendor="v",
            product="p",
            firmware="f",
            cpu_model="c",
            num_cpus=2,
            memory_bytes=1 << 33,
            gpus=("g",),
            tpm_device=False,
        ),
        software=selfreport.Software(
            python="3.11",
            executable_sha256=_HEX,
            packages={"torch": "2.13.0"},
            loader_variables={"LD_PRELOAD": ""},
            securetrain="0.1.0",
        ),
        machine_id_sha256=_HEX,
        missing=("proc/x",),
    )
    return [canonical.encode(software)]


_TREE: Final = TreeInfo(algorithm=HashAlgorithm.BLAKE3, leaf_size=1 << 20)
_SIZES: Final[Mapping[str, int]] = {"rank-00000.bin": 4096, "rank-00001.bin": 4096}


def _artifacts(run: SmallRun) -> list[Parser]:
    def opened(kind: Kind) -> Callable[[bytes], object]:
        return lambda data: statements.open_statement(data, kind, run.trust)

    # A false index or value can only come from a trusted key; its parser must hold all the same.
    def value(data: bytes) -> object:
        return codec.decode(canonical.loads(data), "value")

    checkpoint = statements.sign(_checkpoint(), "step", run.keys["checkpoint"])
    dataset = statements.sign(_dataset(), "corpus", run.keys["dataset"])
    return [
        Parser("checkpoint-index", _indexes, lambda data: index.parse(data, _SIZES)),
        Parser("checkpoint-value", _values, value),
        Parser("checkpoint-statement", lambda: [checkpoint], opened(Kind.CHECKPOINT)),
        Parser("dataset-statement", lambda: [dataset], opened(Kind.DATASET)),
        Parser("statement-kind", lambda: [checkpoint, dataset], statements.claimed_kind),
        # Behind the signature, so that mutations reach the schema.
        Parser(
            "checkpoint-predicate",
            lambda: [canonical.encode(_checkpoint())],
            lambda data: canonical.decode(data, CheckpointPredicate),
        ),
        Parser(
            "dataset-predicate",
            lambda: [canonical.encode(_dataset())],
            lambda data: canonical.decode(data, DatasetPredicate),
        ),
    ]


def _checkpoint() -> CheckpointPredicate:
    return CheckpointPredicate(
        run_id="run-1",
        step=100,
        seq=1,
        save_id="0" * 32,
        created=START,
        world_size=2,
        tree=_TREE,
        files=[
            RankFile(name=name, size=size, root=_HEX, rank=rank)
            for rank, (name, size) in enumerate(sorted(_SIZES.items()))
        ],
        index=IndexFile(name="index.json", size=100, sha256=_HEX),
    )


def _dataset() -> DatasetPredicate:
    return DatasetPredicate(
        name="corpus",
        seq=0,
        created=START,
        tree=TreeInfo(algorithm=HashAlgorithm.BLAKE3, leaf_size=1 << 16),
        files=[DataFile(name="train.bin", size=10, root=_HEX)],
        splits=[Split(name="train", files=["train.bin"])],
    )


def _indexes() -> list[bytes]:
    def chunk(file: str, start: int) -> index.Chunk:
        return index.Chunk(offsets=(start, 0), sizes=(4, 8), file=file, offset=0, length=128)

    return [
        index.encode(
            index.Index.of(
                tensors=(
                    index.TensorEntry(
                        fqn="layer.weight",
                        dtype="float32",
                        shape=(8, 8),
                        chunks=(chunk("rank-00000.bin", 0), chunk("rank-00001.bin", 4)),
                    ),
                ),
                values=(index.ValueEntry(fqn="step", value=codec.encode(7, "step")),),
            )
        ),
        index.encode(
            index.Index.of(
                (), [index.ValueEntry(fqn="mixed", value=codec.encode([{1}, 1j], "mixed"))]
            )
        ),
    ]


def _values() -> list[bytes]:
    values = [{"lr": 1e-3, "betas": (0.9, 0.999)}, [1, "x", None, b"\x00"], 1 << 200]
    return [canonical.dumps(codec.encode(value, "value")) for value in values]
