# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's answer to a challenge: evidence that is bound to this connection and this job."""

from collections.abc import Callable
from datetime import datetime

from securetrain.attest.node import Attester
from securetrain.evidence import Ask, AttestationKeys, Binding, tpm
from securetrain.identity import public_key_of
from securetrain.identity.keys import PublicKey
from securetrain.rendezvous.member.identity_dir import NodeIdentity
from securetrain.rendezvous.wire.channel import Channel
from securetrain.rendezvous.wire.protocol import (
    AskPart,
    Challenge,
    Hello,
    ListPart,
    Proof,
    unexpected,
)


def peer_key(channel: Channel) -> PublicKey:
    """The key of the coordinator at the other end."""
    certificate = channel.check.certificate
    assert certificate is not None, "the handshake is over"
    return public_key_of(certificate)


class Prover:
    """Answers the challenges of one node's connections, and then asks for parts of its list."""

    def __init__(
        self, attester: Attester, identity: NodeIdentity, clock: Callable[[], datetime]
    ) -> None:
        """Start with nothing to show.

        Args:
            attester: makes evidence.
            identity: the node's key and names.
            clock: the time, timezone-aware.
        """
        self._attester = attester
        self._identity = identity
        self._clock = clock
        self._parts: tuple[bytes, ...] = ()
        self.proved: datetime | None = None
        """The time at which the latest evidence was made."""

    def keys(self) -> AttestationKeys | None:
        """The node's TPM keys, for Hello; None without a TPM."""
        return self._attester.keys()

    def answer(
        self, hello: Hello, channel: Channel, asked: Challenge | AskPart
    ) -> Proof | ListPart:
        """The answer to whatever the coordinator asks about this node.

        Raises:
            AdmissionError: ST-ADMN-001 for a part that was not announced.
            SecureTrainError: What the attester raises.
        """
        return (
            self._part(asked) if isinstance(asked, AskPart) else self._prove(hello, channel, asked)
        )

    def _prove(self, hello: Hello, channel: Channel, challenge: Challenge) -> Proof:
        keys = hello.tpm
        binding = Binding(
            nonce=challenge.nonce,
            session=challenge.session,
            job=self._identity.spiffe.job,
            client_spki=self._identity.key.public.spki,
            server_spki=peer_key(channel).spki,
            exporter=channel.exporter(challenge.session),
            ak_name=tpm.parse_public(keys.ak_public).name if keys is not None else b"",
            wireguard=hello.wireguard.encode(),
            sealing=hello.sealing.encode(),
        )
        ask = Ask(
            credential=challenge.credential,
            ima_first=challenge.ima_first,
            full=challenge.full,
            parts=True,
        )
        evidence = self._attester.collect(binding, ask)
        self._parts, self.proved = evidence.parts, self._clock()
        return Proof(
            media_type=evidence.media_type,
            body=evidence.body,
            binding=evidence.binding,
            signature=evidence.signature,
        )

    def _part(self, asked: AskPart) -> ListPart:
        if asked.index >= len(self._parts):
            raise unexpected(asked, f"no question about a list of {len(self._parts)} parts")
        return ListPart(index=asked.index, data=self._parts[asked.index])

    def judged(self) -> None:
        """Forget the list: nobody asks for it any more."""
        self._parts = ()
