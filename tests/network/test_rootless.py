# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from securetrain.network import namespace, rootless
from securetrain.network.rootless import command, is_inside, missing, smallest_mtu


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("         0          0 4294967295\n", False),
        ("         0       1500          1\n", True),
        ("         0     100000      65536\n", True),
        ("         0          0      65536\n", True),
        ("", True),
    ],
)
def test_where_this_is(tmp_path, text, inside):
    path = tmp_path / "uid_map"
    path.write_text(text)
    assert is_inside(path) is inside


def test_the_command(monkeypatch):
    for module in (rootless, namespace):
        monkeypatch.setattr(module, "program", lambda name: f"/usr/bin/{name}")
    words = command(["/usr/bin/python3", "x.py"], udp=[51820, 51821], mtu=1300)
    text = " ".join(words)
    assert text.startswith("/usr/bin/pasta --config-net --no-map-gw --quiet --mtu 1300 ")
    assert "-u 51820,51821 -t none -U none -T none -- " in text
    assert "/usr/bin/unshare --pid --fork --kill-child --mount-proc -- " in text
    assert "--empty /run -- /usr/bin/python3 x.py" in text
    assert text.index("pasta") < text.index("--pid") < text.index("--empty")
    monkeypatch.setattr(rootless, "smallest_mtu", lambda: 1400)
    assert "--mtu 1400 -u none -t 29500 " in " ".join(command(["/x"], tcp=[29500]))


def test_the_mtu_is_the_smallest_of_the_machine(tmp_path):
    assert smallest_mtu(tmp_path) == 1500
    for name, mtu in (("lo", 100), ("eth0", 1450), ("eth1", 9000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mtu").write_text(f"{mtu}\n")
    assert smallest_mtu(tmp_path) == 1450


def test_what_is_missing(monkeypatch):
    monkeypatch.setattr(rootless, "missing_programs", lambda _: ["the program pasta"])
    monkeypatch.setattr(rootless, "find_program", lambda _: None)
    monkeypatch.setattr(rootless, "_may_unshare", lambda: pytest.fail("there is no unshare"))
    assert missing() == ["the program pasta"]


@pytest.mark.parametrize(("tool", "good"), [("true", True), ("false", False), ("no-such", False)])
def test_user_namespaces_may_be_forbidden(monkeypatch, tool, good):
    monkeypatch.setattr(rootless, "missing_programs", lambda _: [])
    monkeypatch.setattr(rootless, "find_program", lambda name: name)
    monkeypatch.setattr(rootless, "program", lambda _: f"/bin/{tool}")
    assert (missing() == []) is good
    assert good or "user namespaces" in missing()[0]
