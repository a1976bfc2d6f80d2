# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes node evidence from its bytes up to the verdict, and what it is compared with."""

from typing import Final

import msgspec

from securetrain.attest.node.attester import sign_evidence
from securetrain.attest.node.composite import Part
from securetrain.attest.node.settings import FILE_LIMIT, AttesterSettings, TpmSettings
from securetrain.attest.session.state import MemoryState
from securetrain.core import canonical
from securetrain.core.errors import AttestationError
from securetrain.evidence.binding import Binding
from securetrain.evidence.case import Ask
from securetrain.evidence.node_evidence import NODE_TYPE, AttestationKeys, parse_node
from securetrain.evidence.reference import ReferenceValues
from tests.attest.worlds import MANIFEST, World
from tests.evidence.test_node_appraiser import equipped, whole
from tools.fuzz.engine import Parser

_SETTINGS: Final = AttesterSettings(
    tpm=TpmSettings(address="tcp:127.0.0.1:2321", state="/var/lib/tpm"),
    tee=Part.REQUIRED,
    gpus=Part.IF_PRESENT,
    tokens=("/run/token.jwt",),
)


def node() -> list[Parser]:
    """The parsers."""
    door = _Door()
    return [
        Parser("node-evidence", lambda: [door.honest], parse_node),
        Parser("node-verdict", lambda: [door.honest], door.judge, share=0.1),
        Parser("tpm-hello", lambda: [msgspec.json.encode(door.world.machine.keys())], door.greet),
        # Behind the signature, so that mutations reach the schema and who reads the values.
        Parser(
            "reference-values", lambda: [canonical.encode(door.world.values)], door.use, share=0.2
        ),
        Parser(
            "attester-settings",
            lambda: [canonical.encode(_SETTINGS), b"{}"],
            lambda data: canonical.decode(data, AttesterSettings, limit=FILE_LIMIT),
        ),
    ]


class _Door:
    """A verifier that asks everybody the same, so that one honest answer stays one."""

    def __init__(self) -> None:
        self.world: World = equipped(World())  # type: ignore[no-untyped-call]
        ask, binding = self._ask()
        said = whole(self.world.machine.collect(binding, ask), binding)  # type: ignore[no-untyped-call]
        self.honest: bytes = said.encode()

    def judge(self, body: bytes) -> None:
        """Evidence that the node itself has signed, whatever it says."""
        _, binding = self._ask()
        evidence = sign_evidence(
            NODE_TYPE, body, binding.value(_manifest(body)), self.world.machine.key
        )
        self.world.answer(evidence, binding)

    def greet(self, keys: bytes) -> None:
        """Keys in Hello."""
        try:
            found = msgspec.json.decode(keys, type=AttestationKeys)
        except (msgspec.DecodeError, UnicodeDecodeError):  # as `protocol` refuses it
            raise AttestationError("ST-ATTS-001", "no keys") from None
        self._forget()
        self.world.verifier.challenge("node-0", found)

    def use(self, values: bytes) -> None:
        """Reference values: an appraiser is made with them, and opens a TPM."""
        found = canonical.decode(values, ReferenceValues, canonical=True)
        machine, world = self.world.machine, self.world
        world.make_appraiser(values=found).open(machine.keys(), machine.name, world.now)

    def _ask(self) -> tuple[Ask, Binding]:
        self._forget()
        return self.world.ask()

    def _forget(self) -> None:
        self.world.state = MemoryState()
        self.world.restart()
        self.world.verifier.random = bytes


def _manifest(body: bytes) -> bytes:
    try:
        return parse_node(body).manifest
    except AttestationError:
        return MANIFEST
