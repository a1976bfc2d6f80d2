# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's answer to a challenge: evidence that is bound to this connection and this job."""

from securetrain.attest.node import Attester
from securetrain.evidence import Ask, Binding
from securetrain.evidence.tpm import parse_public
from securetrain.identity import public_key_of
from securetrain.identity.keys import PublicKey
from securetrain.rendezvous.member.identity_dir import NodeIdentity
from securetrain.rendezvous.wire.channel import Channel
from securetrain.rendezvous.wire.protocol import Challenge, Hello, Proof


def peer_key(channel: Channel) -> PublicKey:
    """The key of the coordinator at the other end."""
    certificate = channel.check.certificate
    assert certificate is not None, "the handshake is over"
    return public_key_of(certificate)


def prove(
    attester: Attester,
    identity: NodeIdentity,
    hello: Hello,
    channel: Channel,
    challenge: Challenge,
) -> Proof:
    """Collect the evidence that a challenge asks for."""
    keys = hello.tpm
    binding = Binding(
        nonce=challenge.nonce,
        session=challenge.session,
        job=identity.spiffe.job,
        client_spki=identity.key.public.spki,
        server_spki=peer_key(channel).spki,
        exporter=channel.exporter(challenge.session),
        ak_name=parse_public(keys.ak_public).name if keys is not None else b"",
        wireguard=hello.wireguard.encode(),
        sealing=hello.sealing.encode(),
    )
    ask = Ask(credential=challenge.credential, ima_first=challenge.ima_first, full=challenge.full)
    evidence = attester.collect(binding, ask)
    return Proof(
        media_type=evidence.media_type,
        body=evidence.body,
        binding=evidence.binding,
        signature=evidence.signature,
    )
