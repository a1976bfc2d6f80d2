# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from ipaddress import ip_address

import pytest

from securetrain.core.errors import NetworkError
from securetrain.network import namespace, rootless
from securetrain.network.rootless import (
    blocking_settings,
    command,
    device_of,
    forwarded_endpoint,
    inner_environment,
    is_inside,
    missing,
    new_forwarded_endpoint,
    rehearse,
    smallest_mtu,
)
from securetrain.network.wireguard import Endpoint
from tests.tables import items
from tests.vocabulary import refused


@items(
    "text, inside",
    ("         0          0 4294967295\n", False),
    ("         0       1500          1\n", True),
    ("         0     100000      65536\n", True),
    ("         0          0      65536\n", True),
    ("", True),
)
def test_where_this_is(tmp_path, text, inside):
    path = tmp_path / "uid_map"
    path.write_text(text)
    assert is_inside(path) is inside


def test_the_command(monkeypatch):
    for module in (rootless, namespace):
        monkeypatch.setattr(module, "program", lambda name: f"/usr/bin/{name}")
    end = Endpoint(ip_address("192.0.2.7"), 51820)
    words = command(["/usr/bin/python3", "x.py"], udp=end, device="eth1", mtu=1300)
    text = " ".join(words)
    assert text.startswith("/usr/bin/setpriv --pdeathsig KILL -- /usr/bin/pasta --foreground ")
    assert " --config-net --no-map-gw --mtu 1300 " in text
    assert " --address 192.0.0.2 --netmask 29 --gateway 192.0.0.1 --interface eth1 " in text
    assert " -u 192.0.2.7/51820 -t none -U none -T none -- " in text
    reaper = "/usr/bin/setpriv --pdeathsig KILL -- /usr/bin/unshare --pid --fork --kill-child"
    assert f" -- {reaper} --mount-proc -- " in text
    assert "--empty /run -- /usr/bin/python3 x.py" in text
    assert text.index("pasta") < text.index("--pid") < text.index("--empty")
    monkeypatch.setattr(rootless, "smallest_mtu", lambda: 1400)
    text = " ".join(command(["/x"]))
    assert " --mtu 1400 " in text
    assert "--interface" not in text
    assert " -u none -t none -U none -T none -- " in text


def test_the_rehearsal_is_the_same_way_in(monkeypatch):
    ran: list[list[str]] = []
    monkeypatch.setattr(rootless, "run_command", ran.append)
    end = Endpoint(ip_address("192.0.2.7"), 51820)
    for module in (rootless, namespace):
        monkeypatch.setattr(module, "program", lambda name: f"/usr/bin/{name}")
    rehearse(udp=end, device="eth1")
    assert ran == [["setpriv", *command(["/usr/bin/true"], udp=end, device="eth1")[1:]]]


def test_the_entrance(monkeypatch):
    end = Endpoint(ip_address("192.0.2.7"), 51820)
    env = inner_environment({"A": "b", rootless.VARIABLE: "an older one"}, end)
    assert env == {"A": "b", rootless.VARIABLE: "192.0.2.7:51820"}
    assert inner_environment(env, None) == {"A": "b"}
    monkeypatch.setattr(rootless, "is_inside", lambda: True)
    assert forwarded_endpoint(env) == end
    assert forwarded_endpoint({}) is None
    refused(NetworkError, "ST-NETW-017", forwarded_endpoint, {rootless.VARIABLE: "here"})
    monkeypatch.setattr(rootless, "is_inside", lambda: False)
    assert forwarded_endpoint(env) is None, "outside it means nothing"


def test_a_new_entrance_is_a_port_of_this_machine():
    made = new_forwarded_endpoint(ip_address("127.0.0.1"))
    assert str(made.address) == "127.0.0.1"
    assert made.port > 0
    for text, why in (("192.0.2.7", "this machine cannot use it"), ("::1", "must be an IPv4")):
        with pytest.raises(NetworkError, match=rf"ST-NETW-018: {text}.*{why}"):
            new_forwarded_endpoint(ip_address(text))


def test_the_device_of_an_address():
    assert device_of(ip_address("127.0.0.1")) == "lo"
    refused(NetworkError, "ST-NETW-018", device_of, ip_address("192.0.2.7"))


def test_the_mtu_is_the_smallest_of_the_machine(tmp_path):
    assert smallest_mtu(tmp_path) == 1500
    for name, mtu in (("lo", 100), ("eth0", 1450), ("eth1", 9000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mtu").write_text(f"{mtu}\n")
    assert smallest_mtu(tmp_path) == 1450


def test_what_is_missing(monkeypatch):
    monkeypatch.setattr(rootless, "missing_programs", lambda _: ["the program pasta"])
    monkeypatch.setattr(rootless, "find_program", lambda _: None)
    monkeypatch.setattr(rootless, "_unshare_problem", lambda: pytest.fail("there is no unshare"))
    assert missing() == ["the program pasta"]


@items(
    "tool, said",
    ("true", ""),
    ("false", "exit code 1"),
    ("cat", "unrecognized option '--user'"),
    ("no-such", "No such file"),
)
def test_user_namespaces_may_be_forbidden(monkeypatch, tool, said):
    monkeypatch.setattr(rootless, "missing_programs", lambda _: [])
    monkeypatch.setattr(rootless, "find_program", lambda name: name)
    monkeypatch.setattr(rootless, "program", lambda _: f"/bin/{tool}")
    monkeypatch.setattr(rootless, "blocking_settings", lambda: ["user.max_user_namespaces is 0"])
    found = missing()
    assert (found == []) is (said == "")
    for reason in found:
        assert reason.startswith("user namespaces for ordinary users (user.max_user_namespaces is")
        assert said in reason


def test_the_settings_that_forbid_them(tmp_path):
    assert blocking_settings(tmp_path) == []
    for name, value in (
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
        ("user/max_user_namespaces", "63000"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    assert blocking_settings(tmp_path) == [
        "kernel.unprivileged_userns_clone is 0",
        "kernel.apparmor_restrict_unprivileged_userns is 1",
    ]
