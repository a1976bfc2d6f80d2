# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Parsers of collectors: whatever they are given, an answer or an error, in bounded time."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from securetrain.audit.facts import Outcome
from securetrain.audit.parser.secrets import may_be_secret, secret_kind
from securetrain.audit.subjects.node.collect import paths, rtnetlink, ssh
from securetrain.audit.subjects.node.collect.host import Host
from securetrain.core import netlink
from tests.audit.hardened.machine import DONE, ETH0, LO, hardened, link
from tests.tables import each

TREE = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
SSH_WORDS = st.sampled_from(
    ["Include", "Match", "Host", "all", "*", "PasswordAuthentication", "yes", "no", "=", "\n", " ",
     "#", '"', "\\", "\t", "/etc/ssh/*.conf", "sshd_config", "~/x", "%d", "'", "\r\n", "\0"]
)  # fmt: skip


@given(data=st.binary(max_size=400))
@settings(deadline=None)
def test_any_answer_of_the_kernel_is_a_list_or_an_error(data):
    for answer in (data, LO + data, LO + data + DONE):
        try:
            links = rtnetlink.parse_links(answer)
        except (netlink.NetlinkError, OSError):  # OSError: the kernel's own refusal
            continue
        assert all(link.facts.name for link in links)


@pytest.mark.parametrize("cut", range(1, len(LO + ETH0 + DONE), 61))
def test_an_answer_that_is_cut_off_is_no_shorter_list(cut):
    whole = LO + ETH0 + DONE
    assert [found.facts.name for found in rtnetlink.parse_links(whole)] == ["lo", "eth0"]
    with pytest.raises(netlink.NetlinkError):
        rtnetlink.parse_links(whole[:-cut])


def test_an_interface_without_ipv6_is_not_one_whose_settings_are_hidden():
    without, *_ = rtnetlink.parse_links(link("a", six=None) + DONE)
    assert without.has_ipv6 is False
    bare = struct.pack("=BxHiII", 0, 1, 2, 1, 0) + struct.pack("=HH", 6, 3) + b"b\0\0\0"
    silent, *_ = rtnetlink.parse_links(
        struct.pack("=IHHII", 16 + len(bare), 16, 2, 1, 0) + bare + DONE
    )
    assert silent.has_ipv6 is None
    assert silent.facts.rp_filter is None


@given(words=st.lists(SSH_WORDS, max_size=30))
@TREE
def test_any_sshd_config_is_read_or_unknown(words, tmp_path):
    host = _host(tmp_path)
    (host.root / "etc/ssh/sshd_config").write_text("".join(words))
    found = ssh.sshd(host)
    assert found.outcome in {Outcome.OK, Outcome.ERROR}
    assert (found.options is None) == (found.outcome is not Outcome.OK)


@given(text=st.text(max_size=200))
@TREE
def test_any_nccl_conf_is_read(text, tmp_path):
    host = _host(tmp_path)
    (host.root / "etc/nccl.conf").write_bytes(text.encode("utf-8", "replace"))
    names = [option.name for option in paths.nccl_conf(host)[-1].options or ()]
    assert len(names) == len(set(names))
    assert all(name and "=" not in name and not name.startswith("#") for name in names)


def _host(base: Path) -> Host:
    if not (base / "root").exists():
        hardened(base)
    return Host(
        environ={},
        search_path=(),
        uid=0,
        gid=0,
        user="me",
        home=Path("/home/me"),
        root=base / "root",
    )


def test_includes_in_a_circle_end(tmp_path):
    host = _host(tmp_path)
    (host.root / "etc/ssh/sshd_config").write_text("Include sshd_config sshd_config\n")
    found = ssh.sshd(host)
    assert found.outcome is Outcome.ERROR
    assert "in a circle" in found.reason


CLIENT = (
    ("StrictHostKeyChecking no # why\n", "no"),
    ('"StrictHostKeyChecking" "no"\n', "no"),
    ("StrictHostKeyChecking=yes\nStrictHostKeyChecking no\n", "yes"),
    ("Include INC\nStrictHostKeyChecking no\n", "no"),  # the block of the file ends with it
    ("Host other\nInclude INC\nHost *\nStrictHostKeyChecking off\n", "no"),
    ("#Include INC\nStrictHostKeyChecking accept-new\n", "accept-new"),
)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh to compare with")
@pytest.mark.parametrize(("text", "wanted"), CLIENT)
def test_ssh_itself_reads_a_file_as_we_do(text, wanted, tmp_path):
    """For a host that no block names: what `ssh -G` prints is among what we list."""
    included = tmp_path / "inc"
    included.write_text("Host z\n")
    host = _host(tmp_path)
    (host.root / "etc/ssh/ssh_config").unlink()
    own = host.root / "home/me/.ssh/config"
    own.write_text(text.replace("INC", str(included)))
    copy = host.root / str(included).lstrip("/")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(included.read_text())
    done = subprocess.run(
        ["ssh", "-G", "-F", str(own), "plain"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    said = {"true": "yes", "false": "no"}
    printed = next(
        line.split()[1] for line in done.stdout.splitlines() if line.startswith("stricthostkey")
    )
    assert said.get(printed, printed) == wanted
    ours = [o.value for file in ssh.ssh(host) for o in file.options or ()]
    assert [{"off": "no"}.get(value, value) for value in ours] == [wanted]


@each(
    "name, value, kept_back, is_found",
    ("HF_TOKEN", "x", True, False),
    ("HF_TOKEN", "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345", True, True),
    ("DB_PASSWORD", "hunter2", True, True),
    ("HF_TOKEN", "off", False, False),
    ("HF_TOKEN_PATH", "/x", False, False),
    ("PWD", "/hunter2", False, False),
    ("TORCH_X", "ghp_AbCdEfGhIjKlMnOpQrStUvWxYz012345", True, True),
    ("NCCL_X", "http://a:changeme@b", True, False),
    ("NCCL_X", "eth0", False, False),
)
def test_more_is_kept_back_than_is_a_finding(name, value, kept_back, is_found):
    assert may_be_secret(name, value) is kept_back
    assert (secret_kind(name, value) is not None) is is_found
