# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The sandbox of a job on this node: made before its workers start, gone when the launcher is.

Rules:

1. what a machine can give is tried and not guessed: a part that fails is left out, and its reason
   kept, until the rest works;
2. with a part missing the sandbox is DEGRADED, which is said at the start, at the end, in the
   ledger and in the report; ``host.sandbox: required`` and ``--require sandbox`` refuse it;
3. root's workers are another user (`user`); an ordinary user's workers are that user, and what
   they may see and change is what the sandbox shows them.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from select import select
from typing import Any, Final, Self

from securetrain.launch.sandbox import enter, start
from securetrain.launch.sandbox.orders import PRIVATE_CACHE, Features, orders
from securetrain.launch.sandbox.seccomp import TABLE, is_known
from securetrain.launch.sandbox.view import Scene

_READY_SECONDS: Final = 30.0
_END_SECONDS: Final = 10.0
_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "namespaces": ("namespaces", "mounts, processes and memory of its own"),
    "mounts": ("namespaces", "mounts, processes and memory of its own"),
    "idmap": ("user", "a user of its own"),
    "user": ("user", "a user of its own"),
    "landlock": ("landlock", "Landlock"),
    "seccomp": ("seccomp", "a filter for system calls"),
}
"""What is left out when a stage of `holder` fails, and how people read it."""


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """A sandbox that stands. Made by `start`."""

    scene: Scene
    features: Features
    missing: tuple[str, ...]
    """The parts that this machine does not give, with the reason."""
    notes: tuple[str, ...]
    name: str
    process: subprocess.Popen[bytes] = field(repr=False)
    lifeline: socket.socket = field(repr=False)

    @classmethod
    def start(cls, scene: Scene) -> Self:
        """Make the best sandbox that this machine gives (rule 1).

        Raises:
            OSError: Not even a process without privileges can be started.
        """
        features = Features(
            user=scene.user is not None, landlock=scene.landlock_version > 0, seccomp=is_known()
        )
        missing = []
        if not features.landlock:
            missing.append("Landlock (this kernel has none)")
        if not features.seccomp:
            missing.append("a filter for system calls (no table for this processor)")
        while True:
            if not features.namespaces:
                (scene.run / PRIVATE_CACHE).mkdir(mode=0o700, parents=True, exist_ok=True)
            made = _Attempt(scene, features)
            answer = made.wait()
            if "missing" in answer:
                return cls(
                    scene=scene,
                    features=features,
                    missing=(*missing, *answer["missing"]),
                    notes=tuple(made.orders["notes"]),
                    name=made.name,
                    process=made.process,
                    lifeline=made.lifeline,
                )
            made.end()
            part, words = _PARTS.get(answer["stage"], ("", ""))
            if not part or not getattr(features, part):
                raise OSError(f"the sandbox cannot be made: {answer['error']}")
            missing.append(f"{words} ({answer['error']})")
            features = replace(features, **{part: False})

    @property
    def degraded(self) -> bool:
        """Return whether a part is missing (rule 2)."""
        return bool(self.missing)

    @property
    def user(self) -> int:
        """The workers' user: the job's, or the launcher's where that one could not be had."""
        has, user = self.features, self.scene.user
        return user.uid if has.namespaces and has.user and user is not None else os.geteuid()

    @property
    def label(self) -> str:
        """The sandbox, for people."""
        scene, has = self.scene, self.features
        parts = []
        if has.namespaces and has.user and scene.user is not None:
            parts.append(f"user {scene.user.uid}")
        else:
            parts.append("the launcher's user")
        if has.namespaces:
            parts.append("own mounts, processes and memory")
        if has.landlock:
            parts.append(f"Landlock {scene.landlock_version}")
        if has.seccomp:
            parts.append(f"{len(TABLE)} system calls refused")
        text = ", ".join(parts)
        return (
            f"DEGRADED: {text}; without {'; without '.join(self.missing)}" if self.missing else text
        )

    def command(
        self, argv: Sequence[str], inherited_files: Mapping[str, Path] | None = None
    ) -> list[str]:
        """The command that starts a program in the sandbox (`enter`)."""
        hands = [
            word
            for variable, file in (inherited_files or {}).items()
            for word in ("--hand", str(file), variable)
        ]
        program = [sys.executable, "-I", "-S", str(enter.__file__), self.name, *hands, "--"]
        return [*program, *argv]

    def close(self) -> None:
        """End it, and every process in it; without effect the second time."""
        self.lifeline.close()
        _end(self.process)
        if self.scene.user is not None:
            self.scene.user.release()


class _Attempt:
    """A holder that was started; its answer is waited for."""

    def __init__(self, scene: Scene, features: Features) -> None:
        self.name = f"securetrain-{secrets.token_hex(16)}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(f"\0{self.name}")
        listener.listen(1024)
        self.lifeline, theirs = socket.socketpair()
        self.status, told = os.pipe()
        numbers = {
            "socket": listener.fileno(),
            "lifeline": theirs.fileno(),
            "status": told,
        }
        self.orders: dict[str, Any] = orders(scene, features, numbers)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(start.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={},
            cwd="/",
            pass_fds=list(numbers.values()),
            start_new_session=True,
        )
        os.close(told)
        listener.close()
        theirs.close()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(self.orders).encode())
            self.process.stdin.close()

    def wait(self) -> dict[str, Any]:
        """Its answer: what is missing, or the stage that failed and why."""
        text = b""
        while not text.endswith(b"\n"):
            ready, _, _ = select([self.status], [], [], _READY_SECONDS)
            more = os.read(self.status, 1 << 16) if ready else b""
            if not more:
                break
            text += more
        os.close(self.status)
        if not text.endswith(b"\n"):
            return {"stage": "", "error": "its holder did not answer"}
        found: dict[str, Any] = json.loads(text)
        return found

    def end(self) -> None:
        """Give it up."""
        self.lifeline.close()
        _end(self.process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
