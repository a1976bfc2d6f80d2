# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Prepare a run directory: keys, trust root, policy. Free of torch and of the network.

Rules:

1. the directory is this user's alone (`core.ownership`), and is new, empty but for what people put
   there, or a run directory: nothing is written beside other files;
2. keys are made once; the trust root is written last, so its presence means that the directory is
   complete;
3. a complete directory is used again (to resume); one that was made under another policy, or whose
   setup was cut short, is refused and never repaired silently;
4. the job CA's key is made at each launch and stays in memory;
5. when the policy asks for a transparency log, the trust root names it and its witnesses: those
   that the policy names, else a log of the run's own and the machine that makes the run;
6. the keys of what outlives the run (`PAIRS`) are pairs, and its trust root asks for both
   signatures. Directories of earlier versions keep the keys, and the rule, that they have.
"""

import base64
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.artifacts import members
from securetrain.core import NodeState, RunDir, canonical, claim_dir
from securetrain.core.errors import IdentityError, PolicyError, UsageError
from securetrain.core.files import make_private_dir, read_file, write_atomic
from securetrain.identity import SEGMENT, JobCA
from securetrain.identity.keys import KeyKind, PrivateKey, PublicKey
from securetrain.identity.log import Log
from securetrain.identity.trust import (
    RoleKeys,
    TrustRole,
    TrustRoot,
    decode_unverified,
    key_table,
    sign_document,
    sign_root,
)
from securetrain.launch.options import RunOptions
from securetrain.ledger import Ledger, WriterRole, key_file
from securetrain.policy.load import (
    FILE_LIMIT,
    SHIPPED,
    LoadedPolicy,
    bundled_dir,
    load_policy,
    with_guard,
    with_saves,
)
from securetrain.policy.schema import TransparencyLog
from securetrain.rendezvous.member import load_identity, write_identity

TRUST_LIFETIME: Final = timedelta(days=365)
KEYS: Final = ("root", "agent", "worker", "checkpoint", "dataset")
"""Those that every run directory has."""
OWN_KEYS: Final = ("coordinator", "trainer")
"""Those of roles that directories of earlier versions give to ``agent`` and ``worker``."""
PAIRS: Final = {
    "root": TrustRole.ROOT,
    "checkpoint": TrustRole.CHECKPOINT,
    "dataset": TrustRole.DATASET,
}
"""Those that sign what outlives the run: pairs with ML-DSA, and both signatures must hold."""
NODE_KEY: Final = "node"
LOG_KEY: Final = "log"
FROM_PEOPLE: Final = frozenset({"dataset", "waivers", "keys", "tpm"})
"""Names that may be there before the run is: a signed dataset, waivers, and what a setup that was
cut short, or a quickstart with a TPM, left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """A run directory that is ready."""

    run: RunDir
    policy: LoadedPolicy
    job: str
    """The job's id: stable for a run directory."""
    created: bool
    """Whether this call made it (False: it was used again)."""


def prepare_run(
    run_dir: Path,
    policy_name: str,
    now: datetime,
    witness: Callable[[], PublicKey] | None = None,
    *,
    guard: bool = False,
    sign: bool = False,
    verify: bool = False,
) -> RunSetup:
    """Make a run directory, or open the one that is there.

    Args:
        run_dir: The directory; made with its parents.
        policy_name: A shipped policy's name or a policy file.
        now: The time, timezone-aware.
        witness: Gives this machine's witness key, when the run's log has no other.
        guard: Watch gradients, although the policy does not ask for it; the run's policy says so.
        sign: Have the saves of the script signed, likewise.
        verify: Verify the loads of the script, likewise.

    Raises:
        PolicyError: ST-PLCY-001 to 004 for the policy, ST-PLCY-005 when the directory was made
            under another one.
        UsageError: ST-USAG-002 when it cannot be written, ST-USAG-005 when its setup is incomplete,
            ST-USAG-017 or ST-USAG-018 for a place that is no run directory of this user's.
        IdentityError: ST-IDEN-008 when its trust root is not valid (any more); ST-IDEN-025 where
            ML-DSA cannot be computed.
    """
    policy = load_policy(policy_name)
    if guard:
        policy = with_guard(policy)
    policy = with_saves(policy, sign=sign, verify=verify)
    run = RunDir(claim_dir(run_dir, _foreign_content))
    created = not run.trust.exists()
    if created:
        _create(run, policy, policy_name, now, witness)
    else:
        _check(run, policy, now)
    job = f"job-{PrivateKey.load(run.key('root')).key_id[:16]}"
    setup = RunSetup(run=run, policy=policy, job=job, created=created)
    if created:
        agent_ledger(setup, lambda: now)
    return setup


