# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/attest-a-fleet.md, its commands run as they stand, on software TPMs; then a job.

What is put in for the page's own is said here: the address to listen on, and, for ``join``, where
the machine's TPM is. ``infineon.pem`` is the software TPMs' CA, so that their tier is `vtpm`.
"""

import csv
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from securetrain.attest.fleet.bundle import key_text
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.keys import PrivateKey
from securetrain.policy import load_policy
from securetrain.testing.machine import Machine
from tests.attest.swtpms import without_swtpm
from tests.vocabulary import free_port

pytestmark = [pytest.mark.tpm, without_swtpm]

PAGE = (Path(__file__).parents[2] / "docs/how-to/attest-a-fleet.md").read_text("utf-8")
NODES = ("node-17", "node-18", "node-19")
WAIT = 240


def block(title):
    """The one block of the page with this title, as it stands."""
    (found,) = re.findall(rf'^```sh title="{title}"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
    return found


def free_address():
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def machines(tmp_path):
    made = [Machine(tmp_path / name, name, ca=tmp_path / "ca") for name in NODES]
    try:
        for machine in made:
            machine.tpm.start()
            machine.boot()
            machine.write_settings(tmp_path / f"{machine.name}.settings")
        yield made
    finally:
        for machine in made:
            machine.tpm.stop()


@pytest.fixture
def shell(tmp_path):
    """Starts a block of the page in a folder where ``securetrain`` is this one."""
    command = tmp_path / "bin" / "securetrain"
    command.parent.mkdir()
    command.write_text(
        '#!/bin/sh\n[ "$1 $2" = "fleet join" ] &&'
        ' set -- "$@" --attester "$SPEAKS" --state "$KEYS"\n'
        f'exec {sys.executable} -m securetrain "$@"\n'
    )
    command.chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "SECURETRAIN_STATE": str(tmp_path / "state"),
        "COLUMNS": "100",
    }

    def start(text, **more):
        return subprocess.Popen(
            ["sh", "-ec", text],
            cwd=tmp_path,
            env={**environ, **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def test_the_page_from_nothing_to_three_machines_in_a_job(job, machines, shell, tmp_path):
    (tmp_path / "infineon.pem").write_text(machines[0].tpm.issuer_certificate)
    operator = block("operator")
    join = block("node")
    commands = operator.replace("\\\n", "").count("securetrain ") + len(NODES) * join.count(
        "securetrain "
    )
    assert commands <= 4, "from nothing to three admitted machines"
    desk = shell(operator.replace("10.0.0.1:29500", free_address()))
    try:
        give_up = time.monotonic() + WAIT
        while not (tmp_path / "tokens.csv").exists() and desk.poll() is None:
            assert time.monotonic() < give_up, "no tokens were made"
            time.sleep(0.1)
        assert desk.poll() is None, desk.communicate()
        with (tmp_path / "tokens.csv").open() as file:
            tokens = {row["node"]: row["token"] for row in csv.DictReader(file)}
        assert tuple(tokens) == NODES
        for name in NODES:
            how = {"SPEAKS": f"{name}.settings", "KEYS": f"{name}.keys", "TOKEN": tokens[name]}
            joining = shell(join, **how)
            said, _ = joining.communicate(timeout=WAIT)
            assert joining.returncode == 0, said
            assert f"{name} has proven itself" in said
            assert (tmp_path / f"{name}.keys" / "attester.json").exists()
        said, _ = desk.communicate("y\n", timeout=WAIT)
    finally:
        desk.kill()
        desk.wait()
    assert desk.returncode == 0, said
    key = key_text(PrivateKey.load(tmp_path / "operator.pem").public)
    assert key in said
    # The page's policy, with the key that was printed, and the tier that software TPMs can have.
    (yaml,) = re.findall(r"^```yaml\n(# fleet\.yaml.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    text = yaml.replace("MCowBQYDK2VwAyEA...", key).replace("min_tier: tpm", "min_tier: vtpm")
    (tmp_path / "fleet.yaml").write_text(text)
    job.start(3, 3, policy=load_policy(str(tmp_path / "fleet.yaml")))
    for machine in machines:
        identity = job.identity(machine.name)
        member = job.join(machine.name, identity=identity, attester=machine.attester(identity.key))
        assert member.result.tier is NodeTier.VTPM
        assert member.result.submods["tpm"].claims["group"] == "gpu-h100-2026.11"
