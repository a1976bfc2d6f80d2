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

import errno
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from select import select
from typing import Any, Final, Self

from securetrain.launch.sandbox import enter, landlock, start
from securetrain.launch.sandbox.cgroup import NO_LIMITS, Group, NoLimitsError, make_group
from securetrain.launch.sandbox.orders import PRIVATE_CACHE, Features, orders
from securetrain.launch.sandbox.seccomp import TABLE, is_known
from securetrain.launch.sandbox.view import OWN_NETWORK, Scene

_READY_SECONDS: Final = 30.0
_ANSWER_LIMIT: Final = 4096
_END_SECONDS: Final = 10.0
PARTS: Final[Mapping[str, str]] = {
    "namespaces": "mounts, processes and memory of its own",
    "user": "a user of its own",
    "landlock": "Landlock",
    "seccomp": "a filter for system calls",
    "limits": "limits of memory and tasks",
    "network": "a network of their own",
}
"""The parts that a machine may not give (`Features`), for people."""
_STAGES: Final[Mapping[str, str]] = {
    **{part: part for part in PARTS},
    "mounts": "namespaces",
    "idmap": "user",
}
"""What is left out when a stage of `holder` fails."""


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """A sandbox that stands. Made by `start`."""

    scene: Scene
    features: Features
    lacking: Mapping[str, str]
    """The parts that this machine does not give, and why."""
    gaps: tuple[str, ...]
    """What is missing in the parts that it gives."""
    notes: tuple[str, ...]
    name: str
    process: subprocess.Popen[bytes] = field(repr=False)
    lifeline: socket.socket = field(repr=False)
    group: Group | None = None
    """In which the workers are limited; None where no limit was asked for."""
    reached: tuple[str, ...] = ()
    """At the end: the limits that the workers ran into."""
    _asking: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def start(cls, scene: Scene, *, ranks_apart: bool = False) -> Self:
        """Make the best sandbox that this machine gives (rule 1).

        Args:
            scene: The job.
            ranks_apart: Give each rank a Landlock domain of its own, where there is Landlock.

        Raises:
            OSError: Not even a process without privileges can be started.
        """
        features = Features(
            user=scene.user is not None,
            landlock=scene.landlock_version > 0,
            seccomp=is_known(),
            network=scene.netns == OWN_NETWORK,
            ranks_apart=ranks_apart,
        )
        lacking: dict[str, str] = {}
        group = None
        if not features.landlock:
            lacking["landlock"] = "this kernel has none"
        if not features.seccomp:
            lacking["seccomp"] = "no table for this processor"
        if scene.limits:
            try:
                group = make_group(scene.limits)
                scene = replace(scene, cgroup=str(group.entry))
            except NoLimitsError as error:
                lacking["limits"] = str(error)
                features = replace(features, limits=False)
        try:
            return cls._tried(scene, features, lacking, group)
        except BaseException:
            if group is not None:
                group.remove()
            raise

    @classmethod
    def _tried(
        cls, scene: Scene, features: Features, lacking: dict[str, str], group: Group | None
    ) -> Self:
        while True:
            if not features.namespaces:
                (scene.run / PRIVATE_CACHE).mkdir(mode=0o700, parents=True, exist_ok=True)
            made = _Attempt(scene, features)
            answer = made.wait()
            if "missing" in answer:
                return cls(
                    scene=scene,
                    features=features,
                    lacking=lacking,
                    gaps=tuple(answer["missing"]),
                    notes=tuple(made.orders["notes"]),
                    name=made.name,
                    process=made.process,
                    lifeline=made.lifeline,
                    group=group,
                )
            made.end()
            part = _STAGES.get(answer["stage"], "")
            if not part or not getattr(features, part):
                raise OSError(f"the sandbox cannot be made: {answer['error']}")
            lacking[part] = answer["error"]
            features = replace(features, **{part: False})
            if part == "namespaces" and features.network:
                lacking["network"] = answer["error"]
                features = replace(features, network=False)

    @property
    def missing(self) -> tuple[str, ...]:
        """The parts that this machine does not give, with the reason, for people."""
        return (*(f"{PARTS[part]} ({why})" for part, why in self.lacking.items()), *self.gaps)

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
            network = ", memory and network" if has.network else " and memory"
            parts.append(f"own mounts, processes{network}")
        if has.landlock:
            parts.append(f"Landlock {scene.landlock_version}")
            if has.ranks_apart:
                parts.append(landlock.ranks_label(scene.landlock_version))
        if has.seccomp:
            parts.append(f"{len(TABLE)} system calls refused")
        parts.append(str(scene.limits if has.limits else NO_LIMITS))
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

    @property
    def has_network(self) -> bool:
        """Return whether the workers have a network of their own, with loopback alone."""
        return self.features.network

    def listen(self, address: str, port: int = 0) -> socket.socket:
        """A socket of this process that listens in the workers' network.

        Raises:
            OSError: It cannot, or the sandbox has ended.
        """
        return self._socket("listen", address, port)

    def connect(self, address: str, port: int) -> socket.socket:
        """A socket of this process that is connected in the workers' network.

        Raises:
            OSError: It cannot, or the sandbox has ended.
        """
        return self._socket("connect", address, port)

    def _socket(self, how: str, address: str, port: int) -> socket.socket:
        with self._asking:
            self.lifeline.send(json.dumps([how, address, port]).encode())
            said, found, _, _ = socket.recv_fds(self.lifeline, _ANSWER_LIMIT, 1)
        if found:
            return socket.socket(fileno=found[0])
        if not said:
            raise OSError(errno.ECONNRESET, "the sandbox has ended")
        refused = json.loads(said)
        raise OSError(refused["errno"] or errno.EIO, refused["why"])

    def unroutable(self) -> int:
        """Count what was sent in the workers' network where no route leads.

        Raises:
            OSError: The kernel's counters cannot be read.
        """
        net = Path(f"/proc/{self.process.pid}/net")
        lines = (net / "snmp").read_text("ascii").splitlines()
        names, values = (line.split() for line in lines if line.startswith("Ip:"))
        count = int(values[names.index("OutNoRoutes")])
        for line in (net / "snmp6").read_text("ascii").splitlines():
            if line.startswith("Ip6OutNoRoutes"):
                count += int(line.split()[1])
        return count

    def close(self) -> None:
        """End it, and every process in it; without effect the second time."""
        self.lifeline.close()
        _end(self.process)
        group, self.group = self.group, None
        if group is not None:
            self.reached = group.reached()
            group.remove()
        if self.scene.user is not None:
            self.scene.user.release()


class _Attempt:
    """A holder that was started; its answer is waited for."""

    def __init__(self, scene: Scene, features: Features) -> None:
        self.name = f"securetrain-{secrets.token_hex(16)}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(f"\0{self.name}")
        listener.listen(1024)
        self.lifeline, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
