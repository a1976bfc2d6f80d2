# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Claims that tokens of each kind of issuer must have, whatever the reference values add.

* `google`, Google Cloud Attestation (docs.cloud.google.com, "attestation token claims"): Secure
  Boot was on; a Confidential Space image is not a debug image. Tokens of ordinary VMs (``swname``
  GCE) say nothing about their image;
* `azure`, Microsoft Azure Attestation (learn.microsoft.com, "claim sets"): a compliant SEV-SNP or
  TDX VM without debugging, on its own or as ``x-ms-isolation-tee`` of a guest attestation, whose
  own claims then must not show debugging, test signing or Secure Boot off;
* `ear`, EAT Attestation Results (draft-ietf-rats-ear-04; Veraison, Trustee): every submodule is
  affirming, says so about its hardware, and no claim of its trustworthiness vector is worse
  (AR4SI, draft-ietf-rats-ar4si, 2.3: 2 to 31 affirm, 0 says nothing);
* `nras`, NVIDIA Remote Attestation Service, claims version 3.0: the overall result is true. A
  device's token says success, Secure Boot on, debugging off, no warning; every yes-or-no claim of
  NVIDIA's is yes, and every certificate chain was valid with good OCSP answers.

A claim that must have a value must be there: absence is a refusal.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier

Fact: TypeAlias = str | int | bool
NRAS_VERSION: Final = "3.0"
_AFFIRMING: Final = range(2, 32)
_VECTOR: Final = frozenset(
    {
        "instance-identity",
        "configuration",
        "executables",
        "file-system",
        "hardware",
        "runtime-opaque",
        "storage-opaque",
        "sourced-data",
    }
)
_AZURE_TYPES: Final = {
    "sevsnpvm": "x-ms-sevsnpvm-is-debuggable",
    "tdxvm": "tdx_td_attributes_debug",
}
_AZURE_COMPLIANT: Final = ("azure-compliant-cvm", "azure-compliant-uvm")
_AZURE_GUEST: Final = {
    "secureboot": True,
    "x-ms-azurevm-bootdebug-enabled": False,
    "x-ms-azurevm-hypervisordebug-enabled": False,
    "x-ms-azurevm-kerneldebug-enabled": False,
    "x-ms-azurevm-testsigning-enabled": False,
}


class TokenProfile(StrEnum):
    """Kinds of issuers."""

    NRAS = "nvidia-nras"
    GOOGLE = "google-cloud-attestation"
    AZURE = "azure-attestation"
    EAR = "ear"

    @property
    def tier(self) -> NodeTier:
        """The highest tier that a token can prove. NVIDIA's speaks of devices, not of the host."""
        return NodeTier.SELF_ASSERTED if self is TokenProfile.NRAS else NodeTier.CLOUD_TOKEN

    @property
    def nonce(self) -> str:
        """The place of the nonce (JSON pointer), unless the reference values say otherwise."""
        return "/x-ms-runtime/client-payload/nonce" if self is TokenProfile.AZURE else "/eat_nonce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A token's claims about a machine."""

    hwmodel: str = ""
    instance: str = ""
    """The issuer's name of the machine."""
    trust_vector: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of each submodule, in AR4SI's numbers; from an EAR only."""
    affirmed: frozenset[str] = frozenset()
    """AR4SI claims that hold for the whole machine."""
    more: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDevice:
    """NVIDIA's claims about one GPU or switch."""

    name: str
    """As the overall token calls it, ``GPU-0``."""
    ueid: str
    """Decimal: the serial number of the device's attestation key certificate."""
    hwmodel: str
    driver: str
    firmware: str
    """Version of the VBIOS or the switch's BIOS."""


class Claims:
    """The claims of one object in a token, and refusals that name them."""

    __slots__ = ("_values", "where")

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def get(self, name: str) -> Any:
        """A claim, or None."""
        return self._values.get(name)

    def text(self, name: str) -> str:
        """A claim that is a string; empty when it is not there or none."""
        value = self._values.get(name)
        return value if isinstance(value, str) else ""

    def names(self) -> list[str]:
        """Of all claims."""
        return list(self._values)

    def inner(self, name: str) -> "Claims":
        """A claim that is an object; an empty one when it is not there."""
        value = self._values.get(name)
        return Claims(value if isinstance(value, dict) else {}, f"{self.where}/{name}")

    def require(self, name: str, *wanted: Fact | None) -> None:
        """The claim must have one of these values, and its type.

        Raises:
            AttestationError: ST-ATTS-809.
        """
        found = self._values.get(name)
        if not (name in self._values and any(_same(found, one) for one in wanted)):
            expected = " or ".join(map(repr, wanted))
            raise self.bad(name, f"expected {expected}, found {_shown(found)}")

    def bad(self, name: str, what: str) -> AttestationError:
        """The refusal of one claim."""
        return AttestationError("ST-ATTS-809", what, f"{self.where}/{name}")


def _same(found: object, wanted: object) -> bool:
    """Equal and of one type: true is not 1."""
    return type(found) is type(wanted) and found == wanted


def _shown(value: object) -> str:
    return ascii(value)[:200]