def make_identity(setup: RunSetup, ca: JobCA, now: datetime) -> members.RankSigner:
    """Write this node's identity into the run directory, and make a new key for its ranks.

    The rank key is certified by the agent, which is who admits nodes to a run of its own. It is in
    no file: the launcher signs with it (`signing.service`).

    Raises:
        IdentityError: ST-IDEN-005 or ST-IDEN-006.
        UsageError: ST-USAG-002.
    """
    run = setup.run
    minutes = setup.policy.policy.identity.certificate_lifetime_minutes
    identity = write_identity(
        run.keys,
        ca,
        node_name(),
        now,
        lifetime=timedelta(minutes=minutes),
        key=PrivateKey.load(run.key(NODE_KEY)),
    )
    agent = PrivateKey.load(run.key("agent"))
    for left in ("rank.pem", "rank.json"):  # of a start under an earlier version
        (run.keys / left).unlink(missing_ok=True)
    return members.issue(setup.job, str(identity.spiffe), (now, now + TRUST_LIFETIME), agent)


def default_run_dir(now: datetime, root: Path = Path("runs")) -> Path:
    """A new name below `root`: the time in UTC and four random bytes."""
    return root / f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def node_name(hostname: str = "") -> str:
    """This node's name in certificates: the host's name, as far as SPIFFE allows its characters."""
    name = hostname or socket.gethostname()
    safe = "".join(ch if SEGMENT.fullmatch(ch) else "-" for ch in name)[:64]
    return safe or "node"


WRITERS: Final = {
    TrustRole.LEDGER_COORDINATOR: "coordinator",
    TrustRole.LEDGER_LAUNCHER: "agent",
    TrustRole.LEDGER_RANK: "trainer",
    TrustRole.LEDGER_WORKER: "worker",
}
"""Which key writes as which role."""


def _foreign_content(root: Path) -> str:
    """Say what shows that a directory is no run's; empty for one of ours, whole or cut short."""
    run = RunDir(root)
    if any(path.exists() for path in (run.trust, run.resolved_policy)):
        return ""
    names = sorted(path.name for path in root.iterdir() if path.name not in FROM_PEOPLE)
    if not names:
        return ""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"it holds other files ({names[0]}{more}) and is no run directory"


def node_of(options: RunOptions, settings: Mapping[str, Any], now: datetime) -> str:
    """This node's name in its job: where it joins one, that of its certificate.

    Args:
        options: The command line.
        settings: The value of ``--rdzv-conf``.
        now: The time.

    Raises:
        UsageError: ST-USAG-001 without an identity.
        SecureTrainError: As `load_identity`.
    """
    if not options.joins:
        return node_name()
    if not (folder := settings.get("identity")):
        raise UsageError(
            "ST-USAG-001",
            "no identity was given",
            "--rdzv-conf",
            "give --rdzv-conf identity=DIR, the folder that 'securetrain enroll join' wrote",
        )
    return str(load_identity(Path(str(folder)), now).spiffe.node)


def _create(
    run: RunDir,
    policy: LoadedPolicy,
    policy_name: str,
    now: datetime,
    witness: Callable[[], PublicKey] | None,
) -> None:
    leftovers = [path for path in (run.keys, run.resolved_policy) if path.exists()]
    if leftovers:
        raise UsageError(
            "ST-USAG-005",
            "its setup was cut short: there is no trust root",
            str(leftovers[0]),
            "choose another --run-dir, or remove this one",
        )
    keys = {  # first of all: where there is no ML-DSA, nothing is left behind
        name: PrivateKey.generate_pair() if name in PAIRS else PrivateKey.generate()
        for name in (*KEYS, *OWN_KEYS)
    }
    write_atomic(run.policy, _as_given(policy_name))
    write_atomic(run.resolved_policy, canonical.encode(policy.policy))
    for folder in (run.keys, run.certs, run.logs):
        make_private_dir(folder)
    for name, key in keys.items():
        key.save(run.key(name))
    PrivateKey.generate(KeyKind.P256).save(run.key(NODE_KEY))
    roles = {
        TrustRole.CHECKPOINT: [keys["checkpoint"].public],
        TrustRole.DATASET: [keys["dataset"].public],
        TrustRole.LEDGER: [keys[name].public for name in WRITERS.values()],
        **{role: [keys[name].public] for role, name in WRITERS.items()},
        TrustRole.NODE: [keys["agent"].public],
    }
    until = now + TRUST_LIFETIME
    root = sign_root(roles, keys["root"], now, until, both=PAIRS.values())
    asked = policy.policy.checkpoint.log
    if asked is not None:
        origin = f"{policy.policy.identity.trust_domain}/job-{keys['root'].key_id[:16]}"
        root = _with_log(root, keys["root"], asked, _log_keys(run, asked, origin, witness))
    write_atomic(run.trust, root)


