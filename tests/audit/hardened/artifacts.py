# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the job reads and goes on from: a signed dataset, a signed checkpoint with its head."""

import pickle
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from securetrain.artifacts.statement.statements import sign
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.identity.keys import PrivateKey
from tests.audit.hardened.faults import Bad, all_of
from tests.audit.hardened.machine import Machine
from tests.audit.hardened.signed import DOCS, RUN, STEP, weights


def _place(machine: Machine, path: str) -> Path:
    return machine.root / path.lstrip("/")


def _remove(path: str) -> Callable[[Machine], Any]:
    return lambda machine: _place(machine, path).unlink()


def _add(path: str, content: bytes) -> Callable[[Machine], Any]:
    return lambda machine: _place(machine, path).write_bytes(content)


def _link(path: str, target: str) -> Callable[[Machine], Any]:
    return lambda machine: _place(machine, path).symlink_to(target)


def _flip_everywhere(machine: Machine) -> None:
    for path in _place(machine, DOCS).rglob("*"):
        if path.is_file() and "_securetrain" not in path.parts and path.name != STATEMENT:
            path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))


class _Runs:
    def __reduce__(self) -> Any:
        import os

        return os.system, ("true",)


PLAIN = pickle.dumps({"w": [1.0]})
RUNS = pickle.dumps(_Runs())
CHECKPOINT = frozenset({"ST-CKP-001", "ST-CKP-011"})
"""What else is wrong with a checkpoint that is not as it was signed."""

_NFS = "9 1 0:9 / /scratch rw,{flags} shared:1 - {kind} srv:/ rw,{options}\n"


def _mount(flags: str, options: str, kind: str = "nfs4") -> Callable[[Machine], Any]:
    line = _NFS.format(flags=flags, kind=kind, options=options)
    return lambda machine: machine.append("/proc/self/mountinfo", line)


