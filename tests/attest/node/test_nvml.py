# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collecting through a stand-in for ``pynvml`` that behaves as the package does."""

import ctypes
import sys
from types import SimpleNamespace

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.attest.node.nvml import collect
from securetrain.core.errors import AttestationError
from securetrain.evidence.node_evidence import DeviceKind, NodeEvidence, parse_node
from tests import vocabulary
from tests.evidence.gpu.forge import NONCE, Device, gpu_pdi, verify
from tests.tables import each


class Settings(ctypes.Structure):
    """nvmlSystemConfComputeSettings_v1_t."""

    _fields_ = [
        (name, ctypes.c_uint)
        for name in ("version", "environment", "ccFeature", "devToolsMode", "multiGpuMode")
    ]


class FakeNvml:
    """The functions of ``pynvml`` that are used; attributes say what goes wrong."""

    class NVMLError(Exception):
        """As in pynvml."""

    c_nvmlSystemConfComputeSettings_v1_t = Settings  # noqa: N815 - pynvml's name, as below

    def __init__(self, devices=2, *, feature=1, tools=0, multi=0, tools_setting=0, failing=()):
        self.devices = [Device(gpu_pdi(number)) for number in range(devices)]
        self.feature, self.tools, self.multi = feature, tools, multi
        self.tools_setting, self.failing = tools_setting, failing
        self.settings_code = 0
        self.driver: str | bytes = "590.12"
        self.report_size = self.chain_size = None
        self.pem = None
        self.running = 0

    def __getattribute__(self, name):
        if name in object.__getattribute__(self, "failing"):
            raise FakeNvml.NVMLError("Not Supported")
        return object.__getattribute__(self, name)

    def nvmlInit(self):  # noqa: N802
        self.running += 1

    def nvmlShutdown(self):  # noqa: N802
        self.running -= 1

    def nvmlSystemGetConfComputeState(self):  # noqa: N802
        return SimpleNamespace(environment=2, ccFeature=self.feature, devToolsMode=self.tools)

    def nvmlSystemGetConfComputeSettings(self, settings):  # noqa: N802
        settings._obj.multiGpuMode = self.multi
        settings._obj.devToolsMode = self.tools_setting
        return self.settings_code

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return self.driver

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return self.devices[index]

    def nvmlDeviceGetConfComputeGpuAttestationReport(self, device, nonce):  # noqa: N802
        report = device.report_spec(nonce=bytes(nonce)).encode()
        buffer = (ctypes.c_uint8 * 0x2000)(*report)
        size = len(report) if self.report_size is None else self.report_size
        return SimpleNamespace(attestationReport=buffer, attestationReportSize=size)

    def nvmlDeviceGetConfComputeGpuCertificate(self, device):  # noqa: N802
        pem = b"".join(map(to_pem, device.chain())) if self.pem is None else self.pem
        buffer = (ctypes.c_uint8 * 0x1400)(*pem)
        size = len(pem) if self.chain_size is None else self.chain_size
        return SimpleNamespace(attestationCertChain=buffer, attestationCertChainSize=size)


def to_pem(der):
    return x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)


def refused(number, what, nvml, where="NVML"):
    error = vocabulary.refused(AttestationError, f"ST-ATTS-{number}", collect, NONCE, nvml)
    assert what in error.what
    assert error.where == where
    assert error.fix


def test_evidence_of_all_gpus_is_collected():
    nvml = FakeNvml(8)
    evidence = collect(NONCE, nvml)
    assert [verify(device).pdi for device in evidence] == [gpu_pdi(n) for n in range(8)]
    assert {device.kind for device in evidence} == {DeviceKind.GPU}
    assert {device.driver for device in evidence} == {"590.12"}
    assert nvml.running == 0


def test_the_evidence_fits_into_its_envelope():
    node = NodeEvidence(manifest=b"{}", devices=collect(NONCE, FakeNvml(32)))
    assert parse_node(node.encode()) == node


