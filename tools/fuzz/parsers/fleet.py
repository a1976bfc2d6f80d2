# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes what machines that ask to be admitted send, their tokens, and lists of nodes."""

from pathlib import Path
from typing import Final

from securetrain.attest.fleet.guest_list import Guest, read_guests
from securetrain.attest.fleet.token import FleetToken, parse_fleet_token
from securetrain.core import canonical
from securetrain.rendezvous.wire import fleet_entry
from securetrain.rendezvous.wire.enrollment import new_key
from tests.attest.worlds import Machine, bundle_of
from tests.evidence.tpm.forge import NOW
from tools.fuzz.engine import Parser

_DIGEST: Final = "ab" * 32


def fleet(folder: Path) -> list[Parser]:
    """Parsers of a fleet's desk.

    Args:
        folder: For the files that are read.
    """
    folder.mkdir(parents=True)
    machine = Machine("node-4")
    token = FleetToken(
        host="10.0.0.1",
        port=29500,
        pin=_DIGEST,
        node="node-4",
        group="image",
        ends=NOW,
        secret=bytes(16),
    )
    messages: list[fleet_entry.AnyFleet] = [
        fleet_entry.Knock(
            protocol=fleet_entry.FLEET,
            token=_DIGEST,
            key=machine.key.public.spki,
            keys=machine.keys(),
            proof=bytes(64),
            possession=bytes(64),
        ),
        fleet_entry.Question(fresh=bytes(32), credential=(bytes(50), bytes(50))),
        fleet_entry.Answer(bundle=bundle_of(machine)),
        fleet_entry.Kept(digest=_DIGEST, worth="tpm", learned=("boot",), notes=()),
    ]

    def read_message(data: bytes) -> object:
        message = fleet_entry.decode_fleet(data, fleet_entry.ANSWER_LIMIT)
        if isinstance(message, fleet_entry.Knock):
            new_key(message.key)
        return message

    def read_list(data: bytes) -> list[Guest]:
        path = folder / "nodes.csv"
        path.write_bytes(data)
        return read_guests(path, "image")

    return [
        Parser(
            "fleet-message",
            lambda: [canonical.encode(message) for message in messages],
            read_message,
        ),
        Parser(
            "fleet-token",
            lambda: [token.text().encode()],
            lambda data: parse_fleet_token(data.decode("latin-1")),
        ),
        Parser(
            "fleet-list",
            lambda: [
                b"node,group,ek\nn-1,,\nn-2,image-b,000b" + b"ab" * 32 + b"\n",
                b"node\nn-1\n",
            ],
            read_list,
        ),
    ]
