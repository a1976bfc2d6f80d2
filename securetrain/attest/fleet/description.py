# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Evidence in words: what a bundle says, and what a verdict has proven.

Rules:

1. `describe` judges nothing and believes nothing: it is what a person reads before vouching for a
   node. Nothing in it may be shown without saying so (`Section.label`);
2. a part that cannot be read becomes a fact with the code of its refusal, beside all others;
3. `describe_verdict` says what verified, and beside it what stays open.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from securetrain.attest.fleet.bundle import Bundle, Verdict, node_key
from securetrain.attest.fleet.describe_hardware import describe_devices, describe_tee
from securetrain.attest.fleet.describe_tpm import describe_keys, describe_tpm
from securetrain.attest.fleet.sections import Fact, Section, Table, refused, tried, yes
from securetrain.core.errors import AttestationError, SecureTrainError
from securetrain.core.vocabulary import UNATTESTED
from securetrain.evidence import (
    AFFIRMING,
    NODE_TYPE,
    SELF_ASSERTED_TYPE,
    NodeEvidence,
    SoftwareEvidence,
    Submodule,
    parse,
    parse_node,
    parse_software,
    unbundle,
)

_TITLES: Final = {
    "self-report": "What the node says of itself",
    "tpm": "TPM",
    "sev-snp": "AMD SEV-SNP",
    "tdx": "Intel TDX",
}
_UNVERIFIED: Final = "not verified"


def describe(bundle: Bundle) -> tuple[Section, ...]:
    """Describe a bundle, unjudged."""
    try:
        node = parse_bundle(bundle)
    except SecureTrainError as error:
        unread = Section(name="evidence", title="Evidence", facts=(refused("evidence", error),))
        return (_bundle(bundle, None), unread, *_keys(bundle))
    sections = [_bundle(bundle, node), _self_report(node.manifest)]
    if node.tpm is not None:
        sections += describe_tpm(node.tpm, bundle.binding, bundle.keys)
    else:
        sections += _keys(bundle)
    if node.tee is not None:
        sections += describe_tee(node.tee, bundle.binding)
    if node.devices:
        sections.append(describe_devices(node.devices, bundle.binding, bundle.collected))
    if node.tokens:
        sections.append(_tokens(node.tokens))
    return tuple(sections)


def describe_verdict(verdict: Verdict) -> tuple[Section, ...]:
    """Describe what was proven, environment by environment, and what stays open."""
    result = verdict.result
    facts = (
        Fact("tier", str(result.tier)),
        Fact("node key", result.key_id),
        Fact("judged", result.issued.isoformat(timespec="seconds")),
        Fact("evidence", result.evidence),
        Fact("policy", result.policy),
        Fact("reference", result.reference_values or "no reference values"),
    )
    left = Section(name="open", title="Not proven", facts=tuple(map(_open_fact, verdict.open)))
    proven = Section(name="result", title="Result", facts=facts)
    submodules = (_submodule(name, one) for name, one in sorted(result.submods.items()))
    return (*((left,) if verdict.open else ()), proven, *submodules)


def _bundle(bundle: Bundle, node: NodeEvidence | None) -> Section:
    def key() -> Iterator[Fact]:
        yield Fact("node key", node_key(bundle).key_id)

    asked = "by a verifier"
    if bundle.asked_itself:
        asked = "by nobody: the node asked itself"
    elif bundle.question.credential is None:
        asked = "by a verifier, without a credential for the TPM"
    facts = (
        Fact("node", bundle.node),
        *tried("node key", key),
        Fact("collected", bundle.collected.isoformat(timespec="seconds")),
        Fact("asked", asked),
        Fact("speaks", speakers(node) if node is not None else "nothing that can be read"),
        Fact("size", f"{len(bundle.body):,} bytes"),
    )
    return Section(name="node", title="Bundle", label=_UNVERIFIED, facts=facts)


def speakers(node: NodeEvidence) -> str:
    """Name the environments that speak for the node, by what is there."""
    parts = (
        "TPM" if node.tpm is not None else "",
        str(node.tee.kind) if node.tee is not None else "",
        f"{len(node.devices)} devices" if node.devices else "",
        f"{len(node.tokens)} tokens" if node.tokens else "",
    )
    return ", ".join(filter(None, parts)) or f"only the node itself: {UNATTESTED}"