def google(claims: Claims) -> Facts:
    """Judge a token of Google Cloud Attestation.

    Raises:
        AttestationError: ST-ATTS-809.
    """
    claims.require("secboot", True)
    claims.require("swname", "CONFIDENTIAL_SPACE", "GCE")
    if claims.get("swname") == "CONFIDENTIAL_SPACE":
        claims.require("dbgstat", "disabled-since-boot")
    machine = claims.inner("submods").inner("gce")
    model = claims.text("hwmodel")
    more = {
        "swname": claims.text("swname"),
        "dbgstat": claims.text("dbgstat"),
        "image_digest": claims.inner("submods").inner("container").text("image_digest"),
        "project_id": machine.text("project_id"),
        "zone": machine.text("zone"),
    }
    confidential = model.startswith(("GCP_AMD_SEV", "GCP_INTEL_TDX"))
    return Facts(
        hwmodel=model,
        instance=machine.text("instance_id"),
        affirmed=frozenset({"hardware"} if confidential else ()),
        more=more,
    )


def azure(claims: Claims) -> Facts:
    """Judge a token of Azure Attestation.

    Raises:
        AttestationError: ST-ATTS-809.
    """
    guest = claims.get("x-ms-isolation-tee") is not None
    tee = claims.inner("x-ms-isolation-tee") if guest else claims
    tee.require("x-ms-attestation-type", *_AZURE_TYPES)
    kind = tee.text("x-ms-attestation-type")
    tee.require("x-ms-compliance-status", *_AZURE_COMPLIANT)
    tee.require(_AZURE_TYPES[kind], False)
    if guest:
        claims.require("x-ms-attestation-type", "azurevm")
        for name, wanted in _AZURE_GUEST.items():
            claims.require(name, wanted)
    return Facts(
        hwmodel=kind,
        instance=claims.text("x-ms-azurevm-vmid"),
        affirmed=frozenset({"hardware", "runtime-opaque"}),
        more={
            "policy_hash": claims.text("x-ms-policy-hash"),
            "launch_measurement": tee.text("x-ms-sevsnpvm-launchmeasurement"),
            "compliance": tee.text("x-ms-compliance-status"),
        },
    )


def ear(claims: Claims) -> Facts:
    """Judge an EAT Attestation Result.

    Raises:
        AttestationError: ST-ATTS-809.
    """
    if not claims.text("eat_profile"):
        raise claims.bad("eat_profile", "an EAR names its profile")
    modules = claims.inner("submods")
    if not modules.names():
        raise claims.bad("submods", "an EAR without submodules says nothing")
    vectors = {name: _appraisal(modules.inner(name)) for name in modules.names()}
    affirmed = [{name for name, value in one.items() if value} for one in vectors.values()]
    return Facts(
        trust_vector=vectors,
        affirmed=frozenset.intersection(*map(frozenset, affirmed)),
        more={
            "eat_profile": claims.text("eat_profile"),
            "verifier": claims.inner("ear.verifier-id").text("developer"),
        },
    )


def _appraisal(module: Claims) -> Mapping[str, int]:
    module.require("ear.status", "affirming")
    vector = module.inner("ear.trustworthiness-vector")
    found: dict[str, int] = {}
    for name in vector.names():
        value = vector.get(name)
        if name not in _VECTOR or type(value) is not int:
            raise vector.bad(name, f"not a trustworthiness claim: {_shown(value)}")
        if value != 0 and value not in _AFFIRMING:
            raise vector.bad(name, f"{value} does not affirm, although the status says so")
        found[name] = value
    if not found.get("hardware"):
        raise vector.bad("hardware", "nothing is said about the hardware")
    return found


def nras(claims: Claims) -> Facts:
    """Judge the overall token of NVIDIA's service.

    Raises:
        AttestationError: ST-ATTS-809.
    """
    claims.require("sub", "NVIDIA-PLATFORM-ATTESTATION")
    claims.require("x-nvidia-ver", NRAS_VERSION)
    claims.require("x-nvidia-overall-att-result", True)
    return Facts()


def nras_device(claims: Claims, name: str) -> TokenDevice:
    """Judge the token of one device.

    Raises:
        AttestationError: ST-ATTS-809.
    """
    claims.require("measres", "success")
    claims.require("secboot", True)
    claims.require("dbgstat", "disabled")
    claims.require("x-nvidia-attestation-warning", None)
    kind = "x-nvidia-gpu" if name.startswith("GPU-") else "x-nvidia-switch"
    report = f"{kind}-attestation-report"
    for suffix in ("-nonce-match", "-signature-verified", "-cert-chain-fwid-match"):
        claims.require(report + suffix, True)
    _require_chain(claims.inner(report + "-cert-chain"))
    for other in claims.names():
        value = claims.get(other)
        if other.startswith("x-nvidia-") and isinstance(value, bool):
            claims.require(other, True)
        elif other.endswith("-cert-chain"):
            _require_chain(claims.inner(other))
    ueid = claims.text("ueid")
    if not (ueid.isascii() and ueid.isdigit() and len(ueid) <= 64):
        raise claims.bad("ueid", "a device has a serial number")
    return TokenDevice(
        name=name,
        ueid=ueid,
        hwmodel=claims.text("hwmodel"),
        driver=claims.text("x-nvidia-gpu-driver-version"),
        firmware=claims.text(
            f"{kind}-vbios-version" if kind == "x-nvidia-gpu" else f"{kind}-bios-version"
        ),
    )


def _require_chain(chain: Claims) -> None:
    chain.require("x-nvidia-cert-status", "valid")
    chain.require("x-nvidia-cert-ocsp-status", "good")


JUDGES: Final[Mapping[TokenProfile, Callable[[Claims], Facts]]] = {
    TokenProfile.NRAS: nras,
    TokenProfile.GOOGLE: google,
    TokenProfile.AZURE: azure,
    TokenProfile.EAR: ear,
}
