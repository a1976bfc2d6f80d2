# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Refusals while a job runs: launcher, workers, gradients."""

from typing import Final

from securetrain.core.codes.columns import (
    ALONE,
    CRITICAL,
    HIGH,
    LATER,
    MEDIUM,
    NEVER,
    NO_NODE,
    Code,
    X,
)

# fmt: off
ROWS: Final = (
    # the launcher and the run time of the workers
    Code("ST-RUNT-001", X.FAILURE, "a peer's pickle names a global outside the allow-list",
         fix="send plain data or tensors, or add the name to checkpoint.allow_globals in the"
             " policy",
         severity=CRITICAL, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-004"),
    Code("ST-RUNT-002", X.USAGE,
         "the launcher was told to use a rendezvous backend that is not authenticated",
         fix="leave --rdzv-backend out",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-SCH-001"),
    Code("ST-RUNT-003", X.FAILURE, "the preflight audit found what the policy does not allow",
         fix="see every finding and its fix with 'securetrain audit', or run under a policy that"
             " accepts them (host.fail_on, host.max_unknown, host.preflight)",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-HST-001"),
    Code("ST-RUNT-004", X.FAILURE, "a worker failed",
         fix="read the worker's own message and log",
         severity=MEDIUM, rank=ALONE, node=NO_NODE, retry=LATER, threat="X-WORKER-FAILED"),
    Code("ST-RUNT-005", X.FAILURE, "an entry point of another package would run inside the agent",
         fix="uninstall the package, or add it to supply_chain.allow_entry_points",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-SUP-002"),
    Code("ST-RUNT-006", X.FAILURE, "a debug server would listen outside loopback",
         fix="set debug.allow_servers: true in the policy if the network is yours alone",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-DBG-001"),
    Code("ST-RUNT-007", X.USAGE,
         "the worker shim cannot protect this program or this version of torch",
         fix="start a Python script with a torch that this version knows"
             " (docs/reference/compatibility.md)",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-004"),
    Code("ST-RUNT-008", X.FAILURE, "a peer's pickle is larger than the limit",
         fix="send large data as tensors",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-004"),
    Code("ST-RUNT-009", X.FAILURE, "a peer announces more rows for experts than it can have",
         fix="exclude its node: the rank is broken or hostile; nothing was allocated for it",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-004"),
    # models on meshes
    Code("ST-RUNT-010", X.USAGE,
         "a model would not train on this mesh as it trains in one process",
         fix="change the model's plan, the mesh or the model as the message says",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="X-MODEL-ON-MESH"),
    Code("ST-RUNT-011", X.USAGE, "a parameter or a buffer was left without a first value",
         fix="set parameters with initialize, and buffers with restore_buffers",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="X-MODEL-ON-MESH"),
    Code("ST-RUNT-012", X.FAILURE, "copies of a parameter got different gradients",
         fix="name the parameter's module in the plan's tensor_styles, or set tp: 1",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="X-MODEL-ON-MESH"),
    Code("ST-RUNT-013", X.FAILURE,
         "a small copy of the model computes something else on the mesh than in one process",
         fix="compare the plan of the layer that is named with the model",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="X-MODEL-ON-MESH"),
    Code("ST-RUNT-020", X.FAILURE, "the workers' sandbox cannot be had as the policy requires it",
         fix="start as root, or where ordinary users get user namespaces; or use a policy with"
             " host.sandbox: preferred and enforcement: report",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-HST-003"),
    Code("ST-RUNT-021", X.FAILURE,
         "the policy requires that all of it is enforced, and this run cannot enforce a part",
         fix="change what the message names; or allow it, and have it reported: enforcement: report"
             " in the policy",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-002"),
    Code("ST-RUNT-022", X.FAILURE, "a script was about to save what nobody would sign",
         fix="save with securetrain.artifacts (docs/how-to/signed-checkpoints.md); or allow it, and"
             " have it reported: enforcement: report in the policy",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-002"),
    Code("ST-RUNT-023", X.INTEGRITY, "the name of the run directory leads elsewhere by now",
         fix="find out who renamed it or a folder above it: what the run has written lies where the"
             " directory is now, and nothing where the name leads",
         severity=CRITICAL, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-LDG-001"),
    Code("ST-RUNT-024", X.FAILURE, "the ranks of this node cannot be kept apart",
         fix="turn the sandbox on, on a kernel with Landlock and without GPUs; or ask for"
             " host.rank_isolation: without-gpu or none: a rank's signature is then its node's",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-IDN-006"),
    # what workers may say (the signing socket)
    Code("ST-RUNT-030", X.FAILURE,
         "a process that is no worker of this launch asked for a signature",
         fix="sign in the processes that securetrain run started, or in their children",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-IDN-006"),
    Code("ST-RUNT-031", X.FAILURE, "a worker asked for a signature that is not its own to ask for",
         fix="look at the script: it tried to speak for another rank, for rank 0 or for the"
             " launcher",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-IDN-006"),
    Code("ST-RUNT-032", X.FAILURE,
         "a question to the signing socket is malformed, or none that a worker may ask",
         fix="sign checkpoints with securetrain.artifacts of the launcher's version; anything else"
             " needs a key of your own",
         severity=MEDIUM, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-IDN-006"),
    Code("ST-RUNT-033", X.FAILURE,
         "a worker asked for a signature on another run, an older step or a round that is over",
         fix="save under this run's id, with steps and numbers that grow; another run needs a key"
             " of its own",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-IDN-006"),
    Code("ST-RUNT-034", X.FAILURE, "a worker asked for more than its share of the signing socket",
         fix="look at the script: it floods its launcher",
         severity=MEDIUM, rank=ALONE, node=NO_NODE, retry=LATER, threat="T-IDN-006"),
    Code("ST-RUNT-035", X.FAILURE, "the launcher's signing socket does not answer",
         fix="look at the launcher's output: it has ended, or its ledger cannot be written",
         severity=MEDIUM, rank=ALONE, node=NO_NODE, retry=LATER, threat="X-WORKER-FAILED"),
    Code("ST-RUNT-036", X.FAILURE, "a worker asked for a secret that it does not get",
         fix="name it in node.secrets of the policy; the coordinator's ledger says why a node did"
             " not get one (secret-withheld)",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-IDN-007"),
    Code("ST-RUNT-037", X.FAILURE,
         "a file that a script loads names a global outside the allow-list",
         fix="look at it with 'securetrain scan'; save plain data and tensors in its place, or"
             " allow it in the policy (checkpoint.allow_globals, checkpoint.allow_pickles_in)",
         severity=CRITICAL, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-CKP-001"),
    Code("ST-RUNT-038", X.FAILURE, "a directory is not signed: some rank did not end the save",
         fix="call the framework's save on every rank, as its documentation says, or save on one"
             " rank by a call that is meant for one",
         severity=MEDIUM, rank=ALONE, node=NO_NODE, retry=LATER, threat="X-WORKER-FAILED"),
    # gradients
    Code("ST-GRAD-001", X.FAILURE, "a rank's gradient is not finite",
         fix="lower optimizer.lr or optimizer.clip, and look at the rows of this step",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-GRD-001"),
    Code("ST-GRAD-002", X.FAILURE, "a rank's gradient is an outlier",
         fix="look at the data and hardware of the ranks that are named",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-GRD-001"),
    Code("ST-GRAD-003", X.FAILURE, "the reduced gradient is not what the ranks sent",
         fix="look at the hardware and links of the ranks that reduced",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-GRD-002"),
    Code("ST-GRAD-004", X.FAILURE, "the ranks do not agree on the table of sketches",
         fix="find out which rank told others another table; exclude its node",
         severity=CRITICAL, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-GRD-003"),
    Code("ST-GRAD-005", X.FAILURE, "the run was halted by the gradient policy",
         fix="look at the data and hardware of the ranks that are named, then resume from the last"
             " clean checkpoint",
         severity=MEDIUM, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-GRD-001"),
    Code("ST-GRAD-006", X.USAGE, "the guard does not see every gradient of the model",
         fix="wrap the model with fully_shard or DistributedDataParallel, and call judge after"
             " backward",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-GRD-001"),
    Code("ST-GRAD-010", X.FAILURE, "a rank did not speak to the guard before the deadline",
         fix="look at the ranks that are named: hung, ended, or silent on purpose",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=LATER, threat="T-GRD-003"),
    Code("ST-GRAD-011", X.FAILURE, "a rank contradicts itself about its gradient",
         fix="look at the process and hardware of the rank that is named; exclude its node",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-GRD-003"),
    Code("ST-GRAD-012", X.FAILURE, "a rank's copy of the optimizer's state is not the others'",
         fix="look at the hardware of the rank that is named; restore its copy from a checkpoint",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-GRD-002"),
    Code("ST-GRAD-013", X.FAILURE, "a number that a rank says after the verdict is not what it got",
         fix="look at the process and hardware of the rank that is named; where none is, at code of"
             " the script that changes gradients between the backward pass and the step",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-GRD-004"),
    Code("ST-GRAD-014", X.FAILURE, "a rank broadcasts buffers that are not like the others' own",
         fix="look at the process and hardware of the rank; where the script computes a buffer on"
             " its first rank alone: gradients.bind_buffers: false in the policy",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-GRD-004"),
    Code("ST-GRAD-020", X.FAILURE, "a step was about to be made on gradients that nobody judged",
         fix="wrap the model with DistributedDataParallel or fully_shard and leave its reduction as"
             " it is; or allow it: gradients.require_watched: false and enforcement: report in the"
             " policy",
         severity=HIGH, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-GRD-001"),
    Code("ST-GRAD-021", X.USAGE, "the policy asks for a rollback that cannot be done here",
         fix="use exclude-rank, which goes on without the rank; or train with securetrain train",
         severity=MEDIUM, rank=ALONE, node=NO_NODE, retry=NEVER, threat="T-GRD-001"),
)
# fmt: on
