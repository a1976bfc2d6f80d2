# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Refusals of a checkpoint's chain: one code for each link, whether it is broken or missing."""

from typing import Final

from securetrain.core.codes.columns import (
    ALONE,
    CRITICAL,
    HIGH,
    MACHINE,
    MEDIUM,
    NEVER,
    NO_NODE,
    Code,
    X,
)

# fmt: off
ROWS: Final = (
    Code("ST-CHAN-001", X.LINEAGE, "a document of evidence is malformed, or not of its digest",
         fix="get the run's evidence folder again from where the run was made",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-002", X.IO, "evidence cannot be kept",
         fix="check the disk and the permissions of the run's evidence folder",
         severity=MEDIUM, rank=ALONE, node=NO_NODE, retry=NEVER, threat=MACHINE),
    Code("ST-CHAN-010", X.LINEAGE, "a node's tier is not shown by a result of the coordinator",
         fix="give the evidence (--evidence), and a policy that names who signs reference values",
         severity=CRITICAL, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-011", X.LINEAGE, "the membership is not one of a coordinator that is accepted",
         fix="give the evidence (--evidence), and trust its CA (trust rotate --authority)",
         severity=CRITICAL, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-012", X.LINEAGE, "the policy in force is not shown",
         fix="give the run's evidence folder (--evidence)",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-013", X.LINEAGE, "the code that ran is not shown",
         fix="give the run's evidence folder (--evidence)",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-014", X.LINEAGE, "the environment of the run is not shown",
         fix="give the run's evidence folder (--evidence)",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-015", X.LINEAGE, "the dataset is not shown",
         fix="give its directory (--walk-in) or the run's evidence folder, and the trust root of"
             " its maker (--trust-data)",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-016", X.LINEAGE, "the rows that were read are not shown",
         fix="keep the records of the steps, and give them to the verifier",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-017", X.LINEAGE, "the verdicts on the gradients are not shown",
         fix="keep the records of the steps, and give them to the verifier",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-018", X.LINEAGE, "a checkpoint's ancestors are not shown",
         fix="name the directories in which they are (--walk-in)",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-019", X.LINEAGE, "the run's ledger is not shown to hold what was signed",
         fix="give the run directory with its ledger; nobody may cut it",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-020", X.LOG_PROOF, "the place in a transparency log is not shown",
         fix="get the proof from whoever keeps the log (securetrain log prove)",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-021", X.LINEAGE, "the time of signing is not shown by others than the signer",
         fix="have witnesses cosign the log (securetrain log witness)",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-022", X.LINEAGE, "the job is not shown",
         fix="give the run's evidence folder (--evidence)",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-023", X.LINEAGE, "the steps are not shown to give what was signed",
         fix="have the steps done again (securetrain replay), and give the signed result"
             " (--replayed)",
         severity=CRITICAL, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-024", X.LOG_PROOF, "the log checkpoint that draws the segments is too early",
         fix="take one that the witnesses cosigned after the run had ended (securetrain log"
             " witness): the file checkpoint of the log",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-025", X.LINEAGE, "the recorded steps cannot be done again",
         fix="read what the steps said; give the checkpoints and the dataset that were signed",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
    Code("ST-CHAN-026", X.LINEAGE, "the ranks' own tables do not show the gradients' verdicts",
         fix="keep the tables (checkpoint.tables in the job) and pack them (securetrain pack"
             " --tables); where they contradict the verdicts, have the steps done again",
         severity=CRITICAL, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-003"),
)
# fmt: on
