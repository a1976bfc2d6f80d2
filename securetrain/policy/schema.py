# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one policy schema: a section for each trust boundary and one for the audit itself.

`securetrain policy explain` prints a field's description and enforcers. Unknown keys are errors.
"""

import re
from datetime import date
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core.hashtree import HashAlgorithm
from securetrain.core.vocabulary import (
    CloseQuorum,
    EnforcementMode,
    KeyExchange,
    NetworkProfile,
    NodeTier,
    PreflightMode,
    RankIsolation,
    SandboxMode,
    Severity,
)
from securetrain.policy.chain import Chain as Chain  # noqa: PLC0414 - part of the schema
from securetrain.policy.gradients import GradientData as GradientData  # noqa: PLC0414 - part of the schema
from securetrain.policy.gradients import Gradients as Gradients  # noqa: PLC0414 - part of the schema
from securetrain.policy.gradients import GuardMode as GuardMode  # noqa: PLC0414 - part of the schema
from securetrain.policy.gradients import GuardResponse as GuardResponse  # noqa: PLC0414 - part of the schema
from securetrain.policy.log import SpkiText as SpkiText  # noqa: PLC0414 - part of the schema
from securetrain.policy.log import TransparencyLog as TransparencyLog  # noqa: PLC0414 - part of the schema
from securetrain.policy.meta import EGRESS
from securetrain.policy.meta import meta as _meta
from securetrain.policy.secret import MAX_SECRETS as MAX_SECRETS  # noqa: PLC0414 - part of the schema
from securetrain.policy.secret import Secret as Secret  # noqa: PLC0414 - part of the schema
from securetrain.policy.secret import SecretName

API_VERSION: Final = "securetrain.dev/policy/v1"


_Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024)] | None
_Digest: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")] | None
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)] | None
_BY = ("run", "verify")
_SIGNER = "one of those who must have signed: a key's id, or an identity"
_DATASET = "the dataset it was trained on: a digest, or the name that the dataset's own signer gave"
_POLICY = "the policy that it was made under: a digest, or a shipped one's name"


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The checkpoint that is wanted: a trusted key signs many."""

    run: Annotated[_Text, _meta("the run that must have saved it", *_BY)] = None
    name: Annotated[_Text, _meta("the name it must bear; a run may sign under it", *_BY)] = None
    digest: Annotated[_Digest, _meta("the digest of its content, as verify prints it", *_BY)] = None
    signer: Annotated[_Text, _meta(_SIGNER, *_BY)] = None
    step: Annotated[_Count, _meta("the step that it must be of", *_BY)] = None
    dataset: Annotated[_Text, _meta(_DATASET, *_BY)] = None
    policy: Annotated[_Text, _meta(_POLICY, *_BY)] = None
    min_step: Annotated[_Count, _meta("the lowest step", *_BY)] = None
    min_version: Annotated[_Count, _meta("the lowest number in its run", *_BY)] = None

    @property
    def dataset_name(self) -> str | None:
        """The dataset that is wanted, where that is a name."""
        wanted = self.dataset
        return wanted if wanted and not re.fullmatch("[0-9a-f]{64}", wanted) else None


class UnpickleMode(StrEnum):
    """The worker shim's answer to a pickle that names a global outside the allow-list."""

    OFF = "off"
    WARN = "warn"
    ENFORCE = "enforce"


class FabricTrust(StrEnum):
    """The protection of gradients that leave a machine by RDMA instead of by sockets."""

    ENCRYPTED = "encrypted"
    TRUSTED_PLAINTEXT = "trusted-plaintext"


class IsolationEvidence(StrEnum):
    """The evidence that nobody else is on the RDMA fabric."""

    PARTITION = "partition"
    STATEMENT = "statement"


class Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The identity of the policy."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}\Z")]
    version: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+\Z")]
    title: str = ""


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys and certificates."""

    trust_domain: Annotated[str, _meta("the SPIFFE trust domain of job certificates", "run")] = (
        "securetrain.local"
    )
    certificate_lifetime_minutes: Annotated[
        int, _meta("how long a node's or coordinator's certificate lives", "run", ge=5, le=1440)
    ] = 1440


class SelfAsserted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Lets unattested nodes in, with limits and a reason."""

    max_nodes: Annotated[
        int, _meta("how many nodes of a job may be unattested", "run", ge=1, le=1024)
    ]
    reason: Annotated[str, _meta("why; printed in the report", "run", "audit")]
    until: Annotated[date | None, _meta("last day of the exception", "run", "audit")] = None


class ImaMode(StrEnum):
    """The demand on the kernel's measurement list."""

    OFF = "off"
    LOG = "log"
    ENFORCE = "enforce"


class ReferenceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file of the signed reference values."""

    file: Annotated[str, _meta("the file, relative to the policy that names it", "run")]
    signed_by: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9+/=]{40,200}\Z")], ...],
        _meta("public keys (SPKI, base64) of which one must have signed it", "run"),
    ]
    cache: Annotated[
        str | None,
        _meta("folder of signed RIMs, OCSP answers, CRLs and collateral, beside the policy", "run"),
    ] = None


class Tpm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The requirements for a TPM."""

    inventory: Annotated[
        bool, _meta("the endorsement key must be enrolled for this node", "run")
    ] = True
    event_log: Annotated[
        bool, _meta("the firmware's log must explain the quoted registers 0 to 9", "run")
    ] = True
    secure_boot: Annotated[bool, _meta("the node must have booted with Secure Boot on", "run")] = (
        True
    )
    ima: Annotated[
        ImaMode,
        _meta(
            "the kernel's measurement list: off, log (it must replay), enforce (every entry must"
            " be in the runtime policy)",
            "run",
        ),
    ] = ImaMode.LOG
    allow_ima_violations: Annotated[
        bool, _meta("accept entries that the kernel marked as changed while measured", "run")
    ] = False


class Tee(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The requirements for the CPU's confidential environment. Debug is always refused."""

    tcb_statuses: Annotated[
        tuple[str, ...], _meta("TDX TCB statuses that are good enough", "run")
    ] = ("UpToDate",)


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The requirements for GPUs and NVSwitches."""

    confidential: Annotated[
        bool, _meta("every GPU of the node must prove itself and its firmware", "run")
    ] = False
    fabric: Annotated[
        bool, _meta("the GPUs must sit behind NVSwitches, and each name exactly the others", "run")
    ] = False
    revocation: Annotated[
        bool,
        _meta("the makers' answers about revoked certificates must be in the cache", "run"),
    ] = True
    allow_expired_rims: Annotated[
        bool, _meta("accept reference measurements whose signer's certificate has expired", "run")
    ] = False


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Attestation of nodes."""

    min_tier: Annotated[NodeTier, _meta("the lowest tier that may join", "run", "verify")] = (
        NodeTier.TPM
    )
    allow_self_asserted: Annotated[
        SelfAsserted | None, _meta("let unattested nodes join, within limits", "run", "audit")
    ] = None
    lease_minutes: Annotated[
        int, _meta("how long an admission lasts before it must be renewed", "run", ge=1, le=60)
    ] = 10
    doubt_lost: Annotated[
        bool,
        _meta(
            "whether a node that goes in the middle of a run leaves checkpoints in doubt, as one"
            " that was evicted does",
            "run",
        ),
    ] = True
    reference_values: Annotated[
        ReferenceFile | None, _meta("the signed file that says what nodes must be", "run")
    ] = None
    tpm: Annotated[Tpm, _meta("what a TPM must prove", "run")] = Tpm()
    tee: Annotated[Tee, _meta("what a CPU's confidential environment must prove", "run")] = Tee()
    gpu: Annotated[Gpu, _meta("what GPUs and NVSwitches must prove", "run")] = Gpu()
    secrets: Annotated[
        dict[SecretName, Secret],
        _meta("named secrets, and which nodes get them", "run", max_length=MAX_SECRETS),
    ] = {}


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The machine under the job."""

    preflight: Annotated[
        PreflightMode, _meta("what run does with its preflight findings", "run")
    ] = PreflightMode.ENFORCE
    fail_on: Annotated[
        Severity, _meta("the lowest severity that counts as a failed audit", "run", "audit")
    ] = Severity.HIGH
    max_unknown: Annotated[
        int,
        _meta(
            "how many checks may stay unknown for lack of evidence", "run", "audit", ge=0, le=100000
        ),
    ] = 0
    sandbox: Annotated[
        SandboxMode,
        _meta("the workers' sandbox: required, preferred (goes on without a part) or off", "run"),
    ] = SandboxMode.PREFERRED
    rank_isolation: Annotated[
        RankIsolation,
        _meta("a node's ranks kept apart: domains, without-gpu (where it has none) or none", "run"),
    ] = RankIsolation.NONE
    max_memory_mib: Annotated[
        int, _meta("the most memory of a node's workers; 0 is no limit", "run", ge=0, le=1 << 40)
    ] = 0
    max_tasks: Annotated[
        int, _meta("the most processes and threads of theirs; 0: no limit", "run", ge=0, le=1 << 22)
    ] = 0
    skip_checks: Annotated[
        tuple[str, ...], _meta("check ids that this policy does not ask for", "audit")
    ] = ()


class OutOfScope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Files that an audit leaves out for a while."""

    glob: Annotated[str, _meta("their path, or its end; * crosses folders", "audit", min_length=1)]
    reason: Annotated[str, _meta("why; shown in every report", "audit", min_length=10)]
    owner: Annotated[str, _meta("who answers for it", "audit", min_length=1)]
    end: Annotated[date, _meta("the last day; afterwards they count again", "audit")]


class Audit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The audit of the cluster."""

    min_coverage_percent: Annotated[
        int,
        _meta("the share of checks that must be answered, not unknown", "audit", ge=0, le=100),
    ] = 0
    every_file: Annotated[
        bool,
        _meta("count each unread file of a known kind, whatever it could have answered", "audit"),
    ] = False
    out_of_scope: Annotated[
        tuple[OutOfScope, ...], _meta("files that are left out, why and until when", "audit")
    ] = ()
    params: Annotated[
        dict[str, dict[str, int | str | list[int | str]]],
        _meta("a check's own values, by check and param, within bounds that it declares", "audit"),
    ] = {}


class SupplyChain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Code that the job loads."""

    torch_min: Annotated[str, _meta("the oldest torch that may run", "run", "audit")] = "2.10.0"
    allow_entry_points: Annotated[
        tuple[str, ...],
        _meta("other packages' torchrun.handlers entry points that may load", "run", "audit"),
    ] = ()


class Scheduler(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The variables that the scheduler hands to the job."""

    pass_environment: Annotated[
        tuple[str, ...],
        _meta("patterns of scheduler variables that reach the workers", "run"),
    ] = ("SLURM_*",)


class Isolation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The reason why nobody else is on the RDMA fabric, where the job's bytes are in the clear."""

    statement: Annotated[str, _meta("how it is kept from others; printed", "run", "audit")]
    evidence: Annotated[
        IsolationEvidence,
        _meta(
            "partition (the kernel must show one that is not the default: a partition key on"
            " InfiniBand, a VLAN on Ethernet) or statement (nothing is looked at)",
            "run",
            "audit",
        ),
    ] = IsolationEvidence.PARTITION


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The job network."""

    require: Annotated[
        tuple[NetworkProfile, ...],
        _meta("profiles of which one must be achieved; the first that works is used", "run"),
    ] = (NetworkProfile.LOOPBACK, NetworkProfile.OVERLAY)
    fabric: Annotated[
        FabricTrust,
        _meta(
            "what may leave a machine: encrypted (nothing in the clear) or trusted-plaintext"
            " (rdma-trusted or store-tls may be required)",
            "run",
            "audit",
        ),
    ] = FabricTrust.ENCRYPTED
    isolation: Annotated[
        Isolation | None, _meta("why nobody else is on a fabric in the clear", "run", "audit")
    ] = None
    egress: Annotated[
        tuple[Annotated[str, Meta(max_length=260, pattern=EGRESS)], ...],
        _meta("host:port, or *:port for public ones, that workers may reach", "run", max_length=64),
    ] = ()


class Rendezvous(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Admission of nodes."""

    join_timeout_seconds: Annotated[
        int, _meta("how long a node waits for the others", "run", ge=5, le=86400)
    ] = 600
    arrival_seconds: Annotated[
        int,
        _meta(
            "how long the ranks of a node may be missing in the workers' group after others have"
            " begun to wait for them; a script that gives its group longer than torch's 30 minutes"
            " gives its nodes as long",
            "run",
            ge=5,
            le=86400,
        ),
    ] = 600
    handshake_timeout_seconds: Annotated[
        int, _meta("how long a peer has for TLS and each answer", "run", ge=1, le=60)
    ] = 10
    max_unauthenticated: Annotated[
        int,
        _meta("connections that may be open before they have authenticated", "run", ge=1, le=4096),
    ] = 64
    close_quorum: Annotated[
        CloseQuorum,
        _meta(
            "members of a round that must be done before the job is over for all: first-or-majority"
            " (rank 0's node, or more than half), majority or all",
            "run",
        ),
    ] = CloseQuorum.FIRST_OR_MAJORITY
    key_exchange: Annotated[
        KeyExchange,
        _meta("of control connections: any, or hybrid (X25519MLKEM768 only)", "run"),
    ] = KeyExchange.ANY


class Fabric(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """NCCL, Gloo and what configures them."""

    pin_environment: Annotated[
        bool, _meta("pin and scrub NCCL_*, GLOO_*, UCX_* in the workers' environment", "run")
    ] = True
    allow_environment: Annotated[
        tuple[str, ...],
        _meta("fabric variables that the user may set all the same", "run", "audit"),
    ] = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_TIMEOUT")


class Dataset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Data that the job reads. Unsigned data is refused, whatever the policy says."""

    max_age_days: Annotated[
        Annotated[int, Meta(ge=1, le=36500)] | None,
        _meta("the oldest signature that is accepted", "run", "verify"),
    ] = None


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Checkpoints that the job writes and reads. An unsigned one is always refused."""

    algorithm: Annotated[HashAlgorithm, _meta("the hash tree's function", "run", "verify")] = (
        HashAlgorithm.BLAKE3
    )
    max_age_days: Annotated[
        Annotated[int, Meta(ge=1, le=36500)] | None,
        _meta("the oldest signature that is accepted", "run", "verify"),
    ] = None
    require_lineage: Annotated[
        bool, _meta("the statement must name run, dataset and policy", "verify")
    ] = True
    require_clean_verdict: Annotated[
        bool, _meta("the gradient verdict in the statement must be clean", "run", "verify")
    ] = True
    min_clean_steps: Annotated[
        Annotated[int, Meta(ge=1, le=1000000)] | None,
        _meta(
            "steps up to the checkpoint with nothing found in them, by records that all ranks"
            " signed; all of them, in a checkpoint of fewer steps",
            "verify",
        ),
    ] = None
    max_audit_age_steps: Annotated[
        Annotated[int, Meta(ge=0, le=1000000)] | None,
        _meta("steps that the last audit, a signed replay, may be behind the checkpoint", "verify"),
    ] = None
    require_rank_signatures: Annotated[
        bool,
        _meta(
            "every rank must have signed its own file with a certified key: its node's",
            "run",
            "verify",
        ),
    ] = False
    require_head: Annotated[
        bool,
        _meta(
            "a signed head must say that it is the newest of its run, or operators must waive that",
            "run",
            "verify",
        ),
    ] = False
    expect: Annotated[
        Expect | None,
        _meta("which checkpoint is wanted; none: any that is signed", "run", "verify"),
    ] = None
    log: Annotated[
        TransparencyLog | None,
        _meta(
            "the statement must be proven to stand in a transparency log that witnesses watch; a"
            " run logs its checkpoints, and its nodes' agents are witnesses",
            "run",
            "verify",
        ),
    ] = None
    encrypt_to: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")], ...],
        _meta("X25519 public keys (hex) for which every file must be encrypted", "run", "verify"),
    ] = ()
    unpickle: Annotated[
        UnpickleMode,
        _meta("what happens to pickles from other ranks, and in files that a script loads", "run"),
    ] = UnpickleMode.ENFORCE
    allow_globals: Annotated[
        tuple[str, ...], _meta("further globals ('module.name') that may be unpickled", "run")
    ] = ()
    allow_pickles_in: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^/")], ...],
        _meta("absolute folders and files that a script may load with any pickle in them", "run"),
    ] = ()
    sign_saves: Annotated[
        bool,
        _meta(
            "what a script saves by the usual functions is signed (`run --sign-checkpoints`)", "run"
        ),
    ] = False
    verify_loads: Annotated[
        bool,
        _meta(
            "what a script loads so must be signed (`run --verify-checkpoints`)",
            "run",
        ),
    ] = False
    load_trust: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^/")], ...],
        _meta("trust roots, absolute files, of other runs whose saves a script may load", "run"),
    ] = ()

    @property
    def counts_steps(self) -> bool:
        """Tell whether steps before a checkpoint are counted, by documents."""
        return (self.min_clean_steps, self.max_audit_age_steps) != (None, None)


