# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Audits made by hand, with assets of several kinds and names from elsewhere."""

from datetime import UTC, date, datetime
from typing import Any

from securetrain.audit import AuditResult, Finding
from securetrain.audit.engine.findings import (
    AssetRef,
    Coverage,
    LedgerRow,
    PolicyRef,
    WaiverStatus,
    WaiverUse,
    fingerprint,
)
from securetrain.audit.engine.schema import FixedBy, Refs
from securetrain.audit.facts import End, Entry, Location
from securetrain.core.vocabulary import Boundary, Severity, State

NOW = datetime(2026, 11, 23, 5, 0, tzinfo=UTC)


def finding(
    check: str = "ST-K8S-001",
    asset: str = "manifest:jobs/a.yaml#1",
    subject: str = "workload.pods[Worker].containers[trainer]",
    *,
    line: int = 41,
    **given: Any,
) -> Finding:
    path = asset.partition(":")[2].partition("#")[0]
    fields: dict[str, Any] = {
        "title": "Privileged containers",
        "severity": Severity.CRITICAL,
        "severity_in_context": given.get("severity", Severity.CRITICAL),
        "boundary": Boundary.SCHEDULER,
        "state": State.FAIL,
        "location": Location(path=path, line=line, column=9) if line else None,
        "evidence": {"privileged": True},
        "remediation": "Drop privileged;\n request rdma/hca and add IPC_LOCK.",
        "fixed_by": FixedBy.USER,
        "refs": Refs(cwe=(250,), nist=("AC-6",), atlas=("AML.T0049@5.6.0",)),
        "fingerprint": fingerprint(check, asset, subject),
    }
    return Finding(check=check, asset=asset, subject=subject, **{**fields, **given})


def result(*findings: Finding, **given: Any) -> AuditResult:
    assets = dict.fromkeys(one.asset for one in findings if one.asset)
    fields: dict[str, Any] = {
        "at": NOW,
        "assets": tuple(
            AssetRef(
                asset=name,
                kind="workload" if name.startswith("manifest") else name.partition(":")[0],
                collected_at=NOW,
                digest="d" * 64,
                title="PyTorchJob/pretrain" if name.startswith("manifest") else "",
            )
            for name in assets
        ),
        "policy": PolicyRef(id="baseline", version="1.0.0", digest="f" * 64),
        "counts": {state.value: len({f.check for f in findings if f.state is state})
                   for state in State},
        "exit_code": 1,
    }  # fmt: skip
    return AuditResult(findings=findings, **{**fields, **given})


def unread(path: str, **given: Any) -> LedgerRow:
    """A file that was not understood."""
    entry = Entry(
        unit="file", at=Location(path=path, line=3), end=End.NOT_UNDERSTOOD, why="a <tab> stands",
        help="take it out", bears_on=("workload",), count=2,
    )  # fmt: skip
    return LedgerRow(asset="cluster:files", entry=entry, severity=Severity.CRITICAL, **given)


def mixed() -> AuditResult:
    """Three workloads, three nodes, a Slurm controller, a waiver, and a template."""
    slurm: dict[str, Any] = {
        "asset": "slurm:prod",
        "subject": "slurm",
        "title": "Confinement of jobs to their GPUs",
    }
    node: dict[str, Any] = {
        "boundary": Boundary.NODE,
        "title": "GPU firmware on all nodes",
        "severity": Severity.MEDIUM,
        "subject": "node.gpus[0]",
        "reason": "97.00.5e; 97.00.9b on 409 nodes",
        "line": 0,
        "fixed_by": FixedBy.ADMINISTRATOR,
    }
    return result(
        finding(),
        finding(asset="manifest:jobs/b.yaml#1", line=121),
        finding(asset="manifest:jobs/b.yaml#2", state=State.WAIVED, waiver="W-1", line=55),
        finding("ST-SLM-012", severity=Severity.HIGH, line=7, **slurm),
        finding(
            "ST-SLM-001",
            state=State.UNKNOWN,
            reason="slurm.conf:67 includes site.conf, which is not here",
            line=67,
            **slurm,
        ),
        *(finding("ST-HST-010", asset=f"node:gpu-{n:03d}", **node) for n in (17, 201, 202)),
        finding("ST-K8S-002", state=State.PASS, line=0),
        finding("ST-K8S-003", state=State.NOT_APPLICABLE, line=0),
        waivers=(
            WaiverUse(
                id="W-1",
                check="ST-K8S-001",
                status=WaiverStatus.APPLIED,
                expires=date(2026, 12, 20),
            ),
        ),
        coverage=(Coverage(what="files", seen=2, of=4, not_ours=7),),
        ledger=(unread("c.yaml", counts=True), unread("old.tf", scope="out of scope until ...")),
    )