@dataclass(frozen=True, slots=True)
class _LogKeys:
    """A log and who watches it."""

    origin: str
    keys: list[PublicKey]
    witnesses: list[PublicKey]


def _log_keys(
    run: RunDir,
    asked: TransparencyLog,
    origin: str,
    witness: Callable[[], PublicKey] | None,
) -> _LogKeys:
    """The log keys that the policy names; those that it does not name are made (rule 5)."""
    watchers = [_public(key) for key in asked.witnesses]
    if not watchers and witness is None:
        raise UsageError(
            "ST-USAG-001",
            "the policy names no witnesses of the log, and nobody says which machine this is",
            "policy: checkpoint.log.witnesses",
            "make the run with securetrain run, or name the witnesses",
        )
    if not watchers and witness is not None:
        watchers = [witness()]
    if asked.keys:
        return _LogKeys(asked.origin, [_public(key) for key in asked.keys], watchers)
    key = PrivateKey.generate()
    key.save(run.key(LOG_KEY))
    Log.create(run.log, origin, key)
    return _LogKeys(origin, [key.public], watchers)


def _public(spki: str) -> PublicKey:
    try:
        return PublicKey.from_spki(base64.b64decode(spki, validate=True))
    except ValueError as error:
        raise IdentityError(
            "ST-IDEN-001", f"bad base64: {error}", "checkpoint.log", "correct the key in the policy"
        ) from error


def _with_log(root: bytes, key: PrivateKey, asked: TransparencyLog, log: _LogKeys) -> bytes:
    """The trust root, with the log and its witnesses in it."""
    document = decode_unverified(root)
    roles = {
        **document.roles,
        TrustRole.LOG: RoleKeys([one.key_id for one in log.keys]),
        TrustRole.WITNESS: RoleKeys([one.key_id for one in log.witnesses], asked.quorum),
    }
    changed = msgspec.structs.replace(
        document,
        keys={**document.keys, **key_table([*log.keys, *log.witnesses])},
        roles=roles,
        log_origin=log.origin,
    )
    return sign_document(changed, [key])


def _check(run: RunDir, policy: LoadedPolicy, now: datetime) -> None:
    trust = TrustRoot.load(run.trust, now)
    launchers = trust.keys_for(TrustRole.LEDGER_LAUNCHER).keys()
    shares = launchers == trust.keys_for(TrustRole.LEDGER_COORDINATOR).keys()
    names = (*KEYS, NODE_KEY) if shares else (*KEYS, NODE_KEY, *OWN_KEYS)
    missing = [p for p in (*map(run.key, names), run.resolved_policy) if not p.exists()]
    if missing:
        raise UsageError("ST-USAG-005", "missing from this run directory", str(missing[0]))
    stored = read_file(run.resolved_policy, FILE_LIMIT)
    if stored != canonical.encode(policy.policy):
        raise PolicyError(
            "ST-PLCY-005",
            f"the policy {policy.policy.metadata.id} is not the one that this run was made under",
            str(run.resolved_policy),
            f"use --policy {run.policy}, or another --run-dir",
        )


def _as_given(policy_name: str) -> bytes:
    path = (
        bundled_dir("policies") / f"{policy_name}.yaml"
        if policy_name in SHIPPED
        else Path(policy_name)
    )
    return read_file(path, FILE_LIMIT)


def agent_ledger(
    setup: RunSetup, clock: Callable[[], datetime], state: NodeState | None = None
) -> Ledger:
    """The run's ledger, begun, signed with the agent's key; `state` remembers its end.

    Raises:
        IntegrityError: ST-LEDG-004 or 005, see `Ledger.begin`.
    """
    key = PrivateKey.load(key_file(setup.run, WriterRole.LAUNCHER))
    kept = None if state is None else state.ledger(setup.job)
    ledger = Ledger(setup.run.ledger, key, "agent", clock, kept)
    return ledger.begin(setup.job, TrustRoot.load(setup.run.trust, clock()), setup.policy.digest)


def coordinator_ledger(setup: RunSetup, ledger: Ledger) -> Ledger:
    """The same, of the launcher's own coordinator."""
    return ledger.by(PrivateKey.load(key_file(setup.run, WriterRole.COORDINATOR)), "coordinator")
