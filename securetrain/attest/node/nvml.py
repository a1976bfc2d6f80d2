# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Asks the GPUs of this machine for their evidence, through NVML.

This runs on the node that is judged: nothing here is a check that a verifier could rely on. It
tells early, and by name, why a GPU cannot attest.

* The package is `nvidia-ml-py` (module ``pynvml``, extra ``securetrain[nvidia]``), behind it the
  driver's ``libnvidia-ml.so.1``. Source: NVML API reference, "Confidential Computing".
* NVML gives reports only in confidential-computing or protected-PCIe mode. Ordinary clusters run in
  neither: their GPUs have no hardware evidence, and the self-report names them as self-asserted.
* Developer-tools mode lets a profiler look into the GPU. A verifier sees it only by measurements
  that are not golden.
* NVSwitches answer through NSCQ, a C library without a Python package. Switch reports are therefore
  not collected here; on a board whose reference values ask for switches, the evidence of
  `collect` alone is refused for the number of devices.
"""

import ctypes
import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.core import install_hint
from securetrain.core.errors import AttestationError
from securetrain.evidence import MAX_DEVICES, DeviceEvidence, DeviceKind
from securetrain.evidence.gpu import CHAIN_LENGTH, NONCE_SIZE

_ENABLED: Final = 1
"""NVML_CC_SYSTEM_FEATURE_ENABLED and NVML_CC_SYSTEM_DEVTOOLS_MODE_ON."""
_MULTI_GPU: Final = frozenset({1, 2})
"""NVML_CC_SYSTEM_MULTIGPU_PROTECTED_PCIE and _NVLE."""
_SUCCESS: Final = 0


def collect(nonce: bytes, nvml: Any = None) -> tuple[DeviceEvidence, ...]:
    """Evidence of every GPU that NVML shows, in NVML's order.

    Args:
        nonce: the 32 bytes that the reports shall answer (`evidence.device_nonce`).
        nvml: stands in for the module ``pynvml``.

    Raises:
        AttestationError: ST-ATTS-970 to 976, which say what is missing.
        ValueError: when the nonce has another size.
    """
    if len(nonce) != NONCE_SIZE:
        raise ValueError(f"a nonce of {len(nonce)} bytes, not {NONCE_SIZE}")
    with _session(nvml or _load()) as session:
        _check_mode(session)
        try:
            count = session.nvmlDeviceGetCount()
            driver = session.nvmlSystemGetDriverVersion()
        except session.NVMLError as error:
            raise _refuse("ST-ATTS-971", f"NVML: {error}", "check the NVIDIA driver") from error
        if not 0 < count <= MAX_DEVICES:
            raise _refuse(
                "ST-ATTS-974",
                f"NVML shows {count} GPUs, evidence has room for 1 to {MAX_DEVICES}",
                "give the node its GPUs, or attest without them",
            )
        version = driver.decode("ascii", "replace") if isinstance(driver, bytes) else driver
        return tuple(_device(session, index, nonce, version) for index in range(count))


def _load() -> ModuleType:
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise _refuse(
            "ST-ATTS-970",
            "the package nvidia-ml-py is missing",
            install_hint("nvidia"),
        ) from error


@contextmanager
def _session(nvml: Any) -> Iterator[Any]:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise _refuse(
            "ST-ATTS-971", f"NVML does not start: {error}", "install and load the NVIDIA driver"
        ) from error
    try:
        yield nvml
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _check_mode(nvml: Any) -> None:
    """NVML answers requests for reports in two modes only."""
    try:
        state = nvml.nvmlSystemGetConfComputeState()
    except nvml.NVMLError as error:
        raise _refuse(
            "ST-ATTS-972",
            f"the driver knows no confidential computing: {error}",
            "use Hopper or later GPUs, with a driver that supports it",
        ) from error
    settings = _settings(nvml)
    if state.ccFeature != _ENABLED and settings.multiGpuMode not in _MULTI_GPU:
        raise _refuse(
            "ST-ATTS-972",
            "neither confidential computing nor protected PCIe is switched on",
            "switch it on with NVIDIA's gpu-admin-tools, or attest without GPUs",
        )
    if _ENABLED in {state.devToolsMode, settings.devToolsMode}:
        raise _refuse(
            "ST-ATTS-973",
            "developer-tools mode is on",
            "switch it off: it opens the GPU to profilers",
        )


def _settings(nvml: Any) -> Any:
    """Settings that older drivers do not have; they then read as zeros."""
    settings = nvml.c_nvmlSystemConfComputeSettings_v1_t()
    try:
        code = nvml.nvmlSystemGetConfComputeSettings(ctypes.byref(settings))
    except nvml.NVMLError:
        code = None
    return settings if code == _SUCCESS else nvml.c_nvmlSystemConfComputeSettings_v1_t()


def _device(nvml: Any, index: int, nonce: bytes, driver: str) -> DeviceEvidence:
    where = f"GPU {index}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        report = nvml.nvmlDeviceGetConfComputeGpuAttestationReport(handle, nonce)
        chain = nvml.nvmlDeviceGetConfComputeGpuCertificate(handle)
    except nvml.NVMLError as error:
        raise _refuse(
            "ST-ATTS-975",
            f"NVML: {error}",
            "check that the GPU is ready (nvidia-smi conf-compute)",
            where,
        ) from error
    pem = _bytes(chain.attestationCertChain, chain.attestationCertChainSize, "chain", where)
    return DeviceEvidence(
        kind=DeviceKind.GPU,
        report=_bytes(report.attestationReport, report.attestationReportSize, "report", where),
        certificates=_certificates(pem, where),
        driver=driver,
    )


def _bytes(buffer: Any, size: int, name: str, where: str) -> bytes:
    """Take what NVML wrote into a fixed buffer."""
    data = bytes(buffer)
    if not 0 < size <= len(data):
        raise _malformed(f"a {name} of {size} bytes in a buffer of {len(data)}", where)
    return data[:size]


def _certificates(pem: bytes, where: str) -> tuple[bytes, ...]:
    try:
        chain = x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise _malformed(f"a chain that is not PEM: {error}", where) from error
    if len(chain) != CHAIN_LENGTH:
        raise _malformed(f"{len(chain)} certificates, not {CHAIN_LENGTH}", where)
    return tuple(certificate.public_bytes(Encoding.DER) for certificate in chain)


def _malformed(what: str, where: str) -> AttestationError:
    return _refuse("ST-ATTS-976", what, where=where)


def _refuse(code: str, what: str, fix: str = "", where: str = "NVML") -> AttestationError:
    return AttestationError(code, what, where, fix)
