# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Load a policy: safe YAML, strict schema, ``extends`` resolved.

Rules, in order:

1. a file is at most 256 KiB, and one YAML document of the safe subset: no tags, anchors or aliases,
   no duplicate keys;
2. ``extends`` names a shipped policy (dev, baseline, hardened) or a file beside this one; chains
   are at most 8 long and may not loop;
3. a child's fields replace its parent's one by one; lists are replaced whole;
4. the result must match the schema, unknown keys included; contradictions are errors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.core import canonical
from securetrain.core.errors import PolicyError, UsageError
from securetrain.core.files import read_file
from securetrain.core.vocabulary import NodeTier
from securetrain.policy.schema import API_VERSION, FabricTrust, GuardMode, Policy, TransparencyLog

FILE_LIMIT: Final = 256 << 10
MAX_CHAIN: Final = 8
KIND: Final = "Policy"
SHIPPED: Final = ("dev", "baseline", "hardened")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """A policy and where each of its values came from."""

    policy: Policy
    digest: str
    """SHA-256 of the canonical resolved policy: what statements name."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """'section.field', dotted below that too, to the file that set it; absent for defaults."""


def load_policy(name_or_path: str) -> LoadedPolicy:
    """Load a shipped policy by name or a policy file by path.

    Raises:
        PolicyError: ST-PLCY-001 to 004, naming the file and the field.
    """
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for where, layer in _chain(name_or_path):
        _merge(merged, layer, sources, where)
    policy = _convert(merged, sources, name_or_path)
    _check(policy, name_or_path)
    return LoadedPolicy(policy=policy, digest=digest_of(policy), sources=sources)


def with_guard(loaded: LoadedPolicy) -> LoadedPolicy:
    """The policy with gradients watched, and its digest; the same one when they are."""
    if loaded.policy.gradients.mode is not GuardMode.OFF:
        return loaded
    gradients = msgspec.structs.replace(loaded.policy.gradients, mode=GuardMode.DETECT)
    policy = msgspec.structs.replace(loaded.policy, gradients=gradients)
    sources = {**loaded.sources, "gradients.mode": "--guard"}
    return LoadedPolicy(policy=policy, digest=digest_of(policy), sources=sources)


def with_saves(loaded: LoadedPolicy, *, sign: bool, verify: bool) -> LoadedPolicy:
    """The policy with a script's saves signed, or its loads verified, and its digest."""
    flags = {"sign_saves": ("--sign-checkpoints", sign)}
    flags["verify_loads"] = ("--verify-checkpoints", verify)
    asked = loaded.policy.checkpoint
    new = {name: flag for name, (flag, on) in flags.items() if on and not getattr(asked, name)}
    if not new:
        return loaded
    checkpoint = msgspec.structs.replace(asked, **dict.fromkeys(new, True))
    policy = msgspec.structs.replace(loaded.policy, checkpoint=checkpoint)
    sources = {**loaded.sources, **{f"checkpoint.{name}": flag for name, flag in new.items()}}
    return LoadedPolicy(policy=policy, digest=digest_of(policy), sources=sources)


def load_resolved(path: Path) -> LoadedPolicy:
    """Read the resolved policy that a run directory keeps (`RunDir.resolved_policy`).

    Raises:
        PolicyError: ST-PLCY-002.
    """
    try:
        policy = canonical.decode(read_file(path, FILE_LIMIT), Policy, where=str(path))
    except UsageError as error:
        raise PolicyError("ST-PLCY-002", error.what, str(path), "start the run again") from error
    _check(policy, str(path))
    return LoadedPolicy(policy=policy, digest=digest_of(policy))


def digest_of(policy: Policy) -> str:
    """SHA-256 (hex) of the canonical form of a resolved policy."""
    import hashlib  # noqa: PLC0415 - one use

    return hashlib.sha256(canonical.encode(policy)).hexdigest()


def bundled_dir(kind: str) -> Path:
    """The folder of shipped policies or threat models (`kind`): in the wheel or the repository."""
    from importlib.resources import files  # noqa: PLC0415 - few verifiers have a policy

    in_wheel = Path(str(files("securetrain"))) / "_bundled" / kind
    return in_wheel if in_wheel.is_dir() else Path(str(files("securetrain"))).parent / kind


