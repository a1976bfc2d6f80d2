# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Confidential VMs with a paravisor (Azure): the CPU vouches for a virtual TPM's key.

In such a VM the CPU's report is asked for by a paravisor, at the highest privilege level, before
the guest starts. The guest cannot put anything into it. What it carries is the hash of the
paravisor's runtime data: keys of the virtual TPM that the paravisor runs, and how the VM is
configured. So the chain is::

    CPU maker -> report -> REPORT_DATA = SHA-256(runtime data) -> HCLAkPub -> quote with our binding

Rules:

1. runtime data count by their hash in a report that the maker's root vouches for, never before;
2. the report is of privilege level 0, and its measurement is one of `measurements`: those are
   paravisors. A guest without one writes its own REPORT_DATA and could claim any key. So an
   accepted guest is no accepted paravisor, and the other way round;
3. the runtime data hold one key `HCLAkPub`: RSA of 2048 bits or more. It is the paravisor's word
   that this is an attestation key of its TPM; where it stands in the TPM's hierarchies cannot be
   seen, and the measured paravisor is what makes sure of it;
4. the VM has a virtual TPM, and a console only where the reference allows one. It is the VM that is
   enrolled for the node, unless the reference accepts every VM;
5. freshness comes from the quote alone: report and runtime data are as old as the boot. The boot
   itself is judged by the quote, as any TPM's (`tpm_appraiser`).

Sources: Microsoft, "Azure confidential VMs guest attestation design" (HCL report, runtime claims);
openhcl (microsoft/openvmm), openhcl_attestation_protocol, igvm_attest; RFC 7517 and 7518.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.core.errors import AttestationError
from securetrain.evidence.reader import Reader
from securetrain.evidence.tee.snp_report import REPORT_SIZE
from securetrain.evidence.tee.snp_rules import Hex48
from securetrain.evidence.tpm.constants import Algorithm, Attributes, Hash
from securetrain.evidence.tpm.structures import RSA_BITS, PublicArea, RsaKey, Scheme

MALFORMED: Final = "ST-ATTS-440"
REFUSED: Final = "ST-ATTS-441"
HCL_LIMIT: Final = 16 << 10
RUNTIME_LIMIT: Final = 8 << 10
_MAGIC: Final = b"HCLA"
_HEADER: Final = 32
_DATA_HEADER: Final = 20
_SHA256: Final = 1
_KINDS: Final = {2: "sev-snp", 4: "tdx"}
_AK: Final = "HCLAkPub"
_EXPONENT: Final = b"\x01\x00\x01"
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")
_VM_ID: Final = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_AK_ATTRIBUTES: Final = Attributes.RESTRICTED | Attributes.SIGN


class ParavisorReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Reference values of VMs with a paravisor. Beside these, `snp` and `tdx` judge the report."""

    measurements: Annotated[tuple[Hex48, ...], Meta(max_length=1024)] = ()
    """Measurements of accepted paravisors: MEASUREMENT (SEV-SNP) or MRTD (TDX)."""
    any_vm: bool = False
    """Accept VMs that are not enrolled for their node, for clouds in which they come and go."""
    allow_console: bool = False
    """Accept a VM with a serial console: its operator can reach a boot menu or a login."""


class _Key(msgspec.Struct, frozen=True):
    kid: Annotated[str, Meta(max_length=256)]
    kty: Annotated[str, Meta(max_length=16)]
    n: str = ""
    e: str = ""


class _Configuration(msgspec.Struct, frozen=True):
    console: bool = msgspec.field(name="console-enabled")
    secure_boot: bool = msgspec.field(name="secure-boot")
    tpm: bool = msgspec.field(name="tpm-enabled")
    vm: str = msgspec.field(name="vmUniqueId")


class _Runtime(msgspec.Struct, frozen=True):
    keys: Annotated[tuple[_Key, ...], Meta(max_length=8)]
    configuration: _Configuration = msgspec.field(name="vm-configuration")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeData:
    """The paravisor's word: worth what the report over it is worth."""

    ak: PublicArea
    """The virtual TPM's attestation key."""
    ak_name: str
    """SHA-256 of its modulus, hex: for people and the ledger."""
    vm: str
    """The VM's id, in lower case."""
    console: bool
    secure_boot: bool
    tpm: bool

    @property
    def identity(self) -> str:
        """The VM, as leases and revocations name it."""
        return f"vm:{self.vm}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HclReport:
    """The paravisor's report, as the VM reads it from NV index 0x01400001."""

    kind: str
    """``sev-snp`` or ``tdx``."""
    report: bytes
    """The CPU's report in its space of 1184 bytes: SEV-SNP's whole, TDX's TDREPORT first."""
    runtime_data: bytes


