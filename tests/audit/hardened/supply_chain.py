# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the job loads."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.audit.hardened.faults import Bad, all_of, env
from tests.audit.hardened.machine import Machine, distribution


def _torch(version: str) -> Callable[[Machine], Any]:
    def make(machine: Machine) -> None:
        (machine.site / "torch-2.13.0.dist-info").rename(
            machine.site / f"torch-{version}.dist-info"
        )
        distribution(machine.site, "torch", version, record="honest.pth,,\n")

    return make


BAD: Mapping[str, Bad] = {
    "torch-old": Bad("ST-SUP-001", _torch("2.5.1")),
    "ray-old": Bad("ST-SUP-003", lambda m: distribution(m.site, "ray", "2.9.3")),
    "transformers-old": Bad("ST-SUP-004", lambda m: distribution(m.site, "transformers", "4.47.1")),
    "start-up-file": Bad("ST-SUP-011", lambda m: (m.site / "zz.pth").write_text("")),
    "working-directory-in-path": env("ST-SUP-012", PATH="/usr/bin:."),
    "empty-entry-of-path": env("ST-SUP-012", PATH=":/usr/bin"),
    "relative-library-path": env("ST-SUP-012", LD_LIBRARY_PATH="lib"),
    "preloaded-for-all": Bad(
        "ST-SUP-012",
        all_of(
            lambda m: m.write("/etc/ld.so.preload", "/opt/hook.so # ours\n"),
            lambda m: m.write("/opt/hook.so", "", 0o666),
        ),
        "/etc/ld.so.preload",
        is_subject=True,
    ),
    "preload-list-writable": Bad("ST-SUP-012", lambda m: m.write("/etc/ld.so.preload", "", 0o666)),
    "inductor": Bad("ST-SUP-013", lambda m: m.folder("/home/me/cache/inductor", 0o777)),
    "triton": Bad("ST-SUP-014", lambda m: m.folder("/home/me/cache/triton", 0o777)),
    "extensions": Bad("ST-SUP-015", lambda m: m.folder("/home/me/cache/extensions", 0o777)),
    "handler": Bad(
        "ST-SUP-023",
        lambda m: distribution(m.site, "other", "1", points="[torchrun.handlers]\nx = o:f\n"),
    ),
    "weights-only": env("ST-CKP-005", TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="Y"),
}

GOOD: Mapping[str, tuple[str, Callable[[Machine], Any]]] = {
    "preloaded-by-root": (
        "ST-SUP-012",
        all_of(
            lambda m: m.write("/etc/ld.so.preload", "/opt/hook.so\n"),
            lambda m: m.write("/opt/hook.so", "", 0o755),
        ),
    ),
    "weights-only-false": (
        "ST-CKP-005",
        lambda m: m.environ.update(TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="False"),
    ),
    "weights-only-on": (
        "ST-CKP-005",
        lambda m: m.environ.update(TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="on"),
    ),
}
