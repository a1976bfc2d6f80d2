# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Where packages come from, and what became of them."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.audit.hardened.faults import Bad, all_of, env, text
from tests.audit.hardened.machine import REQUIREMENTS, TOOLKIT, Machine

PIP, UV, LIST = "/etc/pip.conf", "/home/me/.config/uv/uv.toml", "/job/requirements.txt"
STATUS = "/var/lib/dpkg/status"

BAD: Mapping[str, Bad] = {
    "toolkit-old": text("ST-SUP-002", STATUS, TOOLKIT.replace("1.18.0", "1.17.4")),
    "requirements-unhashed": text("ST-SUP-008", LIST, f"{REQUIREMENTS}numpy==2.1\n"),
    "requirements-by-url": text("ST-SUP-008", LIST, "x @ https://h/x.whl\n"),
    "requirements-included": Bad(
        "ST-SUP-008",
        all_of(
            lambda m: m.append(LIST, "-r more.txt\n"),
            lambda m: m.write("/job/more.txt", "numpy==2.1  # --hash=sha256:1\n"),
        ),
        "/job/more.txt",
    ),
    "extra-index": text(
        "ST-SUP-009", PIP, "[install]\nextra_index_url=\n  https://a/\n", subject=True
    ),
    "extra-index-of-user": text(
        "ST-SUP-009",
        "/home/me/.config/pip/pip.conf",
        "[global]\nextra-index-url = https://u:secret@h/simple\n",
        subject=True,
    ),
    "extra-index-in-environment": env("ST-SUP-009", PIP_EXTRA_INDEX_URL="https://h/simple"),
    "index-without-tls": text(
        "ST-SUP-009", PIP, "[global]\nindex-url: http://mirror/simple\n", subject=True
    ),
    "trusted-host": text("ST-SUP-009", PIP, "[global]\ntrusted-host = mirror\n", subject=True),
    "any-index-of-uv": text(
        "ST-SUP-009", UV, 'index-strategy = "unsafe-best-match"\n', subject=True
    ),
    "extra-index-in-list": text(
        "ST-SUP-009", LIST, f"--extra-index-url https://h/simple\n{REQUIREMENTS}", subject=True
    ),
    "cuda-cache": Bad("ST-SUP-016", lambda m: m.folder("/home/me/.nv/ComputeCache", 0o777)),
    "bytecode-elsewhere": Bad(
        "ST-SUP-016",
        all_of(
            lambda m: m.environ.update(PYTHONPYCACHEPREFIX="/scratch/pyc"),
            lambda m: m.folder("/scratch", 0o777),
        ),
    ),
    "remote-cache": env("ST-SUP-017", TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE="1"),
    "hub": Bad(
        "ST-SUP-022",
        all_of(
            lambda m: m.environ.update(TORCH_HOME="/scratch/hub"),
            lambda m: m.folder("/scratch", 0o777),
        ),
    ),
    "changed-after-installation": Bad(
        "ST-SUP-010", lambda m: (m.site / "torch/serialization.py").write_text("x = 2\n")
    ),
}

GOOD: Mapping[str, tuple[str, Callable[[Machine], Any]]] = {
    "no-toolkit-old-package": (
        "ST-SUP-002",
        lambda m: m.append(STATUS, TOOLKIT.replace("toolkit", "runtime").replace("1.18", "1.2")),
    ),
    "mirror": ("ST-SUP-009", lambda m: m.environ.update(PIP_INDEX_URL="https://mirror/simple")),
    "commented-index": ("ST-SUP-009", lambda m: m.append(PIP, "# extra-index-url = https://h\n")),
    "first-index-of-uv": (
        "ST-SUP-009",
        lambda m: m.write(UV, 'index-strategy = "first-index"\nextra-index-url = ["https://h"]\n'),
    ),
    "only-includes": (
        "ST-SUP-008",
        all_of(
            lambda m: m.write(LIST, "--require-hashes\n-r below.txt\n"),
            lambda m: m.write("/job/below.txt", REQUIREMENTS),
        ),
    ),
    "file-that-is-gone": (
        "ST-SUP-009",
        lambda m: m.environ.update(PIP_CONFIG_FILE="/dev/null"),
    ),
}
