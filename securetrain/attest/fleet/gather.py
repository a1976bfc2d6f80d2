# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fetches what a verifier will need from makers to judge a node, by looking at the node's evidence.

Rules:

1. this runs where an operator has a network (`fetch`); verifiers only ever read the cache;
2. the evidence says what to ask for, and nothing more: every document is verified when it comes;
3. what cannot be had is told, and the rest is taken all the same.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import pairwise

from cryptography import x509

from securetrain.attest.fleet.bundle import Bundle
from securetrain.attest.fleet.description import parse_bundle
from securetrain.attest.fleet.download import Downloader
from securetrain.attest.fleet.fetch import Fetcher, Services
from securetrain.attest.session.cache import Item
from securetrain.core.errors import AttestationError, SecureTrainError
from securetrain.evidence import DeviceEvidence, TeeEvidence, TeeKind
from securetrain.evidence.gpu import (
    NVIDIA_DEVICE_ROOTS,
    ocsp_id,
    parse_report,
    parse_rim,
    verify_device,
    wanted_rims,
)
from securetrain.evidence.tee import claimed_key, claimed_platform


@dataclass(frozen=True, slots=True)
class Gathered:
    """The documents that were fetched for some nodes."""

    items: tuple[Item, ...]
    problems: tuple[str, ...]
    """What could not be had, and why."""


@dataclass(slots=True)
class _Gathering:
    """The documents fetched so far, each once."""

    fetcher: Fetcher
    roots: frozenset[str]
    items: dict[tuple[str, str], Item] = field(default_factory=dict)
    problems: dict[str, None] = field(default_factory=dict)
    asked: set[object] = field(default_factory=set)

    def node(self, bundle: Bundle) -> None:
        """Everything that one node's hardware calls for."""
        node = parse_bundle(bundle)
        if node.tee is not None:
            self.attempt(partial(self.cpu, node.tee))
        for number, device in enumerate(node.devices):
            where = f"{bundle.node}: {device.kind} {number}"
            self.attempt(partial(self.device, device, where))

    def cpu(self, evidence: TeeEvidence) -> None:
        """AMD's certificates and list, or Intel's documents."""
        if evidence.kind is TeeKind.TDX:
            platform = claimed_platform(evidence.report)
            named = (platform.fmspc, platform.ca)
            self.take(named, partial(self.fetcher.tdx, *named))
            return
        product, key = claimed_key(evidence.report, evidence.certificates)
        if product is None or key is None:
            raise AttestationError(
                "ST-ATTS-402",
                "the processor is not known",
                "SEV-SNP",
                "use a version of securetrain that knows this processor",
            )
        self.take((product, key), partial(self.fetcher.amd, product, key))

    def device(self, evidence: DeviceEvidence, where: str) -> None:
        """Its RIMs, and whether its certificates and theirs are revoked."""
        nonce = parse_report(evidence.report, where).nonce
        state = verify_device(
            evidence, nonce=nonce, now=self.fetcher.now, roots=self.roots, where=where
        )
        chain = [x509.load_der_x509_certificate(der) for der in evidence.certificates]
        self.statuses(chain[1:])  # the leaf's status is nobody's to tell
        for wanted in wanted_rims(state):
            self.take(wanted.id, partial(self.rim, wanted.id))

    def rim(self, name: str) -> list[Item]:
        """A RIM, and whether its signer is revoked."""
        item = self.fetcher.rim(name)
        roots, now = self.fetcher.pins.rim, self.fetcher.now
        rim = parse_rim(item.data, roots=roots, now=now, allow_expired=True, where=name)
        self.statuses(rim.certificates)
        return [item]

    def statuses(self, chain: Sequence[x509.Certificate]) -> None:
        """The answer about each certificate but the root, or its issuer's list."""
        for certificate, issuer in pairwise(chain):
            self.take(ocsp_id(certificate), partial(self.status, certificate, issuer))

    def status(self, certificate: x509.Certificate, issuer: x509.Certificate) -> list[Item]:
        """An OCSP answer, or the issuer's list where there is none."""
        try:
            return [self.fetcher.ocsp(certificate, issuer)]
        except AttestationError as error:
            with suppress(AttestationError):
                return [self.fetcher.nvidia_crl(certificate, issuer)]
            raise error from None

    def take(self, asked: object, fetch: Callable[[], list[Item]]) -> None:
        """Fetch once, or note why it cannot be had."""
        if asked not in self.asked:
            self.asked.add(asked)
            self.attempt(lambda: self.keep(fetch()))

    def keep(self, items: Iterable[Item]) -> None:
        """Remember what was fetched."""
        self.items |= {(item.kind, item.id): item for item in items}

    def attempt(self, act: Callable[[], None]) -> None:
        """Do it, or note why not."""
        try:
            act()
        except SecureTrainError as error:
            self.problems[f"{error.code}: {error.what} ({error.where})"] = None


def gather_from_makers(bundles: Iterable[Bundle], now: datetime) -> Gathered:
    """`gather` from the makers' own services, now."""
    services = Services()
    download = Downloader(services.origins())
    return gather(bundles, Fetcher(now=now, services=services, download=download))


def gather(
    bundles: Iterable[Bundle],
    fetcher: Fetcher,
    roots: frozenset[str] = NVIDIA_DEVICE_ROOTS,
) -> Gathered:
    """Fetch everything that the hardware in some bundles calls for.

    Args:
        bundles: of nodes; none of them is judged.
        fetcher: asks the makers.
        roots: SHA-256 of the SubjectPublicKeyInfo of roots of devices.
    """
    gathering = _Gathering(fetcher, roots)
    for bundle in bundles:
        gathering.attempt(partial(gathering.node, bundle))
    return Gathered(tuple(gathering.items.values()), tuple(gathering.problems))
