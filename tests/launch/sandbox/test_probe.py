# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a training script can do to a machine: everything under torchrun, nothing of it under ours.

Both run as root. Plain torchrun gets mounts and a host name of its own here, in which what it does
to the machine stays; the probes find the same files there.
"""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

import securetrain
from securetrain.core.nodestate import STATE_VARIABLE
from securetrain.identity.cluster_ca import ClusterCA
from tests.launch.sandbox import probes
from tests.launch.sandbox.machine import lacking
from tests.vocabulary import needs

pytestmark = [pytest.mark.dist, pytest.mark.netns, needs(lacking)]

READ_ONLY, HIDDEN, FORBIDDEN, EMPTY = "EROFS", "ENOENT", "EPERM", "ENODATA"
EXPECTED = {
    **{name: READ_ONLY for name in probes.PROBES if name.startswith("create_")},
    "preload_a_library_everywhere": READ_ONLY,
    "append_to_passwd": "EACCES",
    "read_shadow": "EACCES",
    "change_the_kernels_settings": "EACCES",
    "change_sysfs": "EACCES",
    "read_a_home": HIDDEN,
    "read_tmp": HIDDEN,
    "read_shared_memory": HIDDEN,
    "change_our_code": "EACCES",
    "change_the_interpreter": "EACCES",
    "change_a_package": "EACCES",
    "change_the_script": READ_ONLY,
    "read_the_runs_node_key": HIDDEN,
    "read_the_runs_agent_key": HIDDEN,
    "read_the_runs_root_key": HIDDEN,
    "read_the_runs_dataset_key": HIDDEN,
    "read_the_nodes_state": HIDDEN,
    "read_a_ca_key": EMPTY,
    "read_another_runs_key": EMPTY,
    "append_to_another_runs_ledger": READ_ONLY,
    "change_the_runs_policy": READ_ONLY,
    "change_the_runs_trust_root": READ_ONLY,
    "plant_a_file_in_the_run": READ_ONLY,
    "remove_another_runs_checkpoint": READ_ONLY,
    "signal_a_process_of_the_machine": "ESRCH",
    "read_a_processs_environment": HIDDEN,
    "trace_a_process": FORBIDDEN,
    "read_the_parents_memory": FORBIDDEN,
    "go_before_others": "EACCES",
    "run_in_real_time": FORBIDDEN,
    "dump_core": FORBIDDEN,
    "become_root": FORBIDDEN,
    "join_roots_group": FORBIDDEN,
    "give_a_file_away": FORBIDDEN,
    "take_a_capability": FORBIDDEN,
    "make_a_device": FORBIDDEN,
    "open_kmsg": HIDDEN,
    "open_loop-control": HIDDEN,
    "open_fuse": HIDDEN,
    "open_net_tun": HIDDEN,
    "type_into_a_terminal": FORBIDDEN,
    "make_a_user_namespace": FORBIDDEN,
    "make_a_mount_namespace": FORBIDDEN,
    "make_a_network_namespace": FORBIDDEN,
    "enter_another_namespace": FORBIDDEN,
    "mount_something": FORBIDDEN,
    "open_a_file_system": FORBIDDEN,
    "copy_a_tree_of_mounts": FORBIDDEN,
    "change_the_root": FORBIDDEN,
    "call_the_machine_otherwise": FORBIDDEN,
    "load_a_program_into_the_kernel": FORBIDDEN,
    "measure_the_machine": FORBIDDEN,
    "add_a_key": FORBIDDEN,
    "read_the_kernels_log": FORBIDDEN,
    "hold_page_faults": FORBIDDEN,
    "pass_requests_in_a_ring": FORBIDDEN,
    "watch_all_files": FORBIDDEN,
    "set_the_clock": FORBIDDEN,
    "open_a_file_by_its_number": FORBIDDEN,
    "open_a_packet_socket": FORBIDDEN,
    "open_a_vsock_socket": FORBIDDEN,
    "open_a_raw_socket": FORBIDDEN,
    "talk_to_the_packet_filter": FORBIDDEN,
    "connect_to_a_service_in_run": HIDDEN,
    "connect_to_an_abstract_service": FORBIDDEN,
}
"""The errno of each probe in the sandbox."""


@pytest.fixture
def targets(tmp_path, launch):
    """What the probes want, on this machine; gone at the end."""
    name = f"st-probe-{os.getpid()}"
    work = tmp_path / "work"
    work.mkdir()
    state = Path(os.environ[STATE_VARIABLE])
    ClusterCA.create(work / "ca", "securetrain.local", datetime.now(UTC)).close()
    other = launch(work / "runs" / "before", "--standalone", "-m", "this", cwd=work)
    assert other.code == 0, other.err
    (other.run.checkpoints / "step-1").mkdir(parents=True)
    secrets = [Path.home() / f".{name}", Path("/tmp", name), Path("/dev/shm", name), state / name]
    for path in secrets:
        path.write_text("secret")
    listeners = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    listeners[0].bind(f"/run/{name}")
    listeners[1].bind(f"\0{name}")
    for listener in listeners:
        listener.listen()
    script = tmp_path / "script" / "probes.py"
    script.parent.mkdir()
    shutil.copy(probes.__file__, script)
    found = {
        "script": str(script),
        "run": str(tmp_path / "run"),
        "home_secret": str(secrets[0]),
        "tmp_secret": str(secrets[1]),
        "shm_secret": str(secrets[2]),
        "state_secret": str(secrets[3]),
        "our_code": str(Path(str(securetrain.__file__)).parent / "launch" / "worker.py"),
        "package": str(torch.__file__),
        "ca_key": str(work / "ca" / "ca.pem"),
        "other_run": str(other.run.root),
        "process": os.getpid(),
        "run_socket": f"/run/{name}",
        "abstract_socket": name,
    }
    (work / "targets.json").write_text(json.dumps(found))
    yield found
    for path in (*secrets, Path(f"/run/{name}")):
        path.unlink()
    for listener in listeners:
        listener.close()


PLAIN = """\
mount -t tmpfs none /mnt
for place in /etc /usr/local/bin /usr/lib /var/lib /var/log /opt; do
  mkdir -p /mnt$place /mnt/work$place
  mount -t overlay -o lowerdir=$place,upperdir=/mnt$place,workdir=/mnt/work$place none $place
done
exec "$@"
"""


def test_sixty_things(targets, tmp_path, launch, run_command, clean_environment):
    assert platform.machine() == "x86_64", "the numbers of the calls"
    assert len(probes.PROBES) >= 60
    assert probes.PROBES.keys() == EXPECTED.keys()
    work = tmp_path / "work"
    script = targets["script"]
    arguments = [script, str(work / "targets.json")]

    done = launch(tmp_path / "run", "--standalone", "--require", "sandbox", *arguments, cwd=work)
    assert done.code == 0, done.err
    refused = json.loads((work / "probed.json").read_text())
    assert refused == EXPECTED
    assert (work / "probed.json").stat().st_uid == 0

    # The control: all of it works under torchrun. Our run directory is there, its keys in it.
    (work / "probed.json").unlink()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        ["unshare", "--mount", "--uts", "sh", "-ec", PLAIN, "sh", *torchrun, *arguments],
        cwd=work,
        env=clean_environment(),
        check=True,
        timeout=120,
    )
    plain = json.loads((work / "probed.json").read_text())
    assert {name: came for name, came in plain.items() if came != "done"} == {}
