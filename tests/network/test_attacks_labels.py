# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Downgrades and labels: attacks 39, 40 and 41, each beside what the plain stack makes of it.

39  the overlay is required where it cannot be built;
40  a machine has RDMA devices, and a policy that keeps everything encrypted;
41  some bytes were in the clear, and somebody reads a report.
"""

import json
import os
import sys

import pytest
from msgspec.structs import replace

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile, degraded_label
from securetrain.launch.process.sockets import check_sockets, violation
from securetrain.ledger import events
from securetrain.network.environment import worker_environment
from securetrain.network.namespace import private_command
from securetrain.network.profile import achieve, label
from securetrain.network.system_tools import find_program
from securetrain.policy import load_policy
from securetrain.policy.schema import Network
from securetrain.report import runs, written
from securetrain.report.run.record import read_run
from securetrain.testing.cluster import missing
from securetrain.testing.runs import make_run
from tests.vocabulary import needs, outcome, ran, refused

P = NetworkProfile
DEV = load_policy("dev").policy
POLICY = """\
extends: dev
apiVersion: securetrain.dev/policy/v1
kind: Policy
metadata: {id: overlay-only, version: 1.0.0, title: Of a test}
network: {require: [overlay, loopback]}
"""
needs_root = needs(missing)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.netns
@needs_root
def test_39_a_required_overlay_without_the_right_to_build_it(tmp_path):
    setpriv = find_program("setpriv")
    assert setpriv is not None
    powerless = [str(setpriv), "--bounding-set=-net_admin", "--inh-caps=-all", "--"]
    marker, script = tmp_path / "trained", tmp_path / "train.py"
    script.write_text(f"open({str(marker)!r}, 'w')\n")
    (tmp_path / "policy.yaml").write_text(POLICY)
    env = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}

    def start(*command):
        return outcome(
            [*powerless, sys.executable, "-m", *command, str(script)], env=env, cwd=tmp_path
        )

    # Control: the plain launcher asks for nothing, and trains over whatever is there.
    plain = start("torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    assert plain.returncode == 0, plain.stderr[-2000:]
    assert marker.exists()

    marker.unlink()
    run = ["securetrain", "run", "--run-dir", str(tmp_path / "run")]
    done = start(*run, "--policy", str(tmp_path / "policy.yaml"), "--require", "overlay")
    assert done.returncode == 1
    assert "ST-NETW-001" in done.stderr
    assert "CAP_NET_ADMIN" in done.stderr
    assert not marker.exists()
    lines = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    events = [json.loads(line)["body"]["event"] for line in lines]
    assert [e["code"] for e in events if e["event"] == "profile-refused"] == ["ST-NETW-001"]


@pytest.mark.parametrize("lacks", ["CAP_NET_ADMIN", "TUN devices (/dev/net/tun)"])
def test_39_it_never_becomes_another_profile(lacks):
    network = Network(require=(P.OVERLAY, P.LOOPBACK))
    # Control: without --require the policy's next choice is taken, and its label says so.
    assert achieve(network, 1, probe=lambda _: lacks) is P.LOOPBACK
    assert "encrypted" not in label(P.LOOPBACK)
    with pytest.raises(NetworkError) as caught:
        achieve(network, 1, require=(P.OVERLAY,), probe=lambda _: lacks)
    assert caught.value.code == "ST-NETW-001"
    assert lacks in caught.value.what


ATTACK = {
    "NCCL_NET": "IB",
    "NCCL_IB_DISABLE": "0",
    "NCCL_IB_HCA": "mlx5",
    "NCCL_NET_PLUGIN": "ofi",
    "UCX_TLS": "rc",
    "NCCL_CONF_FILE": "/tmp/evil.conf",
}


@pytest.mark.parametrize("allowed", [(), ("NCCL_*",)], ids=["as shipped", "NCCL_* allowed"])
@pytest.mark.parametrize("profile", [P.LOOPBACK, P.OVERLAY, P.OVERLAY_ROOTLESS, P.NCCL_TLS])
def test_40_nccl_stays_on_sockets(tmp_path, profile, allowed):
    fabric = replace(DEV.fabric, allow_environment=allowed)
    policy = replace(DEV, fabric=fabric)
    env = worker_environment(ATTACK, policy, profile, tmp_path).env
    assert (env["NCCL_NET"], env["NCCL_IB_DISABLE"]) == ("Socket", "1")
    assert env["NCCL_NET_PLUGIN"] == "none"
    assert env["NCCL_SOCKET_IFNAME"] in {"=lo", "=st0"}
    assert "UCX_TLS" not in env


@pytest.mark.parametrize("profile", [P.IPSEC_OFFLOAD, P.RDMA_TRUSTED])
def test_40_or_the_launch_is_refused(tmp_path, profile):
    """Nothing was found to stand behind RDMA, so there are no settings for it."""
    refused(NetworkError, "ST-NETW-032", worker_environment, {}, DEV, profile, tmp_path)


@pytest.mark.netns
@needs_root
def test_40_workers_see_no_rdma_devices(tmp_path):
    (tmp_path / "infiniband").mkdir()
    (tmp_path / "infiniband" / "uverbs0").write_text("")
    look = [sys.executable, "-c", f"import os; print(os.listdir({str(tmp_path / 'infiniband')!r}))"]

    def seen(*options):
        done = ran([*private_command(list(options)), *look])
        return done.stdout.strip()

    assert seen() == "['uverbs0']"
    assert seen("--empty", str(tmp_path / "infiniband")) == "[]"


def test_40_a_worker_with_an_open_device_is_refused(tmp_path):
    """A library that found the device all the same, as UCX does by itself."""
    (tmp_path / "self" / "fd").mkdir(parents=True)
    (tmp_path / "self" / "net").mkdir()
    (tmp_path / "thread-self").symlink_to("self")
    for name in ("tcp", "tcp6", "route"):
        (tmp_path / "self" / "net" / name).write_text("head\n")
    (tmp_path / "self" / "fd" / "3").symlink_to("/dev/infiniband/uverbs0")
    check = check_sockets(P.OVERLAY, tmp_path)
    assert not check.ok
    assert violation(check).code == "ST-NETW-035"


def rendered(run, now):
    page = runs.page(read_run(run.run_dir.root, now))
    return {form: " ".join(written(page, form).split()) for form in ("text", "json", "html")}


def run_under(tmp_path, profile):
    """What a launcher leaves of a run under a profile."""
    run = make_run(tmp_path / profile)
    ledger = run.ledger()
    ledger.write(
        events.ProfileAchieved(
            subject=degraded_label(profile), label=label(profile), network=profile
        )
    )
    ledger.write(events.JobNetworkUp(subject="st-x", profile=label(profile), network=profile))
    ledger.close()
    run.run_dir.summary.write_text(
        json.dumps({"schema": "securetrain.run/v1", "network": profile.value, "exit_code": 0})
    )
    return run


@pytest.mark.parametrize("profile", [p for p in P if p.degraded])
def test_41_a_report_never_calls_bytes_in_clear_encrypted(tmp_path, profile):
    run = run_under(tmp_path, profile)
    for form, text in rendered(run, run.clock()).items():
        assert "DEGRADED" in text, form
        assert f"{profile} DEGRADED" in text, form
        assert "travelled in the clear" in text, form
        assert "encrypted" not in text.lower(), form
    for text in (label(profile), degraded_label(profile)):
        assert "DEGRADED" in text
        assert "encrypted" not in text


def test_41_what_is_encrypted_is_called_so(tmp_path):
    """Control: the word is there where it is true, and the other label is not."""
    run = run_under(tmp_path, P.OVERLAY)
    for form, text in rendered(run, run.clock()).items():
        assert "DEGRADED" not in text, form
        assert "travelled in the clear" not in text, form
    assert "encrypted between machines" in rendered(run, run.clock())["json"]