def parse_hcl_report(data: bytes) -> HclReport:
    """Read a paravisor's report.

    Raises:
        AttestationError: ST-ATTS-440.
    """
    reader = Reader(data, MALFORMED, "HCL report", "little")
    if len(data) > HCL_LIMIT:
        raise reader.bad(f"{len(data)} bytes, the limit is {HCL_LIMIT}")
    if reader.take(4) != _MAGIC:
        raise reader.bad("it does not begin with HCLA")
    version, size = reader.u32(), reader.u32()
    if version not in {1, 2}:
        raise reader.bad(f"version {version}, this reader knows 1 and 2")
    reader.take(_HEADER - 12)
    report = reader.take(REPORT_SIZE)
    data_size, data_version, kind = reader.u32(), reader.u32(), reader.u32()
    digest, runtime_size = reader.u32(), reader.u32()
    if data_version != 1 or digest != _SHA256:
        raise reader.bad(f"runtime data of version {data_version} with hash {digest}, 1 are known")
    if kind not in _KINDS:
        raise reader.bad(f"a report of kind {kind}, {sorted(_KINDS)} are known")
    total = _HEADER + REPORT_SIZE + data_size
    if data_size != _DATA_HEADER + runtime_size or size != total:
        raise reader.bad(f"sizes {size}, {data_size} and {runtime_size} contradict each other")
    if runtime_size > RUNTIME_LIMIT:
        raise reader.bad(f"runtime data of {runtime_size} bytes, the limit is {RUNTIME_LIMIT}")
    runtime = reader.take(runtime_size)
    if any(reader.rest()):
        raise reader.bad("something follows the runtime data")
    return HclReport(kind=_KINDS[kind], report=report, runtime_data=runtime)


def vouched_data(runtime_data: bytes) -> bytes:
    """The REPORT_DATA of a report that vouches for runtime data: 64 bytes."""
    return hashlib.sha256(runtime_data).digest().ljust(64, b"\0")


def parse_runtime_data(data: bytes) -> RuntimeData:
    """Read runtime data. Nothing in them is true before a report vouched for their hash.

    Raises:
        AttestationError: ST-ATTS-440.
    """
    if len(data) > RUNTIME_LIMIT:
        raise _bad(f"{len(data)} bytes, the limit is {RUNTIME_LIMIT}")
    try:
        _refuse_duplicates(data)
        runtime = msgspec.json.decode(data, type=_Runtime, strict=True)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _bad(str(error)[:300]) from error
    keys = [key for key in runtime.keys if key.kid == _AK]
    if len(keys) != 1 or keys[0].kty != "RSA":
        raise _bad(f"{len(keys)} keys {_AK}, expected one of kind RSA")
    modulus, exponent = _number(keys[0].n), _number(keys[0].e)
    if exponent != _EXPONENT or len(modulus) * 8 not in RSA_BITS or not modulus[0] & 0x80:
        raise _bad(f"{_AK} is no RSA key of 2048 to 4096 bits with exponent 65537")
    configuration = runtime.configuration
    if not _VM_ID.fullmatch(configuration.vm):
        raise _bad(f"the VM's id is {configuration.vm[:64]!r}")
    ak = PublicArea(
        name_alg=Hash.SHA256,
        attributes=_AK_ATTRIBUTES,
        scheme=Scheme(Algorithm.RSASSA, Hash.SHA256),
        unique=RsaKey(bits=len(modulus) * 8, modulus=modulus),
    )
    ak.key()
    return RuntimeData(
        ak=ak,
        ak_name=hashlib.sha256(modulus).hexdigest(),
        vm=configuration.vm.lower(),
        console=configuration.console,
        secure_boot=configuration.secure_boot,
        tpm=configuration.tpm,
    )


def judge_vm(
    runtime: RuntimeData,
    reference: ParavisorReference,
    *,
    enrolled: Collection[str],
    secure_boot: bool,
    node: str,
) -> None:
    """Judge a VM that a report has vouched for.

    Args:
        runtime: the paravisor's word.
        reference: what is accepted.
        enrolled: ids of VMs that are enrolled for the node.
        secure_boot: whether the policy asks for Secure Boot.
        node: the node's name.

    Raises:
        AttestationError: ST-ATTS-012 for another VM, ST-ATTS-441 for its configuration.
    """
    if runtime.vm not in enrolled and (enrolled or not reference.any_vm):
        others = ", ".join(enrolled) or "none that is enrolled"
        raise AttestationError(
            "ST-ATTS-012",
            f"the VM is {runtime.vm}, the node has {others}",
            f"node {node}: vms",
            "enroll the VM for this node, or accept every VM (paravisor.any_vm)",
        )
    if not runtime.tpm:
        raise _refused("tpm-enabled", "the VM has no virtual TPM")
    if secure_boot and not runtime.secure_boot:
        raise _refused("secure-boot", "Secure Boot is off, the policy asks for it")
    if runtime.console and not reference.allow_console:
        raise _refused("console-enabled", "the VM has a console, the reference allows none")


def _refuse_duplicates(data: bytes) -> None:
    """Two readers must not see two keys in one text."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name comes twice in an object")
        return found

    json.loads(data, object_pairs_hook=once)


def _number(text: str) -> bytes:
    if not _BASE64URL.fullmatch(text):
        return b""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return b""


def _bad(what: str) -> AttestationError:
    return AttestationError(MALFORMED, what, "paravisor, runtime data")


def _refused(field: str, what: str) -> AttestationError:
    return AttestationError(REFUSED, what, f"paravisor, {field}")