def parse_yaml(text: str, where: str) -> Any:
    """Parse one document of the safe YAML subset (also used for checks and threat models).

    Raises:
        PolicyError: ST-PLCY-001 with the line.
    """
    import yaml  # noqa: PLC0415 - who verifies without a policy parses none

    try:
        loader = _strict_loader()
        for event in yaml.parse(text, Loader=loader):  # before anything is built from the document
            mark: Any = event.start_mark
            for of, unsafe in (("anchor", "anchors and aliases"), ("tag", "tags")):
                if getattr(event, of, None):  # an alias has an anchor, too
                    what = f"{unsafe} are not allowed"
                    raise yaml.composer.ComposerError(None, None, what, mark)
        return yaml.load(text, Loader=loader)  # noqa: S506 - a subclass of a safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        last = text.count("\n") + (not text.endswith("\n"))
        line = f"{where}:{min(mark.line + 1, last)}" if mark else where
        what = str(getattr(error, "problem", None) or error)
        raise PolicyError("ST-PLCY-001", what, line) from error
    except (RecursionError, ValueError) as error:
        raise PolicyError("ST-PLCY-001", str(error), where, "simplify the file") from error


@cache
def _strict_loader() -> Any:
    """A safe loader without duplicate keys."""
    import yaml  # noqa: PLC0415 - see parse_yaml

    # libyaml's parser, where PyYAML has it, is ten times faster; the constructors are the same.
    class Strict(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
            seen = set()
            for key_node, _ in node.value:
                key = key_node.value
                if not isinstance(key_node, yaml.ScalarNode) or key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"duplicate or complex key {key!r}", key_node.start_mark
                    )
                seen.add(key)
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            return mapping

    return Strict


def _chain(name_or_path: str) -> list[tuple[str, dict[str, Any]]]:
    """The layers from the furthest ancestor to the policy itself."""
    layers: list[tuple[str, dict[str, Any]]] = []
    seen: list[Path] = []
    beside = Path.cwd()
    reference: Any = name_or_path
    while reference is not None:
        path = _locate(reference, beside, layers[-1][0] if layers else "")
        if path in seen or len(seen) == MAX_CHAIN:
            raise PolicyError(
                "ST-PLCY-003",
                f"extends loops or is longer than {MAX_CHAIN}",
                str(path),
                "cut the chain",
            )
        seen.append(path)
        try:
            document = parse_yaml(read_file(path, FILE_LIMIT).decode("utf-8"), str(path))
        except UnicodeDecodeError as error:
            raise PolicyError("ST-PLCY-001", "not UTF-8", str(path), "save it as UTF-8") from error
        if not isinstance(document, dict):
            raise PolicyError(
                "ST-PLCY-001", "not a mapping", str(path), "start from policies/baseline.yaml"
            )
        reference = document.pop("extends", None)
        beside = path.parent
        layers.append((str(path), document))
    layers.reverse()
    return layers


def _locate(reference: Any, beside: Path, where: str) -> Path:
    if not isinstance(reference, str):
        raise PolicyError("ST-PLCY-002", "extends is not a string", where, "name one policy")
    if reference in SHIPPED:
        return bundled_dir("policies") / f"{reference}.yaml"
    try:
        path = (beside / reference).resolve()
        found = path.is_file()
    except (OSError, ValueError):  # a name too long for any file, or with a NUL in it
        path, found = beside, False
    if not found:
        raise PolicyError(
            "ST-PLCY-003",
            f"there is no policy {reference!r}",
            where or str(path),
            f"name a file or one of {', '.join(SHIPPED)}",
        )
    return path


def _merge(
    merged: dict[str, Any],
    layer: dict[str, Any],
    sources: dict[str, str],
    where: str,
    prefix: str = "",
) -> None:
    for key, value in layer.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and key != "metadata":
            if not isinstance(merged.get(str(key)), dict):
                merged[str(key)] = {}
            if not value:
                sources[name] = where
            _merge(merged[str(key)], value, sources, where, f"{name}.")
        else:
            merged[str(key)] = value
            sources[name] = where


def _convert(merged: dict[str, Any], sources: Mapping[str, str], name: str) -> Policy:
    try:
        policy = msgspec.convert(merged, Policy, strict=True)
    except msgspec.ValidationError as error:
        text = str(error)
        field_path = text.partition("`$.")[2].rstrip("`")
        file = next((sources[k] for k in (field_path, *_parents(field_path)) if k in sources), name)
        raise PolicyError(
            "ST-PLCY-002",
            text.split(" - at", maxsplit=1)[0],
            f"{file}: {field_path or 'top level'}",
        ) from error
    if policy.apiVersion != API_VERSION or policy.kind != KIND:
        raise PolicyError(
            "ST-PLCY-002",
            f"apiVersion {policy.apiVersion!r}, kind {policy.kind!r}",
            f"{name}: apiVersion",
            f"apiVersion: {API_VERSION} and kind: {KIND}",
        )
    return policy


