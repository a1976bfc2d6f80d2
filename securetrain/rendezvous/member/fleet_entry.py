# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A machine's side of being admitted to a fleet: `prove_to_fleet` turns a token into a proof.

Nothing is said to a listener that does not hold the key that the token pins. The TPM's quote names
this connection alone (`attest.fleet.token.channel_nonce`).
"""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import Final

from OpenSSL import SSL

from securetrain.attest.fleet import (
    Bundle,
    FleetToken,
    Question,
    channel_nonce,
    collect_bundle,
    knock_statement,
)
from securetrain.attest.node import Attester
from securetrain.core.errors import AdmissionError, AttestationError, IdentityError, UsageError
from securetrain.identity import public_key_of
from securetrain.identity.keys import PrivateKey
from securetrain.rendezvous.wire.channel import Anonymous, Channel
from securetrain.rendezvous.wire.fleet_entry import (
    EXPORTER_LABEL,
    EXPORTER_SIZE,
    FLEET,
    KNOCK_LIMIT,
    Answer,
    AnyFleet,
    Kept,
    Knock,
    decode_fleet,
    encode_fleet,
)
from securetrain.rendezvous.wire.fleet_entry import Question as Asked
from securetrain.rendezvous.wire.protocol import Refuse, refusal_of, unexpected
from securetrain.rendezvous.wire.tls import (
    agreed,
    make_connection,
    plain_context,
    set_protocol,
    unauthenticated,
)

TIMEOUT: Final = 60.0


def prove_to_fleet(
    token: FleetToken,
    attester: Attester,
    key: PrivateKey,
    *,
    clock: Callable[[], datetime],
    timeout: float = TIMEOUT,
    monotonic: Callable[[], float] = time.monotonic,
) -> tuple[Bundle, Kept]:
    """Prove this machine to the desk of a token.

    Args:
        token: it.
        attester: of this machine, with a TPM.
        key: the node's key, P-256, with which the attester signs.
        clock: the time, timezone-aware.
        timeout: seconds for each step of the desk.
        monotonic: a steady clock in seconds.

    Returns:
        What was said, and what the desk answered.

    Raises:
        AdmissionError: ST-ADMN-002 not the desk of the token, 005 or 007 no answer, 012 to 017 and
            020 to 023 its refusals.
        AttestationError: ST-ATTS-013 without a TPM, 15x what could not be collected, and its
            refusals.
    """
    now = clock()
    if now >= token.ends:
        raise AdmissionError(
            "ST-ADMN-015",
            f"it ended at {token.ends:%Y-%m-%dT%H:%M:%SZ}, and it is {now:%Y-%m-%dT%H:%M:%SZ}",
            f"node {token.node}",
            "ask for a new one: securetrain fleet admit",
        )
    keys = attester.keys()
    if keys is None:
        raise AttestationError(
            "ST-ATTS-013",
            "this machine shows no TPM",
            f"node {token.node}",
            "run it as root where /dev/tpmrm0 is, or name the TPM with --attester",
        )
    with ExitStack() as stack:
        channel = _connect(token, timeout, monotonic)
        stack.callback(channel.close)
        channel.shake_hands(monotonic() + timeout)
        connection = channel.connection
        _check_desk(connection, token)
        exporter = connection.export_keying_material(EXPORTER_LABEL, EXPORTER_SIZE, b"")
        secret, spki = token.key, key.public.spki
        signed = knock_statement(secret.key_id, spki, keys, exporter)
        knock = Knock(
            protocol=FLEET,
            token=secret.key_id,
            key=spki,
            keys=keys,
            proof=secret.sign(signed),
            possession=key.sign(signed),
        )
        asked = _ask(channel, knock, monotonic() + timeout)
        if not isinstance(asked, Asked):
            raise unexpected(asked, "Question")
        question = Question(
            node=token.node,
            nonce=channel_nonce(asked.fresh, exporter, token.pin, secret.key_id, spki),
            credential=asked.credential,
        )
        bundle = collect_bundle(attester, key.public, clock(), question, asked_itself=False)
        kept = _ask(channel, Answer(bundle=bundle), monotonic() + timeout)
        if not isinstance(kept, Kept):
            raise unexpected(kept, "Kept")
        if kept.digest != bundle.evidence.digest.hex():
            raise AdmissionError(
                "ST-ADMN-001", "the desk kept something else than was sent", "Kept.digest"
            )
    return bundle, kept


def _ask(channel: Channel, message: AnyFleet, deadline: float) -> AnyFleet:
    with suppress(AdmissionError):  # it may have refused already, and says why
        channel.send_frame(encode_fleet(message), deadline)
    body = channel.receive_frame(deadline, limit=KNOCK_LIMIT)
    assert body is not None, "nobody wakes a machine that asks"
    answer = decode_fleet(body)
    if isinstance(answer, Refuse):
        raise refusal_of(answer, "the fleet's desk", AttestationError, IdentityError, UsageError)
    return answer


def _connect(token: FleetToken, timeout: float, monotonic: Callable[[], float]) -> Channel:
    # OpenSSL verifies no chain here: the one key that may answer stands in the token.
    context = plain_context(server=False)
    set_protocol(context, FLEET.encode(), server=False)
    try:
        sock = socket.create_connection((token.host, token.port), timeout)
    except OSError as error:
        raise AdmissionError(
            "ST-ADMN-007",
            f"no desk answers: {error.strerror or error}",
            f"{token.host}:{token.port}",
            "start 'securetrain fleet serve' there, and check the firewall",
        ) from error
    return Channel(sock, make_connection(context, Anonymous(), server=False), monotonic=monotonic)


def _check_desk(connection: SSL.Connection, token: FleetToken) -> None:
    agreed(connection, FLEET.encode())
    shown = connection.get_peer_certificate(as_cryptography=True)
    if shown is None or public_key_of(shown).key_id != token.pin:
        raise unauthenticated(
            "the listener does not show the key that stands in the token",
            "do not go on: somebody else answers at this address, or the token is of another desk",
        )
