# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A paravisor of our own: its report, its runtime data, and the key of its virtual TPM."""

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from securetrain.evidence.node_evidence import ParavisorEvidence, TeeEvidence, TeeKind, TpmEvidence
from securetrain.evidence.tee.snp_report import REPORT_SIZE
from securetrain.evidence.tpm.constants import Algorithm
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge_amd import AmdWorld, good_leaf
from tests.evidence.tpm import forge

VM = "7df7b373-b947-4aaa-96e5-c358f2a03d20"
CONFIGURATION = {
    "console-enabled": False,
    "root-cert-thumbprint": "",
    "secure-boot": True,
    "tpm-enabled": True,
    "vmUniqueId": VM.upper(),
}
AMD = AmdWorld()


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def jwk(key: forge.Key, kid: str = "HCLAkPub", **changes: Any) -> dict[str, Any]:
    modulus = key.public.unique.modulus  # type: ignore[union-attr]
    found = {"kid": kid, "key_ops": ["sign"], "kty": "RSA", "e": "AQAB", "n": base64url(modulus)}
    return {**found, **changes}


@dataclass
class Vm:
    """A confidential VM; its TPM's attestation key is the paravisor's."""

    tpm: forge.Tpm = field(
        default_factory=lambda: forge.Tpm(ak=forge.rsa_attestation_template(Algorithm.RSASSA))
    )
    configuration: dict[str, Any] = field(default_factory=lambda: dict(CONFIGURATION))

    def runtime(self, keys: list[dict[str, Any]] | None = None, **changes: Any) -> bytes:
        found = {
            "keys": [jwk(self.tpm.ak), jwk(self.tpm.ak, "HCLEkPub")] if keys is None else keys,
            "vm-configuration": {**self.configuration, **changes},
            "user-data": "00" * 64,
        }
        return json.dumps(found, separators=(",", ":")).encode()


def vouched(runtime: bytes) -> bytes:
    return hashlib.sha256(runtime).digest() + bytes(32)


def snp(runtime: bytes, vtpm: TpmEvidence, **report: Any) -> TeeEvidence:
    return TeeEvidence(
        kind=TeeKind.SEV_SNP,
        report=AMD.report(**{"report_data": vouched(runtime), **report}),
        certificates=(good_leaf(AMD),),
        paravisor=ParavisorEvidence(runtime_data=runtime, vtpm=vtpm),
    )


def tdx(runtime: bytes, vtpm: TpmEvidence, **td: Any) -> TeeEvidence:
    return TeeEvidence(
        kind=TeeKind.TDX,
        report=intel.quote(td={"report_data": vouched(runtime), **td}),
        paravisor=ParavisorEvidence(runtime_data=runtime, vtpm=vtpm),
    )


def hcl(runtime: bytes, report: bytes = b"", kind: int = 2, **changes: int) -> bytes:
    """The report as it lies in the TPM."""
    fields = {
        "version": 2,
        "size": 32 + REPORT_SIZE + 20 + len(runtime),
        "data_size": 20 + len(runtime),
        "data_version": 1,
        "kind": kind,
        "digest": 1,
        "runtime_size": len(runtime),
        **changes,
    }

    def numbers(*names: str) -> bytes:
        return b"".join(fields[name].to_bytes(4, "little") for name in names)

    head = b"HCLA" + numbers("version", "size") + bytes([2]).ljust(20, b"\0")
    data = numbers("data_size", "data_version", "kind", "digest", "runtime_size")
    return (head + report.ljust(REPORT_SIZE, b"\0") + data + runtime).ljust(2600, b"\0")
