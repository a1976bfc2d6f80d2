# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ``torchrun.handlers`` entry point: ``torchrun --rdzv-backend securetrain``.

torch imports this module in every process that imports torch.distributed, so it imports nothing
until a handler is asked for. ::

    torchrun --nnodes 2 --rdzv-backend securetrain --rdzv-id JOB \
        --rdzv-endpoint coordinator.example:29400 --rdzv-conf identity=/etc/securetrain/JOB ...

``--rdzv-endpoint`` may name standbys of the coordinator after it, with commas: ``a:29400,b:29400``.
``--rdzv-conf`` takes ``identity`` (a folder with node.pem, node.crt and ca.crt; needed), ``bind``
(the IP address where this node's store would listen for the others, by default torchrun's
``--local-addr``, else 127.0.0.1), ``local_world`` and ``role`` (workers on this node and torchrun's
``--role``; the agent's own when left out), ``join_timeout`` (seconds), ``store_port`` (of the store
in the first round, by default any) and ``attester`` (``auto`` or a settings file: what speaks for
this node beside itself).
None of them is a secret: torchrun prints them.

torchrun's workers get this process's environment. With a ``bind`` that others can reach, their
libraries are told to use the device that has it, unless a variable says already which: by the
machine's own name they would find 127.0.0.1 on many.

``securetrain run`` adds ``tunnel``, an object, when the job has a network of its own, ``carrier``,
one that carries the store over TLS when it has none, or into the network with loopback alone that
the workers of one node have, ``on_epoch``, which hears of every epoch, ``on_join``, which is given
the member, and ``floors``, which says what this node has seen as newest; nobody can write those as
text. It gives ``local_world`` and ``role`` itself; under plain torchrun the agent's word for both
goes over the control connection (`agent_store`).
"""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from cryptography.x509 import Certificate
    from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters

    from securetrain.rendezvous.member.store import WorkersNetwork
    from securetrain.rendezvous.wire.tunnel import Tunnel

TUNNEL: Final = "tunnel"
ON_EPOCH: Final = "on_epoch"
FLOORS: Final = "floors"
ON_JOIN: Final = "on_join"
CARRIER: Final = "carrier"
STORE_PORT: Final = "store_port"
DEVICE_VARIABLES: Final = frozenset(
    {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
)
_OBJECTS = frozenset({TUNNEL, ON_EPOCH, FLOORS, CARRIER, ON_JOIN})
_KNOWN = _OBJECTS | {
    *("identity", "bind", "local_world", "role", "join_timeout", "attester"),
    *("timeout", "rank", STORE_PORT),
}


def get_creator() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """Hand over the creator, and nothing else: torch's registry calls this at import."""
    return create_handler


def create_handler(params: "RendezvousParameters") -> "RendezvousHandler":
    """A handler for one node's agent.

    Raises:
        UsageError: ST-USAG-001 for a missing or unknown setting.
        IdentityError: the identity folder is not good.
    """
    import logging  # noqa: PLC0415 - light until asked for
    import os  # noqa: PLC0415
    from datetime import UTC, datetime  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from securetrain.attest import node  # noqa: PLC0415
    from securetrain.core.errors import SecureTrainError  # noqa: PLC0415
    from securetrain.core.vocabulary import NetworkProfile  # noqa: PLC0415
    from securetrain.rendezvous.member.client import Member  # noqa: PLC0415
    from securetrain.rendezvous.member.handler import SecureRendezvousHandler  # noqa: PLC0415
    from securetrain.rendezvous.member.identity_dir import (  # noqa: PLC0415
        load_identity,
        replace_certificate,
    )
    from securetrain.rendezvous.member.relay import Carrier  # noqa: PLC0415

    if TUNNEL not in params.config and ON_EPOCH not in params.config:
        _name_device(str(params.get("bind") or params.local_addr or ""), os.environ)

    _check_settings(params)
    places = parse_endpoints(params.endpoint)
    tunnel: Tunnel | None = params.get(TUNNEL)
    given = str(params.get("bind") or params.local_addr or "127.0.0.1")
    carrier: Carrier | WorkersNetwork | None = params.get(CARRIER)
    sealed = carrier if isinstance(carrier, Carrier) else None
    address = str(tunnel.endpoint) if tunnel else sealed.address if sealed else given
    local_world = _number(params, "local_world")

    def clock() -> datetime:
        return datetime.now(UTC)

    folder = Path(str(params.get("identity")))
    identity = load_identity(folder, clock())
    spoken = str(params.get("attester") or "")
    settings = node.settings_for(spoken, folder / "tpm") if spoken else None
    if identity.spiffe.job != params.run_id:
        raise _usage(
            f"the identity is for job {identity.spiffe.job}, the rendezvous id is {params.run_id}",
            "--rdzv-id",
            f"--rdzv-id {identity.spiffe.job}",
        )

    def keep(certificate: "Certificate") -> None:
        try:
            replace_certificate(folder, certificate)
        except SecureTrainError as error:
            # This connection does not need it; only the node's next one would.
            logging.getLogger(__name__).warning("the renewed certificate is not kept: %s", error)

    def connect() -> Member:
        key, environ = identity.key, dict(os.environ)
        attester: node.Attester = node.SoftwareAttester(key=key, environ=environ)
        if settings is not None:
            attester = node.make_attester(settings, key, environ=environ)
        member = Member(
            identity,
            attester,
            clock=clock,
            address=address,
            local_world=local_world or 0,
            role=str(params.get("role") or ""),
            tunnel=tunnel,
            network=NetworkProfile.STORE_TLS if sealed else None,
            on_certificate=keep,
            floors=params.config.get(FLOORS, tuple),
            comes_back=True,
        )
        member.connect(*places[0], *places[1:])
        if ON_JOIN in params.config:
            params.config[ON_JOIN](member)
        return member

    return SecureRendezvousHandler(
        connect,
        run_id=params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        join_timeout=_number(params, "join_timeout"),
        inside=tunnel.entered if tunnel else nullcontext,
        carrier=carrier,
        store_port=_number(params, STORE_PORT) or 0,
        **({ON_EPOCH: params.config[ON_EPOCH]} if ON_EPOCH in params.config else {}),
    )


