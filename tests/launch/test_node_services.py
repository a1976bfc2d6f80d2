# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from securetrain.launch.checkpoints.services import node_state


def test_where_a_machine_keeps_what_it_has_seen():
    assert node_state({}, is_root=True).root == Path("/var/lib/securetrain")
    # Also for root in a user namespace, which is just the user.
    assert node_state({}, is_root=False).root == Path.home() / ".local/state/securetrain"
    given = {"SECURETRAIN_STATE": "/somewhere"}
    assert node_state(given, is_root=True).root == Path("/somewhere")
    assert node_state({"SECURETRAIN_STATE": "here"}, is_root=False).root == Path("here").absolute()
