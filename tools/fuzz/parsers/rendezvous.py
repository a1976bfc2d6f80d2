# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes what the rendezvous reads: frames, messages, identities on disk, what an epoch means."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from securetrain.attest.session.passport import issue_passport, svid_pem, verify_passport
from securetrain.core import canonical
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.result import AttestationResult
from securetrain.identity import dsse
from securetrain.identity.job_ca import JobCA, certificate_pem
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role
from securetrain.network.epoch import OverlayMember, resolve
from securetrain.network.wireguard import WireGuardKey, encode_key
from securetrain.rendezvous.coordinator.memory import (
    STATE_LIMIT,
    Held,
    JobState,
    decode_state,
    encode_state,
)
from securetrain.rendezvous.member import identity_dir
from securetrain.rendezvous.member.entry import parse_endpoint
from securetrain.rendezvous.member.renewed import check_renewed
from securetrain.rendezvous.wire import enrollment, protocol
from securetrain.rendezvous.wire.membership import (
    PAYLOAD_TYPE,
    Expected,
    Member,
    Membership,
    verify_membership,
)
from securetrain.rendezvous.wire.tunnel import Tunnel, check_hello, store_host
from securetrain.testing.clock import START
from tools.fuzz.engine import Parser

if TYPE_CHECKING:
    from securetrain.network.overlay import Overlay

_HEX: Final = "ab" * 32
_JOB: Final = "job-1"


def rendezvous(folder: Path) -> list[Parser]:
    """The parsers.

    Args:
        folder: A directory for those that read files; it is made.
    """
    return [*_messages(), *_identities(folder), *_epochs(), *_states()]


def _states() -> list[Parser]:
    """The coordinator's state on disk; behind the signature too, so that mutations reach it."""
    key = PrivateKey.generate()
    member = Member(
        rank=0,
        node="node-1",
        certificate=_HEX,
        tier=NodeTier.TPM,
        result=_HEX,
        address="192.0.2.1",
        local_world=1,
        wireguard="",
        wireguard_port=0,
    )
    state = JobState(
        job=_JOB,
        round=1,
        membership=Membership(
            job=_JOB,
            coordinator=f"spiffe://securetrain.local/job/{_JOB}/coordinator",
            epoch=1,
            round=1,
            policy=_HEX,
            issued=START,
            members=(member,),
        ),
        members=(Held(node="node-1", key=_HEX, lease_ends=START, proven=START),),
        store=protocol.Store(epoch=1, host="192.0.2.1", port=29500),
        restart=False,
        closed=False,
        finished=(),
        done=(),
        evicted=(),
        out=(),
        last={"node-1": 1},
        led=("node-1",),
    )

    def read_signed(data: bytes) -> None:
        decode_state(data, key.public)

    def read_body(data: bytes) -> None:
        canonical.decode(data, JobState, limit=STATE_LIMIT, canonical=True)

    return [
        Parser("coordinator-state", lambda: [encode_state(state, key)], read_signed),
        Parser("coordinator-state-body", lambda: [canonical.encode(state)], read_body),
    ]


def _messages() -> list[Parser]:
    key = encode_key(WireGuardKey.generate().public)
    hello = protocol.Hello(protocol=protocol.PROTOCOL, job=_JOB, node="node-1", address="127.0.0.1")
    messages: list[protocol.AnyMessage] = [
        hello,
        protocol.Challenge(nonce=bytes(32), session=bytes(16)),
        protocol.Proof(media_type="a/b", body=b"{}", binding=bytes(32), signature=b"s"),
        protocol.Admit(
            tier=NodeTier.TPM,
            label="tpm",
            result="e30.e30.s",
            svid="PEM",
            certificate="",
            policy=_HEX,
            lease_seconds=600.0,
            heartbeat_seconds=5.0,
            join_timeout_seconds=60.0,
            min_nodes=1,
            max_nodes=2,
        ),
        protocol.Ready(floors=(b"head",)),
        protocol.Status(waiting=1, ready=2, closed=False),
        protocol.Formed(membership="{}", preshared={"node-1": key}),
        protocol.Store(epoch=1, host="127.0.0.1", port=29500),
        protocol.Heartbeat(),
        protocol.Renew(),
        protocol.Close(),
        protocol.Suspect(node="node-2", epoch=1, code="ST-GRAD-001", transcript=b"t"),
        protocol.Leave(),
        protocol.Refuse(code="ST-ADMN-001", what="what", fix="fix"),
    ]
    frames = [protocol.encode_frame(message) for message in messages]
    applications: list[enrollment.AnyEnrollment] = [
        enrollment.Apply(
            protocol=enrollment.ENROLLMENT,
            token="0" * 64,
            key=PrivateKey.generate(KeyKind.P256).public.spki,
            proof=bytes(64),
            possession=bytes(70),
        ),
        enrollment.Grant(certificate="PEM"),
        enrollment.Report(body=b"{}"),
        enrollment.Filed(digest="0" * 64),
    ]

    def read_stream(data: bytes) -> None:
        reader = protocol.FrameReader()
        for start in range(0, len(data), 1000):
            reader.feed(data[start : start + 1000])
            while (body := reader.next(protocol.FRAME_LIMIT)) is not None:
                protocol.decode_message(body)

    def read_application(data: bytes) -> None:
        message = enrollment.decode_enrollment(data)
        if isinstance(message, enrollment.Apply):
            enrollment.new_key(message.key)

    def read_message(data: bytes) -> None:
        message = protocol.decode_message(data)
        if isinstance(message, protocol.Hello):
            check_hello(message)

    return [
        Parser(
            "rendezvous-message",
            lambda: [frame[protocol.HEADER_SIZE :] for frame in frames],
            read_message,
        ),
        Parser("rendezvous-stream", lambda: [*frames, b"".join(frames)], read_stream),
        Parser(
            "enrolment-message",
            lambda: [enrollment.encode_enrollment(m)[protocol.HEADER_SIZE :] for m in applications],
            read_application,
        ),
        Parser(
            "rendezvous-endpoint",
            lambda: [b"192.0.2.1:29400", b"[2001:db8::1]:1", b"coordinator.example:65535"],
            lambda data: parse_endpoint(data.decode("utf-8", "replace")),
        ),
    ]


