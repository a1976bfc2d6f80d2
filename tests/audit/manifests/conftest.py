# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import pytest

from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
from securetrain.audit.subjects.kubernetes.facts.cluster import ClusterFacts
from securetrain.audit.subjects.kubernetes.facts.workload import WorkloadFacts
from tests.audit.worlds import open_entries


@pytest.fixture
def collect(now):
    """Collect paths: workloads by asset, and the cluster."""

    def go(*paths):
        bodies = collect_manifests(paths, now=now)
        cluster = bodies[-1]
        assert isinstance(cluster, ClusterFacts)
        found = {body.file: body.workload for body in bodies if isinstance(body, WorkloadFacts)}
        return SimpleNamespace(
            bodies=bodies,
            workloads=list(found.values()),
            by_file=found,
            cluster=cluster.cluster,
            problems=open_entries(cluster),
        )

    return go


@pytest.fixture
def read(collect, tmp_path):
    """Collect one text."""

    def go(text, name="a.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return collect(path)

    return go


@pytest.fixture
def container(read):
    """The first container of a text."""

    def go(text, name="a.yaml"):
        return read(text, name).workloads[0].pods[0].containers[0]

    return go
