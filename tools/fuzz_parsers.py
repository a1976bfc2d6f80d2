# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every parser of bytes that others wrote, with valid inputs to start from."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

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
from securetrain.audit.catalogue import load_check_file
from securetrain.audit.collect.node import collect_node
from securetrain.audit.facts import decode_facts
from securetrain.audit.waivers import parse_waivers
from securetrain.core import canonical
from securetrain.core.hashtree import HashAlgorithm
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import result as results
from securetrain.evidence import selfreport
from securetrain.identity import dsse, register
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.revocation import sign_list, verify_list
from securetrain.identity.spiffe import Role, SpiffeId
from securetrain.identity.token import Token, parse_token
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from securetrain.ledger import events, verify_ledger
from securetrain.policy.load import bundled_dir, load_policy
from securetrain.policy.schema import Policy
from securetrain.rendezvous.wire.membership import (
    Expected,
    Member,
    Membership,
    sign_membership,
    verify_membership,
)
from securetrain.testing.clock import START
from securetrain.testing.runs import SmallRun, make_run
from securetrain.threats.model import load_model
from securetrain.train.config import load_job
from tools import fuzz_tpm_client
from tools.fuzz import Parser
from tools.fuzz_artifacts import artifacts
from tools.fuzz_boot import boot
from tools.fuzz_bundles import bundles
from tools.fuzz_collateral import collateral
from tools.fuzz_devices import devices
from tools.fuzz_identity import identity
from tools.fuzz_ima import ima
from tools.fuzz_network import network
from tools.fuzz_node import node
from tools.fuzz_rendezvous import rendezvous
from tools.fuzz_tee import tee
from tools.fuzz_tokens import tokens
from tools.fuzz_tpm import tpm

_HEX: Final = "ab" * 32


def parsers(folder: Path) -> list[Parser]:
    """All parsers.

    Args:
        folder: An empty directory for the few that read files.
    """
    run = make_run(folder / "run")
    return [
        Parser("canonical", _documents, canonical.loads),
        Parser("canonical-struct", _resolved_policy, _decode_policy),
        *_identity(),
        *identity(folder / "identity"),
        *_yaml(folder),
        _ledger(run),
        *rendezvous(folder / "rendezvous"),
        *_attestation(run),
        *devices(),
        *boot(),
        *ima(),
        *tokens(),
        *tpm(),
        *fuzz_tpm_client.parsers(),
        *tee(),
        *collateral(folder),
        *node(),
        *bundles(folder / "bundles"),
        *network(folder / "network"),
        Parser("facts", lambda: [_facts(folder)], lambda data: decode_facts(data, "facts")),
        *_artifacts(run),
        *artifacts(folder / "artifacts"),
    ]


def _documents() -> list[bytes]:
    values = [
        {"a": [1, 2.5, "x", None, True], "b": {"c": -7}},
        ["\u00e9", "", {}, []],
        *msgspec.to_builtins([load_policy("baseline").policy]),
    ]
    return [canonical.dumps(value) for value in values]


def _resolved_policy() -> list[bytes]:
    return [canonical.encode(load_policy(name).policy) for name in ("dev", "hardened")]


def _decode_policy(data: bytes) -> object:
    return canonical.decode(data, Policy, canonical=True)


def _identity() -> list[Parser]:
    root, key, other = (PrivateKey.generate() for _ in range(3))
    trusted = {key.key_id: key.public, other.key_id: other.public}

    def envelopes() -> list[bytes]:
        return [dsse.sign(b'{"x":1}', dsse.IN_TOTO, keys) for keys in ([key], [key, other])]

    def roots() -> list[bytes]:
        roles = {TrustRole.CHECKPOINT: [key.public], TrustRole.LEDGER: [key.public, other.public]}
        return [sign_root(roles, root, START, START + timedelta(days=1))]

    def names() -> list[bytes]:
        node = SpiffeId("securetrain.local", "job-1", Role.NODE, "node-1")
        return [str(node).encode(), str(SpiffeId("a.b", "j", Role.COORDINATOR)).encode()]

    def lists() -> list[bytes]:
        revoked = register.Revoked(
            kind=register.Kind.NODE, name="node-0", reason="sold", since=START
        )
        return [sign_list("a.b", entries, key, START) for entries in ([], [revoked])]

    def tokens() -> list[bytes]:
        token = Token(
            host="10.0.0.1",
            port=1,
            ca="0" * 64,
            trust_domain="a.b",
            job="j",
            node="n",
            ends=START,
            secret=bytes(16),
        )
        return [token.text().encode()]

    return [
        Parser("revocations", lists, lambda data: verify_list(data, key.public, "a.b")),
        Parser(
            "enrolment-token", tokens, lambda data: parse_token(data.decode("utf-8", "replace"))
        ),
        Parser("dsse", envelopes, lambda data: dsse.verify(data, dsse.IN_TOTO, trusted)),
        Parser("trust-root", roots, lambda data: TrustRoot.parse(data, START)),
        Parser("spiffe", names, lambda data: SpiffeId.parse(data.decode("utf-8", "replace"))),
    ]


def _yaml(folder: Path) -> list[Parser]:
    def shipped(kind: str, *below: str) -> Callable[[], list[bytes]]:
        home = bundled_dir(kind).joinpath(*below)
        return lambda: [path.read_bytes() for path in sorted(home.glob("*.yaml"))]

    def from_file(load: Callable[[Path], object]) -> Callable[[bytes], object]:
        def parse(data: bytes) -> object:
            path = folder / "input.yaml"
            path.write_bytes(data)
            return load(path)

        return parse

    return [
        Parser(
            "policy", shipped("policies"), from_file(lambda path: load_policy(str(path))), share=0.5
        ),
        # Long files in a slow parser.
        Parser("checks", shipped("policies", "checks"), from_file(load_check_file), share=0.1),
        Parser("threat-model", shipped("threat_models"), from_file(load_model), share=0.02),
        Parser("waivers", lambda: [_WAIVERS], lambda data: parse_waivers(data, "waivers")),
        Parser("job", lambda: [_JOB], from_file(load_job)),
    ]


_WAIVERS: Final = b"""\
apiVersion: securetrain.dev/policy/v1
kind: Waivers
items:
  - id: w-1
    check: ST-RDZ-001
    subject: "*"
    justification: a reason that is long enough
    owner: someone
    approved_by: another
    ticket: T-1
    created: 2026-01-01
    expires: 2026-02-01
    compensating: [ST-NET-001]
"""

_JOB: Final = b"""\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: small
steps: 10
parallel:
  dp_shard: 2
optimizer:
  lr: 0.001
"""


def _facts(folder: Path) -> bytes:
    """A node of which nothing can be read: every section is there, with its reason."""
    empty = folder / "root"
    empty.mkdir(exist_ok=True)
    return collect_node({}, now=START, search_path=[], root=empty).to_json()


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
            index.Index(
                version=index.VERSION,
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
        )
    ]


def _values() -> list[bytes]:
    values = [{"lr": 1e-3, "betas": (0.9, 0.999)}, [1, "x", None, b"\x00"], 1 << 200]
    return [canonical.dumps(codec.encode(value, "value")) for value in values]