def _identities(folder: Path) -> list[Parser]:
    ca = JobCA.create("securetrain.local", _JOB, START)
    made = identity_dir.write_identity(folder, ca, "node-1", START)
    files = (identity_dir.KEY_FILE, identity_dir.CERTIFICATE_FILE, identity_dir.CA_FILE)
    honest = {name: (folder / name).read_bytes() for name in files}
    day = timedelta(hours=24)
    other = ca.issue(Role.NODE, made.key.public, START, node="node-1", lifetime=day)
    coordinator = PrivateKey.generate(KeyKind.P256)
    result = AttestationResult(
        job=_JOB,
        node="node-1",
        key_id=made.key.key_id,
        tier=NodeTier.SELF_ASSERTED,
        label="self-asserted",
        media_type="a/b",
        evidence=_HEX,
        policy=_HEX,
        issued=START,
        expires=made.certificate.not_valid_after_utc,
        submods={},
    )
    passport = issue_passport(result, key=coordinator, ca=ca, node_key=made.key.public)

    def with_file(name: str) -> Callable[[bytes], object]:
        def parse(data: bytes) -> object:
            for file, content in honest.items():
                (folder / file).write_bytes(data if file == name else content)
            return identity_dir.load_identity(folder, START)

        return parse

    def read_svid(data: bytes) -> object:
        return verify_passport(
            passport.ear, data, key=coordinator.public, ca=ca.certificate, now=START
        )

    return [
        *(
            Parser(f"identity-{name}", partial(list, [honest[name]]), with_file(name), share=0.2)
            for name in files
        ),
        Parser(
            "renewed-certificate",
            lambda: [certificate_pem(other)],
            lambda data: check_renewed(data.decode("utf-8", "replace"), made, START),
            share=0.5,
        ),
        Parser("admitted-svid", lambda: [svid_pem(passport).encode()], read_svid, share=0.2),
    ]


@dataclass
class _Told:
    """Stands in for an overlay: takes an epoch as far as it is pure."""

    key: bytes

    def apply(self, _epoch: int, members: Collection[OverlayMember]) -> None:
        resolve(_JOB, "node-0", self.key, members)


def _epochs() -> list[Parser]:
    """What the coordinator signs and should not: memberships, and the keys that come with them."""
    keys = [WireGuardKey.generate() for _ in range(3)]
    membership = Membership(
        job=_JOB,
        coordinator="spiffe://a.b/job/job-1/coordinator",
        epoch=1,
        round=0,
        policy=_HEX,
        issued=START,
        members=tuple(
            Member(
                rank=rank,
                node=f"node-{rank}",
                certificate=f"{rank:064x}",
                tier=NodeTier.TPM,
                result=_HEX,
                address=f"192.0.2.{rank + 1}",
                local_world=2,
                wireguard=encode_key(key.public),
                wireguard_port=51820,
            )
            for rank, key in enumerate(keys)
        ),
    )
    preshared = {f"node-{rank}": encode_key(keys[rank].public) for rank in (1, 2)}
    signer = PrivateKey.generate()
    own = membership.members[0]
    expected = Expected(
        job=_JOB,
        coordinator=membership.coordinator,
        key=signer.public,
        policy=_HEX,
        epoch=0,
        node=own.node,
        certificate=own.certificate,
        results={_HEX: own.tier},
        address=own.address,
        local_world=own.local_world,
        wireguard=own.wireguard,
        wireguard_port=own.wireguard_port,
    )
    overlay = cast("Overlay", cast("Any", _Told(keys[0].public)))
    tunnel = Tunnel(overlay=overlay, endpoint=ip_address("192.0.2.1"))

    def apply(data: bytes) -> None:
        signed = dsse.sign(data, PAYLOAD_TYPE, [signer]).decode()
        found = verify_membership(signed, expected)
        store_host(found)
        tunnel.apply(found, preshared)

    def take(data: bytes) -> None:
        message = protocol.decode_message(data)
        if isinstance(message, protocol.Formed):
            tunnel.apply(membership, message.preshared)

    formed = protocol.Formed(membership="{}", preshared=preshared)
    return [
        Parser("job-network-epoch", lambda: [canonical.encode(membership)], apply),
        Parser(
            "job-network-keys",
            lambda: [protocol.encode_frame(formed)[protocol.HEADER_SIZE :]],
            take,
        ),
    ]
