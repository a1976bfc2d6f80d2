# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The needs of each field of a policy that a run enforces, beside the policy itself.

Rules:

1. every field that names ``run`` as who enforces it stands in the table once; a test compares the
   table with the schema, and the reference page of policies shows it;
2. what depends on the script or on this machine is said when it is missing, at the start and the
   end of the run, in the ledger and in the report. What a script reads as data by itself is seen by
   nobody, which is what is said of it: that a run has opened a signed dataset is known, and not
   that it read nothing else;
3. under ``enforcement: require`` what rule 2 says is refused instead: the start where it is known
   then, or the step or save at which it shows.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from securetrain.core.vocabulary import EnforcementMode, SandboxMode
from securetrain.policy.schema import Policy


class Needs(StrEnum):
    """The thing that has to be there for a field to be enforced."""

    NOTHING = "nothing"
    """The launcher and the coordinator enforce it on whatever runs, or refuse to start."""
    SANDBOX = "sandbox"
    """The workers' sandbox, which some machines give only in part."""
    JOB_NETWORK = "job network"
    """A network profile with a network of the job's own."""
    SHIM = "shim"
    """The shim in the workers, which only programs in Python have."""
    WATCHED_MODEL = "watched model"
    """A model that the guard can move into."""
    OUR_SAVES = "our saves"
    """A script that saves with `securetrain.artifacts`."""
    OUR_LOADS = "our loads"
    """A script that loads with `securetrain.artifacts`; torch's and safetensors' loads are seen."""
    OUR_READERS = "our readers"
    """A script that reads data with securetrain's readers. Other reading is not seen."""


REFUSED_AT: Final[Mapping[Needs, str]] = {
    Needs.NOTHING: "",
    Needs.SANDBOX: "the start (`ST-RUNT-020`)",
    Needs.JOB_NETWORK: "the start (`ST-RUNT-021`)",
    Needs.SHIM: "the start (`ST-RUNT-021`)",
    Needs.WATCHED_MODEL: "the first such step (`ST-GRAD-020`)",
    Needs.OUR_SAVES: "the first such save (`ST-RUNT-022`)",
    Needs.OUR_LOADS: "the first such load (`ST-RUNT-021`)",
    Needs.OUR_READERS: "the end of a run in which no signed dataset was opened (`ST-RUNT-021`)",
}
"""Where ``enforcement: require`` refuses."""

_SECTIONS: Final[Mapping[Needs, Mapping[str, str]]] = {
    Needs.NOTHING: {
        "": "enforcement",
        "identity": "trust_domain certificate_lifetime_minutes",
        "node": "min_tier lease_minutes doubt_lost allow_self_asserted reference_values tpm tee"
        " gpu",
        "node.allow_self_asserted": "max_nodes reason until",
        "node.reference_values": "file signed_by cache",
        "node.tpm": "inventory event_log secure_boot ima allow_ima_violations",
        "node.tee": "tcb_statuses",
        "node.gpu": "confidential fabric revocation allow_expired_rims",
        "host": "preflight fail_on max_unknown",
        "supply_chain": "torch_min allow_entry_points",
        "scheduler": "pass_environment",
        "network": "require fabric isolation",
        "network.isolation": "statement evidence",
        "rendezvous": "join_timeout_seconds arrival_seconds handshake_timeout_seconds"
        " max_unauthenticated close_quorum key_exchange",
        "fabric": "pin_environment allow_environment",
    },
    Needs.SANDBOX: {"host": "sandbox rank_isolation max_memory_mib max_tasks"},
    Needs.JOB_NETWORK: {"network": "egress"},
    Needs.SHIM: {
        "node": "secrets",
        "checkpoint": "unpickle allow_globals allow_pickles_in sign_saves verify_loads load_trust",
        "debug": "allow_servers",
    },
    Needs.WATCHED_MODEL: {
        "gradients": "mode response data false_alarms_per_million_rank_steps warmup_steps threshold"
        " require_watched max_refused_steps sketch_keys deadline_seconds confirm_tables"
        " bind_buffers",
    },
    Needs.OUR_SAVES: {
        "checkpoint": "algorithm require_clean_verdict require_rank_signatures"
        " require_head log encrypt_to",
        "checkpoint.log": "origin keys witnesses quorum",
    },
    Needs.OUR_LOADS: {
        "checkpoint": "max_age_days expect",
        "checkpoint.expect": "run name digest signer step dataset policy min_step min_version",
    },
    Needs.OUR_READERS: {"dataset": "max_age_days"},
}
NEEDS: Final[Mapping[str, Needs]] = {
    f"{section}.{name}".lstrip("."): needs
    for needs, sections in _SECTIONS.items()
    for section, names in sections.items()
    for name in names.split()
}
"""By the field's dotted name."""

_ASKED: Final = (
    "checkpoint.require_head",
    "checkpoint.require_rank_signatures",
    "checkpoint.log",
    "checkpoint.encrypt_to",
    "checkpoint.require_clean_verdict",
)
"""Demands on what is saved; the others only say how."""
_ASKED_OF_LOADS: Final = ("checkpoint.expect", "checkpoint.max_age_days")
_ASKED_OF_DATA: Final = ("dataset.max_age_days",)
_ASKED_OF_SHIM: Final = (
    "node.secrets",
    "checkpoint.unpickle",
    "checkpoint.sign_saves",
    "checkpoint.verify_loads",
)
"""Demands on what happens in a worker; ``debug.allow_servers`` asks where it is false."""


def unsigned_demands(policy: Policy) -> tuple[str, ...]:
    """The demands of a policy that a save which nobody signs leaves unenforced."""
    return tuple(name for name in _ASKED if _value(policy, name))


def load_demands(policy: Policy) -> tuple[str, ...]:
    """The demands of a policy on what is loaded, which only securetrain's own loads are held to."""
    found = [name for name in _ASKED_OF_LOADS if _value(policy, name)]
    return tuple(found)


def read_demands(policy: Policy) -> tuple[str, ...]:
    """The demands of a policy on data, which only securetrain's own readers are held to."""
    return tuple(name for name in _ASKED_OF_DATA if _value(policy, name))


def shim_demands(policy: Policy) -> tuple[str, ...]:
    """The demands of a policy that workers without the shim leave unenforced, gradients aside."""
    found = [name for name in _ASKED_OF_SHIM if _value(policy, name) not in ((), {}, False, "off")]
    if not policy.debug.allow_servers:
        found.append("debug.allow_servers")
    return (*found, *unsigned_demands(policy), *load_demands(policy))


def sandbox_mode(policy: Policy) -> SandboxMode:
    """The sandbox that a policy asks for: a whole one where all of it must be enforced."""
    mode = policy.host.sandbox
    required = policy.enforcement is EnforcementMode.REQUIRE
    return SandboxMode.REQUIRED if required and mode is SandboxMode.PREFERRED else mode


def _value(policy: Policy, name: str) -> Any:
    found: Any = policy
    for part in name.split("."):
        found = getattr(found, part)
    return found