TABLE = "/proc/self/mountinfo"
BAD: Mapping[str, Bad] = {
    "mount-with-programs": Bad("ST-CKP-015", _mount("nodev", "sec=krb5p"), TABLE),
    "mount-with-devices": Bad("ST-CKP-015", _mount("nosuid", "xprtsec=tls"), TABLE),
    "mount-in-clear": Bad("ST-CKP-016", _mount("nosuid,nodev", "sec=sys,addr=10.0.0.9"), TABLE),
    "mount-of-ceph": Bad("ST-CKP-016", _mount("nosuid,nodev", "ms_mode=crc", "ceph"), TABLE),
    "checkpoint-without-statement": Bad(
        "ST-CKP-001", _remove(f"{STEP}/{STATEMENT}"), also=CHECKPOINT
    ),
    "checkpoint-with-more": Bad(
        "ST-CKP-001", _add(f"{STEP}/more.bin", b"x"), f"{STEP}/more.bin", is_subject=True
    ),
    "checkpoint-cut-short": Bad(
        "ST-CKP-001", _add(f"{STEP}/rank-00000.bin", b"x"), f"{STEP}/rank-00000.bin"
    ),
    "checkpoint-of-a-stranger": Bad(
        "ST-CKP-001",
        lambda m: _place(m, f"{STEP}/{STATEMENT}").write_bytes(
            sign(weights(_place(m, STEP), datetime.now(UTC)), "x", PrivateKey.generate())
        ),
        f"{STEP}/{STATEMENT}",
        also=CHECKPOINT,
    ),
    "checkpoints-writable": Bad("ST-CKP-002", lambda m: m.folder(RUN, 0o777)),
    "checkpoints-below-writable": Bad("ST-CKP-002", lambda m: m.folder("/data", 0o777)),
    "checkpoint-pickled": Bad(
        "ST-CKP-003",
        _add(f"{STEP}/optimizer.pt", PLAIN),
        f"{STEP}/optimizer.pt",
        is_subject=True,
        also=CHECKPOINT,
    ),
    "checkpoint-of-torch": Bad(
        "ST-CKP-003",
        _add(f"{STEP}/.metadata", PLAIN),
        f"{STEP}/.metadata",
        is_subject=True,
        also=CHECKPOINT,
    ),
    "checkpoint-that-runs": Bad(
        "ST-CKP-004",
        _add(f"{STEP}/optimizer.pt", RUNS),
        f"{STEP}/optimizer.pt",
        is_subject=True,
        also=CHECKPOINT | {"ST-CKP-003"},
    ),
    "latest-outside": Bad(
        "ST-CKP-006",
        all_of(
            lambda m: m.folder("/data/elsewhere"),
            _remove(f"{RUN}/latest"),
            _link(f"{RUN}/latest", "../elsewhere"),
        ),
        f"{RUN}/latest",
        is_subject=True,
    ),
    "link-in-checkpoint": Bad(
        "ST-CKP-006",
        _link(f"{STEP}/weights", "/etc/passwd"),
        also=CHECKPOINT | {"ST-CKP-004"},
    ),
    "latest-of-deepspeed": Bad(
        "ST-CKP-006",
        all_of(_remove(f"{RUN}/latest"), _add(f"{RUN}/latest", b"../../tmp/global_step9\n")),
        f"{RUN}/latest",
        is_subject=True,
    ),
    "checkpoint-without-head": Bad("ST-CKP-011", _remove(f"{RUN}/head.json")),
    "checkpoint-with-foreign-head": Bad(
        "ST-CKP-011", _add(f"{RUN}/head.json", b"{}"), f"{RUN}/head.json"
    ),
    "dataset-without-statement": Bad("ST-DAT-001", _remove(f"{DOCS}/{STATEMENT}")),
    "dataset-with-more": Bad(
        "ST-DAT-001", _add(f"{DOCS}/more.txt", b"x"), f"{DOCS}/more.txt", is_subject=True
    ),
    "dataset-with-script": Bad(
        "ST-DAT-005",
        _add(f"{DOCS}/docs.py", b"print()"),
        f"{DOCS}/docs.py",
        is_subject=True,
        also=frozenset({"ST-DAT-001"}),
    ),
    "dataset-with-pickle": Bad(
        "ST-DAT-005",
        _add(f"{DOCS}/part.joblib", PLAIN),
        f"{DOCS}/part.joblib",
        is_subject=True,
        also=frozenset({"ST-DAT-001"}),
    ),
    "dataset-cache-writable": Bad(
        "ST-DAT-007", lambda m: m.folder("/home/me/.cache/huggingface", 0o777)
    ),
    "dataset-cache-elsewhere": Bad(
        "ST-DAT-007",
        all_of(
            lambda m: m.environ.update(HF_DATASETS_CACHE="/scratch/hf"),
            lambda m: m.folder("/scratch", 0o777),
        ),
    ),
    "dataset-changed": Bad("ST-DAT-009", _flip_everywhere),
}

GOOD: Mapping[str, tuple[str, Callable[[Machine], Any]]] = {
    "latest-inside": (
        "ST-CKP-006",
        all_of(_remove(f"{RUN}/latest"), _add(f"{RUN}/latest", b"step-00000100\n")),
    ),
    "mount-through-a-tunnel": (
        "ST-CKP-016",
        _mount("nosuid,nodev", "sec=sys,addr=127.0.0.1"),
    ),
    "no-disk": (
        "ST-CKP-015",
        lambda m: m.append(
            TABLE,
            _NFS.replace("/scratch", "/").format(flags="relatime", kind="nfs", options="sec=krb5p"),
        ),
    ),
    "cache-in-a-sticky-folder": (
        "ST-DAT-007",
        all_of(
            lambda m: m.environ.update(HF_HOME="/scratch/hf"),
            lambda m: m.folder("/scratch", 0o1777),
            lambda m: m.folder("/scratch/hf", 0o700),
        ),
    ),
}