@each("id, feature, multi", ("cc", 1, 0), ("ppcie", 0, 1), ("nvle", 0, 2), ("both", 1, 2))
def test_modes_in_which_reports_are_given(feature, multi):
    assert collect(NONCE, FakeNvml(1, feature=feature, multi=multi))


def test_older_drivers_have_no_settings():
    assert collect(NONCE, FakeNvml(1, failing=("nvmlSystemGetConfComputeSettings",)))
    nvml = FakeNvml(1, multi=1, tools_setting=1)
    nvml.settings_code = 3
    assert collect(NONCE, nvml)


def test_older_packages_give_the_version_as_bytes():
    nvml = FakeNvml(1)
    nvml.driver = b"590.12"
    assert collect(NONCE, nvml)[0].driver == "590.12"


def test_a_shutdown_that_fails_spoils_nothing():
    assert collect(NONCE, FakeNvml(1, failing=("nvmlShutdown",)))


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    refused(970, "nvidia-ml-py is missing", None)


def test_the_package_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(1))
    assert len(collect(NONCE)) == 1


def test_without_a_driver():
    refused(971, "does not start: Not Supported", FakeNvml(failing=("nvmlInit",)))


@each("function", "nvmlDeviceGetCount", "nvmlSystemGetDriverVersion")
def test_with_a_broken_driver(function):
    refused(971, "Not Supported", FakeNvml(failing=(function,)))


def test_outside_confidential_computing():
    refused(972, "neither confidential computing nor protected PCIe", FakeNvml(feature=0))


def test_with_a_gpu_that_knows_no_confidential_computing():
    nvml = FakeNvml(failing=("nvmlSystemGetConfComputeState",))
    refused(972, "knows no confidential computing", nvml)


def test_protected_pcie_that_could_not_be_read_is_none():
    nvml = FakeNvml(feature=0, multi=1)
    nvml.settings_code = 3
    refused(972, "neither", nvml)
    failing = FakeNvml(feature=0, multi=1, failing=("nvmlSystemGetConfComputeSettings",))
    refused(972, "neither", failing)


def test_in_developer_tools_mode():
    refused(973, "developer-tools", FakeNvml(tools=1))
    refused(973, "developer-tools", FakeNvml(feature=0, multi=1, tools_setting=1))


@each("count", 0, 33)
def test_with_no_gpu_or_too_many(count):
    refused(974, f"{count} GPUs", FakeNvml(count))


@each(
    "function",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetConfComputeGpuAttestationReport",
    "nvmlDeviceGetConfComputeGpuCertificate",
)
def test_a_gpu_that_is_not_ready(function):
    nvml = FakeNvml(failing=(function,))
    refused(975, "Not Supported", nvml, where="GPU 0")
    assert nvml.running == 0


@each("size", 0, 0x2001, 1 << 30)
def test_a_report_of_impossible_size(size):
    nvml = FakeNvml()
    nvml.report_size = size
    refused(976, f"a report of {size} bytes", nvml, where="GPU 0")


@each("size", 0, 0x1401)
def test_a_chain_of_impossible_size(size):
    nvml = FakeNvml()
    nvml.chain_size = size
    refused(976, f"a chain of {size} bytes", nvml, where="GPU 0")


@each(
    "id, pem, what",
    ("text", b"no pem", "not PEM"),
    (
        "not-a-certificate",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "not PEM",
    ),
    ("four", b"".join(map(to_pem, Device().chain()[:4])), "4 certificates"),
)
def test_a_chain_that_is_none(pem, what):
    nvml = FakeNvml()
    nvml.pem = pem
    refused(976, what, nvml, where="GPU 0")


@each("nonce", b"", bytes(31), bytes(33))
def test_a_nonce_of_another_size_is_a_mistake(nonce):
    vocabulary.refused(ValueError, "not 32", collect, nonce, FakeNvml())
