# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Scan the crafted and the ordinary files with ours and four others.

``python -m tools.scan_compare ORDINARY --picklescan BIN --modelscan BIN --fickling BIN --modelaudit
BIN --out FILE`` (ORDINARY is what ``tools.scan_corpus.ordinary`` wrote). Each scanner is the
program in its own environment, and keeps its words to this machine. A crafted file is missed when a
scanner ends as if it were clean; an ordinary one is an alarm when it does not. Others get a process
for each file, and a minute at most.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from securetrain.artifacts.scan.scanner import scan_path
from tools.scan_corpus.crafted import cases

CLEAN, ALARM, NOT_LOOKED_AT = "clean", "alarm", "not looked at"


def _run(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=False, timeout=60,
            env=os.environ | {"PYTHONWARNINGS": "ignore", "PROMPTFOO_DISABLE_TELEMETRY": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess([], -1, "", "time")


def _ours(_program: Path, file: Path) -> str:
    return {0: CLEAN, 3: NOT_LOOKED_AT}.get(int(scan_path(file).exit_code), ALARM)


def _picklescan(program: Path, file: Path) -> str:
    done = _run([program, "--path", file])
    scanned = re.search(r"Scanned files: (\d+)", done.stdout)
    if done.returncode == 0:
        return CLEAN if scanned and int(scanned[1]) else NOT_LOOKED_AT
    return ALARM


def _modelscan(program: Path, file: Path) -> str:
    done = _run([program, "-p", file])
    return {0: CLEAN, 1: ALARM}.get(done.returncode, NOT_LOOKED_AT)


def _fickling(program: Path, file: Path) -> str:
    """One file at a time is all that it takes: of a folder, the worst that it says."""
    if file.is_dir():
        said = {_fickling(program, one) for one in sorted(file.rglob("*")) if one.is_file()}
        return next((one for one in (ALARM, CLEAN) if one in said), NOT_LOOKED_AT)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = _run([program, "--check-safety", "--json-output", report, file])
        if not report.exists():
            return NOT_LOOKED_AT
    return CLEAN if done.returncode == 0 else ALARM


def _modelaudit(program: Path, file: Path) -> str:
    done = _run([program, "scan", file, "--format", "json"])
    if done.returncode == 0:
        return CLEAN if json.loads(done.stdout)["scanner_names"] else NOT_LOOKED_AT
    return ALARM if done.returncode == 1 else NOT_LOOKED_AT


SCANNERS: Final[dict[str, Callable[[Path, Path], str]]] = {
    "securetrain": _ours,
    "picklescan": _picklescan,
    "modelscan": _modelscan,
    "fickling": _fickling,
    "modelaudit": _modelaudit,
}


def _version(program: Path, name: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return _run([program.parent / "python", "-c", code]).stdout.strip()


def main() -> int:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("ordinary", type=Path)
    for name in list(SCANNERS)[1:]:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = {name: getattr(options, name, None) for name in SCANNERS}
    chosen["securetrain"] = Path(sys.executable)
    result: dict[str, object] = {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "scanners": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        crafted = []
        for number, case in enumerate(cases()):
            place = Path(folder) / f"{number:03}" / case.file
            place.parent.mkdir()
            place.write_bytes(case.data)
            crafted.append((case.name, place))
        ordinary = [(place.name, place) for place in sorted(options.ordinary.iterdir())]
        for name, program in chosen.items():
            if program is None:
                continue
            row = _row(name, program, crafted, ordinary)
            assert isinstance(result["scanners"], dict)
            result["scanners"][name] = row
            print(json.dumps({key: value for key, value in row.items() if key != "files"}))
            if options.out:
                options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _row(
    name: str, program: Path, crafted: list[tuple[str, Path]], ordinary: list[tuple[str, Path]]
) -> dict[str, object]:
    scan = SCANNERS[name]
    with ThreadPoolExecutor(3) as pool:
        every = list(pool.map(lambda case: scan(program, case[1]), [*crafted, *ordinary]))
    said = dict(zip((case for case, _ in crafted), every, strict=False))
    fine = dict(zip((case for case, _ in ordinary), every[len(crafted) :], strict=True))
    return {
        "scanner": name,
        "version": _version(program, name),
        "crafted": len(said),
        "named": sum(one == ALARM for one in said.values()),
        "said to be unknown": sum(one == NOT_LOOKED_AT for one in said.values()),
        "said to be clean": sum(one == CLEAN for one in said.values()),
        "ordinary": len(fine),
        "false alarms": sum(one == ALARM for one in fine.values()),
        "ordinary not looked at": sum(one == NOT_LOOKED_AT for one in fine.values()),
        "files": {
            "missed": [case for case, one in said.items() if one == CLEAN],
            "alarms": [case for case, one in fine.items() if one == ALARM],
        },
    }


if __name__ == "__main__":
    sys.exit(main())
