# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A fleet of nodes whose TPMs are forged in software, and timed exchanges with a verifier.

What nodes do is not counted: their TPMs would take most of the time. The verifier is the real one,
with the policy "hardened", its state in a file, and reference values of every node.
"""

import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from securetrain.attest.node.software import collect_software
from securetrain.attest.node.tpm.agent import BOOT_PCRS
from securetrain.attest.session.state import FileState
from securetrain.attest.session.verifier import Verifier
from securetrain.core import canonical
from securetrain.evidence.binding import Binding
from securetrain.evidence.case import Ask
from securetrain.evidence.node_evidence import Evidence, NodeEvidence
from securetrain.evidence.reference import ReferenceValues
from securetrain.evidence.result import AttestationResult
from securetrain.evidence.tpm.certificates import TpmReference
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.eventlog import EventType
from securetrain.evidence.tpm.runtime_policy import ImaReference
from securetrain.evidence.tpm.structures import PcrSelection
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.policy.schema import ImaMode
from securetrain.testing.bootlog import Boot, Event
from securetrain.testing.machine import runtime_policy
from securetrain.testing.measurement_lists import Measurement, measured_file, replayed
from tests.attest.worlds import MAKER_CA, Machine, World, node_policy, reference_values
from tests.evidence.tpm.forge import Authority, Tpm

MAKER: Final = Authority("a maker's intermediate", MAKER_CA)
COORDINATOR: Final = PrivateKey.generate(KeyKind.P256)
MANIFEST: Final = canonical.encode(
    collect_software(job="job-1", executable=Path(sys.executable), environ={})
)
_QUOTED: Final = (PcrSelection(Hash.SHA256, BOOT_PCRS),)
_REVOKED_IMAGES: Final = 370
_COMMANDS: Final = 58


class ServerBoot(Boot):
    """The boot of a server, as large as real ones: about 85 events and 34 kB of log."""

    def events(self) -> tuple[Event, ...]:
        """Every measured event, the boot loader's commands at the end."""
        commands = (b"set option_%d=value" % number for number in range(_COMMANDS))
        return (
            *super().events(),
            *(Event(8, EventType.IPL, b"grub_cmd: " + text, text) for text in commands),
        )

    @cached_property
    def _log(self) -> bytes:
        return super().log()

    def log(self, banks: Sequence[Hash] = (Hash.SHA256,)) -> bytes:  # noqa: ARG002 - one bank
        """The log as firmware hands it over."""
        return self._log


SERVER: Final = ServerBoot(dbx=tuple(b"revoked image %d" % n for n in range(_REVOKED_IMAGES)))


class Node(Machine):
    """A node with a forged TPM."""

    def __init__(self, number: int, template: str) -> None:
        """Make the keys and certificates, and boot.

        Args:
            number: of the node; RSA endorsement keys are made once for each number.
            template: of the endorsement key.
        """
        super().__init__(f"node-{number}", MAKER, tpm=Tpm(template, key=number))
        self.boot(SERVER)
        self.hello = self.keys()
        self.identity = self.key.public

    def measure(self, entries: Sequence[Measurement]) -> None:
        """What the kernel measures when files are used for the first time."""
        self.measured += entries
        self.tpm.pcrs[10] = replayed(entries, self.tpm.pcrs[10])

    def answer(self, binding: Binding, ask: Ask) -> Evidence:
        """What its agent sends, over the registers that it quotes."""
        tpm = self.evidence(binding.value(MANIFEST), ask, selections=_QUOTED)
        tpm = msgspec.structs.replace(tpm, pcrs=dict(self.tpm.values(BOOT_PCRS)))
        return self.sign(NodeEvidence(manifest=MANIFEST, tpm=tpm), binding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Nodes that boot the same and run the same, and what they are judged by."""

    nodes: tuple[Node, ...]
    values: ReferenceValues
    ima: ImaMode = ImaMode.OFF

    @contextmanager
    def verifier(self) -> Iterator[Verifier]:
        """A verifier that has seen none of them."""
        with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
            state = FileState(Path(folder) / "state")
            policy = node_policy("hardened", tpm={"ima": self.ima})
            yield World(*self.nodes, values=self.values, policy=policy, state=state).verifier
            state.close()


def make_fleet(
    size: int, template: str, *, ima: ImaMode = ImaMode.OFF, files: Iterable[str] = ()
) -> Fleet:
    """A fleet that is switched on.

    Args:
        size: number of nodes.
        template: of their endorsement keys.
        ima: what the policy asks of the measurement list.
        files: paths that the runtime policy knows; see `measured`.
    """
    nodes = tuple(Node(number, template) for number in range(size))
    return Fleet(nodes=nodes, values=fleet_values(nodes, files), ima=ima)


def fleet_values(nodes: Sequence[Node], files: Iterable[str] = ()) -> ReferenceValues:
    """Reference values that accept these nodes."""
    contents: Mapping[str, bytes] = {path: path.encode() for path in files}
    return reference_values(
        *nodes,
        tpm=TpmReference(roots=(MAKER_CA.pem,), intermediates=(MAKER.pem,)),
        ima=ImaReference(policy=runtime_policy({**BOOTED, **contents})),
    )


BOOTED: Final = {"/usr/bin/python3.11": b"the interpreter", "/opt/train.py": b"the script"}
"""What every machine has run when it is up (`Machine.boot`)."""


def measured(files: Iterable[str]) -> tuple[Measurement, ...]:
    """Entries of a measurement list, for files that contain their own path."""
    return tuple(measured_file(path, path.encode(), "ima-ng") for path in files)


def exchange(verifier: Verifier, nodes: Sequence[Node]) -> tuple[float, list[AttestationResult]]:
    """Let every node join or renew.

    Returns:
        Processor seconds of the verifier for each, and its results.
    """
    started = time.process_time()
    challenges = [verifier.challenge(node.name, node.hello) for node in nodes]
    seconds = time.process_time() - started
    answers = []
    for node, challenge in zip(nodes, challenges, strict=True):
        binding = Binding(
            nonce=challenge.nonce,
            session=bytes(16),
            job="job-1",
            client_spki=node.identity.spki,
            server_spki=COORDINATOR.public.spki,
            exporter=bytes(32),
            ak_name=challenge.ak_name,
        )
        answers.append((node, binding, node.answer(binding, challenge.ask)))
    started = time.process_time()
    results = [
        verifier.appraise(evidence, binding, node=node.name, key=node.identity)
        for node, binding, evidence in answers
    ]
    seconds += time.process_time() - started
    return seconds / len(nodes), results
