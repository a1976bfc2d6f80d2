# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one vocabulary: names that cross a boundary of the project, each defined once."""

from enum import StrEnum


class Boundary(StrEnum):
    """The twelve trust boundaries of a distributed training job.

    Policies, checks, threat models, findings, ledger events, documents and reports all use these
    ids and no others.
    """

    IDENTITY = "identity"
    HOST = "host"
    NODE = "node"
    SUPPLY_CHAIN = "supply-chain"
    SCHEDULER = "scheduler"
    NETWORK = "network"
    RENDEZVOUS = "rendezvous"
    FABRIC = "fabric"
    DATASET = "dataset"
    GRADIENTS = "gradients"
    CHECKPOINT = "checkpoint"
    DEBUG = "debug"


class State(StrEnum):
    """The outcome of a check. Missing evidence is ``unknown``, never ``pass``."""

    PASS = "pass"  # noqa: S105 - a check state, not a password
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not-applicable"
    WAIVED = "waived"


class Decision(StrEnum):
    """An enforcer's decision at a boundary; the word that the ledger records."""

    ALLOW = "allow"
    REFUSE = "refuse"
    OBSERVE = "observe"


class _Ordered(StrEnum):
    """A StrEnum whose members compare by the order of their definition."""

    rank: int
    """The member's place, from 0."""

    def __init__(self, value: str) -> None:  # noqa: ARG002 - an enum's members are made of it
        self.rank = len(type(self).__members__)

    def _rank_of(self, other: str) -> int:
        # A look-up by value costs several times as much as the comparison.
        return other.rank if isinstance(other, type(self)) else type(self)(other).rank

    # All four, because str's own comparisons would otherwise be found first.
    def __lt__(self, other: str) -> bool:
        return self.rank < self._rank_of(other)

    def __le__(self, other: str) -> bool:
        return self.rank <= self._rank_of(other)

    def __gt__(self, other: str) -> bool:
        return self.rank > self._rank_of(other)

    def __ge__(self, other: str) -> bool:
        return self.rank >= self._rank_of(other)


class Severity(_Ordered):
    """The weight of a failed check, from least to most."""

    INFO = "info"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class NodeTier(_Ordered):
    """The proof that a node has given, computed by the verifier from the roots that verified.

    ``test-only`` is a software TPM whose CA was not enrolled: it ranks below everything because
    nothing stands behind it.
    """

    TEST_ONLY = "test-only"
    SELF_ASSERTED = "self-asserted"
    CLOUD_TOKEN = "cloud-token"  # noqa: S105 - the name of a tier
    VTPM = "vtpm"
    TPM = "tpm"
    TEE = "tee"
    TEE_GPU = "tee+gpu"


class NetworkProfile(StrEnum):
    """The protection of a job's bytes on their way. The last two are always printed as DEGRADED."""

    LOOPBACK = "loopback"
    OVERLAY = "overlay"
    OVERLAY_ROOTLESS = "overlay-rootless"
    NCCL_TLS = "nccl-tls"
    IPSEC_OFFLOAD = "ipsec-offload"
    STORE_TLS = "store-tls"
    RDMA_TRUSTED = "rdma-trusted"

    @property
    def degraded(self) -> bool:
        """True when some of the job's bytes travel without protection."""
        return self in {NetworkProfile.STORE_TLS, NetworkProfile.RDMA_TRUSTED}


class PreflightMode(StrEnum):
    """The consequence of the preflight audit's findings."""

    OFF = "off"
    WARN = "warn"
    ENFORCE = "enforce"


class EnforcementMode(StrEnum):
    """The consequence of a part of the policy that this run or its script leaves unenforced."""

    REPORT = "report"
    REQUIRE = "require"


class SandboxMode(StrEnum):
    """The demand on the workers' sandbox."""

    OFF = "off"
    PREFERRED = "preferred"
    REQUIRED = "required"


