# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A software TPM's result and its evidence are appraised again from a pack alone.

`verify PACK --appraise` is tried here, as docs/how-to/prove-a-checkpoint.md has it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from securetrain.artifacts.statement.statements import CheckpointPredicate, PolicyRef
from securetrain.chain.verdict import Verdict
from securetrain.cli.main import main
from securetrain.core import CODES
from securetrain.core.vocabulary import ChainLink
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from securetrain.policy import load_policy
from securetrain.policy.schema import Policy
from securetrain.testing.machine import Machine, reference_values, write_policy
from tests.attest.swtpms import without_swtpm
from tests.chain.test_reappraise import Attested
from tests.chain.worlds import Job, Roles, Run, codes, policy, rebound
from tests.vocabulary import trust_document

pytestmark = [pytest.mark.tpm, without_swtpm]
DAY = timedelta(days=1)


@dataclass
class AttestedRun(Run):
    """A run whose one node has proved itself with a software TPM, just now."""

    attested: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.job: Job = self.attested
        self.policy = self.attested.policy

    def trust(self, now: datetime | None = None) -> TrustRoot:
        return TrustRoot.parse(self.trust_bytes(), now or self.later)

    def trust_bytes(self) -> bytes:
        roles = {
            TrustRole.ROOT: [self.roles.root.public],
            TrustRole.NODE: [self.roles.node.public],
            TrustRole.CHECKPOINT: [self.key.public],
        }
        began = self.attested.began
        return sign_document(trust_document(roles, began - DAY, began + DAY), [self.roles.root])

    @property
    def later(self) -> datetime:
        return self.attested.began + timedelta(minutes=4)  # type: ignore[no-any-return]

    def honest(self) -> CheckpointPredicate:
        name = self.attested.loaded.policy.metadata.id
        at = self.attested.began + timedelta(minutes=3)
        return self.said(created=at, policy=PolicyRef(id=name, digest=self.policy))

    def asked(self) -> Policy:
        tier = min(one.tier for one in self.attested.results.values())
        node = replace(self.attested.loaded.policy.node, min_tier=tier)
        return replace(policy("nodes", "membership", depth="checkpoint"), node=node)

    def judged(self, path: Path, *, again: bool) -> Verdict:
        return self.verify(path, now=self.later, policy=self.asked(), again=again)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    with Machine(folder / "node-0", "node-0", ca=folder / "ca") as made:
        made.boot()
        yield made


@pytest.fixture
def run(machine: Machine, tmp_path: Path) -> AttestedRun:
    machine.reboot()
    values = reference_values([machine], datetime.now(UTC))
    loaded = load_policy(str(write_policy(tmp_path, values, PrivateKey.generate())))
    job = Attested(roles=Roles(), machine=machine, loaded=loaded)
    return AttestedRun(tmp_path / "run", roles=job.roles, attested=job)


def with_evidence(run: AttestedRun, **presented: str) -> CheckpointPredicate:
    """The checkpoint's key binds other evidence behind the coordinator's very own result."""
    (kept,) = run.attested.kept().values()
    shown = replace(kept.presented, **presented)
    swapped = run.job.pieces.keep(replace(kept, presented=shown))
    return rebound(run.job, run.honest(), {"appraised": (swapped,)})


def test_result_and_evidence_are_appraised_again_from_the_pack(run: AttestedRun) -> None:
    run.save(run.honest())
    path = run.pack()
    for again in (False, True):
        result = run.judged(path, again=again)
        assert result.problems == []
        nodes = result.judged[0].verdicts[ChainLink.NODES]
        assert nodes.what.startswith("appraised again: ") is again
        assert set(nodes.tiers) == {run.job.spiffe("node-0")}


@pytest.mark.forgery
@pytest.mark.parametrize("kind", ["altered", "gone"])
def test_other_evidence_behind_a_true_result_is_refused(run: AttestedRun, kind: str) -> None:
    """By whoever has the checkpoint's key. By results alone, nobody looks at the evidence."""
    (kept,) = run.attested.kept().values()
    body = bytearray(run.job.pieces.pieces[kept.presented.body])
    body[len(body) // 2] ^= 1
    other = run.job.pieces.put(bytes(body)) if kind == "altered" else "ab" * 32
    run.save(with_evidence(run, body=other))
    path = run.pack()
    assert run.judged(path, again=False).problems == [], "the control"
    result = run.judged(path, again=True)
    assert codes(result) == {"ST-CHAN-010"}
    words = "appraised again: ST-ATTS-" if kind == "altered" else "cannot be appraised again"
    assert words in result.problems[0].what


@pytest.mark.forgery
def test_the_command_appraises_a_pack_again(run: AttestedRun, tmp_path: Path, capsys: Any) -> None:
    run.save(run.honest())
    path, root, asked = run.pack(), tmp_path / "trust.json", tmp_path / "asked.yaml"
    root.write_bytes(run.trust_bytes())
    asked.write_text(json.dumps(msgspec.to_builtins(run.asked())))
    words = ["verify", str(path), "--trust", str(root), "--policy", str(asked), "--appraise"]
    assert main(words) == 0
    assert "appraised again" in capsys.readouterr().out
    # A bit of the quote's own bytes, in the file that lies there.
    (kept,) = run.attested.kept().values()
    body = run.job.pieces.pieces[kept.presented.body]
    data = bytearray(path.read_bytes())
    data[data.index(body) + len(body) // 2] ^= 1
    path.write_bytes(data)
    assert main(words) == CODES["ST-CHAN-010"].exit
    said = capsys.readouterr().out
    assert "ST-CHAN-010" in said
    assert "other bytes" in said
