# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a training script can do to a machine: everything under torchrun, nothing of it under ours.

Both run as root. Plain torchrun gets mounts and a host name of its own here, in which what it does
to the machine stays; the probes find the same files there.
"""

import pytest

from securetrain.drills import worker_host, worker_probes
from tests.launch.sandbox.machine import lacking
from tests.vocabulary import needs

pytestmark = [pytest.mark.dist, pytest.mark.netns, needs(lacking)]

READ_ONLY, HIDDEN, FORBIDDEN, EMPTY = "EROFS", "ENOENT", "EPERM", "ENODATA"
EXPECTED = {
    **{name: READ_ONLY for name in worker_probes.PROBES if name.startswith("create_")},
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
    "connect_to_an_abstract_service": "ECONNREFUSED",
}
"""The errno of each probe in the sandbox."""


def test_sixty_things(tmp_path):
    assert worker_host.lacks() == ""
    assert len(worker_probes.PROBES) >= 60
    assert worker_probes.PROBES.keys() == EXPECTED.keys()
    with worker_host.targets(tmp_path) as script:
        refused, codes = worker_host.launched(tmp_path, script)
        assert refused == EXPECTED
        assert codes == [worker_host.CODE]
        assert (tmp_path / "work" / "probed.json").stat().st_uid == 0
        # The control: all of it works under torchrun. Our run directory is there, its keys in it.
        (tmp_path / "work" / "probed.json").unlink()
        plain = worker_host.torchrun(tmp_path, script)
    assert {name: came for name, came in plain.items() if came != "done"} == {}