class Debug(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Debug and observability endpoints."""

    allow_servers: Annotated[
        bool, _meta("whether torch's debug and worker servers may start", "run", "audit")
    ] = False


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A resolved policy: everything that run enforces, audit checks and verify proves.

    >>> from securetrain.policy import load_policy
    >>> loaded = load_policy("baseline").policy
    >>> isinstance(loaded, Policy), loaded.metadata.id
    (True, 'baseline')
    """

    apiVersion: str  # noqa: N815 - the field's name in the file
    kind: str
    metadata: Metadata
    enforcement: Annotated[
        EnforcementMode,
        _meta("what follows where a part of this is not enforced: report or require", "run"),
    ] = EnforcementMode.REPORT
    identity: Identity = Identity()
    node: Node = Node()
    host: Host = Host()
    supply_chain: SupplyChain = SupplyChain()
    audit: Audit = Audit()
    scheduler: Scheduler = Scheduler()
    network: Network = Network()
    rendezvous: Rendezvous = Rendezvous()
    fabric: Fabric = Fabric()
    dataset: Dataset = Dataset()
    gradients: Gradients = Gradients()
    checkpoint: Checkpoint = Checkpoint()
    chain: Chain = Chain()
    debug: Debug = Debug()


Section: TypeAlias = (
    Identity
    | Node
    | Host
    | SupplyChain
    | Scheduler
    | Network
    | Rendezvous
    | Fabric
    | Dataset
    | Gradients
    | Checkpoint
    | Debug
)

_HEADER: Final = {"apiVersion", "kind", "metadata", "enforcement", "chain"}
SECTIONS: Final = tuple(f.name for f in msgspec.structs.fields(Policy) if f.name not in _HEADER)
"""Section names in order; with '_' for '-' they are the ids of the twelve boundaries."""
