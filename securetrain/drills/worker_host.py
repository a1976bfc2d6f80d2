# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-WRK-HOST.

A training script that root starts rewrites the machine: `worker_probes` tries 72 things. Plain: all
of them work under torchrun, which gets mounts and a host name of its own here, so that the machine
stays as it is. Hardened: in the sandbox none works, and the script ends with ST-RUNT-004 at the
file of cron's that it makes last.
"""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch

import securetrain
from securetrain.core import STATE_VARIABLE, RunDir
from securetrain.drills import worker_probes
from securetrain.drills.ledgers import LACKING, endings
from securetrain.drills.registry import DRILLS, Outcome, Side
from securetrain.identity import ClusterCA

CODE: Final = DRILLS["D-WRK-HOST"].expected_code
_PATIENCE: Final = 110.0

_OWN_MOUNTS: Final = """\
mount -t tmpfs none /mnt
for place in /etc /usr/local/bin /usr/lib /var/lib /var/log /opt; do
  mkdir -p /mnt$place /mnt/work$place
  mount -t overlay -o lowerdir=$place,upperdir=/mnt$place,workdir=/mnt/work$place none $place
done
exec "$@"
"""


@contextmanager
def targets(workdir: Path) -> Iterator[list[str]]:
    """Make what the probes want on this machine; gone at the end.

    Yields:
        The script and its argument. It runs in ``work`` below `workdir`, and leaves
        ``probed.json`` there.
    """
    name = f"st-probe-{os.getpid()}"
    work, script = workdir / "work", workdir / "script" / "probes.py"
    work.mkdir()
    script.parent.mkdir()
    shutil.copy(worker_probes.__file__, script)
    ClusterCA.create(work / "ca", "securetrain.local", datetime.now(UTC)).close()
    other = RunDir(work / "runs" / "before")
    _launch(work, other, ["-m", "this"], check=True)
    (other.checkpoints / "step-1").mkdir(parents=True)
    state = Path(os.environ[STATE_VARIABLE])
    secrets = [Path.home() / f".{name}", Path("/tmp", name), Path("/dev/shm", name), state / name]
    listeners = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    try:
        for path in secrets:
            path.write_text("secret")
        listeners[0].bind(f"/run/{name}")
        listeners[1].bind(f"\0{name}")
        for listener in listeners:
            listener.listen()
        found = {
            "script": str(script),
            "run": str(workdir / "run"),
            "home_secret": str(secrets[0]),
            "tmp_secret": str(secrets[1]),
            "shm_secret": str(secrets[2]),
            "state_secret": str(secrets[3]),
            "our_code": str(Path(str(securetrain.__file__)).with_name("launch") / "options.py"),
            "package": str(torch.__file__),
            "ca_key": str(work / "ca" / "ca.pem"),
            "other_run": str(other.root),
            "process": os.getpid(),
            "run_socket": f"/run/{name}",
            "abstract_socket": name,
        }
        (work / "targets.json").write_text(json.dumps(found))
        yield [str(script), str(work / "targets.json")]
    finally:
        for listener in listeners:
            listener.close()
        for path in (*secrets, Path(f"/run/{name}")):
            path.unlink(missing_ok=True)


def launched(workdir: Path, script: list[str]) -> tuple[dict[str, str], list[str]]:
    """Run the probes in the sandbox; what each came to, and what the run ended with."""
    run = RunDir(workdir / "run")
    _launch(workdir / "work", run, ["--require", "sandbox", *script])
    return _probed(workdir), [event.code for event in endings(run)]


def torchrun(workdir: Path, script: list[str]) -> dict[str, str]:
    """Run them under stock torchrun; what each came to. Our run directory is there, with its keys.

    Raises:
        subprocess.CalledProcessError: The script failed.
    """
    plain = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        ["unshare", "--mount", "--uts", "sh", "-ec", _OWN_MOUNTS, "sh", *plain, *script],
        cwd=workdir / "work",
        check=True,
        timeout=_PATIENCE,
    )
    return _probed(workdir)


def lacks() -> str:
    """Name what this machine lacks for the probes, empty when it has all."""
    if os.geteuid() != 0:
        return "root"
    if platform.machine() != "x86_64":
        return "the numbers of system calls of x86_64"
    return "" if shutil.which("unshare") else "unshare(1)"


def plain(workdir: Path) -> Outcome:
    """Let the script loose under torchrun."""
    if lacking := lacks():
        return Outcome.not_made(Side.PLAIN, lacking)
    with targets(_own_state(workdir)) as script:
        _launch(workdir / "work", RunDir(workdir / "run"), ["-m", "this"], check=True)
        came = torchrun(workdir, script)
    done = [name for name, result in came.items() if result == "done"]
    return Outcome.of_plain(
        len(done) == len(worker_probes.PROBES),
        f"{len(done)} of {len(worker_probes.PROBES)} things worked under torchrun.",
    )


def hardened(workdir: Path) -> Outcome:
    """Let the same script loose in the sandbox."""
    if lacking := lacks():
        return Outcome.not_made(Side.HARDENED, lacking)
    with targets(_own_state(workdir)) as script:
        came, codes = launched(workdir, script)
    done = [name for name, result in came.items() if result == "done"]
    return Outcome.of_hardened(
        bool(done),
        len(came) == len(worker_probes.PROBES) and not done and CODE in codes,
        CODE if CODE in codes else next(iter(codes), ""),
        f"{len(came)} things were tried in the sandbox; what worked:"
        f" {', '.join(done) or 'nothing'}. The run ended with {', '.join(codes) or 'no code'}.",
        lacks="the sandbox of workers" if LACKING in codes else "",
    )


def _own_state(workdir: Path) -> Path:
    """The state of this node goes below the drill's directory."""
    state = workdir / "state"
    state.mkdir(mode=0o700)
    os.environ[STATE_VARIABLE] = str(state)
    return workdir


def _launch(work: Path, run: RunDir, words: list[str], *, check: bool = False) -> None:
    places = ["--run-dir", str(run.root), "--output", str(work)]
    subprocess.run(
        [sys.executable, "-m", "securetrain", "run", "--standalone", *places, *words],
        cwd=work,
        check=check,
        timeout=_PATIENCE,
    )


def _probed(workdir: Path) -> dict[str, str]:
    path = workdir / "work" / "probed.json"
    came: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return came