def _parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]


def _check(policy: Policy, where: str) -> None:
    """Contradictions that the types cannot express."""
    if policy.node.min_tier <= NodeTier.SELF_ASSERTED and policy.node.allow_self_asserted is None:
        raise PolicyError(
            "ST-PLCY-004",
            f"node.min_tier is {policy.node.min_tier}, without allow_self_asserted",
            f"{where}: node.allow_self_asserted",
            "add max_nodes and a reason, or raise min_tier",
        )
    if (
        policy.node.allow_self_asserted is not None
        and not policy.node.allow_self_asserted.reason.strip()
    ):
        raise PolicyError(
            "ST-PLCY-004",
            "an exception without a reason",
            f"{where}: node.allow_self_asserted.reason",
            "give a reason",
        )
    if policy.node.tpm.secure_boot and not policy.node.tpm.event_log:
        raise PolicyError(
            "ST-PLCY-004",
            "Secure Boot can only be told from the firmware's log, which is not asked for",
            f"{where}: node.tpm.event_log",
            "set node.tpm.event_log: true, or node.tpm.secure_boot: false",
        )
    if policy.checkpoint.require_clean_verdict and policy.gradients.mode is GuardMode.OFF:
        raise PolicyError(
            "ST-PLCY-004",
            "checkpoints need a clean gradient verdict, but the guard is off",
            f"{where}: gradients.mode",
            "set gradients.mode: detect, or checkpoint.require_clean_verdict: false",
        )
    _check_network(policy, where)
    if policy.checkpoint.log is not None:
        _check_log(policy.checkpoint.log, f"{where}: checkpoint.log")


def _check_log(log: TransparencyLog, where: str) -> None:
    """A log that somebody else keeps has a name and keys, and its quorum can be reached."""
    if bool(log.origin) is not bool(log.keys):
        raise PolicyError(
            "ST-PLCY-004",
            "a log with a name and no key" if log.origin else "a log with keys and no name",
            f"{where}.{'keys' if log.origin else 'origin'}",
            "give both, or neither: then the run makes a log of its own",
        )
    for name, keys in (("keys", log.keys), ("witnesses", log.witnesses)):
        if len(set(keys)) != len(keys):
            raise PolicyError(
                "ST-PLCY-004", "a key stands in it twice", f"{where}.{name}", "name each once"
            )
    if set(log.keys) & set(log.witnesses):
        raise PolicyError(
            "ST-PLCY-004",
            "the log is a witness of itself",
            f"{where}.witnesses",
            "name the keys of other machines",
        )
    if log.quorum > max(1, len(log.witnesses)):
        raise PolicyError(
            "ST-PLCY-004",
            f"{log.quorum} witnesses must have cosigned, and {max(1, len(log.witnesses))} could",
            f"{where}.quorum",
            "name as many witnesses, or lower the quorum",
        )


def _check_network(policy: Policy, where: str) -> None:
    """A fabric in the clear is named twice, has a reason, and its reductions are checked."""
    network = policy.network
    if not network.require:
        raise PolicyError(
            "ST-PLCY-004",
            "no network profile",
            f"{where}: network.require",
            "name a network profile",
        )
    in_clear = [profile for profile in network.require if profile.degraded]
    wanted = bool(in_clear)
    named = network.fabric is FabricTrust.TRUSTED_PLAINTEXT
    if wanted is not named:
        raise PolicyError(
            "ST-PLCY-004",
            f"{in_clear[0]} sends gradients in the clear, which network.fabric does not say"
            if wanted
            else "a fabric in the clear is trusted, and no profile uses one",
            f"{where}: network.fabric",
            "name rdma-trusted or store-tls in network.require and fabric: trusted-plaintext, or"
            " neither",
        )
    if named is not (network.isolation is not None and bool(network.isolation.statement.strip())):
        raise PolicyError(
            "ST-PLCY-004",
            "a fabric in the clear without a word on its other users"
            if named
            else "an isolation statement without a fabric in the clear, or without words",
            f"{where}: network.isolation.statement",
            "say how the fabric is kept from others: a partition, a VLAN, its own switches",
        )
    if named and policy.gradients.mode is GuardMode.OFF:
        raise PolicyError(
            "ST-PLCY-004",
            "only the guard sees changes on a fabric in the clear, and it is off",
            f"{where}: gradients.mode",
            "set gradients.mode: detect, or use another network profile",
        )


__all__ = [
    "LoadedPolicy",
    "bundled_dir",
    "digest_of",
    "load_policy",
    "load_resolved",
    "parse_yaml",
]