def _name_device(bind: str, environ: "MutableMapping[str, str]") -> None:
    """Tell the workers' libraries which device to use: that of the address that others reach.

    Raises:
        NetworkError: ST-NETW-018 when no device has that address, ST-NETW-010 without ``ip``.
    """
    from ipaddress import ip_address  # noqa: PLC0415

    from securetrain.network import Namespace  # noqa: PLC0415
    from securetrain.network.overlay import underlay_device  # noqa: PLC0415

    try:
        address = ip_address(bind)
    except ValueError:
        return  # none given; what is no address, the handler refuses
    if address.is_loopback or environ.keys() >= DEVICE_VARIABLES:
        return
    device, _ = underlay_device(Namespace(), address)
    for name in DEVICE_VARIABLES:
        # A bare name is a prefix for NCCL; '=' asks for exactly this one.
        environ.setdefault(name, f"={device}" if name.startswith("NCCL_") else device)


def _check_settings(params: "RendezvousParameters") -> None:
    unknown = sorted(set(params.config) - _KNOWN)
    if unknown:
        raise _usage(
            f"unknown setting {unknown[0]!r}",
            "--rdzv-conf",
            "use identity, bind, local_world, role, join_timeout, store_port or attester; the last"
            " call and the heart-beat are the coordinator's, the same for every node",
        )
    if any(isinstance(params.get(name), str) for name in _OBJECTS):
        raise _usage("an object is nothing that can be written", "--rdzv-conf", "leave it out")
    if not params.get("identity"):
        raise _usage(
            "no identity was given",
            "--rdzv-conf",
            "give --rdzv-conf identity=DIR, the folder that 'securetrain enroll join' wrote",
        )


def parse_endpoints(text: str, where: str = "--rdzv-endpoint") -> list[tuple[str, int]]:
    """The hosts and ports of a list with commas: the coordinator's, and its standbys'.

    Raises:
        UsageError: ST-USAG-001.
    """
    return [parse_endpoint(one.strip(), where) for one in text.split(",")]


def parse_endpoint(text: str, where: str = "--rdzv-endpoint") -> tuple[str, int]:
    """The host and port of ``HOST:PORT`` or ``[IPV6]:PORT``.

    Raises:
        UsageError: ST-USAG-001.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not _is_number(port, digits=5) or not 0 < int(port) < 65536:
        raise _usage(f"{text!r} is not HOST:PORT", where, "give the coordinator's address and port")
    return host, int(port)


def _number(params: "RendezvousParameters", name: str) -> int | None:
    value: Any = params.get(name)
    if value is None:
        return None
    if not _is_number(str(value), digits=9) or int(value) == 0:
        raise _usage(f"{name} is {str(value)[:40]!r}", "--rdzv-conf", f"{name}=NUMBER, above 0")
    return int(value)


def _is_number(text: str, digits: int) -> bool:
    """Tell whether it is a number of a few decimal digits; a long one is never converted."""
    return text.isascii() and text.isdigit() and len(text) <= digits


def _usage(what: str, where: str, fix: str) -> Exception:
    from securetrain.core.errors import UsageError  # noqa: PLC0415 - light until asked for

    return UsageError("ST-USAG-001", what, where, fix)
