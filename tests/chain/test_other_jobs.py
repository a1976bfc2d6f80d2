# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A coordinator elsewhere does not know the run: the trust root's authority says of which job its
word counts. No torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from msgspec.structs import replace

from securetrain.artifacts.statement.statements import Bound
from securetrain.chain.judging import judge
from securetrain.chain.keeper import Keeper
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.identity import Chain, Role
from securetrain.identity.cluster_ca import ClusterCA
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.trust import Authority, TrustRole, TrustRoot, sign_document, sign_root
from tests.chain.worlds import NOW, Job, subject


@dataclass
class Elsewhere(Job):
    """A job whose coordinator stands under the cluster's CA; the run vouches for nobody."""

    cluster: ClusterCA | None = None

    def __post_init__(self) -> None:
        assert self.cluster is not None
        self.ca = self.cluster.job(self.name, self.began, self.cluster.key)
        self.key = PrivateKey.generate(KeyKind.P256)
        minutes = timedelta(minutes=10)
        leaf = self.ca.issue(Role.COORDINATOR, self.key.public, self.began, lifetime=minutes)
        self.node_keys = {node: PrivateKey.generate(KeyKind.P256) for node in self.nodes}
        self.keeper = Keeper(store=self.pieces)
        self.keeper.credential(self.name, (leaf, self.ca.certificate))
        self.results = {node: self.attest(node, self.began) for node in self.nodes}
        self.form()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterCA]:
    folder = tmp_path_factory.mktemp("cluster")
    made = ClusterCA.create(folder / "ca", "securetrain.local", NOW, None)
    yield made
    made.close()


def trust(cluster: ClusterCA, *jobs: str) -> TrustRoot:
    """A root that names the cluster's CA for coordinators, of each job or ("") of all."""
    root = PrivateKey.generate()
    plain = TrustRoot.parse(sign_root({}, root, NOW, NOW + timedelta(days=99)), NOW).document
    named = [
        Authority(
            role=TrustRole.NODE,
            certificate=Chain.of([cluster.certificate]).certificates[0],
            trust_domain="securetrain.local",
            parties=[Role.COORDINATOR],
            job=job,
            apart=True,
        )
        for job in jobs
    ]
    document = replace(plain, authorities=named)
    return TrustRoot.parse(sign_document(document, [root]), NOW)


@pytest.mark.forgery
def test_another_jobs_membership_counts_only_where_no_job_is_named(cluster: ClusterCA) -> None:
    """With the checkpoint's key: the weak nodes' run claims the hardware of another job."""
    weak = Elsewhere(name="run-7", tier=NodeTier.SELF_ASSERTED, cluster=cluster)
    strong = Elsewhere(name="run-8", tier=NodeTier.TEE, cluster=cluster, pieces=weak.pieces)
    honest = weak.checkpoint(run_id="job-4f1c")
    lie = replace(honest, nodes=strong.refs(), bound=Bound(membership=strong.keeper.bound(1)))
    links = (ChainLink.MEMBERSHIP, ChainLink.NODES)
    every = weak.given(trust(cluster, ""))
    for link in links:
        assert judge(link, subject(honest), every).state is LinkState.VERIFIED
        assert judge(link, subject(lie), every).state is LinkState.VERIFIED, "the control"
    assert set(judge(ChainLink.NODES, subject(lie), every).tiers.values()) == {NodeTier.TEE}
    named = weak.given(trust(cluster, "run-7"))
    for link in links:
        assert judge(link, subject(honest), named).state is LinkState.VERIFIED
        verdict = judge(link, subject(lie), named)
        assert verdict.state is LinkState.BROKEN
        assert "nobody vouches for its coordinator" in verdict.what
    # Of several jobs, each is named.
    both = weak.given(trust(cluster, "run-7", "run-9"))
    assert judge(ChainLink.MEMBERSHIP, subject(honest), both).state is LinkState.VERIFIED
    assert judge(ChainLink.MEMBERSHIP, subject(lie), both).state is LinkState.BROKEN
