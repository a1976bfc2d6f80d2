# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Each command line under torchrun and under ours: the same but for what the table says."""

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.vocabulary import free_port, outcome
from tools.torchrun_lines import COMMON, LINES, Line

SCRIPT = """\
import json, os, signal, sys
from pathlib import Path

out = Path(os.environ["PROBE_OUT"])
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
rank = int(os.environ["RANK"])
seen = {"argv": sys.argv[1:], "name": Path(sys.argv[0]).name, "env": dict(os.environ)}
seen |= {"cwd": os.getcwd(), "main": __name__}

(out / f"rank-{rank}-{attempt}.json").write_text(json.dumps(seen))
os.write(1, f"out of {rank}\\n".encode())
os.write(2, f"err of {rank}\\n".encode())


def fail():
    raise ValueError("no data")


match sys.argv[1]:
    case "once" if attempt == 0 and rank == 0:
        sys.exit(5)
    case "exit" if rank == 0:
        sys.exit(3)
    case "exit":
        import time
        time.sleep(300)
    case "raise":
        fail()
    case "record":
        from torch.distributed.elastic.multiprocessing.errors import record
        record(fail)()
    case "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""
OURS = re.compile(r"SECURETRAIN_|(GLOO|TP|NCCL)_")
"""Variables that are ours alone, listed on the page of the worker environment."""
SHORT = {"an exception"}
"""What `make test` runs; the others cost as much and show the same code."""


@dataclass(frozen=True)
class Told:
    """What one launcher did with a line."""

    code: int
    err: str
    workers: dict[str, Any]
    error_file: Any
    logs: list[str]
    out: list[str]


def tell(line: Line, command: list[str], folder: Path) -> Told:
    here = folder / "here"
    for path in (here / "pack", here / "lib", folder / "out", folder / "tmp"):
        path.mkdir(parents=True)
    for path in (here / "probe.py", here / "pack" / "probe.py"):
        path.write_text(SCRIPT)
    port = free_port()
    given = [word.format(port=port, log=folder / "log") for word in line.argv]
    keep = {"HOME", "LANG", "PATH", "VIRTUAL_ENV"}
    env = {name: value for name, value in os.environ.items() if name in keep} | line.env
    env |= {"PROBE_OUT": str(folder / "out"), "TMPDIR": str(folder / "tmp")}
    env |= {"TORCHELASTIC_ERROR_FILE": str(folder / "error.json"), "OMP_NUM_THREADS": "1"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    done = outcome([*command, *given], cwd=here, env=env)
    error = folder / "error.json"
    log = folder / "log"
    return Told(
        done.returncode,
        done.stderr,
        {p.name: plain(p, folder, port) for p in sorted((folder / "out").iterdir())},
        json.loads(error.read_text()) if error.exists() else None,
        sorted("/".join(p.relative_to(log).parts[1:]) for p in log.rglob("*.log")),
        sorted(text for text in done.stdout.splitlines() if "out of" in text),
    )


def plain(path: Path, folder: Path, port: int) -> Any:
    """One worker's account, without what differs between any two runs."""
    text = path.read_text().replace(str(folder), "FOLDER")
    found = json.loads(text)
    found["env"] = {
        name: "PORT" if value == str(port) else value for name, value in found["env"].items()
    }
    return found


@pytest.mark.dist
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=line.name, marks=[] if line.name in SHORT else pytest.mark.many)
        for line in LINES
    ],
)
def test_a_line_differs_as_the_table_says(line, tmp_path):
    torchrun = [str(Path(sys.executable).with_name("torchrun"))]
    ours = [str(Path(sys.executable).with_name("securetrain")), "run", "--policy", "dev"]
    ours += ["--run-dir", str(tmp_path / "ours" / "run"), "--output", str(tmp_path / "ours")]
    told = tell(line, ours, tmp_path / "ours")
    assert told.code == line.exits[1], told.err
    if line.says:
        ours_given = f"--run-dir {tmp_path / 'ours' / 'run'}"
        assert line.says.format(ours=ours_given) in told.err
        assert told.workers == {}
        assert told.error_file is not None
        return
    theirs = tell(line, torchrun, tmp_path / "theirs")
    assert theirs.code == line.exits[0], theirs.err
    assert (told.logs, told.out) == (theirs.logs, theirs.out)
    assert told.workers.keys() == theirs.workers.keys()
    for name, seen in theirs.workers.items():
        mine = told.workers[name]
        assert {k: mine[k] for k in mine if k != "env"} == {k: seen[k] for k in seen if k != "env"}
        differ = {
            key
            for key in mine["env"].keys() | seen["env"].keys()
            if mine["env"].get(key) != seen["env"].get(key) and not OURS.match(key)
        }
        assert differ - line.changed <= set(COMMON), {
            k: (seen["env"].get(k), mine["env"].get(k)) for k in differ
        }
        assert line.changed <= differ
        if "{port}" in "".join(line.argv):
            assert mine["env"]["MASTER_PORT"] == "PORT"
    if line.adds_error_file:
        assert theirs.error_file is None
        assert told.error_file is not None
    else:
        assert summary(told.error_file) == summary(theirs.error_file)


def summary(document: Any) -> Any:
    """An error file's message and exit code."""
    if document is None:
        return None
    message = document["message"]
    if isinstance(message, str):
        return message
    return message["message"].splitlines()[0], message.get("errorCode")