def parse_bundle(bundle: Bundle) -> NodeEvidence:
    """The evidence in a bundle; of a self-report, the manifest alone.

    Raises:
        AttestationError: ST-ATTS-001 or 006.
    """
    if bundle.media_type == SELF_ASSERTED_TYPE:
        return NodeEvidence(manifest=bundle.body)
    if bundle.media_type != NODE_TYPE:
        raise AttestationError("ST-ATTS-006", f"evidence of type {bundle.media_type!r}")
    return parse_node(bundle.body)


def _keys(bundle: Bundle) -> tuple[Section, ...]:
    """A TPM's keys without its evidence."""
    if bundle.keys is None:
        return ()
    return (Section(name="tpm", title="TPM", facts=tuple(describe_keys(bundle.keys))),)


def _self_report(manifest: bytes) -> Section:
    name, title = "self-report", _TITLES["self-report"]
    try:
        facts = tuple(_software(parse_software(manifest)))
    except SecureTrainError as error:
        return Section(name=name, title=title, facts=(refused("self-report", error),))
    return Section(name=name, title=title, label=UNATTESTED, facts=facts)


def _software(said: SoftwareEvidence) -> Iterator[Fact]:
    kernel, hardware, software = said.kernel, said.hardware, said.software
    yield Fact("kernel", f"{kernel.release} ({kernel.machine})")
    yield Fact("command line", kernel.command_line or "unknown")
    yield Fact("lockdown", kernel.lockdown or "unknown")
    yield Fact("tainted", kernel.tainted or "unknown")
    yield Fact("module signatures", kernel.module_signatures_enforced or "unknown")
    yield Fact("machine", f"{hardware.vendor} {hardware.product}".strip() or "unknown")
    yield Fact("firmware", hardware.firmware or "unknown")
    yield Fact("processor", f"{hardware.num_cpus} x {hardware.cpu_model or 'unknown'}")
    yield Fact("memory", f"{hardware.memory_bytes / 2**30:.1f} GiB")
    yield Fact("GPUs", ", ".join(hardware.gpus) or "none")
    yield Fact("TPM device", yes(hardware.tpm_device))
    yield Fact("Python", f"{software.python}, SHA-256 {software.executable_sha256 or 'unknown'}")
    packages = (f"{name} {version}" for name, version in sorted(software.packages.items()))
    yield Fact("packages", ", ".join(packages))
    for name, value in sorted(software.loader_variables.items()):
        yield Fact(name, value)
    if said.missing:
        yield Fact("could not be read", ", ".join(said.missing))


def _tokens(tokens: tuple[str, ...]) -> Section:
    facts: list[Fact] = []
    for number, token in enumerate(tokens):
        where = f"token {number}"
        facts += tried(where, partial(_token, token, where))
    return Section(
        name="tokens", title="Tokens of other issuers", label=_UNVERIFIED, facts=tuple(facts)
    )


def _token(text: str, where: str) -> Iterator[Fact]:
    bundled = text.startswith("[")
    overall, detached = unbundle(text, where) if bundled else (text, {})
    token = parse(overall, where)
    yield Fact(where, f"issuer {token.payload.get('iss', 'not named')}")
    yield Fact("algorithm", token.header.alg)
    for name, claim in (("issued", "iat"), ("expires", "exp")):
        yield Fact(name, _moment(token.payload.get(claim)))
    for claim in ("eat_profile", "x-ms-attestation-type", "hwmodel"):
        if claim in token.payload:
            yield Fact(claim, str(token.payload[claim])[:200])
    if detached:
        yield Fact("devices", ", ".join(sorted(detached)))


def _moment(value: Any) -> str:
    """A NumericDate of a token that nobody has verified."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "not said"
    try:
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return "not a time"


def _submodule(name: str, submodule: Submodule) -> Section:
    facts = tuple(
        Fact(claim.replace("_", " "), _shown(value)) for claim, value in submodule.claims.items()
    )
    label = UNATTESTED if name == "self-report" else ""
    return Section(
        name=name,
        title=_TITLES.get(name, name),
        label=label,
        facts=facts,
        table=_vector(submodule.trust_vector),
    )


def _vector(vector: Mapping[str, int]) -> Table:
    rows = tuple(
        (claim, "affirmed" if value == AFFIRMING else "nothing claimed")
        for claim, value in vector.items()
    )
    return Table(("trust claim", "what is proven"), rows)


def _shown(value: str | int | bool) -> str:  # noqa: FBT001 - a value to be shown
    if isinstance(value, bool):
        return yes(value)
    return str(value) or "-"


def _open_fact(text: str) -> Fact:
    """``name: why`` as a fact."""
    name, _, why = text.partition(": ")
    return Fact(name, why)
