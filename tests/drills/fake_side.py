# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A drill's side that does what the name of the work directory's parent says."""

import os
import subprocess
import sys
import time

from securetrain.core.files import write_atomic
from securetrain.drills.registry import OUTCOME_FILE, Outcome


def _good(side):
    return Outcome(
        side=side,
        succeeded=side == "plain",
        refused=side == "hardened",
        code="ST-ADMN-002" if side == "hardened" else "",
        evidence=f"{side} as it should be",
    )


def _attack(side, workdir):
    match workdir.parent.name:
        case "environment":
            assert "SECRET_OF_THE_CALLER" not in os.environ
            assert os.environ["HOME"] == str(workdir)
        case "crash":
            sys.exit("something broke")
        case "silent":
            os._exit(0)
        case "garbage":
            write_atomic(workdir / OUTCOME_FILE, b'{"side":"plain","succeeded":true}')
            os._exit(0)
        case "liar":  # the hardened side reports as the plain one
            return _good("plain")
        case "hang":
            # with a child in a session of its own, as torchelastic's workers are
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            (workdir.parent / f"{side}.pid").write_text(str(child.pid))
            time.sleep(600)
    return _good(side)


def plain(workdir):
    return _attack("plain", workdir)


def hardened(workdir):
    return _attack("hardened", workdir)