class RankIsolation(StrEnum):
    """The wall between the ranks of one node."""

    NONE = "none"
    WITHOUT_GPU = "without-gpu"
    """A domain for each rank where workers see no GPU; with one, none."""
    DOMAINS = "domains"


UNATTESTED = "UNATTESTED (self-reported)"
"""The label that people see wherever evidence is only what a node said about itself."""

UNCONFINED = "DEGRADED SANDBOX (workers can do more than they need)"
"""The label of workers whose sandbox lacks something, or who have none."""

OPEN_EGRESS = "DEGRADED EGRESS (network.egress limits nothing)"
"""The label of a run whose policy names the places that workers may reach, and nothing does so."""

DEGRADED = "DEGRADED (some bytes in the clear)"
"""The label that people see wherever a network profile leaves bytes of the job unprotected."""

NOT_WATCHED = "gradients: NOT WATCHED"
"""The label of a run in which steps were made on gradients that nobody judged."""

NOT_SIGNED = "checkpoints: NOT SIGNED"
"""The label of a run whose script saved files that nobody signed."""

LOADS_NOT_HELD = "loads: NOT HELD"
"""The label of a run whose script loaded what the policy's demands on loads do not reach."""

PROGRAMS_NOT_PROTECTED = "programs: NOT PROTECTED"
DATA_NOT_KNOWN = "data: NOT KNOWN"
"""The label of a run whose script started programs in Python without the shim."""

TEST_ONLY = "TEST-ONLY (software TPM)"
"""The label of a node whose TPM is a program that nobody vouches for."""


def tier_label(tier: NodeTier) -> str:
    """The label of a tier for people: it says so where nothing was proven."""
    match tier:
        case NodeTier.TEST_ONLY:
            return TEST_ONLY
        case NodeTier.SELF_ASSERTED:
            return UNATTESTED
        case _:
            return tier.value


def degraded_label(profile: NetworkProfile) -> str:
    """The label for people, wherever they see it, of a profile that leaves bytes in the clear."""
    return f"{profile} {DEGRADED}" if profile.degraded else profile.value


class CloseQuorum(StrEnum):
    """The members of a round whose Close ends the job for all."""

    FIRST_OR_MAJORITY = "first-or-majority"
    """Rank 0's node, or more than half."""
    MAJORITY = "majority"
    ALL = "all"


class KeyExchange(StrEnum):
    """The key exchange of control connections."""

    ANY = "any"
    """What both sides have; X25519MLKEM768 where both have it."""
    HYBRID = "hybrid"
    """X25519MLKEM768, or none."""


class ChainLink(StrEnum):
    """One thing that a checkpoint leads back to, and that a verifier judges by itself."""

    NODES = "nodes"
    """The tiers, by results that the coordinator signed and that were valid meanwhile."""
    MEMBERSHIP = "membership"
    """The epoch, by the membership that an accepted coordinator signed."""
    POLICY = "policy"
    JOB = "job"
    CODE = "code"
    ENVIRONMENT = "environment"
    DATASET = "dataset"
    ROWS = "rows"
    GRADIENTS = "gradients"
    PARENTS = "parents"
    LEDGER = "ledger"
    LOG = "log"
    TIME = "time"
    TABLES = "tables"
    """The verdicts on the gradients, worked out again from what the ranks said of them."""
    REPLAY = "replay"
    """The steps, by the signed word of somebody who did them again."""


class ChainDepth(StrEnum):
    """The checkpoints of a chain of which the links are asked."""

    CHECKPOINT = "checkpoint"
    """The one that is verified alone."""
    ALL = "all"
    """Also every ancestor."""


class LinkState(StrEnum):
    """The verifier's word on one link of one checkpoint."""

    VERIFIED = "verified"
    CLAIMED = "the signer's word"
    """A key says it that may lie on a machine which it speaks of; no pass where it is required."""
    BROKEN = "broken"
    """Evidence contradicts what the checkpoint says."""
    MISSING = "missing"
    """There is no evidence; never a pass where the link is required."""
    NOT_ASKED = "not asked"
