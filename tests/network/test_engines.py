# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass, field

import pytest

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.network import engines, rootless
from securetrain.network.engines import ENGINES, choose, missing_here, probe


@dataclass
class Named:
    name: str
    lacks: list[str] = field(default_factory=list)

    def missing(self):
        return self.lacks

    def start(self, host, name, folder):
        raise NotImplementedError


@pytest.fixture(autouse=True)
def all_there(monkeypatch):
    monkeypatch.setattr(engines, "missing_here", list)
    monkeypatch.setattr(rootless, "is_inside", lambda: False)


def test_the_kernel_comes_first():
    assert [engine.name for engine in ENGINES] == ["kernel", "wireguard-go"]


def test_the_first_that_works_is_taken():
    kernel, process = Named("kernel"), Named("wireguard-go")
    assert choose([kernel, process]) is kernel
    kernel.lacks = ["the program wg"]
    assert choose([kernel, process]) is process


def test_without_any_everything_is_named():
    with pytest.raises(NetworkError) as error:
        choose([Named("kernel", ["wg", "a module"]), Named("wireguard-go", ["TUN devices"])])
    assert error.value.code == "ST-NETW-010"
    assert error.value.what == (
        "missing: for kernel: wg; for kernel: a module; for wireguard-go: TUN devices"
    )


def test_an_engine_is_of_no_use_without_the_rest(monkeypatch):
    monkeypatch.setattr(engines, "missing_here", lambda: ["the program nft"])
    with pytest.raises(NetworkError) as error:
        choose([Named("kernel")])
    assert "the program nft" in error.value.what


def test_no_engine_is_no_network():
    with pytest.raises(NetworkError):
        choose([])


@pytest.fixture
def status(tmp_path):
    def write(capabilities):
        path = tmp_path / "status"
        path.write_text(f"Name:\tx\nCapPrm:\t{0:016x}\nCapEff:\t{capabilities:016x}\n")
        return path

    return write


ALL = (1 << 12) | (1 << 19) | (1 << 21)


def test_capabilities_and_programs(status, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(engines, "missing_programs", lambda _: [])
    real = missing_here
    assert real(status(ALL)) == []
    assert real(status(ALL & ~(1 << 12))) == ["CAP_NET_ADMIN"]
    assert real(status(ALL & ~(1 << 19))) == ["CAP_SYS_PTRACE"]
    assert real(status(1 << 12 | 1 << 19)) == ["CAP_SYS_ADMIN"]
    assert len(real(status(0))) == 3
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert real(status(ALL)) == ["user id 0"]
    monkeypatch.setattr(engines, "missing_programs", lambda names: [f"{len(names)} programs"])
    assert real(status(ALL)) == ["6 programs", "user id 0"]


def test_no_line_of_capabilities_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(engines, "missing_programs", lambda _: [])
    path = tmp_path / "status"
    path.write_text("Name:\tx\n")
    assert len(missing_here(path)) == 3


def test_the_probe_of_an_overlay(monkeypatch):
    monkeypatch.setattr(engines, "choose", lambda: None)
    assert probe(NetworkProfile.OVERLAY) == ""

    def nothing():
        raise NetworkError("ST-NETW-010", "missing: nft")

    monkeypatch.setattr(engines, "choose", nothing)
    assert probe(NetworkProfile.OVERLAY) == "missing: nft"


def test_root_of_a_user_namespace_gets_the_other_label(monkeypatch):
    monkeypatch.setattr(engines, "choose", lambda: None)
    monkeypatch.setattr(rootless, "is_inside", lambda: True)
    assert "overlay-rootless" in probe(NetworkProfile.OVERLAY)
    assert probe(NetworkProfile.OVERLAY_ROOTLESS) == ""


def test_rootless_is_not_for_root(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(rootless, "is_inside", lambda: False)
    assert "ordinary users" in probe(NetworkProfile.OVERLAY_ROOTLESS)


def test_the_probe_of_rootless_from_outside(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    lacks: list[str] = []
    monkeypatch.setattr(rootless, "missing", lambda: lacks)
    monkeypatch.setattr(engines, "WireGuardGo", lambda: Named("wireguard-go", ["TUN devices"]))
    assert probe(NetworkProfile.OVERLAY_ROOTLESS) == "TUN devices"
    lacks.append("the program pasta")
    assert probe(NetworkProfile.OVERLAY_ROOTLESS) == "the program pasta; TUN devices"
    monkeypatch.setattr(engines, "WireGuardGo", lambda: Named("wireguard-go"))
    lacks.clear()
    assert probe(NetworkProfile.OVERLAY_ROOTLESS) == ""


def test_the_probe_is_for_overlays(subtests):
    for profile in (NetworkProfile.LOOPBACK, NetworkProfile.NCCL_TLS):
        with subtests.test(profile=profile), pytest.raises(ValueError, match="not an overlay"):
            probe(profile)
