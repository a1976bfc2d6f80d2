# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rules for a node's Hello: it says of itself what its certificate says, and can be reached."""

from securetrain.core.errors import AdmissionError
from securetrain.identity import SpiffeId
from securetrain.rendezvous.wire.meaning import check_address
from securetrain.rendezvous.wire.protocol import PROTOCOL, Hello
from securetrain.rendezvous.wire.sealing import check_sealing
from securetrain.rendezvous.wire.tunnel import check_hello as check_tunnel


def check_hello(hello: Hello, peer: SpiffeId, remote: str, *, alone: bool) -> None:
    """Compare what a node says of itself with what its certificate says."""
    if hello.protocol != PROTOCOL:
        raise AdmissionError(
            "ST-ADMN-001", f"protocol {hello.protocol[:40]!r}, this is {PROTOCOL}", "Hello.protocol"
        )
    if hello.job != peer.job:
        raise AdmissionError(
            "ST-ADMN-004",
            f"the node asks for job {hello.job}, its certificate is for {peer.job}",
            "Hello.job",
            "use the identity of this job",
        )
    if hello.node != peer.node:
        raise AdmissionError(
            "ST-ADMN-009",
            f"the node calls itself {hello.node}, its certificate says {peer.node}",
            "Hello.node",
            "use the node's own identity",
        )
    check_address(hello.address, remote, alone=alone)
    check_tunnel(hello)
    check_sealing(hello.sealing)
